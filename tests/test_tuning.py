"""Cross-validation and its race over folds."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import make_run

from mpmtl.errors import InputError
from mpmtl.experiments.tuning import cross_validate, prepare
from mpmtl.streams import stream


@pytest.fixture(scope="module")
def setting():
    run = make_run("method=lr", "tuning=standard", "dataset.m=40", "dataset.n=20", "epsilon=1")
    train, _ = run.dataset.draw("", 0, 0)
    problem = prepare(train, run.tuning, run.method, 0, 0)
    candidates = run.method.candidates(run.tuning, problem.scales)
    return run, train, problem, candidates


def noise(fold):
    return stream(0, "noise", 0, fold)


class Counting:
    """A method that counts the candidates it fits."""

    def __init__(self, method):
        self.method, self.count = method, 0

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        self.count += len(candidates)
        return self.method.fit(datafit, W0, candidates, budget, rng, log)


def test_a_race_costs_a_quarter_and_agrees_with_the_grid_where_it_finishes(setting):
    run, train, problem, candidates = setting
    budget = run.budget(train.n_tasks)
    grid, race = Counting(run.method), Counting(run.method)
    full = cross_validate(grid, problem, candidates, budget, noise)
    raced = cross_validate(race, problem, candidates, budget, noise, "halving")
    assert grid.count == 5 * len(candidates)
    assert race.count <= grid.count / 4
    finished = np.isfinite(raced)
    assert 1 <= finished.sum() <= 8
    np.testing.assert_allclose(raced[finished], full[finished], rtol=1e-9)
    # what it chooses is among the grid's best: within 5 % of the lowest error
    assert full[raced.argmin()] <= 1.05 * full.min()


def test_a_candidate_that_diverges_is_never_chosen(setting):
    _, _, problem, candidates = setting

    class Diverging:
        def fit(self, datafit, W0, candidates, budget, rng, log=None):
            W = np.repeat(W0[None], len(candidates), axis=0)
            W[1] = np.nan
            W[2] = np.inf
            yield np.arange(len(candidates)), W

    with np.errstate(invalid="ignore"):
        errors = cross_validate(Diverging(), problem, candidates[:4], None, noise)
    assert np.isinf(errors[1:3]).all()
    assert np.isfinite(errors[[0, 3]]).all()


def test_the_error_is_the_mean_over_folds_and_tasks(setting):
    """Against a plain loop over folds, tasks and samples for the STL models."""
    _, train, problem, _ = setting

    class Start:
        def fit(self, datafit, W0, candidates, budget, rng, log=None):
            yield np.array([0]), W0[None]

    got = cross_validate(Start(), problem, [None], None, noise)[0]
    want = []
    for part, W in zip(problem.parts, problem.fold_starts, strict=True):
        for i in range(train.n_tasks):
            error = ((part.X[i] @ W[i] - part.y[i]) ** 2).mean()
            want.append(error / train.y[i].var())
    assert got == pytest.approx(np.mean(want), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": "random"}, "tuning.search = random: use grid or halving"),
        ({"lam_unit": "relative"}, "use max or absolute"),
        ({"K_unit": "mean"}, "use median or absolute"),
        ({"Q": (0,)}, "tuning.Q = 0 must be above 0 or theory"),
        ({"rank": (0,)}, "tuning.rank = 0"),
        ({"gamma": (-1.0,)}, "tuning.gamma = -1.0"),
    ],
)
def test_impossible_grids_are_refused(setting, change, message):
    with pytest.raises(InputError, match=message):
        replace(setting[0].tuning, **change)
