"""One page about a results folder, the paper's or of one's own table, all in one file."""

import base64
import math
from collections import Counter
from html import escape
from pathlib import Path

import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.experiments.layout import duration
from mpmtl.experiments.ledger import entries_of
from mpmtl.experiments.ledger import table as ledger_table
from mpmtl.experiments.reader import accuracy, audits, read_table, runs
from mpmtl.experiments.terminal import pair_words
from mpmtl.metrics import METRICS
from mpmtl.paper import html
from mpmtl.paper.catalogue import FIGURES, KINDS, kind_of
from mpmtl.paper.figures.command import redraw
from mpmtl.paper.standing import answers, owners, spent, standing
from mpmtl.paper.verdicts import FAILS, HOLDS, OPEN, tally
from mpmtl.privacy.statements import MARK_WORDS

#: Mark and class of a verdict; the mark and the word say it without the colour.
VERDICTS = {
    HOLDS: ("&#10003;", "yes"),
    FAILS: ("&#10007;", "no"),
    OPEN: ("?", "open"),
}
SCALES = ("smoke", "laptop", "standard", "paper")


def page(results, ledger=None):
    """The page as text.

    The same for the paper's experiments and for a table of one's own: what is not there has no
    section.

    Parameters
    ----------
    results : Path
        Results folder, with ``claims.csv`` and ``utility_bounds.csv`` if it has them.
    ledger : path, optional
        Of the study; default: where the runs were charged.

    Raises
    ------
    ResultsError
        If there is neither a run nor a figure nor a table of claims.
    """
    results = Path(results)
    ran, audited = runs(results, finished=False), _audited(results)
    pictures, claims = _pictures(results), results / "claims.csv"
    if not (len(ran) or pictures or claims.is_file()):
        raise ResultsError(f"nothing to report in {results}: no run, no figure, no claims.csv")
    best = standing(ran)
    gains = _gains(ran, best)
    sections = {
        "Best methods": _standing(ran, best, gains),
        "Owners who gain": _owners(best, gains),
        "Spent": _spent(ran, ledger),
        "Claims of the paper": _claims(claims),
        "Figures": pictures,
        "Utility bounds": _bounds(results / "utility_bounds.csv"),
        "Audits": _audits(results, audited),
        "Caveats": _caveats([*ran.manifest, *audited.manifest[~audited.index.duplicated()]]),
        "Runs": _runs(ran),
        "About this folder": _facts(ran),
        "How to make it again": _again(results, ran),
    }
    head = "".join(html.paragraph(text, "answer") for text in _verdict(claims, best))
    data = sorted(set(ran.dataset)) if len(ran) else []
    title = f"mpmtl: results of {data[0] if len(data) == 1 else results.resolve().name}"
    return html.document(title, head, {name: text for name, text in sections.items() if text})


def _verdict(claims, best):
    """What the page says first: counts of the paper's claims, and the best method on each data."""
    lines = answers(best) if len(best) else []
    if claims.is_file() and "verdict" in (table := _text(claims)):
        lines.insert(0, f"{len(table)} claims of the paper: {tally(table.verdict)}.")
    return lines


def _gains(ran, best):
    """`standing.owners` of all runs that are compared."""
    return owners(ran, list(best.run)) if len(best) else owners(ran, [])


def _interval(value, half):
    return f"{value:+.4f}" + ("" if math.isnan(half) else f" ± {half:.4f}")


