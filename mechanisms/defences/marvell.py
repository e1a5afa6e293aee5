"""Marvell: noise on gradients by the class of their record, of the covariance that hides it best for its power.

Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022 (arXiv 2102.08504): gradients
of the two classes are taken as N(g1, v I) and N(g0, u I). Noise N(0, S1) and N(0, S0) of mean power
p tr S1 + (1 - p) tr S0 <= P minimises the sum of both Kullback-Leibler divergences between what is sent of the one
class and of the other. The best covariances have one eigenvalue along g1 - g0 and another across it.
"""

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..core.defence import Defence, DefenceSpec, Draws

# Points of a grid, and how often it is made finer about the best: (2 / 64)^8 of the interval are left, 1e-12.
POINTS = 65
REFINED = 8
# Variances are at least this part of |g1 - g0|^2 and each other: the divergence of two points would be infinite.
LEAST = 1e-12
# By how much power grows until the divergence is met, as in the authors' code, and how often at most.
GROWTH = 1.5
MOST_GROWTH = 100


class Problem(NamedTuple):
    """The quantities that decide the covariances, each (K,): see `optimal`.

    `u` and `v` are the variances of a coordinate within class 0 and 1, `gap` is |g1 - g0|^2, `share` that of class 1 in
    the batch, and `width` the number of coordinates.
    """

    u: Tensor
    v: Tensor
    gap: Tensor
    share: Tensor
    width: int


class ClassNoise(NamedTuple):
    """Variances of noise, each (K,), along g1 - g0 and across it, for class 0 and 1, and the divergences' sum."""

    along0: Tensor
    across0: Tensor
    along1: Tensor
    across1: Tensor
    sum_kl: Tensor


def sum_kl(along0: Tensor, across0: Tensor, along1: Tensor, across1: Tensor, gap: Tensor, width: int) -> Tensor:
    """Return KL(1 || 0) + KL(0 || 1) of Gaussians with these variances in all and means that lie `gap`^(1/2) apart."""
    across = (width - 1) * (across0 / across1 + across1 / across0)
    return 0.5 * (across + (along0 + gap) / along1 + (along1 + gap) / along0) - width


def optimal(problem: Problem, power: Tensor) -> ClassNoise:
    """Return the noise of a mean `power` (K,) that minimises the divergences' sum.

    In variances in all (with u and v), the power is a weighted sum that is spent in full. Across, the class that varies
    more gets no noise (the paper's theorem), and the other's variance lies between the two: a grid over it, made finer
    about the best. Given that, the two along are where the sum is least on the line that the power leaves, at
    a1 = E a0 with E^2 = (C + (1 - p) g) / (C + p g) for p a1 + (1 - p) a0 = C, or at an end of it.
    """
    floor = LEAST * (problem.u + problem.v + problem.gap).clamp(min=1e-290)
    u, v = problem.u.maximum(floor), problem.v.maximum(floor)
    swapped = u > v
    share = torch.where(swapped, 1.0 - problem.share, problem.share).unsqueeze(1)
    low, high = u.minimum(v).unsqueeze(1), u.maximum(v).unsqueeze(1)
    gap = problem.gap.unsqueeze(1)
    others = problem.width - 1
    # Power and what is there without: `share` is that of the class that varies more.
    budget = power.unsqueeze(1) + problem.width * (share * high + (1.0 - share) * low)
    # All of the power on the other class, equally along and across, raises its variance across to this.
    most = torch.minimum(high, low + power.unsqueeze(1) / ((1.0 - share) * problem.width))
    left, right = low, most
    grid = torch.linspace(0.0, 1.0, POINTS, dtype=low.dtype, device=low.device)
    for _ in range(1 + REFINED):
        across = left + (right - left) * grid
        along0, along1 = _along(budget - others * (share * high + (1.0 - share) * across), share, gap, across, high)
        divergences = sum_kl(along0, across, along1, high.expand_as(across), gap, problem.width)
        best = divergences.argmin(1, keepdim=True)
        reach = (right - left) / (POINTS - 1)
        centre = across.gather(1, best)
        left, right = (centre - reach).maximum(low), (centre + reach).minimum(most)
    # Noise along and across, for the class that varies less and for the other.
    quiet = torch.cat([along0.gather(1, best) - low, across.gather(1, best) - low], 1).clamp(min=0.0).T
    loud = torch.cat([along1.gather(1, best) - high, torch.zeros_like(high)], 1).clamp(min=0.0).T
    of0, of1 = torch.where(swapped, loud, quiet), torch.where(swapped, quiet, loud)
    return ClassNoise(of0[0], of0[1], of1[0], of1[1], divergences.gather(1, best).squeeze(1))


