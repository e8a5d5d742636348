"""From a composed config to a `Run`: the only place that instantiates anything."""

import hashlib
import json
import math
import re
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from inspect import signature
from types import NoneType
from typing import Any, get_args

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from mpmtl.data.real import RealData
from mpmtl.errors import InputError, require
from mpmtl.experiments.fitting import FitSettings, protected
from mpmtl.experiments.ledger import Account
from mpmtl.experiments.pairs import register_pairs
from mpmtl.experiments.tuning import by_density, is_tuned
from mpmtl.methods import Method
from mpmtl.privacy.mechanisms import NoNoise
from mpmtl.privacy.statements import NOISE_CAVEATS

GROUPS = ("dataset", "method", "privacy", "tuning", "parallel")
#: Keys that say how a run is carried out, not what comes out of it.
EXECUTION_KEYS = (
    "n_replicates",
    "n_jobs",
    "parallel",
    "results_dir",
    "data_dir",
    "overwrite",
    "save_models",
    "verbose",
    "tag",
    "ledger",
)


@dataclass
class Schema:
    """Top-level keys and their types."""

    dataset: Any = MISSING
    method: Any = MISSING
    privacy: Any = MISSING
    tuning: Any = MISSING
    parallel: Any = MISSING
    epsilon: float = 1.0
    delta: Any = "auto"
    seed: int = 0
    n_replicates: int = 100
    n_jobs: int = -1
    results_dir: str = "results"
    data_dir: str = "${oc.env:MPMTL_DATA_DIR,data}"
    overwrite: bool = False
    save_models: bool = False
    verbose: bool = False
    tag: str = ""
    evaluation_epsilon: Any = "auto"
    ledger: Any = field(
        default_factory=lambda: {
            "path": "${oc.env:MPMTL_LEDGER,null}",
            "total": None,
            "delta": "auto",
        }
    )
    grids: dict[str, Any] = field(default_factory=dict)


@dataclass
class AuditSchema:
    """Top-level keys of an audit and their types."""

    dataset: Any = MISSING
    method: Any = None
    privacy: Any = MISSING
    tuning: Any = MISSING
    epsilon: float = 1.0
    delta: Any = 5.4e-4
    d: Any = None
    m: Any = None
    rounds: int = 1
    samples: Any = "auto"
    attack: Any = "all"
    confidence: float = 0.99
    lam: float = 0.01
    density: str = "corrected"
    seed: int = 0
    results_dir: str = "results"
    data_dir: str = "${oc.env:MPMTL_DATA_DIR,data}"
    overwrite: bool = False
    verbose: bool = False


def register_schema():
    """Make known to Hydra the typed schemas, `schema` and `audit_schema`, pairs of a method and a
    mechanism, how a grid depends on the density of the tuning, and values as words of folders."""
    OmegaConf.register_new_resolver("by_density", _by_density, replace=True)
    OmegaConf.register_new_resolver("as_word", _as_word, replace=True)
    schema = OmegaConf.structured(Schema)
    OmegaConf.set_struct(schema.grids, False)  # any method and setting may stand there
    ConfigStore.instance().store(name="schema", node=schema)
    ConfigStore.instance().store(name="audit_schema", node=AuditSchema)
    register_pairs()


def _by_density(values, *, _root_):
    return by_density(values, _root_.tuning.density)


def _as_word(key, *, _root_):
    """The value of a key as part of a folder's name; of a whole group six digits of its hash."""
    value = OmegaConf.select(_root_, key)
    if OmegaConf.is_dict(value):
        text = json.dumps(OmegaConf.to_container(value, resolve=True), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:6]
    return re.sub(r"[^\w.]+", "-", str(value)).strip("-.") or "none"


