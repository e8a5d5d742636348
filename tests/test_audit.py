"""The audit: its statistics, its power, what it refutes and what it does not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats
from test_mechanisms import ALL

from mpmtl import Gaussian, InputError, Laplace, TwoSidedWishart, Wishart, audit, gaussian_mu
from mpmtl.auditing.audit import (
    AuditSettings,
    _others,
    candidate_of,
    inputs_from,
    run_audit,
    subjects_for,
)
from mpmtl.auditing.bounds import Trial, delta_bound, lower_limit, search, upper_limit
from mpmtl.auditing.subjects import ProximalView, Releases, neighbours
from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.methods import (
    Average,
    Budget,
    Decomposed,
    MeanRegularised,
    PrivateModels,
    PrivateRelations,
    Proximal,
    SharedRepresentation,
)
from mpmtl.methods.feature_learning import FeatureLearning, Moments
from mpmtl.privacy.budget import Cost
from mpmtl.privacy.mechanisms import OutputPerturbation, wishart_diagonal_delta
from mpmtl.privacy.releases import covariance, diagonal, sample_models, vector_sum
from mpmtl.privacy.statements import Guarantee

LR = Proximal("lr", "trace", private=True)
GS = Proximal("gs", "l21", private=True)
DELTA = 5.4e-4


# the statistics


@pytest.mark.parametrize(("hits", "n"), [(0, 50), (1, 50), (23, 50), (50, 50), (10, 100_000)])
def test_limits_are_clopper_and_pearsons(hits, n):
    known = stats.binomtest(hits, n).proportion_ci(confidence_level=0.98, method="exact")
    assert lower_limit(hits, n, 0.99) == pytest.approx(known.low, abs=1e-12)
    assert upper_limit(hits, n, 0.99) == pytest.approx(known.high, abs=1e-12)


def test_bound_is_below_the_estimate_and_grows_to_it():
    estimates = 0.3 - np.exp(0.5) * 0.1
    bounds = [delta_bound(0.3 * n, 0.1 * n, n, 0.5, 0.99) for n in (100, 10_000, 10_000_000)]
    assert bounds[0] < bounds[1] < bounds[2] < estimates
    assert bounds[2] == pytest.approx(estimates, abs=2e-3)
    assert delta_bound(50, 50, 100, 1e40, 0.99) == 0


def normal_trials(rng, n, shift, below=False):
    samples = [np.sort(rng.standard_normal(n) + s) for s in (shift, 0, shift, 0)]
    if below:
        samples = [-x[::-1] for x in samples]
    return [Trial("normal", "likelihood", *samples, below=below)]


@pytest.mark.parametrize("below", [False, True])
def test_search_finds_the_profile_of_a_normal_shift(below, rng):
    """mu-GDP exactly: the bound at eps is at most 1 % below the known delta."""
    mu, eps = 1.0, 0.5
    known = stats.norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
    (row,) = search(normal_trials(rng, 400_000, mu, below), eps, 0.99)
    assert 0.97 * known < row["delta_bound"] < known


def exact_gaussian(delta, pairs=1, d=2):
    """Release of the full covariance whose worst pair has exactly this delta at epsilon = 1."""
    budget = Budget(Gaussian(), 1.0, delta)
    gate = budget.planned(covariance(d), [gaussian_mu(1.0, delta)])
    assert gate.cost.delta(1.0) == pytest.approx(delta, rel=1e-9)
    chosen = {f"pair {k}": (np.eye(d)[0], np.eye(d)[1]) for k in range(pairs)}
    return Releases(gate, {"proved": Guarantee(1.0, delta, "exact")}, chosen)


def run_on(subjects, statement=None, **settings):
    return run_audit(subjects, statement, AuditSettings(**settings), profile=False)


@pytest.mark.slow
def test_type_one_error_of_an_exactly_calibrated_mechanism():
    """Four pairs, two directions and several attacks, all at the limit of the guarantee: 100 audits
    at confidence 0.99 refute at most 1 in 100 (binomial, error probability 0.001)."""
    refuted = 0
    for seed in range(100):
        result = run_on([exact_gaussian(0.05, pairs=4)], samples=600, seed=seed)
        refuted += result.verdicts["proved"].refuted
    assert refuted <= stats.binom.ppf(0.999, 100, 0.01)


@pytest.mark.slow
def test_choosing_and_measuring_on_the_same_samples_would_be_wrong(rng):
    """Why there are two halves: without them the best of many attacks is too good."""
    n, many, wrong, right = 400, 80, 0, 0
    for _ in range(20):
        trials = []
        for _ in range(many):
            first, first_other, second, second_other = np.sort(rng.random((4, n)))
            halves = {False: (first, first_other, second, second_other)}
            halves[True] = (first, first_other, first, first_other)
            trials.append({same: Trial("", "", *h) for same, h in halves.items()})
        wrong += search([t[True] for t in trials], 0.0, 0.9)[0]["delta_bound"] > 0
        right += search([t[False] for t in trials], 0.0, 0.9)[0]["delta_bound"] > 0
    assert right <= stats.binom.ppf(0.999, 20, 0.1)
    assert wrong > right


def test_a_statistic_with_more_features_than_samples_does_not_hide_the_others():
    """It separates what it was fitted to perfectly, so it must not choose with the same samples."""
    claimed = {"claimed": Guarantee(1.0, DELTA, "false")}
    d = 19  # 190 features, a third of 200 samples to learn from
    pairs = {"zero / full": (np.zeros(d), np.eye(d)[0])}
    gate = Budget(Wishart(), 1.0, DELTA).planned(covariance(d), [1.0])
    subject = Releases(gate, claimed, pairs)
    result = run_on([subject], samples=400)
    assert result.verdicts["claimed"].attack in ("support", "likelihood")
    assert result.verdicts["claimed"].refuted


def test_a_seed_gives_the_same_audit_and_another_seed_another_one():
    rows = [audit(Wishart(), 1.0, DELTA, samples=400, seed=s).rows for s in (3, 3, 4)]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


# densities and draws


def test_log_densities_agree_with_scipy(rng):
    d, full, flat = 3, covariance(3), diagonal(3)
    E = Wishart().draw(rng, full, (20,))
    x, z = rng.chisquare(4, (20, d)), rng.standard_normal((20, d))
    S = (E + rng.standard_normal((20, 1, 1))) / 2
    rows, cols = np.triu_indices(d)
    spread = np.where(rows == cols, 1, np.sqrt(1 / 2))
    norms = np.linalg.norm(z, axis=1)
    for mechanism, release, draws, known in (
        (Wishart(), full, E, stats.wishart(d + 1, np.eye(d)).logpdf(np.moveaxis(E, 0, -1))),
        (Wishart(), flat, x, stats.chi2(d + 1).logpdf(x).sum(axis=1)),
        (Gaussian(), flat, z, stats.norm.logpdf(z).sum(axis=1)),
        (Gaussian(), full, S, stats.norm(scale=spread).logpdf(S[:, rows, cols]).sum(axis=1)),
        (Laplace(), flat, z, stats.laplace.logpdf(z).sum(axis=1)),
        # a uniform direction has density ~ 1/r^(d-1) on the sphere of radius r
        (OutputPerturbation(), vector_sum(d), z, stats.gamma(d).logpdf(norms) - 2 * np.log(norms)),
    ):
        np.testing.assert_allclose(np.diff(mechanism.log_density(draws, release)), np.diff(known))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_two_sided_density_is_the_convolution(d):
    noise = stats.chi2(d + 1)

    def density(x):
        return integrate.quad(lambda a: noise.pdf(a + abs(x)) * noise.pdf(a), 0, 200, limit=300)[0]

    x = np.array([[0.3], [-2.0], [7.0]])
    known = np.log([density(v) for v in x[:, 0]])
    entries = np.repeat(x, d, axis=1) if d > 1 else x  # d independent ones
    result = TwoSidedWishart().log_density(entries, diagonal(d)) / d
    np.testing.assert_allclose(np.diff(result), np.diff(known), rtol=1e-6)


def test_one_sided_noise_is_impossible_outside_its_support():
    outside = np.array([np.diag([1.0, -0.1]), np.diag([1.0, 0.1])])
    assert list(np.isneginf(Wishart().log_density(outside, covariance(2)))) == [True, False]
    entries = np.array([[1.0, -0.1], [1.0, 0.1]])
    assert list(np.isneginf(Wishart().log_density(entries, diagonal(2)))) == [True, False]
    assert TwoSidedWishart().has_density(covariance(1))
    with pytest.raises(InputError, match="no closed form"):
        TwoSidedWishart().log_density(outside, covariance(2))


@pytest.mark.parametrize(("mech", "release"), ALL)
def test_batches_of_noise_are_distributed_like_single_draws(mech, release):
    """Two-sample Kolmogorov-Smirnov test of an entry and of the sum (error probability 1e-4)."""
    rng = np.random.default_rng(8)
    batch = mech.draw(rng, release, (4000,))
    single = np.array([mech.draw(rng, release) for _ in range(4000)])
    assert batch.shape == single.shape
    for statistic in (
        lambda E: E.reshape(len(E), -1)[:, 1],
        lambda E: E.reshape(len(E), -1).sum(1),
    ):
        assert stats.ks_2samp(statistic(batch), statistic(single)).pvalue > 1e-4


# the view, through the method's own code


def view_of(method, mechanism, n_rounds, d=4, m=9):
    inputs = inputs_from(_others(d, m, 0), method)
    candidate = candidate_of(method, inputs, n_rounds, 0.01)
    budget = Budget(mechanism, 1.0, DELTA)
    return ProximalView(method, candidate, budget, inputs, {}, {})


@pytest.mark.parametrize("method", [LR, GS, replace(LR, clip="covariance")])
def test_the_view_is_what_the_method_fits(method):
    """One repetition has the numbers of `fit` with the same random stream."""
    view = view_of(method, Wishart(), 3)
    w = np.array([0.5, -2.0, 0.1, 0.3])
    seen = view.observe(w, np.random.default_rng(1), 1)
    datafit, start = view.inputs.with_models(w)
    rng = np.random.default_rng(1)
    ((_, W),) = method.fit(datafit, start, [view.candidate], view.budget, rng)
    np.testing.assert_allclose(seen[0, -1], W[0][:-1], rtol=1e-12)


@pytest.mark.parametrize("method", [LR, GS, replace(LR, clip="covariance")])
@pytest.mark.parametrize("mechanism", [Wishart(), Wishart(shift=0.5)])
def test_colluding_tasks_recover_the_noise_of_every_round(method, mechanism):
    """Under the true hypothesis the replay finds the very noise that was drawn."""
    view, w, n = view_of(method, mechanism, 3), np.array([0.5, -2.0, 0.1, 0.3]), 5
    seen = view.observe(w, np.random.default_rng(2), n)
    residuals = view.residuals(seen, (w, np.zeros(4)))
    rng = np.random.default_rng(2)
    release = method.release(4)
    drawn = np.stack([mechanism.draw(rng, release, (n,)) for _ in range(3)], axis=1)
    np.testing.assert_allclose(residuals[0], drawn, atol=1e-6 * np.abs(drawn).max())
    assert np.abs(residuals[1] - drawn).max() > 1e-2


def test_a_view_needs_as_many_other_tasks_as_features():
    few = view_of(LR, Wishart(), 1, d=4, m=4)
    assert "view_support" not in few.attacks
    with pytest.raises(InputError, match="span all features"):
        audit(Wishart(), 1.0, d=4, m=4, samples=400, attack="view")


def test_neighbours_keep_to_the_ball():
    for name, pair in neighbours(4, 2.0, np.random.default_rng(0), far=True).items():
        norms = [np.linalg.norm(w) for w in pair]
        assert max(norms) <= 2 * (1 + 1e-12) or name == "zero / far"
    assert set(neighbours(1, 1.0, np.random.default_rng(0))) >= {"zero / full", "opposite"}


# what is refuted


def verdicts(result):
    return {name: str(verdict) for name, verdict in result.verdicts.items()}


@pytest.mark.parametrize("d", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("attack", ["support", "view"])
def test_wishart_is_refuted_on_the_release_and_on_the_view(epsilon, d, attack):
    """Measured 1 - e^-eps to within 15 %, and never above (error probability 0.01 each)."""
    result = audit(Wishart(), epsilon, DELTA, d=d, samples=8000, attack=attack)
    assert verdicts(result) == {"claimed": "refuted", "proved": "not refuted"}
    assert 0.85 < result.verdicts["proved"].measured / -np.expm1(-epsilon) < 1


@pytest.mark.parametrize("accounting", ["bound", pytest.param("optimal", marks=pytest.mark.slow)])
def test_wishart_is_refuted_over_rounds(accounting):
    mechanism = Wishart(accounting=accounting)
    result = audit(mechanism, 1.0, DELTA, n_rounds=3, samples=2000, attack=["support", "view"])
    assert verdicts(result) == {"claimed": "refuted", "proved": "not refuted"}
    assert result.verdicts["claimed"].measured > 0.4


def test_wishart_on_the_diagonal_agrees_with_the_exact_profile():
    """d = 5, eps = 1: the pair is K e_1 against K e_2, delta = .18."""
    result = audit(Wishart(), 1.0, DELTA, method=GS, samples=100_000, attack="likelihood")
    known = wishart_diagonal_delta(1.0, 5)
    assert verdicts(result) == {"claimed": "refuted", "proved": "not refuted"}
    assert result.verdicts["claimed"].pair.startswith("release: orthogonal")
    assert 0.9 * known < result.verdicts["claimed"].measured < known


def quieter(mechanism, factor=0.5):
    """The same mechanism with half of its noise: what an audit must find."""

    class Quieter(type(mechanism)):
        def scale(self, budgets, sensitivity):
            return factor * super().scale(budgets, sensitivity)

    return Quieter()


def subjects_with(mechanism, method=None, epsilon=1.0):
    budget = Budget(mechanism, epsilon, DELTA)
    return subjects_for(budget, method, _others(5, 10, 0), AuditSettings())


def release_audit(mechanism, epsilon, samples, attack="all", method=None):
    subjects, statement = subjects_with(mechanism, method, epsilon)
    (release,) = [s for s in subjects if s.name == "release"]
    return release, run_on([release], statement, samples=samples, attack=attack)


@pytest.mark.parametrize("mechanism", [TwoSidedWishart(), Gaussian(), Laplace()])
def test_proved_mechanisms_are_not_refuted(mechanism):
    result = audit(mechanism, 1.0, DELTA, samples=1000, n_rounds=2)
    assert verdicts(result) == {"proved": "not refuted"}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [TwoSidedWishart(), Gaussian(), Laplace()])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_proved_mechanisms_are_not_refuted_by_a_million_releases(mechanism, epsilon):
    _, result = release_audit(mechanism, epsilon, 1_000_000)
    assert verdicts(result) == {"proved": "not refuted"}


@pytest.mark.parametrize(
    ("mechanism", "method", "samples"),
    [
        (Gaussian(), None, 40_000),
        (Laplace(), None, 10_000),
        (Gaussian(), MeanRegularised("mr_mtl"), 40_000),
        (Laplace(), MeanRegularised("mr_mtl"), 10_000),
        (OutputPerturbation(), MeanRegularised("mr_mtl"), 40_000),
        pytest.param(Gaussian(), PrivateRelations("rl"), 40_000, marks=pytest.mark.slow),
        (Gaussian(), SharedRepresentation("fedrep"), 40_000),
        pytest.param(TwoSidedWishart(), None, 150_000, marks=pytest.mark.slow),
    ],
)
def test_half_of_the_noise_is_refuted_and_the_noise_is_not(mechanism, method, samples):
    """The audit has power: eps = 1, d = 5. The statement rests on the cost, not on the draws."""
    _, result = release_audit(mechanism, 1.0, samples, "likelihood", method)
    assert verdicts(result) == {"proved": "not refuted"}
    _, half = release_audit(quieter(mechanism), 1.0, samples, "likelihood", method)
    assert verdicts(half) == {"proved": "refuted"}
    assert half.statement == result.statement


METHODS = {
    "rl wishart": (Wishart(), PrivateRelations("rl"), {"claimed": "refuted"}),
    "rl gaussian": (Gaussian(), PrivateRelations("rl"), {"proved": "not refuted"}),
    "mr_mtl": (Gaussian(), MeanRegularised("mr_mtl"), {"proved": "not refuted"}),
    "fedrep": (Gaussian(), SharedRepresentation("fedrep"), {"proved": "not refuted"}),
    "dp_mtrl": (OutputPerturbation(), PrivateModels("dp_mtrl"), {"claimed": "refuted"}),
    "dp_aggr": (OutputPerturbation(), Average("dp_aggr", True), {"claimed": "refuted"}),
}


SLOW = {"fedrep", "dp_mtrl", "mr_mtl", "rl gaussian"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in METHODS]
)
def test_methods_that_are_fitted_anew_each_time(name):
    mechanism, method, expected = METHODS[name]
    result = audit(mechanism, 1.0, DELTA, method=method, samples=400, m=8)
    assert verdicts(result) == expected


@pytest.mark.slow
def test_a_method_with_a_quarter_of_its_noise_is_refuted():
    """The fitted attacks have power."""
    subjects, _ = subjects_with(quieter(Gaussian(), 0.25), MeanRegularised("mr_mtl"))
    result = run_on(subjects, samples=1000, attack="fitted")
    assert verdicts(result) == {"proved": "refuted"}


def test_every_gate_of_a_method_is_audited():
    """fedrep releases a start and rounds: a quarter of the start's noise is refuted."""
    subjects, statement = subjects_with(Gaussian(), SharedRepresentation("fedrep"))
    releases = {s.name: s for s in subjects if isinstance(s, Releases)}
    assert [s.gate.release.kind for s in releases.values()] == ["sum", "covariance"]
    assert list(releases) == ["release", "release 2"]
    assert sum((s.gate.cost for s in releases.values()), Cost()) == statement.cost
    for factor, verdict in ((1.0, "not refuted"), (0.25, "refuted")):
        subjects, _ = subjects_with(quieter(Gaussian(), factor), SharedRepresentation("fedrep"))
        start = [s for s in subjects if s.name == "release 2"]
        assert verdicts(run_on(start, samples=10_000, attack="likelihood")) == {"proved": verdict}


