"""From results to tidy tables: the only way in which anything reads what runs and audits left.

    chosen = runs("results").query("method == 'lr' and epsilon == 1")
    read_rows(chosen, "cv")

A results folder holds a folder for each run; a reference folder holds the same as a few tables
(`store.write_reference`). Both are read by the same functions.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.experiments.store import REFERENCE, flat, reference_manifests, reference_table
from mpmtl.privacy.statements import mark

#: What every manifest has.
KEYS = {"status", "started", "updated", "replicates_done", "settings", "code", "environment"}
KEYS |= {"tag", "dataset", "method", "mechanism"}

GUARANTEES = ("claimed", "proved", "instance")


class NotThere(ResultsError):
    """Runs, or tables or models of runs, that a results folder does not have."""


def read_table(path, dtype=None):
    """A table as it was saved; only empty fields are missing, "none" is a word.

    Raises
    ------
    ResultsError
        If it is not there or is no table.
    """
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dtype)
    except FileNotFoundError:
        raise NotThere(f"{path} is missing: run the experiment first") from None
    except (ValueError, OSError) as error:
        raise ResultsError(f"{path} is no table: {' '.join(str(error).split())}") from error


def _read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{path} is damaged: run its command again") from error


def _checked(manifest, path):
    if not isinstance(manifest, dict) or not manifest.keys() >= KEYS:
        raise ResultsError(f"{path} is not the manifest of a run: move it elsewhere")
    return manifest


def _manifests(root):
    """Every manifest of a results or reference folder, with where its tables are.

    A run belongs to the folder below which it lies in its own tag and data set: those of another
    scale (results/smoke within results) do not.

    Yields
    ------
    (str, Path, int, dict)
        Name of the run, folder or manifest of its experiment, number therein, manifest.
    """
    root = Path(root)
    for path in sorted(root.glob(f"*{REFERENCE}")):
        content = _read_json(path)
        if not isinstance(content, dict) or not content.keys() >= {"common", "caveats", "runs"}:
            raise ResultsError(f"{path} is not the manifest of an experiment: move it elsewhere")
        for number, manifest in enumerate(reference_manifests(content)):
            name = f"{path.name.removesuffix(REFERENCE)}#{number}"
            yield name, path, number, _checked(manifest, path)
    for path in sorted(root.rglob("manifest.json")):
        manifest = _checked(_read_json(path), path)
        folder = path.parent.relative_to(root)
        own = Path(manifest["tag"], manifest["dataset"]).parts
        if folder.parts[: len(own)] == own:
            yield folder.as_posix(), path.parent, 0, manifest


def _status(manifest):
    if manifest["settings"]["epsilon"] is None:
        return "none"
    if "privacy" not in manifest:
        return "not known"
    privacy = manifest["privacy"]
    return ("claimed" if privacy["claimed"] else "proved") + mark(privacy["caveats"])


def _row(name, source, number, manifest):
    settings = manifest["settings"]
    return {
        "run": name,
        "experiment": manifest["tag"].split("/")[0],
        "tag": manifest["tag"],
        "dataset": manifest["dataset"],
        "method": manifest["method"],
        "privacy": manifest["mechanism"],
        "status": _status(manifest),
        "epsilon": np.nan if settings["epsilon"] is None else settings["epsilon"],
        "replicates": manifest["replicates_done"],
        "grid": manifest.get("grid") or settings.get("tuning", {}).get("density", ""),
        **{key: value for key, value in flat(settings).items() if "." in key},
        "source": source,
        "number": number,
        "manifest": manifest,
    }


def runs(root, finished=True):
    """Runs of a results or reference folder.

    Parameters
    ----------
    root : path
    finished : bool
        Only those that are complete.

    Returns
    -------
    DataFrame
        A row for each run, by its name: experiment (first word of the tag, "" without), tag,
        dataset, method, privacy, status (claimed, proved, none: what stands behind epsilon; with
        a mark where the budget does not cover all choices),
        epsilon (nan: not private), replicates, grid (values tried, in words), every recorded
        setting of a group as "dataset.used", and the manifest. Source and number say where its
        tables are.

    Raises
    ------
    ResultsError
        If there is no finished run, or a damaged manifest.
    """
    rows = [
        _row(*where, manifest)
        for *where, manifest in _manifests(root)
        if "verdicts" not in manifest and (not finished or manifest["status"] == "complete")
    ]
    if finished and not rows:
        raise NotThere(f"no finished run below {root}: run mpmtl-run first")
    return pd.DataFrame(rows, columns=None if rows else ["run", "manifest"]).set_index("run")


def audits(root):
    """Audits of a results or reference folder.

    Returns
    -------
    DataFrame
        A row for each audit and guarantee: the columns of `runs`, the stated epsilon and the sizes
        d, m, rounds among them; guarantee, its delta and the epsilon at which it was measured;
        the measured lower bound, verdict, attack and pair.

    Raises
    ------
    ResultsError
        If there is none.
    """
    rows = []
    sizes = ("d", "m", "rounds", "confidence")
    measured = ("guarantee", "epsilon", "delta", "measured", "verdict", "attack", "pair")
    for *where, manifest in _manifests(root):
        settings, verdicts = manifest["settings"], manifest.get("verdicts", {})
        for verdict in (verdicts[name] for name in GUARANTEES if name in verdicts):
            row = _row(*where, manifest) | {key: settings[key] for key in sizes}
            row["stated_epsilon"] = settings["epsilon"]
            rows.append(row | {key: verdict[key] for key in measured})
    if not rows:
        raise NotThere(f"no audits below {root}: run mpmtl-audit experiment=privacy_audit")
    return pd.DataFrame(rows).set_index("run")


def saved_rows(chosen, name, dtype=None):
    """Rows of a table of runs as they were saved, with the column `run`, the run's name.

    Parameters
    ----------
    chosen : DataFrame
        Rows of `runs` or `audits`.
    name : str
        replicates, cv, trace, timing; bounds for audits.
    dtype : optional
        str: the digits as they are.

    Raises
    ------
    ResultsError
        If it is missing; a reference folder has cv and trace only where a figure needs them.
    """
    parts = []
    for source, group in chosen.groupby("source", sort=False):
        if source.is_dir():
            part = read_table(source / f"{name}.csv", dtype).assign(run=group.index[0])
        else:
            experiment = source.name.removesuffix(REFERENCE)
            part = read_table(reference_table(source.parent, experiment, name), dtype)
            names = dict(zip(group.number, group.index, strict=True))
            part = part.assign(run=part.run.astype(int).map(names)).dropna(subset="run")
            lacking = sorted(set(names.values()) - set(part.run))
            if lacking and name != "trace":  # without noise there is none
                raise NotThere(f"{source.parent} has no {name} of {lacking[0]}")
        parts.append(part)
    filled = [part for part in parts if len(part)]  # an empty part would make all columns objects
    return pd.concat(filled or parts, ignore_index=True)


def read_rows(chosen, name):
    """`saved_rows` with the columns of their run: dataset, method, epsilon, every setting."""
    rows = saved_rows(chosen, name)
    return rows.drop(columns=[key for key in rows if key in chosen]).join(
        chosen.drop(columns=["source", "number", "manifest"]), on="run"
    )


def accuracy(chosen, pooled=False):
    """Every replicate's main metric of the chosen runs.

    With `pooled` the error over all tasks together, where there is one.

    Returns
    -------
    DataFrame
        Columns of `read_rows`, value, and stl, that of separate tasks (not with `pooled`).
    """
    rows = read_rows(chosen, "replicates")
    main = rows.groupby("run", sort=False).metric.transform("first")
    if pooled:
        has_pooled = (rows.metric == main + "_pooled").groupby(rows.run).transform("any")
        return rows[rows.metric == main.where(~has_pooled, main + "_pooled")].copy()
    stl = rows[rows.metric == main + "_stl"].set_index(["run", "replicate"]).value
    return rows[rows.metric == main].join(stl.rename("stl"), on=["run", "replicate"])


def compared(chosen):
    """`accuracy` of the runs that measured separate tasks beside it; NotThere if there is none.

    A fit of all rows has no test error, and one that the budget pays for is that of a run alone.
    """
    rows = accuracy(chosen).dropna(subset="stl")
    return needed(rows, "no run has test errors beside those of separate tasks")


def needed(chosen, message):
    """The chosen rows; NotThere with this message if there is none."""
    if chosen.empty:
        raise NotThere(message)
    return chosen


def recorded_dataset(run, kind):
    """The data set of a run, an instance of `kind` with its settings, and the run's seed."""
    settings = run.manifest["settings"]
    own = settings["dataset"].items()
    values = {key: value for key, value in own if key not in ("_target_", "n_public")}
    return kind(**values), settings["seed"]


def saved_models(run, replicate=0):
    """Models of a run with save_models=true, shape (m, d)."""
    folder = run.source / "models" / f"replicate-{replicate:04d}"
    files = sorted(folder.glob("task-*.json"))
    if not files:
        raise NotThere(f"run {run.name} has no models: run it with save_models=true")
    return np.array([json.loads(file.read_text(encoding="utf-8"))["coef"] for file in files])
