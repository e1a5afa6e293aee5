"""Tables embedded in scikit-learn: handwritten digits, and measures of cell nuclei (breast cancer)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from dpzv_audit.data.spec import DataRequest, declared
from dpzv_audit.data.vertical import Records, VerticalDataset, column_blocks, equal_runs, scaled, split_records

PIXEL_MAXIMUM = 16.0
"""The largest grey value of the digits' format: a public constant, so scaling looks at no record."""

DIGITS_SEED, CANCER_SEED = 1797, 569
"""Which records train is part of a data set: it never follows a run's seed, so runs can be compared."""


def read_digits(request: DataRequest) -> VerticalDataset:
    """Return the digits (1,408 train and 389 test records, 10 classes), pixels in [0, 1].

    Blocks are 8 / clients neighbouring columns of the 8 x 8 images, flattened: (N, 64 / clients).
    """
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    images = np.ascontiguousarray(bunch.images.astype(np.uint8))
    labels = np.ascontiguousarray(bunch.target.astype(np.int64))
    blocks = scaled(column_blocks(images, request.clients), PIXEL_MAXIMUM)
    columns = 8 // request.clients
    train, test = split_records(Records(blocks, labels), seed=DIGITS_SEED)
    return VerticalDataset(
        name="digits",
        train=train,
        test=test,
        classes=10,
        partition=f"{request.clients} clients, columns: {columns} of the 8 image columns each, 8 rows, flattened",
        digests={"digits/images": _digest(images), "digits/labels": _digest(labels.astype(np.uint8))},
        columns=columns,
    )


def read_breast_cancer(request: DataRequest) -> VerticalDataset:
    """Return breast cancer (448 train and 121 test records, 2 classes: 0 malignant, 1 benign), features in [0, 1].

    Blocks are 30 / clients neighbouring columns: (N, 30 / clients).
    """
    from sklearn import datasets

    bunch: Any = datasets.load_breast_cancer()
    source = np.ascontiguousarray(bunch.data, dtype=np.float64)
    labels = np.ascontiguousarray(bunch.target, dtype=np.int64)
    scales = declared("breast-cancer", "scales", tuple[float, ...])
    blocks = equal_runs((source / np.array(scales)).astype(np.float32), request.clients)
    train, test = split_records(Records(blocks, labels), seed=CANCER_SEED)
    return VerticalDataset(
        name="breast-cancer",
        train=train,
        test=test,
        classes=2,
        partition=f"{request.clients} clients, columns: {30 // request.clients} of the 30 columns each",
        digests={
            "breast-cancer/data": _digest(source),
            "breast-cancer/target": _digest(labels.astype(np.uint8)),
        },
    )


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
