"""Scores of a running audit on disk, chunk by chunk: each file whole or absent, NPZ without pickled objects."""

from __future__ import annotations

import io
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.atomic import private_folder, write_atomically
from dpzv_audit.errors import AuditError, one_line
from dpzv_audit.locks import hold
from dpzv_audit.npy import read_npz

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
        return hold(lock, f"the unfinished audit in {self.folder}", cure="or give another --out DIR")

    def load(self) -> dict[tuple[int, int], Arrays]:
        """Return every whole chunk by its (first, last); a damaged file is named in the log and counts as not there."""
        found = {}
        for path in sorted(self.folder.glob("*.npz")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            first, last = int(match[1]), int(match[2])
            reason = ""
            try:
                arrays = read_npz(path)
                if not arrays or not all(array.ndim and len(array) == last - first for array in arrays.values()):
                    reason = f"has arrays of other lengths than {last - first}"
            except (AuditError, ValueError, OSError) as error:
                reason = str(error)
            if reason:
                said = f"{path}: is damaged: {reason}; its {last - first} pairs are drawn again"
                logging.getLogger(__name__).warning("%s", one_line(said))
                continue
            found[first, last] = arrays
        return found

    def save(self, first: int, last: int, arrays: Arrays) -> None:
        """Write one chunk: after a kill at any moment the file is whole or absent."""
        path = self.folder / f"{first:09d}-{last:09d}.npz"
        try:
            private_folder(self.folder)
            write_atomically(path, npz_bytes(arrays))
        except OSError as error:
            raise AuditError(
                f"cannot keep scores under {self.folder}: {error.strerror or error}; make room and go on with --resume"
            ) from error

    def remove(self) -> None:
        """Forget the audit: it is done. The folder above goes too where nothing else is in it."""
        with suppress(AuditError), self._held():  # another process has begun the same audit: the chunks are its own
            shutil.rmtree(self.folder, ignore_errors=True)
