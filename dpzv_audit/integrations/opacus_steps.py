"""The steps of a training under audit: canaries' gradients go in, and Opacus's releases are scored.

Numbers are in units of the clip. Where Opacus keeps gradients by sample, a gradient canary takes the place of a
record's own there, before the clip. Ghost clipping keeps none: there the canary's loss is a steep linear function of
the model's last output, and goes through the same two backward passes, and the norms of layers, as any other loss.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .opacus_records import Record

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Coins: TypeAlias = NDArray[np.bool_]

LEAST = 1e-300
STEEP = 10.0
"""Norm, in clips, of a gradient that is put in: the clip takes it down to 1."""
SLOPE = 1000.0
"""Slope, in clips, of a loss that is put in: the gradient of an output may be smaller than 1."""


class PlantedLoss(nn.Module):
    """A copy of the user's loss by record, with a linear one in the place of some records' own.

    `slopes` (B,) are NaN for records that keep theirs.
    """

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self._own = copy.copy(own)
        self.reduction = own.reduction
        self.slopes: Tensor | None = None

    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (B,), or what `reduction` makes of them."""
        self._own.reduction = self.reduction
        losses: Tensor = self._own(predictions, targets)
        if self.slopes is None:
            return losses
        return torch.where(self.slopes.isnan(), losses, self.slopes.nan_to_num() * last_output(predictions))


def last_output(predictions: Tensor) -> Tensor:
    """Return the last number (B,) of each record's prediction."""
    return predictions.flatten(1)[:, -1]


