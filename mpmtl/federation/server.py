"""The curator as a Flower ServerApp: `mpmtl.federation.server:app`."""

import hashlib
import json
import secrets
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from mpmtl.errors import InputError, require
from mpmtl.experiments.ledger import charge
from mpmtl.experiments.store import code_version, environment, write_atomic
from mpmtl.federation.messages import packed, unpacked
from mpmtl.federation.rounds import curate, statement
from mpmtl.federation.secagg import RECORD_KEY_CONFIGS, Key, secure_sum
from mpmtl.federation.study import Study, nodes_in, summary
from mpmtl.privacy.spending import Spent
from mpmtl.streams import stream

CONTRIBUTE, FINISH = "train", "train.finish"
POLL = 0.5  # seconds between two looks for answers
LINGER = 60  # seconds beyond the deadline that Flower keeps a message which nobody fetched

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the study that `mpmtl-federate new` wrote."""
    try:
        serve(grid, context.run_config)
    except InputError as error:
        print(f"error: {error}", flush=True)
        raise error.with_traceback(None) from None  # which Flower logs once more


def say(line):
    """A line for the curator's log."""
    print(line, flush=True)


def serve(grid, config):
    """All rounds of a study.

    Parameters
    ----------
    grid : Grid
    config : dict
        As in the app that `mpmtl-federate new` writes.

    Returns
    -------
    releases : list of ndarray
    """
    study = Study.of(config, config["schema"])
    run, (data, _), shares = study.run, study.data(), study.shares
    out, block = Path(config["out"]), statement(run, data, shares)
    require(not out.exists(), f"out = {out} is there already: choose another folder")
    say(summary(run, data, block, shares))
    rng = stream(int(study.seed), "federated") if study.seed else np.random.default_rng()
    bound = nodes_in(config["nodes"], data.task_names)
    owners = Owners(grid, data.task_names, study.digest, float(config["deadline"]), bound)
    owners.wait()

    def first(releases):
        if not releases and run.ledger.path:  # before anything is released
            enter(study, data, block)

    def collect(releases):
        given = owners.ask(CONTRIBUTE, releases)
        require(
            given or releases,
            f"no owner answered within {owners.deadline:g} s: nothing was released",
        )
        first(releases)
        return {task: arrays[0] for task, arrays in given.items() if arrays}

    def collect_sum(releases, shape):
        first(releases)
        return owners.sum(releases, shape, shares.needed)

    releases, present = curate(
        run, data, rng, collect if shares is None else collect_sum, say, shares
    )
    out.mkdir(parents=True)
    np.savez(out / "released.npz", *releases)
    manifest = {
        "settings": run.settings,
        "version": code_version(),
        "tasks": data.task_names,
        "present": [[data.task_names[task] for task in tasks] for tasks in present],
        "privacy": block.as_dict(),
        "shares": shares and asdict(shares),
        "environment": environment(),
    }
    write_atomic(out / "manifest.json", json.dumps(manifest, indent=2, default=str) + "\n")
    done = owners.ask(FINISH, releases)
    say(f"{len(done)} of {data.n_tasks} owners have their models; releases: {out}")
    return releases


def enter(study, data, block):
    """Charge the curator's ledger (ledger.path=...) for a study; refuse it above ledger.total."""
    run, owners = study.run, json.dumps(sorted(data.task_names))
    entry = {
        "id": secrets.token_hex(8),
        "data": hashlib.sha256(owners.encode()).hexdigest(),
        "run": f"federated {run.method.name}",
        "stated": [run.epsilon, run.budget(data.n_tasks).delta],
        "spent": Spent.by([block.as_dict()]).as_dict(),
        "caveats": list(block.caveats),
    }
    charge(run.ledger, [entry], entry["stated"][1])


