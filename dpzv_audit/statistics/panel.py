"""Shares one error: among the tests of one verdict, among the looks at one claim, and among the claims of one file.

Tests whose shares sum to at most 1 err together with at most the whole error, however they depend on each other
(Bonferroni). Claims of one file share theirs by Holm's method (Scandinavian Journal of Statistics 6, 1979): a true
claim is refuted with probability at most alpha over all claims together.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .fixed import TestName

GENERAL_TESTS: tuple[TestName, ...] = ("joint",)
GAUSSIAN_TESTS: tuple[TestName, ...] = ("gaussian", "curve")
"""Tests that share the error of one verdict: of any scores, and beside them of those that are exactly Gaussian."""
SEQUENTIAL_TESTS = ("sequential", "sequential-gaussian")
"""The same of pairs as they come."""

CUT_SHARE = 0.1
"""Share of alpha for the one full test of a stage that a budget or an interrupt cut off."""
PLANNED_SHARE = 1.0 - CUT_SHARE
"""What is left for the stages as planned."""
SIMULATED_SHARE, TRAINED_SHARE = 0.4, 0.5
"""Shares of a game on simulated transcripts and of one on trainings, of a claim with both."""


@dataclass(frozen=True)
class Panel:
    """Tests that share an error evenly, or a `share` of it."""

    tests: Collection[object]
    share: float = 1.0

    def level(self, error: float) -> float:
        """Return the error of each test where all of them together have at most `error`."""
        return error * self.share / max(1, len(self.tests))

    def confidence(self, confidence: float) -> float:
        """Return the confidence of each test where all of them hold together at `confidence`."""
        return 1.0 - self.level(1.0 - confidence)

    @property
    def weight(self) -> float:
        """Share of each test."""
        return self.level(1.0)


def in_two_stages(share: float) -> tuple[float, float]:
    """Return the shares of two tests: a third for the sequential one on the first blocks, the rest for the full one."""
    return share / 3.0, 2.0 * share / 3.0


def at_once(share: float) -> tuple[float, float]:
    """Return the shares of the two tests where all blocks are drawn at once: a fifth, and the rest."""
    return 0.2 * share, 0.8 * share


def combined_p_value(looks: Iterable[tuple[float, float]]) -> float:
    """Return the p-value of a claim tested in several looks, from (p-value, share) of each look that was taken.

    The shares of all planned looks sum to at most 1. min p/w is a p-value however the looks depend on each other, and
    stays one when the later looks are left out because of what the earlier ones showed: leaving out only raises it.
    """
    return min(1.0, min((p / share for p, share in looks), default=1.0))


def adjusted_p_values(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values: a claim is refuted where its own is at most alpha."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def holm(p_values: Sequence[float], alpha: float) -> tuple[bool, ...]:
    """Return which claims are refuted, with probability at most `alpha` that any true one is among them."""
    return tuple(value <= alpha for value in adjusted_p_values(p_values))


def stopping_level(alpha: float, claims: int) -> float:
    """Return the p-value at which a claim needs no further look: a power of ten, at most alpha / claims and 1e-6.

    It does not move with the number of claims up to a thousand at alpha = 1e-3, so that a claim more in the file does
    not change how the others are tested.
    """
    return float(min(1e-6, 10.0 ** math.floor(math.log10(alpha / max(1, claims)))))
