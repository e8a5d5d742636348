"""Separate logistic tasks, solved once for all runs on the same data, never change a number."""

import numpy as np
import pytest
from conftest import make_run, ragged_data

from mpmtl import results as module
from mpmtl import runner
from mpmtl.results import kept_arrays
from mpmtl.runner import run_replicate

ARRAYS = [np.arange(6.0).reshape(2, 3), np.zeros((0, 2, 3))]


class Counted:
    """Arrays with a count of how often they were computed."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAYS


def same(found):
    return all(np.array_equal(a, b) for a, b in zip(found, ARRAYS, strict=True))


def test_what_was_kept_is_not_computed_again(tmp_path, monkeypatch):
    compute = Counted()
    assert same(kept_arrays(tmp_path / "k", ("a", 1), compute))
    assert same(kept_arrays(tmp_path / "k", ("a", 1), compute))
    assert compute.calls == 1
    kept_arrays(tmp_path / "k", ("a", 2), compute)
    assert compute.calls == 2
    monkeypatch.setattr(module, "code_version", lambda: "0+other")
    kept_arrays(tmp_path / "k", ("a", 1), compute)
    assert compute.calls == 3


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"rubbish", None])
def test_a_damaged_file_is_made_again(tmp_path, content):
    compute = Counted()
    kept_arrays(tmp_path, ("a",), compute)
    (path,) = tmp_path.glob("*.npz")
    whole = path.read_bytes()
    flipped = whole[:100] + bytes([whole[100] ^ 255]) + whole[101:]  # within the first array
    path.write_bytes(flipped if content is None else content)
    assert same(kept_arrays(tmp_path, ("a",), compute))
    assert compute.calls == 2
    assert path.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_only_costs_time(tmp_path):
    (tmp_path / "file").write_text("")
    assert same(kept_arrays(tmp_path / "file", ("a",), Counted()))


def test_a_run_gives_the_same_record_with_and_without(tmp_path, rng, monkeypatch):
    """Two methods on one logistic data set: the second reads what the first one kept."""
    data = ragged_data(rng, m=5, d=4, kind="binary", low=14, high=20)
    lines = ["task,y,a,b,c,d"]
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        lines += [
            ",".join([f"t{i}", f"{t:g}", *map(repr, map(float, x))])
            for x, t in zip(X, y, strict=True)
        ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")

    def record(method, place):
        words = [f"method={method}", "dataset=table", f"dataset.path={tmp_path / 't.csv'}"]
        words += ["dataset.task=task", "dataset.target=y", "scale=smoke", "epsilon=1"]
        found = run_replicate(make_run(*words, f"results_dir={place}", tiny=False), 0)
        return {name: found[name] for name in ("replicates", "cv", "trace", "privacy")}

    first = record("lr", tmp_path / "a")
    kept = list((tmp_path / "a/separate_tasks").glob("*.npz"))
    assert len(kept) == 1
    assert record("lr", tmp_path / "a") == first
    gs = record("gs", tmp_path / "a")
    assert list((tmp_path / "a/separate_tasks").glob("*.npz")) == kept
    monkeypatch.setattr(runner, "kept_arrays", lambda folder, key, compute: compute())
    assert record("lr", tmp_path / "b") == first
    assert record("gs", tmp_path / "b") == gs
