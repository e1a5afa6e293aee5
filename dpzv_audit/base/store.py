"""Keeps entries between runs: each in a file of its own, its owner's alone, whole or absent, and checked; locks.

An entry is JSON with the SHA-256 of its text, or bytes that check themselves (NPZ, safetensors). A digest finds
accidents (a failing disk, a file cut short, an edit by hand), not a forger, who can compute it too.

Lock files keep two processes from working on one thing, and say who holds them; run folders being written are locked
too. The lock is the operating system's (flock), so that it ends with its process: a lock file that a dead process left
is taken over, a run folder is removed by the next run. The library filelock does not replace it: it takes a FIFO for a
lock file, has no word on the holder, and locks no folders. Where there is no flock (Windows) nothing locks, and where
the file system does not lock folders, none is removed.
"""

import functools
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from .errors import AuditError, InputError, one_line
from .files import LARGEST_STATE, json_in, read_plain
from .findings import to_jsonable

T = TypeVar("T")

_CHECKSUMMED = re.compile(rb'\{"sha256": "([0-9a-f]{64})", "value": (.*)\}', re.DOTALL)

OWNER_FOLDER = 0o700
"""Permissions of a folder whose files follow from records."""


def private_file(path: Path, mode: str) -> BinaryIO:
    """Open `path` to write bytes to, `wb` or `xb`; a file that this makes is readable by its owner alone (0600)."""
    return open(path, mode, opener=functools.partial(os.open, mode=0o600))  # type: ignore[return-value]


def private_folder(path: Path) -> None:
    """Make the folder `path` for its owner alone (0700), with missing ones above it; one that exists stays as it is.

    Folders above it get the permissions that the umask gives. `OSError` goes through.
    """
    path.mkdir(mode=OWNER_FOLDER, parents=True, exist_ok=True)


def sync(path: Path) -> None:
    """Wait until the disk holds the file or the folder `path` for good."""
    if os.name == "nt":
        return  # folders cannot be opened there, and files must be opened for writing
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: str | bytes, *, shared: bool = False, durable: bool = False) -> Path:
    """Write `content` (text as UTF-8, lines as they are) to `path` in one step and return `path`.

    The file is its owner's alone (0600) unless it is `shared`: then it has the permissions that the umask gives.
    Where it must be `durable`, not even a loss of power after the return takes it away. Nothing else is left in its
    folder, which must exist, by a failure; `OSError` goes through. Two processes may write the same file: one of them
    is last.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") if shared else private_file(partial, "xb") as file:
            file.write(data)
        if durable:
            sync(partial)
        os.replace(partial, path)
        if durable:
            sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path


def checksummed(value: Any) -> str:
    """Return `value`, plain JSON values, as JSON text with the SHA-256 of its own text; `ValueError` for nan."""
    text = json.dumps(value, allow_nan=False)
    return f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "value": {text}}}'


def verified(content: bytes) -> Any:
    """Return the value that `checksummed` wrote as `content`; `ValueError` for anything else, or damaged content."""
    match = _CHECKSUMMED.fullmatch(content)
    if match is None:
        raise ValueError(f"its {len(content)} bytes are no digest with a value, or were cut short")
    stated = match[1].decode()
    digest = hashlib.sha256(match[2]).hexdigest()
    if digest != stated:
        place = match.start(2) + 1
        raise ValueError(f"the value from byte {place} on has digest {digest[:16]}, must have {stated[:16]}")
    return json_in(match[2])


@dataclass(frozen=True)
class Store:
    """Entries in `folder`, by the names of their files."""

    folder: Path

    def read(self, name: str, kind: type[T], *, again: str = "", cure: str = "") -> T | None:
        """Return the entry that `write` kept as `name`, a `kind` (`dict` or a dataclass); None where there is none.

        See `load` for a damaged entry, and for one that is of another kind.
        """
        return self.load(name, functools.partial(_read_kind, kind), again=again, cure=cure)

    def load(self, name: str, loader: Callable[[Path], T], *, again: str = "", cure: str = "") -> T | None:
        """Return the entry `name` as `loader` reads it, None where there is none.

        An entry that cannot be read (see `base.files`), or of which `loader` raises `ValueError`, is named. Where
        work is done again in its place, `again` says so in the log and the entry counts as absent; without it
        `InputError` says the `cure`.
        """
        path = self.folder / name
        try:
            return loader(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            reason = f"{path}: cannot be read ({error.strerror or error})"
        except InputError as error:
            reason = error.words if error.field == str(path) else f"{path}: is damaged: {error.words}"
        except ValueError as error:
            reason = f"{path}: is damaged: {error}"
        if not again:
            raise InputError(f"{reason}; {cure}")
        logging.getLogger(__name__).warning("%s", one_line(f"{reason}; {again}"))
        return None

    def once(self, name: str, kind: type[T], work: Callable[[], T], *, again: str) -> T:
        """Return the entry `name`, a `kind`; where there is none the result of `work`, which is kept.

        Of a damaged entry the log says `again`, see `load`.
        """
        entry = self.read(name, kind, again=again)
        if entry is None:
            entry = work()
            self.write(name, entry, cure="make room and go on with ‹resume›")
        return entry

    def count(self) -> int:
        """Return the number of entries, those in folders below included."""
        return sum(path.is_file() for path in self.folder.rglob("[!.]*"))

    def write(self, name: str, entry: Any, *, cure: str, durable: bool = False) -> None:
        """Keep `entry` as `name`: bytes as they are, a dataclass or plain values as JSON with their digest.

        After a kill at any moment the file holds the entry before or this one; see `write_atomically`. Raises
        `AuditError`, which says the `cure`, where the disk refuses.
        """
        content = entry if isinstance(entry, bytes) else checksummed(to_jsonable(entry))
        try:
            private_folder(self.folder)
            write_atomically(self.folder / name, content, durable=durable)
        except OSError as error:
            raise AuditError(f"{self.folder / name}: cannot be written ({error.strerror or error}); {cure}") from error


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _read_kind(kind: Any, path: Path) -> Any:
    from pydantic import ValidationError

    value = verified(read_plain(path, LARGEST_STATE))
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError:
        raise ValueError(f"it holds no {kind.__name__}") from None


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PARTIAL = re.compile(r"\..+-[0-9a-f]{8}\.partial")


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock the open file `handle` until it is closed; do nothing where the system does not lock.

    Raises `BlockingIOError` where another process holds it, unless it is to `wait`; `OSError` where the file system
    does not lock.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def hold(path: Path, subject: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; folders above it are made, and removed again where left empty.

    The folder that it lies in is made for its owner alone unless it is `shared`.
    Raises `AuditError` where another process holds it: the `subject` is in use, by whom and since when. Also where the
    file cannot be written, or its file system does not lock.
    """
    if fcntl is None:
        yield
        return
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        handle = _acquired(path, subject, shared)
    except OSError as error:
        reason = error.strerror or error
        raise AuditError(f"{subject} cannot be locked by {path}: {reason}; give another ‹out› DIR") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)
        with suppress(OSError):  # not empty: files of the block stay
            for folder in made or [path.parent]:
                folder.rmdir()


