"""Claims about mechanisms that are wrong on purpose, `mechanism = "planted:NAME"`: what a gate must not let pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from dpzv_audit.auditing.games.drawn import DrawnTrials
from dpzv_audit.auditing.games.fitted import FittedScore, fit_score
from dpzv_audit.auditing.games.outcome import Trials
from dpzv_audit.auditing.games.real import RealTrials
from dpzv_audit.auditing.planted import planted_named
from dpzv_audit.auditing.planted.cases import Planted
from dpzv_audit.claims.model import PLANTED_PREFIX, MechanismClaim
from dpzv_audit.errors import InputError
from dpzv_audit.evidence.blocks import FIT_PAIRS, Block, block_from
from dpzv_audit.evidence.games import TRAINED_BLOCK, scored_block
from dpzv_audit.evidence.model import Theory
from dpzv_audit.evidence.subject import CUT_SHARE, Source, Stage, two_stages

_BLOCK = 1024
_MORE = 2
"""So many times the runs that suffice for a verdict at 95%: a gate errs far less often."""


def check_planted(claim: MechanismClaim) -> Planted:
    """Return the planted mechanism that a claim names.

    Raises `InputError` for an unknown name, and for keys that do not go with the mechanism.
    """
    planted = planted_named(claim.mechanism.removeprefix(PLANTED_PREFIX))
    for key in ("adversary", "neighbours"):
        given, own = getattr(claim, key), getattr(planted, key)
        if given != own:
            raise InputError(f"must be {own!r} with {claim.mechanism}", key, given)
    if claim.exactly_gaussian:
        raise InputError(f"does not go with {claim.mechanism}, which knows what its scores are", "exactly_gaussian")
    if claim.depends:
        raise InputError(f"does not go with {claim.mechanism}, which reads no file", "depends")
    return planted


def planted_source(claim: MechanismClaim, seed: int) -> Source:
    """Return the source of a claim about a planted mechanism; nothing is imported but the tool's own code.

    Raises `InputError` as `check_planted`.
    """
    planted = check_planted(claim)
    case = planted.build(seed)
    stages: tuple[Stage, ...] = ()
    pairs: dict[str, int] = {}
    games: dict[str, Trials] = {name or planted.name: trials for name, trials in case.games.items()}
    share = (1.0 - CUT_SHARE) / len(games)
    for pool, trials in games.items():
        pairs[pool] = TRAINED_BLOCK if isinstance(trials, RealTrials) else _BLOCK
        blocks = max(2, -(-_MORE * planted.runs // pairs[pool]))
        stages += two_stages(pool, first=1, rest=blocks - 1, share=share)

    @cache
    def fitted(pool: str) -> FittedScore:
        last = pairs[pool] * sum(stage.blocks for stage in stages if stage.pool == pool)
        arrays = games[pool](last, last + FIT_PAIRS)
        return fit_score(arrays["in_features"], arrays["out_features"])

    def draw(pool: str, number: int) -> Block:
        first, last = number * pairs[pool], (number + 1) * pairs[pool]
        # The score is fitted to pairs beyond the last that is tested.
        return _block(games[pool], first, last, partial(fitted, pool))

    return Source(
        theory=lambda: Theory(
            applies=True, bounds=tuple(planted.upper_bounds(replace(case, epsilon=claim.epsilon, delta=claim.delta)))
        ),
        stages=tuple(sorted(stages, key=lambda stage: not stage.stops)),
        draw=draw,
        pairs=pairs,
        trials={pool: 2 * number for pool, number in pairs.items()},
        gaussian=frozenset(pool for pool, trials in games.items() if _gaussian(trials)),
        stored=frozenset(pool for pool, trials in games.items() if isinstance(trials, RealTrials)),
        facts={"planted": planted.name, "what": planted.summary, "score": planted.score},
    )


def _gaussian(trials: Trials) -> bool:
    return trials.exactly_gaussian if isinstance(trials, DrawnTrials) else trials.game.knows_ids


def _block(trials: Trials, first: int, last: int, fitted: Callable[[], FittedScore]) -> Block:
    arrays = trials(first, last) if isinstance(trials, DrawnTrials) else {}
    return block_from(arrays, fitted) if "in_features" in arrays else scored_block(trials, first, last)
