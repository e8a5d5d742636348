"""Gaussian and Laplace noise rounded down to an integer grid, sampled exactly.

Nothing here is a floating-point number: a real number is an integer part and binary digits that are
drawn when a comparison asks for them, and every acceptance is made of coins with probability 1/j
or "a fresh uniform number is below x". What comes out is the floor of an exact normal (or Laplace)
variable, so adding it to an integer is post-processing of the real-valued mechanism.

References
----------
von Neumann (1951); Karney, Sampling exactly from the normal distribution (ACM TOMS 2016); Canonne,
Kamath, Steinke, The discrete Gaussian for differential privacy (NeurIPS 2020).
"""

import os

import numpy as np

BITS = 40
#: Grid steps of a standard deviation (normal) or of the scale (Laplace).
STEPS = 2**BITS


def words(n, random):
    """n independent uniform integers of 64 bits; ``random(k)`` gives k random bytes."""
    return np.frombuffer(random(8 * n), dtype=np.uint64)


def one_in(j, n, random):
    """n coins of probability 1/j."""
    usable = np.uint64(2**64 - 1 - 2**64 % j)  # the largest of a whole number of rounds through j
    draws = words(n, random).copy()
    while (over := draws > usable).any():
        draws[over] = words(int(over.sum()), random)
    return draws % np.uint64(j) == 0


class Uniform:
    """n uniform numbers x in [0, 1), whose binary digits are drawn as they are needed."""

    def __init__(self, n, random):
        self.n, self.random = n, random
        self.digits = [words(n, random)]

    def coins(self, which, j=1):
        """Coins of probability x/j for indices `which`: one in j, and a fresh number below x."""
        heads = one_in(j, len(which), self.random) if j > 1 else np.ones(len(which), dtype=bool)
        undecided, place = np.flatnonzero(heads), 0
        while len(undecided):
            if place == len(self.digits):
                self.digits.append(words(self.n, self.random))
            own = self.digits[place][which[undecided]]
            fresh = words(len(undecided), self.random)
            heads[undecided] = fresh < own
            undecided = undecided[fresh == own]
            place += 1
        return heads

    def leading(self):
        """floor(STEPS x)."""
        return (self.digits[0] >> np.uint64(64 - BITS)).astype(np.int64)


def exponential_coins(n, heads):
    r"""n coins of probability exp(-g), g in [0, 1], from coins of probability g/j.

    The number K of the first j for which a coin of probability g/j fails is odd with probability
    :math:`\sum_k (-g)^k/k! = e^{-g}`.

    Parameters
    ----------
    n : int
    heads : callable
        ``heads(j, which)``: a coin of probability g/j for each index in `which`.
    """
    odd, running, j = np.ones(n, dtype=bool), np.arange(n), 1
    while len(running):
        running = running[heads(j, running)]
        odd[running] ^= True
        j += 1
    return odd


def _of_fraction(c, random):
    """Coins of probability exp(-1/c), as a function of their number."""
    return lambda n: exponential_coins(n, lambda j, which: one_in(c * j, len(which), random))


def _successes(n, coins):
    """Numbers of heads before the first tail, n times."""
    counts, running = np.zeros(n, dtype=np.int64), np.arange(n)
    while len(running):
        running = running[coins(len(running))]
        counts[running] += 1
    return counts


def _all_heads(counts, coins):
    """Where counts[i] coins all show heads; ``coins(which)`` throws one for each index."""
    held, alive = np.ones(len(counts), dtype=bool), np.flatnonzero(counts > 0)
    thrown = 1
    while len(alive):
        heads = coins(alive)
        held[alive[~heads]] = False
        alive = alive[heads]
        alive = alive[counts[alive] > thrown]
        thrown += 1
    return held


def _sampled(n, attempt, random):
    """n values of attempt(k) -> (whole, fraction, accepted), with random signs, rounded down."""
    out, missing = np.empty(n, dtype=np.int64), np.arange(n)
    while len(missing):
        whole, x, accepted = attempt(len(missing))
        size = (whole << BITS) + x.leading()
        negative = one_in(2, len(missing), random)
        value = np.where(negative, -size - 1, size)  # floor; a real number is on no grid point
        out[missing[accepted]] = value[accepted]
        missing = missing[~accepted]
    return out


def rounded_normal(n, random=os.urandom):
    r"""n samples of :math:`\lfloor 2^{40} Z \rfloor`, Z standard normal.

    |Z| = a + x, a integer and x in [0, 1), has the density
    :math:`e^{-a/2} e^{-a(a-1)/2} e^{-ax} e^{-x^2/2}`: propose a by the first factor and x
    uniformly, accept by the others.

    Parameters
    ----------
    n : int
    random : callable
        ``random(k)`` gives k random bytes; default: of the operating system.

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    half = _of_fraction(2, random)

    def attempt(k):
        a, x = _successes(k, half), Uniform(k, random)

        def decay(which):
            return exponential_coins(len(which), lambda j, w: x.coins(which[w], j))

        def square(j, which):
            heads = x.coins(which, 2 * j)
            heads[heads] = x.coins(which[heads])
            return heads

        accepted = _all_heads(a * (a - 1), lambda which: half(len(which)))
        accepted &= _all_heads(np.where(accepted, a, 0), decay)
        left = np.flatnonzero(accepted)
        accepted[left] = exponential_coins(len(left), lambda j, w: square(j, left[w]))
        return a, x, accepted

    return _sampled(n, attempt, random)


def rounded_laplace(n, random=os.urandom):
    r"""n samples of :math:`\lfloor 2^{40} L \rfloor`, L of density :math:`e^{-|x|}/2`.

    |L| = a + x: a geometric with ratio 1/e, x with density ~ e^-x. Parameters as `rounded_normal`.
    """
    unit = _of_fraction(1, random)

    def attempt(k):
        x = Uniform(k, random)
        accepted = exponential_coins(k, lambda j, which: x.coins(which, j))
        return _successes(k, unit), x, accepted

    return _sampled(n, attempt, random)
