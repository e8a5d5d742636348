"""The gate: how far a task moves a release, how much noise it adds, what its statement says."""

import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import beside_others
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mechanisms import ALL, NOISY, known_moments

from mpmtl import Gaussian, InputError, Laplace, NoNoise, TwoSidedWishart, Wishart
from mpmtl.auditing.subjects import neighbours
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.mechanisms import KINDS, MECHANISMS
from mpmtl.privacy.releases import (
    Budget,
    FitLog,
    covariance,
    diagonal,
    relation,
    sample_models,
    signed_parts,
    sizes,
    unbounded_output,
    vector_sum,
)
from mpmtl.privacy.statements import caveat_text

# how far a task moves a release

#: Releases, and the sensitivities that some pair of tasks attains.
ATTAINED = [
    *((covariance(d), ("l2", "trace")) for d in (2, 5)),
    *((diagonal(d), ("l1", "l2", "trace")) for d in (2, 5)),
    *((relation(m), ("l2",)) for m in (2, 6)),
    *((vector_sum(*shape), ("l1", "l2")) for shape in ((1,), (4,), (3, 2))),
    *((signed_parts(d), ("l1", "l2")) for d in (1, 4)),
    (sizes(1), ("l1", "l2")),
    *((sizes(d), ("l2",)) for d in (3, 4)),
    *((sample_models(m, d), ("l1", "l2")) for m, d in ((1, 1), (3, 4))),
    *((release, ()) for release in (covariance(1), diagonal(1), relation(1))),
]


def size_of(release):
    """Entries of a contribution."""
    return math.prod(release.contribution)


def distances(release, first, second):
    """Sensitivities that pairs of inputs show; tr P + tr Q is least for the two definite parts."""
    moved = release.total(first) - release.total(second)
    flat = moved.reshape(len(moved), -1)
    shown = {"l1": np.abs(flat).sum(axis=1), "l2": np.sqrt((flat**2).sum(axis=1))}
    if release.trace is not None:
        values = np.linalg.eigvalsh(moved) if release.symmetric else flat
        shown["trace"] = np.abs(values).sum(axis=1)
    return shown


def inputs(release, rng, n=2000):
    """Pairs that differ in the last task: structured ones, and random ones of norms up to 1."""
    size = size_of(release)
    pairs = [*neighbours(size, 1.0, rng).values()]
    first, second = (
        np.stack([beside_others(release, w) for w in side]) for side in zip(*pairs, strict=True)
    )
    shape = (2, n, *first.shape[1:])
    V = rng.standard_normal(shape) * (rng.random(shape) < rng.random((n, *[1] * (first.ndim - 1))))
    V = bounded(
        V * rng.choice([0.3, 1.0, 10.0], (2, n, *[1] * (first.ndim - 1))), 1.0, release.axes
    )
    V[1, :, :-1] = V[0, :, :-1]
    return np.concatenate([first, V[0]]), np.concatenate([second, V[1]])


