"""All experiments of the paper in one go: the plan with its forecast, the runs, the pictures."""

import itertools
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from joblib import cpu_count
from omegaconf import OmegaConf

from mpmtl.auditing.audit import run_audit, sample_counts, subjects_for
from mpmtl.auditing.run import build_audit
from mpmtl.cli import conf_dir
from mpmtl.config import build, register_schema
from mpmtl.datafits import LogisticLoss
from mpmtl.errors import InputError
from mpmtl.results import write_atomic
from mpmtl.terminal import duration
from mpmtl.tuning import prepare

MOST = 16  # candidates that are timed for a forecast


@dataclass(frozen=True)
class Figure:
    """A figure, the experiment it needs and the script that draws it.

    Attributes
    ----------
    name, experiment, script : str
    arguments : tuple of str
        Of the script.
    command : {"mpmtl-run", "mpmtl-audit"}
    words : tuple of str
        Overrides of the experiment.
    thinner : dict of str to tuple of str
        More of them, for a scale at which the experiment as it stands would take too long.
    """

    name: str
    experiment: str
    script: str
    arguments: tuple = ()
    command: str = "mpmtl-run"
    words: tuple = ()
    thinner: dict = field(default_factory=dict)

    def overrides(self, scale):
        """Arguments of the command at this scale."""
        place = f"results_dir={results_dir(scale)}" if self.audit else f"scale={scale}"
        thinner = self.thinner.get(scale, ())
        return [f"experiment={self.experiment}", place, *self.words, *thinner]

    @property
    def audit(self):
        return self.command == "mpmtl-audit"


ONE_BUDGET = ("epsilon=1",)
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


def _accuracy(name, dataset, stl, thinner=None):
    words = (dataset, stl, *_COMPARED)
    experiment = f"privacy_accuracy_{dataset}"
    return Figure(name, experiment, "plot_privacy_accuracy", words, thinner=thinner or {})


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
    Figure(
        "Fig. S1",
        "training_percentage_school",
        "plot_training_percentage",
        ("school",),
        thinner={"smoke": ONE_BUDGET},
    ),
    _accuracy("Fig. 9b, 10b", "lsoa2", "stl_best", {"smoke": LSOA2_SMOKE, "laptop": LSOA2}),
    Figure(
        "Fig. S2",
        "training_percentage_lsoa2",
        "plot_training_percentage",
        ("lsoa2",),
        thinner={
            "smoke": (*LSOA2_SMOKE, "dataset.train_fraction=0.3"),
            "laptop": (*LSOA2, "n_replicates=5", "epsilon=0.1,10"),
        },
    ),
    Figure(
        "proved",
        "proved_tradeoff",
        "plot_proved_tradeoff",
        words=("dataset=low_rank,group_sparse,school",),
        thinner={"smoke": ONE_BUDGET, "laptop": ("n_replicates=10",)},
    ),
    Figure(
        "proved, lsoa2",
        "proved_tradeoff",
        "plot_proved_tradeoff",
        words=("dataset=lsoa2",),
        thinner={
            "smoke": (*LSOA2_SMOKE, "method=stl,mtl,fl,lr_gaussian"),
            "laptop": (
                *LSOA2,
                "n_replicates=5",
                "epsilon=0.1,1,10",
                "tuning.gamma=[1]",
                "tuning.psi=[0.01]",
            ),
        },
    ),
    Figure(
        "audit",
        "privacy_audit",
        "plot_privacy_audit",
        command="mpmtl-audit",
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


def plan(scale, figures=FIGURES, out=None):
    """Print what is to be done and how long it will take.

    Returns
    -------
    list of (Figure, float)
        Figures that can be made here, with the seconds expected.
    """
    return [(figure, seconds) for figure, seconds, _ in _plan(scale, figures, out or sys.stdout)]


def _plan(scale, figures, out):
    """`plan` with the runs of each figure, which take seconds to compose."""
    known, prepared, rows = {}, {}, []
    print(
        f"{'figure':<15}{'experiment':<32}{'jobs':>5}{'replicates':>12}{'forecast':>11}", file=out
    )
    for figure in figures:
        try:
            runs = jobs(figure, scale)
            seconds = _expected(figure, runs, known, prepared)
        except InputError as error:
            print(f"{figure.name:<15}{figure.experiment:<32} left out: {error}", file=out)
            continue
        rows.append((figure, seconds, runs))
        total = sum(wanted(run) for run in runs)
        left = total - sum(finished(run) for run in runs)
        done = f"{left} of {total}" if left < total else f"{total}"
        words = duration(seconds) if left else "done"
        print(
            f"{figure.name:<15}{figure.experiment:<32}{len(runs):>5}{done:>12}{words:>11}",
            file=out,
            flush=True,
        )
    print(f"{'in all':<64}{duration(sum(row[1] for row in rows)):>11}\n", file=out, flush=True)
    return rows


def reproduce(scale, scripts, figures=FIGURES):
    """Run what the plan says and draw every figure; returns the number of failures.

    Forecast and measured time of each figure go to ``<results>/times.csv``, measured only where
    nothing was done before.

    Parameters
    ----------
    scale : str
    scripts : Path
        Folder of the scripts that draw.
    figures : sequence of Figure
    """
    results, failures, rows = Path(results_dir(scale)), 0, []
    for figure, expected, runs in _plan(scale, figures, sys.stdout):
        fresh = not any(finished(run) for run in runs)
        started = time.perf_counter()
        command = [Path(sys.executable).parent / figure.command, *figure.overrides(scale)]
        draw = [sys.executable, scripts / f"{figure.script}.py", *figure.arguments]
        code = subprocess.run(command, check=False).returncode
        if code == 130:
            return failures + 1
        code = code or subprocess.run([*draw, "--results", results], check=False).returncode
        failures += code != 0
        row = {
            "figure": figure.name,
            "experiment": figure.experiment,
            "forecast": round(expected, 1),
            "measured": round(time.perf_counter() - started, 1),
            "result": "failed" if code else "done" if fresh else "resumed",
        }
        rows.append(row)
        if row["result"] == "done":
            _add_time(results / "times.csv", row)
    print(f"\n{'figure':<15}{'experiment':<32}{'forecast':>11}{'measured':>11}")
    for row in rows:
        words = {key: duration(row[key]) for key in ("forecast", "measured")}
        print(
            f"{row['figure']:<15}{row['experiment']:<32}{words['forecast']:>11}"
            f"{words['measured']:>11}  {row['result']}"
        )
    return failures


def _add_time(path, row):
    """Add the time of a figure that was made from nothing to those of others, at once."""
    table = pd.DataFrame([row])
    if path.is_file():
        old = pd.read_csv(path)
        table = pd.concat([old[old.figure != row["figure"]], table])
    write_atomic(path, table.to_csv(index=False))
