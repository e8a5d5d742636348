"""What the curator and the owners agree on: settings, declared columns, tasks; and whose rows."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from mpmtl.data.table import Table
from mpmtl.errors import InputError, require
from mpmtl.experiments.cli import explain
from mpmtl.experiments.config import Schema, build, register_schema
from mpmtl.experiments.layout import card_text
from mpmtl.experiments.predict import task_models
from mpmtl.experiments.store import code_version, write_atomic
from mpmtl.experiments.sweep import conf_dir
from mpmtl.federation.rounds import check_apart, take_part
from mpmtl.privacy.shares import Shares
from mpmtl.privacy.statements import CAVEATS


@dataclass(frozen=True)
class OwnTable(Table):
    """The rows of one owner among tasks without rows; without an owner, no rows at all.

    Everything but the rows comes from the schema, so that the curator and all owners have the same
    tasks and features.

    Parameters
    ----------
    owner : str, optional
        Name of the task that the file belongs to. Rows of other tasks are left out; a file without
        the column of tasks is the owner's as a whole.
    """

    owner: str | None = None

    def __post_init__(self):
        super().__post_init__()
        require(self.schema is not None, "a study needs a schema, as mpmtl-schema drafts it")
        where = f"schema = {self.schema}"
        require(
            self.tasks is not None,
            f"{where}: add the public names of all owners, such as tasks: [a, b, c]",
        )
        require(
            self.owner is None or self.owner in self.tasks,
            f"owner = {self.owner} is none of the tasks of the schema: {', '.join(self.tasks)}",
        )
        nobody = "nobody has all rows to read it off"
        require(self.kind != "auto", f"{where}: declare kind: regression or binary; {nobody}")
        need = "target_range" if self.kind == "regression" else "positive"
        require(getattr(self, need) is not None, f"{where}: declare {need}; {nobody}")
        free = [c for c in self.features if c not in self.ranges and c not in self.levels]
        require(not free, f"{where}: declare the range of {', '.join(free)}; {nobody}")

    @cached_property
    def digest(self):
        """SHA-256 of the schema."""
        return hashlib.sha256(Path(self.schema).read_bytes()).hexdigest()

    def _read(self):
        if self.owner is None:
            return pd.DataFrame(columns=[self.task, self.target, *self.features], dtype=str)
        frame = super()._read()
        if self.task not in frame:
            frame.insert(0, self.task, self.owner)
        return frame[frame[self.task] == self.owner]

    def _task_notes(self, data):
        if self.owner is None:
            return ()
        rows = int(data.n_samples[self.tasks.index(self.owner)])
        return (f"{rows} row{'s' * (rows != 1)} of {self.owner} in {self.path}",)

    @property
    def notes(self):
        """What was understood of the owner's rows."""
        return self._prepared[3]

    def _check_rows(self, frame, notes):
        """An owner with little or nothing to learn from takes part all the same."""

    def _check_sizes(self, sizes, least, most):
        if self.owner is not None:
            own = sizes[self.tasks.index(self.owner)]
            require(
                least <= own <= most, f"n_public = {[least, most]}: {self.owner} has {own} rows"
            )


