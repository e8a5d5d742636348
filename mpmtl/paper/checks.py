"""What the paper's statements compare, measured in the runs of a results folder."""

import itertools
import math
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.experiments import reader
from mpmtl.experiments.reader import accuracy, audits, needed, read_table
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.noise_to_signal import PAPER_DP_MTRL, log_ratio
from mpmtl.paper.utility import ConvexBound, noise_level
from mpmtl.paper.verdicts import FAILS, HOLDS, OPEN, Comparison, Verdict

PRIVACY = {
    "lr": "wishart",
    "gs": "wishart",
    "dp_mtrl": "output_perturbation",
    "dp_aggr": "output_perturbation",
}


_SAME = ["experiment", "dataset", "method", "privacy", "epsilon"]


def _data_settings(table):
    """Settings of the data of each run of `reader.runs`, in words."""
    return [str(row) for row in table.filter(like="dataset.").to_numpy(dtype=object).tolist()]


class Runs:
    """Errors of the runs of a results folder, by replicate.

    Parameters
    ----------
    finished : DataFrame
        Of `reader.runs`.
    root : Path
        The folder, for what was drawn and audited.
    """

    def __init__(self, finished, root):
        self.finished, self.root = finished, Path(root)
        self.used = set()  # (grid, replicates)

    @cached_property
    def rows(self):
        """Main metric of each run by its name; the pooled one for Figs. S1 and S2."""
        shares = self.finished.experiment == "training_percentage"
        groups = ((self.finished[~shares], False), (self.finished[shares], True))
        parts = [accuracy(chosen, pooled) for chosen, pooled in groups if len(chosen)]
        return {
            name: rows.set_index("replicate")
            for part in parts
            for name, rows in part.groupby("run")
        }

    def tried(self, claim):
        """Runs with other settings, tagged ``tried/<claim>/<label>``: pairs of label and `Runs`.

        What such a folder does not have is that of the claim's own runs, but for data sets that it
        draws with other settings.
        """
        start = f"tried/{claim}/"
        rest = self.finished[~self.finished.tag.str.startswith("tried/")]
        tags = self.finished.tag[self.finished.tag.str.startswith(start)].str.removeprefix(start)
        labels = tags.str.split("/").str[0]
        for label in sorted(labels.unique()):
            own = tags[labels == label].str.removeprefix(label).str.removeprefix("/")
            part = self.finished.loc[own.index].assign(
                tag=own, experiment=own.str.split("/").str[0]
            )
            taken = part.set_index(_SAME).index
            others = rest[rest.experiment.isin(part.experiment)]
            others = others[~others.set_index(_SAME).index.isin(taken)]
            drawn = set(zip(part.dataset, _data_settings(part), strict=True))
            same = zip(others.dataset, _data_settings(others), strict=True)
            names = set(part.dataset)
            kept = [pair in drawn or pair[0] not in names for pair in same]
            yield label, Runs(pd.concat([part, others[kept]]), self.root / start / label)

    def chosen(self, dataset, method, epsilon, experiment="", share=None):
        """Runs of a method with the mechanism that the paper gives it; `epsilon` if it has one."""
        table = self.finished
        here = (table.experiment == experiment) & (table.dataset == dataset)
        here &= (table.method == method) & (table.privacy == PRIVACY.get(method, "none"))
        if method in PRIVACY and epsilon is not None:
            here &= table.epsilon == epsilon
        if share is not None:
            here &= table["dataset.train_fraction"] == share
        return table[here]

    def one(self, dataset, method, epsilon, *where):
        """The run, as a table with one row."""
        words = " ".join(map(str, filter(None, (*where, dataset, method))))
        words += f" eps {epsilon:g}" if method in PRIVACY else ""
        run = needed(
            self.chosen(dataset, method, epsilon, *where),
            f"{self.root} has no finished run of {words}",
        ).iloc[:1]
        self.used.add((run.grid.iloc[0], run.replicates.iloc[0]))
        return run

    def error(self, dataset, method, epsilon=None, *where):
        """nMSE, or 1 - aAUC, indexed by replicate; `stl` is that of separate tasks (ridge)."""
        ran = method
        if method == "stl":
            others = ("stl_best", "stl", "mtl", "lr")
            there = (m for m in others if len(self.chosen(dataset, m, epsilon, *where)))
            ran = next(there, "stl")
        rows = self.rows[self.one(dataset, ran, epsilon, *where).index[0]]
        own = method != "stl" or ran.startswith("stl")
        return METRICS[rows.metric.iloc[0]].error(rows.value if own else rows.stl)

    def table(self, name, dataset, method, epsilon, *where):
        """A table (cv, trace) of a run."""
        return reader.read_rows(self.one(dataset, method, epsilon, *where), name)

    def budgets(self, dataset, method, *where):
        """Budgets for which a private method was run."""
        chosen = self.chosen(dataset, method, None, *where)
        return sorted(needed(chosen, f"no runs of {method} on {dataset} in {self.root}").epsilon)

    def shares(self, dataset):
        """Shares of training samples for which there are runs."""
        query = "experiment == 'training_percentage' and dataset == @dataset"
        chosen = self.finished.query(query)
        needed(chosen, f"no training_percentage of {dataset} below {self.root}")
        return sorted(chosen["dataset.train_fraction"].unique())

    def figure(self, name):
        """Panels of a picture of matrices, by title."""
        panels = read_table(self.root / f"figures/{name}.csv").set_index("panel")
        values = panels.drop(columns=["rows", "row"])
        return {title: group.dropna(axis=1).to_numpy() for title, group in values.groupby(level=0)}

    @property
    def settings(self):
        """Grids and replicates of what was read so far."""
        if not self.used:
            return "-"
        grids, counts = (sorted(set(column)) for column in zip(*self.used, strict=True))
        n = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
        return f"{'; '.join(grids)}, {n} replicate{'s' * (n != '1')}"


