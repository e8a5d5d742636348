"""Metrics against their definitions, by a second route each."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import ragged_data
from hypothesis import given
from hypothesis import strategies as st

from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for, variance_of
from mpmtl.errors import InputError
from mpmtl.metrics import (
    METRICS,
    auc,
    evaluate,
    heldout_error,
    nmse_own_mean,
    nmse_per_task,
    nmse_pooled,
)


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


# Errors over all tasks, relative to each task's own mean


def parts_of(rng, sizes=(7, 1, 12, 3), d=3):
    """Training and test samples of a table, and the training means."""
    parts = []
    for extra in (0, 2):
        X = [rng.standard_normal((n + extra, d)) for n in sizes]
        y = [5 * i + rng.standard_normal(len(rows)) for i, rows in enumerate(X)]
        parts.append(replace(MultiTaskData.checked(X, y).with_intercept(), pooled=True))
    return *parts, np.array([y.mean() for y in parts[0].y])


def own_mean_models(means, d=3):
    return np.column_stack([np.zeros((len(means), d)), means])


def test_own_means_have_an_error_of_one_wherever_targets_are(rng):
    _, test, means = parts_of(rng)
    for shift, scale in ((0.0, 1.0), (-3.0, 1e-6), (1e6, 1e3)):
        moved = replace(test, y=tuple(scale * (y + shift) for y in test.y))
        there = scale * (means + shift)
        result = evaluate(moved, own_mean_models(there), there)
        assert next(iter(result)) == "nmse_own_mean"
        assert result["nmse_own_mean"] == pytest.approx(1, rel=1e-12)
        assert result["nmse_median"] == pytest.approx(1, rel=1e-12)


def test_the_error_relative_to_own_means_by_hand():
    """Models that predict 1, 1 and 4 err by 1 + 0, 9 and 4; the means 0, 2 and 2 err by 4 + 1, 4
    and 16."""
    y = [np.array([2.0, 1.0]), np.array([4.0]), np.array([6.0])]
    predicted, means = np.array([1.0, 1.0, 4.0]), np.array([0.0, 2.0, 2.0])
    data = MultiTaskData.checked([np.ones((len(t), 1)) for t in y], y)
    pooled, median = nmse_own_mean(data, predicted[:, None], means)
    assert pooled == pytest.approx((1 + 9 + 4) / (5 + 4 + 16))
    assert median == pytest.approx(4 / 16)  # of 1/5, 9/4 and 4/16


def test_held_out_errors_of_a_table_have_the_pooled_error_as_their_mean(rng):
    """Relative to the mean variance; a task that is not held out in a fold counts for nothing."""
    train, test, _ = parts_of(rng)
    rows = [np.arange(len(y)) for y in test.y]
    rows[1] = rows[1][:0]
    W, variance = rng.standard_normal((3, 4, 4)), np.array([y.var() for y in train.y])
    for part in (test, test.take(rows)):
        got = heldout_error(datafit_for(part), W, variance)
        here = part.n_samples > 0
        assert (np.isnan(got) == ~here).all()
        for errors, models in zip(got, W, strict=True):
            squared = [
                ((X @ w - y) ** 2).sum() for X, w, y in zip(part.X, models, part.y, strict=True)
            ]
            ratio = errors[here] / np.array(squared)[here]
            np.testing.assert_allclose(ratio, ratio[0])
            if here.all():
                size = variance.mean() * part.n_samples.sum()
                assert errors.mean() == pytest.approx(sum(squared) / size)


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.1, 7.0, 1e3, 1e9])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
def test_rounding_is_no_variance(offset, scale, rng):
    """Targets 0.1 + 0.2 and 0.3, and others as near to equal, whatever they are relative to: such
    a task has no error of its own, and that of the others is near 1 for predictions of means."""
    alike = [np.array([0.1 + 0.2, 0.3, 0.3]), offset + np.array([0.1 + 0.2, 0.3]), np.full(3, 0.1)]
    alike.append(np.nextafter(offset, np.array([offset, np.inf, -np.inf, np.inf])))
    y = [*alike, offset + scale * rng.standard_normal(9), offset + scale * rng.standard_normal(5)]
    data = MultiTaskData.checked(
        [np.ones((len(t), 1)) for t in y], [(t - offset) / scale for t in y]
    )
    data = replace(data, pooled=True, units=(offset, scale))
    means = np.array([(t[0] - offset) / scale for t in y[:4]] + [0.0, 0.0])
    assert np.isnan(nmse_per_task(data, means[:, None])[:4]).all()
    result = evaluate(data, means[:, None], means)
    assert 0.5 < result["nmse"] < 3
    assert result["nmse_own_mean"] == pytest.approx(1)
    assert result["nmse_median"] == pytest.approx(1)
    assert max(result.values()) < 1e6


def test_variance_of_targets_that_differ_by_rounding_only():
    for size in (1e-30, 0.3, 1.0, 1e9, 1e29):
        t = size * (1 + np.array([0.0, 1e-16, -3e-16, 2e-14]))
        assert variance_of(t) == 0
        assert variance_of(size * np.array([1.0, 1.0 + 1e-9])) > 0
    assert variance_of(np.zeros(0)) == variance_of(np.zeros(3)) == 0
    assert variance_of(np.array([1e-5, 2e-5]), size=1e9) == 0
    assert variance_of(np.array([1.0, 3.0]), size=1e9) == 1
