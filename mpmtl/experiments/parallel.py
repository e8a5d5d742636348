"""Where replicates run: processes on this machine, or the workers of a dask cluster.

An engine has ``n_workers(n_jobs, n_items)`` and ``map(function, items, n_jobs)``, which yields the
results as they come and raises `WorkerDied` when a process was lost. Within ``chunks(n_jobs)`` it
divides a single fit: that is an engine of `mpmtl.chunks`. Results do not depend on it.
"""

import contextlib
import re
import signal
import warnings
from dataclasses import dataclass
from multiprocessing import resource_tracker

from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.process_executor import TerminatedWorkerError

from mpmtl.chunks import Serial
from mpmtl.errors import InputError, require


class WorkerDied(Exception):
    """A worker process ended without a result: killed, or out of memory."""


@contextlib.contextmanager
def _deaf_to_ctrl_c():
    """What is started here inherits that SIGINT is blocked: Ctrl-C goes to a whole group."""
    for tracker in (resource_tracker, loky_tracker):  # the start of one would end the block
        tracker.ensure_running()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


GATHERED = 256  # results of steps that come from a cluster together
CHUNK_RETRIES = 2  # a step that lost a process is taken again this often


@dataclass(frozen=True)
class LocalChunks:
    """Steps of a fit in processes: what a step needs is sent with it, and it sends back its result.

    Nothing is kept in a process, so a lost one costs the step it was in.
    """

    parallel: Parallel

    def run(self, function, *columns):
        """Results of the function for each row of the columns."""
        for left in reversed(range(CHUNK_RETRIES + 1)):
            try:
                return self.parallel(delayed(function)(*row) for row in zip(*columns, strict=True))
            except TerminatedWorkerError as error:
                if left == 0:
                    raise WorkerDied from error

    def results(self, items):
        """The items: they are results."""
        return iter(items)


@dataclass(frozen=True)
class DaskChunks:
    """Steps of a fit on the workers of a cluster, where what tasks keep between rounds stays.

    A lost worker's part is worked out again from what came before it, by dask itself.
    """

    client: object

    def run(self, function, *columns):
        """Futures of the function for each row of the columns."""
        return self.client.map(function, *columns, pure=False)

    def results(self, items):
        """Yield what the items stand for, in order."""
        from distributed import KilledWorker

        for start in range(0, len(items), GATHERED):
            try:
                yield from self.client.gather(items[start : start + GATHERED])
            except KilledWorker as error:
                raise WorkerDied from error


@dataclass(frozen=True)
class Local:
    """Processes on this machine (joblib's loky)."""

    @contextlib.contextmanager
    def chunks(self, n_jobs):
        """Engine of a single fit."""
        n = self.n_workers(n_jobs, cpu_count())
        if n == 1:
            yield Serial()
            return
        with Parallel(n, max_nbytes=None, batch_size=1) as parallel:
            yield LocalChunks(parallel)

    def n_workers(self, n_jobs, n_items):
        """Processes that will be used: n_jobs, or one for each core if it is negative."""
        return max(1, min(cpu_count() if n_jobs < 0 else n_jobs, n_items))

    def map(self, function, items, n_jobs):
        """Results of the function for every item, as they come."""
        parallel = Parallel(self.n_workers(n_jobs, len(items)), return_as="generator_unordered")
        with _deaf_to_ctrl_c():  # it ends this process, which ends the workers
            results = parallel(delayed(function)(item) for item in items)
        try:
            for result in results:  # noqa: UP028 (`yield from` would close the results itself)
                yield result
        except TerminatedWorkerError as error:
            raise WorkerDied from error
        finally:
            with warnings.catch_warnings():  # the error says enough, and what was done is saved
                warnings.filterwarnings("ignore", ".*tasks which were still being", UserWarning)
                results.close()


@dataclass(frozen=True)
class Dask:
    """Workers of a running dask cluster, all of them whatever n_jobs is.

    Uses dask itself, not joblib's dask backend, which waits for ever for a killed worker.

    Parameters
    ----------
    address : str
        Of the scheduler, such as ``tcp://head-node:8786``.
    timeout : float
        Seconds to wait for the scheduler, and for its first worker.
    """

    address: str
    timeout: float = 30.0

    def __post_init__(self):
        require(
            re.fullmatch(r"(\w+://)?[^/\s]+:\d+", self.address) is not None,
            f"parallel.address = {self.address}: give it as tcp://HOST:PORT",
        )
        require(self.timeout > 0, f"parallel.timeout = {self.timeout} must be above 0")

    @contextlib.contextmanager
    def _client(self):
        try:
            from distributed import Client
        except ImportError:
            raise InputError(
                "parallel=dask needs the cluster extra: pip install 'mpmtl[cluster]'"
            ) from None
        try:
            client = Client(self.address, timeout=self.timeout, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"parallel.address = {self.address}: no dask scheduler answers there ({error})"
            ) from error
        with client:
            try:
                client.wait_for_workers(1, timeout=self.timeout)
            except TimeoutError:
                raise InputError(
                    f"parallel.address = {self.address}: the scheduler has no worker; start some "
                    "with: dask worker ADDRESS --nworkers N --nthreads 1"
                ) from None
            yield client

    @contextlib.contextmanager
    def chunks(self, n_jobs):
        """Engine of a single fit."""
        with self._client() as client:
            yield DaskChunks(client)

    def n_workers(self, n_jobs, n_items):
        """Threads of all workers together."""
        with self._client() as client:
            return min(sum(client.nthreads().values()), n_items)

    def map(self, function, items, n_jobs):
        """Results of the function for every item, as they come."""
        from distributed import KilledWorker, as_completed

        with self._client() as client:
            futures = client.map(function, items, pure=False)
            try:
                for future in as_completed(futures, loop=client.loop):
                    yield future.result()
            except KilledWorker as error:
                raise WorkerDied from error
            finally:
                client.cancel(futures)
