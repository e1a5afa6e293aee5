"""What the means of Gaussian scores prove of mu: how far they lie apart, in units of the scores' own spread.

Of n scores of N(m + mu s, s^2) and k of N(m, s^2), all independent, the difference of the means over its standard error
by the pooled deviation is noncentral t with n + k - 2 degrees of freedom and noncentrality
lambda = mu / sqrt(1/n + 1/k). Which side is the higher is not known, so the size of t is the statistic. With Z normal
and V the pooled deviation over s it is at least t where |lambda + Z| >= t V: the larger lambda, the likelier, and so
the bound is the largest mu at which that has a chance of at most the error.

The chance is the mean of F(|lambda + Z| / t) over Z, F being the law of V. `scipy.special` has one less it alone, which
loses the digits of a small chance. Here it is summed over cells of Z, each at its end farther from -lambda. F rises, so
the sum is never less than the chance, and the bound never more than the exact one: it gives up a cell, 0.02 of lambda.
"""

import math

import numpy as np
from scipy.special import gammainc, ndtr

from .assumptions import unit_of
from .binomial import Floats
from .families import masses_between

_FARTHEST = 12.0
_CELLS = 1200
_Z = np.linspace(-_FARTHEST, _FARTHEST, _CELLS + 1)
_MASSES = masses_between(_Z)
_BEYOND = 2.0 * float(ndtr(-_FARTHEST))
_HALVINGS = 40


def standard_errors_apart(inside: Floats, outside: Floats) -> float:
    """Return how many standard errors the means of (n,) and (m,) scores lie apart, n, m >= 2; 0 for constant ones."""
    inside, outside = inside.astype(np.float64), outside.astype(np.float64)
    unit = unit_of(inside, outside)
    x, y = inside / unit, outside / unit
    squares = float(np.sum((x - x.mean()) ** 2) + np.sum((y - y.mean()) ** 2))
    error = math.sqrt(squares / (x.size + y.size - 2.0)) * _unit_error(x.size, y.size)
    return abs(float(x.mean() - y.mean())) / error if error > 0.0 else 0.0


def chance_of_means(t: float, mu: float, n_in: int, n_out: int) -> float:
    """Return the chance that means lie `t` > 0 standard errors apart or more under `mu` >= 0, rounded up.

    That is a p-value of "the scores have at most this mu".
    """
    freedom = n_in + n_out - 2.0
    strays = np.abs(mu / _unit_error(n_in, n_out) + _Z)
    farther = np.maximum(strays[1:], strays[:-1]) / t
    return min(1.0, float(_MASSES @ gammainc(0.5 * freedom, 0.5 * freedom * farther**2)) + _BEYOND)


def mu_of_means(t: float, n_in: int, n_out: int, error: float) -> float:
    """Return the mu >= 0 that means `t` standard errors apart prove at `error` in (0, 1); 0 for none.

    At an error above a quarter it may be less than they prove.
    """
    if t == 0.0 or chance_of_means(t, 0.0, n_in, n_out) > error:
        return 0.0
    low = 0.0
    # Means as far apart as they truly are, or farther, have a chance of a quarter at least.
    high = t * _unit_error(n_in, n_out)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if chance_of_means(t, middle, n_in, n_out) <= error else (low, middle)
    return low


def _unit_error(n_in: int, n_out: int) -> float:
    """Return the standard error of the difference of means of scores with a deviation of 1."""
    return math.sqrt(1.0 / n_in + 1.0 / n_out)
