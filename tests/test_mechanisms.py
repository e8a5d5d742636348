"""Noise: its moments, its distribution, what it does to M, and what each mechanism states."""

import math

import numpy as np
import pytest
from conftest import beside_others
from scipy import stats

from mpmtl import Gaussian, InputError, Laplace, NoNoise, TwoSidedWishart, Wishart
from mpmtl.auditing.subjects import neighbours
from mpmtl.penalties import GroupL1, TraceNorm
from mpmtl.privacy.mechanisms import (
    KINDS,
    MECHANISMS,
    Mechanism,
    OutputPerturbation,
    wishart_diagonal_delta,
)
from mpmtl.privacy.releases import (
    Budget,
    covariance,
    diagonal,
    relation,
    sample_models,
    signed_parts,
    sizes,
    unbounded_output,
    vector_sum,
)

NOISY = [mechanism() for mechanism in MECHANISMS if mechanism is not NoNoise]
(GAUSSIAN,) = [mech for mech in NOISY if type(mech) is Gaussian]


def fitting(*releases):
    """Every mechanism with the releases that it can perturb."""
    return [(mech, r) for mech in NOISY for r in releases if r.kind in mech.kinds]


ALL = fitting(
    *(covariance(4), diagonal(4), relation(4), vector_sum(4), vector_sum(4, 2)),
    *(signed_parts(4), sizes(4), sample_models(2, 4), unbounded_output(4)),
)
SHIFTED = fitting(covariance(30), diagonal(30), relation(30))


def test_every_kind_has_noise_and_no_name_is_used_twice():
    assert {release.kind for _, release in ALL} == set(KINDS) == set(NoNoise.kinds)
    assert len({mech.name for mech in NOISY}) == len(NOISY)


def known_moments(mech, release):
    """Mean and variance of the standard noise's diagonal (or only) and off-diagonal entries."""
    d = release.shape[0]
    nu = d + 1  # W_d(nu, I): mean nu I; var nu off the diagonal, 2 nu on it
    length = d * release.shape[-1] if release.kind == "sum" and len(release.shape) > 1 else 4
    return {
        "wishart": (nu, 2 * nu, 0, nu),
        "two_sided_wishart": (0, 4 * nu, 0, 2 * nu),
        "gaussian": (0, 1, 0, 1 / 2),
        "laplace": (0, 2, 0, 2),
        "output_perturbation": (0, length + 1, None, None),  # ||b|| ~ Gamma(k): k (k + 1) over k
    }[mech.name]


@pytest.mark.parametrize(("mech", "release"), ALL)
def test_sample_mean_and_covariance(mech, release):
    """All first and second moments within 5 standard errors (error probability < 1e-4)."""
    rng, N = np.random.default_rng(1), 20_000
    draws = np.array([mech.draw(rng, release) for _ in range(N)])
    assert draws.shape == NoNoise().draw(rng, release, (N,)).shape == (N, *release.shape)
    mean, variance, mean_off, variance_off = known_moments(mech, release)
    if release.symmetric:
        np.testing.assert_array_equal(draws, draws.swapaxes(1, 2))
        rows, cols = np.triu_indices(release.shape[0])
        draws = draws[:, rows, cols]
        mean = np.where(rows == cols, mean, mean_off)
        variance = np.where(rows == cols, variance, variance_off)
    centred = draws.reshape(N, -1) - mean
    error = centred.std(axis=0) / np.sqrt(N)
    assert (np.abs(centred.mean(axis=0)) < 5 * error).all()
    products = centred[:, :, None] * centred[:, None, :]  # distinct entries are uncorrelated
    error = products.std(axis=0) / np.sqrt(N)
    known = variance * np.eye(centred.shape[1])
    assert (np.abs(products.mean(axis=0) - known) < 5 * error).all()


def test_no_noise_is_nothing_in_every_shape(rng):
    for release in (covariance(3), relation(3), vector_sum(3), vector_sum(3, 2)):
        shape = (2, *release.shape)
        np.testing.assert_array_equal(NoNoise().draw(rng, release, (2,)), np.zeros(shape))


def loss_over_pairs(mech, release, budget):
    """Log density ratio at the first input's releases, for each pair of neighbours; pure noise is
    looked at far out as well."""
    rng = np.random.default_rng(10)
    (scale,) = mech.scale(np.array([budget]), getattr(release, mech.norm))
    E = mech.draw(rng, release, (4000,))
    if mech is not GAUSSIAN:
        E = np.concatenate([E, 30 * E])
    for pair in neighbours(math.prod(release.contribution), 1.0, rng).values():
        first, second = (release.total(beside_others(release, w)) for w in pair)
        other = E + (first - second) / scale
        ratio = mech.log_density(E, release) - mech.log_density(other, release)
        assert ratio.shape == (len(E),)
        yield ratio[np.isfinite(ratio)]