@dataclass(frozen=True, kw_only=True)
class Run(FitSettings):
    """Everything that a run needs, besides what every fit needs.

    Attributes
    ----------
    dataset, parallel
        The instantiated choices.
    settings : dict
        The resolved config without the execution keys: what the numbers depend on.
    grid : str
        The density of the grids, and which settings were given otherwise.
    n_public : list, optional
        Least and largest size of a task that are public.
    evaluation : float or "exact"
        Part of epsilon that buys a test error, 0 for none; or exact ones, outside the budget.
    ledger : Account
    """

    dataset: Any
    n_replicates: int
    n_jobs: int
    parallel: Any
    results_dir: str
    data_dir: str
    overwrite: bool
    save_models: bool
    verbose: bool
    tag: str
    settings: dict = field(repr=False)
    grid: str = ""
    n_public: list | None = None
    evaluation: float | str = "exact"
    ledger: Account = field(default_factory=Account)

    @property
    def label(self):
        """Data x method, for plans and cards."""
        return f"{self.dataset.name} x {self.method.name}"

    def draw(self, replicate):
        """Training and test data of a replicate."""
        train, test = self.dataset.draw(self.data_dir, self.seed, replicate)
        if self.n_public is not None:
            train = replace(train, n_public=tuple(self.n_public))
        return train, test

    @property
    def folder(self):
        """Folder of the run below results_dir: tag/dataset/method/privacy/eps-<e>."""
        parts = (self.dataset.name, self.method.name, self.mechanism.name)
        return "/".join((*self.tag.split("/"), *parts, f"eps-{self.epsilon:g}")).lstrip("/")

    @property
    def published(self):
        """Settings for the manifest, and the digest of the owners' table if these do not have it.

        A digest tells anybody whether a guess of all rows is right, so it stands with exact test
        errors only, as all else that is exact.
        """
        dataset = self.settings["dataset"]
        if self.evaluation == "exact" or "sha256" not in dataset:
            return self.settings, None
        others = {key: value for key, value in dataset.items() if key != "sha256"}
        return self.settings | {"dataset": others}, dataset["sha256"]

    def stated(self, statement, others=()):
        """The statement of a fit within the run: with what was bought besides, and all caveats."""
        for words, epsilon in self.beside.items():
            exact = self.mechanism.secure and words.startswith("the test error")
            statement = statement.beside(epsilon, words, () if exact else NOISE_CAVEATS)
        shown = ("evaluation-not-charged",) if self.evaluation == "exact" else ()
        return super().stated(statement, (*getattr(self.dataset, "caveats", ()), *shown, *others))

    def owners(self, replicate):
        """Digest of a replicate's whole data: that of the table, where it is split anew."""
        if isinstance(self.dataset, RealData):
            return self._table_digest
        words = json.dumps([self.settings["dataset"], self.seed, replicate], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()

    @cached_property
    def _table_digest(self):
        file = getattr(self.dataset, "digest", None)
        return file or self.dataset.load(self.data_dir).digest()

    @property
    def beside(self):
        """Parts of epsilon that buy something else than the models, in words."""
        test = 0.0 if self.evaluation == "exact" else self.evaluation
        parts = {
            "the schema (exponential mechanism)": self.schema_epsilon,
            "the test error (Laplace mechanism)": test,
        }
        return {words: epsilon for words, epsilon in parts.items() if epsilon}

    @property
    def schema_epsilon(self):
        """The part of epsilon that buys a table's schema."""
        return _schema_epsilon(self.dataset)


def _schema_epsilon(dataset):
    return getattr(dataset, "schema_epsilon", None) or 0.0


def build(cfg):
    """Instantiate and check a composed config.

    Raises
    ------
    InputError
        One line for whatever is wrong with the settings.
    """
    settings, recorded = resolved(cfg, Schema, GROUPS)
    evaluation, account = settings.pop("evaluation_epsilon"), settings["ledger"]
    require(isinstance(account, dict), "ledger is given by ledger.path, ledger.total, ledger.delta")
    settings["ledger"] = Account(**account)
    grid = _merge_grids(cfg, settings, recorded)
    n_public = settings["dataset"].pop("n_public", None)
    require(
        n_public is None
        or (isinstance(n_public, list) and [type(n) for n in n_public] == [int, int]),
        f"dataset.n_public = {n_public}: give it as [least, most], whole numbers",
    )
    chosen = {key: instantiated(key, settings.pop(key)) for key in GROUPS}
    method, mechanism = chosen["method"], chosen["privacy"]
    epsilon, delta = settings["epsilon"], settings["delta"]
    evaluation = _evaluation(evaluation, chosen)
    spent = 0.0
    if not method.private or isinstance(mechanism, NoNoise):
        # Neither the budget nor the mechanism matters: one folder, whatever was asked for.
        recorded |= {"epsilon": None, "delta": None, "privacy": {"name": "none"}}
    else:
        spent = _schema_epsilon(chosen["dataset"])
        require(
            spent == 0 or spent < epsilon,
            f"dataset.schema_epsilon = {spent} must be less than epsilon = {epsilon}, of which it "
            "is a part",
        )
        bought = 0 if evaluation == "exact" else evaluation
        spent += bought
        require(
            bought == 0 or spent < epsilon,
            f"evaluation_epsilon = {evaluation} leaves nothing of epsilon = {epsilon}, of which it "
            "is a part",
        )
    mechanism, epsilon, delta = protected(method, mechanism, epsilon, delta, spent)
    require(
        re.fullmatch(r"(\w[\w.=-]*(/(?!$)|$))*", settings["tag"]) is not None,
        f"tag = {settings['tag']}: use letters, digits, - and /, for a folder below results_dir",
    )
    for key, least in (("n_replicates", 1), ("seed", 0)):
        require(settings[key] >= least, f"{key} = {settings[key]} must be at least {least}")
    require(settings["n_jobs"] != 0, "n_jobs = 0: use a number of processes, or -1 for all cores")
    if getattr(chosen["dataset"], "train_fraction", None) == 1:  # the fit that is deployed
        settings |= {"n_replicates": 1, "save_models": True}
    for key in EXECUTION_KEYS:
        recorded.pop(key)
    recorded["evaluation_epsilon"] = evaluation
    if evaluation == "exact":  # the names of seeded streams hold all settings: these came later
        recorded.pop("evaluation_epsilon")
    if not mechanism.secure:
        recorded["privacy"].pop("noise", None)
    if hasattr(chosen["dataset"], "digest"):  # a user's file: its content counts, not its place
        recorded["dataset"] = recorded["dataset"] | {"sha256": chosen["dataset"].digest}
        recorded["dataset"].pop("path")
    return Run(
        dataset=chosen["dataset"],
        method=method,
        mechanism=mechanism,
        tuning=chosen["tuning"],
        parallel=chosen["parallel"],
        epsilon=epsilon,
        delta=delta,
        settings=recorded,
        seed=settings["seed"],
        grid=grid,
        n_public=n_public,
        evaluation=evaluation,
        **{key: settings[key] for key in EXECUTION_KEYS if key in settings},
    )


def _evaluation(value, chosen):
    """Part of epsilon for a test error, 0, or "exact": what evaluation_epsilon asks for."""
    method, dataset = chosen["method"], chosen["dataset"]
    if value == "auto":
        return 0.0 if chosen["privacy"].secure else "exact"
    if value == "exact":
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        number and 0 <= value < math.inf,
        f"evaluation_epsilon = {value}: use auto, exact, 0 for no test error, or a part of epsilon",
    )
    if value == 0:
        return 0.0
    require(
        method.private and not isinstance(chosen["privacy"], NoNoise),
        f"evaluation_epsilon = {value} is a part of a private method's budget: use exact or 0",
    )
    require(
        not is_tuned(method, chosen["tuning"]),
        f"evaluation_epsilon = {value}: {method.name} chooses from all tasks' data, so a task "
        "moves the errors of all: use fl, or method.eta=public tuning=fixed",
    )
    require(
        getattr(dataset, "train_fraction", None) != 1,
        f"evaluation_epsilon = {value}: with train_fraction = 1 there is no test part",
    )
    return float(value)


