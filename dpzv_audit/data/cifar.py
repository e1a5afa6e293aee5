"""CIFAR-10 from its binary version (Krizhevsky, 2009), unpacked or in its archive, cut into patches or halves.

A row is one label byte and 3,072 pixel bytes: the red, the green and the blue plane, 32 x 32 each, row by row.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.archives import TarLimits, read_tar_members
from dpzv_audit.data.files import file_digest, read_bounded
from dpzv_audit.data.partition import Blocks, patches, row_strips, scaled
from dpzv_audit.data.spec import DataRequest
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

CIFAR_FOLDER = "cifar-10-batches-bin"
PIXEL_MAXIMUM = 255.0
PIXELS = (3, 32, 32)
ROW_BYTES = 1 + math.prod(PIXELS)
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class CifarFiles:
    """What complete files are: rows of a batch, and names of the train and test batches."""

    rows: int = 10_000
    train: tuple[str, ...] = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    test: str = "test_batch.bin"

    @property
    def names(self) -> tuple[str, ...]:
        """All batches, train before test."""
        return (*self.train, self.test)

    @property
    def batch_bytes(self) -> int:
        """Bytes of a complete batch."""
        return self.rows * ROW_BYTES


def read_cifar10(files: CifarFiles, request: DataRequest, *, subset: bool = False) -> VerticalDataset:
    """Return CIFAR-10 (50,000 train and 10,000 test records, 10 classes), pixels in [0, 1].

    "patches" are a k x k grid, blocks (N, 3, 32 / k, 32 / k), paper 001. "halves" are left and right, blocks
    (N, 3, 32, 16), papers 002 and 003 (which do not say which way they cut). "strips" are of 32 / clients rows. With
    `subset` fewer or shorter batches will do. Raises `InputError` for missing, truncated or other files.
    """
    kind, count = request.partition, request.clients
    grids = [side * side for side in (1, 2, 4, 8, 16, 32)]
    if kind == "patches" and count not in grids:
        raise InputError(f"patches make a k x k grid: one of {', '.join(map(str, grids))}", "clients", count)
    contents, digests = _contents(request, files, subset=subset)
    parsed = {name: _rows(name, content) for name, content in contents.items()}
    train = [parsed[name] for name in files.train if name in parsed]
    if not subset:
        labels = np.concatenate([labels for labels, _ in train])
        _check_balance(request, "train", labels, len(files.train) * files.rows)
        _check_balance(request, "test", parsed[files.test][0], files.rows)
    found, right = sum(len(labels) for labels, _ in parsed.values()), files.rows * len(files.names)
    return VerticalDataset(
        name="cifar10",
        train=_records(train, kind, count),
        test=_records([parsed[files.test]], kind, count),
        classes=CLASSES,
        partition=_describe(kind, count),
        digests=digests,
        notes=() if found == right else (f"a subset: {found:,} of {right:,} images",),
    )


Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


def _divided(images: npt.NDArray[np.uint8], kind: str, clients: int) -> Blocks:
    if kind == "strips":
        return row_strips(images, clients)
    if kind == "halves":
        return patches(images, rows=1, columns=2)
    side = math.isqrt(clients)
    return patches(images, rows=side, columns=side)


def _records(batches: list[Rows], kind: str, clients: int) -> Records:
    # divided before joining: the bytes of one batch at a time are in memory beside the result
    parts = [scaled(_divided(images, kind, clients), PIXEL_MAXIMUM) for _, images in batches]
    features = tuple(np.concatenate([blocks[client] for blocks in parts]) for client in range(clients))
    return Records(features=features, labels=np.concatenate([labels for labels, _ in batches]))


def _contents(request: DataRequest, files: CifarFiles, *, subset: bool) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return each batch's bytes by name, and the digests of the files they came from."""
    folder = request.folder
    there = [name for name in files.names if (folder / name).is_file()]
    remote = request.spec.remote[0]
    archive = folder / remote.name
    enough = files.test in there and (len(there) > 1 if subset else len(there) == len(files.names))
    if not enough and archive.is_file():
        remote.check(archive)
        return _unpacked(archive, files, remote.url), {archive.name: file_digest(archive)}
    if not enough:
        absent = next(name for name in files.names if name not in there)
        missing = request.spec.missing(folder / absent)
        raise missing if subset or not there else missing.placed("", "; or give ‹subset› to use what is there")
    contents = {name: read_bounded(folder / name, files.batch_bytes) for name in there}
    for name, content in contents.items():
        if not content or len(content) % ROW_BYTES or (len(content) != files.batch_bytes and not subset):
            raise _wrong_size(folder / name, content, files, remote.url, subset=subset)
    return contents, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _wrong_size(path: Path, content: bytes, files: CifarFiles, url: str, *, subset: bool) -> InputError:
    if subset:
        return InputError(f"{path}: is truncated: {len(content)} bytes, must be whole rows of {ROW_BYTES} bytes")
    found = f"{path}: has {len(content)} bytes, must have {files.batch_bytes} ({files.rows} rows of {ROW_BYTES})"
    return InputError(f"{found}; download {url} again, or give ‹subset› to use what is there")


def _unpacked(archive: Path, files: CifarFiles, url: str) -> dict[str, bytes]:
    total = len(files.names) * files.batch_bytes + (1 << 20)
    limits = TarLimits(members=64, member_bytes=files.batch_bytes, total_bytes=total)
    wanted = {f"{CIFAR_FOLDER}/{name}": name for name in files.names}
    contents = {wanted[name]: content for name, content in read_tar_members(archive, wanted.__contains__, limits)}
    for name in files.names:
        if len(contents.get(name, b"")) != files.batch_bytes:
            raise InputError(f"{archive}: holds no complete {CIFAR_FOLDER}/{name}; download {url} again")
    return {name: contents[name] for name in files.names}


def _rows(name: str, content: bytes) -> Rows:
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, ROW_BYTES)
    labels = table[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        row = int(np.argmax(labels >= CLASSES))
        raise InputError(f"{name}: row {row} has label {labels[row]}, must lie in 0 .. {CLASSES - 1}")
    return labels, table[:, 1:].reshape(-1, *PIXELS)


def _check_balance(request: DataRequest, part: str, labels: npt.NDArray[np.int64], rows: int) -> None:
    counts = np.bincount(labels, minlength=CLASSES)
    if (counts * CLASSES != rows).any():
        found = f"cifar10: {part} has {counts.min()} to {counts.max()} records a class"
        raise InputError(
            f"{found}, the original has {rows // CLASSES} of each; download {request.spec.remote[0].url} again"
        )


def _describe(kind: str, clients: int) -> str:
    if kind == "halves":
        return "2 clients, halves: 32 rows x 16 columns each, left and right"
    if kind == "strips":
        return f"{clients} clients, strips: {32 // clients} of the 32 image rows each"
    side = math.isqrt(clients)
    return f"{clients} clients, patches: {side} x {side} of {32 // side} x {32 // side} pixels each"
