"""All experiments of the paper in one go: the plan with its forecast, the runs, the pictures."""

import shlex
import sys
import time
import traceback
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from mpmtl.errors import InputError, ResultsError, require
from mpmtl.experiments.audit import build_audit, execute_audit
from mpmtl.experiments.config import build
from mpmtl.experiments.forecast import finished, seconds_left, wanted
from mpmtl.experiments.layout import columns, duration, one_line, say, say_error
from mpmtl.experiments.runner import execute
from mpmtl.experiments.store import write_atomic
from mpmtl.experiments.sweep import attempt, conf_dir, jobs, report
from mpmtl.experiments.terminal import caveats_of
from mpmtl.paper.catalogue import FIGURES, make
from mpmtl.paper.figures.privacy_audit import picture
from mpmtl.privacy.statements import MARK_WORDS


def results_dir(scale):
    """Results folder of a scale."""
    return OmegaConf.load(conf_dir() / f"scale/{scale}.yaml").results_dir


def overrides(figure, scale):
    """Arguments of the command behind a figure at this scale."""
    where = f"results_dir={results_dir(scale)}" if figure.audit else f"scale={scale}"
    thinner = figure.thinner.get(scale, ())
    return [f"experiment={figure.experiment}", where, *figure.words, *thinner]


def command(figure, scale):
    """What carries out the jobs of a figure by hand."""
    program = "mpmtl-audit" if figure.audit else "mpmtl-run"
    return shlex.join([program, "-m", *overrides(figure, scale)])


def jobs_of(figure, scale):
    """The runs, or audits, that a figure is made of, each once.

    Returns
    -------
    list of Run or AuditRun
    """
    config_name, make_job = ("audit", build_audit) if figure.audit else ("config", build)
    return jobs(config_name, make_job, overrides(figure, scale))


def _with_data(runs, missing):
    """The runs whose data are here or that need none any more.

    Parameters
    ----------
    runs : list of Run or AuditRun
    missing : dict of str to str
        Name of each data set that is not here and what to do; what was not tried yet is added.
    """
    tried = {}
    for run in runs:
        name = run.dataset.name
        if name in missing or finished(run) == wanted(run) or repr(run.dataset) in tried:
            continue
        tried[repr(run.dataset)] = run
        try:
            run.dataset.draw(run.data_dir, run.seed, 0)
        except InputError as error:
            missing[name] = str(error)
    return [r for r in runs if r.dataset.name not in missing or finished(r) == wanted(r)]


def plan(scale, figures=FIGURES, out=None):
    """Print what is to be done and how long it will take.

    There is no forecast at scale=smoke: it would take a third of the time of the runs.

    Returns
    -------
    list of (Figure, float or None)
        Figures that can be made here, with the seconds expected.
    """
    rows, _ = _plan(scale, figures, out or sys.stdout)
    return [(figure, seconds) for figure, seconds, *_ in rows]


def _plan(scale, figures, out):
    """`plan` with the runs of each figure, which take seconds to compose, and a line for each data
    set that is missing: the other data sets of a figure are run and drawn without it."""

    def line(*cells):
        _row("{:<15}{:<32}", "{:>5}{:>12}{:>11}", *cells, out=out)

    cache, rows, missing, without = {}, [], {}, {}
    line("figure", "experiment", "jobs", "replicates", "forecast")
    for figure in figures:
        runs = jobs_of(figure, scale)
        here = _with_data(runs, missing)
        for name in dict.fromkeys(run.dataset.name for run in runs if run not in here):
            without.setdefault(name, []).append(figure.name)
        if not here:
            line(figure.name, figure.experiment, len(runs), "left out", "no data")
            continue
        whole = len(here) == len(runs)
        runs, seconds = here, None if scale == "smoke" else seconds_left(here, cache)
        rows.append((figure, seconds, runs, whole))
        total = sum(wanted(run) for run in runs)
        left = total - sum(finished(run) for run in runs)
        count = f"{left} of {total}" if left < total else f"{total}"
        words = _time(seconds) if left else "done"
        line(figure.name, figure.experiment, len(runs), count, words)
    total = None if scale == "smoke" else sum(seconds for _, seconds, *_ in rows)
    line("in all", "", "", "", _time(total))
    lines = [
        one_line(f"{name} is left out of {'; '.join(names)}: {missing[name]}")
        for name, names in without.items()
    ]
    print(*lines, sep="\n", file=out)
    return rows, lines


