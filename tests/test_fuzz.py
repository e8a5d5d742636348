"""Random data, settings and files: never a traceback, a numpy warning or a NaN in the results.

The quick tests have a fixed, small budget of examples; those marked slow a large one.
"""

import csv
import hashlib
import os
import random
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, make_run
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from mpmtl.data import MultiTaskData, Table, files
from mpmtl.errors import InputError
from mpmtl.experiments import cli
from mpmtl.experiments.runner import run_replicate

METHODS = sorted(path.stem for path in (ROOT / "conf/method").glob("*.yaml"))
QUICK = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=3000, derandomize=False)


@dataclass(frozen=True)
class Fuzzed:
    """Data of any shape and scale, with constant, zero and repeated columns."""

    sizes: tuple
    d: int
    x_scale: float
    y_scale: float
    kind: str
    columns: tuple
    unit: bool
    seed: int
    name: str = "fuzzed"

    def draw(self, data_dir, seed, replicate):
        rng = np.random.default_rng(self.seed)
        X = [self.x_scale * rng.standard_normal((n, self.d)) for n in self.sizes]
        for j, what in enumerate(self.columns[: self.d]):
            for rows in X:
                if what == "zero":
                    rows[:, j] = 0
                elif what == "constant":
                    rows[:, j] = self.x_scale
                elif what == "repeated":
                    rows[:, j] = rows[:, 0]
        y = [self.y_scale * rng.standard_normal(n) for n in self.sizes]
        if self.kind == "binary":
            y = [np.where(np.arange(len(t)) % 2 == 0, 1.0, -1.0) for t in y]
        data = MultiTaskData(
            tuple(X),
            tuple(y),
            self.kind,
            tuple(str(i) for i in range(len(X))),
            tuple(f"x{j}" for j in range(self.d)),
        )
        return (data.unit_rows(),) * 2 if self.unit else (data, data)


powers = st.integers(-12, 12).map(lambda k: 10.0**k)
data_sets = st.builds(
    Fuzzed,
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple),
    d=st.integers(1, 7),
    x_scale=powers,
    y_scale=powers,
    kind=st.sampled_from(["regression", "binary"]),
    columns=st.lists(
        st.sampled_from(["free", "free", "zero", "constant", "repeated"]), max_size=7
    ).map(tuple),
    unit=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
budgets = st.one_of(
    st.sampled_from([1e-6, 0.1, 1.0, 10.0, 1e40]), st.floats(1e-6, 1e40, exclude_min=True)
)


def one_line(error):
    assert "\n" not in str(error)


def check_any_data(method, data, epsilon, delta, folds):
    run = make_run(f"method={method}", "tuning=smoke", f"tuning.folds={folds}")
    run = replace(run, dataset=data, epsilon=epsilon, delta=delta)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            record = run_replicate(run, 0)
        except InputError as error:
            return one_line(error)
    assert np.isfinite([row["value"] for row in record["replicates"]]).all()
    assert np.isfinite([list(row.values())[-2:] for row in record["trace"]]).all()


any_data = given(
    st.sampled_from(METHODS), data_sets, budgets, st.sampled_from([1e-9, 1e-3]), st.integers(2, 5)
)


@QUICK
@any_data
def test_any_data_give_numbers_or_one_line(method, data, epsilon, delta, folds):
    check_any_data(method, data, epsilon, delta, folds)


@pytest.mark.slow
@LONG
@any_data
def test_any_data_give_numbers_or_one_line_at_length(method, data, epsilon, delta, folds):
    check_any_data(method, data, epsilon, delta, folds)


# Settings, through the command line

VALUES = (
    *("0", "-1", "1", "2", "0.5", "1e-6", "1e40", "1e400", "nan", "inf", "-inf", "null", "true"),
    *("abc", "''", "[]", "[1]", "[0.1,2]", "[a]", "{}", "{a: 1}", "???", "${x}", "1e-300", "7.5"),
    *("[[1]]", "'a b'", "../../etc", "auto", "max", "absolute", "theory", "0x10", "1_000", "é"),
)
FOREIGN = re.compile(r"results_dir|data_dir|parallel|scale|experiment|hydra|dataset\.[^mndt]")
KEYS = sorted(key for key in cli._known_keys(cli.Schema) if not FOREIGN.match(key))
CHOICES = {
    group: sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))
    for group in ("method", "privacy", "tuning")
}


def random_command(rng):
    """A command line of a tiny run with some keys set to anything."""
    words = ["dataset.m=6", "dataset.n=6", "dataset.d=3", "dataset.test_ratio=1", "scale=smoke"]
    for group, names in CHOICES.items():
        if rng.random() < 0.5:
            words.append(f"{group}={rng.choice(names)}")
    for _ in range(rng.randint(0, 3)):
        prefix = rng.choice(["", "", "", "", "", "", "", "+", "++", "~"])
        words.append(f"{prefix}{rng.choice(KEYS)}={rng.choice(VALUES)}")
    return [*words, "n_replicates=1", "n_jobs=1"]


