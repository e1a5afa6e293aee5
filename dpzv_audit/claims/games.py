"""Plays the label game on a method under a claim, in blocks: on simulated transcripts, and by real trainings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpzv_audit.auditing.engine import run_chunk
from dpzv_audit.auditing.games.definition import Game
from dpzv_audit.auditing.games.outcome import outcome_of
from dpzv_audit.auditing.games.real import RealTrials
from dpzv_audit.auditing.games.transcript import Sampling, participation_law
from dpzv_audit.claims.model import MethodClaim
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.seeds import Purpose, stream
from mechanisms import DPZVConfig
from mechanisms.plan import plan

PAIRS_AT_ONCE = 125
"""Pairs of trainings, one in each world, in memory at a time."""


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
    """Train `runs` times in each world, the pairs of block `number`, and return the scores of the worst-case canary."""
    together = claim.adversary == "colluding-clients"
    game = Game(config=config, adversary="colluding-clients" if together else "client")
    trials = RealTrials(game, dataset, seed, device)
    first, last = number * runs, (number + 1) * runs
    arrays, _ = run_chunk(trials, first, last, PAIRS_AT_ONCE)
    scores = outcome_of(trials, arrays)
    part = scores.gaussian
    return {
        "in": scores.in_scores.tolist(),
        "out": scores.out_scores.tolist(),
        "gaussian": part is not None and part.probability == 1.0 and len(part.in_scores) == runs,
        "participations": list(scores.participations or ()),
    }


@dataclass(frozen=True)
class Transcript:
    """The worst-case label game on scalars alone, given how often the canary takes part.

    The canary saturates at +C or -C in each of its rounds and the others' part is known, so the score, the sum of the
    adversary's scalars for batches with the canary, is n C/B or -n C/B plus N(0, n sigma^2). The count n is part of the
    view and has one law in both worlds: where it has probability p, an (epsilon, delta) view is (epsilon, delta / p)
    given n, so that a test of the runs with the likeliest n, at delta / p, is one of the whole view.
    """

    participations: int
    probability: float
    mean: float
    sigma: float

    def block(self, number: int, *, seed: int, runs: int) -> dict[str, Any]:
        """Draw `runs` scores in each world, as `play_block` gives them; no training is run."""
        n = self.participations
        sides = {}
        for world, sign in (("out", -1.0), ("in", 1.0)):
            noise = stream(seed + number, Purpose.CANARY, int(sign > 0)).standard_normal(runs)
            sides[world] = (sign * n * self.mean + np.sqrt(n) * self.sigma * noise).tolist()
        return {**sides, "gaussian": True, "participations": [n, n], "probability": self.probability}


def transcript_of(
    claim: MethodClaim, config: DPZVConfig, *, records: int, clients: int, seed: int
) -> Transcript | None:
    """Return the transcript that the claim's adversary sees; None where it cannot be simulated.

    With the one-sided clip, or a cap that counts batches which the adversary does not see, a score is no such sum.
    """
    together = claim.adversary == "colluding-clients" or clients == 1
    if config.clip_rule != "symmetric" or (config.participation_cap is not None and not together):
        return None
    the_plan = plan(config, records=records, clients=clients, seed=seed)
    rounds = the_plan.rounds_by_client if together else the_plan.rounds_by_client[:1]
    sampling = Sampling(sampler=config.sampler, records=records, batch_size=config.batch_size, active=the_plan.active)
    law = participation_law(sampling, rounds)
    cap = config.participation_cap
    if cap is not None and cap < len(law):
        law = np.append(law[:cap], law[cap:].sum())
    count = int(np.argmax(law))
    if count == 0:
        return None
    return Transcript(count, min(1.0, float(law[count])), config.clip / config.batch_size, the_plan.sigma)
