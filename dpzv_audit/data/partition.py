"""Ways of cutting records into one feature block a client: pure functions, each a table row of the papers.

Strips and patches are paper 001's MNIST and CIFAR-10 partitions, runs of flattened pixels those of papers
002 and 003. Every block is a fresh C-contiguous array of the input's type; together the blocks hold every
feature exactly once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpzv_audit.errors import InputError, check_count

Blocks = tuple[npt.NDArray[Any], ...]


def split_evenly(length: int, parts: int, *, name: str, of: str) -> int:
    """Return `length` / `parts`; `InputError` naming `name` and what would divide if it is not whole."""
    check_count(name, parts)
    if length % parts:
        choices = ", ".join(str(n) for n in range(1, length + 1) if length % n == 0)
        raise InputError(f"must divide the {length} {of}: one of {choices}", name, parts)
    return length // parts


def column_blocks(images: npt.NDArray[Any], clients: int) -> Blocks:
    """Cut images (N, H, W) into `clients` blocks of W / clients neighbouring columns, flattened.

    Blocks are (N, H W / clients), leftmost columns first.
    """
    _check_dimensions(images, (3,))
    split_evenly(images.shape[2], clients, name="clients", of="image columns")
    return tuple(block.reshape(len(images), -1) for block in patches(images, rows=1, columns=clients))


def row_strips(images: npt.NDArray[Any], clients: int) -> Blocks:
    """Cut images (N, H, W) or (N, C, H, W) into `clients` strips of neighbouring rows, top first.

    Strips are (N, C, H / clients, W); C is 1 where the images have no channel axis. MNIST in
    paper 001: 7 strips of 4 rows.
    """
    _check_dimensions(images, (3, 4))
    split_evenly(images.shape[-2], clients, name="clients", of="image rows")
    return patches(images, rows=clients, columns=1)


def patches(images: npt.NDArray[Any], *, rows: int = 2, columns: int = 2) -> Blocks:
    """Cut images (N, H, W) or (N, C, H, W) into a grid of rows x columns patches, row by row.

    Each patch is (N, C, H / rows, W / columns), C = 1 where the images have no channel axis. CIFAR-10 in
    paper 001: 2 x 2 patches of 16 x 16.
    """
    _check_dimensions(images, (3, 4))
    planes = images[:, None] if images.ndim == 3 else images
    height = split_evenly(planes.shape[2], rows, name="rows of patches", of="image rows")
    width = split_evenly(planes.shape[3], columns, name="columns of patches", of="image columns")
    return tuple(
        np.ascontiguousarray(planes[:, :, top : top + height, left : left + width])
        for top in range(0, planes.shape[2], height)
        for left in range(0, planes.shape[3], width)
    )


def equal_runs(records: npt.NDArray[Any], clients: int) -> Blocks:
    """Flatten each record of (N, ...) and cut it into `clients` equal runs: blocks of (N, d / clients).

    Two runs are the halves of paper 003 (392 pixels each on MNIST).
    """
    if records.ndim < 2:
        raise InputError(f"records have shape {records.shape}, must be (N, ...)")
    flat = records.reshape(len(records), -1)
    length = split_evenly(flat.shape[1], clients, name="clients", of="features")
    return tuple(np.ascontiguousarray(flat[:, start : start + length]) for start in range(0, flat.shape[1], length))


def scaled(blocks: Blocks, divisor: float) -> tuple[npt.NDArray[np.float32], ...]:
    """Return the blocks divided by the public constant `divisor`, in float32.

    A constant known beforehand: preprocessing that looked at the data would leak from it unaccounted.
    """
    return tuple(np.divide(block, np.float32(divisor), dtype=np.float32) for block in blocks)


def _check_dimensions(images: npt.NDArray[Any], allowed: tuple[int, ...]) -> None:
    if images.ndim not in allowed:
        layouts = " or ".join({3: "(N, H, W)", 4: "(N, C, H, W)"}[n] for n in allowed)
        raise InputError(f"images have shape {images.shape}, must be {layouts}")
