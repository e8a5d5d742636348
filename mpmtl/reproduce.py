"""All experiments of the paper in one go: the plan with its forecast, the runs, the pictures."""

import itertools
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from joblib import cpu_count

from mpmtl.cli import conf_dir
from mpmtl.config import build, register_schema
from mpmtl.errors import InputError
from mpmtl.terminal import duration
from mpmtl.tuning import prepare

MOST = 16  # candidates that are timed for a forecast


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, the experiment it needs and the script that draws it."""

    name: str
    experiment: str
    script: str
    arguments: tuple = ()


#: What the paper compares in Figs. 6, 7, 9 and 10, whatever other runs are in the folder.
_COMPARED = (
    "mtl",
    "lr/wishart",
    "gs/wishart",
    "dp_mtrl/output_perturbation",
    "dp_aggr/output_perturbation",
)


def _accuracy(name, dataset, stl):
    words = (dataset, stl, *_COMPARED)
    return Figure(name, f"privacy_accuracy_{dataset}", "plot_privacy_accuracy", words)


FIGURES = (
    Figure("Fig. 2", "model_leakage", "plot_model_leakage"),
    Figure("Fig. 3", "task_relations", "plot_task_relations"),
    Figure("Fig. 4a", "budget_allocation_convex", "plot_budget_allocation", ("convex",)),
    Figure("Fig. 4b", "budget_allocation_strong", "plot_budget_allocation", ("strong",)),
    _accuracy("Fig. 6a, 7a", "low_rank", "stl"),
    Figure("Fig. 5", "noise_to_signal", "plot_noise_to_signal"),
    _accuracy("Fig. 6b, 7b", "group_sparse", "stl"),
    Figure("Fig. 8", "task_number", "plot_task_number"),
    _accuracy("Fig. 9a, 10a", "school", "stl_best"),
    Figure("Fig. S1", "training_percentage_school", "plot_training_percentage", ("school",)),
    _accuracy("Fig. 9b, 10b", "lsoa2", "stl_best"),
    Figure("Fig. S2", "training_percentage_lsoa2", "plot_training_percentage", ("lsoa2",)),
)


def jobs(experiment, scale):
    """The runs that an experiment is made of, each once.

    Returns
    -------
    list of Run
    """
    register_schema()
    words = [f"experiment={experiment}", f"scale={scale}"]
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        params = compose("config", words, return_hydra_config=True).hydra.sweeper.params
        choices = [[f"{key}={v}" for v in str(params[key]).split(",")] for key in params]
        runs = [build(compose("config", [*words, *c])) for c in itertools.product(*choices)]
    return list({(run.results_dir, run.folder): run for run in runs}.values())


def finished(run):
    """Replicates of a run that are in its journal."""
    journal = Path(run.results_dir) / run.folder / "journal.jsonl"
    lines = journal.read_bytes().count(b"\n") if journal.is_file() else 0
    return min(lines, run.n_replicates)


def rounds_of(candidates):
    return sum(c.n_rounds or 1 for c in candidates)


def seconds_of_a_replicate(run, prepared):
    """Forecast: the preparation, and a part of the candidates on all training data, scaled up.

    The part has one value of lambda, the middle one, and at most 16 candidates with their share of
    the rounds.

    Parameters
    ----------
    run : Run
    prepared : dict
        Problems and their seconds, kept from one call to the next.
    """
    key = repr((run.dataset, run.tuning, run.method.loss_average))
    if key not in prepared:
        started = time.perf_counter()
        train, _ = run.dataset.draw(run.data_dir, run.seed, 0)
        problem = prepare(train, run.tuning, run.method, run.seed, 0)
        prepared[key] = problem, time.perf_counter() - started
    problem, spent = prepared[key]
    candidates = run.method.candidates(run.tuning, problem.scales)
    lams = sorted({c.lam for c in candidates})
    alike = [c for c in candidates if c.lam == lams[len(lams) // 2]]
    part = alike[:: -(-len(alike) // MOST)] if run.method.private else alike
    budget, rng = run.budget(problem.datafit.shape[0]), np.random.default_rng(0)
    started = time.perf_counter()
    for _ in run.method.fit(problem.datafit, problem.start, part, budget, rng):
        pass
    fit = time.perf_counter() - started
    folds = run.tuning.folds if len(candidates) > 1 else 0
    whole = fit * rounds_of(alike) / rounds_of(part) * len(candidates) / len(alike)
    share = {"grid": 1.0, "halving": 0.25}[run.tuning.search]
    return spent + whole * folds * share + fit / len(part)


def plan(scale, figures=FIGURES, out=None):
    """Print what is to be done and how long it will take.

    Returns
    -------
    list of (Figure, float)
        Figures that can be made here, with the seconds expected.
    """
    out = out or sys.stdout
    known, prepared, rows = {}, {}, []
    print(
        f"{'figure':<13}{'experiment':<32}{'jobs':>5}{'replicates':>12}{'forecast':>11}", file=out
    )
    for figure in figures:
        seconds, left, total = 0.0, 0, 0
        try:
            runs = jobs(figure.experiment, scale)
            for run in runs:
                todo = run.n_replicates - finished(run)
                total, left = total + run.n_replicates, left + todo
                key = repr((run.dataset, run.method, run.tuning))
                if todo and key not in known:
                    known[key] = seconds_of_a_replicate(run, prepared)
                seconds += todo * known[key] / min(cpu_count(), todo) if todo else 0.0
        except InputError as error:
            print(f"{figure.name:<13}{figure.experiment:<32} left out: {error}", file=out)
            continue
        rows.append((figure, seconds))
        done = f"{left} of {total}" if left < total else f"{total}"
        words = duration(seconds) if left else "done"
        print(
            f"{figure.name:<13}{figure.experiment:<32}{len(runs):>5}{done:>12}{words:>11}",
            file=out,
            flush=True,
        )
    print(f"{'in all':<62}{duration(sum(s for _, s in rows)):>11}\n", file=out, flush=True)
    return rows


def reproduce(scale, scripts, figures=FIGURES):
    """Run what the plan says and draw every figure; returns the number of failures.

    Parameters
    ----------
    scale : str
    scripts : Path
        Folder of the scripts that draw.
    figures : sequence of Figure
    """
    failures, measured = 0, []
    for figure, expected in plan(scale, figures):
        started = time.perf_counter()
        results = jobs(figure.experiment, scale)[0].results_dir
        run = [Path(sys.executable).parent / "mpmtl-run"]
        run += [f"experiment={figure.experiment}", f"scale={scale}"]
        draw = [sys.executable, scripts / f"{figure.script}.py", *figure.arguments]
        code = subprocess.run(run, check=False).returncode
        if code == 130:
            return failures + 1
        code = code or subprocess.run([*draw, "--results", results], check=False).returncode
        failures += code != 0
        measured.append((figure, expected, time.perf_counter() - started, code))
    print(f"\n{'figure':<13}{'experiment':<32}{'forecast':>11}{'measured':>11}")
    for figure, expected, seconds, code in measured:
        words = duration(seconds) if code == 0 else "failed"
        print(f"{figure.name:<13}{figure.experiment:<32}{duration(expected):>11}{words:>11}")
    return failures
