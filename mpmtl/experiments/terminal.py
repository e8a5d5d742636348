"""What a user sees of a run on the terminal: the plan, the forecast and the closing card."""

import math
import textwrap
from collections import Counter

import numpy as np

from mpmtl.experiments.tuning import is_tuned
from mpmtl.metrics import METRICS
from mpmtl.privacy.statements import CAVEATS, MARK_WORDS, mark

WIDTH = 96
FITTED = "tasks_fitted"  # instead of a test metric, where all rows train
STL_WORDS = (
    "ridge on each task alone, same replicates",
    "ridge on each task alone or its own mean, same replicates",
)
OTHER_WORDS = {
    "nmse_pooled": "nmse_pooled",
    "nmse_median": "median over tasks (nmse_median)",
}
NOISY_WORDS = (
    "mean over tasks of the error relative to the own mean's (two classes: 1 - AUC), clipped to 2, "
    "with noise"
)
NOT_IN_CARD = ("alpha", "Q")  # follow from the form unless they are tuned, see cv.csv


def duration(seconds):
    """Seconds as a person would say them."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _count(n, noun):
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _budget_words(run):
    if run.method.separate:
        return "tasks kept separate"
    if not math.isfinite(run.epsilon):
        return "no privacy"
    marked = mark(("tuning-not-charged",)) if is_tuned(run.method, run.tuning) else ""
    status = run.method.status(run.mechanism) + marked
    return f"{run.mechanism.name}, eps = {run.epsilon:g} {status} per task"


def plan_line(run, n_todo):
    """What the run will do: data x method, budget, replicates x folds x candidates."""
    n_candidates = run.method.n_candidates()
    tuning = f"{run.tuning.folds} folds x {n_candidates} candidates"
    if n_candidates == 1:
        tuning = "1 candidate, no cross-validation"
    head = f"{run.label}, {_budget_words(run)}:"
    if n_todo == 0:
        return f"{head} all {_count(run.n_replicates, 'replicate')} already done"
    done = run.n_replicates - n_todo
    resumed = f" ({done} of {run.n_replicates} already done)" if done else ""
    return f"{head} {_count(n_todo, 'replicate')} x {tuning}{resumed}"


def note_line(text):
    """A remark on the data, below the plan."""
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def forecast_line(seconds, n_jobs):
    """How long the run will take, below the plan."""
    processes = "process" if n_jobs == 1 else "processes"
    return f"  about {duration(seconds)} on {n_jobs} {processes}"


def worst_statement(records):
    """The replicate's privacy statement that proves least (settings differ by replicate)."""

    def weakness(record):
        proved = record["privacy"]["proved"]
        return (proved["epsilon"], proved["delta"]) if proved else (math.inf, 1.0)

    return max(records, key=weakness)["privacy"]


def _values(records, metric):
    return np.array(
        [
            row["value"]
            for record in records
            for row in record["replicates"]
            if row["metric"] == metric
        ]
    )


def _plus_minus(values):
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{values.mean():.4f} +- {values.std(ddof=1):.4f}"


def _settings(records):
    """Chosen settings: the most frequent value of each, or the median of a continuous one."""
    rows, words = [record["settings"] for record in records], []
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if row.get(key) is not None]
        if not values or key in NOT_IN_CARD:
            continue
        name = "T" if key == "n_rounds" else key.replace("lam", "lambda")
        if isinstance(values[0], float):
            median = " (median)" if len(set(values)) > 1 else ""
            words.append(f"{name} = {np.median(values):.3g}{median}")
        else:
            value, count = Counter(values).most_common(1)[0]
            share = f" ({100 * count / len(rows):.0f} %)" if count < len(rows) else ""
            words.append(f"{name} = {value}{share}")
    return ", ".join(words)


def _guarantee(block):
    words = pair_words(block)
    return "nothing" if words == "-" else f"{words}: {block['basis']}"


