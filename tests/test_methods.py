"""Methods: candidates, limits without and with much noise, and what is said about their privacy."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import make_run, ragged_data

from mpmtl import Gaussian, Laplace, NoNoise, TwoSidedWishart, Wishart, wishart_delta
from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.experiments.tuning import cross_validate, edges, prepare
from mpmtl.methods import (
    NO_BUDGET,
    Budget,
    PathCandidate,
    Proximal,
    ProximalCandidate,
    Scales,
    SingleTask,
    SingleTaskCandidate,
    theory_rate,
)
from mpmtl.penalties import penalty_named
from mpmtl.solvers.proximal import solve
from mpmtl.solvers.single_task import ridge_path

PRIVATE = [
    (Proximal("lr", "trace", private=True), mech)
    for mech in (Wishart(), TwoSidedWishart(), Gaussian(), Gaussian(shift=1.0))
]
PRIVATE += [
    (Proximal("gs", "l21", private=True), mech)
    for mech in (Wishart(), TwoSidedWishart(), Gaussian(), Laplace())
]


def fit_one(method, datafit, W0, candidate, budget, seed=0):
    ((_, W),) = method.fit(datafit, W0, [candidate], budget, np.random.default_rng(seed))
    return W[0]


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("name", ["trace", "l21"])
@pytest.mark.parametrize("mech", [NoNoise(), Wishart(), TwoSidedWishart(), Gaussian()])
def test_without_noise_the_private_method_is_its_relative(kind, name, mech, rng):
    """privacy=none, or epsilon = 1e40, and no clipping: mtl_lr and mtl_gs."""
    datafit = datafit_for(ragged_data(rng, 7, 4, kind))
    lam = 0.05 * penalty_named(name).dual_norm(datafit.gradient(np.zeros((1, 7, 4))))[0]
    private = Proximal("p", name, private=True, init="zero")
    public = Proximal("q", name, private=False, init="zero")
    candidate = ProximalCandidate(lam, 60, True, False, alpha=0.4, K=1e6)
    budget = Budget(mech, 1e40, 1e-3)
    zero = np.zeros(datafit.shape)
    got = fit_one(private, datafit, zero, candidate, budget)
    want = fit_one(public, datafit, zero, PathCandidate(lam, 60), NO_BUDGET)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["trace", "l21"])
def test_many_rounds_reach_the_optimum(name, rng):
    datafit = datafit_for(ragged_data(rng, 7, 4))
    method = Proximal("mtl", name, private=False, init="zero")
    zero = np.zeros(datafit.shape)
    got = fit_one(method, datafit, zero, PathCandidate(1.0, 5000), NO_BUDGET)
    want, gap, _ = solve(datafit, penalty_named(name), 1.0, tol=1e-12)
    assert gap <= 1e-12
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize(("method", "mech"), PRIVATE, ids=lambda x: x.name)
def test_much_noise_gives_stl(method, mech, rng):
    """Proposition 1: for epsilon -> 0, T = 1 returns the separate models it started from."""
    datafit = datafit_for(ragged_data(rng, 7, 4))
    W0 = ridge_path(datafit, [1.0])[0]
    candidate = ProximalCandidate(1.0, 1, False, False, alpha=0.0, K=100.0)
    distance = [
        np.abs(fit_one(method, datafit, W0, candidate, Budget(mech, eps, 1e-3)) - W0).max()
        for eps in (1e-6, 1e-10, 1e-14)
    ]
    assert distance[2] < 1e-3
    assert distance[2] < distance[0]


@pytest.mark.parametrize(("method", "mech"), PRIVATE, ids=lambda x: x.name)
@pytest.mark.parametrize("eps", [1e-6, 0.1, 1e40])
def test_any_budget_gives_finite_models(method, mech, eps, rng):
    datafit = datafit_for(ragged_data(rng, 5, 6))
    W0 = ridge_path(datafit, [1.0])[0]
    for accelerated, strongly in ((False, False), (True, False), (False, True), (True, True)):
        rate = {"Q": 0.99} if strongly else {"alpha": 0.4}
        candidate = ProximalCandidate(1.0, 30, accelerated, strongly, K=1.0, **rate)
        W = fit_one(method, datafit, W0, candidate, Budget(mech, eps, 1e-3))
        assert np.isfinite(W).all()
        assert np.linalg.norm(W, axis=1).max() <= 1.0 + 1e-6 + np.abs(W0).max()


def test_candidates_that_run_together_get_the_same_as_alone(rng):
    """A block of candidates equals one fit after the other, bit for bit in the noise they share."""
    datafit = datafit_for(ragged_data(rng, 9, 5))
    W0 = ridge_path(datafit, [1.0])[0]
    run = make_run("method=lr", "tuning=standard")
    unit = Scales(datafit.lipschitz(), datafit.gradient(np.zeros((1, 9, 5)))[0], 1.0)
    candidates = run.method.candidates(unit)
    budget = Budget(Wishart(), 1.0, 1e-3)
    together = np.empty((len(candidates), 9, 5))
    for indices, W in run.method.fit(datafit, W0, candidates, budget, np.random.default_rng(0)):
        together[indices] = W
    for index in range(0, len(candidates), 17):
        alone = fit_one(run.method, datafit, W0, candidates[index], budget)
        np.testing.assert_allclose(together[index], alone, rtol=1e-9, atol=1e-11)


def test_paper_grid_spans_what_the_paper_tunes():
    run = make_run("method=lr", "tuning=paper")
    candidates = run.method.candidates(Scales(4.0, np.ones((2, 2)), 1.0))
    assert len(candidates) == 13 * 7 * 4 * 2 * (5 + 5)
    assert {c.n_rounds for c in candidates} == {1, 2, 5, 10, 20, 50, 100}
    assert {c.alpha for c in candidates if not c.strongly_convex} == {-0.5, 0, 0.4, 1, 2}
    assert all((c.alpha is None) == c.strongly_convex for c in candidates)


def test_theory_rates():
    assert theory_rate(False, False, 0.1) == 0
    assert theory_rate(True, False, 0.1) == 0.4
    assert theory_rate(False, True, 0.1) == pytest.approx(0.9**0.4)
    assert theory_rate(True, True, 0.1) == pytest.approx((1 - 0.1**0.5) ** 0.2)


def test_relative_grids_follow_the_scale_of_the_data(rng):
    """Targets times 1000 leave the chosen setting and the fit unchanged up to scale."""
    run = make_run("method=mtl_lr")
    data = ragged_data(rng, 8, 3, low=9, high=15)
    scaled = replace(data, y=tuple(1000 * y for y in data.y))
    chosen = []
    for d in (data, scaled):
        problem = prepare(d, run.tuning, run.method, 0, 0)
        candidates = run.method.candidates(problem.scales)
        errors = cross_validate(run.method, problem, candidates, NO_BUDGET, lambda fold: None)
        chosen.append((int(errors.argmin()), errors.min()))
    assert chosen[0][0] == chosen[1][0]
    assert chosen[0][1] == pytest.approx(chosen[1][1], rel=1e-6)


def test_stl_best_has_candidates_of_both_penalties():
    run = make_run("method=stl", "method.penalty=best")
    candidates = run.method.candidates(Scales(1.0, np.ones((2, 2)), 1.0))
    assert {c.penalty for c in candidates} == {"l1", "l2"}


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_stl_tasks_do_not_see_each_other(penalty, kind, rng):
    """Claim 1: replacing a task leaves the others' models alone, bit for bit."""
    data = ragged_data(rng, 4, 3, kind)
    other = replace(data, X=(10 * data.X[0], *data.X[1:]), y=(data.y[0][::-1], *data.y[1:]))
    candidate = SingleTaskCandidate(penalty, 0.02, 200)
    before, after = (
        fit_one(SingleTask(penalty=penalty), datafit_for(d), np.zeros((4, 3)), candidate, NO_BUDGET)
        for d in (data, other)
    )
    np.testing.assert_array_equal(before[1:], after[1:])
    assert not np.array_equal(before[0], after[0])


