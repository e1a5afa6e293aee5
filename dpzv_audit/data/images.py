"""MNIST, Fashion-MNIST and CIFAR-10 from their original files; nothing in a file is trusted.

The IDX format (LeCun, Cortes, Burges, "The MNIST database"), gzipped or not: a big-endian magic number 0x00 0x00 0x08 n
for n dimensions of unsigned bytes, n big-endian 32-bit sizes, then the bytes with the last dimension fastest. The
binary version of CIFAR-10 (Krizhevsky, 2009), unpacked or in its archive: a row is one label byte and 3,072 pixel
bytes, the red, the green and the blue plane, 32 x 32 each, row by row.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import TarLimits, file_digest, inflated, read_bounded, read_tar_members
from dpzv_audit.data.spec import DataRequest, Source, declared
from dpzv_audit.data.vertical import (
    Records,
    VerticalDataset,
    array_digest,
    column_blocks,
    equal_runs,
    patches,
    row_strips,
    scaled,
    split_records,
)
from dpzv_audit.errors import InputError

GZIP_MARK = b"\x1f\x8b"

PIXEL_MAXIMUM = 255.0
"""The largest grey value of the format: a public constant, so scaling looks at no record."""

SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
"""Dimensions of the four files: images and labels of the train part, then those of the test part."""


@dataclass(frozen=True, kw_only=True)
class IdxFile:
    """What an original file must be: name without `.gz`, dimensions, and the MD5 of it gzipped and plain.

    `md5_plain` is None where only the gzipped file has a published MD5: then a plain one is refused. `url` is
    where the gzipped one can be had.
    """

    name: str
    shape: tuple[int, ...]
    md5_gzip: str
    md5_plain: str | None
    url: str | None = None

    @property
    def magic(self) -> int:
        """The magic number: type 0x08 (unsigned byte) and the number of dimensions."""
        return 0x0800 | len(self.shape)

    @property
    def header(self) -> bytes:
        """The bytes before the data."""
        return struct.pack(f">I{len(self.shape)}I", self.magic, *self.shape)

    @property
    def size(self) -> int:
        """Bytes of the file once decompressed."""
        return len(self.header) + math.prod(self.shape)


@dataclass(frozen=True)
class IdxFiles:
    """The four files of a data set of images."""

    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile


def declared_idx_files(name: str) -> IdxFiles:
    """Return the files of the data set `name` as `sets/NAME.toml` declares them."""
    remote = declared(name, "source", Source).remote
    plain = declared(name, "md5_plain", tuple[str, ...])
    return IdxFiles(
        *(
            IdxFile(name=file.name.removesuffix(".gz"), shape=s, md5_gzip=file.digest, md5_plain=md5, url=file.url)
            for file, s, md5 in zip(remote, SHAPES, plain or (None,) * len(SHAPES), strict=True)
        )
    )


def read_idx_images(files: IdxFiles, request: DataRequest) -> VerticalDataset:
    """Return the images of `files` (60,000 train and 10,000 test records, 10 classes), pixels in [0, 1].

    "strips" are of 28 / clients rows, blocks (N, 1, 28 / clients, 28); "runs" are equal runs of the flattened image,
    blocks (N, 784 / clients). Raises `InputError` for a missing folder or file, and for one that is not the original.
    """
    folder, count, digests = request.folder, request.clients, {}
    parts = (files.train_images, files.train_labels, files.test_images, files.test_labels)
    if not any((folder / f"{part.name}{end}").is_file() for part in parts for end in (".gz", "")):
        raise request.spec.missing(folder / f"{files.train_images.name}.gz")

    def read(file: IdxFile) -> npt.NDArray[np.uint8]:
        array, digests[find_idx(folder, file).name] = read_idx(folder, file)
        return array

    def records(images: IdxFile, labels: IdxFile) -> Records:
        values = read(labels).astype(np.int64)
        divide = row_strips if request.partition == "strips" else equal_runs
        return Records(features=scaled(divide(read(images), count), PIXEL_MAXIMUM), labels=values)

    height, width = files.train_images.shape[1:]
    held = f"{height * width // count} of the {height * width} flattened pixels each"
    if request.partition == "strips":
        held = f"{height // count} of the {height} image rows each"
    return request.dataset(
        records(files.train_images, files.train_labels),
        records(files.test_images, files.test_labels),
        classes=10,
        held=held,
        digests=digests,
        columns=width,  # a run of whole rows is a picture; one that ends within a row is not
    )


def read_idx(folder: Path, expected: IdxFile) -> tuple[npt.NDArray[np.uint8], str]:
    """Return the array of `expected` from `folder` (file `name.gz` or `name`) and the SHA-256 of the file.

    Raises `InputError` naming the file, what was found and what would be right, if the file is missing,
    unreadable, truncated, corrupted, too long, or has another magic number, other dimensions or another MD5.
    At most one byte more than the right size is ever decompressed.
    """
    path = find_idx(folder, expected)
    # gzip never makes a file more than 0.1% longer, so whatever passes this limit is another file
    stored = read_bounded(path, expected.size + expected.size // 100 + 4096)
    try:
        content = _checked(stored, expected)
    except ValueError as error:
        right = f"put the original {expected.name}.gz (md5 {expected.md5_gzip}) in its place"
        raise InputError(f"{path}: {error}; {right}") from error
    data = np.frombuffer(content, dtype=np.uint8, offset=len(expected.header))
    return data.reshape(expected.shape), hashlib.sha256(stored).hexdigest()


def find_idx(folder: Path, expected: IdxFile) -> Path:
    """Return the path of `expected` in `folder`, gzipped before plain; `InputError` if there is neither."""
    for path in (folder / f"{expected.name}.gz", folder / expected.name):
        if path.is_file():
            return path
    found = f"{folder / expected.name}.gz: no such file (nor without .gz)"
    source = f" (download it from {expected.url})" if expected.url else ""
    raise InputError(f"{found}; put the original {expected.name}.gz there{source}")


def _checked(stored: bytes, expected: IdxFile) -> bytes:
    """Return the content of a file, unpacked; `ValueError` says why it is not the `expected` one."""
    content, md5 = stored, expected.md5_plain
    if stored.startswith(GZIP_MARK):
        try:
            content, md5 = inflated(stored, expected.size, kind="gzip"), expected.md5_gzip
        except ValueError as error:
            raise ValueError(f"{error}, must unpack to {expected.size} bytes") from error
    magic = int.from_bytes(content[:4], "big")
    sizes = content[4 : len(expected.header)]
    found = struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4])
    if len(content) >= 4 and magic != expected.magic:
        raise ValueError(f"magic number is 0x{magic:08x}, must be 0x{expected.magic:08x}")
    if len(content) >= len(expected.header) and found != expected.shape:
        there, right = (" x ".join(map(str, shape)) for shape in (found, expected.shape))
        raise ValueError(f"dimensions are {there}, must be {right}")
    if len(content) < expected.size:
        raise ValueError(f"is truncated: {len(content)} bytes, must be {expected.size}")
    if len(content) > expected.size:
        raise ValueError(f"goes on after its last record, must have {expected.size} bytes")
    if md5 is None:
        raise ValueError("is unpacked, and only the gzipped file has a published md5")
    if (digest := hashlib.md5(stored, usedforsecurity=False).hexdigest()) != md5:
        raise ValueError(f"md5 is {digest}, must be {md5}")
    return content


CIFAR_FOLDER = "cifar-10-batches-bin"
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
    rows, columns, held = _grid(kind, count)

    def records(batches: list[Rows]) -> Records:
        # divided before joining: the bytes of one batch at a time are in memory beside the result
        parts = [scaled(patches(images, rows=rows, columns=columns), PIXEL_MAXIMUM) for _, images in batches]
        features = tuple(np.concatenate([blocks[client] for blocks in parts]) for client in range(count))
        return Records(features=features, labels=np.concatenate([labels for labels, _ in batches]))

    return request.dataset(
        records(train),
        records([parsed[files.test]]),
        classes=CLASSES,
        held=held,
        digests=digests,
        complete=(files.rows * len(files.names), "images"),
    )


def _grid(kind: str, clients: int) -> tuple[int, int, str]:
    """Return the rows and columns of patches that images are cut into, and what each client holds in words."""
    side = math.isqrt(clients)
    pixels = f"{32 // side} x {32 // side} pixels each"
    return {
        "strips": (clients, 1, f"{32 // clients} of the 32 image rows each"),
        "halves": (1, 2, "32 rows x 16 columns each, left and right"),
        "patches": (side, side, f"{side} x {side} of {pixels}"),
    }[kind]


Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


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
        if subset and (not content or len(content) % ROW_BYTES):
            found = f"{folder / name}: is truncated: {len(content)} bytes"
            raise InputError(f"{found}, must be whole rows of {ROW_BYTES} bytes")
        if len(content) != files.batch_bytes and not subset:
            right = f"must have {files.batch_bytes} ({files.rows} rows of {ROW_BYTES}); download {remote.url} again"
            hint = "or give ‹subset› to use what is there"
            raise InputError(f"{folder / name}: has {len(content)} bytes, {right}, {hint}")
    return contents, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


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


DIGIT_MAXIMUM = 16.0
"""The largest grey value of the digits' format: a public constant, so scaling looks at no record."""

DIGITS_SEED = 1797
"""Which records train is part of a data set: it never follows a run's seed, so runs can be compared."""


def read_digits(request: DataRequest) -> VerticalDataset:
    """Return scikit-learn's digits (1,408 train and 389 test records, 10 classes), pixels in [0, 1].

    Blocks are 8 / clients neighbouring columns of the 8 x 8 images, flattened: (N, 64 / clients).
    """
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    images = np.ascontiguousarray(bunch.images.astype(np.uint8))
    labels = np.ascontiguousarray(bunch.target.astype(np.int64))
    blocks = scaled(column_blocks(images, request.clients), DIGIT_MAXIMUM)
    columns = 8 // request.clients
    return request.dataset(
        *split_records(Records(blocks, labels), seed=DIGITS_SEED),
        classes=10,
        held=f"{columns} of the 8 image columns each, 8 rows, flattened",
        digests={
            "digits/images": array_digest(images),
            "digits/labels": array_digest(labels.astype(np.uint8)),
        },
        columns=columns,
    )
