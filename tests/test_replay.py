"""A task is alone until the gate: with the same releases, replacing it changes no other model."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import ragged_data

from mpmtl import Gaussian, Laplace, NoNoise, TwoSidedWishart
from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.methods import (
    Average,
    AverageCandidate,
    Candidate,
    Decomposed,
    DecomposedCandidate,
    FeatureLearning,
    MeanRegularised,
    MeanRegularisedCandidate,
    PrivateRelations,
    PrivateRelationsCandidate,
    Proximal,
    ProximalCandidate,
    RepresentationCandidate,
    SharedRepresentation,
)
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.mechanisms import OutputPerturbation
from mpmtl.privacy.releases import Budget, Gate
from mpmtl.solvers.single_task import ridge_path

M, D = 6, 4
EPSILON, DELTA = 2.0, 1e-3


@dataclass(frozen=True)
class Tape(Gate):
    """A gate that notes every noise-free release, and plays releases back where it has them."""

    tape: list | None = None
    played: list | None = None

    def __call__(self, t, V, K):
        out = super().__call__(t, V, K)
        signal = self.release.total(bounded(V, K, self.release.axes))
        B = len(signal) if signal.ndim > len(self.release.shape) else None
        scale = self.scale(t, K, B)
        if self.played is not None:
            out = self.played[len(self.tape)]["out"]
        budget = np.ravel(self.budgets[..., t - 1])[0]
        self.tape.append(
            {"out": out, "signal": signal, "scale": scale, "budget": budget, "gate": self}
        )
        return out


@dataclass(frozen=True)
class Taped(Budget):
    tape: tuple = ()
    played: list | None = None

    def open(self, *args, **kwargs):
        gate = super().open(*args, **kwargs)
        return Tape(gate.release, gate.mechanism, gate.draws, tape=self.tape[0], played=self.played)

    def choose(self, scores, log_base, epsilon, rng):
        k = super().choose(scores, log_base, epsilon, rng)
        if self.played is not None:
            k = self.played[len(self.tape[0])]["out"]
        self.tape[0].append({"out": k, "scores": scores})
        return k


def distance(a, b):
    """What a pair of noise-free releases costs, in the currency of the mechanism's budget."""
    gate = a["gate"]
    difference = (a["signal"] - b["signal"]) / np.expand_dims(
        a["scale"], tuple(range(np.ndim(a["scale"]), a["signal"].ndim))
    )
    difference = difference.reshape(gate.release.shape)
    if gate.mechanism.norm == "l1":
        return np.abs(difference).sum()
    if gate.mechanism.norm == "trace":
        values = np.linalg.eigvalsh(difference) if difference.ndim == 2 else difference
        return np.abs(values).sum() / 2
    return np.sqrt((difference**2).sum())


def private_methods(T):
    rounds = {"lam": 0.3, "n_rounds": T, "accelerated": True, "strongly_convex": False}
    rounds |= {"alpha": 0.4, "K": 0.7}
    gaussian, wishart = Gaussian(shift=1.0), TwoSidedWishart()
    for mechanism in (gaussian, wishart):
        yield (
            Proximal("lr", "trace", private=True, eta="public"),
            ProximalCandidate(**rounds),
            mechanism,
        )
        yield (
            Decomposed("lr_sp", "trace", private=True, eta="public"),
            DecomposedCandidate(**rounds, lam_local=0.1),
            mechanism,
        )
        for tuning in ("local", "hyper"):
            yield FeatureLearning("fl", tuning, rounds=T), Candidate(), mechanism
    protected = {"instance_protection": {"epsilon": 1.0}}
    yield (
        Proximal("lr", "trace", private=True, eta="public", clip="covariance", **protected),
        ProximalCandidate(**rounds),
        gaussian,
    )
    for mechanism in (gaussian, wishart, Laplace()):
        yield (
            Proximal("gs", "l21", private=True, eta="public"),
            ProximalCandidate(**rounds),
            mechanism,
        )
    yield (
        PrivateRelations("rl", eta="public"),
        PrivateRelationsCandidate(0.1, 0.05, T, 0.0, 0.7),
        gaussian,
    )
    for mechanism in (gaussian, Laplace(), OutputPerturbation()):
        candidate = MeanRegularisedCandidate(0.3, 0.2, 0.5, T)
        yield MeanRegularised("mr_mtl", eta="public"), candidate, mechanism
    for start in ("private", "random"):
        method = SharedRepresentation("fedrep", start=start, eta="public")
        yield method, RepresentationCandidate(0.1, 0.2, 2, 0.3, T), gaussian
    for noise in ("laplace", "l2"):
        yield (
            Average("dp_aggr", private=True, noise=noise),
            AverageCandidate(0.3),
            OutputPerturbation(),
        )


