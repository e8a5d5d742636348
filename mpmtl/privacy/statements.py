"""What a release claims, what is proved about it, and the caveats that go with it."""

import math
import warnings
from dataclasses import asdict, dataclass, replace

UNIT = "task"
RELATION = "replace one task's model and data"
RELATION_OF_KNOWN_SIZE = (
    "replace one task's model and data by others of a public size (all sizes are public)"
)
SCOPE = "one fit: two on the same owners cost what both cost together"
ADVERSARY = "all other tasks together, who see every round's output for themselves"

CAVEATS = {
    "wishart-support": (
        "the claimed guarantee (Theorem 1 of the paper) is false: Wishart noise is positive "
        "semi-definite, so an output can rule a model out; only what stands under proved holds"
    ),
    "tuning-not-charged": (
        "settings or constants of a fit are taken from all tasks' data outside the budget, as in "
        "the paper; neither the claimed nor the proved guarantee covers that"
    ),
    "large-delta": (
        "a delta near 1/m for m tasks, or above: to publish the data of a task drawn at random has "
        "delta = 1/m, so such a guarantee says little"
    ),
    "data-dependent-lipschitz": (
        "the sensitivity rests on the largest loss derivative seen in the data, which is smaller "
        "than the true constant, so less noise is added than a proof needs"
    ),
    "evaluation-not-charged": (
        "test errors, cross-validation tables and the norms in trace.csv are exact statistics of "
        "all tasks' data; whoever sees them has seen more than the releases"
    ),
    "unbounded-loss": (
        "the sensitivity 2/(n lambda) holds for a loss whose derivative is at most 1; the squared "
        "loss has none, so nothing is proved for it"
    ),
    "pooled-schema": (
        "levels, scales, gaps or the kind of target were read off all tasks' rows outside the "
        "budget (the note says which); declare them to keep them out"
    ),
    "float-noise": (
        "noise is drawn in floating point, whose gaps can leak; the proofs are for real numbers"
    ),
    "secure-sum": (
        "holds against a curator who follows the protocol, if as many owners as said are honest; "
        "that it sees sums alone rests on encryption, and on the keys that it passes on being the "
        "owners' own: one that puts its own in their place sees single vectors, with the noise of "
        "one share"
    ),
    "reproducible-rng": (
        "noise comes from a seeded, published generator so that results can be repeated; "
        "a deployment must use secret randomness"
    ),
}


#: Caveats of choices that the budget does not cover; a guarantee with one of them is marked.
UNCOVERED = ("tuning-not-charged", "pooled-schema")
MARK = "*"
MARK_WORDS = f"{MARK} some choices are made from all tasks' data, outside the budget"


def mark(caveats):
    """The mark of a guarantee whose budget does not cover all choices, or nothing."""
    return MARK if set(UNCOVERED) & set(caveats) else ""


#: What goes with every guarantee that rests on noise.
NOISE_CAVEATS = ("float-noise", "reproducible-rng")


def caveat_text(code, statement):
    """Text of a caveat, as it applies to a statement.

    Parameters
    ----------
    code : str
    statement : dict
        `PrivacyStatement.as_dict`; a run adds ``outside_budget``, what is chosen from all tasks'
        data, in words, and ``n_tasks``.
    """
    if code == "tuning-not-charged" and (chosen := statement.get("outside_budget")):
        return (
            "chosen from all tasks' data outside the budget, as in the paper: "
            f"{', '.join(chosen)}; no guarantee covers that"
        )
    if code == "large-delta" and "n_tasks" in statement:
        m = statement["n_tasks"]
        deltas = {name: (statement[name] or {"delta": 0})["delta"] for name in GUARANTEES}
        large = [f"{n} delta = {v:.3g}" for n, v in deltas.items() if is_large(v, m)]
        return (
            f"{', '.join(large)}, near or above 1/m = {1 / m:.3g} for m = {m} tasks: to publish "
            "the data of a task drawn at random has delta = 1/m, so such a guarantee says little"
        )
    return CAVEATS.get(code, statement["caveats"][code])


GUARANTEES = ("claimed", "proved")


def is_large(delta, m):
    """Whether a delta is half of 1/m or more, and less than 1, which is no guarantee at all."""
    return delta * m >= 0.5 and delta < 1


class PrivacyCaveat(UserWarning):
    """A limit of a privacy statement; its text starts with one of the codes in `CAVEATS`."""


