"""`mpmtl-audit` as a user meets it, and the pictures."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, script, table_lines
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from test_cli import is_refused, mpmtl_run

from mpmtl.errors import InputError
from mpmtl.experiments.audit import build_audit, execute_audit
from mpmtl.experiments.config import AuditSchema, register_schema
from mpmtl.paper.figures.privacy_audit import collect
from mpmtl.paper.figures.style import figure

MPMTL_AUDIT = str(Path(sys.executable).parent / "mpmtl-audit")
QUICK = ("samples=400", "attack=[support,likelihood]")
FOLDER = "results/audit/low_rank/lr/wishart/d-5_m-10_T-1/eps-0.1"


def mpmtl_audit(*arguments, cwd, **options):
    return mpmtl_run(*arguments, cwd=cwd, program=MPMTL_AUDIT, **options)


def test_help_names_every_key_and_makes_no_promise(tmp_path):
    done = mpmtl_audit("--help", cwd=tmp_path)
    assert done.returncode == 0
    for key in AuditSchema.__dataclass_fields__:
        if key not in ("dataset", "method", "privacy", "tuning"):
            assert f"{key}=" in done.stdout, key
    text = " ".join(done.stdout.split())  # its lines end where a narrow terminal does
    for word in ("not refuted", "claimed or proved", "one task replaced"):
        assert word in text


def test_the_paper_is_refuted_in_words_and_files(tmp_path):
    done = mpmtl_audit("privacy=wishart", "epsilon=0.1", "samples=2000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line in (
        "claimed     (0.1, 0.00054): Theorem 1 of the paper, which is false",
        "verdict     refuted (the claimed guarantee)",
        "proved      (0.1, 0.0952): support of the Wishart noise, exact",
        "verdict     not refuted (the proved guarantee)",
        "unit        a task; neighbours replace one task's model and data",
    ):
        assert line in done.stdout
    assert "is private" not in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["results"]
    folder = tmp_path / FOLDER
    names = {p.name for p in folder.iterdir()}
    assert names >= {"manifest.json", "bounds.csv", "profile.csv", "profile.png", "profile.pdf"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["seed"] == 0
    assert manifest["settings"]["samples"] == 2000
    assert manifest["verdicts"]["claimed"]["verdict"] == "refuted"
    assert manifest["privacy"]["unit"] == "task"
    bounds = pd.read_csv(folder / "bounds.csv")
    assert set(bounds.attack) >= {"support", "likelihood", "view_support", "linear"}
    assert bounds.delta_bound.max() == pytest.approx(0.095, abs=0.03)
    again = mpmtl_audit("privacy=wishart", "epsilon=0.1", "samples=2000", cwd=tmp_path)
    assert "already done" in again.stdout
    other = mpmtl_audit("privacy=wishart", "epsilon=0.1", "samples=400", cwd=tmp_path)
    assert other.returncode == 2
    assert "samples: 2000 -> 400" in other.stderr
    assert "overwrite=true" in other.stderr


def test_a_proved_mechanism_alone_is_audited_by_the_method_that_shows_it(tmp_path):
    done = mpmtl_audit("privacy=laplace", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "low_rank x gs, laplace" in done.stdout
    assert "claimed     nothing" in done.stdout
    assert "verdict     not refuted (the proved guarantee)" in done.stdout


def test_real_data_of_the_other_tasks(tmp_path, data_dir):
    words = ("dataset=school", f"data_dir={data_dir}", "privacy=wishart", "epsilon=1")
    done = mpmtl_audit(*words, "samples=400", "attack=support", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verdict     refuted (the claimed guarantee)" in done.stdout


BAD = {
    "epsilon=0": "epsilon = 0.0 must be finite and above 0",
    "privacy=gaussian delta=0": "needs delta in (0, 1)",
    "privacy=laplace method=lr": "does not fit a method that releases the whole covariance",
    "privacy=none": "there is nothing to audit",
    "privacy=output_perturbation": "name the method it belongs to",
    "method=stl": "method=stl is not private",
    "samples=10": "samples = 10 must be a whole number of at least 200",
    "samples=many": "samples = many",
    "attack=guess": "attack = guess: use all or support, likelihood, view, fitted",
    "method=mr_mtl attack=view": "attack = view does not apply here",
    "d=0": "d = 0 must be a whole number of at least 1",
    "m=1": "m = 1 must be a whole number of at least 2",
    "rounds=0": "rounds = 0",
    "rounds=two": "could not be converted to Integer",
    "confidence=2": "confidence = 2.0 must be above 0.5 and below 1",
    "lam=-1": "lam = -1.0",
    "density=other": "density = other: use corrected or paper",
    "seed=-1": "seed = -1 must be at least 0",
    "dataset=school data_dir=nowhere": "run `make data`",
    "dataset=school d=5": "has a size of its own",
    "dataset=school delta=auto": "delta = auto needs synthetic data",
    "epsilom=1": "unknown key 'epsilom': did you mean epsilon?",
    "method=lrr": "unknown method 'lrr': did you mean lr",
    "n_replicates=3": "unknown key 'n_replicates'",
    "experiment=model_leakage": "experiment=model_leakage is for mpmtl-run",
    "results_dir=/proc/none": "cannot write results in /proc/none",
}


#: Those that are refused before or after the settings are built: through the command.
BY_COMMAND = ("epsilom=1", "method=lrr", "n_replicates=3", "samples=10", "results_dir=/proc/none")
COMPOSED = [a for a in BAD if a not in BY_COMMAND and not a.startswith("experiment")]


@pytest.mark.parametrize("arguments", [*BY_COMMAND, "experiment=model_leakage"])
def test_bad_input_is_one_line_and_exit_code_2(arguments, tmp_path):
    quick = [word for word in QUICK if word.split("=")[0] not in arguments]
    is_refused(mpmtl_audit(*quick, *arguments.split(), cwd=tmp_path), BAD[arguments])


@pytest.mark.parametrize("arguments", COMPOSED)
def test_bad_settings_are_refused_in_one_line(arguments, tmp_path):
    """In one process, which is faster; Hydra refuses a word for rounds itself."""
    register_schema()
    words = [w for w in QUICK if w.split("=")[0] not in arguments] + arguments.split()

    def attempt():
        run = build_audit(compose("audit", [*words, f"results_dir={tmp_path}"]))
        execute_audit(run, io.StringIO())

    with (
        initialize_config_dir(str(ROOT / "conf"), version_base="1.3"),
        pytest.raises((InputError, HydraException)) as refused,
    ):
        attempt()
    text = f"{refused.value} {refused.value.__cause__}"
    assert BAD[arguments] in text
    assert isinstance(refused.value, HydraException) or "\n" not in str(refused.value)


def test_a_sweep_ends_with_a_table_and_is_drawn(tmp_path):
    words = ("-m", "privacy=wishart,gaussian", "epsilon=0.1,1", *QUICK)
    done = mpmtl_audit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wishart-support: ") == 1
    table = table_lines(done.stdout)
    assert [line.split()[2] for line in table] == ["wishart", "wishart", "gaussian", "gaussian"]
    drawn = script("plot_privacy_audit.py", cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    stem = tmp_path / "results" / "figures" / "privacy_audit"
    assert stem.with_suffix(".png").stat().st_size > 10_000
    assert stem.with_suffix(".pdf").is_file()
    rows = pd.read_csv(stem.with_suffix(".csv"))
    assert len(rows) == len(collect(tmp_path / "results")) == 6  # claimed and proved for wishart
    empty = script("plot_privacy_audit.py", "--results", "none", cwd=tmp_path)
    assert empty.returncode == 2
    assert empty.stderr == "error: no audits below none: run mpmtl-audit experiment=privacy_audit\n"


def test_audits_that_find_the_same_have_a_line_each(tmp_path):
    words = ("-m", "privacy=gaussian", "epsilon=1", "d=2,3", "samples=2000", "attack=likelihood")
    done = mpmtl_audit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in table_lines(done.stdout)]
    assert [line[3] for line in table] == ["d-2_m-10_T-1", "d-3_m-10_T-1"]
    assert [line[-1] for line in table] == ["0)", "0)"]


def test_the_experiment_composes_for_every_mechanism():
    register_schema()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("audit", ["experiment=privacy_audit"], return_hydra_config=True)
        sweep = cfg.hydra.sweeper.params
        for privacy in sweep.privacy.split(","):
            run = build_audit(compose("audit", [f"privacy={privacy}", "experiment=privacy_audit"]))
            assert run.mechanism.name == privacy
            assert run.method.name == {"laplace": "gs"}.get(privacy, "lr")


def test_a_figure_is_saved_with_its_table(tmp_path):
    with figure(tmp_path / "one", [{"x": 1, "y": 2}, {"x": 2, "y": 3}]) as ax:
        ax.plot([1, 2], [2, 3])
    assert (tmp_path / "one.csv").read_text() == "x,y\n1,2\n2,3\n"
    assert (tmp_path / "one.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "one.pdf").read_bytes()[:4] == b"%PDF"


def test_importing_the_package_does_not_import_matplotlib():
    script = "import sys, mpmtl; mpmtl.audit; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
