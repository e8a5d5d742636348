"""All experiments of the paper in one go: the plan with its forecast, the runs, the pictures."""

import itertools
import shlex
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from joblib import cpu_count
from omegaconf import OmegaConf

from mpmtl.auditing.audit import run_audit, sample_counts, subjects_for
from mpmtl.datafits import LogisticLoss
from mpmtl.errors import InputError, ResultsError
from mpmtl.experiments.audit import build_audit, execute_audit
from mpmtl.experiments.cli import conf_dir
from mpmtl.experiments.config import build, register_schema
from mpmtl.experiments.runner import execute
from mpmtl.experiments.store import write_atomic
from mpmtl.experiments.terminal import duration, sweep_table
from mpmtl.experiments.tuning import prepare
from mpmtl.paper.figures.catalogue import make

MOST = 16  # candidates that are timed for a forecast


@dataclass(frozen=True)
class Figure:
    """A figure and the experiment it needs.

    Attributes
    ----------
    name, experiment : str
    kind : str
        What draws it (`figures.catalogue.KINDS`, ``scripts/plot_<kind>.py``).
    values : dict
        What the table wants to know.
    audit : bool
        Whether the experiment is one of `mpmtl-audit`.
    words : tuple of str
        Overrides of the experiment.
    thinner : dict of str to tuple of str
        More of them, for a scale at which the experiment as it stands would take too long.
    """

    name: str
    experiment: str
    kind: str
    values: dict = field(default_factory=dict)
    audit: bool = False
    words: tuple = ()
    thinner: dict = field(default_factory=dict)

    def overrides(self, scale):
        """Arguments of the command at this scale."""
        place = f"results_dir={results_dir(scale)}" if self.audit else f"scale={scale}"
        thinner = self.thinner.get(scale, ())
        return [f"experiment={self.experiment}", place, *self.words, *thinner]

    def command(self, scale):
        """What does the same by hand."""
        program = "mpmtl-audit" if self.audit else "mpmtl-run"
        return shlex.join([program, "-m", *self.overrides(scale)])


ONE_BUDGET = ("epsilon=1",)
TWO_BUDGETS = ("epsilon=0.1,10",)
#: LSOA II takes most of the time: 293 features, and a logistic loss.
LSOA2 = (
    "tuning.ridge=[1e-3,3e-3,1e-2,3e-2]",
    "tuning.lam=[0.01,0.04,0.32,2.56]",
    "tuning.path_rounds=[50]",
    "tuning.n_rounds=[1,10]",
    "tuning.strongly_convex=[false]",
)
LSOA2_SMOKE = (
    *ONE_BUDGET,
    "n_replicates=1",
    "tuning=fixed",
    "tuning.folds=2",
    "tuning.path_rounds=5",
    "tuning.n_rounds=2",
)
#: What the paper compares in Figs. 6, 7, 9 and 10, whatever other runs are in the folder.
_COMPARED = (
    "mtl",
    "lr/wishart",
    "gs/wishart",
    "dp_mtrl/output_perturbation",
    "dp_aggr/output_perturbation",
)


def _accuracy(name, dataset, stl, smoke=TWO_BUDGETS, laptop=()):
    values = {"dataset": dataset, "methods": (stl, *_COMPARED)}
    experiment = f"privacy_accuracy_{dataset}"
    thinner = {"smoke": smoke, "laptop": laptop}
    return Figure(name, experiment, "privacy_accuracy", values, thinner=thinner)


def _allocation(name, form):
    return Figure(name, f"budget_allocation_{form}", "budget_allocation", {"form": form})


def _percentage(name, dataset, thinner):
    experiment, values = f"training_percentage_{dataset}", {"dataset": dataset}
    return Figure(name, experiment, "training_percentage", values, thinner=thinner)


