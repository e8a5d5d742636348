"""Data sets: what the definitions and the files say, refused faults, splits and folds."""

import shutil

import numpy as np
import pytest
from conftest import ragged_data
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat

from mpmtl.data import (
    LSOA2,
    GroupSparse,
    Landmine,
    LeakageExample,
    LowRank,
    MultiTaskData,
    School,
    assign_folds,
    files,
    split,
)
from mpmtl.datafits import datafit_for
from mpmtl.errors import InputError
from mpmtl.solvers.single_task import ridge_path


def test_low_rank_models_have_the_stated_rank_and_variance():
    dataset = LowRank()
    W = dataset.models(np.random.default_rng(0))
    assert np.linalg.matrix_rank(W) == 5
    assert len(np.unique(W, axis=0)) == 5
    many = np.concatenate([dataset.models(np.random.default_rng(r))[::64] for r in range(200)])
    # variance of 30,000 normal values: relative standard error 0.8 %, tested at 5 of them
    assert many.var() == pytest.approx(100, rel=0.04)


def test_low_rank_correlation_within_blocks():
    dataset = LowRank(m=4, d=20_000, blocks=2, correlation=0.6)
    C = np.corrcoef(dataset.models(np.random.default_rng(1)))
    want = np.kron(np.eye(2), np.full((2, 2), 0.6)) + 0.4 * np.eye(4)
    np.testing.assert_allclose(C, want, atol=0.04)  # standard error 0.007


def test_group_sparse_models_use_four_features():
    W = GroupSparse().models(np.random.default_rng(0))
    assert (W[:, 4:] == 0).all()
    size = np.abs(W[:, :4])
    assert size.min() >= 1
    assert size.max() <= 50
    assert abs((W[:, :4] > 0).mean() - 0.5) < 0.07  # 1,280 signs, 5 standard errors


@pytest.mark.parametrize("dataset", [LowRank(), GroupSparse()], ids=lambda d: d.name)
def test_synthetic_draws(dataset):
    train, test = dataset.draw("", 0, 3)
    assert (train.n_tasks, train.n_features) == (320, 30)
    assert set(train.n_samples) == {30}
    assert set(test.n_samples) == {270}
    np.testing.assert_allclose([(X**2).sum(axis=1) for X in train.X], 1)
    again, _ = dataset.draw("", 0, 3)
    np.testing.assert_array_equal(train.X[7], again.X[7])
    other, _ = dataset.draw("", 0, 4)
    assert not np.array_equal(train.X[7], other.X[7])


def test_leakage_example_starts_from_the_models_of_the_figure():
    train, _ = LeakageExample().draw("", 0, 0)
    W = np.array(train.y)
    assert W.shape == (10, 5)
    assert W[:9].min() >= 0
    assert W[:9].max() <= 1
    assert W[9].max() > 1
    for X in train.X:
        np.testing.assert_array_equal(X, np.eye(5))


def test_school_is_what_its_description_says(data_dir):
    data = School().load(data_dir)
    assert (data.n_tasks, data.n_features) == (139, 27)
    n = data.n_samples
    assert (n.sum(), n.min(), n.max(), np.median(n)) == (15_362, 22, 251, 103)
    scores = np.concatenate(data.y)
    assert scores.mean() == pytest.approx(20.597, abs=1e-3)
    assert scores.std() == pytest.approx(12.721, abs=1e-3)
    np.testing.assert_allclose(np.concatenate([(X**2).sum(axis=1) for X in data.X]), 1)


def test_school_percentages_fraction_or_raw(data_dir):
    fraction, raw = (School(percentages=p).load(data_dir) for p in ("fraction", "raw"))
    ratio = [X[:, 3] / X[:, 0].clip(1e-9) for X in (fraction.X[0], raw.X[0])]
    inside = fraction.X[0][:, 0] > 0
    np.testing.assert_allclose(100 * ratio[0][inside], ratio[1][inside])
    assert np.linalg.cond(np.concatenate(raw.X)[:, [3, 5]]) > np.linalg.cond(
        np.concatenate(fraction.X)[:, [3, 5]]
    )


