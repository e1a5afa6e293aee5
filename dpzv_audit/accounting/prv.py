"""PRV accounting of sampled rounds: certified bounds at once, and composition where they do not decide.

Discretisation is that of the `prv-accountant` package (Gopi, Lee and Wutschitz, 2021); the privacy random variables,
their means and the size of the domain are ours. The package's own domain starts at +-3 whatever epsilon is, its mean
has an absolute error that many rounds multiply, and its mechanism is the remove direction alone, so that at small
epsilon or low noise it takes minutes or fails.

Losses are composed on a mesh by Fourier transform, with an exponential tilt: masses are weighted by e^(s L) before the
transform and by e^(-s L) after it, where s is the order at which Chernoff's bound is least, so that what decides delta
is the bulk of what is transformed, not a tail as small as the rounding. A transform F is raised to the power T as
exp(T ln(1 + (F - 1))) with F - 1 computed as such, so that rare large losses do not drown in the rounding of 1.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from ..base.errors import AuditError, InputError, check_count, check_delta, check_positive
from ..base.findings import EpsilonRange
from .gaussian import Floats, Participation, epsilon_from_mu, exactly, participations_epsilon
from .sampled import (
    ORDERS,
    KnownBatch,
    LossMoments,
    PairKind,
    SampledGaussian,
    certified_lower,
    composed_moments,
    loss_moments,
)

VACUOUS = 100.0
"""An epsilon that is certainly past this is vacuous: its certified bounds are given, and nothing is composed."""

DELTA_ERROR = 1e-4
"""Share of delta that the composition may lose."""

AGREE = 1e-9
"""Rounding that two bounds may differ by without a contradiction."""


class Rounds(NamedTuple):
    """So many rounds of one pair, each with a batch of its own, which the adversary does not know."""

    pair: SampledGaussian
    rounds: int


class KnownRounds(NamedTuple):
    """So many rounds whose batches the adversary knows."""

    pair: KnownBatch
    rounds: int


AnyRounds = Rounds | KnownRounds


class PrvAnswer(NamedTuple):
    """Range of epsilon for one pair, and how it was had: composed, or the certified bound alone and why."""

    epsilon: EpsilonRange
    note: str


def prv_epsilon(*, kind: PairKind, rate: float, noise: float, rounds: int, delta: float) -> PrvAnswer:
    """Return epsilon of `rounds` sampled Gaussian rounds at `delta`, for one pair; see `prv_composition`."""
    if not 0.0 < rate <= 1.0:
        raise InputError("use a number in (0, 1]", "rate", rate)
    pair = SampledGaussian(kind=kind, rate=rate, noise=check_positive("noise", noise))
    return prv_composition((Rounds(pair, check_count("rounds", rounds)),), delta=delta)


def prv_directions(
    directions: Mapping[PairKind, tuple[Rounds, ...]],
    *,
    delta: float,
    certain_mu: float = 0.0,
    fast: bool = False,
    enough: float | None = None,
) -> PrvAnswer:
    """Return the largest epsilon at `delta` of the rounds in `directions`, each as `prv_composition` has it.

    Nothing is composed where `fast`, where the certified bounds of all directions decide (both sides of `enough`, or a
    lower one past the vacuous limit), or where a direction's certified bound cannot change the maximum.
    """

    def answer(kind: PairKind, *, fast: bool) -> PrvAnswer:
        return prv_composition(directions[kind], delta=delta, certain_mu=certain_mu, fast=fast)

    answers = {kind: answer(kind, fast=True) for kind in directions}
    whole = _larger(answers.values())
    if whole.epsilon.lower > VACUOUS:
        return whole._replace(note="vacuous (> 100): certified bounds, not composed")
    if fast:
        return whole
    if enough is not None and (whole.epsilon.upper <= enough or whole.epsilon.lower > enough):
        return whole._replace(note="certified bound, which decides: not composed")
    for kind in sorted(directions, key=lambda kind: -answers[kind].epsilon.upper):
        if answers[kind].epsilon.upper > max(other.epsilon.lower for other in answers.values()):
            answers[kind] = answer(kind, fast=False)
    return _larger(answers.values())


def _larger(answers: Iterable[PrvAnswer]) -> PrvAnswer:
    ranges, notes = zip(*answers, strict=True)
    uppers = [epsilon.upper for epsilon in ranges]
    epsilon = EpsilonRange(
        lower=max(epsilon.lower for epsilon in ranges),
        estimate=max(epsilon.estimate for epsilon in ranges),
        upper=max(uppers),
    )
    return PrvAnswer(epsilon, notes[uppers.index(epsilon.upper)])


@lru_cache(maxsize=256)
def prv_composition(
    parts: tuple[Rounds, ...], *, delta: float, certain_mu: float = 0.0, fast: bool = False
) -> PrvAnswer:
    """Return epsilon at `delta` of independently sampled `parts` and one Gaussian release of `certain_mu`.

    Certified bounds come first: no amplification, or Chernoff's on the privacy loss, from above; tests on counts from
    below. The composition runs unless `fast`, or the lower one is past the vacuous limit. `estimate` and `upper` never
    exceed the certified bound. `delta` in (0, 1). Raises `InputError` for numbers outside their range, `AuditError`
    where composition contradicts a certified bound.
    """
    check_delta("delta", delta)
    mu = math.hypot(certain_mu, *(math.sqrt(count) * pair.certain_mu for pair, count in parts if pair.rate == 1.0))
    random = tuple(sampled for sampled in parts if sampled.pair.rate < 1.0)
    if not random:
        exact = exactly(epsilon_from_mu(mu, delta))
        return PrvAnswer(exact, "every record is in every batch: exact Gaussian")
    lower, certified = _certified(random, mu, delta)
    least = min(lower, certified)

    def alone(why: str) -> PrvAnswer:
        return PrvAnswer(EpsilonRange(lower=least, estimate=certified, upper=certified), why)

    if certified == 0.0:
        return alone("certified bound without composition: delta(0) is below delta")
    if lower > VACUOUS:
        return alone("vacuous (> 100): certified bounds, not composed")
    if fast:
        return alone("certified bound, not composed (fast)")
    rounds = _with_moments(random, mu, delta)
    if rounds is None:
        return alone("certified bound alone: the noise is too low to compose")
    answer = compose(rounds, delta=delta, certified=certified)
    if answer is None:
        return alone("certified bound alone: a mesh that decides anything would not fit")
    if answer.lower > certified * (1.0 + AGREE) + AGREE or answer.upper < lower * (1.0 - AGREE) - AGREE:
        raise _disagreement(answer.lower, certified, parts, delta)
    least = max(answer.lower, least)
    estimate = max(min(answer.estimate, certified), least)
    vacuous = "vacuous (> 100); " if least > VACUOUS else ""
    composed = EpsilonRange(lower=least, estimate=estimate, upper=min(answer.upper, certified))
    return PrvAnswer(composed, f"{vacuous}composed, error {answer.upper - answer.estimate:.2g}")


@lru_cache(maxsize=256)
def prv_known(
    parts: tuple[Participation, ...], *, delta: float, certain_mu: float = 0.0, fast: bool = False
) -> PrvAnswer:
    """Return epsilon at `delta` of Gaussian rounds whose batches are known, and one Gaussian of `certain_mu`.

    Fixed counts are unsampled rounds; with a random one each of its rounds holds the record by the rate, and no cap
    may limit it. What is composed stands beside the exact Gaussian, and does not lean on it: `AuditError` where the two
    contradict. Where nothing is composed (`fast`, past the vacuous limit, no mesh that tells to 1%) it is the exact
    Gaussian.
    """
    exact = participations_epsilon(parts, delta=delta, certain_mu=certain_mu)
    if fast or not 0.0 < exact.lower <= VACUOUS:
        return PrvAnswer(exact, "known ids: exact Gaussian, not composed")
    known = [
        KnownRounds(KnownBatch(rate=participation.rate, mu=participation.mu), participation.rounds)
        if participation.fixed is None
        else KnownRounds(KnownBatch(rate=1.0, mu=participation.mu), participation.fixed)
        for participation in parts
        if participation.fixed != 0
    ]
    rounds = _with_moments(known, certain_mu, delta)
    assert rounds is not None
    enough = (1.0 + _COARSEST) * exact.upper
    limit = _joint(rounds).epsilon(delta)
    answer = compose(rounds, delta=delta, certified=limit, points=_FEW_POINTS) if limit < math.inf else None
    if answer is not None and answer.upper > enough:
        answer = compose(rounds, delta=delta, certified=min(answer.upper, limit), points=_FEW_POINTS)
    if answer is not None and (
        answer.lower > exact.upper * (1.0 + AGREE) + AGREE or answer.upper < exact.lower * (1.0 - AGREE) - AGREE
    ):
        raise _disagreement(answer.lower, exact.upper, known, delta)
    if answer is None or answer.upper > enough:
        return PrvAnswer(exact, "known ids: exact Gaussian; a mesh that tells to 1% would not fit")
    return PrvAnswer(answer, f"known ids: unsampled rounds composed, error {answer.upper - answer.estimate:.2g}")


@lru_cache(maxsize=256)
def _certified(random: tuple[Rounds, ...], certain_mu: float, delta: float) -> tuple[float, float]:
    """Return certified lower and upper bounds on epsilon without composition; `AuditError` where they contradict."""
    known = [Participation(mu=pair.certain_mu, rounds=count, rate=pair.rate, fixed=None) for pair, count in random]
    upper = participations_epsilon(known, delta=delta, certain_mu=certain_mu).upper
    moments = sampled_moments(random, certain_mu=certain_mu, delta=delta)
    if moments is not None:
        upper = min(upper, moments.epsilon(delta))
    # Who sees all parts sees the best of them.
    lower = max(certified_lower(pair, count, delta) for pair, count in random)
    if certain_mu > 0.0:
        lower = max(lower, epsilon_from_mu(certain_mu, delta))
    if lower > upper * (1.0 + AGREE) + AGREE:
        raise _disagreement(lower, upper, random, delta)
    return lower, upper


def sampled_moments(parts: Sequence[Rounds], *, certain_mu: float, delta: float) -> LossMoments | None:
    """Return the moments of all `parts` (rates below 1) and `certain_mu` together; None at very low noise."""
    rounds = _with_moments(parts, certain_mu, delta)
    return _joint(rounds) if rounds else None


def _with_moments(
    random: Sequence[AnyRounds], certain_mu: float, delta: float
) -> list[tuple[AnyRounds, LossMoments]] | None:
    """Return all parts, the certain Gaussian too, with one round's moments; None where one has too little noise."""
    parts = list(random)
    if certain_mu > 0.0:
        parts.append(KnownRounds(KnownBatch(rate=1.0, mu=certain_mu), 1))
    # In logs: so small a share of a small delta would be no float.
    log_outside = math.log(DELTA_ERROR * delta) - math.log(1e3 * sum(rounds.rounds for rounds in parts))
    with_moments = []
    for rounds in parts:
        pair = rounds.pair
        if isinstance(pair, KnownBatch):
            moments: LossMoments | None = pair.moments(log_outside)
        else:
            moments = loss_moments(pair, log_outside=log_outside)
        if moments is None:
            return None
        with_moments.append((rounds, moments))
    return with_moments


