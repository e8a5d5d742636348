"""The Python interface: shapes, optimality, privacy statements, refused settings."""

import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import ragged_data
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold

import mpmtl
from mpmtl import (
    Gaussian,
    InputError,
    Laplace,
    MultiTaskLearner,
    PrivacyCaveat,
    PrivateFeatureLearner,
    PrivateMultiTaskLearner,
    SingleTaskLearner,
    Wishart,
)


def test_every_public_name_is_there():
    for name in mpmtl.__all__:
        assert getattr(mpmtl, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = mpmtl.nothing_like_this


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize(
    "learner",
    [
        SingleTaskLearner(0.1),
        SingleTaskLearner(0.01, penalty="l1"),
        MultiTaskLearner(0.05),
        MultiTaskLearner(0.05, penalty="l21"),
    ],
)
def test_fit_and_predict(kind, learner, rng):
    data = ragged_data(rng, 6, 3, kind)
    learner = type(learner)(**{**vars(learner), "kind": kind})
    X, y = list(data.X), list(data.y)
    assert learner.fit(X, y) is learner
    assert learner.coef_.shape == (6, 3)
    predictions = learner.predict(X)
    assert [p.shape for p in predictions] == [t.shape for t in y]
    if kind == "binary":
        assert set(np.concatenate(predictions)) <= {-1, 1}
        for p, s in zip(learner.predict_proba(X), predictions, strict=True):
            np.testing.assert_array_equal(p >= 0.5, s == 1)
    elif isinstance(learner, MultiTaskLearner):
        assert learner.dual_gap_ <= 1e-8


def test_private_learner_states_what_holds(rng):
    data = ragged_data(rng)
    learner = PrivateMultiTaskLearner(lam=0.1, epsilon=1.0, delta=1e-3, K=2.0)
    codes = caveats_of(learner, data)
    assert codes == list(learner.privacy_.caveats)
    assert "tuning-not-charged" not in codes  # every constant is public by default
    learner = PrivateMultiTaskLearner(lam=0.1, epsilon=1.0, delta=1e-3, K=2.0, eta=None)
    assert "tuning-not-charged" in caveats_of(learner, data)  # the step is that of the data
    assert learner.privacy_.claimed is None
    assert learner.privacy_.proved.epsilon == 1.0
    paper = PrivateMultiTaskLearner(lam=0.1, mechanism=Wishart(), K=2.0)
    assert "wishart-support" in caveats_of(paper, data)
    assert paper.privacy_.claimed.basis.endswith("false")
    assert paper.privacy_.proved.delta > 0.5


def caveats_of(learner, data):
    """Codes of the warnings that `fit` issues."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.fit(data.X, data.y, np.random.default_rng(0))
    assert all(w.category is PrivacyCaveat for w in caught)
    return [str(w.message).partition(":")[0] for w in caught]


@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
def test_private_learner_depends_on_its_generator_alone(rng):
    data = ragged_data(rng)
    fits = [
        PrivateMultiTaskLearner(K=1.0).fit(data.X, data.y, np.random.default_rng(s)).coef_
        for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])


def test_learners_refuse_what_cannot_work(rng):
    data = ragged_data(rng, 3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyCaveat)
        for learner, message in [
            (SingleTaskLearner(-1.0), "lam = -1.0"),
            (SingleTaskLearner(1.0, penalty="elastic"), "use l2 or l1"),
            (MultiTaskLearner(1.0, penalty="nuclear"), "unknown penalty 'nuclear'"),
            (PrivateMultiTaskLearner(mechanism=Laplace()), "releases the whole covariance"),
            (PrivateMultiTaskLearner(mechanism=Gaussian(), delta=0.0), "needs delta in"),
            (PrivateMultiTaskLearner(epsilon=0.0), "epsilon = 0.0"),
            (PrivateMultiTaskLearner(K=0.0), "K = 0.0 must be above 0"),
            (PrivateMultiTaskLearner(n_rounds=0), "at least one round"),
        ]:
            with pytest.raises(InputError, match=message):
                learner.fit(data.X, data.y)
    with pytest.raises(InputError, match="is not fitted: call fit"):
        SingleTaskLearner().predict(data.X)
    with pytest.raises(InputError, match="2 tasks and the learner was fitted on 3"):
        SingleTaskLearner().fit(data.X, data.y).predict(data.X[:2])


def test_importing_the_package_does_not_import_numpy():
    """`mpmtl-run` sets the number of threads before numpy is loaded."""
    import subprocess
    import sys

    code = "import sys, mpmtl; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LEARNERS = [SingleTaskLearner, MultiTaskLearner, PrivateMultiTaskLearner, PrivateFeatureLearner]


@pytest.mark.parametrize("Learner", LEARNERS)
def test_scikit_learn_clones_a_learner_and_sets_it(Learner):
    learner = Learner(kind="binary")
    twin = clone(learner)
    assert twin is not learner
    assert twin.get_params() == learner.get_params()
    assert twin.set_params(kind="regression", fit_intercept=False) is twin
    assert (twin.kind, learner.kind) == ("regression", "binary")
    with pytest.raises(InputError, match="has no setting lambda: it has "):
        twin.set_params(**{"lambda": 1})
    assert not vars(twin).keys() & {"coef_", "n_features_in_"}


@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
def test_a_seed_is_a_random_state_or_given_to_fit(rng):
    data = ragged_data(rng)
    for Learner in (PrivateMultiTaskLearner, PrivateFeatureLearner):
        fits = [
            Learner(random_state=3).fit(data.X, data.y),
            Learner().fit(data.X, data.y, 3),
            Learner(mechanism="gaussian").fit(data.X, data.y, np.random.default_rng(3)),
        ]
        for fit in fits[1:]:
            np.testing.assert_array_equal(fit.coef_, fits[0].coef_)
        Learner(random_state=np.random.RandomState(0)).fit(data.X, data.y)
        with pytest.raises(InputError, match="random_state = 'x': give None"):
            Learner(random_state="x").fit(data.X, data.y)
        with pytest.raises(InputError, match="mechanism = 'gauss': give a Mechanism, or a name of"):
            Learner(mechanism="gauss").fit(data.X, data.y)


def test_scores_are_those_of_scikit_learn_over_all_rows(rng):
    for kind, scorer in (("regression", r2_score), ("binary", accuracy_score)):
        data = ragged_data(rng, kind=kind)
        learner = SingleTaskLearner(kind=kind).fit(data.X, data.y)
        y, predicted = np.concatenate(data.y), np.concatenate(learner.predict(data.X))
        assert learner.score(data.X, data.y) == pytest.approx(scorer(y, predicted))
        assert learner.n_features_in_ == data.n_features


def test_what_is_not_fitted_or_too_wide_is_said_in_a_sentence(rng):
    data = ragged_data(rng)
    with pytest.raises(AttributeError, match="SingleTaskLearner is not fitted: call fit first"):
        SingleTaskLearner().predict(data.X)
    learner = SingleTaskLearner().fit(data.X, data.y)
    with pytest.raises(InputError, match=r"task 1: X has shape .*, 3\); the learner was"):
        learner.predict([rows[:, :3] for rows in data.X])
    with pytest.raises(InputError, match="task 1: not a table of numbers"):
        learner.predict([[["a"] * 4]] * len(data.X))


def stacked(data, labels):
    """One DataFrame with the rows of all tasks in mixed order, and its targets."""
    frame = pd.DataFrame(np.concatenate(data.X), columns=[f"x{j}" for j in range(data.n_features)])
    frame.insert(1, "owner", np.repeat(labels, data.n_samples))
    order = np.random.default_rng(0).permutation(len(frame))
    return frame.iloc[order], np.concatenate(data.y)[order], order


@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
@pytest.mark.parametrize("Learner", LEARNERS)
@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_one_table_with_the_task_of_each_row_is_the_same_as_a_table_each(Learner, kind, rng):
    data = ragged_data(rng, 4, 3, kind)
    seed = {"random_state": 1} if Learner.private else {}
    lists = Learner(kind=kind, **seed).fit(data.X, data.y)
    frame, y, order = stacked(data, ["a", "b", "c", "d"])
    features = frame.drop(columns="owner")
    named = Learner(kind=kind, **seed).fit(frame, y, task="owner")
    vector = Learner(kind=kind, **seed).fit(features.to_numpy(), y, task=frame["owner"])
    setting = Learner(kind=kind, task="owner", **seed).fit(frame, y)
    expected = np.concatenate(lists.predict(data.X))[order]
    for learner in (named, vector, setting):
        np.testing.assert_allclose(learner.coef_, lists.coef_, atol=1e-6)
        assert learner.tasks_.tolist() == ["a", "b", "c", "d"]
    for predicted in (
        named.predict(frame, task="owner"),
        setting.predict(frame[frame.columns[::-1]]),
        named.predict(features, frame["owner"]),
    ):
        np.testing.assert_allclose(predicted, expected, atol=1e-5)
    assert named.feature_names_in_.tolist() == ["x0", "x1", "x2"]
    assert not hasattr(vector, "feature_names_in_")
    assert setting.score(frame, y) == pytest.approx(lists.score(data.X, data.y), abs=1e-5)


def test_tasks_and_columns_that_do_not_fit_are_named(rng):
    data = ragged_data(rng, 3, 3)
    frame, y, _ = stacked(data, [10, 20, 30])
    learner = SingleTaskLearner(task="owner").fit(frame, y)
    twice = frame[[*frame.columns, "x0"]]
    for table, message in [
        (frame.assign(owner=40), "not fitted on task 40"),
        (frame.drop(columns="x1"), "not those of fit: missing 'x1'"),
        (frame.assign(extra=1.0), "not those of fit: not known 'extra'"),
        (twice, "not those of fit: there twice 'x0'"),
        (frame.drop(columns="owner"), "task = 'owner' is no column of X"),
        (frame.assign(owner=np.nan), "rows have no task"),
    ]:
        with pytest.raises(InputError, match=message):
            learner.predict(table)
    features = frame.drop(columns="owner")
    with pytest.raises(InputError, match="2 task labels for"):
        SingleTaskLearner().fit(features, y, task=[1, 2])
    with pytest.raises(InputError, match="fitted on 3 tasks: give task"):
        SingleTaskLearner().fit(features, y, task=frame["owner"]).predict(features)
    with pytest.raises(InputError, match="X is sparse"):
        SingleTaskLearner().fit(csr_array(features.to_numpy()), y)


@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (False, True)])
@pytest.mark.parametrize("Learner", LEARNERS)
def test_binary_labels_may_be_any_two(Learner, labels, rng):
    data = ragged_data(rng, 4, 3, "binary")
    y = [np.where(target > 0, labels[1], labels[0]) for target in data.y]
    seed = {"random_state": 1} if Learner.private else {}
    named = {"classes": labels} if Learner.private else {}
    signed = Learner(kind="binary", **seed).fit(data.X, data.y)
    learner = Learner(kind="binary", **seed, **named).fit(data.X, y)
    np.testing.assert_array_equal(learner.coef_, signed.coef_)
    assert learner.classes_.tolist() == list(labels)
    for own, sign in zip(learner.predict(data.X), signed.predict(data.X), strict=True):
        np.testing.assert_array_equal(own == labels[1], sign == 1)


def test_labels_that_are_not_two_classes_are_refused(rng):
    data = ragged_data(rng, 4, 3, "binary")
    three = [np.arange(len(target)) % 3 for target in data.y]
    with pytest.raises(InputError, match="need two classes, and y has 3"):
        SingleTaskLearner(kind="binary").fit(data.X, three)
    text = [np.where(target > 0, "yes", "no") for target in data.y]
    with pytest.raises(InputError, match="the labels are text: name them, classes="):
        PrivateFeatureLearner(kind="binary").fit(data.X, text)
    with pytest.raises(InputError, match="give two labels"):
        PrivateFeatureLearner(kind="binary", classes=("no", "no")).fit(data.X, text)


def test_a_table_without_tasks_is_one_task(rng):
    X, y = rng.standard_normal((30, 3)), rng.standard_normal(30)
    learner = SingleTaskLearner().fit(X, y)
    np.testing.assert_array_equal(learner.coef_, SingleTaskLearner().fit([X], [y]).coef_)
    assert learner.predict(X).shape == (30,)


def test_a_grid_search_with_the_task_as_a_setting(rng):
    """Folds within tasks; a whole task that is held out has no model."""
    data = ragged_data(rng, 3, 3)
    frame, y, _ = stacked(data, ["a", "b", "c"])
    folds = list(StratifiedKFold(2).split(frame, frame["owner"]))
    search = GridSearchCV(SingleTaskLearner(task="owner"), {"lam": [1e-3, 1e4]}, cv=folds)
    assert search.fit(frame, y).best_params_ == {"lam": 1e-3}
    assert search.predict(frame).shape == y.shape