def test_the_decomposed_method_is_audited_by_its_release():
    method = Decomposed("lr_sp", "trace", private=True, init="split")
    result = audit(Wishart(), 1.0, DELTA, method=method, samples=4000)
    assert verdicts(result) == {"claimed": "refuted", "proved": "not refuted"}


@pytest.mark.parametrize("affine", [pytest.param(0.0, marks=pytest.mark.slow), 0.15])
def test_feature_learning_is_audited_by_its_releases(affine):
    """Not refuted with its noise, refuted with half of it; what is audited is what it releases."""
    method = FeatureLearning("fl_local", "local", affine, rounds=2)
    for factor, verdict in ((1, "not refuted"), (0.5, "refuted")):
        mechanism = quieter(Gaussian(), factor)
        release, result = release_audit(mechanism, 1.0, 40_000, "likelihood", method)
        assert verdicts(result) == {"proved": verdict}
    moments = Moments(affine, 10, 5, Gaussian())
    for w, _ in release.pairs.values():
        u = moments.vectors(w[None])[0]
        np.testing.assert_allclose(release.signal(w), np.outer(u, u), atol=1e-15)
        assert u @ u <= moments.K2 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("epsilon", "kinds"),
    [
        (0.05, "sum parts"),
        pytest.param(50.0, "sum covariance sum", marks=pytest.mark.slow),
    ],
)
def test_every_release_of_the_hyper_prior_is_audited(epsilon, kinds):
    """Each at mu = 1: not refuted with its noise, refuted with half of it."""
    method, m, d = FeatureLearning("fl", "hyper"), 40, 5
    datafit = datafit_for(MultiTaskData.checked([np.eye(d)] * m, [np.ones(d)] * m))
    gates = method.gates(None, Budget(Gaussian(), epsilon, DELTA), datafit)
    assert [gate.release.kind for gate in gates] == kinds.split()
    for gate in gates:
        gate = gate.with_budgets(np.full(len(gate.budgets), 1 / np.sqrt(len(gate.budgets))))
        own = {"proved": Guarantee(1.0, Cost(mu=1.0).delta(1.0), "of 1-GDP")}
        tail = np.sqrt(method.affine) if gate.release.kind == "covariance" else 0.0
        pairs = neighbours(d, 1.0, np.random.default_rng(0))
        for factor, verdict in ((1, "not refuted"), (0.5, "refuted")):
            quiet = replace(gate, mechanism=quieter(Gaussian(), factor))
            subject = Releases(quiet, own, pairs, tail=tail)
            result = run_on([subject], samples=40_000, attack="likelihood")
            assert verdicts(result) == {"proved": verdict}, gate.release


