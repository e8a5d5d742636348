"""What machines and people do to a run: afterwards it completes with the same bytes, or one line
says what to do. Kills, full disks, memory limits, clocks, damaged files."""

import io
import json
import os
import resource
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from conftest import MPMTL_RUN, TINY, make_run, mpmtl_run

from mpmtl.experiments import store
from mpmtl.experiments.runner import execute

ARGUMENTS = ["method=lr", "epsilon=0.1", *TINY[:-1], "save_models=true"]
FOLDER = "low_rank/lr/wishart/eps-0.1"
KEPT = ("*.csv", "models/*/*.json", "released/*.npy")


def outcome(folder):
    """Bytes of everything a run leaves that does not depend on when and where it ran."""
    paths = [p for pattern in KEPT for p in folder.glob(pattern) if p.name != "timing.csv"]
    assert len(paths) > 3
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


def kill_at_random(arguments, path, moments):
    """Start the run again and again, and kill it and its workers after so many seconds."""
    kills = 0
    for moment in moments:
        process = subprocess.Popen(
            [MPMTL_RUN, *arguments],
            cwd=path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    return kills


@pytest.mark.slow
def test_twenty_kills_at_random_moments_of_a_parallel_run(tmp_path, rng):
    arguments = [*ARGUMENTS, "n_jobs=2", "n_replicates=400"]
    whole = mpmtl_run(*arguments, "results_dir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    moments = rng.uniform(1.0, 5.0, 20)
    kills = kill_at_random([*arguments, "results_dir=killed"], tmp_path, moments)
    assert kills >= 10  # those that came before the end
    last = mpmtl_run(*arguments, "results_dir=killed", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert outcome(tmp_path / "killed" / FOLDER) == outcome(tmp_path / "whole" / FOLDER)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("cannot mount a small file system here (needs root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_keeps_what_is_finished(small_disk, tmp_path):
    arguments = [*ARGUMENTS, "n_replicates=30"]
    whole = mpmtl_run(*arguments, "n_jobs=1", "results_dir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    arguments.append("n_jobs=2")
    full = mpmtl_run(*arguments, f"results_dir={small_disk}", cwd=tmp_path)
    assert full.returncode == 2
    assert full.stderr.strip().count("\n") == 0, full.stderr
    assert "No space left on device; finished replicates stay" in full.stderr
    finished = (small_disk / FOLDER / "journal.jsonl").read_bytes().count(b"\n")
    assert finished > 0
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    last = mpmtl_run(*arguments, f"results_dir={small_disk}", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert "already done" in last.stdout
    assert outcome(small_disk / FOLDER) == outcome(tmp_path / "whole" / FOLDER)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_memory_limit_is_one_line(n_jobs, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))

    words = ("dataset.m=3000", "dataset.d=60", "dataset.n=4", "scale=smoke")
    done = mpmtl_run(*words, f"n_jobs={n_jobs}", cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 2, done.stderr[-500:]
    assert "ran out of memory: use fewer n_jobs and run again" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path, monkeypatch):
    run = make_run(f"results_dir={tmp_path / 'a'}", "n_replicates=3")
    execute(run, io.StringIO())
    now = [datetime(2030, 1, 1, tzinfo=UTC)]

    def earlier():
        now[0] -= timedelta(days=1)
        return now[0].isoformat(timespec="seconds")

    monkeypatch.setattr(store, "_now", earlier)
    monkeypatch.setattr(time, "time", lambda: now[0].timestamp())
    for n in (1, 3):
        backwards = make_run(f"results_dir={tmp_path / 'b'}", f"n_replicates={n}")
        execute(backwards, io.StringIO())
    for name in ("replicates.csv", "cv.csv", "trace.csv"):
        here, there = tmp_path / "a" / run.folder / name, tmp_path / "b" / run.folder / name
        assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("name", ["replicates.csv", "cv.csv", "trace.csv", "timing.csv"])
def test_a_damaged_table_is_written_again_from_the_journal(name, tmp_path):
    run = make_run(f"results_dir={tmp_path}", "n_replicates=2")
    execute(run, io.StringIO())
    path = tmp_path / run.folder / name
    whole = path.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", b"\0" * len(whole)):
        path.write_bytes(damage)
        execute(run, io.StringIO())
        assert path.read_bytes() == whole


def test_a_manifest_cannot_lead_out_of_the_results_folder(tmp_path):
    """Names in a manifest or a journal are never used as paths: a planted one changes no file."""
    run = make_run(f"results_dir={tmp_path / 'r'}", "n_replicates=1", "save_models=true")
    execute(run, io.StringIO())
    manifest = tmp_path / "r" / run.folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["settings"]["method"]["name"] = content["started"] = "../../../../outside"
    manifest.write_text(json.dumps(content))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(store.ResultsError, match="other settings"):
        execute(run, io.StringIO())
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_unpickled_from_disk(tmp_path):
    """Arrays are plain: a file that would need pickle is not what a run writes or reads."""
    run = make_run(f"results_dir={tmp_path}", "n_replicates=1", "save_models=true")
    execute(run, io.StringIO())
    for path in (tmp_path / run.folder).rglob("*.npy"):
        assert np.load(path, allow_pickle=False).dtype == float
