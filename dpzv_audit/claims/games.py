"""Plays the label game on a method under a claim, in blocks: on simulated transcripts, and by real trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpzv_audit.auditing.game import LabelGame, play
from dpzv_audit.claims.model import MethodClaim
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.seeds import Purpose, stream
from mechanisms import DPZVConfig
from mechanisms.plan import plan

CHUNK = 256


def play_block(
    claim: MethodClaim,
    config: DPZVConfig,
    dataset: VerticalDataset,
    number: int,
    *,
    seed: int,
    runs: int,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train `runs` times in each world and return the scores of block `number`, from streams of its own."""
    game = LabelGame(
        config=config,
        adversary="colluding-clients" if claim.adversary == "colluding-clients" else "client",
    )
    scores = play(game, dataset, runs=runs, seed=seed + number, chunk=CHUNK, device=device)
    return {
        "in": scores.in_scores.tolist(),
        "out": scores.out_scores.tolist(),
        "gaussian": scores.exactly_gaussian,
        "participations": list(scores.participations),
    }


def simulate_block(
    claim: MethodClaim,
    config: DPZVConfig,
    dataset: VerticalDataset,
    number: int,
    *,
    seed: int,
    runs: int,
) -> dict[str, Any]:
    """Draw `runs` scores of the worst-case label game in each world from the law that a real training gives them.

    The canary saturates at +C or -C in each of its rounds and the others' part is known, so the score, the sum of the
    adversary's scalars for batches with the canary, is n C/B or -n C/B plus N(0, n sigma^2), where n counts the
    adversary's rounds with the canary. Only n, from the sampler, and the noise are drawn; no training is.
    """
    the_plan = plan(config, records=len(dataset.train), clients=dataset.clients, seed=seed)
    rounds = the_plan.rounds_by_client if claim.adversary == "colluding-clients" else the_plan.rounds_by_client[:1]
    unit = config.clip / config.batch_size
    sides: dict[str, np.ndarray] = {}
    counts = []
    for world, mean in ((0, -unit), (1, unit)):
        generator = stream(seed + number, Purpose.CANARY, world)
        n = _participations(config, rounds, len(dataset.train), runs, generator)
        if config.participation_cap is not None:
            n = np.minimum(n, config.participation_cap)
        noise = generator.standard_normal(runs)
        sides["in" if world else "out"] = n * mean + np.sqrt(n) * the_plan.sigma * noise
        counts += [int(n.min()), int(n.max())]
    fixed = min(counts) == max(counts)
    return {
        "in": sides["in"].tolist(),
        "out": sides["out"].tolist(),
        "gaussian": fixed and config.clip_rule == "symmetric",
        "participations": [min(counts), max(counts)],
    }


def _participations(
    config: DPZVConfig, rounds: Sequence[int], records: int, runs: int, generator: np.random.Generator
) -> np.ndarray:
    """Return (runs,) counts of the canary's rounds among each client's `rounds`, summed over the clients."""
    total = np.zeros(runs)
    steps = records // config.batch_size
    for r in rounds:
        if config.sampler == "shuffled":
            # Once in every whole pass unless it falls into the short last batch, which is dropped.
            total += generator.binomial(r // steps, steps * config.batch_size / records, size=runs)
            total += generator.random(runs) < (r % steps) * config.batch_size / records
        else:
            total += generator.binomial(r, config.batch_size / records, size=runs)
    return total