def replacements(rng, kind):
    """Extreme tasks, (X, y), by name."""
    data = ragged_data(rng, 1, D, kind, low=9, high=9)
    X, y = data.X[0], data.y[0]
    sign = np.sign if kind == "binary" else np.asarray
    for size in (1e-300, 1e-160, 1e-76, 1e-30, 1e30, 1e76, 1e80, 1e104, 1e155, 1e160, 1e300):
        yield f"X times {size:g}", (X * size, y)
        if kind == "regression":
            yield f"y times {size:g}", (X, y * size)
            yield f"both times {size:g}", (X * size, y * size)
    yield "X zero", (0 * X, y)
    yield "y zero", (X, 0 * y + (kind == "binary"))
    yield "constant", (np.ones_like(X), np.ones_like(y))
    yield "one row", (X[:1], y[:1])
    yield "no row", (X[:0], y[:0])
    yield "duplicates", (np.repeat(X[:1], 9, axis=0), np.repeat(y[:1], 9))
    yield "one class", (X, np.abs(sign(y)) + 0.0)
    yield "fewer rows than features", (X[:2], y[:2])
    yield "many rows", (np.tile(X, (30, 1)), np.tile(y, 30))
    yield "not a number", (np.where(np.arange(D) == 1, np.nan, X), y)
    yield "infinite", (np.where(np.arange(D) == 2, np.inf, X), y)
    yield "not a number in y", (X, np.where(np.arange(9) == 1, np.nan, y))


def fitted(X, y, kind, method, candidate, mechanism, played=None, epsilon=EPSILON):
    """Models and tape of a fit with everything declared; the same randomness every time."""
    data = MultiTaskData.checked(X, y, kind, strict=False).with_row_norm(1.0)
    data = replace(data, n_public=(1, 300))
    datafit = datafit_for(data, True, method.eta == "public" if hasattr(method, "eta") else False)
    tape = []
    budget = Taped(mechanism, epsilon, DELTA, tape=(tape,), played=played)
    start = ridge_path(datafit, [0.2])[0]
    rng = np.random.default_rng(11)
    ((_, W),) = method.fit(datafit, start, [candidate], budget, rng)
    return W[0], tape, method.statement(candidate, budget, datafit)


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("T", [2, *(pytest.param(T, marks=pytest.mark.slow) for T in (1, 3, 4))])
def test_replacing_a_task_changes_no_other_model_and_moves_a_release_as_stated(kind, T, rng):
    data, checked = ragged_data(rng, M, D, kind, low=6, high=12), 0
    for method, candidate, mechanism in private_methods(T):
        if method.name == "dp_aggr" and kind == "regression":
            continue  # claimed only
        checked += replaced(rng, data, kind, method, candidate, mechanism)
    assert checked >= 15 * len(list(replacements(rng, kind)))


def replaced(rng, data, kind, method, candidate, mechanism, epsilon=EPSILON):
    """Replace the first task by every extreme one; returns how many there were."""
    setting, checked = (kind, method, candidate, mechanism), 0
    W, tape, statement = fitted(data.X, data.y, *setting, epsilon=epsilon)
    assert statement.proved is not None
    assert "tuning-not-charged" not in statement.caveats or method.name == "dp_aggr"
    for name, (x, t) in replacements(rng, kind):
        X, y = (x, *data.X[1:]), (t, *data.y[1:])
        other, replayed, _ = fitted(X, y, *setting, played=tape, epsilon=epsilon)
        words = f"{method.name}, {mechanism.name}, {name}"
        np.testing.assert_array_equal(other[1:], W[1:], err_msg=words)
        assert np.isfinite(other).all(), words
        assert len(replayed) == len(tape)
        for a, b in zip(tape, replayed, strict=True):
            if "scores" in a:
                moved = np.abs(a["scores"] - b["scores"])
                assert moved[:, 1:].max() == 0
                assert moved.max() <= 1, words
                continue
            assert distance(a, b) <= a["budget"] * (1 + 1e-9), words
        checked += 1
    return checked


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize(
    ("epsilon", "kinds"),
    [
        (0.1, ["sum", "parts"]),
        (20.0, ["sum", "covariance"]),
        (200.0, ["sum", "covariance", "sum"]),
        (20.0, ["sum", "sizes"]),
    ],
)
def test_every_plan_of_the_hyper_prior_is_replayed(kind, epsilon, kinds, rng):
    structure = "features" if "sizes" in kinds else "any"
    method = FeatureLearning("fl", "hyper", structure=structure)
    data = ragged_data(rng, M, D, kind, low=6, high=12)
    gates = method.gates(None, Budget(Gaussian(), epsilon, DELTA), datafit_for(data))
    assert [gate.release.kind for gate in gates] == kinds
    assert replaced(rng, data, kind, method, Candidate(), Gaussian(), epsilon) > 20


def test_a_release_without_noise_still_bounds_what_crosses(rng):
    """privacy=none releases what the gate lets through, and says that nothing is protected."""
    data = ragged_data(rng, M, D)
    method, candidate, _ = next(iter(private_methods(2)))
    _, tape, statement = fitted(data.X, data.y, "regression", method, candidate, NoNoise())
    assert statement.proved is None
    assert all(np.trace(note["signal"][0]) <= M * candidate.K**2 * (1 + 1e-12) for note in tape)
