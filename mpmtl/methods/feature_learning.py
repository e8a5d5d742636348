"""`fl`: private feature learning, priors for the models from noisy releases (ours)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp, softmax

from mpmtl.datafits import LogisticLoss
from mpmtl.errors import require
from mpmtl.methods.base import Candidate, Method, one_of
from mpmtl.privacy.clipping import directions
from mpmtl.privacy.mechanisms import Gaussian
from mpmtl.privacy.releases import covariance, signed_parts, vector_sum
from mpmtl.privacy.statements import SEPARATE, Guarantee
from mpmtl.solvers.gaussian_prior import PriorPath, rows_at
from mpmtl.solvers.hierarchy import BELIEF, GRID, REACH, by_hierarchy, preferences
from mpmtl.solvers.moments import Moments, hopeless
from mpmtl.solvers.noisy_covariance import Prior, noise_spectrum, parts_priors
from mpmtl.solvers.refinement import FLOORS, contributions, rank, subspace_of

GAMMA = np.logspace(-3, 2, 11)  # grid of gamma, in units of a task's mean squared row norm
WIDEST = (1e-10, 1e6)  # how far it goes on where the best gamma of separate tasks is at an end
AROUND = np.array([0.5, 1.0, 2.0])  # the same for the logistic loss, in units of the ridge of W0
FAR = np.array([0.1, 0.5, 2.0, 8.0, 32.0, 128.0])  # the same with an intercept
LESS = 2  # with several rounds, models are shown two steps of the grid less shrunk
TEMPER = 16  # a Gaussian likelihood would have 2
VOTE_BOUND = 2.0  # nats at which a task's vote is clipped
OWN_WEIGHT = 0.9  # base weight of "every task on its own" among the votes
NOISE_PER_ROUND = (1 / 4, 1 / 11)  # noise to signal below which a second and a third round pay
HIDDEN = 2 / 3  # noise to signal above which the second moment is not released
KNOWN_TO = 0.4  # sd to which the mean log noise-to-signal ratio of the tasks is released ...
LARGEST_SHARE = 0.1  # ... unless that takes more than this part of mu^2
MEAN_SCALES = (0.5, 1.0, 2.0)  # a/tau to average over with one round
AXES = ("diagonal", "sparse")  # priors that no rotation helps


@dataclass(frozen=True)
class Plan:
    """What a fit releases, in this order; all of it is public.

    Attributes
    ----------
    ratio : ndarray, shape (0,) or (1,)
        Budget of the tasks' noise-to-signal ratios.
    moments : ndarray, shape (T,)
        Budgets of the second moments.
    parts : ndarray, shape (0,) or (1,)
        Budget of the signed parts, which take the place of a hidden second moment.
    refinements : ndarray, shape (0,) or (2,)
        Budgets of the refinements.
    """

    ratio: np.ndarray
    moments: np.ndarray
    parts: np.ndarray
    refinements: np.ndarray

    @property
    def rounds(self):
        """Budgets of all but the ratio's, shape (T,)."""
        return np.concatenate([self.parts, self.moments, self.refinements])


