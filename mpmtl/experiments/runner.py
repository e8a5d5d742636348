"""A run: replicates of draw, tune, refit, score; in parallel, resumable, one row each."""

import hashlib
import json
import secrets
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from mpmtl.chunks import CHUNK
from mpmtl.data.real import RealData
from mpmtl.datafits import datafit_for
from mpmtl.errors import ResultsError
from mpmtl.experiments.fitting import tuned_fit
from mpmtl.experiments.layout import WIDTH, Progress
from mpmtl.experiments.ledger import charge
from mpmtl.experiments.parallel import WorkerDied
from mpmtl.experiments.predict import task_models
from mpmtl.experiments.store import RunFolder, cached_arrays, code_version
from mpmtl.experiments.terminal import (
    FITTED,
    card,
    forecast_line,
    job_line,
    note_line,
    plan_line,
    summary_row,
    worst_statement,
)
from mpmtl.experiments.tuning import chosen_outside, edges
from mpmtl.methods import Budget, Scales
from mpmtl.metrics import WORST, clipped_errors, dominating, error_per_task, evaluate
from mpmtl.privacy.mechanisms import Laplace
from mpmtl.privacy.releases import vector_sum
from mpmtl.privacy.spending import Spent
from mpmtl.streams import stream

WORKER_RETRIES = 2  # a killed worker's replicates are tried again this often


def run_replicate(run, replicate, keep=None, engine=None):
    """Draw, tune, refit and score one replicate.

    Parameters
    ----------
    run : Run
    replicate : int
    keep : callable, optional
        Keeps slow preparations for other runs: as that of `prepare`, with a key that names the
        training data too.
    engine : object, optional
        Takes the chunks of the last fit, see `mpmtl.chunks`.

    Returns
    -------
    dict
        The journal record: rows of the tables, the privacy statement and the edges; and
        "arrays" and "models", which go to files of their own.
    """
    started = time.perf_counter()
    train, test = run.draw(replicate)
    data, settings = train.digest(), json.dumps(run.settings, sort_keys=True)

    def noise(fold):  # two runs never share a draw: the difference would be free of noise
        return stream(run.seed, "noise", data, settings, replicate, fold)

    def of_data(key, compute):
        return keep((data, *key), compute)

    fit = tuned_fit(run, train, noise, replicate, keep and of_data, engine)
    chosen, log, budget, datafit = fit.chosen, fit.log, fit.budget, fit.problem.datafit
    arrays, models = log.arrays if run.evaluation == "exact" else {}, []
    if run.save_models:
        models = task_models(run.method.name, train, fit.W)
        if log.released:
            shapes = {part.shape for part in log.released}
            kept = {f"released_{t}": part for t, part in enumerate(log.released, start=1)}
            arrays = arrays | (kept if len(shapes) > 1 else {"released": np.stack(log.released)})
    metrics, dominant = _test_metrics(run, train, test, fit.W, fit.problem.start, noise)
    scores = fit.scores if run.evaluation == "exact" else fit.scores * np.nan  # exact as well
    return {
        "replicate": replicate,
        "replicates": [
            {
                "dataset": run.dataset.name,
                "method": run.method.name,
                "privacy": run.mechanism.name,
                "epsilon": run.epsilon,
                "delta": budget.delta,
                "replicate": replicate,
                "metric": metric,
                "value": value,
                **chosen.as_row(),
            }
            for metric, value in metrics.items()
        ],
        "cv": [
            {
                "replicate": replicate,
                "candidate": k,
                **candidate.as_row(),
                "score": score if np.isfinite(score) else None,
                "chosen": k == fit.best,
            }
            for k, (candidate, score) in enumerate(zip(fit.candidates, scores, strict=True))
        ],
        "trace": _trace_rows(run, replicate, chosen, budget, datafit, log),
        "timing": [{"replicate": replicate, "seconds": time.perf_counter() - started}],
        "owners": _owner_rows(run, replicate, train, test, fit.W, fit.problem.start),
        "privacy": fit.statement.as_dict()
        | {"outside_budget": chosen_outside(run.method, run.tuning), "n_tasks": train.n_tasks},
        "dominating": dominant,
        "settings": chosen.as_row(),
        "edges": edges(run.method.limits(), chosen, fit.candidates),
        "arrays": arrays,
        "models": models,
    }


def _own_means(train):
    """Mean target of each task, shape (m,); 0 where it has no rows."""
    return np.array([y.mean() if len(y) else 0.0 for y in train.y])


def _test_metrics(run, train, test, W, start, noise):
    """Test errors as the run may show them, exact, one with noise, or none; and with exact ones the
    task that makes most of the mean, if one does."""
    if run.evaluation == 0 or not test.n_samples.any():
        return {FITTED: train.n_tasks}, None
    means = _own_means(train)
    if run.evaluation != "exact":
        return {"noisy_error": noisy_error(run, clipped_errors(test, W, means), noise)}, None
    metrics = evaluate(test, W, means)
    main = next(iter(metrics))
    metrics[f"{main}_stl"] = evaluate(test, start, means)[main]
    return metrics, dominating(test, W, means)


