"""Metrics against their definitions, by a second route each."""

import numpy as np
import pytest
from conftest import ragged_data
from hypothesis import given
from hypothesis import strategies as st

from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.errors import InputError
from mpmtl.metrics import METRICS, auc, evaluate, heldout_error, nmse_per_task, nmse_pooled


def test_every_metric_of_a_run_says_in_which_direction_it_is_better(rng):
    """Models that fit the test samples are better than models of zero, whatever the metric."""
    for kind in ("regression", "binary"):
        data = ragged_data(rng, kind=kind, low=20, high=30)
        fitted = [np.linalg.lstsq(X, y, rcond=None)[0] for X, y in zip(data.X, data.y, strict=True)]
        good, none = (evaluate(data, W) for W in (np.array(fitted), np.zeros((6, 4))))
        for name in good.keys() & METRICS.keys():
            assert METRICS[name].better(good[name], none[name])
            assert METRICS[name].error(good[name]) < METRICS[name].error(none[name])
        assert good.keys() - {"tasks_left_out"} <= METRICS.keys()


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_ordered_pairs(samples):
    scores = np.array([s for s, _ in samples], dtype=float)
    y = np.array([1 if label else -1 for _, label in samples])
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[y > 0] for b in scores[y < 0]]
    got = auc(scores, y)
    assert np.isnan(got) if not pairs else got == pytest.approx(np.mean(pairs))


def test_auc_of_a_batch(rng):
    scores, y = rng.standard_normal((3, 20)), np.where(rng.random(20) < 0.4, 1, -1)
    np.testing.assert_allclose(auc(scores, y), [auc(row, y) for row in scores])


def test_nmse_of_the_mean_predictor_is_one():
    """A bias column and the task's own mean: MSE equals the variance."""
    y = [np.array([1.0, 2.0, 6.0]), np.array([0.0, 4.0])]
    data = MultiTaskData.checked([np.ones((len(t), 1)) for t in y], y, bias="x1")
    W = np.array([[t.mean()] for t in y])
    np.testing.assert_allclose(nmse_per_task(data, W), 1)
    common = np.full((2, 1), np.concatenate(y).mean())
    assert nmse_pooled(data, common) == pytest.approx(1)


def test_tasks_without_variance_are_left_out_and_counted(rng):
    X = [rng.standard_normal((n, 2)) for n in (5, 1, 4)]
    data = MultiTaskData.checked(X, [rng.standard_normal(5), np.ones(1), np.ones(4)])
    result = evaluate(data, np.zeros((3, 2)))
    assert result["tasks_left_out"] == 2
    assert result["nmse"] == pytest.approx((data.y[0] ** 2).mean() / data.y[0].var())


def test_one_class_test_parts_are_left_out_and_counted(rng):
    data = ragged_data(rng, 3, 2, "binary")
    one_class = data.take([np.flatnonzero(data.y[0] > 0), slice(None), slice(None)])
    result = evaluate(one_class, rng.standard_normal((3, 2)))
    assert result["tasks_left_out"] == 1
    with pytest.raises(InputError, match="not defined on any task"):
        evaluate(data.take([np.flatnonzero(y > 0) for y in data.y]), np.zeros((3, 2)))


def test_heldout_error_needs_no_predictions(rng):
    data = ragged_data(rng)
    W = rng.standard_normal((3, data.n_tasks, data.n_features))
    variance = np.array([y.var() for y in data.y])
    got = heldout_error(datafit_for(data), W, variance)
    want = [nmse_per_task(data, models) for models in W]
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_heldout_error_of_labels_is_one_minus_auc(rng):
    data = ragged_data(rng, kind="binary")
    W = rng.standard_normal((2, data.n_tasks, data.n_features))
    got = heldout_error(datafit_for(data), W, None)
    want = [
        [1 - auc(X @ w, y) for X, w, y in zip(data.X, models, data.y, strict=True)] for models in W
    ]
    np.testing.assert_allclose(got, want)
