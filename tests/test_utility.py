"""Utility bounds: printed formulas, minima by calculus, Hoelder's inequality, Table 2, Claim 3."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmtl import InputError, composition_bound
from mpmtl.methods import theory_rate
from mpmtl.paper.utility import (
    ConvexBound,
    StrongBound,
    accumulated_error,
    bounds,
    claim_3,
    largest_round,
    noise_level,
    phi,
    psi,
    table_2,
    tasks_needed,
)

CASES = list(bounds([0.3, 0.01]))
flag = st.booleans()


def test_exponents_are_the_printed_pieces_and_meet_at_their_ends():
    for alpha in (-3.0, -1.5, -0.2, 0.0, 1.9, 3.0, 7.0):
        basic = 2 / (2 * alpha + 1) if alpha > 2 else 2 / 5 if alpha > -0.5 else 1 / (2 - alpha)
        fast = 4 / (2 * alpha + 1) if alpha > 4 else 4 / 9 if alpha > -0.5 else 2 / (4 - alpha)
        pure = 1 / (alpha + 1) if alpha > 2 else 1 / 3 if alpha > -1 else 1 / (2 - alpha)
        assert phi(alpha, False) == pytest.approx(basic)
        assert phi(alpha, True) == pytest.approx(fast)
        assert phi(alpha, False, pure=True) == pytest.approx(pure)
    assert [psi(Q, 0.5) for Q in (0.2, 0.5, 0.7, 1, 4)] == [0.2, 0.5, 0.5, 0.5, 0.125]
    for end in (-0.5, 2.0):
        assert phi(end - 1e-9, False) == pytest.approx(phi(end + 1e-9, False))


@given(st.floats(0.01, 3), st.floats(1e-6, 10), flag)
def test_bounds_are_those_printed(Q, M, fast):
    """Written out from Theorems 2 and 4 with M_0, M'_0 as they stand there."""
    alpha, ratio = Q - 0.4, 0.3
    r = 1 - ratio**0.5 if fast else 1 - ratio
    if abs(alpha / 2 - 1) > 1e-3:
        printed = M / np.sqrt(abs(2 * alpha + 1)) / (alpha / 2 - (2 if fast else 1)) ** 2
        expected = phi(alpha, fast) * np.log(printed)
        assert ConvexBound(fast).log_bound(alpha, M) == pytest.approx(expected, abs=1e-9)
    root = np.sqrt(r / Q) if fast else r / np.sqrt(Q)
    if abs(1 - Q) > 1e-3 and abs(root - 1) > 1e-3:
        printed = M / np.sqrt(abs(1 - Q**2)) / (root - 1) ** 2
        expected = np.log(printed) * np.log(r) / np.log(psi(Q, r if fast else r**2))
        bound = StrongBound(fast, mu_over_L=ratio)
        assert bound.log_bound(np.log(Q), M) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_noise_level_scales_as_the_theorems_say():
    base = noise_level("lr", 30, 320, 0.1, 0)
    assert base == pytest.approx(30 * np.log(30) / np.sqrt(320) / 0.1)
    assert noise_level("lr", 30, 320, 0.2, 0, k=3, K=5.0) == pytest.approx(base * 15 / 2)
    assert noise_level("lr", 30, 1280, 0.1, 0) == pytest.approx(base / 2)
    log_term = np.log(np.e + 0.1 / np.sqrt(2) / 1e-3) + 0.2
    pure = noise_level("gs", 30, 320, 0.1, 0)
    assert pure == pytest.approx(np.log(30) / 32)
    assert noise_level("gs", 30, 640, 0.1, 1e-3) == pytest.approx(pure / 2 * np.sqrt(log_term))
    m = tasks_needed(0.3, "gs", 30, 0.1, k=2)
    assert noise_level("gs", 30, m, 0.1, 1 / (m * np.log(m)), k=2) == pytest.approx(0.3)
    with pytest.raises(InputError, match="use lr or gs"):
        noise_level("mtl", 30, 320, 0.1, 0)


