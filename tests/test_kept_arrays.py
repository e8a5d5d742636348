"""Separate logistic tasks, solved once for all runs on the same data, never change a number."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from conftest import make_run, ragged_data

from mpmtl.experiments import store as module
from mpmtl.experiments.runner import keep_separate_tasks, run_replicate
from mpmtl.experiments.store import kept_arrays

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


def test_a_run_gives_the_same_record_with_and_without(tmp_path, rng):
    """Two methods on one logistic data set: the second reads what the first one kept."""
    data = ragged_data(rng, m=5, d=4, kind="binary", low=14, high=20)

    def record(method, place=None, data=data):
        run = make_run(f"method={method}", "epsilon=1", f"results_dir={place}")
        run = replace(run, dataset=Given(data))
        keep = partial(keep_separate_tasks, run) if place else None
        found = run_replicate(run, 0, keep)
        return {name: found[name] for name in ("replicates", "cv", "trace", "privacy")}

    lr, gs = record("lr"), record("gs")
    assert record("lr", tmp_path) == lr
    kept = list((tmp_path / "separate_tasks").glob("*.npz"))
    assert len(kept) == 1
    assert record("lr", tmp_path) == lr
    assert record("gs", tmp_path) == gs
    assert list((tmp_path / "separate_tasks").glob("*.npz")) == kept
    # one sample that differs is other data, whatever the settings say
    X = [rows.copy() for rows in data.X]
    X[2][0, 0] += 1e-6
    other = replace(data, X=tuple(X))
    assert record("lr", tmp_path, other) == record("lr", None, other) != lr
    assert len(list((tmp_path / "separate_tasks").glob("*.npz"))) == 2


@dataclass(frozen=True)
class Given:
    """A data set that is there already; training and test part are the same."""

    data: object
    name: str = "given"

    def draw(self, data_dir, seed, replicate):
        return self.data, self.data
