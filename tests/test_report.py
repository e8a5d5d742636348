"""The page about a results folder: complete in itself, well-formed, and safe to open."""

import io
import json
from html.parser import HTMLParser

import pandas as pd
import pytest
from conftest import make_run, script

from mpmtl.errors import ResultsError
from mpmtl.experiments.runner import execute
from mpmtl.paper.figures import privacy_accuracy
from mpmtl.paper.report import page

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
        if "style" not in self.stack:
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
    assert "script" not in checked.tags
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
    for words in (
        "grid smoke, 3 replicates",
        "lr wishart 1 claimed* (1, ",
        "fl_local gaussian 1 proved none (1, ",
        "mtl_lr none - none none none",
        "Fig. 6a, 7a.",
        "Budgets shown: claimed* and proved.",
        "3 claims: 1 holds; 1 does not hold; 1 undecided.",
        "✓ holds",
        "✗ does not hold",
        "? undecided",
        "There is no table of utility bounds (utility_bounds.csv)",
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
    assert not {"script", "i"} & set(checked.tags)
    assert checked.said.count(evil) >= 8
    assert "There are no figures in this folder." in checked.said


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
