"""noise=secure: exact samples, sensitivities in whole numbers, and no grid that tells inputs apart.

Distributions are tested on seeded bytes, so a passing test always passes; each would fail with the
stated probability at another seed.
"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from test_mechanisms import ALL

from mpmtl import (
    Gaussian,
    InputError,
    Laplace,
    MultiTaskRegressor,
    audit,
)
from mpmtl.auditing.bounds import delta_bound
from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.methods import FeatureLearning, Proximal, ProximalCandidate
from mpmtl.privacy import exact
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.exact import STEPS, Uniform, exponential_coins, one_in
from mpmtl.privacy.grid import COARSE, squared_norm_limit, whole_numbers
from mpmtl.privacy.releases import (
    Budget,
    FitLog,
    covariance,
    diagonal,
)
from mpmtl.privacy.statements import NOISE_CAVEATS

LEVEL = 1e-6  # chance that a right sampler fails a test at another seed


def seeded(seed):
    return np.random.default_rng(seed).bytes


# samples


@pytest.mark.parametrize(
    ("sample", "known"),
    [(exact.rounded_normal, stats.norm), (exact.rounded_laplace, stats.laplace)],
)
def test_samples_have_their_distribution_to_the_last_bit(sample, known):
    """Against the distribution function; the last ten bits, which it cannot see, are uniform."""
    x = sample(200_000, seeded(1))
    assert stats.kstest((x + 0.5) / STEPS, known.cdf).pvalue > LEVEL
    for bit in (0, 10, 25):
        counts = np.bincount((x >> bit) & 1023, minlength=1024)
        assert stats.chisquare(counts).pvalue > LEVEL
    below = (x < 0).sum()  # the floor of a real number: -1 as often as 0 would be
    assert stats.binomtest(int(below), len(x)).pvalue > LEVEL


def test_samples_come_from_the_operating_system_where_nothing_else_is_said():
    for sample in (exact.rounded_normal, exact.rounded_laplace):
        first, second = sample(50), sample(50)
        assert len(np.unique([*first, *second])) == 100


@pytest.mark.parametrize("j", [1, 2, 3, 7, 1000])
def test_a_coin_of_one_in_j(j):
    n = 100_000
    heads = int(one_in(j, n, seeded(2)).sum())
    assert stats.binomtest(heads, n, 1 / j).pvalue > LEVEL


def test_words_beyond_the_last_multiple_are_drawn_again():
    """2^64 = 1 mod 3: the largest word would make 0 too likely."""
    answers = [[2**64 - 1, 2**64 - 2, 3], [4]]

    def random(k):
        part = answers.pop(0)
        assert k == 8 * len(part)
        return np.array(part, dtype=np.uint64).tobytes()

    np.testing.assert_array_equal(one_in(3, 3, random), [False, False, True])
    assert not answers


@pytest.mark.parametrize("g", [0.0, 0.3, 1.0])
def test_coins_of_exp_minus_g(g):
    rng, n = np.random.default_rng(3), 100_000
    heads = exponential_coins(n, lambda j, which: rng.random(len(which)) < g / j)
    assert stats.binomtest(int(heads.sum()), n, math.exp(-g)).pvalue > LEVEL


def test_equal_digits_are_followed_by_more():
    """Comparisons that 64 bits leave open go on with the next ones, and these are remembered."""
    answers = [[5, 5, 5], [5, 5, 4], [7, 9, 1], [8, 8], [5, 5], [6, 10]]

    def random(k):
        part = answers.pop(0)
        assert k == 8 * len(part)
        return np.array(part, dtype=np.uint64).tobytes()

    x = Uniform(3, random)
    np.testing.assert_array_equal(x.coins(np.arange(3)), [False, True, True])
    np.testing.assert_array_equal(x.coins(np.arange(2)), [True, False])
    assert not answers


# releases

EXACT = [(replace(m, noise="secure"), r) for m, r in ALL if m.exact]
BUDGET = {"gaussian": (1.0, 1e-3), "laplace": (1.0, 0.0)}


def opened(mech, release, T=1, size=(), epsilon=1.0):
    """A gate whose rounds share epsilon, with the noise of its mechanism's kind."""
    delta = BUDGET[mech.name][1]
    gate = Budget(mech, epsilon, delta).open(release, T, np.random.default_rng(0), size)
    return gate.with_budgets(mech.budgets(epsilon, delta, T))


