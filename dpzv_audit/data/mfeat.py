"""UCI multiple features (Duin, 1998): 2,000 handwritten digits seen through 6 feature sets, a set a client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import file_digest
from dpzv_audit.data.mat5 import read_mat5
from dpzv_audit.data.spec import DataRequest, declared
from dpzv_audit.data.split import split_records
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

MFEAT_FILE = "HW.mat"
RECORDS = 2_000
CLASSES = 10
SPLIT_SEED = 2_000
FILE_LIMIT = 64 << 20


@dataclass(frozen=True)
class FeatureSet:
    """A view: its name in the source, and what its columns are divided by, `repeat` times over."""

    name: str
    scales: tuple[float, ...]
    repeat: int = 1

    @property
    def divisors(self) -> npt.NDArray[np.float64]:
        """What each column is divided by."""
        return np.tile(self.scales, self.repeat)


VIEWS = declared("mfeat", "views", tuple[FeatureSet, ...])


def read_mfeat(request: DataRequest) -> VerticalDataset:
    """Return the multiple features (1,600 train and 400 test records, 10 classes).

    `clients` (1, 2, 3 or 6) hold 6 / clients neighbouring views each: blocks (N, 216), (N, 76), (N, 64), (N, 6),
    (N, 240) and (N, 47), about in [-1, 1]. The file is sorted by class; the split is a fixed shuffle. Raises
    `InputError` for a missing or other file.
    """
    each = len(VIEWS) // request.clients
    path = request.find(MFEAT_FILE)
    views, labels = _read(path)
    scaled = [scaled_view(view, kind) for view, kind in zip(views, VIEWS, strict=True)]
    starts = range(0, len(VIEWS), each)
    blocks = tuple(np.ascontiguousarray(np.hstack(scaled[start : start + each])) for start in starts)
    train, test = split_records(Records(blocks, labels), seed=SPLIT_SEED)
    held = "; ".join(" + ".join(kind.name for kind in VIEWS[start : start + each]) for start in starts)
    return VerticalDataset(
        name="mfeat",
        train=train,
        test=test,
        classes=CLASSES,
        partition=f"{request.clients} clients, views: {held}",
        digests={path.name: file_digest(path)},
    )


def scaled_view(view: npt.NDArray[np.float64], kind: FeatureSet) -> npt.NDArray[np.float32]:
    """Return a view (N, columns) divided by its constants, in float32."""
    scaled: npt.NDArray[np.float32] = (view / kind.divisors).astype(np.float32)
    return scaled


def _read(path: Path) -> tuple[list[npt.NDArray[np.float64]], npt.NDArray[np.int64]]:
    variables = read_mat5(path, ("X", "Y"), FILE_LIMIT)
    cells, labels = variables["X"], variables["Y"].ravel()
    if cells.dtype != object or cells.size != len(VIEWS):
        raise InputError(f"{path}: X has shape {cells.shape} of {cells.dtype}, must be a cell array of 6 views")
    views = []
    for kind, view in zip(VIEWS, cells.ravel(), strict=True):
        right = (RECORDS, len(kind.divisors))
        if not isinstance(view, np.ndarray) or view.dtype.kind not in "uif" or view.shape != right:
            raise InputError(f"{path}: view {kind.name!r} has shape {np.shape(view)}, must be {right} of numbers")
        if not np.isfinite(view).all():
            raise InputError(f"{path}: view {kind.name!r} holds nan or inf, must hold finite numbers")
        views.append(view.astype(np.float64))
    expected = np.repeat(np.arange(1, CLASSES + 1), RECORDS // CLASSES)
    if labels.shape != expected.shape or (labels != expected).any():
        raise InputError(f"{path}: Y must be 1 .. 10, 200 records of each in order (digit = Y - 1)")
    return views, (expected - 1).astype(np.int64)
