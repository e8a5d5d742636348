"""The same over Flower: messages in one process, and once over TLS between processes."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import BIN
from test_federation import FL, NAMES, apart, owners, study_of, together, write_study

from mpmtl.errors import InputError
from mpmtl.experiments.ledger import entries_of
from mpmtl.experiments.predict import read_model

flwr = pytest.importorskip("flwr", reason="Flower is not installed: make federated")

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from mpmtl.federation import client, server  # noqa: E402
from mpmtl.federation.messages import packed, unpacked  # noqa: E402
from mpmtl.federation.rounds import take_part  # noqa: E402
from mpmtl.federation.study import nodes_in  # noqa: E402
from mpmtl.streams import stream  # noqa: E402

SEED = 3
KEYS = ("noise-seed", "honest", "colluding")
SETTINGS = f"{FL} method.rounds=2"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


def study_in(config, schema):
    return study_of(config["settings"], str(schema), *map(config.get, KEYS))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server, "POLL", 0.01)
    for module in (client, server):  # composing takes long
        monkeypatch.setattr(module, "Study", SimpleNamespace(of=study_in))
    for name in ("run_id", "node_id", "task_id"):  # as a process of Flower's has them
        setattr(TaskIdentity, name, 1)


class Loopback(Grid):
    """Nodes in this process; what each of them sends is kept, and may be tampered with.

    Parameters
    ----------
    configs : dict of int to dict
        Settings of each node.
    run_config : dict
    tamper : callable, optional
        ``tamper(message, reply)`` returns the replies that arrive instead.
    """

    def __init__(self, configs, run_config, tamper=None):
        self.configs, self.run_config = configs, run_config
        self.tamper = tamper or (lambda message, reply: [reply])
        self.arrived, self.sent = [], []
        self.states = {node: RecordDict() for node in configs}  # of this run, as Flower keeps them

    def set_run(self, run):
        """No run is known here."""

    run = create_message = send_and_receive = None

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = f"message {len(self.sent)} {len(names)} {len(self.arrived)}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            context = Context(0, node, self.configs[node], self.states[node], self.run_config)
            reply = client.app(message, context)
            self.sent.append((node, message, reply))
            self.arrived += self.tamper(message, reply)
            names.append(name)
        return names

    def pull_messages(self, message_ids):
        here = [r for r in self.arrived if r.metadata.reply_to_message_id in message_ids]
        self.arrived = [r for r in self.arrived if r not in here]
        return here


def configs(place, folder, names=NAMES):
    """Settings of the curator's run and of every owner's node."""
    run = {
        "settings": SETTINGS,
        "schema": str(place / "regression.yaml"),
        "deadline": 0.05,
        "out": str(folder / "results"),
        "noise-seed": str(SEED),
        "honest": 0,
        "colluding": 0,
        "nodes": "",
        "simulated-table": "",
    }
    nodes = {
        10 + i: {
            "owner": name,
            "table": str(place / f"{name}.csv"),
            "schema": str(place / "regression.yaml"),
            "out": str(folder / f"{name}.json"),
        }
        for i, name in enumerate(names)
    }
    return run, nodes


def models(folder, names=NAMES):
    """Saved models, in units of the scaled target, as `together` has them."""
    saved = [read_model(folder / f"{name}.json") for name in names]
    return np.stack([model["coef"] / 60.0 for model in saved])


def expected(place, tamper=lambda given: given):
    """The same without Flower; equal to a fit in one process by test_federation.py."""
    return apart(owners(place, SETTINGS), tamper, seed=SEED)


@pytest.fixture
def same_noise(monkeypatch):
    """Draws of `test_federation.apart` and of the curator from one stream."""
    monkeypatch.setattr(server, "stream", lambda seed, name: np.random.default_rng(seed))


def test_all_owners(place, tmp_path, same_noise):
    run, nodes = configs(place, tmp_path)
    grid = Loopback(nodes, run)
    releases = server.serve(grid, run)
    whole = together(place, SETTINGS, seed=SEED)
    np.testing.assert_array_equal(
        models(tmp_path), (60.0 * whole[:, :-1]) / 60.0
    )  # to the last bit of what is saved
    manifest = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert manifest["present"] == [NAMES, NAMES]
    assert manifest["privacy"]["proved"]["epsilon"] == 20
    with np.load(tmp_path / "results" / "released.npz") as file:
        for saved, release in zip(file.values(), releases, strict=True):
            np.testing.assert_array_equal(saved, release)


def test_no_row_and_no_model_leaves_its_owner(place, tmp_path):
    """An owner sends its name, the round and one bounded vector: a weight each, and the mean's."""
    run, nodes = configs(place, tmp_path)
    grid = Loopback(nodes, run)
    server.serve(grid, run)
    own = models(tmp_path)
    for node, message, reply in grid.sent:
        arrays, words = unpacked(reply.content)
        assert set(reply.content) == {"arrays", "words"}
        final = message.metadata.message_type == server.FINISH
        assert set(words) == {"task", "round"}
        assert [a.shape for a in arrays] == ([] if final else [(7,)])
        numbers = np.concatenate([np.ravel(a) for a in arrays]) if arrays else np.zeros(0)
        study = owners(place, SETTINGS)[node - 10].study
        rows, _ = study.data(nodes[node]["table"], nodes[node]["owner"])
        X, y, w = rows.X[node - 10], rows.y[node - 10], own[node - 10]
        constants = (0.0, 1.0, -1.0)
        for private in (X, y, w):
            assert not np.isin(numbers, np.setdiff1d(private, constants)).any()
    written = b"".join(path.read_bytes() for path in (tmp_path / "results").iterdir())
    for path in (place / f"{name}.csv" for name in NAMES):
        assert not any(line.encode() in written for line in path.read_text().splitlines()[1:])


