"""`fl`: priors from a noisy second moment, posterior means, what others see, and the statements."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import TINY, make_run, ragged_data, separate_tasks
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import multivariate_normal

from mpmtl import MultiTaskClassifier
from mpmtl.data import GroupSparse, LowRank, MultiTaskData
from mpmtl.datafits import LogisticLoss, datafit_for
from mpmtl.errors import InputError
from mpmtl.experiments.runner import run_replicate
from mpmtl.methods import Budget, FeatureLearning, FitLog
from mpmtl.methods.prior_steps import (
    GAMMA,
    gamma_grid,
    own_models,
    separate_priors,
    started,
)
from mpmtl.methods.shared_choice import WIDEST, SharedChoice
from mpmtl.metrics import auc, evaluate
from mpmtl.privacy.budget import gaussian_mu
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.mechanisms import Gaussian, NoNoise, TwoSidedWishart, Wishart
from mpmtl.privacy.releases import covariance, signed_parts, vector_sum
from mpmtl.privacy.statements import PrivacyCaveat
from mpmtl.solvers.gaussian_prior import FREE, PriorPath, PriorSystems, rows_at
from mpmtl.solvers.hierarchy import (
    GRID,
    HOT,
    SPREAD,
    Belief,
    by_hierarchy,
    log_ratio,
    preferences,
)
from mpmtl.solvers.moments import Moments
from mpmtl.solvers.noisy_covariance import (
    Prior,
    cautious,
    diagonal_prior,
    mean_directions,
    noise_spectrum,
    parts_priors,
    priors,
    scaled_mean,
    shrunk_mean,
    soft_levels,
    spectral_prior,
    spike,
)
from mpmtl.solvers.refinement import (
    LEAST_CLIP,
    Subspace,
    contributions,
    rank,
    subspace_of,
)
from mpmtl.solvers.single_task import ridge_path

TUNINGS = ("shared", "local", "hyper")


def some_covariance(rng, d):
    A = rng.standard_normal((d, d))
    return A @ A.T / d + 0.1 * np.eye(d)


# --- priors from a noisy second moment


@pytest.mark.parametrize(
    ("mechanism", "sd"), [(Gaussian(), np.sqrt(0.5)), (TwoSidedWishart(), None)]
)
def test_the_simulated_spectrum_has_the_moments_of_the_noise(mechanism, sd):
    d = 30
    spectrum = noise_spectrum(mechanism, d)
    expected = sd or np.sqrt(2 * (d + 1))  # each one-sided Wishart entry has variance d + 1
    assert spectrum.sd == pytest.approx(expected, rel=0.03)
    assert spectrum.radius == pytest.approx(mechanism.spectral_norm(covariance(d)), rel=0.08)


def test_one_sided_noise_is_centred():
    spectrum = noise_spectrum(Wishart(), 10)
    assert spectrum.center == pytest.approx(11, rel=0.05)  # E W_d(d + 1, I) = (d + 1) I
    assert spectrum.values.mean() == pytest.approx(0, abs=0.4)  # clipped at the radius


def test_spikes_are_shrunk_as_in_a_spiked_wigner_matrix():
    d = 300
    noise = noise_spectrum(Gaussian(), d).scaled(np.sqrt(2))  # sd 1 off the diagonal
    for x in (1.4 * noise.radius, 3 * noise.radius):
        theta = (x + np.sqrt(x**2 - 4 * d)) / 2
        assert spike([x], noise)[0] == pytest.approx(theta * (1 - d / theta**2), rel=0.02)


def test_a_shrunk_spike_is_what_the_eigenvector_keeps(rng):
    d, theta = 300, 40.0
    noise, pairs = noise_spectrum(Gaussian(), d), []
    for _ in range(5):
        u = rng.standard_normal(d)
        u /= np.linalg.norm(u)
        x, U = np.linalg.eigh(theta * np.outer(u, u) + Gaussian().draw(rng, covariance(d)))
        pairs.append((spike(x[-1:], noise)[0], theta * (u @ U[:, -1]) ** 2))
    estimate, truth = np.mean(pairs, axis=0)
    assert estimate == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("width", [0.0, 1e-3, 5.0])
def test_soft_levels_add_up_and_solve_their_problem(rng, width):
    x = rng.standard_normal(12) * 10
    levels = soft_levels(x, width, 7.0)
    assert levels.sum() == pytest.approx(7.0)
    assert (levels >= 0).all()
    if width > 0.1:  # the gradient of the barrier problem is the same multiplier everywhere
        assert np.ptp(levels - x - width**2 / (4 * levels)) == pytest.approx(0, abs=1e-8)


def test_every_prior_is_positive_definite_with_trace_d(rng):
    d, m = 6, 40
    for scale in (0.0, 1.0, 100.0):
        noise = noise_spectrum(Gaussian(), d).scaled(scale)
        S = m * np.eye(d) / d + scale * Gaussian().draw(rng, covariance(d))
        candidates = priors(S, rng.standard_normal(d) * m, noise, scale, m)
        assert len({p.name for p in candidates}) == len(candidates) == 11
        for p in candidates:
            assert np.trace(p.C) == pytest.approx(d)
            assert np.linalg.eigvalsh(p.C)[0] > 0


def test_noise_alone_gives_nearly_even_priors_and_no_mean(rng):
    d, m = 20, 10
    noise = noise_spectrum(Gaussian(), d).scaled(1e4)
    C = spectral_prior(1e4 * Gaussian().draw(rng, covariance(d)), noise, m, np.inf)
    assert np.linalg.eigvalsh(C)[-1] < 10
    small = 1e-3 * rng.standard_normal(d)
    assert (shrunk_mean(small, 1.0, m) == 0).all()


def test_the_diagonal_prior_finds_the_features(rng):
    S = np.diag([50.0, 50.0] + [0.0] * 8) + Gaussian().draw(rng, covariance(10))
    C = diagonal_prior(S, noise_spectrum(Gaussian(), 10), 100, 1 / 8, power=3)
    assert np.diag(C)[:2].sum() > 9.5


def test_the_second_moment_improves_the_direction_of_the_mean(rng):
    d, m, sd = 30, 300, 60.0
    better = 0
    for _ in range(40):
        u = rng.standard_normal(d)
        u *= 0.8 / np.linalg.norm(u)
        noise = noise_spectrum(Gaussian(), d).scaled(20.0)
        S = m * np.outer(u, u) + 20 * Gaussian().draw(rng, covariance(d))
        plain, refined = mean_directions(S, m * u + sd * rng.standard_normal(d), noise, sd, m)
        better += refined @ u / np.linalg.norm(refined) > plain @ u / np.linalg.norm(plain)
    assert better >= 30


# --- posterior means


@pytest.mark.parametrize("kind", [PriorPath, PriorSystems])
@pytest.mark.parametrize("own", [False, True])
def test_a_path_solves_the_penalised_problem(rng, own, kind):
    data = ragged_data(rng, m=4, d=5, low=1, high=9)
    rows = rows_at(datafit_for(data), None)
    C, mean = some_covariance(rng, 5), rng.standard_normal(5)
    path = kind(rows, Prior("p", C, mean, own), GAMMA[:, None] * rows.unit)
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        x = X.mean(axis=0) / np.linalg.norm(X.mean(axis=0))
        precision = np.linalg.inv(C + 5 * own * np.outer(x, x))
        for g in (2, 8):
            gamma, a = GAMMA[g] * rows.unit[i], 1.7
            H = X.T @ X + gamma * precision
            w = np.linalg.solve(H, X.T @ y + gamma * a * precision @ mean)
            np.testing.assert_allclose(path.W[g, i] + a * path.pull[g, i], w, rtol=1e-6, atol=1e-8)


def test_leave_one_out_errors_are_those_of_refitting(rng):
    data = ragged_data(rng, m=3, d=4, low=5, high=8)
    rows = rows_at(datafit_for(data), None)
    C, mean, g = some_covariance(rng, 4), rng.standard_normal(4), 5
    errors, W = PriorPath(rows, Prior("p", C, mean), GAMMA[:, None] * rows.unit).shared_scale()

    def refitted(a):
        total = 0
        for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
            P = GAMMA[g] * rows.unit[i] * np.linalg.inv(C)
            for j in range(len(y)):
                A, b = np.delete(X, j, axis=0), np.delete(y, j)
                w = np.linalg.solve(A.T @ A + P, A.T @ b + a * P @ mean)
                total += (y[j] - X[j] @ w) ** 2 / (len(y) * y.var())
        return total / 3

    best = minimize_scalar(refitted)
    assert errors[g] == pytest.approx(best.fun, rel=1e-6)
    X, y = data.X[0], data.y[0]
    P = GAMMA[g] * rows.unit[0] * np.linalg.inv(C)
    w = np.linalg.solve(X.T @ X + P, X.T @ y + best.x * P @ mean)
    np.testing.assert_allclose(W[g, 0], w, rtol=1e-5)


@pytest.mark.parametrize("kind", [PriorPath, PriorSystems])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_evidence_is_the_normal_likelihood_at_its_best_sigma(rng, scale, kind):
    data = ragged_data(rng, m=3, d=4, low=6, high=9)
    rows = rows_at(datafit_for(data), None)
    C, mean = some_covariance(rng, 4), rng.standard_normal(4)
    path = kind(rows, Prior("p", C, mean), GAMMA[:, None] * rows.unit)
    log_evidence, W = path.evidence(scale)
    mean = scale * mean
    X, y, gamma = data.X[1], data.y[1], GAMMA[:, None] * rows.unit
    best = []
    for g in (3, 7):
        M = np.eye(len(y)) + X @ C @ X.T / gamma[g, 1]

        def loss(log_sigma, M=M, g=g):
            sigma = np.exp(log_sigma)
            center = X @ mean * sigma / np.sqrt(gamma[g, 1])
            return -multivariate_normal.logpdf(y, center, sigma**2 * M)

        best.append(minimize_scalar(loss, bracket=(-2, 2)))
    difference = log_evidence[3, 1] - log_evidence[7, 1]
    assert difference == pytest.approx(best[1].fun - best[0].fun, rel=1e-5)
    sigma, P = np.exp(best[0].x), gamma[3, 1] * np.linalg.inv(C)
    w = np.linalg.solve(X.T @ X + P, X.T @ y + sigma / np.sqrt(gamma[3, 1]) * P @ mean)
    np.testing.assert_allclose(W[3, 1], w, rtol=1e-4)


@pytest.mark.parametrize("average", [False, True])
def test_the_logistic_optimum_is_a_fixed_point_of_the_expansion(rng, average):
    datafit = datafit_for(ragged_data(rng, m=3, d=3, kind="binary"), average)
    lam = 0.1
    W = ridge_path(datafit, [lam])[0]
    gamma = (lam / datafit.weight)[None]
    path = PriorPath(rows_at(datafit, W), Prior("separate", np.eye(3)), gamma)
    np.testing.assert_allclose(path.W[0], W, rtol=1e-5, atol=1e-7)


# --- what others see


@pytest.mark.parametrize("affine", [0.0, 0.1, 1.0])
def test_vectors_stay_within_the_bound_that_the_noise_is_scaled_by(rng, affine):
    m, d = 30, 4
    moments = Moments(affine, m, d, Gaussian())
    V = rng.standard_normal((m, d))
    V /= np.linalg.norm(V, axis=1)[:, None]
    for _ in range(3):
        U = moments.vectors(V)
        assert ((U**2).sum(axis=1) <= moments.K2 * (1 + 1e-12)).all()
        gap = [
            np.linalg.norm(np.outer(a, a) - np.outer(b, b)) for a in U[:8] for b in (*U[8:], -U[0])
        ]
        assert max(gap) <= np.sqrt(2) * moments.K2 * (1 + 1e-12)
        moments.add(U.T @ U, 0.01)


def test_moments_without_noise_are_those_of_the_models_in_every_round(rng):
    m, d = 50, 3
    V = rng.standard_normal((m, d)) + np.array([2.0, 0, 0])
    V /= np.linalg.norm(V, axis=1)[:, None]
    moments = Moments(0.5, m, d, NoNoise())
    moments.add(moments.vectors(V).T @ moments.vectors(V), 0.0)
    np.testing.assert_allclose(moments.S, V.T @ V)
    np.testing.assert_allclose(moments.mean, V.mean(axis=0))
    moments.radius = 2.0  # nothing is clipped
    moments.add(moments.vectors(V).T @ moments.vectors(V), 0.0)
    np.testing.assert_allclose(moments.S, V.T @ V)
    np.testing.assert_allclose(moments.total, V.sum(axis=0))


# --- the method


@pytest.mark.parametrize("mechanism", [Gaussian(), TwoSidedWishart(), Wishart()])
def test_statements_add_up(rng, mechanism):
    datafit = datafit_for(ragged_data(rng))
    budget = Budget(mechanism, 2.0, 1e-3)
    stated = {
        t: FeatureLearning("fl", t, rounds=2).statement(None, budget, datafit) for t in TUNINGS
    }
    assert "tuning-not-charged" in stated["shared"].caveats
    for tuning in ("local", "hyper"):
        assert "tuning-not-charged" not in stated[tuning].caveats
        assert "float-noise" in stated[tuning].caveats
    for tuning in TUNINGS:
        block = stated[tuning]
        claimed = FeatureLearning("fl", tuning).status(mechanism) == "claimed"
        pair = block.claimed if claimed else block.proved
        assert pair.epsilon == pytest.approx(2.0)
        assert pair.delta == 1e-3
    if mechanism.status == "proved":  # the choice over all tasks inside the fit is not covered
        assert stated["shared"].proved is None


def test_rounds_follow_from_public_constants_alone():
    method = FeatureLearning("fl_shared", "shared")
    budgets = [Budget(Gaussian(), e, 1e-3) for e in (0.1, 1.0, 10.0)]
    counts = [len(method.plan(budget, 139, 27).moments) for budget in budgets]
    assert counts == [1, 2, 3]


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("shape", [(1, 3, 4, 6), (3, 1, 2, 4), (4, 6, 2, 5)])
def test_odd_shapes_and_budgets(rng, tuning, kind, shape):
    m, d, low, high = shape
    datafit = datafit_for(ragged_data(rng, m=m, d=d, kind=kind, low=low, high=high))
    W0 = ridge_path(datafit, [0.1])[0]
    method = FeatureLearning("fl", tuning)
    for mechanism, epsilon in ((Gaussian(), 1e-6), (TwoSidedWishart(), 1e40), (NoNoise(), np.inf)):
        ((_, W),) = method.fit(datafit, W0, [None], Budget(mechanism, epsilon, 1e-3), rng)
        assert W.shape == (1, m, d)
        assert np.isfinite(W).all()


def test_one_sample_and_constant_targets(rng):
    X = [rng.standard_normal((n, 3)) for n in (1, 1, 4)]
    datafit = datafit_for(MultiTaskData.checked(X, [[2.0], [0.0], [1.0] * 4]))
    for tuning in TUNINGS:
        W = FeatureLearning("fl", tuning).models(
            datafit, np.zeros((3, 3)), Budget(Gaussian(), 1.0, 1e-3), rng
        )
        assert np.isfinite(W).all()
        assert np.abs(W[1]).max() < 1e-100


@pytest.mark.parametrize("tuning", TUNINGS)
def test_much_noise_falls_back_to_separate_tasks_and_little_noise_helps(tuning):
    train, test = GroupSparse(m=80, n=15, d=15).draw("", 0, 0)
    datafit = datafit_for(train)
    W0 = ridge_path(datafit, [0.01])[0]
    own = evaluate(test, own_models(datafit).W)["nmse"]
    method = FeatureLearning("fl", tuning)
    error = {}
    for epsilon in (1e-4, 10.0):
        W = method.models(datafit, W0, Budget(Gaussian(), epsilon, 1e-3), np.random.default_rng(3))
        error[epsilon] = evaluate(test, W)["nmse"]
    assert error[1e-4] < 1.1 * own
    assert error[10.0] < 0.5 * own


def test_the_same_noise_gives_the_same_models():
    train, _ = LowRank(m=20, n=8, d=4).draw("", 0, 0)
    method, budget = FeatureLearning("fl", "hyper"), Budget(Gaussian(), 1.0, 1e-2)
    first, second = (
        method.models(datafit_for(train), None, budget, np.random.default_rng(5)) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["fl", "fl_local", "fl_shared", "stl_local"])
@pytest.mark.parametrize("privacy", ["gaussian", "two_sided_wishart", "wishart", "none"])
def test_runs_from_the_command_line_configs(name, privacy):
    run = make_run(f"method={name}", f"privacy={privacy}", "epsilon=3")
    record = run_replicate(run, 0)
    assert np.isfinite(record["replicates"][0]["value"])
    block = record["privacy"]
    assert ("tuning-not-charged" in block["caveats"]) == (name == "fl_shared" and privacy != "none")
    if name == "stl_local":
        assert block["proved"]["epsilon"] == 0


def test_binary_data_from_python_and_the_range_of_settings(rng):
    data = ragged_data(rng, m=6, d=3, kind="binary")
    learner = MultiTaskClassifier(
        epsilon=5.0, delta=1e-3, classes=(-1, 1), privacy__noise="seeded", random_state=0
    )
    with pytest.warns(PrivacyCaveat) as caveats:
        learner.fit(data.X, data.y)
    assert {str(c.message).split(":")[0] for c in caveats} == {"float-noise", "reproducible-rng"}
    assert learner.coef_.shape == (6, 3)
    assert learner.privacy_.proved.epsilon == 5.0
    for bad in (
        {"tuning": "all"},
        {"affine": -1.0},
        {"affine": 2.0},
        {"rounds": -1},
        {"rounds": "many"},
    ):
        with pytest.raises(InputError, match=f"{next(iter(bad))} = "):
            FeatureLearning("fl", **bad)


def test_bad_settings_are_one_line():
    with pytest.raises(InputError, match="tuning = all: use shared or local or hyper"):
        make_run("method=fl", "method.tuning=all", *TINY)
    with pytest.raises(InputError, match="privacy=laplace does not fit"):
        make_run("method=fl", "privacy=laplace")


# --- the hyper-prior


def test_the_belief_is_the_posterior_of_a_normal_mean():
    posterior = Belief(-1.0, 4.0).updated(2.0, 1.0)
    grid = np.linspace(-20, 20, 400_001)
    density = np.exp(-((grid + 1) ** 2) / 8 - (grid - 2) ** 2 / 2)
    density /= density.sum()
    center = density @ grid
    assert posterior.center == pytest.approx(center, abs=1e-6)
    assert posterior.variance == pytest.approx(density @ (grid - center) ** 2, abs=1e-6)


def test_the_signal_is_the_mean_square_of_what_the_prior_explains(rng):
    rows = rows_at(datafit_for(ragged_data(rng, m=3, d=4, low=6, high=9)), None)
    C, mean = some_covariance(rng, 4), rng.standard_normal(4)
    path = PriorPath(rows, Prior("p", C, mean), GAMMA[:, None] * rows.unit)
    w = rng.multivariate_normal(0.5 * mean, C, size=200_000)
    for i, X in enumerate(rows.X):
        known = ((X @ w.T) ** 2).mean()
        assert path.signal(0.5)[i] == pytest.approx(known, rel=0.03)  # 5 standard errors
        assert np.exp(log_ratio(path, 0.5)[2, i]) == pytest.approx(
            path.gamma[2, i] / path.signal(0.5)[i]
        )


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_with_an_intercept_the_signal_is_the_variance_and_no_level_changes_it(kind, rng):
    """Whatever the prior says of the intercept, and however far the features are shifted."""
    data = ragged_data(rng, m=3, d=4, kind=kind, low=6, high=9)
    ones = MultiTaskData.checked(
        [np.column_stack([X[:, :3], np.ones(len(X))]) for X in data.X], data.y, kind=kind
    )
    datafit = replace(datafit_for(ones), intercept=True)
    rows = rows_at(datafit, np.zeros(datafit.shape))
    C, mean = some_covariance(rng, 4), rng.standard_normal(4)
    gamma = gamma_grid(rows)
    signal = PriorPath(rows, Prior("p", C, mean), gamma).signal(0.5)
    w = rng.multivariate_normal(0.5 * mean, C, size=200_000)
    for i, X in enumerate(ones.X):
        weight = 0.25 if kind == "binary" else 1.0  # of the logistic loss at zero
        assert signal[i] == pytest.approx(weight * np.var(X @ w.T, axis=0).mean(), rel=0.03)
    for prior in (Prior("p", C, mean, free=True), Prior("p", C, mean + 50 * np.eye(4)[3])):
        np.testing.assert_allclose(PriorPath(rows, prior, gamma).signal(0.5), signal)
    one = MultiTaskData.checked(
        [ones.X[0][:1], ones.X[1][[0, 0]]],
        [ones.y[0][:1]] * 1 + [ones.y[1][[0, 0]]],
        kind=kind,
        strict=False,
    )
    rows = rows_at(replace(datafit_for(one), intercept=True), np.zeros((2, 4)))
    np.testing.assert_array_equal(preferences(PriorPath(rows, Prior("p", C), gamma_grid(rows))), 0)


def test_averages_have_the_weights_that_are_said(rng):
    rows = rows_at(datafit_for(ragged_data(rng, m=3, d=4, low=6, high=9)), None)
    gamma, belief = gamma_grid(rows, GRID), Belief(-1.0, 0.5)
    priors_ = [Prior("separate", np.eye(4)), Prior("m", np.eye(4), rng.standard_normal(4))]
    paths = [PriorPath(rows, prior, gamma) for prior in priors_]
    weights, terms = by_hierarchy(paths, (0.5, 1.0), belief)
    assert weights.shape == (3, len(GRID), 3)
    np.testing.assert_allclose(weights.sum(axis=(0, 1)), 1)
    i, joint = 1, []
    for path, scale in ((paths[0], 1.0), (paths[1], 0.5), (paths[1], 1.0)):
        p = 1 / (1 + (log_ratio(path, scale)[:, i] + 1) ** 2 / (0.5 + SPREAD**2))
        joint.append(np.exp(path.evidence(scale)[0][:, i]) * p / p.sum())
    joint = np.stack(joint)
    among = joint.sum(axis=1) ** (1 / HOT)
    expected = among[:, None] / among.sum() * joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights[:, :, i], expected, rtol=1e-6)
    path, a = terms[1]
    np.testing.assert_array_equal(path.W + a[:, :, None] * path.pull, path.evidence(0.5)[1])


def test_preferences_are_bounded_and_follow_the_noise():
    means = []
    for noise in (0.01, 1.0, 30.0):
        train, _ = separate_tasks(0, noise=noise)
        rows = rows_at(datafit_for(train), None)
        separate = separate_priors(datafit_for(train))[-1]
        q = preferences(PriorPath(rows, separate, gamma_grid(rows, GRID)))
        assert q.shape == (len(train.y), 1)
        assert np.abs(q).max() <= 1
        means.append(q.mean())
    assert means == sorted(means)
    assert means[2] > means[0] + 0.5


def test_a_task_whose_rows_show_nothing_has_no_preference():
    X = [np.eye(3), np.zeros((0, 3)), np.zeros((4, 3))]
    data = MultiTaskData.checked(X, [np.ones(3), np.zeros(0), np.ones(4)], strict=False)
    rows = rows_at(datafit_for(data), None)
    separate = separate_priors(datafit_for(data))[-1]
    q = preferences(PriorPath(rows, separate, gamma_grid(rows, GRID)))
    assert q[0, 0] != 0
    np.testing.assert_array_equal(q[1:], 0)


@pytest.mark.parametrize("m", [10, 140])
@pytest.mark.parametrize("d", [1, 2, 20])
def test_the_parts_of_a_plan_cost_what_is_stated(m, d, rng):
    kinds = set()
    for epsilon in (1e-3, 0.1, 1.0, 10.0):
        method, budget = FeatureLearning("fl", "hyper"), Budget(Gaussian(), epsilon, 1 / m**1.5)
        plan = method.plan(budget, m, d)
        total = np.sqrt((plan.ratio**2).sum() + (plan.rounds**2).sum())
        assert total <= gaussian_mu(epsilon, 1 / m**1.5)
        assert total == pytest.approx(gaussian_mu(epsilon, 1 / m**1.5), rel=1e-9)
        datafit = datafit_for(ragged_data(rng, m, d, low=2, high=4))
        gates, log = method.gates(None, budget, datafit), FitLog()
        spent = np.concatenate([gate.budgets for gate in gates])
        np.testing.assert_array_equal(spent, method.round_budgets(None, budget, datafit))
        method.models(datafit, None, budget, np.random.default_rng(0), log)
        shapes = [gate.release.shape for gate in gates for _ in gate.budgets]
        assert [part.shape for part in log.released] == shapes
        assert method.statement(None, budget, datafit).proved.epsilon == epsilon
        kinds |= {gate.release.kind for gate in gates}
    assert kinds >= {"sum", "parts"}
    assert ("covariance" in kinds) or m == 10


@pytest.mark.parametrize("tuning", ["shared", "local", "hyper"])
def test_shared_features_need_one_release_that_finds_them(tuning, rng):
    """With a tenth of the features in use the sizes find them where noise hides the moments."""
    m, d = 150, 20
    W = np.zeros((m, d))
    W[:, :2] = rng.standard_normal((m, 2))
    X = [rng.standard_normal((25, d)) for _ in range(m)]
    y = [A @ w + rng.standard_normal(25) for A, w in zip(X, W, strict=True)]
    datafit, budget = datafit_for(MultiTaskData.checked(X, y)), Budget(Gaussian(), 0.5, 1e-3)
    errors = {}
    for structure in ("any", "features"):
        method, log = FeatureLearning("fl", tuning, structure=structure), FitLog()
        models = method.models(datafit, None, budget, np.random.default_rng(0), log)
        errors[structure] = ((models - W) ** 2).sum() / (W**2).sum()
    assert [gate.release.kind for gate in method.gates(None, budget, datafit)][-1:] == ["sizes"]
    assert log.released[-1].shape == (d,)
    assert errors["features"] < 0.8 * errors["any"]
    with pytest.raises(InputError, match="structure=features there is one release"):
        FeatureLearning("fl", tuning, structure="features", rounds=3)


@pytest.mark.parametrize("settings", [{"rounds": 1}, {"rounds": 5}, {"affine": 0.0}])
def test_fixed_rounds_and_no_mean_release_second_moments_alone(settings):
    method = FeatureLearning("fl", "hyper", **settings)
    plan = method.plan(Budget(Gaussian(), 0.01, 1e-3), 100, 10)
    assert len(plan.parts) == len(plan.refinements) == 0
    assert len(plan.moments) == settings.get("rounds", 1)


def test_signed_parts_give_the_sum_and_the_sizes_at_the_price_of_the_sum(rng):
    release, budget = signed_parts(3), Budget(Gaussian(), 1.0, 1e-3)
    V = bounded(3 * rng.standard_normal((400, 3)), 1.0)
    ends = np.vstack([V, -V, np.eye(3), -np.eye(3)])
    parts = np.stack([release.total(v[None]) for v in ends])
    assert max(np.linalg.norm(p - q) for p in parts for q in parts[::7]) <= release.l2 + 1e-12
    assert np.linalg.norm(parts[-6] - parts[-5]) == pytest.approx(release.l2)  # attained
    assert max(np.abs(p - q).sum() for p in parts for q in parts[::7]) <= release.l1 + 1e-12
    total = release.total(V)
    np.testing.assert_allclose(total[:3] - total[3:], V.sum(axis=0))
    np.testing.assert_allclose(total[:3] + total[3:], np.abs(V).sum(axis=0))
    gate = budget.open(release, 1, rng, size=(20_000,)).with_budgets([[0.5]] * 20_000)
    noise = gate(1, np.zeros((20_000, 2, 3)), np.ones(20_000))
    plain = budget.planned(vector_sum(3), [0.5]).scale(1, 1.0)  # 1 % is 3.5 standard errors
    assert np.std(noise[:, :3] - noise[:, 3:]) == pytest.approx(plain, rel=0.01)
    assert np.std(noise[:, :3] + noise[:, 3:]) == pytest.approx(plain, rel=0.01)


def test_the_sizes_find_the_features_and_the_difference_the_mean(rng):
    m, d = 400, 12
    V = np.zeros((m, d))
    V[:, :2] = rng.choice([-1, 1], (m, 2))
    V[:, 1] = np.abs(V[:, 1])
    V /= np.linalg.norm(V, axis=1)[:, None]
    noisy = signed_parts(d).total(V) + 5 * rng.standard_normal(2 * d)
    *sizes, mean = parts_priors(noisy, 5 * np.sqrt(2), m)
    for prior in sizes:
        assert np.trace(prior.C) == pytest.approx(d)
        assert np.linalg.eigvalsh(prior.C)[0] > 0
    assert np.diag(sizes[1].C)[:2].sum() > 0.8 * d
    assert mean.mean[1] / np.linalg.norm(mean.mean) > 0.9


def unrelated_labels(rng, m, n, d, tests=200):
    """Binary tasks whose models have nothing in common; rows of unit length about one mean."""
    X = (rng.random((m, n + tests, d)) < 0.3) + rng.random(d)
    X /= np.linalg.norm(X, axis=2)[:, :, None]
    scores = np.einsum("mnd,md->mn", X, 5 * rng.standard_normal((m, d)))
    scores -= scores.mean(axis=1, keepdims=True)
    y = np.where(rng.random(scores.shape) < expit(scores), 1.0, -1.0)
    return X[:, :n], y[:, :n], X[:, n:], y[:, n:]


def test_labels_of_unrelated_tasks_are_not_led_astray_by_noise_and_chance(rng):
    # standard error .001; priors that are not cautious, or leave the level free, lose .025
    differences = []
    for seed in range(4):
        X, y, X_test, y_test = unrelated_labels(rng, 20, 60, 40)
        datafit, budget = LogisticLoss(tuple(X), tuple(y)), Budget(Gaussian(), 1.0, 0.01)
        scores = {}
        for rounds in (0, "auto"):
            method, draws = FeatureLearning("fl", rounds=rounds), np.random.default_rng(seed)
            W = method.models(datafit, None, budget, draws)
            tasks = zip(X_test, y_test, W, strict=True)
            scores[rounds] = np.mean([auc(X @ w, y) for X, y, w in tasks])
        differences.append(scores["auto"] - scores[0])
    assert np.mean(differences) > -0.012


def test_what_chance_makes_of_unrelated_vectors_goes_to_separate_tasks(rng):
    d, m = 30, 40
    V = rng.standard_normal((m, d))
    V /= np.linalg.norm(V, axis=1)[:, None]
    C = V.T @ V * d / m
    made = Prior("chance", C, scaled_mean(V.mean(axis=0)))
    shrunk = cautious(made, V.sum(axis=0), 0.0, m)
    assert np.linalg.norm(shrunk.C - np.eye(d)) < 0.2 * np.linalg.norm(C - np.eye(d))
    assert np.linalg.norm(shrunk.mean) < 0.5 * np.linalg.norm(made.mean)
    assert np.trace(shrunk.C) == pytest.approx(d)


def test_what_many_tasks_have_in_common_stays(rng):
    d, m = 10, 2000
    V = np.zeros((m, d))
    V[:, :2] = rng.normal([0, 2], 1, (m, 2))
    V /= np.linalg.norm(V, axis=1)[:, None]
    made = Prior("common", V.T @ V * d / m, scaled_mean(V.mean(axis=0)))
    shrunk = cautious(made, V.sum(axis=0), 1.0, m)
    np.testing.assert_allclose(shrunk.C, made.C, atol=0.02)
    np.testing.assert_allclose(shrunk.mean, made.mean, rtol=0.01)
    noisy = cautious(made, V.sum(axis=0), 2 * m, m, least=0.4)
    np.testing.assert_allclose(noisy.C, 0.6 * made.C + 0.4 * np.eye(d))
    assert (noisy.mean == 0).all()


# --- refinement


def turned_subspace(rng, m, d, angle):
    """Unit models in a plane, and a plane that is turned away from it by `angle`."""
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    true, off = Q[:, :2], Q[:, 2:4]
    V = rng.standard_normal((m, 2)) @ true.T
    U = np.cos(angle) * true + np.sin(angle) * off
    subspace = Subspace(U, np.full(2, m / 2), np.full(2, np.tan(angle)), np.eye(d))
    return V / np.linalg.norm(V, axis=1)[:, None], true, subspace


def outside(true, U):
    return np.linalg.norm(U - true @ (true.T @ U))


@pytest.mark.parametrize("angle", [0.05, 0.3])
def test_exact_contributions_turn_a_subspace_back(rng, angle):
    V, true, subspace = turned_subspace(rng, 500, 8, angle)
    G = contributions(V, subspace.U).sum(axis=0)
    refined = subspace.refined(G, 0.0)
    assert outside(true, refined.U) < 0.15 * outside(true, subspace.U)
    np.testing.assert_allclose(refined.U.T @ refined.U, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(refined.turn @ subspace.U, refined.U, atol=1e-12)
    assert (refined.tangent == 0).all()
    np.testing.assert_allclose(refined.levels * np.cos(angle) ** 2, subspace.levels)  # all is seen


def test_noise_alone_moves_a_subspace_little(rng):
    _, _, subspace = turned_subspace(rng, 500, 30, 0.2)
    steps = []
    for _ in range(50):
        refined = subspace.refined(1e4 * rng.standard_normal((30, 2)), 1e4)
        steps.append(np.linalg.norm(refined.U - subspace.U) / np.tan(0.2))
    assert np.mean(steps) < 0.3
    noisier = subspace.refined(1e4 * rng.standard_normal((30, 2)), 1e5)
    np.testing.assert_allclose(noisier.U, subspace.U, atol=1e-12)  # less than noise: no step


def test_contributions_are_bounded_by_the_gate_and_the_subspace_is_public(rng):
    V, _, subspace = turned_subspace(rng, 50, 6, 0.4)
    A = contributions(V, subspace.U)
    np.testing.assert_allclose(np.einsum("mdr,dk->mrk", A, subspace.U), 0, atol=1e-12)
    assert contributions(np.zeros((2, 6)), subspace.U).max() == 0
    gate = Budget(NoNoise(), np.inf, 0.0).open(vector_sum(6, 2), 1, rng).with_budgets([np.inf])
    c = subspace.clip
    assert c >= LEAST_CLIP
    assert np.linalg.norm(gate(1, 1e6 * A[:1], c)) <= c * (1 + 1e-12)
    prior = subspace.prior(0.1)
    assert np.trace(prior.C) == pytest.approx(6)
    assert np.linalg.eigvalsh(prior.C)[0] > 0


def test_the_eigenvectors_are_as_far_off_as_is_said(rng):
    d, m = 40, 1000
    noise = noise_spectrum(Gaussian(), d).scaled(10.0)
    U = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    measured, said = [], []
    for _ in range(100):
        S = U @ np.diag([600, 400]) @ U.T + 10 * Gaussian().draw(rng, covariance(d))
        subspace = subspace_of(S, noise)
        top = subspace.U[:, -2:]
        cosine2 = ((U.T @ top) ** 2).sum(axis=0)
        measured.append(np.sqrt(1 / cosine2 - 1))
        said.append(subspace.tangent[-2:])
    np.testing.assert_allclose(np.mean(said, axis=0), np.mean(measured, axis=0), rtol=0.15)
    assert subspace.U.shape == (d, rank(d))
    assert m > subspace.levels[-1] > subspace.levels[0] > 0


def test_refinements_help_where_models_share_a_subspace():
    train, test = LowRank(m=200, n=30, d=20).draw("", 0, 0)
    datafit, error = datafit_for(train), {}
    budget = Budget(Gaussian(), 5.0, 1e-4)
    for rounds in ("auto", 3):
        method = FeatureLearning("fl", "hyper", rounds=rounds)
        assert (len(method.plan(budget, 200, 20).refinements) == 2) == (rounds == "auto")
        W = method.models(datafit, None, budget, np.random.default_rng(1))
        error[rounds] = evaluate(test, W)["nmse"]
    assert error["auto"] < error[3]


# --- tasks with an intercept


SEPARATE = {
    "small gamma": {"noise": 0.01, "scales": np.array([1.0, 1e-2, 1e2])},
    "no noise": {"noise": 0.0},
    "large gamma": {"slope": 0.03, "noise": 1.0},
    "own means": {"slope": 0.0, "noise": 1.0},
    "plain": {},
}


@pytest.mark.parametrize("case", SEPARATE)
def test_the_best_gamma_is_inside_the_grid_or_at_its_widest(case):
    """Of the leave-one-out errors of separate tasks; the grid stays even, and is widened only where
    it has to be."""
    datafit = datafit_for(separate_tasks(0, **SEPARATE[case])[0])
    choice = SharedChoice(datafit.chunks(), len(datafit.n), int(datafit.n.sum()), logistic=False)
    own = datafit.chunks().map(started)
    grid, alone = choice.alone(own, separate_priors(datafit), datafit.intercept)
    best = int(np.argmin(np.min([judged.errors for judged in alone], axis=0)))
    assert best > 0 or grid[0] <= WIDEST[0]
    assert best < len(grid) - 1 or grid[-1] >= WIDEST[1]
    assert set(np.round(np.log10(GAMMA), 9)) <= set(np.round(np.log10(grid), 9))
    np.testing.assert_allclose(grid[1:] / grid[:-1], GAMMA[1] / GAMMA[0])
    wanted = {"small gamma": grid[0] < GAMMA[0], "no noise": grid[0] < GAMMA[0]}
    wanted |= {"large gamma": grid[-1] > GAMMA[-1], "own means": grid[-1] > GAMMA[-1]}
    assert wanted.get(case, len(grid) == len(GAMMA))
    assert all(len(judged.errors) == len(grid) for judged in alone)


@pytest.mark.parametrize(
    ("level", "rounds"),
    [(1.0, "auto"), (100.0, "auto"), (1.0, 0), pytest.param(10.0, 0, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("case", SEPARATE)
def test_nothing_shared_costs_little(case, level, rounds):
    """Without noise on releases, or without any, beside ridge at its best penalty or the tasks' own
    means, though their levels are far apart: on average over draws at most 5 % more."""
    errors = []
    for seed in range(3):
        train, test = separate_tasks(seed, level=level, **SEPARATE[case])
        means = np.array([y.mean() for y in train.y])
        datafit = datafit_for(train)
        lams = np.append(datafit.lipschitz() * np.logspace(-12, 3, 31), np.inf)
        stl = min(evaluate(test, W, means)["nmse_own_mean"] for W in ridge_path(datafit, lams))
        W = FeatureLearning("fl_shared", "shared", rounds=rounds).models(
            datafit, None, Budget(NoNoise(), np.inf, 1e-3), np.random.default_rng(0)
        )
        errors.append((evaluate(test, W, means)["nmse_own_mean"], stl))
    fl, stl = np.mean(errors, axis=0)
    if case == "no noise":
        assert fl < 1e-6
    else:
        assert fl <= 1.05 * stl


def test_a_shift_of_all_tasks_far_away_leaves_little_to_priors():
    """Levels all at 100 slopes: a prior that is not free of the intercept sees nothing else."""
    train, test = separate_tasks(0)
    means = np.array([y.mean() for y in train.y])
    error = {}
    for shift in (0.0, 100.0):
        datafit = datafit_for(replace(train, y=tuple(y + shift for y in train.y)))
        moved = replace(test, y=tuple(y + shift for y in test.y))
        W = FeatureLearning("fl_shared", "shared").models(
            datafit, None, Budget(NoNoise(), np.inf, 1e-3), np.random.default_rng(0)
        )
        error[shift] = evaluate(moved, W, means + shift)["nmse_own_mean"]
    assert error[100.0] <= 1.05 * error[0.0]


def test_errors_weigh_samples_where_the_error_is_pooled(rng):
    """With `pooled` the leave-one-out error is the squared error over all samples, by refitting."""
    data = replace(ragged_data(rng, m=3, d=3, low=4, high=9).with_intercept(), pooled=True)
    data = replace(data, y=tuple(10**i * y for i, y in enumerate(data.y)))
    rows = rows_at(datafit_for(data), None)
    gamma = gamma_grid(rows)
    for free in (False, True):
        errors, _ = PriorPath(rows, Prior("separate", np.eye(4), free=free), gamma).shared_scale()
        for g in (0, 5, 10):
            total, precision = 0.0, np.diag([1, 1, 1, 1 / (1 + FREE * free)])
            for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
                for j in range(len(y)):
                    A, b = np.delete(X, j, axis=0), np.delete(y, j)
                    w = np.linalg.solve(A.T @ A + gamma[g, i] * precision, A.T @ b)
                    total += (y[j] - X[j] @ w) ** 2
            assert errors[g] == pytest.approx(total / data.n_samples.sum(), rel=1e-6)
