"""Planted bugs of one scalar channel: noise, sensitivity and clip of Delta = (1/B) sum_i clip_C(delta_i) + N(0, s^2).

The design they all claim: B = 32 of D = 256 records, C = 1, one client, four passes (32 rounds), labels replaced, noise
for (1, 1e-5) against known batches. The canary's difference is far above C in "in" and far below -C in "out", and the
others contribute nothing, so a scalar with the canary is +-C/B and noise. A mechanism runs `n` times in one world:
`sign` is 1 in "in" and -1 in "out".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.accounting import Release, sigma_sound
from dpzv_audit.findings import AdversaryName, Verdict
from dpzv_audit.games.planted.cases import REFUTED, Case, register
from dpzv_audit.games.simulated import Draw, DrawnTrials

Floats = NDArray[np.float64]
RECORDS, BATCH, CLIP, PASSES = 256, 32, 1.0, 4
STEPS = RECORDS // BATCH
ROUNDS = PASSES * STEPS
EPSILON, DELTA = 1.0, 1e-5
UNIT = CLIP / BATCH
SIGMA = sigma_sound(EPSILON, DELTA, clip=CLIP, batch_size=BATCH, participations=PASSES, neighbours="replace-label")
SUM = "sum of the scalars of batches with the canary"
RUNS = 10_000
_LARGE = 1000.0
"""A loss difference far beyond the clip, in units of C."""


def release(**changes: object) -> Release:
    """Return the claimed release, with `changes`."""
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


def claimed(
    number: int,
    summary: str,
    changes: Mapping[str, object] = MappingProxyType({}),
    *,
    score: str = SUM,
    runs: int = RUNS,
    expected: tuple[Verdict, ...] = REFUTED,
    adversary: AdversaryName = "client",
    exactly_gaussian: bool = False,
) -> Callable[[Draw], Draw]:
    """Enter the decorated function as a mechanism that claims `release(**changes)`, with streams of that `number`.

    `exactly_gaussian`: a fixed number of rounds of Gaussian noise.
    """

    def enter(draw: Draw) -> Draw:
        def build(seed: int) -> Case:
            trials = DrawnTrials(draw, number, seed, exactly_gaussian)
            return Case(epsilon=EPSILON, delta=DELTA, release=release(**changes), games={"": trials})

        name = draw.__name__  # type: ignore[attr-defined]
        register(name, summary, build, score=score, runs=runs, adversary=adversary, expected=expected)
        return draw

    return enter


def held(generator: np.random.Generator, n: int) -> NDArray[np.bool_]:
    """Which rounds hold the canary, (T, n): one in each pass, at random."""
    place = generator.integers(STEPS, size=(PASSES, n)) + STEPS * np.arange(PASSES)[:, None]
    mask = np.zeros((ROUNDS, n), dtype=bool)
    np.put_along_axis(mask, place, True, axis=0)
    return mask


def _scalars(
    generator: np.random.Generator, n: int, shift: float, sigma: float | Floats = SIGMA
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return scalars (T, n), N(shift, sigma^2) in the rounds with the canary, and which these are."""
    mask = held(generator, n)
    return shift * mask + sigma * generator.standard_normal(mask.shape), mask


def _sums(generator: np.random.Generator, n: int, shift: float, sigma: float = SIGMA) -> Floats:
    """Sums of the canary's rounds, (n,)."""
    scalars, mask = _scalars(generator, n, shift, sigma)
    return np.asarray((scalars * mask).sum(0))


