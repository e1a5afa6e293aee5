"""Noise, rounds or batches for a target (epsilon, delta): paper 001's theorem 5.1, and every sound bound inverted."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from ..base.errors import AuditError, InputError, check_count, check_delta, check_names, check_positive
from ..base.findings import AdversaryName, NeighbourRelation, UpperBound
from ..base.rounding import ACCOUNTANT_DIGITS, up
from .accountants import certified_lower, tightest_sound, upper_bounds
from .bounds import AccountantQuery, SampledView, meanings
from .gaussian import epsilon_from_mu, mu_from_epsilon
from .release import NEIGHBOURS, Release


def sigma_from_paper(epsilon: float, delta: float, *, clip: float, dataset_size: float, rounds: int) -> float:
    """Return sigma = 2 C sqrt(T) / (D mu), what theorem 5.1 claims to give (`epsilon`, `delta`); it does not.

    `epsilon` > 0, 0 < `delta` < 1, `dataset_size` > 0; raises `InputError` otherwise. Where a public rate Q replaces
    B/D, `dataset_size` is B/Q (`Release.nominal_records`).
    """
    check_positive("clip", clip)
    check_positive("dataset_size", dataset_size)
    check_count("rounds", rounds)
    mu = mu_from_epsilon(check_positive("epsilon", epsilon), delta)
    return 2.0 * clip * math.sqrt(rounds) / (dataset_size * mu)


def sigma_sound(
    epsilon: float,
    delta: float,
    *,
    clip: float,
    batch_size: int,
    participations: int,
    neighbours: NeighbourRelation = "replace-label",
    server_noise_multiplier: float | None = None,
) -> float:
    """Return the least sigma = s sqrt(n) / mu that gives (`epsilon`, `delta`) where the ids are known.

    n = `participations` counts all clients' rounds; s = 2C/B (`zero-out`: C/B). Where the server moves by dp-sgd with
    noise z_s = `server_noise_multiplier` times its clip, each participation costs 1/z_s^2 (4/z_s^2 where a record is
    replaced) besides, and the scalars get what n of these leave of mu^2. The answer is checked forward: its epsilon is
    at most `epsilon`. Raises `InputError` for `add-remove`, which is undefined for known ids, for numbers outside
    their range, and where the server's updates leave nothing.
    """
    check_positive("clip", clip)
    check_count("batch_size", batch_size)
    check_count("participations", participations)
    if neighbours not in NEIGHBOURS or neighbours == "add-remove":
        allowed = ", ".join(name for name in NEIGHBOURS if name != "add-remove")
        raise InputError(f"use one of {allowed}: known ids show who is there", "neighbours", neighbours)
    mu = mu_from_epsilon(check_positive("epsilon", epsilon), delta)
    moved = 1.0 if neighbours == "zero-out" else 2.0
    rounds = math.sqrt(participations)
    sensitivity = moved * clip / batch_size
    server = 0.0
    if server_noise_multiplier is not None:
        server = rounds * moved / check_positive("server_noise_multiplier", server_noise_multiplier)
        if server >= mu:
            raise InputError(
                f"use more than {rounds * moved / mu:.6g}: "
                f"the server's own updates alone would spend epsilon {epsilon}",
                "server_noise_multiplier",
                server_noise_multiplier,
            )
    sigma = sensitivity * rounds / math.sqrt(mu * mu - server * server)
    for step in range(60):
        # Rounding may leave the forward value an ulp above the target; grow sigma until it is not.
        if epsilon_from_mu(math.hypot(rounds * sensitivity / sigma, server), delta) <= epsilon:
            return sigma
        sigma *= 1.0 + 2.0 ** (step - 52)
    raise AuditError(f"no sigma found for epsilon = {epsilon}, delta = {delta}")


N = TypeVar("N", int, float)

Unknown = Literal["sigma", "rounds", "batch-size"]
UNKNOWNS: tuple[Unknown, ...] = get_args(Unknown)

MOST_ROUNDS = 10**7
"""The search for rounds goes no further."""

_MOST_NOISE = 1e9
"""Noise further than this above a record's contribution changes nothing that noise could change."""

_CLOSER = (9, 9, 9)
"""How many sizes of batches are tried around the best so far, again and again: a factor of 2 apart, 1.2, 1.05, 1.01."""

