"""Data-free features: maps that follow from the shape of a client's block, and from no record.

Histograms of gradients: lengths of gradients by direction (Dalal and Triggs, CVPR 2005), each shared between the two
nearest of eight, of the channel with the longest, averaged over overlapping cells. Their square roots are centred and
scaled within the record and the block, so that nothing is read off other records.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .patches import Shape

_ORIENTATIONS = 8
# Added to the deviation within a record: what is all but constant stays small.
_LEAST_SPREAD = 0.03
# Keeps roots of what is 0 differentiable.
_TINY = 1e-12


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


def _constant(values: np.ndarray) -> nn.Parameter:
    """Return numbers that belong to a released model and that nothing trains."""
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(values)), requires_grad=False)
