"""Figures: the table behind each is what the runs measured; legends say claimed or proved."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, make_run

from mpmtl.errors import ResultsError
from mpmtl.figures.matrices import draw_relations
from mpmtl.figures.privacy_accuracy import draw
from mpmtl.figures.tables import accuracy
from mpmtl.runner import execute


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two private methods at two budgets and a non-private one, 3 replicates each."""
    path = tmp_path_factory.mktemp("results")
    for words in (
        ("method=lr", "privacy=wishart", "epsilon=1"),
        ("method=lr", "privacy=wishart", "epsilon=10"),
        ("method=gs", "privacy=laplace", "epsilon=1"),
        ("method=mtl_lr",),
    ):
        execute(make_run(*words, "n_replicates=3", f"results_dir={path}"), io.StringIO())
    return path


def test_the_table_holds_what_the_runs_measured(results, tmp_path):
    draw(results, tmp_path / "a", "low_rank")
    table = pd.read_csv(tmp_path / "a.csv").set_index(["method", "epsilon"])
    rows = pd.read_csv(results / "low_rank/lr/wishart/eps-10/replicates.csv")
    values = rows[rows.metric == "nmse"].value
    line = table.loc[("lr", 10.0)]
    assert line["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert line["std"] == pytest.approx(values.std(), rel=1e-12)
    assert line["count"] == 3
    assert (table.loc["lr"].status == "claimed").all()
    assert (table.loc["gs"].status == "proved").all()
    assert (table.loc["mtl_lr"].status == "none").all()
    for suffix in (".png", ".pdf"):
        assert (tmp_path / "a").with_suffix(suffix).stat().st_size > 5000


def test_a_figure_of_chosen_methods(results, tmp_path):
    draw(results, tmp_path / "a", "low_rank", ["gs"])
    assert set(pd.read_csv(tmp_path / "a.csv").method) == {"gs"}


def test_stl_belongs_to_the_same_replicates(results):
    rows = accuracy(results)
    stl = rows.groupby("replicate").stl.nunique()
    assert (stl == 1).all()
    assert len(stl) == 3


def test_pictures_show_the_models_of_the_run_they_are_beside(tmp_path):
    """Another seed, another number of tasks: the true models in the figure are that run's own."""
    for method in ("lr", "dp_mtrl"):
        words = (f"method={method}", "epsilon=0.1", "seed=5", "tag=task_relations")
        run = make_run(*words, "save_models=true", f"results_dir={tmp_path}")
        execute(run, io.StringIO())
    draw_relations(tmp_path, tmp_path / "r")
    table = pd.read_csv(tmp_path / "r.csv")
    shown = table[table.panel == "true: models"].pivot(index="row", columns="column").value
    W = run.dataset.truth(5, 0)[0]
    assert shown.shape == (4, 12)
    np.testing.assert_allclose(shown.to_numpy(), (W / np.linalg.norm(W, axis=1)[:, None]).T)


def test_what_is_not_there_is_one_line(results, tmp_path):
    with pytest.raises(ResultsError, match="no run of school below .*: there is low_rank"):
        draw(results, tmp_path / "a", "school")
    with pytest.raises(ResultsError, match="no finished run below"):
        accuracy(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ResultsError, match="is damaged"):
        accuracy(tmp_path)


def test_the_script_says_what_it_wrote_and_what_is_wrong(results, tmp_path):
    command = [sys.executable, ROOT / "scripts/plot_privacy_accuracy.py"]
    words = ["--results", results, "--out", tmp_path / "b"]
    done = subprocess.run(
        [*command, "low_rank", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "b.png, .pdf and .csv" in done.stdout
    done = subprocess.run([*command, "other", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run of other")
