"""What several fits on the same owners cost together."""

from dataclasses import dataclass, field, replace
from math import inf

from mpmtl.errors import require
from mpmtl.privacy.budget import Cost


@dataclass(frozen=True)
class Spent:
    r"""What fits have spent on the same owners; ``+`` is adaptive composition.

    Fits whose exact cost is known compose exactly (`Cost`): Gaussian ones to one of
    :math:`\mu = \sqrt{\sum \mu^2}`, pure ones to the distribution of their privacy loss. Those of
    which only a pair is proved add up: :math:`(\sum \epsilon_i, \sum \delta_i)` beside it.

    Attributes
    ----------
    cost : Cost
    pair : (float, float)
        Sums over fits of which only (epsilon, delta) is proved.
    unproved : int
        Fits of which nothing is proved: no total holds then.
    """

    cost: Cost = field(default_factory=Cost)
    pair: tuple = (0.0, 0.0)
    unproved: int = 0

    def __add__(self, other):
        pair = tuple(a + b for a, b in zip(self.pair, other.pair, strict=True))
        return Spent(self.cost + other.cost, pair, self.unproved + other.unproved)

    @classmethod
    def by(cls, blocks):
        """What one fit spends, whichever of the statements turns out to be its own.

        Parameters
        ----------
        blocks : sequence of dict
            `PrivacyStatement.as_dict` for each setting that may be chosen.
        """
        costs, proved = [b.get("cost") for b in blocks], [b["proved"] for b in blocks]
        if all(costs) and len({tuple(c["pure"]) for c in costs}) == 1:
            return cls(Cost(max(c["mu"] for c in costs), tuple(costs[0]["pure"])))
        if all(proved):
            epsilon, delta = (max(p[key] for p in proved) for key in ("epsilon", "delta"))
            return cls(pair=(epsilon, delta)) if delta < 1 else cls(unproved=1)
        return cls(unproved=1)

    @property
    def nothing(self):
        """Whether nothing crossed."""
        return self == Spent()

    def epsilon(self, delta):
        """Smallest epsilon that is proved at delta, rounded up; inf if there is none."""
        if self.unproved or delta < self.pair[1]:
            return inf
        left = delta - self.pair[1]
        return self.pair[0] + self.cost.epsilon(left)

    def as_dict(self):
        """As JSON can hold it."""
        pair, pure = list(self.pair), list(self.cost.pure)
        return {"mu": self.cost.mu, "pure": pure, "pair": pair, "unproved": self.unproved}

    @classmethod
    def from_dict(cls, block):
        """What `as_dict` made."""
        require(
            len(block["pair"]) == 2 and min(*block["pair"], block["unproved"]) >= 0,
            "a pair or a count is negative",
        )
        return cls(
            Cost(block["mu"], tuple(block["pure"])), tuple(block["pair"]), int(block["unproved"])
        )


def pair_of(spent, delta):
    """(epsilon, delta) that is proved of all together, with `delta` for the exact part; None if
    there is none."""
    total = spent.pair[1] + (delta if spent.cost != Cost() else 0.0)
    return None if spent.unproved or total >= 1 else (spent.epsilon(total), total)


def in_words(spent, fits, delta):
    """What so many fits, all of which let something cross, have spent together."""
    proved = fits - spent.unproved
    if not proved:
        return f"{_count(fits)} without a proved cost, so nothing is proved of all together"
    pair = pair_of(replace(spent, unproved=0), delta)
    if pair is None:
        return f"the deltas of {_count(proved)} add up to {spent.pair[1]:.3g}: nothing is proved"
    words = f"{_count(proved)} spent ({pair[0]:.4g}, {pair[1]:.3g}) together"
    if spent.unproved:
        words += f"; {spent.unproved} more have no proved cost, so nothing is proved of all"
    return words


def _count(fits):
    return f"{fits} fit" + "s" * (fits != 1)
