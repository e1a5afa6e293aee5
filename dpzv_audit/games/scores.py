"""Scores of both worlds of a game, and those of them that are Gaussian: what tests and bounds are made of.

Where a game's scores are Gaussian given a number of participations alone, that number is part of the view, has one law
in both worlds, and has a probability p. For an (epsilon, delta) mechanism P(S, n) <= e^epsilon Q(S, n) + delta, so the
view given n is (epsilon, delta / p): a test of those runs at delta / p is one of the whole view at delta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator

from ..base.errors import InputError
from ..base.findings import Void
from ..statistics.assumptions import dependence, orders
from .arrays import Arrays, Floats
from .fitting import COLUMN, EXACT, LEAST_FIT, WORDS, FittedScore, fit_score, fit_size

Column = Annotated[Floats, PlainValidator(lambda values: np.asarray(values, dtype=np.float64))]


@dataclass(frozen=True, kw_only=True)
class GaussianGiven:
    """A condition under which scores are Gaussian: the game, or a `count` of participations of this `probability`.

    `vouched`: that they are Gaussian is the word of a user, not of a game of the tool's own.
    """

    probability: float = 1.0
    count: int | None = None
    vouched: bool = False


@dataclass(frozen=True)
class GameScores:
    """Scores (n,) and (m,) of the worlds "in" and "out", in the order of their runs, and what is known about them.

    `kind` is a key of `dpzv_audit.games.game.SCORES`. `counts` are the adversary's own rounds with the canary in each
    run, None where it does not know. `given` says what makes the scores Gaussian, None where nothing does. `saturated`
    says whether a worst-case canary on the real path still saturated the clip after every pass of every run (None: not
    asked); where it does not, the bound is weaker than the mechanism allows. `fitted` is what results say of a score
    that was fitted: its pairs are not among the scores; `blind` says what it cannot see, "" for nothing. Of `coins` a
    fair coin decided which side each score is on: "in" where it fell on 1. Those of one training may depend on each
    other. Scores that are `discrete` by construction have no Gaussian law, whatever they look like. Scores of a `pilot`
    of both worlds, none of them among the others, choose the rule of a test: where scores are few values, a random part
    may miss the one that tells. Without them the test takes a pilot from the scores. `notes` say what a reader of files
    found, `voids` why no test of these scores counts.
    """

    in_scores: Column
    out_scores: Column
    kind: str = "own"
    counts: tuple[Column, Column] | None = None
    given: GaussianGiven | None = None
    saturated: bool | None = None
    fitted: dict[str, str] = field(default_factory=dict)
    blind: str = ""
    coins: bool = False
    discrete: bool = False
    pilot: tuple[Column, Column] | None = None
    notes: tuple[str, ...] = ()
    voids: tuple[Void, ...] = ()

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """The scores of "in" and of "out"."""
        return self.in_scores, self.out_scores

    @property
    def runs(self) -> dict[str, int]:
        """Numbers of runs of either world that were scored, as a result names them."""
        return {"runs_in": len(self.in_scores), "runs_out": len(self.out_scores)}

    @property
    def participations(self) -> tuple[int, int] | None:
        """The smallest and the largest of the counts."""
        if self.counts is None:
            return None
        both = np.concatenate(self.counts)
        return int(both.min()), int(both.max())

    @property
    def gaussian(self) -> "tuple[GameScores, GaussianGiven] | None":
        """The scores that are Gaussian, and what makes them so; None where there are none on a side.

        Counts alone, whose law is the same in both worlds, decide which runs these are: a block of runs none of which
        has the count adds none, and its scores have no say in that.
        """
        if self.given is None or self.given.count is None:
            return None if self.given is None else (self, self.given)
        if self.counts is None:
            raise ValueError("scores that are Gaussian given a count come with the counts of their runs")
        kept = [side == self.given.count for side in self.counts]
        if kept[0].any() and kept[1].any():
            return (self.rows(*kept), self.given)
        return None

    @property
    def warnings(self) -> list[str]:
        """Warnings against tests of the scores in the order of their runs; of coins, what their score misses."""
        warning = self.blind if self.coins else dependence(*self.sides)
        return [*self.notes, *([warning] if warning else [])]

    def rows(self, inside: Any, outside: Any) -> "GameScores":
        """Return the runs of either world at an index, a mask or a slice."""
        counts = None if self.counts is None else (self.counts[0][inside], self.counts[1][outside])
        return replace(self, in_scores=self.in_scores[inside], out_scores=self.out_scores[outside], counts=counts)

    def first(self, share: float) -> "GameScores":
        """Return the first `share` of the runs of either world, rounded up."""
        return self.rows(*(slice(max(1, math.ceil(share * len(side)))) for side in self.sides))

    def permuted(self, seed: int, number: int) -> "GameScores":
        """Return each side in a random order of its own, which follows from the seed and the number of the block."""
        return self.rows(*orders(*map(len, self.sides), seed, number))


def joined(blocks: Sequence[GameScores]) -> GameScores:
    """Return the scores of all blocks as one; nothing makes them Gaussian where the blocks disagree on what does."""
    first = blocks[0]
    agreed = all(block.given == first.given for block in blocks)
    counts = [block.counts for block in blocks if block.counts is not None]
    inside, outside = (np.concatenate(side) for side in zip(*(block.sides for block in blocks), strict=True))
    return replace(
        first,
        in_scores=inside,
        out_scores=outside,
        counts=(np.concatenate([pair[0] for pair in counts]), np.concatenate([pair[1] for pair in counts]))
        if counts
        else None,
        given=first.given if agreed else None,
    )


def side_pair(arrays: Arrays, name: str) -> tuple[Floats, Floats]:
    """Return the rows `name` of the worlds "in" and "out"."""
    inside, outside = (np.asarray(arrays[f"{side}_{name}"], dtype=np.float64) for side in ("in", "out"))
    return inside, outside


def views_of(arrays: Arrays) -> tuple[Floats, Floats]:
    """Return the views (n, d) of "in" and "out" in `arrays`; a number that a mechanism answers is a view of width 1."""
    if "in_features" in arrays:
        return side_pair(arrays, "features")
    inside, outside = side_pair(arrays, "scores")
    return inside[:, None], outside[:, None]


def scored_by(model: FittedScore, arrays: Arrays, *, first: int = 0) -> GameScores:
    """Return the scores that a chosen score gives to the views in `arrays`, from the `first` pair on."""
    inside, outside = (model.score(views[first:]) for views in views_of(arrays))
    kind = "own" if model.own and model.kind == COLUMN else "fitted"
    exact = model.kind in EXACT
    pilot = model.held_out if exact else None
    return GameScores(inside, outside, kind, fitted=model.facts, discrete=exact, pilot=pilot)


def scores_of(
    arrays: Arrays,
    kind: str = "own",
    *,
    kinds: Sequence[str] = tuple(WORDS),
    pilots: int | None = None,
    delta: float = 0.0,
) -> GameScores:
    """Return the scores of a `kind` in `arrays`; of views those of one of `kinds`, chosen on the first of them.

    With `pilots`, the number of pairs on which a score is chosen, numbers that a mechanism answers are views too;
    `delta` is that of the claim. Where fewer pairs were run a score is chosen on the first half of them. Raises
    `InputError` where there are too few pairs to leave any to score.
    """
    counts = side_pair(arrays, "counts") if "in_counts" in arrays else None
    saturated = bool(np.concatenate(side_pair(arrays, "saturated")).all()) if "in_saturated" in arrays else None
    own = "in_features" not in arrays
    if own and pilots is None:
        return GameScores(*side_pair(arrays, "scores"), kind, counts, saturated=saturated)
    inside, outside = views_of(arrays)
    pairs = len(inside)
    first = fit_size(pairs) if pilots is None else min(pilots, max(LEAST_FIT, pairs // 2))
    if pairs <= first:
        raise InputError(f"use more than {LEAST_FIT}: that many runs choose a score", "runs", pairs)
    model = fit_score(inside[:first], outside[:first], kinds=kinds, delta=delta, own=own)
    return replace(scored_by(model, arrays, first=first), counts=counts, saturated=saturated)
