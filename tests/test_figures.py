"""Figures: the table behind each is what the runs measured; legends say claimed or proved."""

import io
import shutil

import numpy as np
import pandas as pd
import pytest
from conftest import make_run, mpmtl_run, run_all, script
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import accuracy, read_table, runs
from mpmtl.experiments.runner import execute
from mpmtl.paper.catalogue import FIGURES, KINDS, file_of, make
from mpmtl.paper.figures import (
    budget_allocation,
    matrices,
    privacy_accuracy,
    proved_tradeoff,
    training_percentage,
)
from mpmtl.paper.figures.style import (
    METHODS,
    at_the_edge,
    figure,
    labels_at_lines,
    legend_below,
    line_with_bars,
    look,
)
from mpmtl.paper.intervals import half_width, summary
from mpmtl.privacy.statements import MARK_WORDS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two private methods at two budgets and a non-private one, 3 replicates each."""
    return run_all(
        tmp_path_factory.mktemp("results"),
        3,
        ("method=lr", "privacy=wishart", "epsilon=1"),
        ("method=lr", "privacy=wishart", "epsilon=10"),
        ("method=gs", "privacy=laplace", "epsilon=1"),
        ("method=mtl_lr",),
    )


def test_the_table_holds_what_the_runs_measured(results, tmp_path):
    privacy_accuracy.draw(privacy_accuracy.collect(results, "low_rank"), tmp_path / "a")
    table = pd.read_csv(tmp_path / "a.csv").set_index(["method", "epsilon"])
    rows = pd.read_csv(results / "low_rank/lr/wishart/eps-10/replicates.csv")
    values = rows[rows.metric == "nmse"].value
    line = table.loc[("lr", 10.0)]
    assert line["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert line["std"] == pytest.approx(values.std(), rel=1e-12)
    assert line["count"] == 3
    assert (table.loc["lr"].status == "claimed*").all()
    assert (table.loc["gs"].status == "proved*").all()
    assert (table.loc["mtl_lr"].status == "none").all()
    for suffix in (".png", ".pdf"):
        assert (tmp_path / "a").with_suffix(suffix).stat().st_size > 5000


def test_a_figure_of_chosen_methods_and_mechanisms(results):
    collect = privacy_accuracy.collect
    assert set(collect(results, "low_rank", ["gs"]).method) == {"gs"}
    assert set(collect(results, "low_rank", ["lr/wishart", "gs/wishart"]).method) == {"lr"}
    with pytest.raises(ResultsError, match="no run of gs/wishart"):
        collect(results, "low_rank", ["gs/wishart"])


def test_stl_belongs_to_the_same_replicates(results):
    rows = accuracy(runs(results))
    stl = rows.groupby("replicate").stl.nunique()
    assert (stl == 1).all()
    assert len(stl) == 3


def test_pictures_show_the_models_of_the_run_they_are_beside(tmp_path):
    """Another seed, another number of tasks: the true models in the figure are that run's own."""
    for method in ("lr", "dp_mtrl"):
        words = (f"method={method}", "epsilon=0.1", "seed=5", "tag=task_relations")
        run = make_run(*words, "save_models=true", f"results_dir={tmp_path}")
        execute(run, io.StringIO())
    table = matrices.collect_relations(tmp_path)
    drawn = table[table.panel == "true: models"].loc[:, "1":"12"].to_numpy()
    W = run.dataset.truth(5, 0)[0]
    assert drawn.shape == (4, 12)
    unit = (W / np.linalg.norm(W, axis=1)[:, None]).T
    np.testing.assert_allclose(drawn, unit, rtol=0, atol=0.5001e-4)


