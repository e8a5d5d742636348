"""The sum of all owners' vectors without any single one of them: SecAgg+ on whole numbers.

Keys, secret shares and their encryption are those of Flower's `secaggplus_mod`, which answers three
of the four stages. The stage in which an owner masks its vector is here, on integers modulo 2^64:
Flower's own rounds to 32 bits at random, and takes a mask from 32 bits of its key, so that the one
between two honest owners can be tried out. Here a mask is an AES-256 key stream of the whole key.
Every owner has a mask in common with every other one (SecAgg+ with the complete graph).

References
----------
Bonawitz et al., Practical secure aggregation (CCS 2017); Bell et al., Secure single-server
aggregation with (poly)logarithmic overhead (CCS 2020).
"""

import base64

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.app import ConfigRecord
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    check_configs,
    check_stage,
    secaggplus_mod,
)
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from mpmtl.errors import require

ANSWERED = "mpmtl_answered"  # record of an owner's state: the last round that it has masked


def mask(key, n):
    """n numbers modulo 2^64 from a key of 32 bytes, which is used once: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8").astype(np.uint64)


def pair_mask(private, public, n):
    """The mask that two owners have in common, from the private key of one of them."""
    shared = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))
    return mask(base64.urlsafe_b64decode(shared), n)


def answer(message, context, needed, shares_of):
    """An owner's answer to a stage.

    Parameters
    ----------
    message : Message
    context : Context
        Its state lasts as long as the run.
    needed : int
        Owners without whom nothing is unmasked.
    shares_of : callable
        ``shares_of()`` gives the vector, whole numbers of 64 bits; asked once in a round.

    Returns
    -------
    configs : ConfigRecord
    arrays : list of ndarray
        Of the third stage: the masked vector.

    Raises
    ------
    InputError
        If the curator asks for what it must not have.
    """
    configs = message.content.config_records[RECORD_KEY_CONFIGS]
    stage, around = configs[Key.STAGE], int(message.content.config_records["words"]["round"])
    if stage == Stage.SETUP:
        require(configs[Key.THRESHOLD] == needed, f"the curator would unmask below {needed} owners")
    if stage == Stage.UNMASK:
        both = set(configs[Key.ACTIVE_NODE_ID_LIST]) & set(configs[Key.DEAD_NODE_ID_LIST])
        require(not both, "the curator asks for both masks of an owner")
    if stage != Stage.COLLECT_MASKED_VECTORS:
        reply = secaggplus_mod(message, context, None)
        return reply.content.config_records[RECORD_KEY_CONFIGS], []
    before = context.state.config_records.get(ANSWERED, {}).get("round", 0)
    require(around > before, f"round {around}: this owner has added its noise already")
    state = SecAggPlusState(**context.state.config_records[RECORD_KEY_STATE])
    check_stage(state.current_stage, configs)
    state.current_stage = configs.pop(Key.STAGE)
    check_configs(stage, configs)
    context.state.config_records[ANSWERED] = ConfigRecord({"round": around})
    vector = _masked(shares_of(), state, configs)
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    return ConfigRecord({}), [vector]


def _masked(numbers, state, configs):
    """A vector under the owner's own mask and those it has in common with the others."""
    sources, texts = configs[Key.SOURCE_LIST], configs[Key.CIPHERTEXT_LIST]
    others = dict(zip(sources, texts, strict=True))
    require(state.nid not in others, "the curator sends an owner's own keys back")
    require(len(others) + 1 >= state.threshold, f"fewer than {state.threshold} owners are there")
    total = numbers.astype(np.uint64).ravel() + mask(state.rd_seed, numbers.size)
    for node, text in others.items():
        sender, receiver, seed_share, key_share = share_keys_plaintext_separate(
            decrypt(state.ss2_dict[node], text)
        )
        require((sender, receiver) == (node, state.nid), "keys are not from whom they should be")
        state.rd_seed_share_dict[node], state.sk1_share_dict[node] = seed_share, key_share
        common = pair_mask(state.sk1, state.public_keys_dict[node][0], numbers.size)
        total += common if state.nid > node else -common
    return total.reshape(numbers.shape)


def _by_node(nodes, values):
    """``read(configs, arrays)`` of an answer with a list of nodes and one of their values."""
    return lambda configs, arrays: dict(zip(configs[nodes], configs[values], strict=True))


def secure_sum(ask, nodes, needed, shape):
    """Sum modulo 2^64 of the vectors of all owners that are still there; the curator's part.

    Parameters
    ----------
    ask : callable
        ``ask(stage, {node: configs}, read)`` returns {node: read(configs, arrays)} of the owners
        that answered in time.
    nodes : list of int
    needed : int
    shape : tuple of int

    Returns
    -------
    total : ndarray of int64, of this shape
    counted : list of int
        Nodes.

    Raises
    ------
    InputError
        If fewer than `needed` are left; nothing is released then.
    """

    def enough(given, what):
        require(
            len(given) >= needed,
            f"{what}: {len(given)} owners are there and {needed} are needed for their noise to be "
            "enough: nothing was released in this round, and the run ends",
        )

    setup = {Key.SAMPLE_NUMBER: len(nodes), Key.SHARE_NUMBER: len(nodes), Key.THRESHOLD: needed}
    unused = {Key.CLIPPING_RANGE: 0.0, Key.TARGET_RANGE: 0, Key.MOD_RANGE: 0, Key.MAX_WEIGHT: 0.0}
    keys = ask(
        Stage.SETUP,
        dict.fromkeys(nodes, setup | unused),
        lambda configs, arrays: [bytes(configs[k]) for k in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)],
    )
    enough(keys, "keys")
    everybody = {str(node): pair for node, pair in keys.items()}
    by_destination = _by_node(Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST)
    texts = ask(Stage.SHARE_KEYS, dict.fromkeys(keys, everybody), by_destination)
    enough(texts, "shares of keys")

    def forwarded(node):
        sent = {source: text[node] for source, text in texts.items() if node in text}
        return {Key.SOURCE_LIST: list(sent), Key.CIPHERTEXT_LIST: list(sent.values())}

    def vector(configs, arrays):
        (numbers,) = arrays
        if numbers.shape != shape or numbers.dtype != np.uint64:
            raise ValueError(f"{numbers.dtype}, shape {numbers.shape}")
        return numbers.ravel()

    given = ask(Stage.COLLECT_MASKED_VECTORS, {n: forwarded(n) for n in texts}, vector)
    enough(given, "masked vectors")
    lost = [node for node in texts if node not in given]
    lists = {Key.ACTIVE_NODE_ID_LIST: list(given), Key.DEAD_NODE_ID_LIST: lost}
    by_owner = _by_node(Key.NODE_ID_LIST, Key.SHARE_LIST)
    told = ask(Stage.UNMASK, dict.fromkeys(given, lists), by_owner)
    enough(told, "shares of masks")

    def secret(node):
        parts = [shares[node] for shares in told.values() if node in shares]
        return combine_shares(parts[:needed])

    total = np.sum(list(given.values()), axis=0, dtype=np.uint64)
    try:
        for node in given:
            total -= mask(secret(node), total.size)
        for node in lost:
            private = secret(node)
            for other in given:
                common = pair_mask(private, keys[other][0], total.size)
                total -= common if other > node else -common
    except ValueError as error:
        require(False, f"the owners' shares of the masks do not fit together ({error})")
    return total.astype(np.int64).reshape(shape), list(given)
