"""The Python interface: names, defaults, guarantees and numbers of the command line; tables."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, make_run, ragged_data
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold

import mpmtl
from mpmtl import InputError, MultiTaskClassifier, MultiTaskRegressor, PrivacyCaveat
from mpmtl.experiments.config import register_schema
from mpmtl.experiments.learners import GROUPS, RENAMED, choices
from mpmtl.experiments.runner import run_replicate
from mpmtl.experiments.terminal import caveat_lines
from mpmtl.streams import stream

pytestmark = pytest.mark.filterwarnings("ignore::mpmtl.PrivacyCaveat")
LEARNERS = {"regression": MultiTaskRegressor, "binary": MultiTaskClassifier}
METHODS = choices("method")
SEEDED = {"privacy__noise": "seeded", "random_state": 1}


def test_every_public_name_is_there():
    for name in mpmtl.__all__:
        assert getattr(mpmtl, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = mpmtl.nothing_like_this
    for name, now in mpmtl._RENAMED.items():
        with pytest.raises(AttributeError, match=f"mpmtl.{name} is now mpmtl.MultiTask"):
            getattr(mpmtl, name)
        assert eval(now, vars(mpmtl) | {"MultiTaskRegressor": MultiTaskRegressor}).resolved()


def test_importing_the_package_does_not_import_numpy():
    """`mpmtl-run` sets the number of threads before numpy is loaded."""
    import subprocess
    import sys

    code = "import sys, mpmtl; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_those_of_the_command_line(method):
    register_schema()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = OmegaConf.to_container(compose("config", [f"method={method}"]), resolve=True)
    settings = MultiTaskRegressor(method).resolved()
    assert settings == {key: cfg[key] for key in (*GROUPS, "epsilon", "delta")}
    assert all(name not in MultiTaskRegressor().get_params() for name in RENAMED)


def test_the_default_is_proved_for_all_that_a_fit_does(rng):
    data = ragged_data(rng, 8)
    learner = MultiTaskRegressor().fit(data.X, data.y)
    assert learner.privacy_.claimed is None
    proved = learner.privacy_.proved
    assert (proved.epsilon, proved.delta) == (1.0, pytest.approx(1 / (8 * math.log(8))))
    assert learner.privacy_.caveats == ()
    assert learner.caveats_ == {}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table with numbers, levels, and targets in [-1, 1] or two classes."""
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("own") / "own.csv"
    frame = pd.DataFrame(
        {
            "owner": np.repeat([f"t{i}" for i in range(8)], 12),
            "age": rng.uniform(0, 100, 96).round(1),
            "size": rng.uniform(-1, 1, 96).round(3),
            "sex": rng.choice(["f", "m"], 96),
        }
    )
    score = frame["age"] / 100 - 0.5 + 0.3 * (frame["sex"] == "f") + 0.1 * rng.uniform(-1, 1, 96)
    frame["score"] = score.round(4)
    frame["passed"] = np.where(score > 0.1, "yes", "no")
    frame.to_csv(path, index=False)
    return path


def both(table, target, method, words, learner):
    """The record of a run on all rows of the table, and the learner fitted on what it saw."""
    columns = {"score": "passed", "passed": "score"}
    run = make_run(
        "dataset=table",
        f"dataset.path={table}",
        "dataset.task=owner",
        f"dataset.target={target}",
        f"dataset.drop=[{columns[target]}]",
        "dataset.ranges={age: [0, 100], size: [-1, 1]}",
        "dataset.levels={sex: [f, m]}",
        "dataset.norm=2",
        "dataset.train_fraction=1",
        "evaluation_epsilon=0",
        f"method={method}",
        *(["dataset.kind=regression", "dataset.target_range=[-1, 1]"] * (target == "score")),
        *(["dataset.kind=binary", "dataset.positive=yes"] * (target == "passed")),
        *words,
        tiny=False,
    )
    record, train = run_replicate(run, 0), run.draw(0)[0]
    settings = json.dumps(run.settings, sort_keys=True)
    noise = stream(run.seed, "noise", train.digest(), settings, 0, "refit")
    learner.set_params(method=method, norm=2, random_state=noise if run.method.private else 0)
    frame = pd.read_csv(table)
    y = [frame.loc[frame["owner"] == name, target].to_numpy() for name in train.task_names]
    return record, learner.fit([rows[:, :-1] for rows in train.X], y)


