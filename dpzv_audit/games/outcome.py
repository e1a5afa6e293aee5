"""From the arrays of collected trials to scores, and to that part of them which is exactly Gaussian.

Where no exact likelihood ratio is known a score is fitted to the views on separate runs (`dpzv_audit.games.fitting`).

Participations are random where the sampler leaves them so, and a score over random counts is a mixture. Given the count
n, it is Gaussian; the count is part of the view, has one law in both worlds, and n has probability p. For an (epsilon,
delta) mechanism P(S, n) <= e^epsilon Q(S, n) + delta, so the view given n is (epsilon, delta / p): a lower bound at
delta / p from the runs with that count is one on the whole view at delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.games.engine import Arrays
from dpzv_audit.games.fitting import WORDS, FittedScore, Floats, fitted_scores
from dpzv_audit.games.real import RealTrials
from dpzv_audit.games.transcript import DrawnTrials, SimulatedTrials, counted_law, telling_count

_SAME = 1e-3
"""Relative spread of the information up to which a replayed canary counts as saturated in every round."""


@dataclass(frozen=True)
class GaussianPart:
    """The runs in which the canary took part `count` times, which happens with `probability`; (n,) and (m,) scores."""

    in_scores: Floats
    out_scores: Floats
    count: int
    probability: float
    vouched: bool = False
    """Whether they are Gaussian on the word of a user instead of by the construction of the game."""


@dataclass(frozen=True)
class GameScores:
    """Scores of both worlds and what is known about them.

    `participations` counts the adversary's own rounds with the canary: (smallest, largest) over runs, None where it
    does not know. `saturated` says whether a worst-case canary on the real path still saturated the clip after every
    pass of every run (None: not asked); where it does not, the bound is weaker than the mechanism allows.
    """

    out_scores: Floats
    in_scores: Floats
    kind: str
    participations: tuple[int, int] | None = None
    gaussian: GaussianPart | None = None
    saturated: bool | None = None
    fitted: FittedScore | None = None
    """The score, where one was fitted: its pairs are not among the scores."""


Trials = RealTrials | SimulatedTrials | DrawnTrials


def outcome_of(trials: Trials, arrays: Arrays) -> GameScores:
    """Return the scores that `arrays` of `trials` hold, with a score fitted where need be."""
    counts, saturated = _joined(arrays, "counts"), _joined(arrays, "saturated")
    inside, outside, fitted = scores_of(arrays)
    kind = "fitted" if fitted else trials.kind
    return GameScores(
        out_scores=outside,
        in_scores=inside,
        kind=kind,
        participations=None if counts is None else (int(counts.min()), int(counts.max())),
        gaussian=_gaussian_part(trials, kind, arrays, saturated is None or bool(saturated.all())),
        saturated=None if saturated is None else bool(saturated.all()),
        fitted=fitted,
    )


def scores_of(arrays: Arrays, kinds: Sequence[str] = tuple(WORDS)) -> tuple[Floats, Floats, FittedScore | None]:
    """Return the scores of "in" and "out" in `arrays`; of views by a score fitted to the first of them."""
    if "in_features" in arrays:
        return fitted_scores(*_pair(arrays, "features"), kinds=kinds)
    return *_pair(arrays, "scores"), None


def _pair(arrays: Arrays, name: str) -> tuple[Floats, Floats]:
    """Return the rows `name` of the worlds "in" and "out"."""
    inside, outside = (np.asarray(arrays[f"{side}_{name}"], dtype=np.float64) for side in ("in", "out"))
    return inside, outside


def _joined(arrays: Arrays, name: str) -> NDArray[Any] | None:
    return np.concatenate([arrays[f"out_{name}"], arrays[f"in_{name}"]]) if f"in_{name}" in arrays else None


def _gaussian_part(trials: Trials, kind: str, arrays: Arrays, saturated: bool) -> GaussianPart | None:
    """The runs whose scores are Gaussian by construction, None where there are none."""
    if isinstance(trials, DrawnTrials):
        whole = trials.exactly_gaussian and kind != "fitted"
        return GaussianPart(*_pair(arrays, "scores"), 0, 1.0) if whole else None
    game = trials.game
    config = game.config
    alone = isinstance(trials, SimulatedTrials) or not config.top_model or config.server_update != "joint-zo"
    by_residuals = kind == "residuals" and alone
    by_replay = kind == "replay" and game.canary == "worst-case"
    sigma = trials.sigma if isinstance(trials, SimulatedTrials) else trials.plan.sigma
    if not saturated or sigma == 0.0 or config.clip_rule != "symmetric" or not (by_residuals or by_replay):
        return None
    count, probability = _count_of(trials, arrays)
    if probability <= 0.0:
        return None
    kept = [counts == count for counts in _pair(arrays, "counts")]
    if not all(side.any() for side in kept):
        return None
    if by_replay:
        information = np.concatenate(_pair(arrays, "information"))[np.concatenate(kept)]
        if float(np.ptp(information)) > _SAME * float(information.max()):
            return None
    inside, outside = (rows[side] for rows, side in zip(_pair(arrays, "scores"), kept, strict=True))
    return GaussianPart(inside, outside, count, probability)


def _count_of(trials: RealTrials | SimulatedTrials, arrays: Arrays) -> tuple[int, float]:
    """The number of participations to condition on and its probability, which the sampler fixes; 0 where unknown."""
    if isinstance(trials, SimulatedTrials):
        return telling_count(trials.law)
    cap, game = trials.game.config.participation_cap, trials.game
    if cap is not None and not trials.sees_all:
        return 0, 0.0  # what counts for one client depends on batches that it does not see
    if game.first_pass_repeats > 1:
        counts = np.concatenate([arrays["in_counts"], arrays["out_counts"]])
        return int(counts[0]), float(counts.min() == counts.max())
    return telling_count(counted_law(trials.sampling, None if trials.sees_all else (1,), cap))
