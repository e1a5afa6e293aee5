"""A model of image patches: rectified products with filters, pooled by region, as label-free features have them."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpzv_audit.base.errors import InputError

from .config import FeatureKind

Shape = tuple[int, ...]
SIDE = 6
"""Pixels of a patch each way: the size that did best in Coates, Ng and Lee (2011)."""
_POSITIONS = 4
# Keeps the root's slope finite where nothing is pooled.
_ROOT = 1e-4


def is_picture(shape: Shape) -> bool:
    """Return whether records of `shape` are pictures: channels, height and width, with more than one pixel each way."""
    return len(shape) == 3 and min(shape[1:]) > 1


def kind_for(kind: FeatureKind, shape: Shape) -> Literal["components", "patches"]:
    """Return which features a block of records of `shape` gets; `InputError` for patches of what is no image."""
    image = is_picture(shape)
    if kind == "patches" and not image:
        raise InputError(f"use components: features of shape {shape} are no images", "features", kind)
    return "patches" if image and kind != "components" else "components"


def regions_of(shape: Shape) -> tuple[int, int]:
    """Return into how many parts positions of patches are pooled each way: one for four positions."""
    positions = [size - min(SIDE, size) + 1 for size in shape[1:]]
    high, wide = (max(1, -(-count // _POSITIONS)) for count in positions)
    return high, wide


class PatchFeatures(nn.Module):
    """Rectified products of patches with `atoms` filters, the mean of each `regions` (h, w), its root, standardised."""

    def __init__(self, shape: Shape, atoms: int, regions: tuple[int, int], width: int) -> None:
        super().__init__()
        channels, height, columns = shape
        made = atoms * math.prod(regions)
        self.filters = nn.Conv2d(channels, atoms, (min(SIDE, height), min(SIDE, columns)))
        self.weight = nn.Parameter(torch.ones(made))
        self.bias = nn.Parameter(torch.zeros(made))
        self._regions = regions
        self._padding = width - made

    def raw(self, images: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, atoms * regions), before features are standardised."""
        pooled = functional.adaptive_avg_pool2d(torch.relu(self.filters(images)), self._regions)
        return (pooled.flatten(1) + _ROOT).sqrt()

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, width); what the regions leave over is 0."""
        return functional.pad(self.raw(images) * self.weight + self.bias, (0, self._padding))