def _merge_grids(cfg, settings, recorded):
    """Take `grids.<method>`, an experiment's grids, into the method's; what is tried, in words.

    The grid of the density is overruled by ``grids.<method>.<setting>``, and that by
    ``method.grid.<setting>``; likewise for the members of a method that is made of others.
    """
    grids = settings.pop("grids")
    recorded.pop("grids")
    raw = OmegaConf.to_container(cfg, resolve=False)
    changed = set()
    every = zip(*(_members(c["method"]) for c in (settings, recorded, raw)), strict=True)
    for chosen, noted, given in every:
        words = chosen.get("grid")
        require(
            words is None or isinstance(words, dict),
            f"method.grid = {words}: give the values of a setting, such as method.grid.lam=[0.1,1]",
        )
        name = chosen.get("name", "")
        require(
            isinstance(name, str) and re.fullmatch(r"\w[\w.+-]*", name),
            f"method.name = {name}: use letters, digits and _, and after the first also . + -",
        )
        own = grids.get(name) or {}
        require(
            isinstance(own, dict),
            f"grids.{name} = {own}: give the values of a setting, such as grids.{name}.lam=[0.1,1]",
        )
        typed = {k for k, v in (given.get("grid") or {}).items() if not str(v).startswith("${")}
        for key in own.keys() - typed:
            chosen.setdefault("grid", {})[key] = own[key]
            noted.setdefault("grid", {})[key] = own[key]
        changed |= typed | own.keys()
    if not str(raw["tuning"].get("ridge")).startswith("${"):
        changed.add("ridge")
    density = settings["tuning"].get("density")
    return f"{density} but for {', '.join(sorted(changed))}" if changed else str(density)


