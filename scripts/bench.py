"""Time one fit of every method: python scripts/bench.py [--data-dir data] [--repeats 3].

One process, one thread of linear algebra. Prints two tables in Markdown: milliseconds of a fit with
the setting of tuning=fixed, and microseconds for each candidate and round of `lr` and `gs`, for one
candidate and for 16 together. Data sets that are not there are left out.
"""

import argparse
import os

for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"

import time
from dataclasses import replace

import numpy as np
from hydra import compose, initialize_config_dir

from mpmtl.cli import conf_dir
from mpmtl.config import build, register_schema
from mpmtl.errors import InputError
from mpmtl.tuning import prepare

METHODS = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml"))
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


def main():
    parser = argparse.ArgumentParser(description="Time one fit of every method.")
    parser.add_argument("--data-dir", default=os.environ.get("MPMTL_DATA_DIR", "data"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    register_schema()
    problems = {}
    for dataset in DATASETS:
        run = make_run(dataset, "lr", options.data_dir)
        try:
            train, _ = run.dataset.draw(run.data_dir, 0, 0)
        except InputError as error:
            print(f"{dataset} left out: {error}")
            continue
        problems[dataset] = prepare(train, run.tuning, run.method, 0, 0)
    print(f"| ms per fit | {' | '.join(problems)} |")
    print(f"| --- |{' ---: |' * len(problems)}")
    for method in METHODS:
        cells = []
        for dataset, problem in problems.items():
            run = make_run(dataset, method, options.data_dir)
            candidates = run.method.candidates(run.tuning, problem.scales)[:1]
            cells.append(f"{1e3 * seconds(run, problem, candidates, options.repeats):.1f}")
        print(f"| `{method}` | {' | '.join(cells)} |")
    print(f"\n| us per (candidate, round) | {' | '.join(problems)} |")
    print(f"| --- |{' ---: |' * len(problems)}")
    for method in ("lr", "gs"):
        for count in (1, 16):
            cells = []
            for dataset, problem in problems.items():
                rounds = 5 if dataset == "lsoa2" else 50
                run = make_run(dataset, method, options.data_dir, f"tuning.n_rounds={rounds}")
                one = run.method.candidates(run.tuning, problem.scales)[0]
                many = [replace(one, lam=one.lam * (1 + k / 100)) for k in range(count)]
                spent = seconds(run, problem, many, options.repeats)
                cells.append(f"{1e6 * spent / (count * rounds):.0f}")
            print(f"| `{method}`, {count} together | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