def _joint(rounds: Iterable[tuple[AnyRounds, LossMoments]]) -> LossMoments:
    return composed_moments([(moments, sampled.rounds) for sampled, moments in rounds])


def _disagreement(lower: float, upper: float, parts: Sequence[AnyRounds], delta: float) -> AuditError:
    described = ", ".join(
        f"{pair.kind}, r = {pair.rate:.6g}, z = {pair.noise:.6g}, T = {count}" for pair, count in parts
    )
    return AuditError(
        f"accountants disagree: one says epsilon >= {lower:.6g}, a certified bound says <= {upper:.6g} "
        f"({described}, delta = {delta:.3g})"
    )


_RELATIVE_ERROR = 0.004
_COARSEST = 0.01
_FEWEST_POINTS = 2**14
_MOST_POINTS = 2**23
_FEW_POINTS = 2**20
_ROUNDING = 8.0 * float(np.finfo(np.float64).eps)
_FARTHEST = 600.0
_LARGEST_EXPONENT = 600.0
_PASSES = 8
_PIECE = 2**17
# A mesh that would have more than _COARSER x _LARGE points is tried out with so many fewer first.
_COARSER = 8.0
_LARGE = 2**18


class _Tail(NamedTuple):
    """delta(epsilon) of a composed loss, read off its tilted masses; precise near `near` and above it.

    Attributes:
        t: Losses, the first above 0 or as far below `near` as e^(-s (t - near)) stays a float.
        mass: Sums of q e^(-s (t - near)) from each loss up, where q are the tilted masses; e^`log_scale` makes them P.
        lighter: The same with e^(near - t) in it as well, which makes them Q.
        whole: Whether `t` goes down to 0.
    """

    t: Floats
    mass: Floats
    lighter: Floats
    order: float
    near: float
    log_scale: float
    whole: bool

    def delta(self, epsilon: float) -> float:
        i = int(np.searchsorted(self.t, epsilon, side="right"))
        if i >= len(self.t):
            return 0.0
        head = float(self.mass[i]) - math.exp(epsilon - self.near) * float(self.lighter[i])
        if head > 0.0:
            return math.exp(min(math.log(head) + self.log_scale, 700.0))
        return 0.0

    def weight(self, epsilon: float) -> float:
        """Return what an error of 1 in the tilted masses could make of delta at `epsilon`."""
        return math.exp(min(self.log_scale - self.order * (epsilon - self.near), 700.0))


