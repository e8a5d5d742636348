"""How a fit grows: python scripts/bench_scale.py [--largest 100000] [--partitions 1000000].

Every fit runs in a process of its own, on synthetic data (unit rows, models in five directions)
with m tasks of n rows and d features. Prints tables in Markdown and draws bench_scale.png:

- fl, lr, gs and mr_mtl over m, one process: CPU ms a task, peak memory, exponent of growth;
- fl over d and over n; fl on one and two processes;
- with --partitions M, M tasks of 10 rows and 10 features in Parquet files: in one process, in two,
  and on a LocalCluster of two workers of 2 GB, which must give the same bytes.
"""

import argparse

from mpmtl.experiments.entry import begin, carry_out

if __name__ == "__main__":
    begin()

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EPSILON = 1.0
SETTINGS = {"m": 10_000, "n": 30, "d": 30, "processes": 1, "method": "fl"}
FILE = 8192  # tasks of a Parquet file: whole chunks
SHOWN = ("method", "m", "n", "d", "processes")


def tasks(m, n, d, seed):
    """Rows and targets of m tasks."""
    rng = np.random.default_rng([seed, m])
    X = rng.standard_normal((m, n, d))
    X /= np.linalg.norm(X, axis=2, keepdims=True)
    shared = np.random.default_rng(0).standard_normal((5, d))
    W = 5 * rng.standard_normal((m, 5)) @ shared
    return X, np.einsum("mnd,md->mn", X, W) + rng.standard_normal((m, n))


def fitted(method, loss, m):
    """Models of one fit."""
    from mpmtl.methods import Budget, FeatureLearning, MeanRegularised, Proximal, ProximalCandidate
    from mpmtl.methods.mean_regularised import MeanRegularisedCandidate
    from mpmtl.privacy.mechanisms import Gaussian
    from mpmtl.solvers.single_task import ridge_path

    budget, rng = Budget(Gaussian(), EPSILON, 1 / (m * np.log(m))), np.random.default_rng(1)
    if method.startswith("fl"):
        tuning = {"fl": "hyper"}.get(method, method[3:])
        return FeatureLearning(method, tuning).models(loss, None, budget, rng)
    if method == "mr_mtl":
        learner, candidate = MeanRegularised(method), MeanRegularisedCandidate(0.5, 0.5, 1.0, 3)
        start = None
    else:
        learner = Proximal(method, {"lr": "trace", "gs": "l21"}[method], True)
        candidate = ProximalCandidate(1.0, 10, True, False, alpha=0.0, K=1.0)
        start = ridge_path(loss, [0.1])[0]
    ((_, W),) = learner.fit(loss, start, [candidate], budget, rng)
    return W[0]


def one(settings):
    """A fit in this process; what it took."""
    from mpmtl.chunks import Serial
    from mpmtl.datafits import SquaredLoss
    from mpmtl.divided import DividedLoss
    from mpmtl.experiments.parallel import Local

    m, n, d = (settings[key] for key in "mnd")
    parts = [tasks(min(FILE, m - at), n, d, at) for at in range(0, m, FILE)]
    loss = SquaredLoss(
        tuple(rows for X, _ in parts for rows in X), tuple(t for _, y in parts for t in y)
    )
    before = peak()
    with Local().chunks(settings["processes"]) as engine:
        wall, cpu = time.perf_counter(), time.process_time()
        W = fitted(settings["method"], DividedLoss.of(loss, engine or Serial()), m)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    data = 8 * m * n * (d + 1) / 1e6
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"wall": wall, "cpu": cpu, "data": data, "before": before, "peak": peak(),
            "child": child, "norm": float(np.linalg.norm(W))}  # fmt: skip


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def written(folder, m, n, d):
    """m tasks in Parquet files."""
    import pandas as pd

    for k, at in enumerate(range(0, m, FILE)):
        X, y = tasks(min(FILE, m - at), n, d, at)
        table = pd.DataFrame(X.reshape(-1, d), columns=[f"x{j + 1}" for j in range(d)])
        table["y"], table["owner"] = y.ravel(), np.repeat(at + np.arange(len(y)), n)
        table.to_parquet(Path(folder) / f"part-{k:05d}.parquet")