FIGURES = (
    Figure("Fig. 2", "model_leakage", "model_leakage"),
    Figure("Fig. 3", "task_relations", "task_relations"),
    _allocation("Fig. 4a", "convex"),
    _allocation("Fig. 4b", "strong"),
    _accuracy("Fig. 6a, 7a", "low_rank", "stl"),
    Figure("Fig. 5", "noise_to_signal", "noise_to_signal"),
    _accuracy("Fig. 6b, 7b", "group_sparse", "stl"),
    Figure("Fig. 8", "task_number", "task_number"),
    _accuracy("Fig. 9a, 10a", "school", "stl_best"),
    _percentage("Fig. S1", "school", {"smoke": ONE_BUDGET}),
    _accuracy("Fig. 9b, 10b", "lsoa2", "stl_best", LSOA2_SMOKE, LSOA2),
    _percentage(
        "Fig. S2",
        "lsoa2",
        {
            "smoke": (*LSOA2_SMOKE, "dataset.train_fraction=0.3"),
            "laptop": (*LSOA2, "n_replicates=5", "epsilon=0.1,10"),
        },
    ),
    Figure(
        "proved",
        "proved_tradeoff",
        "proved_tradeoff",
        words=("dataset=low_rank,group_sparse,school",),
        thinner={"smoke": ONE_BUDGET, "laptop": ("n_replicates=10",)},
    ),
    Figure(
        "proved, lsoa2",
        "proved_tradeoff",
        "proved_tradeoff",
        words=("dataset=lsoa2",),
        thinner={
            "smoke": (*LSOA2_SMOKE, "method=stl,mtl,fl,lr_gaussian"),
            "laptop": (
                *LSOA2,
                "n_replicates=5",
                "epsilon=0.1,1,10",
                "tuning.n_rounds=[1,3]",
                "tuning.gamma=[0.1,1]",
            ),
        },
    ),
    Figure(
        "audit",
        "privacy_audit",
        "privacy_audit",
        audit=True,
        thinner={"smoke": (*ONE_BUDGET, "samples=1000")},
    ),
)


def results_dir(scale):
    """Results folder of a scale."""
    return OmegaConf.load(conf_dir() / f"scale/{scale}.yaml").results_dir


def jobs(figure, scale):
    """The runs, or audits, that a figure is made of, each once.

    Returns
    -------
    list of Run or AuditRun
    """
    register_schema()
    config, make = ("audit", build_audit) if figure.audit else ("config", build)
    words = figure.overrides(scale)
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        experiment = [word for word in words if word.startswith("experiment=")]
        sweep = compose(config, experiment, return_hydra_config=True).hydra.sweeper.params
        given = dict(word.split("=", 1) for word in words)
        params = {key: given.pop(key, sweep[key]) for key in sweep}
        fixed = [f"{key}={value}" for key, value in given.items()]
        choices = [[f"{key}={v}" for v in str(params[key]).split(",")] for key in params]
        runs = [make(compose(config, [*fixed, *c])) for c in itertools.product(*choices)]
    return list({(run.results_dir, run.folder): run for run in runs}.values())


def wanted(run):
    """Replicates that a run is to have; an audit counts as one."""
    return getattr(run, "n_replicates", 1)


def finished(run):
    """Replicates of a run that are in its journal."""
    journal = Path(run.results_dir) / run.folder / "journal.jsonl"
    lines = journal.read_bytes().count(b"\n") if journal.is_file() else 0
    return min(lines, wanted(run))


def rounds_of(candidates):
    return sum(c.n_rounds or 1 for c in candidates)


@dataclass(frozen=True)
class Forecast:
    """Seconds of a replicate: what all runs on the same data share, and what each run takes."""

    shared: float
    own: float