def agree(record, learner):
    for k, model in enumerate(record["models"]):
        np.testing.assert_array_equal(learner.coef_[k], model["coef"])
        assert learner.intercept_[k] == model["intercept"]
    told = dict(record["privacy"])
    told.pop("outside_budget")
    told.pop("n_tasks")
    assert learner.privacy_.as_dict() == told
    assert learner.settings_ == record["settings"]
    card = [text for _, text in caveat_lines(record["privacy"])]
    texts = [f"{code}: {text}" for code, text in learner.caveats_.items()]
    assert [text.removeprefix("* ") for text in card] == texts


@pytest.mark.parametrize("method", METHODS)
def test_a_learner_is_the_fit_of_the_command_line(method, table):
    """The same data, settings and noise: models, statement and caveats are the same."""
    learner = MultiTaskRegressor(tuning="fixed", target_range=(-1, 1), privacy__noise="seeded")
    agree(*both(table, "score", method, ["tuning=fixed"], learner))


@pytest.mark.parametrize("method", ["stl_best", "mtl", pytest.param("lr", marks=pytest.mark.slow)])
def test_a_learner_tunes_as_the_command_line(method, table):
    words = ["tuning=smoke", "privacy=none"]
    learner = MultiTaskRegressor(tuning="smoke", privacy="none", target_range=(-1, 1))
    if method == "lr":  # its folds have no noise, so that a seed is enough
        words.append("tuning.folds=4")
        learner.set_params(tuning__folds=4)
    agree(*both(table, "score", method, words, learner))


@pytest.mark.parametrize("method", ["fl_local", "lr", "stl"])
def test_a_classifier_is_the_fit_of_the_command_line(method, table):
    words = ["tuning=fixed", "epsilon=2", "delta=1e-3"]
    learner = MultiTaskClassifier(epsilon=2, delta=1e-3, tuning="fixed", privacy__noise="seeded")
    agree(*both(table, "passed", method, words, learner.set_params(classes=("no", "yes"))))


def test_settings_are_written_as_on_the_command_line(rng):
    learner = MultiTaskRegressor(
        "lr", method__grid__lam=[0.1, 1], tuning__folds=3, privacy="gaussian", privacy__shift=0.5
    )
    settings = learner.resolved()
    assert settings["method"]["grid"]["lam"] == [0.1, 1]
    assert settings["tuning"]["folds"] == 3
    assert settings["privacy"]["shift"] == 0.5
    assert clone(learner).resolved() == settings
    assert "method='lr'" in repr(learner)
    assert "epsilon" not in repr(learner)


WRONG = [
    "word", "1", "", "${x}", "${", -1, 0, 1.5, 10**400, math.nan, math.inf, -math.inf, True, None,
    (), [], [[1]], {}, {"a": 1}, (1, 2, 3), ("a", "b"), 1j, b"x", object(), np.zeros((2, 2)),
    np.float64("nan"), "auto", "null", ["word"], [None],
]  # fmt: skip


def keys_of(method, Learner):
    """Every setting that a method has, in Python's words."""
    for group, settings in Learner(method).resolved().items():
        if group not in GROUPS:
            continue
        for key, value in settings.items():
            if key.startswith("_"):
                continue
            inside = value if isinstance(value, dict) and key != "methods" else {}
            yield f"{group}__{key}"
            yield from (f"{group}__{key}__{name}" for name in inside)


