"""docs/extending.md: every example is run as it stands on the page."""

import os
import re
import shlex
import warnings
from importlib import import_module

import forked
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, mpmtl_run, table_lines
from sklearn.base import clone
from test_mechanisms import loss_over_pairs

from mpmtl import InputError, MultiTaskRegressor, PrivacyCaveat
from mpmtl.privacy.releases import Budget, covariance

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
SECTIONS = re.split(r"^## ", PAGE, flags=re.M)


def commands(section):
    (text,) = [s for s in SECTIONS if s.startswith(section)]
    return [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
        for line in block.splitlines()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files of the page, each called as its first line says."""
    root = tmp_path_factory.mktemp("own")
    for language, text in BLOCKS:
        if language != "sh":
            path = root / text.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return root


def carried_out(section, folder):
    """Carry out the commands of a section, in one process each; what they printed."""
    printed = []
    for line in commands(section):
        setting, program, *words = shlex.split(line)
        env = dict([setting.split("=", 1)])
        if program == "python":
            done = forked.carried_out(folder / words[0], words[1:], folder, os.environ | env)
        else:
            words += ["n_jobs=1"] * (program == "mpmtl-run")
            done = mpmtl_run(*words, cwd=folder, env=env, program=program)
        assert done.returncode == 0, line + done.stderr
        assert done.stderr == "" or (program == "python" and "PrivacyCaveat: " in done.stderr)
        printed.append(done.stdout)
    return printed


def test_a_data_set(folder):
    carried_out("A data set", folder)
    rows = pd.read_csv(folder / "results/smoke/plane/lr/wishart/eps-1/replicates.csv")
    assert rows.value.notna().all()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dataset.n=abc", "dataset.n = abc must be a whole number"),
        ("dataset.n=1.5", "dataset.n = 1.5 must be a whole number"),
        ("dataset.noise=true", "dataset.noise = True must be a number"),
        ("dataset.size=3", "unknown key 'dataset.size'"),
    ],
)
def test_settings_of_an_own_data_set_are_checked(word, message, folder):
    own = ("--config-dir", "own", "dataset=plane", "scale=smoke", "n_jobs=1")
    done = mpmtl_run(*own, word, cwd=folder, env={"PYTHONPATH": "."})
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_method_with_a_setting_of_its_own_and_a_figure(folder):
    sweep, half, python = carried_out("A method", folder)
    assert [line.split()[1:3] for line in table_lines(sweep)] == [
        *[["pulled", "gaussian"]] * 2,
        *[["lr", "gaussian"]] * 2,
    ]
    assert (
        "weight = "
        in (folder / "results/smoke/low_rank/pulled/gaussian/eps-1/card.txt").read_text()
    )
    cv = pd.read_csv(folder / "results/smoke/low_rank/pulled/gaussian/eps-1/cv.csv")
    assert set(cv.weight) == {0.1, 0.3, 1}
    assert "1 candidate, no cross-validation" in half
    assert python.startswith("(1, ")
    carried_out("A figure", folder)
    table = pd.read_csv(folder / "results/smoke/figures/own_figure.csv")
    assert set(zip(table.method, table.epsilon, strict=True)) >= {("pulled", 1), ("lr", 10)}
    assert (folder / "results/smoke/figures/own_figure.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("method.grid.weight=2", "method.grid.weight = 2 must be from 0 to 1"),
        ("method.grid.heavy=2", "unknown key 'method.grid.heavy'"),
        ("method=pulled/wishart", "privacy=wishart does not fit a method that releases a sum"),
        ("method=puled/wishart", "unknown method 'puled': did you mean pulled"),
    ],
)
def test_settings_and_pairs_of_an_own_method_are_checked(word, message, folder):
    own = ("--config-dir", "own", "scale=smoke", "n_jobs=1")
    own += ("method=pulled",) * (not word.startswith("method="))
    done = mpmtl_run(*own, word, cwd=folder, env={"PYTHONPATH": "."})
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_own_methods_and_mechanisms_are_learners(folder, monkeypatch):
    """The folder's names beside the package's, the same model as by hand, faults in a sentence."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((8, 3)) for _ in range(6)]
    y = [rows.sum(axis=1) for rows in X]

    def fitted(method, **settings):
        own = {"config_dir": "own", "tuning": "smoke"} | settings
        return MultiTaskRegressor(method, **own).fit(X, y)

    huge, rest = {"epsilon": 1e6, "delta": 1e-3}, {"privacy": "none", "method__grid__weight": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyCaveat)
        alone = fitted("pulled", **huge, **rest).coef_
        near = fitted("pulled", **huge, **rest | {"method__grid__weight": 0.5}).coef_
        bounded = alone / np.maximum(1, np.linalg.norm(alone, axis=1, keepdims=True))
        np.testing.assert_allclose(near, (alone + bounded.mean(axis=0)) / 2, rtol=1e-6)
        learner = clone(fitted("lr", privacy="laplace_matrix"))
        assert learner.fit(X, y).privacy_.proved.basis.startswith("Laplace mechanism")
    for settings, message in (
        ({"config_dir": None}, "unknown method 'pulled'.* Those of your own: config_dir="),
        ({"config_dir": "owm"}, "config_dir = 'owm': there is no such folder"),
        ({"config_dir": 3}, "config_dir = 3: there is no such folder"),
        ({"method__grid__weight": 2}, "method__grid__weight = 2 must be from 0 to 1"),
        ({"privacy": "wishart"}, "privacy=wishart does not fit"),
    ):
        with pytest.raises(InputError, match=message):
            fitted("pulled", **settings)


def test_a_mechanism(folder):
    run, audit = carried_out("A mechanism", folder)
    assert "proved      (1, 0.0005" in run
    assert "verdict     not refuted (the proved guarantee)" in audit


def test_the_own_mechanism_spends_no_more_than_its_budget(folder, monkeypatch, rng):
    """Densities of neighbours, moments, and noise in proportion to the release's sensitivity."""
    monkeypatch.syspath_prepend(folder)
    mechanism, release = import_module("own_mechanism").LaplaceMatrix(), covariance(4)
    largest = max(ratio.max() for ratio in loss_over_pairs(mechanism, release, 0.7))
    assert 0.2 < largest / 0.7 <= 1
    E = mechanism.draw(rng, release, (20_000,))
    np.testing.assert_array_equal(E, E.swapaxes(1, 2))
    np.testing.assert_allclose(E.var(axis=0), 2, rtol=0.1)
    norms = np.abs(np.linalg.eigvalsh(mechanism.draw(rng, covariance(30), (50,)))).max(axis=1)
    assert 0.5 < mechanism.spectral_norm(covariance(30)) / norms.mean() < 2
    budget = Budget(mechanism, 1.0, 1e-3)
    gate = budget.planned(release, mechanism.budgets(1.0, 1e-3, 3))
    assert gate.scale(1, 2.0) == pytest.approx(release.l1 * 4 / gate.budgets[0])
    assert budget.statement(gate).proved.basis == "Laplace mechanism, composition bound CB"
