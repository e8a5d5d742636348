"""From results folders to the tables that figures are drawn from."""

import json
from pathlib import Path

import pandas as pd

from mpmtl.errors import ResultsError


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
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ResultsError(f"{path} is damaged: run its command again") from error
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


def accuracy(root):
    """Every replicate's main metric, of all runs below a folder.

    Returns
    -------
    DataFrame
        Columns dataset, method, privacy, status, epsilon (nan: not private), replicate, metric,
        value, stl.
    """
    parts = []
    for path, manifest in runs_below(root):
        rows = pd.read_csv(path / "replicates.csv", keep_default_na=False, na_values=[""])
        main = rows.metric.iloc[0]
        stl = rows[rows.metric == f"{main}_stl"].set_index("replicate").value
        part = rows[rows.metric == main].copy()
        part["stl"] = part.replicate.map(stl)
        part["status"] = status_of(manifest)
        part["epsilon"] = manifest["settings"]["epsilon"]
        parts.append(part)
    columns = ["dataset", "method", "privacy", "status", "epsilon"]
    return pd.concat(parts)[[*columns, "replicate", "metric", "value", "stl"]]
