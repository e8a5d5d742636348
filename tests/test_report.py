"""The page about a results folder: complete in itself, well-formed, and safe to open."""

import io
import json
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from conftest import make_run, script

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import accuracy, runs
from mpmtl.experiments.runner import execute
from mpmtl.paper.figures import privacy_accuracy
from mpmtl.paper.intervals import half_width
from mpmtl.paper.report import page
from mpmtl.paper.standing import owners, standing

VOID = {"meta", "img", "br", "link"}


class Checked(HTMLParser):
    """Fails on a tag that is not closed in order; keeps what the page loads, links and says."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.loads, self.ids, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.stack == []
        self.said = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for key, value in attrs if key in ("src", "href", "srcset")]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.stack):
            self.words.append(data)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A claimed, a proved and a non-private run with their figure and a table of claims."""
    path = tmp_path_factory.mktemp("results")
    for words in (("method=lr", "epsilon=1"), ("method=fl_local", "epsilon=1"), ("method=mtl_lr",)):
        execute(make_run(*words, "n_replicates=3", f"results_dir={path}"), io.StringIO())
    table = privacy_accuracy.collect(path, "low_rank")
    privacy_accuracy.draw(table, path / "figures/privacy_accuracy_low_rank")
    keys = ("id", "statement", "source", "measured", "verdict", "settings", "tried")
    claims = [
        ("C1", "a < b & <script>alert(1)</script>", "Fig. 6", "0.1", "holds", "s", "t"),
        ("C2", "more", "Fig. 7", "0.2", "does not hold", "s", ""),
        ("C3", "less", "Fig. 8", "", "undecided", "s", "t"),
    ]
    pd.DataFrame(claims, columns=keys).to_csv(path / "claims.csv", index=False)
    return path


def test_the_page_is_complete_and_loads_nothing(results):
    text = page(results)
    checked = Checked(text)
    pictures = list((results / "figures").glob("*.png"))
    assert checked.tags.count("img") == len(pictures) == 1
    assert checked.tags.count("script") == 1  # its own, which sorts tables
    for target in checked.loads:
        assert target.startswith(("data:image/png;base64,", "#")), target[:60]
        assert target.startswith("data:") or target[1:] in checked.ids
    assert "http" not in text.split("<style>")[1].split("</style>")[0]


def test_the_page_says_what_was_measured_and_what_is_proved(results):
    said = Checked(page(results)).said
    rows = pd.read_csv(results / "low_rank/lr/wishart/eps-1/replicates.csv")
    values = rows[rows.metric == "nmse"].value
    assert f"{values.mean():.4f} ± {values.std():.4f}" in said
    manifest = json.loads((results / "low_rank/lr/wishart/eps-1/manifest.json").read_text())
    assert manifest["code"] in said
    for code, text in manifest["privacy"]["caveats"].items():
        assert said.count(text) == 1, code
    assert "Utility bounds" not in said  # there is no such table
    for words in (
        "grid smoke, 3 replicates",
        "lr wishart 1 claimed* (1, ",
        "fl_local gaussian 1 proved none (1, ",
        "mtl_lr none - none none none",
        "Fig. 6a, 7a.",
        "Budgets shown: claimed* and proved.",
        "3 claims of the paper: 1 holds, 1 does not hold, 1 undecided.",
        "✓ holds",
        "✗ does not hold",
        "? undecided",
    ):
        assert words in said, words


def test_what_comes_from_files_is_text(results, tmp_path):
    folder = tmp_path / "d<i>/m/none/eps-inf"
    folder.mkdir(parents=True)
    manifest = json.loads((results / "low_rank/mtl_lr/none/eps-inf/manifest.json").read_text())
    evil = "<script>alert(2)</script>"
    manifest["code"] = manifest["grid"] = manifest["status"] = evil
    manifest["dataset"], manifest["method"] = "d<i>", "m"
    manifest["privacy"]["caveats"] = {evil: evil}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "claims.csv").write_text(f"id,verdict\n1,{evil}\n")
    (tmp_path / "utility_bounds.csv").write_text(f"{evil},b\n1,{evil}\n")
    checked = Checked(page(tmp_path))
    assert "i" not in checked.tags
    assert checked.tags.count("script") == 1
    assert checked.said.count(evil) >= 8


def test_the_verdict_and_the_best_methods_come_first(results):
    text = page(results)
    head = text[text.index("<h1>") : text.index("<nav>")]
    assert "3 claims of the paper" in head
    assert "best of the private methods is" in head
    headings = [part.split("</h2>")[0] for part in text.split("<h2>")[1:]]
    assert headings[:2] == ["Best methods", "Claims of the paper"]
    table = standing(runs(results))
    assert list(table["mean"]) == sorted(table["mean"])
    rows = accuracy(runs(results)).groupby("method")
    for row in table.itertuples():
        part = rows.get_group(row.method)
        assert row.gain == pytest.approx((part.stl - part.value).mean())
        assert row.half_width == pytest.approx(float(half_width(part.stl - part.value)))
        sure = abs(row.gain) > row.half_width
        assert row.verdict == (("better" if row.gain > 0 else "worse") if sure else "open")


