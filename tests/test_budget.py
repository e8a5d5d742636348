"""Composition, allocation and Gaussian accounting against independent values and identities."""

import itertools
import time
from math import comb, fsum

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import brentq

from mpmtl import (
    InputError,
    allocate,
    composition_bound,
    gaussian_mu,
    optimal_delta,
    wishart_delta,
)
from mpmtl.privacy.budget import Cost
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


def all_losses(eps_t):
    """Every outcome's loss and chance, by doubling."""
    losses, chances = np.zeros(1), np.ones(1)
    for eps in eps_t:
        losses = np.r_[losses + eps, losses - eps]
        chances = np.r_[chances / (1 + np.exp(-eps)), chances / (1 + np.exp(eps))]
    return losses, chances


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["uniform", "power", "geometric", "one large", "tiny"])
def test_the_transform_is_never_below_enumeration_and_close_to_it(seed, kind):
    rng = np.random.default_rng(seed)
    t = np.arange(1, 19.0)
    eps_t = {
        "uniform": rng.uniform(0.01, 0.9, 18),
        "power": rng.uniform(0.1, 1) * t ** rng.uniform(-2, 2),
        "geometric": rng.uniform(0.1, 2) * rng.uniform(0.7, 1.5) ** -t,
        "one large": np.r_[3.0, rng.uniform(0.01, 0.1, 17)],
        "tiny": rng.uniform(1e-7, 1e-5, 18),
    }[kind]
    losses, chances = all_losses(eps_t)
    for epsilon in np.array([0, 0.05, 0.3, 0.6, 0.9, 0.999]) * eps_t.sum():
        exact = fsum(chances * -np.expm1(np.minimum(epsilon - losses, 0)))
        assert exact * (1 - 1e-12) <= optimal_delta(eps_t, epsilon) <= exact * 1.003


def test_equal_budgets_lose_nothing_in_the_tail():
    n, eps, epsilon = 3000, 0.02, 11.0
    with mpmath.workdps(40):
        up = 1 / (1 + mpmath.exp(-mpmath.mpf(eps)))
        known = mpmath.fsum(
            mpmath.binomial(n, j)
            * up**j
            * (1 - up) ** (n - j)
            * -mpmath.expm1(epsilon - (2 * j - n) * mpmath.mpf(eps))
            for j in range(n + 1)
            if (2 * j - n) * eps > epsilon
        )
        ratio = optimal_delta([eps] * n, epsilon) / known
        assert known < 1e-20
        assert 1 <= ratio < 1 + 1e-9


@pytest.mark.parametrize("rate", [{}, {"alpha": 0.4}, {"alpha": -1.0}, {"Q": 0.99}, {"Q": 1.02}])
def test_optimal_allocation_over_ten_thousand_rounds_takes_two_seconds_at_most(rate):
    delta = 1 / (320 * np.log(320))
    begin = time.process_time()
    eps_t = allocate(0.1, delta, 10_000, **rate, accounting="optimal")
    assert time.process_time() - begin < 2
    assert delta * (1 - 1e-6) <= optimal_delta(eps_t, 0.1) <= delta
    assert eps_t.max() > 1.4 * allocate(0.1, delta, 10_000, **rate).max()


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


@pytest.mark.parametrize("pure", [(0.2,), (0.5, 0.1), tuple(np.linspace(0.02, 0.1, 20))])
def test_cost_of_both_kinds_agrees_with_privacy_loss_distributions(pld, pure):
    known = composed_pld(pld, pure).compose(
        pld.from_gaussian_mechanism(1 / 0.3, value_discretization_interval=1e-5)
    )
    for epsilon in (0.0, 0.3, 1.0, 1.5):
        exact = known.get_delta_for_epsilon(epsilon)
        assert Cost(0.3, pure).delta(epsilon) == pytest.approx(exact, rel=0.01)


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


EVEN = tuple(np.linspace(0.01, 0.1, 300))
mus = st.one_of(st.just(0.0), st.floats(-4, 2).map(lambda x: 10.0**x))
budgets = st.lists(st.floats(1e-4, 2), max_size=12).map(tuple)


