"""UCI multiple features (Duin, 1998): 2,000 handwritten digits seen through 6 feature sets, a set a client.

Scales are constants of this file, orders of magnitude for each kind of feature. They were chosen knowing the
published file's ranges, once for all: loading never looks at the records to scale them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import Source, file_digest
from dpzv_audit.data.mat5 import read_mat5
from dpzv_audit.data.partition import split_evenly
from dpzv_audit.data.split import fixed_split
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

MFEAT_FILE = "HW.mat"
MFEAT_SOURCE = Source(
    name="mfeat",
    folder="mfeat",
    holds=f"{MFEAT_FILE} itself",
    origin=(
        f"get the multiple features data (https://archive.ics.uci.edu/dataset/72/multiple+features) as {MFEAT_FILE}, "
        "a MATLAB 5 file of a 1 x 6 cell X and labels Y"
    ),
)
RECORDS = 2_000
CLASSES = 10
SPLIT_SEED = 2_000
FILE_LIMIT = 64 << 20


@dataclass(frozen=True)
class FeatureSet:
    """A view: its name in the source, and what each of its columns is divided by."""

    name: str
    scales: tuple[float, ...]


VIEWS = (
    FeatureSet("profile correlations", (1000.0, 1000.0, 1500.0, 1500.0, 1500.0, 1500.0, *(50.0,) * 6) * 18),
    FeatureSet("Fourier coefficients", (1.0,) * 76),
    FeatureSet("Karhunen-Loeve coefficients", (20.0,) * 64),
    FeatureSet("morphological features", (5.0, 10.0, 10.0, 250.0, 5.0, 20000.0)),
    FeatureSet("pixel averages", (6.0,) * 240),
    FeatureSet(
        "Zernike moments",
        (
            *(0.5, 10.0, 100.0, 200.0, 500.0, 1000.0, 500.0, 1.0, 20.0, 100.0, 500.0, 500.0, 500.0, 2.0, 50.0, 200.0),
            *(500.0, 500.0, 1000.0, 2.0, 50.0, 200.0, 500.0, 500.0, 5.0, 100.0, 500.0, 500.0, 1000.0, 10.0, 100.0),
            *(500.0, 500.0, 10.0, 200.0, 500.0, 500.0, 20.0, 200.0, 500.0, 50.0, 500.0, 1000.0, 50.0, 500.0, 100.0),
            1000.0,
        ),
    ),
)


def load_mfeat(
    *, clients: int | None = None, partition: str | None = None, data_dir: Path | None = None
) -> VerticalDataset:
    """Return the multiple features (1,600 train and 400 test records, 10 classes).

    `clients` (1, 2, 3 or 6; default 6) hold 6 / clients neighbouring views: blocks (N, 216), (N, 76), (N, 64),
    (N, 6), (N, 240) and (N, 47), about in [-1, 1]. The file is sorted by class; the split is a fixed shuffle.
    `partition` may only be "views". `data_dir` is the folder that holds `mfeat/` or `HW.mat` itself; without it
    DPZV_AUDIT_DATA. Raises `InputError` for other values and for a missing or other file.
    """
    if partition not in (None, "views"):
        raise InputError(f"partition is {partition!r}, mfeat has only one: views")
    count = len(VIEWS) if clients is None else clients
    each = split_evenly(len(VIEWS), count, name="clients", of="views")
    path = MFEAT_SOURCE.find(MFEAT_SOURCE.locate(data_dir), MFEAT_FILE)
    views, labels = _read(path)
    scaled = [scaled_view(view, kind) for view, kind in zip(views, VIEWS, strict=True)]
    blocks = [np.hstack(scaled[start : start + each]) for start in range(0, len(VIEWS), each)]
    train, test = fixed_split(RECORDS, seed=SPLIT_SEED)
    held = "; ".join(
        " + ".join(kind.name for kind in VIEWS[start : start + each]) for start in range(0, len(VIEWS), each)
    )
    return VerticalDataset(
        name="mfeat",
        train=Records(features=tuple(block[train] for block in blocks), labels=labels[train]),
        test=Records(features=tuple(block[test] for block in blocks), labels=labels[test]),
        classes=CLASSES,
        partition=f"{count} clients, views: {held}",
        digests={path.name: file_digest(path)},
    )


def scaled_view(view: npt.NDArray[np.float64], kind: FeatureSet) -> npt.NDArray[np.float32]:
    """Return a view (N, columns) divided by its constants, in float32."""
    scaled: npt.NDArray[np.float32] = (view / np.array(kind.scales)).astype(np.float32)
    return scaled


def _read(path: Path) -> tuple[list[npt.NDArray[np.float64]], npt.NDArray[np.int64]]:
    variables = read_mat5(path, ("X", "Y"), FILE_LIMIT)
    cells, labels = variables["X"], variables["Y"].ravel()
    if cells.dtype != object or cells.size != len(VIEWS):
        raise InputError(f"{path}: X has shape {cells.shape} of {cells.dtype}, must be a cell array of 6 views")
    views = []
    for kind, view in zip(VIEWS, cells.ravel(), strict=True):
        right = (RECORDS, len(kind.scales))
        if not isinstance(view, np.ndarray) or view.dtype.kind not in "uif" or view.shape != right:
            raise InputError(f"{path}: view {kind.name!r} has shape {np.shape(view)}, must be {right} of numbers")
        if not np.isfinite(view).all():
            raise InputError(f"{path}: view {kind.name!r} holds nan or inf, must hold finite numbers")
        views.append(view.astype(np.float64))
    expected = np.repeat(np.arange(1, CLASSES + 1), RECORDS // CLASSES)
    if labels.shape != expected.shape or (labels != expected).any():
        raise InputError(f"{path}: Y must be 1 .. 10, 200 records of each in order (digit = Y - 1)")
    return views, (expected - 1).astype(np.int64)