def test_edges_are_named():
    grid = [PathCandidate(lam, T) for lam in (1, 2, 3) for T in (1, 5, 9)]
    limits = Proximal("mtl_lr", "trace", private=False).limits()
    assert edges(limits, PathCandidate(2, 5), grid) == []
    assert edges(limits, PathCandidate(3, 1), grid) == ["lam"]  # T cannot be below 1
    assert edges(limits, PathCandidate(1, 9), grid) == ["lam", "n_rounds"]


def test_what_is_proved_for_the_paper_depends_on_the_rounds():
    method = Proximal("lr", "trace", private=True)
    budget = Budget(Wishart(), 0.1, 5e-4)
    candidate = ProximalCandidate(1.0, 50, True, False, alpha=0.4, K=1.0)
    block = method.statement(candidate, budget, SimpleNamespace(shape=(320, 30)))
    eps_t = budget.of_rounds(candidate)
    assert block.claimed.epsilon == 0.1
    assert block.proved.delta == pytest.approx(wishart_delta(eps_t))
    assert block.proved.delta > 100 * block.claimed.delta


def test_stl_is_proved_and_tuning_is_not_covered():
    block = SingleTask().statement(None, NO_BUDGET, None)
    assert (block.proved.epsilon, block.proved.delta) == (0, 0)
    assert block.caveats == ()  # what is tuned over all tasks is a matter of the run


def test_a_level_far_from_zero_survives_the_clipping(rng):
    """With an intercept only the release is clipped; K is half of a model that is all level."""
    X = [rng.standard_normal((20, 2)) for _ in range(6)]
    y = [10.0 * (-1) ** i + 0.1 * rng.standard_normal(20) for i in range(6)]
    datafit = datafit_for(MultiTaskData.checked(X, y).with_intercept())
    W0 = ridge_path(datafit, [1.0])[0]
    candidate = ProximalCandidate(1e-3, 20, True, False, alpha=0.4, K=5.0)
    budget = Budget(Gaussian(), 100.0, 1e-3)
    errors = {}
    for clip in ("auto", "covariance", "models"):
        method = Proximal("lr", "trace", private=True, clip=clip)
        ((_, W),) = method.fit(datafit, W0, [candidate], budget, np.random.default_rng(0))
        errors[clip] = float(datafit.squared_error(W).sum())
        assert method.statement(candidate, budget, datafit).proved.epsilon == 100.0
    assert errors["auto"] == errors["covariance"] < 0.1 * errors["models"]
    plain = datafit_for(MultiTaskData.checked(X, y))
    assert Proximal("lr", "trace", private=True).clips(plain) == "models"
