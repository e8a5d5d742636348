"""A fit by chunks of tasks: the same bits on one process and on many; tables in partitions."""

import os
import signal
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from conftest import ragged_data

from mpmtl import MultiTaskClassifier, MultiTaskRegressor, chunks
from mpmtl.chunks import Chunked, Contributions, Serial, slices
from mpmtl.data import Partitions
from mpmtl.datafits import SquaredLoss, datafit_for
from mpmtl.divided import DividedLoss
from mpmtl.errors import InputError
from mpmtl.experiments.parallel import DaskChunks, Local
from mpmtl.methods import Budget, FeatureLearning, MeanRegularised, Proximal, ProximalCandidate
from mpmtl.methods.mean_regularised import MeanRegularisedCandidate
from mpmtl.methods.prior_steps import (
    averages,
    by_evidence,
    gamma_grid,
    own_models,
    shown_directions,
    weighted,
)
from mpmtl.methods.shared_choice import in_the_race
from mpmtl.privacy.mechanisms import Gaussian
from mpmtl.privacy.releases import covariance, signed_parts, vector_sum
from mpmtl.solvers.gaussian_prior import PriorPath, PriorPoints, PriorSystems, rows_at
from mpmtl.solvers.hierarchy import BELIEF, by_hierarchy
from mpmtl.solvers.noisy_covariance import Prior
from mpmtl.solvers.single_task import ridge_path
from mpmtl.solvers.tridiagonal import Tridiagonal, solved

SIZE = 16
BUDGET = Budget(Gaussian(), 3.0, 1e-3)


@pytest.fixture
def small(monkeypatch):
    """Chunks of 16 tasks."""
    for module in ("mpmtl.chunks", "mpmtl.methods.shared_choice"):
        name = "RUNNERS" if module.endswith("choice") else "CHUNK"
        monkeypatch.setattr(f"{module}.{name}", SIZE)


def some_loss(rng, m=40, d=3, kind="regression", **settings):
    data = ragged_data(rng, m=m, d=d, low=4, high=9)
    if kind == "binary":
        data = replace(data, kind="binary", y=tuple(np.where(y > 0, 1.0, -1.0) for y in data.y))
    return datafit_for(replace(data, **settings))


def models(method, loss, budget=BUDGET):
    return method.models(loss, None, budget, np.random.default_rng(1))


def in_one_piece(monkeypatch, function):
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 10**6)
        return function()


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("tuning", ["shared", "local", "hyper"])
def test_a_fit_by_chunks_is_that_in_one_piece(tuning, kind, rng, small, monkeypatch):
    loss = some_loss(rng, kind=kind)
    method = FeatureLearning("fl", tuning)
    whole = in_one_piece(monkeypatch, lambda: models(method, loss))
    assert len(loss.chunks()) == 3
    by_chunks = models(method, loss)
    np.testing.assert_allclose(by_chunks, whole, rtol=1e-9, atol=1e-9 * np.abs(whole).max())
    np.testing.assert_array_equal(models(method, DividedLoss.of(loss, Serial())), by_chunks)


@pytest.mark.parametrize("kind", [PriorPath, PriorSystems])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_averages_are_those_of_the_models_of_every_gamma(mean, own, kind, rng):
    """The fast form against the plain one: every gamma's models, then their average."""
    rows = rows_at(some_loss(rng, m=5, d=4), None)
    A = rng.standard_normal((4, 4))
    priors = [Prior("separate", np.eye(4))]
    priors.append(Prior("p", A @ A.T, rng.standard_normal(4) if mean else None, own))
    paths = [kind(rows, prior, gamma_grid(rows)) for prior in priors]
    for weights, terms in (by_evidence(paths), by_hierarchy(paths, (0.5, 2.0), BELIEF)):
        every = [p.W if a is None else p.W + a[..., None] * p.pull for p, a in terms]
        plain = weighted(weights, np.stack(every))
        for fast, slow in zip(averages(weights, terms), plain, strict=True):
            np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 9, 40])
