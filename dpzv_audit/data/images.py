"""MNIST, Fashion-MNIST and CIFAR-10 from their original files; nothing in a file is trusted.

The IDX format (LeCun, Cortes, Burges, "The MNIST database"), gzipped or not: a big-endian magic number 0x00 0x00 0x08 n
for n dimensions of unsigned bytes, n big-endian 32-bit sizes, then the bytes with the last dimension fastest. The
binary version of CIFAR-10 (Krizhevsky, 2009), unpacked or in its archive: a row is one label byte and 3,072 pixel
bytes, the red, the green and the blue plane, 32 x 32 each, row by row.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from .files import TarLimits, inflated, read_bounded, read_tar_members, reading
from .spec import DataRequest, DataSpec, Source, declared
from .vertical import FloatArray, Pixels, Records, VerticalDataset, array_digest, equal_runs, patches, scaled

GZIP_MARK = b"\x1f\x8b"
CLASSES = 10

PIXEL_MAXIMUM = 255.0
"""The largest grey value of the format: a public constant, so scaling looks at no record."""

SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
"""Dimensions of the four files: images and labels of the train part, then those of the test part."""


@dataclass(frozen=True)
class IdxFile:
    """An original file: name without `.gz`, dimensions, and the MD5 of what it holds once unpacked.

    The MD5 of a gzipped file would depend on who packed it: gzip stores a name and a time.
    """

    name: str
    shape: tuple[int, ...]
    md5: str

    @property
    def size(self) -> int:
        """Bytes of the file once decompressed: the magic number, the sizes, and the data."""
        return 4 + 4 * len(self.shape) + math.prod(self.shape)


class IdxFiles(NamedTuple):
    """The four files of a data set of images."""

    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile


def declared_idx_files(name: str) -> IdxFiles:
    """Return the files of the data set `name` as `sets/NAME.toml` declares them."""
    remote = zip(declared(name, "source", Source).remote, SHAPES, strict=True)
    files = (IdxFile(file.name.removesuffix(".gz"), shape, file.unpacked or "") for file, shape in remote)
    return IdxFiles(*files)


def read_idx_images(files: IdxFiles, request: DataRequest) -> VerticalDataset:
    """Return the images of `files` (60,000 train and 10,000 test records, 10 classes), pixels in [0, 1].

    "strips" are of 28 / clients rows, blocks (N, 1, 28 / clients, 28); "runs" are equal runs of the flattened image,
    blocks (N, 784 / clients); "sixths" are six runs, of 131 pixels or 130 (paper 002's six
    clients). Raises `InputError` for a missing folder or file, and for one that is not the original.
    """
    count = request.clients
    strips = request.partition == "strips"
    digests = {}

    def read(file: IdxFile) -> Pixels:
        content = read_idx_bytes(find_idx(request, file), file)
        digests[file.name] = hashlib.sha256(content).hexdigest()  # the same however the file is packed
        return np.frombuffer(content, np.uint8)[-math.prod(file.shape) :].reshape(file.shape)

    def records(image_file: IdxFile, label_file: IdxFile) -> Records:
        labels = read(label_file).astype(np.int64)
        images = read(image_file)
        uneven = request.partition == "sixths"
        blocks = patches(images, rows=count, columns=1) if strips else equal_runs(images, count, uneven=uneven)
        return Records(scaled(blocks, PIXEL_MAXIMUM), labels)

    height, width = files.train_images.shape[1:]
    size, unit = (height, "image rows") if strips else (height * width, "flattened pixels")
    return request.dataset(
        records(*files[:2]),
        records(*files[2:]),
        held=f"{size // count}{f' or {size // count + 1}' if size % count else ''} of the {size} {unit} each",
        digests=digests,
        columns=width,  # a run of whole rows is a picture; one that ends within a row is not
    )


def count_idx_images(files: IdxFiles, request: DataRequest) -> int:
    """Return how many images train: those of the original, where all four files are there; raises `InputError`."""
    return request.counted(*(find_idx(request, file).name for file in files))


def read_idx_bytes(path: Path, expected: IdxFile) -> bytes:
    """Return the unpacked content of the file at `path`, which must be `expected`, gzipped or not.

    Raises `InputError` naming the file, what was found and what would be right, if the file is unreadable, truncated,
    corrupted, too long, or has another MD5. At most one byte more than the right size is ever decompressed.
    """
    # gzip never makes a file more than 0.1% longer, so whatever passes this limit is another file
    stored = read_bounded(path, expected.size + expected.size // 100 + 4096)
    try:
        return _checked(stored, expected)
    except ValueError as error:
        raise InputError(f"{path}: {error}; put the original {expected.name} in its place, gzipped or not") from error


def find_idx(request: DataRequest, expected: IdxFile) -> Path:
    """Return the path of `expected`, gzipped before plain; `InputError` if there is neither."""
    packed = request.folder / f"{expected.name}.gz"
    for path in (packed, request.folder / expected.name):
        if path.is_file():
            return path
    raise request.spec.missing(packed)


def _checked(stored: bytes, expected: IdxFile) -> bytes:
    """Return the content of a file, unpacked; `ValueError` says why it is not the `expected` one.

    Size and MD5 tell the original, whatever its header says.
    """
    content = stored
    if stored.startswith(GZIP_MARK):
        try:
            content = inflated(stored, expected.size, kind="gzip")
        except ValueError as error:
            raise ValueError(f"{error}, must unpack to {expected.size} bytes") from error
    if len(content) < expected.size:
        raise ValueError(f"is truncated: {len(content)} bytes, not {expected.size}")
    if len(content) > expected.size:
        raise ValueError(f"goes on after its last record, must have {expected.size} bytes")
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != expected.md5:
        raise ValueError(f"md5 of what it holds is {digest}, not {expected.md5}")
    return content


CIFAR_FOLDER = "cifar-10-batches-bin"
TRAIN_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCH = "test_batch.bin"
BATCHES = (*TRAIN_BATCHES, TEST_BATCH)
PIXELS = (3, 32, 32)
ROW_BYTES = 1 + math.prod(PIXELS)


def read_cifar10(rows: int, request: DataRequest, *, subset: bool = False) -> VerticalDataset:
    """Return CIFAR-10 (50,000 train and 10,000 test records, 10 classes) in batches of `rows`, pixels in [0, 1].

    "patches" are a k x k grid, blocks (N, 3, 32 / k, 32 / k), paper 001. "halves" are left and right, blocks
    (N, 3, 32, 16), papers 002 and 003 (which do not say which way they cut); "padded-halves" are the same with zeros in
    the other half, (N, 3, 32, 32), paper 003's for a ResNet-18 a client. "strips" are of 32 / clients rows. With
    `subset` fewer or shorter batches will do. Raises `InputError` for missing, truncated or other files.
    """
    count = request.clients
    side = math.isqrt(count)
    if request.partition == "patches" and (side * side != count or 32 % side):
        raise InputError("patches make a k x k grid: one of 1, 4, 16, 64, 256, 1024", "clients", count)
    length = 32 // side
    down, across, held = {
        "strips": (count, 1, f"{32 // count} of the 32 image rows each"),
        "halves": (1, 2, "32 rows x 16 columns each, left and right"),
        "padded-halves": (1, 2, "32 rows x 16 columns each, left and right, zeros in the other half"),
        "patches": (side, side, f"{side} x {side} of {length} x {length} pixels each"),
    }[request.partition]
    contents = _contents(request, rows, subset=subset)

    def records(split: str, names: Sequence[str]) -> Records:
        batches = [np.frombuffer(contents[name], np.uint8).reshape(-1, ROW_BYTES) for name in names if name in contents]
        labels = np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64)
        counts = np.bincount(labels, minlength=CLASSES)
        right = rows // CLASSES * len(batches)
        if not subset and (counts != right).any():
            raise InputError(
                f"cifar10: {split} has {counts.min()} to {counts.max()} records a class, the original has {right} of "
                f"each; download {request.spec.remote[0].url} again"
            )
        # divided before joining: the bytes of one batch at a time are in memory beside the result
        images = (batch[:, 1:].reshape(-1, *PIXELS) for batch in batches)
        blocks = [scaled(patches(pixels, rows=down, columns=across), PIXEL_MAXIMUM) for pixels in images]
        joined = tuple(map(np.concatenate, zip(*blocks, strict=True)))
        return Records(_padded(joined) if request.partition == "padded-halves" else joined, labels)

    complete = (rows * len(BATCHES), "images")
    return request.dataset(records("train", TRAIN_BATCHES), records("test", [TEST_BATCH]), held, complete=complete)


def _padded(halves: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
    """Return a left and a right half, (N, 3, 32, 16), each at its place in a picture of zeros, (N, 3, 32, 32)."""
    left, right = halves
    return np.concatenate([left, 0 * right], 3), np.concatenate([0 * left, right], 3)


def count_cifar10(request: DataRequest) -> int:
    """Return how many images train: those of the original, where its batches or archive are; raises `InputError`."""
    archive = request.spec.remote[0].name
    unpacked = all((request.folder / name).is_file() for name in BATCHES)
    packed = not unpacked and (request.folder / archive).is_file()
    return request.counted(*([archive] if packed else BATCHES))


def _contents(request: DataRequest, rows: int, *, subset: bool) -> dict[str, bytes]:
    """Return each batch's bytes by name, from files of their own or from the archive."""
    there = [name for name in BATCHES if (request.folder / name).is_file()]
    remote = request.spec.remote[0]
    size = rows * ROW_BYTES
    if TEST_BATCH not in there or len(there) < (2 if subset else len(BATCHES)):
        archive = request.folder / remote.name
        if archive.is_file():
            remote.check(archive)
            limits = TarLimits(members=64, member_bytes=size, total_bytes=len(BATCHES) * size + (1 << 20))
            members = {f"{CIFAR_FOLDER}/{name}": name for name in BATCHES}
            unpacked = read_tar_members(request.found(archive), members.__contains__, limits)
            contents = {members[member]: content for member, content in unpacked}
            for name in BATCHES:
                if len(contents.get(name, b"")) != size:
                    raise InputError(f"{archive}: holds no complete {CIFAR_FOLDER}/{name}; download {remote.url} again")
            return contents
        absent = next(name for name in BATCHES if name not in there)
        hint = "; or give ‹subset› to use what is there" if there and not subset else ""
        raise request.spec.missing(request.folder / absent).placed("", hint)
    contents = {}
    for name in there:
        path = request.find(name)
        contents[name] = read_bounded(path, size)
        length = len(contents[name])
        if subset and (not length or length % ROW_BYTES):
            raise InputError(f"{path}: is truncated: {length} bytes; use whole rows of {ROW_BYTES} bytes")
        if length != size and not subset:
            raise InputError(
                f"{path}: has {length} bytes, must have {size} ({rows} rows of {ROW_BYTES}); download "
                f"{remote.url} again, or give ‹subset› to use what is there"
            )
    return contents


