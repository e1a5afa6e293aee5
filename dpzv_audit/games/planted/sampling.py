"""Planted bugs of sampling and of what is counted: a wrong divisor, own rounds only, shuffling accounted as Poisson."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.accounting import Release, calibrate, sigma_from_paper
from dpzv_audit.accounting.release import SamplerName
from dpzv_audit.findings import NeighbourRelation
from dpzv_audit.games.game import Game, GameAdversary
from dpzv_audit.games.planted.cases import Case, case
from dpzv_audit.games.planted.channel import RUNS, SUM
from dpzv_audit.games.simulated import DrawnTrials, SimulatedTrials
from dpzv_audit.games.transcript import Sampling, mixture_score
from mechanisms.core.streams import cyclic
from mechanisms.methods.dpzv import DPZVConfig

Floats = NDArray[np.float64]

_RECORDS, _BATCH, _ROUNDS = 128, 64, 16
_EPSILON, _DELTA = 2.0, 0.01
_SCALARS_ALONE = "likelihood ratio of the scalars alone"


@cache
def _poisson_release() -> Release:
    """Poisson sampling at a public rate, padded messages, calibrated for (2, 0.01): an eavesdropper, `add-remove`."""
    return _calibrated(
        Release(
            batch_size=_BATCH,
            dataset_size=_RECORDS,
            rounds=_ROUNDS,
            clip=1.0,
            sigma=1.0,
            sampler="poisson",
            sample_rate=_BATCH / _RECORDS,
            server_update="joint-zo",
            padded=True,
        ),
        _EPSILON,
        _DELTA,
        "add-remove",
    )


def _calibrated(release: Release, epsilon: float, delta: float, neighbours: NeighbourRelation) -> Release:
    found = calibrate(
        release, unknown="sigma", epsilon=epsilon, delta=delta, adversary="eavesdropper", neighbours=neighbours
    ).release
    assert found is not None
    return found


def _actual_divisor(
    generator: np.random.Generator, n: int, sign: float, *, others: float, canary: float, shift: float
) -> Floats:
    """Means over the batch as it is, others at `others` C and the canary, in "in", at `canary` C; the ids are secret.

    `shift` is what the canary adds to a batch of the expected size, in units of C/B; without it a mean is `others`.
    """
    sigma = _poisson_release().sigma
    sampling = Sampling(
        sampler="poisson",
        records=_RECORDS,
        batch_size=_BATCH,
        active=(1,) * _ROUNDS,
        sample_rate=_poisson_release().sample_rate,
    )
    number = generator.binomial(_RECORDS - 1, sampling.rate, size=(_ROUNDS, n))
    joined = (generator.random((_ROUNDS, n)) < sampling.rate) & (sign > 0.0)
    size = np.maximum(number + joined, 1)
    scalars = (others * number + canary * joined) / size + sigma * generator.standard_normal((_ROUNDS, n))
    return mixture_score(scalars - others, sampling, sigma=sigma, mean_in=shift / _BATCH, mean_out=0.0)


divisor_others_saturated = partial(_actual_divisor, others=1.0, canary=-1.0, shift=-2.0)
"""Others at +C, canary at -C: present, it moves the mean by 2C over the size, nearly twice the claimed C/B."""
divisor_others_zero = partial(_actual_divisor, others=0.0, canary=1.0, shift=1.0)
"""Others at 0, canary at +C: it moves the mean by C over the size, which shows nothing."""


@case(
    "Poisson sampling whose divisor is the actual batch size",
    neighbours="add-remove",
    score=f"{_SCALARS_ALONE}, others at +C and at 0",
    runs=20_000,
)
def actual_divisor(seed: int) -> Case:
    """The divisor is the size of the batch instead of its expectation; only the others at +C show it."""
    return Case(
        epsilon=_EPSILON,
        delta=_DELTA,
        release=_poisson_release(),
        games={
            "others at +C": DrawnTrials(divisor_others_saturated, 20, seed),
            "others at 0": DrawnTrials(divisor_others_zero, 21, seed),
        },
    )


_OWN = {"batch": 32, "canary_rounds": 5, "readings": 200, "gain": 2.0}


def _read_off(generator: np.random.Generator, n: int, sign: float) -> Floats:
    """Client 1 reads client 2's released-only model off its own, canary-free, scalars.

    Client 2 has the canary in five rounds, each of which moves its one parameter by -gain * Delta * u with u = +-1 from
    a public seed. After each, client 1 has 200 rounds: the embeddings in the table, and so every record's difference,
    depend on that parameter. What a reading changes gives Delta back, and their sum is the score. z is 1, so all five
    releases have mu = sqrt(5) = 2.236; client 1's own rounds have mu = 0.
    """
    batch, rounds, readings, gain = (_OWN[k] for k in ("batch", "canary_rounds", "readings", "gain"))
    unit, sigma = 1.0 / batch, 2.0 / batch
    model, seen, total = np.zeros(n), np.zeros(n), np.zeros(n)
    for _ in range(int(rounds)):
        direction = generator.choice([-1.0, 1.0], size=n)
        model -= gain * (sign * unit + sigma * generator.standard_normal(n)) * direction
        # The mean of `readings` scalars clip_C(model) + noise, with C = 1.
        read = np.clip(model, -1.0, 1.0) + sigma / np.sqrt(readings) * generator.standard_normal(n)
        total -= (read - seen) * direction / gain
        seen = read
    return total


@case(
    "a bound from one client's own rounds (two clients, canary only in the other's batches)",
    adversary="client",
    score="the other client's scalars, read off its model in canary-free rounds",
    runs=RUNS,
)
def own_rounds(seed: int) -> Case:
    """A bound from client 1's own rounds, none of which holds the canary, claims next to nothing is released."""
    release = Release(
        batch_size=int(_OWN["batch"]),
        dataset_size=160,
        rounds=int(_OWN["canary_rounds"] * _OWN["readings"]),
        clip=1.0,
        sigma=2.0 / _OWN["batch"],
        sampler="shuffled",
        server_update="joint-zo",
        clients=2,
        own_rounds_only=True,
    )
    return Case(epsilon=0.5, delta=1e-5, release=release, games={"": DrawnTrials(_read_off, 22, seed)})


