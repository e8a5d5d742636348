"""What the paper states about its experiments, against what the runs measured."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.experiments import reader
from mpmtl.paper.checks import (
    Runs,
    above,
    between,
    gain,
    leakage,
    momentum,
    more_tasks,
    no_falling_is_better,
    noise_of_dp_mtrl,
    noise_of_lr,
    optimum,
    outperforms,
    over_shares,
    relations,
    slowly,
    theorem,
    theory,
    within,
)
from mpmtl.paper.verdicts import LEVEL, OPEN, POWER, Comparison, Verdict, judge, tally

RIVALS = 1.1  # an error at most a tenth larger counts as "rivals"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and the comparisons that it makes.

    Attributes
    ----------
    name, statement, source : str
    check : callable
        ``check(runs)`` returns comparisons, or a `Verdict`.
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
    """`Verdict` of one claim; undecided with a reason where runs are missing."""
    try:
        result = claim.check(runs)
        return judge(result) if isinstance(result, list) else result
    except ResultsError as error:
        return Verdict(OPEN, f"not measured: {error}")


def check_all(root, claims=CLAIMS):
    """Every claim against the runs of a results folder.

    Other settings are tried in runs below ``tried/<claim>/<label>``: the same check on that folder.

    Returns
    -------
    DataFrame
        Columns id, statement, source, measured, verdict, needed (what would decide an open one),
        settings, tried (a line for each folder: label, verdict and what was measured, with tabs).
    """
    own, rows = Runs(reader.runs(root), root), []
    for claim in claims:
        own.used.clear()
        verdict, words, enough = measured(claim, own)
        tried = []
        for label, others in own.tried(claim.name):
            other, what, _ = measured(claim, others)
            tried.append("\t".join((label, other, what)))
        rows.append(
            {
                "id": claim.name,
                "statement": claim.statement,
                "source": claim.source,
                "measured": words,
                "verdict": verdict,
                "needed": enough,
                "settings": own.settings,
                "tried": "\n".join(tried),
            }
        )
    return pd.DataFrame(rows)


def as_markdown(table):
    """docs/claims.md: counts, the table, and how to read it."""
    lines = [
        "# The paper's statements about its experiments",
        "",
        "Made by `make claims` from `results/reference`; do not edit. In brackets: intervals",
        f"that hold together with probability {LEVEL:g} for each statement (paired over",
        "replicates, t, Bonferroni). It holds if all of them lie below zero, does not hold if",
        "one lies above, and is undecided otherwise. Errors are nMSE, or 1 - aAUC. Budgets are",
        "those of a task, neighbours replace one; those of `wishart`, and of `dp_mtrl` and",
        "`dp_aggr` for the squared loss, are claimed only. Settings: the density of the grids, as",
        "in `tuning=laptop`, with the settings for which other values were tried. To decide: the",
        f"replicates with which an open statement is decided with probability {POWER:g}, were the",
        "true mean and paired sd those that were measured (`replicates_needed`).",
        "",
        f"{len(table)} statements: {tally(table.verdict)}.",
        "",
        "| statement | where | verdict | to decide | measured | settings |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        _line(r.statement, r.source, r.verdict, r.needed, _apart(r.measured), r.settings)
        for r in table.itertuples()
    ]
    tried = table[table.tried != ""]
    if len(tried):
        lines += ["", "## What else was tried", "", "| statement | with | verdict | measured |"]
        lines.append("| --- | --- | --- | --- |")
    for row in tried.itertuples():
        for k, other in enumerate(row.tried.split("\n")):
            label, verdict, measured = other.split("\t")
            lines.append(_line("" if k else row.statement, label, verdict, _apart(measured)))
    return "\n".join(lines) + "\n"


def _line(*cells):
    """A row of a Markdown table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _apart(measured):
    """Each comparison in a line of its own."""
    return measured.replace("; ", "<br>")
