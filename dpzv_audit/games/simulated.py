"""Plays the worst-case game on simulated transcripts: scalars alone, no training, at the size of a real deployment.

With known ids the score is a sum of residuals over the rounds with the canary. Each is N(+-C/B, sigma^2), independent
of the others, and there are n of them, so the score is n m + sqrt(n) sigma Z: only n, from the sampler, and a Gaussian
Z are drawn, which is the score of a whole transcript in distribution, exactly. Without ids the score needs every
scalar, and every scalar is drawn: N(0, sigma^2), and the canary's C/B in the rounds that the sampler gives it. That
real trainings give the same scores is a test (tests/dpzv_audit/games/test_simulated.py).
Noise on a grid (`mechanisms.core.grid`) is post-processing of the Gaussian mechanism drawn here, which tells no less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dpzv_audit.errors import InputError
from dpzv_audit.games.engine import Arrays
from dpzv_audit.games.game import Game
from dpzv_audit.games.transcript import (
    Floats,
    Sampling,
    counted_law,
    mixture_score,
)
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.context import Plan

_BLOCK_KNOWN = 1024
_BLOCK_SECRET = 32


@dataclass(frozen=True)
class SimulatedTrials:
    """Trials of the worst-case `game` on simulated scalars with noise `sigma` (see `engine.Trials`).

    Arrays: `in_scores`, `out_scores`; with known ids `in_counts`, `out_counts` too. Pairs are drawn in blocks of fixed
    size from streams of their own, so a run is the same whatever the chunk.
    """

    game: Game
    sampling: Sampling
    sigma: float
    seed: int = 0

    @classmethod
    def of(cls, game: Game, plan: Plan, records: int, seed: int) -> SimulatedTrials:
        """Return the trials of `game` on `records` records, on the schedule and with the noise of `plan`."""
        return cls(game, Sampling.of(game.config, records, plan.active), plan.sigma, seed)

    def __post_init__(self) -> None:
        game, config = self.game, self.game.config
        if game.canary != "worst-case":
            raise InputError("must be worst-case with ‹simulate›, which draws scalars alone", "canary", game.canary)
        if config.clip_rule != "symmetric":
            raise InputError("must be symmetric with ‹simulate›", "clip_rule", config.clip_rule)
        if config.participation_cap is not None and not self._all_clients:
            raise InputError(
                "must be colluding-clients with participation_cap and ‹simulate›: "
                "what counts for one client depends on the other clients' batches",
                "adversary",
                game.adversary,
            )
        if game.first_pass_repeats != 1:
            raise InputError("a simulated transcript repeats no batches")
        if game.others == "saturated" and not game.knows_ids:
            raise InputError(
                f"must be zero with ‹simulate› and {game.adversary}, who knows no batch ids", "others", game.others
            )

    @property
    def _all_clients(self) -> bool:
        return self.game.adversary != "client" or len(set(self.sampling.active)) == 1

    @cached_property
    def law(self) -> Floats:
        """Probability of 0, 1, ... rounds with the canary that count, in the adversary's view."""
        return counted_law(self.sampling, None if self._all_clients else (1,), self.game.config.participation_cap)

    @property
    def kind(self) -> str:
        """How the game is scored, see `game.SCORES`."""
        return "residuals" if self.game.knows_ids else "mixture"

    def facts(self) -> dict[str, object]:
        """See `Trials.facts`."""
        return {
            "trials": "simulated",
            **self.game.facts(),
            "records": self.sampling.records,
            "rounds": len(self.sampling.active),
            "clients": len(set(self.sampling.active)),
            "sigma": self.sigma,
            "seed": self.seed,
        }

    def __call__(self, first: int, last: int) -> Arrays:
        """Draw pairs `first` to `last` and score them."""
        size = _BLOCK_KNOWN if self.game.knows_ids else _BLOCK_SECRET
        draw = self._known if self.game.knows_ids else self._secret
        return in_blocks(lambda block: draw(stream(self.seed, Purpose.SIMULATION, block), size), first, last, size)

    @property
    def _means(self) -> tuple[float, float]:
        """Mean of a round with the canary in the worlds "out" and "in"."""
        unit = self.game.config.clip / self.game.config.batch_size
        return (0.0 if self.game.neighbours in ("add-remove", "zero-out") else -unit), unit

    def _known(self, generator: np.random.Generator, size: int) -> Arrays:
        counts = generator.choice(len(self.law), size=(2, size), p=self.law / self.law.sum())
        z = generator.standard_normal((2, size))
        out, inside = (
            n * mean + np.sqrt(n) * self.sigma * draw for n, mean, draw in zip(counts, self._means, z, strict=True)
        )
        return {"out_scores": out, "in_scores": inside, "out_counts": counts[0], "in_counts": counts[1]}

    def _secret(self, generator: np.random.Generator, size: int) -> Arrays:
        found: Arrays = {}
        means = self._means
        for side, mean in (("out", means[0]), ("in", means[1])):
            scalars = generator.standard_normal((len(self.sampling.active), size), dtype=np.float32)
            scalars *= np.float32(self.sigma)
            self._add_canary(generator, scalars, mean)
            found[f"{side}_scores"] = mixture_score(
                scalars, self.sampling, sigma=self.sigma, mean_in=means[1], mean_out=means[0]
            )
        return found

    def _add_canary(self, generator: np.random.Generator, scalars: np.ndarray, mean: float) -> None:
        """Add `mean` to the rounds (T, n) that hold the canary."""
        rounds, runs = scalars.shape
        if self.sampling.sampler != "shuffled":
            scalars[generator.random((rounds, runs), dtype=np.float32) < self.sampling.rate] += np.float32(mean)
            return
        for rows in self.sampling.passes:
            # Its place in the pass, in rounds: beyond the rounds that were run it is in none of them.
            place = np.asarray(generator.random(runs) / self.sampling.rate, dtype=np.intp)
            inside = np.flatnonzero(place < len(rows))
            scalars[rows[place[inside]], inside] += np.float32(mean)


