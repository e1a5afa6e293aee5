"""Families of trade-off curves f_theta, one parameter each: the larger theta, the less private the mechanism.

`gaussian`: f(a) = Phi(Phi^-1(1 - a) - mu). `laplace`: Laplace noise of scale 1 on a shift of epsilon. `pure`:
f(a) = max(0, 1 - e^epsilon a, e^-epsilon (1 - a)), randomised response. `epsilon_delta_family`: every (epsilon, delta)
mechanism at one delta. Source: Dong, Roth and Su (JRSS B 2022), definition 2.6, appendix A and proposition 2.5. The
curve of sampled Gaussian rounds: `sampled_family`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpzv_audit.findings import ClaimKind

Floats = NDArray[np.float64]
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
    parameter: str
    curve: Callable[[Floats, float], Floats]
    epsilon: Callable[[float, float], float]
    blow_up: Callable[[float, float], float] | None = None
    """For curves that are their own inverse, the x in [0, 1] with 1 - f_theta(x) = r at (r, theta), of plain floats."""
    through: Callable[[Floats, Floats], Floats] | None = None
    """Where it has a closed form, the theta whose curve goes through (k,) rates (fpr, fnr), 0 for none."""
    least: float = 1e-3
    most: float = 1e3
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


def _gaussian_curve(alpha: Floats, mu: float) -> Floats:
    # Phi^-1(1 - alpha) = -Phi^-1(alpha), which keeps the digits of a small alpha.
    return np.asarray(ndtr(-ndtri(alpha) - mu), dtype=np.float64)


def _gaussian_blow_up(r: float, mu: float) -> float:
    # f(1 - r) = Phi(Phi^-1(r) - mu).
    return 0.5 * math.erfc((mu - _NORMAL.inv_cdf(r)) * _SQRT_HALF) if 0.0 < r < 1.0 else r


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of mu-Gaussian-DP at `delta`; 0 where nothing is proved about mu."""
    if mu <= 0.0:
        return 0.0
    # The root finder behind it is the heaviest import here, so it waits until a mu has been proved.
    from dpzv_audit.accounting.gaussian import epsilon_from_mu

    return float(epsilon_from_mu(mu, delta))


def _laplace_curve(alpha: Floats, epsilon: float) -> Floats:
    a = np.asarray(alpha, dtype=np.float64)
    with np.errstate(divide="ignore"):
        # Least false negative rate: 1 - e^eps a up to a = e^-eps / 2, then e^-eps / (4 a) up to 1/2, then linear.
        middle = math.exp(-epsilon) / (4.0 * a)
    steep, shallow = 1.0 - np.exp(np.minimum(epsilon + np.log(np.maximum(a, 1e-300)), 1.0)), math.exp(-epsilon)
    return np.where(a < 0.5 * shallow, steep, np.where(a <= 0.5, middle, shallow * (1.0 - a)))


def _laplace_blow_up(r: float, epsilon: float) -> float:
    if r <= 0.5:
        return math.exp(-epsilon) * r
    shrunk = math.exp(-epsilon)
    return 1.0 - (1.0 - r) / shrunk if 1.0 - r < 0.5 * shrunk else shrunk / (4.0 * (1.0 - r))


def _laplace_epsilon(epsilon: float, delta: float) -> float:
    # delta(e) = 1 - e^((e - epsilon) / 2).
    return max(0.0, epsilon + 2.0 * math.log1p(-delta))


def _pure_curve(alpha: Floats, epsilon: float) -> Floats:
    a = np.asarray(alpha, dtype=np.float64)
    steep = 1.0 - np.exp(np.minimum(epsilon + np.log(np.maximum(a, 1e-300)), 1.0))
    return np.maximum(0.0, np.maximum(steep, math.exp(-epsilon) * (1.0 - a)))


def _pure_blow_up(r: float, epsilon: float) -> float:
    return max(math.exp(-epsilon) * r, 1.0 - math.exp(epsilon) * (1.0 - r))


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
        a = np.asarray(alpha, dtype=np.float64)
        steep = 1.0 - delta - np.exp(np.minimum(epsilon + np.log(np.maximum(a, 1e-300)), 1.0))
        return np.maximum(0.0, np.maximum(steep, math.exp(-epsilon) * (1.0 - delta - a)))

    def through(fpr: Floats, fnr: Floats) -> Floats:
        room = np.maximum(1.0 - delta - np.stack([fnr, fpr]), 1e-300)
        return np.asarray(np.maximum(0.0, np.max(np.log(room) - np.log(np.stack([fpr, fnr])), axis=0)))

    def blow_up(r: float, epsilon: float) -> float:
        return max(0.0, 1.0 - delta - math.exp(epsilon) * (1.0 - r), math.exp(-epsilon) * (r - delta))

    return CurveFamily(
        name="epsilon-delta",
        parameter="epsilon",
        curve=curve,
        epsilon=lambda epsilon, _delta: epsilon,
        blow_up=blow_up,
        through=through,
        least=1e-3,
        most=1e2,
    )


GAUSSIAN = CurveFamily(
    name="gaussian",
    parameter="mu",
    curve=_gaussian_curve,
    epsilon=gaussian_epsilon,
    blow_up=_gaussian_blow_up,
    least=1e-4,
    most=1e2,
)
LAPLACE = CurveFamily(
    name="laplace",
    parameter="epsilon",
    curve=_laplace_curve,
    epsilon=_laplace_epsilon,
    blow_up=_laplace_blow_up,
    least=1e-4,
    most=1e2,
)
PURE = CurveFamily(
    name="pure",
    parameter="epsilon",
    curve=_pure_curve,
    epsilon=_pure_epsilon,
    blow_up=_pure_blow_up,
    least=1e-4,
    most=1e2,
)
FAMILIES: dict[str, CurveFamily] = {family.name: family for family in (GAUSSIAN, LAPLACE, PURE)}
