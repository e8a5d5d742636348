"""Owners apart: the same bits as in one process, whatever goes wrong on the way."""

import json
import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest
from conftest import mpmtl_run

from mpmtl.errors import InputError
from mpmtl.experiments.predict import read_model
from mpmtl.federation import cli, entry, study
from mpmtl.federation.rounds import curate, fit, statement, take_part
from mpmtl.federation.study import Owner, Study, composed
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.statements import NOISE_CAVEATS

NAMES = ["a", "b", "c", "d", "e"]
SCHEMA = """\
task: school
target: {target}
tasks: [a, b, c, d, e]
n_public: [1, 50]
{kind}
columns:
  age: {{range: [11, 16]}}
  sex: {{levels: [f, m]}}
  hours: {{range: [0, 30], gaps: true}}
"""
KINDS = {
    "regression": ("score", "kind: regression\ntarget_range: [0, 120]"),
    "binary": ("passed", "kind: binary\npositive: 'yes'"),
}


def write_study(folder):
    """Five tables and two schemas."""
    rng, frames = np.random.default_rng(1), []
    for i, name in enumerate(NAMES):
        n = 12 + 3 * i
        age, sex = rng.integers(11, 17, n), rng.choice(["f", "m"], n)
        hours = np.round(rng.gamma(4, 2, n), 1)
        score = 40 + 8 * rng.normal(1, 0.2) * (hours - 8) / 4 + 3 * (age - 13)
        score = (score + 4 * (sex == "f") + rng.normal(0, 8, n)).round(1)
        passed = np.where(score > 45, "yes", "no")
        hours[rng.random(n) < 0.1] = np.nan
        columns = {"school": name, "age": age, "sex": sex, "hours": hours, "score": score}
        frames.append(pd.DataFrame(columns | {"passed": passed}))
        frames[-1].to_csv(folder / f"{name}.csv", index=False)
    pd.concat(frames).to_csv(folder / "all.csv", index=False)
    for kind, (target, words) in KINDS.items():
        (folder / f"{kind}.yaml").write_text(SCHEMA.format(target=target, kind=words))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


def together(place, settings, kind="regression", without=(), seed=3):
    """Models of all tasks by a fit in one process, some of them without rows."""
    words = [f"dataset.path={place / 'all.csv'}", f"dataset.schema={place / f'{kind}.yaml'}"]
    words += ["dataset=table", "dataset.train_fraction=1", "tuning=fixed", *settings.split()]
    run = composed(words)
    data, _ = run.draw(0)
    sizes = [0 if i in without else n for i, n in enumerate(data.n_samples)]
    data = data.take([np.arange(n) for n in sizes])
    return fit(run, data, run.budget(data.n_tasks), np.random.default_rng(seed))


@cache  # composing takes long, and a study holds no rows
def study_of(settings, schema, seed="3", honest=0, colluding=0):
    return Study(settings, schema, seed, honest, colluding)


def owners(place, settings, kind="regression"):
    chosen = study_of(settings, str(place / f"{kind}.yaml"))
    return [Owner(chosen, name, str(place / f"{name}.csv")) for name in NAMES]


def apart(everybody, tamper=lambda given: given, seed=3, say=print):
    """Releases, who counted in each round, and all models, each at its owner."""
    chosen = everybody[0].study

    def collect(releases):
        given = {i: owner.contribution(list(releases))[0] for i, owner in enumerate(everybody)}
        return tamper(given, len(releases)) if tamper.__code__.co_argcount == 2 else tamper(given)

    data, _ = chosen.data()
    releases, present = curate(chosen.run, data, np.random.default_rng(seed), collect, say)
    models = []
    for i, owner in enumerate(everybody):
        rows, _ = chosen.data(owner.table, owner.name)
        models.append(take_part(chosen.run, rows, i, releases)[1])
    return releases, present, np.stack(models)


FL = "method=fl_local privacy=gaussian epsilon=20"
LR = "method=lr privacy=gaussian method.eta=public method.grid.n_rounds=4"
MR = "method=mr_mtl method.eta=public method.grid.gamma=0.05 method.grid.n_rounds=3"


