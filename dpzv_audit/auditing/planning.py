"""What an audit has the power to see: the bound to expect of a known truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpzv_audit.auditing.binomial import upper_limit
from dpzv_audit.auditing.one_threshold import CLOPPER_PEARSON_SHARES, epsilon_objective
from dpzv_audit.auditing.thresholds import LEAST_A_SIDE, pilot_size
from dpzv_audit.errors import check_count, check_probability

_DEVIATES = np.linspace(-7.0, 7.0, 281)


def expected_bound(epsilon: float, *, n_in: int, n_out: int, delta: float, confidence: float = 0.95) -> float:
    """Return the bound that `clopper-pearson` shows where both rates come out as expected of a true `epsilon`.

    The view is taken to be Gaussian with exactly (`epsilon`, `delta`), and the best threshold, tail and share of the
    error as known: the bound of one audit scatters around a little less. 0 where the test sees nothing.
    Raises `InputError` for numbers out of range.
    """
    # The root finder behind it is a heavy import, so it waits until a plan is asked for.
    from dpzv_audit.accounting.gaussian import mu_from_epsilon

    check_count("n_in", n_in)
    check_count("n_out", n_out)
    check_probability("confidence", confidence)
    mu = mu_from_epsilon(epsilon, delta)
    if min(n_in, n_out) < LEAST_A_SIDE:
        return 0.0
    rest_in, rest_out = n_in - pilot_size(n_in), n_out - pilot_size(n_out)
    t = mu / 2.0 + _DEVIATES
    fpr, fnr = ndtr(-t), ndtr(t - mu)
    spent = (1.0 - confidence) * np.asarray(CLOPPER_PEARSON_SHARES)[:, None]
    rest = 1.0 - confidence - spent
    objective = epsilon_objective(delta)
    values: list[NDArray[np.float64]] = [
        objective(upper_limit(n_strict * strict, n_strict, spent), upper_limit(n_other * other, n_other, rest))
        for strict, n_strict, other, n_other in ((fpr, rest_out, fnr, rest_in), (fnr, rest_in, fpr, rest_out))
    ]
    return max(0.0, float(np.max(values)))
