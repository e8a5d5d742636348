"""Composition, allocation and Gaussian accounting against independent values and identities."""

import itertools
from math import comb

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from mpmtl import (
    InputError,
    allocate,
    composition_bound,
    gaussian_mu,
    optimal_delta,
    wishart_delta,
)
from mpmtl.privacy.mechanisms import Gaussian


def test_composition_bound_matches_reference(vectors):
    for case in vectors["composition_bound"]:
        value = composition_bound(case["eps_t"], case["delta"])
        assert value == pytest.approx(case["value"], rel=1e-9)


def test_allocation_matches_reference_and_is_never_above_the_budget(vectors):
    for case in vectors["allocation"]:
        rate = {"Q": case["Q"]} if case["Q"] else {"alpha": case["alpha"]}
        eps_t = allocate(case["epsilon"], case["delta"], case["T"], **rate)
        np.testing.assert_allclose(eps_t, case["eps_t"], rtol=1e-9)
        assert composition_bound(eps_t, case["delta"]) <= case["epsilon"]


def test_gaussian_mu_matches_reference(vectors):
    for case in vectors["gaussian_mu"]:
        assert gaussian_mu(case["epsilon"], case["delta"]) == pytest.approx(case["mu"], rel=1e-9)


def test_wishart_delta_matches_reference(vectors):
    for case in vectors["wishart_true_delta"]:
        assert wishart_delta(case["eps_t"]) == pytest.approx(case["delta"], rel=1e-12)


@given(
    epsilon=st.floats(-6, 40).map(lambda x: 10.0**x),
    delta=st.one_of(st.just(0.0), st.floats(-12, -0.1).map(lambda x: 10.0**x)),
    n_rounds=st.integers(1, 200),
    alpha=st.floats(-2, 3),
)
def test_allocation_is_the_largest_within_the_budget(epsilon, delta, n_rounds, alpha):
    eps_t = allocate(epsilon, delta, n_rounds, alpha)
    assert (eps_t > 0).all()
    assert composition_bound(eps_t, delta) <= epsilon
    assert composition_bound(eps_t * (1 + 1e-12), delta) > epsilon * (1 - 1e-9)
    np.testing.assert_allclose(eps_t / eps_t[0], np.arange(1, n_rounds + 1.0) ** alpha, rtol=1e-9)


@given(n_rounds=st.integers(1, 100), Q=st.floats(0.1, 10))
def test_allocation_by_Q_grows_geometrically(n_rounds, Q):
    eps_t = allocate(1.0, 1e-3, n_rounds, Q=Q)
    np.testing.assert_allclose(eps_t[1:] * Q, eps_t[:-1], rtol=1e-9)


@given(delta=st.floats(1e-9, 0.5))
def test_composition_bound_is_never_above_the_plain_sum(delta):
    eps_t = np.linspace(0.01, 2, 20)
    assert composition_bound(eps_t, delta) <= eps_t.sum() * (1 + 1e-15)
    assert composition_bound(eps_t, 0) == eps_t.sum()


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 30.0, 1e4, 1e12])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 5.4e-4, 0.3, 0.9])
def test_gaussian_mu_solves_its_equation_in_high_precision(epsilon, delta):
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(gaussian_mu(epsilon, delta)), mpmath.mpf(epsilon)
        below = [
            mpmath.ncdf(m / 2 - eps / m) - mpmath.exp(eps) * mpmath.ncdf(-m / 2 - eps / m)
            for m in (mu, mu * (1 + mpmath.mpf(10) ** -7))
        ]
        assert below[0] <= delta < below[1]


def test_gaussian_mu_is_finite_at_the_largest_budget():
    # delta(mu) jumps from 0 to 1 around sqrt(2 eps), far below what a double resolves there
    assert gaussian_mu(1e40, 1e-3) == pytest.approx(np.sqrt(2e40), rel=1e-12)


def test_gaussian_rounds_compose_to_the_whole_budget():
    for rate in ({"alpha": 0.4}, {"Q": 0.9}):
        mu_t = Gaussian().budgets(1.0, 1e-4, 30, **rate)
        total = np.sqrt((mu_t**2).sum())
        assert total <= gaussian_mu(1.0, 1e-4)
        assert total == pytest.approx(gaussian_mu(1.0, 1e-4), rel=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: composition_bound([-0.1], 0.1),
        lambda: composition_bound([0.1], 1.0),
        lambda: composition_bound([0.1], float("nan")),
        lambda: composition_bound([], 0.1),
        lambda: allocate(0.0, 0.1, 3),
        lambda: allocate(float("inf"), 0.1, 3),
        lambda: allocate(1.0, 0.1, 0),
        lambda: allocate(1.0, 0.1, 3, Q=-1.0),
        lambda: allocate(1.0, 0.1, 3, alpha=float("nan")),
        lambda: gaussian_mu(1.0, 0.0),
        lambda: gaussian_mu(-1.0, 0.1),
    ],
)
def test_impossible_budgets_are_refused(call):
    with pytest.raises(InputError):
        call()


def brute_force_delta(eps_t, epsilon):
    """All 2^T outcomes of the randomised responses, one by one."""
    total = 0.0
    for signs in itertools.product((1, -1), repeat=len(eps_t)):
        loss = np.dot(signs, eps_t)
        chance = np.prod(1 / (1 + np.exp(-np.array(signs) * eps_t)))
        total += chance * max(0.0, -np.expm1(epsilon - loss))
    return total


