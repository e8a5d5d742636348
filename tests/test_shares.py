"""Gaussian noise in shares: its distance from a rounded Gaussian, and what a sum of it proves."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.interpolate import BSpline
from scipy.stats import chi2, norm

from mpmtl.errors import InputError
from mpmtl.privacy.budget import Cost
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.exact import STEPS
from mpmtl.privacy.mechanisms import Gaussian, Laplace
from mpmtl.privacy.releases import (
    Budget,
    Gate,
    covariance,
    diagonal,
    relation,
    signed_parts,
    vector_sum,
)
from mpmtl.privacy.shares import (
    Shares,
    added_delta,
    log_distance,
    noisy_share,
    of_shares,
    only,
    released,
)
from mpmtl.privacy.statements import RELATION, UNIT

REACH = 60  # integers on both sides of 0
WHOLE = np.arange(-REACH, REACH + 1)


def sum_of_shares(sigma, h):
    """Distribution of the sum of h variables floor(N(0, sigma^2)) on WHOLE."""
    one = np.diff(norm.cdf(np.append(WHOLE, REACH + 1), scale=sigma))
    total = one
    for _ in range(h - 1):
        total = np.convolve(total, one)
    middle = (len(total) - 1) // 2
    return total[middle - REACH : middle + REACH + 1]


def rounded_at_random(sigma, h):
    """Distribution of G ~ N(0, h sigma^2), rounded to n with probability B_h(G - n)."""
    spline = BSpline.basis_element(np.arange(h + 1.0), extrapolate=False)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    inside = (nodes + 1) / 2  # each unit interval by itself: the spline is a polynomial there
    out = np.zeros(len(WHOLE))
    for k in range(h):
        y = WHOLE[:, None] + k + inside
        out += (norm.pdf(y, scale=np.sqrt(h) * sigma) * spline(k + inside)) @ (weights / 2)
    return out


@pytest.mark.parametrize("h", [1, 2, 3, 5])
@pytest.mark.parametrize("sigma", [0.12, 0.2, 0.35, 0.6, 1.0, 1.5])
def test_shares_are_as_near_to_a_rounded_gaussian_as_the_bound_says(sigma, h):
    shares, rounded = sum_of_shares(sigma, h), rounded_at_random(sigma, h)
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    assert rounded.sum() == pytest.approx(1, abs=1e-12)  # splines at whole shifts add up to one
    distance = np.abs(shares - rounded).sum() / 2
    assert distance <= np.exp(log_distance(sigma, h)) + 1e-13
    if h == 1:
        assert distance < 1e-13
    elif sigma <= 0.2:
        assert distance > 1e-3  # aliasing can be seen
    elif sigma >= 1.5:
        assert distance < 1e-9


def test_the_distance_falls_as_poisson_summation_has_it():
    """For two shares the largest alias is exp(-pi^2 sigma^2)."""
    sigma = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    seen = [np.abs(sum_of_shares(s, 2) - rounded_at_random(s, 2)).sum() / 2 for s in sigma]
    slope = np.polyfit(sigma**2, np.log(seen), 1)[0]
    assert slope == pytest.approx(-(np.pi**2), rel=0.1)
    bound = [log_distance(s, 2) for s in sigma]
    assert np.polyfit(sigma**2, bound, 1)[0] == pytest.approx(-(np.pi**2), rel=0.1)


@pytest.mark.parametrize("h", [2, 4])
@pytest.mark.parametrize("sigma", [0.5, 0.8, 1.5])
@pytest.mark.parametrize("moved", [1, 3])
def test_a_sum_of_shares_is_gaussian_dp_but_for_what_is_added(sigma, h, moved):
    """The exact privacy profile against mu-GDP, mu = moved/(sqrt(h) sigma), + (1 + e^eps) tau."""
    p = sum_of_shares(sigma, h)
    shifted = np.concatenate([np.zeros(moved), p[:-moved]])
    cost = Cost(mu=moved / (np.sqrt(h) * sigma))
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        limit = cost.delta(epsilon) + added_delta(epsilon, h, sigma, numbers=1)
        for one, other in ((p, shifted), (shifted, p)):
            assert np.maximum(one - np.exp(epsilon) * other, 0).sum() <= limit + 1e-13
    assert added_delta(0.0, h, sigma, numbers=1) < 1 or sigma < 1


def test_on_the_grid_nothing_is_added_that_a_number_can_hold():
    for h in (2, 5, 139):
        assert log_distance(STEPS, h) < -1e25
        assert added_delta(1e6, h) == 0
    assert added_delta(1.0, 1) == 0
    assert added_delta(1e30, 2) == 1
    values = [log_distance(sigma, 3) for sigma in (0.3, 1, 3, 10, 1e3)]
    assert values == sorted(values, reverse=True)


def gate_of(release, mechanism=None, mu=0.7):
    mechanism = mechanism or Gaussian(noise="secure")
    return Gate(release, mechanism, [], np.array([mu]))


def contributions(release, m=6):
    rng = np.random.default_rng(4)
    d = release.shape[-1] // (2 if release.kind == "parts" else 1)
    shape = (m, *release.shape) if release.kind == "sum" else (m, d)
    return rng.normal(size=shape)


RELEASES = [covariance(4), diagonal(5), signed_parts(3), vector_sum(4), vector_sum(3, 2)]


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: f"{r.kind}{r.shape}")
@pytest.mark.parametrize("batch", [False, True])
def test_shares_and_lost_tasks_make_the_whole_sum(release, batch):
    """Without noise: the same whole numbers as all contributions in one place, on the same grid;
    near to the real sum, and within the sensitivity that the noise is for."""
    gate, V, K, h = gate_of(release), contributions(release), 1.3, 3
    V = V[None] if batch else V
    K = np.array([K]) if batch else K

    def silent(n):
        return np.zeros(n, dtype=np.int64)

    shares = [noisy_share(gate, 1, V, task, K, h, silent) for task in (0, 2, 5)]
    got = released(gate, 1, sum(shares), V, [0, 2, 5], K, h)
    whole, step = gate.in_steps(1, V, K, h)
    assert got.shape == whole.shape == (*((1,) if batch else ()), *release.shape)
    steps = np.reshape(step, (*step.shape, *(1,) * len(release.shape)))
    np.testing.assert_array_equal(got, whole * steps)
    real = release.total(bounded(V, K, release.axes))
    np.testing.assert_allclose(got, real, atol=1e-4)
    one, other = (gate.in_steps(1, only(V, [k], release.axes), K, h)[0] for k in (0, 1))
    distance = np.sqrt(((one - other).astype(float) ** 2).sum())
    assert distance <= 0.7 * np.sqrt(h) * STEPS


def test_the_noise_of_all_shares_has_the_variance_stated():
    """m owners of whom h are expected: m/h times s^2 in every coordinate, with s^2 = (S/mu)^2, and
    half of it beside the diagonal of a symmetric matrix. Error probability 1e-6 each."""
    m, h, d, mu, K = 5, 4, 40, 0.7, 1.0
    whole, beside = (vector_sum(d * d), d * d, 1.0), (covariance(d), d * (d - 1) // 2, 0.5)
    for release, n, part in (whole, beside):
        gate = gate_of(release, mu=mu)
        V = np.zeros((m, d * d if release.kind == "sum" else d))
        total = sum(noisy_share(gate, 1, V, task, K, h) for task in range(m))
        got = released(gate, 1, total, V, list(range(m)), K, h)
        if release.symmetric:
            np.testing.assert_array_equal(got, got.T)
            got = got[np.triu_indices(d, 1)]
        variance = part * m / h * (release.l2 / mu) ** 2
        low, high = chi2.ppf([5e-7, 1 - 5e-7], n)
        assert low < (got**2).sum() / variance < high


def test_what_is_no_sum_is_refused():
    V = np.zeros((3, 4))
    for release, mechanism in (
        (relation(3), None),
        (vector_sum(4), Laplace(noise="secure")),
    ):
        with pytest.raises(InputError, match="must be a sum over owners with Gaussian noise"):
            noisy_share(gate_of(release, mechanism), 1, V, 0, 1.0, 2)


@pytest.mark.parametrize(
    "words", [dict(honest=0), dict(honest=2, colluding=-1), dict(honest=1), dict(honest=2.5)]
)
def test_shares_that_cannot_be(words):
    with pytest.raises(InputError):
        Shares(**words)
    assert Shares(1, 1).needed == Shares(2).needed == 2


def test_the_statement_says_who_is_assumed():
    budget = Budget(Gaussian(noise="secure"), 1.0, 1e-5)
    gate = budget.planned(vector_sum(4), budget.of_rounds(SimpleNamespace(n_rounds=2)))
    block = of_shares(budget.statement(gate), Shares(4, 1))
    assert (block.unit, block.relation) == (UNIT, RELATION)
    assert (block.proved.epsilon, block.proved.delta) == (1.0, 1e-5)
    assert "shares of 4 honest owners" in block.proved.basis
    assert block.caveats == ("secure-sum",)
    assert "curator" in block.adversary
    huge = Budget(Gaussian(noise="secure"), 1e30, 1e-5)
    gate = huge.planned(vector_sum(4), [1.0])
    with pytest.raises(InputError, match="too large for noise in shares"):
        of_shares(huge.statement(gate), Shares(4))
