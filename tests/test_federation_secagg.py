"""Without a trusted curator: sums of masked whole numbers, over messages in one process."""

import json
from itertools import combinations

import numpy as np
import pytest
from test_federation import FL, LR, MR, NAMES, owners, run_cli, study_of, write_study

from mpmtl.errors import InputError
from mpmtl.federation.rounds import curate, rehearse, take_part
from mpmtl.federation.study import Study
from mpmtl.privacy import shares
from mpmtl.privacy.shares import Shares

flwr = pytest.importorskip("flwr", reason="Flower is not installed: make federated")

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from test_federation_flower import Loopback, configs, quick  # noqa: E402, F401

from mpmtl.federation import server  # noqa: E402
from mpmtl.federation.messages import packed, unpacked  # noqa: E402
from mpmtl.federation.secagg import (  # noqa: E402
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
    answer,
    mask,
    secure_sum,
)

SETTINGS = f"{FL} method.rounds=2 delta=1e-5"
STAGES = Stage.all()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


class Owners:
    """Owners of vectors, each at a node, of whom some are lost at a stage.

    Parameters
    ----------
    vectors : dict of int to ndarray
    needed : int
    lost : dict of int to str
        Stage before which a node answers no more.
    """

    def __init__(self, vectors, needed, lost):
        self.vectors, self.needed, self.lost = vectors, needed, lost
        self.contexts = {n: Context(0, n, {}, RecordDict(), {}) for n in vectors}
        self.seen, self.around = [], 1

    def ask(self, stage, of_nodes, read):
        given = {}
        for node, words in of_nodes.items():
            if node in self.lost and STAGES.index(stage) >= STAGES.index(self.lost[node]):
                continue
            answered, arrays = self.send(node, words | {Key.STAGE: stage})
            self.seen += arrays
            given[node] = read(answered, arrays)
        return given

    def send(self, node, configs):
        content = packed([], ConfigRecord(configs), round=self.around)
        message = Message(content, node, "train")
        return answer(message, self.contexts[node], self.needed, lambda: self.vectors[node])


def whole_vectors(nodes, shape=(3, 4)):
    """Numbers of all sizes, whose sum does not leave 64 bits."""
    rng = np.random.default_rng(8)
    return {n: rng.integers(-(2**60), 2**60, shape) >> rng.integers(0, 60) for n in nodes}


NODES = (17, 3, 2**63 + 5, 11, 40)


@pytest.mark.parametrize("lost", [{}, *({17: stage} for stage in STAGES)], ids=str)
def test_the_sum_is_that_of_whole_numbers_bit_for_bit(lost):
    """With an owner lost at any stage; one that is lost before the last is not in it."""
    vectors = whole_vectors(NODES)
    both = Owners(vectors, 3, lost)
    total, counted = secure_sum(both.ask, list(NODES), 3, (3, 4))
    left = [n for n in NODES if lost.get(n, Stage.UNMASK) == Stage.UNMASK]
    assert sorted(counted) == sorted(left)
    np.testing.assert_array_equal(total, sum(vectors[n] for n in left))
    assert total.dtype == np.int64
    masked = both.seen
    assert len(masked) == len(left)
    plain = {v.astype(np.uint64).tobytes() for v in vectors.values()}
    assert plain.isdisjoint(a.tobytes() for a in masked)


@pytest.mark.parametrize("stage", STAGES)
def test_too_few_owners_release_nothing(stage):
    both = Owners(whole_vectors(NODES), 4, {17: stage, 3: stage})
    with pytest.raises(InputError, match="3 owners are there and 4 are needed") as error:
        secure_sum(both.ask, list(NODES), 4, (3, 4))
    assert "\n" not in str(error.value)


def test_no_part_of_the_masked_vectors_sums_to_one_without_masks():
    """Of five vectors no sum of fewer is small, where the numbers themselves are; with all of them
    it still has the owners' own masks. One number of 12 below 2^56 has probability 2^-7."""
    vectors = {n: np.full((3, 4), k) for k, n in enumerate(NODES)}
    both = Owners(vectors, 3, {})
    secure_sum(both.ask, list(NODES), 3, (3, 4))
    masked = both.seen
    for r in range(1, 6):
        for some in combinations(masked, r):
            total = np.sum(some, axis=0, dtype=np.uint64).astype(np.int64)
            assert (np.abs(total) < 2**56).mean() < 0.9


def test_a_sum_wraps_as_whole_numbers_do():
    """Modulo 2^64: what a false vector can do to a sum, which is post-processing of it."""
    vectors = {n: np.full(2, 2**62 + k) for k, n in enumerate(NODES)}
    total, _ = secure_sum(Owners(vectors, 3, {}).ask, list(NODES), 3, (2,))
    assert total.tolist() == [(5 * 2**62 + 10 + 2**63) % 2**64 - 2**63] * 2