@claimed(0, "noise scaled for B times the sensitivity too little", exactly_gaussian=True)
def noise_over_b(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """The noise is divided by B with the sum."""
    return _sums(generator, n, sign * UNIT, SIGMA / BATCH)


@claimed(1, "sensitivity C/B instead of 2C/B for replaced labels", exactly_gaussian=True)
def sensitivity_halved(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Noise for a sensitivity of C/B, where a replaced label moves the scalar by 2C/B."""
    return _sums(generator, n, sign * UNIT, SIGMA / 2.0)


@claimed(2, "noise seed reused every round", score="mean of the canary's rounds less the mean of the others")
def noise_reused(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """One noise for all rounds: the mean of the canary's rounds less that of the others has none."""
    mask = held(generator, n)
    scalars = sign * UNIT * mask + SIGMA * generator.standard_normal(n)
    return np.asarray((scalars * mask).sum(0) / mask.sum(0) - (scalars * ~mask).sum(0) / (~mask).sum(0))


@claimed(3, "noise seed shared with the client", score="sum of the canary's rounds less the noise, drawn again")
def noise_shared(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """The noise comes from the seed that gives the client its batches: it draws the same and subtracts."""
    mask = held(generator, n)
    noise = SIGMA * generator.standard_normal(mask.shape)
    scalars = sign * UNIT * mask + noise
    return np.asarray(((scalars - noise) * mask).sum(0))


@claimed(4, "clipping after averaging")
def clip_after_average(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """clip_C of the mean instead of the mean of clipped differences: one record moves it by 2C."""
    return _sums(generator, n, sign * float(np.clip(_LARGE * CLIP / BATCH, -CLIP, CLIP)))


@claimed(5, "one-sided clip with an unbounded loss", {"clip_rule": "paper-one-sided"})
def one_sided_clip(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """min(delta, C) as eq. 8 is printed: a loss difference far below -C goes through whole."""
    return _sums(generator, n, UNIT if sign > 0.0 else -_LARGE * UNIT)


@claimed(6, "noise added once an epoch", score="mean of the canary's rounds without noise")
def noise_once(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Noise in the first round of each epoch alone: the canary's other rounds have none."""
    noisy = np.arange(ROUNDS)[:, None] % STEPS == 0
    scalars, mask = _scalars(generator, n, sign * UNIT, SIGMA * noisy)
    bare = mask & ~noisy
    clear = (scalars * bare).sum(0) / np.maximum(bare.sum(0), 1)
    return np.asarray(np.where(bare.any(0), clear, (scalars * mask).sum(0) / PASSES))


@claimed(7, "one record repeated in a batch by a malicious client, no cap", adversary="malicious-client")
def repeated_record(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """A malicious client fills every batch of the canary with the canary: B times the sensitivity."""
    return _sums(generator, n, sign * BATCH * UNIT)


@claimed(
    8,
    "training losses released beside the scalars, unnoised",
    {"data_dependent_side": True},
    score="sum of the logged losses less what the model explains",
)
def losses_released(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """The mean training loss of each round is logged beside the scalar.

    The others' loss is a function of the model, which the released scalars move: whoever reads the log subtracts it.
    """
    scalars, mask = _scalars(generator, n, sign * UNIT)
    others = np.log1p(np.exp(-_model(scalars)))
    logged = others + (5.0 if sign > 0.0 else 0.1) * mask / BATCH
    return np.asarray((logged - others).sum(0))


@claimed(
    9,
    "best-checkpoint choice released beside the scalars, unnoised",
    {"data_dependent_side": True},
    score="how far the chosen model is above the mean of all",
)
def best_checkpoint(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Which round's model had the least training loss is published: the canary's loss decides it.

    The model w is moved by the released scalars; the canary's loss falls with w in "in" and rises in "out", the others'
    does not depend on it. The score is how far the chosen model is above the mean of all.
    """
    model = _model(_scalars(generator, n, sign * UNIT)[0])
    chosen = np.argmin(np.log1p(np.exp(-sign * model)), axis=0)
    return np.asarray(model[chosen, np.arange(n)] - model.mean(0))


@claimed(10, "the scalar channel as designed", expected=("supported",), exactly_gaussian=True)
def sound(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """As designed."""
    return _sums(generator, n, sign * UNIT)


def _model(scalars: Floats) -> Floats:
    """One parameter moved by the scalars, (T, n)."""
    return np.asarray(np.cumsum(0.1 * scalars, axis=0))
