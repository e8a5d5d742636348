"""What all scripts that draw a figure do: read two options, draw, say what was written."""

import argparse
import sys
from pathlib import Path

from mpmtl.errors import InputError, ResultsError


def main(doc, draw, name, folder="figures", **options):
    """Entry point of a script.

    Parameters
    ----------
    doc : str
        The script's docstring; its first line is the description.
    draw : callable
        ``draw(results, path, **values)`` writes path.png, .pdf and .csv.
    name : str or callable
        File if --out is not given, or a function of the script's arguments.
    folder : str
        Below the results folder, where that file goes.
    **options : dict
        Further arguments of the script, name to keywords of `add_argument`.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0].split(": python")[0])
    for key, settings in options.items():
        parser.add_argument(key if "nargs" in settings else f"--{key}", **settings)
    parser.add_argument("--results", default="results", help="results folder (results)")
    parser.add_argument("--out", help=f"without suffix; default in <results>/{folder}")
    values = vars(parser.parse_args())
    results, out = Path(values.pop("results")), values.pop("out")
    if callable(name):
        name = name(**values)
    path = Path(out) if out else results / folder / name
    try:
        draw(results, path, **values)
    except (ResultsError, InputError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{path}.png, .pdf and .csv")
