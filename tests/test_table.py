"""A user's own table: encoding, what is read off all rows, small tasks, bad tables, prediction."""

import io
import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from conftest import BIN, make_run, mpmtl_run

from mpmtl.data import Table
from mpmtl.data.encoding import Column, Encoder
from mpmtl.data.reading import Format, read_table
from mpmtl.errors import InputError
from mpmtl.experiments.predict import predict as predict_rows
from mpmtl.experiments.predict import read_model
from mpmtl.experiments.runner import execute, run_replicate
from mpmtl.privacy.clipping import directions


def frame_of(rng, m=6, low=8, high=20):
    """Schools with a number, a word, gaps and a target that depends on them."""
    rows = []
    for school in range(m):
        for _ in range(int(rng.integers(low, high + 1))):
            age, sex = float(rng.integers(11, 19)), str(rng.choice(["f", "m"]))
            score = 3 + 0.5 * school + 0.2 * age + (sex == "f") + 0.1 * rng.standard_normal()
            rows.append({"school": f"s{school}", "age": age, "sex": sex, "score": score})
    frame = pd.DataFrame(rows)
    frame.loc[rng.random(len(frame)) < 0.1, "age"] = np.nan
    return frame


@pytest.fixture
def frame(rng):
    return frame_of(rng)


def saved(frame, path, **options):
    frame.to_csv(path, index=False)
    return Table(path=str(path), **({"task": "school", "target": "score"} | options))


DECLARED = {
    "ranges": {"age": [10, 20]},
    "levels": {"sex": ["f", "m"]},
    "indicators": ["age"],
    "kind": "regression",
    "target_range": [0, 20],
}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("rows", ["unit", "clip"])
def test_encoding_by_hand(rows, intercept, frame, tmp_path):
    """One task, written out: ranges to [-1, 1], indicator, levels, length of rows, intercept."""
    options = DECLARED | {"rows": rows, "norm": 1.2, "intercept": intercept}
    table = saved(frame, tmp_path / "t.csv", **options)
    train, test = table.draw(None, 0, 0)
    names = ("age", "age missing", "sex=f", "sex=m")
    assert train.feature_names == (*names, "(intercept)") if intercept else names
    assert train.task_names == tuple(sorted(frame.school.unique()))
    own = frame[frame.school == "s0"]
    raw = pd.DataFrame(
        {
            "age": (own.age - 15) / 5,
            "gap": own.age.isna().astype(float),
            "f": (own.sex == "f").astype(float),
            "m": (own.sex == "m").astype(float),
        }
    )
    fill = np.array(train.recipes[0]["fill"])
    raw["age"] = raw.age.fillna(fill[0])
    lengths = np.linalg.norm(raw.to_numpy(), axis=1, keepdims=True)
    want = raw.to_numpy() / (lengths if rows == "unit" else np.maximum(1, lengths / 1.2))
    if intercept:
        want = np.column_stack([want, np.ones(len(want))])
    y = (own.score.to_numpy() - 10) / 10
    got_X, got_y = np.vstack([train.X[0], test.X[0]]), np.concatenate([train.y[0], test.y[0]])
    by_target, wanted = np.argsort(got_y), np.argsort(y)
    np.testing.assert_allclose(got_y[by_target], y[wanted])
    np.testing.assert_allclose(got_X[by_target], want[wanted])
    assert 1 < lengths.max() > 1.2 > lengths.min()


