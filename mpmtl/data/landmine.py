"""Landmine detection: 29 fields, 14,820 radar images, nine features each."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mpmtl.data.files import locate, read_mat
from mpmtl.data.real import RealData
from mpmtl.data.tasks import MultiTaskData

FEATURES = [f"feature {j}" for j in range(1, 10)] + ["(bias)"]


@dataclass(frozen=True)
class Landmine(RealData):
    """Mine or clutter, from four moments, three correlations and two spatial measures.

    A bias column is added, then rows have unit length. Tasks 1 to 15 are foliated, the others bare
    ground. 6 % of the samples are mines.
    """

    kind: ClassVar[str] = "binary"
    name: ClassVar[str] = "landmine"

    def load(self, data_dir):
        return _load(str(data_dir))


@lru_cache(maxsize=1)
def _load(data_dir):
    path = locate(data_dir, "landmine/LandmineData.mat")
    features, labels = read_mat(path, "feature", "label")
    X = [np.hstack([rows, np.ones((len(rows), 1))]) for rows in features.ravel()]
    y = [2.0 * label.ravel().astype(float) - 1 for label in labels.ravel()]
    data = MultiTaskData.checked(X, y, kind="binary", feature_names=FEATURES, bias="(bias)")
    return data.unit_rows()