@pytest.mark.parametrize(("mech", "release"), EXACT)
@given(data=st.data())
def test_sensitivity_is_exact_in_whole_numbers(mech, release, data):
    """Whatever the contributions, the bound and the budget are: S^2 n^2p steps^2 <= (b 2^40)^2."""
    budget = data.draw(st.floats(1e-9, 50.0))
    K = data.draw(st.floats(1e-6, 1e6))
    length = data.draw(st.floats(0.1, 1e3))
    shape = release.contribution
    V = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal((3, *shape))
    V[0] = np.sign(V[0])  # all entries alike: no room for rounding
    gate = Budget(mech, 1.0, 1e-3).planned(release, [budget])
    step = gate.scale(1, K) / STEPS
    unit = np.sqrt(step) if release.power == 2 else COARSE * step
    limit = squared_norm_limit(release, mech.norm, budget)
    N = whole_numbers(bounded(length * K * V, K, release.axes), unit, np.array(limit), release.axes)
    S2 = round(getattr(release, mech.norm) ** 2)
    assert abs(S2 - getattr(release, mech.norm) ** 2) < 1e-9
    for row in N.reshape(3, -1):
        n2 = sum(int(v) ** 2 for v in row)
        steps = S2 * (n2**2 if release.power == 2 else n2 * COARSE**2)
        assert steps <= (Fraction(budget) * STEPS) ** 2
    over = tuple(range(-release.axes, 0))
    if limit > 100 and length > 10:  # and hardly anything is lost
        assert ((N**2.0).sum(axis=over) > 0.5 * limit).all()


@pytest.mark.parametrize(("mech", "release"), EXACT)
def test_a_release_is_a_whole_number_of_half_steps_near_the_real_one(mech, release):
    gate = opened(mech, release, T=2)
    rng = np.random.default_rng(6)
    shape = release.contribution
    V, K = rng.standard_normal((4, *shape)), 0.7
    if release.kind == "relation":
        V = rng.standard_normal((release.shape[0], 3))
    released = gate(2, V, K)
    half = gate.scale(2, K) / STEPS / 2
    np.testing.assert_array_equal(released, np.rint(released / half) * half)
    real = release.total(bounded(V, K, release.axes)) + gate.scale(2, K) * gate.draws[1]
    np.testing.assert_allclose(released, real, atol=1e-4 * gate.scale(2, K))


@pytest.mark.parametrize(("mech", "release"), EXACT)
def test_fits_side_by_side_are_fits_alone(mech, release):
    gate, rng = opened(mech, release, T=2), np.random.default_rng(7)
    shape = release.contribution
    m = release.shape[0] if release.kind == "relation" else 4
    V, Ks = rng.standard_normal((3, m, *shape)), np.array([0.5, 1.0, 4.0])
    budgets = np.array([[0.5, 1.0], [1.0, 2.0], [3.0, 0.1]])
    log = FitLog()
    together = replace(gate, log=log).with_budgets(budgets)(2, V, Ks)
    for b in range(3):
        alone = gate.with_budgets(budgets[b])(2, V[b], Ks[b])
        np.testing.assert_array_equal(together[b], alone)
    np.testing.assert_array_equal(log.released[0], together[0])


def test_noise_is_no_seeds(rng):
    """The generator is left as it was, and the same one gives other noise."""
    before = rng.bit_generator.state
    draws = [
        Budget(mech, 1.0, 1e-3).open(diagonal(3), 1, rng).draws[0]
        for mech in 2 * [Gaussian(noise="secure"), Laplace(noise="secure")]
    ]
    assert rng.bit_generator.state == before
    assert len(np.unique(draws)) == 12


@pytest.mark.parametrize(
    ("mech", "release", "epsilon"),
    [
        (Laplace(), diagonal(5), 1.0),
        (Laplace(), diagonal(5), 3.0),
        (Gaussian(), covariance(5), 1.0),
    ],
)
def test_the_grid_of_floating_point_refutes_seeded_noise_and_not_secure_noise(
    mech, release, epsilon
):
    """Zero against a model with equal entries, other models zero: an entry that is no multiple of
    half the gap of floating-point numbers at the entry of ww' cannot come from w."""
    n, w = 40_000, np.full(5, 5**-0.5)
    refuted = {}
    for noise in ("seeded", "secure"):
        gate = opened(replace(mech, noise=noise), release, size=(n,), epsilon=epsilon)
        gap = np.spacing(release.total(w[None])) / 2
        hits = []
        for model in (0 * w, w):
            off = gate(1, model[None], 1.0) / gap % 1 != 0
            hits.append(int(off.reshape(n, -1).any(axis=1).sum()))
        refuted[noise] = delta_bound(*hits, n, epsilon, 1 - LEVEL)
    stated = BUDGET[mech.name][1]
    assert refuted["seeded"] > max(0.05, stated)
    assert refuted["secure"] <= stated


