"""Planted bugs that no linear score of the view sees: the adversary gets the canary's rounds and must fit a score.

The view is the canary's rounds of the channel of `channel`, one round per pass: +-C/B and noise that is right for so
many participations, (1, 1e-5) against known batches. The means of the rounds, all that a linear score can see, say no
more than the claim allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.accounting import sigma_sound
from dpzv_audit.findings import Verdict
from dpzv_audit.games.planted import channel
from dpzv_audit.games.planted.cases import REFUTED
from dpzv_audit.games.simulated import Draw

Floats = NDArray[np.float64]
ROUNDS = 32
FEW_ROUNDS = 8
"""Rounds of the uniform noise: each end of its range is seen in its largest and least round alone."""
_RUNS = 2_000
_FITTED = "fitted to the canary's rounds on separate runs: linear, quadratic or boosted"
_SHARE = 0.8
"""Of the noise that is due, what the first label gets."""
_AGREE = 0.75
_STOP = 2.0
"""Model at which training stops, in standard deviations of a round's noise."""


def sigma(rounds: int) -> float:
    """Return the noise's standard deviation that (1, 1e-5) takes against `rounds` known rounds with the canary."""
    return sigma_sound(
        channel.EPSILON,
        channel.DELTA,
        clip=channel.CLIP,
        batch_size=channel.BATCH,
        participations=rounds,
        neighbours="replace-label",
    )


def claimed(
    number: int,
    summary: str,
    *,
    rounds: int = ROUNDS,
    expected: tuple[Verdict, ...] = REFUTED,
    **changes: object,
) -> Callable[[Draw], Draw]:
    """Enter the decorated function as `channel.claimed` does: one round per pass, and a score that is to be fitted."""
    facts = {"rounds": rounds * channel.STEPS, "participations": rounds, "sigma": sigma(rounds), **changes}
    return channel.claimed(number, summary, facts, score=_FITTED, runs=_RUNS, expected=expected)


def _views(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Views (n, rounds) as designed."""
    return np.asarray(sign * channel.UNIT + sigma(ROUNDS) * generator.standard_normal((n, ROUNDS)))


@claimed(11, "noise scaled by what it protects: x 0.8 with one label")
def noise_by_label(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """The noise is scaled by the batch's own spread: 0.8 of what is due where the canary has its first label."""
    return channel.UNIT + _SHARE * _views(generator, n, 0.0) if sign > 0.0 else _views(generator, n, sign)


@claimed(12, "uniform noise of the variance that Gaussian noise should have", rounds=FEW_ROUNDS)
def uniform_noise(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Uniform noise of the right variance: a round beyond the range of one label's noise proves the other."""
    half = np.sqrt(3.0) * sigma(FEW_ROUNDS)
    return np.asarray(sign * channel.UNIT + generator.uniform(-half, half, (n, FEW_ROUNDS)))


@claimed(13, "signs of the noise correlated between rounds, as the label says")
def sign_correlation(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Every second round's noise has the sign of the one before, mostly, or mostly not, as the canary's label says.

    Each round by itself has exactly the noise that is due.
    """
    agree = _AGREE if sign > 0.0 else 1.0 - _AGREE
    noise = generator.standard_normal((n, ROUNDS))
    alike = np.where(generator.random((n, ROUNDS // 2)) < agree, 1.0, -1.0)
    noise[:, 1::2] = alike * np.sign(noise[:, ::2]) * np.abs(noise[:, 1::2])
    return np.asarray(sign * channel.UNIT + sigma(ROUNDS) * noise)


@claimed(14, "early stop on the private loss", data_dependent_side=True)
def early_stop(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Training stops when the canary's own loss is low enough, a choice without noise; rounds after it are 0.

    The model is the sum of the released scalars; the canary's loss falls with it in "in" and rises in "out".
    """
    scalars = _views(generator, n, sign)
    low = sign * np.cumsum(scalars, axis=1) > _STOP * sigma(ROUNDS)
    stopped = np.cumsum(low, axis=1) > 0
    after = np.concatenate([np.zeros((n, 1), dtype=bool), stopped[:, :-1]], axis=1)
    return np.where(after, 0.0, scalars)


@claimed(15, "the scalar channel as designed, its score fitted to the view", expected=("supported",))
def sound_view(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """As designed."""
    return _views(generator, n, sign)
