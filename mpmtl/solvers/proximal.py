"""Accelerated proximal rounds for a batch of candidates: Algorithms 2 and 3 and their non-private
relatives are one loop."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mpmtl.errors import require
from mpmtl.privacy.clipping import bounded

CHECK_EVERY = 5  # rounds between two looks at the duality gap


@dataclass(frozen=True)
class Rounds:
    """Settings of a batch of B candidates; each array has shape (B,).

    Attributes
    ----------
    lam : ndarray
        Regularisation lambda >= 0.
    n_rounds : ndarray of int
        T, in descending order.
    accelerated, strongly_convex : ndarray of bool
        How beta_t is chosen.
    mu : float
        Strong convexity added to the loss of strongly convex candidates.
    lipschitz : float or ndarray, shape (m,)
        L of the loss without mu; the step is eta = 1/(L + mu), and 1/L for convex candidates. An
        array gives every task a step of its own (for penalties that are a sum over tasks).
    K : ndarray
        Clipping norm; inf for none.
    ridge : ndarray, optional
        Further (ridge/2) ||W||_F^2 in the loss.
    """

    lam: np.ndarray
    n_rounds: np.ndarray
    accelerated: np.ndarray
    strongly_convex: np.ndarray
    K: np.ndarray
    mu: float
    lipschitz: float | np.ndarray
    ridge: np.ndarray | float = 0.0

    def __post_init__(self):
        require((self.n_rounds >= 1).all(), f"n_rounds = {self.n_rounds.min()}: at least 1 needed")
        require((np.diff(self.n_rounds) <= 0).all(), "n_rounds must not ascend within a batch")
        require((self.K > 0).all(), f"K = {self.K.min()} must be above 0")
        require((self.lam >= 0).all(), f"lambda = {self.lam.min()} must be at least 0")

    @property
    def curvature(self):
        """Strong convexity of each candidate: its ridge, and mu for the strongly convex ones."""
        return np.where(self.strongly_convex, self.mu, 0.0) + self.ridge

    @property
    def eta(self):
        """Step size 1/L, shape (B,) or (B, m)."""
        return 1 / np.add.outer(self.curvature, self.lipschitz)

    @property
    def threshold(self):
        """eta lambda, shape of eta."""
        return (self.eta.T * self.lam).T

    def momentum(self, age):
        """beta_t: 0 (basic), (t-1)/(t+2), or (1 - sqrt(mu/L))/(1 + sqrt(mu/L)); Section 3.5.

        `age` is t, counted from the last restart, shape (B,); so is beta, or it has the shape of
        eta.
        """
        root = np.sqrt(self.curvature * self.eta.T)
        strongly = (1 - root) / (1 + root)
        beta = np.where(self.strongly_convex, strongly, (age - 1) / (age + 2))
        return np.where(self.accelerated, beta, 0.0).T


@dataclass(frozen=True)
class Projection:
    """How a round projects the models: by a released covariance, or exactly.

    Parameters
    ----------
    penalty : TraceNorm, GroupL1 or L1
    release : callable, optional
        ``release(t, W)`` returns the released covariance of the models W in round t, for the
        candidates still running (the first ``len(W)`` of the batch). Without it the proximal
        operator of the penalty is applied exactly and nothing is protected.
    clip : {"models", "covariance"}
        Clip the models themselves (the paper), or only inside the covariance. Both protect alike.
    negative : {"abs", "clip"}
        What the root does with negative eigenvalues of a noisy covariance.
    """

    penalty: object
    release: Callable | None = None
    clip: str = "models"
    negative: str = "abs"

    def __call__(self, t, W, W_tilde, threshold):
        source = W_tilde if self.clip == "models" else W
        if self.release is None:
            return self.penalty.prox(source, threshold)
        Sigma = self.release(t, W_tilde)
        return self.penalty.projected(source, Sigma, threshold, self.negative)


def proximal_rounds(datafit, project, W0, rounds, perturb=None, local=None, restart=False):
    r"""Yield :math:`\hat W^{(t)}`, t = 1, 2, ..., for the candidates that have a round t.

    .. math::
        \tilde w_i &= w_i / \max(1, \|w_i\| / K) && \text{(clip)} \\
        \Sigma &= \tilde W \tilde W' + E && \text{(release)} \\
        \hat W &= M(\Sigma) \tilde W && \text{(project)} \\
        Z &= \hat W + \beta_t (\hat W - \hat W^{\text{prev}}) && \text{(accelerate)} \\
        W &= Z - \eta \nabla L(Z) && \text{(gradient step)}

    Parameters
    ----------
    datafit : SquaredLoss or LogisticLoss
    project : Projection or callable
        ``project(t, W, W_tilde, threshold)`` returns the projected models of round t from the
        models before and after clipping; threshold is eta lambda, shape (b,).
    W0 : ndarray, shape (m, d) or (B, m, d)
        Start, models as rows.
    rounds : Rounds
    perturb : callable, optional
        ``perturb(t, W_tilde)`` adds noise to the clipped models, which are then clipped again
        (Algorithm 5, corrected).
    local : (penalty, ndarray, ndarray), optional
        W = P + Q (Algorithm 4): penalty and lambda_2 (shape (B,)) of the part Q that stays with its
        task, and its start. `project` and W0 then concern P, and rounds.lipschitz
        must be that of both parts together, twice the loss's.
    restart : bool
        Restart the momentum when it points uphill (for solving to the optimum).

    Yields
    ------
    ndarray, shape (b, m, d)
        A fresh array each round; with `local`, a pair of them, P and Q.

    References
    ----------
    Algorithms 2 to 5 of the paper; Ji and Ye (2009); Liu, Ji, Ye (2009); restart:
    O'Donoghue and Candes (2015).
    """
    B = len(rounds.lam)
    W = np.broadcast_to(W0, (B, *datafit.shape))
    eta, mu, threshold = _column(rounds.eta), rounds.curvature, rounds.threshold
    clipping = bool(np.isfinite(rounds.K).any())
    age = np.ones(B)
    previous = bounded(W, rounds.K) if clipping else W
    Z = None
    if local is not None:
        own_lam = rounds.eta * local[1]
        own_penalty, Q = local[0], np.broadcast_to(local[2], W.shape)
        Q_previous = Q
    for t in range(1, int(rounds.n_rounds[0]) + 1):
        b = int(np.searchsorted(-rounds.n_rounds, -t, side="right"))  # n_rounds >= t
        W = W[:b]
        W_tilde = bounded(W, rounds.K[:b]) if clipping else W
        if perturb is not None:
            W_tilde = bounded(perturb(t, W_tilde), rounds.K[:b])
        W_hat = project(t, W, W_tilde, threshold[:b])
        if local is None:
            yield W_hat
        else:
            Q_hat = own_penalty.prox(Q[:b], own_lam[:b])
            yield W_hat, Q_hat
        step = W_hat - previous[:b]
        if restart and Z is not None:
            uphill = np.einsum("bmd,bmd->b", Z[:b] - W_hat, step) > 0
            age[:b][uphill] = 1
        beta = _column(rounds.momentum(age))[:b]
        step *= beta
        step += W_hat
        Z, previous = step, W_hat
        whole = Z
        if local is not None:
            Z_own, Q_previous = Q_hat + beta * (Q_hat - Q_previous[:b]), Q_hat
            whole = Z + Z_own
        W = datafit.gradient(whole)
        if mu.any():
            W += mu[:b, None, None] * whole
        W *= -eta[:b]
        if local is not None:
            Q = Z_own + W
        W += Z
        age += 1


def _column(values):
    """Numbers of each candidate, (B,), or of each of its tasks, (B, m), for models (B, m, d)."""
    return values.reshape(len(values), -1, 1)


def duality_gap(datafit, penalty, lam, W, mu=0.0):
    r"""Relative duality gap of W for min_W L(W) + lam Omega(W) (+ mu/2 ||W||_F^2).

    With G = grad L(W) and, for mu = 0, s = min(1, lam/Omega^*(G)),

    .. math:: \text{gap} = \frac{P(W) + L^*(s\theta)}{P(W)},
        \quad P(W) = L(W) + \lambda\Omega(W), \quad \theta_i = \nabla_z L_i(X_i w_i)

    and for mu > 0 the conjugate of the penalty, ||prox_{lam Omega}(G)||_F^2 / (2 mu), is added and
    the ridge term joins the primal value.

    Parameters
    ----------
    W : ndarray, shape (B, m, d)
    lam : ndarray, shape (B,)

    Returns
    -------
    ndarray, shape (B,)
    """
    primal = datafit.value(W).sum(axis=1) + lam * penalty.value(W)
    G = datafit.gradient(W)
    if mu > 0:
        scale = np.ones(len(W))
        primal = primal + 0.5 * mu * (W**2).sum(axis=(1, 2))
        dual = -datafit.conjugate(W, scale) - (penalty.prox(G, lam) ** 2).sum(axis=(1, 2)) / (
            2 * mu
        )
    else:
        norm = penalty.dual_norm(G)
        scale = np.where(norm > lam, lam / np.where(norm > lam, norm, 1), 1)
        dual = -datafit.conjugate(W, scale)
    return (primal - dual) / np.maximum(primal, np.finfo(float).tiny)


def solve(datafit, penalty, lam, tol=1e-8, max_rounds=20_000, W0=None, mu=0.0):
    """Minimise L(W) + lam Omega(W) until the relative duality gap is at most tol.

    Returns
    -------
    W : ndarray, shape (m, d)
    gap : float
        The gap reached; above tol if max_rounds came first.
    n_rounds : int
    """
    lam = np.atleast_1d(float(lam))
    rounds = Rounds(
        lam=lam,
        n_rounds=np.array([max_rounds]),
        accelerated=np.array([True]),
        strongly_convex=np.array([mu > 0]),
        K=np.array([np.inf]),
        mu=mu,
        lipschitz=datafit.lipschitz() or 1.0,
    )
    start = np.zeros(datafit.shape) if W0 is None else W0
    steps = proximal_rounds(datafit, Projection(penalty), start, rounds, restart=True)
    for t, W in enumerate(steps, start=1):
        if t % CHECK_EVERY == 0 or t == max_rounds:
            gap = float(duality_gap(datafit, penalty, lam, W, mu)[0])
            if gap <= tol:
                break
    return W[0], gap, t
