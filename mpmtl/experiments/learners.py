"""Every method of the command line from Python: `MultiTaskRegressor` and `MultiTaskClassifier`."""

import json
import re
import threading
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpmtl.chunks import Serial
from mpmtl.data import MultiTaskData
from mpmtl.errors import InputError, require, shown
from mpmtl.estimators import Classification, LinearModels, Regression, is_finite
from mpmtl.experiments.config import instantiated, one_line, register_schema, unknown_choice
from mpmtl.experiments.fitting import FitSettings, protected, tuned_fit
from mpmtl.experiments.sweep import conf_dir
from mpmtl.experiments.tuning import chosen_outside
from mpmtl.methods.base import NOMINAL
from mpmtl.privacy.statements import caveat_text, warn_caveats
from mpmtl.streams import stream

GROUPS = ("method", "privacy", "tuning")
#: Settings of earlier versions, and how they are called now.
RENAMED = {
    "mechanism": "privacy='gaussian', as on the command line",
    "noise": "privacy__noise",
    "rounds": "method__rounds (fl) or method__grid__n_rounds",
    "n_rounds": "method__grid__n_rounds",
    "max_rounds": "method__grid__n_rounds",
    "lam": "method__grid__lam",
    "K": "method__grid__K",
    "alpha": "method__grid__alpha",
    "accelerated": "method__grid__accelerated",
    "affine": "method__affine",
    "penalty": "method__penalty, or another method: lr and gs, mtl_lr and mtl_gs",
    "eta": "method__eta",
    "clip": "method__clip",
    "loss_average": "method__loss_average",
    "ridge": "tuning__ridge",
    "fit_intercept": "intercept",
    "row_norm": "norm",
    "kind": "the class: MultiTaskRegressor or MultiTaskClassifier",
    "rng": "random_state",
    "seed": "random_state",
    "positive": "classes=(negative, positive)",
}
_composing = threading.Lock()  # Hydra composes one config at a time


