"""What the real data sets have in common: one table, split anew in each replicate."""

from dataclasses import dataclass
from typing import ClassVar

from mpmtl.data.tasks import split
from mpmtl.errors import require
from mpmtl.streams import stream


@dataclass(frozen=True)
class RealData:
    """A data set on disk; each replicate is a random split of every task.

    Parameters
    ----------
    train_fraction : float
        Share of each task's samples used for training.
    stratified : bool
        Same shares of the classes in both parts (binary tasks).
    """

    train_fraction: float = 0.3
    stratified: bool = True
    kind: ClassVar[str]
    name: ClassVar[str]

    def __post_init__(self):
        require(
            0 < self.train_fraction < 1,
            f"train_fraction = {self.train_fraction} must be between 0 and 1",
        )

    def load(self, data_dir):
        """All samples as `MultiTaskData`, rows already normalised."""
        raise NotImplementedError

    def draw(self, data_dir, seed, replicate):
        """Training and test part of a replicate."""
        rng = stream(seed, "split", self.name, replicate)
        return split(self.load(data_dir), self.train_fraction, rng, self.stratified)