def _owner_rows(run, replicate, train, test, W, start):
    """What each owner of real data gets: its error and that of its separate model; where exact
    errors are shown, and owners are the same in every replicate."""
    if run.evaluation != "exact" or not isinstance(run.dataset, RealData):
        return []
    if not test.n_samples.any():
        return []
    means = _own_means(train)
    errors, separate = (error_per_task(test, models, means) for models in (W, start))
    columns = (test.task_names, map(int, test.n_samples), map(float, errors), map(float, separate))
    return [
        {"replicate": replicate, "task": name, "rows": rows, "error": error, "stl": stl}
        for name, rows, error, stl in zip(*columns, strict=True)
        if np.isfinite(error) and np.isfinite(stl)
    ]


def noisy_error(run, errors, noise):
    """Mean of the tasks' clipped errors, released with Laplace noise.

    Given the releases of the fit, a task's error depends on its own rows alone, so a replaced task
    moves the sum by at most `WORST`: pure, of budget `run.evaluation`.
    """
    half = WORST / 2
    budget = Budget(Laplace(noise=run.mechanism.noise), run.evaluation, 0.0)
    gate = budget.open(vector_sum(1), 1, noise("evaluation")).with_budgets([run.evaluation])
    return float(half + gate(1, (errors - half)[:, None], half)[0] / len(errors))


def planned_spending(run, train):
    """What one fit on these tasks spends at most, whatever is chosen, and the caveats of that.

    Nothing is fitted. Where the settings differ in what they cost, or theory's Q would need the
    data, it is the stated pair.
    """
    budget, method = run.budget(train.n_tasks), run.method
    datafit = datafit_for(train, method.loss_average, method.public_constants)
    gradient, blocks = np.ones(datafit.shape), {}
    for lipschitz in (1.0, 100.0):
        for candidate in method.candidates(Scales(lipschitz, gradient, 1.0)):
            block = run.stated(method.statement(candidate, budget, datafit)).as_dict()
            blocks[json.dumps([block.get("cost"), block["proved"]])] = block
    blocks = list(blocks.values())
    return Spent.by(blocks), sorted({code for block in blocks for code in block["caveats"]})


def _charge(run, folder, todo):
    """Enter the fits to come in the ledger; refuse the run if they would spend too much."""
    code, secure = code_version(), run.mechanism.secure
    entries, known = [], {}
    for replicate in todo:
        owners = run.owners(replicate)
        if owners not in known:
            known[owners] = train = run.draw(replicate)[0]
            spent, caveats = planned_spending(run, train)
            delta = run.budget(train.n_tasks).delta
        if spent.nothing:
            continue
        # The same seed on the same data with the same code is the same release, wherever it is
        # made; secure noise is another one in every folder that is started anew, and where a
        # replicate that is done is fitted again for its models.
        again = secrets.token_hex(8) if replicate in folder.records else folder.attempt
        name = [owners, run.settings, code, replicate, again if secure else ""]
        entries.append(
            {
                "id": hashlib.sha256(json.dumps(name).encode()).hexdigest()[:16],
                "data": owners,
                "run": run.folder,
                "replicate": replicate,
                "stated": [run.epsilon, delta],
                "spent": spent.as_dict(),
                "caveats": caveats,
            }
        )
    if entries:
        charge(run.ledger, entries, min(entry["stated"][1] for entry in entries))


def cached_separate_tasks(run, key, compute):
    """STL models that all runs on the same data share: ``keep`` of `prepare`. They are exact, so
    runs that show no exact errors leave none."""
    return cached_arrays(Path(run.results_dir) / "separate_tasks", key, compute)


def _trace_rows(run, replicate, chosen, budget, datafit, log):
    if not log.rounds:
        return []
    budgets = run.method.round_budgets(chosen, budget, datafit)
    name = budget.mechanism.budget_name
    rows = [{"replicate": replicate, "round": t, name: b} for t, b in enumerate(budgets, start=1)]
    if run.evaluation == "exact":
        for row, (noise, signal) in zip(rows, log.rounds, strict=True):
            row |= {"noise_norm": noise, "signal_norm": signal}
    return rows