@pytest.mark.parametrize(
    ("settings", "kind", "rounds"),
    [
        (f"{FL} method.rounds=1", "regression", 1),
        (f"{FL} method.rounds=3", "regression", 3),
        (f"{FL} method.rounds=2", "binary", 2),
        ("method=fl_local privacy=two_sided_wishart", "regression", 1),
        (LR, "regression", 4),
        (f"{LR} method.clip=models method.grid.K=0.1", "binary", 4),
        ("method=gs privacy=gaussian method.eta=public", "regression", 10),
        ("method=gs privacy=laplace method.eta=public", "regression", 10),
        (MR, "regression", 3),
        (MR, "binary", 3),
        (f"{MR} epsilon=1e6", "regression", 3),
        ("method=lr_sp method.eta=public privacy=gaussian", "regression", 10),
        ("method=rl privacy=gaussian method.eta=public", "regression", 10),
        ("method=fl_local privacy=none", "regression", 3),
        ("method=fl privacy=gaussian epsilon=0.1", "regression", 2),
        ("method=fl privacy=gaussian epsilon=1000", "regression", 5),
    ],
)
def test_apart_is_together_to_the_last_bit(place, settings, kind, rounds):
    releases, present, models = apart(owners(place, settings, kind))
    assert len(releases) == rounds
    assert present == [list(range(5))] * rounds
    whole = together(place, settings, kind)
    assert models.any()
    assert models.tobytes() == whole.tobytes()


@pytest.mark.parametrize("settings", [FL, LR, MR])
def test_a_lost_owner_counts_as_a_task_without_rows(place, settings):
    """The public rule: as if its file were empty in a fit in one process."""
    whole = together(place, settings, without=[3])

    def lose(given):
        return {i: v for i, v in given.items() if i != 3}

    _, present, models = apart(owners(place, settings), lose)
    assert all(tasks == [0, 1, 2, 4] for tasks in present)
    left = [0, 1, 2, 4]
    assert models[left].tobytes() == whole[left].tobytes()
    assert models[3].any()  # the lost one still has its own model, from its rows and the releases


def test_an_owner_comes_back(place):
    """Lost in the second of three rounds: it needs the releases alone to go on."""
    settings = f"{FL} method.rounds=3"

    def lose(given, t):
        return {i: v for i, v in given.items() if (i, t) != (4, 1)}

    everybody = owners(place, settings)
    releases, present, models = apart(everybody, lose)
    assert [len(tasks) for tasks in present] == [5, 4, 5]
    full, _, all_models = apart(everybody)
    assert releases[0].tobytes() == full[0].tobytes()
    assert releases[1].tobytes() != full[1].tobytes()
    assert np.isfinite(models).all()
    assert not np.array_equal(models, all_models)


@pytest.mark.parametrize("settings", [FL, LR, MR])
def test_an_owner_asked_twice_says_the_same(place, settings):
    owner = owners(place, settings)[1]
    again = owners(place, settings)[1]  # another process knows as much
    first, second = owner.contribution([])[0], again.contribution([])[0]
    assert first.tobytes() == second.tobytes() == owner.contribution([])[0].tobytes()


def with_task(task, change):
    return lambda given: given | {task: change(given[task])}


@pytest.mark.parametrize(
    ("settings", "change", "words", "counts"),
    [
        (FL, lambda v: v[..., :-1], "malformed", False),
        (FL, lambda v: v.astype(np.float32), "malformed", False),
        (FL, lambda v: np.full(v.shape, "1"), "malformed", False),
        (LR, lambda v: v[0], "malformed", False),
        (FL, lambda v: v * np.nan, "not finite", True),
        (MR, lambda v: np.where(v == v.max(), np.inf, v), "not finite", True),
        (FL, lambda v: 1e6 * v, "clipped", True),
        (LR, lambda v: 1e200 * v, "clipped", True),
        (MR, lambda v: 1e6 * v, "clipped", True),
    ],
)
def test_what_is_not_a_contribution_is_bounded_and_named(place, settings, change, words, counts):
    """One line that names the owner in each round, and all other lines are left out."""
    lines = []
    releases, present, models = apart(
        owners(place, settings), with_task(2, change), say=lines.append
    )
    assert len(lines) == len(releases)
    assert all(line.startswith("owner c: ") and words in line for line in lines)
    assert all((2 in tasks) is counts for tasks in present)
    assert np.isfinite(releases).all()
    assert np.isfinite(models).all()


