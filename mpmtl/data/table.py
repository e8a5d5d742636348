"""A user's own table: a row for each sample, a column that names its task."""

import hashlib
import re
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.data.real import RealData
from mpmtl.data.tasks import MultiTaskData, unit_rows
from mpmtl.errors import InputError, require


@dataclass(frozen=True)
class Column:
    """How a column of a table becomes features.

    Attributes
    ----------
    name : str
    levels : tuple of str or None
        Of a categorical column: a feature for each, 1 or 0; other values and gaps are 0 in all.
    center, scale : float
        Of a numeric column: (x - center)/scale.
    limit : float or None
        Values beyond +-limit, after scaling, are clipped.
    indicator : bool
        A second feature that is 1 where the value is missing.
    """

    name: str
    levels: tuple | None = None
    center: float = 0.0
    scale: float = 1.0
    limit: float | None = None
    indicator: bool = False

    @property
    def features(self):
        """Names of the features that come from the column."""
        if self.levels is not None:
            return [f"{self.name}={level}" for level in self.levels]
        return [self.name] + ([f"{self.name} missing"] if self.indicator else [])

    def encode(self, values):
        """Features of a series, shape (n, k); a missing number stays nan."""
        if self.levels is not None:
            words = _words(values).to_numpy()
            return (words[:, None] == np.array(self.levels, dtype=object)).astype(float)
        numbers = (values.to_numpy(dtype=float, na_value=np.nan) - self.center) / self.scale
        if self.limit is not None:
            numbers = np.clip(numbers, -self.limit, self.limit)
        parts = [numbers] + ([np.isnan(numbers).astype(float)] if self.indicator else [])
        return np.stack(parts, axis=1)


