"""Gaussian noise from streams of the run's seed or from secret bits, and public grids, on which it is exact in law.

Noise from streams of the seed lets an audit be repeated; whoever learns the seed can subtract it. Secret bits are
SHAKE-256 of a key that the operating system gives. Every number follows from the key, the purpose and a tuple of
numbers (replica, block), so a run that was broken off goes on from its last checkpoint without a second release of the
same rounds. The key is as secret as the noise, and is to be kept only as long as a round may have to be repeated.

Rounded noise is N = round(s Z) for a standard normal Z, by inversion, exact in law given uniform bits. The sign of Z is
one bit of a word; the other 63 begin the binary expansion of U, uniform on (0, 1), and |Z| is where the upper tail of
the normal is U / 2. In double precision that gives s |Z| up to a known error, and N wherever no half-integer lies
within it. Where one does, the expansion of U is continued and U / 2 compared with the tail at the half-integer in as
many digits as it takes. Nothing is neglected: given independent uniform bits the law of N is that of the rounded
Gaussian, with nothing to add to delta. What remains is a computational assumption, that the bits cannot be told from
uniform ones. What an accountant says of Gaussian noise holds for N added to an integer:
round(n + s Z) = n + round(s Z).

On a grid what is clipped becomes whole numbers before it is summed and noised, so that no bit betrays a record. Noise
that is drawn and added in floating point can prove what it was added to: of two sums, often only one has a float near
it that leads to the number released (Mironov 2012, "On significance of the least significant bits for differential
privacy"). Here a record's clipped value is a whole number of steps g = C / 2^bits, sums of them are exact, the noise is
a rounded Gaussian in whole steps, and floating point comes after that. The result is post-processing of an exact
Gaussian mechanism of sensitivity 2C, whatever g.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv_audit.accounting.release import ClipRule
from dpzv_audit.base.errors import InputError
from dpzv_audit.base.seeds import Purpose, stream

from .secret import Origin, SecretBits, Words
from .streams import Blocks, Streams

if TYPE_CHECKING:
    from .config import NoiseKind

Floats = NDArray[np.float64]


# Covers the error of `scipy.special.ndtri` (8e-16 of its value at most, measured) and of the products after it.
_RELATIVE = 1e-13

_FIRST = 63
_MORE = 192


def rounded_normal(shape: tuple[int, ...], scale: float, bits: SecretBits, purpose: Purpose, *place: int) -> Floats:
    """Return round(scale Z) for independent standard normal Z, whole numbers of `shape`, from the bits at `place`.

    `scale` lies in (0, 2^40]; draws whose first 63 bits leave two answers take the bits at `place` and their index.
    """
    words = bits.words(math.prod(shape), purpose, *place)
    negative = words >> np.uint64(_FIRST)
    first = words & np.uint64((1 << _FIRST) - 1)
    whole, certain = nearest(first, scale)
    for index in np.flatnonzero(~certain).tolist():

        def more(count: int, index: int = index) -> Words:
            return bits.words(count, purpose, *place, index)

        whole[index] = _settled(int(first[index]), scale, more)
    np.negative(whole, out=whole, where=negative.astype(bool))
    return whole.reshape(shape)


def nearest(first: Words, scale: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return round(scale |Z|) from the first 63 bits of U, and whether all that continue them give the same.

    U lies in [m, m + 1] 2^-63. By the mean value theorem |Z| moves by at most 1.26 times the relative width of that
    interval (the largest Mills ratio of the normal), and by as much of 2^-53 where m is rounded to a double.
    """
    from scipy.special import ndtri

    tails = np.ldexp(first.astype(np.float64) + 0.5, -_FIRST - 1)
    z = -ndtri(tails)
    y = scale * z
    whole = np.rint(y)
    error = scale * (_RELATIVE * (1.0 + z) + 2.0 / (first + 1.0))
    # The distance of y to the half-integers on either side of `whole`.
    certain = 0.5 - np.abs(y - whole) > error
    return whole, certain & (first >= 1 << 20)