@dataclass(frozen=True)
class FeatureLearning(Method):
    r"""Each task's solution under a Gaussian prior that all tasks learn together, privately.

    Round: every task normalises its model, v_i = w_i/||w_i||; one release of
    :math:`\sum_i u_i u_i'`, :math:`u_i = (v_i, \sqrt\beta)`, K^2 = 1 + beta, gives the noisy
    second moment and mean of the v_i; candidate priors N(a mu, tau^2 C) are made from it
    (`solvers.noisy_covariance.priors`), and every task solves

    .. math:: w_i = \arg\min L_i(w) + \tfrac\gamma2 (w - a\mu)' C^{-1} (w - a\mu)

    exactly (`solvers.gaussian_prior`; logistic loss: one Newton step from its last model).
    With one round, v_i leaves out the part of w_i along the task's own mean sample (its level),
    and priors with a mean leave that direction free. If tasks have an intercept, each prior stands
    twice: as it is, and with the intercept left free. With several, models are shown less shrunk
    than they are used; from the second round on v_i is taken about the mean m that is known by
    then and clipped to r = sqrt(1 - ||m||^2), which makes K^2 = r^2 (1 + beta); all releases are
    pooled with the inverses of their variances.

    Parameters
    ----------
    tuning : {"shared", "local", "hyper", "votes"}
        How models are averaged over priors and gamma. By the leave-one-out error over all tasks,
        outside the budget; by each task's own evidence, which costs nothing; by its own evidence
        and a hyper-prior for the noise-to-signal ratio, which a small release centres
        (`solvers.hierarchy`); or one prior chosen by the exponential mechanism from the tasks'
        clipped evidence, and gamma by each task.
    affine : float
        beta: weight of the mean; 0 releases no mean.
    rounds : "auto" or int
        T; "auto" is 1 to 3 from the noise-to-signal ratio of a release, which is public. With
        "hyper" the third round is two refinements (`solvers.refinement`) with half of mu^2, and
        where noise hides the second moment its place is taken by the signed parts of the v_i
        (`signed_parts`).
        0: separate tasks.
    vote_share : float
        Part of epsilon that the votes get.

    References
    ----------
    Algorithm 1 of the paper with another single-task learner in step 7; docs/method.md.
    """

    name: str
    tuning: str = "shared"
    affine: float = 0.15
    rounds: str | int = "auto"
    vote_share: float = 0.2
    loss_average: bool | None = None
    view: ClassVar[str] = "covariance"

    def __post_init__(self):
        one_of("tuning", self.tuning, ("shared", "local", "hyper", "votes"))
        require(0 <= self.affine <= 1, f"affine = {self.affine} must be between 0 and 1")
        require(
            self.rounds == "auto" or (isinstance(self.rounds, int) and self.rounds >= 0),
            f"rounds = {self.rounds} must be auto or a whole number of at least 0",
        )
        require(0 < self.vote_share < 1, f"vote_share = {self.vote_share} must be between 0 and 1")

    @property
    def private(self):
        """Whether anything is released."""
        return self.rounds != 0

    @property
    def separate(self):
        """Whether tasks never see each other."""
        return self.rounds == 0

    def candidates(self, scales):
        return [Candidate()]

    @property
    def public(self):
        """All but the shared choice is a task's own, or computed from releases."""
        return self.tuning != "shared"

    @property
    def uses_start(self):
        """Its penalties are where the shared choice looks for a logistic loss."""
        return self.tuning == "shared"

    def release(self, d):
        """What a round releases: the second moment of the u_i, and with it their sum."""
        return covariance(d + (self.affine > 0))

    def votes(self, budget):
        """Budgets of the votes, spent beside the releases."""
        return (self.vote_share * budget.epsilon,) if self.tuning == "votes" else ()

    def plan(self, budget, m, d):
        """The `Plan` of a fit with m tasks and d features."""
        none, whole = np.zeros(0), self._split(budget, 1)
        if self.separate:
            return Plan(none, none, none, none)
        share, gaussian = 0.0, self.tuning == "hyper" and isinstance(budget.mechanism, Gaussian)
        if gaussian:
            share = min(LARGEST_SHARE, (2 * REACH / (m * whole[0] * KNOWN_TO)) ** 2)
        elif self.tuning == "hyper" and budget.free:
            share = 0.5  # of nothing
        ratio = np.sqrt(share) * whole if share > 0 else none
        left = np.sqrt(1 - share)
        T, noise = self.rounds, 0.0
        if T == "auto":
            if not budget.free:
                gate = budget.planned(self.release(d), left * whole)
                noise = gate.scale(1, np.sqrt(1 + self.affine))
                noise = noise * noise_spectrum(budget.mechanism, d).radius / m
            T = 1 + sum(noise < level for level in NOISE_PER_ROUND)
            if gaussian and noise > HIDDEN and self.affine > 0:
                return Plan(ratio, none, left * whole, none)
            if gaussian and T == 3 and rank(d) > 0:
                quarter = left * np.repeat(whole / 2, 2)
                return Plan(ratio, quarter, none, quarter)
        return Plan(ratio, left * self._split(budget, T), none, none)

    def _split(self, budget, T):
        votes = self.votes(budget)
        return budget.mechanism.budgets(budget.epsilon, budget.delta, T, beside=votes)

    def round_budgets(self, candidate, budget, datafit):
        plan = self.plan(budget, *datafit.shape)
        return np.concatenate([plan.ratio, plan.rounds])

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; W0 is used by ``tuning="shared"`` only."""
        W = self.models(datafit, W0, budget, rng, log)
        yield np.arange(len(candidates)), np.repeat(W[None], len(candidates), axis=0)

    def models(self, datafit, W0, budget, rng, log=None):
        """Models of all tasks, shape (m, d)."""
        m, d = datafit.shape
        plan = self.plan(budget, m, d)
        grid, ridge, alone, belief = GAMMA, None, None, None
        separate = separate_priors(datafit)
        if self.tuning == "shared":
            rows = rows_at(datafit, W0)
            if isinstance(datafit, LogisticLoss):
                grid = FAR if datafit.intercept else AROUND
                ridge = ridge_of(rows, W0, datafit.intercept)
                alone = left_out(rows, separate, gamma_grid(rows, grid, ridge))
            else:
                grid, alone = widened(rows, separate, grid)
            W, shown = by_left_out(alone, datafit.n.sum())
        else:
            rows, W, shown = own_models(datafit)
        if self.tuning == "hyper" and not self.separate:
            grid = GRID
            belief = self.belief(rows, separate, plan, budget, rng, log)
        once = len(plan.rounds) == 1
        if once:  # shown as it is, without the part that each task knows best
            shown = W - (W * rows.direction).sum(axis=1)[:, None] * rows.direction

        def averaged(learned, last=True):
            """Models under the priors learned and those of separate tasks."""
            nonlocal alone
            learned, gamma = with_free_intercept(learned, datafit), gamma_grid(rows, grid, ridge)
            if self.tuning == "shared":
                if alone is None:
                    alone = left_out(rows, separate, gamma)
                return by_left_out([*alone, *left_out(rows, learned, gamma)], datafit.n.sum())
            paths = [PriorPath(rows, prior, gamma) for prior in [*separate, *learned]]
            if self.tuning == "hyper":
                return weighted(*by_hierarchy(paths, MEAN_SCALES if once else (1.0,), belief))
            log_evidence, models = map(np.stack, zip(*map(PriorPath.evidence, paths), strict=True))
            if self.tuning == "votes" and last:
                (epsilon,) = (np.inf,) if budget.free else self.votes(budget)
                scores, log_base = vote_scores(log_evidence)
                k = budget.choose(scores, log_base, epsilon, rng)
                chosen = np.array([k]) if k < len(paths) else np.arange(len(paths))
                log_evidence, models = log_evidence[chosen], models[chosen]
            return by_evidence(log_evidence, models)

        if len(plan.parts):
            gate = budget.open(signed_parts(d), 1, rng, log=log).with_budgets(plan.parts)
            parts, sd = gate(1, directions(shown), 1.0), np.sqrt(2) * gate.scale(1, 1.0)
            return averaged([] if hopeless(sd, d, m) else parts_priors(parts, sd, m))[0]

        moments, T = Moments(self.affine, m, d, budget.mechanism), len(plan.moments)
        gate = budget.open(self.release(d), T, rng, log=log).with_budgets(plan.moments)
        for t in range(1, T + 1):
            if t > 1 and isinstance(datafit, LogisticLoss):
                rows, alone = rows_at(datafit, W), None  # expanded anew
            K = np.sqrt(moments.K2)
            moments.add(gate(t, moments.vectors(directions(shown)), K), gate.scale(t, 1.0))
            hyper = self.tuning == "hyper"
            learned = [] if hyper and moments.hopeless else moments.priors(once, ahead=not hyper)
            W, shown = averaged(learned, t == T)
        if len(plan.refinements) == 0:
            return W

        subspace = subspace_of(moments.S, moments.noise.scaled(moments.scale))
        release = vector_sum(d, rank(d))
        gate = budget.open(release, 2, rng, log=log).with_budgets(plan.refinements)
        for t in (1, 2):
            if isinstance(datafit, LogisticLoss):
                rows = rows_at(datafit, W)
            path = PriorPath(rows, subspace.prior(), gamma_grid(rows, grid))
            W, _ = weighted(*by_hierarchy([path], (1.0,), belief))
            c = subspace.clip
            G = gate(t, contributions(W, subspace.U), c)
            subspace = subspace.refined(G, gate.scale(t, c), m)
            turned = [subspace.turned(prior) for prior in learned if prior.name not in AXES]
            floored = [subspace.prior(floor) for floor in FLOORS]
            W, _ = averaged([*learned, *turned, *floored])
        return W

    def belief(self, rows, separate, plan, budget, rng, log=None):
        """What is known of the tasks' log noise-to-signal ratio: `BELIEF`, and a release if there
        is one, of tasks on their own with a free intercept."""
        if len(plan.ratio) == 0:
            return BELIEF
        q = preferences(PriorPath(rows, separate[-1], gamma_grid(rows, GRID)))
        gate = budget.open(vector_sum(1), 1, rng, log=log).with_budgets(plan.ratio)
        to_mean = REACH / len(q)
        released = BELIEF.center + to_mean * gate(1, q, 1.0)[0]
        return BELIEF.updated(released, (to_mean * gate.scale(1, 1.0)) ** 2)

    def gates(self, candidate, budget, datafit):
        m, d = datafit.shape
        plan = self.plan(budget, m, d)
        releases = (
            (vector_sum(1), plan.ratio),
            (signed_parts(d), plan.parts),
            (self.release(d), plan.moments),
            (vector_sum(d, rank(d)), plan.refinements),
        )
        return tuple(budget.planned(release, b) for release, b in releases if len(b))

    def statement(self, candidate, budget, datafit):
        """Statement of the releases, plus the votes; with ``tuning="shared"`` the choice inside the
        fit is made from all tasks' data, so nothing is proved of the fit (an audit refutes it)."""
        if self.separate:
            return SEPARATE
        gates, m = self.gates(candidate, budget, datafit), datafit.shape[0]
        block = budget.statement(*gates, beside=self.votes(budget), m=m, caveats=self.caveats)
        if self.tuning != "shared" or block.proved is None:
            return block
        basis = f"the releases alone, {block.proved.basis}; not the choice over all tasks"
        claimed = Guarantee(budget.epsilon, budget.delta, basis)
        return replace(block, claimed=claimed, proved=None, cost=None)

    def status(self, mechanism):
        """The shared choice reaches every model, so its budget is claimed only."""
        return "claimed" if self.tuning == "shared" else mechanism.status


