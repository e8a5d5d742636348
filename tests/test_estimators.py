"""The Python interface: shapes, optimality, privacy statements, refused settings."""

import warnings

import numpy as np
import pytest
from conftest import ragged_data

import mpmtl
from mpmtl import (
    Gaussian,
    InputError,
    Laplace,
    MultiTaskLearner,
    PrivacyCaveat,
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
    assert learner.coef_.shape == (3, 6)
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
    with pytest.raises(InputError, match="call fit"):
        SingleTaskLearner().predict(data.X)
    with pytest.raises(InputError, match="2 tasks and the learner was fitted on 3"):
        SingleTaskLearner().fit(data.X, data.y).predict(data.X[:2])


def test_importing_the_package_does_not_import_numpy():
    """`mpmtl-run` sets the number of threads before numpy is loaded."""
    import subprocess
    import sys

    code = "import sys, mpmtl; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