def test_a_mask_is_a_key_stream():
    """Uniform words that depend on all of the key; the first block is AES-256 of zero."""
    first = mask(bytes(32), 2).astype("<u8").tobytes()
    assert first.hex() == "dc95c078a2408989ad48a21492842087"
    words = mask(b"k" * 32, 4096)
    bits = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 6 * 0.5 / np.sqrt(64 * 4096)
    for place in range(32):
        other = mask(b"k" * place + b"l" + b"k" * (31 - place), 64)
        assert not (other == words[:64]).any()


class TestWhatACuratorMustNotHave:
    """An owner refuses a curator that leaves the protocol, as far as it can see that."""

    def test_a_lower_threshold(self):
        both = Owners(whole_vectors(NODES), 3, {})
        with pytest.raises(InputError, match="unmask below 3"):
            secure_sum(both.ask, list(NODES), 2, (3, 4))

    @pytest.mark.parametrize("fewer", [False, True])
    def test_both_masks_of_an_owner_or_a_sum_of_few(self, fewer):
        both = Owners(whole_vectors(NODES), 3, {})

        def ask(stage, of_nodes, read):
            if stage == Stage.UNMASK:
                asked = {Key.ACTIVE_NODE_ID_LIST: list(NODES), Key.DEAD_NODE_ID_LIST: [3]}
                if fewer:
                    asked = {Key.ACTIVE_NODE_ID_LIST: [17, 3], Key.DEAD_NODE_ID_LIST: [11, 40]}
                of_nodes = dict.fromkeys(of_nodes, asked)
            return both.ask(stage, of_nodes, read)

        error, words = (ValueError, "threshold") if fewer else (InputError, "both masks")
        with pytest.raises(error, match=words):
            secure_sum(ask, list(NODES), 3, (3, 4))

    def test_a_second_vector_in_a_round(self):
        """Its noise would be fresh, and the mean of two has less of it."""
        both = Owners(whole_vectors(NODES), 3, {})
        secure_sum(both.ask, list(NODES), 3, (3, 4))
        with pytest.raises(InputError, match="has added its noise already"):
            secure_sum(both.ask, list(NODES), 3, (3, 4))
        both.around = 2
        secure_sum(both.ask, list(NODES), 3, (3, 4))

    def test_stages_in_another_order(self):
        both = Owners(whole_vectors(NODES), 3, {})
        with pytest.raises((ValueError, KeyError)):
            both.send(3, {Key.STAGE: Stage.COLLECT_MASKED_VECTORS})


def study(place, settings=SETTINGS, honest=3, colluding=1):
    return study_of(settings, str(place / "regression.yaml"), "", honest, colluding)


@pytest.fixture
def noisy(monkeypatch):
    """What every owner put into the sum, in the order of the answers."""
    kept, plain = [], shares.noisy_share

    def keep(*args):
        kept.append(plain(*args))
        return kept[-1]

    monkeypatch.setattr(shares, "noisy_share", keep)
    return kept


def secure(place, folder, settings=SETTINGS, **more):
    run, nodes = configs(place, folder)
    run |= {"settings": settings, "noise-seed": "", "honest": 3, "colluding": 1}
    return run | more, nodes


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        (SETTINGS, 2),
        (f"{LR} delta=1e-5", 4),
        ("method=gs privacy=gaussian method.eta=public method.grid.n_rounds=2", 2),
        (MR, 3),
        ("method=fl privacy=gaussian epsilon=1", 2),
    ],
)
def test_the_curator_gets_the_plain_sum_and_no_vector(place, tmp_path, noisy, settings, rounds):
    """Each release is that of the sum of what the owners put in; no message has one of these."""
    run, nodes = secure(place, tmp_path, settings)
    grid = Loopback(nodes, run)
    releases = server.serve(grid, run)
    assert len(noisy) == 5 * rounds
    totals = [sum(noisy[5 * t : 5 * t + 5]) for t in range(rounds)]
    chosen = study(place, settings)
    given = iter(totals)
    data, _ = chosen.data()
    again, present = curate(
        chosen.run,
        data,
        np.random.default_rng(0),
        lambda releases, shape: (next(given), list(range(5))),
        noise=chosen.shares,
    )
    assert [len(tasks) for tasks in present] == [5] * rounds
    for one, other in zip(releases, again, strict=True):
        assert one.tobytes() == other.tobytes()
    secret = {a.astype(np.uint64).tobytes() for a in noisy}
    for _, message, reply in grid.sent:
        for content in (message.content, reply.content):
            arrays, _ = unpacked(content)
            assert secret.isdisjoint(np.asarray(a).tobytes() for a in arrays)
    block = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert block["shares"] == {"honest": 3, "colluding": 1}
    assert list(block["privacy"]["caveats"])[-1] == "secure-sum"
    assert all((tmp_path / f"{name}.json").exists() for name in NAMES)


