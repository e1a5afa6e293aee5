"""ETH-80 (Leibe, Schiele, 2003): photographs of 80 objects from 16 sides, a view a client, split by object."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import file_digest, unreadable
from dpzv_audit.data.images import check_look, prepared, rotations, view_blocks
from dpzv_audit.data.spec import DataRequest
from dpzv_audit.data.split import fixed_order
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.npy import read_npz

ETH80_FILE = "eth80_16views_64x64.npz"
OBJECTS, VIEWS, SIDE, CLASSES = 80, 16, 64, 8
OBJECTS_A_CLASS = OBJECTS // CLASSES
TRAIN_A_CLASS = 8
"""Of the 10 objects of a class, 8 train: 64 objects, a whole batch; 16 remain for the test."""

SPLIT_SEED = 80


def read_eth80(request: DataRequest, *, colour: str = "rgb", size: int = SIDE) -> VerticalDataset:
    """Return ETH-80 (64 train and 16 test objects, 8 classes), pixels in [0, 1]; an object is never in both parts.

    "views": a record is an object, and each client holds 16 / clients neighbouring views of the ring, as channels:
    blocks (N, C 16 / clients, size, size). "rotations": clients hold one view each, evenly spaced, and the 16 / clients
    ways of turning the ring are records of their own: blocks (N 16 / clients, C, size, size). `colour` is "rgb" (C = 3)
    or "grey" (C = 1); `size` divides 64. Raises `InputError` for other values and for a missing or other file.
    """
    kind, count = request.partition, request.clients
    each = VIEWS // count
    check_look(colour, size, SIDE)
    path = request.find(ETH80_FILE)
    images, labels = _read(path)
    views = prepared(images, colour=colour, size=size)
    train, test = object_split(labels)

    def records(objects: npt.NDArray[np.int64]) -> Records:
        if kind == "views":
            return Records(features=view_blocks(views[objects], count), labels=labels[objects])
        turned = rotations(views[objects], count)
        blocks = tuple(np.ascontiguousarray(turned[:, client]) for client in range(count))
        return Records(features=blocks, labels=np.repeat(labels[objects], each))

    held = f"{each} of the 16 ring views each" if kind == "views" else f"one view each, {each} turns an object"
    return VerticalDataset(
        name="eth80",
        train=records(train),
        test=records(test),
        classes=CLASSES,
        partition=f"{count} clients, {kind}: {held}, {colour}, {size} x {size} pixels; split by object",
        digests={path.name: file_digest(path)},
    )


def object_split(labels: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the fixed train (8 a class) and test objects (2 a class) as positions in the file."""
    order = fixed_order(OBJECTS, seed=SPLIT_SEED)
    # an object's rank among those of its class, in the fixed order
    rank = np.array([np.count_nonzero(labels[order[:place]] == labels[o]) for place, o in enumerate(order)])
    return order[rank < TRAIN_A_CLASS], order[rank >= TRAIN_A_CLASS]


def _read(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    right = {"images": ("u", 1, (OBJECTS, VIEWS, SIDE, SIDE, 3)), "labels": ("i", 8, (OBJECTS,))}
    try:
        arrays = read_npz(path, {key: math.prod(shape) * size for key, (_, size, shape) in right.items()})
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise unreadable(path, error) from error
    for key, (kind, size, shape) in right.items():
        array = arrays[key]
        if array.dtype.kind != kind or array.dtype.itemsize > size or array.shape != shape:
            found = f"{key} has shape {array.shape} of {array.dtype}"
            raise InputError(f"{path}: {found}, must be {shape} of kind {kind!r}, {size} bytes each")
    labels = arrays["labels"].astype(np.int64)
    counts = [int(np.count_nonzero(labels == value)) for value in range(CLASSES)]
    if counts != [OBJECTS_A_CLASS] * CLASSES:
        raise InputError(f"{path}: labels 0 .. {CLASSES - 1} have {counts} objects, must have {OBJECTS_A_CLASS} each")
    return arrays["images"], labels
