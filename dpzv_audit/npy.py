"""Reads an NPY array (numpy's format 1.0 or 2.0) without pickle, its header held against the bytes that are there."""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
import zlib
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

# The header is a Python literal, which numpy tokenises and parses: each step fails in ways of its own.
_HEADER_ERRORS = (
    ValueError,
    EOFError,
    MemoryError,
    TypeError,
    SyntaxError,
    TokenError,
    OverflowError,
    RecursionError,
    KeyError,
)

DAMAGED_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    UnicodeDecodeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""What a damaged archive of arrays (NPZ) raises where it is opened or read from."""


def read_npy(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Return the array in the next bytes of `stream`, which has `size` of them at most, read-only.

    No more memory is taken than `size`, whatever the header claims. Raises `ValueError`, in one line, for what is
    truncated, damaged, of another version, or holds pickled objects; what `stream` itself raises goes through.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on odd headers: the array is checked instead
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                raise ValueError
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
    except _HEADER_ERRORS as error:
        raise ValueError("has no whole NPY header of format 1.0 or 2.0") from error
    if dtype.hasobject:
        raise ValueError("holds pickled objects, which are never read")
    if min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise ValueError(f"has shape {shape} of {dtype}, must be of numbers")
    needed = math.prod(shape) * dtype.itemsize
    content = stream.read(needed) if needed <= size else b""
    if len(content) < needed:
        raise ValueError(f"is truncated: shape {shape} of {dtype} takes {needed} bytes")
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")
