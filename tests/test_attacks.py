"""Attacks that once succeeded against printed guarantees, each for its whole kind."""

import pickle
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from conftest import make_run, ragged_data
from sklearn.base import clone

from mpmtl import Gaussian, MultiTaskClassifier, MultiTaskRegressor, Wishart
from mpmtl.data import MultiTaskData
from mpmtl.data.tasks import assign_folds, split
from mpmtl.datafits import datafit_for
from mpmtl.experiments.runner import run_replicate
from mpmtl.methods import Average, AverageCandidate, PrivateRelations, PrivateRelationsCandidate
from mpmtl.privacy.clipping import bounded, directions
from mpmtl.privacy.mechanisms import OutputPerturbation
from mpmtl.privacy.releases import Budget, relation

pytestmark = pytest.mark.filterwarnings("ignore::mpmtl.PrivacyCaveat")
#: Every constant is public, so that nothing is chosen from all tasks' data.
PUBLIC = {
    "delta": 1e-4,
    "privacy": "gaussian",
    "tuning": "fixed",
    "method__eta": "public",
    "method__loss_average": True,
    "norm": 1.0,
}
LEARNERS = [
    MultiTaskRegressor("fl_local", delta=1e-4, method__rounds=2),
    MultiTaskRegressor("fl", delta=1e-4),
    MultiTaskRegressor("lr", **PUBLIC, method__grid__n_rounds=3),
    MultiTaskClassifier("gs", **PUBLIC, method__grid__n_rounds=3, classes=(-1, 1)),
]


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e76, 1e80, 1e104, 1e155, 1e160, 1e300, np.nan])
@pytest.mark.parametrize("of", ["X", "y"])
def test_no_value_of_one_task_stops_the_fit_of_all(learner, size, of, rng):
    """A fit that raises for everybody tells everybody about the task that made it raise."""
    data = ragged_data(rng, 5, 3, learner.kind)
    X, y = list(data.X), list(data.y)
    if of == "X":
        X[2] = X[2] * size
    else:
        y[2] = y[2] * size
    fitted = clone(learner).fit(X, y)
    assert np.isfinite(fitted.coef_).all()


def test_a_unit_vector_has_norm_one_or_is_zero(rng):
    """Squares of entries near 1e-160 vanish: a vector of norm 12 was released as a unit vector."""
    v = rng.standard_normal((9, 4))
    for size in 10.0 ** np.arange(-320, 308, 7):
        norms = np.linalg.norm(directions(size * v), axis=1)
        assert ((np.abs(norms - 1) < 1e-12) | (norms == 0)).all()
        norms = np.linalg.norm(bounded(size * v, 0.5), axis=1)
        assert (norms <= 0.5 * (1 + 1e-12)).all()


def test_the_size_of_a_task_does_not_set_the_noise_unless_that_is_said(rng):
    """`dp_aggr` scales its noise by sizes: they are public, and the statement says so."""
    data = ragged_data(rng, 5, 3, "binary", low=20, high=20).unit_rows()
    larger = replace(
        data, X=(np.tile(data.X[0], (50, 1)), *data.X[1:]), y=(np.tile(data.y[0], 50), *data.y[1:])
    )
    method, candidate = Average("dp_aggr", private=True), AverageCandidate(0.3)
    budget = Budget(OutputPerturbation(), 1.0, 0.0)
    for n_public, same in ((None, False), ((20, 1000), True)):
        fits = [datafit_for(replace(d, n_public=n_public)) for d in (data, larger)]
        spent = [method.spent(datafit, budget) for datafit in fits]
        assert (spent[0] == spent[1]) == same
        for datafit in fits:
            assert "public" in method.statement(candidate, budget, datafit).relation


def test_two_runs_never_share_a_draw():
    """With a common draw the difference of two releases is free of noise."""
    words = ["method=lr", "privacy=gaussian", "tuning=fixed", "save_models=true"]
    runs = [
        make_run(*words, *more)
        for more in (["epsilon=1"], ["epsilon=2"], ["dataset.noise=2"], ["method.mu=2e-3"])
    ]
    released = [run_replicate(run, 0)["arrays"]["released"][0] for run in runs]
    noise = []
    for run, release in zip(runs, released, strict=True):
        again = run_replicate(run, 0)["arrays"]["released"][0]
        np.testing.assert_array_equal(release, again)  # the same run is the same
        free = run_replicate(replace(run, mechanism=make_run(*words, "privacy=none").mechanism), 0)
        noise.append((release - free["arrays"]["released"][0]).ravel())
    standard = [e / np.linalg.norm(e) for e in noise]
    for i in range(len(standard)):
        for j in range(i):
            assert np.abs(standard[i] - standard[j]).max() > 1e-3


@dataclass(frozen=True)
class Renamed(Gaussian):
    name: ClassVar[str] = "of_ones_own"