def _score_lines(run, records):
    """Lines of a card on the test metric against STL, or on what was fitted without one."""
    metric = records[0]["replicates"][0]["metric"]
    if metric == FITTED:
        why = (
            " on all rows, no test part"
            if run.evaluation == "exact"
            else ", no test error is shown"
        )
        return [("fitted", f"{_values(records, metric)[0]:.0f} tasks{why}")]
    values, stl = _values(records, metric), _values(records, f"{metric}_stl")
    if not len(stl):
        return [("error", f"{_plus_minus(values)}  {NOISY_WORDS}, {run.evaluation:g} of epsilon")]
    own_mean = metric == "nmse_own_mean"
    what = "all test rows, 1 is each task's own mean; " * own_mean
    over = f"{what}mean +- sd over {_count(len(records), 'replicate')}"
    lines = [
        ("nmse" if own_mean else metric, f"{_plus_minus(values)}  {over}"),
        ("stl", f"{_plus_minus(stl)}  {STL_WORDS[own_mean]}"),
    ]
    if run.method.name != "stl":
        better = METRICS[metric].better(values, stl)
        lines.append(
            (
                "difference",
                f"{_plus_minus(values - stl)}  better than stl in "
                f"{int(better.sum())} of {len(records)}",
            )
        )
    for name, other in (("pooled", f"{metric}_pooled"), ("median", "nmse_median")):
        others = _values(records, other)
        if len(others):
            lines.append((name, f"{_plus_minus(others)}  {OTHER_WORDS[other]}"))
    left_out = _values(records, "tasks_left_out")
    if left_out.any():
        lines.append(
            (
                "left out",
                f"up to {left_out.max():.0f} tasks, on whose test part {metric} is not defined",
            )
        )
    return lines


def card(run, records, path, explained=()):
    """Closing card: result against STL, settings, both guarantees, caveats, files.

    Caveats whose codes are in `explained` were printed in full before and are only named.
    """
    statement = worst_statement(records)
    lines = _score_lines(run, records)
    if settings := _settings(records):
        lines.append(("settings", settings))
    at_edge = Counter(key for record in records for key in record["edges"])
    for key, count in at_edge.items():
        lines.append(
            (
                "edge",
                f"{key} is at the edge of its grid in {count} of {len(records)} "
                "replicates: a wider one may do better",
            )
        )
    lines += [
        ("unit", f"a {statement['unit']}; neighbours {statement['relation']}; for one fit"),
        ("claimed", _guarantee(statement["claimed"])),
        ("proved", _guarantee(statement["proved"])),
    ]
    if statement["instance"]:
        lines.append(("proved also", _guarantee(statement["instance"])))
    lines += [("note", note) for note in statement["notes"]]
    lines += [*caveat_lines(statement["caveats"], explained), ("files", str(path))]
    return card_text(f"{run.label}, {_budget_words(run)}", lines)


def caveat_lines(codes, explained):
    """Lines of a card for caveats: in full, or only named where they were printed before."""
    known = [code for code in codes if code in explained]
    lines = [
        ("caveat", f"{mark((code,))} {code}: {CAVEATS[code]}".strip())
        for code in codes
        if code not in explained
    ]
    return lines + ([("caveats", f"{', '.join(known)} (explained above)")] if known else [])


def card_text(title, lines):
    """A card: its title, underlined, and its lines, pairs of a name and a text."""
    return "\n".join([title, "-" * min(len(title), WIDTH), *map(card_line, lines)])


def summary_row(run, records):
    """One line of the table that ends a sweep, and the caveats that go with it."""
    metric = records[0]["replicates"][0]["metric"]
    statement, stl = worst_statement(records), _values(records, f"{metric}_stl")
    return {
        "tag": run.tag,
        "dataset": run.dataset.name,
        "method": run.method.name,
        "privacy": run.mechanism.name,
        "eps": f"{run.epsilon:g}",
        "metric": metric,
        "value": _plus_minus(_values(records, metric)),
        "stl": f"{stl.mean():.4f}" if len(stl) else "-",
        "n": str(len(records)),
        **{name: marked(statement, name) for name in ("claimed", "proved")},
        "caveats": statement["caveats"],
    }


def pair_words(block):
    """A guarantee as "(epsilon, delta)", or "-" where it says nothing."""
    if block is None or block["delta"] >= 1:
        return "-"
    near_one = block["delta"] > 0.99  # .9999 must not look like 1
    delta = f"1 - {1 - block['delta']:.2g}" if near_one else f"{block['delta']:.3g}"
    return f"({block['epsilon']:.4g}, {delta})"


def marked(statement, name):
    """A guarantee in words, with a mark where the budget does not cover all choices."""
    words = pair_words(statement[name])
    return words if words == "-" else words + mark(statement["caveats"])


def sweep_table(rows):
    """The table that ends a sweep: a line for each job, and what a mark means."""
    columns = [key for key in rows[0] if key not in ("caveats", "spent")]
    if len({row.get("tag") for row in rows}) == 1:
        columns = [key for key in columns if key != "tag"]
    cells = [columns] + [[row[key] for key in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)) for line in cells]
    legend = [MARK_WORDS] if any(mark(row["caveats"]) for row in rows) else []
    lines = [lines[0], "-" * len(lines[0]), *lines[1:], *legend]
    return "\n".join(line.rstrip() for line in lines)


def card_line(item):
    """A name and its text as wrapped lines of a card."""
    name, text = item
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{name:<11} ",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