def test_lsoa2_is_what_its_description_says(data_dir):
    data = LSOA2().load(data_dir)
    assert (data.n_tasks, data.n_features, data.kind) == (41, 293, "binary")
    n = data.n_samples
    assert (n.min(), n.max(), np.median(n)) == (1192, 3473, 3296)
    named = dict(zip(data.task_names, zip(n, data.y, strict=True), strict=True))
    n_reach, y_reach = named["DIFFICULTY REACHING OUT"]
    assert n_reach == 3473
    assert (y_reach > 0).mean() == pytest.approx(0.050, abs=5e-4)
    assert (named["MEMORY OF YEAR"][1] > 0).mean() == pytest.approx(0.982, abs=5e-4)
    assert len(set(data.feature_names)) == 293


def test_landmine_is_what_its_description_says(data_dir):
    data = Landmine().load(data_dir)
    assert (data.n_tasks, data.n_features, data.kind) == (29, 10, "binary")
    assert data.n_samples.sum() == 14820
    assert (data.n_samples.min(), data.n_samples.max()) == (445, 690)
    positive = [int((y > 0).sum()) for y in data.y]
    assert (sum(positive), min(positive), max(positive)) == (904, 15, 48)
    assert positive[:4] == [40, 48, 39, 19]
    for X in data.X:
        np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1)


@pytest.mark.parametrize("damage", ["missing", "truncated", "other", "directory"])
def test_damaged_files_are_one_line(damage, data_dir, tmp_path):
    (tmp_path / "school").mkdir()
    target = tmp_path / "school" / "school.mat"
    if damage == "directory":
        target.mkdir()
    elif damage != "missing":
        content = (files.Path(data_dir) / "school" / "school.mat").read_bytes()
        target.write_bytes(content[:1000] if damage == "truncated" else content + b"x")
    with pytest.raises(InputError, match="make data") as error:
        School().load(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_file_with_the_right_name_and_wrong_content_is_one_line(tmp_path):
    path = tmp_path / "a.mat"
    savemat(path, {"other": np.ones(3)})
    with pytest.raises(InputError, match="not the expected MATLAB file"):
        files.read_mat(path, "X")
    path.write_text("not a MATLAB file, but long enough to be looked at" * 10)
    with pytest.raises(InputError, match="not the expected MATLAB file"):
        files.read_mat(path, "X")


def test_fetch_skips_what_is_there(data_dir, tmp_path):
    for name in files.REGISTRY:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(files.Path(data_dir) / name, tmp_path / name)
    assert [path.name for path in files.fetch(tmp_path)] == [
        files.Path(name).name for name in files.REGISTRY
    ]


FAULTS = {
    "there is no task": lambda X, y: ([], []),
    "2 tasks and y has 1": lambda X, y: (X, y[:1]),
    "task 2 is empty": lambda X, y: ([X[0], X[1][:0]], [y[0], y[1][:0]]),
    "rows of features": lambda X, y: (X, [y[0], y[1][:-1]]),
    "features and the first task": lambda X, y: ([X[0], X[1][:, :2]], y),
    "feature x3 is NaN": lambda X, y: ([X[0], np.where(np.arange(3) == 2, np.nan, X[1])], y),
    "or infinite in 1 of": lambda X, y: ([X[0], np.where(X[1] == X[1][0, 0], np.inf, X[1])], y),
    "1 targets are NaN": lambda X, y: (X, [y[0], np.where(np.arange(5) == 0, np.nan, y[1])]),
    "must be a table": lambda X, y: ([x[:, 0] for x in X], y),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults_of_data_are_named(message, rng):
    X, y = FAULTS[message](
        [rng.standard_normal((5, 3)) for _ in range(2)], [rng.standard_normal(5) for _ in range(2)]
    )
    with pytest.raises(InputError, match=message) as error:
        MultiTaskData.checked(X, y)
    assert "\n" not in str(error.value)


def test_faults_of_binary_targets_are_named(rng):
    X = [rng.standard_normal((4, 2))]
    with pytest.raises(InputError, match="one class only"):
        MultiTaskData.checked(X, [np.ones(4)], "binary")
    with pytest.raises(InputError, match="must be -1 or 1"):
        MultiTaskData.checked(X, [np.array([0, 1, 0, 1])], "binary")


def test_a_constant_feature_is_harmless(rng):
    """Whether there is a fit does not depend on all tasks' rows."""
    X = [np.column_stack([np.full(5, 7.0), rng.standard_normal(5)]) for _ in range(2)]
    data = MultiTaskData.checked(X, [rng.standard_normal(5)] * 2)
    assert np.isfinite(ridge_path(datafit_for(data), [0.0, 1.0])).all()
    assert MultiTaskData.checked(X, data.y, bias="x1").bias == "x1"


@pytest.mark.parametrize(
    "dataset", [LowRank(m=5), GroupSparse(m=3), LeakageExample(), School(), LSOA2(), Landmine()]
)
def test_built_in_rows_are_unit_and_say_so(dataset, data_dir):
    for part in dataset.draw(data_dir, 0, 0):
        assert part.row_norm == 1.0
        for X in part.X:
            assert (np.linalg.norm(X, axis=1) <= 1 + 1e-12).all()


@given(fraction=st.floats(0.05, 0.95), seed=st.integers(0, 10**6), binary=st.booleans())
def test_split_is_a_partition_of_each_task(fraction, seed, binary):
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 5, 2, "binary" if binary else "regression", low=2, high=40)
    train, test = split(data, fraction, rng)
    for i in range(5):
        whole = np.sort(np.concatenate([train.X[i][:, 0], test.X[i][:, 0]]))
        np.testing.assert_array_equal(whole, np.sort(data.X[i][:, 0]))
        assert len(train.y[i]) >= 1
        assert binary or abs(len(train.y[i]) - fraction * len(data.y[i])) <= 1
        if binary:  # each class keeps its share
            for label in (-1, 1):
                total = (data.y[i] == label).sum()
                n_train = (train.y[i] == label).sum()
                assert abs(n_train - fraction * total) <= 1


@given(n_folds=st.integers(2, 6), seed=st.integers(0, 10**6), binary=st.booleans())
def test_folds_are_even_and_stratified(n_folds, seed, binary):
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 4, 2, "binary" if binary else "regression", low=6, high=40)
    for labels, y in zip(assign_folds(data, n_folds, rng), data.y, strict=True):
        sizes = np.bincount(labels, minlength=n_folds)
        assert sizes.max() - sizes.min() <= 1
        for label in (-1, 1) if binary else ():
            counts = np.bincount(labels[y == label], minlength=n_folds)
            assert counts.max() - counts.min() <= 1