def test_what_is_not_there_is_one_line(results, tmp_path):
    with pytest.raises(ResultsError, match="no run of school below .*: there is low_rank"):
        privacy_accuracy.collect(results, "school")
    with pytest.raises(ResultsError, match="no finished run below"):
        runs(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ResultsError, match="is damaged"):
        runs(tmp_path)
    for other in ("[]", '{"name": "another program", "settings": {}}'):
        (tmp_path / "manifest.json").write_text(other)
        with pytest.raises(ResultsError, match="is not the manifest of a run"):
            runs(tmp_path)


def test_the_script_says_what_it_wrote_and_what_is_wrong(results, tmp_path):
    words = ["--results", results, "--out", tmp_path / "b"]
    done = script("plot_privacy_accuracy.py", "low_rank", *words)
    assert done.returncode == 0, done.stderr
    assert "b.png, .pdf and .csv" in done.stdout
    done = script("plot_privacy_accuracy.py", "other", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run of other")


@pytest.fixture(scope="module")
def everything(results):
    """A results folder from which every figure can be drawn."""
    base = (("lr", 0.1), ("dp_mtrl", 0.1), ("fl", 1), ("dp_aggr", 1), ("stl", 1))
    jobs = [(f"method={method}", f"epsilon={eps}") for method, eps in base]
    for method in ("stl", "mtl_lr", "lr"):
        for form in ("convex", "strong"):
            jobs.append((f"experiment=budget_allocation_{form}", f"method={method}"))
        for m in (6, 12):
            words = (f"dataset.used={m}", f"tag='task_number/{m}'")
            jobs.append((f"method={method}", "epsilon=0.1", *words))
    jobs += [("experiment=task_relations", f"method={name}") for name in ("lr", "dp_mtrl", "stl")]
    jobs.append(("experiment=noise_to_signal",))
    run_all(results, 2, *jobs)
    rng = np.random.default_rng(0)
    pupils = pd.DataFrame(rng.standard_normal((80, 3)), columns=["x", "z", "score"])
    pupils.assign(school=np.repeat(list("abcd"), 20)).to_csv(results / "pupils.csv", index=False)
    table = ("dataset=table", f"dataset.path={results}/pupils.csv", "dataset.task=school")
    table += ("dataset.target=score", "epsilon=1", "scale=smoke", f"results_dir={results}")
    for share in (0.3, 0.5):
        words = (*table, f"dataset.train_fraction={share}", f"tag=training_percentage/{share}")
        for method in ("lr", "dp_mtrl", "mtl_lr"):
            execute(make_run(*words, f"method={method}", tiny=False), io.StringIO())
    words = ("experiment=model_leakage", "scale=smoke", f"results_dir={results}")
    for eps in ("1e40", "0.1"):
        execute(make_run(*words, f"epsilon={eps}", tiny=False), io.StringIO())
    words = ("-m", "privacy=wishart,gaussian", "epsilon=0.1,1", "samples=400", "attack=support")
    done = mpmtl_run(*words, f"results_dir={results}", cwd=results, program="mpmtl-audit")
    assert done.returncode == 0, done.stderr
    return results


CASES = [
    ("model_leakage", {}),
    ("task_relations", {}),
    ("budget_allocation", {"form": "convex"}),
    ("budget_allocation", {"form": "strong"}),
    ("noise_to_signal", {}),
    ("privacy_accuracy", {"dataset": "low_rank"}),
    ("task_number", {}),
    ("training_percentage", {"dataset": "pupils"}),
    ("privacy_audit", {}),
    ("proved_tradeoff", {}),
]


def test_every_kind_of_figure_is_tested():
    assert {name for name, _ in CASES} == set(KINDS)


@pytest.mark.parametrize(("name", "values"), CASES)
def test_a_figure_is_drawn_again_from_its_table(everything, tmp_path, name, values):
    """The CSV is the table and gives the same pixels."""
    collected = []
    make(name, everything, tmp_path / "a", collected.append, **values)
    saved = read_table(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(saved, collected[0], check_dtype=False, rtol=1e-14)
    KINDS[name].draw(saved, tmp_path / "b")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.fixture(scope="module")
def reference(everything, tmp_path_factory):
    """The same as tables."""
    folder = tmp_path_factory.mktemp("reference")
    done = script("keep_reference.py", everything, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "results/reference"


@pytest.mark.parametrize(("name", "values"), CASES)
def test_a_reference_gives_the_same_figure(everything, reference, name, values):
    collect = KINDS[name].collect
    if name in ("model_leakage", "task_relations"):
        with pytest.raises(ResultsError, match="has no models"):
            collect(reference, **values)
        return
    pd.testing.assert_frame_equal(
        collect(reference, **values), collect(everything, **values), check_exact=True
    )


def test_the_comparison_is_printed_from_runs_and_from_its_table(everything, tmp_path):
    name, out = "plot_proved_tradeoff.py", tmp_path / "a"
    first = script(name, "--results", everything, "--out", out)
    again = script(name, "--table", f"{out}.csv", "--out", out)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert "R_low" in first.stdout
    assert again.stdout == first.stdout


def test_saved_figures_are_drawn_again_without_runs(results, tmp_path):
    privacy_accuracy.draw(privacy_accuracy.collect(results, "low_rank"), tmp_path / "p")
    picture = tmp_path / "figures/privacy_accuracy_low_rank.png"
    picture.parent.mkdir()
    shutil.copy(tmp_path / "p.csv", picture.with_suffix(".csv"))
    files = {file_of(figure.kind, figure.values) for figure in FIGURES}
    done = script("redraw_figures.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"1 of {len(files)} figures" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("not drawn")]
    assert set(line.rpartition(": ")[2].split(", ")) == files - {picture.stem}
    assert picture.read_bytes() == (tmp_path / "p.png").read_bytes()
    done = script(
        "plot_privacy_accuracy.py", "--table", tmp_path / "p.csv", "--out", tmp_path / "q"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "q.png").read_bytes() == (tmp_path / "p.png").read_bytes()
    done = script("plot_noise_to_signal.py", "--table", tmp_path / "p.csv")
    assert done.returncode == 2
    assert "p.csv is not the table of this figure: it has dataset" in done.stderr
    assert script("redraw_figures.py", tmp_path / "none").returncode == 2


def test_own_data_is_drawn_and_a_damaged_table_is_an_error(everything, tmp_path):
    """A data set that no figure of the paper has: one line says what else could not be drawn."""
    results, only = tmp_path / "results", ("--only", "privacy_accuracy_")
    table = ("dataset=table", f"dataset.path={everything}/pupils.csv", "dataset.task=school")
    table += ("dataset.target=score", "scale=smoke", f"results_dir={results}", "method=fl_local")
    execute(make_run(*table, "epsilon=1", tiny=False), io.StringIO())
    done = mpmtl_run("results", *only, cwd=tmp_path, program="mpmtl-figures")
    assert done.returncode == 0, done.stderr
    assert (results / "figures/privacy_accuracy_pupils.png").is_file()
    assert "privacy_accuracy_pupils.png, .pdf and .csv, from the runs" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("not drawn")]
    assert "privacy_accuracy_lsoa2" in line
    assert "task_number" not in line
    execute(make_run(*table, "epsilon=2", "dataset.train_fraction=1", tiny=False), io.StringIO())
    paid = ("epsilon=3", "delta=1e-3", "evaluation_epsilon=0.5", "privacy.noise=secure")
    execute(make_run(*table, *paid, tiny=False), io.StringIO())
    assert set(privacy_accuracy.collect(results, "pupils").epsilon) == {1}
    next(results.glob("pupils/*/*/eps-1/replicates.csv")).write_text("")
    only = ("--only", "privacy_accuracy_pupils")
    done = mpmtl_run("results", *only, cwd=tmp_path, program="mpmtl-figures")
    assert done.returncode == 2
    assert "is no table" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_method_has_one_colour_and_no_other_has_it():
    assert len({colour for colour, _ in METHODS.values()}) == len(METHODS)
    for method in METHODS:
        assert look(method, "proved")["color"] == look(method, "claimed*")["color"]
    assert [look("fl", status)["ls"] for status in ("proved", "proved*", "none")] == [
        "-",
        "--",
        ":",
    ]


def test_levels_of_separate_tasks_can_be_told_apart():
    """By colour and by dots, as they have no markers."""
    styles = [look(method, "none") for method in ("stl", "stl_best", "stl_local")]
    assert len({style["color"] for style in styles}) == len({style["ls"] for style in styles}) == 3


def test_bars_of_lines_lie_beside_each_other(tmp_path):
    table = pd.DataFrame({"x": [1.0, 2.0], "mean": [3.0, 4.0], "half_width": [0.5, 0.5]})
    with figure(tmp_path / "a", table) as ax:
        for aside in (-3, 0, 3):
            line_with_bars(ax, table.x, table, look("lr"), str(aside), aside)
        at = [line.get_transform().transform((1, 3))[0] for line in ax.lines[::3]]
        np.testing.assert_allclose(np.diff(at), 3 * ax.figure.dpi / 72)
        assert ax.get_ylim()[0] < 2.5 < 4.5 < ax.get_ylim()[1]


def test_the_two_panels_have_one_title_within_the_picture(everything, tmp_path):
    """The panels of Figs. 6 to 10 say nothing twice, and no text is cut or lies over another."""
    for width in (False, True):
        table = privacy_accuracy.collect(everything, "low_rank")
        table = table if width else table[~table.method.isin(privacy_accuracy.BASELINES)]
        table["dataset"] = "a_name_of_data"
        drawn = drawn_figure(privacy_accuracy.draw, table, tmp_path / "a")
        texts = [t for t in drawn.findobj(Text) if t.get_visible() and t.get_text().strip()]
        boxes = [t.get_window_extent() for t in texts if "replicates" in t.get_text()]
        assert len(boxes) == 1
        assert 0 <= boxes[0].x0 < boxes[0].x1 <= drawn.bbox.x1
        assert_inside(drawn)


def assert_inside(drawn):
    """No line of a legend is cut by the edge of the picture."""
    for legend in (found for ax in drawn.axes for found in ax.findobj(Legend)):
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1
    for legend in drawn.legends:
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1


def test_a_legend_is_not_cut_below_a_single_panel(everything, tmp_path):
    table = training_percentage.collect(everything, "pupils")
    assert table.epsilon.nunique() == 1
    assert_inside(drawn_figure(training_percentage.draw, table, tmp_path / "a"))
    table = privacy_accuracy.collect(everything, "low_rank")
    table = table[~table.method.isin(privacy_accuracy.BASELINES)]
    for method, privacy in (("lr", "two_sided_wishart"), ("fl_local", "gaussian")):
        named = table.assign(privacy=table.privacy.replace("wishart", privacy))
        named["method"] = named.method.replace("lr", method)
        assert_inside(drawn_figure(privacy_accuracy.draw, named, tmp_path / "a"))


def drawn_figure(draw, table, path):
    """The matplotlib figure that `draw` saved."""
    kept, savefig = [], Figure.savefig

    def keep(self, *args, **options):
        kept.append(self)
        return savefig(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        draw(table, path)
    return kept[0]


def test_labels_at_lines_stay_apart_and_in_the_picture(tmp_path):
    heights = [0.0, 0.0, 0.01, 0.5, 0.51, 0.52, 1.0, 1.0]
    with figure(tmp_path / "a", pd.DataFrame({"y": heights})) as ax:
        labels_at_lines(ax, [(y, str(k), "k") for k, y in enumerate(heights)])
        places = [text.xyann[1] for text in ax.texts]
    assert min(np.diff(places)) > 0.07
    assert -1e-9 <= min(places) <= max(places) <= 1 + 1e-9


def test_a_value_beyond_the_axes_stands_at_the_edge_with_its_number(tmp_path):
    """On both sides, of two lines; what is inside has none."""
    with figure(tmp_path / "a", pd.DataFrame({"y": [0]})) as ax:
        ax.set(xlim=(0, 4), ylim=(0, 1))
        first, second = look("lr", "proved"), look("gs", "claimed")
        at_the_edge(ax, [([1, 2, 3], [5.0, 0.5, -0.012], first), ([1], [2.0], second)])
    numbers = {text.get_text(): (text.xy, text.get_color()) for text in ax.texts}
    assert numbers == {
        "5.00": ((1, 1.0), first["color"]),
        "-0.012": ((3, 0.0), first["color"]),
        "2.00": ((1, 1.0), second["color"]),
    }
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines]
    assert sorted(drawn) == [([1], [1.0]), ([1], [1.0]), ([3], [0.0])]


def test_no_method_of_the_trade_off_is_off_its_picture(everything, tmp_path):
    """Every point of a private method is within the axes or has its number at the edge."""
    table, drawn = proved_tradeoff.collect(everything), []
    noisy = table[(table.dataset == "low_rank") & np.isfinite(table.epsilon)]
    with figure(tmp_path / "a", table) as ax:
        proved_tradeoff.panel(ax, table[table.dataset == "low_rank"], "low_rank")
        low, high = ax.get_ylim()
        drawn = [text.get_text() for text in ax.texts if text.get_gid() == "beyond"]
    inside = noisy["mean"].between(low, high)
    assert 0 < inside.sum() < len(noisy)
    assert len(drawn) == (~inside).sum()


def test_half_widths_are_students_and_paired_to_separate_tasks(rng):
    """t_{.975,3} = 3.1824463; the spread that a method shares with separate tasks cancels."""
    values = np.array([1.0, 2.0, 3.0, 4.0])
    want = 3.1824463 * values.std(ddof=1) / 2
    assert half_width(values) == pytest.approx(want, rel=1e-7)
    assert np.isnan(half_width(values[:1]))
    rows = pd.DataFrame({"method": "lr", "value": values})
    assert summary(rows, ["method"]).half_width[0] == pytest.approx(want, rel=1e-7)
    paired = summary(rows.assign(stl=values + np.array([0.1, 0.2, 0.1, 0.2])), ["method"])
    assert paired.half_width[0] == pytest.approx(want * np.std([1, 2, 1, 2]) / (10 * values.std()))
    assert paired["std"][0] == pytest.approx(values.std(ddof=1))


def test_relations_have_a_panel_of_separate_tasks(everything):
    panels = set(matrices.collect_relations(everything).panel)
    assert {"stl, separate tasks: relation", "stl, separate tasks: models"} <= panels


def test_intervals_of_the_budget_are_paired_with_the_best_setting(everything):
    table = budget_allocation.collect(everything, "convex")
    private = table[table.privacy != "none"]
    assert private.loc[private["mean"].idxmin(), "half_width"] == 0
    assert (private.half_width >= 0).all()
    assert table[table.privacy == "none"].half_width.isna().all()


@pytest.mark.parametrize("below", [True, False])
def test_the_words_of_the_mark_do_not_lie_over_a_legend(tmp_path, below):
    table = pd.DataFrame({"x": [1, 2], "status": ["claimed*"] * 2})
    with figure(tmp_path / "a", table) as ax:
        for k in range(4):
            ax.plot(table.x, label=f"a long name of a line in the legend {k}")
        if below:
            legend_below(ax)
    drawn = ax.figure
    drawn.draw_without_rendering()
    words = [text for text in drawn.findobj(Text) if text.get_text() == MARK_WORDS]
    assert len(words) == 1
    box = words[0].get_window_extent()
    others = [text for legend in drawn.legends for text in legend.get_texts()]
    assert len(others) == 4 * below
    assert not any(box.overlaps(text.get_window_extent()) for text in others)