def _standing(ran, best, gains):
    """The methods on each data set, the best first."""
    columns = ["method", "epsilon", "budget", "mean", "gain over separate tasks", "verdict"]
    more = ["replicates", "privacy", "claimed (eps, delta)", "proved (eps, delta)"]
    counts = {name: Counter(part.verdict) for name, part in gains.groupby("run", sort=False)}
    if counts:
        columns += ["owners that gain", "owners that lose"]
    columns += more
    text = ""
    for dataset, rows in best.groupby("dataset", sort=True):
        metric, lines = METRICS[rows.metric.iloc[0]], []
        for row in rows.itertuples():
            statement = ran.manifest[row.run].get("privacy", {})
            pairs = [_pair(statement.get(key)) for key in ("claimed", "proved")]
            epsilon = "-" if math.isnan(row.epsilon) else f"{row.epsilon:g}"
            line = [row.method, epsilon, row.status, f"{row.mean:.4f}"]
            line += [_interval(row.gain, row.half_width), row.verdict]
            if counts:
                own = counts.get(row.run, {})
                line += [own.get("better", 0), own.get("worse", 0)] if own else ["-", "-"]
            lines.append([*line, row.count, row.privacy, *pairs])
        better = "higher" if metric.higher_is_better else "lower"
        text += f"<h3>{escape(dataset)}: {metric.label}, {better} is better</h3>"
        text += html.table(columns, lines)
    note = (
        "Gain: by how much it is better than separate tasks on the same replicates, mean and its "
        "95 % interval (paired, t); better and worse where that excludes zero. The budget is that "
        f"of one task in one fit; {MARK_WORDS}."
    )
    return text and html.paragraph(note) + text


def _owners(best, gains):
    """Owner by owner, for the best private method of each data set (or the best of all)."""
    text, columns = "", ["owner", "test rows", "error", "separate", "gain", "verdict"]
    for dataset, rows in best.groupby("dataset", sort=True):
        rows = rows[rows.run.isin(gains.run)]
        if rows.empty:
            continue
        chosen = (rows[rows.private] if rows.private.any() else rows).iloc[0]
        own = gains[gains.run == chosen.run].sort_values("gain", ascending=False)
        lines = [
            (
                row.task,
                f"{row.rows:.0f}",
                f"{row.error:.3f}",
                f"{row.stl:.3f}",
                _interval(row.gain, row.half_width),
                row.verdict,
            )
            for row in own.itertuples()
        ]
        counts = Counter(own.verdict)
        name = (
            chosen.method
            if math.isnan(chosen.epsilon)
            else (
                f"{chosen.method} ({chosen.privacy}, epsilon = {chosen.epsilon:g} {chosen.status})"
            )
        )
        text += f"<h3>{escape(dataset)}: {escape(name)}</h3>" + html.paragraph(
            f"{counts['better']} of {len(own)} owners gain, {counts['worse']} lose, of "
            f"{counts['open']} it is open (95 % interval over replicates for each owner)."
        )
        text += html.table(columns, lines)
    note = (
        "Error of an owner: squared error over that of its own mean or variance, or 1 - AUC, mean "
        "over replicates. These are exact statistics of the owners' data: not for publication."
    )
    return text and html.paragraph(note) + text


def _statement_words(manifests):
    """For whom, against whom and for what the budgets of runs hold."""
    stated = [m["privacy"] for m in manifests if "privacy" in m]
    stated = [s for s in stated if s["claimed"] or s["proved"]]
    if not stated:
        return {}
    return {
        "unit": _counted(f"a {s['unit']}; neighbours {s['relation']}" for s in stated),
        "adversary": _counted(s["adversary"] for s in stated),
        "scope": _counted(s.get("scope", "one fit") for s in stated),
    }


def _spent(ran, ledger):
    """What all fits on the same owners cost together, for whom, and what a ledger says."""
    lines = spent(ran)
    paths = [ledger] if ledger else sorted({m["ledger"] for m in ran.manifest if m.get("ledger")})
    if not (lines or paths):
        return ""
    text = html.definitions(_statement_words(ran.manifest).items())
    text += "".join(html.paragraph(line) for line in lines)
    for path in paths:
        text += f"<h3>Ledger {escape(str(path))}</h3>"
        if not Path(path).is_file():
            text += html.paragraph("It is not here: mpmtl-report --ledger FILE names it.")
            continue
        entries = entries_of(path)[0]
        delta = min((e["stated"][1] for e in entries if e["stated"][1] > 0), default=1e-5)
        words = ledger_table(entries, delta) if entries else ["the study: nothing is spent"]
        total = next(line for line in words if line.startswith("the study"))
        text += html.paragraph(total)
        text += f"<pre>{escape(chr(10).join(w for w in words if w != total))}</pre>"
    return text