def execute(run, out=None, explained=(), wait=False, brief=False):
    """Carry out a run, or what is left of it, and print its plan and its card.

    Parameters
    ----------
    run : Run
    out : file, optional
        Default: standard output.
    explained : collection of str
        Codes of caveats that need not be explained again, and notes on data that were printed.
    wait : bool
        Wait for another process that works in the same folder instead of giving up.
    brief : bool
        Print one line for all; the card is in the folder in any case, as card.txt.

    Returns
    -------
    dict
        Row of a sweep's table (`terminal.summary_row`), with the codes of its caveats and what
        was spent.
    """
    out = out or sys.stdout
    path = Path(run.results_dir) / run.folder
    kind = "notes" if run.evaluation == "exact" else "public_notes"
    notes = getattr(run.dataset, kind, ())
    names = {"tag": run.tag, "dataset": run.dataset.name, "method": run.method.name}
    names |= {"mechanism": run.mechanism.name, "grid": run.grid}
    settings, table = run.published
    with RunFolder(path, settings, run.overwrite, wait, table) as folder:
        todo = [
            r
            for r in range(run.n_replicates)
            if r not in folder.records or (run.save_models and not folder.has_models(r))
        ]
        if folder.dropped:
            print(
                f"{folder.dropped} damaged journal line(s) dropped; their replicates run again",
                file=out,
            )
        if not brief:
            print(plan_line(run, len(todo)), file=out, flush=True)
        for note in notes:
            if note not in explained:
                print(note_line(note), file=out, flush=True)
        if todo:
            if run.ledger.path:
                _charge(run, folder, todo)
            folder.write_manifest("running", **names, data_notes=notes)
            _run_all(run, folder, todo, None if brief else out)
        folder.write_tables(run.n_replicates)
        records = [folder.records[r] for r in range(run.n_replicates)]
        folder.write_manifest("complete", **names, data_notes=notes, **_summary(run, records))
        folder.write_card(card(run, records, path, to=WIDTH))
        text = job_line(run, records, not todo) if brief else card(run, records, path, explained)
        print(text, file=out, flush=True)
    return summary_row(run, records) | {"spent": _spending(run, records)}


def _spending(run, records):
    """What a run has spent on the owners of a table, as JSON can hold it; synthetic data are drawn
    anew in each replicate."""
    shares = [Spent.by([record["privacy"]]) for record in records]
    shares = [share for share in shares if not share.nothing]
    if not shares or not isinstance(run.dataset, RealData):
        return None
    delta = records[0]["replicates"][0]["delta"]
    total = {"fits": len(shares), "delta": delta, "spent": sum(shares, Spent()).as_dict()}
    return {"data": run.owners(0), **total}


def _on_worker(run, code, replicate, engine=None):
    """One replicate where the code is the same as here; a cluster may have another version."""
    if code != code_version():
        raise ResultsError(
            f"a worker runs mpmtl {code_version()} and this is {code}: install the same version "
            "on the workers and start them again"
        )
    keep = partial(cached_separate_tasks, run) if run.evaluation == "exact" else None
    return run_replicate(run, replicate, keep, engine)


def _one_by_chunks(run, function, items):
    """The one replicate in this process, the chunks of its fit where the engine has room."""
    with run.parallel.chunks(run.n_jobs) as engine:
        for item in items:
            yield function(item, engine=engine)


def _run_all(run, folder, todo, out):
    """Run the replicates `todo` in processes; each one is in the journal as soon as it ends.

    The forecast goes to `out`, if there is one.
    """
    n_workers = run.parallel.n_workers(run.n_jobs, len(todo))
    if len(todo) == 1 and run.method.by_chunks and run.draw(todo[0])[0].n_tasks > CHUNK:
        map_ = partial(_one_by_chunks, run)
    else:
        map_ = partial(run.parallel.map, n_jobs=run.n_jobs)
    values, done = [], set()
    with Progress(run.label, "replicate", len(todo)) as progress:
        for attempt in range(WORKER_RETRIES + 1):
            left = [r for r in todo if r not in done]
            replicate = partial(_on_worker, run, code_version())
            try:
                for record in map_(replicate, left):
                    folder.append(record)
                    done.add(record["replicate"])
                    main = record["replicates"][0]
                    values.append(main["value"])
                    if len(values) == 1 and out:
                        seconds = record["timing"][0]["seconds"] * len(todo) / n_workers
                        progress.say(forecast_line(seconds, n_workers), out)
                    progress.advance(note=f"{main['metric']} {np.mean(values):.4f}")
                return
            except MemoryError as error:
                raise ResultsError(
                    f"{run.label} ran out of memory: use fewer n_jobs and run again; finished "
                    "replicates are kept"
                ) from error
            except WorkerDied as error:
                if attempt == WORKER_RETRIES:
                    raise ResultsError(
                        f"a worker process of {run.label} was killed {attempt + 1} times (out of "
                        "memory?): use fewer n_jobs and run again; finished replicates are kept"
                    ) from error


def _summary(run, records):
    """Blocks of the manifest that need finished replicates; no digest of the owners' table."""
    spent = _spending(run, records)
    return {
        "spent": spent and {key: value for key, value in spent.items() if key != "data"},
        "ledger": run.ledger.path,
        "seconds_in_replicates": sum(r["timing"][0]["seconds"] for r in records),
        "privacy": worst_statement(records),
    }
