"""PRV accounting of Poisson-sampled rounds: discretised privacy losses composed by FFT, with stated errors.

Discretisation and composition are those of the `prv-accountant` package (Gopi, Lee and Wutschitz, 2021); the
privacy random variables, their means and the size of the domain are ours. The package's own domain starts at
+-3 whatever epsilon is, its mean has an absolute error that many rounds multiply, and its mechanism is the
remove direction alone: at small epsilon or low noise it takes minutes or fails.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpzv_audit.accounting.gaussian import FloatArray, epsilon_from_mu
from dpzv_audit.accounting.mixture import known_ids_epsilon
from dpzv_audit.accounting.sampled import LossMoments, PairKind, SampledGaussian, loss_moments
from dpzv_audit.errors import AuditError, check_count, check_positive, check_probability
from dpzv_audit.evidence import EpsilonRange

VACUOUS = 100.0
"""Past this epsilon an answer is vacuous, and a certified bound is given without composing anything."""

_WORTH_COMPOSING = 3.0 * VACUOUS
"""A certified bound may be loose, so up to here the composition says whether the truth is vacuous too."""

_FARTHEST = 650.0
"""Losses past this would overflow e^loss."""

_RELATIVE_ERROR = 0.002
_FEWEST_POINTS = 2**14
_MOST_POINTS = 2**23
_ROUNDING = 8.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class PrvAnswer:
    """Range of epsilon for one pair, and how it was had: `composed`, or the certified bound alone and why."""

    epsilon: EpsilonRange
    composed: bool
    note: str


@lru_cache(maxsize=256)
def prv_epsilon(*, kind: PairKind, rate: float, noise: float, rounds: int, delta: float) -> PrvAnswer:
    """Return epsilon of `rounds` Poisson-sampled Gaussian rounds at `delta`, for one pair of `sampled`.

    `rate` r in (0, 1], `noise` z > 0 relative to ONE record's contribution c, `rounds` T >= 1,
    `delta` in (0, 1); `InputError` otherwise.

    First a certified bound (no amplification, or Chernoff's on the privacy loss); the composition runs only
    where that is at most 3 times the vacuous limit. `estimate` and `upper` never exceed the certified bound.
    Raises `AuditError` if the composition contradicts it.
    """
    check_count("rounds", rounds)
    check_positive("noise", noise)
    check_probability("delta", delta)
    step = (2.0 if kind == "replace" else 1.0) / noise
    if rate == 1.0:
        epsilon = epsilon_from_mu(math.sqrt(rounds) * step, delta)
        return PrvAnswer(
            epsilon=EpsilonRange(lower=epsilon, estimate=epsilon, upper=epsilon),
            composed=False,
            note="every record is in every batch: exact Gaussian",
        )
    check_probability("rate", rate)
    pair = SampledGaussian(kind=kind, rate=rate, noise=noise)
    delta_error = delta * 1e-3
    moments = loss_moments(pair, outside=delta_error / (1e3 * rounds))
    certified = known_ids_epsilon(noise_multiplier=1.0 / step, delta=delta, rounds=rounds, rate=rate, fixed=None).upper
    if moments is not None:
        certified = min(certified, moments.epsilon(rounds, delta))

    def alone(why: str) -> PrvAnswer:
        return PrvAnswer(epsilon=EpsilonRange(lower=0.0, estimate=certified, upper=certified), composed=False, note=why)

    if certified == 0.0:
        return alone("certified bound without composition: delta(0) is below delta")
    if certified > _WORTH_COMPOSING:
        return alone("vacuous (> 100): certified bound, not composed")
    rounding = _ROUNDING * rounds
    if moments is None or rounding > delta / 10.0:
        return alone("certified bound alone: beyond the reach of double-precision composition")
    answer = _compose(pair, moments, rounds=rounds, delta=delta, delta_error=delta_error + rounding, scale=certified)
    if answer is None:
        return alone("certified bound alone: a mesh that decides anything would not fit")
    if answer.lower > certified * (1.0 + 1e-9):
        raise AuditError(
            f"accountants disagree: prv says epsilon >= {answer.lower:.6g}, a certified bound says "
            f"<= {certified:.6g} ({kind}, r = {rate:.6g}, z = {noise:.6g}, T = {rounds}, delta = {delta:.3g})"
        )
    bounded = EpsilonRange(
        lower=answer.lower, estimate=min(answer.estimate, certified), upper=min(answer.upper, certified)
    )
    vacuous = "vacuous (> 100); " if bounded.upper > VACUOUS else ""
    return PrvAnswer(
        epsilon=bounded, composed=True, note=f"{vacuous}composed, error {answer.upper - answer.estimate:.2g}"
    )


class _Truncated:
    """A privacy random variable as `prv-accountant` discretises it: cut to [-limit, limit], with its mean."""

    pm_inf = 0.0

    def __init__(self, pair: SampledGaussian, limit: float, moments: LossMoments) -> None:
        self._pair = pair
        self._limit = limit
        ends = pair.inverse(np.array([-limit, limit]))
        low, high = pair.window(moments.outside)
        self._low, self._high = max(low, float(ends[0])), min(high, float(ends[1]))
        mass = pair.cdf(np.array([-limit, limit]))
        self._base, self._mass = float(mass[0]), float(mass[1] - mass[0])

    def probability(self, left: NDArray[Any], right: NDArray[Any]) -> FloatArray:
        """Return the mass of adjacent cells: right[i] is left[i + 1], so the edges are computed once."""
        edges = np.append(left, right[-1]).astype(np.float64)
        cumulative = self._pair.cdf(np.clip(edges, -self._limit, self._limit))
        return np.diff(cumulative) / self._mass

    def mean(self) -> float:
        """Return the mean loss on the cut range, by quadrature over x."""
        rule = self._pair.quadrature(self._low, self._high)
        if rule is None:
            raise AuditError("the privacy loss is too steep to integrate")
        x, weights, _ = rule
        return float(weights @ self._pair.loss(x)) / float(weights.sum())


def _compose(
    pair: SampledGaussian,
    moments: LossMoments,
    *,
    rounds: int,
    delta: float,
    delta_error: float,
    scale: float,
) -> EpsilonRange | None:
    """Compose `rounds` rounds and read off epsilon; None where no mesh within the limits would say anything.

    The errors follow theorem 5.5 of Gopi, Lee and Wutschitz: with mesh error / sqrt(T/2 ln(12/delta_error))
    rounding moves the sum by more than `error` with probability at most delta_error/6 (Hoeffding), counted
    twice; cutting single losses (window) and wrapping the sum around (Chernoff) cost delta_error/4 at most.
    """
    mesh_per_error = 1.0 / math.sqrt(rounds / 2.0 * math.log(12.0 / delta_error))
    reach = max(moments.spread(rounds, delta_error / 16.0), abs(moments.least), abs(moments.most))
    if reach > _FARTHEST:
        return None
    drift, best = 0.0, None
    for _ in range(6):
        size, error = _grid(reach + drift, _RELATIVE_ERROR * scale, mesh_per_error)
        if error > scale / 4.0:
            break
        mesh = error * mesh_per_error
        composed, shift = _composed(pair, moments, rounds=rounds, mesh=mesh, size=size)
        # The mean correction moves every round's grid by `shift`, and the sum's grid T times as far.
        if rounds * abs(shift) > drift + error:
            drift = 1.1 * rounds * abs(shift)
            continue
        best = _read(composed, delta=delta, delta_error=delta_error, error=error)
        if error <= 0.01 * best.estimate or error > 1.01 * _RELATIVE_ERROR * scale:
            break
        scale = best.upper  # a loose certified bound made for a coarse mesh; now the scale is known better
    return best


def _grid(reach: float, error: float, mesh_per_error: float) -> tuple[int, float]:
    """Return an even, FFT-friendly number of points and the error in epsilon that it allows, near `error`.

    The grid covers +-(reach + 2 error) with mesh error * mesh_per_error; the limits on its size come first.
    """
    from scipy.fft import next_fast_len

    wanted = 2.0 * (reach + 2.0 * error) / (error * mesh_per_error) + 6.0
    half = next_fast_len(math.ceil(min(max(wanted, _FEWEST_POINTS), _MOST_POINTS) / 2.0), real=True)
    span = (half - 3.0) * mesh_per_error - 2.0
    return 2 * half, reach / span if span > 0.0 else math.inf


def _composed(pair: SampledGaussian, moments: LossMoments, *, rounds: int, mesh: float, size: int) -> tuple[Any, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant.composers import Fourier
        from prv_accountant.discretisers import CellCentred
        from prv_accountant.domain import Domain

        half = (size // 2 - 1.5) * mesh
        domain = Domain.create_aligned(-half, half, mesh)
        variable = _Truncated(pair, float(-domain.t_min()), moments)
        try:
            single = CellCentred().discretise(variable, domain)
        except RuntimeError as error:
            raise AuditError(f"prv could not discretise the privacy loss: {error}") from error
        composed = Fourier([single]).compute_composition([int(rounds)])
    return composed, float(single.domain.shifts())


def _read(composed: Any, *, delta: float, delta_error: float, error: float) -> EpsilonRange:
    start = float(composed.domain.t_min())
    t = start + float(composed.domain.dt()) * np.arange(len(composed.domain), dtype=np.float64)
    positive = t > 0.0
    t = t[positive]
    p = np.asarray(composed.pmf, dtype=np.float64)[positive]
    mass = np.cumsum(p[::-1])[::-1]
    tilted = np.cumsum((p * np.exp(-t))[::-1])[::-1]

    def delta_at(epsilon: float) -> float:
        i = int(np.searchsorted(t, epsilon, side="right"))
        return 0.0 if i >= len(t) else float(mass[i] - math.exp(epsilon) * tilted[i])

    def epsilon_at(target: float) -> float:
        if delta_at(0.0) <= target:
            return 0.0
        return float(brentq(lambda e: delta_at(e) - target, 0.0, float(t[-1]), rtol=1e-10, xtol=1e-12))

    estimate = epsilon_at(delta)
    lower = max(0.0, epsilon_at(delta + delta_error) - error)
    return EpsilonRange(lower=lower, estimate=estimate, upper=epsilon_at(delta - delta_error) + error)
