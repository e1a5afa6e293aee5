"""Public grids: what is clipped becomes whole numbers before it is summed and noised, so that no bit betrays a record.

Noise that is drawn and added in floating point can prove what it was added to: of two sums, often only one has a
float near it that leads to the number released (Mironov 2012, "On significance of the least significant bits for
differential privacy"). Here a record's clipped value is a whole number of steps g = C / 2^bits, sums of them are exact,
the noise is a rounded Gaussian in whole steps, and floating point comes after that. The result is post-processing of an
exact Gaussian mechanism of sensitivity 2C (`mechanisms.core.noise`), whatever g.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.errors import InputError
from mechanisms.core.noise import ClipRule

SCALAR_BITS = 20
ROW_BITS = 20
GRADIENT_BITS = 28
"""Finer: a record's gradient is a product of two vectors of 2^16 and 2^12 steps, and both are to be fine."""
_UNIT_BITS = 12
_LARGEST_ROW_BITS = 24
_LEAST_BITS = 4
_LARGEST_SUM = 52
"""Binary logarithm of the largest sum of a batch in steps: float64 adds whole numbers exactly up to 2^53."""
_LARGEST_STD = 36
"""Binary logarithm of the largest noise in steps: wider noise takes a coarser grid, which it drowns all the more."""