def gamma_grid(rows, grid=GAMMA, ridge=None):
    """Gamma to choose from, shape (g, m): a grid in units of a task's mean squared row norm.

    With `ridge` it is near the penalty that cross-validation chose for separate tasks: that choice
    is by the AUC, while the leave-one-out logistic loss would take too small a gamma.
    """
    return grid[:, None] * (rows.unit if ridge is None else ridge)


def ridge_of(rows, W, intercept=False):
    """Penalty for which W is the ridge solution, w'(X'y - X'X w)/||w||^2; shape (m,). Of the slopes
    alone where the last weight is an intercept."""
    slope = rows.xty - np.einsum("mde,me->md", rows.gram, W)
    if intercept:
        slope, W = slope[:, :-1], W[:, :-1]
    size = (W**2).sum(axis=1)
    ridge = (slope * W).sum(axis=1) / np.where(size > 0, size, 1)
    return np.where(ridge > 0, ridge, rows.unit)


def with_free_intercept(candidates, datafit):
    """The priors, and each once more with the intercept left free, if tasks have one."""
    free = [replace(prior, free=True) for prior in candidates] if datafit.intercept else []
    return [*candidates, *free]


def separate_priors(datafit):
    """The priors of tasks on their own: ridge, with the intercept penalised and not."""
    return with_free_intercept([Prior("separate", np.eye(datafit.shape[1]))], datafit)


