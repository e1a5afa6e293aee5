"""A data set cut vertically: one feature block a client, the labels at the server, as methods train on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpzv_audit.errors import InputError, check_count

FloatArray = npt.NDArray[np.float32]
LabelArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Records:
    """N records: `features[m]` is client m's block, float32 (N, *shape_m), C-contiguous; `labels` int64 (N,).

    Made only if all blocks and the labels have the same N >= 1 and every feature is finite: `InputError`
    otherwise, naming the block.
    """

    features: tuple[FloatArray, ...]
    labels: LabelArray

    def __post_init__(self) -> None:
        if not self.features:
            raise InputError("features is empty, must hold at least one block (one a client)")
        check_array("labels", self.labels, np.int64)
        if self.labels.ndim != 1 or len(self.labels) == 0:
            raise InputError(f"labels has shape {self.labels.shape}, must be (N,) with N at least 1")
        for client, block in enumerate(self.features):
            name = f"features[{client}]"
            check_array(name, block, np.float32)
            if block.ndim < 2 or len(block) != len(self) or block.size == 0:
                raise InputError(f"{name} has shape {block.shape}, must be ({len(self)}, ...): a row a label")
            if not np.isfinite(block).all():
                raise InputError(f"{name} holds nan or inf, every feature must be finite")

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True, eq=False)
class VerticalDataset:
    """A train and a test part over the same clients, with labels in 0 .. `classes` - 1.

    `partition` says in words how the features were cut. `digests` maps each source (a file, or an embedded
    array) to its SHA-256 as 64 hexadecimal digits. Raises `InputError` where the two parts differ in clients
    or in the shape of a client's block, or where a label is out of range.
    """

    name: str
    train: Records
    test: Records
    classes: int
    partition: str
    digests: dict[str, str]

    def __post_init__(self) -> None:
        check_count("classes", self.classes, least=2)
        if self.shapes != tuple(block.shape[1:] for block in self.test.features):
            raise InputError(f"{self.name}: train and test blocks differ in number or shape, must be the same")
        for part, records in (("train", self.train), ("test", self.test)):
            low, high = int(records.labels.min()), int(records.labels.max())
            if low < 0 or high >= self.classes:
                found = f"{self.name}: {part} labels run from {low} to {high}"
                raise InputError(f"{found}, must lie in 0 .. {self.classes - 1}")

    @property
    def clients(self) -> int:
        """Number of clients M."""
        return len(self.train.features)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of one record's block at each client."""
        return tuple(block.shape[1:] for block in self.train.features)


def check_array(name: str, array: npt.NDArray[Any], dtype: type[np.generic]) -> None:
    """Raise `InputError` naming `name` unless `array` is a C-contiguous array of `dtype`."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"{name} is {found}, must be an array of {np.dtype(dtype)}")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} is not C-contiguous, must be (numpy.ascontiguousarray makes it so)")
