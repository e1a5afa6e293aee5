"""ETH-80 (Leibe, Schiele, 2003): photographs of 80 objects from 16 sides, a view a client, split by object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import Source, file_digest
from dpzv_audit.data.images import check_look, prepared, rotations, view_blocks
from dpzv_audit.data.npz import Expected, read_npz
from dpzv_audit.data.partition import split_evenly
from dpzv_audit.data.split import fixed_order
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

ETH80_FILE = "eth80_16views_64x64.npz"
OBJECTS, VIEWS, SIDE, CLASSES = 80, 16, 64, 8
OBJECTS_A_CLASS = OBJECTS // CLASSES
ETH80_SOURCE = Source(
    name="eth80",
    folder="eth80",
    holds=f"{ETH80_FILE} itself",
    origin=(
        f"make {ETH80_FILE} from the ETH-80 photographs (their 16 views 090-*, 64 x 64): "
        "images uint8 (80, 16, 64, 64, 3), labels int64 (80,)"
    ),
)
TRAIN_A_CLASS = 8
"""Of the 10 objects of a class, 8 train: 64 objects, a whole batch; 16 remain for the test."""

SPLIT_SEED = 80
PARTITIONS = ("views", "rotations")


def load_eth80(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    colour: str = "rgb",
    size: int = SIDE,
) -> VerticalDataset:
    """Return ETH-80 (64 train and 16 test objects, 8 classes), pixels in [0, 1]; an object is never in both parts.

    `partition` "views" (default): a record is an object, and `clients` (1, 2, 4, 8 or 16, default 16) hold
    16 / clients neighbouring views of the ring each, as channels: blocks (N, C 16 / clients, size, size).
    "rotations": clients (default 4) hold one view each, evenly spaced, and the 16 / clients ways of turning the
    ring are records of their own: blocks (N 16 / clients, C, size, size). `colour` is "rgb" (C = 3) or "grey"
    (C = 1); `size` divides 64. `data_dir` is the folder that holds `eth80/` or the file itself; without it
    DPZV_AUDIT_DATA. Raises `InputError` for other values and for a missing or other file.
    """
    kind = "views" if partition is None else partition
    if kind not in PARTITIONS:
        raise InputError(f"partition is {partition!r}, eth80 has: {', '.join(PARTITIONS)}")
    count = {"views": VIEWS, "rotations": 4}[kind] if clients is None else clients
    each = split_evenly(VIEWS, count, name="clients", of="views")
    check_look(colour, size, SIDE)
    folder = ETH80_SOURCE.locate(data_dir)
    path = ETH80_SOURCE.find(folder, ETH80_FILE)
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
    arrays = read_npz(
        path,
        {
            "images": Expected(kind="u", item_bytes=1, shape=(OBJECTS, VIEWS, SIDE, SIDE, 3)),
            "labels": Expected(kind="i", item_bytes=8, shape=(OBJECTS,)),
        },
    )
    labels = arrays["labels"].astype(np.int64)
    counts = [int(np.count_nonzero(labels == value)) for value in range(CLASSES)]
    if counts != [OBJECTS_A_CLASS] * CLASSES:
        raise InputError(f"{path}: labels 0 .. {CLASSES - 1} have {counts} objects, must have {OBJECTS_A_CLASS} each")
    return arrays["images"], labels