def _settled(first: int, scale: float, more: Callable[[int], Words]) -> float:
    """Return round(scale |Z|) where U begins with the 63 bits `first` and goes on with the words of `more`."""
    from mpmath import mp

    added = _MORE
    while True:
        continued = int.from_bytes(more(added // 64).tobytes(), "big")
        numerator = (first << added) + continued
        denominator = _FIRST + added
        with mp.workprec(denominator + 64):
            rounded = _between(numerator, denominator, scale)
        if rounded is not None:
            return float(rounded)
        added *= 2


def _between(numerator: int, bits: int, scale: float) -> int | None:
    """Return round(scale |Z|) for U in [numerator, numerator + 1] 2^-bits; None where that leaves two answers."""
    from mpmath import mp
    from scipy.special import ndtri

    if not numerator:
        return None
    z = -float(ndtri(float(mp.ldexp(mp.mpf(numerator), -bits - 1))))
    slack = scale * 1e-12 * (1.0 + z) + 1.0
    low = max(0, math.floor(scale * z - slack))
    high = math.ceil(scale * z + slack)
    while low < high:
        # |Z| lies above x exactly where U / 2 lies below the tail at x; in units of 2^-bits that is erfc(x / sqrt 2).
        middle = (low + high) // 2
        x = (mp.mpf(2 * middle + 1) / 2) / mp.mpf(scale)
        beyond = mp.ldexp(mp.erfc(x / mp.sqrt(2)), bits) - numerator
        if beyond > 1.01:
            low = middle + 1
        elif beyond < -0.01:
            high = middle
        else:
            return None
    return low


_BLOCK = 256


def clip(differences: Tensor, threshold: float, rule: ClipRule = "symmetric") -> Tensor:
    """Clip per-record differences.

    `symmetric`: min(1, C/|x|) x, which lies in [-C, C]. `paper-one-sided`: min(x, C), as eq. 8 is printed; it is
    unbounded below, so the mean has no finite sensitivity. A difference that is not a number (infinite minus
    infinite loss) becomes 0: it must not reach the channel, where it would tell a record apart for certain.
    """
    differences = torch.nan_to_num(differences, nan=0.0, posinf=threshold, neginf=None)
    lowest = None if rule == "paper-one-sided" else -threshold
    return differences.clamp(lowest, threshold)


def gaussian(
    shape: tuple[int, ...],
    std: float,
    origin: Origin,
    purpose: Purpose,
    *key: int,
    rounded: bool = False,
) -> Floats:
    """Return independent N(0, std^2) of `shape` from (purpose, key): a stream of the seed, or secret bits.

    `rounded`: to the nearest whole number. From secret bits the law is then exact; from a seed,
    which protects nothing, numpy's normals are rounded, so that a simulation draws the same normals either way. No
    zero has a minus sign, so none is released: by it a sum of -0, which only some records make, would show.
    """
    if isinstance(origin, SecretBits):
        if rounded:
            return rounded_normal(shape, std, origin, purpose, *key) + 0.0
        words = origin.words(math.prod(shape), purpose, *key)
        return std * normal_of(words).reshape(shape)
    draws = stream(origin, purpose, *key).standard_normal(shape)
    draws *= std
    if rounded:
        np.rint(draws, out=draws)
        draws += 0.0
    return draws


def normal_of(words: Words) -> Floats:
    """Return N(0, 1) by inversion of the upper 52 bits of each word, so that none is beyond 8.21 either way."""
    from scipy.special import ndtri

    # Halves between 0 and 2^52 are exact in float64: 0 and 1, whose quantiles are infinite, cannot come up.
    quantiles: Floats = ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
    return quantiles


@dataclass(eq=False)
class GaussianNoise(Blocks[Tensor]):
    """N(0, std^2) of `shape` for each replica from its own stream, which nothing else draws from; zeros if `std` is 0.

    With a `grid` whole numbers of its steps, in float64.
    """

    std: float
    streams: Streams
    _: KW_ONLY
    shape: tuple[int, ...] = ()
    purpose: Purpose = Purpose.NOISE
    grid: "Grid | None" = None

    def __post_init__(self) -> None:
        if self.grid is not None:
            self.std = self.grid.steps(self.std)
            self.streams = replace(self.streams, dtype=torch.float64)
        self.per_block = max(1, _BLOCK // max(math.prod(self.shape), 1))
        self._zero = self.streams.stacked([np.zeros(self.shape)] * len(self.streams.replicas))

    def next(self) -> Tensor:
        """Return noise of the next round, shape (K, *shape)."""
        return self._zero if self.std == 0.0 else super().next()

    def _draw(self, block: int) -> Sequence[Tensor]:
        shape = (self.per_block, *self.shape)
        rounded = self.grid is not None
        draw = partial(gaussian, shape, self.std, self.streams.seed, self.purpose, rounded=rounded)
        return self.streams.stacked([draw(k, block) for k in self.streams.replicas], axis=1).unbind(0)


SCALAR_BITS = 20
ROW_BITS = 20
GRADIENT_BITS = 18
"""A record's gradient is a product of two vectors, each of at most 2^9 steps: see `Grid.factor_dtype`."""
_UNIT_BITS = 12
# Products of vectors of 2^9 steps of so many records add up to at most 2^24, which single precision holds exactly.
_SINGLE_RECORDS = 64
_LARGEST_ROW_BITS = 24
_LEAST_BITS = 4
# Binary logarithm of the largest sum of a batch in steps: float64 adds whole numbers exactly up to 2^53.
_LARGEST_SUM = 52
# Binary logarithm of the largest noise in steps: wider noise takes a coarser grid, which it drowns all the more.
_LARGEST_STD = 36


@dataclass(frozen=True)
class Grid:
    """Whole multiples of the step g = `clip` / 2^`bits`; a clipped value is at most 2^bits steps long.

    Numbers of steps are exact in float64 up to 2^53: sums of at most 2^52 steps are, and so is noise of 2^36 steps.
    """

    clip: float
    bits: int

    @classmethod
    def fit(cls, clip: float, std: float, *, bits: int, records: int = 1) -> "Grid":
        """Return the grid of 2^`bits` steps to `clip`, or as many as leave noise `std` at most 2^36 steps wide.

        `records` of them, as many as a message may sum, have at most 2^52 steps together. It depends on public numbers
        alone. Raises `InputError` where fewer than 2^4 steps would be left.
        """
        ratio = std / clip
        most = bits
        if 0.0 < ratio < math.inf:
            most = _LARGEST_STD - max(0, math.ceil(math.log2(ratio)))
        if ratio == math.inf or most < _LEAST_BITS:
            raise InputError(
                f"noise is 'grid' with a standard deviation of {ratio:.3g} clips; use at most "
                f"{2.0 ** (_LARGEST_STD - _LEAST_BITS):.3g}, or noise float"
            )
        return cls(clip, min(bits, most, _LARGEST_SUM - (records - 1).bit_length()))

    @classmethod
    def of(cls, noise: "NoiseKind", clip: float, std: float, *, bits: int, records: int = 1) -> "Grid | None":
        """Return the grid of a channel as `fit` does; None where noise is in floating point, or there is none."""
        if noise != "grid" or std <= 0.0:
            return None
        return cls.fit(clip, std, bits=bits, records=records)

    @property
    def radius(self) -> float:
        """Return the clip in steps, 2^bits."""
        return float(1 << self.bits)

    @property
    def step(self) -> float:
        """Return g, which one step stands for: `clip` is an exact multiple of it."""
        return math.ldexp(self.clip, -self.bits)

    @property
    def unit_bits(self) -> int:
        """Return bits of the direction in an outer product, as far as a grid has them; the rest are the length's."""
        return min(_UNIT_BITS, self.bits // 2)

    @property
    def factor_dtype(self) -> torch.dtype:
        """Return the dtype of factors of an outer product: single precision where that is exact for a batch."""
        return torch.float32 if self.bits <= GRADIENT_BITS else torch.float64

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
    lowest = None if rule == "paper-one-sided" else -grid.radius
    return values.clamp_(lowest, grid.radius).round_()


def norms_of(values: Tensor, axes: tuple[int, ...] = (2,)) -> Tensor:
    """Return the L2 norms of `values` over `axes`, of which one entry each is left."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=axes, keepdim=True)
    return norms


def truncated_steps(values: Tensor, grid: Grid, axes: tuple[int, ...]) -> Tensor:
    """Return `values` clipped to L2 norm C over `axes`, each coordinate rounded towards zero: whole numbers, float64.

    Rounding towards zero shortens a vector; to the nearest step could lengthen it by g sqrt(d) / 2 beyond the clip.
    The norm of the whole numbers is checked exactly against C/g, and a vector that floating point left too long is
    shrunk. One with an entry that is not finite becomes 0. `ValueError` for a grid of more than 2^24 steps to the clip,
    whose squares float64 could not sum exactly.
    """
    if grid.bits > _LARGEST_ROW_BITS:
        raise ValueError(f"grid has 2^{grid.bits} steps; use at most 2^{_LARGEST_ROW_BITS}")
    exact = values.to(torch.float64)
    norms = norms_of(exact, axes)
    steps = torch.div(exact, norms.clamp(min=grid.clip) / grid.radius, rounding_mode="trunc")
    return _shortened(steps, grid.radius, axes)


def unit_steps(values: Tensor, grid: Grid, *, bias: bool = False) -> tuple[Tensor, Tensor]:
    """Return the directions of `values` (S, n, d), whole numbers of a norm of 2^`unit_bits` at most; norms (S, n, 1).

    They are one factor of `grid`'s steps: see `outer_steps`. Directions come in `grid.factor_dtype`; norms, and the
    quotients that are rounded towards zero, in the dtype of `values`. A vector whose norm is 0 or not finite has the
    direction 0. With `bias` each vector ends with a 1 more, of which a bias is the weight.
    """
    stack, rows, width = values.shape
    added = values.new_ones(1 if bias else 0)
    norms = norms_of(values)
    if bias:
        norms = norms.square_().add_(1.0).sqrt_()
    radius = float(1 << grid.unit_bits)
    scales = norms / radius
    steps = values.new_empty(stack, rows, width + len(added))
    torch.div(values, scales, rounding_mode="trunc", out=steps[:, :, :width])
    torch.div(added, scales, rounding_mode="trunc", out=steps[:, :, width:])
    return _shortened(steps.to(grid.factor_dtype), radius, (2,)), norms


def outer_steps(deltas: Sequence[Tensor], norms: Sequence[Tensor], grid: Grid) -> tuple[Tensor, ...]:
    """Return the other factor of clipped gradients that are outer products, for each layer whole numbers (S, n, out).

    A record's gradient at layer l is delta_l x_l^T, with `deltas` (S, n, out), and x_l of the norm in `norms` and the
    direction b_l / 2^u (`unit_steps`; u is `unit_bits`). The a_l returned satisfy sum_l |a_l|^2 <= 4^(bits - u), so the
    gradient in steps, all a_l b_l^T side by side, is whole, each entry is rounded towards zero, and its norm is at
    most 2^bits: no record's gradient needs to be formed, and the sum over records is a product of matrices.

    The bound holds of the whole numbers themselves. How lengths and quotients are rounded, in single precision where
    `deltas` and `norms` are, may move a record by a few steps; it cannot make it longer than the clip.
    """
    layers = list(zip(deltas, norms, strict=True))
    squares = [delta.square().sum(2, keepdim=True) * norm.square() for delta, norm in layers]
    radius = float(1 << grid.bits - grid.unit_bits)
    scales = torch.cat(squares, 2).sum(2, keepdim=True).sqrt_().clamp_(min=grid.clip) / radius
    sizes = [delta.shape[2] for delta in deltas]
    steps = scales.new_empty(*scales.shape[:2], sum(sizes), dtype=grid.factor_dtype)
    for (delta, norm), target in zip(layers, steps.split(sizes, 2), strict=True):
        target.copy_(torch.div(delta, scales / norm, rounding_mode="trunc"))
    return torch.split(_shortened(steps, radius, (2,)), sizes, 2)


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the sums over n of the outer products of `left` (S, n, out) and `right` (S, n, in), (S, out, in).

    Both hold whole numbers, and the sums are exact in any order, so every library returns the same: in float64 as long
    as they stay below 2^53, in float32 where no number is beyond 2^9. Then 64 records at a time are added up in single
    precision, more in float64. On the CPU the products are numpy's, which on AMD processors takes less than half the
    time of torch's, and no setting lets it round its factors.
    """
    if left.dtype == torch.float64 or left.shape[1] <= _SINGLE_RECORDS:
        return _products(left, right)
    chunks = zip(left.split(_SINGLE_RECORDS, 1), right.split(_SINGLE_RECORDS, 1), strict=True)
    return torch.stack([_products(*chunk) for chunk in chunks]).sum(0, dtype=torch.float64)


def _products(left: Tensor, right: Tensor) -> Tensor:
    transposed = left.transpose(1, 2)
    if left.device.type != "cpu":
        return torch.bmm(transposed, right)
    return torch.from_numpy(np.matmul(transposed.numpy(), right.numpy()))


def _shortened(steps: Tensor, radius: float, axes: tuple[int, ...]) -> Tensor:
    """Return whole numbers `steps` where need be shrunk towards zero to a norm of at most `radius`.

    The radius is at most 2^24 in float64, 2^9 in float32. Nothing is assumed of how the steps were computed: what is no
    number, or was too large to be one, makes its vector 0.
    """
    # The sum of squares up to the radius' own is exact, and its root rounds to the radius only where it is that.
    within = norms_of(steps, axes) <= radius
    # A check on a device would wait for it; a factor of 1 leaves them as they are there.
    if steps.device.type == "cpu" and bool(within.all()):
        return steps
    exact = steps.to(torch.float64)
    norms = norms_of(exact, axes)
    # A factor below radius / norm by more than all roundings, then towards zero: once is enough.
    factors = torch.where(within, 1.0, radius / norms * (1.0 - 2.0**-40))
    return (exact * factors).trunc_().nan_to_num_(nan=0.0).to(steps.dtype)
