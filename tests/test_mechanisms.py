"""Noise: its moments, its distribution, what it does to M, and what each mechanism states."""

import numpy as np
import pytest
from scipy import stats

from mpmtl import Gaussian, InputError, Laplace, NoNoise, TwoSidedWishart, Wishart
from mpmtl.auditing.subjects import neighbours
from mpmtl.penalties import GroupL1, TraceNorm
from mpmtl.privacy.mechanisms import (
    VIEWS,
    Mechanism,
    OutputPerturbation,
    wishart_diagonal_delta,
)

MECHANISMS = [Wishart(), TwoSidedWishart(), Gaussian(), Laplace(), OutputPerturbation()]
ALL = [(mech, view) for mech in MECHANISMS for view in mech.views]
SHIFTED = [(mech, view) for mech, view in ALL if view in ("full", "diagonal", "relation")]


def test_every_view_has_noise():
    assert {view for _, view in ALL} == set(VIEWS)


def known_moments(mech, view, d):
    """Mean and variance of the standard noise's diagonal (or only) and off-diagonal entries."""
    nu = d + 1  # W_d(nu, I): mean nu I; var nu off the diagonal, 2 nu on it
    if view == "vector":
        return 0, 1, 0, 1
    return {
        "wishart": (nu, 2 * nu, 0, nu),
        "two_sided_wishart": (0, 4 * nu, 0, 2 * nu),
        "gaussian": (0, 2, 0, 1),
        "laplace": (0, 2, 0, 1),
        "output_perturbation": (0, nu, 0, nu),  # a norm from Gamma(d): d (d + 1) over d entries
    }[mech.name]


@pytest.mark.parametrize(("mech", "view"), ALL)
def test_sample_mean_and_covariance(mech, view):
    """All first and second moments within 5 standard errors (error probability < 1e-4)."""
    rng, d, N = np.random.default_rng(1), 4, 20_000
    draws = np.array([mech.draw(rng, d, view) for _ in range(N)])
    assert draws.shape == NoNoise().draw(rng, d, view, (N,)).shape
    diagonal = np.ones(d, dtype=bool)
    if view in ("full", "relation"):
        np.testing.assert_array_equal(draws, draws.swapaxes(1, 2))
        rows, cols = np.triu_indices(d)
        draws, diagonal = draws[:, rows, cols], rows == cols
    mean_d, var_d, mean_o, var_o = known_moments(mech, view, d)
    centred = draws - np.where(diagonal, mean_d, mean_o)
    error = centred.std(axis=0) / np.sqrt(N)
    assert (np.abs(centred.mean(axis=0)) < 5 * error).all()
    products = centred[:, :, None] * centred[:, None, :]  # distinct entries are uncorrelated
    error = products.std(axis=0) / np.sqrt(N)
    known = np.diag(np.where(diagonal, var_d, var_o))
    assert (np.abs(products.mean(axis=0) - known) < 5 * error).all()


def test_no_noise_is_nothing_in_every_view(rng):
    for view, shape in (("full", (2, 3, 3)), ("relation", (2, 3, 3)), ("vector", (2, 3))):
        np.testing.assert_array_equal(NoNoise().draw(rng, 3, view, (2,)), np.zeros(shape))


def signal(w, view):
    """What is released of a model of norm at most 1; vectors differ by at most 1."""
    if view in ("full", "relation"):
        return np.outer(w, w)
    return w**2 if view == "diagonal" else w / 2


def loss_over_pairs(mech, view, budget, d=4):
    """Log density ratio at the first input's releases, for each pair of neighbours; pure noise is
    looked at far out as well."""
    rng, scale = np.random.default_rng(10), mech.scale(np.array([budget]))[0]
    E = mech.draw(rng, d, view, (4000,))
    if mech is not MECHANISMS[2]:
        E = np.concatenate([E, 30 * E])
    for w, v in neighbours(d, 1.0, rng).values():
        other = E + (signal(w, view) - signal(v, view)) / scale
        ratio = mech.log_density(E, d, view) - mech.log_density(other, d, view)
        yield ratio[np.isfinite(ratio)]