def test_folds_need_a_task_with_two_samples(rng):
    with pytest.raises(InputError, match="no task has two training samples, which cross-valid"):
        assign_folds(ragged_data(rng, m=30, low=1, high=1), 2, rng)
    with pytest.raises(InputError, match="n_folds = 1: cross-validation needs at least 2"):
        assign_folds(ragged_data(rng), 1, rng)


@pytest.mark.parametrize("n_folds", [6, 40])
def test_a_task_smaller_than_the_folds_is_held_out_once_for_each_sample(n_folds, rng):
    """Also where no task has as many samples as there are folds."""
    data = ragged_data(rng, m=30, low=1, high=9)
    for labels in assign_folds(data, n_folds, rng):
        assert np.bincount(labels, minlength=n_folds).max() <= -(-len(labels) // n_folds)


@pytest.mark.parametrize("used", [20, 40, 320])
def test_the_first_tasks_are_the_same_however_many_take_part(used):
    """Fig. 8: the twenty that are scored do not depend on how many others learn."""
    everybody, _ = LowRank().draw(None, 3, 1)
    train, test = LowRank(used=used, scored=20).draw(None, 3, 1)
    assert (train.n_tasks, test.n_tasks) == (used, 20)
    assert train.task_names[:20] == test.task_names
    for name, X, y in zip(train.task_names, train.X, train.y, strict=True):
        np.testing.assert_array_equal(X, everybody.X[int(name) - 1])
        np.testing.assert_array_equal(y, everybody.y[int(name) - 1])
    blocks = np.bincount([(int(name) - 1) // 64 for name in train.task_names], minlength=5)
    assert blocks.max() - blocks.min() <= 2  # every block has its share


@pytest.mark.parametrize("settings", [{"used": 0}, {"used": 321}, {"used": 5, "scored": 6}])
def test_impossible_numbers_of_tasks_are_refused(settings):
    with pytest.raises(InputError, match="must be between 1 and"):
        LowRank(**settings)
