"""`mpmtl-schema`: the draft of a file that declares the columns of a table."""

import sys
from pathlib import Path

from mpmtl.data.reading import Format, column_name, read_table, require_column
from mpmtl.data.schema import draft
from mpmtl.errors import require
from mpmtl.experiments.commands import add_format, command_parser, format_of


def _run(options):
    form = format_of(options, Format())
    frame = read_table(options.table, form).frame
    names = {key: column_name(getattr(options, key)) for key in ("task", "target")}
    for key, name in names.items():
        if name:
            require_column(frame, name, f"--{key}")
    text = draft(frame, form, **names, source=Path(options.table).name)
    if options.out is None:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    out = Path(options.out)
    require(not out.exists(), f"--out = {out} is there already: choose another name")
    out.write_text(text, encoding="utf-8")
    print(f"{out}: check types, levels and ranges, then use dataset.schema={out}")


def main():
    """Entry point of `mpmtl-schema`."""
    parser = command_parser(
        "mpmtl-schema",
        "Draft the file that declares the columns of a table (dataset.schema).",
    )
    parser.add_argument("table", help="CSV or Parquet file")
    parser.add_argument("--task", default="", help="column that names the task")
    parser.add_argument("--target", default="", help="column to predict")
    parser.add_argument("--out", help="YAML file to write; default: standard output")
    add_format(parser, "as in a plain CSV")
    _run(parser.parse_args())