PURE = [
    (mech, view, *((1, 0.5) if (mech.name, view) == ("two_sided_wishart", "full") else (4, 1.0)))
    for mech, view in ALL
    if mech.name != "gaussian" and (mech.name, view) != ("wishart", "diagonal")
]


@pytest.mark.parametrize(("mech", "view", "d", "share"), PURE)
def test_pure_noise_spends_its_budget_and_no_more(mech, view, d, share):
    """The density ratio of neighbours is at most e^eps and comes near it; for the Wishart noise
    where neither is impossible, and on its diagonal not even there. The full two-sided noise has a
    known density for d = 1, where two models cannot be orthogonal: half of the budget."""
    largest = max(ratio.max() for ratio in loss_over_pairs(mech, view, 0.7, d))
    assert 0.9 * share < largest / 0.7 <= share * (1 + 1e-9)


@pytest.mark.parametrize("view", Gaussian.views)
def test_gaussian_noise_is_as_far_as_its_mu(view):
    """The log density ratio of the worst pair has standard deviation mu, within 5 errors."""
    spread = [ratio.std() for ratio in loss_over_pairs(MECHANISMS[2], view, 0.7)]
    assert max(spread) == pytest.approx(0.7, rel=5 / np.sqrt(2 * 4000))


@pytest.mark.parametrize("view", ["full", "diagonal"])
def test_wishart_diagonal_is_chi_square(view):
    rng, d = np.random.default_rng(2), 5
    draws = np.array([Wishart().draw(rng, d, view) for _ in range(4000)])
    diagonal = draws[:, 2, 2] if view == "full" else draws[:, 2]
    assert stats.kstest(diagonal, stats.chi2(d + 1).cdf).pvalue > 1e-4


def test_wishart_noise_is_positive_semidefinite_and_two_sided_noise_is_not():
    rng = np.random.default_rng(3)
    one = [np.linalg.eigvalsh(Wishart().draw(rng, 5, "full"))[0] for _ in range(200)]
    two = [np.linalg.eigvalsh(TwoSidedWishart().draw(rng, 5, "full"))[0] for _ in range(200)]
    assert min(one) > 0
    assert min(two) < 0


def test_two_sided_wishart_in_one_dimension_is_laplace():
    """The difference of two chi^2_2 variables is Laplace of scale 2."""
    rng = np.random.default_rng(4)
    draws = np.array([TwoSidedWishart().draw(rng, 1, "full")[0, 0] for _ in range(20_000)])
    assert stats.kstest(draws, stats.laplace(scale=2).cdf).pvalue > 1e-4


@pytest.mark.parametrize(("mech", "view"), SHIFTED)
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_projection_tends_to_the_identity_as_the_noise_grows(mech, view, shift, rng):
    """Proposition 1: much noise, M -> I and the method is STL, with and without shift."""
    d, threshold = 6, np.array([3.0])
    penalty = GroupL1() if view == "diagonal" else TraceNorm()
    identity = np.ones(d) if view == "diagonal" else np.eye(d)
    W = rng.standard_normal((1, 8, d))
    E = mech.draw(rng, d, view)
    E = E + shift * mech.spectral_norm(d, view) * identity
    distance = [
        np.abs(penalty.projection(penalty.covariance(W) + s * E, threshold)[0] - identity).max()
        for s in (1e4, 1e8, 1e12)
    ]
    assert distance[0] > distance[1] > distance[2]
    assert distance[2] < 1e-3