def test_noise_does_not_depend_on_the_name_of_a_mechanism():
    """`rl` compared a name and gave a Gaussian of another name 14 times too little noise."""
    scales = [
        Budget(mechanism, 1.0, 1e-3).planned(relation(50), [0.3]).scale(1, 1.5)
        for mechanism in (Gaussian(), Renamed())
    ]
    assert scales[0] == scales[1] == pytest.approx(2 * np.sqrt(2 * 49) * 1.5**2 / 0.3)
    rl, candidate = PrivateRelations("rl"), PrivateRelationsCandidate(1.0, 1.0, 2, 0.0, 1.5)
    statements = [
        rl.statement(candidate, Budget(mechanism, 1.0, 1e-3), _Shape())
        for mechanism in (Gaussian(), Renamed())
    ]
    assert statements[0].proved == statements[1].proved


class _Shape:
    shape = (50, 3)


def test_another_tasks_rows_do_not_set_the_step_of_the_learner(rng):
    """With the step 1/max L_i over all data one task times 100 moved every other model."""
    data = ragged_data(rng, 5, 3)
    learner = MultiTaskRegressor("lr", **PUBLIC, method__grid__lam=0, method__grid__n_rounds=2)
    learner.set_params(epsilon=1e9, privacy__noise="seeded", random_state=0)
    coefs = []
    for factor in (1.0, 100.0):
        X = [data.X[0] * factor, *data.X[1:]]
        coefs.append(clone(learner).fit(X, data.y).coef_[1:])
    assert np.abs(coefs[0] - coefs[1]).max() < 1e-6  # lambda = 0: M = I but for the noise
    assert "tuning-not-charged" not in learner.fit(data.X, data.y).privacy_.caveats


@pytest.mark.parametrize("learner", LEARNERS)
def test_no_row_is_in_a_saved_learner(learner, rng):
    data = ragged_data(rng, 5, 3, learner.kind)
    saved = pickle.dumps(clone(learner).fit(data.X, data.y))
    assert data.X[0][0].tobytes() not in saved
    assert data.y[0].tobytes() not in saved


def test_a_feature_that_is_constant_everywhere_does_not_decide_whether_there_is_a_fit(rng):
    data = ragged_data(rng, 4, 3)
    X = [np.column_stack([rows[:, :2], np.ones(len(rows))]) for rows in data.X]
    assert MultiTaskData.checked(X, data.y).n_features == 3
    MultiTaskRegressor(delta=1e-3).fit(X, data.y)


def test_test_errors_and_tuning_are_caveats_of_a_run():
    block = run_replicate(make_run("method=fl_local"), 0)["privacy"]
    assert "evaluation-not-charged" in block["caveats"]
    assert "tuning-not-charged" not in block["caveats"]
    words = ("tuning=fixed", "tuning.ridge=0.1", "method.loss_average=true")
    for eta, charged in (("null", False), ("public", True)):
        block = run_replicate(make_run("method=lr", *words, f"method.eta={eta}"), 0)["privacy"]
        assert ("tuning-not-charged" in block["caveats"]) != charged
    public = ("method=lr", "method.eta=public", "method.loss_average=true")
    for tuned in (("tuning=smoke",), ("tuning=fixed", "tuning.ridge=[0.1,1]")):
        block = run_replicate(make_run(*public, *tuned), 0)["privacy"]
        assert "tuning-not-charged" in block["caveats"]


def test_a_statement_that_the_costs_do_not_bear_is_not_written():
    budget = Budget(Gaussian(), 1.0, 1e-3)
    mu = budget.mechanism.budgets(1.0, 1e-3, 1)
    assert budget.statement(budget.planned(relation(9), mu)).proved.epsilon == 1.0
    for budgets in (mu * 1.01, np.append(mu, mu)):
        with pytest.raises(ValueError, match="which is more than delta"):
            budget.statement(budget.planned(relation(9), budgets))
    with pytest.raises(ValueError, match="no release is stated"):
        budget.statement()
    wishart = Budget(Wishart(), 1.0, 1e-3)
    assert wishart.statement(wishart.planned(relation(9), [1.0])).proved is None


def test_the_labels_of_a_task_do_not_choose_the_rows_of_another(rng):
    """Strata of one task shared a generator with all others: its labels moved their splits."""
    data = ragged_data(rng, 4, 3, "binary", low=15, high=25)
    labels = np.where(np.arange(len(data.y[0])) < 3, 1.0, -1.0)
    changed = replace(data, y=(labels, *data.y[1:]))
    parts = [split(d, 0.5, np.random.default_rng(0)) for d in (data, changed)]
    folds = [assign_folds(d, 3, np.random.default_rng(0)) for d in (data, changed)]
    for i in range(1, 4):
        np.testing.assert_array_equal(parts[0][0].X[i], parts[1][0].X[i])
        np.testing.assert_array_equal(folds[0][i], folds[1][i])