def warn_caveats(codes):
    """Issue each caveat as a `PrivacyCaveat`; Python's default filter prints each one once."""
    for code in codes:
        warnings.warn(f"{code}: {CAVEATS[code]}", PrivacyCaveat, stacklevel=3)


@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) pair with the reason why it is said to hold."""

    epsilon: float
    delta: float
    basis: str

    def __str__(self):
        return f"({self.epsilon:.4g}, {self.delta:.4g})"


@dataclass(frozen=True)
class PrivacyStatement:
    """The privacy block of a fit: one unit, one neighbouring relation, two kinds of guarantee.

    Attributes
    ----------
    mechanism : str
    claimed : Guarantee or None
        Stated in the literature for this mechanism, and not proved (or false).
    proved : Guarantee or None
        Holds, by the proof named in its basis, outside the limits named by the caveats.
    caveats : tuple of str
        Codes, keys of `CAVEATS`.
    notes : tuple of str
        Numbers that help to read the guarantees and are no guarantee themselves.
    instance : Guarantee or None
        Proved besides for a single sample of a task (replace one sample), by Algorithm 5.
    cost : Cost or None
        What stands behind `proved`: the exact composition of the releases of one fit.
    """

    mechanism: str
    claimed: Guarantee | None
    proved: Guarantee | None
    caveats: tuple = ()
    notes: tuple = ()
    instance: Guarantee | None = None
    cost: object = None
    unit: str = UNIT
    relation: str = RELATION
    adversary: str = ADVERSARY
    scope: str = SCOPE

    def delta(self, epsilon):
        """Smallest delta that is proved at any epsilon; 1 where nothing is proved."""
        if self.cost is not None:
            return self.cost.delta(epsilon)
        if self.proved is None:
            return 1.0
        return self.proved.delta if epsilon >= self.proved.epsilon else 1.0

    def epsilon(self, delta):
        """Smallest epsilon that is proved at any delta; inf where nothing is proved."""
        if self.cost is not None:
            return self.cost.epsilon(delta)
        if self.proved is None or delta < self.proved.delta:
            return math.inf
        return self.proved.epsilon

    def beside(self, epsilon, words, caveats=NOISE_CAVEATS):
        """The same after an epsilon-DP release of the same tasks besides: (epsilon, 0) is added.

        Parameters
        ----------
        epsilon : float
        words : str
            What was released, for the bases.
        caveats : tuple of str
            Codes that go with it.
        """

        def added(block):
            if block is None:
                return None
            basis = f"{block.basis}; {epsilon:g} for {words}"
            return replace(block, epsilon=block.epsilon + epsilon, basis=basis)

        cost = self.cost and replace(self.cost, pure=(*self.cost.pure, epsilon))
        blocks = {key: added(getattr(self, key)) for key in ("claimed", "proved", "instance")}
        caveats = tuple(dict.fromkeys((*self.caveats, *caveats)))
        return replace(self, **blocks, cost=cost, caveats=caveats)

    def for_tasks(self, m):
        """The same with the caveat `large-delta` where delta is near 1/m or above (`is_large`)."""
        blocks = filter(None, (self.claimed, self.proved))
        if m is None or not any(is_large(block.delta, m) for block in blocks):
            return self
        return replace(self, caveats=tuple(dict.fromkeys((*self.caveats, "large-delta"))))

    def as_dict(self):
        """Everything as JSON can hold it; caveats with their texts."""
        block = asdict(replace(self, cost=None))
        del block["cost"]
        if self.cost is not None:
            block["mu"] = self.cost.mu if not self.cost.pure else None
            block["rho"] = self.cost.rho
            block["cost"] = {"mu": self.cost.mu, "pure": list(self.cost.pure)}
        block["caveats"] = {code: CAVEATS[code] for code in self.caveats}
        block["notes"] = list(self.notes)
        return block


#: Nothing is claimed and nothing is proved.
NO_PROTECTION = PrivacyStatement(
    "none", claimed=None, proved=None, notes=("no noise: no protection",)
)
_ALONE = Guarantee(0.0, 0.0, "tasks are fitted separately (Claim 1 of the paper)")
#: No task sees anything of another one.
SEPARATE = PrivacyStatement("separate tasks", claimed=_ALONE, proved=_ALONE)
