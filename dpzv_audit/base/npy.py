"""Reads NPY arrays (numpy's format 1.0 or 2.0) and archives of them (NPZ) without pickle: numpy's own reader would
take as much memory as a header claims, so each header is held against the bytes that are there.
"""

import io
import math
import os
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .files import open_plain

DAMAGED_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    UnicodeDecodeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""Errors of a damaged archive of arrays (NPZ) where it is opened or read from."""

DAMAGED = (ValueError, MemoryError, *DAMAGED_ARCHIVE)
"""Errors of a damaged NPY or NPZ file."""

_LONGEST = 1 << 48
"""The most entries of an array; one of none may be said to have as many along its other sides."""
_MOST_SIDES = 32
_LARGEST_DIRECTORY = 1 << 22
"""Bytes of the directory of an archive: forty thousand arrays, each of which takes 600 bytes of memory."""
HEADER_BYTES = 4096
"""The most bytes of an array before its data."""


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Return the array in the next bytes of `stream`, which has `size` of them at most, read-only.

    No more memory is taken than `size`, whatever the header claims. Raises `ValueError`, in one line, for what is
    truncated, damaged, of another version, or holds pickled objects; what `stream` itself raises goes through.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on odd headers: the array is checked instead
            read_header = _HEADERS[np.lib.format.read_magic(stream)]
            shape, fortran, dtype = read_header(stream)
    except (OSError, zipfile.BadZipFile, zlib.error):
        raise
    # The header is a Python literal, which numpy tokenises and parses: each step fails in ways of its own.
    except Exception as error:
        raise ValueError("has no complete NPY header of format 1.0 or 2.0") from error
    if dtype.hasobject:
        raise ValueError("holds pickled objects, which are never read")
    # numpy's own check takes True for a number, and any number for a size.
    if dtype.itemsize == 0 or not all(type(side) is int and 0 <= side <= _LONGEST for side in shape):
        raise ValueError(f"has shape {str(shape)[:60]} of {dtype}; use numbers, and whole sizes from 0")
    needed = math.prod(shape) * dtype.itemsize
    if len(shape) > _MOST_SIDES or math.prod(side for side in shape if side) > _LONGEST:
        raise ValueError(f"has {len(shape)} dimensions of {dtype}, more than an array can have or too long")
    content = stream.read(needed) if needed <= size else b""
    if len(content) < needed:
        raise ValueError(f"is truncated: shape {shape} of {dtype} takes {needed} bytes")
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def read_npz(path: Path, most: Mapping[str, int] | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of the NPZ file at `path` by their names, read-only.

    With `most` only those that it names, each of as many bytes of data at most; without it the file is taken to be this
    tool's own. Raises `ValueError`, in one line that names the array, for an array that is missing, truncated, damaged,
    too large or pickled, and `OSError` for a file that cannot be read.
    """
    try:
        with open_plain(path) as file, archive_in(file) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            if len(entries) < len(archive.infolist()):
                raise ValueError("holds an array twice")
            limits = most or {name: entry.file_size for name, entry in entries.items()}
            for name in limits:
                if name not in entries:
                    raise ValueError(f"has no array {name!r}, only: {', '.join(sorted(entries)[:10])}")
            return {name: _member(archive, entries[name], limit) for name, limit in limits.items()}
    except DAMAGED_ARCHIVE as error:
        raise ValueError(f"is truncated or no npz file ({' '.join(str(error).split())})") from error


def open_safetensors(path: Path, *, links: bool = True) -> Any:
    """Open a safetensors file, which is mapped into memory; without `links` it must not be a link.

    Raises `ValueError` in one line for a damaged file, and what `open_plain` raises.
    """
    from safetensors import SafetensorError, safe_open

    with open_plain(path, links=links) as plain:
        try:
            file: Any = safe_open(path, "np")
        except (SafetensorError, MemoryError) as error:
            raise ValueError(" ".join(str(error).split())[:200]) from None
        # The library opens a file by its name alone.
        if not os.path.samestat(os.stat(path, follow_symlinks=links), os.fstat(plain.fileno())):
            raise InputError(": was replaced while it was opened; leave it alone", str(path))
    return file


class _Directory(io.BufferedIOBase):
    """A file of which no more than `most` bytes are read at once: zipfile reads a directory in one go."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.most = _LARGEST_DIRECTORY

    def read(self, size: int | None = -1) -> bytes:
        content = self._file.read(self.most + 1 if size is None or size < 0 else min(size, self.most + 1))
        if len(content) > self.most:
            raise zipfile.BadZipFile("its directory is too large")
        return content

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


@contextmanager
def archive_in(file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """Yield the ZIP archive in `file`; `zipfile.BadZipFile` where its directory alone would take much memory."""
    directory = _Directory(file)
    with zipfile.ZipFile(directory) as archive:
        directory.most = sys.maxsize - 1
        yield archive


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int) -> NDArray[Any]:
    size = entry.file_size
    if size > limit + HEADER_BYTES:
        raise ValueError(f"{entry.filename} has {size} bytes; use {limit + HEADER_BYTES} at most")
    try:
        with archive.open(entry) as member:
            return read_npy(member, size)
    except DAMAGED as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"entry {entry.filename} at byte {entry.header_offset}: {reason}") from error