def left_out(rows, candidates, gamma):
    """Leave-one-out errors and models of each prior (`PriorPath.shared_scale`)."""
    return [PriorPath(rows, prior, gamma).shared_scale() for prior in candidates]


def widened(rows, separate, grid):
    """The grid, longer at an end while the best gamma of separate tasks is there, and their
    `left_out`: so a task's own mean and its least squares are among the candidates."""
    step = grid[1] / grid[0]
    while True:
        alone = left_out(rows, separate, gamma_grid(rows, grid))
        best = np.argmin(np.min([errors for errors, _ in alone], axis=0))
        if best == 0 and grid[0] > WIDEST[0]:
            grid = np.append(grid[0] / step ** np.array([2, 1]), grid)
        elif best == len(grid) - 1 and grid[-1] < WIDEST[1]:
            grid = np.append(grid, grid[-1] * step ** np.array([1, 2]))
        else:
            return grid, alone


def own_models(datafit):
    """Rows, models and less shrunk models of every task on its own, chosen by its evidence."""
    W = np.zeros(datafit.shape)
    for _ in range(2 if isinstance(datafit, LogisticLoss) else 1):
        rows = rows_at(datafit, W)
        paths = [PriorPath(rows, p, gamma_grid(rows)) for p in separate_priors(datafit)]
        log_evidence, models = zip(*(path.evidence() for path in paths), strict=True)
        W, shown = by_evidence(np.stack(log_evidence), np.stack(models))
    return rows, W, shown


