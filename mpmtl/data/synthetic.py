"""Synthetic data of Section 5.4 of the paper and the example of its Fig. 2."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mpmtl.data.tasks import MultiTaskData
from mpmtl.errors import require
from mpmtl.privacy.clipping import directions
from mpmtl.streams import stream


@dataclass(frozen=True)
class Synthetic:
    r"""Linear tasks y_i = X_i w_i + e, e ~ N(0, noise^2), rows of X_i of unit length.

    Parameters
    ----------
    m, n, d : int
        Tasks, training samples of a task, features.
    noise : float
        Standard deviation of the targets' noise.
    test_ratio : int
        Test samples per training sample.
    used : int, optional
        How many of the m tasks take part, spread evenly over them; default all.
    scored : int, optional
        Only the first so many of these are tested; default all.
    """

    m: int = 320
    n: int = 30
    d: int = 30
    noise: float = 1.0
    test_ratio: int = 9
    used: int | None = None
    scored: int | None = None
    kind: ClassVar[str] = "regression"
    name: ClassVar[str]

    def __post_init__(self):
        for key in ("m", "n", "d", "test_ratio"):
            value = getattr(self, key)
            require(value >= 1, f"{key} = {value} must be at least 1")
        require(
            self.noise >= 0 and np.isfinite(self.noise),
            f"noise = {self.noise} must be finite and at least 0",
        )
        used = self.m if self.used is None else self.used
        scored = 1 if self.scored is None else self.scored
        require(1 <= used <= self.m, f"used = {self.used} must be between 1 and m")
        require(
            1 <= scored <= used,
            f"scored = {self.scored} must be between 1 and used",
        )

    def models(self, rng):
        """True models as rows, shape (m, d)."""
        raise NotImplementedError

    def truth(self, seed, replicate):
        """True models of a replicate, shape (m, d), and the generator that goes on to its data."""
        rng = stream(seed, "data", self.name, replicate)
        return self.models(rng), rng

    def draw(self, data_dir, seed, replicate):
        """Training and test data of a replicate (`data_dir` is not used)."""
        W, rng = self.truth(seed, replicate)
        order = np.arange(self.m) if self.used is None else spread_order(self.m)[: self.used]
        train = self._sample(W, self.n, rng, order)
        return train, self._sample(W, self.n * self.test_ratio, rng, order[: self.scored])

    def _sample(self, W, n, rng, tasks):
        X = directions(rng.standard_normal((self.m, n, self.d)))
        y = np.einsum("mnd,md->mn", X, W) + self.noise * rng.standard_normal((self.m, n))
        names = [str(i + 1) for i in tasks]
        data = MultiTaskData.checked(X[tasks], y[tasks], task_names=names)
        return replace(data, row_norm=1.0)


def spread_order(m):
    """Order of m tasks in which the first k are spread evenly over all, for every k.

    Ranks of the multiples of the golden ratio modulo 1.
    """
    return np.argsort(np.argsort(np.arange(m) * (np.sqrt(5) - 1) / 2 % 1))


@dataclass(frozen=True)
class LowRank(Synthetic):
    r"""W ~ MVN(0, I, Sigma): rows of the paper's d x m matrix are N(0, Sigma), Sigma with `blocks`
    equal blocks of tasks, `variance` on the diagonal and `correlation` within a block.

    The block structure of the paper's Fig. 3(a) is not stated; this one is reconstructed.
    """

    blocks: int = 5
    variance: float = 100.0
    correlation: float = 1.0
    name: ClassVar[str] = "low_rank"

    def __post_init__(self):
        super().__post_init__()
        require(
            1 <= self.blocks <= self.m,
            f"blocks = {self.blocks} must be between 1 and m = {self.m}",
        )
        require(self.variance > 0, f"variance = {self.variance} must be above 0")
        require(
            0 <= self.correlation <= 1,
            f"correlation = {self.correlation} must be in [0, 1]",
        )

    def models(self, rng):
        block = np.arange(self.m) * self.blocks // self.m
        common = rng.standard_normal((self.blocks, self.d))[block]
        own = rng.standard_normal((self.m, self.d))
        c = self.correlation
        return np.sqrt(self.variance) * (np.sqrt(c) * common + np.sqrt(1 - c) * own)


@dataclass(frozen=True)
class GroupSparse(Synthetic):
    """Only the first `relevant` features count; weights are U([-high, -low] u [low, high])."""

    relevant: int = 4
    low: float = 1.0
    high: float = 50.0
    name: ClassVar[str] = "group_sparse"

    def __post_init__(self):
        super().__post_init__()
        require(
            1 <= self.relevant <= self.d,
            f"relevant = {self.relevant} must be between 1 and d = {self.d}",
        )
        require(
            0 <= self.low < self.high < np.inf,
            f"low = {self.low} and high = {self.high} must satisfy 0 <= low < high",
        )

    def models(self, rng):
        W = np.zeros((self.m, self.d))
        size = (self.m, self.relevant)
        W[:, : self.relevant] = rng.uniform(self.low, self.high, size) * rng.choice((-1, 1), size)
        return W


@dataclass(frozen=True)
class LeakageExample:
    """Fig. 2: models U(0, 1), the last one 100 times as large.

    The figure starts from the models themselves, so each task's data is X_i = I, y_i = w_i: the
    least-squares model is w_i and the Lipschitz constant is 1 (eta = 1). Training and test data
    are the same.
    """

    m: int = 10
    d: int = 5
    factor: float = 100.0
    kind: ClassVar[str] = "regression"
    name: ClassVar[str] = "leakage_example"

    def __post_init__(self):
        require(
            self.m >= 1 and self.d >= 1,
            f"m = {self.m} and d = {self.d} must be at least 1",
        )
        require(self.factor > 0, f"factor = {self.factor} must be above 0")

    def draw(self, data_dir, seed, replicate):
        """The same data for training and for the test (`data_dir` is not used)."""
        rng = stream(seed, "data", self.name, replicate)
        W = rng.uniform(size=(self.m, self.d))
        W[-1] *= self.factor
        data = MultiTaskData.checked([np.eye(self.d)] * self.m, list(W))
        data = replace(data, row_norm=1.0)
        return data, data
