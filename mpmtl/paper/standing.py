"""Which methods are best on each data set, which owners gain, and what was spent on them."""

import numpy as np
import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import accuracy, saved_rows
from mpmtl.experiments.store import table_of
from mpmtl.experiments.sweep import together
from mpmtl.metrics import METRICS
from mpmtl.paper.intervals import half_width, summary

OWN = ("", "proved_tradeoff")  # experiments that compare methods on a data set as it is
KEYS = ["dataset", "method", "privacy", "status", "epsilon", "metric"]


def standing(ran):
    """Every finished run that compares methods, the best first.

    Parameters
    ----------
    ran : DataFrame
        Of `reader.runs`.

    Returns
    -------
    DataFrame
        Columns `KEYS`, run (its name), mean, half_width (of the 95 % interval of the paired
        difference to separate tasks), stl, count, gain (by how much the error is below that of
        separate tasks), verdict (better, worse, open) and private. The run with most replicates
        where there are several of the same kind. Sorted by data set and error.
    """
    finished = [manifest["status"] == "complete" for manifest in ran.manifest]
    chosen = ran[finished] if len(ran) else ran
    chosen = chosen[chosen.experiment.isin(OWN)] if len(chosen) else chosen
    if not len(chosen):
        return pd.DataFrame(columns=[*KEYS, "run"])
    rows = accuracy(chosen)
    rows = rows[rows.metric.isin(METRICS) & rows.stl.notna()]
    if not len(rows):
        return pd.DataFrame(columns=[*KEYS, "run"])
    table = summary(rows, [*KEYS, "run"]).sort_values("count", ascending=False, kind="stable")
    table = table.drop_duplicates(KEYS)
    higher = np.array([METRICS[name].higher_is_better for name in table.metric])
    table["gain"] = np.where(higher, table["mean"] - table.stl, table.stl - table["mean"])
    table["verdict"] = verdicts(table.gain, table.half_width)
    table["private"] = table.epsilon.notna()
    order = np.where(higher, -table["mean"], table["mean"])
    return table.assign(order=order).sort_values(["dataset", "order"]).drop(columns="order")


def verdicts(gain, half):
    """better or worse where the interval excludes zero, else open."""
    gain, half = np.asarray(gain, dtype=float), np.asarray(half, dtype=float)
    sure = np.abs(gain) > np.where(np.isnan(half), np.inf, half)
    return np.where(sure, np.where(gain > 0, "better", "worse"), "open")


def answers(table):
    """A sentence for each data set: the best private method at its largest budget and what holds.

    Parameters
    ----------
    table : DataFrame
        Of `standing`.
    """
    lines = []
    for dataset, rows in table.groupby("dataset", sort=True):
        first = rows.iloc[0]
        name = METRICS[first.metric].name
        private = rows[rows.private]
        words = f"{dataset}: separate tasks have {name} {first.stl:.4f}"
        if len(private):
            best = private.iloc[0]
            words += (
                f"; best of the private methods is {best.method} ({best.privacy}, epsilon = "
                f"{best.epsilon:g} {best.status} for one task) with {best['mean']:.4f}, "
                f"{_compared(best)}"
            )
            covered = private[private.status == "proved"]
            if best.status != "proved" and len(covered):
                best = covered.iloc[0]
                words += (
                    f"; best of those whose proved budget covers every choice is {best.method} "
                    f"(epsilon = {best.epsilon:g}) with {best['mean']:.4f}, {_compared(best)}"
                )
        free = rows[~rows.private & ~rows.method.str.startswith("stl")]
        if len(free):
            best = free.iloc[0]
            words += f"; without privacy {best.method} has {best['mean']:.4f}"
        lines.append(f"{words}.")
    return lines


def _compared(row):
    width = "" if np.isnan(row.half_width) else f" by {abs(row.gain):.4f} ± {row.half_width:.4f}"
    words = {"better": "better", "worse": "worse", "open": "not surely different"}[row.verdict]
    return f"{words}{width if row.verdict != 'open' else ''}"


def owners(ran, names):
    """Who gains and who loses by a method, owner by owner.

    Parameters
    ----------
    ran : DataFrame
        Of `reader.runs`.
    names : list of str
        Runs.

    Returns
    -------
    DataFrame
        Columns run, task, rows (of the test part, mean), error, stl (means over replicates), gain,
        half_width (of its paired 95 % interval), verdict. Empty where the owners' errors were not
        kept: synthetic data, and test errors that the budget pays for.
    """
    parts = []
    for name in names:
        try:
            rows = saved_rows(ran.loc[[name]], "owners", dtype={"task": str})
        except ResultsError:
            continue
        rows["gain"] = rows.stl - rows.error
        groups = rows.groupby("task", sort=False)
        part = groups[["rows", "error", "stl", "gain"]].mean()
        part["half_width"] = groups.gain.agg(lambda gain: float(half_width(gain)))
        part["verdict"] = verdicts(part.gain, part.half_width)
        parts.append(part.reset_index().assign(run=name))
    columns = ["run", "task", "rows", "error", "stl", "gain", "half_width", "verdict"]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def spent(ran):
    """Lines that say what all runs have spent on the same owners of a table together.

    The owners are those of the file, or of the data set, however a run reads and splits it.
    """
    rows = []
    for run in ran.itertuples():
        if block := run.manifest.get("spent"):
            table = run.manifest["settings"]["dataset"].get("sha256") or table_of(run.source)
            data = table or run.dataset
            rows.append({"dataset": run.dataset, "spent": block | {"data": data}})
    return together(rows)
