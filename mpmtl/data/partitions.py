"""A table of numbers in a folder of Parquet files, never whole in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from mpmtl.chunks import Chunked, slices
from mpmtl.data.tasks import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.divided import DividedLoss
from mpmtl.errors import InputError, require


@dataclass(frozen=True)
class Partitions:
    """Rows of a table in the Parquet files of a folder, in the order of their names.

    All rows of a task stand together in one file, so a file and its chunks are read by themselves
    and memory is that of one file; anything else is refused. All columns hold numbers.

    Attributes
    ----------
    path : str
        The folder; workers read it under the same path.
    task, target : str
        Columns.
    features : tuple of str
    kind : {"regression", "binary"}
        Binary targets: -1 and 1, or any number above 0 and any other.
    """

    path: str
    task: str
    target: str
    features: tuple
    kind: str = "regression"

    @classmethod
    def of(cls, path, task, target, features=None, kind="regression"):
        """The partitions of a folder; `features` are all other columns by default."""
        names = list(_read(_files(path)[0], lambda file: _parquet().read_schema(file)).names)
        for key, name in (("task", task), ("target", target)):
            require(name in names, f"{key} = {name}: {path} has the columns {', '.join(names)}")
        features = [n for n in names if n not in (task, target)] if features is None else features
        unknown = [name for name in features if name not in names]
        require(not unknown, f"{path} has no column {', '.join(map(str, unknown))}")
        require(len(features) > 0, f"{path} has no feature beside {task} and {target}")
        return cls(str(path), task, target, tuple(features), kind)

    def scanned(self):
        """Labels of all tasks, their sizes, and where their rows are: one pass over one column.

        Returns
        -------
        tasks : ndarray, shape (m,)
        sizes : ndarray of int, shape (m,)
        places : list of (str, ndarray)
            Each file, and where each of its tasks starts and the last one ends.
        """
        tasks, sizes, places = [], [], []
        for file in _files(self.path):
            labels = self._read(file, [self.task])[self.task]
            missing = int(labels.isna().sum())
            require(missing == 0, f"{file}: {missing} rows have no {self.task}: drop or name them")
            labels = labels.to_numpy()
            starts = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))[: len(labels)]
            if len(labels) == 0:
                continue
            ends = np.append(starts, len(labels))
            tasks.append(labels[starts])
            sizes.append(np.diff(ends))
            places.append((str(file), ends))
        require(tasks, f"{self.path} has no rows")
        tasks = np.concatenate(tasks)
        known, counts = np.unique(tasks, return_counts=True)
        twice = known[counts > 1]
        require(
            len(twice) == 0,
            f"{self.path}: the rows of {self.task} {twice[0] if len(twice) else ''} (and of "
            f"{max(len(twice) - 1, 0)} more) do not stand together in one file: sort the table by "
            f"{self.task} and write each one to a single file",
        )
        return tasks, np.concatenate(sizes), places

    def loss(self, prepare, scan, engine, average=None, public=False):
        """The loss of all tasks, whose chunks the engine loads when their turn has come.

        Parameters
        ----------
        prepare : callable
            ``prepare(data)`` clips and scales the `MultiTaskData` of a chunk by public constants.
        scan : tuple
            See `scanned`.
        engine : object
            See `mpmtl.chunks`.
        average, public
            See `datafit_for`.
        """
        _, sizes, places = scan
        whole = (len(sizes), int(sizes.sum()))
        items = [
            Rows(self, file, ends[tasks.start : tasks.stop + 1], prepare, average, public, whole)
            for file, ends in places
            for tasks in slices(len(ends) - 1)
        ]
        first = items[0].loaded()
        return DividedLoss(
            Chunked(items, engine),
            sizes,
            first.shape[1],
            first.logistic,
            first.average,
            **first.common,
        )

    def _read(self, file, columns):
        return _read(file, lambda file: _parquet().read_table(file, columns=columns)).to_pandas()

    def numbers(self, file):
        """Features and targets of a file, as arrays of numbers."""
        frame = self._read(file, [*self.features, self.target])
        lacking = [name for name in (*self.features, self.target) if name not in frame]
        index = " (a row index of pandas: write the files with index=False)"
        hint = index * any(name.startswith("__index_level_") for name in lacking)
        require(not lacking, f"{file} has no column {', '.join(lacking)}{hint}")
        try:
            return (
                frame[list(self.features)].to_numpy(dtype=float),
                frame[self.target].to_numpy(dtype=float),
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"{file}: a column is not of numbers: {error}") from error


@dataclass(frozen=True)
class Rows:
    """A chunk of tasks in a file; ``loaded()`` is its loss.

    Attributes
    ----------
    table : Partitions
    file : str
    ends : ndarray of int, shape (tasks + 1,)
        Where the rows of each task start, and the last ones end.
    prepare, average, public, whole
        See `Partitions.loss`, and `Loss.whole`.
    """

    table: Partitions
    file: str
    ends: np.ndarray = field(repr=False)
    prepare: Callable = field(repr=False)
    average: bool | None
    public: bool
    whole: tuple

    def loaded(self):
        """The loss of the chunk."""
        X, y = _latest(self.table, self.file)
        places = list(zip(self.ends[:-1], self.ends[1:], strict=True))
        data = MultiTaskData.checked(
            [X[a:b] for a, b in places], [y[a:b] for a, b in places], self.table.kind, strict=False
        )
        return datafit_for(self.prepare(data), self.average, self.public, whole=self.whole)


@lru_cache(maxsize=1)
def _latest(table, file):
    """The numbers of a file, while its chunks follow one another."""
    return table.numbers(file)


def _read(file, function):
    try:
        return function(file)
    except (OSError, ValueError) as error:  # pyarrow's are ValueErrors
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{file} cannot be read: {text}") from error


def _files(path):
    """The Parquet files of a folder, sorted."""
    require(Path(path).is_dir(), f"path = {path}: there is no such folder")
    files = sorted(Path(path).glob("*.parquet"))
    require(files, f"path = {path}: the folder has no file *.parquet")
    return files


def _parquet():
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(
            "Parquet files need pyarrow: pip install 'mpmtl[cluster]', or pyarrow alone"
        ) from None
    return parquet
