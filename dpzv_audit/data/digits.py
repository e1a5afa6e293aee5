"""The embedded default: scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, cut into blocks of columns."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.partition import column_blocks, scaled
from dpzv_audit.data.split import fixed_order
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

TRAIN_RECORDS = 22 * 64
"""1,408 of 1,797 records: whole batches of 64, so that a shuffled epoch uses every record exactly once and no
batch is short (the divisor B of the noisy mean is what the accounting says); 389 remain for the test."""

SPLIT_SEED = 1797
"""Which records train is part of the data set: it never follows a run's seed, so runs can be compared."""

PIXEL_MAXIMUM = 16.0
"""The largest grey value of the format: a public constant, so scaling looks at no record."""

DEFAULT_CLIENTS = 4


def load_digits(
    *, clients: int | None = None, partition: str | None = None, data_dir: Path | None = None
) -> VerticalDataset:
    """Return the digits in `clients` blocks (1, 2, 4 or 8; default 4) of neighbouring columns, flattened.

    With 4 clients a block is 8 rows x 2 columns = 16 features in [0, 1]; 1,408 train and 389 test records,
    10 classes. `partition` may only be "columns". The data are embedded in scikit-learn: `data_dir` is not
    read. Raises `InputError` for other values.
    """
    if partition not in (None, "columns"):
        raise InputError(f"partition is {partition!r}, digits has only one: columns")
    images, labels = _embedded_arrays()
    blocks = scaled(column_blocks(images, DEFAULT_CLIENTS if clients is None else clients), PIXEL_MAXIMUM)
    order = split_order(len(labels))
    train, test = order[:TRAIN_RECORDS], order[TRAIN_RECORDS:]
    columns = 8 // len(blocks)
    return VerticalDataset(
        name="digits",
        train=Records(features=tuple(block[train] for block in blocks), labels=labels[train]),
        test=Records(features=tuple(block[test] for block in blocks), labels=labels[test]),
        classes=10,
        partition=f"{len(blocks)} clients, columns: {columns} of the 8 image columns each, 8 rows, flattened",
        digests={
            "digits/images": hashlib.sha256(images.tobytes()).hexdigest(),
            "digits/labels": hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest(),
        },
        columns=columns,
    )


def split_order(count: int) -> npt.NDArray[np.int64]:
    """Return the fixed permutation of 0 .. count - 1 whose first 1,408 entries are the train records."""
    return fixed_order(count, seed=SPLIT_SEED)


def _embedded_arrays() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the images, uint8 (1797, 8, 8) in 0 .. 16, and the labels, int64 (1797,)."""
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    images = np.ascontiguousarray(bunch.images.astype(np.uint8))
    return images, np.ascontiguousarray(bunch.target.astype(np.int64))
