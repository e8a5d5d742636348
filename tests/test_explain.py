"""Slopes in the table's own units against finite differences of predictions on the raw table."""

import json

import numpy as np
import pandas as pd
import pytest
from conftest import make_run, mpmtl_run

from mpmtl.errors import InputError
from mpmtl.experiments.explain import effects, explanation
from mpmtl.experiments.predict import predict, read_model
from mpmtl.experiments.runner import run_replicate


@pytest.fixture(scope="module")
def frame():
    """Numbers with and without a public range, one of them with gaps; levels."""
    rng, n = np.random.default_rng(5), 120
    age, income = rng.uniform(20, 60, n).round(1), rng.normal(3000, 500, n).round(0)
    sex = rng.choice(["f", "m"], n)
    y = 2.0 + 0.05 * age - 0.001 * income + (sex == "f") + 0.1 * rng.standard_normal(n)
    data = {"owner": np.repeat([f"o{i}" for i in range(6)], 20), "age": age, "income": income}
    frame = pd.DataFrame(data | {"sex": sex, "y": y.round(3)})
    frame["passed"] = np.where(y > np.median(y), "yes", "no")
    frame.loc[::7, "income"] = np.nan
    return frame


def models_of(frame, folder, target, *words):
    """Models of each owner, read from their files."""
    frame.to_csv(folder / "t.csv", index=False)
    other = {"y": "passed", "passed": "y"}[target]
    run = make_run(
        *("dataset=table", f"dataset.path={folder / 't.csv'}", "dataset.task=owner"),
        *(f"dataset.target={target}", f"dataset.drop=[{other}]", "dataset.ranges={age: [0, 100]}"),
        *("dataset.train_fraction=1", "method=stl", "tuning=fixed", *words),
        tiny=False,
    )
    models = {}
    for k, model in enumerate(run_replicate(run, 0)["models"]):
        path = folder / f"task-{k}.json"
        path.write_text(json.dumps(model))
        models[model["task"]] = read_model(path)
    return models


def changed(models, row, **values):
    """The score of a row of text with other values."""
    table = pd.DataFrame([row | values])
    (value,), _ = predict(models, table, "owner")
    kind = next(iter(models.values()))["kind"]
    return np.log(value / (1 - value)) if kind == "binary" else value


@pytest.mark.parametrize("target", ["y", "passed"])
def test_slopes_are_finite_differences_of_predictions(target, frame, tmp_path):
    models = models_of(frame, tmp_path, target)
    for owner, model in models.items():
        row = {"owner": owner, "age": "40", "income": "3000", "sex": "m"}
        told = {effect["what"]: effect for effect in effects(model)}
        assert set(told) == {"age", "income", "income missing", "sex=f", "sex=m"}
        seen = {
            "age": changed(models, row, age="41") - changed(models, row),
            "income": (changed(models, row, income="3100") - changed(models, row)) / 100,
        }
        none = changed(models, row, sex="neither")
        for level in ("f", "m"):
            seen[f"sex={level}"] = changed(models, row, sex=level) - none
        own = frame.loc[frame["owner"] == owner, "income"].mean()
        known = changed(models, row, income=repr(float(own)))
        seen["income missing"] = changed(models, row, income="") - known
        for name, difference in seen.items():
            assert told[name]["slope"] == pytest.approx(difference, rel=1e-6, abs=1e-9)
        file = json.loads((tmp_path / f"task-{list(models).index(owner)}.json").read_text())
        slopes, level = file["own_units"]["slopes"], file["own_units"]["intercept"]
        assert slopes == {name: pytest.approx(effect["slope"]) for name, effect in told.items()}
        score = level + 40 * slopes["age"] + 3000 * slopes["income"] + slopes["sex=m"]
        assert score == pytest.approx(changed(models, row))


def test_what_raises_most_comes_first_in_steps_that_compare(frame, tmp_path):
    model = models_of(frame, tmp_path, "y")["o0"]
    rows = effects(model)
    assert [row["effect"] for row in rows] == sorted((r["effect"] for r in rows), reverse=True)
    steps = {row["what"]: row["step"] for row in rows}
    assert steps["age"] == 50  # half the public range
    assert steps["income"] == pytest.approx(frame["income"].std(ddof=0))
    assert rows[0]["what"] == "age"
    assert rows[0]["effect"] == pytest.approx(50 * rows[0]["slope"])


def test_a_range_that_ends_and_rows_that_are_shortened_are_said(frame, tmp_path):
    text = explanation(models_of(frame, tmp_path, "passed"))
    assert "log odds of passed = yes" in text
    assert "Values out of a public range count as its end" in " ".join(text.split())


def test_rows_of_unit_length_have_no_slope(frame, tmp_path):
    models = models_of(frame, tmp_path, "y", "dataset.rows=unit")
    with pytest.raises(InputError, match="rows = unit"):
        explanation(models)
    assert json.loads((tmp_path / "task-0.json").read_text())["own_units"] is None


def test_the_command_follows_the_terminal_and_needs_no_table(frame, tmp_path):
    models_of(frame, tmp_path, "y")
    for columns in (60, 120):
        done = mpmtl_run(
            *(tmp_path, "--explain"),
            cwd=tmp_path,
            env={"COLUMNS": str(columns)},
            program="mpmtl-predict",
        )
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= columns
        for owner in frame["owner"].unique():
            assert f"{owner}: y goes up by" in done.stdout
    done = mpmtl_run(tmp_path, cwd=tmp_path, program="mpmtl-predict")
    assert done.returncode == 2
    assert done.stderr == "error: table is missing: give it, or --explain\n"