def test_a_lost_owner(place, tmp_path, same_noise, capsys):
    """From the second round on: the round waits to its deadline and goes on without it."""
    run, nodes = configs(place, tmp_path)

    def lose(message, reply):
        _, words = unpacked(reply.content)
        return [] if words["task"] == "e" and words["round"] >= 2 else [reply]

    started = time.monotonic()
    releases = server.serve(Loopback(nodes, run, lose), run)
    assert time.monotonic() - started > 0.05

    def drop(given, t):
        return {i: v for i, v in given.items() if i != 4 or t == 0}

    without, _, whole = expected(place, drop)
    for release, other in zip(releases, without, strict=True):
        np.testing.assert_array_equal(release, other)
    np.testing.assert_array_equal(models(tmp_path)[:4], (60.0 * whole[:4, :-1]) / 60.0)
    printed = capsys.readouterr().out
    assert "round 1: all 5 owners" in printed
    assert "round 2: went on without e" in printed
    manifest = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert manifest["present"] == [NAMES, NAMES[:4]]


def test_late_and_repeated_messages_change_nothing(place, tmp_path, same_noise, capsys):
    """Every answer comes twice; one of the first round comes again in the second, as the second's
    and as an answer to no question; and somebody answers in another owner's name."""
    run, nodes = configs(place, tmp_path)
    kept = []

    def tamper(message, reply):
        arrays, words = unpacked(reply.content)
        replies = [reply, reply]
        if words["task"] == "a":
            old = Message(packed(arrays, **words), reply_to=message)
            kept.append(old)
            if words["round"] == 2:
                late = Message(kept[0].content, reply_to=message)
                replies = [late, reply, kept[0], reply]
        if words["task"] == "b":
            forged = Message(
                packed([7 * v for v in arrays], **words | {"task": "a"}), reply_to=message
            )
            stranger = Message(packed(arrays, **words | {"task": "nobody"}), reply_to=message)
            empty = Message(RecordDict(), reply_to=message)
            broken = Message(Error(1, "with a row in it"), reply_to=message)
            replies += [forged, stranger, empty, broken]
        return replies

    releases = server.serve(Loopback(nodes, run, tamper), run)
    for release, other in zip(releases, expected(place)[0], strict=True):
        np.testing.assert_array_equal(release, other)
    printed = capsys.readouterr().out
    assert "owner a: an answer for round 1, left out" in printed
    assert "owner a: answered twice, the first answer counts" in printed
    assert "owner b answered in the name of owner a, left out" in printed
    assert "names no owner" in printed
    assert "with a row in it" not in printed


