"""All kinds of figures: what draws each from its table, and what it shows."""

from collections.abc import Callable
from typing import NamedTuple

from mpmtl.figures import (
    budget_allocation,
    matrices,
    noise_to_signal,
    privacy_accuracy,
    privacy_audit,
    proved_tradeoff,
    task_number,
    training_percentage,
)


class Kind(NamedTuple):
    """A kind of figure: `draw(table, path)` and the caption."""

    draw: Callable
    caption: str


#: By the start of the file's name; what follows is a form or a data set.
KINDS = {
    "model_leakage": Kind(
        matrices.draw,
        "Models of ten tasks, columns scaled to length 1: before learning together, after a round "
        "without noise, and after a round with Wishart noise at a claimed eps = 0.1.",
    ),
    "task_relations": Kind(
        matrices.draw,
        "Cosines between the tasks' models, mean over replicates (above), and the models of the "
        "first replicate (below): true, by dp_mtrl and by lr, both at a claimed eps = 0.1.",
    ),
    "budget_allocation": Kind(
        budget_allocation.draw,
        "Cross-validation error of lr at a claimed eps = 0.1 over how the budget is shared by the "
        "rounds, with and without acceleration.",
    ),
    "noise_to_signal": Kind(
        noise_to_signal.draw,
        "Noise beside the covariance over the rounds of lr at a claimed eps = 0.1, and of dp_mtrl "
        "in its first round.",
    ),
    "privacy_accuracy": Kind(
        privacy_accuracy.draw,
        "Accuracy over the budget of one task. Each line says whether its budget is claimed or "
        "proved; dp_mtrl and dp_aggr have a panel of their own, their errors are larger.",
    ),
    "task_number": Kind(
        task_number.draw, "Error of the first 20 tasks over the number of tasks that take part."
    ),
    "training_percentage": Kind(
        training_percentage.draw,
        "Accuracy over the share of samples that trains, at three budgets of one task; below, the "
        "methods with larger errors.",
    ),
    "privacy_audit": Kind(
        privacy_audit.draw,
        "Measured lower bound on delta at the stated epsilon: a line above the stated delta "
        "refutes that statement; a line below proves nothing.",
    ),
    "proved_tradeoff": Kind(
        proved_tradeoff.draw,
        "Accuracy at equal stated budgets. The legend says which are proved, which claimed; "
        "errors far above separate tasks are cut off.",
    ),
}


def kind_of(name):
    """The kind of a figure by its file's name, or None."""
    return next((kind for start, kind in KINDS.items() if name.startswith(start)), None)
