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
from dpzv_audit.data.files import Source, file_digest, read_bounded
from dpzv_audit.data.partition import Blocks, patches, row_strips, scaled
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError, check_count

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_SOURCE = Source(
    name="cifar10",
    folder=CIFAR_FOLDER,
    holds="its six .bin files",
    origin=f"download {CIFAR_URL} (or give --download)",
)
PIXEL_MAXIMUM = 255.0
PIXELS = (3, 32, 32)
ROW_BYTES = 1 + math.prod(PIXELS)
CLASSES = 10
PARTITIONS = ("patches", "halves", "strips")


@dataclass(frozen=True, kw_only=True)
class CifarFiles:
    """What complete files are: rows of a batch, the archive's MD5, and names of the train and test batches."""

    rows: int = 10_000
    archive_md5: str = CIFAR_MD5
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


CIFAR_FILES = CifarFiles()


def load_cifar10(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    subset: bool = False,
    files: CifarFiles = CIFAR_FILES,
) -> VerticalDataset:
    """Return CIFAR-10 (50,000 train and 10,000 test records, 10 classes), pixels in [0, 1].

    `partition` "patches" (default; 1, 4, 16, ... clients, default 4): a k x k grid, blocks (N, 3, 32 / k,
    32 / k), paper 001. "halves" (default for 2 clients): left and right half, blocks (N, 3, 32, 16), papers 002
    and 003 (which do not say which way they cut). "strips": strips of 32 / clients rows. `data_dir` is the folder
    that holds `cifar-10-batches-bin/`, or the .bin files or the archive themselves; without it DPZV_AUDIT_DATA.
    With `subset` fewer or shorter batches will do. Raises `InputError` for missing, truncated or other files.
    """
    kind, count = _choose(clients, partition)
    _cut(np.zeros((1, *PIXELS), dtype=np.uint8), kind, count)  # a wrong number of clients is told before reading
    contents, digests = _contents(CIFAR_SOURCE.locate(data_dir), files, subset=subset)
    parsed = {name: _rows(name, content) for name, content in contents.items()}
    train = [parsed[name] for name in files.train if name in parsed]
    if not subset:
        _check_balance("train", np.concatenate([labels for labels, _ in train]), len(files.train) * files.rows)
        _check_balance("test", parsed[files.test][0], files.rows)
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


def _choose(clients: int | None, partition: str | None) -> tuple[str, int]:
    kind = partition or ("halves" if clients == 2 else "patches")
    if kind not in PARTITIONS:
        raise InputError(f"partition is {partition!r}, cifar10 has: {', '.join(PARTITIONS)}")
    count = {"patches": 4, "halves": 2, "strips": 4}[kind] if clients is None else check_count("clients", clients)
    if kind == "halves" and count != 2:
        raise InputError(f"clients is {count}, must be 2 for halves")
    grids = [side * side for side in (1, 2, 4, 8, 16, 32)]
    if kind == "patches" and count not in grids:
        raise InputError(f"clients is {count}, patches make a k x k grid: one of {', '.join(map(str, grids))}")
    return kind, count


def _cut(images: npt.NDArray[np.uint8], kind: str, clients: int) -> Blocks:
    if kind == "strips":
        return row_strips(images, clients)
    if kind == "halves":
        return patches(images, rows=1, columns=2)
    side = math.isqrt(clients)
    return patches(images, rows=side, columns=side)


def _records(batches: list[Rows], kind: str, clients: int) -> Records:
    # cut before joining: the bytes of one batch at a time are in memory beside the result
    cut = [scaled(_cut(images, kind, clients), PIXEL_MAXIMUM) for _, images in batches]
    features = tuple(np.concatenate([blocks[client] for blocks in cut]) for client in range(clients))
    return Records(features=features, labels=np.concatenate([labels for labels, _ in batches]))


def _contents(folder: Path, files: CifarFiles, *, subset: bool) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return each batch's bytes by name, and the digests of the files they came from."""
    there = [name for name in files.names if (folder / name).is_file()]
    archive = folder / CIFAR_ARCHIVE
    enough = files.test in there and (len(there) > 1 if subset else len(there) == len(files.names))
    if not enough and archive.is_file():
        return _unpacked(archive, files), {archive.name: file_digest(archive)}
    if not enough:
        absent = next(name for name in files.names if name not in there)
        message = str(CIFAR_SOURCE.missing(folder / absent))
        raise InputError(message if subset or not there else f"{message}; or give --subset to use what is there")
    contents = {name: read_bounded(folder / name, files.batch_bytes) for name in there}
    for name, content in contents.items():
        if not content or len(content) % ROW_BYTES or (len(content) != files.batch_bytes and not subset):
            raise _wrong_size(folder / name, content, files, subset=subset)
    return contents, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _wrong_size(path: Path, content: bytes, files: CifarFiles, *, subset: bool) -> InputError:
    if subset:
        return InputError(f"{path}: is truncated: {len(content)} bytes, must be whole rows of {ROW_BYTES} bytes")
    found = f"{path}: has {len(content)} bytes, must have {files.batch_bytes} ({files.rows} rows of {ROW_BYTES})"
    return InputError(f"{found}; download {CIFAR_URL} again, or give --subset to use what is there")


def _unpacked(archive: Path, files: CifarFiles) -> dict[str, bytes]:
    found = file_digest(archive, "md5")
    if found != files.archive_md5:
        raise InputError(f"{archive}: md5 is {found}, must be {files.archive_md5}; download {CIFAR_URL} again")
    total = len(files.names) * files.batch_bytes + (1 << 20)
    limits = TarLimits(members=64, member_bytes=files.batch_bytes, total_bytes=total)
    wanted = {f"{CIFAR_FOLDER}/{name}": name for name in files.names}
    contents = {wanted[name]: content for name, content in read_tar_members(archive, wanted.__contains__, limits)}
    for name in files.names:
        if len(contents.get(name, b"")) != files.batch_bytes:
            raise InputError(f"{archive}: holds no complete {CIFAR_FOLDER}/{name}; download {CIFAR_URL} again")
    return {name: contents[name] for name in files.names}


def _rows(name: str, content: bytes) -> Rows:
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, ROW_BYTES)
    labels = table[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        row = int(np.argmax(labels >= CLASSES))
        raise InputError(f"{name}: row {row} has label {labels[row]}, must lie in 0 .. {CLASSES - 1}")
    return labels, table[:, 1:].reshape(-1, *PIXELS)


def _check_balance(part: str, labels: npt.NDArray[np.int64], rows: int) -> None:
    counts = np.bincount(labels, minlength=CLASSES)
    if (counts * CLASSES != rows).any():
        found = f"cifar10: {part} has {counts.min()} to {counts.max()} records a class"
        raise InputError(f"{found}, the original has {rows // CLASSES} of each; download {CIFAR_URL} again")


def _describe(kind: str, clients: int) -> str:
    if kind == "halves":
        return "2 clients, halves: 32 rows x 16 columns each, left and right"
    if kind == "strips":
        return f"{clients} clients, strips: {32 // clients} of the 32 image rows each"
    side = math.isqrt(clients)
    return f"{clients} clients, patches: {side} x {side} of {32 // side} x {32 // side} pixels each"
