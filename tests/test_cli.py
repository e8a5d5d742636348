"""The command line as a user meets it: help, bad input, sweeps, crashes, wheel, other directory."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from itertools import product

import pytest
from conftest import MPMTL_RUN, ROOT, TABLES, TINY, make_run, mpmtl_run, table_lines
from hydra import compose, initialize_config_dir

from mpmtl.experiments.config import build, register_schema


def is_refused(done, message):
    """Exit code 2 and one line that says what is wrong."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: ")


def test_help_names_every_choice_and_key(tmp_path):
    done = mpmtl_run("--help", cwd=tmp_path)
    assert done.returncode == 0
    for group in ("dataset", "method", "privacy", "tuning", "parallel", "scale", "experiment"):
        names = {p.stem for p in (ROOT / "conf" / group).glob("*.yaml")}
        (line,) = [x for x in done.stdout.splitlines() if x.startswith(f"{group}:")]
        assert set(line.split(": ")[1].split(", ")) == names
    for key in (
        "epsilon",
        "delta",
        "seed",
        "n_replicates",
        "n_jobs",
        "results_dir",
        "data_dir",
        "overwrite",
        "save_models",
        "tag",
    ):
        assert f"\n  {key}=" in done.stdout
    for word in ("claimed", "proved", "replace one task", "-sc install=bash"):
        assert word in done.stdout


def test_every_example_of_the_help_composes(tmp_path):
    lines = mpmtl_run("--help", cwd=tmp_path).stdout.splitlines()
    examples = [line.split() for line in lines if line.strip().startswith("mpmtl-run ")]
    assert len(examples) >= 5
    for words in examples:
        # arguments end where the comment starts
        arguments = [w for w in words[1:] if "=" in w or w in ("-m", "--cfg", "job")]
        arguments = [a.split(",")[0] for a in arguments if a not in ("-m", "--cfg", "job")]
        done = mpmtl_run(*arguments, "--cfg", "job", cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)


