"""`one-run-fdp`: the same guesses held against a whole trade-off curve.

Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (ICML 2025), algorithm 3: if the curve
f held, the probabilities p_i of i right guesses would obey one inequality for every set of i; from an assumed
P[right >= c] >= tau it follows that they sum to more than one, and the assumption is refuted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpzv_audit.errors import InputError
from dpzv_audit.findings import EmpiricalBound
from dpzv_audit.statistics.canaries import Guesses, count_guesses, draw_canaries, in_words, search_guesses
from dpzv_audit.statistics.curve import levels
from dpzv_audit.statistics.families import CurveFamily
from dpzv_audit.statistics.one_run import NONE
from dpzv_audit.statistics.settings import AuditSettings, Scores

_FINE, _COARSE = 1e-4, 1e-2
_LEAST_SHARE = 0.25
_MOST_GUESSES = 20_000

BlowUp = Callable[[float, float], float]


def refuted(guesses: Guesses, blow_up: BlowUp, theta: float, error: float) -> bool:
    """Return whether so many right guesses have a chance of at most `error` under the curve of `theta`.

    With m canaries, c' guesses and c of them right: r = tau c / m and h = tau (c' - c) / m; then for i = c - 1 down
    to 0, h grows to the x with 1 - f(x) = r, and r by i / (c' - i) of what h grew by. Refuted if r + h > c' / m.
    """
    m, made, right = guesses.canaries, guesses.made, guesses.right
    r, h, whole = error * right / m, error * (made - right) / m, made / m
    for i in range(right - 1, -1, -1):
        grown = blow_up(r, theta)
        if grown <= h:
            break  # neither changes any more
        r += i / (made - i) * (grown - h)
        h = grown
        if r + h > whole:
            return True
    return r + h > whole


def largest_refuted(guesses: Guesses, family: CurveFamily, error: float, *, tolerance: float = _FINE) -> float:
    """Return a theta that is refuted, below the largest by at most `tolerance` of what the bare rates say; 0 for none.

    The bare rates are those of right and of wrong guesses among all canaries: in the limit of many canaries, a curve
    through them is what the guesses prove.
    """
    blow_up = family.blow_up
    if guesses.right <= 0 or blow_up is None:
        return 0.0
    m, wrong = guesses.canaries, guesses.made - guesses.right
    bare = levels(family, np.array([(wrong + 0.5) / (m + 1.0)]), np.array([1.0 - (guesses.right + 0.5) / (m + 1.0)]))
    high = float(bare[0])
    smallest = tolerance * high
    if high == 0.0:
        return 0.0
    low = _LEAST_SHARE * high
    while refuted(guesses, blow_up, high, error):
        low, high = high, 2.0 * high
    if not refuted(guesses, blow_up, low, error):
        low, high = 0.0, low
    while high - low > smallest:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(guesses, blow_up, middle, error) else (low, middle)
    return low


def one_run_fdp(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return a lower bound on theta of `settings.family` and its epsilon, from scores of canaries with bit 1 and 0.

    The canaries may share one training. Raises `InputError` for a family that is not symmetric: the two directions
    of the neighbour relation have different curves, and the inequality needs one.
    """
    family, error = settings.family, settings.error
    if family.blow_up is None:
        raise InputError(f"one-run-fdp needs a curve that is its own inverse, {family.name} is none: use one-run")
    theta, ceiling, words, looks = 0.0, 0.0, NONE, 0
    canaries = draw_canaries(in_scores, out_scores, settings)
    if canaries is not None:
        m = canaries.scores.size

        def promise(made: float, right: float) -> float:
            return largest_refuted(Guesses(m, round(made), round(right)), family, error, tolerance=_COARSE)

        rule = search_guesses(canaries, promise, most=_MOST_GUESSES)
        guesses = count_guesses(canaries, rule)
        theta, looks = largest_refuted(guesses, family, error), 1
        ceiling = max(theta, largest_refuted(Guesses(m, m, m), family, error))
        words = in_words(canaries, rule, guesses, settings)
    return settings.bound(
        "one-run-fdp",
        in_scores,
        out_scores,
        family=family,
        proved=theta,
        provable=ceiling,
        rule=words,
        looks=looks,
    )