@pytest.mark.parametrize(
    ("density", "verdict"),
    [
        pytest.param("corrected", "not refuted", marks=pytest.mark.slow),
        ("paper", "refuted"),
    ],
)
def test_algorithm_5_protects_a_sample_with_the_corrected_density_only(density, verdict):
    """And its models are protected by the Gaussian release either way."""
    method = replace(LR, instance_protection={"epsilon": 1.0})
    result = audit(Gaussian(), 1.0, DELTA, method=method, samples=4000, density=density)
    assert verdicts(result) == {"proved": "not refuted", "instance": verdict}


def test_the_corrected_density_is_tight_for_opposite_models():
    """For d = 1 the noise is Laplace of scale 2K/eps: at eps/2 delta is 1 - e^(-eps/4)."""
    gate = Budget(OutputPerturbation(), 1.0, 0.0).planned(sample_models(1, 1), [1.0])
    half = {"instance": Guarantee(0.5, 0.0, "half of it")}
    pairs = {"opposite": (np.array([1.0]), np.array([-1.0]))}
    result = run_on([Releases(gate, half, pairs)], samples=100_000, attack="likelihood")
    known = -np.expm1(-0.25)  # Laplace shifted by 2K: 1 - exp((0.5 - 1)/2)
    assert 0.9 * known < result.verdicts["instance"].measured < known


@pytest.mark.parametrize("method", [LR, GS])
@pytest.mark.parametrize(
    "options", [{"epsilon": 1e40}, {"lam": 0.0}, {"lam": 1e6}, {"d": 1, "m": 2}]
)
def test_extreme_settings_neither_fail_nor_refute_what_is_proved(options, method):
    result = audit(Wishart(), **{"epsilon": 1.0, **options}, method=method, samples=300)
    assert verdicts(result).get("proved", "not refuted") == "not refuted"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 10}, "samples = 10"),
        ({"confidence": 1.0}, "confidence = 1.0"),
        ({"attack": "guess"}, "attack = guess"),
        ({"d": 0}, "d = 0"),
        ({"m": 1}, "m = 1"),
        ({"n_rounds": 0}, "n_rounds = 0"),
        ({"lam": -1.0}, "lam = -1.0"),
        ({"density": "other"}, "density = other"),
        ({"method": Average("aggr", False)}, "method aggr is not private"),
        ({"method": MeanRegularised("mr_mtl")}, "mechanism wishart does not fit"),
    ],
)
def test_impossible_audits_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        audit(Wishart(), 1.0, DELTA, **options)
