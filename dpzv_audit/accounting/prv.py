"""PRV accounting of sampled rounds: certified bounds at once, and composition where they do not decide.

Composition is that of the `prv-accountant` package with meshes of our own (`fourier`): its own domain starts at +-3
whatever epsilon is, its mean has an absolute error that many rounds multiply, and its mechanism is the remove
direction alone, so that at small epsilon or low noise it takes minutes or fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dpzv_audit.accounting.fourier import Rounds, compose
from dpzv_audit.accounting.gaussian import epsilon_from_mu, exactly
from dpzv_audit.accounting.mixture import Participation, participations_epsilon
from dpzv_audit.accounting.moments import LossMoments, certified_lower, composed_moments, loss_moments
from dpzv_audit.accounting.sampled import PairKind, SampledGaussian
from dpzv_audit.errors import AuditError, InputError, check_count, check_positive, check_probability
from dpzv_audit.findings import EpsilonRange

VACUOUS = 100.0
"""An epsilon that is certainly past this is vacuous: its certified bounds are given, and nothing is composed."""

DELTA_ERROR = 1e-4
"""Share of delta that the composition may lose."""

AGREE = 1e-9
"""Rounding that two bounds may differ by without a contradiction."""

_STEP: dict[PairKind, float] = {"remove": 1.0, "add": 1.0, "replace": 2.0, "fixed-size": 1.0}
"""How far a batch that certainly holds the record moves, in what its noise is a multiple of."""


@dataclass(frozen=True, kw_only=True)
class SampledRounds:
    """`rounds` T >= 1 at sampling `rate` r in (0, 1] with noise multiplier `noise` z > 0.

    The noise is a multiple of ONE contribution c; with `fixed_size` of the step 2c by which a record replaced moves a
    batch.
    """

    rate: float
    noise: float
    rounds: int
    fixed_size: bool = False
    """Batches of exactly B records: the pair is `fixed-size`, which dominates in both directions."""

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        check_positive("noise", self.noise)
        if not 0.0 < self.rate <= 1.0:
            raise InputError("must lie in (0, 1]", "rate", self.rate)

    def kind(self, asked: PairKind) -> PairKind:
        """Return the kind of pair that these rounds have in a composition of `asked` pairs."""
        return "fixed-size" if self.fixed_size else asked

    def pair(self, asked: PairKind) -> SampledGaussian:
        """Return the pair of one of these rounds."""
        return SampledGaussian(kind=self.kind(asked), rate=self.rate, noise=self.noise)

    def certain_mu(self, asked: PairKind) -> float:
        """Return the mu of one round that certainly holds the record."""
        return _STEP[self.kind(asked)] / self.noise


@dataclass(frozen=True, kw_only=True)
class PrvAnswer:
    """Range of epsilon for one pair, and how it was had: `composed`, or the certified bound alone and why."""

    epsilon: EpsilonRange
    composed: bool
    note: str


def prv_epsilon(*, kind: PairKind, rate: float, noise: float, rounds: int, delta: float) -> PrvAnswer:
    """Return epsilon of `rounds` sampled Gaussian rounds at `delta`, for one pair; see `prv_composition`."""
    part = SampledRounds(rate=rate, noise=noise, rounds=rounds, fixed_size=kind == "fixed-size")
    return prv_composition(kind=kind, parts=(part,), delta=delta)


def prv_directions(
    *,
    kinds: Sequence[PairKind],
    parts: tuple[SampledRounds, ...],
    delta: float,
    certain_mu: float = 0.0,
    fast: bool = False,
    enough: float | None = None,
) -> PrvAnswer:
    """Return the largest epsilon at `delta` over the pairs of `kinds`, each as `prv_composition` has it.

    Nothing is composed where `fast`, where the certified bounds of all pairs decide (both sides of `enough`, or a lower
    one past the vacuous limit), or where a pair's certified bound cannot change the maximum.
    """

    def answer(kind: PairKind, *, fast: bool) -> PrvAnswer:
        return prv_composition(kind=kind, parts=parts, delta=delta, certain_mu=certain_mu, fast=fast)

    found = {kind: answer(kind, fast=True) for kind in kinds}
    whole = _larger(found.values())
    if whole.epsilon.lower > VACUOUS:
        return replace(whole, note="vacuous (> 100): certified bounds, not composed")
    if fast:
        return whole
    if enough is not None and (whole.epsilon.upper <= enough or whole.epsilon.lower > enough):
        return replace(whole, note="certified bound, which decides: not composed")
    for kind in sorted(kinds, key=lambda kind: -found[kind].epsilon.upper):
        if found[kind].epsilon.upper > max(other.epsilon.lower for other in found.values()):
            found[kind] = answer(kind, fast=False)
    return _larger(found.values())


def _larger(answers: Iterable[PrvAnswer]) -> PrvAnswer:
    answers = tuple(answers)
    worst = max(answers, key=lambda answer: answer.epsilon.upper)
    epsilon = EpsilonRange(
        lower=max(answer.epsilon.lower for answer in answers),
        estimate=max(answer.epsilon.estimate for answer in answers),
        upper=worst.epsilon.upper,
    )
    return replace(worst, epsilon=epsilon)


@lru_cache(maxsize=256)
def prv_composition(
    *, kind: PairKind, parts: tuple[SampledRounds, ...], delta: float, certain_mu: float = 0.0, fast: bool = False
) -> PrvAnswer:
    """Return epsilon at `delta` of independently sampled `parts` and one Gaussian release of `certain_mu`.

    Certified bounds come first: no amplification, or Chernoff's on the privacy loss, from above; tests on counts from
    below. The composition runs unless `fast`, or the lower one is past the vacuous limit. `estimate` and `upper` never
    exceed the certified bound. `delta` in (0, 1). Raises `InputError` for numbers outside their range, `AuditError`
    where composition contradicts a certified bound.
    """
    check_probability("delta", delta)
    mu = math.hypot(certain_mu, *(math.sqrt(p.rounds) * p.certain_mu(kind) for p in parts if p.rate == 1.0))
    random = tuple(part for part in parts if part.rate < 1.0)
    if not random:
        exact = exactly(epsilon_from_mu(mu, delta))
        return PrvAnswer(epsilon=exact, composed=False, note="every record is in every batch: exact Gaussian")
    lower, certified = _certified(kind, random, mu, delta)

    def alone(why: str) -> PrvAnswer:
        return PrvAnswer(
            epsilon=EpsilonRange(lower=min(lower, certified), estimate=certified, upper=certified),
            composed=False,
            note=why,
        )

    if certified == 0.0:
        return alone("certified bound without composition: delta(0) is below delta")
    if lower > VACUOUS:
        return alone("vacuous (> 100): certified bounds, not composed")
    if fast:
        return alone("certified bound, not composed (fast)")
    rounds = _rounds(kind, random, mu, DELTA_ERROR * delta)
    if rounds is None:
        return alone("certified bound alone: the noise is too low to compose")
    moments = composed_moments([(part.moments, part.count) for part in rounds])
    answer = compose(rounds, moments, delta=delta, delta_error=DELTA_ERROR * delta, certified=certified)
    if answer is None:
        return alone("certified bound alone: a mesh that decides anything would not fit")
    if answer.lower > certified * (1.0 + AGREE) + AGREE or answer.upper < lower * (1.0 - AGREE) - AGREE:
        raise _disagreement(answer.lower, certified, kind, parts, delta)
    bounded = EpsilonRange(
        lower=max(answer.lower, min(lower, certified)),
        estimate=min(answer.estimate, certified),
        upper=min(answer.upper, certified),
    )
    bounded = replace(bounded, estimate=max(bounded.estimate, bounded.lower))
    vacuous = "vacuous (> 100); " if bounded.lower > VACUOUS else ""
    return PrvAnswer(
        epsilon=bounded, composed=True, note=f"{vacuous}composed, error {answer.upper - answer.estimate:.2g}"
    )


@lru_cache(maxsize=256)
def _certified(
    kind: PairKind, random: tuple[SampledRounds, ...], certain_mu: float, delta: float
) -> tuple[float, float]:
    """Return certified lower and upper bounds on epsilon without composition; `AuditError` where they contradict."""
    known = [Participation(mu=p.certain_mu(kind), rounds=p.rounds, rate=p.rate, fixed=None) for p in random]
    upper = participations_epsilon(known, delta=delta, certain_mu=certain_mu).upper
    moments = sampled_moments(kind, random, certain_mu=certain_mu, delta=delta)
    if moments is not None:
        upper = min(upper, moments.epsilon(delta))
    # Who sees all parts sees the best of them.
    lower = max(certified_lower(part.pair(kind), part.rounds, delta) for part in random)
    if certain_mu > 0.0:
        lower = max(lower, epsilon_from_mu(certain_mu, delta))
    if lower > upper * (1.0 + AGREE) + AGREE:
        raise _disagreement(lower, upper, kind, random, delta)
    return lower, upper


def sampled_moments(
    kind: PairKind, parts: Sequence[SampledRounds], *, certain_mu: float, delta: float
) -> LossMoments | None:
    """Return the moments of all `parts` (rates below 1) and `certain_mu` together; None at very low noise."""
    rounds = _rounds(kind, parts, certain_mu, DELTA_ERROR * delta)
    return composed_moments([(part.moments, part.count) for part in rounds]) if rounds else None


def _rounds(
    kind: PairKind, random: Sequence[SampledRounds], certain_mu: float, delta_error: float
) -> list[Rounds] | None:
    """Return every part with its moments, the certain Gaussian one too; None where one has too little noise."""
    pairs = [(part.pair(kind), part.rounds) for part in random]
    if certain_mu > 0.0:
        pairs.append((SampledGaussian(kind="remove", rate=1.0, noise=1.0 / certain_mu), 1))
    outside = delta_error / (1e3 * sum(count for _, count in pairs))
    found = []
    for pair, count in pairs:
        moments = loss_moments(pair, outside=outside)
        if moments is None:
            return None
        found.append(Rounds(pair=pair, moments=moments, count=count))
    return found


def _disagreement(
    lower: float, upper: float, kind: PairKind, parts: Sequence[SampledRounds], delta: float
) -> AuditError:
    described = ", ".join(f"r = {p.rate:.6g}, z = {p.noise:.6g}, T = {p.rounds}" for p in parts)
    return AuditError(
        f"accountants disagree: one says epsilon >= {lower:.6g}, a certified bound says <= {upper:.6g} "
        f"({kind}, {described}, delta = {delta:.3g})"
    )
