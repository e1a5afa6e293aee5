"""What a private search costs: of a secret number of trainings only the best by a private score is shown.

A trial is one run of a base mechanism Q whose output holds its own score, which is noised and accounted with it. The
number of trials K is drawn beforehand, independent of the data, and stays secret, as does how long the search took.
Let F(y) be the probability under Q of a score of at most that of y; ties are broken by an independent draw. The
search shows y with density q(y) phi'(F(y)), where phi is the generating function of K. On neighbouring data F differs
from F' by no more than the trade-off of Q allows. With R = sup phi'(F) / phi'(F') over such pairs

    delta_A(epsilon) = int (q phi'(F) - e^epsilon q' phi'(F'))_+ <= E[K] delta_Q(epsilon - ln R).

Papernot and Steinke (ICLR 2022), Koskela, Redberg and Wang (2024). What is shown of the other trials must be nothing.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import ndtr

from ..base.errors import InputError, check_names
from ..base.findings import EpsilonRange
from .gaussian import Floats, epsilon_from_mu, root_of

Trials = Literal["geometric", "logarithmic"]
SOURCE = "Papernot and Steinke (2022), Koskela, Redberg and Wang (2024)"
MOST_TRIALS = 1e6
"""Mean numbers of trials above this are refused."""
_FURTHEST = 12.0
"""Where a standard normal has no more mass that matters."""
_STEP = 2e-4


@dataclass(frozen=True)
class Selection:
    """A search: the law of the secret number of trials, at least 1, and its `mean`."""

    trials: Trials
    mean: float

    def __post_init__(self) -> None:
        check_names("selection", [self.trials], ("geometric", "logarithmic"))
        if not 1.0 < self.mean <= MOST_TRIALS:
            raise InputError(f"use a mean above 1 and at most {MOST_TRIALS:g}", "selection", self.mean)

    @cached_property
    def _rest(self) -> float:
        """Return 1 - q of the law's parameter q: P(K = k) is as q^k for a geometric K, as q^k / k for a logarithmic."""
        if self.trials == "geometric":
            return 1.0 / self.mean

        def excess(log_rest: float) -> float:
            rest = math.exp(log_rest)
            return (1.0 - rest) / (rest * -log_rest) - self.mean

        return math.exp(root_of(excess, -60.0, -1e-9))

    def log_slope(self, below: Floats) -> Floats:
        """Return ln phi'(F) + constant for F = 1 - `below`: ln of sum k P(K = k) F^(k - 1)."""
        power = 2.0 if self.trials == "geometric" else 1.0
        # 1 - q F = (1 - q) + q (1 - F), which keeps its digits where F is near 1.
        return -power * np.log(self._rest + (1.0 - self._rest) * below)

    def log_ratio(self, mu: float) -> float:
        """Return an upper bound on ln R of a `mu`-Gaussian-DP trial: the greatest ln phi'(Phi(x)) / phi'(Phi(x - mu)).

        phi' increases, so between two places of a grid the ratio is at most that of the right over that of the left.
        """
        most = float((self.log_slope(np.zeros(1)) - self.log_slope(np.ones(1)))[0])
        if mu > 2.0 * _FURTHEST:
            return most  # phi'(1) / phi'(0): no ratio is greater
        end = _FURTHEST + mu
        x = np.arange(-_FURTHEST, end + _STEP, _STEP)
        first = self.log_slope(ndtr(-x))
        second = self.log_slope(ndtr(mu - x))
        within = float((first[1:] - second[:-1]).max())
        left = float(first[0] - self.log_slope(np.ones(1))[0])
        right = float(self.log_slope(np.zeros(1))[0] - second[-1])
        return max(within, left, right)

    def epsilon(self, mu: float, delta: float) -> EpsilonRange:
        """Return epsilon at `delta` of a search among trials that are `mu`-Gaussian DP, the score of each included.

        ln R + epsilon_Q(`delta` / E[K]); nothing is certified from below. Raises `InputError` as `epsilon_from_mu`.
        """
        upper = self.log_ratio(mu) + epsilon_from_mu(mu, delta / self.mean)
        return EpsilonRange(lower=0.0, estimate=upper, upper=upper)

    def __str__(self) -> str:
        return f"{self.trials}:mean={self.mean:g}"


def parse_selection(text: str) -> Selection:
    """Return the search that NAME:mean=X stands for; `InputError` for other words."""
    name, _, setting = text.partition(":")
    key, _, value = setting.partition("=")
    rule = "use geometric:mean=12 or logarithmic:mean=12"
    if name not in ("geometric", "logarithmic") or key != "mean":
        raise InputError(rule, "selection", text)
    try:
        mean = float(value)
    except ValueError:
        raise InputError(rule, "selection", text) from None
    return Selection("geometric" if name == "geometric" else "logarithmic", mean)