def test_what_does_not_fit_64_bits_is_refused_in_one_line():
    mech = Gaussian(noise="secure")
    gate = opened(mech, covariance(2)).with_budgets([1e9])
    with pytest.raises(InputError, match="do not fit integers of 64 bits: use a smaller epsilon"):
        gate(1, np.ones((3, 2)), 1.0)
    with pytest.raises(InputError, match="a round without noise"):
        gate.with_budgets([np.inf])(1, np.ones((3, 2)), 1.0)


@pytest.mark.parametrize("mech", [m for m in dict.fromkeys(type(m) for m, _ in ALL) if not m.exact])
def test_what_cannot_be_sampled_exactly_is_refused_in_one_line(mech):
    release = next(r for m, r in ALL if type(m) is mech)
    with pytest.raises(InputError, match="cannot be sampled exactly, so it has no noise=secure"):
        Budget(mech(noise="secure"), 1.0, 1e-3).planned(release, [1.0])
    with pytest.raises(InputError, match="noise = x: use seeded or secure"):
        mech(noise="x")


# statements


def statement(method, candidate, mech):
    data = MultiTaskData.checked([np.eye(3)] * 4, [np.ones(3)] * 4)
    return method.statement(candidate, Budget(mech, 1.0, 1e-4), datafit_for(data, None))


ROUND = ProximalCandidate(0.1, 1, False, False, alpha=0.0, K=1.0)


@pytest.mark.parametrize(
    ("method", "candidate"),
    [
        (FeatureLearning("fl_local", "local"), None),
        (FeatureLearning("fl", "hyper"), None),
        (Proximal("lr", "trace", private=True, eta="public"), ROUND),
        (Proximal("gs", "l21", private=True, eta="public"), ROUND),
    ],
)
def test_a_public_method_with_secure_noise_has_no_caveat(method, candidate):
    assert statement(method, candidate, Gaussian()).caveats == NOISE_CAVEATS
    block = statement(method, candidate, Gaussian(noise="secure"))
    assert block.caveats == ()
    assert "sampled exactly on an integer grid" in block.proved.basis
    assert block.cost == statement(method, candidate, Gaussian()).cost


def test_caveats_of_other_noise_and_other_choices_stay():
    mech = Gaussian(noise="secure")
    assert statement(FeatureLearning("fl_shared", "shared"), None, mech).caveats == (
        "tuning-not-charged",
    )
    sample = Proximal(
        "lr", "trace", private=True, eta="public", instance_protection={"epsilon": 1.0}
    )
    assert statement(sample, ROUND, mech).caveats == NOISE_CAVEATS  # Algorithm 5's own is seeded
    bought = statement(FeatureLearning("fl_local", "local"), None, mech).beside(0.1, "the schema")
    assert bought.caveats == NOISE_CAVEATS


@pytest.mark.filterwarnings("ignore::mpmtl.PrivacyCaveat")
@pytest.mark.parametrize("method", ["fl", "fl_local", "lr", "gs", "mr_mtl"])
def test_python_learners_take_no_seed_unless_one_is_given(method, rng):
    X = [rng.standard_normal((6, 3)) for _ in range(4)]
    y = [x[:, 0] for x in X]

    def fitted(**settings):
        settings = {"privacy": "gaussian", "tuning": "fixed"} | settings
        return MultiTaskRegressor(method, **settings).fit(X, y)

    fits = [fitted() for _ in range(2)]
    assert all(not set(NOISE_CAVEATS) & set(fit.privacy_.caveats) for fit in fits)
    assert (fits[0].coef_ != fits[1].coef_).any()
    seeded = [fitted(privacy__noise="seeded", random_state=1) for _ in range(2)]
    assert set(NOISE_CAVEATS) <= set(seeded[0].privacy_.caveats)
    np.testing.assert_array_equal(*(fit.coef_ for fit in seeded))
    for noise in ({}, {"privacy__noise": "secure"}):
        with pytest.raises(InputError, match="comes from the operating system"):
            fitted(random_state=1, **noise)
    if method in ("lr", "gs"):
        wishart = fitted(privacy="wishart")
        assert set(NOISE_CAVEATS) <= set(wishart.privacy_.caveats)


def test_an_audit_looks_at_the_path_of_the_fits(monkeypatch):
    """With a tenth of the noise of `rounded_normal` the same audit refutes."""
    settings = {"epsilon": 1.0, "d": 2, "m": 7, "samples": 3000, "attack": "likelihood"}
    settings |= {"confidence": 1 - LEVEL}
    fair = audit(Gaussian(noise="secure"), **settings)
    assert not fair.verdicts["proved"].refuted
    assert fair.statement.caveats == ("tuning-not-charged",)
    quiet = exact.rounded_normal
    monkeypatch.setattr("mpmtl.privacy.mechanisms.rounded_normal", lambda n: quiet(n) // 10)
    assert audit(Gaussian(noise="secure"), **settings).verdicts["proved"].refuted
