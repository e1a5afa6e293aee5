"""Exact limits for a proportion from the Beta quantile (Clopper and Pearson, Biometrika 26, 1934)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv


def upper_limit(successes: ArrayLike, n: ArrayLike, error: ArrayLike) -> NDArray[np.float64]:
    """Return the one-sided upper limit of a proportion: it is below the truth with probability <= `error`.

    `successes` in [0, n], `n` >= 1 and `error` in (0, 1) broadcast; the result has their common shape and
    lies in (0, 1]. Counts need not be whole: planning a test asks for the limit at an expected count. It is 1 where the
    quantile of so small an error (1e-150, say) is not found, which is an upper limit all the same.
    """
    k, size, level = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (successes, n, error)))
    full = k >= size
    # The placeholder for full cells keeps the second shape parameter of the Beta distribution above 0.
    limit = betainccinv(k + 1.0, np.where(full, 1.0, size - k), level)
    return np.asarray(np.where(full | np.isnan(limit), 1.0, limit), dtype=np.float64)


def lower_limit(successes: ArrayLike, n: ArrayLike, error: ArrayLike) -> NDArray[np.float64]:
    """Return the one-sided lower limit of a proportion: it is above the truth with probability <= `error`.

    Arguments as for `upper_limit`; the result lies in [0, 1), and is 0 where the quantile is not found.
    """
    k, size = np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64)
    empty, k, size, level = np.broadcast_arrays(k <= 0.0, k, size, np.asarray(error, dtype=np.float64))
    limit = betaincinv(np.where(empty, 1.0, k), size - k + 1.0, level)
    return np.asarray(np.where(empty | np.isnan(limit), 0.0, limit), dtype=np.float64)
