"""From the text of a table's columns to the rows of X, each value by itself."""

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from mpmtl.data.reading import Format, numbers, parsed
from mpmtl.privacy.clipping import bounded, directions

WIDE = 3.0  # longest row, in units of that of a row whose features are all one sd away


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

    def encode(self, values, form, strict=True):
        """Features of a series of text, shape (n, k); a missing number stays nan."""
        if self.levels is not None:
            levels = np.array(self.levels, dtype=object)
            return (values.to_numpy(dtype=object)[:, None] == levels).astype(float)
        scaled = (numbers(values, form, strict) - self.center) / self.scale
        if self.limit is not None:
            scaled = np.clip(scaled, -self.limit, self.limit)
        parts = [scaled] + ([np.isnan(scaled).astype(float)] if self.indicator else [])
        return np.stack(parts, axis=1)

    def misfits(self, values, form):
        """How many values are gaps, unknown levels, out of range, no number; by these words."""
        gaps = form.gaps(values)
        if self.levels is not None:
            known = values.isin(self.levels).to_numpy()
            return {"gaps": int((gaps & ~known).sum()), "unknown": int((~gaps & ~known).sum())}
        values, bad = parsed(values, form)
        counts = {"gaps": int(gaps.sum()), "no number": int(bad.sum())}
        if self.limit is not None:
            beyond = np.abs(values - self.center) > self.limit * self.scale * (1 + 1e-12)
            counts["out of range"] = int(beyond.sum())
        return counts


@dataclass(frozen=True)
class Encoder:
    """From the columns of a table to the rows of X, the same for every task.

    Attributes
    ----------
    columns : tuple of Column
    rows : {"clip", "unit", "none"}
        Rows of length at most `norm`, of length 1, or as they are.
    norm : float or None
        None: `WIDE` sqrt(d) for d features, which leaves most rows alone.
    """

    columns: tuple
    rows: str = "clip"
    norm: float | None = None

    @property
    def features(self):
        """Names of all features, in the order of the columns of X."""
        return [name for column in self.columns for name in column.features]

    @property
    def limit(self):
        """Longest row for ``rows="clip"``."""
        return WIDE * math.sqrt(len(self.features)) if self.norm is None else self.norm

    @property
    def row_norm(self):
        """Public bound on the norm of every row; None without one."""
        return {"unit": 1.0, "clip": self.limit}.get(self.rows)

    def encode(self, frame, form=None, strict=True):
        """Features before gaps are filled, shape (n, d)."""
        form = form or Format()
        return np.hstack(
            [column.encode(frame[column.name], form, strict) for column in self.columns]
        )

    def finish(self, X, fill):
        """Put the task's own `fill` (shape (d,)) where a value is missing, and scale the rows."""
        X = np.where(np.isnan(X), fill, X)
        if self.rows == "unit":
            return directions(X)
        return bounded(X, self.limit) if self.rows == "clip" else X

    def scaled(self, units):
        """The same with other centers and scales, {column: (center, scale)}."""
        columns = [
            replace(c, center=units[c.name][0], scale=units[c.name][1]) if c.name in units else c
            for c in self.columns
        ]
        return replace(self, columns=tuple(columns))

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
