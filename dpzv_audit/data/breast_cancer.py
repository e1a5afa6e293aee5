"""Wisconsin breast cancer (Street, Wolberg, Mangasarian, 1993), embedded in scikit-learn, in runs of columns."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from dpzv_audit.data.partition import equal_runs
from dpzv_audit.data.split import fixed_split
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

SPLIT_SEED = 569
DEFAULT_CLIENTS = 3

SCALES = (
    *(30.0, 40.0, 200.0, 3000.0, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1),
    *(3.0, 5.0, 25.0, 600.0, 0.04, 0.15, 0.4, 0.06, 0.08, 0.03),
    *(40.0, 50.0, 300.0, 5000.0, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21),
)
"""What each column is divided by: the maxima in the data set's published description, rounded up; constants of
this file, so that loading looks at no record to scale it."""


def load_breast_cancer(
    *, clients: int | None = None, partition: str | None = None, data_dir: Path | None = None
) -> VerticalDataset:
    """Return breast cancer (448 train and 121 test records, 2 classes: 0 malignant, 1 benign), features in [0, 1].

    `clients` (a divisor of 30, default 3) hold 30 / clients neighbouring columns; with 3 these are the means,
    the standard errors and the worst values of the same ten measures. `partition` may only be "columns". The
    data are embedded in scikit-learn: `data_dir` is not read. Raises `InputError` for other values.
    """
    from sklearn import datasets

    if partition not in (None, "columns"):
        raise InputError(f"partition is {partition!r}, breast-cancer has only one: columns")
    bunch: Any = datasets.load_breast_cancer()
    source = np.ascontiguousarray(bunch.data, dtype=np.float64)
    labels = np.ascontiguousarray(bunch.target, dtype=np.int64)
    features = (source / np.array(SCALES)).astype(np.float32)
    blocks = equal_runs(features, DEFAULT_CLIENTS if clients is None else clients)
    train, test = fixed_split(len(labels), seed=SPLIT_SEED)
    return VerticalDataset(
        name="breast-cancer",
        train=Records(features=tuple(block[train] for block in blocks), labels=labels[train]),
        test=Records(features=tuple(block[test] for block in blocks), labels=labels[test]),
        classes=2,
        partition=f"{len(blocks)} clients, columns: {30 // len(blocks)} of the 30 columns each",
        digests={
            "breast-cancer/data": hashlib.sha256(source.tobytes()).hexdigest(),
            "breast-cancer/target": hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest(),
        },
    )
