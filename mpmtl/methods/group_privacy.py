"""From protecting a sample to protecting a task: group privacy (Proposition 3 of the paper)."""

from dataclasses import replace

import numpy as np

from mpmtl.privacy.statements import (
    NO_PROTECTION,
    RELATION_OF_KNOWN_SIZE,
    Guarantee,
    PrivacyStatement,
)


def public_sizes(datafit):
    """Least and largest number of samples of a task, which are taken as public."""
    if datafit.n_public is not None:
        return datafit.n_public
    sizes = datafit.n[datafit.n > 0]  # the model of a task without samples is always zero
    return (sizes.min(), sizes.max()) if len(sizes) else (1, 1)


def instance_budget(budget, datafit):
    r"""Budget for one sample whose n-fold use protects a whole task.

    .. math:: \epsilon' = \epsilon/n, \quad \delta' = \delta / (n e^\epsilon), \quad
        n = \max_i n_i

    Sizes n_i are public. An (eps', delta') algorithm for samples is (n eps', n e^{n eps'} delta')
    for tasks.
    """
    n = int(public_sizes(datafit)[1])
    delta = budget.delta * np.exp(-budget.epsilon) / n
    return replace(budget, epsilon=budget.epsilon / n, delta=delta)


def group_claim(budget, delta, caveats):
    """What the literature claims for a task by group privacy; nothing of it is proved here."""
    if budget.free:
        return NO_PROTECTION
    basis = "Propositions 2 and 3 of the paper (group privacy)"
    claimed = Guarantee(budget.epsilon, delta, basis)
    return PrivacyStatement(
        budget.mechanism.name, claimed, None, caveats, relation=RELATION_OF_KNOWN_SIZE
    )
