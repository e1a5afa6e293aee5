"""Keeps two processes from working on one thing: lock files that say who holds them, and run folders being written.

The lock is the operating system's (flock), so that whatever ends a process frees what it held: a file that a dead one
left behind is taken over, a run folder is removed by the next run. What is written in a lock file is for people
(filelock empties the file that another process holds, so it cannot say who does). Where there is no flock (Windows)
nothing locks, and where the file system does not lock folders, none is removed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from dpzv_audit.errors import AuditError
from dpzv_audit.store import OWNER_FOLDER, private_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PARTIAL = re.compile(r"\..+-[0-9a-f]{8}\.partial")


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock what is open as `handle` until it is closed; nothing happens where the system does not lock.

    Raises `BlockingIOError` where another process holds it, unless it is to `wait`; `OSError` where the file system
    does not lock.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def hold(path: Path, what: str, *, cure: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; folders above it are made, and removed again where left empty.

    The folder that it lies in is made for its owner alone unless it is `shared`.
    Raises `AuditError` where another process holds it: `what` is in use, by whom and since when, and `cure` is what
    else could be done. Also where the file cannot be written, or its file system does not lock.
    """
    if fcntl is None:
        yield
        return
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        handle = _acquired(path, what, cure, shared)
    except OSError as error:
        reason = error.strerror or str(error)
        raise AuditError(f"{what} cannot be locked by {path}: {reason}; {cure.removeprefix('or ')}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)
        with suppress(OSError):  # not empty: what the block kept stays
            for folder in made or [path.parent]:
                folder.rmdir()


def _acquired(path: Path, what: str, cure: str, shared: bool) -> int:
    while True:
        handle = _opened(path, shared)
        try:
            lock(handle)
            if _still_there(path, handle):
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(_self()).encode())
                return handle
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            raise AuditError(f"{what} is in use by {holder}: wait until it ends, end it, {cure}") from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed it between the two steps


def _opened(path: Path, shared: bool) -> int:
    while True:
        if shared:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            private_folder(path.parent)
        with suppress(FileNotFoundError):  # another process has just removed the folder that it left empty
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _still_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _self() -> dict[str, object]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _holder(handle: int) -> str:
    """Who wrote the lock file, in words; its text is only shown, and may be anything."""
    try:
        said = json.loads(os.pread(handle, 1 << 16, 0))
        command = " ".join(str(word) for word in said["command"])
        return f"process {said['process']} on {said['host']} since {said['since']} ({command[:200]})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


@contextmanager
def partial_folder(out: Path, name: str) -> Iterator[Path]:
    """Make a hidden folder in `out` for the run `name`, its owner's alone (0700), and hold it while the block runs.

    It is for the block to rename it or to remove it. `OSError` goes through.
    """
    while True:
        partial = out / f".{name}-{secrets.token_hex(4)}.partial"
        partial.mkdir(mode=OWNER_FOLDER)
        try:
            handle = _locked(partial)
        except (BlockingIOError, FileNotFoundError):
            continue  # taken for abandoned between the two steps
        if partial.is_dir():
            break
        _close(handle)
    try:
        yield partial
    finally:
        _close(handle)


def remove_abandoned(out: Path) -> None:
    """Remove what killed processes left half-written in the folder `out`; what cannot be removed stays."""
    for partial in out.glob(".*.partial"):
        if not _PARTIAL.fullmatch(partial.name) or partial.is_symlink() or not partial.is_dir():
            continue
        with suppress(OSError):
            handle = _locked(partial)
            if handle is not None:
                shutil.rmtree(partial, ignore_errors=True)
            _close(handle)


def _locked(folder: Path) -> int | None:
    """Lock `folder` and return the handle that holds it, None where folders cannot be locked.

    Raises `BlockingIOError` where another process holds it.
    """
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        lock(handle)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return handle


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)
