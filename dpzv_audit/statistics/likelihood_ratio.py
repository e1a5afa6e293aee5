"""A likelihood-ratio test of a claimed mu that may be looked at after every pair, for exactly Gaussian scores.

Under the claim the scores are N(m, s^2) and N(m + d, s^2), independent, with |d| <= mu s and m, s unknown. The
e-process divides the likelihood of each pair under estimates from the pairs before by the largest likelihood that the
claim allows for all of them: at most 1 in expectation at any stopping time, whatever m and s (Wasserman, Ramdas and
Balakrishnan, PNAS 117, 2020, section 7). It reaches 1/alpha with probability at most alpha.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzv_audit.statistics.wealth import Wealth, claims_array, pairs_of

Floats = NDArray[np.float64]

FIRST = 10
"""Pairs that only estimate: of their likelihood nothing is counted."""
_BLOCK = 2**16
_FARTHEST = 1e100
"""Standardised scores are cut here: no Gaussian one comes near, and their squares stay floats."""


class LikelihoodRatioTest(Wealth):
    """Evidence against each of (g,) claims of mu; feed it pairs with `update`, look at it at any time.

    The result does not depend on how the pairs are cut into calls. With a claim every smaller one is refuted.
    """

    def __init__(self, mus: ArrayLike, *, confidence: float = 0.95, keep_path: bool = False) -> None:
        self.mus = claims_array("mus", mus, 1e6)
        super().__init__(self.mus.size, confidence=confidence, keep_path=keep_path)
        self._first: list[tuple[Floats, Floats]] = []
        self._shift, self._scale, self._numerator = 0.0, 0.0, 0.0
        self._sums = np.zeros(4)

    @property
    def mu_lower(self) -> float:
        """The largest claim that is refuted; 0 for none. Holds at all times at once."""
        return float(np.max(self.mus[self.refuted], initial=0.0))

    def update(self, in_scores: ArrayLike, out_scores: ArrayLike) -> None:
        """Take (k,) further pairs of scores, k >= 1. Raises `InputError` for scores that are not k finite numbers."""
        inside, outside = pairs_of(in_scores, out_scores)
        early = min(max(FIRST - self.pairs, 0), inside.size)
        if early:
            self._look(inside[:early], outside[:early])
        for start in range(early, inside.size, _BLOCK):
            self._weigh(inside[start : start + _BLOCK], outside[start : start + _BLOCK])

    def _look(self, inside: Floats, outside: Floats) -> None:
        self._first.append((inside, outside))
        self.pairs += inside.size
        if self._path is not None:
            self._path.append(np.zeros((inside.size, self.mus.size)))
        if self.pairs == FIRST:
            x, y = (np.concatenate(side) for side in zip(*self._first, strict=True))
            # In units of the largest score the squares stay floats.
            unit = float(max(np.max(np.abs(x)), np.max(np.abs(y)))) or 1.0
            self._shift = unit * float(0.5 * (np.mean(x / unit) + np.mean(y / unit)))
            # Scores that do not vary are not Gaussian: nothing is ever proved from them.
            varies = min(np.ptp(x / unit), np.ptp(y / unit)) > 0.0
            self._scale = unit * math.sqrt(0.5 * float(np.var(x / unit) + np.var(y / unit))) if varies else 0.0

    def _weigh(self, inside: Floats, outside: Floats) -> None:
        """Add the evidence of a block of pairs."""
        self.pairs += inside.size
        if self._scale == 0.0:
            if self._path is not None:
                self._path.append(np.zeros((inside.size, self.mus.size)))
            return
        first = self._standard(*(np.concatenate(side) for side in zip(*self._first, strict=True)))
        begun = np.array([side.sum() for side in (first[0], first[1])] + [np.sum(side**2) for side in first])
        x, y = self._standard(inside, outside)
        steps = np.stack([x, y, x**2, y**2])
        after = self._sums[:, None] + np.cumsum(steps, axis=1)
        before = after - steps
        done = self.pairs - FIRST
        k = np.arange(done - inside.size + 1, done + 1, dtype=np.float64)
        self._sums = after[:, -1]
        predicted = self._numerator + np.cumsum(_predicted(x, y, before + begun[:, None], k - 1.0 + FIRST))
        self._numerator = float(predicted[-1])
        paths = np.stack([predicted - _largest(after, k, float(mu)) for mu in self.mus], axis=1)
        self.best = np.maximum(self.best, paths.max(axis=0))
        if self._path is not None:
            self._path.append(paths)

    def _standard(self, inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
        def standard(scores: Floats) -> Floats:
            with np.errstate(over="ignore"):
                return np.clip(scores / self._scale - self._shift / self._scale, -_FARTHEST, _FARTHEST)

        return standard(inside), standard(outside)


def _predicted(x: Floats, y: Floats, sums: Floats, n: Floats) -> Floats:
    """Return the log density of each pair at the means and the variance of the `n` pairs with these sums."""
    mean_x, mean_y = sums[0] / n, sums[1] / n
    variance = np.maximum((sums[2] - n * mean_x**2 + sums[3] - n * mean_y**2) / (2.0 * n - 2.0), 1e-300)
    # The next score strays from an estimated mean by 1 + 1/n of the variance.
    wide = variance * (1.0 + 1.0 / n)
    with np.errstate(over="ignore"):  # minus infinity: from then on nothing is ever proved
        strays = ((x - mean_x) ** 2 + (y - mean_y) ** 2) / wide
    return np.asarray(-np.log(wide) - 0.5 * strays, dtype=np.float64)


def _largest(sums: Floats, n: Floats, mu: float) -> Floats:
    """Return the largest log likelihood of `n` pairs with |mean difference| <= mu s, over m and s.

    Where the estimate keeps the claim, the unconstrained one. Else the difference is mu s: with u = 1/s the
    likelihood is n ln u^2 - (A u^2 + n (d u - mu)^2 / 2) / 2, largest at the root of a quadratic.
    """
    mean_x, mean_y = sums[0] / n, sums[1] / n
    squares = np.maximum(sums[2] - n * mean_x**2 + sums[3] - n * mean_y**2, 1e-300)
    d = np.abs(mean_x - mean_y)
    free = -n * np.log(squares / (2.0 * n)) - n
    a, b = squares + 0.5 * n * d**2, 0.5 * n * d * mu
    u = (b + np.sqrt(b**2 + 8.0 * n * a)) / (2.0 * a)
    bound = 2.0 * n * np.log(u) - 0.5 * (squares * u**2 + 0.5 * n * (d * u - mu) ** 2)
    return np.asarray(np.where(d <= mu * np.sqrt(squares / (2.0 * n)), free, bound), dtype=np.float64)
