"""Saved models: one file for each task, and `mpmtl-predict`, which applies them to a table."""

import csv
import io
import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.special import expit

from mpmtl.data.encoding import Column, Encoder
from mpmtl.data.reading import (
    OPENERS,
    Format,
    column_name,
    read_parquet,
    read_table,
    require_column,
    some,
)
from mpmtl.errors import require
from mpmtl.experiments.commands import add_format, command_parser, format_of
from mpmtl.experiments.explain import explanation, own_units
from mpmtl.experiments.layout import say


def task_models(method, data, W):
    """What each task may keep of a fit: its own model, and how its rows are prepared.

    Parameters
    ----------
    method : str
    data : MultiTaskData
    W : ndarray, shape (m, d)

    Returns
    -------
    list of dict
        Ready for JSON; nothing of another task is in it. "coef" is for rows prepared by "recipe",
        "own_units" (`explain.own_units`) for the columns as they stand in the table.
    """
    offset, scale = data.units
    slopes, intercepts = W, np.zeros(len(W))
    if data.intercept:
        slopes, intercepts = W[:, :-1], W[:, -1]
    models = [
        {
            "task": name,
            "method": method,
            "kind": data.kind,
            "features": list(data.feature_names[: slopes.shape[1]]),
            "coef": (scale * slopes[i]).tolist(),
            "intercept": offset + scale * float(intercepts[i]),
            "recipe": data.recipes[i] if data.recipes else None,
        }
        for i, name in enumerate(data.task_names)
    ]
    for model in models:
        model["own_units"] = _own_units(model)
    return models


def _own_units(model):
    """Slopes and intercept in the table's own units; None where rows are scaled to unit length."""
    encoder = _encoder(model["features"], model["recipe"])
    if encoder.rows == "unit":
        return None
    slopes, intercept, _ = own_units(encoder, model["coef"], model["intercept"])
    named = dict(zip(encoder.features, slopes.tolist(), strict=True))
    return {"slopes": named, "intercept": intercept}


def _encoder(names, recipe):
    """The encoder of a model's recipe; without one, columns of the features' names as they are."""
    if recipe is None:
        return Encoder(tuple(map(Column, names)), rows="none")
    return Encoder.from_dict(recipe["encoder"])


def read_model(path):
    """A model that `task_models` made; anything else is refused with one line.

    Returns
    -------
    dict
        With "coef" and "fill" as arrays, "encoder", an `Encoder`, "format", a `Format`, "target",
        "positive"; a model of a built-in data set takes its features from columns of their names,
        prepared as they are.
    """
    try:
        model = json.loads(path.read_text(encoding="utf-8"))
        names, recipe = [str(name) for name in model["features"]], model["recipe"]
        coef, intercept = np.array(model["coef"], dtype=float), float(model["intercept"])
        encoder = _encoder(names, recipe)
        if recipe is None:
            form, fill, target, positive = Format(), coef * 0, "the target", "1"
        else:
            form = Format(**recipe["format"])
            fill = np.array(recipe["fill"], dtype=float)
            target, positive = recipe["target"], recipe["positive"]
        ok = coef.shape == fill.shape == (len(names),) and encoder.features == names
        ok = (
            ok
            and np.isfinite([*coef, *fill, intercept]).all()
            and model["kind"] in ("regression", "binary")
        )
        ok = ok and isinstance(model["task"], str)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ok = False
    require(ok, f"{path} is not a model that mpmtl saved, or of another version, or it is damaged")
    prepared = {"coef": coef, "intercept": intercept}
    prepared |= {"encoder": encoder, "fill": fill, "format": form}
    return model | prepared | {"target": target, "positive": positive}


def predict(models, frame, task, form=None):
    """Predictions for the rows of a table, and how its values fit what the models know.

    Parameters
    ----------
    models : dict of str to dict
        From task to `read_model`.
    frame : DataFrame of str
    task : str
        Column that names the task.
    form : Format, optional

    Returns
    -------
    values : ndarray, shape (n,)
        The target, or the probability of the positive class; nan where there is no model.
    misfits : dict of (str, str) to int
        By column and word: values that are gaps, unknown levels, out of range.

    Raises
    ------
    InputError
        One line for a column that is missing, and for text where a number belongs.
    """
    form = form or Format()
    values, misfits = np.full(len(frame), math.nan), Counter()
    for name, rows in frame.groupby(task).indices.items():
        if name not in models:
            continue
        model, part = models[name], frame.iloc[rows]
        for column in model["encoder"].columns:
            require_column(frame, column.name, f"feature of task {name}")
            for word, count in column.misfits(part[column.name], form).items():
                misfits[column.name, word] += count
        X = model["encoder"].finish(model["encoder"].encode(part, form), model["fill"])
        scores = X @ model["coef"] + model["intercept"]
        values[rows] = expit(scores) if model["kind"] == "binary" else scores
    return values, misfits


