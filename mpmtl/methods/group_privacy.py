"""From protecting a sample to protecting a task: group privacy (Proposition 3 of the paper)."""

from dataclasses import replace

import numpy as np


def instance_budget(budget, datafit):
    r"""Budget for one sample whose n-fold use protects a whole task.

    .. math:: \epsilon' = \epsilon/n, \quad \delta' = \delta / (n e^\epsilon), \quad
        n = \max_i n_i

    An (eps', delta') algorithm for samples is (n eps', n e^{n eps'} delta') for tasks.
    """
    n = int(datafit.n.max())
    delta = budget.delta * np.exp(-budget.epsilon) / n
    return replace(budget, epsilon=budget.epsilon / n, delta=delta)
