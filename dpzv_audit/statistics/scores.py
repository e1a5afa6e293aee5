"""Reads scores that another system wrote: CSV, NPY, NPZ or JSON lines; never unpickles.

Text is read line by line into an array of doubles: reading takes 16 bytes per score, however many bytes spell it.

The first row of a CSV may be a header. A name is one. A number is one where both files begin with the same cell and no
other row is spelled like it: whole ("0", as pandas writes an unnamed column), or in quotes. Where that holds for one
file, or where the files share nothing else, the reader asks. A number taken for a header, or not, is always told.
"""

import csv
import io
import json
import math
import os
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.files import first_not_utf8, open_plain
from ..base.npy import DAMAGED, archive_in, read_npy
from .settings import check_scores
from .thresholds import Scores

Rows = Iterator[tuple[int, str]]

_WHOLE = re.compile(r"[-+]?\d+")
_WHOLE_STEP = re.compile(r"[-+]?\d+(e[-+]?\d+)?", re.IGNORECASE)
"""A number without a decimal point, as floats are seldom spelled."""
_INFINITE = re.compile(r"[-+]?inf(inity)?", re.IGNORECASE)
_NOT_A_NAME = re.compile(
    r"[-+]?\s*\.?\d.*|[-+]?(nan|na|n/a|<na>|null|none|nil|missing|true|false)|\w+(\.\w+)*\(\W*\d.*\).*", re.IGNORECASE
)
"""What is no header: a number, however wrong its spelling is, a missing value, a number as a program prints it."""
_COMMENT = re.compile(r"#(?!(n/a|null!|num!|div/0!|ref!|name\?|value!))", re.IGNORECASE)
"""A comment, but for the errors that a spreadsheet writes in place of a number."""
FILE_LIMIT = 1 << 30
"""The most bytes of a score file, and of the array in an archive: a hundred million scores."""
LINE_LIMIT = 1 << 20
_MOST_PACKED = 100
"""Times that an archive may unpack to its own size: real scores do to twice, a bomb to a thousand."""
_NUMBER = "use a number such as -0.25 or inf"
_LEAST_ROWS = 8
"""Rows of each file from which a first row that both share is no chance."""


@dataclass(frozen=True)
class _FirstRow:
    """The first row of a CSV, a number: its row and cell, its score, and whether no other row is spelled like it."""

    row: int
    cell: str
    unlike: bool


@dataclass(frozen=True)
class LoadedScores:
    """The scores of both files, in the type they were written in, and what the user has to know of the reading."""

    inside: Scores
    outside: Scores
    notes: tuple[str, ...] = ()


def load_scores(path: Path, header: bool | None = None) -> Scores:
    """Return the (n,) scores in the file at `path`, n >= 1, none of them NaN, read by its suffix.

    - `.csv`: one column, one number a row; lines that begin with # are skipped. The first row may be a header: a name,
      or with `header` whatever it is; without `header` it is a score.
    - `.jsonl`, `.ndjson`: a number a line, or an object with the number under "score".
    - `.npy`: a one-dimensional array of real numbers. `.npz`: an archive of exactly one of these.

    Raises:
        InputError: a file that is missing, unreadable, empty, of another kind, or holds anything else; a whole number
            that no double holds; a CSV whose first row may be either (`header` is None). It names the file and, where a
            value is at fault, its row (counted from 1; in a text file the line).
    """
    scores, first = _read(path, header)
    if first is not None and first.unlike:
        raise _asked(path, first, "it is spelled unlike all other rows")
    return scores


def load_score_files(in_path: Path, out_path: Path, header: bool | None = None) -> LoadedScores:
    """Return the scores of both files, see `load_scores`; of two CSV files each tells about the other's first row."""
    paths = in_path, out_path
    if header is not None and all(path.suffix.lower() != ".csv" for path in paths):
        raise InputError("is about CSV files; leave it out", "header", header)
    (inside, first), (outside, other) = (_read(path, header) for path in paths)
    if first is None or other is None or first.cell != other.cell:
        for path, row in zip(paths, (first, other), strict=True):
            if row is not None and row.unlike:
                raise _asked(path, row, "it is spelled unlike all other rows")
        return LoadedScores(inside, outside)
    where = f"row {first.row} of both files, {first.cell!r},"
    if first.unlike and other.unlike and min(inside.size, outside.size) > 1:
        why = "no other row is spelled like it (header no, or header = false in a claims file, makes it a score)"
        message = f"{where} is taken for a header: {why}"
        return LoadedScores(inside[1:], outside[1:], (message,))
    if first.unlike or other.unlike:
        raise _asked(in_path, first, "it is spelled unlike the other rows of one file")
    rows = min(inside.size, outside.size)
    alone = inside[0] not in inside[1:] and inside[0] not in outside[1:]
    if rows >= _LEAST_ROWS and alone and not np.any(inside[1:rows] == outside[1:rows]):
        raise _asked(in_path, first, f"{out_path} begins with it too, and the files share no other row")
    message = f"{where} is taken for a score (header yes, or header = true in a claims file, makes it a header)"
    return LoadedScores(inside, outside, (message,))