class Learner(LinearModels):
    """A method of the command line as a learner; see `MultiTaskRegressor`."""

    def _take(self, given):
        """Keep the settings that a constructor was given, its local variables."""
        settings = {key: value for key, value in given.items() if key in self._declared()}
        self.set_params(**settings, **given["settings"])

    @classmethod
    def _declared(cls):
        """Names and defaults of the settings that every method has."""
        given = signature(cls.__init__).parameters.values()
        found = {p.name: p.default for p in given if p.kind != Parameter.VAR_KEYWORD}
        del found["self"]
        return found

    def _own(self):
        """Settings of the method, its privacy and its tuning, ``method__eta``, that were given."""
        return {key: value for key, value in vars(self).items() if _group_of(key)}

    def get_params(self, deep=True):
        """Settings by name; `deep` changes nothing."""
        return {key: getattr(self, key) for key in self._declared()} | self._own()

    def set_params(self, **params):
        """Change settings; returns the learner."""
        known = self._declared()
        for name, value in params.items():
            if name not in known and not _group_of(name):
                raise InputError(self._unknown(name, known))
            setattr(self, name, value)
        return self

    def _unknown(self, name, known):
        word = f"{type(self).__name__} has no setting {name}"
        if name in RENAMED:
            return f"{word}: it is now {RENAMED[name]}"
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return (
            f"{word}: {hint}it has {', '.join(known)}, and those of the method, of its privacy and "
            "of its tuning, such as method__eta, privacy__noise, tuning__folds"
        )

    def __repr__(self):
        default = self._declared()
        given = {k: v for k, v in self.get_params().items() if not _same(v, default.get(k))}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"

    def __sklearn_tags__(self):
        """What scikit-learn, which alone asks, may expect."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        binary = self.kind == "binary"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False) if binary else None,
            regressor_tags=None if binary else RegressorTags(),
            input_tags=InputTags(),
            non_deterministic=self.random_state is None and self._is_private(),
        )

    def _is_private(self):
        """Whether a fit draws noise, for settings that can be."""
        with suppress(InputError):
            return self._settings()[0].method.private
        return True

    def resolved(self):
        """All settings, as the command line writes them.

        Returns
        -------
        dict
            Of method, privacy and tuning, by group; and epsilon and delta.

        Raises
        ------
        InputError
            One line for a name or a value that cannot be.
        """
        own = _own_configs(self.config_dir)
        names = tuple(_choice(self, group, own) for group in GROUPS)
        values = json.dumps({key: _plain(key, value) for key, value in self._own().items()})
        groups = deepcopy(_known(names, values)) if own is None else _groups(names, values, own)
        epsilon, delta = self.epsilon, self.delta
        auto = isinstance(delta, str) and delta == "auto"
        require(is_finite(epsilon), f"epsilon = {shown(epsilon)}: give a number above 0")
        require(auto or is_finite(delta), f"delta = {shown(delta)}: give 'auto' or a number")
        return groups | {"epsilon": float(epsilon), "delta": "auto" if auto else float(delta)}

    def _settings(self):
        """The `FitSettings`, and all settings in words, which name the noise."""
        settings = self.resolved()
        words = json.dumps(settings, sort_keys=True)
        try:
            parts = {group: instantiated(group, settings[group]) for group in reversed(GROUPS)}
            method, mechanism = parts["method"], parts["privacy"]
            chosen = "privacy__noise" in vars(self)
            if mechanism.exact and not chosen:
                mechanism = replace(mechanism, noise="secure")
            budget = settings["epsilon"], settings["delta"]
            mechanism, *budget = protected(method, mechanism, *budget)
        except InputError as error:
            raise InputError(_in_python(error)) from error
        require(
            self.random_state is None or not mechanism.secure,
            f"random_state = {shown(self.random_state)} seeds the noise, but that comes from the "
            f"operating system (noise=secure{'' if chosen else ', the default'}): leave it out, or "
            "give privacy__noise='seeded' for experiments that can be repeated",
        )
        require(
            self.norm is not None or not method.public_constants,
            "method__eta = 'public' needs a public bound on the length of rows: give norm",
        )
        seed = int(self.random_state) if _whole(self.random_state) else 0
        return FitSettings(method, mechanism, parts["tuning"], *budget, seed), words

    def fit(self, X, y, task=None):
        """Fit all tasks: tune where there is something to choose, then all samples.

        Parameters
        ----------
        X, y
            Lists with a table and targets for each task, or one of each with `task`.
        task : str or array, optional
            The name of a column of X, or the task of each row.

        Returns
        -------
        self

        Raises
        ------
        InputError
            One line for settings or data that cannot be used.
        """
        source = _generator(self.random_state)
        settings, words = self._settings()
        data = self._data(X, y, task, strict=not settings.method.private)
        noise = source
        if _whole(self.random_state):  # two fits never share a draw: it would cancel
            digest = data.digest()

            def noise(fold):
                return stream(self.random_state, "noise", digest, words, fold)

        inferred = self.kind == "binary" and self.classes is None
        fit = tuned_fit(settings, data, noise, others=("pooled-schema",) if inferred else ())
        self._tell(settings, fit.statement)
        self.settings_ = fit.chosen.as_row()
        self.idle_ = fit.problem.datafit.idle
        return self._keep(fit.W, data)

    def fit_partitions(self, partitions, engine=None):
        """`fit` on the Parquet files of a folder, which are read chunk by chunk and never whole.

        For methods that have nothing to choose, such as fl.

        Parameters
        ----------
        partitions : mpmtl.data.Partitions
            With the learner's kind.
        engine : optional
            Where chunks are worked on (`mpmtl.chunks`); default one after another, here. For
            processes or a cluster: ``with Local().chunks(n_jobs=2) as engine``, or
            ``Dask(address).chunks(None)``, of `mpmtl.experiments.parallel`. The numbers are the
            same.
        """
        require(
            partitions.kind == self.kind,
            f"the partitions are {partitions.kind} and the learner {self.kind}: give both one kind",
        )
        require(
            not _whole(self.random_state),
            f"random_state = {shown(self.random_state)}: whole numbers name noise by all the data, "
            "which are never here; give a generator, np.random.default_rng(...)",
        )
        noise = _generator(self.random_state)
        settings, _ = self._settings()
        method = settings.method
        require(
            method.by_chunks and not method.uses_start and method.n_candidates() == 1,
            f"method = {shown(self.method)} needs all rows at once: use fl or fl_local",
        )
        scan = partitions.scanned()
        self.tasks_ = scan[0]
        self.feature_names_in_ = np.array(partitions.features, dtype=object)
        if self.kind == "binary":
            self.classes_ = np.array([-1, 1])
        prepare = clone_for_chunks(self)
        arguments = method.loss_average, method.public_constants
        datafit = partitions.loss(prepare, scan, engine or Serial(), *arguments)
        m, (candidate,) = len(self.tasks_), method.candidates(NOMINAL)
        budget = settings.budget(m)
        ((_, W),) = method.fit(datafit, None, [candidate], budget, noise("refit"))
        statement = settings.stated(method.statement(candidate, budget, datafit))
        self._tell(settings, statement.for_tasks(m))
        self.settings_ = candidate.as_row()
        vars(self).pop("idle_", None)  # that is known where the chunks are
        one = MultiTaskData.checked([np.zeros((1, len(partitions.features)))], [[0.0]])
        return self._keep(W[0], prepare(replace(one, kind=self.kind)))

    def _tell(self, settings, statement):
        """Keep the guarantee of the fit, and issue its caveats as warnings."""
        self.privacy_ = statement
        outside = chosen_outside(settings.method, settings.tuning)
        block = self.privacy_.as_dict() | {"outside_budget": outside, "n_tasks": len(self.tasks_)}
        self.caveats_ = {code: caveat_text(code, block) for code in self.privacy_.caveats}
        warn_caveats(self.privacy_.caveats)


class MultiTaskRegressor(Learner, Regression):
    r"""Linear models of m tasks by any method of `mpmtl-run`, under the same names and defaults.

    Every key of the command line's groups `method`, `privacy` and `tuning` is a setting here, with
    two underscores for a dot: ``method.grid.lam=[0.1,1]`` is ``method__grid__lam=[0.1, 1]``. What
    is not given is as in ``conf/``; but for the method, `fl`, whose guarantee is proved for
    all that a fit does, and the noise, which is ``privacy__noise="secure"`` wherever the mechanism
    can be sampled exactly. The unit is a task; neighbours replace one task; the guarantee is for
    one fit.

    Parameters
    ----------
    method : str
        A choice of ``method=``, such as fl, fl_local, lr, gs, mr_mtl, fedrep, stl, mtl_lr.
    epsilon : float
    delta : float or "auto"
        "auto" is 1/(m log m).
    privacy : str, optional
        A choice of ``privacy=``, such as gaussian, wishart, none; default the method's own.
    tuning : str
        A choice of ``tuning=``. All but "fixed" choose by cross-validation over all tasks, which
        no budget covers (caveat `tuning-not-charged`), where a method has something to choose.
    task : str, optional
        Column of X that names the task, where `fit` and `predict` are given none.
    intercept : bool
        Give every task an intercept.
    norm : float, optional
        Public bound on rows: longer ones are shortened to it, here and in `predict`. Choose it
        without looking at the data; ``method__eta="public"`` needs it.
    n_public : (least, most), optional
        Public number of rows of a task.
    target_range : (low, high), optional
        Public range of the targets, mapped to [-1, 1]; targets outside are clipped. Without, bring
        targets near zero by constants that are public.
    random_state : int, Generator or RandomState, optional
        Of the folds (default 0) and of noise, which then must be ``privacy__noise="seeded"``.
    config_dir : path, optional
        Folder of configs of your own, as ``--config-dir`` of the command line: its choices are
        those of `method`, `privacy` and `tuning` too. Their modules must be importable.
    **settings
        ``method__...``, ``privacy__...``, ``tuning__...``.

    Attributes
    ----------
    coef_ : ndarray, shape (m, d)
        Slopes, in units of the target per unit of the feature.
    intercept_ : ndarray, shape (m,)
    tasks_ : ndarray, shape (m,)
        Labels of the tasks in that order; 1 to m for lists.
    privacy_ : PrivacyStatement
        What is claimed, what is proved, and the codes of the caveats; `fit` issues these as
        `PrivacyCaveat` warnings too.
    caveats_ : dict of str to str
        Text of each caveat, as on the card of a run.
    settings_ : dict
        The candidate that was fitted.
    idle_ : ndarray of bool, shape (m,)
        Tasks with nothing to learn from: no rows, or with a private method values that are no
        finite numbers, which stop nobody's fit. Each one's own affair; not there after
        `fit_partitions`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If X has names.
    """

    def __init__(
        self,
        method="fl",
        *,
        epsilon=1.0,
        delta="auto",
        privacy=None,
        tuning="standard",
        task=None,
        intercept=True,
        norm=None,
        n_public=None,
        target_range=None,
        random_state=None,
        config_dir=None,
        **settings,
    ):
        self._take(locals())


class MultiTaskClassifier(Learner, Classification):
    """Two classes by any method of `mpmtl-run`; settings and attributes are those of
    `MultiTaskRegressor`, but for

    Parameters
    ----------
    classes : (negative, positive), optional
        Public labels. Without, the two that occur in y, the last one in order positive; if the
        method is private that is a choice from all tasks' data (caveat `pooled-schema`). A task
        with another label than the public ones cannot be used by a private method.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)
        The second one is positive.
    """

    def __init__(
        self,
        method="fl",
        *,
        epsilon=1.0,
        delta="auto",
        privacy=None,
        tuning="standard",
        task=None,
        intercept=True,
        norm=None,
        n_public=None,
        classes=None,
        random_state=None,
        config_dir=None,
        **settings,
    ):
        self._take(locals())


def clone_for_chunks(learner):
    """``prepare(data)`` of a learner's settings, without what it has learned."""
    return type(learner)(**learner.get_params())._prepared


