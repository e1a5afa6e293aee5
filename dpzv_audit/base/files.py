"""Opens files that somebody else may have named, and makes digests of folders of them.

Only regular files are opened, and on request none outside a folder. A digest of all files in a folder identifies the
files behind a result: names and contents count, wherever the folder lies; links are followed. Left out are files that
Python, version control and test runners keep for themselves, virtual environments, and the output of this tool.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from .errors import AuditError, InputError

PACKAGE_FOLDERS = frozenset({"attacks", "dpzv_audit", "mechanisms", "reports"})
"""A folder of such a name on the import path can shadow this distribution's packages: none is written to."""
_ROOT: ContextVar[Path | None] = ContextVar("_ROOT", default=None)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_OF_THE_KERNEL = ("/proc", "/sys")
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
LARGEST_STATE = 64_000_000
"""Bytes of a file that the tool keeps for itself: evidence, results."""
MOST_VALUES = 5_000_000
"""Values in a file of JSON; each takes up to 72 bytes of memory."""


@contextmanager
def confined_to(root: Path | None) -> Iterator[None]:
    """Let `open_plain` refuse files outside `root` while the block runs, links followed; None for no bounds."""
    token = _ROOT.set(None if root is None else root.resolve())
    try:
        yield
    finally:
        _ROOT.reset(token)


def open_plain(path: Path, *, links: bool = True) -> BufferedReader:
    """Open the regular file at `path` for reading bytes; never waits for a FIFO's writer, nor touches a device.

    Without `links` the file itself must be there, not a link to it.

    Raises `InputError` naming the path for a folder, a FIFO, a socket, a device, a file of the kernel's (/proc, /sys),
    a name that no file can have, and for files that `confined_to` forbids; `OSError` for absent or unreadable ones.
    """
    try:
        status = os.stat(path, follow_symlinks=links)
        _check(path, status)
        file = os.fdopen(os.open(path, _FLAGS), "rb")
    except ValueError:  # a NUL, or a character that no name of a file can hold
        raise InputError(": is no name that a file can have", str(path)) from None
    try:
        opened = os.fstat(file.fileno())
        real = os.path.realpath(path)
        # The path must lead to the opened file, before and now.
        if not (os.path.samestat(status, opened) and os.path.samestat(os.lstat(real), opened)):
            raise InputError(": was replaced while it was opened; leave it alone", str(path))
        _check(path, opened)  # a number of a file that is gone may be another's
    except BaseException:
        file.close()
        raise
    return file


