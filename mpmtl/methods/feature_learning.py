"""`fl`: private feature learning, priors for the models from noisy releases (ours)."""

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import ClassVar

import numpy as np

from mpmtl.chunks import Contributions
from mpmtl.errors import require
from mpmtl.methods.base import Candidate, Method, one_of
from mpmtl.methods.prior_steps import (
    GAMMA,
    averaged,
    by_evidence,
    moment_vectors,
    own_models,
    ratio_preferences,
    refinement_parts,
    separate_priors,
    shown_directions,
    started,
    with_free_intercept,
)
from mpmtl.methods.shared_choice import SharedChoice
from mpmtl.privacy.mechanisms import Gaussian
from mpmtl.privacy.releases import covariance, signed_parts, sizes, vector_sum
from mpmtl.privacy.statements import SEPARATE, Guarantee
from mpmtl.solvers.hierarchy import BELIEF, GRID, REACH, by_hierarchy
from mpmtl.solvers.moments import Moments, hopeless
from mpmtl.solvers.noisy_covariance import noise_spectrum, parts_priors, sizes_priors
from mpmtl.solvers.refinement import FLOORS, rank, subspace_of

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
        Budget of the signed parts, which take the place of a hidden second moment, or of the sizes.
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
    pooled with the inverses of their variances. With a logistic loss no direction is left free,
    and priors are `cautious`.

    Parameters
    ----------
    tuning : {"shared", "local", "hyper"}
        How models are averaged over priors and gamma. By the leave-one-out error over all tasks,
        outside the budget; by each task's own evidence, which costs nothing; or by its own evidence
        and a hyper-prior for the noise-to-signal ratio, which a small release centres
        (`solvers.hierarchy`).
    affine : float
        beta: weight of the mean; 0 releases no mean.
    rounds : "auto" or int
        T; "auto" is 1 to 3 from the noise-to-signal ratio of a release, which is public. With
        "hyper" the third round is two refinements (`solvers.refinement`) with half of mu^2, and
        where noise hides the second moment its place is taken by the signed parts of the v_i
        (`signed_parts`).
        0: separate tasks.
    structure : {"any", "features"}
        What tasks may share, which is public. "features": the same few features matter to all;
        then the one release is the sum of the |v_i| (`sizes`), and priors are diagonal.

    References
    ----------
    Algorithm 1 of the paper with another single-task learner in step 7; docs/method.md.
    """

    name: str
    tuning: str = "hyper"
    affine: float = 0.15
    rounds: str | int = "auto"
    structure: str = "any"
    loss_average: bool | None = None
    by_chunks: ClassVar[bool] = True
    view: ClassVar[str] = "covariance"

    def __post_init__(self):
        one_of("tuning", self.tuning, ("shared", "local", "hyper"))
        one_of("structure", self.structure, ("any", "features"))
        require(0 <= self.affine <= 1, f"affine = {self.affine} must be between 0 and 1")
        require(
            self.rounds == "auto" or (isinstance(self.rounds, int) and self.rounds >= 0),
            f"rounds = {self.rounds} must be auto or a whole number of at least 0",
        )
        require(
            self.structure == "any" or self.rounds in ("auto", 0, 1),
            f"rounds = {self.rounds}: with structure=features there is one release, so use auto",
        )

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

    def parts(self, d):
        """What is released where the second moment is not."""
        return sizes(d) if self.structure == "features" else signed_parts(d)

    def plan(self, budget, m, d):
        """The `Plan` of a fit with m tasks and d features."""
        none, whole = np.zeros(0), budget.split(1)
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
        if self.structure == "features":
            return Plan(ratio, none, left * whole, none)
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
        return Plan(ratio, left * budget.split(T), none, none)

    def round_budgets(self, candidate, budget, datafit):
        plan = self.plan(budget, *datafit.shape)
        return np.concatenate([plan.ratio, plan.rounds])

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; W0 is used by ``tuning="shared"`` only."""
        W = self.models(datafit, W0, budget, rng, log)
        yield np.arange(len(candidates)), np.repeat(W[None], len(candidates), axis=0)

    def models(self, datafit, W0, budget, rng, log=None):
        """Models of all tasks, shape (m, d)."""
        return self.chunks(datafit, W0, budget, rng, log).map(attrgetter("W")).whole()

    def chunks(self, datafit, W0, budget, rng, log=None):
        """What every chunk of tasks has at the end, `Own`; see `mpmtl.chunks`."""
        m, d = datafit.shape
        plan, tasks = self.plan(budget, m, d), datafit.chunks()
        separate, grid, belief = separate_priors(datafit), GAMMA, None
        once = len(plan.rounds) == 1  # then models are shown without the part that a task knows
        level = once and not datafit.logistic  # and priors leave that part free
        if self.tuning == "shared":
            start = [] if W0 is None else [tasks.beside(W0)]
            own = tasks.map(started, *start)
            choice = SharedChoice(tasks, m, int(datafit.n.sum()), datafit.logistic)
            grid, alone = choice.alone(own, separate, datafit.intercept)
            own = choice.average(own, alone, grid)
        else:
            own = tasks.map(own_models)
        if self.tuning == "hyper" and not self.separate:
            grid = GRID
            prior = replace(separate[-1], own=level)
            belief = self.belief(tasks, own, prior, plan, budget, rng, m, log)

        def averaged_over(learned, own, again=False):
            """Chunks under the priors learned and those of separate tasks."""
            learned = with_free_intercept(learned, datafit)
            if self.tuning == "shared":
                known = alone
                if again and datafit.logistic:
                    known = choice.judge(own, separate, grid, again)
                judged = choice.judge(own, learned, grid, again, known) if learned else []
                return choice.average(own, [*known, *judged], grid, again)
            priors, weigh = [*separate, *learned], by_evidence
            if self.tuning == "hyper":
                scales = MEAN_SCALES if once else (1.0,)
                weigh = partial(by_hierarchy, scales=scales, belief=belief)
            return tasks.map(partial(averaged, weigh, priors, grid, again), own)

        def contributions(step, *settings):
            return Contributions(tasks, partial(step, *settings), m, (own,))

        if len(plan.parts):
            gate = budget.open(self.parts(d), 1, rng, log=log).with_budgets(plan.parts)
            features = self.structure == "features"
            released = gate(1, contributions(shown_directions, once), 1.0)
            # of the sizes; or of the sum and of the difference of the halves
            sd = gate.scale(1, 1.0) * (1 if features else np.sqrt(2))
            if hopeless(sd, d, m):
                return averaged_over([], own)
            priors_of = sizes_priors if features else parts_priors
            return averaged_over(priors_of(released, sd, m, datafit.logistic), own)

        moments, T = Moments(self.affine, m, d, budget.mechanism), len(plan.moments)
        gate = budget.open(self.release(d), T, rng, log=log).with_budgets(plan.moments)
        for t in range(1, T + 1):
            K = np.sqrt(moments.K2)
            released = gate(t, contributions(moment_vectors, moments, once), K)
            moments.add(released, gate.scale(t, 1.0))
            hyper = self.tuning == "hyper"
            learned = []
            if not (hyper and moments.hopeless):
                learned = moments.priors(level, not hyper, datafit.logistic)
            # a refinement needs no models but those where a logistic loss is expanded
            if datafit.logistic or t < T or len(plan.refinements) == 0:
                own = averaged_over(learned, own, again=t > 1)
        if len(plan.refinements) == 0:
            return own

        subspace = subspace_of(moments.S, moments.noise.scaled(moments.scale))
        release = vector_sum(d, rank(d))
        T = len(plan.refinements)
        gate = budget.open(release, T, rng, log=log).with_budgets(plan.refinements)
        for t in range(1, T + 1):
            c = subspace.clip
            G = gate(t, contributions(refinement_parts, subspace, grid, belief), c)
            subspace = subspace.refined(G, gate.scale(t, c))
            if datafit.logistic or t == T:
                turned = [p if p.name in AXES else subspace.turned(p) for p in learned]
                floored = [subspace.prior(floor) for floor in FLOORS]
                own = averaged_over([*turned, *floored], own, again=True)
        return own

    def belief(self, tasks, own, prior, plan, budget, rng, m, log=None):
        """What is known of the tasks' log noise-to-signal ratio: `BELIEF`, and a release if there
        is one, of tasks on their own under this prior."""
        if len(plan.ratio) == 0:
            return BELIEF
        step = partial(ratio_preferences, prior, GRID)
        gate = budget.open(vector_sum(1), 1, rng, log=log).with_budgets(plan.ratio)
        to_mean = REACH / m
        released = gate(1, Contributions(tasks, step, m, (own,)), 1.0)[0]
        variance = (to_mean * gate.scale(1, 1.0)) ** 2
        return BELIEF.updated(BELIEF.center + to_mean * released, variance)

    def gates(self, candidate, budget, datafit):
        m, d = datafit.shape
        plan = self.plan(budget, m, d)
        releases = (
            (vector_sum(1), plan.ratio),
            (self.parts(d), plan.parts),
            (self.release(d), plan.moments),
            (vector_sum(d, rank(d)), plan.refinements),
        )
        return tuple(budget.planned(release, b) for release, b in releases if len(b))

    def statement(self, candidate, budget, datafit):
        """Statement of the releases; with ``tuning="shared"`` the choice inside the
        fit is made from all tasks' data, so nothing is proved of the fit (an audit refutes it)."""
        if self.separate:
            return SEPARATE
        gates, m = self.gates(candidate, budget, datafit), datafit.shape[0]
        block = budget.statement(*gates, m=m, caveats=self.caveats)
        if self.tuning != "shared" or block.proved is None:
            return block
        basis = f"the releases alone, {block.proved.basis}; not the choice over all tasks"
        claimed = Guarantee(budget.epsilon, budget.delta, basis)
        return replace(block, claimed=claimed, proved=None, cost=None)

    def status(self, mechanism):
        """The shared choice reaches every model, so its budget is claimed only."""
        return "claimed" if self.tuning == "shared" else mechanism.status