def _counted(models, frame, task, misfits):
    """One line that counts what the models did not know; empty if there is nothing to say."""
    parts = []
    for word, text in (
        ("unknown", "unseen levels (0 in all features)"),
        ("out of range", "values out of range (clipped)"),
        ("gaps", "gaps"),
    ):
        counts = [f"{n} in {name}" for (name, kind), n in misfits.items() if kind == word and n]
        parts += [f"{text}: {some(counts)}"] * (len(counts) > 0)
    unknown = ~frame[task].isin(models)
    if unknown.any():
        names = some([name or "(empty)" for name in frame.loc[unknown, task].unique()], 5)
        parts.append(
            f"{int(unknown.sum())} rows have no prediction: there is no model of task {names}"
        )
    return "; ".join(parts)


def _with_predictions(source, values, name, form, path):
    """The table as text with one more column; all others stay as they are, byte for byte."""
    words = ["" if math.isnan(v) else repr(float(v)).replace(".", form.mark) for v in values]
    if source.lines is None:
        frame = read_parquet(path)
        frame[name] = words
        return frame.to_csv(index=False)
    delimiter, end = form.delimiter(path), "\r\n" if source.lines[0].endswith("\r\n") else "\n"
    field = io.StringIO()
    writer, lines = csv.writer(field, delimiter=delimiter, lineterminator=""), []
    for line, word in zip(source.lines, [name, *words], strict=True):
        field.seek(0)
        field.truncate()
        writer.writerow([word])
        added = "" if word == "" else field.getvalue()
        lines.append(line.rstrip("\r\n") + delimiter + added + end)
    return "".join(lines)


def _model_files(place):
    """Files of models: one, those of a folder, or of the one replicate that a run has."""
    place = Path(place)
    if place.is_file():
        return [place]
    replicates = sorted(place.glob("models/replicate-*"))
    require(
        len(replicates) <= 1,
        f"{place} has models of {len(replicates)} replicates: give one of its models/replicate-...",
    )
    folder = replicates[0] if replicates else place
    files = sorted(folder.glob("task-*.json"))
    require(
        len(files) > 0,
        f"{folder} holds no task-*.json: give the folder of a run with save_models=true, one of "
        "its models/replicate-..., or one file of these",
    )
    return files


def _run(options):
    models = {model["task"]: model for model in map(read_model, _model_files(options.models))}
    if options.explain:
        print(explanation(models))
        return
    for key in ("table", "task"):
        given = getattr(options, key) is not None
        require(given, f"{'--' * (key == 'task')}{key} is missing: give it, or --explain")
    first = next(iter(models.values()))
    form, task = format_of(options, first["format"]), column_name(options.task)
    source = read_table(options.table, form)
    require_column(source.frame, task, "--task")
    require(
        options.column not in source.frame,
        f"the table has a column {options.column}: give another name, --column=...",
    )
    values, misfits = predict(models, source.frame, task, form)
    text = _with_predictions(source, values, options.column, form, Path(options.table))
    if first["kind"] == "binary":
        say(f"{options.column}: probability that {first['target']} = {first['positive']}")
    if line := _counted(models, source.frame, task, misfits):
        say(line)
    if options.out is None:
        sys.stdout.buffer.writelines(text.encode(form.encoding).splitlines(keepends=True))
        sys.stdout.buffer.flush()
        return
    out = Path(options.out)
    with OPENERS.get(out.suffix, open)(out, "wb") as file:
        file.write(text.encode(form.encoding))
    print(f"{len(values)} rows with a column `{options.column}`: {out}")


def main():
    """Entry point of `mpmtl-predict`."""
    parser = command_parser(
        "mpmtl-predict",
        "Apply the models that mpmtl-run ... save_models=true wrote to a table.",
    )
    parser.add_argument(
        "models", help="folder of a run, or of one of its replicates, or one task's file"
    )
    parser.add_argument(
        "table", nargs="?", help="CSV or Parquet file with the columns of the training table"
    )
    parser.add_argument("--task", help="column that names the task")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say what raises each task's predictions, in the table's own units, without a table",
    )
    parser.add_argument("--out", help="CSV file to write; default: standard output")
    parser.add_argument("--column", default="prediction", help="name of the column that is added")
    add_format(parser, "as the training table")
    _run(parser.parse_args())
