"""An audit as a command: settings, folder, card."""

import math
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mpmtl.auditing.audit import (
    AuditSettings,
    default_method,
    run_audit,
    sample_counts,
    subjects_for,
)
from mpmtl.errors import require
from mpmtl.experiments.config import AuditSchema, instantiated, resolved
from mpmtl.experiments.fitting import check_budget
from mpmtl.experiments.layout import WIDTH, Progress, card_text, one_line
from mpmtl.experiments.store import RunFolder
from mpmtl.experiments.terminal import caveat_lines, marked, pair_words
from mpmtl.methods import Budget

EXECUTION_KEYS = ("results_dir", "data_dir", "overwrite", "verbose")
#: Sizes of synthetic data where none are given; d + 5 other tasks at least, for the view attack.
FEATURES, TASKS = 5, 10


@dataclass(frozen=True)
class AuditRun:
    """Everything that an audit needs; `settings` is the resolved config."""

    dataset: Any
    method: Any
    mechanism: Any
    epsilon: float
    delta: float
    rounds: int
    samples: int | None
    attack: Any
    confidence: float
    lam: float
    density: str
    seed: int
    results_dir: str
    data_dir: str
    overwrite: bool
    verbose: bool
    settings: dict = field(repr=False)

    @property
    def label(self):
        """Data x method, mechanism, for plans and cards."""
        return f"{self.dataset.name} x {self.method.name}, {self.mechanism.name}"

    @property
    def folder(self):
        """Folder below results_dir: audit/dataset/method/privacy/<sizes>/eps-<e>."""
        sizes = [
            f"{key}-{getattr(self.dataset, key)}" for key in "dm" if hasattr(self.dataset, key)
        ]
        names = (self.dataset.name, self.method.name, self.mechanism.name)
        sizes += [f"T-{self.rounds}", *["secure"] * self.mechanism.secure]
        return "/".join(("audit", *names, "_".join(sizes), f"eps-{self.epsilon:g}"))


def build_audit(cfg):
    """Instantiate and check a composed config.

    Raises
    ------
    InputError
        One line for whatever is wrong with the settings.
    """
    settings, recorded = resolved(cfg, AuditSchema, ("dataset", "privacy"))
    sizes = {"d": settings.pop("d"), "m": settings.pop("m")}
    synthetic = {f.name for f in fields(AuditSchema)} & settings["dataset"].keys()
    for key, value in sizes.items():
        require(
            value is None or key in synthetic,
            f"{key} = {value}: dataset={cfg.dataset._target_.split('.')[-1]} has a size of its own",
        )
        least = 1 if key == "d" else 2
        require(
            value is None or (isinstance(value, int) and value >= least),
            f"{key} = {value} must be a whole number of at least {least}",
        )
    if "d" in synthetic:
        d = sizes["d"] or FEATURES
        settings["dataset"] |= {"d": d, "m": sizes["m"] or max(TASKS, d + 5)}
    settings["dataset"].pop("n_public", None)  # an audit's sizes are fixed
    dataset = instantiated("dataset", settings.pop("dataset"))
    mechanism = instantiated("privacy", settings.pop("privacy"))
    method = settings.pop("method")
    method = instantiated("method", method) if method else default_method(mechanism)
    require(method.private, f"method={method.name} is not private: there is nothing to audit")
    m = getattr(dataset, "m", None)
    if settings["delta"] == "auto":
        require(m is not None, "delta = auto needs synthetic data here: set delta to a number")
        settings["delta"] = 1 / (m * math.log(m))
    check_budget(method, mechanism, settings["epsilon"], settings["delta"])
    require(settings["seed"] >= 0, f"seed = {settings['seed']} must be at least 0")
    if settings["samples"] == "auto":
        settings["samples"] = None
    settings.pop("tuning")
    recorded |= {"delta": settings["delta"], "d": getattr(dataset, "d", None), "m": m}
    for key in (*EXECUTION_KEYS, "tuning"):
        recorded.pop(key)
    return AuditRun(dataset, method, mechanism, settings=recorded, **settings)


def execute_audit(run, out=None, explained=(), wait=False, brief=False):
    """Carry out an audit and print its plan and its card, or one line if `brief`.

    Returns
    -------
    dict
        Row of a sweep's table, with the codes of the caveats.
    """
    out = out or sys.stdout
    path = Path(run.results_dir) / run.folder
    with RunFolder(path, run.settings, run.overwrite, wait) as folder:
        before = 0 in folder.records
        if not before:
            folder.append({"replicate": 0, "audit": _measure(run, None if brief else out)})
        elif not brief:
            print(f"{run.label}: already done with these settings", file=out)
        measured = folder.records[0]["audit"]
        folder.write_manifest(
            "complete",
            tag="audit",
            dataset=run.dataset.name,
            method=run.method.name,
            mechanism=run.mechanism.name,
            privacy=measured["privacy"],
            verdicts=measured["verdicts"],
            seed=run.seed,
        )
        folder.write_table("bounds", measured["rows"])
        folder.write_table("profile", measured["profile"])
        folder.write_card(card(run, measured, path, to=WIDTH))
        text = job_line(run, measured, before) if brief else card(run, measured, path, explained)
        print(text, file=out, flush=True)
    return summary_row(run, measured)


