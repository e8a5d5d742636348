"""What raises a prediction: slopes of a saved model in the table's own units."""

import numpy as np

from mpmtl.errors import require
from mpmtl.experiments.layout import filled, table_text


def own_units(encoder, coef, intercept):
    r"""A linear model of encoded features as one of the columns as they stand in the table.

    With a numeric feature (x - c)/s its slope is b/s, and the intercept takes up -b c/s; of levels
    and flags, which are 0 or 1, the slope is b. So the score is

    .. math:: a + \sum_j \text{slope}_j x_j

    for rows that the encoder neither clips nor shortens; a missing number counts as the task's own
    mean of the column.

    Parameters
    ----------
    encoder : Encoder
    coef : ndarray, shape (d,)
        In units of the target per unit of an encoded feature.
    intercept : float

    Returns
    -------
    slopes : ndarray, shape (d,)
    intercept : float
    steps : ndarray, shape (d,)
        A typical step of each: the sd or half the public range of a number, 1 of levels and flags.

    Raises
    ------
    InputError
        If rows are scaled to unit length: then no slope is the same for all rows.
    """
    require(
        encoder.rows != "unit",
        "rows are scaled to unit length (rows = unit), so no slope is the same for all rows: use "
        "rows = clip",
    )
    centers, steps = np.zeros(len(coef)), np.ones(len(coef))
    for column in encoder.columns:
        if column.levels is None:
            j = encoder.features.index(column.name)
            centers[j], steps[j] = column.center, column.scale
    slopes = np.asarray(coef) / steps
    return slopes, float(intercept - slopes @ centers), steps


def effects(model):
    """What raises the prediction of a model, a dict of `predict.read_model`, and by how much.

    Returns
    -------
    list of dict
        For each feature: what (its name), against (what the change is counted from), slope, step
        (a typical one) and effect (slope times step); from what raises most to what lowers most.
    """
    encoder = model["encoder"]
    slopes, _, steps = own_units(encoder, model["coef"], model["intercept"])
    against = {}
    for column in encoder.columns:
        words = "1 less" if column.levels is None else "none of its levels"
        against |= dict.fromkeys(column.features, words)
        if column.indicator:
            against[f"{column.name} missing"] = "the own mean"
    rows = [
        {"what": name, "against": against[name], "slope": s, "step": step, "effect": s * step}
        for name, s, step in zip(encoder.features, slopes, steps, strict=True)
    ]
    return sorted(rows, key=lambda row: -row["effect"])


def explanation(models):
    """What raises the predictions of each task, as text for the terminal.

    Parameters
    ----------
    models : dict of str to dict
        From task to `predict.read_model`.
    """
    first = next(iter(models.values()))
    what = f"{first['target']} goes up by"
    if first["kind"] == "binary":
        what = f"log odds of {first['target']} = {first['positive']} go up by"
    blocks = []
    for task, model in models.items():
        rows = [
            {
                "column": row["what"],
                "against": row["against"],
                "by": f"{row['slope']:+.4g}",
                "a typical step": "" if row["against"] != "1 less" else f"{row['step']:.4g}",
                "by so much": f"{row['effect']:+.4g}",
            }
            for row in effects(model)
        ]
        text = table_text(rows, right=("by", "a typical step", "by so much"))
        blocks.append("\n".join([filled(f"{task}: {what} (from most to least)"), text]))
    notes = [
        "A typical step is the sd of a number, or half its public range. Slopes are those of the "
        "model and say nothing about causes."
    ]
    limits = [c.name for m in models.values() for c in m["encoder"].columns if c.limit is not None]
    if limits or first["encoder"].rows == "clip":
        notes.append(
            "Values out of a public range count as its end, and rows that are longer than "
            f"{first['encoder'].limit:.4g} when scaled are shortened: there the slope is less."
        )
    return "\n\n".join([*blocks, *map(filled, notes)])
