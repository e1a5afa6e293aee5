"""Colour and size of images by fixed arithmetic (luma weights, means over boxes), and views cut over clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.partition import Blocks, split_evenly
from dpzv_audit.errors import InputError, check_count

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Weights of red, green and blue in a grey value (ITU-R BT.601)."""

COLOURS = ("rgb", "grey")
PIXEL_MAXIMUM = np.float32(255.0)


def check_look(colour: str, size: int, original: int) -> None:
    """Raise `InputError` unless `colour` is "rgb" or "grey" and `size` divides the images' `original` side."""
    if colour not in COLOURS:
        raise InputError(f"must be {' or '.join(COLOURS)}", "colour", colour)
    check_count("size", size)
    if size > original or original % size:
        choices = ", ".join(str(n) for n in range(1, original + 1) if original % n == 0)
        raise InputError(f"must divide the images' side of {original} pixels: one of {choices}", "size", size)


def prepared(images: npt.NDArray[np.uint8], *, colour: str, size: int) -> npt.NDArray[np.float32]:
    """Return images (..., H, H, 3) as float32 (..., C, size, size) in [0, 1], C = 3 for "rgb" and 1 for "grey".

    A pixel of the result is the mean over a box of H / size x H / size pixels. Each image is treated alone.
    """
    *lead, side, _, channels = images.shape
    check_look(colour, size, side)
    box = side // size
    boxes = images.reshape(*lead, size, box, size, box, channels)
    means = boxes.mean(axis=(-4, -2), dtype=np.float32) / PIXEL_MAXIMUM
    coloured = means if colour == "rgb" else (means * LUMA).sum(axis=-1, keepdims=True)
    return np.ascontiguousarray(np.moveaxis(coloured, -1, -3))


def view_blocks(views: npt.NDArray[np.float32], clients: int) -> Blocks:
    """Cut (N, V, C, S, S) over `clients`: V / clients neighbouring views each, as channels of one image.

    Blocks are (N, C V / clients, S, S); with as many clients as views, one view a client.
    """
    each = split_evenly(views.shape[1], clients, name="clients", of="views")
    count, _, channels, *side = views.shape
    return tuple(
        np.ascontiguousarray(views[:, start : start + each]).reshape(count, each * channels, *side)
        for start in range(0, views.shape[1], each)
    )


def rotations(views: npt.NDArray[np.float32], clients: int) -> npt.NDArray[np.float32]:
    """Turn each object of a ring of views (N, V, ...) into V / clients records of `clients` views: (N', clients, ...).

    Record r of an object has views r, r + V / clients, r + 2 V / clients, ...: the same angles between clients in
    every record, and every view of every object used once. Records of an object are neighbours, so that a split
    by object stays one: N' = N V / clients.
    """
    turns = split_evenly(views.shape[1], clients, name="clients", of="views")
    rest: Any = views.shape[2:]
    spread = views.reshape(len(views), clients, turns, *rest).swapaxes(1, 2)
    return np.ascontiguousarray(spread).reshape(len(views) * turns, clients, *rest)
