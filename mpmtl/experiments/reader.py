"""From results folders to the tables that figures are drawn from, and those tables from files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.errors import ResultsError


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
        raise ResultsError(f"{path} is missing: run the experiment first") from None
    except (ValueError, OSError) as error:
        raise ResultsError(f"{path} is no table: {' '.join(str(error).split())}") from error


#: What every manifest has.
KEYS = {"status", "started", "updated", "replicates_done", "settings", "code", "environment"}


def read_manifest(path):
    """The manifest of a run or an audit; ResultsError if it is damaged, or something else."""
    try:
        manifest = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{path} is damaged: run its command again") from error
    if not isinstance(manifest, dict) or not manifest.keys() >= KEYS:
        raise ResultsError(f"{path} is not the manifest of a run: move it elsewhere")
    return manifest


def runs_below(root):
    """Finished runs below a folder.

    Returns
    -------
    list of (Path, dict)
        Folder and manifest.

    Raises
    ------
    ResultsError
        If there is none.
    """
    found = []
    for path in sorted(Path(root).rglob("manifest.json")):
        manifest = read_manifest(path)
        if manifest.get("status") == "complete" and (path.parent / "replicates.csv").is_file():
            found.append((path.parent, manifest))
    if not found:
        raise ResultsError(f"no finished run below {root}: run mpmtl-run first")
    return found


def status_of(manifest):
    """ "proved", "claimed" or "none": what stands behind the stated epsilon."""
    if manifest["settings"]["epsilon"] is None:
        return "none"
    return "claimed" if manifest["privacy"]["claimed"] else "proved"


def main_metric(path, pooled=False):
    """Rows of replicates.csv with a run's main metric, and `stl`, that of separate tasks.

    With `pooled` the error over all tasks together, where there is one; it has no `stl`.
    """
    rows = read_table(Path(path) / "replicates.csv")
    main = rows.metric.iloc[0]
    if pooled and (rows.metric == f"{main}_pooled").any():
        return rows[rows.metric == f"{main}_pooled"].copy()
    stl = rows[rows.metric == f"{main}_stl"].set_index("replicate").value
    part = rows[rows.metric == main].copy()
    part["stl"] = part.replicate.map(stl)
    return part


def accuracy(root, pooled=False):
    """Every replicate's main metric, or the pooled one, of all runs below a folder.

    Returns
    -------
    DataFrame
        Columns dataset, method, privacy, status, epsilon (nan: not private), replicate, metric,
        value, stl (not with `pooled`).
    """
    parts = []
    for path, manifest in runs_below(root):
        part = main_metric(path, pooled)
        part["status"] = status_of(manifest)
        part["epsilon"] = manifest["settings"]["epsilon"]
        parts.append(part)
    columns = ["dataset", "method", "privacy", "status", "epsilon"]
    columns += ["replicate", "metric", "value", *([] if pooled else ["stl"])]
    return pd.concat(parts)[columns]


def summary(rows, keys):
    """Mean, standard deviation and number of replicates of `value` for each group of `keys`.

    With the mean of `stl`, separate tasks on the same replicates, where there is such a column.
    """
    groups = rows.groupby(keys, dropna=False, sort=False)
    table = groups.value.agg(["mean", "std", "count"])
    if "stl" in rows:
        table["stl"] = groups.stl.mean()
    return table.reset_index().fillna({"std": 0.0})


def stl_level(table):
    """Mean of separate tasks over all replicates of a `summary`."""
    return np.average(table.stl, weights=table["count"])


def run_table(path, name):
    """A table (replicates, cv, trace) of one run; ResultsError if it is not there."""
    return read_table(Path(path) / f"{name}.csv")


def recorded_dataset(path, kind):
    """The data set of a run, an instance of `kind` with its settings, and the run's seed."""
    settings = read_manifest(Path(path) / "manifest.json")["settings"]
    values = {key: v for key, v in settings["dataset"].items() if key != "_target_"}
    return kind(**values), settings["seed"]


def saved_models(path, replicate=0):
    """Models of a run with save_models=true, shape (m, d)."""
    place = Path(path) / "models" / f"replicate-{replicate:04d}"
    files = sorted(place.glob("task-*.json"))
    if not files:
        raise ResultsError(f"{place} has no models: run with save_models=true")
    return np.array([json.loads(file.read_text(encoding="utf-8"))["coef"] for file in files])
