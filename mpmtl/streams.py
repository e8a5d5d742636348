"""Random numbers by name: the same name always gives the same stream."""

import hashlib

import numpy as np


def stream(seed, *names):
    """Generator for the axis `names` of the experiment with this `seed`.

    The SHA-256 hash of the names seeds a `numpy.random.SeedSequence`, so a stream depends on its
    name alone: not on the order of calls, the number of replicates or the number of processes.

    Parameters
    ----------
    seed : int
        Seed of the experiment.
    *names : str or int
        For example ``"noise", replicate, fold``.

    Returns
    -------
    numpy.random.Generator
    """
    digest = hashlib.sha256(repr((int(seed), *names)).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "big")))
