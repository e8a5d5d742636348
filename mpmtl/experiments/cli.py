"""`mpmtl-run` and `mpmtl-audit`: one experiment or audit per command, or a sweep with -m."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    # One thread per process, set before numpy is imported: processes are the parallelism.
    os.environ[_name] = "1"

import json
import re
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import fields
from difflib import get_close_matches
from io import StringIO
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from mpmtl.errors import InputError
from mpmtl.experiments.config import (
    AuditSchema,
    Schema,
    build,
    one_line,
    register_schema,
    unknown_choice,
)
from mpmtl.experiments.layout import help_text, say_error
from mpmtl.experiments.runner import execute
from mpmtl.experiments.store import write_atomic
from mpmtl.experiments.sweep import attempt, conf_dir, folders_apart, report


def _known_keys(schema):
    """Every key of every config, for "did you mean"."""
    known, keys = set(), {field.name for field in fields(schema)}
    for path in conf_dir().rglob("*.yaml"):
        group = path.parent.relative_to(conf_dir()).as_posix()
        if group.split("/")[0] not in {".", "scale", "experiment", *keys}:
            continue
        prefix = "" if group in (".", "scale", "experiment") else f"{group}."
        known |= {f"{prefix}{key}" for key in OmegaConf.load(path) if not key.startswith("_")}
        known |= {group.split("/")[0]} if group != "." else set()
    others = {field.name for other in (Schema, AuditSchema) for field in fields(other)}
    return (known - others - {"defaults", "."}) | keys


def explain(error, schema):
    """One line for a config that cannot be composed."""
    if isinstance(error, MissingConfigException) and "/" in str(error.missing_cfg_file):
        group, _, name = error.missing_cfg_file.rpartition("/")
        folders = re.findall(r"path=file://(.+)", str(error))  # Hydra lists none for half of a pair
        there = [path.stem for folder in folders for path in Path(folder, group).glob("*.yaml")]
        return unknown_choice(group, name, error.options or there)
    text = one_line(error)
    if error.__cause__ is not None:
        text = f"{text}: {one_line(error.__cause__)}"
    foreign = re.search(r"In 'experiment/(\w+)'.*'(\w+)' not in '\w*Schema'", text)
    if foreign:
        other = "mpmtl-run" if schema is AuditSchema else "mpmtl-audit"
        return f"experiment={foreign[1]} is for {other} (it sets {foreign[2]})"
    named = re.search(r"Could not override '([^']+)'", text)
    if named and ("not in" in text or "No match" in text):
        known = _known_keys(schema)
        if named[1] in known:
            group = named[1].split(".")[0]
            return f"{named[1]} belongs to another {group} than the chosen one (--cfg job shows it)"
        near = get_close_matches(named[1], known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "--help lists the keys."
        return f"unknown key {named[1]!r}: {hint}"
    if not isinstance(error, HydraException | OmegaConfBaseException | ValueError):
        return f"the settings cannot be read ({text}): is a list given where a name belongs?"
    if "LexerNoViableAlt" in text:
        word = text.split(": ", 1)[1].rstrip(" ^")
        return f"{word} cannot be read: put the value in quotes, key=\"'value'\""
    return text


class SweepReport(Callback):
    """Ends a sweep with a table of its jobs, wherever they ran; exit code 1 if one failed.

    Every job leaves ``job-<number>.json`` in the sweep's folder: its row, or its error.
    """

    def on_multirun_start(self, config, **kwargs):
        if "submitit_folder" in config.hydra.launcher:
            folder = config.hydra.launcher.submitit_folder
            print(f"each job prints to a log below {folder}", flush=True)

    def on_multirun_end(self, config, **kwargs):
        paths = Path(config.hydra.sweep.dir).glob("job-*.json")
        jobs = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        jobs.sort(key=lambda job: job["number"])
        if report(jobs):
            sys.exit(1)


VALUED = {"--cfg", "--package", "--config-path", "--config-name", "--config-dir", "--info"}
VALUED |= {"-c", "-p", "-cp", "-cn", "-cd", "-i", "--experimental-rerun"}


def _arranged(words):
    """The options among the words of a command, and the overrides: Hydra wants these side by side.
    ``-v`` is an override."""
    options, overrides, before = [], [], ""
    for word in words:
        if word in ("-v", "--verbose"):
            overrides.append("verbose=true")
        elif word.startswith("-") or before in VALUED:
            options.append(word)
        else:
            overrides.append(word)
        before = word
    return options, overrides


def _built(build, cfg):
    """The job, unless there is a grid for a method that is none: a grid of another method than the
    chosen one is no error, as experiments have grids for each of theirs."""
    made, grids = build(cfg), set(cfg.get("grids") or {})
    if grids:
        known = set(GlobalHydra.instance().config_loader().get_group_options("method"))
        own = {method.name for method in (cfg.method, *cfg.method.get("methods", {}).values())}
        for name in sorted(grids - known - own):
            raise InputError(f"grids.{name}: {unknown_choice('method', name, known)}")
    return made


def _print_help(show):
    """Hydra's help, by the terminal's width, and the end of the command."""
    with redirect_stdout(StringIO()) as text, suppress(SystemExit):
        show()
    print(help_text(text.getvalue().rstrip()))
    sys.exit()


#: Words that may make a sweep of a command, or change how Hydra works.
HYDRAS_OWN = re.compile(r"[+~]*(experiment|hydra)\b")


def _one_job(config_name, overrides, job):
    """A job of its own. Hydra's main composes such settings twice, first to see whether they are a
    sweep, which is half of the time until a run starts."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        cfg = loader.load_configuration(config_name, overrides, RunMode.RUN)
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        job(cfg)


