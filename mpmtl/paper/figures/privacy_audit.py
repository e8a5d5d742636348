"""What audits measured, over epsilon."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from hydra.core.utils import JobStatus
from hydra.experimental.callback import Callback

from mpmtl.errors import ResultsError
from mpmtl.experiments.audit import build_audit
from mpmtl.experiments.layout import say_error
from mpmtl.experiments.reader import audits
from mpmtl.experiments.store import RunFolder
from mpmtl.experiments.terminal import pair_words
from mpmtl.paper.figures.style import (
    COLOURS,
    MARKERS,
    budget_axis,
    figure,
    legend_below,
    legend_words,
    look,
)

SIZES = ("d", "m", "rounds")


class ProfilePicture(Callback):
    """Draws every audit of a command beside its tables: a callback named in conf/audit.yaml."""

    def on_job_end(self, config, job_return, **kwargs):
        if job_return.status is JobStatus.COMPLETED and "row" in job_return.return_value:
            try:
                picture(build_audit(job_return.cfg))
            except ResultsError as error:  # Hydra would go on
                say_error(error)
                sys.exit(2)


def picture(run):
    """Draw a finished audit in its folder: profile.png and .pdf.

    Parameters
    ----------
    run : AuditRun

    Raises
    ------
    ResultsError
        If the folder cannot be written.
    """
    path = Path(run.results_dir) / run.folder
    with RunFolder(path, run.settings, wait=True) as folder, folder.explained():
        draw_profile(folder.records[0]["audit"], run.label, path / "profile")


def draw_profile(audit, title, path):
    """One audit: the measured lower bound on delta over epsilon, and the guarantees as points.

    Parameters
    ----------
    audit : dict
        `Audit.as_dict()`.
    title : str
    path : Path
        Without suffix; PNG, PDF and CSV are written.
    """
    table = pd.DataFrame(audit["profile"])
    confidence = f"{100 * audit['confidence']:g} %"
    with figure(path, table) as ax:
        for k, (unit, rows) in enumerate(table[table.epsilon > 0].groupby("unit", sort=False)):
            label = f"measured lower bound, per {unit}\n({confidence} at each epsilon)"
            ax.plot(rows.epsilon, rows.delta_bound, color=COLOURS[k], label=label)
            ax.fill_between(rows.epsilon, 0, rows.delta_bound, color=COLOURS[k], alpha=0.15, lw=0)
        for k, (name, verdict) in enumerate(audit["verdicts"].items()):
            ax.plot(
                verdict["epsilon"],
                verdict["delta"],
                linestyle="none",
                marker=MARKERS[k + 1],
                color=COLOURS[k + 1],
                label=f"{name} {pair_words(verdict)}: {verdict['verdict']}",
                clip_on=False,
                zorder=3,
            )
        ax.set_xscale("log")
        top = max(table.delta_bound.max(), *(v["delta"] for v in audit["verdicts"].values()), 0.01)
        ax.set_ylim(0, 1.15 * top)
        ax.set_xlabel("epsilon (one task, all rounds)")
        ax.set_ylabel("delta")
        ax.set_title(title)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28))


def collect(results):
    """A row for each audit and guarantee: what was stated and what was measured."""
    keys = ["dataset", "method", "privacy", *SIZES, "stated_epsilon", "confidence", "guarantee"]
    keys += ["epsilon", "delta", "measured", "verdict", "attack", "pair"]
    return audits(results)[keys].reset_index(drop=True)


def draw(table, path):
    """Measured lower bound on delta at the stated epsilon, a line for each mechanism and method.

    With the curve 1 - e^-eps, what the one-sided Wishart noise gives up exactly. Guarantees that
    are stated at another epsilon than the stated one are in the table only.
    """
    stated = table[np.isclose(table.epsilon, table.stated_epsilon)]
    stated = stated.sort_values("guarantee").drop_duplicates(
        ["dataset", "method", "privacy", *SIZES, "stated_epsilon"]
    )
    groups = sorted(stated.groupby(["privacy", "method"]), key=lambda item: -item[1].measured.max())
    with figure(path, table, height=3.6) as ax:
        eps = np.geomspace(stated.epsilon.min(), stated.epsilon.max(), 200)
        ax.plot(eps, -np.expm1(-eps), color="0.75", lw=4, label="1 - exp(-epsilon)")
        sizes = stated[list(SIZES)].drop_duplicates()
        one_size = len(sizes) == 1
        for k, ((privacy, method), rows) in enumerate(groups):
            rows = rows.sort_values("epsilon")
            ax.plot(
                rows.epsilon,
                rows.measured,
                **look(method, rows.guarantee.iloc[0], privacy),
                label=legend_words(method, privacy, rows.guarantee.iloc[0])
                + ("" if one_size else f", {_sizes(rows)}"),
                markerfacecolor="none",
                markersize=4 + k % len(MARKERS),  # so that lines at zero can be told apart
                lw=1,
                clip_on=False,
            )
        delta = stated.drop_duplicates("epsilon").sort_values("epsilon")
        ax.plot(delta.epsilon, delta.delta, ":", color="0.2", label="stated delta")
        budget_axis(ax, sorted(stated.stated_epsilon.unique()))
        ax.set_yscale("symlog", linthresh=1e-4)
        ax.set_ylim(0, 1)
        _break_to_zero(ax)
        if one_size:
            ax.set_title(_sizes(stated))
        ax.set_xlabel("stated epsilon (one task, all rounds)")
        ax.set_ylabel(f"delta, {100 * stated.confidence.min():g} % lower bound")
        legend_below(ax, ncols=2)


def _sizes(rows):
    """d, m and T of audits in words; a range where they differ."""
    words = []
    for name, column in zip(("d", "m", "T"), SIZES, strict=True):
        ends = dict.fromkeys((rows[column].min(), rows[column].max()))
        words.append(f"{name} = {' to '.join(f'{value:g}' for value in ends)}")
    return ", ".join(words)


def _break_to_zero(ax):
    """Two strokes across the axis between zero and the first power of ten: no longer to scale."""
    for y in (0.4e-4, 0.5e-4):
        ax.plot(
            [0],
            [y],
            transform=ax.get_yaxis_transform(),
            marker=[(-1, -0.5), (1, 0.5)],
            markersize=8,
            color="k",
            mew=0.8,
            clip_on=False,
            gid="break",
        )
