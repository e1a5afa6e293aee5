"""Reads the labels of a recorded training: a CSV file, one number per line, or an NPY array."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.files import first_not_utf8, open_plain
from ..base.npy import DAMAGED, read_npy
from ..data.files import bounded_lines, reading

COLUMN = "label"
_LONGEST_LINE = 1 << 20


def read_labels(path: Path, records: int, classes: int) -> NDArray[np.int64]:
    """Return the labels (N,), one for each of the `records` record ids, whole numbers in 0 .. `classes` - 1.

    Args:
        path: An NPY array (N,) of whole numbers where it ends in `.npy`. Else UTF-8 text: CSV whose first line names a
            column `label`, or one number per line.
        records: How many there must be.
        classes: Number of classes.

    Raises:
        InputError: The file cannot be read, or holds anything else; the message names the file, and the line.
    """
    with reading(path):
        labels = _of_array(path) if path.suffix.lower() == ".npy" else _of_text(path)
    if len(labels) != records:
        raise InputError(f"{path}: holds {len(labels)} labels; use {records}, one for each record of the transcript")
    for record in np.flatnonzero((labels < 0) | (labels >= classes)):
        raise InputError(f"{path}: the label of record {record} is {labels[record]}; use 0 to {classes - 1}")
    return labels


def _of_array(path: Path) -> NDArray[np.int64]:
    with open_plain(path) as file:
        try:
            labels = read_npy(file, os.fstat(file.fileno()).st_size)
        except DAMAGED as error:
            raise ValueError(f"is no NPY array of numbers ({' '.join(str(error).split())[:200]})") from error
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"holds {labels.dtype} of shape {labels.shape}; use whole numbers (N,)")
    return labels.astype(np.int64)


def _of_text(path: Path) -> NDArray[np.int64]:
    try:
        return np.fromiter((_whole(line, text) for line, text in _cells(path)), np.int64)
    except UnicodeDecodeError:
        raise ValueError(f"byte {first_not_utf8(path) + 1} is not UTF-8; use UTF-8 text") from None
    except csv.Error as error:
        raise ValueError(f"is no CSV: {error}") from error


def _cells(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each label."""
    with io.TextIOWrapper(open_plain(path), encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(bounded_lines(file, _LONGEST_LINE, "characters"), strict=True)
        first = [cell.strip() for cell in next(rows, [])]
        if COLUMN in first:
            place = first.index(COLUMN)
        elif len(first) == 1:
            place = 0
            yield 1, first[0]
        else:
            shown = ", ".join(first)[:80] or "nothing"
            raise ValueError(f"line 1 holds {shown}; name a column {COLUMN!r}, or write one number per line")
        for row in rows:
            if len(row) != len(first):
                raise ValueError(f"line {rows.line_num} has {len(row)} columns; use {len(first)}")
            yield rows.line_num, row[place].strip()


def _whole(line: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"line {line} holds {text[:40]!r}; use a label: a whole number from 0")
    return int(text)