def _counted(values, noun="run"):
    """Distinct values, the most frequent first, with their numbers if there are several."""
    counts = Counter(values).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return "; ".join(f"{value} ({n} {noun}{'s' * (n > 1)})" for value, n in counts)


def _audited(results):
    try:
        return audits(results)
    except ResultsError:
        return pd.DataFrame(columns=["manifest"])


def _facts(ran):
    manifests = list(ran.manifest)
    if not manifests:
        return html.paragraph("There are no runs in this folder, only what was made from them.")
    days = sorted(m[key][:10] for m in manifests for key in ("started", "updated"))
    surroundings = [m["environment"] for m in manifests]
    names = "numpy", "scipy", "pandas"
    items = {
        "scale": _counted(
            f"grid {run.grid}, {run.replicates} replicates" for run in ran.itertuples()
        ),
        "date": " to ".join(dict.fromkeys((days[0], days[-1]))),
        "runs": f"{len(manifests)}, "
        f"{duration(sum(m.get('seconds_in_replicates', 0) for m in manifests))} of computing",
        "code": _counted(f"{m['code']}, commit {m['environment']['git']}" for m in manifests),
        "environment": _counted(
            f"Python {e['python']} on {e['machine']}, "
            + ", ".join(f"{name} {e['packages'].get(name)}" for name in names)
            for e in surroundings
        ),
    }
    items |= _statement_words(manifests)
    return html.definitions(items.items())


def _pair(block):
    words = pair_words(block)
    return "none" if words == "-" else words


def _runs(ran):
    if not len(ran):
        return ""
    columns = ["method", "privacy", "epsilon", "budget", "claimed (eps, delta)"]
    columns += ["proved (eps, delta)", "metric", "mean ± sd", "separate tasks", "replicates"]
    columns += ["run", "experiment"]
    finished = ran[[manifest["status"] == "complete" for manifest in ran.manifest]]
    values = dict(list(accuracy(finished).groupby("run"))) if len(finished) else {}
    groups = ran.sort_values(["tag", "method", "privacy", "epsilon"]).groupby("dataset", sort=False)
    return "".join(
        f"<h3>{escape(name)}: {len(part)} runs</h3>"
        + html.table(columns, [_run_cells(run, values.get(run.Index)) for run in part.itertuples()])
        for name, part in sorted(groups)
    )


def _run_cells(run, rows):
    measured = ("-", "-", "-")
    if rows is not None:
        spread = f" ± {rows.value.std():.4f}" if len(rows) > 1 else ""
        measured = (rows.metric.iloc[0], f"{rows.value.mean():.4f}{spread}")
        measured += (f"{rows.stl.mean():.4f}",)
    epsilon = "-" if math.isnan(run.epsilon) else f"{run.epsilon:g}"
    statement = run.manifest.get("privacy", {})
    pairs = [_pair(statement.get(key)) for key in ("claimed", "proved")]
    state = (run.replicates, run.manifest["status"], run.tag or "-")
    return [run.method, run.privacy, epsilon, run.status, *pairs, *measured, *state]