def below(runs, dataset, first, second, budgets=None, share=None, factor=1.0):
    """The error of `first` is below `factor` times that of `second`, paired, at each budget.

    With `share`, that of the runs with this share of training samples.
    """
    private = [m for m in (first, second) if m in PRIVACY]
    where = () if share is None else ("training_percentage", share)
    other = second if factor == 1 else f"{factor:g} {second}"
    comparisons = []
    for eps in budgets or (runs.budgets(dataset, private[0], *where) if private else [None]):
        a, b = (runs.error(dataset, m, eps, *where) for m in (first, second))
        pair = pd.concat([a, factor * b], axis=1, join="inner").to_numpy()
        words = (f"eps {eps:g}" if private else "") + (f", {100 * share:g} %" if where else "")
        label = f"{dataset} {first} - {other} ({words})"
        comparisons.append(Comparison(label, pair[:, 0] - pair[:, 1]))
    return comparisons


def between(runs, dataset):
    """`lr` and `gs` are below separate tasks and above the best method without noise."""
    return [
        comparison
        for method in ("lr", "gs")
        for pair in ((method, "stl"), ("mtl", method))
        for comparison in below(runs, dataset, *pair)
    ]


def within(values, low, high, label):
    """The mean is between two numbers."""
    return [
        Comparison(f"{label} - {high:g}", values - high),
        Comparison(f"{low:g} - {label}", low - values),
    ]


def leakage(runs):
    """Claim `leakage`."""
    panels = list(runs.figure("model_leakage").values())

    def alike(W):
        V = W / np.linalg.norm(W, axis=0)
        return np.abs(V[:, :-1].T @ V[:, -1])

    before, leaked, protected = map(alike, panels)
    words = "|cos| of nine models with the tenth"
    return [
        Comparison(f"{words}: before - without noise", before - leaked, "models"),
        Comparison(
            f"{words}: change at eps 0.1, less 0.1", np.abs(protected - before) - 0.1, "models"
        ),
    ]


def allocation(runs, form):
    """Errors of all candidates of Fig. 4, on held-out folds."""
    return runs.table("cv", "low_rank", "lr", 0.1, f"budget_allocation_{form}")


def best_at(cv, key):
    """Best error of each replicate at each value of a setting."""
    return cv.groupby(["replicate", key]).score.min().unstack()


def momentum(form):
    """Claims `momentum-convex` and `momentum-strong`."""

    def check(runs):
        best = best_at(allocation(runs, form), "accelerated")
        return [Comparison("CV error, accelerated - basic", best[True] - best[False])]

    return check


def better_inside(best, inside, others, key, kind=""):
    """The best value inside, chosen on even replicates, beats the others on the odd ones."""
    choose, test = best[best.index % 2 == 0], best[best.index % 2 == 1]
    chosen = choose[[v for v in best.columns if inside(v)]].mean().idxmin()
    return [
        Comparison(f"{kind}{key} = {chosen:g} - {key} = {v:g}", test[chosen] - test[v], each=2)
        for v in others
    ]


def optimum(form, low, high, edges, accelerated=(False, True)):
    """The best value between `low` and `high` is better than the edges."""

    def check(runs):
        key, cv = {"convex": "alpha", "strong": "Q"}[form], allocation(runs, form)
        return [
            comparison
            for fast in accelerated
            for comparison in better_inside(
                best_at(cv[cv.accelerated == fast], key),
                lambda v: low <= v <= high,
                edges,
                key,
                "accelerated: " if fast else "basic: ",
            )
        ]

    return check


def no_falling_is_better(runs):
    """The best alpha >= 0 beats each alpha < 0."""
    best = best_at(allocation(runs, "convex"), "alpha")
    falling = [v for v in best.columns if v < 0]
    return better_inside(best, lambda v: v >= 0, falling, "alpha")


def ratio(trace):
    """`log_ratio`, shape (replicates, rounds)."""
    trace = trace.assign(value=log_ratio(trace))
    return trace.pivot(index="replicate", columns="round", values="value").to_numpy()


