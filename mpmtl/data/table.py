"""A user's own table: a row for each sample, a column that names its task."""

import hashlib
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from mpmtl.data.encoding import Column, Encoder
from mpmtl.data.reading import (
    MISSING,
    Format,
    column_name,
    parsed,
    read_table,
    require_column,
    some,
    unreadable,
)
from mpmtl.data.real import RealData
from mpmtl.data.schema import is_numeric, levels_of, read_schema
from mpmtl.data.tasks import MultiTaskData, units_of
from mpmtl.errors import require
from mpmtl.privacy.quantiles import enough, noisy_scale
from mpmtl.streams import stream


@dataclass(frozen=True)
class Table(RealData):
    """A table of your own; each replicate is a random split of every task.

    Every value is read by itself, as declared: names of tasks, levels and classes are the text that
    stands in the file, numbers are numbers. A gap in a numeric column gets the mean of the task's
    own training rows. Every task has an intercept, the weight of a last feature that is 1. Numbers
    and targets are scaled by their public range, or by the mean and sd over all tasks. What is
    not declared (ranges, levels, indicators, kind) is read off the rows of all tasks: caveat
    `pooled-schema`.

    Every task stays, whatever its rows are: one row, one class or none at all. The error is that of
    all tasks' test rows together (`metrics.nmse_own_mean`), or the average AUC.

    Parameters
    ----------
    path : str
        CSV or Parquet file.
    schema : str, optional
        YAML file that declares the columns (`data.schema`), and settings that are not given here.
    task, target : str
        Columns.
    tasks : list of str, optional
        Public names of the tasks; default those in the table.
    features : list of str, optional
        Columns; default all but task and target.
    drop : list of str
        Columns left out.
    numbers : list of str
        Columns that hold numbers, where there is no public range.
    ranges : dict of str to [low, high], optional
        Public ranges of numeric columns, mapped to [-1, 1] and clipped there.
    levels : dict of str to list, optional
        Public levels of categorical columns.
    indicators : list of str or "auto"
        Numeric columns with an indicator of missing values.
    missing : list of str
        What stands for a gap, beside an empty field.
    kind : {"auto", "regression", "binary"}
    positive : optional
        The class that counts as 1.
    target_range : [low, high], optional
        Public range, mapped to [-1, 1]; targets outside are clipped.
    rows : {"clip", "unit"}
    norm : float, optional
        Longest row, for ``rows="clip"``; default 3 sqrt(d), which leaves most rows alone.
    intercept : bool
        Give every task an intercept.
    schema_epsilon : float, optional
        Part of the run's epsilon that buys, in each replicate from its training rows, where the
        values of numeric columns (and targets) without a public range lie, instead of reading means
        and sds off all tasks' rows. Levels and kinds are not bought: declare them.
    n_public : [least, most], optional
        Public bounds on the number of training rows of a task.
    strict : bool
        Refuse numbers that cannot be read and declarations that do not fit the table. Without,
        such numbers are gaps, and nothing that is in a row stops the run.
    separator, decimal, encoding : str
        How the file is written, see `data.reading.Format`.
    train_fraction : float
        1 trains on all rows, without a test part: one fit, whose models are saved.
    """

    path: str = ""
    schema: str | None = None
    task: str | None = None
    target: str | None = None
    tasks: list | None = None
    features: list | None = None
    drop: list = field(default_factory=list)
    numbers: list = field(default_factory=list)
    ranges: dict | None = None
    levels: dict | None = None
    indicators: object = "auto"
    missing: list = field(default_factory=lambda: list(MISSING))
    kind: str = "auto"
    positive: object = None
    target_range: list | None = None
    rows: str = "clip"
    norm: float | None = None
    intercept: bool = True
    schema_epsilon: float | None = None
    n_public: list | None = None
    strict: bool = True
    separator: str | None = None
    decimal: str = "point"
    encoding: str = "utf-8"
    train_fraction: float = 0.7

    def __post_init__(self):
        if self.train_fraction != 1:
            super().__post_init__()
        for key in ("ranges", "levels"):
            self._set(key, {} if getattr(self, key) is None else getattr(self, key))
        if self.schema is not None:
            self._take(read_schema(self.schema))
        self._check_shapes()
        for key in ("drop", "numbers", "features", "indicators"):
            if isinstance(getattr(self, key), list):
                self._set(key, [column_name(name) for name in getattr(self, key)])
        for key in ("ranges", "levels"):
            self._set(key, {column_name(k): v for k, v in getattr(self, key).items()})
        for key in ("task", "target"):
            name = getattr(self, key)
            require(
                name is not None,
                f"{key} has no value: give the name of a column, here or in a schema",
            )
            self._set(key, column_name(name))
        self._check_values()

    def _set(self, key, value):
        object.__setattr__(self, key, value)

    def _take(self, declared):
        """Take over what a schema declares; what is given beside it goes first."""
        default = {f.name: f.default for f in fields(self)} | {"missing": list(MISSING)}
        for key in ("features", "drop", "numbers", "ranges", "levels", "indicators"):
            require(
                getattr(self, key) in ([], {}, None, "auto", declared.get(key)),
                f"{key} is given beside schema = {self.schema}: declare columns in that file only",
            )
        for key, value in declared.items():
            if getattr(self, key) == default[key] or key in ("numbers", "ranges", "levels"):
                self._set(key, value)

    def _check_shapes(self):
        shapes = {"drop": list, "numbers": list, "missing": list, "ranges": dict, "levels": dict}
        shapes |= {
            key: list for key in ("features", "tasks", "n_public") if getattr(self, key) is not None
        }
        for key, kind in shapes.items():
            shape = "[a, b]" if kind is list else "{column: [...]}"
            value = getattr(self, key)
            require(isinstance(value, kind), f"{key} = {value}: write it as {shape}")
        require(
            self.indicators == "auto" or isinstance(self.indicators, list),
            f"indicators = {self.indicators}: use auto or a list of columns",
        )

    def _check_values(self):
        require(
            self.kind in ("auto", "regression", "binary"),
            f"kind = {self.kind}: use auto, regression or binary",
        )
        require(self.rows in ("unit", "clip"), f"rows = {self.rows}: use unit or clip")
        ok = self.schema_epsilon is None or 0 < self.schema_epsilon < np.inf
        require(ok, f"schema_epsilon = {self.schema_epsilon} must be finite and above 0")
        ok = self.norm is None or 0 < self.norm < np.inf
        require(ok, f"norm = {self.norm} must be finite and above 0")
        named = {f"ranges.{k}": v for k, v in self.ranges.items()}
        if self.target_range is not None:
            named["target_range"] = self.target_range
        for key, pair in named.items():
            require(_is_range(pair), f"{key} = {pair}: give it as [low, high] with low < high")
        for key, levels in self.levels.items():
            require(
                isinstance(levels, list) and len(set(map(str, levels))) >= 2,
                f"levels.{key} = {levels}: give a list of at least two levels",
            )
            require(
                key not in self.ranges and key not in self.numbers,
                f"column {key} is declared twice: as levels and as numbers",
            )
        if self.n_public is not None:
            ok = all(isinstance(n, int | float) and float(n).is_integer() for n in self.n_public)
            ok = ok and len(self.n_public) == 2 and 1 <= self.n_public[0] <= self.n_public[1]
            require(ok, f"n_public = {self.n_public}: give it as [least, most], whole numbers")
        if self.tasks is not None:
            names = [str(name) for name in self.tasks]
            require(len(set(names)) == len(names) > 0, "tasks is empty or names a task twice")
            self._set("tasks", names)
        self.format  # noqa: B018  (checks separator, decimal and encoding)

    @property
    def format(self):
        """How the file is written."""
        return Format(self.separator, self.decimal, self.encoding, tuple(self.missing))

    @property
    def name(self):
        """The file's name without its endings, for the results folder."""
        return re.sub(r"[^\w-]+", "_", Path(self.path).name.split(".")[0]) or "table"

    @cached_property
    def digest(self):
        """SHA-256 of the file and its schema, so that results of other versions are not mixed."""
        require(Path(self.path).is_file(), f"path = {self.path}: there is no such file")
        digest = hashlib.sha256(Path(self.path).read_bytes())
        if self.schema is not None:
            digest.update(Path(self.schema).read_bytes())
        return digest.hexdigest()

    @cached_property
    def _prepared(self):
        """Rows of every task with gaps as nan, encoder, recipe, notes, what was pooled."""
        notes, pooled = [], []
        table = self._read()
        frame = self._rows_in_use(table, notes)
        kind, positive, y = self._targets(frame, notes, pooled)
        frame, y = frame[~np.isnan(y)], y[~np.isnan(y)]
        self._check_rows(frame, notes)
        if len(frame) < len(table):
            notes.insert(0, f"{len(frame)} of {len(table)} rows are used")
        encoder = Encoder(self._columns(frame, notes, pooled), self.rows, self.norm)
        X, rows = encoder.encode(frame, self.format, self.strict), frame.groupby(self.task).indices
        tasks = self.tasks or sorted(set(table[self.task]) - {""})
        rows = [rows.get(task, np.zeros(0, dtype=int)) for task in tasks]
        data = MultiTaskData(
            X=tuple(X[r] for r in rows),
            y=tuple(y[r] for r in rows),
            kind=kind,
            task_names=tuple(tasks),
            feature_names=tuple(encoder.features),
            pooled=kind == "regression",
            n_public=None if self.n_public is None else tuple(map(int, self.n_public)),
        )
        recipe = {
            "encoder": encoder.as_dict(),
            "format": {k: v for k, v in asdict(self.format).items() if k != "option"},
            "target": self.target,
            "positive": positive,
        }
        return data, encoder, recipe, (*self._task_notes(data), *notes), tuple(pooled)

    def _read(self):
        """The table as text."""
        return read_table(self.path, self.format).frame

    def _task_notes(self, data):
        return _task_notes(data, self.task)

    def _check_rows(self, frame, notes):
        """Refuse a table with nothing to learn from."""
        require(len(frame) > 0, f"{self.path}: no row is left: {'; '.join(notes)}")
        require(
            frame[self.task].duplicated().any(),
            f"{self.path}: every task has one row only; is task = {self.task} right?",
        )

    def _rows_in_use(self, frame, notes):
        """Rows that name a (declared) task and have a target."""
        require_column(frame, self.task, "task")
        require_column(frame, self.target, "target")
        require(self.task != self.target, f"task and target are both {self.task}")
        tasks, gaps = frame[self.task], self.format.gaps(frame[self.target])
        nameless = (tasks == "").to_numpy()
        require(
            not (self.strict and nameless.any()),
            f"column {self.task} names no task in {nameless.sum()} rows, such as row "
            f"{nameless.tolist().index(True) + 1 if nameless.any() else 0}: fill or drop them",
        )
        require(not gaps.all() or len(gaps) == 0, f"column {self.target} is empty in every row")
        used, foreign = np.ones(len(frame), dtype=bool), np.zeros(len(frame), dtype=bool)
        if self.tasks is not None:
            foreign = ~tasks.isin(self.tasks).to_numpy()
        for gone, why in (
            (nameless, f"no {self.task}"),
            (foreign, "a task that is not declared (tasks)"),
            (gaps, f"no {self.target}"),
        ):
            if (gone & used).any():
                notes.append(f"{(gone & used).sum()} of {len(frame)} rows left out: {why}")
            used &= ~gone
        return frame[used]

    def _targets(self, frame, notes, pooled):
        """Kind, the class that counts as 1, and y: numbers (nan: not to be read), or -1 and 1."""
        values, kind = frame[self.target], self.kind
        classes = sorted(values.unique())
        if kind == "auto":
            kind = "binary" if len(classes) == 2 else "regression"
            pooled.append("the kind of target (kind)")
        if kind == "binary":
            return kind, *self._classes(values, classes, notes, pooled)
        y, bad = parsed(values, self.format)
        if bad.any():
            require(not self.strict, self._line(values, bad))
            notes.append(f"{bad.sum()} rows left out: their {self.target} is no number")
        if self.target_range is None and self.schema_epsilon is None:
            pooled.append(f"mean and sd of {self.target} (target_range)")
        elif self.target_range is not None:
            y, before = np.clip(y, *self.target_range), y
            outside, known = int((y < before).sum() + (y > before).sum()), int((~bad).sum())
            self._fits("target_range", self.target_range, outside, before[~bad])
            notes.append(
                f"{outside} targets clipped to target_range = {list(self.target_range)}"
                if outside
                else f"target_range = {list(self.target_range)}: all {known} targets are inside"
            )
        return kind, None, y

    def _classes(self, values, classes, notes, pooled):
        """The class that counts as 1, and y."""
        require(
            len(classes) == 2 or (self.positive is not None and not self.strict),
            f"target = {self.target} has {len(classes)} values ({some(classes, 4)}), not two "
            "classes",
        )
        if self.positive is None:
            pooled.append("which class counts as 1 (positive)")
        positive = classes[-1] if self.positive is None else str(self.positive)
        require(
            positive in classes or not self.strict,
            f"positive = {self.positive}: {self.target} is {' or '.join(classes)}",
        )
        count = int((values == positive).sum())
        notes.append(
            f"binary target: {self.target} = {positive} counts as 1 ({count} of {len(values)} rows)"
        )
        return positive, np.where(values == positive, 1.0, -1.0)

    def _columns(self, frame, notes, pooled):
        """How each column becomes features."""
        names = self.features
        if names is None:
            names = [c for c in frame.columns if c not in (self.task, self.target)]
        for key, listed in (
            ("features", names),
            ("drop", self.drop),
            ("numbers", self.numbers),
            ("ranges", self.ranges),
            ("levels", self.levels),
            ("indicators", [] if self.indicators == "auto" else self.indicators),
        ):
            for name in listed:
                require_column(frame, name, key)
        names = [name for name in dict.fromkeys(names) if name not in self.drop]
        for name in (self.task, self.target):
            require(name not in names, f"features holds {name}, the task or the target")
        require(len(names) > 0, "no feature is left: features and drop leave none")
        gone = [c for c in frame.columns if c not in (self.task, self.target, *names)]
        columns = tuple(self._column(name, frame[name], pooled) for name in names)
        notes[:0] = _feature_notes(columns, self.intercept)
        notes += [f"columns left out: {some(gone)}"] * (len(gone) > 0)
        notes += self._fit_notes(columns, frame)
        return columns

    def _column(self, name, values, pooled):
        if name in self.levels:
            levels = tuple(str(level) for level in self.levels[name])
            self._check_levels(name, levels, values)
            return Column(name, levels=levels)
        declared = name in self.ranges or name in self.numbers
        if not declared:
            what = "no name, as row numbers that were written along"
            if (values == "").all():
                what = "neither name nor values, as lines that end with a separator"
            require(
                re.fullmatch(r"Unnamed: \d+", name) is None or self.features is not None,
                f"column {name} has {what}: dataset.drop=['{name}']",
            )
            if not is_numeric(values, self.format):
                pooled.append(f"the levels of {name} (levels)")
                return Column(name, levels=tuple(levels_of(values, self.format)))
        numbers, bad = parsed(values, self.format)
        require(
            not (self.strict and bad.all() and name in self.ranges),
            f"ranges.{name} = {self.ranges.get(name)}: the column is not numeric, for example "
            f"{next(iter(values), None)!r}",
        )
        require(not (self.strict and bad.any()), self._line(values, bad))
        seen = numbers[~np.isnan(numbers)]
        if self.indicators == "auto":
            indicator = len(seen) < len(numbers)
            if indicator:
                pooled.append(f"that {name} has gaps (indicators)")
        else:
            indicator = name in self.indicators
        if name in self.ranges:
            low, high = self.ranges[name]
            outside = int(((seen < low) | (seen > high)).sum())
            self._fits(f"ranges.{name}", self.ranges[name], outside, seen)
            (center, scale), limit = units_of(low, high), 1.0
        elif self.schema_epsilon is not None:  # scaled when a replicate is drawn
            center, scale, limit = 0.0, 1.0, None
        else:
            require(
                len(seen) > 0 and seen.min() < seen.max(),
                f"column {name} is {f'always {seen[0]:g}' if len(seen) else 'empty'}: add it to "
                "drop",
            )
            size = float(np.abs(seen).max())
            center, scale, limit = size * (seen / size).mean(), size * (seen / size).std(), None
            require(scale > 0, f"column {name} hardly varies about {center:g}: declare its range")
            pooled.append(f"mean and sd of {name} (ranges)")
        return Column(name, None, float(center), float(scale), limit, indicator)

    def _line(self, values, bad):
        return unreadable(values, bad, self.format) if bad.any() else ""

    def _check_levels(self, name, levels, values):
        never = sorted(set(levels) - set(values))
        others = sorted(set(values[~self.format.gaps(values)]) - set(levels))
        others = f" and the column holds {some(map(repr, others))} instead" if others else ""
        require(
            not (self.strict and never),
            f"levels.{name}: {some(map(repr, never))} occurs in no row{others}: correct the levels "
            "(dataset.strict=false if that may be)",
        )

    def _fits(self, key, pair, outside, seen):
        """Refuse a declared range with most values outside."""
        span = f"{seen.min():g} to {seen.max():g}" if len(seen) else "the column is empty"
        require(
            not self.strict or outside * 2 <= len(seen) > 0,
            f"{key} = {list(pair)}: {outside} of {len(seen)} values are outside ({span}): correct "
            "the range (dataset.strict=false if that may be)",
        )

    def _fit_notes(self, columns, frame):
        """What is declared, and how many values do not fit it."""
        declared = [
            f"{what} of {some(names)}"
            for what, names in (("ranges", self.ranges), ("levels", self.levels))
            if names
        ]
        counts = {c.name: c.misfits(frame[c.name], self.format) for c in columns}
        notes = [f"declared: {', '.join(declared)}"] * (len(declared) > 0)
        for word, text in (
            ("unknown", "values that are none of the levels, 0 in all features"),
            ("out of range", "values out of range, clipped"),
            ("no number", "values that are no number, taken as gaps"),
            ("gaps", "gaps"),
        ):
            parts = [f"{name} {count[word]}" for name, count in counts.items() if count.get(word)]
            notes += [f"{text} (of {len(frame)} rows): {some(parts)}"] * (len(parts) > 0)
        if declared and not any(c.get("unknown") or c.get("out of range") for c in counts.values()):
            notes[0] += ": all values fit"
        return notes

    @property
    def notes(self):
        """What was understood of the table, and what a user should know of how it was read."""
        return (*self._prepared[3], *self.public_notes)

    @property
    def public_notes(self):
        """Those of them that count nothing in the rows."""
        pooled, notes = self._prepared[-1], ()
        if self.train_fraction == 1:
            notes = (
                "all rows train (train_fraction = 1): one fit, whose models are saved; there is no "
                "test score",
            )
        if self.schema_epsilon is not None:
            names, target = self._to_buy(self._prepared[1])
            names = [*names, self.target] if target else names
            notes = (*notes, f"bought with schema_epsilon = {self.schema_epsilon:g}: {some(names)}")
        if pooled:
            notes = (*notes, f"read off all tasks' rows, not declared: {'; '.join(pooled)}")
        return notes

    @property
    def caveats(self):
        """Codes of the limits of a privacy statement that come from reading the table."""
        return ("pooled-schema",) if self._prepared[-1] else ()

    def load(self, data_dir):
        return self._prepared[0]

    def draw(self, data_dir, seed, replicate):
        if self.train_fraction == 1:
            train = self.load(data_dir)
            test = train.take([np.zeros(0, dtype=int)] * train.n_tasks)
        else:
            train, test = super().draw(data_dir, seed, replicate)
        encoder, recipe = self._prepared[1:3]
        if train.n_public is not None:
            self._check_sizes(train.n_samples, *train.n_public)
        units = self._units(train)
        if self.schema_epsilon is not None:
            scales, units = self._bought(train, encoder, units, seed, replicate)
            encoder = encoder.scaled(scales)
            recipe = recipe | {"encoder": encoder.as_dict()}
            train, test = (_scaled(part, scales) for part in (train, test))
        recipes = tuple(recipe | {"fill": _fill(X)} for X in train.X)
        offset, scale = units

        def finished(part):
            data = replace(
                part,
                X=tuple(encoder.finish(X, r["fill"]) for X, r in zip(part.X, recipes, strict=True)),
                y=tuple((y - offset) / scale for y in part.y),
                recipes=recipes,
                row_norm=encoder.row_norm,
                units=units,
            )
            return data.with_intercept() if self.intercept else data

        return finished(train), finished(test)

    def _check_sizes(self, sizes, least, most):
        require(
            least <= sizes.min() and sizes.max() <= most,
            f"n_public = {[least, most]}: tasks have {sizes.min()} to {sizes.max()} training rows",
        )

    def _to_buy(self, encoder):
        """Numeric columns without a public range, and whether the target is one too."""
        names = [c.name for c in encoder.columns if c.levels is None and c.limit is None]
        target = self._prepared[0].kind == "regression" and self.target_range is None
        require(
            names or target,
            f"schema_epsilon = {self.schema_epsilon}: everything is declared, there is nothing to "
            "buy",
        )
        m, columns = self._prepared[0].n_tasks, len(names) + target
        least = math.ceil(100 * columns * enough(m)) / 100
        require(
            not self.strict or self.schema_epsilon >= least,
            f"schema_epsilon = {self.schema_epsilon}: to find the scales of {columns} columns from "
            f"{m} tasks takes at least {least:g}; declare ranges (target_range for the target) of "
            "some or all",
        )
        return names, target

    def _bought(self, train, encoder, units, seed, replicate):
        """Center and scale of columns, and target units; each costs an equal part of
        schema_epsilon."""
        names, target = self._to_buy(encoder)
        epsilon = self.schema_epsilon / (len(names) + target)
        noise = stream(seed, "schema", train.digest(), self.schema_epsilon, replicate)
        scales = {}
        for name in names:
            j = encoder.features.index(name)
            scales[name] = noisy_scale([X[:, j] for X in train.X], epsilon, noise)
        return scales, noisy_scale(train.y, epsilon, noise) if target else units

    def _units(self, train):
        """Offset and scale of the target: of its public range, or of all training targets."""
        if train.kind == "binary":
            return 0.0, 1.0
        if self.target_range is not None:
            return units_of(*self.target_range)
        y = np.concatenate(train.y)
        size = float(np.abs(y).max(initial=0.0)) or 1.0
        offset, scale = size * float((y / size).mean()), size * float((y / size).std())
        known = np.isfinite([offset, scale]).all()
        return (offset, scale or 1.0) if known else (0.0, 1.0)


