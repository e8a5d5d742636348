"""All figures of the paper and of this project: what draws each, and the experiment it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mpmtl.paper.figures import (
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
    """A kind of figure.

    Attributes
    ----------
    collect : callable
        ``collect(results, **values)`` is the table of the figure.
    draw : callable
        ``draw(table, path)`` writes path.png, .pdf and .csv.
    caption : str
    of : str, optional
        The value that its file is called after, as a data set.
    """

    collect: Callable
    draw: Callable
    caption: str
    of: str | None = None


#: By the start of the file's name; what follows is a form or a data set.
KINDS = {
    "model_leakage": Kind(
        matrices.collect_leakage,
        matrices.draw,
        "Models of ten tasks, columns scaled to length 1: before learning together, after a round "
        "without noise, and after a round with Wishart noise at a claimed eps = 0.1.",
    ),
    "task_relations": Kind(
        matrices.collect_relations,
        matrices.draw,
        "Cosines between the tasks' models, mean over replicates (above), and the models of the "
        "first replicate (below): true, of separate tasks where these were run, by dp_mtrl and by "
        "lr, both at a claimed eps = 0.1.",
    ),
    "budget_allocation": Kind(
        budget_allocation.collect,
        budget_allocation.draw,
        "Cross-validation error of lr at a claimed eps = 0.1 over how the budget is shared by the "
        "rounds, with and without acceleration. Bars: 95 % intervals of the paired difference to "
        "the best setting.",
        of="form",
    ),
    "noise_to_signal": Kind(
        noise_to_signal.collect,
        noise_to_signal.draw,
        "Noise beside the covariance over the rounds of lr at a claimed eps = 0.1, and of dp_mtrl "
        "in its first round.",
    ),
    "privacy_accuracy": Kind(
        privacy_accuracy.collect,
        privacy_accuracy.draw,
        "Accuracy over the budget of one task. Each line says whether its budget is claimed or "
        "proved; dp_mtrl and dp_aggr, where they are, have a panel of their own. Bands: "
        "95 % intervals of the difference to separate tasks.",
        of="dataset",
    ),
    "task_number": Kind(
        task_number.collect,
        task_number.draw,
        "Error of the first 20 tasks over the number of tasks that take part. Bars: 95 % intervals "
        "of the difference to the smallest number.",
    ),
    "training_percentage": Kind(
        training_percentage.collect,
        training_percentage.draw,
        "Accuracy over the share of samples that trains, a column for each budget of one task; "
        "below, the methods with larger errors. Bars: 95 % intervals of the mean.",
        of="dataset",
    ),
    "privacy_audit": Kind(
        privacy_audit.collect,
        privacy_audit.draw,
        "Measured lower bound on delta at the stated epsilon: a line above the stated delta "
        "refutes that statement; a line below proves nothing.",
    ),
    "proved_tradeoff": Kind(
        proved_tradeoff.collect,
        proved_tradeoff.draw,
        "Accuracy at equal stated budgets. The names say which are proved, which claimed; dashed: "
        "the budget does not cover all choices. Methods far worse than separate tasks are at "
        "the edge, with their values. Bands: 95 % intervals of the difference to separate tasks.",
    ),
}


@dataclass(frozen=True)
class Figure:
    """A figure and the experiment it needs.

    Attributes
    ----------
    name, experiment : str
    kind : str
        What draws it (`KINDS`, ``scripts/plot_<kind>.py``).
    values : dict
        What `collect` wants to know.
    audit : bool
        Whether the experiment is one of `mpmtl-audit`.
    words : tuple of str
        Overrides of the experiment.
    thinner : dict of str to tuple of str
        More of them, for a scale at which the experiment as it stands would take too long.
    """

    name: str
    experiment: str
    kind: str
    values: dict = field(default_factory=dict)
    audit: bool = False
    words: tuple = ()
    thinner: dict = field(default_factory=dict)


ONE_BUDGET = ("epsilon=1",)
TWO_BUDGETS = ("epsilon=0.1,10",)
THREE_BUDGETS = ("epsilon=0.1,1,10",)
#: LSOA II takes most of the time: 293 features, and a logistic loss.
LSOA2 = ("tuning=coarse",)
LSOA2_SMOKE = (
    *ONE_BUDGET,
    *("n_replicates=1", "tuning=fixed", "tuning.folds=2"),
    *(f"grids.{name}.n_rounds=2" for name in ("lr", "gs")),
    *(f"grids.{name}.n_rounds=5" for name in ("stl_best", "mtl_lr", "mtl_gs", "mtrl")),
)
#: What the paper compares in Figs. 6, 7, 9 and 10, whatever other runs are in the folder.
COMPARED = (
    "mtl",
    "lr/wishart",
    "gs/wishart",
    "dp_mtrl/output_perturbation",
    "dp_aggr/output_perturbation",
)


def _accuracy(name, dataset, stl, smoke=TWO_BUDGETS, larger=()):
    values = {"dataset": dataset, "methods": (stl, *COMPARED)}
    thinner = {"smoke": smoke, "laptop": larger, "paper": larger}
    experiment = f"privacy_accuracy_{dataset}"
    return Figure(name, experiment, "privacy_accuracy", values, thinner=thinner)


def _allocation(name, form):
    return Figure(name, f"budget_allocation_{form}", "budget_allocation", {"form": form})


def _percentage(name, dataset, smoke, **thinner):
    experiment, values = f"training_percentage_{dataset}", {"dataset": dataset}
    thinner = {"smoke": smoke, **thinner}
    return Figure(name, experiment, "training_percentage", values, thinner=thinner)


FIGURES = (
    Figure("Fig. 2", "model_leakage", "model_leakage"),
    Figure("Fig. 3", "task_relations", "task_relations"),
    _allocation("Fig. 4a", "convex"),
    _allocation("Fig. 4b", "strong"),
    _accuracy("Fig. 6a, 7a", "low_rank", "stl"),
    Figure("Fig. 5", "noise_to_signal", "noise_to_signal"),
    _accuracy("Fig. 6b, 7b", "group_sparse", "stl"),
    Figure("Fig. 8", "task_number", "task_number"),
    _accuracy("Fig. 9a, 10a", "school", "stl_best"),
    _percentage("Fig. S1", "school", ONE_BUDGET),
    _accuracy("Fig. 9b, 10b", "lsoa2", "stl_best", LSOA2_SMOKE, LSOA2),
    _percentage(
        "Fig. S2",
        "lsoa2",
        (*LSOA2_SMOKE, "dataset.train_fraction=0.3"),
        laptop=(*LSOA2, "n_replicates=5", *TWO_BUDGETS),
        paper=(*LSOA2, "n_replicates=50", *TWO_BUDGETS),
    ),
    Figure(
        "proved",
        "proved_tradeoff",
        "proved_tradeoff",
        words=("dataset=low_rank,group_sparse,school",),
        thinner={"smoke": ONE_BUDGET, "laptop": ("n_replicates=10",)},
    ),
    Figure(
        "proved, lsoa2",
        "proved_tradeoff",
        "proved_tradeoff",
        words=("dataset=lsoa2",),
        thinner={
            "smoke": (*LSOA2_SMOKE, "method=stl,mtl,fl,lr/gaussian"),
            "laptop": (*LSOA2, "n_replicates=5", *THREE_BUDGETS),
            "paper": (*LSOA2, "n_replicates=50", *THREE_BUDGETS, "grids.mr_mtl.lam=[0.003,0.03]"),
        },
    ),
    Figure(
        "audit",
        "privacy_audit",
        "privacy_audit",
        audit=True,
        thinner={"smoke": (*ONE_BUDGET, "samples=1000")},
    ),
)


def kind_of(name):
    """The kind of a figure by its file's name, or None."""
    return next((kind for start, kind in KINDS.items() if name.startswith(start)), None)


def file_of(name, values):
    """Name of a figure's file without suffix: its kind and the value that it is called after."""
    return f"{name}_{values[KINDS[name].of]}" if KINDS[name].of else name


def make(name, results, out=None, show=None, **values):
    """Draw a figure of a results folder.

    Parameters
    ----------
    name : str
        Its kind.
    results : path
    out : path, optional
        Without suffix; default ``<results>/figures/<name>_<of>``.
    show : callable, optional
        Is called with the table.
    **values : dict
        What else `collect` wants to know.

    Returns
    -------
    Path
        The file, without suffix.
    """
    kind = KINDS[name]
    path = Path(out) if out else Path(results) / "figures" / file_of(name, values)
    table = kind.collect(results, **values)
    if show:
        show(table)
    kind.draw(table, path)
    return path