@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize(("mean", "own", "free"), [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1)])
def test_systems_have_the_evidence_and_models_of_eigenvectors(mean, own, free, kind, d, rng):
    loss = some_loss(rng, m=6, d=d, kind=kind)
    rows = rows_at(loss, rng.standard_normal(loss.shape))
    A = rng.standard_normal((d, d))
    for C in (np.eye(d), A @ A.T + np.eye(d)):
        prior = Prior("p", C, rng.standard_normal(d) if mean else None, bool(own), bool(free))
        gamma = gamma_grid(rows)
        plain, fast = (form(rows, prior, gamma) for form in (PriorPath, PriorSystems))
        weights, scale = rng.random((2, *gamma.shape)), 2 * rng.random(gamma.shape)
        for name, given in (("evidence", (0.7,)), ("averages", (weights, scale))):
            for expected, result in zip(
                getattr(plain, name)(*given), getattr(fast, name)(*given), strict=True
            ):
                close = 1e-9 * np.abs(expected).max()
                np.testing.assert_allclose(result, expected, rtol=1e-9, atol=close)


def test_tridiagonal_systems_are_those_of_the_matrix(rng):
    d, gamma = 7, np.array([[1e-12], [1e-3], [1.0]]) * np.ones(3)
    A = rng.standard_normal((3, d, d))
    A[0, :, 2:] = 0  # rank 2: five eigenvalues are zero
    A[2] = 0
    B = A @ A.swapaxes(1, 2)
    b = rng.standard_normal((d, 3))
    T = Tridiagonal(B.copy())
    np.testing.assert_allclose(T.back(T.into(b[None])), b[None], atol=1e-14)
    pivots, lower = T.factorised(gamma)
    assert (pivots >= gamma).all()
    x = solved(pivots, lower, T.into(b[None])[0])
    for k, g in enumerate(gamma):
        system = B + g[:, None, None] * np.eye(d)
        w = T.back(x[None, :, k])[0]
        residual = np.einsum("mde,em->dm", system, w) - b
        size = np.abs(system).max() * np.abs(w).max() + 1
        assert np.abs(residual).max() < 1e-13 * size
        if g[0] > 1e-6:
            log_det = np.linalg.slogdet(system)[1]
            np.testing.assert_allclose(np.log(pivots[:, k]).sum(axis=0), log_det, rtol=1e-9)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_few_gamma_are_solved_to_what_the_path_has(mean, own, rng):
    rows = rows_at(some_loss(rng, m=5, d=4), None)
    A = rng.standard_normal((4, 4))
    prior = Prior("p", A @ A.T + np.eye(4), rng.standard_normal(4) if mean else None, own)
    gamma, a = gamma_grid(rows)[3:5], np.array([0.3, 0.7]) if mean else None
    weights = rng.random((2, 2, 5))
    path, points = (kind(rows, prior, gamma) for kind in (PriorPath, PriorPoints))
    scale = a if a is None else a[:, None]
    for name, given in (
        ("averages", (weights, scale)),
        ("left_out_errors", (a,)),
        ("square_sums", ()),
    ):
        expected = getattr(path, name)(*given)
        np.testing.assert_allclose(getattr(points, name)(*given), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("release", [covariance(3), signed_parts(3), vector_sum(3)])
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_gate_adds_contributions_chunk_by_chunk(release, noise, rng, small):
    """The same bits from an array and from contributions that are worked out where they are added;
    every one is bounded in its chunk."""
    V = 2 * rng.standard_normal((40, 3))
    V[7] = np.nan
    parts = Chunked([V[tasks] for tasks in slices(40)])
    given = Contributions(parts, np.copy, 40)
    gate = Budget(Gaussian(noise=noise), 1.0, 1e-3).open(release, 1, rng).with_budgets([0.8])
    released = gate(1, V, 1.0)
    np.testing.assert_array_equal(gate(1, given, 1.0), released)
    np.testing.assert_array_equal(np.asarray(given), V)
    within = V / np.maximum(1, np.linalg.norm(V, axis=1, keepdims=True))
    within[7] = 0
    signal = released - gate.scale(1, 1.0) * gate.draws[0]
    np.testing.assert_allclose(
        signal, release.total(within), atol=3e-4 if noise == "secure" else 1e-12
    )


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_rounds_of_other_methods_by_chunks(kind, rng, small):
    """`lr`, `gs` and `mr_mtl` ask a divided loss for gradients and ridge solutions only."""
    loss = some_loss(rng, kind=kind)
    lr = [
        (Proximal("lr", penalty, True), ProximalCandidate(0.1, 4, True, False, alpha=0.0, K=1.0))
        for penalty in ("trace", "l21")
    ]
    mr = MeanRegularised("mr_mtl"), MeanRegularisedCandidate(0.5, 0.1, 1.0, 2)
    for method, candidate in (*lr, mr):
        fits = []
        for each in (loss, DividedLoss.of(loss, Serial())):
            start = ridge_path(each, [0.3])[0]
            ((_, W),) = method.fit(each, start, [candidate], BUDGET, np.random.default_rng(1))
            fits.append(W[0])
        assert np.abs(fits[0]).max() > 0
        np.testing.assert_allclose(fits[1], fits[0], rtol=1e-9, atol=1e-12)


def test_errors_of_chunks_weigh_samples_as_the_whole_does(rng, small):
    loss = some_loss(rng, pooled=True)
    parts = [chunk.error_weights() for chunk in loss.chunks().each()]
    np.testing.assert_array_equal(np.concatenate(parts), loss.error_weights())


def test_statistics_of_a_chunk_last_as_long_as_its_step(rng, small):
    """Memory is that of one chunk: neither the loss nor its chunks keep Gram matrices."""
    loss = some_loss(rng)
    parts = loss.chunks()
    norms = parts.map(lambda chunk: chunk.gram.sum()).each()
    assert sum(norms) != 0
    assert "gram" not in vars(loss)
    assert all("gram" not in vars(item) for item in parts.items)
    whole = SquaredLoss(loss.X, loss.y)
    np.testing.assert_allclose(whole.gram.sum(), sum(parts.map(lambda c: c.gram.sum()).each()))


def test_a_prior_leaves_the_race_only_where_it_cannot_have_weight(rng):
    """Worse by six standard errors, and by enough for the number of samples."""
    base = 1 + 0.1 * rng.random(400)
    errors = np.stack([base, base * 1.2, base + 0.001 * rng.standard_normal(400)])
    assert in_the_race(errors, 10**6).tolist() == [True, False, True]
    assert in_the_race(errors, 1000).all()


def test_a_model_of_one_sample_has_no_rest_beside_it(rng):
    """One row's model is along that row: with one round nothing of it is shown, no rounding."""
    loss = some_loss(rng, d=5)
    one = SquaredLoss(tuple(X[:1] for X in loss.X), tuple(y[:1] for y in loss.y))
    assert np.abs(own_models(one).W).min() > 0
    np.testing.assert_array_equal(shown_directions(True, one, own_models(one)), 0)


def written(folder, rng, m=40, files=2):
    """A table in `files` Parquet files whose tasks fill whole chunks, and the table."""
    pytest.importorskip("pyarrow", reason="needs the cluster extra")
    sizes = rng.integers(3, 8, m)
    table = pd.DataFrame(rng.standard_normal((sizes.sum(), 3)), columns=list("abc"))
    table["y"] = table.a + 0.1 * rng.standard_normal(len(table))
    table["owner"] = np.repeat(np.arange(m), sizes)
    folder.mkdir(exist_ok=True)
    for k in range(files):
        first, last = 2 * SIZE * k, 2 * SIZE * (k + 1) if k < files - 1 else m
        part = table[(table.owner >= first) & (table.owner < last)]
        part.to_parquet(folder / f"part-{k}.parquet")
    return table


def LEARNER():
    """The same noise each time."""
    return MultiTaskRegressor(privacy__noise="seeded", random_state=np.random.default_rng(1))


@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
def test_a_folder_of_partitions_gives_the_fit_of_the_table(tmp_path, rng, small):
    table = written(tmp_path / "parts", rng)
    learner = LEARNER()
    partitions = Partitions.of(tmp_path / "parts", "owner", "y")
    assert partitions.features == ("a", "b", "c")
    coef = learner.fit_partitions(partitions).coef_
    alike = LEARNER().fit(table.drop(columns="y"), table.y, task="owner")
    np.testing.assert_array_equal(coef, alike.coef_)
    np.testing.assert_array_equal(learner.tasks_, alike.tasks_)
    X = table.drop(columns="y")
    np.testing.assert_array_equal(learner.predict(X, "owner"), alike.predict(X, "owner"))


@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
def test_a_learner_says_what_it_cannot_learn_from_partitions(tmp_path, rng):
    written(tmp_path / "parts", rng)
    partitions = Partitions.of(tmp_path / "parts", "owner", "y")
    for settings, message in (
        ({"method": "lr"}, "method = 'lr' needs all rows at once: use fl or fl_local"),
        ({"random_state": 3}, "random_state = 3: whole numbers name noise by all the data"),
    ):
        with pytest.raises(InputError, match=message):
            MultiTaskRegressor(**settings).fit_partitions(partitions)
    with pytest.raises(InputError, match="give both one kind"):
        MultiTaskClassifier().fit_partitions(partitions)


def test_a_row_index_that_pandas_wrote_is_named(tmp_path, rng):
    written(tmp_path, rng, files=1).iloc[[2, 0, 1]].to_parquet(tmp_path / "part-0.parquet")
    partitions = Partitions.of(tmp_path, "owner", "y")
    with pytest.raises(InputError, match="write the files with index=False"):
        partitions.numbers(tmp_path / "part-0.parquet")


def test_what_a_folder_lacks_is_said(tmp_path, rng):
    with pytest.raises(InputError, match="no such folder"):
        Partitions.of(tmp_path / "nowhere", "owner", "y")
    with pytest.raises(InputError, match=r"no file \*\.parquet"):
        Partitions.of(tmp_path, "owner", "y")
    table = written(tmp_path / "parts", rng)
    with pytest.raises(InputError, match="task = person: .* has the columns a, b, c, y, owner"):
        Partitions.of(tmp_path / "parts", "person", "y")
    table.to_parquet(tmp_path / "parts" / "part-9.parquet")
    with pytest.raises(InputError, match=r"owner 0 \(and of 39 more\) do not stand together"):
        Partitions.of(tmp_path / "parts", "owner", "y").scanned()
    for path in (tmp_path / "parts").glob("*"):
        path.write_bytes(b"no table")
    with pytest.raises(InputError, match="cannot be read"):
        Partitions.of(tmp_path / "parts", "owner", "y")


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["shared", "hyper"])
def test_processes_give_the_bytes_of_one(tuning, rng):
    loss = some_loss(rng, m=1100)
    method = FeatureLearning("fl", tuning)
    with Local().chunks(2) as engine:
        divided = models(method, DividedLoss.of(loss, engine))
    np.testing.assert_array_equal(divided, models(method, loss))


