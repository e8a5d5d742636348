"""Text on terminals of any width, progress without one, and what a card says of one task."""

import os
import re
import time

import numpy as np
import pytest
from conftest import ROOT, TINY, mpmtl_run, ragged_data

from mpmtl.experiments import layout
from mpmtl.experiments.layout import Progress, card_text, table_text
from mpmtl.experiments.sweep import report
from mpmtl.experiments.terminal import caveats_of
from mpmtl.metrics import dominating, evaluate
from mpmtl.privacy.statements import CAVEATS

WORDS = "evaluation-not-charged: a statistic, e.g. is false; semi-definite (docs/privacy.md)"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_cards_and_tables_fit_and_break_no_word(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = " ".join([WORDS] * 5)
    card = card_text("low_rank x lr, " * 6, [("caveat", text), ("note", text)])
    lines = card.splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(card.split()).count(WORDS) == 10
    row = {f"column {k}": f"({k}.5, 0.00{k})*" for k in range(12)}
    lines = table_text([row, row]).splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(" ".join(lines[-len(lines) // 3 :]).split()).endswith(" ".join(row.values()))
    heading, first, second = (
        [re.search(r"\S", line).start() for line in part]
        for part in np.array_split([x for x in lines if set(x) != {"-"}], 3)
    )
    assert heading == first == second  # a value stands below its name


@pytest.mark.parametrize("program", ["mpmtl-run", "mpmtl-audit"])
def test_help_fits_the_terminal(program, tmp_path):
    """Every line, with all words of the help as it is without a terminal."""
    whole = mpmtl_run("--help", cwd=tmp_path, program=program)
    assert whole.returncode == 0
    for columns in (60, 80, 120):
        shown = mpmtl_run("--help", cwd=tmp_path, program=program, env={"COLUMNS": str(columns)})
        assert shown.returncode == 0
        assert max(map(len, shown.stdout.splitlines())) <= columns
        assert shown.stdout.split() == whole.stdout.split()
        if columns == 80:  # made for this width: only lists of names go on below themselves
            kept = [li for li in whole.stdout.splitlines() if not re.match(r"\w+: \w+, ", li)]
            assert set(kept) <= set(shown.stdout.splitlines())


def test_an_error_is_one_line_but_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    layout.say_error(f"{WORDS}\n{WORDS}")
    assert capsys.readouterr().err == f"error: {WORDS} {WORDS}\n"
    monkeypatch.setattr(layout.sys.stderr, "isatty", lambda: True)
    layout.say_error(f"{WORDS}\n{WORDS}")
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(lines) == f"error: {WORDS} {WORDS}"
    report([{"name": "seed=1", "error": WORDS}], table=False)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines[1:]).split()) == f"seed=1: {WORDS}"


def test_all_that_is_said_on_standard_error_is_said_so():
    """By `layout.say`: nothing else prints there."""
    for path in (ROOT / "mpmtl").rglob("*.py"):
        if path.name != "layout.py":
            assert "file=sys.stderr" not in path.read_text(), path


def test_without_a_terminal_tables_stay_whole_and_cards_have_a_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(layout.shutil, "get_terminal_size", os.terminal_size)
    assert layout.width() == 96
    assert len(table_text([{f"column {k}": "x" * 9 for k in range(30)}]).splitlines()) == 3


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(layout, "EACH", 0.02)
    with Progress("low_rank x lr", "replicate", 4) as progress:
        progress.advance(note="nmse 0.1")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert re.fullmatch(
        r"low_rank x lr: 1 of 4 replicates, nmse 0.1, \d s, about \d s left", lines[-1]
    )
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_job_of_a_sweep_is_one_line_and_its_card_a_file(tmp_path):
    words = ["-m", "method=stl,lr", "epsilon=1", "tuning=fixed", *TINY]
    done = mpmtl_run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("low_rank x stl, tasks kept separate: nmse ")
    assert lines[1].startswith("low_rank x lr, wishart, eps = 1 claimed*: nmse ")
    assert lines[2] == ""
    card = (tmp_path / "results/smoke/low_rank/lr/wishart/eps-1/card.txt").read_text()
    assert "claimed     (1, " in card
    again = mpmtl_run("-v", *words, cwd=tmp_path)
    assert card.splitlines()[2] in again.stdout


def test_a_card_speaks_of_what_is_chosen_alone(tmp_path):
    """Separate tasks have no T and no K, and an audit chooses nothing."""
    cards = {
        name: mpmtl_run(f"method={name}", *TINY, cwd=tmp_path).stdout.split("tuning-not-charged")[1]
        for name in ("stl", "fl_shared", "lr")
    }
    start = ": chosen from all tasks' data outside the budget, as in the paper:"
    texts = {name: " ".join(card.split("caveat")[0].split()) for name, card in cards.items()}
    assert texts["stl"].startswith(f"{start} lambda; ")
    assert "the choice inside the fit;" in texts["fl_shared"]
    assert not re.search(r"\b[TK]\b", texts["fl_shared"])
    assert texts["lr"].startswith(f"{start} lambda, T, the ridge penalty")
    audit = mpmtl_run("samples=200", "attack=support", cwd=tmp_path, program="mpmtl-audit")
    assert "wishart-support" in audit.stdout
    assert "tuning-not-charged" not in audit.stdout


def test_caveats_of_a_sweep_are_general_where_they_differ():
    rows = [{"caveats": {"tuning-not-charged": text, "float-noise": "x"}} for text in "ab"]
    general = " ".join(CAVEATS["tuning-not-charged"].split())
    assert general in " ".join(caveats_of(rows).split())
    assert "float-noise: x" in caveats_of(rows)


def test_the_task_that_makes_the_mean_is_named(rng):
    data = ragged_data(rng, m=6)
    W = np.stack(
        [np.linalg.lstsq(X, y, rcond=None)[0] for X, y in zip(data.X, data.y, strict=True)]
    )
    means = np.zeros(6)
    assert dominating(data, W, means) is None
    W[3] += 100
    found = dominating(data, W, means)
    assert (found["task"], found["rows"]) == ("4", len(data.y[3]))
    assert evaluate(data, W)["nmse"] > 2 * found["without"]
    rest = [k for k in range(6) if k != 3]
    alone = [((data.X[k] @ W[k] - data.y[k]) ** 2).mean() / data.y[k].var() for k in rest]
    assert found["without"] == pytest.approx(np.mean(alone))
    assert dominating(ragged_data(rng, kind="binary"), W, means) is None