def noise_of_dp_mtrl(runs):
    """Claim `noise-dp-mtrl`."""
    values = ratio(runs.table("trace", "low_rank", "dp_mtrl", 0.1))[:, 0]
    return within(values, PAPER_DP_MTRL - 0.03, PAPER_DP_MTRL + 0.03, "dp_mtrl")


def noise_of_lr(runs):
    """Claim `noise-lr`."""
    values = ratio(runs.table("trace", "low_rank", "lr", 0.1, "noise_to_signal")).min(axis=1)
    return [
        Comparison("- log10(noise/signal) in the round where it is least", -values),
        *below(runs, "low_rank", "lr", "stl", [0.1]),
    ]


def relations(runs):
    """Claim `relations`."""
    panels = runs.figure("task_relations").items()
    cosines = {name.split(":")[0].split(" ")[0]: R for name, R in panels if "relation" in name}
    wrong = {name: np.abs(R - cosines["true"]).mean(axis=1) for name, R in cosines.items()}
    words = "error of a task's relations, lr - dp_mtrl"
    return [Comparison(words, wrong["lr"] - wrong["dp_mtrl"], "tasks")]


def above(datasets, method, limit):
    """The error of a private method is above a number at every budget."""

    def check(runs):
        return [
            Comparison(
                f"{dataset} {limit} - {method} (eps {eps:g})",
                limit - runs.error(dataset, method, eps),
            )
            for dataset in datasets
            for eps in runs.budgets(dataset, method)
        ]

    return check


def gain(runs, dataset, method):
    """Error at the largest less that at the smallest budget."""
    budgets = runs.budgets(dataset, method)
    last, first = (runs.error(dataset, method, eps) for eps in (budgets[-1], budgets[0]))
    return f"{dataset} {method} eps {budgets[-1]:g} - eps {budgets[0]:g}", last - first


def more_tasks(runs):
    """Claim `more-tasks`."""
    chosen = runs.chosen("low_rank", "lr", 0.1, "task_number")
    needed(chosen.iloc[1:], f"no task_number with two numbers of tasks below {runs.root}")
    chosen = chosen.sort_values("dataset.used")
    runs.used |= set(zip(chosen.grid, chosen.replicates, strict=True))
    errors = [runs.rows[name].value for name in chosen.index]
    steps = itertools.pairwise(zip(chosen["dataset.used"], errors, strict=True))
    return [
        Comparison(f"lr, m={after:g} less m={before:g}", new - old)
        for (before, old), (after, new) in steps
    ]


def outperforms(datasets, methods, others, budgets=None, factor=1.0):
    """Each of the methods is below each of the others at every budget, or at those given."""

    def check(runs):
        return [
            comparison
            for dataset in datasets
            for method in methods
            for other in others
            for comparison in below(runs, dataset, method, other, budgets, factor=factor)
        ]

    return check


def over_shares(dataset):
    """Algorithm 2 is below the two baselines at every share of training samples."""

    def check(runs):
        return [
            comparison
            for share in runs.shares(dataset)
            for other in ("dp_mtrl", "dp_aggr")
            for comparison in below(runs, dataset, "lr", other, share=share)
        ]

    return check


def slowly(*methods):
    """The aAUC on LSOA II gains less than 0.01 from the smallest budget to the largest."""

    def check(runs):
        comparisons = []
        for method in methods:
            label, values = gain(runs, "lsoa2", method)
            words = f"gain of aAUC, {label.removeprefix('lsoa2 ')}, less 0.01"
            comparisons.append(Comparison(words, -values - 0.01))
        return comparisons

    return check


def theorem(runs):
    """Verdict of the audits on what the Wishart mechanism claims."""
    claimed = audits(runs.root).query("privacy == 'wishart' and guarantee == 'claimed'")
    needed(claimed, f"no audit of wishart below {runs.root}")
    refuted = claimed[claimed.verdict == "refuted"]
    words = "; ".join(
        f"eps {row.stated_epsilon:g}: delta >= {row.measured:.3g} for a claimed {row.delta:.2g}"
        for row in refuted.itertuples()
    )
    return Verdict(FAILS if len(refuted) else OPEN, words or "not refuted by the audits")


def theory(runs):
    """Best alpha of the convex bounds over all alpha, at a small M and at the experiment's."""
    m = 320
    levels = (1e-3, noise_level("lr", 30, m, 0.1, 1 / (m * math.log(m)), k=5))
    best = [
        (M, "accelerated" if fast else "basic", ConvexBound(accelerated=fast).best(M).rate)
        for M in levels
        for fast in (False, True)
    ]
    words = "; ".join(f"best alpha {alpha:.3g} ({form}, M = {M:.3g})" for M, form, alpha in best)
    return Verdict(HOLDS if all(alpha > -1e-6 for *_, alpha in best) else FAILS, words)
