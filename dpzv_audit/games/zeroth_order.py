"""Mistakes of trainers of zeroth order, played on one trainer that releases a noised scalar per step.

A step draws a seed and from it a direction u of `PARAMETERS` numbers. What is released is the mean of the records'
clipped loss differences along u plus Gaussian noise, and the model moves along u by it (DPZero, arXiv 2310.09639;
DP-ZO, arXiv 2401.04343). Directions are public: who repeats a training by its seeds and scalars knows the seeds.

All but one claim `STEPS` or `SEVERAL`: four steps on all 32 records, C = 1, a record replaced, noise for (1, 1e-5). The
canary's difference is far above C in "in" and far below -C in "out", and the others contribute nothing.
"""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..accounting import Release, calibrate, sigma_sound
from ..base.findings import AdversaryName, NeighbourRelation
from .arrays import Floats
from .transcript import World

EPSILON = 1.0
DELTA = 1e-5
BATCH = 32
UNIT = 1.0 / BATCH
COUNT = 4
PARAMETERS = 8
DIRECTIONS = 2
SEEDS = 10**9
"""Seeds that a step's is drawn from, in a public trainer."""
SEARCHED = 2**16
"""The same where all are tried: a search of 10^9 is as many times longer, and is made once for all steps."""
RECORDS = 256
PASSES = 4


@cache
def sigma_of(releases: int, neighbours: NeighbourRelation) -> float:
    """Return the noise that (1, 1e-5) takes where a record has a part in so many releases whose batches are known."""
    return sigma_sound(EPSILON, DELTA, clip=1.0, batch_size=BATCH, participations=releases, neighbours=neighbours)


def calibrated(
    release: Release, epsilon: float, delta: float, adversary: AdversaryName, neighbours: NeighbourRelation
) -> Release:
    """Return the release with the noise that (`epsilon`, `delta`) takes."""
    noised = calibrate(
        release, unknown="sigma", epsilon=epsilon, delta=delta, adversary=adversary, neighbours=neighbours
    ).release
    assert noised is not None
    return noised


SIGMA = sigma_of(COUNT, "replace-record")
STEPS = Release(
    batch_size=BATCH,
    dataset_size=BATCH,
    rounds=COUNT,
    clip=1.0,
    sigma=SIGMA,
    sampler="shuffled",
    server_update="none",
    participations=COUNT,
)
SEVERAL = replace(STEPS, directions=DIRECTIONS, sigma=sigma_of(COUNT * DIRECTIONS, "replace-record"))
"""The same with two releases per step, along two directions."""


@cache
def amplified() -> Release:
    """Return Poisson batches of 32 of 256 records, 32 rounds, with the noise that (1, 1e-5) takes of secret batches."""
    rounds = PASSES * RECORDS // BATCH
    secret = replace(STEPS, dataset_size=RECORDS, rounds=rounds, sampler="poisson", participations=None)
    return calibrated(secret, EPSILON, DELTA, "release", "replace-record")


def drawn_from(seed: int) -> Floats:
    """Return what a generator gives that has just been given `seed`: a direction, and the number after it."""
    return np.random.default_rng(seed).standard_normal(PARAMETERS + 1)


def after_the_direction(seeds: NDArray[np.int64]) -> Floats:
    """Return for each of `seeds` the number that its generator gives after the direction."""
    return np.array([drawn_from(int(seed))[-1] for seed in seeds.flat]).reshape(seeds.shape)


def as_designed(world: World) -> Floats:
    """Draw the noise apart from the directions, whose seeds say nothing of it."""
    noise = world.generator.standard_normal((COUNT, world.runs))
    return np.asarray((world.sign * UNIT + SIGMA * noise).sum(0))


def noise_by_seed(world: World) -> Floats:
    """Draw the noise from the generator that has the direction's seed: who knows the seed draws it too, and subtracts.

    The seeds are those of a public trainer, of `SEEDS`.
    """
    seeds = world.generator.integers(SEEDS, size=(COUNT, world.runs))
    scalars = world.sign * UNIT + SIGMA * after_the_direction(seeds)
    return np.asarray((scalars - SIGMA * after_the_direction(seeds)).sum(0))


@cache
def _searched() -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return what every seed gives (n, PARAMETERS + 1), the directions' slopes in order, and whose seeds they are."""
    table = np.array([drawn_from(seed) for seed in range(SEARCHED)])
    slopes = table[:, 1] / table[:, 0]
    order = np.argsort(slopes)
    return table, slopes[order], order


def seed_of(updates: Floats) -> NDArray[np.int64]:
    """Return the seeds (n,) of the directions that model `updates` (n, PARAMETERS) go along, found among all seeds.

    A direction is told by the ratio of its first two numbers, which does not change with the step's length. One table
    serves all steps of all trainings of a model.
    """
    _, slopes, order = _searched()
    wanted = updates[:, 1] / updates[:, 0]
    place = np.searchsorted(slopes, wanted).clip(1, len(slopes) - 1)
    before = wanted - slopes[place - 1] < slopes[place] - wanted
    return order[np.where(before, place - 1, place)]


def seed_searched(world: World) -> Floats:
    """Draw the noise from the generator that has the direction's seed, which nobody is told.

    Who sees the model before and after a step tries all seeds, finds the one whose direction the step went along, draws
    the noise from it and reads the scalar off the step's length.
    """
    table = _searched()[0]
    seeds = world.generator.integers(SEARCHED, size=COUNT * world.runs)
    scalars = world.sign * UNIT + SIGMA * table[seeds, -1]
    updates = -scalars[:, None] * table[seeds, :-1]
    drawn = table[seed_of(updates)]
    directions = drawn[:, :-1]
    read = -(updates * directions).sum(1) / np.square(directions).sum(1)
    return np.asarray((read - SIGMA * drawn[:, -1]).reshape(COUNT, world.runs).sum(0))


def noise_shared(world: World) -> Floats:
    """Add one noise to the scalars of both directions of a step: their difference has none.

    The canary's loss rises along the first and falls along the second.
    """
    noise = SEVERAL.sigma * world.generator.standard_normal((COUNT, world.runs))
    first, second = world.sign * UNIT + noise, -world.sign * UNIT + noise
    return np.asarray((first - second).sum(0))


def batches_in_order(world: World) -> Floats:
    """Pass over the data in shuffled batches, accounted as Poisson: who knows the order's seed sums a record's steps.

    The canary is in one step of each pass.
    """
    noise = world.generator.standard_normal((PASSES, world.runs))
    return np.asarray((world.sign * UNIT + amplified().sigma * noise).sum(0))