def _along(left: Tensor, share: Tensor, gap: Tensor, least0: Tensor, least1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variances along the difference, share a1 + (1 - share) a0 = `left`, with a0 and a1 no less than given.

    On that line the sum falls to one point and rises from there: beyond an end the end is the best.
    """
    ratio = ((left + (1.0 - share) * gap) / (left + share * gap)).sqrt()
    along0 = left / (share * ratio + 1.0 - share)
    highest = (left - share * least1) / (1.0 - share)
    along0 = along0.minimum(highest).maximum(least0)
    return along0, ((left - (1.0 - share) * along0) / share).maximum(least1)


class Marvell(Defence):
    """Noise by class, whose covariance follows from the gradients of each batch and its labels."""

    place = "gradient"
    binary = True
    reads_labels = True

    name: Literal["marvell"] = "marvell"
    power: Annotated[float, Field(gt=0, le=1e9)] = 4.0
    """Mean power of the noise in a batch, in squared distances of the classes' mean gradients, s: P = s |g1 - g0|^2."""
    sum_kl: Annotated[float, Field(gt=0)] | None = None
    """Largest sum of the divergences: in a batch that exceeds it the power grows by 1.5 until it is met."""

    @property
    def draws(self) -> bool:
        """See `Defence.draws`."""
        return True

    def on_gradients(self, values: Tensor, labels: Tensor, real: Tensor, draws: Draws) -> Tensor:
        """Return gradients with noise by the class of each; of a batch that holds one class alone, zeros.

        Where there is no other class to hide among, gradients without noise would tell that all are of one.
        """
        width = values.shape[2]
        ones = (real & (labels == 1)).unsqueeze(2)
        zeros = (real & (labels == 0)).unsqueeze(2)
        mean1, v = _moments(values, ones)
        mean0, u = _moments(values, zeros)
        apart = mean1 - mean0
        gap = apart.square().sum((1, 2))
        count1, count0 = ones.sum((1, 2)), zeros.sum((1, 2))
        both = (count1 > 0) & (count0 > 0)
        share = torch.where(both, count1 / (count1 + count0).clamp(min=1), 0.5)
        noise = self._noise(Problem(u, v, gap, share, width))
        drawn = draws.normal((values.shape[1], width + 1), values)
        along0, across0, along1, across1 = (variance[:, None, None] for variance in noise[:4])
        across = torch.where(ones, across1, across0)
        beyond = (torch.where(ones, along1, along0) - across).clamp(min=0.0).sqrt()
        unit = torch.nn.functional.normalize(apart, dim=2, eps=1e-300)
        noised = values + beyond * drawn[..., :1] * unit + across.sqrt() * drawn[..., 1:]
        return noised * (real & both.unsqueeze(1)).unsqueeze(2)

    def _noise(self, problem: Problem) -> ClassNoise:
        """Return the noise of each batch, with the power that the setting or the largest divergence asks for."""
        scale = torch.full_like(problem.gap, self.power)
        noise = optimal(problem, scale * problem.gap)
        for _ in range(MOST_GROWTH if self.sum_kl is not None else 0):
            above = noise.sum_kl > (self.sum_kl or 0.0)
            if not bool((above & (problem.gap > 0)).any()):
                break
            scale = torch.where(above, GROWTH * scale, scale)
            noise = optimal(problem, scale * problem.gap)
        return noise


def _moments(values: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (K, 1, width) of `values` (K, B, width) `among` (K, B, 1), and a coordinate's variance (K,)."""
    count = among.sum(1, keepdim=True).clamp(min=1)
    mean = (values * among).sum(1, keepdim=True) / count
    return mean, (((values - mean) * among).square().sum(1, keepdim=True) / count).mean((1, 2))


SPEC = DefenceSpec(
    name="marvell",
    summary="noise on gradients that are sent down, of the covariance that hides two classes best for its power",
    source="Li et al., ICLR 2022",
    settings=Marvell,
)
