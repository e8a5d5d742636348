"""LSOA II: 41 binary outcomes of the Second Longitudinal Study of Aging."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mpmtl.data.files import locate, read_mat
from mpmtl.data.real import RealData
from mpmtl.data.tasks import MultiTaskData
from mpmtl.privacy.clipping import directions

BERNOULLI = 2  # task_type of the binary targets


@dataclass(frozen=True)
class LSOA2(RealData):
    """All 3,988 subjects; a task holds the subjects whose target was observed.

    Column 0 is the bias; rows have unit length.
    """

    kind: ClassVar[str] = "binary"
    name: ClassVar[str] = "lsoa2"

    def load(self, data_dir):
        return _load(str(data_dir))


def _texts(cells):
    """Strings of a MATLAB cell array, made unique where the file repeats a name."""
    names = [str(np.ravel(cell)[0]) if np.size(cell) else "" for cell in np.ravel(cells)]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names)]


@lru_cache(maxsize=1)
def _load(data_dir):
    parts = ("train", "valid", "test")
    names = [f"{part}_{block}" for block in ("X", "Y", "Omega") for part in parts]
    path = locate(data_dir, "lsoa2/data_processed_LSOAII.mat")
    *tables, task_type = read_mat(path, *names, "task_type")
    X, Y, observed = (np.concatenate(tables[k : k + 3]).astype(float) for k in (0, 3, 6))
    X = directions(X)
    binary = np.flatnonzero(task_type.ravel() == BERNOULLI)
    rows = [np.flatnonzero(observed[:, j] == 1) for j in binary]
    labels = _descriptions(data_dir, "task")
    features = _descriptions(data_dir, "feature")
    data = MultiTaskData.checked(
        [X[r] for r in rows],
        [2 * Y[r, j] - 1 for r, j in zip(rows, binary, strict=True)],
        kind="binary",
        task_names=[labels[j] for j in binary],
        feature_names=features,
        bias=features[0],
    )
    return replace(data, row_norm=1.0)


def _descriptions(data_dir, kind):
    path = locate(data_dir, f"lsoa2/{kind}_description_LSOAII.mat")
    (cells,) = read_mat(path, f"{kind}_description")
    return _texts(cells)