def on_partitions(settings):
    """A fit of the partitions of a folder; what it took."""
    import hashlib
    import warnings
    from contextlib import ExitStack

    from mpmtl.data import Partitions
    from mpmtl.experiments.learners import MultiTaskRegressor
    from mpmtl.experiments.parallel import DaskChunks, Local

    warnings.simplefilter("ignore")
    learner = MultiTaskRegressor(
        method=settings["method"],
        epsilon=EPSILON,
        delta=1e-8,
        intercept=False,
        privacy__noise="seeded",
        random_state=np.random.default_rng(1),
    )
    with ExitStack() as stack:
        if settings["where"] == "cluster":
            from distributed import Client, LocalCluster

            options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "2GB"}
            cluster = LocalCluster(dashboard_address=":0", silence_logs=50, **options)
            client = stack.enter_context(Client(stack.enter_context(cluster)))
            engine = DaskChunks(client)
        else:
            engine = stack.enter_context(Local().chunks(settings["where"]))
        started = time.perf_counter()
        partitions = Partitions.of(settings["folder"], "owner", "y")
        W = learner.fit_partitions(partitions, engine=engine).coef_
        wall = time.perf_counter() - started
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        if settings["where"] == "cluster":
            child = max(client.run(peak).values())
    digest = hashlib.sha256(np.ascontiguousarray(W)).hexdigest()[:16]
    return {"wall": wall, "peak": peak(), "child": child, "m": len(W), "sha256": digest}


def measured(**settings):
    """What a fit took, in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return settings | json.loads(done.stdout.splitlines()[-1])


def exponent(rows, key):
    """Slope of log CPU time over log of a size."""
    sizes, seconds = ([row[name] for row in rows] for name in (key, "cpu"))
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def table(rows):
    print("| method | m | n | d | processes | s | CPU ms a task | data MB | peak MB | a child's |")
    print("| --- |" + " ---: |" * 9)
    for row in rows:
        cells = [str(row[key]) for key in SHOWN] + [f"{row['wall']:.1f}"]
        cells += [f"{1e3 * row['cpu'] / row['m']:.3f}" if row["processes"] == 1 else "-"]
        cells += [f"{row[key]:.0f}" for key in ("data", "peak", "child")]
        print("|", " | ".join(cells), "|")
    print(flush=True)


def draw(growth, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    panels = figure.subplots(1, len(growth), sharey=True)
    for axes, (key, groups) in zip(panels, growth.items(), strict=True):
        for name, rows in groups.items():
            sizes = [row[key] for row in rows]
            label = f"{name}, exponent {exponent(rows, key):.2f}"
            axes.loglog(sizes, [row["cpu"] for row in rows], marker="o", label=label)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel({"m": "tasks m", "d": "features d", "n": "rows of a task n"}[key])
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    panels[0].set_ylabel("CPU seconds of a fit")
    figure.savefig(path, dpi=200)


def main():
    parser = argparse.ArgumentParser(description="How a fit grows.")
    parser.add_argument("--largest", type=int, default=30_000)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--method", default="fl_local")
    parser.add_argument("--where", nargs="*", default=["1", "2", "cluster"])
    parser.add_argument("--out", default="bench_scale.png")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        settings = json.loads(options.one)
        print(json.dumps(on_partitions(settings) if "folder" in settings else one(settings)))
        return
    if options.partitions:
        print("| where | tasks | s | peak MB | a child's | sha256 of the models |")
        print("| --- |" + " ---: |" * 5)
        with tempfile.TemporaryDirectory() as folder:
            written(folder, options.partitions, 10, 10)
            for where in options.where:
                place = int(where) if where.isdigit() else where
                row = measured(folder=folder, where=place, method=options.method)
                cells = [str(row["where"]), str(row["m"]), f"{row['wall']:.0f}"]
                cells += [f"{row['peak']:.0f}", f"{row['child']:.0f}", row["sha256"]]
                print("|", " | ".join(cells), "|", flush=True)
        return
    growth, sizes = {"m": {}, "d": {}, "n": {}}, [options.largest // 10, options.largest]
    for method in ("fl", "fl_shared", "lr", "gs", "mr_mtl"):
        growth["m"][method] = [measured(**SETTINGS | {"method": method, "m": m}) for m in sizes]
    small = SETTINGS | {"m": max(options.largest // 10, 2000)}
    growth["d"]["fl"] = [measured(**small | {"d": d}) for d in (10, 30, 90)]
    growth["n"]["fl"] = [measured(**small | {"n": n}) for n in (10, 30, 90)]
    both = [measured(**SETTINGS | {"m": options.largest, "processes": 2})]
    for key, groups in growth.items():
        for name, rows in groups.items():
            print(f"{name} over {key}: exponent {exponent(rows, key):.3f}\n")
            table(rows)
    table([*growth["m"]["fl"][-1:], *both])
    same = growth["m"]["fl"][-1]["norm"] == both[0]["norm"]
    print("two processes: the same numbers" if same else "two processes: OTHER NUMBERS")
    draw(growth, options.out)


if __name__ == "__main__":
    carry_out(main)
