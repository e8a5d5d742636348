"""Bounds on what a task contributes, for each task by itself."""

import math

import numpy as np

ORDINARY = 1e-100, 1e100  # norms whose squares neither overflow nor vanish


def _careful(V, axes):
    """Largest entry of each contribution, the contribution in units of it, and the norm of that.

    Dividing before squaring measures norms from 1e-300 to 1e300; not finite becomes zero.
    """
    over = tuple(range(-axes, 0))
    largest = np.abs(V).max(axis=over, keepdims=True)
    usable = np.isfinite(largest) & (largest > 0)
    largest = np.where(usable, largest, 1.0)
    scaled = np.where(usable, V, 0.0) / largest
    norm = np.sqrt((scaled**2).sum(axis=over, keepdims=True))
    return largest, scaled, np.where(norm > 0, norm, 1.0)


def _extreme(norms):
    """Where a norm was not measured: it is 0, nan, inf, or its square lost digits."""
    low, high = ORDINARY
    return ~((norms > low) & (norms < high))


def bounded(V, K, axes=1):
    r"""Contributions scaled to a norm of at most K: :math:`v / \max(1, \|v\|/K)`.

    A contribution that is not finite is zero. Each is treated by itself: what another one is
    changes no bit of it. What is scaled ends a rounding error below K, so that bounding it again
    (an owner does, and the gate after it) changes no bit either.

    Parameters
    ----------
    V : ndarray, shape (m, *contribution) or (B, m, *contribution)
    K : float, or ndarray of shape (B,)
    axes : int
        Number of axes of a contribution.

    Returns
    -------
    ndarray, shape of V

    References
    ----------
    Step 3 of Algorithm 1 of the paper.
    """
    V = np.asarray(V, dtype=float)
    own = V.ndim - axes
    flat = V.reshape(*V.shape[:own], math.prod(V.shape[own:]))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("...d,...d->...", flat, flat))
    extreme = _extreme(norms)
    K = np.broadcast_to(np.expand_dims(K, tuple(range(np.ndim(K), norms.ndim))), norms.shape)
    below = 1 - (flat.shape[-1] + 8) * np.finfo(float).eps
    ordinary = np.where(extreme, 1.0, norms)
    factor = np.where(~extreme & (ordinary > K), below * K / ordinary, 1.0)
    if not extreme.any():
        return V if (norms <= K).all() else V * np.expand_dims(factor, tuple(range(-axes, 0)))
    largest, scaled, norm = _careful(V[extreme], axes)
    limit = np.expand_dims(K[extreme], tuple(range(-axes, 0)))
    out = np.where(np.expand_dims(extreme, tuple(range(-axes, 0))), 0.0, V)
    out *= np.expand_dims(factor, tuple(range(-axes, 0)))
    most = limit / norm
    out[extreme] = scaled * np.where(largest <= most, largest, below * most)
    return out


def directions(V):
    """Vectors along the last axis scaled to norm 1; zero where they are zero or not finite."""
    V = np.asarray(V, dtype=float)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((V**2).sum(axis=-1))
    extreme = _extreme(norms)
    if not extreme.any():
        return V / norms[..., None]
    out = np.where(extreme[..., None], 0.0, V) / np.where(extreme, 1.0, norms)[..., None]
    _, scaled, norm = _careful(V[extreme], 1)
    out[extreme] = scaled / norm
    return out