def _asked(path: Path, first: _FirstRow, why: str) -> InputError:
    rule = f"may be a header or a score ({why}): give ‹header› yes or no (in a claims file: header = true or false)"
    return InputError(f"scores file {path}, row {first.row}: {first.cell!r} {rule}")


def _read(path: Path, header: bool | None) -> tuple[Scores, _FirstRow | None]:
    """Return the scores of a file, and the first row of a CSV of which nobody said whether it is one."""
    reader = _READERS.get(path.suffix.lower())
    try:
        if reader is None:
            kinds = ", ".join(_READERS)
            cure = _CURES.get(path.suffix.lower(), "")
            raise InputError(f"{path}: suffix is {path.suffix!r}; use one of {kinds}{cure}")
        size = path.stat().st_size
        if size > FILE_LIMIT:
            raise InputError(f"{path}: has {size} bytes; use a sample of {FILE_LIMIT} bytes at most")
        values, first = reader(path, header)
        return check_scores(str(path), values), first
    except InputError as error:
        raise error.placed("scores file ") from error
    except FileNotFoundError:
        wrong = "there is no such file"
    except OSError as error:
        wrong = f"cannot be read ({error.strerror or error}); use a readable file"
    except UnicodeDecodeError:
        wrong = f"byte {first_not_utf8(path) + 1} is not UTF-8; use UTF-8 text"
    raise InputError(f"scores file {path}: {wrong}")


class _Wrong(ValueError):
    """Why a text that spells a number is no score."""


def _numbers(path: Path, rows: Rows, number: Callable[[str], float], right: str = _NUMBER) -> NDArray[np.generic]:
    """Return the number that `number` makes of the text of each row; `right` says what it must be.

    Whole numbers alone make an array of whole numbers.
    """
    values = array("d")
    whole = True
    for row, text in rows:
        wrong = right
        try:
            value = number(text)
        except _Wrong as error:
            value = math.nan
            wrong = str(error)
        except (ValueError, OverflowError, RecursionError):
            value = math.nan
        if math.isnan(value):
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            joint = ";" if wrong == right else ","
            raise InputError(f"{path}, row {row}: found {shown!r}{joint} {wrong}{_cure(text)}")
        whole = whole and isinstance(value, int)
        values.append(value)
    numbers = np.frombuffer(values)
    return numbers.astype(np.int64) if whole and np.all(np.abs(numbers) < 2.0**62) else numbers


def _cure(text: str) -> str:
    """Return how to mend a number that is spelled otherwise, "" where that does not show."""
    if text.endswith("%"):
        return ": write 0.5 for 50%"
    if re.match(r"[-+]?0x", text, re.IGNORECASE) or re.match(r"\w+(\.\w+)*\(.*\)", text):
        return ": write it as repr(float(x)) does"
    return ""


def _lines(path: Path) -> Rows:
    """Yield (line number, stripped text); blank lines at the end are dropped, any other is an error."""
    blank = number = 0
    with io.TextIOWrapper(open_plain(path), encoding="utf-8-sig") as lines:
        while line := lines.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise InputError(f"{path}, row {number}: has more than {LINE_LIMIT} characters; {_NUMBER}")
            text = line.strip()
            if not text:
                blank = blank or number
                continue
            if blank:
                raise InputError(f"{path}, row {blank}: is blank; {_NUMBER}")
            yield number, text