@dataclass(frozen=True)
class Encoder:
    """From the columns of a table to the rows of X, the same for every task.

    Attributes
    ----------
    columns : tuple of Column
    bias : bool
        A last feature that is always 1.
    rows : {"unit", "clip", "none"}
        Rows of length 1, rows of length at most `norm`, or rows as they are.
    norm : float
    """

    columns: tuple
    bias: bool = True
    rows: str = "unit"
    norm: float = 1.0

    @property
    def features(self):
        """Names of all features, in the order of the columns of X."""
        names = [name for column in self.columns for name in column.features]
        return names + (["(bias)"] if self.bias else [])

    def encode(self, frame):
        """Features before gaps are filled, shape (n, d)."""
        parts = [column.encode(frame[column.name]) for column in self.columns]
        if self.bias:
            parts.append(np.ones((len(frame), 1)))
        return np.hstack(parts)

    def finish(self, X, fill):
        """Put the task's own `fill` (shape (d,)) where a value is missing, and scale the rows."""
        X = np.where(np.isnan(X), fill, X)
        if self.rows == "unit":
            return unit_rows(X)
        if self.rows == "clip":
            norms = np.sqrt((X**2).sum(axis=1, keepdims=True))
            return X / np.maximum(1, norms / self.norm)
        return X

    def as_dict(self):
        """Everything as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content):
        """The encoder of `as_dict`; TypeError or KeyError for anything else."""
        columns = tuple(
            Column(**(c | {"levels": None if c["levels"] is None else tuple(c["levels"])}))
            for c in content["columns"]
        )
        return cls(**(content | {"columns": columns}))


def _words(values):
    """Values as text; whole numbers without ".0", gaps stay missing."""
    if pd.api.types.is_float_dtype(values):
        known = values.dropna()
        if (known.abs() < 2**53).all() and (known % 1 == 0).all():
            values = values.astype("Int64")
    return values.astype(str).where(values.notna(), None)


def task_words(values):
    """Names of the tasks in a column, as text; a gap is empty text."""
    return _words(values).fillna("").to_numpy().astype(str)


def read_table(path):
    """A CSV (also compressed, or tab-separated as .tsv) or Parquet file as a data frame."""
    path = Path(path)
    require(path.is_file(), f"path = {path}: there is no such file")
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            tabs = ".tsv" in path.suffixes
            frame = pd.read_csv(path, sep="\t" if tabs else ",", low_memory=False)
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from error
    except (OSError, EOFError, ValueError, UnicodeError) as error:  # pandas' are ValueErrors
        text = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as a table: {text[:200]}") from error
    frame.columns = [" ".join(str(name).split()) for name in frame.columns]
    repeated = frame.columns[frame.columns.duplicated()]
    require(len(repeated) == 0, f"{path}: column {', '.join(repeated)} appears more than once")
    require(len(frame) > 0, f"{path} has no rows")
    return frame


def require_column(frame, name, key):
    """Refuse a name, given as the setting `key`, that is no column; say which ones are near."""
    near = get_close_matches(str(name), list(frame.columns), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(frame.columns)}"
    require(name in frame.columns, f"{key} = {name}: the table has no such column; {hint}")


@dataclass(frozen=True)
class Table(RealData):
    """A table of your own; each replicate is a random split of every task.

    A gap in a numeric column gets the mean of the task's own training rows. Targets are numbers
    around the mean of the task's own training targets (`center`), an intercept that is not
    penalised and costs no budget. What is not declared
    (ranges, levels, indicators, kind) is read off the rows of all tasks: caveat `pooled-schema`.

    Parameters
    ----------
    path : str
        CSV or Parquet file.
    task, target : str
        Columns.
    features : list of str, optional
        Columns; default all but task and target.
    drop : list of str
        Columns left out.
    ranges : dict of str to [low, high], optional
        Public ranges of numeric columns, mapped to [-1, 1] and clipped there.
    levels : dict of str to list, optional
        Public levels of categorical columns.
    indicators : list of str or "auto"
        Numeric columns with an indicator of missing values.
    kind : {"auto", "regression", "binary"}
    positive : optional
        The class that counts as 1.
    target_range : [low, high], optional
        Public range; targets outside are clipped.
    center : bool
        Subtract each task's own mean target (regression).
    rows : {"unit", "clip"}
    norm : float
        Longest row, for ``rows="clip"``.
    bias : bool
        Add a feature that is always 1.
    min_rows : int
        Tasks with fewer rows are left out.
    """

    path: str = ""
    task: str = ""
    target: str = ""
    features: list | None = None
    drop: list = field(default_factory=list)
    ranges: dict | None = None
    levels: dict | None = None
    indicators: object = "auto"
    kind: str = "auto"
    positive: object = None
    target_range: list | None = None
    center: bool = True
    rows: str = "unit"
    norm: float = 1.0
    bias: bool = True
    min_rows: int = 1
    train_fraction: float = 0.7

    def __post_init__(self):
        super().__post_init__()
        for key in ("ranges", "levels"):
            object.__setattr__(self, key, {} if getattr(self, key) is None else getattr(self, key))
        for key, kind in (("features", list), ("drop", list), ("ranges", dict), ("levels", dict)):
            value = getattr(self, key)
            ok = isinstance(value, kind) or (key == "features" and value is None)
            shape = "[a, b]" if kind is list else "{column: [...]}"
            require(ok, f"{key} = {value}: write it as {shape}")
        require(
            self.indicators == "auto" or isinstance(self.indicators, list),
            f"indicators = {self.indicators}: use auto or a list of columns",
        )
        require(
            self.kind in ("auto", "regression", "binary"),
            f"kind = {self.kind}: use auto, regression or binary",
        )
        require(self.rows in ("unit", "clip"), f"rows = {self.rows}: use unit or clip")
        require(0 < self.norm < np.inf, f"norm = {self.norm} must be finite and above 0")
        require(self.min_rows >= 1, f"min_rows = {self.min_rows} must be at least 1")
        named = {f"ranges.{k}": v for k, v in self.ranges.items()}
        if self.target_range is not None:
            named["target_range"] = self.target_range
        for key, pair in named.items():
            require(_is_range(pair), f"{key} = {pair}: give it as [low, high] with low < high")
        for key, levels in self.levels.items():
            require(
                isinstance(levels, list) and len(levels) >= 2,
                f"levels.{key} = {levels}: give a list of at least two levels",
            )

    @property
    def name(self):
        """The file's name without its endings, for the results folder."""
        return re.sub(r"[^\w-]+", "_", Path(self.path).name.split(".")[0]) or "table"

    @cached_property
    def digest(self):
        """SHA-256 of the file, so that results of another version of it are not mixed."""
        require(Path(self.path).is_file(), f"path = {self.path}: there is no such file")
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    @cached_property
    def _prepared(self):
        """Encoded rows of every task with gaps as nan, the encoder, notes, what was pooled."""
        frame, notes, pooled = read_table(self.path), [], []
        frame = self._rows_in_use(frame, notes)
        kind, y = self._targets(frame, notes, pooled)
        encoder = Encoder(self._columns(frame, pooled), self.bias, self.rows, self.norm)
        X, names = encoder.encode(frame), task_words(frame[self.task])
        order = np.argsort(names, kind="stable")
        tasks, starts = np.unique(names[order], return_index=True)
        rows = np.split(order, starts[1:])
        one_class = [kind == "binary" and len(np.unique(y[r])) < 2 for r in rows]
        small = [len(r) < self.min_rows for r in rows]
        for gone, why in (
            (small, f"have fewer than {self.min_rows} rows (min_rows)"),
            (one_class, "have one class only"),
        ):
            if any(gone):
                notes.append(f"{sum(gone)} of {len(rows)} tasks left out: they {why}")
        usable = [k for k in range(len(rows)) if not (one_class[k] or small[k])]
        require(len(usable) > 0, f"{self.path}: no task is left ({'; '.join(notes)})")
        data = MultiTaskData(
            X=tuple(X[rows[k]] for k in usable),
            y=tuple(y[rows[k]] for k in usable),
            kind=kind,
            task_names=tuple(tasks[usable].tolist()),
            feature_names=tuple(encoder.features),
            bias="(bias)" if self.bias else None,
        )
        require(
            max(data.n_samples) >= 2,
            f"{self.path}: every task has one row only; is task = {self.task} right?",
        )
        return data, encoder, tuple(notes), tuple(pooled)

    def _rows_in_use(self, frame, notes):
        require_column(frame, self.task, "task")
        require_column(frame, self.target, "target")
        require(self.task != self.target, f"task and target are both {self.task}")
        empty = int(frame[self.task].isna().sum())
        require(empty == 0, f"column {self.task} names no task in {empty} rows: fill or drop them")
        without = frame[self.target].isna()
        if without.any():
            notes.append(f"{int(without.sum())} of {len(frame)} rows left out: no {self.target}")
        require(not without.all(), f"column {self.target} is empty in every row")
        return frame[~without]

    def _targets(self, frame, notes, pooled):
        """Kind, and y: numbers, or -1 and 1."""
        values = frame[self.target]
        classes = sorted(_words(values).unique())
        kind = self.kind
        if kind == "auto":
            kind = "binary" if len(classes) == 2 else "regression"
            pooled.append("the kind of target (kind)")
        if kind == "binary":
            require(
                len(classes) == 2,
                f"target = {self.target} has {len(classes)} values "
                f"({', '.join(classes[:4])}...), not two classes",
            )
            positive = classes[-1] if self.positive is None else str(self.positive)
            require(
                positive in classes,
                f"positive = {self.positive}: {self.target} is {' or '.join(classes)}",
            )
            notes.append(f"binary target: {self.target} = {positive} counts as 1")
            return kind, np.where(_words(values) == positive, 1.0, -1.0)
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=float)
        bad = ~np.isfinite(numbers)
        require(
            not bad.any(),
            f"target = {self.target} is not a finite number in {int(bad.sum())} rows, "
            f"for example {values[bad].iloc[0] if bad.any() else ''!r}",
        )
        if self.target_range is not None:
            clipped = np.clip(numbers, *self.target_range)
            if (clipped != numbers).any():
                notes.append(
                    f"{int((clipped != numbers).sum())} targets clipped to "
                    f"target_range = {list(self.target_range)}"
                )
            numbers = clipped
        return kind, numbers

    def _columns(self, frame, pooled):
        names = self.features
        if names is None:
            names = [c for c in frame.columns if c not in (self.task, self.target)]
        for key, listed in (
            ("features", names),
            ("drop", self.drop),
            ("ranges", self.ranges),
            ("levels", self.levels),
            ("indicators", [] if self.indicators == "auto" else self.indicators),
        ):
            for name in listed:
                require_column(frame, name, key)
        names = [name for name in names if name not in self.drop]
        for name in (self.task, self.target):
            require(name not in names, f"features holds {name}, the task or the target")
        require(len(names) > 0, "no feature is left: features and drop leave none")
        return tuple(self._column(name, frame[name], pooled) for name in names)

    def _column(self, name, values, pooled):
        numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        if name in self.levels:
            return Column(name, levels=tuple(str(level) for level in self.levels[name]))
        if not numeric:
            require(
                name not in self.ranges,
                f"ranges.{name} = {self.ranges.get(name)}: the column is not numeric, for example "
                f"{values.dropna().iloc[0] if values.notna().any() else 'empty'!r}",
            )
            levels = tuple(sorted(_words(values).dropna().unique()))
            require(
                len(levels) >= 2,
                f"column {name} has {len(levels)} level: add it to drop",
            )
            require(
                len(levels) <= 100,
                f"column {name} has {len(levels)} levels: add it to drop, or declare levels.{name}",
            )
            pooled.append(f"the levels of {name} (levels)")
            return Column(name, levels=levels)
        numbers = values.to_numpy(dtype=float, na_value=np.nan)
        seen = numbers[~np.isnan(numbers)]
        require(
            np.isfinite(seen).all(),
            f"column {name} is infinite in {int(np.isinf(seen).sum())} rows: fill or drop them",
        )
        require(
            len(seen) > 0 and seen.min() < seen.max(),
            f"column {name} is {f'always {seen[0]:g}' if len(seen) else 'empty'}: add it to drop",
        )
        if self.indicators == "auto":
            indicator = len(seen) < len(numbers)
            if indicator:
                pooled.append(f"that {name} has gaps (indicators)")
        else:
            indicator = name in self.indicators
        if name in self.ranges:
            low, high = self.ranges[name]
            center, scale, limit = (low + high) / 2, (high - low) / 2, 1.0
        else:
            size = float(np.abs(seen).max())
            center, scale, limit = size * (seen / size).mean(), size * (seen / size).std(), None
            require(scale > 0, f"column {name} hardly varies about {center:g}: declare its range")
            pooled.append(f"mean and sd of {name} (ranges)")
        return Column(name, None, float(center), float(scale), limit, indicator)

    @property
    def notes(self):
        """What a user should know of how the table was read."""
        _, _, notes, pooled = self._prepared
        if pooled:
            notes = (*notes, f"read off all tasks' rows, not declared: {'; '.join(pooled)}")
        return notes

    @property
    def caveats(self):
        """Codes of the limits of a privacy statement that come from reading the table."""
        return ("pooled-schema",) if self._prepared[3] else ()

    def load(self, data_dir):
        return self._prepared[0]

    def draw(self, data_dir, seed, replicate):
        train, test = super().draw(data_dir, seed, replicate)
        encoder, recipes = self._prepared[1], []
        for X, y in zip(train.X, train.y, strict=True):
            known = ~np.isnan(X)
            fill = np.where(known, X, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
            offset = float(y.mean()) if self.center and train.kind == "regression" else 0.0
            recipes.append({"encoder": encoder.as_dict(), "fill": fill.tolist(), "offset": offset})

        def finished(part):
            return replace(
                part,
                X=tuple(encoder.finish(X, r["fill"]) for X, r in zip(part.X, recipes, strict=True)),
                y=tuple(y - r["offset"] for y, r in zip(part.y, recipes, strict=True)),
                recipes=tuple(recipes),
            )

        return finished(train), finished(test)


def _is_range(pair):
    try:
        low, high = (float(value) for value in pair)
    except (TypeError, ValueError):
        return False
    return bool(np.isfinite([low, high]).all()) and low < high
