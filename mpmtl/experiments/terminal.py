"""What a user sees of a run: the plan, the forecast, the closing card, a line of a sweep."""

import math
from collections import Counter

import numpy as np

from mpmtl.experiments.layout import card_text, duration, filled, one_line, table_text
from mpmtl.experiments.tuning import is_tuned
from mpmtl.metrics import METRICS
from mpmtl.privacy.statements import CAVEATS, MARK_WORDS, caveat_text, mark

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


def _count(n, noun):
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _budget_words(run):
    if run.method.separate:
        return "tasks kept separate"
    if not math.isfinite(run.epsilon):
        return "no privacy"
    marked = mark(("tuning-not-charged",)) if is_tuned(run.method, run.tuning) else ""
    status = run.method.status(run.mechanism) + marked
    return f"{run.mechanism.name}, eps = {run.epsilon:g} {status}"


def _title(run):
    """Data x method and what its budget is."""
    budget = _budget_words(run)
    return f"{run.label}, {budget}{' per task' * ('eps =' in budget)}"


def plan_line(run, n_todo):
    """What the run will do: data x method, budget, replicates x folds x candidates."""
    n_candidates = run.method.n_candidates()
    tuning = f"{run.tuning.folds} folds x {n_candidates} candidates"
    if n_candidates == 1:
        tuning = "1 candidate, no cross-validation"
    head = f"{_title(run)}:"
    if n_todo == 0:
        return one_line(f"{head} all {_count(run.n_replicates, 'replicate')} already done")
    done = run.n_replicates - n_todo
    resumed = f" ({done} of {run.n_replicates} already done)" if done else ""
    return one_line(f"{head} {_count(n_todo, 'replicate')} x {tuning}{resumed}")


def note_line(text):
    """A remark on the data, below the plan."""
    return filled(text, "  ", "    ")


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


def card(run, records, path, explained=(), to=None):
    """Closing card: result against STL, settings, both guarantees, caveats, files.

    Caveats whose codes are in `explained` were printed in full before and are only named. The card
    is `to` columns wide, or as the terminal.
    """
    statement = worst_statement(records)
    lines = _score_lines(run, records)
    lines += _dominated(records, lines[0][0])
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
    lines += [*caveat_lines(statement, explained), ("files", str(path))]
    return card_text(_title(run), lines, to)


def _dominated(records, metric):
    """Lines of a card on a task that makes the error (`metrics.dominating`)."""
    found = [record["dominating"] for record in records if record["dominating"]]
    if not found:
        return []
    name, count = Counter(one["task"] for one in found).most_common(1)[0]
    own = [one for one in found if one["task"] == name]
    rows = sorted({one["rows"] for one in own})
    rows = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
    without = np.median([one["without"] for one in own])
    others = "" if len(found) == count else f"; another one in {len(found) - count}"
    text = (
        f"task {name} ({rows} test rows) makes most of the {metric} in {count} of {len(records)} "
        f"replicates{others}: without it {metric} is {without:.4f} there"
    )
    return [("one task", f"{text}{' (median)' * (count > 1)}")]


def caveat_lines(statement, explained=()):
    """Lines of a card for the caveats of a statement, a dict; those `explained` before are named.

    Each text says no more than what applies (`statements.caveat_text`).
    """
    codes = list(statement["caveats"])
    known = [code for code in codes if code in explained]
    lines = [
        ("caveat", f"{mark((code,))} {code}: {caveat_text(code, statement)}".strip())
        for code in codes
        if code not in explained
    ]
    return lines + ([("caveats", f"{', '.join(known)} (explained above)")] if known else [])


def job_line(run, records, done_before):
    """A job of a sweep in one line; its card is in its folder."""
    metric = records[0]["replicates"][0]["metric"]
    own = "/".join(run.tag.split("/")[1:])  # below the name of the experiment
    head = f"{run.label}, {_budget_words(run)}{f', {own}' if own else ''}"
    if metric == FITTED:
        words = f"{_values(records, metric)[0]:.0f} tasks fitted"
    else:
        stl = _values(records, f"{metric}_stl").mean()
        words = f"{metric} {_values(records, metric).mean():.4f}, stl {stl:.4f}"
    return one_line(f"{head}: {words}{' (done before)' * done_before}")


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
        "caveats": {code: caveat_text(code, statement) for code in statement["caveats"]},
        "notes": list(getattr(run.dataset, "notes", ())),
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
    left_out = {"caveats", "notes", "spent"}
    if len({row.get("tag") for row in rows}) == 1:
        left_out.add("tag")
    text = table_text([{k: v for k, v in row.items() if k not in left_out} for row in rows])
    marked = any(mark(row["caveats"]) for row in rows)
    return "\n".join([text, *([one_line(MARK_WORDS)] if marked else [])])


def caveats_of(rows):
    """Each caveat of some rows of a sweep once: as it applies, or in general where that differs."""
    texts = {}
    for row in rows:
        for code, text in row["caveats"].items():
            texts[code] = text if texts.get(code, text) == text else CAVEATS[code]
    return "\n".join(
        filled(f"{mark((code,))} {code}: {text}".strip(), rest="    ")
        for code, text in texts.items()
    )
