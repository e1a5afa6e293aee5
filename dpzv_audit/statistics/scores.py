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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.errors import InputError
from dpzv_audit.files import first_not_utf8, kind_of, open_plain
from dpzv_audit.npy import DAMAGED, read_npy

Scores = NDArray[np.float64]

_WORDS_THAT_ARE_NUMBERS = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_HEADER = re.compile(r"[^\W\d][\w .-]*")
FILE_LIMIT = 1 << 30
"""The most bytes of a score file, and of the array in an archive: a hundred million scores."""
LINE_LIMIT = 1 << 20
_BLOCK = 1 << 20
_MOST_PACKED = 100
"""Times that an archive may unpack to its own size: real scores do to twice, a bomb to a thousand."""
_RIGHT = "must be a finite number"


def load_scores(path: Path) -> Scores:
    """Return the (n,) float64 scores in the file at `path`, n >= 1, all finite, read by its suffix.

    - `.csv`: one column, one number a row; the first row may be a header (a name, starting with a letter).
    - `.jsonl`, `.ndjson`: a number a line, or an object with the number under "score".
    - `.npy`: a one-dimensional array of real numbers. `.npz`: an archive of exactly one of these.

    Raises `InputError` naming the file and, where a value is at fault, its row (counted from 1; in a text
    file the line), for a file that is missing, unreadable, empty, of another kind, or holds anything else.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        kinds = ", ".join(_READERS)
        raise InputError(f"scores file {path}: suffix is {path.suffix!r}, must be one of {kinds}")
    kind = kind_of(path)
    if kind not in ("a regular file", "nothing"):
        raise InputError(f"scores file {path}: is {kind}, must be a regular file")
    try:
        size = path.stat().st_size
        if size > FILE_LIMIT:
            raise InputError(f"scores file {path}: has {size} bytes, must have {FILE_LIMIT} at most; use a sample")
        values = reader(path)
    except FileNotFoundError as error:
        raise InputError(f"scores file {path}: there is no such file") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"scores file {path}: cannot be read ({reason}), must be a readable file") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"scores file {path}: byte {first_not_utf8(path) + 1} is not UTF-8, must be UTF-8 text"
        ) from error
    if values.size == 0:
        raise InputError(f"scores file {path}: holds no score, must hold at least one")
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(f"scores file {path}, row {row + 1}: found {values[row]}, {_RIGHT}")
    return values


def _shown(text: str) -> str:
    """Return what was found, quoted and cut to a length that fits one line."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _text_number(path: Path, row: int, text: str) -> float:
    """Return the finite number that `text` spells; Python's 1_000 is no number in a data file."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"scores file {path}, row {row}: found {_shown(text)}, {_RIGHT}")
    return value


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, stripped text); blank lines at the end are dropped, any other is an error."""
    blank = 0
    number = 0
    with io.TextIOWrapper(open_plain(path), encoding="utf-8-sig") as lines:
        while line := lines.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise InputError(f"scores file {path}, row {number}: has more than {LINE_LIMIT} characters, {_RIGHT}")
            text = line.strip()
            if not text:
                blank = blank or number
                continue
            if blank:
                raise InputError(f"scores file {path}, row {blank}: is blank, {_RIGHT}")
            yield number, text


def _is_header(cell: str) -> bool:
    return bool(_HEADER.fullmatch(cell)) and not _WORDS_THAT_ARE_NUMBERS.fullmatch(cell)


def _plain_numbers(path: Path) -> Scores | None:
    """Return the scores of a file that is nothing but a plain finite number a line; None for any other file.

    Ten times as fast as reading cell by cell, which then says what is wrong with a file and where.
    """
    values = array("d")
    try:
        with open_plain(path) as file:
            for number, lines in enumerate(_blocks_of_lines(file)):
                header = number == 0 and _is_header(_decoded(lines[0]))
                plain = lines[1:] if header else lines
                values.extend(map(float, plain))
                # Python's 1_000 is no number in a data file.
                if any(b"_" in line for line in plain):
                    return None
    except ValueError:
        return None
    found = np.frombuffer(values) if values else np.empty(0)
    return found if found.size and bool(np.isfinite(found).all()) else None


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


def _decoded(line: bytes) -> str:
    return line.decode("utf-8-sig", "replace").strip()


def _read_csv(path: Path) -> Scores:
    plain = _plain_numbers(path)
    if plain is not None:
        return plain
    values = array("d")
    for row, text in _lines(path):
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise InputError(f"scores file {path}, row {row}: is no CSV ({error}), must be one number") from error
        if len(cells) != 1:
            raise InputError(f"scores file {path}, row {row}: found {len(cells)} columns, must be one number")
        cell = cells[0].strip()
        if row == 1 and _is_header(cell):
            continue
        values.append(_text_number(path, row, cell))
    return np.frombuffer(values)


def _read_json_lines(path: Path) -> Scores:
    values = array("d")
    for row, text in _lines(path):
        right = 'must be a finite number or an object with one under "score"'
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"scores file {path}, row {row}: found {_shown(text)}, {right}") from error
        if isinstance(found, dict):
            found = found.get("score")
        # bool is an int to Python, and true is no score; int() may be too large for a float.
        try:
            value = float(found) if isinstance(found, int | float) and not isinstance(found, bool) else math.nan
        except OverflowError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"scores file {path}, row {row}: found {_shown(text)}, {right}")
        values.append(value)
    return np.frombuffer(values)


def _checked_array(path: Path, array: NDArray[np.generic]) -> Scores:
    """Return a stored array as float64 once its shape and type are right."""
    if array.ndim != 1:
        raise InputError(f"scores file {path}: has shape {array.shape}, must be one-dimensional")
    if array.dtype.kind not in "iuf":
        raise InputError(f"scores file {path}: holds values of type {array.dtype}, must be real numbers")
    with np.errstate(over="ignore"):  # what overflows on the way from a wider type is reported as infinite
        return np.asarray(array, dtype=np.float64)


def _read_npy(path: Path) -> Scores:
    try:
        with open_plain(path) as file:
            return _checked_array(path, read_npy(file, os.fstat(file.fileno()).st_size))
    except DAMAGED as error:
        raise InputError(
            f"scores file {path}: is no whole NPY file of numbers ({_reason(error)}), must be one written by "
            "numpy.save without pickled objects"
        ) from error


def _read_npz(path: Path) -> Scores:
    name = ""
    try:
        with open_plain(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) != 1:
                raise InputError(f"scores file {path}: holds {len(entries)} arrays, must hold exactly one")
            name, size = entries[0].filename, entries[0].file_size
            most = min(FILE_LIMIT, max(_BLOCK, _MOST_PACKED * entries[0].compress_size))
            if size > most:
                packed = f"array {name} unpacks to {size} bytes from {entries[0].compress_size}"
                raise InputError(f"scores file {path}: {packed}, must unpack to {most} at most")
            with archive.open(name) as member:
                return _checked_array(path, read_npy(member, size))
    except DAMAGED as error:
        entry = f"array {name}: " if name else ""
        raise InputError(
            f"scores file {path}: is no whole NPZ file of numbers ({entry}{_reason(error)}), must be one written by "
            "numpy.savez without pickled objects"
        ) from error


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
