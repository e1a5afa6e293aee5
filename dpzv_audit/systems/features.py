"""Reads the features of one client in a recorded training: a CSV file, or an NPY array."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..base.errors import InputError
from ..base.files import open_plain
from ..base.npy import DAMAGED, read_npy
from ..data.files import reading
from ..data.table import Column, read_features, variables_of
from ..data.vertical import FloatArray, Variable
from .labels import COLUMN


@dataclass(frozen=True, eq=False)
class ClientFeatures:
    """The features (N, ...) of a client, by record, and the columns of the table that they were; () for an array."""

    path: Path
    values: FloatArray
    columns: tuple[Column, ...] = ()

    @classmethod
    def read(cls, path: Path, records: int) -> "ClientFeatures":
        """Return the features in a file, one row for each of the `records` record ids.

        Args:
            path: An NPY array (N, ...) of numbers where it ends in `.npy`. Else CSV whose first line names its columns:
                numbers, or categories where the first row holds no number; a column `label` is left out.
            records: How many rows there must be.

        Raises:
            InputError: The file cannot be read, or holds anything else; the message names the file, and the line.
        """
        if path.suffix.lower() == ".npy":
            read = cls(path, _of_array(path))
        else:
            read = cls(path, *read_features(path, without=COLUMN))
        if len(read.values) != records:
            raise InputError(
                f"{path}: holds {len(read.values)} rows; use {records}, one for each record of the transcript"
            )
        return read

    def variables(self, client: int) -> list[Variable]:
        """Return the variables of a table, which is that of a `client`."""
        return [replace(one, client=client) for one in variables_of([[c.name for c in self.columns]], self.columns)]


def _of_array(path: Path) -> FloatArray:
    with reading(path), open_plain(path) as file:
        try:
            values = read_npy(file, os.fstat(file.fileno()).st_size)
        except DAMAGED as error:
            raise ValueError(f"is no NPY array of numbers ({' '.join(str(error).split())[:200]})") from error
        if values.ndim < 2 or values.size == 0 or values.dtype.kind not in "fiub":
            raise ValueError(
                f"holds {values.dtype} of shape {values.shape}; use numbers (N, ...), a row for each record"
            )
        with np.errstate(over="ignore"):  # what overflows is refused
            narrow = np.array(values, np.float32, order="C")
        if not np.isfinite(narrow).all():
            raise ValueError("holds a number that is not finite, or too large; use finite ones")
    return narrow
