"""Methods side by side on the same replicates: means, paired tests, share of the gap recovered."""

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from mpmtl.metrics import METRICS
from mpmtl.paper.intervals import half_width

RESAMPLES = 2000


def gap_recovered(values, stl, best):
    """R = (stl - values)/(stl - best) of the means; the same for a metric to be maximised."""
    return (np.mean(stl) - np.mean(values)) / (np.mean(stl) - np.mean(best))


def compare(rows, reference="fl", rng=None):
    """Table of every method and epsilon against separate tasks and a reference method.

    Parameters
    ----------
    rows : DataFrame
        The main metric of every replicate, as of `mpmtl.experiments.reader.accuracy`.
    reference : str
        Method for the paired tests, at the same epsilon and on the same replicates.
    rng : numpy.random.Generator, optional
        For the bootstrap over replicates; default: a fixed seed.

    Returns
    -------
    DataFrame
        dataset, method, privacy, epsilon (inf: not private), status, n, metric, mean, sd, stl (mean
        on the same replicates), half_width (of the 95 % interval of mean - stl, paired), best
        (method of the best mean without noise, if better than stl), R, R_low, R_high (95 %,
        bootstrap over the replicates that the method and the best one share), difference (method
        minus reference, mean over shared replicates) and p (paired t test, two-sided). Empty where
        not defined.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    keys = ["dataset", "method", "privacy", "epsilon"]
    groups = dict(list(rows.fillna({"epsilon": np.inf}).groupby(keys)))
    runs = {key: group.set_index("replicate").value for key, group in groups.items()}
    stl = {key: group.set_index("replicate").stl for key, group in groups.items()}
    metrics = rows.groupby("dataset").metric.first()
    lines = []
    for key, values in runs.items():
        dataset, method, privacy, epsilon = key
        row = {**dict(zip(keys, key, strict=True)), "n": len(values)}
        row["status"] = groups[key].status.iloc[0]
        row |= {"metric": metrics[dataset], "mean": values.mean(), "sd": values.std()}
        row |= {"stl": stl[key].mean(), "half_width": float(half_width(values - stl[key]))}
        sign = -1 if METRICS[metrics[dataset]].higher_is_better else 1
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
        lines.append(row)
    columns = [
        *keys,
        "status",
        "n",
        "metric",
        "mean",
        "sd",
        "stl",
        "half_width",
        "best",
        "R",
        "R_low",
        "R_high",
    ]
    table = pd.DataFrame(lines, columns=[*columns, "difference", "p"])
    return table.sort_values(["dataset", "epsilon", "method"], ignore_index=True)


def _recovered(values, stl, best, rng):
    shared = pd.concat([values, stl, best], axis=1, join="inner").to_numpy()
    if len(shared) < 2 or shared[:, 1].mean() == shared[:, 2].mean():
        return {}
    draws = shared[rng.integers(len(shared), size=(RESAMPLES, len(shared)))]
    spread = [gap_recovered(*sample.T) for sample in draws]
    low, high = np.quantile(spread, [0.025, 0.975])
    return {"R": gap_recovered(*shared.T), "R_low": low, "R_high": high}