def _row(names, numbers, *cells, out=None):
    """A row of a plan: its names and its numbers, which go below them on a narrow terminal."""
    n = names.count("{")
    left, right = names.format(*cells[:n]), numbers.format(*cells[n:])
    narrow = 0 < columns() < len(left) + len(right)
    text = f"{left.rstrip()}\n{right:>{columns()}}" if narrow else left + right
    print(text, file=out, flush=True)


def _time(seconds):
    return "-" if seconds is None else duration(seconds)


LONG = 3600  # seconds: a plan that is longer is not begun without a yes


def _agreed(seconds):
    """Ask whether a plan of so many seconds is to be carried out."""
    words = f"this takes about {duration(seconds)} on this machine"
    require(sys.stdin.isatty(), f"{words}: give --yes (make: YES=1), or a smaller --scale")
    return input(f"{words}. Go on? [y/N] ").strip().lower() in ("y", "yes")


def reproduce(scale, figures=FIGURES, verbose=False, sure=True):
    """Run what the plan says and draw every figure; returns the number of failures, among which
    each data set counts that is missing, but for `smoke`, which is a first look.

    Forecast and measured time of each figure go to ``<results>/times.csv``, measured only where
    nothing was done before.

    Parameters
    ----------
    scale : str
    figures : sequence of Figure
    verbose : bool
        Print the card of each job instead of one line; it is in its folder in any case.
    sure : bool
        Do not ask before a plan of more than an hour.
    """
    results, rows, done = Path(results_dir(scale)), [], {}
    planned, missing = _plan(scale, figures, sys.stdout)
    whole_time = sum(seconds or 0 for _, seconds, *_ in planned)
    if not sure and whole_time > LONG and not _agreed(whole_time):
        print("nothing was begun")
        return 0
    for figure, expected, runs, whole in planned:
        fresh = not any(finished(run) for run in runs)
        started = time.perf_counter()
        print("\n" + one_line(f"{figure.name}: {command(figure, scale)}"), flush=True)
        ok = _make(figure, runs, results, done, verbose)
        row = {
            "figure": figure.name,
            "experiment": figure.experiment,
            "forecast": expected and round(expected, 1),
            "measured": round(time.perf_counter() - started, 1),
            "result": "failed" if not ok else "in part" if not whole else _done(fresh),
        }
        rows.append(row)
        if row["result"] == "done":
            _add_time(results / "times.csv", row)
    if not verbose and done:
        print(f"\n{MARK_WORDS}\n{caveats_of(done.values())}")
    print()
    form = "{:<15}{:<32}", "{:>11}{:>11}  {:<7}"
    _row(*form, "figure", "experiment", "forecast", "measured", "result")
    for row in rows:
        words = [_time(row[key]) for key in ("forecast", "measured")]
        _row(*form, row["figure"], row["experiment"], *words, row["result"])
    if rows:
        total = [sum(row[key] or 0 for row in rows) for key in ("forecast", "measured")]
        _row(*form, "in all", "", _time(total[0] or None), _time(total[1]), "")
    for line in missing:
        say(f"incomplete: {line}")
    failed = sum(row["result"] == "failed" for row in rows)
    return failed if scale == "smoke" else failed + len(missing)


def _done(fresh):
    return "done" if fresh else "resumed"


def _make(figure, runs, results, done, verbose):
    """Carry out the runs of a figure and draw it if all are done; whether it was drawn."""
    carry_out = _audit_with_picture if figure.audit else execute
    try:
        outcomes = [
            attempt(run.label, lambda run=run: run, carry_out, done, not verbose) for run in runs
        ]
        if failed := report(outcomes, table=verbose):
            say(f"{figure.name} is not drawn: {failed} of {len(runs)} jobs failed")
            return False
        print(f"{make(figure.kind, results, **figure.values)}.png, .pdf and .csv", flush=True)
    except (InputError, ResultsError) as error:
        say_error(error)
        return False
    except Exception:  # a fault of the program: in full, and the next figure's turn
        traceback.print_exc()
        return False
    return True


def _audit_with_picture(run, **options):
    row = execute_audit(run, **options)
    picture(run)
    return row


def _add_time(path, row):
    """Add the time of a figure that was made from nothing to those of others, at once."""
    table = pd.DataFrame([row])
    if path.is_file():
        old = pd.read_csv(path)
        table = pd.concat([old[old.figure != row["figure"]], table])
    write_atomic(path, table.to_csv(index=False))
