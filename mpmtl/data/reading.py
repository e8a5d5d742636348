"""A table as it stands in its file: text, of which each value is read by itself."""

import bz2
import csv
import gzip
import io
import lzma
import re
import zlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.errors import InputError, require

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
DECIMALS = {"point": ".", "comma": ","}
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: What stands for a gap in numbers and levels, beside an empty field.
MISSING = ("NA", "N/A", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


@dataclass(frozen=True)
class Format:
    """How a table is written.

    Attributes
    ----------
    separator : str or None
        One character, or its name; None: tabs in .tsv files, else commas.
    decimal : {"point", "comma"}
    encoding : str
    missing : tuple of str
        What stands for a gap, beside an empty field.
    option : str
        What comes before the name of a setting in messages: "dataset." or "--".
    """

    separator: str | None = None
    decimal: str = "point"
    encoding: str = "utf-8"
    missing: tuple = MISSING
    option: str = "dataset."

    def __post_init__(self):
        object.__setattr__(self, "missing", tuple(str(word) for word in self.missing))
        ok = self.separator is None or self.separator in SEPARATORS or len(self.separator) == 1
        require(
            ok and self.separator not in ('"', "\n", "\r"),
            f"separator = {self.separator}: use {', '.join(SEPARATORS)} or one character",
        )
        require(
            self.decimal in (*DECIMALS, *DECIMALS.values()),
            f"decimal = {self.decimal}: use point or comma",
        )
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError, ValueError) as error:
            raise InputError(
                f"encoding = {self.encoding}: no such encoding; there is utf-8, latin-1, cp1252, "
                "utf-16 and others"
            ) from error

    @property
    def mark(self):
        """The decimal mark."""
        return DECIMALS.get(self.decimal, self.decimal)

    def delimiter(self, path):
        """The character between the fields of a file."""
        if self.separator is None:
            return "\t" if ".tsv" in Path(path).suffixes else ","
        return SEPARATORS.get(self.separator, self.separator)

    def gaps(self, values):
        """Which texts of a series stand for a gap, shape (n,)."""
        return values.isin(["", *self.missing]).to_numpy()


@dataclass(frozen=True)
class Source:
    """A table and the text that it stands in.

    Attributes
    ----------
    frame : DataFrame
        Every value as text without blanks around it; rows are numbered from 0.
    lines : list of str or None
        The heading and each row as in the file; None for Parquet.
    """

    frame: pd.DataFrame
    lines: list | None = None


def _decoded(path, form):
    """The text of a file."""
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read: {text}") from error
    try:
        text = content.decode(form.encoding)
    except UnicodeError as error:
        at = getattr(error, "start", 0)
        raise InputError(
            f"{path} is not {form.encoding} (byte {at + 1} is 0x{content[at : at + 1].hex()}): "
            f"give its encoding, such as {form.option}encoding=cp1252 or utf-16"
        ) from error
    require(
        "\0" not in text, f"{path} holds NUL bytes: it is no text, or {form.option}encoding=utf-16"
    )
    return text


def read_text(path, form):
    """A CSV file as a `Source`; a field too many or too few is one line, not another column."""
    text = _decoded(path, form)
    lines = io.StringIO(text, newline="").readlines()
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    if mark:
        lines[0] = lines[0].removeprefix(mark)
    delimiter = form.delimiter(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=delimiter != " ")
    rows, texts, start = [], [], 0
    try:
        for row in reader:
            if row:  # not a blank line
                rows.append([field.strip() for field in row])
                texts.append("".join(lines[start : reader.line_num]))
            start = reader.line_num
    except csv.Error as error:
        raise InputError(f"{path} cannot be read at line {reader.line_num}: {error}") from error
    require(len(rows) > 0, f"{path} is empty")
    head, *body = rows
    _check_separator(path, form, texts[0], head)
    require(len(body) > 0, f"{path} has no rows below its heading")
    _check_widths(path, len(head), body)
    texts[0] = mark + texts[0]
    return Source(pd.DataFrame(body, columns=head, dtype=object), texts)


def _check_separator(path, form, line, head):
    if form.separator is not None:
        return
    for name, other in SEPARATORS.items():
        fields = next(csv.reader(io.StringIO(line, newline=""), delimiter=other), [])
        if other != " " and len(fields) > len(head):
            raise InputError(
                f"{path}: the heading has {_count(len(head), 'field')} between commas or tabs and "
                f"more with the {name}: give {form.option}separator={name}"
            )
    require(len(head) > 1, f"{path} has one column only: give {form.option}separator=...")