@pytest.mark.parametrize("enrolled", [False, True])
def test_an_owner_answers_from_its_own_node_alone(place, tmp_path, same_noise, capsys, enrolled):
    """The first node that answers is the owner's, or the one that was enrolled, even where another
    one is quicker; in the second round a stranger and another owner answer before it."""
    run, nodes = configs(place, tmp_path)
    nodes[7] = nodes[10] | {
        "table": str(place / "b.csv")
    }  # asked before the others, calls itself a
    del nodes[11]
    if not enrolled:
        nodes[19] = nodes.pop(7)
    run["nodes"] = "a=10" if enrolled else ""

    def tamper(message, reply):
        arrays, words = unpacked(reply.content)
        if message.metadata.dst_node_id != 12 or words["round"] == 1:
            return [reply]
        forged = packed([7 * v for v in arrays], **words | {"task": "a"})
        return [Message(forged, reply_to=message), reply]

    grid = Loopback(nodes, run, tamper)
    releases = server.serve(grid, run)
    without, _, _ = expected(place, lambda given: {i: v for i, v in given.items() if i != 1})
    for release, other in zip(releases, without, strict=True):
        np.testing.assert_array_equal(release, other)
    printed = capsys.readouterr().out
    stranger = 7 if enrolled else 19
    words = f"node {stranger} answered in the name of owner a, which is node 10, left out"
    assert printed.count(words) == 3  # two rounds, and the models
    assert "owner c answered in the name of owner a, left out" in printed


@pytest.mark.parametrize(
    ("nodes", "words"),
    [("z=1", "z is no owner"), ("a=x", "whole number"), ("a=1 b=1", "same node")],
)
def test_nodes_that_cannot_be_enrolled(nodes, words):
    with pytest.raises(InputError, match=words):
        nodes_in(nodes, NAMES)


def test_what_an_owner_refuses_stays_there(place, tmp_path, capsys):
    """Another schema, a table that cannot be read, a node without settings: the others go on, and
    the curator learns no more than that."""
    run, nodes = configs(place, tmp_path)
    other = (place / "regression.yaml").read_text().replace("[0, 120]", "[0, 100]")
    (tmp_path / "other.yaml").write_text(other)
    nodes[10]["schema"] = str(tmp_path / "other.yaml")
    (tmp_path / "secret.csv").write_text("a,b\nsecret 1,2\n")
    nodes[11]["table"] = str(tmp_path / "secret.csv")
    nodes[12] = {}
    grid = Loopback(nodes, run)
    server.serve(grid, run)
    for _, _, reply in grid.sent:
        assert "secret" not in str(unpacked(reply.content))
    printed = capsys.readouterr().out
    assert "owner a: does not take part (other settings, schema or version" in printed
    assert "owner b: does not take part (its settings or its table" in printed
    manifest = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert manifest["present"] == [["d", "e"], ["d", "e"]]
    assert not (tmp_path / "a.json").exists()


def test_a_fault_of_an_owner_stays_there(place, tmp_path, monkeypatch, capsys):
    run, nodes = configs(place, tmp_path)

    def fail(owner, releases):
        raise RuntimeError("a row: 17, f, 3.5")

    monkeypatch.setattr(client.Owner, "contribution", fail)
    grid = Loopback(nodes, run)
    with pytest.raises(InputError, match="no owner answered"):
        server.serve(grid, run)
    assert all("17" not in str(unpacked(reply.content)) for _, _, reply in grid.sent)
    assert not (tmp_path / "results").exists()


def test_a_simulation_takes_each_owner_by_number(place, tmp_path, same_noise):
    run, _ = configs(place, tmp_path)
    run["simulated-table"] = str(place / "all.csv")
    nodes = {i + 1: {"partition-id": i, "num-partitions": 5} for i in range(5)}
    server.serve(Loopback(nodes, run), run)
    whole = together(place, SETTINGS, seed=SEED)
    saved = models(Path(f"{run['out']}-models"))
    np.testing.assert_array_equal(saved, (60.0 * whole[:, :-1]) / 60.0)


def test_noise_is_secure_without_a_seed(place, tmp_path):
    """Two runs differ, and nothing is left to warn of."""
    sums = []
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        run, nodes = configs(place, tmp_path / str(k))
        run |= {"settings": f"{SETTINGS} delta=1e-5", "noise-seed": ""}
        sums.append(server.serve(Loopback(nodes, run), run)[0])
        manifest = json.loads((tmp_path / str(k) / "results" / "manifest.json").read_text())
        assert manifest["privacy"]["caveats"] == {}
    assert not np.any(sums[0] == sums[1])