def _pictures(results):
    order, kinds = [figure.experiment for figure in FIGURES], list(KINDS.values())
    numbers = {f.experiment: f.name for f in FIGURES if f.name.startswith("Fig.")}
    paths = [path for path in (results / "figures").glob("*.csv") if kind_of(path.stem)]
    rank = {name: k for k, name in enumerate(order)}
    paths.sort(key=lambda p: (kinds.index(kind_of(p.stem)), rank.get(p.stem, 99), p.stem))
    blocks = []
    for path in paths:
        kind, picture, table = kind_of(path.stem), path.with_suffix(".png"), read_table(path)
        if not picture.is_file():
            redraw(kind.draw, path, path.with_suffix(""))
        content = picture.read_bytes()
        source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        width, height = (int.from_bytes(content[k : k + 4]) for k in (16, 20))  # IHDR
        words = kind.caption
        if "dataset" in table:
            words += f" Data: {', '.join(map(str, table.dataset.unique()))}."
        if "status" in table:
            stated = sorted(set(table.status) - {"none"})
            words += f" Budgets shown: {' and '.join(stated) or 'none'}."
        blocks.append(
            f"<figure{' class=wide' * (width > 1000)}>"
            f'<div class="picture" tabindex="0"><img width="{width}" height="{height}"'
            f' alt="{escape(words)}" src="{source}"></div>'
            f"<figcaption><b>{numbers.get(path.stem, 'Not in the paper')}.</b> {escape(words)} "
            f"Numbers: <code>figures/{escape(path.name)}</code></figcaption></figure>\n"
        )
    return f'<div class="figures">{"".join(blocks)}</div>' if blocks else ""


def _text(path):
    return read_table(path, dtype=str).fillna("")


def _bounds(path):
    """The table of utility bounds, numbers to four digits."""
    if not path.is_file():
        return ""
    table = _text(path).map(_rounded)
    long = [name for name in table if table[name].str.len().max() > 40]
    return html.table(table.columns, table.to_numpy(), long)


def _rounded(text):
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text


def _claims(path):
    if not path.is_file():
        return ""
    table = _text(path)
    if "verdict" not in table:
        raise ResultsError(f"{path} has no column verdict")
    head = tally(table.verdict)
    marks = {
        word: f'<span class="{kind}">{mark} {word}</span>'
        for word, (mark, kind) in VERDICTS.items()
    }
    marked = [html.Html(marks.get(word, escape(word))) for word in table.verdict]
    table["verdict"] = pd.Series(marked, table.index, dtype=object)  # text columns take plain text
    long = ("statement", "measured", "settings", "tried")
    return f"<p>{len(table)} claims: {escape(head)}.</p>{html.table(table, table.to_numpy(), long)}"


def _audits(results, audited):
    saved = results / "figures/privacy_audit.csv"
    if not (saved.is_file() or len(audited)):
        return ""
    table = read_table(saved) if saved.is_file() else audited
    columns = [
        "dataset",
        "method",
        "privacy",
        "guarantee",
        "epsilon",
        "delta",
        "measured",
        "verdict",
    ]
    rows = table.sort_values("measured", ascending=False, kind="stable")[columns].astype(object)
    for name in ("epsilon", "delta", "measured"):
        rows[name] = [f"{value:.3g}" for value in rows[name]]
    note = "Measured: lower bound on delta at that epsilon. Not refuted is no proof."
    return f"<p>{note}</p>{html.table(columns, rows.to_numpy())}"


def _caveats(manifests):
    texts, counts = {}, Counter()
    for manifest in manifests:
        caveats = manifest.get("privacy", {}).get("caveats", {})
        texts |= caveats
        counts.update(caveats.keys())
    if not texts:
        return html.paragraph("No run of this folder has a caveat.") if manifests else ""
    items = [(f"{code} (in {counts[code]} manifests)", text) for code, text in texts.items()]
    return html.definitions(items, "caveats")


def _again(results, ran):
    tags = set(ran.experiment) if len(ran) else set()
    of_paper = (
        tags & {figure.experiment for figure in FIGURES} or (results / "claims.csv").is_file()
    )
    if not of_paper:
        words = f"mpmtl-report {results.as_posix()}   # this page"
        return f"<pre>{escape(words)}</pre>"
    scale = results.resolve().name
    scale = scale if scale in SCALES else " or ".join(SCALES[1:])
    source = results.as_posix() if not results.is_absolute() else f"results/{results.name}"
    lines = (
        f"make reproduce-paper SCALE={scale}   # all runs and figures; goes on where it was",
        f"make figures SOURCE={source}   # the figures, without runs",
        f"make report SOURCE={source}   # this page",
    )
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