def test_a_lost_owner(place, tmp_path, noisy, capsys):
    """After its vector in the first round, before it in the second: four are enough."""
    run, nodes = secure(place, tmp_path)

    def lose(message, reply):
        configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
        _, words = unpacked(reply.content)
        late = (
            configs is not None
            and RECORD_KEY_CONFIGS in reply.content
            and (Key.ACTIVE_NODE_ID_LIST in configs or Key.CIPHERTEXT_LIST in configs)
        )
        after = configs is not None and Key.ACTIVE_NODE_ID_LIST in configs
        if words["task"] == "e" and late and (after or words["round"] == 2):
            return []
        return [reply]

    releases = server.serve(Loopback(nodes, run, lose), run)
    manifest = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert manifest["present"] == [NAMES, NAMES[:4]]
    assert np.isfinite(releases).all()
    assert "round 2: went on without e" in capsys.readouterr().out


def test_a_round_of_too_few_is_refused(place, tmp_path, capsys):
    """Two of five are gone in the second round, and four are needed."""
    run, nodes = secure(place, tmp_path)

    def lose(message, reply):
        _, words = unpacked(reply.content)
        return [] if words["task"] in "de" and words["round"] == 2 else [reply]

    with pytest.raises(InputError, match="3 owners are there and 4 are needed"):
        server.serve(Loopback(nodes, run, lose), run)
    assert not (tmp_path / "results").exists()
    assert "round 1: all 5 owners" in capsys.readouterr().out


def test_a_ledger_is_charged_before_the_first_sum(place, tmp_path):
    run, nodes = secure(place, tmp_path, f"{SETTINGS} ledger.path={tmp_path / 'l'} ledger.total=1")
    grid = Loopback(nodes, run)
    with pytest.raises(InputError, match="this run would make it"):
        server.serve(grid, run)
    assert grid.sent == []


def test_malformed_vectors_are_left_out(place, tmp_path, capsys):
    """A masked vector of another type counts as none, and its owner's masks are taken off."""
    run, nodes = secure(place, tmp_path)

    def tamper(message, reply):
        arrays, words = unpacked(reply.content)
        if words["task"] != "b" or not arrays:
            return [reply]
        content = packed([arrays[0].astype(float)], reply.content[RECORD_KEY_CONFIGS], **words)
        return [Message(content, reply_to=message)]

    server.serve(Loopback(nodes, run, tamper), run)
    assert capsys.readouterr().out.count("owner b: malformed answer") == 2
    manifest = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert manifest["present"] == [["a", "c", "d", "e"]] * 2


@pytest.mark.parametrize(
    ("settings", "honest", "words"),
    [
        ("method=rl privacy=gaussian method.eta=public", 3, "must be a sum over owners"),
        ("method=gs privacy=laplace method.eta=public", 3, "must be a sum over owners"),
        ("method=fl_local privacy=none", 3, "must be a sum over owners"),
        (SETTINGS, 5, "6 owners are needed"),
    ],
)
def test_what_needs_a_trusted_curator_is_refused(place, settings, honest, words):
    chosen = study(place, settings, honest)
    with pytest.raises(InputError, match=words) as error:
        rehearse(chosen.run, chosen.data()[0], chosen.shares)
    assert "\n" not in str(error.value)


def test_owners_agree_on_who_is_honest(place):
    schema = str(place / "regression.yaml")
    digests = {study(place, SETTINGS, h, c).digest for h, c in ((0, 0), (3, 0), (3, 1), (4, 0))}
    assert len(digests) == 4
    with pytest.raises(InputError, match="never comes from a seed"):
        Study(SETTINGS, schema, "3", 3).shares  # noqa: B018
    with pytest.raises(InputError, match="needs honest"):
        Study(SETTINGS, schema, "", 0, 1).shares  # noqa: B018


def test_noise_in_shares_is_fresh_and_only_the_noise_differs(place):
    chosen = study(place)
    owner = owners(place, SETTINGS)[1]
    data, _ = chosen.data(owner.table, "b")
    one, other = (take_part(chosen.run, data, 1, [], Shares(3, 1))[0] for _ in range(2))
    assert one.dtype == np.int64
    assert not (one == other).any()
    assert (np.abs(one - other) < 2**44).all()  # 11 standard deviations and more


def test_the_card_says_it(place, tmp_path, monkeypatch, capsys):
    """Unit, relation, who is assumed honest, and what the caveat is."""
    new = ["new", tmp_path / "app", *SETTINGS.split(), "--schema", place / "regression.yaml"]
    new += ["--honest", 3, "--colluding", 1, "--nodes", "a=12", "b=13"]
    code, out, err = run_cli(monkeypatch, capsys, *new)
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    for words in (
        "unit a task; neighbours replace one task's model and data",
        "proved (20, 1e-05): Gaussian mechanism",
        "shares of 3 honest owners",
        "caveat secure-sum: holds against a curator who follows the protocol",
        "curator sees sums alone",
        "at least 3 are honest and at most 1 collude",
        "fewer than 4 is refused",
    ):
        assert words in said
    assert 'nodes = "a=12 b=13"' in (tmp_path / "app" / "pyproject.toml").read_text()
    one = ["--owner", "a", "--table", place / "a.csv", "--schema", place / "regression.yaml"]
    code, out, err = run_cli(monkeypatch, capsys, "check", tmp_path / "app", *one)
    assert (code, err) == (0, "")
    assert "sees sums alone" in out
