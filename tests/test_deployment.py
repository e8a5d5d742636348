"""A run that could be deployed: declared, secure, and nothing shown but what the budget covers."""

import hashlib
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_run, mpmtl_run

from mpmtl.data import MultiTaskData
from mpmtl.errors import InputError, ResultsError
from mpmtl.experiments.runner import execute, noisy_error
from mpmtl.metrics import WORST, clipped_errors
from mpmtl.streams import stream

SCHEMA = """task: school
target: score
kind: regression
target_range: [0, 100]
columns:
  hours: {range: [0, 20], gaps: true}
  sex: {levels: [f, m]}
"""
DECLARED = ("dataset=table", "dataset.schema=schema.yaml", "dataset.strict=false")


def write_table(path, last=None):
    """Six schools of eight pupils; `last` replaces the rows of the last one."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "school": np.repeat(list("abcdef"), 8),
            "hours": rng.uniform(0, 20, 48).round(2),
            "sex": rng.choice(["f", "m"], 48),
        }
    )
    frame["score"] = (40 + 2 * frame.hours + rng.normal(0, 5, 48)).round(1)
    if last is not None:
        frame = frame.astype(object)
        frame.loc[frame.school == "f", ["hours", "sex", "score"]] = last
    path.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path / "t.csv", index=False)
    (path / "schema.yaml").write_text(SCHEMA)
    return f"dataset.path={path}/t.csv", f"dataset.schema={path}/schema.yaml"


def carry_out(path, *words, last=None):
    """A run on the table; its folder and what it printed."""
    table = write_table(path, last)
    words = ("dataset=table", "dataset.strict=false", *table, "n_replicates=1", "n_jobs=1", *words)
    run = make_run("epsilon=2", "delta=1e-3", *words, f"results_dir={path}/results", tiny=False)
    out = io.StringIO()
    execute(run, out)
    return path / "results" / run.folder, out.getvalue()


SECURE = ("method=fl_local", "privacy.noise=secure")


def test_a_declared_secure_run_has_a_card_without_caveats(tmp_path):
    folder, text = carry_out(tmp_path, *SECURE)
    assert "caveat" not in text
    assert "nmse" not in text
    assert "fitted      6 tasks, no test error is shown" in text
    assert "proved      (2, 0.001): Gaussian mechanism, exact composition; noise sampled" in text
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["privacy"]["caveats"] == {}
    assert set(pd.read_csv(folder / "replicates.csv").metric) == {"tasks_fitted"}
    assert pd.read_csv(folder / "cv.csv").score.isna().all()
    trace = pd.read_csv(folder / "trace.csv")
    assert trace[["noise_norm", "signal_norm"]].isna().all(axis=None)
    assert (trace.mu_t > 0).all()


def test_what_is_not_covered_stays_on_the_card(tmp_path):
    _, exact = carry_out(tmp_path / "a", *SECURE, "evaluation_epsilon=exact")
    assert "evaluation-not-charged" in exact
    assert "float-noise" not in exact
    _, seeded = carry_out(tmp_path / "b", "method=fl_local", "evaluation_epsilon=0")
    assert "float-noise" in seeded
    assert "reproducible-rng" in seeded
    assert "evaluation-not-charged" not in seeded
    _, tuned = carry_out(tmp_path / "c", *SECURE, "method=fl_shared")
    assert "tuning-not-charged" in tuned
    undeclared = ("dataset.schema=null", "dataset.task=school", "dataset.target=score")
    _, pooled = carry_out(tmp_path / "d", *SECURE, *undeclared)
    assert "pooled-schema" in pooled
    assert "read off all tasks' rows" in pooled  # the note that the caveat speaks of


OTHER_ROWS = {
    "far out": [1e9, "f", -1e9],
    "gaps and unknown levels": ["", "x", 50],
    "constant": [10, "m", 10],
}


@pytest.mark.parametrize("method", ["fl", "fl_local"])
@pytest.mark.parametrize("rows", OTHER_ROWS)
def test_nothing_else_that_a_run_shows_depends_on_a_task(method, rows, tmp_path, monkeypatch):
    """Every file but `table.sha256` is the same if a task is replaced and its release is not, but
    for times and random names; and so is what is printed."""
    monkeypatch.setattr(
        "mpmtl.privacy.grid.whole_numbers", lambda V, *rest: np.zeros(V.shape, dtype=np.int64)
    )
    shown = []
    for last in (None, OTHER_ROWS[rows]):
        path = tmp_path / str(len(shown))
        folder, text = carry_out(path, *SECURE, f"method={method}", last=last)
        lines = [line for line in text.replace(str(path), "").splitlines() if "about" not in line]
        shown.append((lines, without_times(path, folder)))
    assert shown[0] == shown[1]


def without_times(path, folder):
    """Content of every file of a run, without times, random names and the folder's own path."""
    content = {}
    for file in (p for p in folder.rglob("*") if p.is_file() and p.name != "table.sha256"):
        text = file.read_text(encoding="utf-8").replace(str(path), "")
        if file.name == "manifest.json":
            manifest = json.loads(text)
            manifest.pop("settings_digest")  # of settings that stand there, with the folder's path
            for key in ("started", "updated", "attempt", "seconds_in_replicates"):
                manifest.pop(key)
            text = manifest
        elif file.name == "journal.jsonl":
            text = json.loads(text.partition(" ")[2])
            text.pop("timing")
        elif file.name == "timing.csv":
            text = text.splitlines()[0]
        content[str(file.relative_to(folder))] = text
    assert {"card.txt", "manifest.json", "journal.jsonl", "replicates.csv"} <= content.keys()
    return content