@pytest.mark.parametrize(("release", "attained"), ATTAINED)
def test_sensitivities_are_never_passed_and_are_attained(release, attained, rng):
    """Over thousands of pairs and a climb from the best one, in every norm."""
    for norm in ("l1", "l2", "trace"):
        stated = getattr(release, norm)
        if stated is None:
            continue
        first, second = inputs(release, rng)
        for step in (0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
            shown = distances(release, first, second)[norm]
            assert shown.max() <= stated * (1 + 1e-12)
            best = shown.argmax()
            both = np.stack([first[best], second[best]])[:, None]
            both = both + step * rng.standard_normal((2, 300, *first.shape[1:]))
            both[:, 0] = first[best], second[best]
            both = bounded(both, 1.0, release.axes)
            both[1, :, :-1] = both[0, :, :-1]
            first, second = both
        assert (norm not in attained) or shown.max() == pytest.approx(stated, rel=1e-12)


@pytest.mark.parametrize("release", [release for release, _ in ATTAINED])
def test_sensitivities_grow_with_the_bound_as_the_release_says(release, rng):
    V = inputs(release, rng, 5)[0]
    np.testing.assert_allclose(release.total(3.0 * V), 3.0**release.power * release.total(V))


def test_nothing_bounds_a_model_itself():
    assert unbounded_output(3).l1 == unbounded_output(3).l2 == np.inf


# noise

K, EPS_T = 0.7, 1.3
#: Sensitivity that each release has in the mechanism's norm, for contributions of norm at most K.
KNOWN = {
    ("gaussian", "covariance"): math.sqrt(2) * K**2,
    ("gaussian", "diagonal"): math.sqrt(2) * K**2,
    ("gaussian", "relation"): 2 * math.sqrt(2 * 3) * K**2,  # four tasks
    ("gaussian", "sum"): 2 * K,
    ("gaussian", "parts"): math.sqrt(2) * K,
    ("gaussian", "sizes"): math.sqrt(2) * K,
    ("laplace", "diagonal"): 2 * K**2,
    ("output_perturbation", "sum"): 2 * K,
    ("output_perturbation", "sample"): 2 * K,
    ("two_sided_wishart", "covariance"): K**2,
    ("two_sided_wishart", "diagonal"): K**2,
    ("wishart", "covariance"): K**2 / 2,
    ("wishart", "diagonal"): K**2 / 2,
    ("wishart", "relation"): K**2 / 2,
}


@pytest.mark.parametrize(("mech", "release"), [(m, r) for m, r in ALL if r.kind != "output"])
def test_noise_is_as_large_as_the_sensitivity_asks(mech, release):
    """Standard deviation of every entry of 20,000 releases of nothing, within 5 %."""
    N = 20_000
    gate = Budget(mech, 1.0, 1e-3).open(release, 2, np.random.default_rng(3), (N,))
    gate = gate.with_budgets(np.tile([0.1, EPS_T], (N, 1)))
    nothing = np.zeros((N, *beside_others(release, np.zeros(size_of(release))).shape))
    noise = gate(2, nothing, np.full(N, K))
    laplace_sum = 2 * math.sqrt(math.prod(release.shape)) * K
    scale = KNOWN.get((mech.name, release.kind), laplace_sum) / EPS_T
    np.testing.assert_allclose(gate.scale(2, K), scale, rtol=1e-12)
    _, variance, _, variance_off = known_moments(mech, release)
    known = np.full(release.shape, variance, dtype=float)
    if release.symmetric:
        known[~np.eye(release.shape[0], dtype=bool)] = variance_off
    np.testing.assert_allclose(noise.std(axis=0), scale * np.sqrt(known), rtol=0.05)


@pytest.mark.parametrize(("mech", "release"), ALL[:-1])
def test_fits_side_by_side_are_fits_alone_on_the_same_draws(mech, release, rng):
    """B fits with a K and budgets of their own; the last one is over before the second round, the
    first has no noise there."""
    budgets = np.array([[0.5, np.inf], [1.0, 2.0], [3.0, np.inf]])
    Ks = np.array([0.5, 1.0, 4.0])
    gate = Budget(mech, 1.0, 1e-3).open(release, 2, rng)
    V = inputs(release, rng, 20)[0][-3:]
    for t, B in ((1, 3), (2, 2)):
        together = gate.with_budgets(budgets)(t, V[:B], Ks[:B])
        for b in range(B):
            alone = gate.with_budgets(budgets[b])(t, V[b], Ks[b])
            np.testing.assert_allclose(together[b], alone, rtol=1e-12, atol=1e-14)
    free = release.total(bounded(V[0], Ks[0], release.axes))
    np.testing.assert_allclose(together[0], free, rtol=1e-15)


def test_a_batch_with_noise_of_its_own_shares_no_draw(rng):
    gate = Budget(Gaussian(), 1.0, 1e-3).open(vector_sum(3), 1, rng, (4,))
    out = gate.with_budgets(np.ones((4, 1)))(1, np.zeros((4, 2, 3)), np.ones(4))
    assert len(np.unique(out)) == out.size


@pytest.mark.parametrize("release", [covariance(3), diagonal(3), relation(4), vector_sum(3)])
@pytest.mark.parametrize("value", [1e200, 1e300, -1e154, 1e-320, np.nan, np.inf, -np.inf])
def test_contributions_are_bounded_inside_the_gate(release, value, rng):
    """What is not finite is zero, what is too long has norm K, and the others are what they are."""
    V = 0.1 * rng.standard_normal((4, 3))
    expected = V.copy()
    V[1] = [0, value, 0]
    expected[1] = [0, K * np.sign(value) if 1 < abs(value) < np.inf else 0, 0]
    gate = Budget(NoNoise(), 1.0, 0.0).open(release, 1, rng).with_budgets([np.inf])
    np.testing.assert_allclose(gate(1, V, K), release.total(expected), atol=1e-15)
    np.testing.assert_array_equal(gate(1, np.full_like(V, np.inf), K), np.zeros(release.shape))


def test_a_matrix_is_bounded_by_its_frobenius_norm(rng):
    gate = Budget(NoNoise(), 1.0, 0.0).open(vector_sum(3, 2), 1, rng).with_budgets([np.inf])
    assert np.linalg.norm(gate(1, rng.standard_normal((1, 3, 2)) * 1e170, K)) == pytest.approx(K)


@pytest.mark.parametrize("mech", [Gaussian(1.5), Laplace(1.5), TwoSidedWishart(1.5), Wishart(1.5)])
@pytest.mark.parametrize("release", [covariance(3), diagonal(3)])
def test_a_shift_is_a_public_multiple_of_the_identity(mech, release, rng):
    if release.kind not in mech.kinds:
        return
    gate = Budget(mech, 1.0, 1e-3).open(release, 1, rng).with_budgets([[0.5], [2.0]])
    released, Ks = rng.standard_normal((2, *release.shape)), np.array([1.0, 3.0])
    moved = gate.shifted(1, released, Ks) - released
    identity = np.eye(3) if release.symmetric else np.ones(3)
    for b, eps in enumerate((0.5, 2.0)):
        (scale,) = mech.scale(np.array([eps]), getattr(release, mech.norm))
        unit = 1.5 * mech.spectral_norm(release) * scale * Ks[b] ** 2
        np.testing.assert_allclose(moved[b], unit * identity, atol=1e-12)
    assert gate.with_budgets([0.5]).shifted(1, released[0], 1.0).shape == release.shape
    plain = Budget(type(mech)(), 1.0, 1e-3).open(release, 1, rng)
    assert plain.shifted(1, released, Ks) is released


@pytest.mark.parametrize(
    ("mech", "sensitivity"), [(Gaussian(), 2.0), (Laplace(), 2 * math.sqrt(3 * 2))]
)
def test_fewer_columns_take_the_same_draws_and_their_own_sensitivity(mech, sensitivity, rng):
    gate = Budget(mech, 1.0, 1e-3).open(vector_sum(3, 5), 2, rng)
    narrow = gate.of_columns(2).with_budgets([0.5, 2.0])
    assert narrow.release == vector_sum(3, 2)
    released = narrow(2, np.zeros((4, 3, 2)), K)
    np.testing.assert_allclose(released, sensitivity * K / 2.0 * gate.draws[1][:, :2])


def test_a_log_takes_in_the_rounds_of_the_first_fit(rng):
    log = FitLog()
    gate = Budget(Gaussian(), 1.0, 1e-3).open(vector_sum(3), 2, rng, log=log)
    V = rng.standard_normal((2, 4, 3))
    out = [gate.with_budgets(np.ones((2, 2)))(t, V, np.ones(2))[0] for t in (1, 2)]
    np.testing.assert_array_equal(log.released, out)
    signal = np.linalg.norm(bounded(V[0], 1.0).sum(axis=0))
    assert [norm for _, norm in log.rounds] == pytest.approx([signal] * 2)


# statements


PROVED = [
    (mech, release)
    for mech, release in ALL
    if mech.name != "wishart" and release.kind not in ("output", "sample")
]


@pytest.mark.parametrize(("mech", "release"), PROVED)
@pytest.mark.parametrize("T", [1, 3])
def test_a_guarantee_is_printed_only_if_the_exact_cost_bears_it(mech, release, T):
    epsilon, delta = 1.0, 1e-3
    budget, budgets = Budget(mech, epsilon, delta), mech.budgets(epsilon, delta, T, 0.4)
    outcomes = set()
    for factor in (0.5, 1.0, 1.001, 1.1, 2.0):
        gate = budget.planned(release, factor * budgets)
        assert gate.cost == mech.cost(factor * budgets)
        borne = gate.cost.delta(epsilon) <= delta
        outcomes.add(borne)
        if borne:
            block = budget.statement(gate)
            assert (block.proved.epsilon, block.proved.delta) == (epsilon, delta)
            assert (block.claimed, block.cost) == (None, gate.cost)
        else:
            with pytest.raises(InputError, match=r"the releases cost \(1, .*more than delta"):
                budget.statement(gate)
    assert outcomes == {True, False}


def test_a_round_without_noise_has_no_statement():
    for mech in (Gaussian(), Laplace()):
        budget = Budget(mech, 1.0, 1e-3)
        with pytest.raises(InputError, match="finite"):
            budget.statement(budget.planned(diagonal(3), [0.1, np.inf]))
    assert Budget(NoNoise(), 1.0, 1e-3).statement().proved is None


def test_several_gates_add_up():
    """A start and rounds that share mu^2 are the whole budget; one more sum is too much."""
    budget = Budget(Gaussian(), 1.0, 1e-3)
    (mu,) = Gaussian().budgets(1.0, 1e-3, 1)
    start = budget.planned(covariance(3), [mu * np.sqrt(0.3)])
    rounds = budget.planned(vector_sum(3, 2), np.full(4, mu * np.sqrt(0.7 / 4)) * (1 - 1e-12))
    block = budget.statement(start, rounds)
    assert block.cost.mu == pytest.approx(mu)
    with pytest.raises(InputError, match="more than delta"):
        budget.statement(start, rounds, budget.planned(vector_sum(1), [0.1 * mu]))


def test_what_has_no_cost_stands_alone():
    budget = Budget(Wishart(), 1.0, 1e-3)
    gate = budget.planned(covariance(3), [0.5])
    assert budget.statement(gate).proved.epsilon == 0.5
    with pytest.raises(InputError, match="wishart has no proved cost to add"):
        budget.statement(gate, gate)


def test_a_delta_near_one_in_m_or_above_is_a_caveat():
    """One task in m released in the clear is (0, 1/m)-DP."""
    budget = Budget(Gaussian(), 1.0, 0.01)
    gate = budget.planned(diagonal(3), Gaussian().budgets(1.0, 0.01, 1))
    assert budget.statement(gate, m=50).caveats[-1] == "large-delta"
    assert budget.statement(gate, m=500).caveats[-1] == "large-delta"
    assert "large-delta" not in budget.statement(gate, m=20).caveats
    assert "large-delta" not in budget.statement(gate).caveats
    block = budget.statement(gate, m=50).as_dict() | {"n_tasks": 50}
    text = caveat_text("large-delta", block)
    assert text.startswith("proved delta = 0.01, near or above 1/m = 0.02 for m = 50 tasks: ")
    budget = Budget(Wishart(), 1.0, 1e-6)  # claims little, and proves much less
    gate = budget.planned(covariance(3), [1.0])
    assert "large-delta" in budget.statement(gate, m=50).caveats


@pytest.mark.parametrize("mech", NOISY)
def test_what_a_mechanism_cannot_perturb_is_refused_in_one_line(mech, rng):
    examples = [covariance(3), diagonal(3), relation(3), vector_sum(3), unbounded_output(3)]
    examples += [signed_parts(3), sizes(3), sample_models(2, 3)]
    releases = {release.kind: release for release in examples}
    assert set(releases) == set(KINDS)
    for kind, release in releases.items():
        opened = (
            lambda budget, release=release: budget.open(release, 1, rng),
            lambda budget, release=release: budget.planned(release, [1.0]),
        )
        for attempt in opened:
            if kind in mech.kinds:
                attempt(Budget(mech, 1.0, 1e-3))
                continue
            with pytest.raises(InputError) as refused:
                attempt(Budget(mech, 1.0, 1e-3))
            text = str(refused.value)
            assert f"mechanism {mech.name} does not fit" in text
            assert KINDS[kind] in text
            assert "\n" not in text
            named = text.split("use ")[1].split(" or ")
            assert named == [other.name for other in MECHANISMS if kind in other.kinds]


def test_a_statement_answers_for_any_epsilon_and_delta():
    budget = Budget(Gaussian(), 1.0, 1e-3)
    gate = budget.planned(covariance(3), Gaussian().budgets(1.0, 1e-3, 2))
    pure = TwoSidedWishart(accounting="optimal")
    other = Budget(pure, 1.0, 1e-3).planned(covariance(3), pure.budgets(1.0, 1e-3, 2))
    for block, cost in (
        (budget.statement(gate), gate.cost),
        (Budget(pure, 1.0, 1e-3).statement(other), other.cost),
    ):
        for epsilon in (0.0, 0.3, 1.0, 4.0):
            assert block.delta(epsilon) == cost.delta(epsilon)
        for delta in (1e-9, 1e-3, 0.1):
            assert block.epsilon(delta) == cost.epsilon(delta)
        assert block.delta(1.0) == pytest.approx(1e-3, rel=1e-6)
        assert block.as_dict()["rho"] == cost.rho
        assert block.as_dict()["mu"] == (None if cost.pure else cost.mu)
    block = Budget(Wishart(), 1.0, 1e-3).planned(covariance(3), [0.5])
    block = Budget(Wishart(), 1.0, 1e-3).statement(block)
    proved = block.proved
    assert (block.delta(proved.epsilon), block.epsilon(proved.delta)) == (proved.delta, 0.5)
    assert (block.delta(0.4), block.epsilon(1e-3)) == (1.0, np.inf)
    assert "mu" not in block.as_dict()


# bounded contributions


@settings(max_examples=300)
@given(
    vectors=st.lists(
        st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    power=st.integers(-320, 305),
    K=st.floats(1e-6, 1e6),
)
def test_bounding_twice_is_bounding_once(vectors, power, K):
    """No bit of it changes; and what was scaled is within K in exact arithmetic."""
    with np.errstate(over="ignore"):
        V = np.array(vectors) * 10.0**power
    once = bounded(V, K)
    np.testing.assert_array_equal(bounded(once, K), once)
    for before, after in zip(V, once, strict=True):
        if not np.array_equal(before, after):
            assert sum(Fraction(x) ** 2 for x in after.tolist()) <= Fraction(K) ** 2