@dataclass(frozen=True)
class Study:
    """A federated run, as its curator starts it.

    Parameters
    ----------
    settings : str
        Words as for `mpmtl-run`, such as "method=fl privacy=gaussian epsilon=1".
    schema : str
        YAML file that declares the columns and names the tasks.
    seed : str
        Of noise that can be repeated, for experiments; empty: noise=secure.
    honest : int
        0: the curator is trusted and adds the noise; else see `privacy.shares.Shares`.
    colluding : int
        With `honest`.
    """

    settings: str
    schema: str
    seed: str = ""
    honest: int = 0
    colluding: int = 0

    @classmethod
    def of(cls, config, schema):
        """The study of an app, with the reader's own copy of the schema."""
        rest = (config[key] for key in ("noise-seed", "honest", "colluding"))
        return cls(config["settings"], str(schema), *rest)

    @cached_property
    def shares(self):
        """Whose noise it is without a trusted curator; None with one."""
        if not self.honest:
            require(not self.colluding, f"colluding = {self.colluding} needs honest, above 0")
            return None
        require(not self.seed, "noise-seed: owners' own noise never comes from a seed")
        return Shares(self.honest, self.colluding)

    @cached_property
    def run(self):
        """The run without any row, as the curator has it.

        Raises
        ------
        InputError
            One line for whatever a federated run cannot do.
        """
        words = self.settings.split()
        for word in words:
            key = word.split("=")[0].lstrip("+~")
            require(
                key.split(".")[0] not in ("dataset", "tuning", "experiment"),
                f"{word}: a federated run has dataset=table and tuning=fixed; columns are declared "
                "in the schema",
            )
        path = str(self.schema).replace("'", "\\'")
        fixed = [
            "dataset=table",
            f"dataset._target_={OwnTable.__module__}.{OwnTable.__name__}",
            "dataset.path=''",
            f"dataset.schema='{path}'",
            "dataset.strict=false",
            "dataset.train_fraction=1",
            "tuning=fixed",
            f"privacy.noise={'seeded' if self.seed else 'secure'}",
        ]
        run = composed([*fixed, *words])
        check_apart(run)
        return run

    @property
    def digest(self):
        """What the settings, the schema and the code are: the same for all who take part."""
        settings = dict(self.run.settings)
        settings["dataset"] = settings["dataset"] | {"schema": None}  # its content counts
        whose = self.honest, self.colluding
        text = json.dumps([settings, code_version(), whose], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def data(self, path=None, owner=None):
        """All tasks, with the rows of one owner or, without one, none.

        Returns
        -------
        data : MultiTaskData
        notes : tuple of str
            What was understood of the owner's rows, for the owner alone.
        """
        table = replace(self.run.dataset, path=path or "", owner=owner)
        data, _ = replace(self.run, dataset=table).draw(0)
        return data, table.notes


@dataclass(frozen=True)
class Owner:
    """One owner of a study.

    Attributes
    ----------
    study : Study
    name : str
        Its task.
    table : str
        Its own CSV or Parquet file.
    out : str
        File for its model, which is written here and nowhere else.
    """

    study: Study
    name: str
    table: str
    out: str = ""

    @cached_property
    def _problem(self):
        data, notes = self.study.data(self.table, self.name)
        return data, data.task_names.index(self.name), notes

    @property
    def notes(self):
        """What was understood of the table; for the owner alone."""
        return self._problem[2]

    def contribution(self, releases):
        """What the owner shows in the round after these releases, a list of one array."""
        require(
            releases or self.out == "" or not Path(self.out).exists(),
            f"out = {self.out} is there already: move it away, or choose another file",
        )
        data, task, _ = self._problem
        contribution, _ = take_part(self.study.run, data, task, releases, self.study.shares)
        require(contribution is not None, f"{len(releases)} releases are all that there are")
        return [contribution]

    def keep_model(self, releases):
        """Fit the owner's model from all releases and write it to `out`; nothing to be shown."""
        data, task, _ = self._problem
        _, model = take_part(self.study.run, data, task, releases, self.study.shares)
        require(model is not None, f"{len(releases)} releases are not all that there are")
        W = np.zeros((data.n_tasks, len(model)))
        W[task] = model
        saved = task_models(self.study.run.method.name, data, W)[task]
        path = Path(self.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(saved))
        return []


def nodes_in(words, names):
    """Nodes that owners are bound to beforehand, {task index: node}, from "a=123 b=456"."""
    bound = {}
    for word in words.split():
        name, _, node = word.rpartition("=")
        require(name in names, f"nodes: {name or word} is no owner of the schema")
        require(node.isdecimal(), f"nodes: {word}: a node is a whole number, see flwr supernode")
        bound[names.index(name)] = int(node)
    require(len(set(bound.values())) == len(bound), "nodes: two owners have the same node")
    return bound


def summary(run, data, block, noise=None):
    """A card of what a study releases, what is proved about it and who is trusted."""
    title = f"{run.method.name}, {run.mechanism.name}, epsilon = {run.epsilon:g}"
    lines = [
        ("owners", f"{data.n_tasks}; {data.n_features} features with the intercept"),
        ("unit", f"a {block.unit}; neighbours {block.relation}; {block.scope}"),
        *((word, f"{part}: {part.basis}") for word, part in _parts(block)),
        *(("note", note) for note in block.notes),
        *(("caveat", f"{code}: {CAVEATS[code]}") for code in block.caveats),
        ("curator", CURATOR if noise is None else _curator_of(noise, data.n_tasks)),
    ]
    return card_text(title, lines)


CURATOR = (
    "is trusted: it sees every owner's bounded contribution, adds the noise and releases the sum"
)


def _curator_of(noise, m):
    h, c = noise.honest, noise.colluding
    return (
        f"sees sums alone: every owner adds 1/{h} of the noise's variance to its own contribution "
        f"(with all {m} owners {m / h:.3g} times what a trusted curator would add). Assumed: of "
        f"the owners of a round's sum at least {h} are honest and at most {c} collude with the "
        f"curator; a round of fewer than {noise.needed} is refused"
    )


def _parts(block):
    parts = {"claimed": block.claimed, "proved": block.proved}
    return [(word, part) for word, part in parts.items() if part is not None]


def composed(words):
    """The `Run` of these words, as `mpmtl-run` reads them."""
    register_schema()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = compose("config", words)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise InputError(explain(error, Schema)) from error
    return build(cfg)
