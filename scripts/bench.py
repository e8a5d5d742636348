"""Time every method and the default run: python scripts/bench.py [--data-dir data] [--repeats 3].

One thread of linear algebra. Prints four tables in Markdown: milliseconds of a fit with the
setting of tuning=fixed; microseconds for each candidate and round of `lr` and `gs`, for the
formula written out, for one candidate and for 16 together; CPU time of plain formulas and of the
fast forms that take their place, one after the other in each repetition; seconds and peak memory of
whole runs.
Data sets that are not there are left out. For other solvers see scripts/bench_solvers.py.
"""

import argparse
import os

from mpmtl.experiments.entry import begin, carry_out

if __name__ == "__main__":
    begin()

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from scipy.special import softmax

from mpmtl.data.tasks import assign_folds
from mpmtl.datafits import SquaredLoss, datafit_for
from mpmtl.errors import InputError
from mpmtl.experiments.cli import conf_dir
from mpmtl.experiments.config import build, register_schema
from mpmtl.experiments.tuning import prepare
from mpmtl.methods.prior_steps import gamma_grid
from mpmtl.penalties import TraceNorm
from mpmtl.solvers.gaussian_prior import PriorPath, PriorSystems, rows_at
from mpmtl.solvers.noisy_covariance import Prior
from mpmtl.solvers.single_task import fold_paths, ridge_solver

METHODS = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml"))
MORE = {"fl": [("method.rounds=2",), ("method.rounds=3",)]}  # fl alone has one round here
DATASETS = ("low_rank", "school", "lsoa2")


def make_run(dataset, method, data_dir, *overrides):
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        words = [f"dataset={dataset}", f"method={method}", f"data_dir={data_dir}", "tuning=fixed"]
        return build(compose("config", [*words, *overrides]))


def seconds(run, problem, candidates, repeats):
    """Shortest time of a fit of all candidates together."""
    budget = run.budget(problem.datafit.shape[0])
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in run.method.fit(
            problem.datafit, problem.start, candidates, budget, np.random.default_rng(0)
        ):
            pass
        times.append(time.perf_counter() - started)
    return min(times)


def literal_rounds(data, penalty, W, lam, K, T, eta, draws, scale):
    """Algorithm 2 or 3, basic form, step by step: a loop over the tasks, predictions, d x m."""
    for t in range(T):
        W = W / np.maximum(1, np.linalg.norm(W, axis=0) / K)
        if penalty == "trace":
            values, U = np.linalg.eigh(W @ W.T + scale[t] * draws[t])
            S = np.maximum(0, 1 - eta * lam / np.sqrt(np.abs(values)))
            W = U @ np.diag(S) @ U.T @ W
        else:
            Sigma = np.diag(W @ W.T) + scale[t] * draws[t]
            W = np.maximum(0, 1 - eta * lam / np.sqrt(np.abs(Sigma)))[:, None] * W
        for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
            if data.kind == "regression":
                gradient = X.T @ (X @ W[:, i] - y)
            else:
                gradient = -X.T @ (y / (1 + np.exp(y * (X @ W[:, i])))) / len(y)
            W[:, i] -= eta * gradient
    return W


def literal_seconds(run, data, problem, candidate, repeats):
    """Shortest time of the formula written out, noise included."""
    budget, d = run.budget(data.n_tasks), problem.datafit.shape[1]
    times = []
    for _ in range(repeats):
        started, rng = time.perf_counter(), np.random.default_rng(0)
        eta = 1 / problem.datafit.lipschitz()
        T, release = candidate.n_rounds, run.method.release(d)
        draws = [budget.mechanism.draw(rng, release) for _ in range(T)]
        gate = budget.planned(release, budget.of_rounds(candidate))
        scale = [gate.scale(t, candidate.K) for t in range(1, T + 1)]
        literal_rounds(
            data,
            run.method.penalty,
            problem.start.T,
            candidate.lam,
            candidate.K,
            candidate.n_rounds,
            eta,
            draws,
            scale,
        )
        times.append(time.perf_counter() - started)
    return min(times)


