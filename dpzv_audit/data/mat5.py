"""Checks the structure of a MATLAB 5 file before `scipy.io.loadmat` spends memory on what it claims to hold.

The format (MathWorks, "MAT-File Format", level 5): 128 bytes of header, then elements of a type, a size and
data; a compressed element is a zlib stream of one other; a cell array is a matrix whose data are matrices.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import read_bounded
from dpzv_audit.errors import InputError

HEADER_BYTES = 128
MATRIX, COMPRESSED, DIMENSIONS = 14, 15, 5
CELL_CLASS = 1
NUMBER_CLASSES = range(6, 16)
"""double, single and the eight integer classes: structures, objects, functions and opaque data are refused."""


def read_mat5(path: Path, names: tuple[str, ...], limit: int) -> dict[str, npt.NDArray[Any]]:
    """Return the variables `names` of `path`: numeric arrays, or object arrays (cells) of such.

    `limit` bounds the bytes of the file, its unpacked bytes, and the entries of any array. Raises `InputError`
    naming the file for anything that is missing, truncated, corrupted, too large, or neither numbers nor cells.
    """
    content = read_bounded(path, limit)
    _check_structure(path, content, limit)
    from scipy import io as scipy_io

    try:
        found: dict[str, Any] = scipy_io.loadmat(io.BytesIO(content), variable_names=list(names))
    except Exception as error:
        # the reader of a checked file may still meet any malformation, each with an exception of its own
        raise InputError(f"{path}: is no readable MATLAB 5 file ({' '.join(str(error).split())[:200]})") from error
    for name in names:
        if not isinstance(found.get(name), np.ndarray):
            raise InputError(f"{path}: has no variable {name!r}; must have {', '.join(names)}")
    return {name: found[name] for name in names}


def _check_structure(path: Path, content: bytes, limit: int) -> None:
    if len(content) < HEADER_BYTES or content[124:128] != b"\x00\x01IM":
        raise InputError(f"{path}: is no MATLAB 5 file (little-endian), must be one")
    left = limit
    for kind, data in _elements(path, content[HEADER_BYTES:]):
        element = data
        if kind == COMPRESSED:
            element = _unpacked(path, data, left)
            left -= len(element)
            inner = list(_elements(path, element))
            if len(inner) != 1:
                raise InputError(f"{path}: a compressed element holds {len(inner)} elements, must hold one")
            kind, element = inner[0]
        if kind != MATRIX:
            raise InputError(f"{path}: has an element of type {kind}, must have matrices only")
        _check_matrix(path, element, limit, depth=0)


def _unpacked(path: Path, data: bytes, left: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        element = stream.decompress(data, left + 1)
    except zlib.error as error:
        raise InputError(f"{path}: has a corrupted zlib stream ({error})") from error
    if len(element) > left:
        raise InputError(f"{path}: unpacks to more than its limit, must be the original file")
    if not stream.eof:
        raise InputError(f"{path}: is truncated: a zlib stream has no end")
    return element


def _check_matrix(path: Path, data: bytes, limit: int, *, depth: int) -> None:
    parts = _elements(path, data)
    _, flags = next(parts, (0, b""))
    kind, sizes = next(parts, (0, b""))
    if len(flags) != 8 or kind != DIMENSIONS or len(sizes) % 4 or not 8 <= len(sizes) <= 32:
        raise InputError(f"{path}: has a matrix without flags or dimensions, must be the original file")
    entries = math.prod(struct.unpack(f"<{len(sizes) // 4}i", sizes))
    if not 0 <= entries <= limit or min(struct.unpack(f"<{len(sizes) // 4}i", sizes)) < 0:
        raise InputError(f"{path}: has a matrix of {entries} entries, must be the original file")
    next(parts, None)  # the name
    if flags[0] == CELL_CLASS:
        cells = list(parts)
        if depth or len(cells) != entries or any(kind != MATRIX for kind, _ in cells):
            raise InputError(f"{path}: has a cell array whose cells are not {entries} matrices of numbers")
        for _, cell in cells:
            _check_matrix(path, cell, limit, depth=1)
    elif flags[0] not in NUMBER_CLASSES:
        raise InputError(f"{path}: has a variable of class {flags[0]}, must have numbers and cells only")


def _elements(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, data) of each element in `data`; small ones keep up to 4 bytes within their 8-byte tag."""
    place = 0
    while place < len(data):
        if len(data) - place < 8:
            raise InputError(f"{path}: is truncated within a tag")
        kind, size = struct.unpack_from("<II", data, place)
        if kind >> 16:
            kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
            if size > 4:
                raise InputError(f"{path}: has a small element of {size} bytes, must have 4 at most")
        else:
            start = place + 8
            # compressed elements alone are not padded to 8 bytes
            end = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > len(data):
            raise InputError(f"{path}: is truncated: an element of {size} bytes ends after the file")
        yield kind, data[start : start + size]
        place = end