def test_a_run_leaves_nothing_but_its_results(tmp_path):
    done = mpmtl_run("method=lr", "epsilon=0.1", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [p.name for p in tmp_path.iterdir()] == ["results"]
    folder = tmp_path / "results/smoke/low_rank/lr/wishart/eps-0.1"
    assert {p.name for p in folder.iterdir()} == {
        ".lock",
        "card.txt",
        "journal.jsonl",
        "manifest.json",
        "timing.csv",
        *TABLES,
    }


BAD = {
    "dataset.n_public=2": "dataset.n_public = 2: give it as [least, most], whole numbers",
    "dataset.n_public=[a,b]": "dataset.n_public = ['a', 'b']: give it as [least, most]",
    "method.grid=3": "method.grid = 3: give the values of a setting",
    "grids.lr=[1]": "grids.lr = [1]: give the values of a setting",
    "method.name=[a]": "method.name = ['a']: use letters, digits and _",
    "method.name=../a": "method.name = ../a: use letters, digits and _",
    "method.name=": "method.name = : use letters, digits and _",
    "method._target_=3": "method._target_ = 3: give the name of a class",
    "dataset._target_=[a]": "dataset._target_ = ['a']: give the name of a class",
    "method=mtl method.methods=3": "method.methods = 3: give methods by their names",
    "method=mtl method.methods.mtl_lr=3": "method.methods.mtl_lr = 3: give a method with",
    "epsilon=0": "epsilon = 0.0 must be finite and above 0",
    "epsilon=-1": "epsilon = -1.0 must be finite and above 0",
    "epsilon=nan": "epsilon = nan must be finite and above 0",
    "epsilon=inf": "epsilon = inf must be finite and above 0",
    "epsilon=lots": "epsilon=lots: Value 'lots' of type 'str' could not be converted to Float",
    "delta=1": "delta = 1 must be auto or a number in [0, 1)",
    "delta=-0.1": "delta = -0.1 must be auto or a number in [0, 1)",
    "delta=nan": "delta = nan must be auto or a number in [0, 1)",
    "delta=small": "delta = small must be auto or a number in [0, 1)",
    "privacy=gaussian delta=0": "the Gaussian mechanism needs delta in (0, 1)",
    "privacy=laplace": "releases the whole covariance: use wishart or two_sided_wishart",
    "privacy.shift=-1": "privacy.shift = -1 must be finite and at least 0",
    "privacy.accounting=exact": "privacy.accounting = exact: use bound or optimal",
    "experiment=privacy_audit": "experiment=privacy_audit is for mpmtl-audit",
    "method.grid.K=0": "method.grid.K = 0 must be finite and above 0",
    "method.grid.K=[1,-2]": "method.grid.K = -2 must be finite and above 0",
    "method.grid.n_rounds=0": "method.grid.n_rounds = 0 must be a whole number of at least 1",
    "method.grid.n_rounds=2.5": "method.grid.n_rounds = 2.5 must be a whole number of at least 1",
    "method.grid.lam=nan": "method.grid.lam = nan must be finite and at least 0",
    "method.grid.lam=[]": "method.grid.lam is empty",
    "tag=../elsewhere": "tag = ../elsewhere: use letters, digits, - and /",
    "dataset.n=1": "no task has two training samples, which cross-validation needs: tuning=fixed",
    "tuning.folds=1": "tuning.folds = 1: use at least 2",
    "method.grid.accelerated=maybe": "method.grid.accelerated = maybe must be true or false",
    "method=lrr": "unknown method 'lrr': did you mean lr",
    "method=lrr/gaussian": "unknown method 'lrr': did you mean lr",
    "method=lr/gausian": "unknown privacy 'gausian': did you mean gaussian?",
    "method=lr/laplace": "privacy=laplace does not fit a method that releases the whole",
    "grids.lr.lamb=1": "method.grid.lamb: lr has no such setting; it has lam, ",
    "grids.lrr.lam=[1]": "grids.lrr: unknown method 'lrr': did you mean lr",
    "dataset=schol": "unknown dataset 'schol': did you mean school?",
    "privacy=gausian": "unknown privacy 'gausian': did you mean gaussian?",
    "experiment=model_leak": "unknown experiment 'model_leak': did you mean model_leakage?",
    "epsilom=1": "unknown key 'epsilom': did you mean epsilon?",
    "dataset.corelation=1": "unknown key 'dataset.corelation': did you mean dataset.correlation",
    "+extra=1": "unknown key extra",
    "epsilon": "missing EQUAL",
    "method=lr,gs": "To sweep over it, add --multirun",
    "dataset.m=0": "dataset.m = 0 must be at least 1",
    "dataset.m=many": "dataset.m = many must be a whole number",
    "dataset.m=1 dataset.blocks=1": "needs m >= 2 tasks",
    "method.clip=none": "method.clip = none: use auto or models or covariance",
    "method.mu=0": "method.mu = 0 must be finite and above 0",
    "n_replicates=0": "n_replicates = 0 must be at least 1",
    "n_jobs=0": "n_jobs = 0",
    "seed=-1": "seed = -1 must be at least 0",
    "dataset=school data_dir=nowhere": "nowhere/school/school.mat is missing: run `make data`",
    "results_dir=/proc/none": "cannot write results in /proc/none",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_and_exit_code_2(arguments, tmp_path):
    words = arguments.split()
    keys = {w.split("=")[0] for w in words}
    rest = [t for t in TINY if t.split("=")[0] not in keys]
    if "dataset" in keys:
        rest = [t for t in rest if not t.startswith("dataset.")]
    is_refused(mpmtl_run(*rest, *words, cwd=tmp_path), BAD[arguments])


@pytest.mark.parametrize(
    "words",
    [("method=gs/laplace", "epsilon=2"), ("epsilon=-1",), ("methd=lr",), ("method=lr,gs",)],
)
def test_a_job_of_its_own_is_that_of_hydras_main(words, tmp_path):
    """Composed once by the command itself, or by Hydra, which an override of its own asks for."""
    done, files = [], []
    for name, own in (("once", ()), ("twice", ("hydra.verbose=false",))):
        (tmp_path / name).mkdir()
        done.append(mpmtl_run(*TINY, *words, *own, cwd=tmp_path / name))
        files.append(
            {
                path.relative_to(tmp_path / name): path.read_bytes()
                for path in sorted((tmp_path / name).rglob("*"))
                if path.name in (*TABLES, "card.txt")
            }
        )
    assert done[0].returncode == done[1].returncode
    assert done[0].stderr == done[1].stderr
    assert files[0] == files[1]
    assert bool(files[0]) == (done[0].returncode == 0)


OWN_DATA = '''
import numpy as np
from mpmtl.data import MultiTaskData

class Own:
    """A user's data set with a fault."""
    name, kind = "own", "regression"

    def __init__(self, fault):
        self.fault = fault

    def draw(self, data_dir, seed, replicate):
        rng = np.random.default_rng(replicate)
        X = [rng.standard_normal((6, 2)) for _ in range(3)]
        y = [rng.standard_normal(6) for _ in range(3)]
        kind = "regression"
        if self.fault == "nan":
            X[1][2, 1] = np.nan
        if self.fault == "infinite":
            X[1][2, 1] = np.inf
        if self.fault == "constant":
            X = [np.column_stack([x[:, 0], np.full(6, 4.0)]) for x in X]
        if self.fault == "empty":
            X[2], y[2] = X[2][:0], y[2][:0]
        if self.fault == "one_class":
            kind, y = "binary", [np.sign(t) for t in y]
            y[0] = np.ones(6)
        data = MultiTaskData.checked(X, y, kind)
        return data, data
'''


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "task 2: feature x2 is NaN or infinite in 1 of 6 rows"),
        ("infinite", "task 2: feature x2 is NaN or infinite in 1 of 6 rows"),
        ("constant", None),
        ("empty", "task 3 is empty: drop it or give it samples"),
        ("one_class", "task 1 has one class only (+1): drop it"),
        ("nothing", None),
    ],
)
def test_a_data_set_of_ones_own_and_its_faults(fault, message, tmp_path):
    """A data set is one class and one YAML file; its faults are one line and exit code 2."""
    (tmp_path / "own.py").write_text(OWN_DATA)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf/dataset/own.yaml").write_text(f"_target_: own.Own\nfault: {fault}\n")
    done = mpmtl_run(
        "--config-dir",
        "conf",
        "dataset=own",
        "scale=smoke",
        "n_jobs=1",
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    if message is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_full_disk_is_one_line(tmp_path):
    """A limit on the file size stands for the disk: the write of the journal fails half-way."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    done = mpmtl_run(*TINY, "n_replicates=30", cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 2
    assert "cannot write results" in done.stderr
    assert "run again" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    again = mpmtl_run(*TINY, "n_replicates=30", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    whole = mpmtl_run(*TINY, "n_replicates=30", "results_dir=whole", cwd=tmp_path)
    assert whole.returncode == 0
    same_tables(tmp_path / "results/smoke", tmp_path / "whole")


def same_tables(one, two):
    """Every table below one folder equals that below the other, byte by byte."""
    files = sorted(p.relative_to(one) for p in one.rglob("*.csv") if p.name in TABLES)
    assert files
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


EVERY = (1, 8, 15, 25, 40)


@pytest.mark.parametrize(
    ("n_jobs", "moments"),
    [
        (1, (1, 25)),
        (2, (25,)),
        pytest.param(1, EVERY, marks=pytest.mark.slow),
        pytest.param(2, EVERY, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bytes(n_jobs, moments, tmp_path):
    """SIGKILL at some moments of one run; the last start completes it."""
    arguments = ["method=lr", "epsilon=0.1", *TINY[:-1], f"n_replicates={max(moments) + 15}"]
    whole = mpmtl_run(*arguments, "n_jobs=1", "results_dir=whole", cwd=tmp_path)
    arguments.append(f"n_jobs={n_jobs}")
    assert whole.returncode == 0, whole.stderr
    journal = tmp_path / "killed/low_rank/lr/wishart/eps-0.1/journal.jsonl"
    kills = 0
    for target in moments:
        process = subprocess.Popen(
            [MPMTL_RUN, *arguments, "results_dir=killed"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n") >= target:
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += process.wait() == -signal.SIGKILL
    assert kills > len(moments) / 2  # a run that ends before its kill does not count
    last = mpmtl_run(*arguments, "results_dir=killed", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    same_tables(tmp_path / "whole", tmp_path / "killed")


#: `mpmtl-reproduce` with a plan of one figure, which is composed in a second.
ONE_FIGURE = """
from mpmtl.paper import catalogue
catalogue.FIGURES = [f for f in catalogue.FIGURES if f.experiment == "task_number"]
from mpmtl.paper import entry
entry.reproduce()
"""
REPRODUCE = [sys.executable, "-c", ONE_FIGURE, "--scale", "smoke"]


@pytest.mark.parametrize("command", [[MPMTL_RUN, *TINY, "n_replicates=5000"], REPRODUCE])
def test_ctrl_c_says_how_to_go_on(command, tmp_path):
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # where the tests run in the background of a shell, SIGINT is ignored and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not re.search("replicates x|: nmse", process.stdout.readline()):
        assert process.poll() is None
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors


def test_a_failing_job_does_not_stop_the_sweep(tmp_path):
    done = mpmtl_run("-m", "method=lr", "epsilon=-1,1,0", *TINY, cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-3:]
    assert last[0].startswith("failed jobs of the sweep (2;")
    assert "epsilon=-1" in last[1]
    assert "epsilon=0" in last[2]
    assert (tmp_path / "results/smoke/low_rank/lr/wishart/eps-1/replicates.csv").exists()


def test_a_grid_of_a_member_with_a_name_of_its_own_is_used(tmp_path):
    words = ["method=mtl", "method.methods.mtl_lr.name=mine", "grids.mine.lam=[0.5]"]
    done = mpmtl_run(*words, *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (manifest,) = tmp_path.rglob("manifest.json")
    assert json.loads(manifest.read_text())["grid"] == "smoke but for lam"


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("option", [("-m",), ("-v", "-m"), ("--cfg", "job")])
def test_options_may_stand_before_between_and_after_the_settings(place, option, tmp_path):
    words = ["method=stl", "seed=3"]
    done = mpmtl_run(*words[:place], *option, *words[place:], *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("seed: 3" in done.stdout) == ("--cfg" in option)
    assert ("tasks kept separate" in done.stdout) == ("-m" in option)


def test_an_unknown_name_in_a_sweep_is_refused_before_anything_runs(tmp_path):
    done = mpmtl_run("-m", "method=lr,gss", *TINY, cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown method 'gss': did you mean gs?" in done.stderr
    assert not (tmp_path / "results/smoke/low_rank").exists()


def test_a_sweep_explains_each_caveat_once_and_runs_non_private_methods_once(tmp_path):
    done = mpmtl_run("-m", "method=stl,mtl_lr,lr", "epsilon=0.1,1", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wishart-support: ") == 1
    assert done.stdout.count("the same run as above") == 2
    assert {p.parent.parent.name for p in tmp_path.rglob("replicates.csv")} == {"none", "wishart"}


def test_pairs_of_a_method_and_a_mechanism_are_choices_of_a_sweep(tmp_path):
    done = mpmtl_run("-m", "method=lr/wishart,lr/gaussian,gs/laplace,fl", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [line.split()[1:3] for line in table_lines(done.stdout)]
    assert table == [["lr", "wishart"], ["lr", "gaussian"], ["gs", "laplace"], ["fl", "gaussian"]]
    again = mpmtl_run("method=lr", "privacy=gaussian", *TINY, cwd=tmp_path)  # the same run
    assert "all 2 replicates already done" in again.stdout, again.stderr


def test_a_pair_has_the_settings_of_its_two_names():
    for pair in ("lr/gaussian", "fl/two_sided_wishart", "dp_aggr/output_perturbation"):
        method, privacy = pair.split("/")
        one, two = make_run(f"method={pair}"), make_run(f"method={method}", f"privacy={privacy}")
        assert (one.settings, one.folder) == (two.settings, two.folder)
        assert (one.method.name, one.mechanism.name) == (method, privacy)


def test_runs_with_other_settings_are_not_mixed(tmp_path):
    """Two runs that share a folder: the second is refused with the difference, not skipped."""
    assert mpmtl_run("method=mtl_lr", "seed=0", *TINY, cwd=tmp_path).returncode == 0
    done = mpmtl_run("method=mtl_lr", "seed=1", *TINY, cwd=tmp_path)
    assert done.returncode == 2
    assert "seed: 0 -> 1" in done.stderr
    assert "already done" not in done.stdout


def test_a_read_only_results_folder_is_one_line(tmp_path):
    """Root may write anywhere, so for root too a file is put in the way."""
    (tmp_path / "results").write_text("")
    done = mpmtl_run(*TINY, cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot write results" in done.stderr
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        done = mpmtl_run(*TINY, "results_dir=locked/results", cwd=tmp_path)
        assert done.returncode == 2
        assert "cannot write results" in done.stderr


SCALES = ("smoke", "laptop", "standard", "paper")
EXPERIMENTS = [
    path.stem
    for path in sorted((ROOT / "conf/experiment").glob("*.yaml"))
    if "mpmtl-audit" not in path.read_text()
]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_builds(experiment, every):
    """With all its methods and at all scales; with `every`, with each method at each scale."""
    register_schema()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        word = f"experiment={experiment}"
        cfg = compose("config", [word], return_hydra_config=True)
        methods = cfg.hydra.sweeper.params.get("method", "lr").split(",")
        first = EXPERIMENTS.index(experiment)
        count = max(len(methods), len(SCALES))
        pairs = ((methods[k % len(methods)], SCALES[(first + k) % 4]) for k in range(count))
        for method, scale in product(methods, SCALES) if every else pairs:
            cfg = compose("config", [word, f"scale={scale}", f"method={method}"])
            assert build(cfg).method.name == method.split("/")[0]


def test_model_leakage_experiment(tmp_path):
    """Fig. 2: without noise the large model moves the others, with noise it does not."""
    done = mpmtl_run("experiment=model_leakage", "scale=smoke", "n_jobs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    moved = {}
    for eps in ("1e+40", "0.1"):
        path = (
            tmp_path
            / f"results/smoke/model_leakage/leakage_example/lr/wishart/eps-{eps}/replicates.csv"
        )
        moved[eps] = max(
            float(line.split(",")[7]) for line in path.read_text().splitlines() if ",nmse," in line
        )
    assert moved["1e+40"] > 10 * moved["0.1"]


def test_works_from_a_wheel_in_another_directory(tmp_path):
    """Built and installed without the checkout; the configs come along."""
    target, source = tmp_path / "site", tmp_path / "source"
    for folder in ("mpmtl", "conf"):  # a copy, so that no earlier build leaves anything behind
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / file, source / file)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
            str(target),
            str(source),
        ],
        check=True,
        timeout=300,
    )
    assert (target / "mpmtl" / "conf" / "hydra" / "help" / "mpmtl.yaml").is_file()
    script = "import mpmtl.experiments.cli as c; print(c.__file__); c.main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "method=gs", *TINY],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(target)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(target))
    assert (tmp_path / "results/smoke/low_rank/gs/wishart/eps-1/replicates.csv").exists()


def test_tab_completion_is_there(tmp_path):
    done = mpmtl_run(
        "-sc",
        "query=bash",
        cwd=tmp_path,
        env={"COMP_LINE": "mpmtl-run method=mtl_", "COMP_POINT": "21"},
    )
    assert done.returncode == 0
    assert {"method=mtl_gs", "method=mtl_lr"} <= set(done.stdout.split())
