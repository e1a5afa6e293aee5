"""UCI multiple features (Duin, 1998): 2,000 handwritten digits seen through 6 feature sets, one for each client.

Its MATLAB 5 file is read here, and nothing in it is trusted. The format (MathWorks, "MAT-File Format", level 5): 128
bytes of header, then elements of a type, a size and data; a compressed element is a zlib stream of one other; a cell
array is a matrix whose data are matrices. `scipy.io.loadmat` looks up types in a table without asking whether they are
in it: a file with another type makes it read memory that is not its own.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.errors import InputError
from .files import inflated, read_bounded, reading
from .spec import DataRequest, declared
from .vertical import Array, LabelArray, Records, VerticalDataset

MFEAT_FILE = "HW.mat"
RECORDS = 2_000
CLASSES = 10
FILE_LIMIT = 64 << 20


@dataclass(frozen=True)
class FeatureSet:
    """A view: its name in the source, and what its columns are divided by, `repeat` times over."""

    name: str
    scales: tuple[float, ...]
    repeat: int = 1

    @property
    def divisors(self) -> Array:
        """The divisor of each column."""
        return np.tile(self.scales, self.repeat)


VIEWS = declared("mfeat", "views", tuple[FeatureSet, ...])


def read_mfeat(request: DataRequest) -> VerticalDataset:
    """Return the multiple features (1,600 train and 400 test records, 10 classes).

    `clients` (1, 2, 3 or 6) hold 6 / clients neighbouring views each: blocks (N, 216), (N, 76), (N, 64), (N, 6),
    (N, 240) and (N, 47), about in [-1, 1]. The file is sorted by class; the split is a fixed shuffle. Raises
    `InputError` for a missing or other file.
    """
    each = len(VIEWS) // request.clients
    views, labels = _read(request.find(MFEAT_FILE))
    scaled = [np.divide(view, kind.divisors).astype(np.float32) for view, kind in zip(views, VIEWS, strict=True)]
    runs = [slice(start, start + each) for start in range(0, len(VIEWS), each)]
    blocks = tuple(np.ascontiguousarray(np.hstack(scaled[run])) for run in runs)
    held = "; ".join(" + ".join(kind.name for kind in VIEWS[run]) for run in runs)
    return request.dataset(*request.split(Records(blocks, labels)), held)


def _read(path: Path) -> tuple[list[Array], LabelArray]:
    variables = read_mat5(path, ("X", "Y"), FILE_LIMIT)
    cells = variables["X"]
    labels = variables["Y"].ravel()
    if cells.dtype != object or cells.size != len(VIEWS):
        raise InputError(f"{path}: X has shape {cells.shape} of {cells.dtype}; use a cell array of 6 views")
    views = []
    for kind, view in zip(VIEWS, cells.ravel(), strict=True):
        right = (RECORDS, len(kind.divisors))
        which = f"{path}: view {kind.name!r}"
        if not isinstance(view, np.ndarray) or view.dtype.kind not in "uif" or view.shape != right:
            raise InputError(f"{which} has shape {np.shape(view)}; use {right} of numbers")
        if not np.isfinite(view).all():
            raise InputError(f"{which} holds nan or inf; use finite numbers")
        views.append(view.astype(np.float64))
    digits = np.repeat(np.arange(CLASSES), RECORDS // CLASSES)
    if not np.array_equal(labels, digits + 1):
        raise InputError(f"{path}: use Y from 1 to 10, 200 records of each in order (digit = Y - 1)")
    return views, digits


HEADER_BYTES = 128
NAME = 1
DIMENSIONS = 5
FLAGS = 6
MATRIX = 14
COMPRESSED = 15
CELL_CLASS = 1
COMPLEX = 0x08
NUMBER_CLASSES = range(6, 16)
"""double, single and the eight integer classes: structures, objects, functions and opaque data are refused."""

NUMBER_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of data elements as numpy's: numbers may be stored in a smaller type than that of their class."""


def read_mat5(path: Path, names: tuple[str, ...], limit: int) -> dict[str, Array]:
    """Return the variables of `path`, `names` among them: arrays of the stored type, or cells (objects) of such.

    `limit` bounds the bytes of the file, its unpacked bytes, and the entries of any array. Raises `InputError`
    naming the file for anything that is missing, truncated, corrupted, too large, or neither numbers nor cells.
    """
    with reading(path):
        variables = _variables(read_bounded(path, limit), limit)
        for name in names:
            if name not in variables:
                raise ValueError(f"has no variable {name!r}; must have {', '.join(names)}")
    return variables