PURE = [
    (mech, release, 1.0)
    for mech, release in fitting(
        *(covariance(4), diagonal(4), vector_sum(4), vector_sum(2, 2), sample_models(2, 4))
    )
    if mech is not GAUSSIAN and mech.has_density(release)
    if (mech.name, release.kind) != ("wishart", "diagonal")
]


@pytest.mark.parametrize(
    ("mech", "release", "share"), [*PURE, (TwoSidedWishart(), covariance(1), 0.5)]
)
def test_pure_noise_spends_its_budget_and_no_more(mech, release, share):
    """The density ratio of neighbours is at most e^eps and comes near it; for the Wishart noise
    where neither is impossible, and on its diagonal not even there. The full two-sided noise has a
    known density for d = 1, where two models cannot be orthogonal: half of the budget."""
    largest = max(ratio.max() for ratio in loss_over_pairs(mech, release, 0.7))
    assert 0.9 * share < largest / 0.7 <= share * (1 + 1e-9)


@pytest.mark.parametrize("release", [r for mech, r in ALL if mech is GAUSSIAN])
def test_gaussian_noise_is_as_far_as_its_mu(release):
    """The log density ratio of the worst pair has standard deviation mu, within 5 errors."""
    spread = [ratio.std() for ratio in loss_over_pairs(GAUSSIAN, release, 0.7)]
    assert max(spread) == pytest.approx(0.7, rel=5 / np.sqrt(2 * 4000))


@pytest.mark.parametrize("release", [covariance(5), diagonal(5)])
def test_wishart_diagonal_is_chi_square(release):
    draws = Wishart().draw(np.random.default_rng(2), release, (4000,))
    entry = draws[:, 2, 2] if release.symmetric else draws[:, 2]
    assert stats.kstest(entry, stats.chi2(6).cdf).pvalue > 1e-4


def test_wishart_noise_is_positive_semidefinite_and_two_sided_noise_is_not():
    rng = np.random.default_rng(3)
    least = [
        np.linalg.eigvalsh(mech.draw(rng, covariance(5), (200,)))[:, 0].min()
        for mech in (Wishart(), TwoSidedWishart())
    ]
    assert least[0] > 0 > least[1]


def test_two_sided_wishart_in_one_dimension_is_laplace():
    """The difference of two chi^2_2 variables is Laplace of scale 2."""
    draws = TwoSidedWishart().draw(np.random.default_rng(4), covariance(1), (20_000,)).ravel()
    assert stats.kstest(draws, stats.laplace(scale=2).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("mech", "release", "known"),
    [
        (Wishart(), diagonal(5), stats.chi2(6)),
        (GAUSSIAN, diagonal(5), stats.norm()),
        (GAUSSIAN, vector_sum(3, 2), stats.norm()),
        (Laplace(), vector_sum(5), stats.laplace()),
        (Laplace(), diagonal(5), stats.laplace()),
    ],
)
def test_independent_entries_have_the_distribution_they_are_called_by(mech, release, known):
    draws = mech.draw(np.random.default_rng(5), release, (5000,))
    assert stats.kstest(draws.ravel(), known.cdf).pvalue > 1e-4


@pytest.mark.parametrize("release", [vector_sum(3, 2), sample_models(2, 6), unbounded_output(6)])
def test_output_noise_has_a_length_from_a_gamma_distribution(release):
    """Density ~ exp(-||b||_2) in 6 coordinates."""
    draws = OutputPerturbation().draw(np.random.default_rng(6), release, (5000,)).reshape(-1, 6)
    assert stats.kstest(np.linalg.norm(draws, axis=1), stats.gamma(6).cdf).pvalue > 1e-4


@pytest.mark.parametrize(("mech", "release"), SHIFTED)
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_projection_tends_to_the_identity_as_the_noise_grows(mech, release, shift, rng):
    """Proposition 1: much noise, M -> I and the method is STL, with and without shift."""
    d, threshold = release.shape[0], np.array([3.0])
    flat = release.kind == "diagonal"
    penalty, identity = (GroupL1(), np.ones(d)) if flat else (TraceNorm(), np.eye(d))
    W = rng.standard_normal((1, 8, d))
    E = mech.draw(rng, release) + shift * mech.spectral_norm(release) * identity
    distance = [
        np.abs(penalty.projection(penalty.covariance(W) + s * E, threshold)[0] - identity).max()
        for s in (1e6, 1e9, 1e12)
    ]
    assert distance[0] > distance[1] > distance[2]
    assert distance[2] < 1e-3


