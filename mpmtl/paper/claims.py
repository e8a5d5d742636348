"""What the paper states about its experiments, against what the runs measured."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from mpmtl.errors import ResultsError
from mpmtl.experiments import reader
from mpmtl.experiments.reader import accuracy, audits, needed, read_table
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.noise_to_signal import PAPER_DP_MTRL, log_ratio
from mpmtl.paper.utility import ConvexBound, noise_level

LEVEL = 0.95  # of all intervals of a claim together (Bonferroni)
RIVALS = 1.1  # an error at most a tenth larger counts as "rivals"
PRIVACY = {
    "lr": "wishart",
    "gs": "wishart",
    "dp_mtrl": "output_perturbation",
    "dp_aggr": "output_perturbation",
}
HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Comparison:
    """The statement that a mean is below zero, with a value for each replicate (or task)."""

    label: str
    values: np.ndarray

    def interval(self, level):
        """Mean and two-sided t interval."""
        values = np.asarray(self.values, dtype=float)
        mean = values.mean()
        if len(values) < 2:
            return mean, -math.inf, math.inf
        half = student.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1)
        half /= math.sqrt(len(values))
        return mean, mean - half, mean + half


def judge(comparisons, level=LEVEL):
    """Verdict on several comparisons that are all to hold, and what was measured in words.

    Holds if every interval is below zero, does not hold if one is above it; the intervals hold
    together with the probability `level` (Bonferroni).

    Returns
    -------
    (str, str)
    """
    each = 1 - (1 - level) / len(comparisons)
    intervals = [(c.label, *c.interval(each)) for c in comparisons]
    against = [i for i in intervals if i[2] > 0]
    unclear = [i for i in intervals if i[2] <= 0 <= i[3]]
    verdict = FAILS if against else OPEN if unclear else HOLDS
    decisive = against or unclear or intervals
    named = intervals if len(intervals) <= 4 else sorted(decisive, key=lambda i: -i[1])[:4]
    words = "; ".join(
        f"{label} {mean:+.3g} [{low:+.3g}, {high:+.3g}]" for label, mean, low, high in named
    )
    if len(intervals) > 4:
        n = len(intervals) - len(against) - len(unclear)
        counts = f"{n} of {len(intervals)} hold, {len(against)} do not, {len(unclear)} undecided"
        words = f"{counts}; {'largest' if verdict == HOLDS else 'such as'}: {words}"
    return verdict, words


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
        """Runs with other settings, tagged ``tried/<claim>/<label>``: pairs of label and `Runs`."""
        start = f"tried/{claim}/"
        tags = self.finished.tag[self.finished.tag.str.startswith(start)].str.removeprefix(start)
        labels = tags.str.split("/").str[0]
        for label in sorted(labels.unique()):
            own = tags[labels == label].str.removeprefix(label).str.removeprefix("/")
            part = self.finished.loc[own.index].assign(
                tag=own, experiment=own.str.split("/").str[0]
            )
            yield label, Runs(part, self.root / start / label)

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
        return f"{'; '.join(grids)}, {n} replicates"


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
        Comparison(f"{words}: before - without noise", before - leaked),
        Comparison(f"{words}: change at eps 0.1, less 0.1", np.abs(protected - before) - 0.1),
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
        Comparison(f"{kind}{key} = {chosen:g} - {key} = {v:g}", test[chosen] - test[v])
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
    return [Comparison("error of a task's relations, lr - dp_mtrl", wrong["lr"] - wrong["dp_mtrl"])]


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
    return (FAILS if len(refuted) else OPEN), words or "not refuted by the audits"


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
    return (HOLDS if all(alpha > -1e-6 for *_, alpha in best) else FAILS), words


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and the comparisons that it makes.

    Attributes
    ----------
    name, statement, source : str
    check : callable
        ``check(runs)`` returns comparisons, or a verdict with words.
    """

    name: str
    statement: str
    source: str
    check: Callable


