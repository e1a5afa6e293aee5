"""The trade-off curves of Poisson-sampled Gaussian rounds, one for each noise multiplier, by composing privacy losses.

One round's pair (P, Q) is put on a mesh of losses from below: the mass of each cell goes to its two edges such that
the masses under P and under Q are both kept. That only spreads the likelihood ratio, so the pair on the mesh is at
least as easy to tell apart (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, PETS 2022) and its curve, like that of
its composition, lies below the true one: a bound on the noise that rests on it is never too large.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpzv_audit.errors import InputError, check_count
from dpzv_audit.statistics.families import CurveFamily

Floats = NDArray[np.float64]

PAIRS = ("remove", "replace")
_LEAST, _MOST, _RATIO = 0.02, 20.0, 1.004
_CELL = 0.04
"""Width of a cell in standard deviations of one round's loss: it adds at most 0.0004 to the variance, relatively."""
_FARTHEST = 8.0
_TAIL = 1e-11
_ORDERS = np.geomspace(1e-3, 300.0, 200)


def sampled_family(*, rate: float, rounds: int, pair: str = "remove") -> CurveFamily:
    """Return the family of `rounds` >= 1 rounds at sampling `rate` in (0, 1), in theta = 1 / noise multiplier.

    `pair` is `remove` where the record is absent in the world "out" (add-remove, zero-out), with theta against one
    contribution, or `replace` where it contributes with the other sign. `epsilon` is that of both directions of the
    relation, the lower end of the accountant's range.
    Raises `InputError` for numbers out of range.
    """
    check_count("rounds", rounds)
    if not 0.0 < rate < 1.0:
        raise InputError("must lie strictly between 0 and 1", "rate", rate)
    if pair not in PAIRS:
        raise InputError(f"must be one of {', '.join(PAIRS)}", "pair", pair)

    def curve(alpha: Floats, theta: float) -> Floats:
        corners = composed_corners(pair, rate, 1.0 / theta, rounds)
        return np.asarray(np.interp(alpha, *corners), dtype=np.float64)

    def epsilon(theta: float, delta: float) -> float:
        from dpzv_audit.accounting.prv import prv_epsilon

        kinds: tuple[str, ...] = ("remove", "add") if pair == "remove" else ("replace",)
        found = [prv_epsilon(kind=k, rate=rate, noise=1.0 / theta, rounds=rounds, delta=delta) for k in kinds]  # type: ignore[arg-type]
        return max(answer.epsilon.lower for answer in found)

    return CurveFamily(
        name=f"sampled-gaussian(rate={rate:g}, rounds={rounds}, pair={pair})",
        parameter="1 / noise multiplier",
        curve=curve,
        epsilon=epsilon,
        least=_LEAST,
        most=_MOST,
        ratio=_RATIO,
    )


@lru_cache(maxsize=256)
def composed_corners(pair: str, rate: float, noise: float, rounds: int) -> tuple[Floats, Floats]:
    """Return the corners (alpha rising, beta falling) of a convex curve just below that of the composition."""
    losses, p, q = _one_round(pair, rate, noise)
    mesh = float(losses[1] - losses[0])
    low, high = _reach(losses, p, q, rounds)
    size = 2 ** math.ceil(math.log2(max((high - low) / mesh + 2.0, 2.0 * losses.size)))
    start = losses[0] * rounds
    # The transform wraps the sum around: place k holds the losses start + (k + j size) mesh, of which one is in reach.
    place = math.floor((low - start) / mesh)
    p_all, q_all = (np.roll(_power(mass, rounds, size), -(place % size)) for mass in (p, q))
    # From the largest loss down: tests that say "in" there first. What P lost beyond the reach goes to the attacker.
    alpha = np.concatenate([[0.0], np.cumsum(q_all[::-1])])
    beta = 1.0 - max(0.0, 1.0 - float(p_all.sum())) - np.concatenate([[0.0], np.cumsum(p_all[::-1])])
    rising = np.concatenate([[True], np.diff(alpha) > 0.0])
    alpha, beta = np.clip(alpha[rising], 0.0, 1.0), np.clip(beta[rising], 0.0, 1.0)
    return np.append(alpha, 1.0), np.append(beta, 0.0)


def _one_round(pair: str, rate: float, noise: float) -> tuple[Floats, Floats, Floats]:
    """Return losses on a mesh with the masses of P and of Q there."""
    # The accounting loads a root finder, so it waits until a sampled mechanism is audited.
    from dpzv_audit.accounting.sampled import SampledGaussian

    round_ = SampledGaussian(kind="remove" if pair == "remove" else "replace", rate=rate, noise=noise)
    means = ((0.0, 1.0 - rate), (1.0, rate)), ((0.0, 1.0),) if pair == "remove" else ((0.0, 1.0 - rate), (-1.0, rate))
    ends = -1.0 - _FARTHEST * noise, 1.0 + _FARTHEST * noise
    x = np.linspace(ends[0], ends[1], 20_001)
    weight = sum(w * np.exp(-0.5 * ((x - mean) / noise) ** 2) for mean, w in means[0])
    loss = round_.loss(x)
    average = float(np.average(loss, weights=weight))
    spread = math.sqrt(float(np.average((loss - average) ** 2, weights=weight)))
    mesh = _CELL * spread
    edges = mesh * np.arange(math.floor(float(loss[0]) / mesh), math.ceil(float(loss[-1]) / mesh) + 1)
    cuts = round_.inverse(np.asarray(edges[1:-1], dtype=np.float64))
    z = np.concatenate([[-np.inf], cuts, [np.inf]])
    p, q = (sum(w * _between((z - mean) / noise) for mean, w in part) for part in means)
    # Of each cell's Q mass, `upper` goes to its upper edge: then the P mass e^loss Q comes out right as well.
    share = np.clip((p * np.exp(-edges[:-1]) - q) / math.expm1(mesh), 0.0, q)
    q_mesh = np.append(q - share, 0.0) + np.append(0.0, share)
    return np.asarray(edges, dtype=np.float64), np.asarray(q_mesh * np.exp(edges)), np.asarray(q_mesh)


def _between(z: Floats) -> Floats:
    """Return the normal masses between neighbouring deviates, with their digits kept in both tails."""
    left, right = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.asarray(np.where(z[1:] + z[:-1] < 0.0, left, right), dtype=np.float64)


def _reach(losses: Floats, p: Floats, q: Floats, rounds: int) -> tuple[float, float]:
    """Return an interval that the sum of losses leaves with chance 1e-11 at most, under P and Q (Chernoff)."""
    up = np.log(np.exp(np.minimum(_ORDERS[:, None] * losses, 700.0)) @ p)
    down = np.log(np.exp(np.minimum(-_ORDERS[:, None] * losses, 700.0)) @ q)
    need = -math.log(_TAIL)
    high = float(np.min((rounds * up + need) / _ORDERS))
    low = -float(np.min((rounds * down + need) / _ORDERS))
    return max(low, rounds * float(losses[0])), min(high, rounds * float(losses[-1]))


def _power(mass: Floats, rounds: int, size: int) -> Floats:
    """Return the masses of a sum of `rounds` losses, around a circle of `size` places, as they come: at least 0."""
    return np.asarray(np.maximum(np.fft.irfft(np.fft.rfft(mass, size) ** rounds, size), 0.0), dtype=np.float64)