def test_declared_columns_read_nothing_off_the_table(frame, tmp_path):
    """Other tasks' rows then change nothing of a task's own rows: bit for bit."""
    table = saved(frame, tmp_path / "t.csv", **DECLARED)
    assert table.caveats == ()
    other = frame.copy()
    others = other.school != "s0"
    other.loc[others, "age"] = 19.0
    other.loc[others, "sex"] = "m"
    changed = saved(other, tmp_path / "u.csv", **DECLARED)
    for one, two in zip(table.load(None).X[:1], changed.load(None).X[:1], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("missing", DECLARED)
def test_whatever_is_not_declared_is_a_caveat_that_names_it(missing, frame, tmp_path):
    declared = {key: value for key, value in DECLARED.items() if key != missing}
    table = saved(frame, tmp_path / "t.csv", **declared)
    assert table.caveats == ("pooled-schema",)
    assert f"({missing})" in table.notes[-1]


def test_the_caveat_reaches_the_manifest_and_the_card(frame, tmp_path, capsys):
    frame.to_csv(tmp_path / "own data.csv", index=False)
    run = make_run(
        *("dataset=table", "dataset.task=school", "dataset.target=score", "scale=smoke"),
        *(f"dataset.path={tmp_path / 'own data.csv'}", f"results_dir={tmp_path}", "n_jobs=1"),
        tiny=False,
    )
    execute(run)
    assert "pooled-schema" in capsys.readouterr().out
    manifest = json.loads((tmp_path / run.folder / "manifest.json").read_text())
    assert "pooled-schema" in manifest["privacy"]["caveats"]
    assert any("(ranges)" in note for note in manifest["data_notes"])
    assert run.folder.startswith("own_data/")
    assert "path" not in manifest["settings"]["dataset"]
    assert len(manifest["settings"]["dataset"]["sha256"]) == 64


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz"])
def test_formats(name, frame, tmp_path):
    frame.to_csv(tmp_path / name, index=False, sep="\t" if "tsv" in name else ",")
    table = Table(path=str(tmp_path / name), task="school", target="score")
    assert table.load(None).n_samples.sum() == len(frame)


def test_targets_outside_a_declared_range_are_clipped_and_counted(frame, tmp_path):
    low, high = frame.score.quantile([0.1, 0.9])
    table = saved(frame, tmp_path / "t.csv", target_range=[float(low), float(high)])
    y = np.concatenate(table.load(None).y)
    assert (y.min(), y.max()) == (low, high)
    outside = int(((frame.score < low) | (frame.score > high)).sum())
    assert f"{outside} targets clipped to target_range" in " ".join(table.notes)


def test_rows_are_clipped_at_the_declared_norm_only(frame, tmp_path):
    raw = saved(frame, tmp_path / "t.csv", rows="clip", norm=1e9).draw(None, 0, 0)[0]
    clipped = saved(frame, tmp_path / "t.csv", rows="clip", norm=1.5).draw(None, 0, 0)[0]
    for X, short in zip(raw.X, clipped.X, strict=True):
        np.testing.assert_array_equal(short[:, -1], 1)
        X, short = X[:, :-1], short[:, :-1]
        norms = np.linalg.norm(X, axis=1)
        np.testing.assert_allclose(np.linalg.norm(short, axis=1), np.minimum(norms, 1.5))
        np.testing.assert_allclose(short[norms <= 1.5], X[norms <= 1.5])


def test_two_classes_are_labels(frame, tmp_path):
    frame["passed"] = np.where(frame.score > frame.score.median(), "yes", "no")
    table = saved(frame.drop(columns="score"), tmp_path / "t.csv", target="passed")
    data = table.load(None)
    assert data.kind == "binary"
    assert "passed = yes counts as 1" in " ".join(table.notes)
    flipped = saved(
        frame.drop(columns="score"), tmp_path / "t.csv", target="passed", positive="no"
    ).load(None)
    np.testing.assert_array_equal(data.y[0], -flipped.y[0])


@pytest.mark.parametrize("method", ["lr", "gs", "mtl", "rl", "dp_mtrl", "dp_aggr", "mr_mtl"])
@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_tasks_of_one_and_two_rows(method, kind, rng, tmp_path):
    """More folds than samples: such tasks learn, and are held out in some folds only.

    No task vanishes, not even those with one class or without a row; a model is there for each.
    """
    sizes = [1, 1, 2, 2, 3, 9, 12]
    rows = [{"school": i, "x": v, "z": v**2} for i, n in enumerate(sizes) for v in rng.random(n)]
    frame = pd.DataFrame(rows)
    frame["score"] = frame.x + 0.1 * rng.standard_normal(len(frame))
    if kind == "binary":
        frame["score"] = frame.groupby("school").cumcount() % 2
    table = saved(frame, tmp_path / "t.csv", tasks=[*map(str, range(7)), "absent"])
    run = make_run(f"method={method}", "epsilon=1", "tuning.folds=5", "save_models=true")
    record = run_replicate(type(run)(**{**vars(run), "dataset": table}), 0)
    assert np.isfinite([row["value"] for row in record["replicates"]]).all()
    assert [model["task"] for model in record["models"]] == [*map(str, range(7)), "absent"]
    assert np.isfinite([model["coef"] for model in record["models"]]).all()


@pytest.mark.parametrize("method", ["lr", "mr_mtl"])
def test_steps_of_a_table_may_be_public(method, frame, tmp_path):
    """Clipped rows have a public norm: with it and public sizes there is a public step."""
    options = {"rows": "clip", "norm": 2.0, "n_public": [1, 20]}
    table = saved(frame, tmp_path / "t.csv", **DECLARED, **options)
    run = make_run(f"method={method}", "method.eta=public", "epsilon=1")
    record = run_replicate(type(run)(**{**vars(run), "dataset": table}), 0)
    assert np.isfinite(record["replicates"][0]["value"])
    unknown = saved(frame, tmp_path / "t.csv", **DECLARED)
    run = type(run)(**{**vars(run), "dataset": unknown})
    with pytest.raises(InputError, match="n_public"):
        run_replicate(run, 0)


BAD = [
    ({"path": "nowhere.csv"}, "there is no such file"),
    ({"task": "schol"}, "task = schol: the table has no such column; did you mean school"),
    ({"target": "scor"}, "did you mean score"),
    ({"target": "school"}, "are both school"),
    ({"features": ["agee"]}, "features = agee: the table has no such column; did you mean"),
    ({"features": ["age", "score"]}, "features holds score"),
    ({"features": "age"}, r"features = age: write it as \[a, b\]"),
    ({"ranges": {"sex": [0, 1]}}, r"ranges.sex = \[0, 1\]: the column is not numeric"),
    ({"ranges": {"age": [3, 3]}}, r"give it as \[low, high\] with low < high"),
    ({"ranges": {"age": ["a", 3]}}, r"give it as \[low, high\] with low < high"),
    ({"levels": {"sex": ["f"]}}, "at least two levels"),
    ({"drop": ["age", "sex"]}, "no feature is left"),
    ({"kind": "binary"}, "not two classes"),
    ({"kind": "ordinal"}, "use auto, regression or binary"),
    ({"rows": "raw"}, "use unit or clip"),
    ({"norm": 0.0}, "norm = 0.0 must be finite and above 0"),
    ({"tasks": ["elsewhere"]}, "no row is left: .* a task that is not declared"),
    ({"train_fraction": 1.5}, "must be between 0 and 1"),
    ({"target": "sex", "kind": "regression"}, "column sex: '[fm]' in row 1 is no finite number"),
    ({"indicators": "age"}, "use auto or a list"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_impossible_settings_are_one_line(options, message, frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    settings = {"path": str(tmp_path / "t.csv"), "task": "school", "target": "score"} | options
    with pytest.raises(InputError, match=message) as caught:
        Table(**settings).load(None)
    assert "\n" not in str(caught.value)


def spoiled(frame, how):
    frame = frame.copy()
    if how == "constant":
        frame["age"] = 12.0
    elif how == "infinite":
        frame.loc[3, "age"] = np.inf
    elif how == "empty column":
        frame["age"] = np.nan
    elif how == "no task":
        frame.loc[2, "school"] = None
    elif how == "one task each":
        frame["school"] = np.arange(len(frame))
    elif how == "many levels":
        frame["sex"] = [f"id-{i}" for i in range(len(frame))]
    elif how == "no target":
        frame["score"] = np.nan
    return frame


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("constant", "column age is always 12: add it to drop"),
        ("infinite", "column age: 'inf' in row 4 is no finite number"),
        ("empty column", "column age is empty"),
        ("no task", "names no task in 1 rows"),
        ("one task each", "every task has one row only"),
        ("many levels", "levels: add it to drop, or declare"),
        ("no target", "column score is empty in every row"),
    ],
)
def test_faulty_tables_are_one_line(how, message, rng, tmp_path):
    frame = spoiled(frame_of(rng, m=30), how)
    with pytest.raises(InputError, match=message):
        saved(frame, tmp_path / "t.csv").load(None)


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n", b"a,b\n1,2,3\n1\n4,5,6,7\n", b"\xff\xfe\x00bad\x80", b"a,a\n1,2\n"]
)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_files_that_are_no_tables_are_one_line(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        Table(path=str(tmp_path / name), task="a", target="b").load(None)
    assert "\n" not in str(caught.value)


# Models in files of their own, and predictions from them


@pytest.fixture
def run_with_models(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = mpmtl_run(
        *("dataset=table", "dataset.path=t.csv", "dataset.task=school", "dataset.target=score"),
        *("method=lr", "epsilon=1", "scale=smoke", "save_models=true", "n_jobs=1"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "results/smoke/t/lr/wishart/eps-1"


def predict(*arguments, cwd):
    return mpmtl_run(*arguments, cwd=cwd, program="mpmtl-predict")


def test_columns_are_declared_on_the_command_line(frame, tmp_path):
    """As the tutorial does it: nothing is read off the table, so there is no caveat about it."""
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = mpmtl_run(
        *("dataset=table", "dataset.path=t.csv", "dataset.task=school", "dataset.target=score"),
        *("dataset.ranges={age: [10, 20]}", "dataset.levels={sex: [f, m]}"),
        *("dataset.indicators=[age]", "dataset.kind=regression", "dataset.target_range=[0, 20]"),
        *("method=fl_local", "epsilon=1", "scale=smoke", "n_jobs=1"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "pooled-schema" not in done.stdout
    assert "proved      (1, " in done.stdout


def test_predictions_are_the_models_own(frame, run_with_models, tmp_path):
    """The table's rows through the saved models: the scores of the encoded rows."""
    models = run_with_models / "models/replicate-0000"
    done = predict(models, "t.csv", "--task", "school", "--out", "p.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    got = pd.read_csv(tmp_path / "p.csv")
    assert list(got.columns) == [*frame.columns, "prediction"]
    text = read_table(tmp_path / "t.csv").frame
    for path in models.glob("task-*.json"):
        model = read_model(path)
        rows = text[text.school == model["task"]]
        X = model["encoder"].finish(model["encoder"].encode(rows), model["fill"])
        want = X @ model["coef"] + model["intercept"]
        np.testing.assert_allclose(got.prediction[rows.index], want, rtol=1e-12)
    error = ((got.prediction - got.score) ** 2).mean() / got.score.var()
    assert error < 0.5


def test_a_model_file_holds_nothing_of_another_task(frame, run_with_models):
    """Names of other tasks, their means, their coefficients: none is in the file."""
    files = sorted((run_with_models / "models/replicate-0000").glob("*.json"))
    texts = [path.read_text() for path in files]
    models = [json.loads(text) for text in texts]
    assert len(files) == frame.school.nunique()
    for i, text in enumerate(texts):
        for j, other in enumerate(models):
            if i != j:
                assert f'"{other["task"]}"' not in text
                assert str(other["coef"][0]) not in text
                assert str(other["intercept"]) not in text


def test_released_matrices_are_kept_apart(run_with_models):
    trace = pd.read_csv(run_with_models / "trace.csv")
    for replicate, rows in trace.groupby("replicate"):
        released = np.load(run_with_models / f"released/replicate-{replicate:04d}.npy")
        assert released.shape == (len(rows), 5, 5)
        assert np.isfinite(released).all()


def test_models_can_be_asked_for_later(frame, tmp_path):
    """A finished run without models runs again where they are missing; its tables stay."""
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = (
        *("dataset=table", "dataset.path=t.csv", "dataset.task=school", "dataset.target=score"),
        *("method=lr", "epsilon=1", "scale=smoke", "n_jobs=1"),
    )
    folder = tmp_path / "results/smoke/t/lr/wishart/eps-1"
    assert mpmtl_run(*words, cwd=tmp_path).returncode == 0
    before = (folder / "replicates.csv").read_bytes()
    assert not (folder / "models").exists()
    done = mpmtl_run(*words, "save_models=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "models").iterdir())) == 2
    assert (folder / "replicates.csv").read_bytes() == before
    assert "already done" in mpmtl_run(*words, "save_models=true", cwd=tmp_path).stdout


def test_what_models_do_not_know_is_counted_on_one_line(frame, run_with_models, tmp_path):
    """Unknown tasks, unseen levels, gaps: as many as there are, and predictions stay right."""
    models = run_with_models / "models/replicate-0000"
    predict(models, "t.csv", "--task", "school", "--out", "p.csv", cwd=tmp_path)
    before = pd.read_csv(tmp_path / "p.csv").prediction
    frame.loc[frame.school == "s1", "school"] = "elsewhere"
    frame.loc[0, "sex"] = "unknown"
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = predict(models, "new.csv", "--task", "school", cwd=tmp_path)
    assert done.returncode == 0
    count, gaps = int((frame.school == "elsewhere").sum()), frame.age.isna()
    gaps = int((gaps & (frame.school != "elsewhere")).sum())
    assert done.stderr == (
        f"unseen levels (0 in all features): 1 in sex; gaps: {gaps} in age; {count} rows have no "
        "prediction: there is no model of task elsewhere\n"
    )
    after = pd.read_csv(io.StringIO(done.stdout)).prediction
    same = (frame.school != "elsewhere") & (frame.index > 0)
    np.testing.assert_array_equal(after[same], before[same])
    assert after[frame.school == "elsewhere"].isna().all()
    assert np.isfinite(after[0])


@pytest.fixture
def text_models(tmp_path):
    """Models of a table whose ids and levels look like numbers; grade decides the target."""
    lines = ["owner;grade;x;passed"]
    for i in range(120):
        grade, x = ("01", "1B", "1")[i % 3], f"{i % 10},5"
        owner = ("1", "01", "001", "NA")[i // 30]
        lines.append(f"{owner};{grade};{x};{'yes' if grade == '01' else 'no'}")
    (tmp_path / "t.csv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    done = mpmtl_run(
        *("dataset=table", "dataset.path=t.csv", "dataset.task=owner", "dataset.target=passed"),
        *("dataset.separator=semicolon", "dataset.decimal=comma", "dataset.ranges={x: [0, 9]}"),
        *('dataset.levels={grade: ["01", "1B", "1"]}', "dataset.train_fraction=1"),
        *("method=stl", "scale=smoke", "save_models=true", "n_jobs=1", "n_replicates=1"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "4 tasks on all rows, no test part" in done.stdout
    return tmp_path / "results/smoke/t/stl/none/eps-inf/models/replicate-0000"


def test_types_of_predict_are_those_of_the_training_table(text_models, tmp_path):
    """Whatever the new table holds: 01 stays 01, where pandas alone would read 1."""
    header = b'\xef\xbb\xbfowner; "a note";grade;x\r\n'
    rows = [
        b'01; "kept; as it is";01;1,5\r\n',
        b"1;  ;1;1,50\r\n",
        b"NA;007;01;99\r\n",
        b"2;1.0;1B;1,5\r\n",
        b"001;;01;",
    ]
    (tmp_path / "new.csv").write_bytes(header + b"".join(rows))
    done = predict(text_models, "new.csv", "--task", "owner", "--out", "p.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "prediction: probability that passed = yes",
        "values out of range (clipped): 1 in x; gaps: 1 in x; 1 rows have no prediction: there is "
        "no model of task 2",
    ]
    got = (tmp_path / "p.csv").read_bytes().splitlines(keepends=True)
    assert got[0] == header.replace(b"\r\n", b";prediction\r\n")
    values = []
    for line, row in zip(got[1:], rows, strict=True):
        assert line.startswith(row.rstrip(b"\r\n") + b";")
        assert line.endswith(b"\r\n")
        values.append(line.rstrip(b"\r\n").rsplit(b";", 1)[1].decode())
    assert values[3] == ""
    numbers = [float(value.replace(",", ".")) for value in values if value]
    assert [value > 0.5 for value in numbers] == [True, False, True, True]


def test_a_word_in_a_number_is_one_line_with_row_and_column(text_models, tmp_path):
    (tmp_path / "new.csv").write_text("owner;grade;x\n01;01;1,5\n01;01;<40\n")
    done = predict(text_models, "new.csv", "--task", "owner", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: column x: '<40' in row 2 is no finite number: correct it, or count it as a gap "
        "(--missing)\n"
    )
    done = predict(text_models, "new.csv", "--task", "owner", "--missing=<40", cwd=tmp_path)
    assert done.returncode == 0
    assert "gaps: 1 in x" in done.stderr
    plain = (tmp_path / "new.csv").read_text().replace(";", "|").replace("<40", "1.5")
    (tmp_path / "new.csv").write_text(plain.replace("1,5", "1.5"))
    words = ("--separator=pipe", "--decimal=point", "--column=prediction")
    done = predict(text_models, "new.csv", "--task", "owner", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (line.rsplit("|")[-1] for line in done.stdout.splitlines()[1:])
    assert first == second > "0.5"


def test_predictions_of_a_parquet_table(run_with_models, frame, tmp_path):
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "t.parquet")
    models = run_with_models / "models/replicate-0000"
    for name in ("t.csv", "t.parquet"):
        done = predict(models, name, "--task", "school", "--out", f"{name}.out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    one, two = (pd.read_csv(tmp_path / f"{name}.out") for name in ("t.csv", "t.parquet"))
    pd.testing.assert_frame_equal(one, two)


def test_a_reader_that_stops_is_no_error(run_with_models, frame, tmp_path):
    """As in `| head -1`: nothing on standard error, though most of the table is not read."""
    pd.concat([frame] * 3000).to_csv(tmp_path / "long.csv", index=False)
    models = run_with_models / "models/replicate-0000"
    command = [str(BIN / "mpmtl-predict"), str(models), "long.csv", "--task", "school"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline() == b"school,age,sex,score,prediction\n"
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(60)
    assert errors.count(b"\n") <= 1  # the counts
    assert b"rror" not in errors
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("coef"), "is not a model that mpmtl saved"),
        (lambda m: m.update(coef=["x"]), "is not a model that mpmtl saved"),
        (lambda m: m.update(coef=[1.0]), "is not a model that mpmtl saved"),
        (lambda m: m["recipe"]["encoder"].pop("columns"), "is not a model that mpmtl saved"),
        (lambda m: m["recipe"].update(fill="y"), "is not a model that mpmtl saved"),
        (lambda m: m.update(kind="other"), "is not a model that mpmtl saved"),
        (lambda m: m.update(task=["a"]), "is not a model that mpmtl saved"),
    ],
)
def test_a_model_file_is_not_trusted(change, message, run_with_models, tmp_path):
    path = run_with_models / "models/replicate-0000/task-0000.json"
    model = json.loads(path.read_text())
    change(model)
    path.write_text(json.dumps(model))
    done = predict(path, "t.csv", "--task", "school", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_folder_of_a_run_is_enough_for_predict_if_it_has_one_replicate(
    run_with_models, tmp_path
):
    arguments = ("t.csv", "--task", "school")
    done = predict(run_with_models, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "has models of 2 replicates: give one" in done.stderr
    shutil.rmtree(run_with_models / "models/replicate-0001")
    of_run, of_replicate = (
        predict(models, *arguments, cwd=tmp_path)
        for models in (run_with_models, run_with_models / "models/replicate-0000")
    )
    assert of_run.returncode == 0, of_run.stderr
    assert of_run.stdout == of_replicate.stdout


def test_bad_calls_of_predict_are_one_line(run_with_models, tmp_path):
    models = str(run_with_models / "models/replicate-0000")
    for arguments, message in (
        ((str(tmp_path), "t.csv", "--task", "school"), "holds no task-*.json"),
        ((models, "none.csv", "--task", "school"), "there is no such file"),
        ((models, "t.csv", "--task", "schol"), "did you mean school"),
        ((models, "t.csv", "--task", "school", "--column", "age"), "the table has a column age"),
        ((models, "t.csv", "--task", "school", "--decimal=;"), "use point or comma"),
    ):
        done = predict(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_numbers_survive_any_scale():
    """Standardising neither overflows nor divides by zero, from 1e-300 to 1e300."""
    for size in (1e-300, 1e-12, 1.0, 1e12, 1e300):
        column = Column("x", center=0.5 * size, scale=0.25 * size)
        got = column.encode(pd.Series(["0", str(size)]), Format())
        np.testing.assert_allclose(got[:, 0], [-2, 2])
    encoder = Encoder((Column("x", center=1.0, limit=1.0),), rows="clip", norm=0.5)
    X = encoder.finish(encoder.encode(pd.DataFrame({"x": ["50.0", ""]})), [0.25, 1.0])
    assert np.linalg.norm(X, axis=1).max() <= 0.5 + 1e-12


# Levels, units, few rows: what a run on a table does


def drawn(m, n, seed=0, level=1.0, noise=0.5):
    """Tasks of n rows with models of their own, two numbers and levels that are `level` apart."""
    rng, rows = np.random.default_rng(seed), []
    for task in range(m):
        w, b, X = rng.standard_normal(2), level * rng.standard_normal(), rng.standard_normal((n, 2))
        y = X @ w + b + noise * rng.standard_normal(n)
        rows.append(pd.DataFrame({"school": f"s{task:02}", "x": X[:, 0], "z": X[:, 1], "score": y}))
    return pd.concat(rows, ignore_index=True)


def record_of(table, *words):
    run = make_run(*words, "tuning=standard", "save_models=true")
    return run_replicate(type(run)(**{**vars(run), "dataset": table}), 0)


def metrics_of(record):
    return {row["metric"]: row["value"] for row in record["replicates"]}


def parts_of(frame, table):
    """Index of the training and of the test rows in the frame, by their targets."""
    train, test = table.draw(None, 0, 0)
    offset, scale = train.units
    found = []
    for part in (train, test):
        y = offset + scale * np.concatenate(part.y)
        found.append(np.abs(frame.score.to_numpy() - y[:, None]).argmin(axis=1))
    assert sorted(np.concatenate(found)) == list(range(len(frame)))
    return found


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("method", ["stl", "fl", "fl_local"])
def test_units_change_no_number_of_a_run(method, declared, tmp_path):
    """Targets times 1000 plus a million, a column in other units: the same errors, all of them."""
    frame = drawn(12, 14)
    ranges = {"x": [-6, 6], "z": [-6, 6]}, {"x": [-152.4 + 300, 152.4 + 300], "z": [-6, 6]}
    targets = [-20, 20], [1e6 - 2e4, 1e6 + 2e4]
    moved = frame.assign(score=1e6 + 1000 * frame.score, x=300 + 25.4 * frame.x)
    errors = []
    for f, span, target in zip((frame, moved), ranges, targets, strict=True):
        options = {"ranges": span, "target_range": target, "kind": "regression"}
        table = saved(f, tmp_path / "t.csv", **(options if declared else {}))
        errors.append(metrics_of(record_of(table, f"method={method}", "privacy=none")))
    assert errors[0] == pytest.approx(errors[1], rel=1e-6)
    assert errors[0]["nmse_own_mean"] < 0.6


@pytest.mark.parametrize("declared", [{}, {"target_range": [-9, 9]}])
@pytest.mark.parametrize("method", ["stl", "fl", "fl_local", "lr", "mr_mtl"])
def test_targets_of_test_rows_change_no_model(method, declared, tmp_path):
    """Not a level, not a unit, not a choice: bit for bit."""
    frame = drawn(8, 10)
    table = saved(frame, tmp_path / "t.csv", **declared)
    _, test = parts_of(frame, table)
    (tmp_path / "other").mkdir()  # a split goes by the name of the file
    other = frame.copy()
    other.loc[test, "score"] = 3 * other.score[test] - 1
    first, second = (
        record_of(t, f"method={method}", "epsilon=5")
        for t in (table, saved(other, tmp_path / "other/t.csv", **declared))
    )
    assert first["models"] == second["models"]
    assert first["settings"] == second["settings"]
    assert metrics_of(first) != metrics_of(second)


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("method", ["stl", "fl", "lr"])
def test_a_saved_model_predicts_by_hand(method, declared, frame, tmp_path):
    """The target's own units: encoded values times coef plus intercept, with gaps filled by the
    task's own mean; on the training table's test rows they have the error that the run reports."""
    table = saved(frame, tmp_path / "t.csv", **(DECLARED if declared else {}))
    train_rows, test_rows = parts_of(frame, table)
    record = record_of(table, f"method={method}", "epsilon=5")
    center, scale = (15, 5) if declared else (frame.age.mean(), frame.age.std(ddof=0))
    age = (frame.age - center) / scale
    predicted, means = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
    models = {}
    for i, model in enumerate(record["models"]):
        own = (frame.school == model["task"]).to_numpy()
        known = own & np.isin(np.arange(len(frame)), train_rows)
        features = [age.fillna(age[known].mean()), age.isna(), frame.sex == "f", frame.sex == "m"]
        assert model["features"] == ["age", "age missing", "sex=f", "sex=m"]
        scores = np.column_stack(features).astype(float) @ model["coef"] + model["intercept"]
        predicted[own], means[own] = scores[own], frame.score[known].mean()
        path = tmp_path / f"task-{i}.json"
        path.write_text(json.dumps(model))
        models[model["task"]] = read_model(path)
    values, _ = predict_rows(models, read_table(tmp_path / "t.csv").frame, "school")
    np.testing.assert_allclose(values, predicted, rtol=1e-10)
    y = frame.score.to_numpy()[test_rows]
    error = ((y - predicted[test_rows]) ** 2).sum() / ((y - means[test_rows]) ** 2).sum()
    assert metrics_of(record)["nmse_own_mean"] == pytest.approx(error, rel=1e-9)


def test_saved_models_of_classes_have_the_auc_of_the_run(tmp_path):
    frame = drawn(6, 40)
    frame["score"] = np.where(frame.score > frame.score.median(), "yes", "no")
    frame["x"] += np.arange(len(frame)) * 1e-9  # so that a row is known by its number
    table = saved(frame, tmp_path / "t.csv")
    record = record_of(table, "method=stl")
    values = []
    _, test = table.draw(None, 0, 0)
    for model, X, y in zip(record["models"], test.X, test.y, strict=True):
        own = frame[frame.school == model["task"]]
        features = [(own[c] - frame[c].mean()) / frame[c].std(ddof=0) for c in ("x", "z")]
        rows = np.column_stack(features)
        at = np.abs(rows[:, :1] - X[:, 0]).argmin(axis=0)
        np.testing.assert_allclose(rows[at], X[:, :2], atol=1e-9)
        scores = rows[at] @ model["coef"] + model["intercept"]
        positive = (own.score == "yes").to_numpy()[at]
        assert (positive == (y > 0)).all()
        values.append((scores[positive][:, None] > scores[~positive]).mean())
    assert metrics_of(record)["aauc"] == pytest.approx(np.mean(values))


@pytest.mark.parametrize("method", ["stl", "fl", "fl_local", "lr", "mr_mtl"])
def test_four_rows_a_task_are_enough(method, tmp_path):
    """27 such tasks run as they are, with the tuning of a plain command; with one or two rows each
    there is one line that says what to do, and more training rows or no choice do."""
    words = [f"method={method}", *(["privacy=gaussian"] if method != "stl" else [])]
    record = record_of(saved(drawn(27, 4), tmp_path / "t.csv"), *words)
    values = metrics_of(record)
    assert np.isfinite(list(values.values())).all()
    assert values["nmse_own_mean"] < 2
    assert values["tasks_left_out"] == 0
    two = saved(drawn(27, 2), tmp_path / "t.csv")
    with pytest.raises(InputError, match="no task has two training samples.* tuning=fixed"):
        record_of(two, *words)
    run = make_run(*words, "tuning=fixed")
    record = run_replicate(type(run)(**{**vars(run), "dataset": two}), 0)
    assert np.isfinite(list(metrics_of(record).values())).all()
    with pytest.raises(InputError, match="every task has one row only; is task = school right"):
        record_of(saved(drawn(27, 1), tmp_path / "t.csv"), *words)


@pytest.mark.parametrize("level", [0.0, 1e3, -1e9])
@pytest.mark.parametrize("method", ["stl", "fl", "fl_local", "lr", "mr_mtl"])
def test_targets_that_are_constant_up_to_rounding(method, level, tmp_path):
    """In some tasks, at the mean of all others or not: no error is out of all proportion."""
    frame = drawn(12, 12, level=0.0)
    frame["score"] += level - frame.score.mean()
    place = frame.groupby("school").cumcount().to_numpy()
    for k, value in enumerate((level, level, level + 0.3, level + 0.1, level - 3)):
        near = np.array([value, value * (1 + 2e-16), value + 0.2 - 0.2])[place % 3]
        frame["score"] = np.where(frame.school == f"s{k:02}", near, frame.score)
    table = saved(frame, tmp_path / "t.csv", kind="regression")
    values = metrics_of(record_of(table, f"method={method}", "epsilon=5"))
    assert np.isfinite(list(values.values())).all()
    assert values["nmse_own_mean"] < 3
    assert max(values.values()) < 50


@pytest.mark.parametrize("positive", [None, "yes"])
@pytest.mark.parametrize("kind", ["auto", "binary"])
def test_classes_need_no_range_of_targets(kind, positive, frame, tmp_path):
    frame["score"] = np.where(frame.score > frame.score.median(), "yes", "no")
    declared = {key: DECLARED[key] for key in ("ranges", "levels", "indicators")}
    table = saved(frame, tmp_path / "t.csv", **declared, kind=kind, positive=positive)
    wanted = [("(kind)", kind == "auto"), ("(positive)", positive is None)]
    for word, missing in wanted:
        assert (word in table.notes[-1]) == missing
    assert table.caveats == (("pooled-schema",) if any(m for _, m in wanted) else ())
    assert not any("target_range" in note for note in table.notes)


# Rows


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_the_default_norm_leaves_most_rows_alone(d, rng):
    encoder = Encoder(tuple(Column(f"x{j}") for j in range(d)))
    X = rng.standard_normal((3000, d))
    same = (encoder.finish(X, np.zeros(d)) == X).all(axis=1)
    assert same.mean() > (0.99 if d < 3 else 0.9999)
    assert encoder.row_norm == pytest.approx(3 * np.sqrt(d))
    far = encoder.finish(1e6 * X, np.zeros(d))
    np.testing.assert_allclose(np.linalg.norm(far, axis=1), encoder.row_norm)
    np.testing.assert_allclose(directions(far), directions(X))


@pytest.mark.parametrize("rows", ["unit", "clip"])
@pytest.mark.parametrize("norm", [None, 0.01, 5.0])
def test_the_intercept_is_one_whatever_the_row(rows, norm, frame, tmp_path):
    """Rows of zeros and of outliers too, and the public bound on rows holds with and without it."""
    frame["age"] = frame.age.astype(object)
    frame.loc[::7, "age"], frame.loc[3::7, "age"] = 1e200, 0.0
    for intercept in (False, True):
        options = {"rows": rows, "norm": norm, "intercept": intercept}
        for part in saved(frame, tmp_path / "t.csv", **options).draw(None, 0, 0):
            for X in part.X:
                assert np.linalg.norm(X, axis=1).max() <= part.row_norm * (1 + 1e-12)
                if intercept:
                    np.testing.assert_array_equal(X[:, -1], 1.0)