@pytest.fixture(scope="module")
def own_table(tmp_path_factory):
    """Runs on a table of one's own, charged to a ledger."""
    path = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    table = pd.DataFrame(X, columns=["x", "z"])
    table["pupil"] = np.repeat([f"<b>{k}</b>" for k in range(6)], 20)
    table["score"] = X.sum(axis=1) + rng.standard_normal(120)
    table.to_csv(path / "pupils.csv", index=False)
    words = ("dataset=table", f"dataset.path={path}/pupils.csv", "dataset.task=pupil")
    words += ("dataset.target=score", "scale=smoke", "n_replicates=3", f"results_dir={path}/r")
    words += (f"ledger.path={path}/ledger.jsonl",)
    for method in ("stl", "fl_local"):
        run = make_run(*words, f"method={method}", "epsilon=1", tiny=False)
        execute(run, io.StringIO())
    return path


def test_the_same_page_for_a_table_of_ones_own(own_table):
    """Accuracy, owner by owner, what was spent and its statement, and the ledger's total."""
    text = page(own_table / "r")
    checked = Checked(text)
    assert "b" not in set(checked.tags)  # an owner's name is text
    said = checked.said
    for words in (
        "Owners who gain",
        "gain over separate tasks",
        "neighbours replace one task's model and data",
        "pupils, the same owners: 3 fits spent (",
        "the study: 3 fits spent (",
        "evaluation-not-charged",
        "fl_local 1 proved*",
    ):
        assert words in said, words
    for absent in ("Claims", "make reproduce-paper", "Utility bounds", "Audits"):
        assert absent not in said
    elsewhere = page(own_table / "r", own_table / "none.jsonl")
    assert "It is not here: mpmtl-report --ledger FILE names it." in elsewhere


def test_fits_of_other_splits_and_columns_are_on_the_same_owners(own_table, tmp_path):
    """Nothing that was spent is left out, whatever else the runs differ in."""
    words = ("dataset=table", f"dataset.path={own_table}/pupils.csv", "dataset.task=pupil")
    words += ("dataset.target=score", "scale=smoke", f"results_dir={tmp_path}", "method=fl_local")
    each = (
        ("epsilon=1", "n_replicates=1"),
        ("epsilon=2", "dataset.train_fraction=1"),
        ("epsilon=3", "n_replicates=1", "dataset.drop=[z]", "dataset.intercept=false"),
    )
    for own in each:
        execute(make_run(*words, *own, tiny=False), io.StringIO())
    assert "pupils, the same owners: 3 fits spent (" in Checked(page(tmp_path)).said


def test_owners_are_those_of_the_runs_and_their_mean_is_the_metric(own_table):
    ran = runs(own_table / "r")
    name = ran.index[ran.method == "fl_local"][0]
    table = owners(ran, [name]).set_index("task")
    saved = pd.read_csv(own_table / "r" / name / "owners.csv")
    assert len(saved) == 3 * 6
    for task, part in saved.groupby("task"):
        assert table.error[task] == pytest.approx(part.error.mean(), rel=1e-12)
        assert table.gain[task] == pytest.approx((part.stl - part.error).mean(), rel=1e-9)
    metrics = pd.read_csv(own_table / "r" / name / "replicates.csv")
    median = metrics[metrics.metric == "nmse_median"].set_index("replicate").value
    np.testing.assert_allclose(saved.groupby("replicate").error.median(), median, rtol=1e-9)
    assert owners(ran, []).empty


def test_what_the_budget_pays_for_shows_no_owner(own_table, tmp_path):
    words = ("dataset=table", f"dataset.path={own_table}/pupils.csv", "dataset.task=pupil")
    words += ("dataset.target=score", "scale=smoke", "method=fl_local", "epsilon=1")
    run = make_run(*words, "evaluation_epsilon=0.5", f"results_dir={tmp_path}", tiny=False)
    execute(run, io.StringIO())
    (folder,) = {path.parent for path in tmp_path.rglob("manifest.json")}
    assert not (folder / "owners.csv").exists()
    assert json.loads((folder / "manifest.json").read_text())["spent"].keys() == {
        "fits",
        "delta",
        "spent",
    }
    assert "Owners who gain" not in page(tmp_path)


def test_without_a_picture_it_is_drawn_from_its_table(results, tmp_path):
    folder = tmp_path / "figures/privacy_accuracy_low_rank.csv"
    folder.parent.mkdir()
    folder.write_bytes((results / "figures" / folder.name).read_bytes())
    assert Checked(page(tmp_path)).tags.count("img") == 1


def test_an_empty_folder_is_one_line(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        done = script("report.py", folder, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("error: nothing to report in")
        assert done.stderr.count("\n") == 1
    (tmp_path / "claims.csv").write_text("id,statement\n1,a\n")
    with pytest.raises(ResultsError, match="no column verdict"):
        page(tmp_path)