@case("shuffled batches accounted as Poisson", expected=("overclaimed",), score=_SCALARS_ALONE, runs=5_000)
def shuffled_as_poisson(seed: int) -> Case:
    """Shuffled batches, noise from the PRV bound of Poisson sampling, padded, at (1, 1e-3) with secret ids."""
    rounds, records, batch = 100, 1280, 128
    believed = _calibrated(
        Release(
            batch_size=batch,
            dataset_size=records,
            rounds=rounds,
            clip=1.0,
            sigma=1.0,
            sampler="poisson",
            server_update="joint-zo",
            padded=True,
        ),
        1.0,
        1e-3,
        "replace-label",
    )
    release = replace(believed, sampler="shuffled", padded=False)
    return _simulated(release, "eavesdropper", (1,) * rounds, seed)


_PAPER = {"records": 60_000, "batch": 128, "rounds": 46_900}


@case("paper calibration against client (theorem 5.1), full size", adversary="client", score=SUM, runs=RUNS)
def theorem_5_1(seed: int) -> Case:
    """The paper's formula at the size of its figure, for (1, 1e-3), against one client of seven."""
    return _paper_case(seed, adversary="client", sampler="shuffled", clients=7)


@case(
    "paper calibration, secret ids, epsilon 1, replace",
    expected=("overclaimed", "supported"),
    score=_SCALARS_ALONE,
    runs=1_000,
)
def paper_secret_ids(seed: int) -> Case:
    """The paper's formula at the same size, against an eavesdropper of padded Poisson batches: nearly right."""
    return _paper_case(seed, adversary="eavesdropper", sampler="poisson", clients=1)


def _paper_case(seed: int, *, adversary: GameAdversary, sampler: SamplerName, clients: int) -> Case:
    records, batch, rounds = _PAPER["records"], _PAPER["batch"], _PAPER["rounds"]
    release = Release(
        batch_size=batch,
        dataset_size=records,
        rounds=rounds,
        clip=10.0,
        sigma=sigma_from_paper(1.0, 1e-3, clip=10.0, dataset_size=records, rounds=rounds),
        sampler=sampler,
        server_update="joint-zo",
        clients=clients,
        padded=sampler == "poisson",
    )
    return _simulated(release, adversary, tuple(islice(cyclic(clients), rounds)), seed)


def _simulated(release: Release, adversary: GameAdversary, active: tuple[int, ...], seed: int) -> Case:
    """Return the game on simulated transcripts of `release`, for a claim of (1, 1e-3)."""
    config = DPZVConfig(
        batch_size=release.batch_size,
        clip=release.clip,
        epsilon=1.0,
        delta=1e-3,
        server_update="joint-zo",
        sampler=release.sampler,
    )
    assert release.dataset_size is not None
    sampling = Sampling.of(config, release.dataset_size, active)
    trials = SimulatedTrials(Game(config=config, adversary=adversary), sampling, release.sigma, seed)
    return Case(epsilon=1.0, delta=1e-3, release=release, games={"": trials})