def test_a_study_is_entered_in_the_ledger(place, tmp_path):
    """Before anything is released; one that would go over the total releases nothing."""
    ledger = tmp_path / "ledger"
    run, nodes = configs(place, tmp_path)
    run |= {"settings": f"{SETTINGS} ledger.path={ledger} ledger.total=25", "noise-seed": ""}
    server.serve(Loopback(nodes, run), run)
    (entry,) = entries_of(ledger)[0]
    assert entry["stated"][0] == 20
    assert not entry["spent"]["unproved"]
    again, nodes = configs(place, tmp_path / "again")
    again |= {"settings": run["settings"], "noise-seed": ""}
    with pytest.raises(InputError, match="this run would make it"):
        server.serve(Loopback(nodes, again), again)
    assert not (tmp_path / "again").exists()
    assert len(entries_of(ledger)[0]) == 1


def test_what_is_there_is_not_overwritten(place, tmp_path):
    run, nodes = configs(place, tmp_path)
    server.serve(Loopback(nodes, run), run)
    before = (tmp_path / "a.json").read_bytes()
    with pytest.raises(InputError, match="is there already"):
        server.serve(Loopback(nodes, run), run)
    run["out"] = str(tmp_path / "again")
    with pytest.raises(InputError, match="no owner answered"):
        server.serve(Loopback(nodes, run), run)
    assert (tmp_path / "a.json").read_bytes() == before


