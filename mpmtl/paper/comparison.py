"""Methods side by side on the same replicates: means, paired tests, share of the gap recovered."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from mpmtl.errors import require

HIGHER_IS_BETTER = {"nmse": False, "aauc": True}
RESAMPLES = 2000


def read_replicates(results_dir):
    """The replicates of all runs of a results folder, one table.

    Folders of another scale or with a tag (`smoke/`, `task_number/`) are not read: they hold other
    settings of the same methods.
    """
    paths = sorted(Path(results_dir).glob("*/*/*/eps-*/replicates.csv"))
    require(paths, f"there are no results below {results_dir}: run mpmtl-run first")
    return pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)


def gap_recovered(values, stl, best):
    """R = (stl - values)/(stl - best) of the means; the same for a metric to be maximised."""
    return (np.mean(stl) - np.mean(values)) / (np.mean(stl) - np.mean(best))


def compare(replicates, reference="fl", rng=None):
    """Table of every method and epsilon against separate tasks and a reference method.

    Parameters
    ----------
    replicates : DataFrame
        Rows of replicates.csv.
    reference : str
        Method for the paired tests, at the same epsilon and on the same replicates.
    rng : numpy.random.Generator, optional
        For the bootstrap over replicates; default: a fixed seed.

    Returns
    -------
    DataFrame
        dataset, method, privacy, epsilon, n, metric, mean, sd, stl (mean on the same replicates),
        best (method of the best mean without noise, if better than stl), R, R_low, R_high (95 %,
        bootstrap over the replicates that the method and the best one share), difference (method
        minus reference, mean over shared replicates) and p (paired t test, two-sided). Empty where
        not defined.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    keys = ["dataset", "method", "privacy", "epsilon"]
    main = replicates[replicates.metric.isin(list(HIGHER_IS_BETTER))]
    stl = replicates[replicates.metric.isin([f"{name}_stl" for name in HIGHER_IS_BETTER])]
    stl = {key: g.set_index("replicate").value for key, g in stl.groupby(keys)}
    runs = {key: g.set_index("replicate").value for key, g in main.groupby(keys)}
    metrics = main.groupby("dataset").metric.first()
    rows = []
    for key, values in runs.items():
        dataset, method, privacy, epsilon = key
        row = {**dict(zip(keys, key, strict=True)), "n": len(values)}
        row |= {"metric": metrics[dataset], "mean": values.mean(), "sd": values.std()}
        row["stl"] = stl[key].mean()
        sign = -1 if HIGHER_IS_BETTER[metrics[dataset]] else 1
        free = [
            k
            for k, v in runs.items()
            if k[0] == dataset and np.isinf(k[3]) and sign * (stl[k] - v).mean() > 0
        ]
        if free:
            best = min(free, key=lambda k: sign * runs[k].mean())
            row |= {"best": best[1], **_recovered(values, stl[key], runs[best], rng)}
        other = runs.get((dataset, reference, privacy, epsilon))
        if other is not None and method != reference:
            both = pd.concat([values, other], axis=1, join="inner").to_numpy()
            row["difference"] = (both[:, 0] - both[:, 1]).mean()
            if len(both) > 1 and np.ptp(both[:, 0] - both[:, 1]) > 0:
                row["p"] = ttest_rel(both[:, 0], both[:, 1]).pvalue
        rows.append(row)
    columns = [*keys, "n", "metric", "mean", "sd", "stl", "best", "R", "R_low", "R_high"]
    table = pd.DataFrame(rows, columns=[*columns, "difference", "p"])
    return table.sort_values(["dataset", "epsilon", "method"], ignore_index=True)


def _recovered(values, stl, best, rng):
    shared = pd.concat([values, stl, best], axis=1, join="inner").to_numpy()
    if len(shared) < 2 or shared[:, 1].mean() == shared[:, 2].mean():
        return {}
    draws = shared[rng.integers(len(shared), size=(RESAMPLES, len(shared)))]
    spread = [gap_recovered(*sample.T) for sample in draws]
    low, high = np.quantile(spread, [0.025, 0.975])
    return {"R": gap_recovered(*shared.T), "R_low": low, "R_high": high}
