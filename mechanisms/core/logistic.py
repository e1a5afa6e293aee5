"""Softmax regression by full-batch gradient descent under differential privacy, on rows that stay, for K replicas.

Every step sums the gradients of all records, each clipped to L2 norm C, adds Gaussian noise and moves the weights with
momentum (Song, Chaudhuri and Sarwate, GlobalSIP 2013; Abadi et al., CCS 2016, with batches of all records). T steps are
T Gaussian mechanisms of sensitivity 2C where a record is replaced, so that all of them are mu-GDP with
mu = 2 C sqrt(T) / sigma exactly (Dong, Roth and Su 2022, corollary 1), whoever sees every noised sum.

A record's gradient is x (p - y)^T, whose norm is |x| |p - y|: no record's own gradient is ever formed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .noise import GaussianNoise, Grid, outer_steps, unit_steps
from .replicas import SoftTargets, Targets, loss_gradient

GRID_BITS = 28
"""Finer than a server's gradient on a batch: records are many, and their directions are made once for all steps."""
# Records at a time in double precision.
_ROWS = 4096


class ClippedSums:
    """Sums over all records of clipped gradients; with a `grid` each record's is a whole number of steps.

    `rows` are (S, n, d): S is 1 where all replicas share them, else K. A row that is not finite counts as 0.
    """

    def __init__(self, rows: Tensor, clip: float, grid: Grid | None) -> None:
        norms = torch.linalg.vector_norm(rows, dim=2, keepdim=True, dtype=torch.float64)
        finite = torch.isfinite(norms)
        self.rows = rows if bool(finite.all()) else torch.where(finite, rows, 0.0)
        self._norms = torch.where(finite, norms, 0.0)
        self._clip = clip
        self._grid = grid
        self._units: Tensor | None = None
        if grid is not None:
            # Whole numbers of at most 2^14: two bytes hold them, which for 60,000 records is worth it.
            directions = (unit_steps(some.double(), grid)[0] for some in self.rows.split(_ROWS, 1))
            self._units = torch.cat([some.to(torch.int16) for some in directions], 1)

    @property
    def records(self) -> int:
        """Return the number n of records."""
        return self.rows.shape[1]

    def __call__(self, weights: Tensor, labels: Targets) -> Tensor:
        """Return the sums (K, d, classes) in float64 at `weights` (K, d, classes), in steps where there is a grid.

        `labels` are (K, n), or soft ones.
        """
        residuals = loss_gradient(self.logits(weights), labels).double()
        if self._grid is not None and self._units is not None:
            norms = self._norms.expand(len(weights), -1, -1)
            (steps,) = outer_steps([residuals], [norms], self._grid)
            return _products(self._units, steps.double())
        lengths = torch.linalg.vector_norm(residuals, dim=2, keepdim=True) * self._norms
        clipped = (residuals * (self._clip / lengths.clamp(min=self._clip))).nan_to_num(nan=0.0)
        return _products(self.rows, clipped)

    def logits(self, weights: Tensor) -> Tensor:
        """Return the logits (K, n, classes) of all records."""
        return logits_at(self.rows, weights)


def logits_at(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the logits (K, n, classes) of `rows` (S, n, d), S 1 or K, at `weights` (K, d, classes)."""
    if len(rows) == len(weights):
        return torch.bmm(rows, weights)
    stack, width, classes = weights.shape
    side_by_side = weights.transpose(0, 1).reshape(width, stack * classes)
    return (rows[0] @ side_by_side).view(-1, stack, classes).transpose(0, 1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return sums over n of outer products of `left` (S, n, d) and `right` (K, n, c), (K, d, c), in float64.

    Of whole numbers the sums are exact.
    """
    stack, _, classes = right.shape
    shared = len(left) != stack
    total = right.new_zeros(stack, left.shape[2], classes)
    for some, own in zip(left.split(_ROWS, 1), right.split(_ROWS, 1), strict=True):
        transposed = some.double().transpose(1, 2)
        if shared:
            beside = own.transpose(0, 1).reshape(own.shape[1], stack * classes)
            total += (transposed[0] @ beside).view(-1, stack, classes).transpose(0, 1)
        else:
            total += torch.bmm(transposed, own)
    return total


def rows_of(parts: Sequence[Tensor], scale: float = 1.0) -> Tensor:
    """Return the clients' `parts` (S, n, width) side by side, and a last column of ones; all times `scale`."""
    return torch.cat([*parts, torch.ones_like(parts[0][:, :, :1])], 2).mul_(scale)


def all_labels(labels: Tensor, soft: SoftTargets | None, stack: int) -> Targets:
    """Return the labels of all records for every replica, (K, n), or the soft ones."""
    return labels.expand(stack, -1) if soft is None else soft


@dataclass(eq=False)
class PrivateDescent:
    """The weights (K, d, classes) of K replicas as they move, with their `velocity`.

    `noise` is drawn once a step, in the unit of `sums`, which is `unit` for whole steps of a grid.
    """

    sums: ClippedSums
    labels: Targets
    noise: GaussianNoise
    rate: float
    momentum: float
    weights: Tensor
    velocity: Tensor
    unit: float = 1.0

    def clear(self) -> Tensor:
        """Return the sums of clipped gradients at the present weights, (K, d, classes), without noise."""
        return self.sums(self.weights, self.labels)

    def noised(self) -> Tensor:
        """Return what a step releases: the sums of clipped gradients, and fresh noise."""
        return self.clear() + self.noise.next()

    def move(self, released: Tensor) -> None:
        """Move the weights by what is `released`, and by nothing else."""
        mean = released * (self.unit / self.sums.records)
        self.velocity.mul_(self.momentum).add_(mean.to(self.velocity.dtype))
        self.weights.sub_(self.velocity, alpha=self.rate)
