"""Data sets: ragged multi-task data, its loaders and its splits."""

from mpmtl.data.landmine import Landmine
from mpmtl.data.lsoa2 import LSOA2
from mpmtl.data.partitions import Partitions
from mpmtl.data.school import School
from mpmtl.data.synthetic import GroupSparse, LeakageExample, LowRank
from mpmtl.data.table import Table
from mpmtl.data.tasks import MultiTaskData, assign_folds, split

__all__ = [
    "LSOA2",
    "GroupSparse",
    "Landmine",
    "LeakageExample",
    "LowRank",
    "MultiTaskData",
    "Partitions",
    "School",
    "Table",
    "assign_folds",
    "split",
]