_BLOCK = 1024


def in_blocks(draw: Callable[[int], Arrays], first: int, last: int, size: int) -> Arrays:
    """Return pairs `first` to `last` (exclusive) of the blocks of `size` pairs that `draw(number)` returns."""
    parts = []
    for block in range(first // size, -(-last // size)):
        cut = slice(max(first - block * size, 0), min(last - block * size, size))
        parts.append({name: values[cut] for name, values in draw(block).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Draw(Protocol):
    """Runs a mechanism `n` times in one world, and scores the views where it knows how."""

    def __call__(self, generator: np.random.Generator, n: int, sign: float) -> Floats:
        """Return scores (n,), or views (n, d) to which a score must be fitted; `sign` is 1 in "in" and -1 in "out"."""


@dataclass(frozen=True)
class DrawnTrials:
    """Trials of a mechanism written in numpy (see `engine.Trials`).

    `draw` is a function of a module (so that it pickles); `number` keeps the streams of different mechanisms apart.
    """

    draw: Draw
    number: int
    seed: int
    exactly_gaussian: bool = False

    kind = "residuals"

    def facts(self) -> dict[str, object]:
        """See `engine.Trials.facts`."""
        return {"trials": "planted", "number": self.number, "seed": self.seed}

    def __call__(self, first: int, last: int) -> Arrays:
        """Run pairs `first` to `last`: arrays of scores, or of `features` where the mechanism answers with views."""
        return in_blocks(self._block, first, last, _BLOCK)

    def _block(self, number: int) -> Arrays:
        generator = stream(self.seed, Purpose.SIMULATION, self.number, number)
        inside = self.draw(generator, _BLOCK, 1.0)
        what = "scores" if inside.ndim == 1 else "features"
        return {f"in_{what}": inside, f"out_{what}": self.draw(generator, _BLOCK, -1.0)}