def _cell_masses(
    pair: SampledGaussian | KnownBatch, losses: tuple[float, float], left: NDArray[Any], right: NDArray[Any]
) -> Floats:
    """Return P's masses of adjacent cells, cut to `losses`: right[i] is left[i + 1], so the edges are computed once.

    Differences of P(L <= t) left of 0 and of P(L > t) right of it: the small ones keep their digits.
    """
    edges = np.empty(len(left) + 1)
    edges[:-1], edges[-1] = left, right[-1]
    np.clip(edges, *losses, out=edges)
    masses: Floats = np.empty(len(left))
    turn = int(np.searchsorted(edges, 0.0))
    # In pieces, so that what is computed on the way takes no memory worth mentioning.
    for start in (*range(0, turn, _PIECE), *range(turn, len(masses), _PIECE)):
        stop = min(start + _PIECE, turn if start < turn else len(masses))
        piece = edges[start : stop + 1]
        masses[start:stop] = np.diff(pair.cdf(piece)) if start < turn else -np.diff(pair.survival(piece))
    masses /= masses.sum()
    return masses


def compose(
    parts: Sequence[tuple[AnyRounds, LossMoments]], *, delta: float, certified: float, points: int = _MOST_POINTS
) -> EpsilonRange | None:
    """Compose `parts`, each with the moments of one of its rounds, and read off epsilon at `delta`.

    `certified` is an upper bound on epsilon, and what is read off is not far above it; the mesh has at most `points`.
    None where no mesh within the limits would say anything.

    The errors follow theorem 5.5 of Gopi, Lee and Wutschitz: with mesh error / sqrt(T/2 ln(12/delta_error))
    rounding moves the sum by more than `error` with probability at most delta_error/6 (Hoeffding), counted
    twice; cutting single losses (window) and wrapping the sum around (Chernoff) cost delta_error/4 at most.
    """
    delta_error = DELTA_ERROR * delta
    moments = _joint(parts)
    rounds = sum(sampled.rounds for sampled, _ in parts)
    mesh_per_error = 1.0 / math.sqrt(rounds / 2.0 * math.log(12.0 / delta_error))
    single = max(abs(loss) for _, moments_of_one in parts for loss in (moments_of_one.floor, moments_of_one.ceiling))
    scale = certified
    near = certified
    drift = 0.0
    fine = False
    best = None
    for _ in range(_PASSES):
        order, wrapped, spread = _tilt(moments, near, delta_error, rounds)
        reach = max(spread, single, certified)
        if reach > _FARTHEST:
            return best
        wanted = (1.0 if fine else _COARSER) * _RELATIVE_ERROR * scale
        size, error = _grid(reach + drift, wanted, mesh_per_error, points)
        if not fine and size < _LARGE:
            fine = True  # small enough to begin with the mesh that is wanted
            size, error = _grid(reach + drift, _RELATIVE_ERROR * scale, mesh_per_error, points)
        if error > scale / 4.0:
            return best
        tail, moved, rounding = _composed(parts, mesh=error * mesh_per_error, size=size, order=order, near=near)
        # The correction of the mean moves every round's grid, and the sum's grid by all of them together.
        if abs(moved) > drift + error:
            drift = 1.1 * abs(moved)
            continue
        # A little past `certified`: the mesh may have moved the answer beyond it.
        highest = certified + 2.0 * error
        estimate = _solve(tail, delta, highest)
        lost = (rounding + 2.0 * wrapped) * tail.weight(estimate)
        if lost > delta_error and estimate < 0.999 * near:
            near = max(estimate, 1e-3 * near)  # the tilt was for a bound too loose: tilt for what it found
            continue
        if lost > delta / 10.0:
            return best
        best = _read(tail, estimate, delta=delta, delta_error=delta_error + lost, error=error, highest=highest)
        known = max(best.estimate, 0.01 * best.upper)
        if fine and (error <= 0.01 * best.estimate or error > 1.01 * _RELATIVE_ERROR * scale or known > 0.9 * scale):
            break
        # A loose certified bound made for a coarse mesh, or a large one was tried out: now the scale is known better.
        scale = known
        near = best.upper
        fine = True
    return best