def read_digits(request: DataRequest) -> VerticalDataset:
    """Return scikit-learn's digits (1,408 train and 389 test records, 10 classes), pixels in [0, 1].

    Blocks are 8 / clients neighbouring columns of the 8 x 8 images, flattened: (N, 64 / clients).
    """
    table = _digits(request.spec)
    columns = 8 // request.clients
    images = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8)
    labels = table[:, -1].copy()
    # the largest grey value of the format: a public constant, so scaling looks at no record
    blocks = scaled(patches(images, rows=1, columns=request.clients), 16.0)
    flat = tuple(block.reshape(len(images), -1) for block in blocks)
    digests = {
        "digits/images": array_digest(images),
        "digits/labels": array_digest(labels.astype(np.uint8)),
    }
    return request.dataset(
        *request.split(Records(flat, labels)),
        held=f"{columns} of the 8 image columns each, 8 rows, flattened",
        digests=digests,
        columns=columns,
    )


def _digits(spec: DataSpec) -> NDArray[np.int64]:
    """Return scikit-learn's digits (1797, 65): 64 pixels and the class of each, from its file where that is found.

    To import scikit-learn takes a second, which the file spares.
    """
    packed = spec.packaged("sklearn/datasets/data/digits.csv.gz")
    if packed is None:
        from sklearn import datasets

        bunch: Any = datasets.load_digits()
        return np.column_stack((bunch.data, bunch.target)).astype(np.int64)
    with reading(packed):
        content = inflated(read_bounded(packed, 1 << 20), 1 << 20, kind="gzip")
        return np.array([line.split(b",") for line in content.split()]).astype(np.int64)