SYNTHETIC, REAL = ("low_rank", "group_sparse"), ("school", "lsoa2")
ALL = SYNTHETIC + REAL
CLAIMS = (
    Claim(
        "theorem-1",
        "Algorithms 2 and 3 give every task (eps, delta) against all others together.",
        "Theorem 1",
        theorem,
    ),
    Claim(
        "leakage",
        "Without noise one round turns the other models to that of a large task; at eps = 0.1 not.",
        "Fig. 2",
        leakage,
    ),
    Claim(
        "momentum-convex",
        "Acceleration lowers the error (convex form).",
        "Fig. 4a",
        momentum("convex"),
    ),
    Claim(
        "momentum-strong",
        "Acceleration lowers the error (strongly convex form).",
        "Fig. 4b",
        momentum("strong"),
    ),
    Claim(
        "alpha",
        "The error has a local minimum at a small positive alpha.",
        "Fig. 4a",
        optimum("convex", 0.2, 2, (0, 8)),
    ),
    Claim(
        "Q",
        "The error has a local minimum at a Q a little below 1.",
        "Fig. 4b",
        optimum("strong", 0.9, 0.9936, (1.0, 0.8)),
    ),
    Claim(
        "Q-negative",
        "With acceleration there is another local minimum at a Q above 1.",
        "Fig. 4b",
        optimum("strong", 1.0032, 1.1, (1.0, 1.2), (True,)),
    ),
    Claim(
        "non-decreasing",
        "Budgets that do not decrease over the rounds minimise the utility bounds.",
        "Theorem 6, remark 1",
        theory,
    ),
    Claim(
        "no-falling",
        "Budgets that do not decrease are best: no falling series (alpha < 0) has a lower error.",
        "Theorem 6, Fig. 4a",
        no_falling_is_better,
    ),
    Claim(
        "mtl-level",
        "Without noise, trace-norm learning has nMSE 0.0140 on the low-rank data (within a tenth).",
        "Fig. 4, caption",
        lambda runs: within(
            runs.error("low_rank", "mtl_lr", None, "budget_allocation_convex"),
            0.0126,
            0.0154,
            "mtl_lr",
        ),
    ),
    Claim(
        "noise-dp-mtrl",
        "DP-MTRL's log10(noise/signal) is 0.2670 at eps = 0.1, T = 1 (within 0.03).",
        "Fig. 5, text",
        noise_of_dp_mtrl,
    ),
    Claim(
        "noise-lr",
        "In Algorithm 2 noise exceeds the signal, yet models are no worse than separate ones.",
        "Fig. 5, text",
        noise_of_lr,
    ),
    Claim(
        "relations",
        "At eps = 0.1 Algorithm 2 keeps the task relations; DP-MTRL destroys them.",
        "Fig. 3",
        relations,
    ),
    Claim(
        "between-low-rank",
        "Algorithms 2 and 3 lie between separate tasks and MTL without noise (low-rank data).",
        "Fig. 6a",
        lambda runs: between(runs, "low_rank"),
    ),
    Claim(
        "between-group-sparse",
        "Algorithms 2 and 3 lie between separate tasks and MTL without noise (group-sparse data).",
        "Fig. 6b",
        lambda runs: between(runs, "group_sparse"),
    ),
    Claim(
        "gs-low-rank",
        "Algorithm 3 is worse than Algorithm 2 on the low-rank data.",
        "Fig. 6a",
        outperforms(["low_rank"], ["lr"], ["gs"]),
    ),
    Claim(
        "dp-mtrl-low-rank",
        "With budget 10 DP-MTRL beats separate tasks and Algorithm 3 on the low-rank data.",
        "Fig. 6a",
        outperforms(["low_rank"], ["dp_mtrl"], ["stl", "gs"], [10]),
    ),
    Claim(
        "dp-mtrl-group-sparse",
        "DP-MTRL is worse than separate tasks on the group-sparse data at every budget.",
        "Fig. 6b",
        outperforms(["group_sparse"], ["stl"], ["dp_mtrl"]),
    ),
    Claim(
        "dp-mtrl-016",
        "DP-MTRL's nMSE is above 0.16 on the group-sparse data.",
        "Fig. 6, caption",
        above(["group_sparse"], "dp_mtrl", 0.16),
    ),
    Claim(
        "rivals-gs",
        "Algorithm 2 rivals Algorithm 3 on the group-sparse data (error at most a tenth larger).",
        "Fig. 6b",
        outperforms(["group_sparse"], ["lr"], ["gs"], factor=RIVALS),
    ),
    Claim(
        "rivals-mtl",
        "At eps = 10 Algorithm 2 rivals MTL without noise on both (error at most a tenth larger).",
        "Fig. 6",
        outperforms(SYNTHETIC, ["lr"], ["mtl"], [10], RIVALS),
    ),
    Claim(
        "dp-aggr-078",
        "DP-AGGR's nMSE is above 0.78 on both synthetic data sets.",
        "Fig. 6, caption",
        above(SYNTHETIC, "dp_aggr", 0.78),
    ),
    Claim(
        "dp-aggr-grows",
        "DP-AGGR's error falls with the budget on the group-sparse data.",
        "Fig. 7c",
        lambda runs: [Comparison(*gain(runs, "group_sparse", "dp_aggr"))],
    ),
    Claim(
        "dp-aggr-stl",
        "DP-AGGR is worse than separate tasks on all four data sets.",
        "Figs. 7, 9",
        outperforms(ALL, ["stl"], ["dp_aggr"]),
    ),
    Claim(
        "more-tasks",
        "The error of the first 20 tasks falls with every step to more tasks.",
        "Fig. 8",
        more_tasks,
    ),
    Claim(
        "between-school",
        "Algorithms 2 and 3 lie between separate tasks and MTL without noise (School).",
        "Fig. 9a",
        lambda runs: between(runs, "school"),
    ),
    Claim(
        "between-lsoa2",
        "Algorithms 2 and 3 lie between separate tasks and MTL without noise (LSOA II).",
        "Fig. 9b",
        lambda runs: between(runs, "lsoa2"),
    ),
    Claim(
        "better-than-dp",
        "Algorithms 2 and 3 beat DP-MTRL and DP-AGGR on the real data.",
        "Fig. 9",
        outperforms(REAL, ["lr", "gs"], ["dp_mtrl", "dp_aggr"]),
    ),
    Claim(
        "dp-aggr-066",
        "DP-AGGR's aAUC is below 0.66 on LSOA II.",
        "Fig. 9, caption",
        above(["lsoa2"], "dp_aggr", 0.34),
    ),
    Claim(
        "slowly",
        "On LSOA II the aAUC of Algorithms 2, 3 and DP-MTRL rises slowly (less than 0.01 in all).",
        "Fig. 9b",
        slowly("lr", "gs", "dp_mtrl"),
    ),
    Claim(
        "dp-aggr-lsoa2",
        "On LSOA II DP-AGGR's aAUC hardly rises with the budget (less than 0.01).",
        "Fig. 10b",
        slowly("dp_aggr"),
    ),
    Claim(
        "shares-school",
        "On School Algorithm 2 beats DP-MTRL and DP-AGGR at every share of training samples.",
        "Fig. S1",
        over_shares("school"),
    ),
    Claim(
        "shares-lsoa2",
        "On LSOA II Algorithm 2 beats DP-MTRL and DP-AGGR at every share of training samples.",
        "Fig. S2",
        over_shares("lsoa2"),
    ),
    Claim(
        "always-stl",
        "The paper's methods always beat separate tasks.",
        "Section 5.1",
        outperforms(ALL, ["lr", "gs"], ["stl"]),
    ),
    Claim(
        "always-gs",
        "Algorithm 2 always beats Algorithm 3 on the real data.",
        "Supplement",
        outperforms(REAL, ["lr"], ["gs"]),
    ),
)