@pytest.mark.parametrize("seed", range(12))
def test_optimal_delta_is_that_of_composed_randomised_responses_and_never_below(seed):
    rng = np.random.default_rng(seed)
    eps_t, epsilon = rng.uniform(0.01, 0.9, rng.integers(1, 12)), rng.uniform(0, 1.5)
    exact = brute_force_delta(eps_t, epsilon)
    assert exact * (1 - 1e-12) <= optimal_delta(eps_t, epsilon) <= exact * (1 + 1e-4) + 1e-12


def test_optimal_delta_of_equal_budgets_is_the_closed_form():
    """Kairouz, Oh, Viswanath (2017), Theorem 3.3."""
    k, eps = 7, 0.3
    for i in range(k // 2 + 1):
        known = (
            sum(
                comb(k, j) * (np.exp((k - j) * eps) - np.exp((k - 2 * i + j) * eps))
                for j in range(i)
            )
            / (1 + np.exp(eps)) ** k
        )
        assert optimal_delta([eps] * k, (k - 2 * i) * eps) == pytest.approx(known, rel=1e-9)


@given(
    eps_t=st.lists(st.floats(1e-3, 2), min_size=1, max_size=30),
    delta=st.floats(-9, -1).map(lambda x: 10.0**x),
)
def test_composition_bound_is_never_below_exact_composition(eps_t, delta):
    """The grid's own pessimism is far below what the bound leaves."""
    bound = composition_bound(eps_t, delta)
    assert optimal_delta(eps_t, bound) <= max(delta, 1e-9)


@pytest.mark.parametrize("rate", [{"alpha": 0.0}, {"alpha": 0.4}, {"Q": 0.9}, {"Q": 1.3}])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 30.0, 1e40])
def test_optimal_allocation_is_never_above_the_budget_and_never_below_the_bound(epsilon, rate):
    delta = 1 / (320 * np.log(320))
    for n_rounds in (1, 2, 10, 100):
        plain = allocate(epsilon, delta, n_rounds, **rate)
        more = allocate(epsilon, delta, n_rounds, **rate, accounting="optimal")
        assert (more >= plain).all()
        within = composition_bound(more, delta) <= epsilon
        assert within or optimal_delta(more, epsilon) <= delta
        np.testing.assert_allclose(more / more[0], plain / plain[0], rtol=1e-9)


def test_optimal_allocation_at_the_papers_setting():
    delta = 1 / (320 * np.log(320))
    assert allocate(0.1, delta, 10)[0] == pytest.approx(0.0109, abs=5e-5)
    assert allocate(0.1, delta, 10, accounting="optimal")[0] == pytest.approx(0.0170, abs=5e-5)
    assert (allocate(0.1, 0.0, 10, accounting="optimal") == allocate(0.1, 0.0, 10)).all()


def test_an_unknown_accounting_is_refused():
    with pytest.raises(InputError, match="accounting = exact: use bound or optimal"):
        allocate(1.0, 0.1, 2, accounting="exact")


@pytest.fixture(scope="module")
def pld():
    """Privacy loss distributions of the package dp-accounting (extra `oracle`)."""
    return pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution",
        reason="dp-accounting is not installed: pip install mpmtl[oracle]",
        exc_type=ImportError,
    )


def composed_pld(pld, eps_t):
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    whole = None
    for eps in eps_t:
        part = pld.from_privacy_parameters(
            DifferentialPrivacyParameters(eps, 0.0), value_discretization_interval=1e-5
        )
        whole = part if whole is None else whole.compose(part)
    return whole


@pytest.mark.parametrize("rate", [{"alpha": 0.0}, {"alpha": 0.4}, {"Q": 0.8}])
def test_pure_composition_agrees_with_privacy_loss_distributions(pld, rate):
    """Their delta is rounded up, by less than 1 % here; CB leaves room, exact composition none."""
    delta, epsilon = 1e-4, 1.0
    plain = composed_pld(pld, allocate(epsilon, delta, 15, **rate))
    assert plain.get_delta_for_epsilon(epsilon) <= delta
    eps_t = allocate(epsilon, delta, 15, **rate, accounting="optimal")
    known = composed_pld(pld, eps_t).get_delta_for_epsilon(epsilon)
    assert optimal_delta(eps_t, epsilon) == pytest.approx(known, rel=0.01)
    assert known == pytest.approx(delta, rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 5.4e-4), (1.0, 1e-5), (10.0, 1e-6)])
def test_gaussian_mu_agrees_with_privacy_loss_distributions(pld, epsilon, delta):
    """One Gaussian release of mu, and 9 adaptive ones of mu/3."""
    mu = gaussian_mu(epsilon, delta)
    one = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    third = pld.from_gaussian_mechanism(3 / mu, value_discretization_interval=1e-4)
    for known in (one, third.self_compose(9)):
        assert known.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 5.4e-4), (1.0, 1e-5), (10.0, 1e-6)])
def test_gaussian_mu_agrees_with_the_analytic_mechanism_of_balle_and_wang(epsilon, delta):
    """Their Algorithm 1 in its own variables: sigma = alpha/sqrt(2 eps), found by root search."""

    def excess(v):
        first = stats.norm.cdf(np.sign(v) * np.sqrt(epsilon * abs(v)))
        second = stats.norm.cdf(-np.sqrt(epsilon * (abs(v) + 2)))
        return first - np.exp(epsilon) * second - delta

    v = brentq(excess, -200, 200, xtol=1e-14)
    alpha = np.sqrt(1 + abs(v) / 2) - np.sign(v) * np.sqrt(abs(v) / 2)
    assert gaussian_mu(epsilon, delta) == pytest.approx(np.sqrt(2 * epsilon) / alpha, rel=1e-9)
