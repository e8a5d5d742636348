"""How long a run or an audit will take, from a part of it."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from joblib import cpu_count

from mpmtl.auditing.audit import run_audit, sample_counts
from mpmtl.datafits import LogisticLoss
from mpmtl.experiments.audit import AuditRun, prepared_audit
from mpmtl.experiments.store import replicates_in
from mpmtl.experiments.tuning import prepare, search_of

MOST = 16  # candidates that are timed
SHARE = {"grid": 1.0, "race": 0.3}  # of the folds' fits, by search


def wanted(run):
    """Replicates that a run is to have; an audit counts as one."""
    return getattr(run, "n_replicates", 1)


def finished(run):
    """Replicates of a run that are in its journal."""
    return min(replicates_in(Path(run.results_dir) / run.folder), wanted(run))


@dataclass(frozen=True)
class Forecast:
    """Seconds of a replicate: what all runs on the same data share, and what each run takes."""

    shared: float
    own: float


def forecast(run, cache):
    """Time the preparation and a part of the candidates on all training data, and scale it up.

    Separate tasks are solved with one ridge penalty. The part has, of each penalty and variant, the
    middle value of lambda, and at most 16 candidates with their share of the rounds.

    Parameters
    ----------
    run : Run
    cache : dict
        Problems and their seconds, from one call to the next.

    Returns
    -------
    Forecast
    """
    problem, draw, spent = _prepared(run, cache)
    candidates = run.method.candidates(problem.scales)
    groups = {}
    for candidate in candidates:
        words = [value for value in candidate.as_row().values() if isinstance(value, str)]
        groups.setdefault(tuple(words), []).append(candidate)
    folds = (
        run.tuning.folds * SHARE[search_of(candidates, run.tuning)] if len(candidates) > 1 else 0
    )
    own = draw
    for group in groups.values():
        alike = _middle(group)
        part = alike[:: -(-len(alike) // MOST)] if run.method.private else alike
        seconds = _fit_seconds(run, problem, part)
        whole = seconds * _rounds(alike) / _rounds(part) * len(group) / len(alike)
        own += whole * folds + seconds / len(part) / len(groups)
    return Forecast(spent, own)  # separate tasks are cached between runs


def _prepared(run, cache):
    """A replicate's problem with one ridge penalty, seconds to draw it, and to prepare it."""
    method = run.method
    key = repr((run.dataset, run.tuning, method.loss_average, method.public_constants))
    if key not in cache:
        started = time.perf_counter()
        train, _ = run.draw(0)
        drawn = time.perf_counter()
        ridge = run.tuning.ridge
        middle = replace(run.tuning, ridge=ridge[len(ridge) // 2])
        problem = prepare(train, middle, method, run.seed, 0)
        spent = time.perf_counter() - drawn
        if isinstance(problem.datafit, LogisticLoss):  # Newton's method for each penalty
            spent *= len(ridge)
        cache[key] = problem, drawn - started, spent
    return cache[key]


def _middle(candidates):
    """Those with the middle value of their penalty, where they have one."""
    key = next((name for name in candidates[0].as_row() if name.startswith("lam")), None)
    if key is None:
        return candidates
    lams = sorted({c.as_row()[key] for c in candidates})
    return [c for c in candidates if c.as_row()[key] == lams[len(lams) // 2]]


def _fit_seconds(run, problem, candidates):
    budget, started = run.budget(problem.datafit.shape[0]), time.perf_counter()
    fits = run.method.fit(
        problem.datafit, problem.start, candidates, budget, np.random.default_rng(0)
    )
    for _ in fits:
        pass
    return time.perf_counter() - started


def _rounds(candidates):
    return sum(getattr(c, "n_rounds", 1) or 1 for c in candidates)


def forecast_audit(run, samples=500):
    """Seconds of an audit, from one with few samples; its start is not counted twice."""
    subjects, statement, settings = prepared_audit(run)
    full = max(n for *_, n in sample_counts(subjects, settings))
    seconds = []
    for n in (samples, 2 * samples):
        started = time.perf_counter()
        run_audit(subjects, statement, replace(settings, samples=n))
        seconds.append(time.perf_counter() - started)
    return seconds[0] + max(seconds[1] - seconds[0], 0.0) * (full / samples - 1)


def seconds_left(runs, cache):
    """Seconds until runs, or audits, are done on all cores.

    Parameters
    ----------
    runs : list of Run or AuditRun
    cache : dict
        What was timed, from one call to the next: runs that differ in their budget take as long.
    """
    seconds, shared = 0.0, set()
    for run in runs:
        todo, audit = wanted(run) - finished(run), isinstance(run, AuditRun)
        key = repr((run.dataset, run.method, run.mechanism if audit else run.tuning))
        if not todo:
            continue
        if key not in cache:
            cache[key] = forecast_audit(run) if audit else forecast(run, cache)
        if audit:
            seconds += cache[key]
            continue
        data = repr((run.dataset, run.tuning.ridge, run.tuning.folds))
        once = 0.0 if data in shared else cache[key].shared
        shared.add(data)
        seconds += todo * (cache[key].own + once) / min(cpu_count(), todo)
    return seconds