def _scaled(data, scales):
    """Columns of X about a center, in units of a scale, {column: (center, scale)}."""
    units = np.array([scales.get(name, (0.0, 1.0)) for name in data.feature_names])
    return replace(data, X=tuple((X - units[:, 0]) / units[:, 1] for X in data.X))


def _fill(X):
    """What a task puts into gaps: the means of its own training rows."""
    known = ~np.isnan(X)
    with np.errstate(over="ignore", invalid="ignore"):
        fill = np.where(known, X, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(np.isfinite(fill), fill, 0.0).tolist()


def _task_notes(data, name):
    """How many tasks and rows there are, and of which tasks little can be learned."""
    sizes = data.n_samples
    notes = [
        f"{data.n_tasks} tasks ({name}) with {sizes.min()} / {np.median(sizes):g} / {sizes.max()} "
        f"rows (smallest / median / largest), {sizes.sum()} in all"
    ]
    alike = [len(y) > 1 and y.min() == y.max() for y in data.y]
    what = "one class only" if data.kind == "binary" else "a constant target"
    counts = [(int((sizes == 0).sum()), "no row"), (int((sizes == 1).sum()), "one row")]
    words = [f"{count} with {words}" for count, words in [*counts, (sum(alike), what)] if count]
    if words:
        notes.append(f"tasks that stay, with little or nothing to learn from: {', '.join(words)}")
    return notes


def _feature_notes(columns, intercept):
    """Features by kind."""
    numeric = [column.name for column in columns if column.levels is None]
    words = [f"{c.name}: {len(c.levels)}" for c in columns if c.levels is not None]
    count = sum(len(column.features) for column in columns)
    parts = [f"{len(numeric)} numbers ({some(numeric)})"] * (len(numeric) > 0)
    parts += [f"{len(words)} with levels ({some(words)})"] * (len(words) > 0)
    return [f"columns: {', '.join(parts)}; {count} features" + " and an intercept" * intercept]


def _is_range(pair):
    try:
        low, high = (float(value) for value in pair)
    except (TypeError, ValueError):
        return False
    return bool(np.isfinite([low, high]).all()) and low < high
