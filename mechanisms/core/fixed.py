"""Data-free features: maps that follow from the shape of a client's block and from a public seed, and from no record.

`histograms`: lengths of gradients by direction (Dalal and Triggs, CVPR 2005), each shared between the two nearest of
eight, of the channel with the longest, averaged over overlapping cells. `gabor`: moduli of 16 Gabor filters of two
scales, as in the first layer of a scattering transform (Bruna and Mallat, TPAMI 2013), averaged the same way. Of both
the square roots are centred and scaled within the record and the block, so that nothing is read off other records.
`columns`: each column x as 2x - 1, for data whose scales are public constants. `random`: random Fourier features of
these (Rahimi and Recht, NIPS 2007).

A package adds a map by an entry point in the group `dpzv_audit.features`. It never sees a record while it is made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.registry import Registry

from .patches import Shape, is_picture

_ORIENTATIONS = 8
_ANGLES = 8
_SCALES = (1.0, 2.0)
_FILTER = 7
# Added to the deviation within a record: what is all but constant stays small.
_LEAST_SPREAD = 0.03
# Keeps roots of what is 0 differentiable.
_TINY = 1e-12
_BANDWIDTH = 3.0


@dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """A map from a client's records to features, by name.

    Attributes:
        name: What users call it.
        summary: One line on what it computes.
        module: Makes the map from the shape of a record in the block, the most features that it may have, and a public
            generator. It takes (n, *shape) and returns (n, made), each record by itself, with a mean square of about 1
            at most. Raises `InputError` for a width that it does not fit.
        pictures: Whether it takes pictures alone.
    """

    name: str
    summary: str
    module: Callable[[Shape, int, np.random.Generator], nn.Module]
    pictures: bool = False


def cells_of(shape: Shape, most: int) -> tuple[int, int]:
    """Return into how many cells a picture is divided each way: nearly square ones, at most `most`, 1 at least.

    Cells overlap by half, so that there is at most one fewer than there are pixels each way.
    """
    height, width = shape[1:]
    side = math.sqrt(height * width / most)
    high = max(1, min(int(height / side), height - 1))
    return high, max(1, min(most // high, width - 1))


def overlapping(pixels: int, cells: int) -> np.ndarray:
    """Return the weights (cells, pixels) of means over windows that overlap by half and cover all pixels."""
    step = pixels / (cells + 1)
    starts = step * np.arange(cells)[:, None]
    places = np.arange(pixels)[None]
    covered = np.minimum(starts + 2 * step, places + 1) - np.maximum(starts, places)
    weights = np.maximum(covered, 0.0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


class PooledMaps(nn.Module):
    """Means of maps of a picture over overlapping cells, their roots, centred and scaled within the record."""

    def __init__(self, shape: Shape, maps: int, most: int) -> None:
        super().__init__()
        if most < maps:
            raise InputError(f"use at least {maps} for pictures of {shape[1]} x {shape[2]}", "embedding", most)
        high, wide = cells_of(shape, most // maps)
        self.rows = _constant(overlapping(shape[1], high))
        self.columns = _constant(overlapping(shape[2], wide))

    def maps(self, pictures: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, maps, h, w), none below 0."""
        raise NotImplementedError

    def forward(self, pictures: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, maps * cells)."""
        pooled = self.rows @ self.maps(pictures) @ self.columns.T
        roots = (pooled.flatten(1) + _TINY).sqrt()
        centred = roots - roots.mean(1, keepdim=True)
        return centred / (centred.square().mean(1, keepdim=True).sqrt() + _LEAST_SPREAD)


class OrientedHistograms(PooledMaps):
    """Histograms of gradients by their direction."""

    def __init__(self, shape: Shape, most: int) -> None:
        super().__init__(shape, _ORIENTATIONS, most)

    def maps(self, pictures: Tensor) -> Tensor:
        """See `PooledMaps.maps`: the length of each pixel's gradient, shared between the two nearest orientations."""
        padded = functional.pad(pictures, (1, 1, 1, 1), mode="replicate")
        down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) / 2
        right = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) / 2
        lengths = torch.hypot(down, right)
        length, channel = lengths.max(1, keepdim=True)
        turn = torch.atan2(down.gather(1, channel), right.gather(1, channel))
        place = (turn / (2 * math.pi) + 0.5) * _ORIENTATIONS
        lower = place.floor()
        share = place - lower
        first = lower.long() % _ORIENTATIONS
        maps = length.new_zeros(len(length), _ORIENTATIONS, *length.shape[2:])
        maps = maps.scatter_add(1, first, length * (1 - share))
        return maps.scatter_add(1, (first + 1) % _ORIENTATIONS, length * share)


class GaborModuli(PooledMaps):
    """Moduli of Gabor filters of `_ANGLES` directions and two scales, on the mean of the channels."""

    def __init__(self, shape: Shape, most: int) -> None:
        super().__init__(shape, _ANGLES * len(_SCALES), most)
        self.filters = _constant(gabor_filters())

    def maps(self, pictures: Tensor) -> Tensor:
        """See `PooledMaps.maps`."""
        edge = _FILTER // 2
        padded = functional.pad(pictures.mean(1, keepdim=True), (edge,) * 4, mode="replicate")
        parts = functional.conv2d(padded, self.filters)
        return torch.hypot(parts[:, ::2], parts[:, 1::2])


