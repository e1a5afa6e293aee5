"""Tells whether git tracks a path, by reading the index of the repository around it; git itself is not run.

Files of a repository may come from the author of a pull request. An index is read as git's documentation has it
(gitformat-index, versions 2 to 4, split ones too); one that cannot be read is an error.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .errors import InputError
from .files import read_plain

_SIGNATURE = b"DIRC"
_FIXED = 40
"""Bytes of an entry before its object name: times, device, inode, mode, owner, size."""
_LARGEST = 1 << 28
_LONGEST_NAME = 1 << 16
_MOST_NAMES = 1 << 28
"""Bytes of all names together: from version 4 on an entry repeats the one before without holding it."""


def tracked_at(path: Path) -> str:
    """Return the path that git tracks at `path`, "" for none: itself, one in it, or a link or submodule around it.

    All repositories count that `path` lies in, by its name and where its links lead.

    Raises `InputError` for an index that cannot be read: nobody then knows what is tracked.
    """
    named = Path(os.path.abspath(path))
    for place in dict.fromkeys((named, Path(os.path.realpath(named)))):
        for root in (place, *place.parents):
            index = _index_of(root)
            if index is None:
                continue
            wanted = os.fsencode(place.relative_to(root).as_posix()) + b"/"
            for name in _names(index):
                entry = name.rstrip(b"/") + b"/"
                if place == root or entry.startswith(wanted) or wanted.startswith(entry):
                    return str(root / os.fsdecode(name))
    return ""


def _index_of(root: Path) -> Path | None:
    """Return the index of the repository whose work tree is `root`; None where there is none."""
    git = root / ".git"
    if git.is_file():  # a submodule, or another work tree
        match = re.match(rb"gitdir: ([^\0\n]+)", read_plain(git, _LONGEST_NAME))
        if match is None:
            return None
        git = root / os.fsdecode(match[1])
    index = git / "index"
    return index if index.is_file() else None


def _names(index: Path, *, shares: bool = True) -> Iterator[bytes]:
    """Yield the paths in an index, and in the one that it shares, which shares none."""
    try:
        content = read_plain(index, _LARGEST)
        # The names of a repository's objects have 20 bytes, or 32.
        for size in (20, 32):
            try:
                names, rest = _entries(content, size)
                shared = _shared(content[rest : len(content) - size], size)
            except (ValueError, IndexError):
                if size == 32:
                    raise
                continue
            yield from names
            if shared and not shares:
                raise ValueError("an index that is shared shares another")
            if shared:
                yield from _names(index.with_name(f"sharedindex.{shared}"), shares=False)
            return
    except (OSError, ValueError, IndexError) as error:
        raise InputError(
            f": is no index of git's that can be read ({error}); repair or remove it", str(index)
        ) from None


def _entries(content: bytes, size: int) -> tuple[list[bytes], int]:
    """Return the paths of all entries, and where the extensions begin; `ValueError` where it does not fit together."""
    version = int.from_bytes(content[4:8])
    if content[:4] != _SIGNATURE or version not in (2, 3, 4):
        raise ValueError("it does not begin as one")
    names: list[bytes] = []
    place = 12
    total = 0
    before = b""
    for _ in range(int.from_bytes(content[8:12])):
        start = place
        flags = int.from_bytes(content[place + _FIXED + size : place + _FIXED + size + 2])
        place += _FIXED + size + (4 if version > 2 and flags & 0x4000 else 2)
        kept = b""
        if version == 4:
            removed, place = _number(content, place)
            if removed > len(before):
                raise ValueError("it takes more of a name away than there is")
            kept = before[: len(before) - removed]
        end = content.index(b"\0", place)
        before = kept + content[place:end]
        if min(len(before), 0xFFF) != flags & 0xFFF:
            raise ValueError("the length of a name is not what it says")
        total += len(before)
        if len(before) > _LONGEST_NAME or total > _MOST_NAMES:
            raise ValueError("its names are too long")
        names.append(before)
        place = end + 1 if version == 4 else start + (end - start) // 8 * 8 + 8
    if place + size > len(content):
        raise ValueError("it is cut short")
    return names, place


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable width, as in packs of git's, and where it ends."""
    value = content[place] & 127
    while content[place] & 128:
        place += 1
        value = ((value + 1) << 7) | (content[place] & 127)
        if value > _LARGEST:
            raise ValueError("a number in it is too large")
    return value, place + 1


def _shared(extensions: bytes, size: int) -> str:
    """Return the name of the index that is shared with others, "" for none; `ValueError` where nothing fits."""
    place = 0
    while place < len(extensions):
        name, length = extensions[place : place + 4], int.from_bytes(extensions[place + 4 : place + 8])
        place += 8
        if len(name) < 4 or place + length > len(extensions):
            raise ValueError("an extension is cut short")
        if name == b"link":
            return extensions[place : place + size].hex()
        place += length
    return ""
