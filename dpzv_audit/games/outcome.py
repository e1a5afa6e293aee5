"""From the arrays of a game's trials to its scores, and to what makes them Gaussian.

Participations are random where the sampler leaves them so, and a score over random counts is a mixture. Given the count
it is Gaussian (see `dpzv_audit.games.scores`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpzv_audit.games.engine import Arrays
from dpzv_audit.games.real import RealTrials
from dpzv_audit.games.scores import GameScores, Given, scores_of, side_pair
from dpzv_audit.games.transcript import DrawnTrials, SimulatedTrials, counted_law, telling_count

_SAME = 1e-3
"""Relative spread of the information up to which a replayed canary counts as saturated in every round."""

Trials = RealTrials | SimulatedTrials | DrawnTrials


def outcome_of(trials: Trials, arrays: Arrays) -> GameScores:
    """Return the scores that `arrays` of `trials` hold, with a score fitted where need be."""
    found = scores_of(arrays)
    saturated = None
    if "in_saturated" in arrays:
        saturated = bool(np.concatenate(side_pair(arrays, "saturated")).all())
    found = replace(
        found,
        kind="fitted" if found.fitted else trials.kind,
        counts=side_pair(arrays, "counts") if "in_counts" in arrays else None,
        saturated=saturated,
    )
    return found if saturated is False else replace(found, given=_given(trials, found, arrays))


def _given(trials: Trials, found: GameScores, arrays: Arrays) -> Given | None:
    """Return what makes scores Gaussian by construction, None where nothing does."""
    if isinstance(trials, DrawnTrials):
        return Given() if trials.exactly_gaussian and not found.fitted else None
    game = trials.game
    config = game.config
    alone = isinstance(trials, SimulatedTrials) or not config.top_model or config.server_update != "joint-zo"
    by_residuals = found.kind == "residuals" and alone
    by_replay = found.kind == "replay" and game.canary == "worst-case"
    sigma = trials.sigma if isinstance(trials, SimulatedTrials) else trials.plan.sigma
    if sigma == 0.0 or config.clip_rule != "symmetric" or not (by_residuals or by_replay):
        return None
    count, probability = _count_of(trials, arrays)
    if probability <= 0.0:
        return None
    if by_replay:
        kept = [counts == count for counts in side_pair(arrays, "counts")]
        information = np.concatenate(side_pair(arrays, "information"))[np.concatenate(kept)]
        # Where a world has no such run there is too little to tell by whether they are all alike.
        if not all(side.any() for side in kept) or float(np.ptp(information)) > _SAME * float(information.max()):
            return None
    return Given(probability=probability, count=count if probability < 1.0 else None)


def _count_of(trials: RealTrials | SimulatedTrials, arrays: Arrays) -> tuple[int, float]:
    """Return the number of participations to condition on and its probability, by the sampler; 0 where unknown."""
    if isinstance(trials, SimulatedTrials):
        return telling_count(trials.law)
    cap, game = trials.game.config.participation_cap, trials.game
    if cap is not None and not trials.sees_all:
        return 0, 0.0  # what counts for one client depends on batches that it does not see
    if game.first_pass_repeats > 1:
        counts = np.concatenate([arrays["in_counts"], arrays["out_counts"]])
        return int(counts[0]), float(counts.min() == counts.max())
    return telling_count(counted_law(trials.sampling, None if trials.sees_all else (1,), cap))
