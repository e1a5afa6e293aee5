"""Families of trade-off curves f_theta, one parameter each: the larger theta, the less private the mechanism.

`gaussian`: f(a) = Phi(Phi^-1(1 - a) - mu). `laplace`: Laplace noise of scale 1 on a shift of epsilon. `pure`:
f(a) = max(0, 1 - e^epsilon a, e^-epsilon (1 - a)), randomised response. `epsilon_delta_family`: every (epsilon, delta)
mechanism at one delta. Source: Dong, Roth and Su (JRSS B 2022), definition 2.6, appendix A and proposition 2.5.

`sampled_family`: Poisson-sampled Gaussian rounds, by composing privacy losses. One round's pair (P, Q) is put on a mesh
of losses from below: the mass of each cell goes to its two edges such that the masses under P and under Q are both
kept. That only spreads the likelihood ratio, so the pair on the mesh is at least as easy to tell apart (Doroshenko,
Ghazi, Kamath, Kumar and Manurangsi, PETS 2022) and its curve, like that of its composition, lies below the true one: a
bound on the noise that rests on it is never too large.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr, ndtri

from ..base.errors import InputError, check_count, check_probability
from ..base.findings import ClaimKind, EpsilonRange
from .binomial import Curve, Floats

_NORMAL = NormalDist()
_SQRT_HALF = math.sqrt(0.5)


@dataclass(frozen=True, kw_only=True)
class CurveFamily:
    """Curves of one mechanism at every strength of its noise.

    `curve(alpha, theta)` is the least false negative rate at false positive rates `alpha`, in the game where "in" is
    the world with the canary: convex and falling in alpha, falling in theta; where it is computed with an error, a
    lower bound on it. `epsilon(theta, delta)` never exceeds the mechanism's own. Theta is looked for on the lattice
    `least` * `ratio`^k up to `most`, and rounded down to it.
    """

    name: str
    curve: Callable[[Floats, float], Floats]
    epsilon: Callable[[float, float], float]
    blow_up: Callable[[float, float], float] | None = None
    """For curves that are their own inverse, the x in [0, 1] with 1 - f_theta(x) = r at (r, theta), of plain floats."""
    through: Callable[[Floats, Floats], Floats] | None = None
    """Where it has a closed form, the theta whose curve goes through (k,) rates (fpr, fnr), 0 for none."""
    least: float = 1e-4
    most: float = 1e2
    ratio: float = 1.001

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that a theta of this family refutes."""
        return "epsilon-delta" if self.name == "epsilon-delta" else "trade-off"

    def proves(self, theta: float, delta: float) -> float:
        """Return the epsilon at `delta` that a proved `theta` stands for; 0 where nothing is proved."""
        return self.epsilon(theta, delta) if theta > 0.0 else 0.0

    @property
    def steps(self) -> int:
        """The lattice's last place."""
        return math.floor(math.log(self.most / self.least) / math.log(self.ratio))

    def at(self, place: int) -> float:
        """Theta at a place of the lattice; 0 stands before the first."""
        return self.least * self.ratio**place if place >= 0 else 0.0

    def of(self, theta: float) -> Curve:
        """Return the curve of one theta."""
        return lambda alpha: self.curve(alpha, theta)


def _gaussian_curve(alpha: Floats, mu: float) -> Floats:
    # Phi^-1(1 - alpha) = -Phi^-1(alpha), which keeps the digits of a small alpha.
    return np.asarray(ndtr(-ndtri(alpha) - mu))


