"""Replicates on other processes and machines: dask, Hydra's submitit launcher, lost workers."""

import os
import signal
import warnings
from contextlib import contextmanager
from functools import partial

import pytest
from conftest import ROOT, TINY, make_run, mpmtl_run, tables

from mpmtl.errors import InputError, ResultsError
from mpmtl.experiments.parallel import Dask, Local, WorkerDied
from mpmtl.experiments.runner import _on_worker

SWEEP = ("-m", "method=lr,mtl_lr", "epsilon=0.1,1", *TINY)
FOLDERS = ("lr/wishart/eps-0.1", "lr/wishart/eps-1", "mtl_lr/none/eps-inf")


@contextmanager
def dask_cluster():
    """Address of a dask cluster with two workers."""
    distributed = pytest.importorskip("distributed", reason="needs the cluster extra")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def scheduler():
    with dask_cluster() as address:
        yield address


@pytest.fixture
def one_that_loses_workers():
    """A cluster of its own that gives a task up when its first worker died: a worker that is killed
    while it starts is not started again, and a later test would wait for ever."""
    dask = pytest.importorskip("dask", reason="needs the cluster extra")
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), dask_cluster() as address:
        yield address


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The sweep in this machine's processes, what the others are compared with."""
    path = tmp_path_factory.mktemp("plain")
    done = mpmtl_run(*SWEEP, cwd=path)
    assert done.returncode == 0, done.stderr
    return path, done.stdout


def last_table(stdout):
    return stdout[stdout.rindex("\ndataset ") :]


def assert_same_results(path, plain):
    for folder in FOLDERS:
        there, here = (p / "results/smoke/low_rank" / folder for p in (path, plain))
        assert tables(there) == tables(here)


def test_dask_gives_the_same_bytes(scheduler, plain, tmp_path):
    done = mpmtl_run(*SWEEP, "parallel=dask", f"parallel.address={scheduler}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_results(tmp_path, plain[0])
    assert last_table(done.stdout) == last_table(plain[1])


def dies(mark, item):
    """Item 1 ends its process: once if `mark` is a path, always if it is None."""
    if item == 1 and (mark is None or not os.path.exists(mark)):
        if mark is not None:
            open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.filterwarnings("ignore:A worker stopped while some jobs were given to the executor")
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_worker_that_always_dies_is_reported(engine, request):
    dask = "one_that_loses_workers"
    workers = Local() if engine == "local" else Dask(request.getfixturevalue(dask))
    with pytest.raises(WorkerDied):
        list(workers.map(partial(dies, None), [0, 1, 2, 3], 2))


def test_dask_tries_again_where_a_worker_died(tmp_path):
    with dask_cluster() as address:
        done = list(Dask(address).map(partial(dies, str(tmp_path / "mark")), [0, 1, 2, 3], 2))
    assert (tmp_path / "mark").exists()
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "nonsense"}, "parallel.address = nonsense: give it as tcp://HOST:PORT"),
        ({"address": "tcp://h:1", "timeout": 0}, "parallel.timeout = 0 must be above 0"),
    ],
)
def test_impossible_addresses_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Dask(**settings)


def test_a_scheduler_that_is_not_there_is_one_line(tmp_path):
    words = ("parallel=dask", "parallel.address=tcp://127.0.0.1:1", "parallel.timeout=1.0")
    done = mpmtl_run(*TINY, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no dask scheduler answers there" in done.stderr
    assert "parallel.address has no value" in mpmtl_run("parallel=dask", cwd=tmp_path).stderr


def test_a_worker_with_another_version_is_refused():
    with pytest.raises(ResultsError, match="a worker runs mpmtl .* and this is 0.0: install"):
        _on_worker(make_run(), "0.0", 0)


def submitit(*arguments, cwd):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the cluster extra")
    return mpmtl_run(*arguments, "hydra/launcher=submitit_local", cwd=cwd)


def test_submitit_gives_the_same_bytes_and_table(plain, tmp_path):
    """The non-private method's two jobs share a folder: one waits for the other."""
    done = submitit(*SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "each job prints to a log below" in done.stdout
    assert_same_results(tmp_path, plain[0])
    assert last_table(done.stdout) == last_table(plain[1])


def test_a_failing_job_elsewhere_is_named_and_stops_nothing(tmp_path):
    done = submitit("-m", "method=lr", "epsilon=-1,1", *TINY, cwd=tmp_path)
    assert done.returncode == 1
    assert "failed jobs of the sweep (1; all others are done)" in done.stderr
    assert "epsilon = -1" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "results/smoke/low_rank/lr/wishart/eps-1/replicates.csv").exists()


def test_a_job_elsewhere_that_dies_is_one_line(tmp_path):
    """A data set whose code ends the process stands in for a job that the cluster kills."""
    (tmp_path / "fatal.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "own/dataset").mkdir(parents=True)
    (tmp_path / "own/dataset/fatal.yaml").write_text("_target_: fatal.Data\n")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the cluster extra")
    done = mpmtl_run(
        *("--config-dir", "own", "-m", "dataset=leakage_example,fatal", "scale=smoke"),
        *("hydra/launcher=submitit_local", "n_replicates=1", "n_jobs=1"),
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.returncode == 1
    assert "error: a job sent elsewhere died" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_engine_leaves_warnings_as_they_were():
    """A map that is left before its end, as after an error, changes no filter and says nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        results = Local().map(abs, list(range(-50, 0)), 2)
        next(results)
        results.close()
        assert list(warnings.filters) == before
    assert [str(w.message) for w in caught if "being processed" in str(w.message)] == []