def read_plain(path: Path, most: int, *, links: bool = True) -> bytes:
    """Return the bytes of the regular file at `path`, which has `most` at most; else errors as `open_plain`."""
    with open_plain(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(size + 1)
        if len(content) > size:  # it grows
            content += file.read(most + 1 - len(content))
    if max(size, len(content)) > most:
        raise InputError(f": has more than {most} bytes; use {most} at most", str(path))
    return content


def json_in(content: bytes, most: int = MOST_VALUES) -> Any:
    """Return the value of JSON text in UTF-8, NaN and infinity refused.

    Raises `ValueError` for text that is no JSON, is nested too deeply, or may hold more than `most` values.
    """
    check_values(content, most)
    try:
        return json.loads(content.decode(), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_values(content: bytes, most: int = MOST_VALUES) -> None:
    """Raise `ValueError` where JSON may hold more than `most` values: a parser takes many times their bytes."""
    if sum(map(content.count, (b",", b"[", b"{", b":"))) > most:
        raise ValueError(f"holds more than {most:,} values")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def may_open(path: Path) -> bool:
    """Return whether `open_plain` would open `path`: a regular file that is there, and within bounds."""
    try:
        _check(path, os.stat(path))
    except (OSError, ValueError, InputError):
        return False
    return True


def first_not_utf8(path: Path) -> int:
    """Return the offset of the first byte of `path` that is not UTF-8 text; its size where all of them are."""
    begin = 0
    with open_plain(path) as file:
        for line in file:
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return begin + error.start
            begin += len(line)
    return begin


def kind_of(path: Path) -> str:
    """Return the kind of file at `path` in a word or two: "a regular file", "a FIFO", "nothing", ..."""
    try:
        return _kind(os.stat(path))
    except (OSError, ValueError):
        return "nothing"


def _kind(status: os.stat_result) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "a regular file")


def of_the_kernel(path: str | Path) -> bool:
    """Return whether a file at `path` would be one of the kernel's (/proc, /sys), whose content is made when read."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(folder) for folder in _OF_THE_KERNEL)


def _check(path: Path, status: os.stat_result) -> None:
    kind = "" if stat.S_ISREG(status.st_mode) else f"is {_kind(status)}; use a regular file"
    if reason := kind or _out_of_bounds(path):
        raise InputError(f": {reason}", str(path))


def _out_of_bounds(path: Path) -> str:
    real = Path(os.path.realpath(path))
    if of_the_kernel(path):
        return f"is a file of the kernel's, {real}; use one on a disk"
    root = _ROOT.get()
    if root is not None and not real.is_relative_to(root):
        return f"leads to {real}; use one below {root}"
    return ""


MOST_FILES = 20_000
MOST_BYTES = 1 << 30
"""About two seconds of reading."""
MOST_DATA_FILES = 1_000_000
MOST_DATA_BYTES = 400_000_000
"""Data sets of more are told by size, time of change and inode of each file."""

_NOT_DATA = frozenset(
    {
        "__pycache__",
        "site-packages",
        "dist-packages",
        "node_modules",
        ".git",
        ".gitignore",
        ".hg",
        ".svn",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        ".tox",
        ".nox",
    }
)
# Run folders of this tool, whole or being written (`dpzv_audit.runs.run_name`).
_OWN_FOLDER = re.compile(
    r"\d{8}-\d{6}-(attack|train|audit|verify|matrix|reproduce)(-[\w-]+)?-seed\d+(-\d+)?|\..+-[0-9a-f]{8}\.partial"
)
_OWN_FILE = re.compile(r"\..+\.[0-9a-f]{8}\.partial|dpzv-audit-error-[\d-]+-[0-9a-f]{8}\.log")
# Entries that stay between runs, after the name of the folder around them.
_KEPT = re.compile(r"(audits|checkpoints)/[0-9a-f]{16}(\..+)?|[0-9a-f]{2}/[0-9a-f]{64}|ledgers/[0-9a-f]{64}\.json")


class Undigested(AuditError):
    """Files of which no digest can be made, so that no result of theirs can be kept; the message says why."""


def tree_digest(places: Iterable[Path], *, outputs: Collection[Path] = ()) -> str:
    """Return the SHA-256 of the names and contents of all files in `places`, which are folders or files.

    `outputs` are files that are written anew in every run and count for nothing. Where a place lies does not count.

    Raises:
        Undigested: More than `MOST_FILES` files or `MOST_BYTES` bytes, or one that cannot be read or is none.
    """
    left_out = {os.path.realpath(path) for path in outputs}
    digest = hashlib.sha256()
    size = 0
    for name, path in _listed(places, left_out, MOST_FILES):
        digest.update(name)
        held, content = _content(path)
        size += held
        if size > MOST_BYTES:
            raise Undigested(f"the files beside {path} have more than {MOST_BYTES:,} bytes")
        digest.update(content)
    return digest.hexdigest()


def data_digest(places: Iterable[Path]) -> str:
    """Return the digest of the files of a data set or a model: as `tree_digest`, but however large they are.

    A file that may not be opened is not read by a loader either, and counts by its name alone. Past `MOST_DATA_BYTES`
    files count by their status in place of their content. That shows a changed file too: nobody sets the time of change
    (ctime) by hand. It also takes a copy for another file, which costs time alone.
    """
    files = [
        (name, path, path.stat() if may_open(path) else None) for name, path in _listed(places, (), MOST_DATA_FILES)
    ]
    large = sum(status.st_size for _, _, status in files if status is not None) > MOST_DATA_BYTES
    digest = hashlib.sha256()
    for name, path, status in files:
        digest.update(name)
        if status is not None and large:
            facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
            digest.update(" ".join(map(str, facts)).encode())
        elif status is not None:
            digest.update(_content(path)[1])
    return digest.hexdigest()


def python_files(place: Path) -> list[Path]:
    """Return the Python files in the folder `place` that `tree_digest` counts; raises `Undigested` for too many."""
    return [path for _, path in _listed([place], (), MOST_FILES) if path.suffix == ".py"]


def _listed(places: Iterable[Path], left_out: Collection[str], most: int) -> Iterator[tuple[bytes, Path]]:
    """Yield every file of `places` with the bytes that stand for its name, in one order."""
    count = 0
    for number, place in enumerate(places):
        for name, path in _files(place, left_out):
            count += 1
            if count > most:
                raise Undigested(f"{place} holds more than {most:,} files")
            yield f"{number} {name}\n".encode("utf-8", "surrogateescape"), path


def _files(place: Path, left_out: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yield every file in `place` with its name there; a folder of several links comes once."""
    if not place.is_dir():
        yield "", place
        return
    seen: set[tuple[int, int]] = set()
    waiting = [""]
    while waiting:
        within = waiting.pop()
        folder = place / within
        try:
            at = folder.stat()
            if (at.st_dev, at.st_ino) in seen:
                continue
            seen.add((at.st_dev, at.st_ino))
            names = sorted(os.listdir(folder))
        except OSError as error:
            raise Undigested(f"{folder} cannot be read ({error.strerror})") from error
        if "pyvenv.cfg" in names:
            continue
        for name in names:
            path = folder / name
            if name in _NOT_DATA or _of_the_tool(path) or os.path.realpath(path) in left_out:
                continue
            if not path.is_dir():
                yield within + name, path
            elif not _out_of_bounds(path):
                waiting.append(f"{within}{name}/")


def _of_the_tool(path: Path) -> bool:
    kept = _KEPT.fullmatch(f"{path.parent.name}/{path.name}")
    folder = path.is_dir() and _OWN_FOLDER.fullmatch(path.name)
    return bool(kept or folder or _OWN_FILE.fullmatch(path.name))


def _content(path: Path) -> tuple[int, bytes]:
    """Return the size and the digest of one file; a broken link counts by its target."""
    try:
        if path.is_symlink() and not path.exists():
            return 0, os.fsencode(os.readlink(path))
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise Undigested(f"{path} has more than {MOST_BYTES:,} bytes")
            return size, hashlib.file_digest(file, "sha256").digest()
    except InputError as error:
        raise Undigested(error) from error
    except OSError as error:
        raise Undigested(f"{path} cannot be read ({error.strerror})") from error
