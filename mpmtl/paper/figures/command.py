"""What all scripts that draw a figure do: read their options, draw, say what was written."""

import argparse
from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import read_table
from mpmtl.paper.catalogue import KINDS, make


def main(doc, name, show=None, **options):
    """Entry point of a script.

    Parameters
    ----------
    doc : str
        The script's docstring; its first line is the description.
    name : str
        Kind of figure.
    show : callable, optional
        Is called with the table.
    **options : dict
        Further arguments of the script, name to keywords of `add_argument`.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0].split(": python")[0])
    for key, settings in options.items():
        parser.add_argument(key if "nargs" in settings else f"--{key}", **settings)
    parser.add_argument("--results", default="results", help="results folder (results)")
    parser.add_argument("--table", help="draw this CSV, saved by an earlier call, instead of runs")
    parser.add_argument("--out", help="without suffix; default in <results>/figures, or --table's")
    values = vars(parser.parse_args())
    results, source, out = (values.pop(key) for key in ("results", "table", "out"))
    if source:
        path = Path(out) if out else Path(source).with_suffix("")
        table = redraw(KINDS[name].draw, source, path)
        if show:
            show(table)
    else:
        path = make(name, results, out, show, **values)
    print(f"{path}.png, .pdf and .csv")


def redraw(draw, source, path):
    """Draw a figure from its saved table, which is returned.

    ResultsError if that is the table of something else.
    """
    table = read_table(source)
    try:
        draw(table, path)
    except (KeyError, AttributeError, IndexError, StopIteration) as error:
        there = ", ".join(map(str, table.columns[:8]))
        raise ResultsError(f"{source} is not the table of this figure: it has {there}") from error
    return table
