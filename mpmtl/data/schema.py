"""What is declared of a table in a YAML file, and the draft of such a file."""

import re
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import yaml

from mpmtl.data.reading import column_name, parsed, unreadable
from mpmtl.errors import InputError, require

#: Settings of `Table` that a schema may hold beside its columns.
WORDS = ("task", "target", "kind", "positive", "separator", "decimal", "encoding")
LISTS = ("tasks", "missing")
RANGES = ("target_range", "n_public")
MOST_LEVELS = 100
FEW_LEVELS = 10


def read_schema(path):
    """Settings of `Table` from a schema: every name and level is the text that stands there.

    Returns
    -------
    dict
        Those that the file holds; of the columns: features, numbers, ranges, levels, indicators.

    Raises
    ------
    InputError
        One line for whatever is not understood.
    """
    path = Path(path)
    require(path.is_file(), f"schema = {path}: there is no such file")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeError, ValueError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"schema = {path} is not YAML: {text}") from error
    require(isinstance(content, dict), f"schema = {path}: write it as mpmtl-schema does")
    known = (*WORDS, *LISTS, *RANGES, "columns")
    for key in content:
        near = get_close_matches(str(key), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
        require(key in known, f"schema = {path}: unknown key {key}: {hint}")
    columns = content.pop("columns", None)
    require(
        isinstance(columns, dict) and len(columns) > 0,
        f"schema = {path}: columns must be a mapping such as {{age: {{range: [0, 100]}}}}",
    )
    settings = {}
    for key, value in content.items():
        where = f"schema = {path}: {key} = {value}"
        if key in WORDS:
            require(isinstance(value, str), f"{where}: give one word")
        else:
            ok = isinstance(value, list) and all(isinstance(word, str) for word in value)
            require(ok, f"{where}: write it as [a, b]")
        settings[key] = _pair(value, where) if key in RANGES else value
    settings = {key: value for key, value in settings.items() if value != ""}
    for key in ("task", "target"):
        settings |= {key: column_name(settings[key])} if key in settings else {}
    return settings | _columns(columns, path, {settings.get("task"), settings.get("target")})


def _pair(value, where):
    try:
        low, high = (float(number) for number in value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: give it as [low, high]") from None
    return [low, high]


def _columns(columns, path, others):
    """Settings of the columns but for the task and the target."""
    settings = {"features": [], "numbers": [], "ranges": {}, "levels": {}, "indicators": []}
    for key, entry in columns.items():
        name, where = column_name(key), f"schema = {path}: column {key}"
        if entry == "drop" or name in others:
            continue
        require(name not in settings["features"], f"{where} is declared twice")
        settings["features"].append(name)
        if entry == "number":
            entry = {}
        ok = isinstance(entry, dict) and entry.keys() <= {"range", "levels", "gaps"}
        ok = ok and not entry.keys() >= {"range", "levels"}
        require(ok, f"{where}: use drop, number, {{range: [a, b]}} or {{levels: [a, b]}}")
        if "levels" in entry:
            ok = isinstance(entry["levels"], list) and "gaps" not in entry
            ok = ok and all(isinstance(level, str) for level in entry["levels"])
            require(ok, f"{where}: write {{levels: [a, b]}}; a gap is no level, or one of its own")
            settings["levels"][name] = entry["levels"]
            continue
        settings["numbers"].append(name)
        if "range" in entry:
            settings["ranges"][name] = _pair(entry["range"], f"{where}: range = {entry['range']}")
        gaps = entry.get("gaps", "false")
        require(gaps in ("true", "false"), f"{where}: gaps = {gaps}: use true or false")
        if gaps == "true":
            settings["indicators"].append(name)
    return settings


def is_numeric(values, form):
    """Whether an undeclared column holds numbers, by most of its values.

    Raises
    ------
    InputError
        One line if some values are numbers and others are not, or none is there.
    """
    out, bad = parsed(values, form)
    known = ~form.gaps(values)
    require(known.any(), f"column {values.name} is empty: add it to drop")
    if not bad.any():
        return True
    commas = values[bad].str.fullmatch(r"[+-]?\d+,\d+").mean() > 0.5
    if np.isfinite(out).sum() * 2 >= known.sum() or (form.mark == "." and commas):
        line = unreadable(values, bad, form)
        raise InputError(f"{line}, or declare its levels" if not commas else line)
    return False


def levels_of(values, form):
    """Levels of an undeclared column, in order; one line for text that differs in most rows."""
    known = values[~form.gaps(values)]
    levels, name = sorted(known.unique()), values.name
    require(len(levels) >= 2, f"column {name} has {len(levels)} level: add it to drop")
    cure = f"add it to drop, or declare levels.{name}"
    require(len(levels) <= MOST_LEVELS, f"column {name} has {len(levels)} levels: {cure}")
    require(
        len(levels) <= max(FEW_LEVELS, len(known) / 2),
        f"column {name} has {len(levels)} levels in {len(known)} rows, such as {levels[0]!r} "
        f"(names? dates?): {cure}",
    )
    return levels


def draft(frame, form, task="", target="", source="the table"):
    """A schema for a table, to be confirmed by who knows what is public.

    Parameters
    ----------
    frame : DataFrame of str
    form : Format
    task, target : str
        Columns; empty where they are not known yet.
    source : str
        The table's name, for the heading.

    Returns
    -------
    str
    """
    lines = [
        f"# Draft of mpmtl-schema from {source}. What stands here is taken as public, but types,",
        "# levels and ranges were read off all rows: put what is known without looking at them.",
        "# Then: mpmtl-run dataset=table dataset.path=... dataset.schema=<this file>",
        f"task: {_word(task) if task else ' # the column that names the task'}",
        f"target: {_word(target) if target else ' # the column to predict'}",
    ]
    if target:
        lines += _target(frame[target], form)
    for key in ("separator", "decimal", "encoding"):
        if getattr(form, key) != getattr(type(form), key):
            lines.append(f"{key}: {_word(getattr(form, key))}")
    lines.append("columns:")
    rest = [name for name in frame if name not in (task, target)]
    return "\n".join(
        [*lines, *(f"  {_word(name)}: {_entry(frame[name], form)}" for name in rest), ""]
    )


def _target(values, form):
    known = values[~form.gaps(values)]
    classes = sorted(known.unique())
    if len(classes) == 2:
        positive = f"positive: {_word(classes[1])}  # the class that counts as 1"
        return ["kind: binary", f"{positive}; the other one is {_word(classes[0])}"]
    if len(classes) == 0 or not is_numeric(values, form):
        raise InputError(f"target = {values.name}: neither numbers nor two classes")
    return ["kind: regression", f"target_range: {_range(parsed(values, form)[0])}"]


def _range(out):
    return f"[{np.nanmin(out):.15g}, {np.nanmax(out):.15g}]"


def _entry(values, form):
    """What a draft says of a column."""
    if re.fullmatch(r"Unnamed: \d+", values.name):
        return "drop  # a column without a name: row numbers?"
    gaps = int(form.gaps(values).sum())
    if gaps == len(values):
        return "drop  # empty"
    known = values[~form.gaps(values)]
    if known.nunique() == 1:
        return f"drop  # always {_word(known.iloc[0])}"
    if not is_numeric(values, form):
        try:
            levels = levels_of(values, form)
        except InputError:
            return f"drop  # {known.nunique()} levels in {len(known)} rows: names? dates?"
        return f"{{levels: [{', '.join(map(_word, levels))}]}}" + (f"  # {gaps} gaps" * (gaps > 0))
    few = known.nunique()
    remarks = [f"{gaps} gaps"] * (gaps > 0) + [f"{few} values: levels?"] * (2 < few <= 5)
    remark = f"  # {', '.join(remarks)}" if remarks else ""
    return f"{{range: {_range(parsed(values, form)[0])}{', gaps: true' * (gaps > 0)}}}{remark}"


def _word(text):
    """Text as YAML has it; with quotes unless it is a plain word."""
    if re.fullmatch(r"\w[\w.-]*", text, re.ASCII):
        return text
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1e9).strip()