def _tilt(moments: LossMoments, near: float, delta_error: float, rounds: int) -> tuple[float, float, float]:
    """Return the order of the tilt, the tilted mass that may be wrapped around, and how far the rest spreads.

    Chernoff's best order at `near`, or one below it where rare large losses, tilted, would spread much further, as long
    as rounding stays small against delta. What is wrapped around weighs at most e^(ln M - s epsilon): 1e-4 leaves room
    for an epsilon below `near`.
    """
    best = int(np.argmin(moments.up - ORDERS * near))
    largest = math.log(delta_error) - math.log(_ROUNDING * rounds) - 1.0
    tilts = []
    for index in {max(best - step, 0) for step in (0, 2, 4, 8, 12, 20)}:
        order = float(ORDERS[index])
        log_weight = float(moments.up[index]) - order * near
        if index != best and log_weight > largest:
            continue
        log_wrapped = min(math.log(0.5), math.log(1e-4 * delta_error) + min(max(-log_weight, -600.0), 690.0))
        tilts.append((moments.spread(log_wrapped, tilt=order), -order, math.exp(log_wrapped)))
    spread, negative, wrapped = min(tilts)
    return -negative, wrapped, spread


def _grid(reach: float, error: float, mesh_per_error: float, points: int) -> tuple[int, float]:
    """Return a number of points, at most `points`, and the error in epsilon that it allows, near `error`.

    The grid covers +-(reach + 2 error) with mesh error * mesh_per_error; the limits on its size come first. Sizes are
    2^k or 3 2^k: scipy keeps the tables of its last transforms, which for ever new sizes take gigabytes.
    """
    wanted = 2.0 * (reach + 2.0 * error) / (error * mesh_per_error) + 6.0
    power = 2 ** math.ceil(math.log2(min(max(wanted, _FEWEST_POINTS), points)))
    size = power * 3 // 4 if power * 3 // 4 >= max(wanted, _FEWEST_POINTS) else power
    span = (size // 2 - 3.0) * mesh_per_error - 2.0
    return size, reach / span if span > 0.0 else math.inf


def _composed(
    parts: Sequence[tuple[AnyRounds, LossMoments]], *, mesh: float, size: int, order: float, near: float
) -> tuple[_Tail, float, float]:
    """Return the composed tail, how far the means' corrections moved the grid in all, and the tilted masses' error."""
    from prv_accountant.discretisers import CellCentred
    from prv_accountant.domain import Domain
    from scipy.fft import irfft

    half = (size // 2 - 1.5) * mesh
    domain = Domain.create_aligned(-half, half, mesh)
    centre = size // 2 - 1
    t = np.asarray((np.arange(size) - centre) * float(domain.dt()))
    exponent: NDArray[Any] | None = None
    log_scale = 0.0
    moved = 0.0
    rounding = 1.0
    for (pair, count), moments in parts:
        # Where the loss saturates, much of P has the least or the most loss in floats: the window must hold all of it.
        least = moments.floor
        most = moments.ceiling
        losses = least - 1e-9 * abs(least) - 1e-12, most + 1e-9 * abs(most)
        # A privacy random variable as the package discretises it.
        variable = SimpleNamespace(
            pm_inf=0.0, mean=partial(float, moments.mean), probability=partial(_cell_masses, pair, losses)
        )
        try:
            single = CellCentred().discretise(variable, domain)
        except RuntimeError as error:
            raise AuditError(f"prv could not discretise the privacy loss: {error}") from error
        shift = float(single.domain.shifts())
        log_transform, log_moment, spread = _tilted_transform(single.pmf, t, order, centre)
        log_transform *= count
        exponent = log_transform if exponent is None else exponent + log_transform
        log_scale += count * (log_moment + order * shift)
        moved += count * shift
        rounding += count * spread
        del single, log_transform
    assert exponent is not None
    np.exp(exponent, out=exponent)
    pmf = np.roll(irfft(exponent, size), centre)
    del exponent
    t += moved
    return _tail(t, pmf, order=order, near=near, log_scale=log_scale - order * near), moved, _ROUNDING * rounding


def _tilted_transform(pmf: Floats, t: Floats, order: float, centre: int) -> tuple[Any, float, float]:
    """Return ln of the transform of `pmf` weighted by e^(`order` t) and scaled to sum 1.

    Also ln of the sum before scaling, and the mass off the centre, to which the rounding is relative. Masses that
    the weight would leave below e^-745 of the largest are nothing to the sum, and left out.
    """
    from scipy.fft import rfft

    with np.errstate(divide="ignore"):
        exponent = np.log(pmf)
    exponent += order * t
    peak = float(exponent.max())
    exponent -= peak
    np.maximum(exponent, -745.0, out=exponent)
    weighted = np.exp(exponent, out=exponent)
    total = float(weighted.sum())
    weighted /= total
    weighted[centre] = 0.0
    off_centre = float(weighted.sum())
    excess = rfft(np.roll(weighted, -centre))
    excess -= off_centre
    x = excess.real
    y = excess.imag
    # numpy's complex log1p rounds 1 + x first
    square = 2.0 * x + x * x + y * y
    far = square < -0.5
    result = np.empty_like(excess)
    result.imag = np.arctan2(y, 1.0 + x)
    result.real[~far] = 0.5 * np.log1p(square[~far])
    result.real[far] = np.log(np.maximum(np.hypot(1.0 + x[far], y[far]), 1e-150))
    return result, peak + math.log(total), off_centre


def _tail(t: Floats, pmf: Floats, *, order: float, near: float, log_scale: float) -> _Tail:
    """Undo the tilt, from 0 up or from where e^(-s (t - near)) is a float: far below what is read."""
    lowest = near - _LARGEST_EXPONENT / (1.0 + order)
    first = int(np.searchsorted(t, max(0.0, lowest), side="right"))
    t = t[first:]
    pmf = pmf[first:]
    mass = pmf * np.exp(np.maximum(order * (near - t), -745.0))
    lighter = np.cumsum((mass * np.exp(near - t))[::-1])[::-1]
    mass = np.cumsum(mass[::-1])[::-1]
    return _Tail(t, mass, lighter, order, near, log_scale, whole=lowest <= 0.0)


def _solve(tail: _Tail, target: float, highest: float) -> float:
    """Return the largest epsilon up to `highest` with delta(epsilon) = `target`, 0 where there is none.

    Searched from above, where the tilted masses are precise: far below the answer they are rounding.
    """
    high = min(highest, float(tail.t[-1]))
    if tail.delta(high) > target:
        return high
    floor = 0.0 if tail.whole else float(tail.t[0])
    step = high / 50.0
    while high > floor:
        low = max(floor, high - step)
        if tail.delta(low) > target:
            # Digits far below the mesh mean nothing; an epsilon of next to 0 would take thousands of steps to them.
            close = {"rtol": 1e-10, "xtol": 1e-12 * step, "maxiter": 500}
            return float(brentq(lambda e: tail.delta(e) - target, low, high, **close))
        high = low
    return floor


def _read(
    tail: _Tail, estimate: float, *, delta: float, delta_error: float, error: float, highest: float
) -> EpsilonRange:
    least = _solve(tail, delta + delta_error, highest)
    most = _solve(tail, delta - delta_error, highest)
    return EpsilonRange(lower=max(0.0, least - error), estimate=estimate, upper=max(most, estimate) + error)
