"""Claims on a mechanism: one of the user's own, which is run, or one of the tool's that is wrong on purpose."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.signals import TRIAL_SECONDS
from ..evidence.gathering import FIT_PAIRS, Pool, Stage, Subject, two_stages
from ..games.arrays import Arrays
from ..games.fitting import WORDS, FittedScore, fit_score, pilot_size
from ..games.mechanism import MechanismTrials, answer_shape, check_mechanism, play
from ..games.scores import GameScores, GaussianGiven, scored_by, scores_of, views_of

RUNS = "runs"
RUNS_A_BLOCK = 125
"""Pairs of runs, one in each world, that are drawn, kept and lost together."""
# After the numbers of the worlds: runs that a score is fitted to draw from streams of their own.
_FIT_STREAM = 2


def mechanism_subject(
    mechanism: Any,
    label: str,
    seed: int,
    *,
    delta: float = 0.0,
    exactly_gaussian: bool = False,
    trial_seconds: float = TRIAL_SECONDS,
    max_trials: int | None = None,
) -> Subject:
    """Return a mechanism (see `dpzv_audit.games.mechanism`), or `MechanismTrials` of a named one, as a subject.

    A score is chosen on `FIT_PAIRS` further runs in each world, or a quarter of what `max_trials` allows, for a claim
    at `delta`, as `audit mechanism` and `hunt` choose it. Of a view that is `exactly_gaussian` only a linear score is
    Gaussian too: no other is fitted.
    """
    if isinstance(mechanism, MechanismTrials):
        check_mechanism(mechanism.mechanism, label)  # here, so that one that cannot be imported is told of first
        played = mechanism.played
    else:
        played = partial(play, check_mechanism(mechanism, label), label, seconds=trial_seconds)

    def run(number: int, first: int, last: int, *further: int) -> Arrays:
        def streams(world: int, run: int | None) -> np.random.Generator:
            key = () if run is None else (run - first,)
            return np.random.default_rng(np.random.SeedSequence([seed, number, world, *further], spawn_key=key))

        arrays, failure = played(first, last, streams=streams)
        if failure is not None:
            raise failure
        return arrays

    pairs = FIT_PAIRS if max_trials is None else min(FIT_PAIRS, pilot_size(max_trials // 2))

    @cache
    def chosen(shape: tuple[int, ...]) -> FittedScore:
        pilots = run(0, 0, pairs, _FIT_STREAM)
        answered = answer_shape(pilots)
        if answered != shape:
            raise InputError(
                f"mechanism {label}: runs answered shape {answered} after shape {shape}; always answer one shape"
            )
        kinds = ("linear",) if exactly_gaussian else tuple(WORDS)
        return fit_score(*views_of(pilots), kinds=kinds, delta=delta, own=not shape)

    def draw(number: int) -> GameScores:
        arrays = run(number, number * RUNS_A_BLOCK, (number + 1) * RUNS_A_BLOCK)
        shape = answer_shape(arrays)
        if exactly_gaussian and not shape:
            return replace(scores_of(arrays), given=GaussianGiven(vouched=True))
        scores = scored_by(chosen(shape), arrays)
        return replace(scores, given=GaussianGiven(vouched=True) if exactly_gaussian else None)

    stages, pools = run_plan(draw, exactly_gaussian=exactly_gaussian)
    return Subject(stages=stages, pools=pools, facts={"mechanism": label})


def run_plan(draw: Callable[[int], GameScores], *, exactly_gaussian: bool) -> tuple[tuple[Stage, ...], dict[str, Pool]]:
    """Return the stages in which runs of a mechanism are tested, and their pool, whose blocks `draw` makes."""
    pool = Pool(draw=draw, pairs=RUNS_A_BLOCK, trials=2 * RUNS_A_BLOCK, gaussian=exactly_gaussian, stored=True)
    return two_stages(RUNS, first=4, rest=14), {RUNS: pool}