@given(epsilon=st.floats(-6, 40), delta=st.floats(-12, -0.1), n_rounds=st.integers(1, 200))
def test_gaussian_budgets_cost_no_more_than_what_they_were_split_from(epsilon, delta, n_rounds):
    epsilon, delta = 10.0**epsilon, 10.0**delta
    assert Cost(gaussian_mu(epsilon, delta)).delta(epsilon) <= delta
    mu_t = Gaussian().budgets(epsilon, delta, n_rounds, alpha=0.4)
    assert Cost(np.sqrt((mu_t**2).sum())).delta(epsilon) <= delta


@given(
    mu=st.floats(-6, 3).map(lambda x: 10.0**x),
    spread=st.floats(-9, 9),
)
def test_cost_of_a_gaussian_release_is_its_curve_and_never_below(mu, spread):
    epsilon = abs(mu * mu / 2 + mu * spread)
    got = Cost(mu).delta(epsilon)
    with mpmath.workdps(60):
        m, eps = mpmath.mpf(mu), mpmath.mpf(epsilon)
        known = mpmath.ncdf(m / 2 - eps / m) - mpmath.exp(eps) * mpmath.ncdf(-m / 2 - eps / m)
        assert known <= got <= known * (1 + mpmath.mpf(10) ** -8)


@given(eps_t=budgets.filter(len), share=st.floats(0, 1.1))
def test_cost_of_pure_releases_is_their_optimal_delta(eps_t, share):
    epsilon = share * sum(eps_t)
    assert Cost(pure=eps_t).delta(epsilon) == optimal_delta(eps_t, epsilon)
    assert Cost(pure=eps_t).delta(sum(eps_t) * (1 + 1e-15)) == 0


@given(a=st.tuples(mus, budgets), b=st.tuples(mus, budgets), c=st.tuples(mus, budgets))
def test_costs_add_up_in_any_order(a, b, c):
    a, b, c = Cost(*a), Cost(*b), Cost(*c)
    assert a + Cost() == a
    assert a + b == b + a
    left, right = (a + b) + c, a + (b + c)
    assert left.pure == right.pure
    assert left.mu == pytest.approx(right.mu, rel=1e-14)
    assert left.mu**2 == pytest.approx(a.mu**2 + b.mu**2 + c.mu**2)
    assert left.rho == pytest.approx(a.rho + b.rho + c.rho)


def test_nothing_costs_nothing():
    assert Cost().delta(0.0) == Cost().epsilon(0.0) == Cost().rho == 0.0
    assert Cost(pure=(0.0, 0.0)) == Cost()


