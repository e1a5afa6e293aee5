"""Reads scores that somebody else's system wrote: CSV, NPY, NPZ or JSON lines; never unpickles.

Text is read block by block into an array of doubles: a file takes 8 bytes a score, however many bytes spell it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import zipfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.errors import InputError
from dpzv_audit.files import first_not_utf8, kind_of, open_plain
from dpzv_audit.npy import DAMAGED, read_npy

Scores = NDArray[np.float64]

_HEADER = re.compile(r"(?!(nan|inf|infinity)\Z)[^\W\d][\w .-]*", re.IGNORECASE)
"""A name that float() does not take for a number."""
FILE_LIMIT = 1 << 30
"""The most bytes of a score file, and of the array in an archive: a hundred million scores."""
LINE_LIMIT = 1 << 20
_BLOCK = 1 << 20
_MOST_PACKED = 100
"""Times that an archive may unpack to its own size: real scores do to twice, a bomb to a thousand."""
_RIGHT = "must be a finite number"


class _Unfit(Exception):
    """What is wrong with a file and where in it, in words that go on from its name."""


def load_scores(path: Path) -> Scores:
    """Return the (n,) float64 scores in the file at `path`, n >= 1, all finite, read by its suffix.

    - `.csv`: one column, one number a row; the first row may be a header (a name, starting with a letter).
    - `.jsonl`, `.ndjson`: a number a line, or an object with the number under "score".
    - `.npy`: a one-dimensional array of real numbers. `.npz`: an archive of exactly one of these.

    Raises `InputError` naming the file and, where a value is at fault, its row (counted from 1; in a text
    file the line), for a file that is missing, unreadable, empty, of another kind, or holds anything else.
    """
    where = f"scores file {path}"
    try:
        return _loaded(path)
    except _Unfit as error:
        raise InputError(f"{where}{error}") from error
    except FileNotFoundError as error:
        raise InputError(f"{where}: there is no such file") from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error}), must be a readable file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte {first_not_utf8(path) + 1} is not UTF-8, must be UTF-8 text") from error


def _loaded(path: Path) -> Scores:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise _Unfit(f": suffix is {path.suffix!r}, must be one of {', '.join(_READERS)}")
    kind = kind_of(path)
    if kind not in ("a regular file", "nothing"):
        raise _Unfit(f": is {kind}, must be a regular file")
    size = path.stat().st_size
    if size > FILE_LIMIT:
        raise _Unfit(f": has {size} bytes, must have {FILE_LIMIT} at most; use a sample")
    values = reader(path)
    if values.size == 0:
        raise _Unfit(": holds no score, must hold at least one")
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise _Unfit(f", row {wrong[0] + 1}: found {values[wrong[0]]}, {_RIGHT}")
    return values


def _numbers(rows: Iterable[tuple[int, str]], number: Callable[[str], float], right: str) -> Scores:
    """Return the finite number that `number` makes of the text of each row; `right` says what it must be."""
    values = array("d")
    for row, text in rows:
        try:
            value = number(text)
        except (ValueError, OverflowError, RecursionError):  # an integer may be too large for a float
            value = math.nan
        if not math.isfinite(value):
            shown = text if len(text) <= 40 else text[:37] + "..."
            raise _Unfit(f", row {row}: found {shown!r}, {right}")
        values.append(value)
    return np.frombuffer(values)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, stripped text); blank lines at the end are dropped, any other is an error."""
    blank = 0
    number = 0
    with io.TextIOWrapper(open_plain(path), encoding="utf-8-sig") as lines:
        while line := lines.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise _Unfit(f", row {number}: has more than {LINE_LIMIT} characters, {_RIGHT}")
            text = line.strip()
            if not text:
                blank = blank or number
                continue
            if blank:
                raise _Unfit(f", row {blank}: is blank, {_RIGHT}")
            yield number, text