@dataclass
class Owners:
    """The owners' side of the wire, as the curator sees it.

    Attributes
    ----------
    grid : Grid
    names : tuple of str
        Tasks.
    digest : str
        Of the study.
    deadline : float
        Seconds that a round, or a stage of secure aggregation, waits.
    bound : dict of int to int
        Node of each task, which alone can answer for it: given beforehand, or the first to answer.
    """

    grid: Grid
    names: tuple
    digest: str
    deadline: float
    bound: dict = field(default_factory=dict)

    def wait(self):
        """Until as many nodes are there as there are tasks, or to the deadline."""
        until = time.monotonic() + self.deadline
        while (n := len(list(self.grid.get_node_ids()))) < len(self.names):
            if time.monotonic() > until:
                say(f"{n} of {len(self.names)} owners are there after {self.deadline:g} s")
                return
            time.sleep(POLL)

    def ask(self, kind, releases):
        """Answers of one round that came in time, {task index: arrays}; the first of each task.

        Parameters
        ----------
        kind : str
        releases : sequence of ndarray
        """
        nodes = dict.fromkeys(self.grid.get_node_ids())
        given = self._exchange(kind, releases, nodes, lambda configs, arrays: arrays)
        self._say_lost("models" if kind == FINISH else f"round {len(releases) + 1}", given)
        return given

    def sum(self, releases, shape, needed):
        """Sum of one round's whole numbers by secure aggregation, and the tasks that are in it.

        Parameters
        ----------
        releases : sequence of ndarray
        shape : tuple of int
        needed : int
        """

        def ask(stage, of_nodes, read):
            contents = {
                node: ConfigRecord(configs | {Key.STAGE: stage})
                for node, configs in of_nodes.items()
            }
            given = self._exchange(CONTRIBUTE, releases, contents, read)
            return {self.bound[task]: what for task, what in given.items()}

        total, nodes = secure_sum(ask, list(self.grid.get_node_ids()), needed, shape)
        counted = sorted(task for task, node in self.bound.items() if node in nodes)
        self._say_lost(f"round {len(releases) + 1}", counted)
        return total, counted

    def _say_lost(self, what, given):
        lost = [name for task, name in enumerate(self.names) if task not in given]
        if lost:
            say(f"{what}: went on without {', '.join(lost)} after {self.deadline:g} s at most")
        else:
            say(f"{what}: all {len(self.names)} owners")

    def _exchange(self, kind, releases, contents, read):
        """Send to each node, wait; {task index: read(configs, arrays)} of what came in time.

        Parameters
        ----------
        contents : dict of int to ConfigRecord or None
            Stage of secure aggregation for each node.
        read : callable
            Raises KeyError, ValueError or TypeError where an answer is none.
        """
        around = len(releases) + 1
        messages = [
            Message(
                packed(releases, contents[node], digest=self.digest, round=around),
                node,
                kind,
                ttl=self.deadline + LINGER,
                group_id=str(around),
            )
            for node in sorted(contents)
        ]
        pending = {name for name in self.grid.push_messages(messages) if name}
        until, given = time.monotonic() + self.deadline, {}
        while pending and len(given) < len(self.names):
            for reply in self.grid.pull_messages(sorted(pending)):
                pending.discard(reply.metadata.reply_to_message_id)
                self._take(reply, around, given, read)
            if time.monotonic() > until:
                break
            if pending:
                time.sleep(POLL)
        return given

    def _take(self, reply, around, given, read):
        """Note a reply unless it is none, of another round, or not the first of its task."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            say(f"node {node}: no answer (Flower error {reply.error.code})")
            return
        try:
            arrays, words = unpacked(reply.content)
            task = self.names.index(words["task"])
        except (KeyError, ValueError, TypeError):
            say(f"node {node}: an answer that names no owner, left out")
            return
        name, other = self.names[task], self._another(node, task)
        if other:
            say(other)
        elif "refused" in words:
            say(f"owner {name}: does not take part ({words['refused']}; its own log says more)")
        elif words.get("round") != around:
            say(f"owner {name}: an answer for round {words.get('round')}, left out")
        elif task in given:
            say(f"owner {name}: answered twice, the first answer counts")
        else:
            try:
                configs = reply.content.config_records.get(RECORD_KEY_CONFIGS)
                given[task] = read(configs, arrays)
                self.bound[task] = node
            except (KeyError, ValueError, TypeError):
                say(f"owner {name}: malformed answer, counted as a zero model")

    def _another(self, node, task):
        """A line if a node answers in the name of an owner that it is not."""
        name = self.names[task]
        for own, owner in self.bound.items():
            if owner == node and own != task:
                return f"owner {self.names[own]} answered in the name of owner {name}, left out"
        if self.bound.get(task, node) != node:
            return (
                f"node {node} answered in the name of owner {name}, which is node "
                f"{self.bound[task]}, left out"
            )
        return None