def test_an_oversized_contribution_moves_the_sum_by_a_bounded_one(place):
    """A contribution of norm 1e6 is worth as much as the same direction at the bound."""
    everybody = owners(place, f"{FL} method.rounds=1")
    run, (data, _) = everybody[0].study.run, everybody[0].study.data()
    K = np.sqrt(1 + run.method.affine)
    vector = 1e6 * everybody[2].contribution([])[0]
    within = bounded(vector[None], K)[0]
    sums = [
        curate(run, data, np.random.default_rng(0), lambda _, v=v: {2: v}, lambda _: None)[0][0]
        for v in (vector, within)
    ]
    np.testing.assert_array_equal(*sums)


@pytest.mark.parametrize("settings", [FL, LR, MR])
def test_a_contribution_is_bounded_where_it_is_made(place, settings):
    """So no honest owner is ever named in the curator's log."""
    lines = []
    apart(owners(place, settings), say=lines.append)
    assert lines == []


def test_the_curator_reads_no_table(place, monkeypatch):
    def refuse(*args):
        raise AssertionError("a table was opened")

    contributions = [o.contribution([])[0] for o in owners(place, FL)]
    monkeypatch.setattr("mpmtl.data.table.read_table", refuse)
    chosen = study_of(FL, str(place / "regression.yaml"))
    data, _ = chosen.data()
    assert not data.n_samples.any()
    curate(chosen.run, data, np.random.default_rng(0), lambda _: dict(enumerate(contributions)))
    with pytest.raises(AssertionError, match="opened"):
        chosen.data(place / "a.csv", "a")


def test_the_statement_is_that_of_one_process(place):
    """Without a seed, noise is secure and no caveat is left."""
    chosen = Study(f"{FL} delta=1e-4", str(place / "regression.yaml"))
    block = statement(chosen.run, chosen.data()[0])
    assert (block.proved.epsilon, block.proved.delta) == (20, 1e-4)
    assert block.claimed is None
    assert block.caveats == ()
    seeded = Study(f"{FL} delta=1e-4", str(place / "regression.yaml"), "3")
    block = statement(seeded.run, seeded.data()[0])
    assert block.caveats == NOISE_CAVEATS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("method=fl_shared epsilon=1", "chooses from all owners' data"),
        ("method=lr privacy=gaussian", "chooses from all owners' data"),
        ("method=mr_mtl method.eta=public method.grid.lam=[1,2]", "chooses from all owners' data"),
        ("method=stl", "every owner can run it alone"),
        (f"{LR} method.instance_protection.epsilon=1", "instance_protection"),
        (f"{FL} dataset.schema_epsilon=1", "dataset.schema_epsilon=1: a federated run"),
        (f"{FL} tuning=laptop", "tuning=laptop: a federated run"),
        ("method=fl_locl", "did you mean fl_local"),
        (f"{FL} epsilon=-1", "epsilon"),
        ("method=fl_local privacy=two_sided_wishart", "cannot be sampled exactly"),
    ],
)
def test_settings_that_need_all_rows_are_refused(place, settings, words):
    with pytest.raises(InputError, match=words) as error:
        Study(settings, str(place / "regression.yaml")).run  # noqa: B018
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "other", "words"),
    [
        ("tasks: [a, b, c, d, e]\n", "", "public names of all owners"),
        ("kind: regression\n", "", "declare kind"),
        ("target_range: [0, 120]\n", "", "declare target_range"),
        ("age: {range: [11, 16]}", "age: number", "declare the range of age"),
    ],
)
def test_a_schema_must_say_it_all(place, tmp_path, line, other, words):
    text = (place / "regression.yaml").read_text()
    assert line in text
    path = tmp_path / "part.yaml"
    path.write_text(text.replace(line, other))
    with pytest.raises(InputError, match=words):
        Study(FL, str(path)).run  # noqa: B018