@pytest.mark.parametrize(("mech", "release"), SHIFTED)
def test_spectral_norm_is_the_unit_of_shift(mech, release):
    """The stated unit is within a factor of 2 of the mean spectral norm of the noise."""
    E = mech.draw(np.random.default_rng(5), release, (50,))
    norms = np.abs(np.linalg.eigvalsh(E) if release.symmetric else E).max(axis=1)
    assert 0.5 < mech.spectral_norm(release) / norms.mean() < 2


@pytest.mark.parametrize(
    ("d", "eps", "delta"),
    [
        (30, 0.01, 2.0e-5),
        (30, 0.1, 2.1e-4),
        (30, 1, 3.2e-3),
        (30, 5, 0.070),
        (5, 0.01, 0.0012),
        (5, 0.1, 0.013),
        (5, 1, 0.18),
        (5, 5, 0.88),
    ],
)
def test_diagonal_profile_has_the_known_values(d, eps, delta):
    assert wishart_diagonal_delta(eps, d) == pytest.approx(delta, rel=0.05)


@pytest.mark.parametrize(("d", "eps"), [(2, 1.0), (5, 1.0), (30, 5.0)])
def test_diagonal_profile_agrees_with_simulation(d, eps):
    """Hockey-stick divergence of the pair by simulation, within 5 standard errors."""
    rng, N = np.random.default_rng(6), 400_000
    noise = stats.gamma((d + 1) / 2, scale=1 / eps)
    x1 = 1 + noise.rvs(N, random_state=rng)
    x2 = noise.rvs(N, random_state=rng)
    loss = noise.logpdf(x1 - 1) + noise.logpdf(x2) - noise.logpdf(x1) - noise.logpdf(x2 - 1)
    terms = np.maximum(0, -np.expm1(eps - loss))
    assert abs(terms.mean() - wishart_diagonal_delta(eps, d)) < 5 * terms.std() / np.sqrt(N)


def test_no_other_pair_of_models_is_worse_on_the_diagonal():
    """Random and structured pairs never exceed K e_1 against K e_2 by more than 5 standard errors:
    what the proof for `gs` with Wishart noise says."""
    rng, N, d, eps = np.random.default_rng(7), 100_000, 3, 1.0
    noise = stats.gamma((d + 1) / 2, scale=1 / eps)
    known = wishart_diagonal_delta(eps, d)
    pairs = [
        (np.eye(3)[0], np.zeros(3)),
        (np.zeros(3), np.eye(3)[0]),
        (np.eye(3)[0], np.array([0, 0.5, 0.5])),
        (np.array([0.5, 0.5, 0]), np.eye(3)[2]),
    ]
    pairs += [tuple(rng.dirichlet([0.5] * 3, 2)) for _ in range(12)]
    for p, q in pairs:  # squared entries of the two models, sums at most K^2 = 1
        x = p + noise.rvs((N, d), random_state=rng)
        loss = (noise.logpdf(x - p) - noise.logpdf(np.maximum(x - q, 0))).sum(axis=1)
        loss[(x < q).any(axis=1)] = np.inf
        terms = np.maximum(0, -np.expm1(eps - loss))
        assert terms.mean() < known + 5 * terms.std() / np.sqrt(N)


def statement(mech, release=None, eps=0.1, delta=1e-3, n_rounds=5):
    """Of a fit with these rounds, as the gate's budget writes it; by default on the diagonal."""
    budget = Budget(mech, eps, delta)
    rounds = mech.budgets(eps, delta, n_rounds)
    return budget.statement(budget.planned(release or diagonal(5), rounds))


def test_wishart_is_claimed_and_proves_less():
    block = statement(Wishart(), covariance(5))
    eps_t = Wishart().budgets(0.1, 1e-3, 5)
    assert (block.claimed.epsilon, block.claimed.delta) == (0.1, 1e-3)
    assert block.proved.epsilon == pytest.approx(eps_t.sum())
    assert block.proved.delta == pytest.approx(1 - np.exp(-eps_t.sum()))
    assert "wishart-support" in block.caveats
    assert statement(Wishart(), relation(5)).proved is None


