"""`mpmtl-federate`: prepare a federated study, check an owner's table, fit a model late."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mpmtl.errors import require
from mpmtl.experiments.commands import command_parser
from mpmtl.federation.rounds import rehearse, statement
from mpmtl.federation.study import Owner, Study, nodes_in, summary

APP = """\
# A federated study, written by mpmtl-federate new. No code is in here: both apps are mpmtl's own.
[project]
name = "mpmtl-study"
version = "1.0.0"
description = "{method} among {m} owners"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "mpmtl"

[tool.flwr.app.components]
serverapp = "mpmtl.federation.server:app"
clientapp = "mpmtl.federation.client:app"

[tool.flwr.app.config]
settings = {settings}
schema = {schema}
deadline = {deadline}
out = {out}
noise-seed = {noise_seed}
honest = {honest}
colluding = {colluding}
nodes = {nodes}
simulated-table = {simulate}
"""


def _new(options):
    require(
        find_spec("flwr") is not None,
        "federated runs need Flower: pip install 'mpmtl[federated]' (in a checkout: make "
        "federated)",
    )
    require(options.deadline > 0, f"--deadline = {options.deadline} must be above 0")
    require(
        options.noise_seed is None or options.noise_seed >= 0,
        f"--noise-seed = {options.noise_seed} must be at least 0",
    )
    schema, place = Path(options.schema).resolve(), Path(options.folder)
    seed = "" if options.noise_seed is None else str(options.noise_seed)
    words = " ".join(options.settings)
    study = Study(words, str(schema), seed, options.honest, options.colluding)
    run, (data, _), shares = study.run, study.data(), study.shares
    rehearse(run, data, shares)
    block, nodes = statement(run, data, shares), " ".join(options.nodes)
    nodes_in(nodes, data.task_names)
    if options.simulate is not None:
        for name in data.task_names:
            Owner(study, name, options.simulate).notes  # noqa: B018  (reads the table)
    require(
        not (place / "pyproject.toml").exists(),
        f"{place} holds an app already: choose another folder",
    )
    place.mkdir(parents=True, exist_ok=True)
    text = APP.format(
        method=run.method.name,
        m=data.n_tasks,
        settings=json.dumps(study.settings),
        schema=json.dumps(str(schema)),
        deadline=float(options.deadline),
        out=json.dumps(str(Path(options.out or place / "results").resolve())),
        noise_seed=json.dumps(seed),
        honest=options.honest,
        colluding=options.colluding,
        nodes=json.dumps(nodes),
        simulate=json.dumps(str(Path(options.simulate).resolve()) if options.simulate else ""),
    )
    (place / "pyproject.toml").write_text(text, encoding="utf-8")
    print(summary(run, data, block, shares))
    how = f'local --stream --federation-config "num-supernodes={data.n_tasks}"'
    if not options.simulate:
        how = "NAME --stream, NAME the SuperLink's in Flower's config.toml"
    print(f"start it (docs/federated.md): flwr run {place} {how}")


def _read(folder):
    """The study of an app's folder, with the schema of the curator."""
    import tomllib

    path = Path(folder) / "pyproject.toml"
    require(path.is_file(), f"{folder} holds no app: mpmtl-federate new writes one")
    return tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]


def _owner(options, out=""):
    config = _read(options.folder)
    return Owner(Study.of(config, options.schema), options.owner, options.table, out)


def _check(options):
    owner = _owner(options)
    run, (data, _), shares = owner.study.run, owner.study.data(), owner.study.shares
    owner.contribution([])
    print(summary(run, data, statement(run, data, shares), shares))
    for line in owner.notes:
        print(line)
    print(f"{owner.name} can take part; study {owner.study.digest[:12]}")


def _model(options):
    with np.load(options.releases) as file:
        releases = [file[key] for key in file.files]
    _owner(options, options.out).keep_model(releases)
    print(f"the model of {options.owner}: {options.out}")


def main():
    """Entry point of `mpmtl-federate`; exit code 2 for bad input."""
    parser = command_parser(
        "mpmtl-federate",
        "Private multi-task learning with every owner's data where they are, on Flower "
        "(docs/federated.md).",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    new = commands.add_parser("new", help="write the Flower app of a study, and say what it proves")
    new.add_argument("folder", help="folder for the app, for flwr run")
    new.add_argument(
        "settings",
        nargs="+",
        help="as for mpmtl-run: method=fl privacy=gaussian epsilon=1 delta=1e-5",
    )
    new.add_argument("--schema", required=True, help="declares the columns and names the tasks")
    new.add_argument(
        "--deadline", type=float, default=60, metavar="SECONDS", help="how long a round waits (60)"
    )
    new.add_argument("--out", help="new folder for the releases (default: results in the app's)")
    new.add_argument("--simulate", metavar="TABLE", help="a table of all owners, for a simulation")
    new.add_argument(
        "--noise-seed",
        type=int,
        metavar="SEED",
        help="noise that can be repeated: experiments only",
    )
    new.add_argument(
        "--honest",
        type=int,
        default=0,
        metavar="H",
        help="no trusted curator: owners add the noise themselves, H of each sum are honest",
    )
    new.add_argument(
        "--colluding",
        type=int,
        default=0,
        metavar="C",
        help="with --honest: owners that may tell the curator all they know (0)",
    )
    new.add_argument(
        "--nodes",
        nargs="+",
        default=[],
        metavar="OWNER=NODE",
        help="whose node is whose, where SuperNodes have registered keys",
    )
    new.set_defaults(run=_new)
    check = commands.add_parser(
        "check", help="whether an owner's table can take part; sends nothing"
    )
    check.set_defaults(run=_check)
    model = commands.add_parser(
        "model", help="fit an owner's model from the releases, where it missed the end"
    )
    model.add_argument("--releases", required=True, help="released.npz, from the curator")
    model.add_argument("--out", required=True, help="file for the model")
    model.set_defaults(run=_model)
    for command in (check, model):
        command.add_argument("folder", help="folder of the app")
        command.add_argument("--owner", required=True, help="the owner's task")
        command.add_argument("--table", required=True, help="the owner's CSV or Parquet file")
        command.add_argument("--schema", required=True, help="the owner's copy of the schema")
    options = parser.parse_args()
    options.run(options)
