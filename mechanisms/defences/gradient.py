"""Defences at gradients of records that a server sends down: noise along them, compression, and rounding.

None of them promises an epsilon: each makes one kind of attack harder, message by message. Gradients (K, B, width) are
each record's own, not their parts of the batch mean.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core.defence import Defence, DefenceSpec, Draws

Above = Annotated[float, Field(gt=0)]


class MaxNorm(Defence):
    """Noise along each gradient, so that all have the expected squared norm of the largest."""

    place = "gradient"
    binary = True

    name: Literal["max-norm"] = "max-norm"

    @property
    def draws(self) -> bool:
        """See `Defence.draws`."""
        return True

    def on_gradients(self, values: Tensor, labels: Tensor, real: Tensor, draws: Draws) -> Tensor:
        """Return g_j (1 + s_j n_j) with s_j^2 = |g_max|^2 / |g_j|^2 - 1 and n_j of N(0, 1); g_j = 0 stays 0."""
        norms: Tensor = values.norm(dim=2, keepdim=True)
        missing: Tensor = (norms.amax(1, keepdim=True).square() - norms.square()).clamp(min=0.0).sqrt()
        drawn = draws.normal(tuple(norms.shape[1:]), values)
        # s_j g_j, without the quotient of a norm that is nearly 0.
        units: Tensor = torch.nn.functional.normalize(values, dim=2, eps=1e-300)
        return values + units * missing * drawn


class Sparsify(Defence):
    """The largest coordinates of a message, and 0 for the others (gradient compression: Fu et al. 2022)."""

    place = "gradient"

    name: Literal["sparsify"] = "sparsify"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the coordinates of a message that are kept, at least one."""

    def on_gradients(self, values: Tensor, labels: Tensor, real: Tensor, draws: Draws) -> Tensor:
        """Return the `keep` largest of all coordinates of a message, and those that equal the smallest of them."""
        sizes = values.abs().flatten(1)
        count = (real.sum(1) * values.shape[2] * self.keep).long().clamp(min=1)
        least = sizes.sort(1, descending=True).values.gather(1, count.unsqueeze(1) - 1)
        return values.masked_fill(values.abs() < least.unsqueeze(2), 0.0)


class Discretise(Defence):
    """Coordinates rounded to few values that are equally far apart (DiscreteSGD: Fu et al. 2022)."""

    place = "gradient"

    name: Literal["discretise"] = "discretise"
    bins: Annotated[int, Field(ge=2, le=2**16)] = 12
    """Bins between the ends, N."""
    bound: Above | None = None
    """The ends, -b and b; by default |mean| + 2 standard deviations of the coordinates of the message."""

    def on_gradients(self, values: Tensor, labels: Tensor, real: Tensor, draws: Draws) -> Tensor:
        """Return coordinates clipped to [-b, b] and rounded to the nearest multiple of 2b / N."""
        ends = self._ends(values, real) if self.bound is None else values.new_full((1, 1, 1), self.bound)
        step = 2.0 * ends.clamp(min=1e-300) / self.bins
        return (values.clamp(-ends, ends) / step).round() * step

    @staticmethod
    def _ends(values: Tensor, real: Tensor) -> Tensor:
        """Return |mean| + 2 standard deviations of the coordinates of each message, (K, 1, 1)."""
        there = real.unsqueeze(2).expand_as(values)
        count = there.sum((1, 2), keepdim=True).clamp(min=1)
        mean = values.sum((1, 2), keepdim=True) / count
        variance = ((values - mean).square() * there).sum((1, 2), keepdim=True) / count
        return mean.abs() + 2.0 * variance.sqrt()


MAX_NORM = DefenceSpec(
    name="max-norm",
    summary="noise along each gradient that is sent down: all get the largest expected norm; two classes",
    source="Li et al., ICLR 2022",
    settings=MaxNorm,
)
SPARSIFY = DefenceSpec(
    name="sparsify",
    summary="the largest coordinates of the gradients that are sent down, the others 0 (gradient compression)",
    source="Fu et al., USENIX Security 2022",
    settings=Sparsify,
)
DISCRETISE = DefenceSpec(
    name="discretise",
    summary="gradients that are sent down rounded to few values (DiscreteSGD)",
    source="Fu et al., USENIX Security 2022",
    settings=Discretise,
)