def kill_once(mark, seconds, loss, *rest):
    """Ends the process that works on a chunk, the first time."""
    if not os.path.exists(mark):
        open(mark, "w").close()
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)
    return loss.shape[0]


@pytest.mark.slow
def test_a_lost_process_costs_its_step_only(tmp_path, rng):
    loss = some_loss(rng, m=1100)
    with Local().chunks(2) as engine:
        parts = DividedLoss.of(loss, engine).chunks()
        assert sum(parts.map(partial(kill_once, tmp_path / "mark", 0)).each()) == 1100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mpmtl.privacy.statements.PrivacyCaveat")
def test_a_lost_worker_of_a_cluster_loses_nothing(tmp_path, rng):
    """A fit on partitions during which a worker is killed has the bytes of one process."""
    distributed = pytest.importorskip("distributed", reason="needs the cluster extra")
    written(tmp_path / "parts", rng, m=3000, files=4)
    partitions = Partitions.of(tmp_path / "parts", "owner", "y")
    expected = LEARNER().fit_partitions(partitions).coef_
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        engine = DaskChunks(client)
        items = Chunked([1] * 4, engine).map(abs)  # kept on the workers, one of which will be lost
        killer = client.submit(partial(kill_once, tmp_path / "mark", 0.5), np.zeros((2, 1)))
        np.testing.assert_array_equal(
            LEARNER().fit_partitions(partitions, engine=engine).coef_, expected
        )
        assert killer.result() == 2
        assert list(items.each()) == [1] * 4
        assert (tmp_path / "mark").exists()
