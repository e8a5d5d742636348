"""The ledger of a study: its file, its sums, what is charged and what is refused."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from math import inf

import numpy as np
import pytest
from conftest import make_run, mpmtl_run
from hypothesis import given
from hypothesis import strategies as st

from mpmtl.errors import InputError
from mpmtl.experiments import runner
from mpmtl.experiments.ledger import Account, charge, entries_of, key_of, keyed, total_of
from mpmtl.experiments.runner import execute, planned_spending, run_replicate
from mpmtl.experiments.sweep import together
from mpmtl.privacy.budget import Cost, gaussian_mu
from mpmtl.privacy.spending import Spent, in_words, pair_of

# sums

COSTS = st.builds(Cost, st.floats(0, 3), st.lists(st.floats(0.01, 2), max_size=3).map(tuple))
SPENT = st.builds(Spent, COSTS, st.tuples(st.floats(0, 1), st.floats(0, 0.1)))


def test_sixty_fits_are_not_sixty_times_epsilon():
    """Exact composition: mu = sqrt(60) mu_1, whose epsilon at the same delta is far below 60."""
    one = Spent(Cost(gaussian_mu(1.0, 1e-3)))
    together = sum([one] * 60, Spent())
    assert together.cost.mu == pytest.approx(np.sqrt(60) * one.cost.mu)
    assert together.epsilon(1e-3) == pytest.approx(Cost(together.cost.mu).epsilon(1e-3))
    assert 1 < together.epsilon(1e-3) < 60


@given(SPENT, SPENT)
def test_more_fits_never_cost_less_and_order_does_not_matter(a, b):
    both = (a + b).epsilon(0.3)
    assert both >= max(a.epsilon(0.3), b.epsilon(0.3)) * (1 - 1e-9)
    assert both == pytest.approx((b + a).epsilon(0.3))
    assert Spent.from_dict(json.loads(json.dumps((a + b).as_dict()))) == a + b


def test_pairs_add_up_beside_exact_costs():
    spent = Spent(Cost(0.5, (0.2,)), (0.3, 1e-3)) + Spent(pair=(0.1, 1e-3))
    assert spent.epsilon(3e-3) == pytest.approx(0.4 + Cost(0.5, (0.2,)).epsilon(1e-3))
    assert spent.epsilon(1e-3) == inf
    assert (spent + Spent(unproved=1)).epsilon(0.5) == inf
    assert pair_of(Spent(pair=(0.3, 1e-3)), 1e-2) == (0.3, 1e-3)  # it needs no more
    assert pair_of(Spent(pair=(0.3, 1.0)), 1e-2) is None


def block(epsilon, delta, mu=None, pure=()):
    cost = None if mu is None else {"mu": mu, "pure": list(pure)}
    return {"proved": {"epsilon": epsilon, "delta": delta}, "cost": cost}


def test_what_a_fit_spends_covers_every_setting_that_may_be_chosen():
    assert Spent.by([block(1, 0.1, 0.5), block(1, 0.1, 0.6)]) == Spent(Cost(0.6))
    assert Spent.by([block(1, 0, 0, [0.5, 0.5])] * 2) == Spent(Cost(0, (0.5, 0.5)))
    differing = [block(1, 0.1, 0, [0.5, 0.5]), block(1, 0.1, 0, [0.9])]
    assert Spent.by(differing) == Spent(pair=(1, 0.1))
    assert Spent.by([block(1, 0.1, 0.5), block(2, 0.05)]) == Spent(pair=(2, 0.1))
    nothing = {"proved": None}
    assert Spent.by([nothing]) == Spent.by([block(1, 1.0)]) == Spent(unproved=1)
    assert Spent.by([block(0.0, 0.0)]).nothing


def test_sums_in_words():
    one = Spent(Cost(pure=(0.5,)))
    assert in_words(one, 1, 1e-3) == f"1 fit spent ({one.epsilon(1e-3):.4g}, 0.001) together"
    both = in_words(one + Spent(unproved=2), 3, 1e-3)
    assert both.endswith("; 2 more have no proved cost, so nothing is proved of all")
    assert in_words(Spent(unproved=2), 2, 1e-3).startswith("2 fits without a proved cost")
    assert "add up to 1.2" in in_words(Spent(pair=(1, 1.2)), 2, 1e-3)


# the file


def entry(name, mu=0.5):
    return {
        "id": name,
        "data": "d" * 8,
        "run": "table/fl_local",
        "stated": [1.0, 1e-3],
        "spent": Spent(Cost(mu)).as_dict(),
        "caveats": [],
    }


def ids(path):
    return [e["id"] for e in entries_of(path)[0]]


def named(path, names):
    return [keyed(key_of(path), name) for name in names]


def test_lines_are_added_and_each_id_once(tmp_path):
    account = Account(str(tmp_path / "new" / "study.jsonl"))
    charge(account, [entry("a"), entry("b")], 1e-3)
    first = (tmp_path / "new" / "study.jsonl").read_bytes()
    charge(account, [entry("b"), entry("c")], 1e-3)
    after = (tmp_path / "new" / "study.jsonl").read_bytes()
    assert after.startswith(first)
    entries, _, length = entries_of(account.path)
    assert ids(account.path) == named(account.path, "abc")
    assert length == len(after)
    assert total_of(entries).cost.mu == pytest.approx(0.5 * np.sqrt(3))


@pytest.mark.parametrize("change", ["a bit", "a line gone", "lines exchanged", "no number"])
def test_a_ledger_that_was_changed_is_refused_in_one_line(change, tmp_path):
    path = tmp_path / "study.jsonl"
    charge(Account(str(path)), [entry(name) for name in "abcd"], 1e-3)
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "a bit":
        lines[1] = lines[1].replace(b'"mu":0.5', b'"mu":0.4')
    elif change == "a line gone":
        del lines[1]
    elif change == "lines exchanged":
        lines[1:3] = lines[2:0:-1]
    else:
        lines[1] = b"x\n"
    path.write_bytes(b"".join(lines))
    for attempt in (
        lambda: entries_of(path),
        lambda: charge(Account(str(path)), [entry("e")], 1e-3),
    ):
        with pytest.raises(InputError, match="line 2: this line or one before it was changed"):
            attempt()
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("length", [1, 40, 10_000])
def test_a_line_that_was_cut_off_has_charged_nothing(length, tmp_path):
    path = tmp_path / "study.jsonl"
    account = Account(str(path))
    charge(account, [entry("a")], 1e-3)
    whole = path.read_bytes()
    charge(account, [entry("b")], 1e-3)
    path.write_bytes(path.read_bytes()[: min(len(whole) + length, 2 * len(whole) - 1)])
    assert ids(path) == named(path, "a")
    charge(account, [entry("c")], 1e-3)
    assert ids(path) == named(path, "ac")


def test_names_in_a_ledger_tell_nothing_without_its_key(tmp_path):
    """The same fit on the same data has another name in every ledger, and no digest is in one."""
    one, two = (tmp_path / name for name in ("a.jsonl", "b.jsonl"))
    for path in (one, two):
        charge(Account(str(path)), [entry("a")], 1e-3)
        assert b"dddddddd" not in path.read_bytes()
        assert (tmp_path / f"{path.name}.key").stat().st_mode & 0o777 == 0o600
    (first,), (second,) = (entries_of(path)[0] for path in (one, two))
    assert first["id"] != second["id"]
    assert first["data"] != second["data"]


def test_a_key_that_is_lost_charges_again_and_a_damaged_one_is_refused(tmp_path):
    path, key = tmp_path / "study.jsonl", tmp_path / "study.jsonl.key"
    charge(Account(str(path)), [entry("a")], 1e-3)
    kept = key.read_bytes()
    key.write_bytes(kept[:10])
    with pytest.raises(InputError, match="study.jsonl.key is damaged: restore it from a copy"):
        charge(Account(str(path)), [entry("a")], 1e-3)
    assert len(ids(path)) == 1
    key.unlink()
    charge(Account(str(path)), [entry("a")], 1e-3)
    assert len(ids(path)) == 2


def test_what_goes_over_the_total_is_refused_and_not_entered(tmp_path):
    mu = gaussian_mu(1.0, 1e-3)
    account = Account(str(tmp_path / "study.jsonl"), total=2.0)
    charge(account, [entry("a", mu)], 1e-3)
    before = (tmp_path / "study.jsonl").read_bytes()
    refused = r"1 is spent of ledger.total = 2 at delta = 0.001, and this run would make it 2.\d+:"
    with pytest.raises(InputError, match=refused):
        charge(account, [entry(name, mu) for name in "bcde"], 1e-3)
    with pytest.raises(InputError, match="would make it unlimited"):
        charge(account, [entry("b") | {"spent": Spent(unproved=1).as_dict()}], 1e-3)
    assert (tmp_path / "study.jsonl").read_bytes() == before
    charge(account, [entry("b", mu)], 1e-3)
    charge(account, [entry("a", mu), entry("b", mu)], 1e-3)  # paid for
    stricter = Account(account.path, total=2.0, delta=1e-9)
    with pytest.raises(InputError, match="delta = 1e-09"):
        charge(stricter, [entry("c", mu)], 1e-3)


def test_runs_at_the_same_time_lose_no_line_and_share_the_total(tmp_path):
    mu = gaussian_mu(1.0, 1e-3)
    account = Account(str(tmp_path / "study.jsonl"), total=Cost(np.sqrt(5) * mu).epsilon(1e-3))

    def one(k):
        try:
            charge(account, [entry(str(k), mu)], 1e-3)
        except InputError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(16))) == 5
    assert len(entries_of(account.path)[0]) == 5


@pytest.mark.parametrize(
    "words",
    ["ledger.total=1", "ledger.path=x ledger.total=0", "ledger.path=x ledger.delta=2", "ledger=x"],
)
def test_settings_of_a_ledger_are_checked(words):
    with pytest.raises(InputError, match=r"^ledger[.\w]* "):
        make_run(*words.split())


# runs

METHODS = (
    "lr gs lr_sp rl mr_mtl fedrep fl fl_local fl_shared dp_mtrl dp_aggr stl mtl_lr lr/gaussian "
    "gs/laplace"
)


@pytest.mark.parametrize("method", METHODS.split())
def test_what_is_charged_is_at_least_what_the_fit_states(method):
    run = make_run(f"method={method}", "epsilon=1")
    planned, _ = planned_spending(run, run.draw(0)[0])
    own = Spent.by([run_replicate(run, 0)["privacy"]])
    assert planned.unproved == own.unproved
    assert planned.nothing == own.nothing
    for delta in (0.01, 0.05, 0.3):
        assert planned.epsilon(delta) >= own.epsilon(delta) * (1 - 1e-9)


def charged(path):
    return [e["replicate"] for e in entries_of(path / "study.jsonl")[0]]


def carry_out(path, *words):
    run = make_run(
        "method=fl_local",
        f"results_dir={path}/results",
        f"ledger.path={path}/study.jsonl",
        "epsilon=1",
        *words,
    )
    out = io.StringIO()
    return execute(run, out), out.getvalue()


def test_what_is_done_is_not_charged_again(tmp_path):
    carry_out(tmp_path, "n_replicates=2")
    assert charged(tmp_path) == [0, 1]
    carry_out(tmp_path, "n_replicates=2")
    carry_out(tmp_path, "n_replicates=3")
    assert charged(tmp_path) == [0, 1, 2]
    carry_out(tmp_path, "n_replicates=3", "overwrite=true")  # the same noise: nothing new is told
    assert charged(tmp_path) == [0, 1, 2]
    carry_out(tmp_path, "n_replicates=1", "epsilon=2")
    assert charged(tmp_path) == [0, 1, 2, 0]


def test_secure_noise_is_charged_whenever_it_is_drawn(tmp_path, monkeypatch):
    words = ("privacy.noise=secure", "n_replicates=1")

    def died(*args, **kwargs):
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(runner, "_run_all", died)
        with pytest.raises(RuntimeError):
            carry_out(tmp_path, *words)
    assert charged(tmp_path) == [0]
    carry_out(tmp_path, *words)  # the run that was stopped goes on: nothing had been shown
    carry_out(tmp_path, *words)
    assert charged(tmp_path) == [0]
    carry_out(tmp_path, *words, "save_models=true")  # fitted again for its models
    assert charged(tmp_path) == [0, 0]
    carry_out(tmp_path, *words, "overwrite=true")
    assert charged(tmp_path) == [0, 0, 0]


def test_a_run_over_the_total_is_refused_before_anything_is_fitted(tmp_path, monkeypatch):
    carry_out(tmp_path, "n_replicates=1")
    monkeypatch.setattr(runner, "_run_all", None)
    with pytest.raises(InputError, match=r"1 is spent of ledger.total = 1.2 at") as refused:
        carry_out(tmp_path, "epsilon=2", "ledger.total=1.2")
    assert "\n" not in str(refused.value)
    assert charged(tmp_path) == [0]


def test_separate_tasks_are_not_charged_and_no_noise_is_not_a_cost(tmp_path):
    carry_out(tmp_path, "method=stl", "n_replicates=1")
    assert not (tmp_path / "study.jsonl").exists()
    carry_out(tmp_path, "method=mtl_lr", "n_replicates=1")
    entries, _, _ = entries_of(tmp_path / "study.jsonl")
    assert total_of(entries) == Spent(unproved=1)


def test_a_sweep_says_what_its_fits_cost_together():
    def row(data, fits, mu, delta, unproved=0):
        spent = Spent(Cost(mu), unproved=unproved).as_dict()
        return {
            "dataset": data,
            "spent": {"data": data, "fits": fits, "delta": delta, "spent": spent},
        }

    rows = [row("a", 2, 0.3, 1e-3), row("a", 1, 0.4, 1e-4), row("b", 1, 1.0, 1e-3)]
    rows += [row("c", 3, 0.5, 1e-3, unproved=2), {"dataset": "d", "spent": None}]
    of_a, of_c = together(rows)
    epsilon = Cost(0.5).epsilon(1e-4)
    assert of_a == f"a, the same owners: 3 fits spent ({epsilon:.4g}, 0.0001) together"
    assert of_c.startswith("c, the same owners: 1 fit spent (")
    assert of_c.endswith("2 more have no proved cost, so nothing is proved of all")


def test_the_commands(tmp_path):
    """A sweep on one table: every split is charged to the same owners; the sum in both places."""
    rng = np.random.default_rng(0)
    rows = [f"{i // 8},{x:.2f},{x + rng.random():.2f}" for i, x in enumerate(rng.random(80))]
    (tmp_path / "t.csv").write_text("\n".join(["school,x,y", *rows]))
    sweep = mpmtl_run(
        *("-m", "dataset=table", "dataset.path=t.csv", "dataset.task=school", "dataset.target=y"),
        *("method=stl,fl_local", "epsilon=1,2", "n_replicates=2", "n_jobs=1", "tuning=fixed"),
        *("ledger.path=study.jsonl", "ledger.total=5"),
        cwd=tmp_path,
    )
    assert sweep.returncode == 0, sweep.stderr
    last = sweep.stdout.splitlines()[-1]
    assert last.startswith("t, the same owners: 4 fits spent (")
    shown = mpmtl_run("study.jsonl", cwd=tmp_path, program="mpmtl-ledger")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.split()[2] for line in lines[2:4]] == ["2", "2"]
    assert set(lines[1]) == {"-"}
    assert last.split(": ")[1] in lines[4] or last.split(": ")[1] in lines[5]
    missing = mpmtl_run("other.jsonl", cwd=tmp_path, program="mpmtl-ledger")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