def _variables(content: bytes, limit: int) -> dict[str, Array]:
    """Return all variables by name; here and below `ValueError` says what is wrong with the file."""
    if len(content) < HEADER_BYTES or content[124:128] != b"\x00\x01IM":
        raise ValueError("is no MATLAB 5 file (little-endian); use one")
    left = limit
    variables: dict[str, Array] = {}
    for kind, element in _elements(content[HEADER_BYTES:]):
        if kind == COMPRESSED:
            unpacked = inflated(element, left)
            if len(unpacked) > left:
                raise ValueError("unpacks to more than its limit; use the original file")
            left -= len(unpacked)
            inner = [*_elements(unpacked)]
            if len(inner) != 1:
                raise ValueError(f"a compressed element holds {len(inner)} elements, must hold one")
            kind, element = inner[0]
        if kind != MATRIX:
            raise ValueError(f"has an element of type {kind}, must have matrices only")
        name, array = _matrix(element, limit)
        variables[name] = array
    return variables


def _matrix(data: bytes, limit: int, *, depth: int = 0) -> tuple[str, Array]:
    """Return the name and the array of a matrix's elements."""
    elements = _elements(data)
    flags_kind, flags = next(elements, (0, b""))
    sizes_kind, sizes = next(elements, (0, b""))
    if (flags_kind, len(flags), sizes_kind) != (FLAGS, 8, DIMENSIONS) or len(sizes) not in range(8, 33, 4):
        raise ValueError("has a matrix without flags or dimensions; use the original file")
    shape = struct.unpack(f"<{len(sizes) // 4}i", sizes)
    entries = math.prod(shape)
    if not 0 <= entries <= limit or min(shape) < 0:
        raise ValueError(f"has a matrix of {entries} entries; use the original file")
    name_kind, name = next(elements, (0, b""))
    if name_kind != NAME:
        raise ValueError("has a matrix without a name; use the original file")
    rest = [*elements]
    if flags[0] == CELL_CLASS:
        if depth or len(rest) != entries or any(kind != MATRIX for kind, _ in rest):
            raise ValueError(f"has a cell array whose cells are not {entries} matrices of numbers")
        cells = np.empty(entries, dtype=object)
        for place, (_, cell) in enumerate(rest):
            _, cells[place] = _matrix(cell, limit, depth=1)
        return name.decode("latin-1"), cells.reshape(shape, order="F")
    if flags[0] not in NUMBER_CLASSES:
        raise ValueError(f"has a variable of class {flags[0]}, must have numbers and cells only")
    if flags[1] & COMPLEX or len(rest) > 1:
        raise ValueError("has an array of complex numbers, must have real ones only")
    return name.decode("latin-1"), _numbers(*(rest or [(0, b"")])[0], entries).reshape(shape, order="F")


def _numbers(kind: int, data: bytes, entries: int) -> Array:
    if kind not in NUMBER_TYPES:
        raise ValueError(f"has an array of {entries} numbers of type {kind}; use a type of numbers")
    dtype = np.dtype(f"<{NUMBER_TYPES[kind]}")
    if len(data) != entries * dtype.itemsize:
        raise ValueError(
            f"has {len(data)} bytes of data for {entries} numbers of {dtype.itemsize} bytes; use the original file"
        )
    return np.frombuffer(data, dtype)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, data) of each element in `data`; small ones keep up to 4 bytes within their 8-byte tag."""
    place = 0
    while place < len(data):
        if len(data) - place < 8:
            raise ValueError("is truncated within a tag")
        kind, size = struct.unpack_from("<II", data, place)
        if kind >> 16:
            size = kind >> 16
            kind &= 0xFFFF
            start = place + 4
            end = place + 8
            if size > 4:
                raise ValueError(f"has a small element of {size} bytes, must have 4 at most")
        else:
            start = place + 8
            # compressed elements alone are not padded to 8 bytes
            end = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > len(data):
            raise ValueError(f"is truncated: an element of {size} bytes ends after the file")
        yield kind, data[start : start + size]
        place = end