def by_left_out(results, N):
    """Models averaged over priors and gamma by leave-one-out error e, the same weights for all
    tasks, proportional to e^(-N/16) for N samples in all; and less shrunk models to be shown.

    `results` holds `PriorPath.shared_scale` of each prior, the first one that of separate tasks.
    """
    errors, models = zip(*results, strict=True)
    weights = softmax(-N / TEMPER * np.log(np.maximum(errors, np.finfo(float).tiny)))
    return weighted(weights[:, :, None], np.stack(models))


def weighted(weights, models):
    """Average of models (P, g, m, d) by weights (P, g, m or 1), and of less shrunk ones."""
    less = models[:, np.maximum(np.arange(models.shape[1]) - LESS, 0)]
    return tuple((weights[..., None] * W).sum(axis=(0, 1)) for W in (models, less))


def by_evidence(log_evidence, models):
    """Every task's average over priors and gamma, weights proportional to its own evidence;
    log_evidence (P, g, m), models (P, g, m, d)."""
    return weighted(softmax(log_evidence, axis=(0, 1)), models)


def vote_scores(log_evidence):
    """A task's score in [0, 1] for each prior, and last for the average over all, (P + 1, m).

    Its log evidence over that of the first prior (separate tasks), clipped to [-b, b] and scaled.
    With them the logs of the base weights, which favour the average and are public.
    """
    by_prior = logsumexp(log_evidence, axis=1)
    P = len(by_prior)
    by_prior = np.vstack([by_prior, logsumexp(by_prior, axis=0) - np.log(P)])
    log_base = np.log(np.append(np.full(P, (1 - OWN_WEIGHT) / P), OWN_WEIGHT))
    return (np.clip((by_prior - by_prior[0]) / VOTE_BOUND, -1, 1) + 1) / 2, log_base
