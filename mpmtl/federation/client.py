"""An owner as a Flower ClientApp: `mpmtl.federation.client:app`."""

import traceback

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from mpmtl.errors import InputError, require
from mpmtl.federation.messages import packed, unpacked
from mpmtl.federation.secagg import answer
from mpmtl.federation.study import Owner, Study

app = ClientApp()


@app.train()
def contribute(message: Message, context: Context) -> Message:
    """The owner's contribution to the round that is due, or its part in a sum of all of them."""

    def work(owner, releases, words):
        if owner.study.shares is None:
            return packed(owner.contribution(releases), **words)
        needed = owner.study.shares.needed
        configs, arrays = answer(message, context, needed, lambda: owner.contribution(releases)[0])
        return packed(arrays, configs, **words)

    return _answer(message, context, work)


@app.train("finish")
def finish(message: Message, context: Context) -> Message:
    """Fit and keep the owner's model; nothing of it is sent."""
    return _answer(
        message, context, lambda owner, releases, words: packed(owner.keep_model(releases), **words)
    )


def _answer(message, context, work):
    """A reply with what `work` gives; of an error no more than its kind leaves this place."""
    name, digest = str(context.node_config.get("owner", "")), None
    try:
        owner = owner_of(context)
        name = owner.name
        releases, words = unpacked(message.content)
        digest = owner.study.digest
        if words["digest"] != digest:
            print("error: the curator has other settings, another schema or version", flush=True)
            return _refusal(message, name, "other settings, schema or version")
        around = len(releases) + 1
        require(
            words["round"] == around, f"round {words['round']} comes with {around - 1} releases"
        )
        return Message(work(owner, releases, {"task": name, "round": around}), reply_to=message)
    except InputError as error:
        print(f"error: {error}", flush=True)
        return _refusal(message, name, "its settings or its table cannot be used")
    except Exception:
        traceback.print_exc()
        return _refusal(message, name, "a fault")


def _refusal(message, name, words):
    return Message(packed([], task=name, refused=words), reply_to=message)


def owner_of(context):
    """The owner that the node's settings name; in a simulation the one of its number."""
    node, run = context.node_config, context.run_config
    if "owner" in node:
        for key in ("table", "schema", "out"):
            require(key in node, f"--node-config lacks {key}: give owner, table, schema and out")
        study = Study.of(run, node["schema"])
        return Owner(study, str(node["owner"]), str(node["table"]), str(node["out"]))
    require(
        run.get("simulated-table", "") != "",
        "--node-config names no owner: give owner, table, schema and out",
    )
    study = Study.of(run, run["schema"])
    name = study.run.dataset.tasks[int(node["partition-id"])]
    return Owner(study, name, run["simulated-table"], f"{run['out']}-models/{name}.json")