def _cells(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line number and the one cell of each row that is no comment, and whether it stands in quotes."""
    for row, text in _lines(path):
        if _COMMENT.match(text):
            continue
        cell = text
        if '"' in text or "," in text:
            try:
                cells = next(csv.reader([text], strict=True))
            except csv.Error as error:
                raise InputError(f"{path}, row {row}: is no CSV ({error}); use one number") from error
            if len(cells) != 1:
                comma = all(re.fullmatch(r"[-+]?\d+", number.strip()) for number in cells) and len(cells) == 2
                cure = "write a decimal point for the comma" if comma else "keep the column of the scores alone"
                raise InputError(f"{path}, row {row}: found {len(cells)} columns; use one number: {cure}")
            cell = cells[0].strip()
        yield row, cell, text.startswith('"')


def _read_csv(path: Path, header: bool | None) -> tuple[NDArray[np.generic], _FirstRow | None]:
    """Return the numbers of a CSV without its header, and its first row where that is a number and nobody said."""
    first: _FirstRow | None = None
    spelled = (False, False)
    unlike = False

    def rows() -> Rows:
        nonlocal first, spelled, unlike
        started = False
        for row, cell, quoted in _cells(path):
            if started:
                unlike = unlike and (_is_whole(cell), quoted) != spelled
            else:
                started = True
                if header or (header is None and _is_name(cell)):
                    continue
                spelled = _is_whole(cell), quoted
                unlike = any(spelled)
                first = _FirstRow(row, cell, False)
            yield row, cell

    values = _numbers(path, rows(), _csv_number)
    if first is None or header is not None:
        return values, None
    return values, _FirstRow(first.row, first.cell, unlike and values.size > 1)


def _is_name(cell: str) -> bool:
    """Whether the first cell of a CSV is a name: no number, nor what may stand for one."""
    return not (_INFINITE.fullmatch(cell) or _NOT_A_NAME.fullmatch(cell)) and any(
        c.isalpha() or c in "$%_" for c in cell
    )


def _is_whole(cell: str) -> bool:
    return _WHOLE_STEP.fullmatch(cell) is not None


def _whole(value: int) -> int:
    """Return a whole number that a double holds."""
    if int(float(value)) != value:
        raise _Wrong("which no double holds exactly: subtract one number from all scores of both files")
    return value


def _real(text: str) -> float:
    """Return the number of a text that spells a finite one, with a point or an exponent."""
    value = float(text)
    if math.isinf(value) or (value == 0.0 and re.match(r"[-+]?[0.]*[1-9]", text)):
        raise _Wrong(f"which is too {'large' if value else 'small'} for a double: divide all scores by one number")
    return value


def _csv_number(text: str) -> float:
    # Python's 1_000 is no number in a data file.
    if "_" in text:
        return math.nan
    if _INFINITE.fullmatch(text):
        return float(text)
    return _whole(int(text)) if _WHOLE.fullmatch(text) else _real(text)


def _json_number(text: str) -> float:
    value = json.loads(text, parse_float=_real)
    if isinstance(value, dict):
        value = value.get("score")
    # bool is an int to Python, and true is no score.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return _whole(value) if isinstance(value, int) else value


def _read_json_lines(path: Path, _header: bool | None) -> tuple[NDArray[np.generic], None]:
    return _numbers(path, _lines(path), _json_number, f'{_NUMBER} or an object with one under "score"'), None


def _read_array(path: Path, _header: bool | None) -> tuple[NDArray[np.generic], None]:
    kind, writer = ("NPZ", "savez") if path.suffix.lower() == ".npz" else ("NPY", "save")
    try:
        with open_plain(path) as file:
            if kind == "NPZ":
                return _only_member(path, file), None
            return read_npy(file, os.fstat(file.fileno()).st_size), None
    except DAMAGED as error:
        raise InputError(
            f"{path}: is not a complete {kind} file of numbers ({_reason(error)}); use one written by "
            f"numpy.{writer} without pickled objects"
        ) from error


def _only_member(path: Path, file: IO[bytes]) -> NDArray[np.generic]:
    with archive_in(file) as archive:
        entries = archive.infolist()
        if len(entries) != 1:
            raise InputError(f"{path}: holds {len(entries)} arrays; use exactly one")
        name = entries[0].filename
        size = entries[0].file_size
        packed = entries[0].compress_size
        most = min(FILE_LIMIT, max(1 << 20, _MOST_PACKED * packed))
        if size > most:
            unpacks = f"array {name} unpacks to {size} bytes from {packed}"
            raise InputError(f"{path}: {unpacks}; use {most} at most")
        try:
            with archive.open(name) as member:
                return read_npy(member, size)
        except DAMAGED as error:
            raise ValueError(f"array {name}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what a library says of a damaged file, in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


_READERS: dict[str, Callable[[Path, bool | None], tuple[NDArray[np.generic], _FirstRow | None]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".npy": _read_array,
    ".npz": _read_array,
}
_TEXT = "; a file with a number on each line may be called .csv"
_CURES = {
    ".txt": _TEXT,
    ".tsv": _TEXT,
    ".gz": "; unpack it",
    ".json": "; write a number on each line (.jsonl)",
    ".pkl": "; write it with numpy.save",
    ".pt": "; write it with numpy.save",
}
"""How to get a file of another kind read, by its suffix."""
