"""Runs: the files they leave, resume, determinism and the folder's safeguards."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from conftest import make_run, tables
from filelock import FileLock

from mpmtl.errors import ResultsError
from mpmtl.experiments import runner, store
from mpmtl.experiments.runner import execute, run_replicate
from mpmtl.experiments.store import RunFolder


def run_here(tmp_path, *overrides):
    """Execute a tiny run; returns its folder and what it printed."""
    run = make_run(f"results_dir={tmp_path}", *overrides)
    out = io.StringIO()
    execute(run, out)
    return tmp_path / run.folder, out.getvalue()


def without_seconds(record):
    return {
        key: value for key, value in record.items() if key not in ("timing", "arrays", "models")
    }


@pytest.mark.parametrize("method", ["lr", "gs", "mtl_lr", "mtl_gs", "stl"])
def test_files_of_a_run(method, tmp_path):
    folder, _ = run_here(tmp_path, f"method={method}", "epsilon=0.1")
    private = method in ("lr", "gs")
    privacy, eps = ("wishart", "0.1") if private else ("none", "inf")
    assert folder == tmp_path / "low_rank" / method / privacy / f"eps-{eps}"
    rows = pd.read_csv(folder / "replicates.csv", keep_default_na=False, na_values=[""])
    assert list(rows.columns[:8]) == [
        "dataset",
        "method",
        "privacy",
        "epsilon",
        "delta",
        "replicate",
        "metric",
        "value",
    ]
    assert set(rows.metric) == {"nmse", "nmse_pooled", "nmse_stl", "tasks_left_out"}
    assert rows.replicate.is_monotonic_increasing
    assert np.isfinite(rows.value).all()
    assert (rows.method == method).all()
    cv = pd.read_csv(folder / "cv.csv")
    assert (cv.groupby("replicate").chosen.sum() == 1).all()
    best = cv.loc[cv.groupby("replicate").score.idxmin()]
    assert best.chosen.all()
    trace = pd.read_csv(folder / "trace.csv")
    rounds = rows.drop_duplicates("replicate").n_rounds.sum() if private else 0
    assert len(trace) == rounds
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["privacy"]["unit"] == "task"
    assert bool(manifest["privacy"]["claimed"]) == (private or method == "stl")
    assert manifest["settings"]["method"]["name"] == method
    assert len(manifest["settings_digest"]) == 64
    assert "seconds" in (folder / "timing.csv").read_text()
    assert "second" not in (folder / "replicates.csv").read_text()


def test_trace_holds_the_budget_of_every_round(tmp_path):
    folder, _ = run_here(
        tmp_path, "method=lr", "tuning=fixed", "method.grid.n_rounds=4", "epsilon=2"
    )
    trace = pd.read_csv(folder / "trace.csv")
    run = make_run("epsilon=2")
    eps_t = run.mechanism.budgets(2.0, run.budget(12).delta, 4, alpha=0.4)
    np.testing.assert_allclose(trace.eps_t[:4], eps_t, rtol=1e-15)
    assert (trace.noise_norm > 0).all()
    assert (trace.signal_norm > 0).all()


def test_one_candidate_needs_no_cross_validation(tmp_path):
    """Tasks with fewer samples than folds are fine where nothing is chosen."""
    folder, text = run_here(tmp_path, "tuning=fixed", "dataset.n=3", "tuning.folds=5")
    assert "no cross-validation" in text
    assert pd.read_csv(folder / "cv.csv").score.isna().all()


def test_card_says_claimed_and_proved_unit_and_caveats(tmp_path):
    folder, text = run_here(tmp_path, "method=lr", "epsilon=0.1")
    for words in (
        "claimed",
        "proved",
        "a task; neighbours replace one",
        "wishart-support",
        "tuning-not-charged",
        "float-noise",
        "reproducible-rng",
        "stl",
        str(folder),
    ):
        assert words in text, words
    _, text = run_here(tmp_path, "method=lr", "epsilon=0.1", "privacy=gaussian")
    assert "gaussian, eps = 0.1 proved* per task" in text
    assert "claimed     nothing" in text


def test_a_replicate_alone_is_the_same_as_in_a_run(tmp_path):
    run = make_run(f"results_dir={tmp_path}", "n_replicates=3")
    execute(run, io.StringIO())
    with RunFolder(tmp_path / run.folder, run.settings) as folder:
        for r in (2, 0):
            alone = json.loads(json.dumps(run_replicate(run, r)))
            assert without_seconds(alone) == without_seconds(folder.records[r])


def test_number_of_processes_does_not_matter(tmp_path):
    one, _ = run_here(tmp_path / "1", "n_replicates=4", "n_jobs=1")
    two, _ = run_here(tmp_path / "2", "n_replicates=4", "n_jobs=2")
    assert tables(one) == tables(two)


def test_all_methods_and_budgets_of_a_replicate_see_the_same_data(tmp_path):
    stl = [
        pd.read_csv(run_here(tmp_path, *overrides)[0] / "replicates.csv")
        .query("metric == 'nmse_stl'")
        .value.to_numpy()
        for overrides in (["method=lr", "epsilon=0.1"], ["method=gs", "epsilon=5"], ["method=stl"])
    ]
    np.testing.assert_array_equal(stl[0], stl[1])
    np.testing.assert_array_equal(stl[0], stl[2])


def test_more_replicates_extend_a_run_and_fewer_are_its_beginning(tmp_path):
    whole, _ = run_here(tmp_path / "a", "n_replicates=4")
    part, _ = run_here(tmp_path / "b", "n_replicates=2")
    first = tables(part)
    extended, text = run_here(tmp_path / "b", "n_replicates=4")
    assert "2 of 4 already done" in text
    assert tables(extended) == tables(whole)
    again, text = run_here(tmp_path / "b", "n_replicates=2")
    assert "all 2 replicates already done" in text
    assert tables(again) == first


@pytest.mark.parametrize("cut", [1, 40, -3])
def test_a_journal_cut_off_anywhere_is_mended(tmp_path, cut):
    whole, _ = run_here(tmp_path, "n_replicates=3")
    want = tables(whole)
    journal = whole / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:cut])
    _, text = run_here(tmp_path, "n_replicates=3")
    assert "1 damaged journal line(s) dropped" in text
    assert tables(whole) == want


def test_a_damaged_line_in_the_middle_is_run_again(tmp_path):
    whole, _ = run_here(tmp_path, "n_replicates=3")
    want = tables(whole)
    journal = whole / "journal.jsonl"
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(bytes(content))
    run_here(tmp_path, "n_replicates=3")
    assert tables(whole) == want


def test_other_settings_are_refused_with_the_difference(tmp_path):
    folder, _ = run_here(tmp_path, "method=lr")
    before = tables(folder)
    with pytest.raises(ResultsError, match=r"method.clip: auto -> covariance.*overwrite=true"):
        run_here(tmp_path, "method=lr", "method.clip=covariance")
    assert tables(folder) == before
    run_here(tmp_path, "method=lr", "method.clip=covariance", "overwrite=true")
    assert tables(folder) != before


def test_other_code_is_refused(tmp_path, monkeypatch):
    run_here(tmp_path)
    monkeypatch.setattr(store, "code_version", lambda: "other")
    with pytest.raises(ResultsError, match="code version: .* -> other"):
        run_here(tmp_path)


def test_how_a_run_is_carried_out_may_change(tmp_path):
    run_here(tmp_path, "n_jobs=1", "data_dir=a")
    _, text = run_here(tmp_path, "n_jobs=2", "data_dir=b")
    assert "already done" in text


def test_a_damaged_manifest_is_one_line(tmp_path):
    folder, _ = run_here(tmp_path)
    (folder / "manifest.json").write_text('{"status": "comp')
    with pytest.raises(ResultsError, match="missing or damaged"):
        run_here(tmp_path)


def test_a_run_without_results_does_not_block_other_settings(tmp_path):
    run = make_run(f"results_dir={tmp_path}", "dataset.n=1")
    with pytest.raises(ValueError, match="no task has two training samples"):
        execute(run, io.StringIO())
    run_here(tmp_path)


def test_two_processes_do_not_share_a_folder(tmp_path):
    run = make_run(f"results_dir={tmp_path}")
    path = tmp_path / run.folder
    path.mkdir(parents=True)
    with FileLock(path / ".lock"), pytest.raises(ResultsError, match="in use by another process"):
        execute(run, io.StringIO())


def test_a_full_disk_keeps_what_is_finished(tmp_path, monkeypatch):
    """The third replicate cannot be written; afterwards the run completes with the same bytes."""
    whole, _ = run_here(tmp_path / "a", "n_replicates=4")
    real, calls = store.os.fsync, []

    def full_disk(descriptor):
        calls.append(descriptor)
        if len(calls) > 3:  # manifest and two replicates
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(store.os, "fsync", full_disk)
    with pytest.raises(ResultsError, match="No space left on device.*run again"):
        run_here(tmp_path / "b", "n_replicates=4")
    monkeypatch.undo()
    resumed, text = run_here(tmp_path / "b", "n_replicates=4")
    assert "already done" in text
    assert tables(resumed) == tables(whole)


def test_a_results_dir_that_cannot_be_made_is_one_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ResultsError, match="cannot write results"):
        run_here(blocked)


def dies_once(run, code, replicate):
    """Stands in for a worker that the kernel kills: the first try at replicate 1 ends its process.

    `data_dir` carries the path of the mark, since worker processes share nothing else.
    """
    import os
    import signal

    mark = f"{run.data_dir}.died"
    if replicate == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_replicate(run, replicate)


@pytest.mark.filterwarnings("ignore:A worker stopped while some jobs were given to the executor")
def test_a_killed_worker_is_replaced(tmp_path, monkeypatch):
    whole, _ = run_here(tmp_path / "a", "n_replicates=4")
    monkeypatch.setattr(runner, "_on_worker", dies_once)
    resumed, _ = run_here(
        tmp_path / "b", "n_replicates=4", "n_jobs=2", f"data_dir={tmp_path / 'mark'}"
    )
    assert (tmp_path / "mark.died").exists()
    assert tables(resumed) == tables(whole)
