"""Runs of a mechanism of the user's own, which a claims file names or a test hands over."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from dpzv_audit.auditing.games.fitted import WORDS, FittedScore, fit_score
from dpzv_audit.auditing.mechanism import MechanismTrials, check_mechanism, play
from dpzv_audit.auditing.storage import Arrays
from dpzv_audit.claims.model import MechanismClaim
from dpzv_audit.claims.sources import Place
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError
from dpzv_audit.evidence.blocks import FIT_PAIRS, Block, block_from
from dpzv_audit.evidence.subject import Source, two_stages

RUNS = "runs"
RUNS_A_BLOCK = 125
"""Pairs of runs, one in each world, that are drawn, kept and lost together."""
_FIRST, _REST = 4, 14
_FIT_STREAM = 2
"""After the numbers of the worlds: runs that a score is fitted to draw from streams of their own."""


def named_mechanism_source(claim: MechanismClaim, place: Place, seed: int) -> Source:
    """Return the source of a claim that names a mechanism; its code is trusted."""
    trials = MechanismTrials(claim.mechanism, seed, place.trial_seconds, place.folder)
    return mechanism_source(trials, claim.mechanism, seed, exactly_gaussian=claim.exactly_gaussian)


def mechanism_source(
    mechanism: Any, label: str, seed: int, *, exactly_gaussian: bool = False, trial_seconds: float = TRIAL_SECONDS
) -> Source:
    """Return the source of a mechanism (see `dpzv_audit.auditing.mechanism`), or of `MechanismTrials` of a named one.

    Where it answers with views that it does not score, a score is fitted to `FIT_PAIRS` further runs in each world. Of
    a view that is `exactly_gaussian` only a linear score is Gaussian too: no other is fitted.
    """
    if isinstance(mechanism, MechanismTrials):
        check_mechanism(mechanism.mechanism, label)  # here, so that one that cannot be imported is told of first
        played = mechanism.played
    else:
        played = partial(play, check_mechanism(mechanism, label), label, seconds=trial_seconds)

    def run(number: int, first: int, last: int, *further: int) -> Arrays:
        def streams(world: int, run: int | None) -> np.random.Generator:
            place = () if run is None else (run - first,)
            return np.random.default_rng(np.random.SeedSequence([seed, number, world, *further], spawn_key=place))

        arrays, failure = played(first, last, streams=streams)
        if failure is not None:
            raise failure
        return arrays

    @cache
    def fitted(width: int) -> FittedScore:
        views = run(0, 0, FIT_PAIRS, _FIT_STREAM)
        found = views["in_features"].shape[1] if "in_features" in views else 0
        if found != width:
            raise InputError(f"mechanism {label}: runs answered {found} numbers after {width}, must be as many always")
        kinds = ("linear",) if exactly_gaussian else tuple(WORDS)
        return fit_score(views["in_features"], views["out_features"], kinds=kinds)

    def draw(pool: str, number: int) -> Block:
        arrays = run(number, number * RUNS_A_BLOCK, (number + 1) * RUNS_A_BLOCK)
        probability = 1.0 if exactly_gaussian else None
        return block_from(arrays, lambda: fitted(arrays["in_features"].shape[1]), probability=probability, vouched=True)

    return Source(
        stages=two_stages(RUNS, first=_FIRST, rest=_REST),
        draw=draw,
        pairs={RUNS: RUNS_A_BLOCK},
        trials={RUNS: 2 * RUNS_A_BLOCK},
        gaussian=frozenset({RUNS} if exactly_gaussian else ()),
        stored=frozenset({RUNS}),
        facts={"mechanism": label},
    )
