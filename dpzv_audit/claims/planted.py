"""Claims on planted mechanisms, which are wrong on purpose."""

import math
from dataclasses import replace
from functools import cache

from ..base.errors import InputError
from ..evidence.games import TRAINED_BLOCK, scored_block
from ..evidence.gathering import FIT_PAIRS, Pool, Stage, Subject, two_stages
from ..evidence.verdict import Theory
from ..games.fitting import FittedScore, fit_score
from ..games.planted import Planted, Trials, planted_named
from ..games.real import RealTrials
from ..games.scores import GameScores, scored_by
from ..games.sums import SumTrials
from ..games.transcript import DrawnTrials
from ..statistics.panel import PLANNED_SHARE, Panel
from .file import (
    MechanismClaim,
)


def check_planted(claim: MechanismClaim) -> Planted:
    """Return the planted mechanism that a claim names.

    Raises `InputError` for an unknown name, and for keys that do not go with the mechanism.
    """
    planted = planted_named(claim.planted)
    for key in ("adversary", "neighbours"):
        value = getattr(claim, key)
        own = getattr(planted, key)
        if value != own:
            raise InputError(f"use {own!r} with {claim.mechanism}", key, value)
    if claim.exactly_gaussian:
        raise InputError(f"does not go with {claim.mechanism}, which knows what its scores are", "exactly_gaussian")
    if claim.depends:
        raise InputError(f"does not go with {claim.mechanism}, which reads no file", "depends")
    return planted


def planted_subject(claim: MechanismClaim, seed: int) -> Subject:
    """Return the planted mechanism that a claim names; nothing is imported but the tool's own code.

    Raises `InputError` as `check_planted`.
    """
    planted = check_planted(claim)
    case = planted.build(seed)
    stages: tuple[Stage, ...] = ()
    pools: dict[str, Pool] = {}
    for name, trials in case.games.items():
        pool = name or planted.name
        pairs = TRAINED_BLOCK if isinstance(trials, RealTrials) else 1024
        # Twice the runs that suffice for a verdict at 95%: a gate errs far less often.
        blocks = max(2, math.ceil(2 * planted.runs / pairs))
        stages += two_stages(pool, first=1, rest=blocks - 1, share=Panel(case.games, PLANNED_SHARE).weight)
        pools[pool] = _planted_pool(trials, pairs, blocks)

    def theory() -> Theory:
        claimed = replace(case, epsilon=claim.epsilon, delta=claim.delta)
        return Theory(applies=True, bounds=tuple(planted.upper_bounds(claimed)))

    return Subject(
        theory=theory,
        stages=tuple(sorted(stages, key=lambda stage: not stage.stops)),
        pools=pools,
        facts={"planted": planted.name, "what": planted.summary, "score": planted.score},
    )


def _planted_pool(trials: Trials, pairs: int, blocks: int) -> Pool:
    """Return `blocks` blocks of `pairs` pairs; a score is fitted to pairs beyond the last that is tested."""

    @cache
    def fitted() -> FittedScore:
        arrays = trials(blocks * pairs, blocks * pairs + FIT_PAIRS)
        return fit_score(arrays["in_features"], arrays["out_features"])

    def draw(number: int) -> GameScores:
        first = number * pairs
        last = (number + 1) * pairs
        arrays = trials(first, last) if isinstance(trials, DrawnTrials) else {}
        if "in_features" in arrays:
            return scored_by(fitted(), arrays)
        return scored_block(trials, first, last)

    return Pool(
        draw=draw,
        pairs=pairs,
        trials=2 * pairs,
        gaussian=_is_gaussian(trials),
        stored=isinstance(trials, RealTrials | SumTrials),
    )


def _is_gaussian(trials: Trials) -> bool:
    """Return whether the scores may be Gaussian by construction; those of sums are where every run tells as much."""
    if isinstance(trials, DrawnTrials):
        return trials.exactly_gaussian
    return isinstance(trials, SumTrials) or trials.game.knows_ids
