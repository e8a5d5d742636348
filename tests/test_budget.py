"""Composition, allocation and Gaussian accounting against independent values and identities."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmtl import InputError, allocate, composition_bound, gaussian_mu, wishart_delta
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