@pytest.mark.parametrize(
    ("method", "every"),
    [
        ("lr", 12),
        ("fl", 12),
        *(
            pytest.param(method, 1, marks=pytest.mark.slow)
            for method in ("lr", "fl", "fedrep", "mr_mtl", "stl_best", "dp_aggr")
        ),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence_that_names_it(method, every, rng):
    """Each setting with each wrong value; the quick ones are spread over the settings."""
    data = ragged_data(rng, 3, 2)
    base = LEARNERS["regression"](method, tuning="fixed")
    for k, key in enumerate([*base.get_params(), *keys_of(method, MultiTaskRegressor)]):
        for value in WRONG[k % every :: every]:
            learner = clone(base).set_params(**{key: value})
            try:
                learner.fit(data.X, data.y)
            except InputError as error:
                text = str(error)
                assert "\n" not in text
                assert len(text) < 400
                assert key.rpartition("__")[2] in text, (key, value, text)
            else:
                assert np.isfinite(learner.coef_).all(), (key, value)


@pytest.mark.parametrize("name", [*RENAMED, "lamda", "epsilom", "method_eta", "method__", "x__y"])
def test_a_wrong_name_is_refused_with_the_right_one(name):
    words = f"it is now {RENAMED[name][:6]}" if name in RENAMED else "it has method, epsilon"
    for make in (lambda **s: MultiTaskRegressor(**s), MultiTaskClassifier().set_params):
        with pytest.raises(InputError, match=f"has no setting {name}: .*{words[:12]}"):
            make(**{name: 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fl_locale"}, "unknown method 'fl_locale': did you mean fl_local"),
        ({"privacy": "gauss"}, "unknown privacy 'gauss': did you mean gaussian"),
        ({"method__gamma": 1}, "method__gamma: method fl has no setting gamma; it has"),
        ({"method": "lr", "method__grid__lm": 1}, "no setting grid__lm; it has lam, n_rounds"),
        ({"method": "lr", "method__grid": 1}, "give them, such as method__grid__lam="),
        ({"method": "lr", "method__grid__lam": -1}, "method__grid__lam = -1 must be"),
        ({"privacy": "laplace"}, "does not fit a method that releases the whole covariance"),
        ({"delta": 0.0}, "needs delta in"),
        ({"method": "lr", "method__eta": "public"}, "needs a public bound .*: give norm"),
        ({"method": "lr", "privacy__noise": "secure"}, "cannot be sampled exactly"),
        ({"random_state": 3}, "random_state = 3 seeds the noise, .* privacy__noise='seeded'"),
        ({"random_state": "x"}, "random_state = 'x': give a whole number"),
    ],
)
def test_what_cannot_work_is_said(settings, message, rng):
    data = ragged_data(rng, 3, 2)
    with pytest.raises(InputError, match=message):
        MultiTaskRegressor(**settings).fit(data.X, data.y)


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("method", ["stl", "stl_best", "mtl_lr", "mtl_gs", "fl_local"])
def test_fit_and_predict(kind, method, rng):
    data = ragged_data(rng, 6, 3, kind)
    learner = LEARNERS[kind](method, tuning="smoke")
    X, y = list(data.X), list(data.y)
    assert learner.fit(X, y) is learner
    assert learner.coef_.shape == (6, 3)
    predictions = learner.predict(X)
    assert [p.shape for p in predictions] == [t.shape for t in y]
    if kind == "binary":
        assert set(np.concatenate(predictions)) <= {-1, 1}
        for p, s in zip(learner.predict_proba(X), predictions, strict=True):
            np.testing.assert_array_equal(p[:, 1] >= 0.5, s == 1)
            np.testing.assert_allclose(p.sum(axis=1), 1)
    else:
        own = X[2] @ learner.coef_[2] + learner.intercept_[2]
        np.testing.assert_allclose(predictions[2], own)


def caveats_of(learner, data):
    """Codes of the warnings that `fit` issues."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.fit(data.X, data.y)
    assert all(w.category is PrivacyCaveat for w in caught)
    return [str(w.message).partition(":")[0] for w in caught]


def test_private_learner_states_what_holds(rng):
    data = ragged_data(rng)
    public = {"privacy": "gaussian", "tuning": "fixed", "method__loss_average": True, "norm": 3}
    learner = MultiTaskRegressor("lr", method__eta="public", **public)
    assert caveats_of(learner, data) == list(learner.privacy_.caveats) == list(learner.caveats_)
    assert "tuning-not-charged" not in learner.caveats_  # every constant is public
    assert learner.privacy_.claimed is None
    assert learner.privacy_.proved.epsilon == 1.0
    # The step is that of all tasks' data, or the settings are chosen from them.
    assert "tuning-not-charged" in caveats_of(MultiTaskRegressor("lr", **public), data)
    tuned = public | {"tuning": "smoke"}
    learner = MultiTaskRegressor("lr", method__eta="public", **tuned)
    assert "tuning-not-charged" in caveats_of(learner, data)
    assert "lambda" in learner.caveats_["tuning-not-charged"]
    paper = MultiTaskRegressor("lr")
    assert "wishart-support" in caveats_of(paper, data)
    assert paper.privacy_.claimed.basis.endswith("false")


def test_a_seed_gives_the_same_noise_to_the_same_fit_alone(rng):
    data, other = ragged_data(rng), ragged_data(rng)

    def released(data, **settings):
        settings = {"privacy__noise": "seeded"} | settings
        return MultiTaskRegressor(**settings).fit(data.X, data.y).coef_

    np.testing.assert_array_equal(released(data, random_state=3), released(data, random_state=3))
    assert (released(data, random_state=3) != released(data, random_state=4)).any()
    assert (released(data) != released(data)).any()
    generators = [np.random.default_rng(3), np.random.default_rng(3)]
    np.testing.assert_array_equal(*(released(data, random_state=g) for g in generators))
    states = [np.random.RandomState(3), np.random.RandomState(3)]
    np.testing.assert_array_equal(*(released(data, random_state=s) for s in states))
    # A difference of two fits is never free of noise: another table has another stream.
    drawn = []

    with pytest.MonkeyPatch.context() as patch:
        original = stream

        def named(*names):
            drawn.append(names)
            return original(*names)

        patch.setattr("mpmtl.experiments.learners.stream", named)
        for one in (data, other):
            released(one, random_state=3)
        released(data, random_state=3, epsilon=2.0)
    assert len(set(drawn)) == len(drawn) >= 3


@pytest.mark.parametrize("Learner", LEARNERS.values())
def test_scikit_learn_clones_a_learner_and_sets_it(Learner):
    learner = Learner("lr", epsilon=2.0, method__grid__lam=[0.1, 1.0])
    twin = clone(learner)
    assert twin is not learner
    assert twin.get_params() == learner.get_params()
    assert twin.set_params(method="gs", intercept=False, method__eta=0.1) is twin
    assert (twin.method, learner.method) == ("gs", "lr")
    assert "method__eta" not in learner.get_params()
    assert not vars(twin).keys() & {"coef_", "n_features_in_"}


def test_scores_are_those_of_scikit_learn_over_all_rows(rng):
    for kind, scorer in (("regression", r2_score), ("binary", accuracy_score)):
        data = ragged_data(rng, kind=kind)
        learner = LEARNERS[kind]("stl", tuning="fixed").fit(data.X, data.y)
        y, predicted = np.concatenate(data.y), np.concatenate(learner.predict(data.X))
        assert learner.score(data.X, data.y) == pytest.approx(scorer(y, predicted))
        assert learner.n_features_in_ == data.n_features


def separate(kind="regression", **settings):
    """Tasks on their own, one setting."""
    return LEARNERS[kind]("stl", tuning="fixed", **settings)


def test_what_is_not_fitted_or_too_wide_is_said_in_a_sentence(rng):
    data = ragged_data(rng)
    with pytest.raises(AttributeError, match="MultiTaskRegressor is not fitted: call fit first"):
        separate().predict(data.X)
    learner = separate().fit(data.X, data.y)
    with pytest.raises(InputError, match="task 1: X has 3 features, but .* is expecting 4"):
        learner.predict([rows[:, :3] for rows in data.X])
    with pytest.raises(InputError, match="task 1: not a table of numbers"):
        learner.predict([[["a"] * 4]] * len(data.X))
    with pytest.raises(InputError, match="2 tasks and the learner was fitted on 6"):
        learner.predict(data.X[:2])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["stl", "fl_local"])
def test_what_is_not_finite_has_no_prediction_and_that_is_said(value, method, rng):
    data = ragged_data(rng, 4, 3)
    learner = MultiTaskRegressor(method, tuning="fixed").fit(data.X, data.y)
    X = [rows.copy() for rows in data.X]
    X[2][[0, 3], 1] = value
    message = f"task 3: 2 of {len(X[2])} rows of X hold NaN or infinity: fill or drop them"
    with pytest.raises(InputError, match=message):
        learner.predict(X)
    frame = pd.DataFrame(np.concatenate(X), columns=["a", "b", "c"])
    with pytest.raises(InputError, match=message):
        learner.predict(frame, task=np.repeat([1, 2, 3, 4], data.n_samples))


def test_at_a_fit_what_is_not_finite_is_refused_or_the_tasks_own_affair(rng):
    data = ragged_data(rng, 4, 3)
    X = [rows.copy() for rows in data.X]
    X[2][0, 1] = math.nan
    with pytest.raises(InputError, match="task 3: feature x2 is NaN or infinite in 1 of"):
        separate().fit(X, data.y)
    learner = MultiTaskRegressor().fit(X, data.y)
    assert learner.idle_.tolist() == [False, False, True, False]
    assert not MultiTaskRegressor().fit(data.X, data.y).idle_.any()


def test_rows_are_shortened_in_a_prediction_as_in_a_fit(rng):
    data = ragged_data(rng, 4, 3)
    learner = separate(norm=0.5).fit(data.X, data.y)
    short = [0.5 * rows / np.maximum(np.linalg.norm(rows, axis=1), 0.5)[:, None] for rows in data.X]
    for one, other in zip(learner.predict(data.X), learner.predict(short), strict=True):
        np.testing.assert_allclose(one, other)
    np.testing.assert_allclose(separate(norm=0.5).fit(short, data.y).coef_, learner.coef_)


def stacked(data, labels):
    """One DataFrame with the rows of all tasks in mixed order, and its targets."""
    frame = pd.DataFrame(np.concatenate(data.X), columns=[f"x{j}" for j in range(data.n_features)])
    frame.insert(1, "owner", np.repeat(labels, data.n_samples))
    order = np.random.default_rng(0).permutation(len(frame))
    return frame.iloc[order], np.concatenate(data.y)[order], order


@pytest.mark.parametrize("method", ["stl", "mtl_lr", "lr", "fl_local"])
@pytest.mark.parametrize("kind", LEARNERS)
def test_one_table_with_the_task_of_each_row_is_the_same_as_a_table_each(method, kind, rng):
    data = ragged_data(rng, 4, 3, kind)

    def learner(**settings):
        noise = {"random_state": np.random.default_rng(1), "privacy__noise": "seeded"}
        return LEARNERS[kind](method, tuning="fixed", **noise, **settings)

    lists = learner().fit(data.X, data.y)
    frame, y, order = stacked(data, ["a", "b", "c", "d"])
    features = frame.drop(columns="owner")
    named = learner().fit(frame, y, task="owner")
    vector = learner().fit(features.to_numpy(), y, task=frame["owner"])
    setting = learner(task="owner").fit(frame, y)
    expected = np.concatenate(lists.predict(data.X))[order]
    for one in (named, vector, setting):
        np.testing.assert_allclose(one.coef_, lists.coef_, atol=1e-6)
        assert one.tasks_.tolist() == ["a", "b", "c", "d"]
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
    learner = separate(task="owner").fit(frame, y)
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
        separate().fit(features, y, task=[1, 2])
    with pytest.raises(InputError, match="fitted on 3 tasks: give task"):
        separate().fit(features, y, task=frame["owner"]).predict(features)
    with pytest.raises(InputError, match="X is sparse"):
        separate().fit(csr_array(features.to_numpy()), y)


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (False, True)])
@pytest.mark.parametrize("method", ["stl", "mtl_lr", "lr", "fl_local"])
def test_binary_labels_may_be_any_two(method, labels, rng):
    data = ragged_data(rng, 4, 3, "binary")
    y = [np.where(target > 0, labels[1], labels[0]) for target in data.y]

    def learner(**settings):
        return MultiTaskClassifier(method, tuning="fixed", **SEEDED, **settings)

    signed = learner().fit(data.X, data.y)
    for one in (learner().fit(data.X, y), learner(classes=labels).fit(data.X, y)):
        np.testing.assert_array_equal(one.coef_, signed.coef_)
        assert one.classes_.tolist() == list(labels)
        for own, sign in zip(one.predict(data.X), signed.predict(data.X), strict=True):
            np.testing.assert_array_equal(own == labels[1], sign == 1)


def test_labels_that_are_not_two_classes_are_refused(rng):
    data = ragged_data(rng, 4, 3, "binary")
    three = [np.arange(len(target)) % 3 for target in data.y]
    with pytest.raises(InputError, match="binary classification is supported: y has 3 classes"):
        separate("binary").fit(data.X, three)
    for classes in (("no", "no"), "no", ("a", "b", "c"), 3):
        with pytest.raises(InputError, match="give two labels"):
            MultiTaskClassifier(classes=classes).fit(data.X, data.y)


def test_labels_that_are_read_off_all_tasks_are_a_caveat(rng):
    """Declared ones are public: then no task's labels decide anything for another one."""
    data = ragged_data(rng, 8, 3, "binary")
    text = [np.where(target > 0, "yes", "no") for target in data.y]
    read = MultiTaskClassifier().fit(data.X, text)
    assert read.privacy_.caveats == ("pooled-schema",)
    assert "pooled-schema" in read.caveats_
    # One's own labels: text for numbers, a third class, one class only.
    for own in (data.y[1], np.full(len(text[1]), "maybe"), np.full(len(text[1]), "yes")):
        y = [text[0], own, *text[2:]]
        declared = MultiTaskClassifier(classes=("no", "yes")).fit(data.X, y)
        assert declared.privacy_.caveats == ()
        assert declared.classes_.tolist() == ["no", "yes"]
        usable = set(own) <= {"no", "yes"}
        assert declared.idle_.tolist() == [False, not usable, *[False] * 6]
    separate_tasks = MultiTaskClassifier("mtl_lr", tuning="fixed").fit(data.X, text)
    assert separate_tasks.privacy_.caveats == ()  # it protects nobody


def test_a_table_without_tasks_is_one_task(rng):
    X, y = rng.standard_normal((30, 3)), rng.standard_normal(30)
    learner = separate().fit(X, y)
    np.testing.assert_array_equal(learner.coef_, separate().fit([X], [y]).coef_)
    assert learner.predict(X).shape == (30,)


def test_a_grid_search_with_the_task_as_a_setting(rng):
    """Folds within tasks; a whole task that is held out has no model."""
    data = ragged_data(rng, 3, 3)
    frame, y, _ = stacked(data, ["a", "b", "c"])
    folds = list(StratifiedKFold(2).split(frame, frame["owner"]))
    grid = {"method__grid__l2": np.array([1e-3, 1e4])}
    search = GridSearchCV(separate(task="owner"), grid, cv=folds)
    assert search.fit(frame, y).best_params_ == {"method__grid__l2": 1e-3}
    assert search.predict(frame).shape == y.shape