def prepared_audit(run):
    """What `run_audit` takes: subjects, privacy statement and settings of an audit."""
    data, _ = run.dataset.draw(run.data_dir, run.seed, 0)
    settings = AuditSettings(
        run.rounds, run.lam, run.density, run.samples, run.confidence, run.attack, run.seed
    )
    budget = Budget(run.mechanism, run.epsilon, run.delta)
    return *subjects_for(budget, run.method, data, settings), settings


def _measure(run, out):
    """`Audit.as_dict()` of an audit, with its plan and a progress bar."""
    subjects, statement, settings = prepared_audit(run)
    if out:
        print(plan_line(run, sample_counts(subjects, settings)), file=out, flush=True)
    # An audit's settings are given, and what a fit takes from the data is part of what is attacked.
    caveats = tuple(code for code in statement.caveats if code != "tuning-not-charged")
    statement = replace(statement, caveats=caveats)
    with Progress(run.label, "release") as bar:

        def progress(count, total):
            bar.total = total
            bar.advance(count)

        return run_audit(subjects, statement, settings, progress).as_dict()


def plan_line(run, counts):
    """What the audit will do."""
    parts = [f"{name}: {pairs} pairs x {n} samples of each input" for name, pairs, n in counts]
    return one_line(f"audit of {run.label}, eps = {run.epsilon:g}: {'; '.join(parts)}")


def job_line(run, measured, done_before):
    """An audit of a sweep in one line; its card is in its folder."""
    verdicts = [
        f"{name} {pair_words(v)} {v['verdict']} (>= {v['measured']:.3g})"
        for name, v in measured["verdicts"].items()
    ]
    head = f"audit of {run.label}, eps = {run.epsilon:g}"
    return one_line(f"{head}: {', '.join(verdicts)}{' (done before)' * done_before}")


def _measured(verdict):
    where, _, pair = verdict["pair"].partition(": ")
    return (
        f"delta >= {verdict['measured']:.3g} at epsilon = {verdict['epsilon']:.4g} "
        f"({verdict['attack'].removeprefix('view_')} attack on the {where}, {pair})"
    )


def card(run, measured, path, explained=(), to=None):
    """Claimed, proved, measured lower bound and verdict of each guarantee; caveats; files."""
    statement = measured["privacy"]
    lines = []
    if any(name != "instance" for name in measured["verdicts"]):
        unit = f"a {statement['unit']}; neighbours {statement['relation']}; for one fit"
        lines.append(("unit", unit))
    for name in ("claimed", "proved", "instance"):
        verdict = measured["verdicts"].get(name)
        if verdict is None:
            if name != "instance":
                lines.append((name, "nothing"))
            continue
        basis = verdict["basis"]
        lines += [
            (name, f"{pair_words(verdict)}: {basis}"),
            ("measured", _measured(verdict)),
            ("verdict", f"{verdict['verdict']} (the {name} guarantee)"),
        ]
    best = {}
    for row in measured["rows"]:
        if row["guarantee"] == measured["rows"][0]["guarantee"]:
            best[row["attack"]] = max(best.get(row["attack"], 0.0), row["delta_bound"])
    words = [f"{name.replace('_', ' ')} {value:.3g}" for name, value in sorted(best.items())]
    lines.append(("attacks", f"largest bound of each, one at a time: {', '.join(words)}"))
    lines += [("note", note) for note in statement["notes"]]
    counts = " or ".join(str(n) for n in sorted({row["n"] for row in measured["rows"]}))
    lines.append(
        (
            "confidence",
            f"{measured['confidence']:g} for each verdict; {counts} samples of each input choose "
            "the attack, as many others give the bound; seed "
            f"{measured['seed']}. Not refuted is no proof: another attack may do better",
        )
    )
    lines += [*caveat_lines(statement, explained), ("files", str(path))]
    return card_text(f"audit of {run.label}, eps = {run.epsilon:g}", lines, to)


def summary_row(run, measured):
    """One line of the table that ends a sweep."""
    row = {
        "dataset": run.dataset.name,
        "method": run.method.name,
        "privacy": run.mechanism.name,
        "sizes": run.folder.split("/")[-2],
        "eps": f"{run.epsilon:g}",
    }
    for name in ("claimed", "proved", "instance"):
        verdict = measured["verdicts"].get(name)
        if name == "instance" and verdict is None:
            continue
        row[name] = marked(measured["privacy"], name)
        row[f"verdict on {name}"] = "-"
        if verdict:
            row[f"verdict on {name}"] = f"{verdict['verdict']} (>= {verdict['measured']:.3g})"
    return row | {"caveats": measured["privacy"]["caveats"], "notes": []}
