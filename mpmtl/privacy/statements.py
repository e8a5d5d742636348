"""What a release claims, what is proved about it, and the caveats that go with it."""

import warnings
from dataclasses import asdict, dataclass

UNIT = "task"
RELATION = "replace one task's model and data"
ADVERSARY = "all other tasks together, who see every round's output for themselves"

CAVEATS = {
    "wishart-support": (
        "the claimed guarantee (Theorem 1 of the paper) is false: Wishart noise is positive "
        "semi-definite, so an output can rule a model out; only what stands under proved holds"
    ),
    "tuning-not-charged": (
        "lambda, T, K, the step size and the allocation are chosen from all tasks' data outside "
        "the budget, as in the paper; neither the claimed nor the proved guarantee covers that"
    ),
    "data-dependent-lipschitz": (
        "the sensitivity rests on the largest loss derivative seen in the data, which is smaller "
        "than the true constant, so less noise is added than a proof needs"
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
    "reproducible-rng": (
        "noise comes from a seeded, published generator so that results can be repeated; "
        "a deployment must use secret randomness"
    ),
}


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
    """

    mechanism: str
    claimed: Guarantee | None
    proved: Guarantee | None
    caveats: tuple = ()
    notes: tuple = ()
    instance: Guarantee | None = None
    unit: str = UNIT
    relation: str = RELATION
    adversary: str = ADVERSARY

    def as_dict(self):
        """Everything as JSON can hold it; caveats with their texts."""
        block = asdict(self)
        block["caveats"] = {code: CAVEATS[code] for code in self.caveats}
        block["notes"] = list(self.notes)
        return block


#: What goes with every guarantee that rests on noise.
NOISE_CAVEATS = ("tuning-not-charged", "float-noise", "reproducible-rng")
#: Nothing is claimed and nothing is proved.
NO_PROTECTION = PrivacyStatement(
    "none", claimed=None, proved=None, notes=("no noise: no protection",)
)
#: No task sees anything of another one (Claim 1 of the paper).
SEPARATE = Guarantee(0.0, 0.0, "tasks are fitted separately (Claim 1 of the paper)")
