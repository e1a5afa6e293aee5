"""Composition of privacy losses on a mesh by Fourier transform, tilted so that small deltas keep their digits.

Discretisation and transforms are those of the `prv-accountant` package (Gopi, Lee and Wutschitz, 2021); the privacy
random variables, their means and the size of the domain are ours. So is the exponential tilt: masses are weighted by
e^(s L) before the transform and by e^(-s L) after it, where s is the order at which Chernoff's bound is least, so that
what decides delta is the bulk of what is transformed, not a tail as small as the rounding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpzv_audit.accounting.gaussian import FloatArray
from dpzv_audit.accounting.moments import LossMoments
from dpzv_audit.accounting.sampled import SampledGaussian
from dpzv_audit.errors import AuditError
from dpzv_audit.evidence import EpsilonRange

_RELATIVE_ERROR = 0.002
_FEWEST_POINTS = 2**14
_MOST_POINTS = 2**23
_ROUNDING = 8.0 * float(np.finfo(np.float64).eps)
_FARTHEST = 600.0
_PASSES = 8


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """So many rounds of one pair, with the moments of one of them."""

    pair: SampledGaussian
    moments: LossMoments
    count: int


@dataclass(frozen=True, kw_only=True)
class _Tail:
    """delta(epsilon) of a composed loss, read off its tilted masses; precise near `start` and above it."""

    t: FloatArray
    mass: FloatArray
    """Sums of p e^(-s (t - top)) from each point up, scaled by e^`log_scale`."""
    lighter: FloatArray
    """The same with e^(-t) in it as well."""
    order: float
    log_scale: float

    def delta(self, epsilon: float) -> float:
        i = int(np.searchsorted(self.t, epsilon, side="right"))
        if i >= len(self.t):
            return 0.0
        head = float(self.mass[i]) - math.exp(epsilon - float(self.t[0])) * float(self.lighter[i])
        return head * math.exp(self.log_scale) if head > 0.0 else 0.0

    def rounding(self, epsilon: float) -> float:
        """Return what an error of 1 in the tilted masses could make at `epsilon`."""
        return math.exp(min(self.log_scale - self.order * (epsilon - float(self.t[0])), 700.0))


class _Truncated:
    """A privacy random variable as `prv-accountant` discretises it: cut to [-limit, limit], with its mean."""

    pm_inf = 0.0

    def __init__(self, pair: SampledGaussian, limit: float, outside: float) -> None:
        self._pair = pair
        ends = pair.inverse(np.array([-limit, limit]))
        low, high = pair.window(outside)
        self._limit = limit
        self._low, self._high = max(low, float(ends[0])), min(high, float(ends[1]))

    def probability(self, left: NDArray[Any], right: NDArray[Any]) -> FloatArray:
        """Return the mass of adjacent cells: right[i] is left[i + 1], so the edges are computed once.

        Differences of P(L <= t) left of 0 and of P(L > t) right of it: the small ones keep their digits.
        """
        edges = np.empty(len(left) + 1)
        edges[:-1], edges[-1] = left, right[-1]
        np.clip(edges, -self._limit, self._limit, out=edges)
        turn = int(np.searchsorted(edges, 0.0))
        masses = np.empty(len(left))
        masses[:turn] = np.diff(self._pair.cdf(edges[: turn + 1]))
        masses[turn:] = -np.diff(self._pair.survival(edges[turn:]))
        return masses / masses.sum()

    def mean(self) -> float:
        """Return the mean loss on the cut range, by quadrature over x."""
        rule = self._pair.quadrature(self._low, self._high)
        if rule is None:
            raise AuditError("the privacy loss is too steep to integrate")
        x, weights, _ = rule
        return float(weights @ self._pair.loss(x)) / float(weights.sum())


def compose(
    parts: Sequence[Rounds], moments: LossMoments, *, delta: float, delta_error: float, certified: float
) -> EpsilonRange | None:
    """Compose `parts`, whose joint moments are `moments`, and read off epsilon at `delta`.

    `certified` is an upper bound on epsilon. None where no mesh within the limits would say anything.

    The errors follow theorem 5.5 of Gopi, Lee and Wutschitz: with mesh error / sqrt(T/2 ln(12/delta_error))
    rounding moves the sum by more than `error` with probability at most delta_error/6 (Hoeffding), counted
    twice; cutting single losses (window) and wrapping the sum around (Chernoff) cost delta_error/4 at most.
    """
    rounds = sum(part.count for part in parts)
    mesh_per_error = 1.0 / math.sqrt(rounds / 2.0 * math.log(12.0 / delta_error))
    single = max(abs(moments.least), abs(moments.most))
    scale, guess, drift, best = certified, certified, 0.0, None
    for _ in range(_PASSES):
        order = moments.best_order(guess)
        # What is wrapped around weighs at most e^(ln M - s epsilon), about 20 times delta near the answer.
        wrapped = min(0.5, delta_error / 16.0 * math.exp(min(order * guess - _moment(moments, order), 690.0)))
        reach = max(moments.spread(wrapped, tilt=order), single, certified)
        if reach > _FARTHEST:
            return best
        size, error = _grid(reach + drift, _RELATIVE_ERROR * scale, mesh_per_error)
        if error > scale / 4.0:
            return best
        tail, moved = _composed(parts, mesh=error * mesh_per_error, size=size, order=order)
        # The correction of the mean moves every round's grid, and the sum's grid by all of them together.
        if abs(moved) > drift + error:
            drift = 1.1 * abs(moved)
            continue
        estimate = _solve(tail, delta, certified)
        rounding = _ROUNDING * rounds * tail.rounding(estimate)
        if rounding > delta_error and estimate < 0.999 * guess:
            guess = max(estimate, 1e-3 * guess)  # the tilt was for a bound too loose: tilt for what it found
            continue
        if rounding > delta / 10.0:
            return best
        best = _read(tail, delta=delta, delta_error=delta_error + rounding, error=error, certified=certified)
        if error <= 0.01 * best.estimate or error > 1.01 * _RELATIVE_ERROR * scale:
            break
        scale = best.upper  # a loose certified bound made for a coarse mesh; now the scale is known better
        guess = best.upper
    return best


def _moment(moments: LossMoments, order: float) -> float:
    return float(moments.log_moment(np.array([order]))[0])


def _grid(reach: float, error: float, mesh_per_error: float) -> tuple[int, float]:
    """Return an even, FFT-friendly number of points and the error in epsilon that it allows, near `error`.

    The grid covers +-(reach + 2 error) with mesh error * mesh_per_error; the limits on its size come first.
    """
    from scipy.fft import next_fast_len

    wanted = 2.0 * (reach + 2.0 * error) / (error * mesh_per_error) + 6.0
    half = next_fast_len(math.ceil(min(max(wanted, _FEWEST_POINTS), _MOST_POINTS) / 2.0), real=True)
    span = (half - 3.0) * mesh_per_error - 2.0
    return 2 * half, reach / span if span > 0.0 else math.inf


def _composed(parts: Sequence[Rounds], *, mesh: float, size: int, order: float) -> tuple[_Tail, float]:
    """Return the composed tail and how far the corrections of the means have moved the grid in all."""
    from scipy.fft import irfft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant.discretisers import CellCentred
        from prv_accountant.domain import Domain

    half = (size // 2 - 1.5) * mesh
    domain = Domain.create_aligned(-half, half, mesh)
    t = float(domain.t_min()) + float(domain.dt()) * np.arange(size)
    transform, log_scale, moved = None, 0.0, 0.0
    for part in parts:
        variable = _Truncated(part.pair, -float(domain.t_min()), part.moments.outside)
        try:
            single = CellCentred().discretise(variable, domain)
        except RuntimeError as error:
            raise AuditError(f"prv could not discretise the privacy loss: {error}") from error
        shift = float(single.domain.shifts())
        power, log_moment = _tilted_power(single.pmf, t, order, part.count, single.domain)
        transform = power if transform is None else transform * power
        log_scale += part.count * (log_moment + order * shift)
        moved += part.count * shift
    del single, power
    assert transform is not None
    rounds = sum(part.count for part in parts)
    pmf = np.roll(irfft(transform, size), -((rounds - 1) * (size // 2 - 1)) % size)
    del transform
    t += moved
    return _tail(t, pmf, order, log_scale), moved


def _tilted_power(pmf: FloatArray, t: FloatArray, order: float, count: int, domain: Any) -> tuple[Any, float]:
    """Return the transform of `pmf` weighted by e^(`order` t) and scaled to sum 1, to the power `count`; ln of the sum.

    The masses that the weight would leave below e^-700 of the largest are nothing to the sum, and left out.
    """
    from prv_accountant.composers import Fourier
    from prv_accountant.discrete_privacy_random_variable import DiscretePrivacyRandomVariable

    with np.errstate(divide="ignore"):
        exponent = np.log(pmf)
    exponent += order * t
    peak = float(exponent.max())
    exponent -= peak
    np.maximum(exponent, -745.0, out=exponent)
    weighted = np.exp(exponent, out=exponent)
    total = float(weighted.sum())
    weighted /= total
    composer = Fourier([DiscretePrivacyRandomVariable(weighted, domain)])
    return composer.F**count, peak + math.log(total)


def _tail(t: FloatArray, pmf: FloatArray, order: float, log_scale: float) -> _Tail:
    """Undo the tilt from 0 up; only as far down as e^(-s t) stays a float, which is far below what is read."""
    first = int(np.searchsorted(t, 0.0, side="right"))
    t, pmf = t[first:], pmf[first:]
    start = float(t[0])
    weight = np.exp(-np.minimum(order * (t - start), 745.0))
    mass = pmf * weight
    lighter = np.cumsum((mass * np.exp(start - t))[::-1])[::-1]
    mass = np.cumsum(mass[::-1])[::-1]
    return _Tail(t=t, mass=mass, lighter=lighter, order=order, log_scale=log_scale - order * start)


def _solve(tail: _Tail, target: float, certified: float) -> float:
    """Return the largest epsilon up to `certified` with delta(epsilon) = `target`, 0 where there is none.

    Searched from above, where the tilted masses are precise: far below the answer they are rounding.
    """
    high = min(certified * (1.0 + 1e-9), float(tail.t[-1]))
    step = max(high / 50.0, 1e-300)
    low = high
    while low > 0.0:
        low = max(0.0, low - step)
        if tail.delta(low) > target:
            return float(brentq(lambda e: tail.delta(e) - target, low, low + step, rtol=1e-10, xtol=1e-13))
    return 0.0


def _read(tail: _Tail, *, delta: float, delta_error: float, error: float, certified: float) -> EpsilonRange:
    estimate, least, most = (_solve(tail, target, certified + 2.0 * error) for target in _around(delta, delta_error))
    return EpsilonRange(lower=max(0.0, least - error), estimate=estimate, upper=most + error)


def _around(delta: float, delta_error: float) -> tuple[float, float, float]:
    return delta, delta + delta_error, delta - delta_error