def _group_of(key):
    """The group that a setting like ``method__eta`` belongs to, or None."""
    group, mark, rest = key.partition("__")
    return group if mark and rest and group in GROUPS else None


def choices(group, own=None):
    """Names that a group of configs has, those of a folder of one's own too, sorted."""
    folders = [conf_dir(), *([own] if own else [])]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def _own_configs(config_dir):
    """The folder of a user's own configs as a whole path, checked; None without."""
    if config_dir is None:
        return None
    ok = isinstance(config_dir, str | Path) and Path(config_dir).is_dir()
    require(ok, f"config_dir = {shown(config_dir)}: there is no such folder")
    return Path(config_dir).resolve()


def _choice(learner, group, own):
    """The name that is chosen in a group, checked; None for the method's own privacy."""
    name = getattr(learner, group)
    if name is None and group == "privacy":
        return None
    known = choices(group, own)
    require(isinstance(name, str), f"{group} = {shown(name)}: give a name, {', '.join(known)}")
    if name not in known:
        hint = "" if own else " Those of your own: config_dir='...'"
        raise InputError(unknown_choice(group, name, known) + hint)
    return name


def _compose(names, own=None):
    """The config of these choices, as the command line composes it with ``--config-dir own``."""
    pairs = zip(GROUPS, names, strict=True)
    words = [f"{group}={name}" for group, name in pairs if name is not None]
    words += [f"hydra.searchpath=[{json.dumps(own.as_uri())}]"] if own else []
    with _composing:
        register_schema()
        with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
            return compose("config", words)