def _gaussian_blow_up(r: float, mu: float) -> float:
    # f(1 - r) = Phi(Phi^-1(r) - mu).
    if 0.0 < r < 1.0:
        return 0.5 * math.erfc((mu - _NORMAL.inv_cdf(r)) * _SQRT_HALF)
    return r


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of mu-Gaussian-DP at `delta`, mu >= 0."""
    # The root finder behind it is the heaviest import here, so it waits until a mu has been proved.
    from ..accounting.gaussian import epsilon_from_mu

    return float(epsilon_from_mu(mu, delta))


def _laplace_curve(alpha: Floats, epsilon: float) -> Floats:
    with np.errstate(divide="ignore"):
        # Least false negative rate: 1 - e^eps a up to a = e^-eps / 2, then e^-eps / (4 a) up to 1/2, then linear.
        middle = math.exp(-epsilon) / (4.0 * alpha)
    steep = 1.0 - np.exp(np.minimum(epsilon + np.log(np.maximum(alpha, 1e-300)), 1.0))
    shallow = math.exp(-epsilon)
    return np.where(alpha < 0.5 * shallow, steep, np.where(alpha <= 0.5, middle, shallow * (1.0 - alpha)))


def _laplace_blow_up(r: float, epsilon: float) -> float:
    shrunk = math.exp(-epsilon)
    if r <= 0.5:
        return shrunk * r
    rest = 1.0 - r
    return 1.0 - rest / shrunk if rest < 0.5 * shrunk else shrunk / (4.0 * rest)


def _laplace_epsilon(epsilon: float, delta: float) -> float:
    # delta(e) = 1 - e^((e - epsilon) / 2).
    return max(0.0, epsilon + 2.0 * math.log1p(-delta))


def _pure_epsilon(epsilon: float, delta: float) -> float:
    # Randomised response: delta(e) = (e^epsilon - e^e) / (1 + e^epsilon), solved for e.
    inside = -delta * math.exp(-epsilon) + (1.0 - delta)
    return max(0.0, epsilon + math.log(inside)) if inside > 0.0 else 0.0


@lru_cache(maxsize=64)
def epsilon_delta_family(delta: float) -> CurveFamily:
    """Return the curves max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a)) at `delta` in (0, 1).

    A mechanism is (epsilon, delta)-private if and only if its trade-off curve lies on or above that of epsilon
    (Kairouz, Oh and Viswanath, ICML 2015, theorem 2.1; Dong, Roth and Su, proposition 2.5).
    """

    def curve(alpha: Floats, epsilon: float) -> Floats:
        steep = 1.0 - delta - np.exp(np.minimum(epsilon + np.log(np.maximum(alpha, 1e-300)), 1.0))
        return np.maximum(0.0, np.maximum(steep, math.exp(-epsilon) * (1.0 - delta - alpha)))

    def through(fpr: Floats, fnr: Floats) -> Floats:
        room = np.maximum(1.0 - delta - np.stack([fnr, fpr]), 1e-300)
        return np.asarray(np.maximum(0.0, np.max(np.log(room) - np.log(np.stack([fpr, fnr])), axis=0)))

    def blow_up(r: float, epsilon: float) -> float:
        return max(0.0, 1.0 - delta - math.exp(epsilon) * (1.0 - r), math.exp(-epsilon) * (r - delta))

    return CurveFamily(
        name="epsilon-delta",
        curve=curve,
        epsilon=lambda epsilon, _delta: epsilon,
        blow_up=blow_up,
        through=through,
        least=1e-3,
    )


GAUSSIAN = CurveFamily(
    name="gaussian",
    curve=_gaussian_curve,
    epsilon=gaussian_epsilon,
    blow_up=_gaussian_blow_up,
)
LAPLACE = CurveFamily(
    name="laplace",
    curve=_laplace_curve,
    epsilon=_laplace_epsilon,
    blow_up=_laplace_blow_up,
)
PURE = replace(epsilon_delta_family(0.0), name="pure", epsilon=_pure_epsilon, through=None, least=1e-4)
FAMILIES = {family.name: family for family in (GAUSSIAN, LAPLACE, PURE)}


PAIRS = ("remove", "replace")
_CELL = 0.04
"""Width of a cell in standard deviations of one round's loss: it adds at most 0.0004 to the variance, relatively."""
_FARTHEST = 8.0
_ORDERS = np.geomspace(1e-3, 300.0, 200)


def sampled_family(*, rate: float, rounds: int, pair: str = "remove") -> CurveFamily:
    """Return the family of `rounds` >= 1 rounds at sampling `rate` in (0, 1), in theta = 1 / noise multiplier.

    `pair` is `remove` where the record is absent in the world "out" (add-remove, zero-out), with theta against one
    contribution, or `replace` where it contributes with the other sign. `epsilon` is that of both directions of the
    relation, the lower end of the accountant's range.
    Raises `InputError` for numbers out of range.
    """
    check_count("rounds", rounds)
    check_probability("rate", rate)
    if pair not in PAIRS:
        raise InputError(f"use one of {', '.join(PAIRS)}", "pair", pair)

    def curve(alpha: Floats, theta: float) -> Floats:
        return np.interp(alpha, *composed_corners(pair, rate, 1.0 / theta, rounds))

    def epsilon(theta: float, delta: float) -> float:
        return max(answer.lower for answer in sampled_epsilons(pair, rate, 1.0 / theta, rounds, delta))

    return CurveFamily(
        name=f"sampled-gaussian(rate={rate:g}, rounds={rounds}, pair={pair})",
        curve=curve,
        epsilon=epsilon,
        least=0.02,
        most=20.0,
        ratio=1.004,
    )


