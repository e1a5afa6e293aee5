"""Planted bugs of one scalar channel: noise, sensitivity and clip of Delta = (1/B) sum_i clip_C(delta_i) + N(0, s^2).

The design they all claim: B = 32 of D = 256 records, C = 1, one client, four passes (32 rounds), labels replaced, noise
for (1, 1e-5) against known batches. The canary's difference is far above C in "in" and far below -C in "out", and the
others contribute nothing, so a scalar with the canary is +-C/B and noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.accounting import Release, sigma_sound

Floats = NDArray[np.float64]
RECORDS, BATCH, CLIP, PASSES = 256, 32, 1.0, 4
STEPS = RECORDS // BATCH
ROUNDS = PASSES * STEPS
EPSILON, DELTA = 1.0, 1e-5
UNIT = CLIP / BATCH
SIGMA = sigma_sound(EPSILON, DELTA, clip=CLIP, batch_size=BATCH, participations=PASSES, neighbours="replace-label")
_LARGE = 1000.0
"""A loss difference far beyond the clip, in units of C."""


def release(**changes: object) -> Release:
    """The claimed release, with `changes`."""
    facts: dict[str, object] = {
        "batch_size": BATCH,
        "dataset_size": RECORDS,
        "rounds": ROUNDS,
        "clip": CLIP,
        "sigma": SIGMA,
        "sampler": "shuffled",
        "server_update": "joint-zo",
        "participations": PASSES,
    }
    return Release(**{**facts, **changes})  # type: ignore[arg-type]


def held(generator: np.random.Generator, n: int) -> NDArray[np.bool_]:
    """Which rounds hold the canary, (T, n): one in each pass, at random."""
    place = generator.integers(STEPS, size=(PASSES, n)) + STEPS * np.arange(PASSES)[:, None]
    mask = np.zeros((ROUNDS, n), dtype=bool)
    np.put_along_axis(mask, place, True, axis=0)
    return mask


def _known_ids(generator: np.random.Generator, n: int, sigma: float, shift_in: float, shift_out: float) -> Floats:
    """Sums of the canary's rounds, (2, n) in "in" and "out", where such a round is N(shift, sigma^2)."""
    scores = np.empty((2, n))
    for row, shift in enumerate((shift_in, shift_out)):
        mask = held(generator, n)
        scalars = shift * mask + sigma * generator.standard_normal(mask.shape)
        scores[row] = (scalars * mask).sum(0)
    return scores


def sound(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """As designed."""
    scores = _known_ids(generator, n, SIGMA, UNIT, -UNIT)
    return scores[0], scores[1]


def noise_over_b(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """The noise is divided by B with the sum."""
    scores = _known_ids(generator, n, SIGMA / BATCH, UNIT, -UNIT)
    return scores[0], scores[1]


def sensitivity_halved(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Noise for a sensitivity of C/B, where a replaced label moves the scalar by 2C/B."""
    scores = _known_ids(generator, n, SIGMA / 2.0, UNIT, -UNIT)
    return scores[0], scores[1]


def clip_after_average(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """clip_C of the mean instead of the mean of clipped differences: one record moves it by 2C."""
    mean = float(np.clip(_LARGE * CLIP / BATCH, -CLIP, CLIP))
    scores = _known_ids(generator, n, SIGMA, mean, -mean)
    return scores[0], scores[1]


def one_sided_clip(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """min(delta, C) as eq. 8 is printed: a loss difference far below -C goes through whole."""
    scores = _known_ids(generator, n, SIGMA, UNIT, -_LARGE * UNIT)
    return scores[0], scores[1]


def repeated_record(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """A malicious client fills every batch of the canary with the canary: B times the sensitivity."""
    scores = _known_ids(generator, n, SIGMA, BATCH * UNIT, -BATCH * UNIT)
    return scores[0], scores[1]


def noise_reused(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """One noise for all rounds: the mean of the canary's rounds less that of the others has none."""
    scores = []
    for sign in (1.0, -1.0):
        mask = held(generator, n)
        scalars = sign * UNIT * mask + SIGMA * generator.standard_normal(n)
        scores.append((scalars * mask).sum(0) / mask.sum(0) - (scalars * ~mask).sum(0) / (~mask).sum(0))
    return scores[0], scores[1]


def noise_shared(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """The noise comes from the seed that gives the client its batches: it draws the same and subtracts."""
    scores = []
    for sign in (1.0, -1.0):
        mask = held(generator, n)
        noise = SIGMA * generator.standard_normal(mask.shape)
        scalars = sign * UNIT * mask + noise
        scores.append(((scalars - noise) * mask).sum(0))
    return scores[0], scores[1]


def noise_once(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Noise in the first round of each epoch alone: the canary's other rounds have none."""
    noisy = np.arange(ROUNDS)[:, None] % STEPS == 0
    scores = []
    for sign in (1.0, -1.0):
        mask = held(generator, n)
        scalars = sign * UNIT * mask + SIGMA * noisy * generator.standard_normal(mask.shape)
        bare = mask & ~noisy
        clear = (scalars * bare).sum(0) / np.maximum(bare.sum(0), 1)
        scores.append(np.where(bare.any(0), clear, (scalars * mask).sum(0) / PASSES))
    return scores[0], scores[1]


def losses_released(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """The mean training loss of each round is logged beside the scalar.

    The others' loss is a function of the model, which the released scalars move: whoever reads the log subtracts it.
    """
    scores = []
    for own_loss in (5.0, 0.1):
        mask = held(generator, n)
        sign = 1.0 if own_loss > 1.0 else -1.0
        scalars = sign * UNIT * mask + SIGMA * generator.standard_normal(mask.shape)
        others = np.log1p(np.exp(-_model(scalars)))
        logged = others + own_loss * mask / BATCH
        scores.append((logged - np.log1p(np.exp(-_model(scalars)))).sum(0))
    return scores[0], scores[1]


def best_checkpoint(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Which round's model had the least training loss is published: the canary's loss decides it.

    The model w is moved by the released scalars; the canary's loss falls with w in "in" and rises in "out", the others'
    does not depend on it. The score is how far the chosen model is above the mean of all.
    """
    scores = []
    for sign in (1.0, -1.0):
        mask = held(generator, n)
        model = _model(sign * UNIT * mask + SIGMA * generator.standard_normal(mask.shape))
        chosen = np.argmin(np.log1p(np.exp(-sign * model)), axis=0)
        scores.append(model[chosen, np.arange(n)] - model.mean(0))
    return scores[0], scores[1]


def _model(scalars: Floats) -> Floats:
    """One parameter moved by the scalars, (T, n)."""
    return np.asarray(np.cumsum(0.1 * scalars, axis=0))
