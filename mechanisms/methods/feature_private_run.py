"""The round of noised components and the head on them; `feature_private` has their settings and what they release."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from dpzv_audit.base.seeds import Purpose

from ..core.channel import SERVER, Message
from ..core.context import RunContext, TrainingData
from ..core.federation import Federation
from ..core.logistic import GRID_BITS
from ..core.noise import (
    ROW_BITS,
    Grid,
    gaussian,
    norms_of,
    outer_steps,
    summed_products,
    truncated_steps,
    unit_steps,
)

if TYPE_CHECKING:
    from .feature_private import FeaturePrivateConfig

# The least eigenvalue of the head's covariance, in standard deviations of what noise leaves of it.
_FLOOR = 0.5
# Records at a time in double precision.
_ROWS = 4096


class FeaturePrivateRun:
    """One stack of K trainings in progress; see `mechanisms.core.method.Run`."""

    def __init__(self, data: TrainingData, config: "FeaturePrivateConfig", context: RunContext) -> None:
        self.federation = fed = Federation(data, config, context)
        self.config = config
        self.round = 0
        self._sigma = config.row_sigma(len(fed.clients))
        self._origin = context.noise_origin
        # What a claim cannot pay for is refused before anything is computed.
        self._grid(config.clip, self._sigma, ROW_BITS)
        self._grid(1.0, config.statistics_sigma(len(fed.clients)), GRID_BITS)

    def _grid(self, clip: float, sigma: float, bits: int) -> Grid | None:
        return Grid.of(self.config.noise, clip, sigma, bits=bits, records=self.federation.records)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        return {}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.round = rounds

    def step(self) -> None:
        """Run the one round: every client releases its sums and uploads its rows; the server solves for its head."""
        fed = self.federation
        received = [self._upload(number) for number in fed.numbers]
        soft = fed.data.soft
        shares = one_hot(fed.data.labels, fed.data.classes) if soft is None else soft.rows
        # A random label stands for the classes that make it likely, all as likely as each other before.
        shares = shares.double() / shares.sum(-1, keepdim=True)
        weight, bias = fed.server_parameters.views.values()
        for place, own in enumerate(shares.expand(fed.stack, -1, -1)):
            rows = torch.cat([sent[place] for sent in received], 1).double()
            weight[place], bias[place] = discriminant(rows, own, self._sigma)
        self.round += 1

    def _upload(self, number: int) -> Tensor:
        """Set a client's models to its noised components and send its noised rows; return what the server gets."""
        fed = self.federation
        client = fed.clients[number - 1]
        for place, replica in enumerate(fed.replicas):
            block = client.features
            if fed.data.selection is not None:
                block = block[fed.data.selection[place]]
            client.parameters.flat[place] = self._components(block.flatten(1).double(), number, replica)
        rows = fed.embed_records(client)
        noised = torch.stack([self._rows(rows[k], number, replica) for k, replica in enumerate(fed.replicas)])
        return fed.channel.send(Message(self.round, number, SERVER, "table", noised.to(rows.dtype)))

    def _components(self, block: Tensor, number: int, replica: int) -> Tensor:
        """Return the layer to components of a `block` (n, d), (width * (d + 1)), which follows from its noised sum."""
        config = self.config
        count = block.shape[1]
        # Columns lie between 0 and 1: with a last 1 a record's norm is at most the root of 2 (d + 1) / 2.
        rows = pad(2.0 * block - 1.0, (0, 1), value=1.0) / math.sqrt(count + 1)
        sigma = config.statistics_sigma(len(self.federation.clients))
        grid = self._grid(1.0, sigma, GRID_BITS)
        noise = self._draw((count + 1, count + 1), sigma, grid, number, replica, 0)
        step = 1.0 if grid is None else grid.step
        total = (outer_sum(rows, grid) + noise) * (step * (count + 1) / len(block))
        total = (total + total.T) / 2
        mean = total[-1, :-1]
        spread, directions = torch.linalg.eigh(total[:-1, :-1] - torch.outer(mean, mean))
        width = min(self.federation.width, count)
        leading = directions[:, -width:].flip(1)
        # Either sign is an eigenvector's: that with which its largest entry is positive.
        leading = leading * leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
        length = spread[-width:].clamp(min=0.0).sum().sqrt()
        scale = 1.0 / length if length > 0.0 else length
        weight = block.new_zeros(self.federation.width, count)
        weight[:width] = 2.0 * scale * leading.T
        shift = block.new_zeros(self.federation.width)
        shift[:width] = -scale * (leading.T @ (1.0 + mean))
        return torch.cat((weight.flatten(), shift))

    def _rows(self, rows: Tensor, number: int, replica: int) -> Tensor:
        """Return components (n, width) as they are sent: clipped and noised."""
        clip = self.config.clip
        if self._sigma == 0.0:
            return rows
        grid = self._grid(clip, self._sigma, ROW_BITS)
        noise = self._draw(tuple(rows.shape), self._sigma, grid, number, replica, 1)
        if grid is None:
            return rows.double() * (clip / norms_of(rows, (1,)).clamp(min=clip)) + noise
        return truncated_steps(rows, grid, (1,)).add_(noise).mul_(grid.step)

    def _draw(
        self, shape: tuple[int, ...], sigma: float, grid: Grid | None, number: int, replica: int, which: int
    ) -> Tensor:
        """Return noise in float64: in whole steps where there is a grid."""
        if sigma == 0.0:
            return torch.zeros(shape, dtype=torch.float64)
        std = sigma if grid is None else grid.steps(sigma)
        drawn = gaussian(shape, std, self._origin, Purpose.NOISE, replica, number, which, rounded=grid is not None)
        return torch.from_numpy(drawn).to(self.federation.device)


