"""What the commands on tables share, how a table is written; and `mpmtl-data`."""

import argparse
from dataclasses import replace

from mpmtl.data.files import fetch

FORMAT = {
    "separator": "comma, semicolon, tab, pipe, space or a character",
    "decimal": "point or comma",
    "encoding": "such as utf-8 or cp1252",
}


def add_format(parser, default):
    """Options that say how a table is written; `default` is what holds without them, in words."""
    for key, words in FORMAT.items():
        parser.add_argument(f"--{key}", help=f"{words}; default: {default}")
    parser.add_argument(
        "--missing", action="append", help=f"what stands for a gap (repeat it); default: {default}"
    )


def format_of(options, form):
    """The `Format` of the options given, and of `form` where they are not."""
    given = {key: getattr(options, key) for key in (*FORMAT, "missing")}
    given = {key: value for key, value in given.items() if value is not None}
    return replace(form, **given, option="--")


def command_parser(prog, description):
    """A parser with the option that `entry` answers."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    return parser


def data_main():
    """Entry point of `mpmtl-data`."""
    parser = command_parser("mpmtl-data", "Fetch the real data sets and check them.")
    parser.add_argument("--data-dir", default="data", help="where to put them (default: data)")
    for path in fetch(parser.parse_args().data_dir):
        print(path, flush=True)
