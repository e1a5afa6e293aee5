"""Scores of scalar transcripts, and trials that draw transcripts instead of training.

Likelihood ratios: known batch ids, secret ids (a mixture over the sampler), capped records. A round of the scalar
channel is N(m, sigma^2), with m = 0 without the canary and m = `mean_in` or `mean_out` with it (what the other records
add is known and subtracted). All is a function of scalars and of what the adversary knows about the sampler; nothing
looks at the data.

`SimulatedTrials` play the worst-case game on scalars alone, at the size of a real deployment. With known ids the score
is a sum of residuals over the rounds with the canary. Each is N(+-C/B, sigma^2), independent of the others, and there
are n of them, so the score is n m + sqrt(n) sigma Z: only n, from the sampler, and a Gaussian Z are drawn, which is the
score of a whole transcript in distribution, exactly. Without ids the score needs every scalar, and every scalar is
drawn: N(0, sigma^2), and the canary's C/B in the rounds that the sampler gives it. That real trainings give the same
scores is a test (tests/dpzv_audit/games/test_simulated.py). Noise on a grid is post-processing of the Gaussian
mechanism drawn here, which tells no less. `DrawnTrials` are those of any mechanism written in numpy.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from mechanisms.core.context import Plan
from mechanisms.core.scalars import ScalarConfig

from ..accounting.release import SamplerName
from ..base.errors import InputError
from ..base.seeds import Purpose, stream
from .arrays import Arrays, Bools, Floats, joined_arrays
from .game import Game
from .scores import GameScores, GaussianGiven, scores_of

_SEGMENTS = 4
_EXPONENT = 60.0
"""Exponents up to this are exponentiated as they are in single precision, which overflows at 88."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling of a record into batches: `records` D, `batch_size` B, sampler, and the active client of each round.

    `sample_rate` is the public rate of Poisson sampling; None: B/D.
    """

    sampler: SamplerName
    records: int
    batch_size: int
    active: tuple[int, ...]
    sample_rate: float | None = None

    @classmethod
    def of(cls, config: ScalarConfig, records: int, active: Sequence[int]) -> "Sampling":
        """Return the sampling of a configuration on `records` records, with the active client of each round."""
        return cls(
            sampler=config.sampler,
            records=records,
            batch_size=config.batch_size,
            active=tuple(active),
            sample_rate=config.sample_rate,
        )

    @property
    def rate(self) -> float:
        """Sampling rate: the public one, else B/D."""
        if self.sample_rate is None:
            return self.batch_size / self.records
        return self.sample_rate

    @property
    def steps_per_pass(self) -> int:
        """Rounds of one client in which it goes through the data once, floor(D/B)."""
        return self.records // self.batch_size

    @cached_property
    def passes(self) -> tuple[NDArray[np.intp], ...]:
        """Rounds (indices) of each client's each pass, the last one perhaps cut short."""
        active = np.asarray(self.active)
        own = [np.flatnonzero(active == client) for client in np.unique(active)]
        steps = self.steps_per_pass
        return tuple(rounds[a : a + steps] for rounds in own for a in range(0, len(rounds), steps))

    def rounds_of(self, clients: Sequence[int] | None = None) -> list[int]:
        """Return the rounds of each client, or of each of `clients`."""
        counted = Counter(self.active)
        return [counted[m] for m in (sorted(counted) if clients is None else clients)]


def _binomial(n: int, p: float) -> Floats:
    """Return the probabilities of 0..n successes in n trials of chance p in [0, 1]."""
    if n == 0 or p <= 0.0:
        return np.asarray(np.eye(1, n + 1)[0])
    if p >= 1.0:
        return np.asarray(np.eye(1, n + 1, n)[0])
    k = np.arange(n + 1)
    log = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * np.log(p) + (n - k) * np.log1p(-p)
    return np.asarray(np.exp(log))