def forecast(run, prepared):
    """Time the preparation and a part of the candidates on all training data, and scale it up.

    Separate tasks are solved with one ridge penalty. The part has, of each penalty and variant, the
    middle value of lambda, and at most 16 candidates with their share of the rounds.

    Parameters
    ----------
    run : Run
    prepared : dict
        Problems and their seconds, kept from one call to the next.

    Returns
    -------
    Forecast
    """
    key = repr((run.dataset, run.tuning, run.method.loss_average))
    if key not in prepared:
        started = time.perf_counter()
        train, _ = run.dataset.draw(run.data_dir, run.seed, 0)
        drawn = time.perf_counter()
        ridge = run.tuning.ridge
        middle = replace(run.tuning, ridge=ridge[len(ridge) // 2])
        problem = prepare(train, middle, run.method, run.seed, 0)
        spent = time.perf_counter() - drawn
        if isinstance(problem.datafit, LogisticLoss):  # Newton's method for each penalty
            spent *= len(ridge)
        prepared[key] = problem, drawn - started, spent
    problem, draw, spent = prepared[key]
    candidates = run.method.candidates(run.tuning, problem.scales)
    folds = run.tuning.folds if len(candidates) > 1 else 0
    folds *= {"grid": 1.0, "halving": 0.25}[run.tuning.search]
    budget, own = run.budget(problem.datafit.shape[0]), draw
    kinds = {(c.penalty, c.variant) for c in candidates}
    for kind in kinds:
        group = [c for c in candidates if (c.penalty, c.variant) == kind]
        lams = sorted({c.lam for c in group})
        alike = [c for c in group if c.lam == lams[len(lams) // 2]]
        part = alike[:: -(-len(alike) // MOST)] if run.method.private else alike
        started = time.perf_counter()
        for _ in run.method.fit(
            problem.datafit, problem.start, part, budget, np.random.default_rng(0)
        ):
            pass
        fit = time.perf_counter() - started
        whole = fit * rounds_of(alike) / rounds_of(part) * len(group) / len(alike)
        own += whole * folds + fit / len(part) / len(kinds)
    kept = isinstance(problem.datafit, LogisticLoss)
    return Forecast(spent, own) if kept else Forecast(0.0, own + spent)


def forecast_audit(run, samples=500):
    """Seconds of an audit, from one with few samples; its start is not counted twice."""
    data, _ = run.dataset.draw(run.data_dir, run.seed, 0)
    subjects, statement = subjects_for(
        run.mechanism, run.epsilon, run.delta, run.method, data, n_rounds=run.rounds, lam=run.lam
    )
    full = max(n for *_, n in sample_counts(subjects, run.attack, run.samples))
    seconds = []
    for n in (samples, 2 * samples):
        started = time.perf_counter()
        run_audit(subjects, statement, n, run.confidence, run.attack, run.seed)
        seconds.append(time.perf_counter() - started)
    return seconds[0] + max(seconds[1] - seconds[0], 0.0) * (full / samples - 1)


def _expected(figure, runs, known, prepared):
    """Seconds that are left of a figure's runs."""
    seconds, shared = 0.0, set()
    for run in runs:
        todo = wanted(run) - finished(run)
        key = repr((run.dataset, run.method, getattr(run, "tuning", run.mechanism)))
        if not todo:
            continue
        if figure.audit:
            known[key] = known.get(key) or forecast_audit(run)
            seconds += known[key]
            continue
        known[key] = known.get(key) or forecast(run, prepared)
        data = repr((run.dataset, run.tuning.ridge, run.tuning.folds))
        once = 0.0 if data in shared else known[key].shared
        shared.add(data)
        seconds += todo * (known[key].own + once) / min(cpu_count(), todo)
    return seconds


def _need_data(runs):
    """InputError if data are missing for what is left."""
    for run in {repr(run.dataset): run for run in runs if finished(run) < wanted(run)}.values():
        run.dataset.draw(run.data_dir, run.seed, 0)


def plan(scale, figures=FIGURES, out=None):
    """Print what is to be done and how long it will take.

    There is no forecast at scale=smoke: it would take a third of the time of the runs.

    Returns
    -------
    list of (Figure, float or None)
        Figures that can be made here, with the seconds expected.
    """
    return [(figure, seconds) for figure, seconds, _ in _plan(scale, figures, out or sys.stdout)]


def _plan(scale, figures, out):
    """`plan` with the runs of each figure, which take seconds to compose."""

    def line(*cells):
        print("{:<15}{:<32}{:>5}{:>12}{:>11}".format(*cells), file=out, flush=True)

    known, prepared, rows = {}, {}, []
    line("figure", "experiment", "jobs", "replicates", "forecast")
    for figure in figures:
        seconds = None
        try:
            runs = jobs(figure, scale)
            if scale == "smoke":
                _need_data(runs)
            else:
                seconds = _expected(figure, runs, known, prepared)
        except InputError as error:
            print(f"{figure.name:<15}{figure.experiment:<32} left out: {error}", file=out)
            continue
        rows.append((figure, seconds, runs))
        total = sum(wanted(run) for run in runs)
        left = total - sum(finished(run) for run in runs)
        count = f"{left} of {total}" if left < total else f"{total}"
        words = _time(seconds) if left else "done"
        line(figure.name, figure.experiment, len(runs), count, words)
    total = None if scale == "smoke" else sum(seconds for _, seconds, _ in rows)
    line("in all", "", "", "", _time(total))
    print(file=out)
    return rows


def _time(seconds):
    return "-" if seconds is None else duration(seconds)


def reproduce(scale, figures=FIGURES):
    """Run what the plan says and draw every figure; returns the number of failures.

    Forecast and measured time of each figure go to ``<results>/times.csv``, measured only where
    nothing was done before.

    Parameters
    ----------
    scale : str
    figures : sequence of Figure
    """
    results, rows = Path(results_dir(scale)), []
    for figure, expected, runs in _plan(scale, figures, sys.stdout):
        fresh = not any(finished(run) for run in runs)
        started = time.perf_counter()
        print(f"\n{figure.name}: {figure.command(scale)}\n", flush=True)
        ok = _make(figure, runs, results)
        row = {
            "figure": figure.name,
            "experiment": figure.experiment,
            "forecast": expected and round(expected, 1),
            "measured": round(time.perf_counter() - started, 1),
            "result": "failed" if not ok else "done" if fresh else "resumed",
        }
        rows.append(row)
        if row["result"] == "done":
            _add_time(results / "times.csv", row)
    print(f"\n{'figure':<15}{'experiment':<32}{'forecast':>11}{'measured':>11}")
    for row in rows:
        words = {key: _time(row[key]) for key in ("forecast", "measured")}
        print(
            f"{row['figure']:<15}{row['experiment']:<32}{words['forecast']:>11}"
            f"{words['measured']:>11}  {row['result']}"
        )
    return sum(row["result"] == "failed" for row in rows)


def _make(figure, runs, results):
    """Carry out the runs of a figure and draw it if all are done; whether it was drawn."""
    carry_out, done, failed = execute_audit if figure.audit else execute, [], 0
    try:
        for run in runs:
            explained = {code for row in done for code in row["caveats"]}
            try:
                done.append(carry_out(run, explained=explained))
            except (InputError, ResultsError) as error:
                failed += 1
                print(f"error: {run.label}: {error}", file=sys.stderr)
        if done:
            print(f"\n{sweep_table(done)}")
        if failed:
            print(
                f"{figure.name} is not drawn: {failed} of {len(runs)} jobs failed", file=sys.stderr
            )
            return False
        print(f"{make(figure.kind, results, **figure.values)}.png, .pdf and .csv", flush=True)
    except (InputError, ResultsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return False
    except Exception:  # a fault of the program: shown in full, and the next figure's turn
        traceback.print_exc()
        return False
    return True


def _add_time(path, row):
    """Add the time of a figure that was made from nothing to those of others, at once."""
    table = pd.DataFrame([row])
    if path.is_file():
        old = pd.read_csv(path)
        table = pd.concat([old[old.figure != row["figure"]], table])
    write_atomic(path, table.to_csv(index=False))