def command(config_name, schema, build, execute, callbacks=False):
    """Run a Hydra command; exit code 0, 1 (a job of a sweep failed), 2 (bad input).

    Parameters
    ----------
    config_name : str
        Primary config.
    schema : type
        Its top-level keys.
    build, execute : callable
        ``build(cfg)`` gives a job and ``execute(job, ..., wait=bool)`` carries it out, see
        `sweep.attempt`; `wait` for another process that has the job's folder.
    callbacks : bool
        The config names a Hydra callback for the end of each job.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed
    register_schema()
    process, outcomes, done = os.getpid(), [], {}

    def job(cfg):
        task, number = HydraConfig.get(), len(outcomes)
        name = " ".join(task.overrides.task)
        outcomes.append({"name": name})
        elsewhere = os.getpid() != process  # jobs beside this one may share a folder
        brief = task.mode == RunMode.MULTIRUN
        outcome = attempt(name, lambda: _built(build, cfg), execute, done, brief, wait=elsewhere)
        outcomes[number] = outcome
        if brief:
            path = Path(task.sweep.dir) / f"job-{task.job.num}.json"
            write_atomic(path, json.dumps({**outcome, "number": task.job.num}))
        return outcome

    options, overrides = _arranged(sys.argv[1:])
    sys.argv[1:] = [*options, *overrides]
    decorated = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)
    try:
        if {"-m", "--multirun"} & set(options):
            with suppress(HydraException, OmegaConfBaseException):  # said below
                sys.argv += folders_apart(config_name, build, overrides)
        if {"-h", "--help"} & set(options):
            _print_help(decorated(job))
        if options or callbacks or any(map(HYDRAS_OWN.match, overrides)):
            decorated(job)()
        else:
            _one_job(config_name, overrides, job)
    except BrokenPipeError:
        raise
    except Exception as error:
        if type(error).__module__.startswith("submitit"):
            say_error(
                f"a job sent elsewhere died ({one_line(error)}); finished replicates are saved; "
                "the same command goes on from there"
            )
            sys.exit(1)
        if isinstance(error, InputError):
            say_error(error)
            sys.exit(2)
        if outcomes:  # a job had started: this is a fault of the program, in full
            raise
        say_error(explain(error, schema))
        sys.exit(2)
    if any("error" in outcome for outcome in outcomes):
        sys.exit(2)


def main():
    """`mpmtl-run`, see `entry`."""
    command("config", Schema, build, execute)


def audit_main():
    """`mpmtl-audit`, see `entry`."""
    from mpmtl.experiments.audit import build_audit, execute_audit

    command("audit", AuditSchema, build_audit, execute_audit, callbacks=True)