def participation_law(sampling: Sampling, rounds: Sequence[int]) -> Floats:
    """Return the probabilities that one record takes part 0, 1, ... times in `rounds` (a number for each client).

    `shuffled`: once in each whole pass with chance floor(D/B) B/D (the short last batch is dropped), and in a pass of
    which j rounds were run with chance j B/D. `uniform` and `poisson`: Binomial(T, B/D).
    """
    if sampling.sampler != "shuffled":
        return _binomial(sum(rounds), sampling.rate)
    steps = sampling.steps_per_pass
    law = _binomial(sum(r // steps for r in rounds), min(1.0, steps * sampling.rate))
    for begun in (r % steps for r in rounds):
        if begun:
            law = np.convolve(law, [1.0 - begun * sampling.rate, begun * sampling.rate])
    return law


def counted_law(sampling: Sampling, clients: Sequence[int] | None, cap: int | None) -> Floats:
    """Return the law of the rounds of `clients` (None: of all) that hold one record and count under a `cap`."""
    law = participation_law(sampling, sampling.rounds_of(clients))
    if cap is None or cap >= len(law):
        return law
    return np.append(law[:cap], law[cap:].sum())


def cap_weights(sampling: Sampling, client: int, cap: int) -> Floats:
    """Return the chance that a record's k-th participation with `client` counts under a cap over all clients' rounds.

    Shape (own rounds, cap + 1): by own round and number k of participations with this client before it. The client does
    not see the other clients' batches, but it knows their sampler and how many rounds they had.
    """
    clients = sorted(set(sampling.active))
    rounds = dict.fromkeys(clients, 0)
    weights = []
    for active in sampling.active:
        if active == client:
            law = np.cumsum(participation_law(sampling, [r for m, r in rounds.items() if m != client]))
            room = cap - 1 - np.arange(cap + 1)
            weights.append(np.where(room >= 0, law[np.clip(room, 0, len(law) - 1)], 0.0))
        rounds[active] += 1
    return np.array(weights).reshape(-1, cap + 1)


def mixture_score(
    scalars: NDArray[np.floating], sampling: Sampling, *, sigma: float, mean_in: float, mean_out: float
) -> Floats:
    """Log-likelihood ratio (n,) of scalars (T, n), rounds in order, for one who does not know the batch ids.

    Independent rounds (`poisson`, `uniform`): sum over rounds of ln[(1 - r) + r e^L1(x)] - ln[(1 - r) + r e^L0(x)],
    Lb(x) = (m_b x - m_b^2 / 2) / sigma^2, r = B/D. `shuffled`: the record is in at most one round of each client's
    pass, in each with chance B/D, so a pass of j rounds has (1 - j B/D) + (B/D) sum_t e^Lb(x_t) in either logarithm.
    For `poisson` with one record more this is exact; for `uniform` a batch's other records do not matter where they
    contribute nothing.
    """
    total = np.zeros(scalars.shape[1])
    # What the likelihood is a product over: passes of one client, or rounds.
    groups = sampling.passes if sampling.sampler == "shuffled" else (np.arange(len(sampling.active)),)
    for rows in groups:
        scaled = scalars[rows] / sigma
        absent = 1.0 - (len(rows) * sampling.rate if sampling.sampler == "shuffled" else sampling.rate)
        for sign, mean in ((1.0, mean_in), (-1.0, mean_out)):
            if mean != 0.0:
                total += sign * _log_mixture(scaled, mean / sigma, max(absent, 0.0), sampling)
    return total


def _log_mixture(x: NDArray[np.floating], shift: float, absent: float, sampling: Sampling) -> Floats:
    """Return the log of the mixture's density over that of N(0, 1), summed over independent rounds, (n,)."""
    exponent = x * x.dtype.type(shift) - x.dtype.type(0.5 * shift * shift)
    safe = abs(shift) * (8.0 + 0.5 * abs(shift)) < _EXPONENT and float(exponent.max(initial=0.0)) < _EXPONENT
    if sampling.sampler == "shuffled":
        if safe:
            inside = np.exp(exponent, out=exponent).sum(0, dtype=np.float64)
            return np.asarray(np.log(absent + sampling.rate * inside))
        inside = logsumexp(exponent.astype(np.float64), axis=0) + np.log(sampling.rate)
        return np.asarray(np.logaddexp(np.log(absent) if absent > 0.0 else -np.inf, inside))
    if safe and sampling.rate < 1.0:
        np.exp(exponent, out=exponent)
        exponent *= exponent.dtype.type(sampling.rate)
        exponent -= exponent.dtype.type(sampling.rate)
        return np.asarray(np.log1p(exponent, out=exponent).sum(0, dtype=np.float64))
    inside = exponent.astype(np.float64) + np.log(sampling.rate)
    return np.asarray(np.logaddexp(np.log(absent) if absent > 0.0 else -np.inf, inside).sum(0))


def known_ids_score(scalars: Floats, held: Bools, others: Floats | float = 0.0) -> Floats:
    """Return the sum (n,) of scalars (T, n), less what the `others` add, over rounds that `held` (T, n) the canary.

    The exact log-likelihood ratio up to scale for means of +-m or 0 and m, equal in all rounds.
    """
    return np.asarray(((scalars - others) * held).sum(0))


def telling_count(law: Floats) -> GaussianGiven:
    """Return that scores are Gaussian given n participations, with the n of the largest n p_n, and p_n.

    Such an n comes up often and tells much. Where p_n = 1 there is nothing to condition on, and no count.
    """
    count = int(np.argmax(np.arange(len(law)) * law))
    probability = float(law[count])
    return GaussianGiven(probability=probability, count=count if probability < 1.0 else None)


def summaries(scalars: Floats, held: Bools | None, *, skip_held: bool = False) -> Floats:
    """Return (n, d) summaries of scalars (T, n): by quarter of the transcript their mean, mean size and mean square.

    Where it is known which rounds `held` (T, n) the canary, its rounds and the others are summed apart; with
    `skip_held` only the rounds without it count.
    """
    masks = [np.ones(scalars.shape, dtype=bool)]
    if held is not None:
        masks = [~held] if skip_held else [~held, held]
    columns = []
    for mask in masks:
        quarters = [np.array_split(numbers, _SEGMENTS) for numbers in (scalars, mask.astype(np.float64))]
        for rows, kept in zip(*quarters, strict=True):
            number = np.maximum(kept.sum(0), 1.0)
            columns += [(kept * f).sum(0) / number for f in (rows, np.abs(rows), rows * rows)]
    return np.stack(columns, axis=1)


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
    def of(cls, game: Game, plan: Plan, records: int, seed: int) -> "SimulatedTrials":
        """Return the trials of `game` on `records` records, on the schedule and with the noise of `plan`."""
        return cls(game, Sampling.of(game.config, records, plan.active), plan.sigma, seed)

    def __post_init__(self) -> None:
        game = self.game
        config = self.game.config
        if game.canary != "worst-case":
            raise InputError("use worst-case with ‹simulate›, which draws scalars alone", "canary", game.canary)
        if config.clip_rule != "symmetric":
            raise InputError("use symmetric with ‹simulate›", "clip_rule", config.clip_rule)
        if config.participation_cap is not None and not self._all_clients:
            raise InputError(
                "use colluding-clients with participation_cap and ‹simulate›: "
                "what counts for one client depends on the other clients' batches",
                "adversary",
                game.adversary,
            )
        if game.first_pass_repeats != 1:
            raise InputError("a simulated transcript repeats no batches")
        if game.others == "saturated" and not game.knows_ids:
            raise InputError(
                f"use zero with ‹simulate› and {game.adversary}, who knows no batch ids", "others", game.others
            )

    @property
    def _all_clients(self) -> bool:
        return self.game.adversary != "client" or len(set(self.sampling.active)) == 1

    @cached_property
    def law(self) -> Floats:
        """Probability of 0, 1, ... rounds with the canary that count, in the adversary's view."""
        return counted_law(self.sampling, None if self._all_clients else (1,), self.game.config.participation_cap)

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`."""
        if not self.game.knows_ids:
            return scores_of(arrays, "mixture")
        return replace(scores_of(arrays, "residuals"), given=telling_count(self.law) if self.sigma else None)

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

    def _known(self, generator: np.random.Generator, size: int) -> Arrays:
        counts = generator.choice(len(self.law), size=(2, size), p=self.law / self.law.sum())
        z = generator.standard_normal((2, size))
        out, inside = (
            n * mean + np.sqrt(n) * self.sigma * draw for n, mean, draw in zip(counts, self.game.means, z, strict=True)
        )
        return {"out_scores": out, "in_scores": inside, "out_counts": counts[0], "in_counts": counts[1]}

    def _secret(self, generator: np.random.Generator, size: int) -> Arrays:
        arrays = {}
        mean_out, mean_in = self.game.means
        for side, mean in (("out", mean_out), ("in", mean_in)):
            scalars = generator.standard_normal((len(self.sampling.active), size), dtype=np.float32)
            scalars *= np.float32(self.sigma)
            self._add_canary(generator, scalars, mean)
            arrays[f"{side}_scores"] = mixture_score(
                scalars, self.sampling, sigma=self.sigma, mean_in=mean_in, mean_out=mean_out
            )
        return arrays

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
    pieces = []
    for block in range(first // size, -(-last // size)):
        rows = slice(max(first - block * size, 0), min(last - block * size, size))
        pieces.append({name: values[rows] for name, values in draw(block).items()})
    return joined_arrays(pieces)


@dataclass(frozen=True)
class World:
    """Runs of a mechanism in one world; `sign` is 1 in "in" and -1 in "out"."""

    generator: np.random.Generator
    runs: int
    sign: float


Draw = Callable[[World], Floats]
"""Runs a mechanism in one world: scores (n,) where it knows how, or views (n, d) to which a score must be fitted."""


@dataclass(frozen=True)
class DrawnTrials:
    """Trials of a mechanism written in numpy (see `engine.Trials`).

    `draw` is a function of a module (so that it pickles); `number` keeps the streams of different mechanisms apart.
    """

    draw: Draw
    number: int
    seed: int
    exactly_gaussian: bool = False

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`."""
        scores = scores_of(arrays, "residuals")
        if self.exactly_gaussian and not scores.fitted:
            return replace(scores, given=GaussianGiven())
        return scores

    def facts(self) -> dict[str, object]:
        """See `engine.Trials.facts`."""
        return {"trials": "planted", "number": self.number, "seed": self.seed}

    def __call__(self, first: int, last: int) -> Arrays:
        """Run pairs `first` to `last`: arrays of scores, or of `features` where the mechanism answers with views."""
        return in_blocks(self._block, first, last, _BLOCK)

    def _block(self, number: int) -> Arrays:
        generator = stream(self.seed, Purpose.SIMULATION, self.number, number)
        inside, outside = (self.draw(World(generator, _BLOCK, sign)) for sign in (1.0, -1.0))
        name = "scores" if inside.ndim == 1 else "features"
        return {f"in_{name}": inside, f"out_{name}": outside}