def both(plain, fast, repeats):
    """Shortest CPU seconds of two forms of the same numbers, interleaved, and how far these differ.

    Returns
    -------
    plain, fast : float
    difference : float
        Largest, relative to the largest number.
    """
    seconds = {plain: [], fast: []}
    for _ in range(repeats):
        results = []
        for form, times in seconds.items():
            started = time.process_time()
            results.append(form())
            times.append(time.process_time() - started)
    one, other = results
    difference = np.abs(one - other).max() / max(np.abs(one).max(), np.finfo(float).tiny)
    return min(seconds[plain]), min(seconds[fast]), difference


def fold_forms(parts, lams, tasks):
    """Ridge paths of all folds of the first tasks: one problem at a time, or all together."""
    parts = [replace(p, X=p.X[:tasks], y=p.y[:tasks], idle=p.idle[:tasks]) for p in parts]

    def plain():
        rests = [parts[0].merged(parts[:k] + parts[k + 1 :]) for k in range(len(parts))]
        paths = [[ridge_solver(rest)([lam])[0] for lam in lams] for rest in rests]
        return np.array(paths)

    return plain, lambda: fold_paths(parts, lams)


def projection_forms(d, m, rng):
    """Models projected by a noisy covariance: by the matrix M, or by its eigenvectors."""
    W, noise = rng.standard_normal((1, m, d)), rng.standard_normal((d, d))
    Sigma = TraceNorm().covariance(W) + noise + noise.T
    one = np.ones(1)
    return (
        lambda: TraceNorm().apply(W, TraceNorm().projection(Sigma, one)),
        lambda: TraceNorm().projected(W, Sigma, one),
    )


def prior_forms(m, n, d):
    """Evidence and average over gamma under a prior: by eigenvectors, or by a tridiagonal form."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((m, n, d)), rng.standard_normal((m, n))
    rows = rows_at(SquaredLoss(tuple(X), tuple(y)), None)
    u = np.ones(d) / np.sqrt(d)
    prior = Prior("p", np.eye(d) / 2 + d / 2 * np.outer(u, u), u)

    def form(kind):
        path = kind(rows, prior, gamma_grid(rows))
        log_evidence, a = path.weighed()
        weights = softmax(log_evidence, axis=0)[None]
        return np.append(path.averages(weights, a).ravel(), log_evidence)

    return lambda: form(PriorPath), lambda: form(PriorSystems)


def print_forms(data_dir, repeats, tasks=6):
    """Plain formulas beside the forms that are used."""
    rows = []
    for m, n, d in ((512, 10, 10), (512, 30, 30), (512, 30, 90), (41, 100, 293)):
        name = f"`fl`, a prior, {m} tasks, n = {n}, d = {d}"
        rows.append((name, *both(*prior_forms(m, n, d), 3 * repeats)))
    for d, m in ((60, 40), (293, 41)):  # with m >= d they are the same
        forms = projection_forms(d, m, np.random.default_rng(0))
        rows.append((f"projection, d = {d}, m = {m}", *both(*forms, 10 * repeats)))
    for dataset in ("landmine", "lsoa2"):
        run = make_run(dataset, "stl", data_dir, "tuning=coarse")
        try:
            train, _ = run.dataset.draw(run.data_dir, 0, 0)
        except InputError as error:
            print(f"{dataset} left out: {error}")
            continue
        lams = datafit_for(train).lipschitz() * np.array(run.tuning.ridge)
        forms = fold_forms(fold_parts(train, run.tuning), lams, tasks)
        name = f"logistic ridge on {dataset}, {tasks} tasks, {len(lams)} penalties, 5 folds"
        rows.append((name, *both(*forms, repeats)))
    print("| CPU ms | plain | fast | ratio | difference |\n| --- | ---: | ---: | ---: | ---: |")
    for name, plain, fast, difference in rows:
        ratio = plain / fast
        print(f"| {name} | {1e3 * plain:.3g} | {1e3 * fast:.3g} | {ratio:.1f} | {difference:.0e} |")
    print()


def fold_parts(train, tuning):
    """Losses of each fold's samples."""
    labels = assign_folds(train, tuning.folds, np.random.default_rng(0), tuning.stratified)
    rows = [[np.flatnonzero(f == k) for f in labels] for k in range(tuning.folds)]
    return [datafit_for(train.take(part)) for part in rows]


