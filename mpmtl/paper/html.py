"""Pieces of a page that is complete in itself: its style, tables that sort, definitions."""

from html import escape

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
th { position: sticky; top: 0; background: #f5f5f5; white-space: nowrap; z-index: 1; }
th button { all: unset; cursor: pointer; font-weight: 700; }
th button:focus-visible { outline: 2px solid #0059a0; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.number { text-align: right; }
.answer { font-size: 1.1rem; border-left: 4px solid #0059a0; padding-left: .8rem; }
td { white-space: nowrap; }
td.long { white-space: pre-line; min-width: 11rem; }
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
#: Sorts a table by the column whose heading is pressed, numbers as numbers, what is empty last.
SCRIPT = """
document.querySelectorAll("th button").forEach(button => button.onclick = () => {
  const head = button.parentNode, table = head.closest("table"), column = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[column].textContent.trim();
  const compare = (a, b) => {
    if (a === b) return 0;
    if (a === "" || a === "-") return 1;
    if (b === "" || b === "-") return -1;
    const x = parseFloat(a), y = parseFloat(b);
    const order = isNaN(x) || isNaN(y) ? a.localeCompare(b, "en", {numeric: true}) : x - y;
    return up ? order : -order;
  };
  const rows = Array.from(table.tBodies[0].rows);
  rows.sort((a, b) => compare(key(a), key(b))).forEach(row => table.tBodies[0].append(row));
});
"""


class Html(str):
    """Text that is markup already."""


def cell(value):
    """A value as markup: `Html` as it is, everything else as text."""
    return value if isinstance(value, Html) else escape(str(value))


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def table(columns, rows, long=()):
    """A table in a box of its own, which scrolls; a heading sorts it.

    Parameters
    ----------
    columns : sequence of str
    rows : sequence of sequences
    long : collection of str
        Columns whose text may break.
    """
    rows = [[cell(value) for value in row] for row in rows]
    of_column = list(zip(*rows, strict=True)) or [()] * len(columns)
    numbers = {
        column
        for column, values in zip(columns, of_column, strict=True)
        if any(map(_is_number, values)) and column not in long
    }
    head = "".join(
        f"<th{' class=number' * (column in numbers)}>"
        f'<button type="button">{escape(str(column))}</button></th>'
        for column in columns
    )
    lines = []
    for row in rows:
        cells = []
        for column, value in zip(columns, row, strict=True):
            kind = "long" if column in long else "number" if column in numbers else ""
            cells.append(f'<td class="{kind}">{value}</td>' if kind else f"<td>{value}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return (
        '<div class="box" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n"
    )


def definitions(items, kind=""):
    """Names and texts."""
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in items)
    return f'<dl class="{kind}">{rows}</dl>\n'


def paragraph(text, kind=""):
    """A paragraph of text."""
    return f'<p class="{kind}">{escape(text)}</p>\n' if kind else f"<p>{escape(text)}</p>\n"


def document(title, head, sections):
    """The whole page.

    Parameters
    ----------
    title : str
    head : str
        Markup above the links.
    sections : dict of str to str
        Markup by heading; the first word of a heading is its id.
    """
    ids = {name: name.split()[0].lower() for name in sections}
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for name, key in ids.items())
    body = "".join(
        f'<section id="{ids[name]}"><h2>{escape(name)}</h2>{text}</section>\n'
        for name, text in sections.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{head}<nav>{links}</nav>\n{body}"
        f"<script>{SCRIPT}</script></body></html>\n"
    )