def gabor_filters() -> np.ndarray:
    """Return real and imaginary parts of the filters in turn, (32, 1, 7, 7): mean 0, moduli of a sum of 1."""
    down, right = np.mgrid[-(_FILTER // 2) : _FILTER // 2 + 1, -(_FILTER // 2) : _FILTER // 2 + 1].astype(np.float64)
    parts = []
    for scale in _SCALES:
        for number in range(_ANGLES):
            angle = math.pi * number / _ANGLES
            along = right * math.cos(angle) + down * math.sin(angle)
            across = down * math.cos(angle) - right * math.sin(angle)
            window = np.exp(-(along**2 + (0.7 * across) ** 2) / (2 * (0.8 * scale) ** 2))
            wave = window * np.exp(1j * 0.75 * math.pi / scale * along)
            wave -= window * (wave.sum() / window.sum())
            wave /= np.abs(wave).sum()
            parts += [wave.real, wave.imag]
    return np.stack(parts)[:, None]


class Columns(nn.Module):
    """Columns between 0 and 1 as numbers between -1 and 1."""

    def __init__(self, shape: Shape, most: int) -> None:
        super().__init__()
        count = math.prod(shape)
        if count > most:
            raise InputError(f"use at least {count} for features columns, or features random", "embedding", most)

    def forward(self, block: Tensor) -> Tensor:
        """Map (n, ...) to (n, columns)."""
        return 2 * block.flatten(1) - 1


class RandomFourier(nn.Module):
    """Cosines of random projections, whose inner products are about those of a Gaussian kernel."""

    def __init__(self, shape: Shape, most: int, generator: np.random.Generator) -> None:
        super().__init__()
        count = math.prod(shape)
        self.weight = _constant(generator.standard_normal((most, count)) * _BANDWIDTH / math.sqrt(count))
        self.bias = _constant(generator.uniform(0.0, 2 * math.pi, most))

    def forward(self, block: Tensor) -> Tensor:
        """Map (n, ...) to (n, most)."""
        return math.sqrt(2.0) * torch.cos(functional.linear(block.flatten(1) - 0.5, self.weight, self.bias))


def _constant(values: np.ndarray) -> nn.Parameter:
    """Return numbers that belong to a released model and that nothing trains."""
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(values)), requires_grad=False)


FEATURES = Registry(
    "dpzv_audit.features",
    FeatureMap,
    (
        FeatureMap(
            name="histograms",
            summary="pictures: histograms of gradients by direction, over cells, normalised within the record",
            module=lambda shape, most, generator: OrientedHistograms(shape, most),
            pictures=True,
        ),
        FeatureMap(
            name="gabor",
            summary="pictures: moduli of 16 Gabor filters, averaged over cells, normalised within the record",
            module=lambda shape, most, generator: GaborModuli(shape, most),
            pictures=True,
        ),
        FeatureMap(
            name="columns",
            summary="tables: the columns themselves, scaled by public constants",
            module=lambda shape, most, generator: Columns(shape, most),
        ),
        FeatureMap(name="random", summary="tables: random Fourier features of the columns", module=RandomFourier),
    ),
)
"""Data-free maps by name."""


def map_for(name: str, shape: Shape, most: int) -> str:
    """Return which map a block of records of `shape` gets: of `auto` by the shape alone, else the one that is named."""
    if name != "auto":
        return name
    if is_picture(shape):
        return "histograms"
    return "columns" if math.prod(shape) <= most else "random"


class Padded(nn.Module):
    """A map with zeros after the `count` features that it makes, `width` numbers a record in all."""

    def __init__(self, name: str, made: nn.Module, shape: Shape, width: int) -> None:
        super().__init__()
        self.made = made.eval()
        self._width = width
        held = next(made.parameters(), torch.empty(0))
        self.count = self._made(torch.zeros(1, *shape, dtype=held.dtype)).shape[1]
        if self.count > width:
            raise InputError(f"use at least {self.count}, as many as features {name} makes", "embedding", width)

    @torch.no_grad()
    def _made(self, block: Tensor) -> Tensor:
        features: Tensor = self.made(block)
        return features

    def forward(self, block: Tensor) -> Tensor:
        """Map (n, ...) to (n, width)."""
        return functional.pad(self.made(block), (0, self._width - self.count))


def fixed_map(name: str, shape: Shape, width: int, generator: np.random.Generator | None = None) -> Padded:
    """Return the map called `name`, or chosen by `auto`, for a block of records of `shape`, padded to `width`.

    Its constants follow from the public `generator`; without one, only their shapes are of use.

    Raises:
        InputError: There is no such map, or it does not fit the shape or the width.
    """
    chosen = FEATURES.named(map_for(name, shape, width), "features")
    if chosen.pictures and not is_picture(shape):
        raise InputError(f"use columns or random: records of shape {shape} are no pictures", "features", chosen.name)
    drawn = np.random.default_rng(0) if generator is None else generator
    return Padded(chosen.name, chosen.module(shape, width, drawn), shape, width)
