"""Scores of a running audit on disk, chunk by chunk: each file whole or absent, NPZ without pickled objects."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.errors import AuditError
from dpzv_audit.locks import hold
from dpzv_audit.npy import read_npz
from dpzv_audit.store import Store

Arrays = dict[str, NDArray[Any]]
_NAME = re.compile(r"(\d{9})-(\d{9})\.npz")


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return `arrays` as the bytes of one NPZ file; loads without unpickling."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


class ChunkStore:
    """Keeps the arrays of pairs `first` to `last` (exclusive) as `folder`/FIRST-LAST.npz.

    What an earlier run left is taken up with `resume` and removed without, when the store is opened. Raises
    `AuditError` where the disk refuses, and where another process has the store open.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        self._resume = resume

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes off the chunks while the block runs."""
        with self._held():
            if not self._resume:
                shutil.rmtree(self.folder, ignore_errors=True)
            yield

    def _held(self) -> AbstractContextManager[None]:
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        return hold(lock, f"the unfinished audit in {self.folder}", cure="or give another ‹out› DIR")

    def load(self) -> dict[tuple[int, int], Arrays]:
        """Return every whole chunk by its (first, last); a damaged file is named in the log and counts as not there."""
        found = {}
        for path in sorted(self.folder.glob("*.npz")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            first, last = int(match[1]), int(match[2])
            again = f"its {last - first} pairs are drawn again"
            chunk = Store(self.folder).load(path.name, partial(_read_chunk, pairs=last - first), again=again)
            if chunk is not None:
                found[first, last] = chunk
        return found

    def save(self, first: int, last: int, arrays: Arrays) -> None:
        """Write one chunk: after a kill at any moment the file is whole or absent."""
        cure = "make room and go on with ‹resume›"
        Store(self.folder).write(f"{first:09d}-{last:09d}.npz", npz_bytes(arrays), cure=cure)

    def remove(self) -> None:
        """Forget the audit: it is done. The folder above goes too where nothing else is in it."""
        with suppress(AuditError), self._held():  # another process has begun the same audit: the chunks are its own
            shutil.rmtree(self.folder, ignore_errors=True)


def _read_chunk(path: Path, pairs: int) -> Arrays:
    arrays = read_npz(path)
    if not arrays or not all(array.ndim and len(array) == pairs for array in arrays.values()):
        raise ValueError(f"has arrays of other lengths than {pairs}")
    return arrays
