"""Reads scores that somebody else's system wrote: CSV, NPY, NPZ or JSON lines; never unpickles.

Text is read line by line into an array of doubles: reading takes 16 bytes per score, however many bytes spell it.
"""

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
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..files import first_not_utf8, open_plain
from ..npy import DAMAGED, read_npy
from .binomial import Floats
from .settings import check_scores

Rows = Iterator[tuple[int, str]]

_HEADER = re.compile(r"(?!(nan|inf|infinity)\Z)[^\W\d][\w .-]*", re.IGNORECASE)
"""A name that float() does not take for a number."""
FILE_LIMIT = 1 << 30
"""The most bytes of a score file, and of the array in an archive: a hundred million scores."""
LINE_LIMIT = 1 << 20
_MOST_PACKED = 100
"""Times that an archive may unpack to its own size: real scores do to twice, a bomb to a thousand."""
_NUMBER = "must be a finite number"


def load_scores(path: Path) -> Floats:
    """Return the (n,) float64 scores in the file at `path`, n >= 1, all finite, read by its suffix.

    - `.csv`: one column, one number a row; the first row may be a header (a name, starting with a letter).
    - `.jsonl`, `.ndjson`: a number a line, or an object with the number under "score".
    - `.npy`: a one-dimensional array of real numbers. `.npz`: an archive of exactly one of these.

    Raises `InputError` naming the file and, where a value is at fault, its row (counted from 1; in a text
    file the line), for a file that is missing, unreadable, empty, of another kind, or holds anything else.
    """
    reader = _READERS.get(path.suffix.lower())
    try:
        if reader is None:
            raise InputError(f"{path}: suffix is {path.suffix!r}, must be one of {', '.join(_READERS)}")
        size = path.stat().st_size
        if size > FILE_LIMIT:
            raise InputError(f"{path}: has {size} bytes, must have {FILE_LIMIT} at most; use a sample")
        return check_scores(str(path), reader(path))
    except InputError as error:
        raise error.placed("scores file ") from error
    except FileNotFoundError:
        wrong = "there is no such file"
    except OSError as error:
        wrong = f"cannot be read ({error.strerror or error}), must be a readable file"
    except UnicodeDecodeError:
        wrong = f"byte {first_not_utf8(path) + 1} is not UTF-8, must be UTF-8 text"
    raise InputError(f"scores file {path}: {wrong}")


def _numbers(path: Path, rows: Rows, number: Callable[[str], float], right: str = _NUMBER) -> Floats:
    """Return the finite number that `number` makes of the text of each row; `right` says what it must be."""
    values = array("d")
    for row, text in rows:
        try:
            value = number(text)
        except (ValueError, OverflowError, RecursionError):  # an integer may be too large for a float
            value = math.nan
        if not math.isfinite(value):
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            raise InputError(f"{path}, row {row}: found {shown!r}, {right}")
        values.append(value)
    return np.frombuffer(values)


def _lines(path: Path) -> Rows:
    """Yield (line number, stripped text); blank lines at the end are dropped, any other is an error."""
    blank = number = 0
    with io.TextIOWrapper(open_plain(path), encoding="utf-8-sig") as lines:
        while line := lines.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise InputError(f"{path}, row {number}: has more than {LINE_LIMIT} characters, {_NUMBER}")
            text = line.strip()
            if not text:
                blank = blank or number
                continue
            if blank:
                raise InputError(f"{path}, row {blank}: is blank, {_NUMBER}")
            yield number, text


def _cells(path: Path) -> Rows:
    """Yield the one cell of each row but for a header."""
    for row, text in _lines(path):
        cell = text
        if '"' in text or "," in text:
            try:
                cells = next(csv.reader([text], strict=True))
            except csv.Error as error:
                raise InputError(f"{path}, row {row}: is no CSV ({error}), must be one number") from error
            if len(cells) != 1:
                raise InputError(f"{path}, row {row}: found {len(cells)} columns, must be one number")
            cell = cells[0].strip()
        if row > 1 or not _HEADER.fullmatch(cell):
            yield row, cell


def _csv_number(text: str) -> float:
    # Python's 1_000 is no number in a data file.
    return math.nan if "_" in text else float(text)


def _json_number(text: str) -> float:
    found = json.loads(text)
    if isinstance(found, dict):
        found = found.get("score")
    # bool is an int to Python, and true is no score.
    if isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    return math.nan


def _read_json_lines(path: Path) -> Floats:
    return _numbers(path, _lines(path), _json_number, f'{_NUMBER} or an object with one under "score"')


def _read_array(path: Path) -> NDArray[np.generic]:
    kind, writer = ("NPZ", "savez") if path.suffix.lower() == ".npz" else ("NPY", "save")
    try:
        with open_plain(path) as file:
            if kind == "NPZ":
                return _only_member(path, file)
            return read_npy(file, os.fstat(file.fileno()).st_size)
    except DAMAGED as error:
        raise InputError(
            f"{path}: is not a complete {kind} file of numbers ({_reason(error)}), must be one written by "
            f"numpy.{writer} without pickled objects"
        ) from error


def _only_member(path: Path, file: IO[bytes]) -> NDArray[np.generic]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) != 1:
            raise InputError(f"{path}: holds {len(entries)} arrays, must hold exactly one")
        name = entries[0].filename
        size = entries[0].file_size
        packed = entries[0].compress_size
        most = min(FILE_LIMIT, max(1 << 20, _MOST_PACKED * packed))
        if size > most:
            unpacks = f"array {name} unpacks to {size} bytes from {packed}"
            raise InputError(f"{path}: {unpacks}, must unpack to {most} at most")
        try:
            with archive.open(name) as member:
                return read_npy(member, size)
        except DAMAGED as error:
            raise ValueError(f"array {name}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what a library says of a damaged file, in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


_READERS: dict[str, Callable[[Path], NDArray[np.generic]]] = {
    ".csv": lambda path: _numbers(path, _cells(path), _csv_number),
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".npy": _read_array,
    ".npz": _read_array,
}