def _groups(names, values, own=None):
    """The settings of these choices by group, with values of a learner's own, as JSON."""
    cfg = deepcopy(_composed(names)) if own is None else _compose(names, own)
    for key, value in json.loads(values).items():
        _put(cfg, key.split("__"), value)
    try:
        return {group: OmegaConf.to_container(cfg[group], resolve=True) for group in GROUPS}
    except OmegaConfBaseException as error:
        raise InputError(one_line(error)) from error


#: The same without a folder of one's own, kept; not to be changed.
_composed = lru_cache(maxsize=256)(_compose)
_known = lru_cache(maxsize=256)(_groups)


def _put(cfg, path, value):
    """Change one setting of a composed config."""
    where = cfg
    for key in path[:-1]:
        where = where[key] if OmegaConf.is_dict(where) and key in where else None
    if not (OmegaConf.is_dict(where) and path[-1] in where):
        group, *rest = path
        name = cfg.method.get("name") if group == "method" else cfg[group].get("_target_", group)
        own = [key for key in (where if OmegaConf.is_dict(where) else cfg[group]) if key[0] != "_"]
        name = str(name).rpartition(".")[-1]
        raise InputError(
            f"{'__'.join(path)}: {group} {name} has no setting {'__'.join(rest)}; it has "
            f"{', '.join(own)}"
        )
    key, inside = "__".join(path), where[path[-1]]
    require(
        not OmegaConf.is_dict(inside),
        f"{key} = {shown(value)}: it holds settings, so give them, such as "
        f"{key}__{next(iter(inside), '') if OmegaConf.is_dict(inside) else ''}=...",
    )
    where[path[-1]] = value


def _plain(key, value):
    """A value as a config can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(key, one) for one in list(value)]
    ok = value is None or isinstance(value, bool | int | float | str)
    far = isinstance(value, int) and abs(value) > 2**63
    require(
        ok and not far and not (isinstance(value, str) and "${" in value),
        f"{key} = {shown(value)}: give a number, a word, True, False, None, or a list of these",
    )
    return value


def _in_python(error):
    """The same sentence with Python's names of settings."""
    keys = rf"\b(?:{'|'.join(GROUPS)})(?:\.\w+)+"
    return re.sub(keys, lambda key: key[0].replace(".", "__"), str(error))


def _whole(value):
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0


def _same(one, other):
    """Whether a setting has its default; an array never has."""
    return one is other or (type(one) is type(other) and np.ndim(one) == 0 and one == other)


def _generator(seed):
    """Of a generator or RandomState, a seed, or None for fresh randomness: ``noise(fold)``."""
    if isinstance(seed, np.random.RandomState):
        seed = seed.randint(2**31, size=4)
    elif not isinstance(seed, np.random.Generator):
        require(
            seed is None or _whole(seed),
            f"random_state = {shown(seed)}: give a whole number of at least 0, or a generator",
        )
    generator = np.random.default_rng(seed)
    return lambda fold: generator