def _check_widths(path, width, body):
    widths = np.array([len(row) for row in body])
    wrong = np.flatnonzero(widths != width)
    if len(wrong) == 0:
        return
    if (widths == width + 1).all():
        trailing = all(row[-1] == "" for row in body)
        raise InputError(
            f"{path}: every row has {width + 1} fields and the heading {width}, so columns would "
            "shift: "
            + (
                "the rows end with a separator, take it away"
                if trailing
                else "write the table without row names, or name their column"
            )
        )
    raise InputError(
        f"{path}: row {wrong[0] + 1} has {_count(widths[wrong[0]], 'field')} and the heading "
        f"{width}{_more(len(wrong) - 1)}: a separator too many or too few, or a text that needs "
        "quotes"
    )


def read_parquet(path):
    """The values of a Parquet file as pandas has them; whole numbers with gaps stay whole."""
    try:
        frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from error
    except (OSError, ValueError) as error:  # pyarrow's are ValueErrors
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as a table: {text}") from error
    named = any(name is not None for name in frame.index.names)
    return frame.reset_index(drop=not named)


def _text(value, mark):
    """A value of a Parquet file as text, by itself; whole numbers without ".0"."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    if isinstance(value, float | np.floating):
        whole = float(value).is_integer() and abs(value) < 2**53
        return str(int(value)) if whole else str(value).replace(".", mark)
    return str(value).strip()


def read_table(path, form=None):
    """A CSV (also .gz, .bz2, .xz, or tab-separated as .tsv) or Parquet file as a `Source`.

    Nothing is guessed from the values: all of them are text. A column without a name is called
    ``Unnamed: <number>``, as in pandas.

    Raises
    ------
    InputError
        One line for a file that is no table, with the option that would make it one.
    """
    path, form = Path(path), form or Format()
    require(path.is_file(), f"path = {path}: there is no such file")
    require(
        path.suffix not in (".xlsx", ".xls", ".ods", ".zip"),
        f"{path}: {path.suffix} files are not read, save the sheet as CSV",
    )
    if path.suffix == ".parquet":
        source = Source(read_parquet(path).map(_text, mark=form.mark).astype(object))
    else:
        source = read_text(path, form)
    frame = source.frame
    names = [column_name(name) for name in frame.columns]
    frame.columns = [name or f"Unnamed: {k}" for k, name in enumerate(names)]
    repeated = frame.columns[frame.columns.duplicated()].unique()
    require(len(repeated) == 0, f"{path}: column {', '.join(repeated)} appears more than once")
    require(len(frame) > 0, f"{path} has no rows")
    return source


def column_name(name):
    """A column's name with single blanks, as tables, settings and schemas have it."""
    return " ".join(str(name).split())


def _number(text, mark):
    if mark != ".":
        text = text.replace(".", "?").replace(mark, ".")
    value = float(text) if _NUMBER.fullmatch(text) else np.nan
    return value if np.isfinite(value) else np.nan


def parsed(values, form):
    """Numbers of a series of text, and which are neither a number nor a gap; shapes (n,)."""
    out = np.array([_number(text, form.mark) for text in values], dtype=float)
    gaps = form.gaps(values)
    out[gaps] = np.nan
    return out, np.isnan(out) & ~gaps


def numbers(values, form, strict=True):
    """Numbers of a column, nan for gaps; each value by itself.

    Parameters
    ----------
    values : Series of str
        Its name is the column's, its index numbers the rows from 0.
    form : Format
    strict : bool
        Refuse what is no finite number; else it counts as a gap.
    """
    out, bad = parsed(values, form)
    if strict and bad.any():
        raise InputError(unreadable(values, bad, form))
    return out


def unreadable(values, bad, form):
    """One line about values that are no numbers: the first one, its row, and what to do."""
    first = int(np.flatnonzero(bad)[0])
    text, row = values.iloc[first], values.index[first] + 1
    cure = f"correct it, or count it as a gap ({form.option}missing)"
    if form.mark == "." and _COMMA.fullmatch(text):
        cure = f"decimal commas need {form.option}decimal=comma"
    return (
        f"column {values.name}: {text!r} in row {row} is no finite number"
        f"{_more(int(bad.sum()) - 1)}: {cure}"
    )


def require_column(frame, name, key):
    """Refuse a name, given as the setting `key`, that is no column; say which ones are near."""
    near = get_close_matches(str(name), list(frame.columns), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {some(frame.columns)}"
    require(name in frame.columns, f"{key} = {name}: the table has no such column; {hint}")


def _count(n, noun):
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _more(n):
    return f" (and {n} more)" if n else ""


def some(words, most=8):
    """The first of some words."""
    words = list(words)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
