"""One page about a results folder: runs, figures, claims and caveats, all in one file."""

import base64
import math
from collections import Counter
from html import escape
from pathlib import Path

import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.experiments.layout import duration
from mpmtl.experiments.reader import accuracy, audits, read_table, runs
from mpmtl.experiments.terminal import pair_words
from mpmtl.paper.catalogue import FIGURES, KINDS, kind_of
from mpmtl.paper.figures.command import redraw

#: Mark and class of a verdict; the mark and the word say it without the colour.
VERDICTS = {
    "holds": ("&#10003;", "yes"),
    "does not hold": ("&#10007;", "no"),
    "undecided": ("?", "open"),
}
SCALES = ("smoke", "laptop", "standard", "paper")
STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: #fff; color: #222;
  font: 1rem/1.55 Georgia, "Times New Roman", serif; overflow-wrap: anywhere; }
h1, h2, h3, nav, dt, table, figcaption b { font-family: system-ui, "Segoe UI", Helvetica, Arial,
  sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; }
p, dl, figcaption { max-width: 44rem; }
nav { font-size: .9rem; margin: 1rem 0; }
nav a { display: inline-block; margin-right: 1rem; color: #0059a0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; margin: 0; }
dt { font-size: .85rem; font-weight: 600; padding-top: .1rem; }
dd { margin: 0; }
dl.caveats { display: block; }
dl.caveats dd { margin: 0 0 .75rem; }
.box { overflow: auto; max-height: 26rem; border: 1px solid #ddd; border-radius: 4px; }
table { border-collapse: collapse; font-size: .8rem; line-height: 1.4; width: 100%;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem;
  border-bottom: 1px solid #eee; }
th { position: sticky; top: 0; background: #f5f5f5; white-space: nowrap; }
td { white-space: nowrap; }
td.long { white-space: normal; min-width: 11rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr));
  gap: 2rem 1.5rem; align-items: start; grid-auto-flow: dense; }
figure { margin: 0; }
figure.wide { grid-column: 1 / -1; }
img { display: block; max-width: 100%; height: auto; }
.picture { overflow-x: auto; }
.wide img { min-width: 42rem; }
figcaption { font-size: .9rem; margin-top: .5rem; }
code, pre { font: .85em ui-monospace, Menlo, Consolas, monospace; }
pre { overflow: auto; background: #f5f5f5; padding: .75rem 1rem; border-radius: 4px; }
.yes, .no, .open { font-weight: 700; white-space: nowrap; }
.yes { color: #005a8f; } .no { color: #a33c00; } .open { color: #555; }
@media (max-width: 34rem) {
  dl { display: block; } dd { margin-bottom: .5rem; }
  h1 { font-size: 1.4rem; }
}
@media print { .box { max-height: none; } }
"""


def page(results):
    """The page as text.

    Parameters
    ----------
    results : Path
        Results folder, with ``claims.csv`` and ``utility_bounds.csv`` if it has them.

    Raises
    ------
    ResultsError
        If there is neither a run nor a figure nor a table of claims.
    """
    results = Path(results)
    ran, audited = runs(results, finished=False), _audited(results)
    pictures = _pictures(results)
    if not (len(ran) or pictures or (results / "claims.csv").is_file()):
        raise ResultsError(f"nothing to report in {results}: no run, no figure, no claims.csv")
    sections = {
        "Figures": pictures or "<p>There are no figures in this folder.</p>",
        "Claims of the paper": _claims(results / "claims.csv"),
        "Utility bounds": _file(results / "utility_bounds.csv", "utility bounds"),
        "Audits": _audits(results, audited),
        "Caveats": _caveats([*ran.manifest, *audited.manifest[~audited.index.duplicated()]]),
        "Runs": _runs(ran),
        "How to make it again": _again(results),
    }
    ids = {name: name.split()[0].lower() for name in sections}
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for name, key in ids.items())
    body = "".join(
        f'<section id="{ids[name]}"><h2>{escape(name)}</h2>{text}</section>\n'
        for name, text in sections.items()
    )
    title = f"mpmtl: results of {escape(results.resolve().name)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        f"{_facts(ran)}<nav>{links}</nav>\n{body}</body></html>\n"
    )


def _definitions(items, kind=""):
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in items)
    return f'<dl class="{kind}">{rows}</dl>\n'


def _table(columns, rows, long=()):
    """A table in a box of its own, which scrolls; cells are text, or _Html as it is."""
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    lines = []
    for row in rows:
        cells = (
            f'<td class="long">{cell}</td>' if column in long else f"<td>{cell}</td>"
            for column, cell in zip(columns, map(_cell, row), strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return (
        '<div class="box" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n"
    )


class _Html(str):
    """Text that is markup already."""


def _cell(value):
    return value if isinstance(value, _Html) else escape(str(value))


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
        return "<p>There are no runs in this folder, only what was made from them.</p>"
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
    statements = [m["privacy"] for m in manifests if "privacy" in m]
    if statements:
        items["unit"] = _counted(f"a {s['unit']}; neighbours {s['relation']}" for s in statements)
        items["adversary"] = _counted(s["adversary"] for s in statements)
    return _definitions(items.items())


def _pair(block):
    words = pair_words(block)
    return "none" if words == "-" else words


def _runs(ran):
    if not len(ran):
        return "<p>There are no runs in this folder.</p>"
    columns = ["method", "privacy", "epsilon", "budget", "claimed (eps, delta)"]
    columns += ["proved (eps, delta)", "metric", "mean ± sd", "separate tasks", "replicates"]
    columns += ["run", "experiment"]
    finished = ran[[manifest["status"] == "complete" for manifest in ran.manifest]]
    values = dict(list(accuracy(finished).groupby("run"))) if len(finished) else {}
    groups = ran.sort_values(["tag", "method", "privacy", "epsilon"]).groupby("dataset", sort=False)
    return "".join(
        f"<h3>{escape(name)}: {len(part)} runs</h3>"
        f"{_table(columns, [_run_cells(run, values.get(run.Index)) for run in part.itertuples()])}"
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


def _file(path, noun):
    if not path.is_file():
        return f"<p>There is no table of {noun} ({path.name}) in this folder.</p>"
    table = _text(path)
    long = [name for name in table if table[name].str.len().max() > 40]
    return _table(table.columns, table.to_numpy(), long)


def _claims(path):
    if not path.is_file():
        return _file(path, "claims")
    table = _text(path)
    if "verdict" not in table:
        raise ResultsError(f"{path} has no column verdict")
    counts = Counter(table.verdict)
    head = "; ".join(f"{counts[word]} {word}" for word in dict.fromkeys((*VERDICTS, *counts)))
    marks = {
        word: f'<span class="{kind}">{mark} {word}</span>'
        for word, (mark, kind) in VERDICTS.items()
    }
    table["verdict"] = [_Html(marks.get(word, escape(word))) for word in table.verdict]
    long = ("statement", "measured", "settings", "tried")
    return f"<p>{len(table)} claims: {escape(head)}.</p>{_table(table, table.to_numpy(), long)}"


def _audits(results, audited):
    saved = results / "figures/privacy_audit.csv"
    if not (saved.is_file() or len(audited)):
        return "<p>There are no audits in this folder.</p>"
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
    return f"<p>{note}</p>{_table(columns, rows.to_numpy())}"


def _caveats(manifests):
    texts, counts = {}, Counter()
    for manifest in manifests:
        caveats = manifest.get("privacy", {}).get("caveats", {})
        texts |= caveats
        counts.update(caveats.keys())
    if not texts:
        return "<p>No run of this folder has a caveat.</p>"
    items = [(f"{code} (in {counts[code]} manifests)", text) for code, text in texts.items()]
    return _definitions(items, "caveats")


def _again(results):
    scale = results.resolve().name
    scale = scale if scale in SCALES else " or ".join(SCALES[1:])
    source = results.as_posix() if not results.is_absolute() else f"results/{results.name}"
    lines = (
        f"make reproduce-paper SCALE={scale}   # all runs and figures; goes on where it was",
        f"make figures SOURCE={source}   # the figures, without runs",
        f"make report SOURCE={source}   # this page",
    )
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
