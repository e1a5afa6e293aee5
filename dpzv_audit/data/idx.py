"""MNIST and Fashion-MNIST from their four original IDX files, gzipped or not; nothing in a file is trusted.

The format (LeCun, Cortes, Burges, "The MNIST database"): a big-endian magic number 0x00 0x00 0x08 n for n
dimensions of unsigned bytes, n big-endian 32-bit sizes, then the bytes with the last dimension fastest.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import unreadable
from dpzv_audit.data.partition import equal_runs, row_strips, scaled
from dpzv_audit.data.spec import DataRequest, Source, declared
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.plain_files import open_plain

GZIP_MARK = b"\x1f\x8b"
GZIP_WBITS = 16 + zlib.MAX_WBITS

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
    count, digests = request.clients, {}
    parts = (files.train_images, files.train_labels, files.test_images, files.test_labels)
    if not any((request.folder / f"{part.name}{end}").is_file() for part in parts for end in (".gz", "")):
        raise request.spec.missing(request.folder / f"{files.train_images.name}.gz")

    def read(file: IdxFile) -> npt.NDArray[np.uint8]:
        array, digests[find_idx(request.folder, file).name] = read_idx(request.folder, file)
        return array

    def records(images: IdxFile, labels: IdxFile) -> Records:
        values = read(labels).astype(np.int64)
        divide = row_strips if request.partition == "strips" else equal_runs
        return Records(features=scaled(divide(read(images), count), PIXEL_MAXIMUM), labels=values)

    height, width = files.train_images.shape[1:]
    if request.partition == "strips":
        held = f"{height // count} of the {height} image rows each"
    else:
        held = f"{height * width // count} of the {height * width} flattened pixels each"
    return VerticalDataset(
        name=request.spec.name,
        train=records(files.train_images, files.train_labels),
        test=records(files.test_images, files.test_labels),
        classes=10,
        partition=f"{count} clients, {request.partition}: {held}",
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
    stored = _read_bounded(path, expected)
    gzipped = stored.startswith(GZIP_MARK)
    content = _decompress(path, stored, expected) if gzipped else stored
    _check_content(path, content, expected)
    right = expected.md5_gzip if gzipped else expected.md5_plain
    if right is None:
        raise _wrong(path, "is unpacked, and only the gzipped file has a published md5", expected)
    found = hashlib.md5(stored, usedforsecurity=False).hexdigest()
    if found != right:
        raise _wrong(path, f"md5 is {found}, must be {right}", expected)
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


def _read_bounded(path: Path, expected: IdxFile) -> bytes:
    # gzip never makes a file more than 0.1% longer, so whatever passes this limit is another file
    limit = expected.size + expected.size // 100 + 4096
    try:
        with open_plain(path) as file:
            stored = file.read(limit + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(stored) > limit:
        raise _wrong(path, f"has more than {limit} bytes, must have about {expected.size} at most", expected)
    return stored


def _decompress(path: Path, stored: bytes, expected: IdxFile) -> bytes:
    right = f"must unpack to {expected.size} bytes"
    stream = zlib.decompressobj(wbits=GZIP_WBITS)
    try:
        content = stream.decompress(stored, expected.size + 1)
    except zlib.error as error:
        raise _wrong(path, f"is a corrupted gzip stream ({error}), {right}", expected) from error
    if len(content) <= expected.size and not stream.eof:
        found = f"is truncated: its gzip stream of {len(stored)} bytes has no end"
        raise _wrong(path, f"{found}, {right}", expected)
    return content


def _check_content(path: Path, content: bytes, expected: IdxFile) -> None:
    magic = int.from_bytes(content[:4], "big")
    sizes = content[4 : len(expected.header)]
    found = struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4])
    if len(content) >= 4 and magic != expected.magic:
        raise _wrong(path, f"magic number is 0x{magic:08x}, must be 0x{expected.magic:08x}", expected)
    if len(content) >= len(expected.header) and found != expected.shape:
        raise _wrong(path, f"dimensions are {_times(found)}, must be {_times(expected.shape)}", expected)
    if len(content) < expected.size:
        raise _wrong(path, f"is truncated: {len(content)} bytes, must be {expected.size}", expected)
    if len(content) > expected.size:
        raise _wrong(path, f"goes on after its last record, must have {expected.size} bytes", expected)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def _wrong(path: Path, what: str, expected: IdxFile) -> InputError:
    return InputError(f"{path}: {what}; put the original {expected.name}.gz (md5 {expected.md5_gzip}) in its place")
