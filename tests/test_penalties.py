"""Proximal operators against the textbook and against their optimality conditions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mpmtl.penalties import L1, GroupL1, TraceNorm, penalty_named

SHAPES = [(7, 4), (4, 4), (3, 6), (1, 5), (5, 1)]  # (m, d): d < m, d = m, d > m, one task


def textbook_prox(name, W, threshold):
    """The operators as the literature writes them; W has shape (m, d)."""
    if name == "trace":
        U, s, V = np.linalg.svd(W, full_matrices=False)
        return (U * np.maximum(s - threshold, 0)) @ V
    if name == "l21":
        norms = np.linalg.norm(W, axis=0)
        return W * np.maximum(1 - threshold / np.where(norms > 0, norms, np.inf), 0)
    return np.sign(W) * np.maximum(np.abs(W) - threshold, 0)


@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1(), L1()], ids=lambda p: p.name)
@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_prox_equals_the_textbook_operator(penalty, shape, data):
    W = data.draw(arrays(float, shape, elements=st.floats(-10, 10, width=32)))
    threshold = data.draw(st.floats(0, 20))
    scale = max(1.0, np.abs(W).max())
    got = penalty.prox(W[None], np.array([threshold]))[0]
    # sqrt of an eigenvalue of the Gram matrix: a singular value s is known to about eps ||W||^2/s
    np.testing.assert_allclose(got, textbook_prox(penalty.name, W, threshold), atol=3e-7 * scale)


@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1()], ids=lambda p: p.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_projection_of_the_covariance_is_the_prox(penalty, shape, rng):
    """M(WW')W = prox(W) to 1e-13 where the threshold is not near a singular value."""
    for _ in range(20):
        W = rng.standard_normal((1, *shape))
        threshold = np.array([rng.uniform(0.1, 2)])
        M = penalty.projection(penalty.covariance(W), threshold)
        want = textbook_prox(penalty.name, W[0], threshold[0])
        np.testing.assert_allclose(penalty.apply(W, M)[0], want, atol=1e-13)


@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1(), L1()], ids=lambda p: p.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_moreau_identity(penalty, shape, rng):
    """W - prox(W) lies in the dual ball of radius lambda and attains <P, W - P> = lambda ||P||."""
    for threshold in (0.01, 0.5, 3.0):
        W = rng.standard_normal((1, *shape))
        P = penalty.prox(W, np.array([threshold]))
        assert penalty.dual_norm(W - P)[0] <= threshold * (1 + 1e-9)
        inner = ((W - P) * P).sum()
        assert inner == pytest.approx(threshold * penalty.value(P)[0], abs=1e-10)


@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1(), L1()], ids=lambda p: p.name)
def test_a_batch_equals_its_members(penalty, rng):
    W = rng.standard_normal((5, 6, 4))
    threshold = rng.uniform(0, 2, 5)
    batch = penalty.prox(W, threshold)
    for b in range(5):
        np.testing.assert_allclose(
            batch[b], penalty.prox(W[b : b + 1], threshold[b : b + 1])[0], atol=1e-14
        )


@pytest.mark.parametrize("negative", ["abs", "clip"])
@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1()], ids=lambda p: p.name)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1), (5, 40)])
def test_projected_models_are_the_projection_applied(penalty, shape, negative, rng):
    """Noisy, indefinite, repeated and zero covariances, fewer and more models than features."""
    m, d = shape
    W = rng.standard_normal((5, m, d))
    A = rng.standard_normal((d, d))
    lone = np.outer(A[0], A[0])
    Sigma = np.stack([A + A.T, np.eye(d), np.zeros((d, d)), -np.eye(d), 3 * np.eye(d) + lone])
    if penalty.view == "diagonal":
        Sigma = np.diagonal(Sigma, axis1=1, axis2=2)
    threshold = np.array([0.3, 0.5, 0.5, 0.5, 1.0])
    want = penalty.apply(W, penalty.projection(Sigma, threshold, negative))
    got = penalty.projected(W, Sigma, threshold, negative)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_negative_eigenvalues_count_by_size_or_not_at_all():
    Sigma = np.diag([-9.0, 4.0])[None]
    threshold = np.array([1.0])
    by_size = TraceNorm().projection(Sigma, threshold, "abs")[0]
    np.testing.assert_allclose(by_size, np.diag([2 / 3, 1 / 2]), atol=1e-15)
    clipped = TraceNorm().projection(Sigma, threshold, "clip")[0]
    np.testing.assert_allclose(clipped, np.diag([0, 1 / 2]), atol=1e-15)


def test_unknown_penalty_is_named():
    with pytest.raises(ValueError, match="unknown penalty 'ridge'"):
        penalty_named("ridge")