def test_whose_rows_a_file_holds(place, tmp_path):
    """Its own alone; without the column of tasks, all; one or none is enough to take part."""
    chosen = study_of(FL, str(place / "regression.yaml"))
    own, _ = chosen.data(place / "b.csv", "b")
    among, _ = chosen.data(place / "all.csv", "b")
    rows = pd.read_csv(place / "b.csv", dtype=str)
    rows.drop(columns="school").to_csv(tmp_path / "nameless.csv", index=False)
    nameless, _ = chosen.data(tmp_path / "nameless.csv", "b")
    assert own.digest() == among.digest() == nameless.digest()
    assert own.n_samples.tolist() == [0, 15, 0, 0, 0]
    text = (place / "regression.yaml").read_text().replace("n_public: [1, 50]\n", "")
    (tmp_path / "free.yaml").write_text(text)
    free = Study(FL, str(tmp_path / "free.yaml"))
    for some in (rows[:1], rows.assign(school="z")):
        some.to_csv(tmp_path / "few.csv", index=False)
        few = Owner(free, "b", str(tmp_path / "few.csv"))
        assert np.isfinite(few.contribution([])[0]).all()
    with pytest.raises(InputError, match="none of the tasks"):
        chosen.data(place / "b.csv", "z")
    pd.concat([rows] * 4).to_csv(tmp_path / "many.csv", index=False)
    with pytest.raises(InputError, match="n_public"):
        chosen.data(tmp_path / "many.csv", "b")


def test_the_digest_is_that_of_the_study(place, tmp_path):
    """Where the schema lies does not matter; what it says, and every setting, does."""
    text = (place / "regression.yaml").read_text()
    (tmp_path / "copy.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text(text.replace("[0, 120]", "[0, 100]"))
    here = Study(FL, str(place / "regression.yaml")).digest
    assert Study(FL, str(tmp_path / "copy.yaml")).digest == here
    assert Study(FL, str(tmp_path / "other.yaml")).digest != here
    assert Study(f"{FL} delta=1e-6", str(place / "regression.yaml")).digest != here


def run_cli(monkeypatch, capsys, *words, flower=True):
    monkeypatch.setattr(cli, "find_spec", lambda name: "there" if flower else None)
    monkeypatch.setattr(sys, "argv", ["mpmtl-federate", *map(str, words)])
    code = 0
    try:
        entry.federate()
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command(place, tmp_path, monkeypatch, capsys):
    """A study from its app to a model that was fitted late."""
    app, schema = tmp_path / "app", place / "regression.yaml"
    new = ["new", app, *FL.split(), "--schema", schema]
    code, out, err = run_cli(monkeypatch, capsys, *new, flower=False)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "pip install 'mpmtl[federated]'" in err
    code, out, err = run_cli(monkeypatch, capsys, *new)
    assert (code, err) == (0, "")
    assert "proved      (20, 0.1243)" in out
    code, _, err = run_cli(monkeypatch, capsys, *new)
    assert code == 2
    assert "holds an app already: choose another folder" in err

    one = ["--owner", "a", "--table", place / "a.csv", "--schema", schema]
    code, out, err = run_cli(monkeypatch, capsys, "check", app, *one)
    assert (code, err) == (0, "")
    assert "a can take part" in out
    assert " rows of a in " in out
    assert "smallest / median" not in out  # of tasks that are not here

    releases, _, models = apart(owners(place, FL))
    np.savez(tmp_path / "released.npz", *releases)
    late = ["model", app, *one, "--releases", tmp_path / "released.npz"]
    code, _, err = run_cli(monkeypatch, capsys, *late, "--out", tmp_path / "a.json")
    assert (code, err) == (0, "")
    saved = read_model(tmp_path / "a.json")
    scale = 60.0  # of target_range
    np.testing.assert_array_equal(saved["coef"], scale * models[0][:-1])
    assert json.loads((tmp_path / "a.json").read_text())["task"] == "a"


def test_a_method_that_cannot_be_cast_apart_is_refused_at_once(
    place, tmp_path, monkeypatch, capsys
):
    """By a rehearsal without rows: this one draws its start."""
    words = ["new", tmp_path / "app", "method=fedrep", "method.eta=public", "epsilon=1"]
    code, _, err = run_cli(monkeypatch, capsys, *words, "--schema", place / "regression.yaml")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "app").exists()


def test_help(tmp_path):
    done = mpmtl_run("--help", cwd=tmp_path, program="mpmtl-federate")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("new", "check", "model"))


def test_nothing_loads_flower_before_it_is_needed():
    assert "flwr" not in {name.split(".")[0] for name in vars(study)}