def test_contents_come_back_as_they_were():
    arrays = [np.arange(6.0).reshape(2, 3), np.zeros((0, 4)), *np.arange(20.0)[:, None]]
    back, words = unpacked(packed(arrays, task="a", round=2))
    assert words == {"task": "a", "round": 2}
    for one, other in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def free_ports(n):
    """Ports of the loopback interface that nobody has."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def certificate(folder):
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=mpmtl-test -addext"
    names = ["subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    try:
        subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed, which makes the certificate")
    return folder / "cert.pem", folder / "key.pem"


class Processes:
    """SuperLink and SuperNodes over TLS on 127.0.0.1; ended with the block.

    Parameters
    ----------
    folder : Path
        For certificates, logs, Flower's own files and the models.
    place : Path
        The tables.
    """

    def __init__(self, folder, place):
        self.folder, self.place, self.running = folder, place, {}
        self.env = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self):
        return self

    def begin(self):
        """Start the SuperLink, wait for it, and start the SuperNodes."""
        (self.folder / "home").mkdir()
        link, *ports = free_ports(1 + len(NAMES))
        cert, key = certificate(self.folder)
        address = f"127.0.0.1:{link}"
        self.start(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", link),
            *("--ssl-ca-certfile", cert, "--ssl-certfile", cert, "--ssl-keyfile", key),
            "--disable-runtime-dependency-installation",
        )
        self.wait_for(link)
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "study"\n[superlink.study]\naddress = "{address}"\n'
            f'root-certificates = "{cert}"\n'
        )
        for name, port in zip(NAMES, ports, strict=True):
            config = {
                "owner": name,
                "table": self.place / f"{name}.csv",
                "schema": self.place / "regression.yaml",
                "out": self.folder / f"{name}.json",
            }
            self.start(
                name,
                *("flower-supernode", "--superlink", address, "--root-certificates", cert),
                *("--host", "127.0.0.1", "--port", port),
                *("--node-config", " ".join(f'{k}="{v}"' for k, v in config.items())),
            )

    def __exit__(self, *error):
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.running[name] = subprocess.Popen(
                list(map(str, words)), env=self.env, stdout=log, stderr=subprocess.STDOUT
            )

    def wait_for(self, port):
        """Until somebody listens there; a minute at most."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.2)

    def lose(self, name):
        """A SuperNode is gone at once."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(20)

    def run(self, app, out, meanwhile=lambda: None, **config):
        """`flwr run` to its end, with something done meanwhile; returns its log."""
        config = " ".join(f"{k}={json.dumps(v)}" for k, v in {"out": str(out), **config}.items())
        words = ["flwr", "run", app, "study", "--stream", "--run-config", config]
        process = subprocess.Popen(
            list(map(str, words)),
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.running["flwr run"] = process
        meanwhile()
        printed, _ = process.communicate(timeout=900)
        logs = "".join(
            f"\n--- {p.name}\n{p.read_text()[-2000:]}" for p in self.folder.glob("*.log")
        )
        assert (Path(out) / "manifest.json").exists(), printed + logs
        return re.sub(r"\x1b\[\d+m", "", printed)

    def lose_after_an_answer(self, name):
        """The SuperNode is killed as soon as it has sent another answer."""
        path = self.folder / f"{name}.log"
        before, until = path.read_text().count("Sent successfully"), time.monotonic() + 400
        while path.read_text().count("Sent successfully") == before:
            assert time.monotonic() < until, path.read_text()
            time.sleep(0.05)
        self.lose(name)


@pytest.mark.slow
def test_five_owners_without_a_trusted_curator(place, tmp_path):
    """Masked sums over TLS; in a second run an owner is killed on the way to one."""
    settings = f"{FL} method.rounds=1 delta=1e-5"
    new = ["mpmtl-federate", "new", "app", *settings.split(), "--honest", "4"]
    new += ["--schema", str(place / "regression.yaml"), "--deadline", "300"]
    subprocess.run([BIN / new[0], *new[1:]], cwd=tmp_path, check=True, capture_output=True)
    with Processes(tmp_path, place) as federation:
        federation.begin()
        printed = federation.run(tmp_path / "app", tmp_path / "all")
        assert "sees sums alone" in printed
        assert "round 1: all 5 owners" in printed
        assert "5 of 5 owners have their models" in printed
        with np.load(tmp_path / "all" / "released.npz") as file:
            releases = list(file.values())
        chosen = study_of(settings, str(place / "regression.yaml"), "", 4)
        for i, name in enumerate(NAMES):
            rows, _ = chosen.data(place / f"{name}.csv", name)
            _, model = take_part(chosen.run, rows, i, releases, chosen.shares)
            (saved,) = models(tmp_path, [name])
            np.testing.assert_array_equal(saved, (60.0 * model[:-1]) / 60.0)
            (tmp_path / f"{name}.json").rename(tmp_path / f"first-{name}.json")
        printed = federation.run(
            tmp_path / "app",
            tmp_path / "without",
            lambda: federation.lose_after_an_answer("e"),
            deadline=150.0,
        )
    assert "round 1: went on without e" in printed
    assert "4 of 5 owners have their models" in printed
    manifest = json.loads((tmp_path / "without" / "manifest.json").read_text())
    assert manifest["present"] == [NAMES[:4]]


@pytest.mark.slow
def test_five_owners_over_tls(place, tmp_path):
    """SuperLink and five SuperNodes as processes of their own; in a second run one of them is
    killed after the first of two rounds."""
    settings = f"{FL} method.rounds=1"
    new = ["mpmtl-federate", "new", "app", *settings.split(), "--noise-seed", str(SEED)]
    new += ["--schema", str(place / "regression.yaml"), "--deadline", "120"]
    subprocess.run([BIN / new[0], *new[1:]], cwd=tmp_path, check=True, capture_output=True)
    app = tmp_path / "app"
    with Processes(tmp_path, place) as federation:
        federation.begin()
        printed = federation.run(app, tmp_path / "all")
        assert "round 1: all 5 owners" in printed
        assert "5 of 5 owners have their models" in printed
        whole = together(place, settings, seed=stream(SEED, "federated"))
        saved = models(tmp_path)
        np.testing.assert_array_equal(saved, (60.0 * whole[:, :-1]) / 60.0)
        for name in NAMES:
            (tmp_path / f"{name}.json").rename(tmp_path / f"first-{name}.json")

        printed = federation.run(
            app,
            tmp_path / "without",
            lambda: federation.lose_after_an_answer("e"),
            settings=SETTINGS,
            deadline=60.0,
        )
    assert "round 1: all 5 owners" in printed
    assert "round 2: went on without e" in printed
    assert "4 of 5 owners have their models" in printed

    def drop(given, t):
        return {i: v for i, v in given.items() if i != 4 or t == 0}

    everybody = owners(place, SETTINGS)
    releases, _, whole = apart(everybody, drop, seed=stream(SEED, "federated"))
    with np.load(tmp_path / "without" / "released.npz") as file:
        assert [release.tobytes() for release in file.values()] == [r.tobytes() for r in releases]
    np.testing.assert_array_equal(models(tmp_path, NAMES[:4]), (60.0 * whole[:4, :-1]) / 60.0)
    assert not (tmp_path / "e.json").exists()
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()
    )
    for name in NAMES:
        rows = (place / f"{name}.csv").read_text().splitlines()[1:]
        assert not any(row.encode() in written for row in rows)
