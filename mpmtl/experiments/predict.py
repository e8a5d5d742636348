"""Saved models: one file for each task, and `mpmtl-predict`, which applies them to a table."""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from scipy.special import expit

from mpmtl.data.table import Column, Encoder, read_table, require_column, task_words
from mpmtl.errors import InputError, require


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
        Ready for JSON; nothing of another task is in it.
    """
    return [
        {
            "task": name,
            "method": method,
            "kind": data.kind,
            "features": list(data.feature_names),
            "coef": W[i].tolist(),
            "recipe": data.recipes[i] if data.recipes else None,
        }
        for i, name in enumerate(data.task_names)
    ]


def read_model(path):
    """A model that `task_models` made; anything else is refused with one line.

    Returns
    -------
    dict
        With "coef" and "fill" as arrays, "offset" and "encoder", an `Encoder`; a model of a
        built-in data set takes its features from columns of their names, prepared as they are.
    """
    try:
        model = json.loads(path.read_text(encoding="utf-8"))
        names, recipe = [str(name) for name in model["features"]], model["recipe"]
        coef = np.array(model["coef"], dtype=float)
        if recipe is None:
            encoder, fill = Encoder(tuple(map(Column, names)), bias=False, rows="none"), coef * 0
            offset = 0.0
        else:
            encoder = Encoder.from_dict(recipe["encoder"])
            fill, offset = np.array(recipe["fill"], dtype=float), float(recipe["offset"])
        ok = coef.shape == fill.shape == (len(names),) and encoder.features == names
        ok = (
            ok
            and np.isfinite([*coef, *fill, offset]).all()
            and model["kind"] in ("regression", "binary")
        )
        ok = ok and isinstance(model["task"], str)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ok = False
    require(ok, f"{path} is not a model that mpmtl saved, or it is damaged")
    return model | {"coef": coef, "encoder": encoder, "fill": fill, "offset": offset}


def predict(models, frame, task):
    """Predictions for the rows of a table.

    Parameters
    ----------
    models : dict of str to dict
        From task to `read_model`.
    frame : DataFrame
    task : str
        Column that names the task.

    Returns
    -------
    ndarray, shape (n,)
        The target, or the probability of the positive class; nan where there is no model.
    """
    values = np.full(len(frame), math.nan)
    names = task_words(frame[task])
    for name, model in models.items():
        rows = np.flatnonzero(names == name)
        if len(rows) == 0:
            continue
        for column in model["encoder"].columns:
            require_column(frame, column.name, f"feature of task {name}")
        X = model["encoder"].finish(model["encoder"].encode(frame.iloc[rows]), model["fill"])
        scores = X @ model["coef"] + model["offset"]
        values[rows] = expit(scores) if model["kind"] == "binary" else scores
    return values


def _run(options):
    place = Path(options.models)
    paths = [place] if place.is_file() else sorted(place.glob("task-*.json"))
    require(
        len(paths) > 0,
        f"{place} holds no task-*.json: give the models/replicate-... folder of a run with "
        "save_models=true, or one of its files",
    )
    models = {model["task"]: model for model in map(read_model, paths)}
    frame = read_table(options.table)
    require_column(frame, options.task, "--task")
    frame["prediction"] = predict(models, frame, options.task)
    unknown = sorted(set(task_words(frame[options.task])) - set(models))
    if unknown:
        rows = int(frame["prediction"].isna().sum())
        print(
            f"{rows} rows have no prediction: there is no model of task "
            f"{', '.join(unknown[:5])}{' and others' if len(unknown) > 5 else ''}",
            file=sys.stderr,
        )
    if options.out is None:
        frame.to_csv(sys.stdout, index=False)
    else:
        frame.to_csv(options.out, index=False)
        print(f"{len(frame)} rows with a column `prediction`: {options.out}")


def main():
    """Entry point of `mpmtl-predict`; exit code 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="mpmtl-predict",
        description="Apply the models that mpmtl-run ... save_models=true wrote to a table.",
    )
    parser.add_argument("models", help="folder models/replicate-... of a run, or one task's file")
    parser.add_argument("table", help="CSV or Parquet file with the columns of the training table")
    parser.add_argument("--task", required=True, help="column that names the task")
    parser.add_argument("--out", help="CSV file to write; default: standard output")
    try:
        _run(parser.parse_args())
    except (InputError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
