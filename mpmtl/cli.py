"""`mpmtl-run` and `mpmtl-audit`: one experiment or audit per command, or a sweep with -m."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    # One thread per process, set before numpy is imported: processes are the parallelism.
    os.environ[_name] = "1"

import json
import re
import sys
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpmtl.config import (
    AuditSchema,
    Schema,
    build,
    one_line,
    register_schema,
    unknown_choice,
)
from mpmtl.errors import InputError, ResultsError
from mpmtl.runner import execute
from mpmtl.terminal import sweep_table

PACKAGE = Path(__file__).resolve().parent


def conf_dir():
    """The configs: inside the package of a wheel, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


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
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return unknown_choice(group, name, error.options)
    text = one_line(error)
    if error.__cause__ is not None:
        text = f"{text}: {one_line(error.__cause__)}"
    foreign = re.search(r"In 'experiment/(\w+)'.*'(\w+)' not in '\w*Schema'", text)
    if foreign:
        other = "mpmtl-run" if schema is AuditSchema else "mpmtl-audit"
        return f"experiment={foreign[1]} is for {other} (it sets {foreign[2]})"
    named = re.search(r"Could not override '([^']+)'", text)
    if named and ("not in" in text or "No match" in text):
        near = get_close_matches(named.group(1), _known_keys(schema), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "--help lists the keys."
        return f"unknown key {named.group(1)!r}: {hint}"
    return text


def command(config_name, schema, build, execute, stopped):
    """Run a Hydra command; exit code 0, 1 (a job of a sweep failed), 2 (bad input).

    Parameters
    ----------
    config_name : str
        Primary config.
    schema : type
        Its top-level keys.
    build : callable
        ``build(cfg)`` gives a job with `label`, `results_dir`, `folder` and `settings`.
    execute : callable
        ``execute(job, explained=codes)`` carries it out and returns a row of the sweep's table.
    stopped : str
        What to say after Ctrl-C.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed
    register_schema()
    process, failures, modes, done = os.getpid(), [], set(), {}

    def job(cfg):
        modes.add(HydraConfig.get().mode)
        name = " ".join(HydraConfig.get().overrides.task)
        try:
            run = build(cfg)
            same = run.results_dir, run.folder, json.dumps(run.settings, sort_keys=True)
            if same in done:  # epsilon does not matter to a method that is not private
                print(f"{run.label}: the same run as above")
                return
            explained = {code for row in done.values() for code in row["caveats"]}
            done[same] = execute(run, explained=explained)
        except (InputError, ResultsError) as error:
            print(f"error: {error}", file=sys.stderr)
            failures.append((name, error))
            if os.getpid() != process:  # a job sent elsewhere reports through its launcher
                raise

    decorated = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)
    try:
        decorated(job)()
    except KeyboardInterrupt:
        print(f"\nstopped: {stopped}", file=sys.stderr)
        sys.exit(130)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if modes:  # a job had started: this is a fault of the program, shown in full
            raise
        print(f"error: {explain(error, schema)}", file=sys.stderr)
        sys.exit(2)
    if done and RunMode.MULTIRUN in modes:
        print(f"\n{sweep_table(list(done.values()))}")
    if failures and RunMode.MULTIRUN in modes:
        print(f"failed jobs of the sweep ({len(failures)}; all others are done):", file=sys.stderr)
        for name, error in failures:
            print(f"  {name}: {error}", file=sys.stderr)
        sys.exit(1)
    if failures:
        sys.exit(2)


def main():
    """Entry point of `mpmtl-run`."""
    kept = "finished replicates are kept; the same command goes on from there"
    command("config", Schema, build, execute, kept)


def audit_main():
    """Entry point of `mpmtl-audit`."""
    from mpmtl.auditing.run import build_audit, execute_audit

    command("audit", AuditSchema, build_audit, execute_audit, "an audit starts again from its seed")
