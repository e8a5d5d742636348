"""Sweeps whose jobs differ in what names no folder: every job keeps its results."""

import json
from functools import partial
from itertools import product

import pandas as pd
import pytest
from conftest import ROOT, TINY, mpmtl_run
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from mpmtl import InputError
from mpmtl.experiments.config import build, register_schema
from mpmtl.experiments.sweep import choices_of, conf_dir, configs, folders_apart, jobs


def settings_below(folder):
    """Settings in the manifests below a folder, each once."""
    return [json.loads(path.read_text())["settings"] for path in folder.rglob("manifest.json")]


@pytest.mark.parametrize(
    ("swept", "n_jobs"),
    [
        (["seed=0,1,2"], 3),
        (["dataset.n=10,11", "seed=0,1"], 4),
        (["tuning=fixed,smoke"], 2),
        (["method.grid.l2=[0.1],[0.1,0.2]"], 2),
        (["seed=0,1", "tag=mine"], 2),
        (["method=stl,lr", "seed=0,1", "epsilon=1,3"], 6),  # stl has no epsilon
    ],
)
def test_no_two_settings_share_a_folder(swept, n_jobs):
    words = ["method=stl", *TINY[1:], *swept]
    shared = jobs("config", build, words)
    assert len({job.folder for job in shared}) < len(shared)  # as they stand
    made = jobs("config", build, [*words, *folders_apart("config", build, words)])
    assert len(made) == n_jobs
    assert len({job.folder for job in made}) == n_jobs


SWEPT = [
    ["method=lr,stl", "epsilon=0.1,1e-3,3", "seed=0,1"],
    ["method=lr/gaussian,gs", "method.grid.lam=[0.1],[1,2]", "dataset.n=10,11"],
    ["dataset={n:7}", "dataset.n=10,11"],  # the order of words counts
    ["dataset.n=10,11", "dataset={n:7}"],
    ["tag='a b','${seed}',''", "seed=choice(1,2)", "+dataset.other=1,2"],
    ["epsilon=1,word"],
    ["method=lr,stl", "method.n_rounds=2,3"],
    ["method.grid=1,2", "method.grid.lam=[3]"],
]
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))


def yaml_or_refusal(make):
    try:
        return [OmegaConf.to_yaml(cfg) for cfg in make()]
    except HydraException as error:
        return type(error), str(error), str(error.__cause__)


@pytest.mark.parametrize(
    "words",
    [*SWEPT, *(pytest.param([f"experiment={e}"], marks=pytest.mark.slow) for e in EXPERIMENTS)],
    ids=" ".join,
)
def test_configs_of_a_sweep_are_those_that_hydra_composes(words):
    """Each by itself; and what cannot be is refused in the same words."""
    register_schema()
    name = "audit" if words == ["experiment=privacy_audit"] else "config"
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        choices = choices_of(name, words)
        composed = [partial(compose, name, list(c)) for c in product(*choices.values())]
        expected = yaml_or_refusal(lambda: (make() for make in composed))
        assert yaml_or_refusal(lambda: configs(name, choices)) == expected


@pytest.mark.parametrize(
    "swept", ["epsilon=0.1,1", "method=lr,gs", "dataset=low_rank,group_sparse"]
)
def test_a_sweep_over_what_names_a_folder_is_as_it_was(swept):
    assert folders_apart("config", build, ["method=lr", "scale=smoke", swept]) == []


def test_a_job_that_cannot_be_does_not_hide_the_others():
    words = ["method=stl", *TINY, "seed=-1,0,1"]
    (word,) = folders_apart("config", build, words)
    assert "seed=" in word
    with pytest.raises(InputError, match="seed = -1"):
        jobs("config", build, words)


def test_tags_that_differ_already_are_left_to_their_user():
    words = ["method=stl", *TINY, "seed=0,1", "tag=a,b"]
    with pytest.raises(InputError, match="would share the folder"):
        folders_apart("config", build, words)


def test_a_sweep_that_cannot_be_kept_apart_is_one_line(tmp_path):
    """Nothing runs, whatever overwrite says."""
    words = ["-m", "method=stl", *TINY, "seed=0,1", "tag=a,b", "overwrite=true"]
    run = mpmtl_run(*words, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "error: jobs of the sweep with other settings would share the folder" in run.stderr
    audit = mpmtl_run(
        *("-m", "method=lr", "seed=0,1", "overwrite=true"), cwd=tmp_path, program="mpmtl-audit"
    )
    assert audit.returncode == 2
    assert "would share the folder" in audit.stderr
    assert not list(tmp_path.rglob("manifest.json"))


def test_overwrite_in_a_sweep_erases_no_other_job(tmp_path):
    words = ["-m", "method=stl", *TINY, "seed=0,1", "results_dir=out"]
    for _ in range(2):
        run = mpmtl_run(*words, "overwrite=true", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        assert sorted(s["seed"] for s in settings_below(tmp_path / "out")) == [0, 1]
    assert "seed=0" in run.stdout
    assert "seed=1" in run.stdout
    values = [pd.read_csv(p).value.iloc[0] for p in tmp_path.rglob("replicates.csv")]
    assert len(set(values)) == 2


def test_more_replicates_in_a_sweep_are_not_the_same_run(tmp_path):
    words = ["-m", "method=stl", *TINY, "n_replicates=1,3", "results_dir=out"]
    run = mpmtl_run(*words, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (path,) = tmp_path.rglob("replicates.csv")
    assert pd.read_csv(path).replicate.nunique() == 3


def test_two_files_of_one_name_keep_their_results(tmp_path):
    for folder, level in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        frame = pd.DataFrame({"owner": list("uvwxyz") * 6, "x": range(36)})
        frame["y"] = level * frame.x + frame.x % 5
        frame.to_csv(tmp_path / folder / "t.csv", index=False)
    words = ["dataset=table", "dataset.path=a/t.csv,b/t.csv", "dataset.task=owner"]
    words += ["dataset.target=y", "method=stl", "scale=smoke", "results_dir=out", "n_jobs=1"]
    run = mpmtl_run("-m", *words, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len({s["dataset"]["sha256"] for s in settings_below(tmp_path / "out")}) == 2


def test_all_rows_are_one_fit_whose_models_are_saved(tmp_path):
    frame = pd.DataFrame({"owner": list("uvwxyz") * 6, "x": range(36)})
    frame["y"] = 2.0 * frame.x + frame.x % 5
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.task=owner", "dataset.target=y"]
    words += ["dataset.train_fraction=1", "method=fl_local", "n_replicates=5", "results_dir=out"]
    run = mpmtl_run(*words, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "one fit, whose models are saved" in " ".join(run.stdout.split())
    (folder,) = (tmp_path / "out").rglob("models")
    assert [p.name for p in folder.iterdir()] == ["replicate-0000"]
    predicted = mpmtl_run(
        folder / "replicate-0000", "t.csv", "--task", "owner", cwd=tmp_path, program="mpmtl-predict"
    )
    out = [line.split(",") for line in predicted.stdout.splitlines()[1:]]
    errors = [float(p) - float(y) for _, _, y, p in out]
    assert len(out) == 36
    assert sum(e**2 for e in errors) / 36 < 10  # targets vary by 433
