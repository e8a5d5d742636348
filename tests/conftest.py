"""Shared fixtures. Real data are used where they are found and skipped with a reason elsewhere."""

import importlib.util
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import forked
import numpy as np
import pytest

from mpmtl.data import MultiTaskData

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # what runs tests side by side sets it


@pytest.fixture(scope="session")
def vectors():
    """Values written independently of this project."""
    return json.loads((ROOT / "tests" / "vectors.json").read_text())


@pytest.fixture
def rng():
    return np.random.default_rng(20201127)


@pytest.fixture(scope="session")
def data_dir():
    """Where the real data are: MPMTL_DATA_DIR, data/ or ../shared/data."""
    places = [os.environ.get("MPMTL_DATA_DIR"), ROOT / "data", ROOT.parent / "shared" / "data"]
    for place in places:
        if place and (Path(place) / "school" / "school.mat").is_file():
            return str(place)
    pytest.skip("real data not found: run `make data` or set MPMTL_DATA_DIR")


def loaded_script(name):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ragged_data(rng, m=6, d=4, kind="regression", low=5, high=12):
    """Small ragged tasks with unequal sample sizes."""
    sizes = rng.integers(low, high + 1, m)
    X = [rng.standard_normal((n, d)) for n in sizes]
    W = rng.standard_normal((m, d))
    y = [rows @ w + 0.3 * rng.standard_normal(len(rows)) for rows, w in zip(X, W, strict=True)]
    if kind == "binary":
        y = [
            np.where(np.arange(len(t)) == 0, 1, np.where(np.arange(len(t)) == 1, -1, np.sign(t)))
            for t in y
        ]
    return MultiTaskData.checked(X, y, kind)


def separate_tasks(
    seed,
    slope=1.0,
    noise=0.3,
    level=1.0,
    m=40,
    n=20,
    d=3,
    scales=1.0,
    n_test=100,
    kind="regression",
):
    """Training and test samples of tasks with an intercept whose models have nothing in common."""
    rng = np.random.default_rng(seed)
    W, levels = slope * rng.standard_normal((m, d)), level * rng.standard_normal(m)
    parts = []
    for size in (n, n_test):
        X = [rng.standard_normal((size, d)) for _ in range(m)]
        y = [
            rows @ w + b + noise * rng.standard_normal(size)
            for rows, w, b in zip(X, W, levels, strict=True)
        ]
        if kind == "binary":
            y = [np.where(t > np.median(t), 1.0, -1.0) for t in y]
        data = MultiTaskData.checked([rows * scales for rows in X], y, kind).with_intercept()
        parts.append(replace(data, pooled=kind == "regression"))
    return parts


def beside_others(release, w):
    """Contributions of all tasks to a release, the last one w: the others at their worst."""
    m = release.shape[0] if release.kind in ("relation", "sample") else 1
    own = np.reshape(w, release.shape) if release.kind == "sum" else w
    V = np.zeros((m, *own.shape))
    if release.kind == "relation":  # all alike and as long as may be
        V[:, 0] = 1.0
    V[-1] = own
    return V


TINY = ["dataset.m=12", "dataset.n=10", "dataset.d=4", "scale=smoke", "n_jobs=1"]


COMPOSED = {}
VALUES = ("results_dir", "data_dir", "tag", "epsilon", "delta", "seed", "n_replicates", "n_jobs")


def make_run(*overrides, tiny=True):
    """A `Run` composed as the command line does it. Runs that differ in `VALUES` alone are copies
    of one composed config, as those of a sweep are (`sweep.configs`)."""
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from mpmtl.experiments.config import build, register_schema
    from mpmtl.experiments.sweep import with_values

    register_schema()
    words = [*(TINY if tiny else []), *overrides]
    later = [word for word in words if word.split("=")[0] in VALUES]
    rest = tuple(word for word in words if word not in later)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        if rest not in COMPOSED:
            COMPOSED[rest] = compose("config", list(rest))
        parsed = OverridesParser.create().parse_overrides(later)
        values = {word.key_or_group: word.value() for word in parsed}
        return build(with_values(COMPOSED[rest], values) or compose("config", words))


def run_all(path, n_replicates, *runs):
    """Carry out runs, each a tuple of overrides, in a results folder; returns the folder."""
    from mpmtl.experiments.runner import execute

    for words in runs:
        run = make_run(*words, f"n_replicates={n_replicates}", f"results_dir={path}")
        execute(run, io.StringIO())
    return path


BIN = Path(sys.executable).parent
MPMTL_RUN = str(BIN / "mpmtl-run")
TABLES = ("replicates.csv", "cv.csv", "trace.csv")


def mpmtl_run(*arguments, cwd, env=None, program="mpmtl-run", **options):
    """Run a command of the project in a directory of its own, away from the checkout.

    Where one process does the work it is `forked`, the same in a tenth of the time; with workers,
    or with options of `subprocess.run`, it starts from nothing.
    """
    path, env = BIN / program, {**os.environ, **(env or {})}
    alone = program != "mpmtl-run" or {"n_jobs=1", "--help", "--cfg"} & set(arguments)
    if alone and not options:
        return forked.carried_out(path, arguments, cwd, env)
    return subprocess.run(
        [str(path), *map(str, arguments)],
        cwd=cwd,
        env=env,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
        **options,
    )


def script(name, *arguments, cwd=None):
    """Carry out a script of the checkout, in a directory."""
    return forked.carried_out(ROOT / "scripts" / name, arguments, cwd or os.getcwd(), os.environ)


def table_lines(printed):
    """Rows of the table that ends a sweep; they have columns, and what follows is text."""
    lines = printed.splitlines()
    start = max(k for k, line in enumerate(lines) if line and set(line) == {"-"}) + 1
    return list(takewhile(lambda line: "  " in line.strip(), lines[start:]))


def tables(folder):
    """Bytes of the tables of a run, which do not depend on how it was carried out."""
    return {name: (folder / name).read_bytes() for name in TABLES}