@pytest.mark.parametrize("bound", CASES, ids=str)
def test_stated_optimum_is_the_minimum_between_the_breaks(bound):
    """Both ways: the derivative of the gain vanishes there, and the search ends there."""
    stated = bound.stated(1e-9)
    x, step = bound.x_of(stated.rate), 1e-4 * np.ptp(bound.breaks)
    slope = (bound.log_gain(x + step) - bound.log_gain(x - step)) / (2 * step)
    assert slope * np.ptp(bound.breaks) == pytest.approx(0, abs=1e-5)
    best = bound.best(1e-9, window=True)
    assert best.rate == pytest.approx(stated.rate, abs=1e-6)
    assert best.bound == pytest.approx(stated.bound)
    assert stated.rate == theory_rate(
        bound.accelerated, bound.strongly_convex, bound.mu_over_L, bound.pure
    )
    exponents = (
        (1 / 2, 1) if bound.strongly_convex else (1 / 3, 2 / 5) if bound.pure else (0.4, 4 / 9)
    )
    assert bound.exponent(x) == pytest.approx(exponents[bound.accelerated])


@given(st.sampled_from(CASES), st.floats(-30, 7), st.floats(-20, 20), st.floats(0.001, 0.999))
def test_no_rate_is_better_than_the_best(bound, log_M, anywhere, between):
    low, high = bound.breaks
    M, inside = np.exp(log_M), low + (high - low) * between
    best = bound.best(M)
    assert (
        min(bound.log_bound(anywhere, M), bound.log_bound(inside, M)) >= np.log(best.bound) - 1e-9
    )
    assert bound.best(M, window=True).bound <= np.exp(bound.log_bound(inside, M)) * (1 + 1e-9)
    assert best.attained == (best.bound < bound.limit)


@pytest.mark.parametrize("bound", CASES, ids=str)
def test_stated_optimum_is_overall_only_below_a_noise_level(bound):
    level, (low, high) = bound.agreement(), bound.breaks
    assert bound.best(level / 1.01).rate == pytest.approx(bound.stated(level).rate, abs=1e-6)
    assert not low <= bound.x_of(bound.best(level * 1.01).rate) <= high
    assert np.isinf(bound.log_bound(low, 1.0))


@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.sampled_from(CASES))
def test_no_allocation_has_smaller_sums_than_the_stated_one(T, seed, bound):
    """Hoelder: eps_t ~ w_t^(2/(2s+1)) is best of all series, whatever T and M."""
    t, w, rate = np.arange(1.0, T + 1), bound.weights(T), bound.stated(1.0).rate
    stated = rate ** (T - t) if bound.strongly_convex else t**rate
    least = accumulated_error(stated, w, bound.s)
    other = stated * np.exp(np.random.default_rng(seed).normal(0, 0.3, T))
    assert accumulated_error(other, w, bound.s) >= least - 1e-12
    power = 2 * bound.s / (2 * bound.s + 1)
    assert least == pytest.approx((2 + 1 / bound.s) * np.log((w**power).sum()))
    if T > 1:
        assert bound.sums_best(T) == pytest.approx(rate, abs=1e-4)


def test_far_from_the_stated_alpha_the_closed_form_is_below_the_sums_it_replaces():
    bound, T, alpha = ConvexBound(), 20, -30.0
    closed = (2 - alpha) * np.log(T) - bound.log_gain(alpha)
    assert closed < accumulated_error(np.arange(1.0, T + 1) ** alpha, bound.weights(T), 2) - 1


def test_table_2_is_what_the_bounds_give():
    table = table_2()
    for name, factor in (("lr_epsilon", 1), ("gs_epsilon", 1), ("lr_m", -0.5), ("gs_m", -1)):
        np.testing.assert_allclose(table[name], factor * table["printed"], atol=1e-6)


def test_claim_3_holds_for_small_noise_and_ratio_below_the_golden_one():
    limit = ((5**0.5 - 1) / 2) ** 2  # 0.381966
    table = claim_3([0.01, limit - 1e-4, limit + 1e-4])
    assert list(table["fewer"]) == [True, True, True, False] * 2
    assert table["M"][4] == pytest.approx(1.8 ** (-25 / 8))  # M^(-2/5) = (1.8^(5/2)/M)^(2/9)


def test_premise_of_the_group_sparse_theorem_leaves_no_useful_bound():
    """T rounds of the largest eps_t allowed spend so little that M is above T^(-5/2), not at it."""
    d, k, delta = 30, 4, 1e-6
    for m, T in ((320, 1), (1e4, 10), (1e8, 1000), (1e12, 100_000)):
        epsilon = composition_bound(np.full(T, largest_round("gs", d, m, k)), delta)
        assert noise_level("gs", d, m, epsilon, delta, k) > T**-2.5
