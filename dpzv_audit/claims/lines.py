"""Finds the line on which each key of a TOML file stands, by a light scan beside the real parser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

Place = tuple[str | int, ...]
"""Where a value is: ("claim", 0, "config", "batch_size"); tables in an array are counted from 0."""

_KEY_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_KEYS = re.compile(rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*")
_PART = re.compile(_KEY_PART)
# What may open or close something, or hide such a character: strings of all four kinds, comments, brackets.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*(?:"""|$)|\'\'\'(?:[^\']|\'(?!\'\'))*(?:\'\'\'|$)'
    r'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]',
    re.DOTALL,
)

_ENDS = re.compile(r"[,=]")


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, first line of it) of every statement: a header or a key with its value, however many lines."""
    depth, start, line, fresh = 0, 0, 1, 1
    for token in _TOKEN.finditer(text):
        found = token.group()
        if found in "[{":
            depth += 1
        elif found in "]}":
            depth = max(0, depth - 1)
        elif found == "\n" and depth == 0:
            yield fresh, text[start : token.start()].strip()
            start, fresh = token.end(), line + 1
        line += found.count("\n")
    yield fresh, text[start:].strip()


def longest_key(text: str) -> int:
    """Return about how many parts the longest dotted key in `text` has, in time linear in the text.

    A parser takes time in proportion to its square, which a file of a few MB turns into hours.
    """
    longest = run = start = 0
    for token in _TOKEN.finditer(text + "\n"):
        *before, last = _ENDS.split(text[start : token.start()])
        if before:
            longest = max(longest, run + before[0].count("."), *(piece.count(".") for piece in before))
            run = 0
        run += last.count(".")
        longest = max(longest, run)
        if token.group()[0] not in "\"'":  # a string may be a part of the key, all else ends it
            run = 0
        start = token.end()
    return longest + 1


def _parts(keys: str) -> Place:
    return tuple(part.group().strip("\"'") for part in _PART.finditer(keys))


def key_lines(text: str) -> dict[Place, int]:
    """Return the line, counted from 1, of every table header and key of valid TOML; inline tables count as one."""
    lines: dict[Place, int] = {(): 1}
    arrays: dict[Place, int] = {}
    table: Place = ()
    for number, statement in _statements(text):
        if statement.startswith("["):
            double = statement.startswith("[[")
            found = _KEYS.search(statement)
            if found is None:
                continue
            table = _within(_parts(found.group()), arrays)
            if double:
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            lines.setdefault(table, number)
        elif found := _KEYS.match(statement):
            keys = _parts(found.group())
            for size in range(1, len(keys) + 1):
                lines.setdefault((*table, *keys[:size]), number)
    return lines


def _within(keys: Place, arrays: Mapping[Place, int]) -> Place:
    """Return `keys` as a place: the last table of every array of tables on the way is meant."""
    place: Place = ()
    for index, key in enumerate(keys):
        place = (*place, key)
        if place in arrays and index < len(keys) - 1:
            place = (*place, arrays[place])
    return place


def keys_by_claim(lines: Mapping[Place, int]) -> dict[int, dict[str, int]]:
    """Return the lines of each claim's own keys, by the claim's number from 0."""
    found: dict[int, dict[str, int]] = {}
    for place, line in lines.items():
        if len(place) == 3 and place[0] == "claim" and isinstance(place[1], int):
            found.setdefault(place[1], {})[str(place[2])] = line
    return found


def line_of(lines: Mapping[Place, int], place: Sequence[str | int]) -> int:
    """Return the line of `place`, or of the nearest table around it that has one."""
    wanted = tuple(place)
    while wanted not in lines:
        wanted = wanted[:-1]
    return lines[wanted]