@dataclass(frozen=True)
class Grid:
    """Whole multiples of the step g = `clip` / 2^`bits`; a clipped value is at most 2^bits steps long.

    Numbers of steps are exact in float64 up to 2^53: sums of at most 2^52 steps are, and so is noise of 2^36 steps.
    """

    clip: float
    bits: int

    @classmethod
    def fit(cls, clip: float, std: float, *, bits: int, records: int = 1) -> Grid:
        """Return the grid of 2^`bits` steps to `clip`, or as many as leave noise `std` at most 2^36 steps wide.

        `records` of them, as many as a message may sum, have at most 2^52 steps together. It depends on public numbers
        alone. Raises `InputError` where fewer than 2^4 steps would be left.
        """
        ratio = std / clip
        most = _LARGEST_STD - max(0, math.ceil(math.log2(ratio))) if 0.0 < ratio < math.inf else bits
        if ratio == math.inf or most < _LEAST_BITS:
            raise InputError(
                f"noise is 'grid' with a standard deviation of {ratio:.3g} clips, must be at most "
                f"{2.0 ** (_LARGEST_STD - _LEAST_BITS):.3g}, or noise float"
            )
        return cls(clip, min(bits, most, _LARGEST_SUM - (records - 1).bit_length()))

    @property
    def radius(self) -> float:
        """The clip in steps, 2^bits."""
        return float(1 << self.bits)

    @property
    def step(self) -> float:
        """g, what one step stands for: `clip` is an exact multiple of it."""
        return math.ldexp(self.clip, -self.bits)

    @property
    def unit_bits(self) -> int:
        """Bits of the direction in an outer product, where a coarse grid leaves so many; the rest are the length's."""
        return min(_UNIT_BITS, self.bits // 2)

    def steps(self, std: float) -> float:
        """Return `std` in steps, rounded upwards: the noise is never less than what is accounted for."""
        exact = Fraction(std) * (1 << self.bits) / Fraction(self.clip)
        near = float(exact)
        return near if Fraction(near) >= exact else math.nextafter(near, math.inf)


def nearest_steps(values: Tensor, scale: float, grid: Grid, rule: ClipRule = "symmetric") -> Tensor:
    """Return `scale` times `values`, clipped to [-C, C] and rounded to the nearest step: whole numbers, in place.

    What is no number (infinite minus infinite loss) becomes 0, as in `mechanisms.core.noise.clip`; `paper-one-sided`
    leaves the lower side open. The dtype stays: 2^20 steps are exact in float32.
    """
    values.mul_(scale * grid.radius / grid.clip).nan_to_num_(nan=0.0)
    values.clamp_(max=grid.radius) if rule == "paper-one-sided" else values.clamp_(-grid.radius, grid.radius)
    return values.round_()


def truncated_steps(values: Tensor, grid: Grid, axes: tuple[int, ...]) -> Tensor:
    """Return `values` clipped to L2 norm C over `axes`, each coordinate rounded towards zero: whole numbers, float64.

    Rounding towards zero shortens a vector; to the nearest step could lengthen it by g sqrt(d) / 2 beyond the clip.
    The norm of the whole numbers is checked exactly against C/g, and a vector that floating point left too long is
    shrunk. One with an entry that is not finite becomes 0. `ValueError` for a grid of more than 2^24 steps to the clip,
    whose squares float64 could not sum exactly.
    """
    if grid.bits > _LARGEST_ROW_BITS:
        raise ValueError(f"grid has 2^{grid.bits} steps, must have at most 2^{_LARGEST_ROW_BITS}")
    exact = values.to(torch.float64)
    norms: Tensor = torch.linalg.vector_norm(exact, dim=axes, keepdim=True)
    steps = torch.div(exact, norms.clamp(min=grid.clip) / grid.radius, rounding_mode="trunc")
    return _shortened(steps, grid.radius, axes)


def unit_steps(values: Tensor, grid: Grid, *, bias: bool = False) -> tuple[Tensor, Tensor]:
    """Return the directions of `values` (S, n, d) as whole numbers of a norm of 2^12 at most, and norms (S, n, 1).

    They are one factor of `grid`'s steps: see `outer_steps`. Directions come in float64; norms, and the quotients that
    are rounded towards zero, in the dtype of `values`. A vector whose norm is 0 or not finite has the direction 0. With
    `bias` each vector ends with a 1 more, of which a bias is the weight.
    """
    stack, rows, width = values.shape
    added = values.new_ones(1 if bias else 0)
    norms: Tensor = torch.linalg.vector_norm(values, dim=2, keepdim=True)
    norms = norms.square_().add_(1.0).sqrt_() if bias else norms
    radius = float(1 << grid.unit_bits)
    scales = norms / radius
    steps = values.new_empty(stack, rows, width + len(added))
    torch.div(values, scales, rounding_mode="trunc", out=steps[:, :, :width])
    torch.div(added, scales, rounding_mode="trunc", out=steps[:, :, width:])
    # Squares of whole numbers add up exactly in single precision below 2^24, in any order; other sums reach 2^24.
    within = (torch.linalg.vector_norm(steps, dim=2) < radius).all()
    exact = steps.to(torch.float64)
    return (exact if within else _shortened(exact, radius, (2,))), norms


def outer_steps(deltas: Sequence[Tensor], norms: Sequence[Tensor], grid: Grid) -> tuple[Tensor, ...]:
    """Return the other factor of clipped gradients that are outer products, for each layer whole numbers (S, n, out).

    A record's gradient at layer l is delta_l x_l^T, with `deltas` (S, n, out), and x_l of the norm in `norms` and the
    direction b_l / 2^12 (`unit_steps`). The a_l returned satisfy sum_l |a_l|^2 <= (2^bits / 2^12)^2, so the gradient in
    steps, all a_l b_l^T side by side, is whole, each entry is rounded towards zero, and its norm is at most 2^bits: no
    record's gradient needs to be formed, and the sum over records is a product of matrices, exact in float64.

    The bound holds of the whole numbers themselves. How lengths and quotients are rounded, in single precision where
    `deltas` and `norms` are, may move a record by a few steps; it cannot make it longer than the clip.
    """
    squares = [delta.square().sum(2, keepdim=True) * norm.square() for delta, norm in zip(deltas, norms, strict=True)]
    radius = float(1 << grid.bits - grid.unit_bits)
    scales = torch.cat(squares, 2).sum(2, keepdim=True).sqrt_().clamp_(min=grid.clip) / radius
    sizes = [delta.shape[2] for delta in deltas]
    steps = scales.new_empty(*scales.shape[:2], sum(sizes), dtype=torch.float64)
    for delta, norm, part in zip(deltas, norms, torch.split(steps, sizes, 2), strict=True):
        part.copy_(torch.div(delta, scales / norm, rounding_mode="trunc"))
    return tuple(torch.split(_shortened(steps, radius, (2,)), sizes, 2))


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the sums over n of the outer products of `left` (S, n, out) and `right` (S, n, in), (S, out, in).

    Both hold whole numbers in float64. Products and partial sums are whole numbers too, exact in any order as long as
    they stay below 2^53, so every library returns the same: on the CPU numpy's, which on AMD processors takes less than
    half the time of torch's.
    """
    transposed = left.transpose(1, 2)
    if left.device.type != "cpu":
        return torch.bmm(transposed, right)
    return torch.from_numpy(np.matmul(transposed.numpy(), right.numpy()))


def _shortened(steps: Tensor, radius: float, axes: tuple[int, ...]) -> Tensor:
    """Return whole numbers `steps`, in float64, where need be shrunk towards zero to a norm of at most `radius`.

    Nothing is assumed of how they were computed: what is no number, or was too large to be one, makes its vector 0.
    """
    # The sum of squares is exact in float64, and up to 2^24 steps its root rounds to the radius only where it is that.
    norms: Tensor = torch.linalg.vector_norm(steps, dim=axes, keepdim=True)
    within = norms <= radius
    if bool(within.all()):
        return steps
    # A factor below radius / norm by more than all roundings, then towards zero: once is enough.
    factors = torch.where(within, 1.0, radius / norms * (1.0 - 2.0**-40))
    return (steps * factors).trunc_().nan_to_num_(nan=0.0)