@lru_cache(maxsize=16)
def sampled_epsilons(pair: str, rate: float, noise: float, rounds: int, delta: float) -> tuple[EpsilonRange, ...]:
    """Return the epsilon of `rounds` sampled rounds in each direction of the relation, by the PRV accountant."""
    from ..accounting.prv import prv_epsilon

    kinds: tuple[str, ...] = ("remove", "add") if pair == "remove" else ("replace",)
    settings = {"rate": rate, "noise": noise, "rounds": rounds, "delta": delta}
    return tuple(prv_epsilon(kind=kind, **settings).epsilon for kind in kinds)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def composed_corners(pair: str, rate: float, noise: float, rounds: int) -> tuple[Floats, Floats]:
    """Return the corners (alpha rising, beta falling) of a convex curve just below that of the composition."""
    losses, p, q = _one_round(pair, rate, noise)
    mesh = float(losses[1] - losses[0])
    low, high = _reach(losses, p, q, rounds)
    size = 2 ** math.ceil(math.log2(max((high - low) / mesh + 2.0, 2.0 * losses.size)))
    # The transform wraps the sum around: place k holds the losses T losses[0] + (k + j size) mesh, of which one is in
    # reach.
    place = math.floor((low - losses[0] * rounds) / mesh)
    sums = (np.fft.irfft(np.fft.rfft(mass, size) ** rounds, size) for mass in (p, q))
    p_all, q_all = (np.roll(np.maximum(mass, 0.0), -(place % size)) for mass in sums)
    # From the largest loss down: tests that say "in" there first. What P lost beyond the reach goes to the attacker.
    alpha = np.append(0.0, np.cumsum(q_all[::-1]))
    lost = max(0.0, 1.0 - float(p_all.sum()))
    beta = 1.0 - lost - np.append(0.0, np.cumsum(p_all[::-1]))
    rising = np.append(True, np.diff(alpha) > 0.0)
    alpha = np.clip(alpha[rising], 0.0, 1.0)
    beta = np.clip(beta[rising], 0.0, 1.0)
    return np.append(alpha, 1.0), np.append(beta, 0.0)


def _one_round(pair: str, rate: float, noise: float) -> tuple[Floats, Floats, Floats]:
    """Return losses on a mesh with the masses of P and of Q there."""
    # The accounting loads a root finder, so it waits until a sampled mechanism is audited.
    from ..accounting.sampled import SampledGaussian

    round_ = SampledGaussian(kind="remove" if pair == "remove" else "replace", rate=rate, noise=noise)
    base = (0.0, 1.0 - rate)
    other = ((0.0, 1.0),) if pair == "remove" else (base, (-1.0, rate))
    means = (base, (1.0, rate)), other
    x = np.linspace(-1.0 - _FARTHEST * noise, 1.0 + _FARTHEST * noise, 20_001)
    weight = sum(w * np.exp(-0.5 * ((x - mean) / noise) ** 2) for mean, w in means[0])
    loss = round_.loss(x)
    average = float(np.average(loss, weights=weight))
    spread = math.sqrt(float(np.average((loss - average) ** 2, weights=weight)))
    mesh = _CELL * spread
    edges: Floats = np.multiply(mesh, np.arange(math.floor(loss[0] / mesh), math.ceil(loss[-1] / mesh) + 1))
    z = np.concatenate([[-np.inf], round_.inverse(edges[1:-1]), [np.inf]])
    p, q = (sum(w * masses_between((z - mean) / noise) for mean, w in mixture) for mixture in means)
    # Of each cell's Q mass, `upper` goes to its upper edge: then the P mass e^loss Q comes out right as well.
    share = np.clip((p * np.exp(-edges[:-1]) - q) / math.expm1(mesh), 0.0, q)
    q_mesh = np.append(q - share, 0.0) + np.append(0.0, share)
    return edges, q_mesh * np.exp(edges), q_mesh


def masses_between(z: Floats) -> Floats:
    """Return the normal masses between neighbouring deviates, with their digits kept in both tails."""
    left = np.diff(ndtr(z))
    right = -np.diff(ndtr(-z))
    return np.asarray(np.where(z[1:] + z[:-1] < 0.0, left, right))


def _reach(losses: Floats, p: Floats, q: Floats, rounds: int) -> tuple[float, float]:
    """Return an interval that the sum of losses leaves with chance 1e-11 at most, under P and Q (Chernoff)."""
    up = np.log(np.exp(np.minimum(_ORDERS[:, None] * losses, 700.0)) @ p)
    down = np.log(np.exp(np.minimum(-_ORDERS[:, None] * losses, 700.0)) @ q)
    need = -math.log(1e-11)
    high = float(np.min((rounds * up + need) / _ORDERS))
    low = -float(np.min((rounds * down + need) / _ORDERS))
    return max(low, rounds * float(losses[0])), min(high, rounds * float(losses[-1]))