def _plain_numbers(path: Path) -> Scores | None:
    """Return the scores of a file that is nothing but a plain finite number a line; None for any other file.

    Ten times as fast as reading cell by cell, which then says what is wrong with a file and where.
    """
    values = array("d")
    try:
        with open_plain(path) as file:
            for number, lines in enumerate(_blocks_of_lines(file)):
                header = number == 0 and _HEADER.fullmatch(lines[0].decode("utf-8-sig", "replace").strip())
                plain = lines[1:] if header else lines
                values.extend(map(float, plain))
                # Python's 1_000 is no number in a data file.
                if any(b"_" in line for line in plain):
                    return None
    except ValueError:
        return None
    found = np.frombuffer(values) if values else None
    return found if found is not None and np.isfinite(found).all() else None


def _blocks_of_lines(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield all lines of `file`, many at a time, without the blank ones at its end; `ValueError` for one too long."""
    rest = b""
    while block := file.read(_BLOCK):
        text = rest + block
        # The last line may go on in the next block, and blanks after it may be the end of the file.
        cut = text.rstrip().rfind(b"\n")
        if cut >= 0:
            yield text[:cut].split(b"\n")
        rest = text[cut + 1 :]
        if len(rest) > LINE_LIMIT:
            raise ValueError("has a line too long")
    if rest.strip():
        yield [rest.strip()]


def _read_csv(path: Path) -> Scores:
    plain = _plain_numbers(path)
    return _numbers(_cells(path), _csv_number, _RIGHT) if plain is None else plain


def _cells(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the one cell of each row but for a header."""
    for row, text in _lines(path):
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise _Unfit(f", row {row}: is no CSV ({error}), must be one number") from error
        if len(cells) != 1:
            raise _Unfit(f", row {row}: found {len(cells)} columns, must be one number")
        cell = cells[0].strip()
        if row > 1 or not _HEADER.fullmatch(cell):
            yield row, cell


def _csv_number(text: str) -> float:
    # Python's 1_000 is no number in a data file.
    return math.nan if "_" in text else float(text)


def _read_json_lines(path: Path) -> Scores:
    return _numbers(_lines(path), _json_number, f'{_RIGHT} or an object with one under "score"')


def _json_number(text: str) -> float:
    found = json.loads(text)
    if isinstance(found, dict):
        found = found.get("score")
    # bool is an int to Python, and true is no score.
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else math.nan


def _read_npy(path: Path) -> Scores:
    return _checked_array(path, "NPY", lambda file: read_npy(file, os.fstat(file.fileno()).st_size))


def _read_npz(path: Path) -> Scores:
    return _checked_array(path, "NPZ", _only_member)


def _checked_array(path: Path, kind: str, read: Callable[[BinaryIO], NDArray[np.generic]]) -> Scores:
    """Return the array that `read` takes from a file of this kind as float64 once its shape and type are right."""
    try:
        with open_plain(path) as file:
            found = read(file)
    except DAMAGED as error:
        raise _Unfit(
            f": is no whole {kind} file of numbers ({_reason(error)}), must be one written by "
            f"numpy.{'save' if kind == 'NPY' else 'savez'} without pickled objects"
        ) from error
    if found.ndim != 1:
        raise _Unfit(f": has shape {found.shape}, must be one-dimensional")
    if found.dtype.kind not in "iuf":
        raise _Unfit(f": holds values of type {found.dtype}, must be real numbers")
    with np.errstate(over="ignore"):  # what overflows on the way from a wider type is reported as infinite
        return np.asarray(found, dtype=np.float64)


def _only_member(file: BinaryIO) -> NDArray[np.generic]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) != 1:
            raise _Unfit(f": holds {len(entries)} arrays, must hold exactly one")
        name, size = entries[0].filename, entries[0].file_size
        most = min(FILE_LIMIT, max(_BLOCK, _MOST_PACKED * entries[0].compress_size))
        if size > most:
            packed = f"array {name} unpacks to {size} bytes from {entries[0].compress_size}"
            raise _Unfit(f": {packed}, must unpack to {most} at most")
        try:
            with archive.open(name) as member:
                return read_npy(member, size)
        except DAMAGED as error:
            raise ValueError(f"array {name}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what a library says of a damaged file, in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


_READERS: dict[str, Callable[[Path], Scores]] = {
    ".csv": _read_csv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".npy": _read_npy,
    ".npz": _read_npz,
}