@pytest.mark.parametrize(("mech", "view"), SHIFTED)
def test_spectral_norm_is_the_unit_of_shift(mech, view):
    """The stated unit is within a factor of 2 of the mean spectral norm of the noise."""
    rng, d = np.random.default_rng(5), 30
    norms = []
    for _ in range(50):
        E = mech.draw(rng, d, view)
        norms.append(np.abs(E if view == "diagonal" else np.linalg.eigvalsh(E)).max())
    assert 0.5 < mech.spectral_norm(d, view) / np.mean(norms) < 2


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


def statement(mech, view, eps=0.1, delta=1e-3, n_rounds=5, d=5):
    return mech.statement(eps, delta, mech.budgets(eps, delta, n_rounds), d, view)


def test_wishart_is_claimed_and_proves_less():
    block = statement(Wishart(), "full")
    eps_t = Wishart().budgets(0.1, 1e-3, 5)
    assert (block.claimed.epsilon, block.claimed.delta) == (0.1, 1e-3)
    assert block.proved.epsilon == pytest.approx(eps_t.sum())
    assert block.proved.delta == pytest.approx(1 - np.exp(-eps_t.sum()))
    assert "wishart-support" in block.caveats


@pytest.mark.parametrize(("n_rounds", "spent"), [(1, 0.0), (100, 1e-3)])
def test_wishart_on_the_diagonal_proves_its_profile(n_rounds, spent):
    """Rounds that are (eps_t, delta_t) each: (eps, 1 - (1 - delta) prod (1 - delta_t))."""
    block = statement(Wishart(), "diagonal", n_rounds=n_rounds)
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
    block = statement(mech, "diagonal")
    assert block.claimed is None
    assert (block.proved.epsilon, block.proved.delta) == (0.1, 1e-3)


@pytest.mark.parametrize("mech", [*MECHANISMS[:4], NoNoise()])
def test_every_statement_names_unit_relation_and_caveats(mech):
    block = statement(mech, "diagonal").as_dict()
    assert block["unit"] == "task"
    assert "replace" in block["relation"]
    assert block["adversary"]
    protected = block["claimed"] or block["proved"]
    assert bool(block["caveats"]) == bool(protected)


def test_no_noise_states_no_protection():
    block = statement(NoNoise(), "full")
    assert block.claimed is None
    assert block.proved is None


def test_laplace_refuses_the_full_covariance(rng):
    with pytest.raises(InputError, match="releases the whole covariance"):
        Laplace().draw(rng, 3, "full")


@pytest.mark.parametrize("shift", [-1.0, float("nan"), float("inf")])
def test_impossible_shifts_are_refused(shift):
    with pytest.raises(InputError, match="shift"):
        Gaussian(shift=shift)


def test_a_new_mechanism_is_not_called_proved_by_default():
    """Whoever adds noise must say so to have it printed as proved."""

    class Own(Mechanism):
        name = "own"

    assert Own.status == "claimed"
    with pytest.raises(NotImplementedError):
        Own().statement(1.0, 1e-3, None, 3, "full")


@pytest.mark.parametrize("mech", [Wishart, TwoSidedWishart, Laplace])
def test_exact_composition_allows_larger_budgets_and_is_named(mech):
    delta = 1 / (320 * np.log(320))
    plain, exact = mech(), mech(accounting="optimal")
    assert plain.budgets(0.1, delta, 10)[0] == pytest.approx(0.0109, abs=5e-5)
    assert exact.budgets(0.1, delta, 10)[0] == pytest.approx(0.0170, abs=5e-5)
    for mechanism, words in ((plain, "composition bound CB"), (exact, "exact pure composition")):
        budgets = mechanism.budgets(0.1, delta, 10)
        block = mechanism.statement(0.1, delta, budgets, 5, "diagonal")
        stated = block.claimed or block.proved
        assert (stated.epsilon, stated.delta) == (0.1, delta)
        named = mech is Wishart and mechanism is plain  # the paper's own claim needs no word more
        assert named or words in stated.basis


def test_an_unknown_accounting_is_refused():
    with pytest.raises(InputError, match=r"accounting = exact: use bound or optimal"):
        Laplace(accounting="exact")
