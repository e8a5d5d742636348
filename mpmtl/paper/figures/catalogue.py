"""All kinds of figures: the table of each, what draws it, and what it shows."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mpmtl.paper.figures import (
    budget_allocation,
    matrices,
    noise_to_signal,
    privacy_accuracy,
    privacy_audit,
    proved_tradeoff,
    task_number,
    training_percentage,
)


class Kind(NamedTuple):
    """A kind of figure.

    Attributes
    ----------
    collect : callable
        ``collect(results, **values)`` is the table of the figure.
    draw : callable
        ``draw(table, path)`` writes path.png, .pdf and .csv.
    caption : str
    of : str, optional
        The value that its file is called after, as a data set.
    """

    collect: Callable
    draw: Callable
    caption: str
    of: str | None = None


#: By the start of the file's name; what follows is a form or a data set.
KINDS = {
    "model_leakage": Kind(
        matrices.collect_leakage,
        matrices.draw,
        "Models of ten tasks, columns scaled to length 1: before learning together, after a round "
        "without noise, and after a round with Wishart noise at a claimed eps = 0.1.",
    ),
    "task_relations": Kind(
        matrices.collect_relations,
        matrices.draw,
        "Cosines between the tasks' models, mean over replicates (above), and the models of the "
        "first replicate (below): true, by dp_mtrl and by lr, both at a claimed eps = 0.1.",
    ),
    "budget_allocation": Kind(
        budget_allocation.collect,
        budget_allocation.draw,
        "Cross-validation error of lr at a claimed eps = 0.1 over how the budget is shared by the "
        "rounds, with and without acceleration.",
        of="form",
    ),
    "noise_to_signal": Kind(
        noise_to_signal.collect,
        noise_to_signal.draw,
        "Noise beside the covariance over the rounds of lr at a claimed eps = 0.1, and of dp_mtrl "
        "in its first round.",
    ),
    "privacy_accuracy": Kind(
        privacy_accuracy.collect,
        privacy_accuracy.draw,
        "Accuracy over the budget of one task. Each line says whether its budget is claimed or "
        "proved; dp_mtrl and dp_aggr have a panel of their own, their errors are larger.",
        of="dataset",
    ),
    "task_number": Kind(
        task_number.collect,
        task_number.draw,
        "Error of the first 20 tasks over the number of tasks that take part.",
    ),
    "training_percentage": Kind(
        training_percentage.collect,
        training_percentage.draw,
        "Accuracy over the share of samples that trains, at three budgets of one task; below, the "
        "methods with larger errors.",
        of="dataset",
    ),
    "privacy_audit": Kind(
        privacy_audit.collect,
        privacy_audit.draw,
        "Measured lower bound on delta at the stated epsilon: a line above the stated delta "
        "refutes that statement; a line below proves nothing.",
    ),
    "proved_tradeoff": Kind(
        proved_tradeoff.collect,
        proved_tradeoff.draw,
        "Accuracy at equal stated budgets. The legend says which are proved, which claimed; "
        "errors far above separate tasks are cut off.",
    ),
}


def kind_of(name):
    """The kind of a figure by its file's name, or None."""
    return next((kind for start, kind in KINDS.items() if name.startswith(start)), None)


def make(name, results, out=None, show=None, **values):
    """Draw a figure of a results folder.

    Parameters
    ----------
    name : str
        Its kind.
    results : path
    out : path, optional
        Without suffix; default ``<results>/figures/<name>_<of>``.
    show : callable, optional
        Is shown the table.
    **values : dict
        What else `collect` wants to know.

    Returns
    -------
    Path
        The file, without suffix.
    """
    kind = KINDS[name]
    file = f"{name}_{values[kind.of]}" if kind.of else name
    path = Path(out) if out else Path(results) / "figures" / file
    table = kind.collect(results, **values)
    if show:
        show(table)
    kind.draw(table, path)
    return path