def outer_sum(rows: Tensor, grid: Grid | None) -> Tensor:
    """Return the sum (d, d) of the outer products of `rows` (n, d), each clipped to 1; in steps where there is a grid.

    A row that is not finite counts as 0.
    """
    total = rows.new_zeros(rows.shape[1], rows.shape[1])
    for some in rows.split(_ROWS):
        if grid is None:
            finite = torch.where(some.isfinite().all(1, keepdim=True), some, 0.0)
            total += (finite / finite.square().sum(1, keepdim=True).clamp(min=1.0)).T @ finite
        else:
            directions, norms = unit_steps(some[None], grid)
            (steps,) = outer_steps([some[None]], [norms], grid)
            total += summed_products(steps.double(), directions.double())[0]
    return total


def discriminant(rows: Tensor, shares: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """Return weights (classes, d) and constants (classes,) of linear discriminant analysis of what noise was added to.

    Args:
        rows: Noised rows (n, d).
        shares: Share of each class in each record, (n, classes).
        sigma: Standard deviation of the noise on each entry of a row.
    """
    n, d = rows.shape
    counts = shares.sum(0).clamp(min=1e-9 * n)
    mean = rows.mean(0)
    means = shares.T @ rows / counts[:, None] - mean
    centred = rows - mean
    noise = sigma**2 * torch.eye(d, dtype=rows.dtype, device=rows.device)
    within = centred.T @ centred / n - noise - (means.T * counts / n) @ means
    values, vectors = torch.linalg.eigh(within)
    floor = _FLOOR * sigma**2 * math.sqrt(d / n) + 1e-3 * values.max().clamp(min=1e-9)
    inverse = (vectors / (values.clamp(min=0.0) + floor)) @ vectors.T
    weights = means @ inverse
    # Noise alone gives a mean of few records a length.
    lengths = (weights * means).sum(1) - sigma**2 * inverse.trace() * (1.0 / counts - 1.0 / n)
    return weights, (counts / n).log() - lengths / 2 - weights @ mean
