"""Reads TOML that somebody else may have written: claims files and configurations, with the line of every key.

What takes a parser long or much memory (depth, dotted keys, very many values) is refused before anything is parsed. So
are whole numbers of more than 64 bits, which TOML does not promise: Python cannot even print those of many digits.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError
from .files import open_plain

LARGEST_FILE = 8_000_000
"""Bytes; ten thousand claims take three million."""
MOST_PARTS = 300_000
"""Lines, brackets, commas and points outside strings: what a parser takes time and memory in proportion to."""
_MOST_MARKS = 1_000_000
"""The same and quotes, in strings too: as many are refused before they are told apart."""

Loc = tuple[str | int, ...]
"""Location of a value, as pydantic counts: ("claim", 0, "config", "batch_size")."""

_KEY_PART = r"(?:[A-Za-z0-9_-]++|\"(?:[^\"\\]++|\\.)*+\"|'[^']*+')"
_KEYS = re.compile(rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*")
# What may open or close something, or hide such a character: strings of all four kinds, comments, brackets. Nothing is
# given back (`++`, `*+`): of a string of 8 MB the places to go back to would take 900 MB.
_TOKEN = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""|$)|\'\'\'(?:[^\']++|\'(?!\'\'))*+(?:\'\'\'|$)'
    r'|"(?:[^"\\\n]++|\\.)*+"|\'[^\'\n]*+\'|#[^\n]*+|[\[\]{}\n]',
    re.DOTALL,
)
_ENDS = re.compile(r"[,=\n]")


def read_toml(path: Path) -> str:
    """Return the text of a TOML file; `InputError` for one that is no text or too large, `OSError` as `open_plain`."""
    with open_plain(path) as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise InputError(f": is larger than {LARGEST_FILE:,} bytes; split it into several files", str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f": byte {error.start + 1} is not UTF-8; use UTF-8 text", str(path)) from None


def parsed_toml(text: str, shown: str, *, parse_float: Callable[[str], Any] = float) -> dict[str, object]:
    """Return the tables of a TOML text; `InputError` that opens with `shown`, the name of its file."""
    nested = InputError(f"{shown}: is nested too deeply; use flat tables of keys")
    long = InputError(f"{shown}: holds more than {MOST_PARTS:,} lines, values and tables; split it into several files")
    if sum(map(text.count, "\n,[{.\"'#")) > _MOST_MARKS:
        raise long
    bare = bare_text(text)
    if longest_key(bare) > 100:
        raise nested
    if sum(map(bare.count, "\n,.")) > MOST_PARTS:
        raise long
    try:
        data = tomllib.loads(text, parse_float=parse_float)
    except RecursionError:
        raise nested from None
    except ValueError as error:  # also a number longer than Python converts
        raise InputError(f"{shown}: is not valid TOML: {error}") from None
    for loc, value in _whole_numbers(data):
        if not -(1 << 63) <= value < 1 << 63:
            rule = f"is a whole number of {value.bit_length():,} bits; use 64 at most"
            raise InputError(f"{shown}:{line_at(key_lines(text), loc)}: {loc[-1]} {rule}")
    return data


def _whole_numbers(data: Any) -> Iterator[tuple[Loc, int]]:
    waiting: list[tuple[Loc, Any]] = [((), data)]
    while waiting:
        loc, value = waiting.pop()
        if type(value) is int:
            yield loc, value
        elif isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += (((*loc, key), inner) for key, inner in items)


def line_at(lines: Mapping[Loc, int], loc: Loc) -> int:
    """Return the line of the value at `loc`, or of the nearest table around it that has one."""
    while loc not in lines:
        loc = loc[:-1]
    return lines[loc]


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every statement: a header or a key with its value, however many lines.

    A light scan beside the real parser.
    """
    depth = 0
    start = 0
    line = 1
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth = max(0, depth - 1)
        elif mark == "\n" and depth == 0:
            yield line, text[start : token.start()].strip()
            line += text.count("\n", start, token.end())
            start = token.end()
    yield line, text[start:].strip()


def bare_text(text: str) -> str:
    """Return `text` without the content of strings; a comment, a bracket and a line's end are a line's end each."""
    return _TOKEN.sub(lambda token: '""' if token[0][0] in "\"'" else "\n", text + "\n")


def longest_key(bare: str) -> int:
    """Return about how many parts the longest dotted key in a `bare_text` has, in time linear in the text.

    A parser takes time in proportion to its square, which a file of a few MB turns into hours.
    """
    return 1 + max(line.count(".") for line in _ENDS.split(bare))


def key_lines(text: str) -> dict[Loc, int]:
    """Return the line, counted from 1, of every table header and key of valid TOML; inline tables count as one."""
    lines: dict[Loc, int] = {(): 1}
    arrays: dict[Loc, int] = {}
    table: Loc = ()
    for number, statement in _statements(text):
        header = statement.startswith("[")
        match = _KEYS.search(statement) if header else _KEYS.match(statement)
        if match is None:
            continue
        keys = tuple(key.strip("\"'") for key in re.findall(_KEY_PART, match.group()))
        if header:
            table = _within(keys, arrays)
            if statement.startswith("[["):
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            lines.setdefault(table, number)
        else:
            for size in range(1, len(keys) + 1):
                lines.setdefault((*table, *keys[:size]), number)
    return lines


def _within(keys: Loc, arrays: Mapping[Loc, int]) -> Loc:
    """Return where `keys` lead to: the last table of every array of tables on the way is meant."""
    loc: Loc = ()
    for index, key in enumerate(keys):
        loc = (*loc, key)
        if loc in arrays and index < len(keys) - 1:
            loc = (*loc, arrays[loc])
    return loc