@pytest.mark.parametrize("mu", [0.0, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("pure", [(), (0.3,), (0.2, 0.2, 0.7), EVEN])
def test_delta_falls_in_epsilon_and_grows_with_each_release(mu, pure):
    epsilons = np.linspace(0, sum(pure) + 1, 12)
    deltas = np.array([Cost(mu, pure).delta(epsilon) for epsilon in epsilons])
    assert (np.diff(deltas) <= 0).all()
    for more in (Cost(0.3), Cost(pure=(0.1,))):
        cost = more + Cost(mu, pure)
        assert all(cost.delta(e) >= d * (1 - 1e-3) for e, d in zip(epsilons, deltas, strict=True))


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("pure", [(0.2,), (0.1, 0.3, 0.05)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_cost_of_both_kinds_is_the_integral_over_the_two_dominating_pairs(mu, pure, epsilon):
    """(p(x) P(r) - e^eps q(x) Q(r))_+ over N(mu, 1) against N(0, 1), responses against flipped."""
    total = 0.0
    for signs in itertools.product((1, -1), repeat=len(pure)):
        chance = np.prod(1 / (1 + np.exp(-np.array(signs) * pure)))
        flipped = np.prod(1 / (1 + np.exp(np.array(signs) * pure)))

        def lost(x, chance=chance, flipped=flipped):
            p, q = stats.norm.pdf(x, mu), stats.norm.pdf(x)
            return max(chance * p - np.exp(epsilon) * flipped * q, 0.0)

        begin = (epsilon - np.dot(signs, pure)) / mu + mu / 2  # the first x at which it is not 0
        middle = np.clip(begin, -8, 8 + mu)
        total += sum(
            quad(lost, *ends, epsabs=1e-13, epsrel=1e-11)[0]
            for ends in ((-12, middle), (middle, 12 + mu), (12 + mu, 24 + mu))
        )
    assert Cost(mu, pure).delta(epsilon) == pytest.approx(total, rel=1e-7, abs=1e-12)


def test_many_unequal_pure_releases_beside_a_gaussian_one_agree_with_their_enumeration():
    pure = np.random.default_rng(0).uniform(0.01, 0.3, 18)
    losses, chances = all_losses(pure)
    for mu, epsilon in itertools.product((1e-3, 0.1, 1.0, 10.0), (0.0, 0.5, 1.5)):
        room = epsilon - losses
        first, second = stats.norm.cdf(mu / 2 - room / mu), stats.norm.logcdf(-mu / 2 - room / mu)
        known = fsum(chances * (first - np.exp(room + second)))
        got = Cost(mu, pure).delta(epsilon)
        assert known * (1 - 1e-9) <= got <= known * 1.001


@pytest.mark.parametrize("pure", [(), (0.1,), (2.0, 0.3, 0.3, 1e-3), (0.05,) * 50, EVEN])
@pytest.mark.parametrize("mu", [0.0, 1e-4, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.7])
def test_epsilon_inverts_delta_and_never_lies_below(mu, pure, delta):
    cost = Cost(mu, pure)
    epsilon = cost.epsilon(delta)
    assert cost.delta(epsilon) <= delta
    if epsilon > 0:
        assert cost.delta(epsilon * (1 - 1e-6)) >= delta


def test_without_delta_only_pure_releases_have_an_epsilon():
    assert Cost(pure=(0.1, 0.2)).epsilon(0.0) == pytest.approx(0.3, rel=1e-15)
    assert Cost(1e-6, (0.1, 0.2)).epsilon(0.0) == np.inf
    assert Cost(1e-6).delta(1e40) > 0
    assert Cost(1e20, EVEN).epsilon(1.0) == 0


@pytest.mark.parametrize("mu", [0.0, 1e-6, 1e-3, 1.0, 1e10, 1e20])
@pytest.mark.parametrize(
    "pure",
    [(), (0.1,), (1e-6,) * 3, EVEN, tuple(1e-6 * np.array(EVEN)), (1e39,) * 3, (0.01,) * 10_000],
)
def test_extremes_pass_without_a_warning(mu, pure):
    cost = Cost(mu, pure)
    deltas = [cost.delta(epsilon) for epsilon in (0.0, 1e-6, 1.0, 1e3, 1e10, 1e40)]
    assert all(0 <= delta <= 1 for delta in deltas)
    assert (np.diff(deltas) <= 0).all()
    assert cost.delta(cost.epsilon(1e-4)) <= 1e-4


@pytest.mark.parametrize("eps", [1e-3, 0.1, 1.0, 5.0, 30.0])
def test_rho_bounds_every_renyi_divergence_and_the_first_is_reached(eps):
    orders = 1 + np.logspace(-6, 4, 200)

    def log_cosh(x):
        return np.logaddexp(x, -x)

    renyi = (log_cosh(eps * (orders - 0.5)) - log_cosh(eps / 2)) / (orders - 1)
    rho = Cost(pure=(eps,)).rho
    assert (renyi <= orders * rho * (1 + 1e-9) + 1e-9).all()
    assert rho <= eps**2 / 2
    assert renyi[40] == pytest.approx(orders[40] * rho, rel=1e-2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Cost(-1.0),
        lambda: Cost(float("nan")),
        lambda: Cost(pure=(-0.1,)),
        lambda: Cost(pure=(float("inf"),)),
        lambda: Cost(1.0).delta(-0.1),
        lambda: Cost(1.0).delta(float("nan")),
        lambda: Cost(1.0).epsilon(-0.1),
        lambda: Cost(1.0).epsilon(1.1),
    ],
)
def test_impossible_costs_are_refused(call):
    with pytest.raises(InputError):
        call()
