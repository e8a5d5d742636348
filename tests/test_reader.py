"""One reader: the same tables from run folders and from a reference, nothing of another folder."""

import io
import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from conftest import ROOT, make_run, run_all, script

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import accuracy, audits, read_rows, read_table, runs, saved_rows
from mpmtl.experiments.runner import execute
from mpmtl.experiments.store import code_digest, reference_manifests, write_reference
from mpmtl.privacy.mechanisms import Gaussian


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two methods with settings of their own, at two numbers of tasks, below a tag."""
    words = [
        (f"method={method}", f"dataset.used={m}", f"tag='numbers/{m}'")
        for method in ("lr", "fl", "mtl")
        for m in (6, 12)
    ]
    return run_all(tmp_path_factory.mktemp("results"), 2, *words, ("method=lr", "epsilon=3"))


def written(results, folder):
    """The runs of a results folder as a reference folder."""
    chosen = runs(results)
    numbers = {name: k for k, name in enumerate(chosen.index)}
    tables = {name: saved_rows(chosen, name, dtype=str) for name in ("replicates", "cv", "trace")}
    tables = {name: rows.assign(run=rows.run.map(numbers)) for name, rows in tables.items()}
    write_reference(folder, "all", list(chosen.manifest), tables)
    return folder


def test_a_run_is_a_row_with_what_was_set(results):
    table = runs(results)
    assert len(table) == 7
    numbers = table.query("experiment == 'numbers'")
    assert list(numbers["dataset.used"].astype(int).unique()) == [12, 6]
    assert (numbers.replicates == 2).all()
    assert (
        table.status == table.method.map({"lr": "claimed*", "fl": "proved", "mtl": "none"})
    ).all()
    assert table.query("method == 'mtl'").epsilon.isna().all()
    assert table.query("experiment == ''").epsilon.tolist() == [3.0]
    assert (table.grid == "smoke").all()


def test_rows_have_the_columns_of_their_run_and_of_the_methods_own_settings(results):
    rows = read_rows(runs(results), "cv")
    assert {"dataset.used", "epsilon", "K", "variant", "lam1", "score"} <= set(rows)
    assert rows[rows.method == "lr"].K.notna().all()
    assert rows[rows.method != "lr"].K.isna().all()
    assert set(rows[rows.method == "mtl"].variant) == {"mtl_lr", "mtl_gs", "mtrl", "aggr"}
    values = accuracy(runs(results).query("method == 'fl'"))
    path = results / "numbers/6/low_rank/fl" / values.privacy.iloc[0] / "eps-1"
    own = read_table(path / "replicates.csv").query("metric == 'nmse'")
    assert values[values["dataset.used"] == 6].value.tolist() == own.value.tolist()


@pytest.mark.parametrize("name", ["replicates", "cv", "trace"])
def test_a_reference_is_read_as_its_runs_are(results, tmp_path, name):
    """Every digit, every setting, every column: from tables as from folders."""
    ours, theirs = (runs(root) for root in (results, written(results, tmp_path)))
    assert list(ours.manifest) == list(theirs.manifest)
    first, second = (read_rows(table, name).drop(columns="run") for table in (ours, theirs))
    pd.testing.assert_frame_equal(first, second, check_exact=True, check_like=True)


def test_manifests_survive_any_difference(tmp_path):
    """Keys that are missing in some, values and dicts in others, lists, empty dicts."""
    privacy = {"caveats": {"a": "text"}, "proved": None}
    manifests = [
        {"privacy": privacy, "same": [1], "some": {"x": 1}, "mixed": {"y": 1}, "empty": {}},
        {"privacy": privacy | {"caveats": {}}, "same": [1], "mixed": None, "empty": {"z": 0}},
        {
            "privacy": privacy | {"proved": {"e": 1}},
            "same": [1],
            "some": {},
            "mixed": 3,
            "empty": {},
        },
    ]
    write_reference(tmp_path, "x", manifests, {})
    content = json.loads((tmp_path / "x.manifest.json").read_text())
    assert content["common"]["same"] == [1]
    assert reference_manifests(content) == manifests


def test_runs_of_another_scale_that_lie_below_are_not_mixed_in(results, tmp_path):
    shutil.copytree(results, tmp_path / "r")
    for name in ("smoke", "own/scale", "reference"):
        shutil.copytree(results, tmp_path / "r" / name)
    written(results, tmp_path / "r/reference")
    assert list(runs(tmp_path / "r").index) == list(runs(results).index)


def test_what_is_missing_is_one_line(results, tmp_path):
    with pytest.raises(ResultsError, match=r"no finished run below .*: run mpmtl-run first"):
        runs(tmp_path)
    with pytest.raises(ResultsError, match=r"no audits below .*mpmtl-audit"):
        audits(results)
    chosen = runs(results)
    written(results, tmp_path)
    (tmp_path / "all_cv.csv.gz").unlink()
    with pytest.raises(ResultsError, match=r"all_cv.csv.gz is missing"):
        read_rows(runs(tmp_path), "cv")
    part = saved_rows(chosen.iloc[:1], "cv", dtype=str).assign(run=0)
    write_reference(tmp_path, "all", list(chosen.manifest), {"cv": part})
    with pytest.raises(ResultsError, match=r"has no cv of all#1"):
        read_rows(runs(tmp_path), "cv")
    (tmp_path / "all.manifest.json").write_text("{}")
    with pytest.raises(ResultsError, match="is not the manifest of an experiment"):
        runs(tmp_path)


def test_a_reference_is_made_of_tables_and_never_from_itself(results, tmp_path):
    """What would be deleted before it is read is refused, and nothing is lost."""
    shutil.copytree(results, tmp_path / "results/laptop")
    (tmp_path / "results/laptop/times.csv").write_text("figure,measured\nx,1\n")

    def make(folder):
        return script("keep_reference.py", folder, cwd=tmp_path)

    assert make("results/laptop").returncode == 0
    reference = tmp_path / "results/reference"
    before = {path.name: path.read_bytes() for path in reference.iterdir()}
    parts = ("numbers", "privacy_accuracy_low_rank")
    names = {f"{part}{end}" for part in parts for end in (".manifest.json", ".csv.gz")}
    assert before.keys() == names | {"times.csv"}
    for folder in ("results/reference", "results", ".", "results/reference/figures", "nothing"):
        done = make(folder)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert {path.name: path.read_bytes() for path in reference.iterdir()} == before


def test_a_reference_takes_what_is_new_and_keeps_the_rest(results, tmp_path):
    """--add replaces an experiment's data set as a whole; other experiments and data sets stay."""
    old, new = tmp_path / "results/laptop", tmp_path / "results/paper"
    shutil.copytree(results, old)
    (old / "times.csv").write_text("figure,measured\nx,1\ny,2\n")
    assert script("keep_reference.py", old, cwd=tmp_path).returncode == 0
    before = runs(tmp_path / "results/reference")
    for m, dataset in ((6, "low_rank"), (12, "group_sparse")):
        words = ("method=fl", f"dataset={dataset}", f"dataset.used={m}", f"tag='numbers/{m}'")
        run_all(new, 3, words)
    (new / "times.csv").write_text("figure,measured\ny,3\nz,4\n")
    done = script("keep_reference.py", new, "--add", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = runs(tmp_path / "results/reference")
    found = accuracy(after).groupby(["experiment", "dataset"]).size().to_dict()
    assert found == {
        ("numbers", "low_rank"): 3,
        ("numbers", "group_sparse"): 3,
        ("", "low_rank"): 2,
    }
    kept = "experiment == ''"
    assert list(after.query(kept).manifest) == list(before.query(kept).manifest)
    rows = [saved_rows(table.query(kept), "replicates", dtype=str) for table in (before, after)]
    pd.testing.assert_frame_equal(*rows)
    times = read_table(tmp_path / "results/reference/times.csv")
    assert times.set_index("figure").measured.to_dict() == {"x": 1, "y": 3, "z": 4}


class Zcdp(Gaussian):
    """A mechanism whose budget has a name of its own."""

    name = "zcdp"
    budget_name = "rho_t"


def test_a_mechanism_keeps_the_column_of_its_own_budget(tmp_path):
    run = make_run("method=lr", "privacy=gaussian", f"results_dir={tmp_path}")
    run = replace(run, mechanism=Zcdp())
    execute(run, io.StringIO())
    trace = read_rows(runs(tmp_path), "trace")
    assert (trace.rho_t > 0).all()
    assert "eps_t" not in trace


SOURCES = [
    ("mpmtl/paper/figures/style.py", False),
    ("mpmtl/paper/claims.py", False),
    ("mpmtl/experiments/terminal.py", False),
    ("mpmtl/experiments/reader.py", False),
    ("mpmtl/solvers/proximal.py", True),
    ("mpmtl/methods/base.py", True),
    ("mpmtl/datafits.py", True),
    ("mpmtl/experiments/tuning.py", True),
    ("mpmtl/experiments/runner.py", True),
    ("mpmtl/experiments/config.py", True),
    ("mpmtl/experiments/audit.py", True),
]


@pytest.mark.parametrize(("name", "counts"), SOURCES)
def test_the_code_version_changes_with_what_numbers_depend_on(tmp_path, name, counts):
    copy = shutil.copytree(ROOT / "mpmtl", tmp_path / "mpmtl")
    before = code_digest(copy)
    with (tmp_path / name).open("a") as file:
        file.write("# edited\n")
    assert (code_digest(copy) != before) == counts


def test_no_other_module_knows_where_results_lie():
    """Names of files and the pattern of folders, outside of store, reader and the writers' rule."""
    words = re.compile(
        r"""["'/](replicates|cv|trace)\.csv|["']manifest\.json|journal\.jsonl|eps-"""
    )
    allowed = {"store.py", "reader.py", "config.py", "audit.py", "server.py"}  # server: its own
    sources = [p for part in ("mpmtl", "scripts") for p in (ROOT / part).rglob("*.py")]
    guilty = [p.name for p in sources if p.name not in allowed and words.search(p.read_text())]
    assert guilty == []