def _acquired(path: Path, subject: str, shared: bool) -> int:
    while True:
        path.parent.mkdir(mode=0o777 if shared else OWNER_FOLDER, parents=True, exist_ok=True)
        try:
            # The file that a link leads to is not written to.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # another process has just removed the folder that it left empty
            continue
        try:
            lock(handle)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(handle)):
                    os.ftruncate(handle, 0)
                    os.write(handle, _self())
                    return handle
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            raise AuditError(
                f"{subject} is in use by {holder}: wait until it ends, end it, or give another ‹out› DIR"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed it between the two steps


def _self() -> bytes:
    holder = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    return json.dumps(holder).encode()


def _holder(handle: int) -> str:
    """Return words for the writer of the lock file; its text is only shown, and may be anything."""
    try:
        holder = json.loads(os.pread(handle, 1 << 16, 0))
        command = " ".join(map(str, holder["command"]))
        return f"process {holder['process']} on {holder['host']} since {holder['since']} ({command[:200]})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


@contextmanager
def partial_folder(out: Path, name: str) -> Iterator[Path]:
    """Make a hidden folder in `out` for the run `name`, its owner's alone (0700), and hold it while the block runs.

    Unless the block renames it, it is removed. `OSError` goes through.
    """
    with ExitStack() as held:
        while True:
            partial = out / f".{name}-{secrets.token_hex(4)}.partial"
            partial.mkdir(mode=OWNER_FOLDER)
            with suppress(BlockingIOError, FileNotFoundError):  # taken for abandoned between the two steps
                held.enter_context(_locked(partial))
                if partial.is_dir():
                    break
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def remove_abandoned(out: Path) -> None:
    """Remove run folders that killed processes left half-written in the folder `out`, as far as the system lets."""
    for partial in out.glob(".*.partial"):
        if not _PARTIAL.fullmatch(partial.name) or partial.is_symlink() or not partial.is_dir():
            continue
        with suppress(OSError), _locked(partial) as locked:
            if locked:
                shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock `folder` while the block runs, and yield whether folders can be locked.

    Raises `BlockingIOError` where another process holds it.
    """
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            lock(handle)
            locked = True
        except BlockingIOError:
            raise
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(handle)
