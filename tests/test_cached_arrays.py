"""Separate tasks, solved once for all runs on the same data, never change a number."""

import io
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from conftest import make_run, ragged_data

from mpmtl.experiments import store as module
from mpmtl.experiments.runner import cached_separate_tasks, execute, run_replicate
from mpmtl.experiments.store import cached_arrays
from mpmtl.experiments.tuning import prepare

ARRAYS = [np.arange(6.0).reshape(2, 3), np.zeros((0, 2, 3))]


class Counted:
    """Arrays with a count of how often they were computed."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAYS


def same(arrays):
    return all(np.array_equal(a, b) for a, b in zip(arrays, ARRAYS, strict=True))


def test_what_is_cached_is_not_computed_again(tmp_path, monkeypatch):
    compute = Counted()
    assert same(cached_arrays(tmp_path / "k", ("a", 1), compute))
    assert same(cached_arrays(tmp_path / "k", ("a", 1), compute))
    assert compute.calls == 1
    cached_arrays(tmp_path / "k", ("a", 2), compute)
    assert compute.calls == 2
    monkeypatch.setattr(module, "code_version", lambda: "0+other")
    cached_arrays(tmp_path / "k", ("a", 1), compute)
    assert compute.calls == 3


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"rubbish", None])
def test_a_damaged_file_is_made_again(tmp_path, content):
    compute = Counted()
    cached_arrays(tmp_path, ("a",), compute)
    (path,) = tmp_path.glob("*.npz")
    whole = path.read_bytes()
    flipped = whole[:100] + bytes([whole[100] ^ 255]) + whole[101:]  # within the first array
    path.write_bytes(flipped if content is None else content)
    assert same(cached_arrays(tmp_path, ("a",), compute))
    assert compute.calls == 2
    assert path.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path):
    (tmp_path / "file").write_text("")
    assert same(cached_arrays(tmp_path / "file", ("a",), Counted()))


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_a_run_gives_the_same_record_with_and_without(tmp_path, rng, kind):
    """Two methods on one data set: the second reads what the first one left."""
    data = ragged_data(rng, m=5, d=4, kind=kind, low=14, high=20)

    def record(method, folder=None, data=data):
        words = (f"method={method}", "epsilon=1", "tuning=coarse", f"results_dir={folder}")
        run = replace(make_run(*words), dataset=Given(data))
        keep = partial(cached_separate_tasks, run) if folder else None
        whole = run_replicate(run, 0, keep)
        return {name: whole[name] for name in ("replicates", "cv", "trace", "privacy")}

    lr, gs = record("lr"), record("gs")
    assert record("lr", tmp_path) == lr
    cached = list((tmp_path / "separate_tasks").glob("*.npz"))
    assert len(cached) == 1
    assert record("lr", tmp_path) == lr
    assert record("gs", tmp_path) == gs
    assert list((tmp_path / "separate_tasks").glob("*.npz")) == cached
    # one sample that differs is other data, whatever the settings say
    X = [rows.copy() for rows in data.X]
    X[2][0, 0] += 1e-6
    other = replace(data, X=tuple(X))
    assert record("lr", tmp_path, other) == record("lr", None, other) != lr
    assert len(list((tmp_path / "separate_tasks").glob("*.npz"))) == 2


@pytest.mark.parametrize("kind", ["binary", "regression"])
@pytest.mark.parametrize(("evaluation", "left"), [("exact", 1), (0.5, 0), (0, 0)])
def test_exact_models_are_left_beside_exact_errors_only(tmp_path, rng, kind, evaluation, left):
    data = ragged_data(rng, m=5, d=4, kind=kind, low=14, high=20)
    words = ("method=fl", "epsilon=1", "tuning=coarse", f"results_dir={tmp_path}", "n_replicates=1")
    run = replace(make_run(*words), dataset=Given(data), evaluation=evaluation)
    execute(run, io.StringIO())
    assert len(list(tmp_path.rglob("*.npz"))) == left


@pytest.mark.parametrize("method", ["lr", "stl_best", "mtl_lr"])
def test_norms_are_those_of_the_training_parts(rng, method):
    """What steps are taken with: ||X_i||^2 by a singular value decomposition."""
    data = ragged_data(rng, m=5, d=4, kind="binary", low=14, high=20)
    run = make_run(f"method={method}", "epsilon=1", "tuning=coarse")
    problem = prepare(data, run.tuning, run.method, 0, 0, lambda key, compute: compute())
    losses = [problem.datafit, *map(problem.training_part, range(run.tuning.folds))]
    for loss in losses:
        norms = [np.linalg.svd(X, compute_uv=False)[0] ** 2 for X in loss.X]
        np.testing.assert_allclose(loss.squared_norms, norms, rtol=1e-12)


@dataclass(frozen=True)
class Given:
    """A data set that is there already; training and test part are the same."""

    data: object
    name: str = "given"

    def draw(self, data_dir, seed, replicate):
        return self.data, self.data