@dataclass(frozen=True)
class Clip:
    """The clip of gradients of records: of their norm, or, with several limits, of that of each parameter's part."""

    limits: tuple[float, ...]

    @property
    def whole(self) -> float:
        """The largest norm of a clipped gradient."""
        return math.hypot(*self.limits)

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return gradients (n, P), clipped and in units of `whole`, of those of each parameter, (n, ...)."""
        rows: list[Tensor] = [gradient.detach().flatten(1).double() for gradient in gradients]
        if len(self.limits) == 1:
            rows = [torch.cat(rows, 1)]
        pairs = zip(rows, self.limits, strict=True)
        return torch.cat([_shrunk(row / self.whole, limit / self.whole) for row, limit in pairs], 1)


def _shrunk(rows: Tensor, limit: float) -> Tensor:
    factors: Tensor = limit / rows.norm(dim=1, keepdim=True).clamp(min=LEAST)
    return rows * factors.clamp(max=1.0)


@dataclass(frozen=True, kw_only=True)
class Known:
    """The adversary's knowledge of a training beforehand.

    Attributes:
        clip: The clip of gradients.
        divisor: Opacus's divisor of a sum of gradients.
        loss: The user's loss.
        by_loss: Whether gradients that are put in enter by the loss, since none are kept by sample.
        first: The first record of the data; a gradient canary is it but for its gradient.
        canary: The canary, where it is a record.
        opposite: The record in its place in the other world, where there is one.
        outside: Factor of a gradient canary in the other world.
        others: Factor of the canary's gradient in the place of each other record's; None: they keep theirs.
        ids: Whether the batches that a canary is in are known.
    """

    clip: Clip
    divisor: int
    loss: Loss
    by_loss: bool
    first: Record
    canary: Record | None
    opposite: Record | None
    outside: float
    others: float | None
    ids: bool


class Watched:
    """The steps of one training: gradients of canaries go in, and releases are scored.

    `ratios` (m,) are, for each of m canaries, the log-likelihood ratio of its two worlds by all that was released.
    """

    def __init__(
        self, known: Known, model: nn.Module, bare: nn.Module, optimizer: "DPOptimizer", coins: Coins, rate: float
    ) -> None:
        self._known = known
        self._optimizer = optimizer
        self._coins = torch.from_numpy(coins)
        self._rate = 1.0 if known.ids else rate
        self._noise = float(optimizer.noise_multiplier)
        self._bare = bare
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._names = [names[parameter] for parameter in optimizer.params]
        self._sizes = [parameter.numel() for parameter in optimizer.params]
        self.ratios = np.zeros(len(coins))
        self._squares = 0.0
        self._steps = 0

    @property
    def size(self) -> float:
        """The log of the mean square of all that was released."""
        return math.log(max(self._squares / max(1, self._steps), LEAST))

    def slopes(self, marks: Tensor) -> Tensor | None:
        """Return the slopes (B,) of losses that are put in, NaN for records that keep theirs; None for none at all."""
        known = self._known
        if not known.by_loss:
            return None
        slopes = torch.full(marks.shape, math.nan)
        if known.others is not None:
            slopes[marks == 0] = known.others
        if known.canary is None:
            inside = self._coins[(marks - 1).clamp(min=0)]
            slopes = torch.where(marks == 0, slopes, torch.where(inside, 1.0, known.outside))
        return slopes * self._slope

    @property
    def _slope(self) -> float:
        return SLOPE * self._known.clip.whole

    def step(self, features: Tensor, targets: Tensor, marks: Tensor) -> None:
        """Take the step of a batch, in which canary number k, if it is there, has mark k and others 0."""
        known = self._known
        inside, outside = self._means()
        if not known.by_loss:
            self._inject(marks, inside, outside)
        rest = self._others(features, targets, marks == 0)
        self._optimizer.step()
        released = torch.cat([p.grad.detach().double().flatten() for p in self._optimizer.params])
        self._squares += float(released.square().mean())
        self._steps += 1
        seen = released * known.divisor / known.clip.whole - rest
        ratios = log_ratios(seen, inside, self._noise, self._rate) - log_ratios(seen, outside, self._noise, self._rate)
        if known.ids:
            ratios[~np.isin(np.arange(len(ratios)) + 1, marks.numpy())] = 0.0
        self.ratios += ratios

    def _means(self) -> tuple[Tensor, Tensor]:
        """Return the addition of each canary in either world, (m, P), clipped, as the adversary knows it."""
        known = self._known
        if known.canary is None:
            inside = self._gradient(known.first, self._linear) if known.by_loss else self._directions
            return inside, known.outside * inside
        inside = self._gradient(known.canary, known.loss)
        if known.opposite is None:
            return inside, torch.zeros_like(inside)
        return inside, self._gradient(known.opposite, known.loss)

    def _linear(self, predictions: Tensor, _: Tensor) -> Tensor:
        """Return the loss that is put in, of a single record."""
        return self._slope * last_output(predictions).sum()

    @cached_property
    def _directions(self) -> Tensor:
        """Clipped gradients (m, P), each canary's in a coordinate of its own; or in one of each parameter."""
        rows = torch.zeros(len(self._coins), sum(self._sizes), dtype=torch.float64)
        if len(self._known.clip.limits) == 1:
            rows[torch.arange(len(rows)), -1 - torch.arange(len(rows))] = 1.0
        else:
            rows[:, np.cumsum(self._sizes) - 1] = 1.0
        return self._known.clip((rows * self._known.clip.whole).split(self._sizes, 1))

    def _inject(self, marks: Tensor, inside: Tensor, outside: Tensor) -> None:
        """Put gradients, so steep that the clip applies, in the place of canaries' own and, if so, of others'."""
        known = self._known
        means = inside.new_zeros(len(marks), inside.shape[1])
        replaced = torch.zeros_like(marks, dtype=torch.bool)
        if known.canary is None:
            replaced |= marks > 0
            which = marks[replaced] - 1
            means[replaced] = torch.where(self._coins[which, None], inside[which], outside[which])
        if known.others is not None:
            replaced |= marks == 0
            means[marks == 0] = known.others * inside[0]
        steep = means[replaced] * STEEP * known.clip.whole
        for parameter, rows in zip(self._optimizer.params, steep.split(self._sizes, 1), strict=True):
            kept = parameter.grad_sample
            kept[replaced] = rows.to(kept.dtype).view(-1, *parameter.shape)

    def _others(self, features: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
        """Return the sum (P,) of the other records' clipped gradients."""
        known = self._known
        if not known.by_loss:
            return known.clip([p.grad_sample[rows] for p in self._optimizer.params]).sum(0)
        if not bool(rows.any()):
            return torch.zeros(sum(self._sizes), dtype=torch.float64)

        def loss(parameters: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
            predictions = self._predicted(parameters, record)
            if known.others is None:
                return known.loss(predictions, target[None])
            return known.others * self._linear(predictions, target)

        gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        by_name = gradients(self._parameters(), features[rows], targets[rows])
        return known.clip([by_name[name] for name in self._names]).sum(0)

    def _gradient(self, record: Record, loss: Loss) -> Tensor:
        """Return a record's clipped gradient (1, P) at the model as it is, without any part of Opacus."""
        features, target = record
        parameters = {name: value.requires_grad_() for name, value in self._parameters().items()}
        lost = loss(self._predicted(parameters, features), torch.as_tensor(target)[None])
        return self._known.clip([own[None] for own in torch.autograd.grad(lost, list(parameters.values()))])

    def _parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in zip(self._names, self._optimizer.params, strict=True)}

    def _predicted(self, parameters: dict[str, Tensor], features: Tensor) -> Tensor:
        predicted: Tensor = functional_call(self._bare, parameters, (features[None],))
        return predicted


def log_ratios(seen: Tensor, means: Tensor, noise: float, rate: float) -> NDArray[np.float64]:
    """Return log p(seen) / p0(seen) for each mean (m, P): p is N(mean, noise^2 I) at a chance `rate` and else p0.

    `p0` is N(0, noise^2 I).
    """
    shifts = ((2.0 * (means @ seen) - means.square().sum(1)) / (2.0 * noise * noise)).numpy()
    if rate == 1.0:
        return np.asarray(shifts)
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + shifts))
