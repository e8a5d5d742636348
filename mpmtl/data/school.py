"""School data: exam scores of 15,362 pupils of 139 schools (ILEA)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mpmtl.data.files import locate, read_mat
from mpmtl.data.real import RealData
from mpmtl.data.tasks import MultiTaskData
from mpmtl.errors import require

FEATURES = (
    [f"year {year}" for year in (1985, 1986, 1987)]
    + ["% free school meals", "% VR band 1"]
    + [f"gender {k}" for k in (1, 2)]
    + [f"VR band {k}" for k in (1, 2, 3)]
    + [f"ethnic group {k}" for k in range(1, 12)]
    + [f"school gender {k}" for k in (1, 2, 3)]
    + [f"denomination {k}" for k in (1, 2, 3)]
)
PERCENTAGES = slice(3, 5)
BIAS = 27


@dataclass(frozen=True)
class School(RealData):
    """The first 27 columns (the 28th is constant), rows of unit length.

    Parameters
    ----------
    percentages : {"fraction", "raw"}
        The two percentage columns divided by 100, or as they are (condition number 8e4).
    """

    percentages: str = "fraction"
    kind: ClassVar[str] = "regression"
    name: ClassVar[str] = "school"

    def __post_init__(self):
        super().__post_init__()
        require(
            self.percentages in ("fraction", "raw"),
            f"percentages = {self.percentages}: use fraction or raw",
        )

    def load(self, data_dir):
        return _load(str(data_dir), self.percentages)


@lru_cache(maxsize=2)
def _load(data_dir, percentages):
    path = locate(data_dir, "school/school.mat")
    X, Y = read_mat(path, "X", "Y")
    tasks = []
    for rows in X.ravel():
        rows = np.delete(rows.astype(float), BIAS, axis=1)  # uint8 arithmetic would wrap
        if percentages == "fraction":
            rows[:, PERCENTAGES] /= 100
        tasks.append(rows)
    targets = [target.astype(float).ravel() for target in Y.ravel()]
    return MultiTaskData.checked(tasks, targets, feature_names=FEATURES).unit_rows()