# Relative precision of a calibrated sigma: closed forms, and composition with its own error.
_EXACT = 1e-10
_COMPOSED = 2e-3


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The value of `unknown` that meets a target, or why none does.

    Attributes:
        value: sigma, T or B; None where the target cannot be reached.
        release: The release with that value.
        bound: The tightest sound bound of that release: its upper epsilon is at most the target.
        at_least: What the epsilon of that release is at least, for certain; None where nothing is known from below.
        tolerance: Share of the target that lies between the two: the true epsilon is that much below it at most.
        reason: Why the target cannot be reached, or what the value is.
        warning: Why the target promises little whatever the noise is, where it does.
    """

    unknown: Unknown
    epsilon: float
    delta: float
    adversary: AdversaryName
    neighbours: NeighbourRelation
    reached: bool
    value: float | int | None
    release: Release | None
    bound: UpperBound | None
    at_least: float | None
    tolerance: float | None
    reason: str
    warning: str | None = None


def calibrate(
    release: Release,
    *,
    unknown: Unknown,
    epsilon: float,
    delta: float,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
) -> Calibration:
    """Return the least sigma, most rounds or smallest batch whose tightest sound bound is at most `epsilon`.

    The other settings are those of `release`, whose own value of `unknown` is not used. The answer is checked forward.
    sigma is within 1e-10 of the least, and rounds are exactly the most, up to 10^7; both within 0.2 % where the bound
    is composed numerically. A batch one smaller than the answer does not meet the target, one larger might not either.
    Raises `InputError` for a target or a setting outside its range. A target that cannot be reached is an answer.
    """
    check_positive("epsilon", epsilon)
    check_delta("delta", delta)
    check_names("unknown", [unknown], UNKNOWNS)
    if unknown == "batch-size" and release.sample_rate is not None:
        raise InputError("leave it out where batch-size is sought", "sample_rate", release.sample_rate)
    if unknown != "sigma" and release.participations is not None:
        raise InputError(f"leave it out where {unknown} is sought", "participations", release.participations)

    search = _Search(release, unknown, epsilon, delta, adversary, neighbours)
    easiest = {"sigma": _MOST_NOISE * release.sigma_unit, "rounds": 1, "batch-size": int(release.records)}[unknown]
    gapped = search.bounds(easiest)
    if tightest_sound(gapped) is None:
        gaps = meanings(gapped)
        proof = {name: why for name, why in gaps.items() if name != "no-accountant"} or gaps
        words = "; ".join(f"{name}: {why}" for name, why in proof.items())
        return search.answer(None, f"cannot be reached: no sound bound exists whatever {unknown} is ({words})")
    if unknown == "batch-size" and not search.meets(easiest):
        easiest = _best_batch(int(release.records), search.cost)
    if not search.meets(easiest):
        why = f"with {easiest} records in a batch, the best of the sizes tried,"
        if unknown == "sigma":
            why = f"even with sigma = {easiest:.3g} (what other messages and the server's own updates cost)"
        elif unknown == "rounds":
            why = "of a single round"
        elif easiest == release.dataset_size:
            why = f"even with all {easiest} records in a batch"
        if math.isfinite(search.cost(easiest)):
            why += f" is {up(search.cost(easiest), ACCOUNTANT_DIGITS, beside=search.epsilon)}"
        return search.answer(None, f"cannot be reached: the tightest sound epsilon {why}")
    return search.answer(*search.turning(easiest))


@dataclass(frozen=True)
class _Search:
    """A search for the value of `unknown` at which the tightest sound bound of `release` is at most `epsilon`."""

    release: Release
    unknown: Unknown
    epsilon: float
    delta: float
    adversary: AdversaryName
    neighbours: NeighbourRelation

    def at(self, value: float) -> Release:
        """Return the release with `value` for the unknown setting."""
        field: dict[str, Any] = {self.unknown.replace("-", "_"): value}
        return replace(self.release, **field)

    def account(self, value: float) -> Callable[..., list[UpperBound]]:
        """Return `upper_bounds` of the release with `value`; what is left open are its options."""
        return partial(
            upper_bounds,
            self.at(value),
            delta=self.delta,
            adversaries=[self.adversary],
            neighbours=[self.neighbours],
        )

    def bounds(self, value: float) -> list[UpperBound]:
        """Return the bounds that decide whether `value` meets the target."""
        return self.account(value)(accountants=("gdp-exact", "rdp", "prv"), enough=self.epsilon)

    def meets(self, value: float) -> bool:
        """Return whether the target is met at `value`."""
        return _upper(self.bounds(value)) <= self.epsilon

    @cached_property
    def amplified(self) -> bool:
        """Whether bounds count on sampling, and so are composed numerically."""
        view = AccountantQuery(self.release, self.adversary, self.neighbours, self.delta).amplified
        return isinstance(view, SampledView) and bool(view.rounds)

    @cached_property
    def cost(self) -> Callable[[float], float]:
        """Return the tightest sound epsilon by value, each computed once."""
        return cache(lambda value: _upper(self.account(value)(fast=not self.amplified)))

    def turning(self, easiest: float) -> tuple[float, str]:
        """Return the value next to which the target is no longer met, and what it is; `easiest` meets the target."""
        within = f" by its sound bound (to {_COMPOSED:.1%})" if self.amplified else ""
        if self.unknown == "sigma":
            unit = self.release.sigma_unit
            values = _by_fours(unit, 1e-40 * unit if self.meets(unit) else easiest)
            sigma = _turning(values, self.meets, precision=_COMPOSED if self.amplified else _EXACT)
            return sigma, f"the least sigma that meets it{within}"
        if self.unknown == "rounds":
            numbers = (1, *(min(2 * 4**power, MOST_ROUNDS) for power in range(13)))
            rounds = _turning(numbers, self.meets, precision=_COMPOSED if self.amplified else 0.0)
            more = "; the search went no further" if rounds == MOST_ROUNDS else within
            return rounds, f"the most rounds that meet it{more}"
        largest = int(easiest)
        # A batch of no record meets nothing, and the largest meets the target.
        sizes = [0, *_spread(1, largest, largest.bit_length() + 1)]
        batch = _turning(sizes, lambda size: size == largest or (size > 0 and self.meets(size)))
        return batch, "the smallest batch that meets it at this sigma and clip"

    def answer(self, value: float | None, reason: str) -> Calibration:
        """Return the calibration, checked forward; `value` None where the target cannot be reached."""
        release = None if value is None else self.at(value)
        rate = (release or self.release).rate
        little = (
            f"delta is {self.delta:g}, not below the sampling rate {rate:.6g}. Publishing a whole batch would meet "
            "epsilon 0 at that delta, since a record is seldom in it. Choose a delta far below the rate"
        )
        checked: list[UpperBound] = []
        least = None
        if value is not None and release is not None:
            checked = self.bounds(value)
            if _upper(checked) > self.epsilon:
                raise AuditError(
                    f"calibrated {self.unknown} does not meet epsilon = {self.epsilon} when checked forward"
                )
            query = AccountantQuery(release, self.adversary, self.neighbours, self.delta)
            # Once more, and composed: bounds that decide need not be close.
            composed = self.account(value)(fast=not self.amplified)
            least = max(certified_lower(query, bound) for bound in composed) or None
        return Calibration(
            unknown=self.unknown,
            epsilon=self.epsilon,
            delta=self.delta,
            adversary=self.adversary,
            neighbours=self.neighbours,
            reached=value is not None,
            value=value,
            release=release,
            bound=tightest_sound(checked),
            at_least=least,
            tolerance=None if least is None else max(0.0, 1.0 - least / self.epsilon),
            reason=reason,
            warning=little if self.delta >= rate else None,
        )


def _upper(bounds: Iterable[UpperBound]) -> float:
    """Return the upper epsilon of the tightest sound bound, infinite where none is sound."""
    best = tightest_sound(bounds)
    return math.inf if best is None else best.upper


def _turning(values: Iterable[N], meets: Callable[[float], bool], *, precision: float = 0.0) -> N:
    """Return the value nearest to those that fail that meets, where `values` go from meeting to failing or back.

    It is bisected for between the two values around the turn, to `precision`, whole numbers exactly, and is the last
    value where there is no turn.
    """
    walk = iter(values)
    before = value = next(walk)
    first = meets(before)
    for value in walk:
        if meets(value) != first:
            break
        before = value
    fails, met = (value, before) if first else (before, value)
    whole = isinstance(met, int)
    while True:
        low = min(fails, met)
        high = max(fails, met)
        middle: N = (low + high) // 2 if whole else math.sqrt(low * high)  # type: ignore[assignment]
        if high <= max(low + whole, low * (1.0 + precision)) or not low < middle < high:
            return met
        fails, met = (fails, middle) if meets(middle) else (middle, met)


def _by_fours(start: float, end: float) -> Iterator[float]:
    """Yield `start`, and numbers a factor of 4 apart from there to `end`, which is the last."""
    while start != end:
        yield start
        start = min(4.0 * start, end) if start < end else max(start / 4.0, end)
    yield end


def _best_batch(records: int, cost: Callable[[float], float]) -> int:
    """Return the batch of least epsilon among sizes a factor of two apart, then of ever closer ones around the best.

    A larger batch makes less of each record in a scalar and has it take part more often: what a participation costs
    besides (a server's update by DP-SGD), or where noise is on rows, makes a smaller one better. Of batches of which a
    pass has equally many the largest is tried: in each a record takes part as often.
    """
    low = 1
    high = records
    best = records
    for count in (records.bit_length() + 1, *_CLOSER):
        sizes = sorted({records // (records // size) for size in _spread(low, high, count)})
        best = min((best, *sizes), key=cost)
        place = min(range(len(sizes)), key=lambda place: abs(sizes[place] - best))
        low = sizes[max(0, place - 1)]
        high = sizes[min(len(sizes) - 1, place + 1)]
    return best


def _spread(low: int, high: int, count: int) -> list[int]:
    """At most `count` whole numbers from `low` to `high`, both included, as evenly as may be by their logarithm."""
    return sorted({round(size) for size in np.geomspace(low, high, count)})