@pytest.mark.parametrize("evaluation", ["0", "0.5", "exact"])
def test_a_digest_of_the_rows_stands_with_exact_errors_alone(evaluation, tmp_path):
    """Elsewhere the manifest has none, and another table is refused all the same."""
    words = (*SECURE, f"evaluation_epsilon={evaluation}")
    folder, _ = carry_out(tmp_path, *words)
    digest = hashlib.sha256(
        (tmp_path / "t.csv").read_bytes() + (tmp_path / "schema.yaml").read_bytes()
    ).hexdigest()
    having = {p.name for p in folder.rglob("*") if p.is_file() and digest in p.read_text()}
    assert having == {"manifest.json" if evaluation == "exact" else "table.sha256"}
    _, again = carry_out(tmp_path, *words)
    assert "already done" in again
    what = "dataset.sha256: " if evaluation == "exact" else "the table's content"
    with pytest.raises(ResultsError, match=what):
        carry_out(tmp_path, *words, last=[10, "m", 10])
    carry_out(tmp_path, *words, "overwrite=true", last=[10, "m", 10])


# a test error that the budget pays for


def test_clipped_errors_are_each_tasks_own_and_bounded():
    X = [np.eye(2), np.eye(2), np.eye(2), np.zeros((0, 2)), np.full((2, 2), np.inf)]
    y = [np.array(v, dtype=float) for v in ([1, 3], [1, 3], [2, 2], [], [1, 1])]
    data = MultiTaskData.checked(X, y, strict=False)
    W = np.array([[1, 2], [9, 9], [2, 3], [0, 0], [0, 0]], dtype=float)
    errors = clipped_errors(data, W, np.array([2.0, 2, 2, 0, 0]))
    np.testing.assert_allclose(errors, [0.5, WORST, 1, 1, 1])
    labels = [np.array([-1.0, 1.0])] * 2 + [np.ones(2)] + y[3:4] + [np.ones(2)]
    binary = MultiTaskData.checked(X, labels, "binary", strict=False)
    W[:2] = [[0, 1], [1, 0]]
    np.testing.assert_allclose(clipped_errors(binary, W, np.zeros(5)), [0, 1, 1, 1, 1])


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_noisy_error_has_the_noise_that_its_budget_asks_for(noise):
    """Laplace noise of scale WORST/(m epsilon) on the mean of clipped errors; sd within 10 %."""
    run = make_run("method=fl_local", "epsilon=2", f"privacy.noise={noise}")
    run = replace(run, evaluation=0.5)
    errors = np.linspace(0, WORST, 8)
    values = [noisy_error(run, errors, lambda name, k=k: stream(0, name, k)) for k in range(4000)]
    scale = WORST / (8 * 0.5)
    assert np.std(values) == pytest.approx(np.sqrt(2) * scale, rel=0.15)
    assert np.mean(values) == pytest.approx(1.0, abs=6 * np.sqrt(2 / 4000) * scale)


def test_a_noisy_error_is_a_part_of_epsilon_and_no_caveat(tmp_path):
    folder, text = carry_out(tmp_path, *SECURE, "evaluation_epsilon=0.5")
    assert "caveat" not in text
    assert "error       " in text
    assert "0.5 for the test error (Laplace mechanism)" in " ".join(text.split())
    rows = pd.read_csv(folder / "replicates.csv")
    assert set(rows.metric) == {"noisy_error"}
    privacy = json.loads((folder / "manifest.json").read_text())["privacy"]
    assert privacy["proved"]["epsilon"] == 2
    assert privacy["cost"]["pure"] == [0.5]
    _, text = carry_out(tmp_path / "b", "method=fl_local", "evaluation_epsilon=0.5")
    assert "float-noise" in text
    assert "evaluation-not-charged" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluation_epsilon=-1", "use auto, exact, 0 for no test error, or a part of epsilon"),
        ("evaluation_epsilon=maybe", "use auto, exact"),
        ("evaluation_epsilon=2", "leaves nothing of epsilon = 2"),
        ("evaluation_epsilon=1 method=fl_shared", "fl_shared chooses from all tasks' data"),
        ("evaluation_epsilon=1 method=lr", "lr chooses from all tasks' data"),
        ("evaluation_epsilon=1 method=stl", "use exact or 0"),
        ("evaluation_epsilon=1 privacy=none", "use exact or 0"),
        ("privacy.noise=secure method=lr privacy=wishart", "wishart cannot be sampled exactly"),
        ("privacy.noise=secure method=dp_aggr", "cannot be sampled exactly"),
        ("privacy.noise=fresh", "noise = fresh: use seeded or secure"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, message):
    words = words.split()
    words += [] if any(w.startswith("method=") for w in words) else ["method=fl_local"]
    with pytest.raises(InputError, match=message) as refused:
        make_run("epsilon=2", *words)
    assert "\n" not in str(refused.value)


def test_separate_tasks_stand_in_a_secure_sweep():
    """They need no noise, so its kind is not refused; and their errors are not shown either."""
    assert make_run("method=stl", "privacy.noise=secure").evaluation == 0


def test_seeded_runs_are_what_they_were():
    """The new settings are in no name of a seeded stream unless they are used."""
    run = make_run("method=fl_local")
    assert "noise" not in run.settings["privacy"]
    assert {"evaluation_epsilon", "ledger"}.isdisjoint(run.settings)
    secure = make_run("method=fl_local", "privacy.noise=secure").settings
    assert (secure["privacy"]["noise"], secure["evaluation_epsilon"]) == ("secure", 0)


def test_secure_noise_on_the_command_line(tmp_path):
    write_table(tmp_path)
    words = ("dataset.path=t.csv", *DECLARED, "method=fl_local", "privacy.noise=secure")
    done = mpmtl_run(*words, "epsilon=2", "delta=1e-3", "n_replicates=1", "n_jobs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "caveat" not in done.stdout
