"""All experiments in one go: the plan names every figure, its jobs and what is left."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from conftest import ROOT, mpmtl_run, script

from mpmtl.errors import InputError
from mpmtl.experiments.config import build
from mpmtl.experiments.forecast import finished, forecast
from mpmtl.experiments.runner import execute
from mpmtl.experiments.store import RunFolder
from mpmtl.experiments.sweep import jobs
from mpmtl.paper.catalogue import FIGURES, KINDS, Figure, file_of
from mpmtl.paper.reproduce import jobs_of, plan, reproduce

EXAMPLE = Figure("Fig. 2", "model_leakage", "model_leakage")

PUBLIC = ["method.eta=public", "method.loss_average=true"]


def named(experiment):
    return next(figure for figure in FIGURES if figure.experiment == experiment)


def thin(experiment, *words):
    """The figure with other choices, of fewer jobs: each takes a fifth of a second to compose."""
    return replace(named(experiment), words=words)


def test_every_figure_has_its_experiment_and_its_script():
    for figure in FIGURES:
        assert (ROOT / f"conf/experiment/{figure.experiment}.yaml").is_file()
        assert (ROOT / f"scripts/plot_{figure.kind}.py").is_file()
        assert figure.kind in KINDS
    drawn = {figure.experiment for figure in FIGURES}
    assert drawn == {p.stem for p in (ROOT / "conf/experiment").glob("*.yaml")}


def test_jobs_are_the_sweep_with_repeated_runs_once():
    runs = jobs_of(named("privacy_accuracy_low_rank"), "laptop")
    assert len(runs) == 2 + 4 * 5  # stl and mtl do not depend on epsilon
    assert {run.method.name for run in runs} == {"stl", "mtl", "lr", "gs", "dp_mtrl", "dp_aggr"}
    assert len({run.folder for run in jobs_of(named("task_number"), "smoke")}) == 15


def test_a_list_in_brackets_is_one_value_and_a_word_replaces_the_experiments_choices():
    words = ["experiment=task_number", "scale=smoke", "dataset.used=20", "method=lr/gaussian,lr"]
    runs = jobs("config", build, [*words, "method.grid.lam=[0.1,1],0.5", "epsilon=1"])
    assert len(runs) == 4
    assert {(run.dataset.used, run.mechanism.name) for run in runs} == {
        (20, "gaussian"),
        (20, "wishart"),
    }
    assert {run.method.grid["lam"] for run in runs} == {(0.1, 1), (0.5,)}


def test_a_forecast_with_public_constants_is_not_made_with_those_of_the_data_timed_before():
    words = ["scale=smoke", "privacy=gaussian", "epsilon=1", "method.eta=null,public"]
    (of_data, refused), cache = jobs("config", build, ["method=lr", *words]), {}
    forecast(of_data, cache)
    with pytest.raises(InputError, match="n_public"):  # as the run itself says
        forecast(refused, cache)
    (public,) = jobs("config", build, ["method=lr", *words[:3], *PUBLIC])
    assert forecast(public, cache).own > 0
    assert [problem.scales.public for problem, *_ in cache.values()] == [False, True]


def test_accuracy_is_drawn_of_the_experiments_methods_and_mechanisms():
    for figure in FIGURES:
        if figure.kind == "privacy_accuracy":
            methods = figure.values["methods"]
            runs = jobs_of(replace(figure, words=("epsilon=1",)), "laptop")
            assert {run.dataset.name for run in runs} == {figure.values["dataset"]}
            names = {(r.method.name, f"{r.method.name}/{r.mechanism.name}") for r in runs}
            assert sorted(methods) == sorted(a if a in methods else b for a, b in names)


def test_a_scale_may_have_thinner_sweeps():
    runs = jobs_of(named("training_percentage_lsoa2"), "laptop")
    assert len(runs) == 4 * (2 + 4 * 2)  # shares x (methods without noise + private x budgets)
    assert {run.n_replicates for run in runs} == {5}
    assert {run.epsilon for run in runs} == {0.1, 10, float("inf")}
    assert {run.tuning.density for run in runs} == {"coarse"}
    paper = jobs_of(thin("training_percentage_lsoa2", "method=lr", "epsilon=1"), "paper")
    assert {(run.n_replicates, run.tuning.density) for run in paper} == {(50, "coarse")}
    paper = jobs_of(thin("privacy_accuracy_school", "method=lr", "epsilon=1"), "paper")
    assert {(run.n_replicates, run.tuning.search) for run in paper} == {(100, "race")}
    whole = jobs("config", build, ["method=lr", "tuning=paper"])
    assert [(run.tuning.density, run.tuning.search) for run in whole] == [("paper", "grid")]
    audits = jobs_of(named("privacy_audit"), "smoke")
    assert {(run.mechanism.name, run.epsilon, run.samples) for run in audits} == {
        (name, 1.0, 1000) for name in ("wishart", "two_sided_wishart", "gaussian", "laplace")
    }


def test_a_plan_counts_what_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    assert plan("smoke", [EXAMPLE], out) == [(EXAMPLE, None)]
    assert "model_leakage                       2           4          -" in out.getvalue()
    ((figure, seconds),) = plan("laptop", [EXAMPLE], out)
    assert figure is EXAMPLE
    assert seconds > 0
    done = mpmtl_run("experiment=model_leakage", "scale=smoke", "n_jobs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [finished(run) for run in jobs_of(EXAMPLE, "smoke")] == [2, 2]
    out = io.StringIO()
    plan("smoke", [EXAMPLE], out)
    assert "0 of 4       done" in out.getvalue()


def test_a_missing_data_set_leaves_out_its_own_runs_alone(tmp_path, monkeypatch, capsys):
    """Its figure is left out, a figure with others has their panels; one line says what to do."""
    monkeypatch.setenv("MPMTL_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # finished runs in the checkout need no data
    own = thin("privacy_accuracy_school", "method=stl_best,lr", "epsilon=1")
    words = ("dataset=low_rank,school", "method=stl,fl_local", "n_replicates=1", "epsilon=1")
    several = Figure("proved", "proved_tradeoff", "proved_tradeoff", words=words)
    out = io.StringIO()
    assert plan("laptop", [own], out) == []
    assert "left out" in out.getvalue()
    assert reproduce("laptop", [own]) == 1
    assert "incomplete: school is left out of Fig. 9a, 10a" in capsys.readouterr().err
    assert reproduce("smoke", [own, several, EXAMPLE]) == 0  # a first look
    printed = capsys.readouterr()
    (line,) = [text for text in printed.err.splitlines() if text.startswith("incomplete")]
    assert line.startswith("incomplete: school is left out of Fig. 9a, 10a; proved: data file")
    assert "make data" in line
    assert printed.out.count("school is left out") == 1
    drawn = pd.read_csv("results/smoke/figures/proved_tradeoff.csv")
    assert set(drawn.dataset) == {"low_rank"}
    assert Path("results/smoke/figures/model_leakage.png").is_file()
    times = pd.read_csv("results/smoke/times.csv")
    assert list(times.figure) == ["Fig. 2"]  # that of a figure without a part would mislead


def test_runs_and_draws(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert reproduce("smoke", [EXAMPLE]) == 0
    assert (tmp_path / "results/smoke/figures/model_leakage.png").is_file()
    assert "measured" in capfd.readouterr().out
    (row,) = pd.read_csv(tmp_path / "results/smoke/times.csv").itertuples()
    assert (row.figure, row.result) == ("Fig. 2", "done")
    assert row.measured > 0
    times = (tmp_path / "results/smoke/times.csv").read_bytes()
    assert reproduce("smoke", [EXAMPLE]) == 0  # nothing was left to do
    assert (tmp_path / "results/smoke/times.csv").read_bytes() == times


@pytest.mark.slow
def test_every_figure_of_data_that_are_built_in_is_made(tmp_path, monkeypatch):
    """What `make smoke` does where no real data are."""
    monkeypatch.setenv("MPMTL_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert reproduce("smoke") == 0
    of_real_data = {"school", "lsoa2"}
    names = [
        file_of(f.kind, f.values) for f in FIGURES if f.values.get("dataset") not in of_real_data
    ]
    for name in names:
        assert (tmp_path / f"results/smoke/figures/{name}.png").is_file(), name


def test_the_script_prints_a_plan(tmp_path):
    done = script("reproduce_paper.py", "--scale", "tiny", cwd=tmp_path)
    assert done.returncode == 2
    assert "invalid choice: 'tiny'" in done.stderr


def test_a_stop_keeps_the_times_of_the_figures_before_it(tmp_path, monkeypatch):
    """The first figure is run and drawn, and the second is stopped with the keyboard."""
    monkeypatch.chdir(tmp_path)
    second = named("noise_to_signal")

    def stopped(run, **options):
        if run.tag == second.experiment:
            raise KeyboardInterrupt
        return execute(run, **options)

    monkeypatch.setattr("mpmtl.paper.reproduce.execute", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce("smoke", [EXAMPLE, second])
    assert list(pd.read_csv("results/smoke/times.csv").figure) == ["Fig. 2"]


def test_a_failure_is_reported_and_the_next_figure_is_made(tmp_path, monkeypatch, capsys):
    """A folder that another run has, and a fault of the program."""
    monkeypatch.chdir(tmp_path)
    other = named("noise_to_signal")
    (run,) = jobs_of(other, "smoke")
    with RunFolder(Path(run.results_dir) / run.folder, run.settings):
        assert reproduce("smoke", [other, EXAMPLE]) == 1
    printed = capsys.readouterr()
    assert "Fig. 5 is not drawn: 1 of 1 jobs failed" in printed.err
    assert "model_leakage.png" in printed.out
    monkeypatch.setattr("mpmtl.paper.reproduce.execute", lambda run, **options: 1 / 0)
    assert reproduce("smoke", [other, EXAMPLE]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert list(pd.read_csv("results/smoke/times.csv").figure) == ["Fig. 2"]


@pytest.mark.parametrize(("answer", "begun"), [("y", True), ("", False), (None, False)])
def test_a_plan_of_hours_is_not_begun_without_a_yes(answer, begun, tmp_path, monkeypatch):
    """At a terminal it asks; without one it is refused, in a line that says what to give."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpmtl.paper.reproduce.seconds_left", lambda *given: 7200.0)
    monkeypatch.setattr("mpmtl.paper.reproduce._make", lambda figure, *given: made.append(figure))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: answer is not None))
    monkeypatch.setattr("builtins.input", lambda question: answer)
    made = []
    if answer is None:
        with pytest.raises(InputError, match="takes about .* give --yes"):
            reproduce("laptop", [EXAMPLE], sure=False)
    else:
        reproduce("laptop", [EXAMPLE], sure=False)
    assert bool(made) == begun
    made.clear()
    reproduce("laptop", [EXAMPLE])
    assert made == [EXAMPLE]
