"""What the commands on tables share: how a table is written, and errors of one line."""

import os
import sys
from dataclasses import replace

from mpmtl.errors import InputError

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


def run_command(run, parser):
    """``run(options)``; exit code 2 and one line for bad input, quiet where the reader stops."""
    try:
        run(parser.parse_args())
    except BrokenPipeError:  # as in `| head`; Python would complain once more at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