def _members(method):
    """The settings of a method, and of those that it is made of."""
    members = method.get("methods", {})
    require(isinstance(members, dict), f"method.methods = {members}: give methods by their names")
    for name, member in members.items():
        words = f"method.methods.{name} = {member}: give a method with its settings"
        require(isinstance(member, dict), words)
    return [method, *members.values()]


def resolved(cfg, schema, groups):
    """Settings of a composed config, twice: to take apart and to record.

    Raises
    ------
    InputError
        One line for an unknown key or a group without a choice.
    """
    try:
        settings = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise InputError(one_line(error)) from error
    for key in groups:
        require(isinstance(settings[key], dict), f"{key} = {settings[key]}: no such choice")
        target = settings[key].get("_target_", "")
        require(isinstance(target, str), f"{key}._target_ = {target}: give the name of a class")
    unknown = sorted(settings.keys() - {f.name for f in fields(schema)})
    require(not unknown, f"unknown key {', '.join(unknown)}: --help lists the keys")
    return settings, deepcopy(settings)


def instantiated(group, values):
    """The object of a config group, after a check of the values' types.

    Raises
    ------
    InputError
        One line for whatever is wrong with the values.
    """
    require("_target_" in values, f"{group} has no _target_: choose one of its configs by name")
    try:
        target = get_class(values["_target_"])
    except (ImportError, ValueError) as error:
        raise InputError(one_line(error)) from error
    if group == "method":
        ok = isinstance(target, type) and issubclass(target, Method)
        require(ok, f"{values['_target_']} is no method: it must extend mpmtl.methods.Method")
    known = signature(target).parameters
    if is_dataclass(target):
        for key in sorted(values.keys() - known.keys() - {"_target_"}):
            raise InputError(f"{group}.{key}: the chosen {group} has no such setting")
    for key in sorted(values.keys() & known.keys()):
        value, kinds = values[key], _kinds(known[key])
        allowed = (*kinds, int) if float in kinds else kinds
        ok = isinstance(value, allowed) and (bool in kinds or not isinstance(value, bool))
        names = " or ".join(KIND_NAMES[kind] for kind in kinds)
        require(ok or not kinds, f"{group}.{key} = {value} must be {names}")
    try:
        return instantiate(values, _convert_="all")
    except HydraException as error:
        text = one_line(error)
        own = re.match(r"(\w+)[. ]", text)  # the library names the setting, the command its group
        named = own and own[1] in values
        raise InputError(f"{group}.{text}" if named else text) from error


def _kinds(parameter):
    """Simple kinds of a setting by its annotation, else by its default; () where it has others."""
    kind, default = parameter.annotation, parameter.default
    if kind is parameter.empty:
        kind = parameter.empty if default is None else type(default)
    kinds = get_args(kind) or (kind,)
    return kinds if all(kind in KIND_NAMES for kind in kinds) else ()


KIND_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    NoneType: "null",
}


def one_line(error):
    """What a Hydra or OmegaConf error says, in one line, without its wrapping."""
    cause = error
    while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, MissingMandatoryValue):
        return f"{cause.full_key} has no value: give {cause.full_key}=..."
    text = " ".join(str(cause).split())
    for ending in (" full_key:", " object_type=", " See https:"):
        text = text.split(ending)[0]
    for start in ("Error merging override ", "Error parsing override "):
        text = text.replace(start, "")
    return text.replace("InputError raised while resolving interpolation: ", "")


def unknown_choice(group, name, available):
    """Message for a name that a config group does not have, with the nearest ones."""
    near = get_close_matches(name, available, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "nothing is near that."
    return f"unknown {group} {name!r}: {hint} There is {', '.join(sorted(available))}."