def run_command(words, folder, monkeypatch, capsys):
    """Exit code of mpmtl-run in this process, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["mpmtl-run", *words, f"results_dir={folder}"])
    GlobalHydra.instance().clear()
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def check_commands(count, seed, tmp_path, monkeypatch, capsys):
    """Exit codes seen; fails on a traceback, on a code but 0 and 2, and on a NaN in a table."""
    monkeypatch.chdir(tmp_path)
    rng, codes = random.Random(seed), []
    for _ in range(count):
        words = random_command(rng)
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                code, _, errors = run_command(words, folder, monkeypatch, capsys)
            codes.append(code)
            assert code in (0, 2), words
            assert "Traceback" not in errors, words
            if code == 2:
                assert len(errors.strip()) > 0, words
            for path in Path(folder).rglob("replicates.csv"):
                with path.open() as file:
                    for row in csv.DictReader(file):
                        assert np.isfinite(float(row["value"])), words
    return codes


def test_any_command_line_gives_a_result_or_one_line(tmp_path, monkeypatch, capsys):
    codes = check_commands(25, 1, tmp_path, monkeypatch, capsys)
    assert codes.count(0) >= 2
    assert codes.count(2) >= 8


@pytest.mark.slow
def test_any_command_line_gives_a_result_or_one_line_at_length(tmp_path, monkeypatch, capsys):
    check_commands(3000, int.from_bytes(os.urandom(4), "big"), tmp_path, monkeypatch, capsys)


# Files

SEEDS = (
    b"task,x,z,y\na,1,u,2\na,2,v,3\nb,3,u,4\nb,4,v,5\nc,1,,\n",
    b"task,x,z,y\na,1e308,u,1\na,-1e308,v,-1\nb,1e-320,u,0\nb,nan,v,inf\n",
    b'task,x,"z\nz",y\na,1,"u\nu",2\na,2,v,3\nb,3,"u\nu",4\nb,4,v,5\n',
    "task,x,z,y\n\u00e9,1,\u4e2d,2\n\u00e9,2,v,3\n,3,u,4\n".encode(),
)


def damaged(rng, content):
    """Bytes flipped, cut, repeated or inserted."""
    content = bytearray(content)
    for _ in range(rng.randint(0, 6)):
        if not content:
            break
        at, what = rng.randrange(len(content)), rng.randrange(4)
        if what == 0:
            content[at] = rng.randrange(256)
        elif what == 1:
            del content[at : at + rng.randint(1, 8)]
        elif what == 2:
            content[at:at] = rng.choice([b",", b"\n", b'"', b"\0", b"1e999", b"task", b"\xff"])
        else:
            content[at:at] = content[at : at + rng.randint(1, 20)]
    return bytes(content)


OPTIONS = (
    {},
    {"strict": False, "ranges": {"x": [0, 9]}, "levels": {"z": ["u", "v"]}, "indicators": []},
    {"strict": False, "positive": "2", "train_fraction": 1, "rows": "clip"},
    {"tasks": ["a", "b", "absent"], "numbers": ["x"], "separator": ","},
)
SCHEMA = b"""task: task
target: y
target_range: [0, 9]
columns:
  x: {range: [0, 9], gaps: true}
  z: {levels: [u, v]}
"""


def check_tables(count, seed, tmp_path):
    rng, read = random.Random(seed), 0
    path = tmp_path / "t.csv"
    for _ in range(count):
        path.write_bytes(damaged(rng, rng.choice(SEEDS)))
        options = rng.choice(OPTIONS) | {"kind": rng.choice(["auto", "binary"])}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                table = Table(path=str(path), task="task", target="y", **options)
                train, test = table.draw(None, 0, 0)
                assert table.notes
            except InputError as error:
                one_line(error)
                continue
        read += 1
        for part in (train, test):
            assert all(np.isfinite(X).all() for X in part.X)
            assert all(np.isfinite(y).all() for y in part.y)
    return read


def test_any_table_is_read_or_refused_in_one_line(tmp_path):
    assert check_tables(400, 1, tmp_path) >= 20


@pytest.mark.slow
def test_any_table_is_read_or_refused_in_one_line_at_length(tmp_path):
    check_tables(20_000, int.from_bytes(os.urandom(4), "big"), tmp_path)


def test_any_schema_is_read_or_refused_in_one_line(tmp_path):
    rng, read = random.Random(1), 0
    (tmp_path / "t.csv").write_bytes(SEEDS[0])
    for _ in range(400):
        (tmp_path / "s.yaml").write_bytes(damaged(rng, SCHEMA))
        try:
            Table(path=str(tmp_path / "t.csv"), schema=str(tmp_path / "s.yaml")).draw(None, 0, 0)
            read += 1
        except InputError as error:
            one_line(error)
    assert 40 <= read < 400


def test_a_damaged_matlab_file_never_reaches_its_reader(tmp_path, monkeypatch):
    """scipy's reader can crash on a damaged file, so only the bytes of the checksum go there."""
    cells = np.empty((1, 2), dtype=object)
    cells[0, 0], cells[0, 1] = np.arange(6.0).reshape(3, 2), np.ones((2, 2), dtype=np.uint8)
    path = tmp_path / "own" / "a.mat"
    path.parent.mkdir()
    savemat(path, {"X": cells, "Y": np.eye(2)})
    whole, rng = path.read_bytes(), random.Random(1)
    monkeypatch.setitem(files.REGISTRY, "own/a.mat", ("", hashlib.sha256(whole).hexdigest()))
    X, Y = files.read_mat(files.locate(tmp_path, "own/a.mat"), "X", "Y")
    assert X.shape == (1, 2)
    assert Y.shape == (2, 2)
    for _ in range(300):
        content = damaged(rng, whole)
        path.write_bytes(content)
        if content != whole:
            with pytest.raises(InputError, match="is damaged or another version") as caught:
                files.locate(tmp_path, "own/a.mat")
            one_line(caught.value)


def test_matlab_files_are_read_in_one_place_only():
    """Through locate, which compares the checksum, and never with pickle."""
    for path in (ROOT / "mpmtl").rglob("*.py"):
        text = path.read_text()
        assert ("loadmat" in text) == (path.name == "files.py"), path
        assert "allow_pickle=True" not in text
        assert not re.search(r"pickle\.load|read_pickle|joblib\.load", text), path
        for line in re.findall(r"read_mat\(.*", text):
            assert "read_mat(path" in line, path