def measured(claim, runs):
    """Verdict and words of one claim; undecided with a reason where runs are missing."""
    try:
        result = claim.check(runs)
        return judge(result) if isinstance(result, list) else result
    except ResultsError as error:
        return OPEN, f"not measured: {error}"


def check_all(root, claims=CLAIMS):
    """Every claim against the runs of a results folder.

    Other settings are tried in runs below ``tried/<claim>/<label>``: the same check on that folder.

    Returns
    -------
    DataFrame
        Columns id, statement, source, measured, verdict, settings, tried.
    """
    own, rows = Runs(reader.runs(root), root), []
    for claim in claims:
        own.used.clear()
        verdict, words = measured(claim, own)
        tried = []
        for label, others in own.tried(claim.name):
            other, what = measured(claim, others)
            tried.append(f"{label}: {other} ({what})")
        rows.append(
            {
                "id": claim.name,
                "statement": claim.statement,
                "source": claim.source,
                "measured": words,
                "verdict": verdict,
                "settings": own.settings,
                "tried": "; ".join(tried),
            }
        )
    return pd.DataFrame(rows)


def as_markdown(table):
    """docs/claims.md: counts, the table, and how to read it."""
    counts = table.verdict.value_counts()
    head = ", ".join(f"{counts.get(v, 0)} {v}" for v in (HOLDS, FAILS, OPEN))
    lines = [
        "# The paper's statements about its experiments",
        "",
        "Made by `make claims` from `results/reference`; do not edit. In brackets: intervals",
        f"that hold together with probability {LEVEL:g} for each statement (paired over",
        "replicates, t, Bonferroni). It holds if all of them lie below zero, does not hold if",
        "one lies above, and is undecided otherwise. Errors are nMSE, or 1 - aAUC. Budgets are",
        "those of a task, neighbours replace one; those of `wishart`, and of `dp_mtrl` and",
        "`dp_aggr` for the squared loss, are claimed only. Settings: the density of the grids, as",
        "in `tuning=laptop`, with the settings for which other values were tried.",
        "",
        f"{len(table)} statements: {head}.",
        "",
        "| statement | where | verdict | measured | settings |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in table.itertuples():
        cells = (row.statement, row.source, row.verdict, row.measured, row.settings)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    tried = table[table.tried != ""]
    if len(tried):
        lines += ["", "## What else was tried", ""]
        lines += [f"- {row.statement} {row.tried}." for row in tried.itertuples()]
    return "\n".join(lines) + "\n"