def whole_run(*overrides):
    """Seconds of a run of `mpmtl-run` and the peak memory of its largest process, in MB."""
    command = [str(Path(sys.executable).parent / "mpmtl-run"), *overrides]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, f"results_dir={folder}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def print_whole_runs(data_dir):
    print("| `mpmtl-run` | seconds | MB, largest process |\n| --- | ---: | ---: |")
    runs = [("method=lr", "epsilon=0.1")]
    if (Path(data_dir) / "lsoa2").is_dir():
        place = f"data_dir={Path(data_dir).resolve()}"
        runs.append(("dataset=lsoa2", "method=lr", "epsilon=0.1", "scale=smoke", place))
    for words in runs:
        spent, memory = whole_run(*words)
        shown = " ".join(word for word in words if not word.startswith("data_dir"))
        print(f"| `{shown}` | {spent:.0f} | {memory:.0f} |")
    print()


def main():
    parser = argparse.ArgumentParser(description="Time every method and the default run.")
    parser.add_argument("--data-dir", default=os.environ.get("MPMTL_DATA_DIR", "data"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print_whole_runs(options.data_dir)  # first: a child's peak counts its parent's size
    register_schema()
    print_forms(options.data_dir, options.repeats)
    problems, drawn = {}, {}
    for dataset in DATASETS:
        run = make_run(dataset, "lr", options.data_dir)
        try:
            train, _ = run.dataset.draw(run.data_dir, 0, 0)
        except InputError as error:
            print(f"{dataset} left out: {error}")
            continue
        drawn[dataset] = train
        problems[dataset] = prepare(train, run.tuning, run.method, 0, 0)
    print(f"| ms per fit | {' | '.join(problems)} |")
    print(f"| --- |{' ---: |' * len(problems)}")
    for method in METHODS:
        for words in [(), *MORE.get(method, [])]:
            cells = []
            for dataset, problem in problems.items():
                run = make_run(dataset, method, options.data_dir, *words)
                candidates = run.method.candidates(problem.scales)[:1]
                cells.append(f"{1e3 * seconds(run, problem, candidates, options.repeats):.1f}")
            print(f"| `{' '.join((method, *words))}` | {' | '.join(cells)} |")
    print(f"\n| us per (candidate, round), ratio | {' | '.join(problems)} |")
    print(f"| --- |{' ---: |' * len(problems)}")
    for method in ("lr", "gs"):
        cells = {"formula written out": [], "1 together": [], "16 together": []}
        for dataset, problem in problems.items():
            rounds = 5 if dataset == "lsoa2" else 50
            run = make_run(dataset, method, options.data_dir, f"method.grid.n_rounds={rounds}")
            one = run.method.candidates(problem.scales)[0]
            spent = literal_seconds(run, drawn[dataset], problem, one, options.repeats)
            cells["formula written out"].append(spent / rounds)
            for count in (1, 16):
                many = [replace(one, lam=one.lam * (1 + k / 100)) for k in range(count)]
                spent = seconds(run, problem, many, options.repeats)
                cells[f"{count} together"].append(spent / (count * rounds))
        literal = cells["formula written out"]
        for name, values in cells.items():
            words = [f"{1e6 * v:.0f} ({w / v:.1f})" for v, w in zip(values, literal, strict=True)]
            print(f"| `{method}`, {name} | {' | '.join(words)} |")


if __name__ == "__main__":
    carry_out(main)