@pytest.mark.parametrize(("n_rounds", "spent"), [(1, 0.0), (100, 1e-3)])
def test_wishart_on_the_diagonal_proves_its_profile(n_rounds, spent):
    """Rounds that are (eps_t, delta_t) each: (eps, 1 - (1 - delta) prod (1 - delta_t))."""
    block = statement(Wishart(), n_rounds=n_rounds)
    eps_t = Wishart().budgets(0.1, 1e-3, n_rounds)
    intact = np.prod([1 - wishart_diagonal_delta(eps, 5) for eps in eps_t])
    assert block.proved.epsilon == block.claimed.epsilon == 0.1
    assert block.proved.delta == pytest.approx(1 - (1 - spent) * intact)
    assert block.claimed.delta < block.proved.delta < 1 - np.exp(-eps_t.sum())


@pytest.mark.parametrize("d", [2, 5, 30])
@pytest.mark.parametrize("S", [0.1, 1.0, 4.0])
def test_one_large_shift_is_more_informative_than_many_small_ones(d, S):
    """What the proof rests on, for thresholds of the sum of scores and of the minimum: power at
    equal size is never above that of a single entry shifted by the sum."""
    rng, N = np.random.default_rng(9), 200_000
    noise = stats.gamma((d + 1) / 2, scale=2)
    x = noise.rvs((N, 2), random_state=rng)
    for shift in ([S / 2, S / 2], [0.9 * S, 0.1 * S]):
        for score in (lambda x: np.log(x).sum(axis=1), lambda x: x.min(axis=1)):
            null, moved = np.sort(score(x)), score(x + shift)
            for size in (0.01, 0.1, 0.5):
                threshold = null[int((1 - size) * N)]
                power = (moved >= threshold).mean()
                limit = noise.sf(noise.isf(size) - S)
                assert power < limit + 5 * np.sqrt(0.25 / N) + 5 * np.sqrt(size / N)


@pytest.mark.parametrize("mech", [TwoSidedWishart(), Gaussian(), Laplace()])
def test_proved_mechanisms_claim_nothing_beyond_their_proof(mech):
    block = statement(mech)
    assert block.claimed is None
    assert (block.proved.epsilon, block.proved.delta) == (0.1, 1e-3)


@pytest.mark.parametrize("mech", [*NOISY[:4], NoNoise()])
def test_every_statement_names_unit_relation_and_caveats(mech):
    block = statement(mech).as_dict()
    assert block["unit"] == "task"
    assert "replace" in block["relation"]
    assert block["adversary"]
    protected = block["claimed"] or block["proved"]
    assert bool(block["caveats"]) == bool(protected)


def test_no_noise_states_no_protection():
    block = statement(NoNoise(), covariance(5))
    assert block.claimed is None
    assert block.proved is None


@pytest.mark.parametrize("shift", [-1.0, float("nan"), float("inf")])
def test_impossible_shifts_are_refused(shift):
    with pytest.raises(InputError, match="shift"):
        Gaussian(shift=shift)


def test_a_new_mechanism_is_not_called_proved_by_default():
    """Whoever adds noise must say what it costs to have it printed as proved."""

    class Own(Mechanism):
        name = "own"

    assert Own.status == "claimed"
    budget = Budget(Own(), 1.0, 1e-3)
    with pytest.raises(NotImplementedError):
        budget.statement(budget.planned(diagonal(3), [1.0]))


@pytest.mark.parametrize("mech", [Wishart, TwoSidedWishart, Laplace])
def test_exact_composition_allows_larger_budgets_and_is_named(mech):
    delta = 1 / (320 * np.log(320))
    plain, exact = mech(), mech(accounting="optimal")
    assert plain.budgets(0.1, delta, 10)[0] == pytest.approx(0.0109, abs=5e-5)
    assert exact.budgets(0.1, delta, 10)[0] == pytest.approx(0.0170, abs=5e-5)
    for mechanism, words in ((plain, "composition bound CB"), (exact, "exact pure composition")):
        block = statement(mechanism, delta=delta, n_rounds=10)
        stated = block.claimed or block.proved
        assert (stated.epsilon, stated.delta) == (0.1, delta)
        named = mech is Wishart and mechanism is plain  # the paper's own claim needs no word more
        assert named or words in stated.basis


def test_an_unknown_accounting_is_refused():
    with pytest.raises(InputError, match=r"accounting = exact: use bound or optimal"):
        Laplace(accounting="exact")
