"""Reads files of data sets up to a limit, and says how much memory is free for what they hold."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dpzv_audit.errors import InputError
from dpzv_audit.plain_files import open_plain
from dpzv_audit.trees import data_digest

CHUNK = 1 << 20


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the bytes of `path`; `InputError` if it cannot be read or has more than `limit`.

    At most one byte more than `limit` is ever read.
    """
    try:
        with open_plain(path) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(content) > limit:
        raise InputError(f"{path}: has more than {limit} bytes, must have {limit} at most")
    return content


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a whole file in hexadecimal digits; `InputError` if it cannot be read."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with open_plain(path) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


def check_size(path: Path, limit: int, *, advice: str = "") -> int:
    """Return the size of `path` in bytes; `InputError`, with `advice`, if it has more than `limit` or is unreadable."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    if size > limit:
        raise InputError(f"{path}: has {size} bytes, must have {limit} at most{'; ' if advice else ''}{advice}")
    return size


def unreadable(path: Path, error: OSError) -> InputError:
    """An `InputError` for a file that the system does not let us read."""
    return InputError(f"{path}: cannot be read ({error.strerror}); it must be a readable file")


def memory_available() -> int | None:
    """Bytes of memory that can be had now without swapping; None where the system does not say (it does on Linux).

    The least of what the machine has and what the control groups of this process leave it.
    """
    found = [_kernel_available(Path("/proc/meminfo")), _group_available(Path("/sys/fs/cgroup"))]
    return min((number for number in found if number is not None), default=None)


def model_digest(source: str | None) -> str | None:
    """What a pre-trained model is read from: the digest of a folder's files; a name on a hub stands for itself."""
    if source is None:
        return None
    folder = Path(source)
    return data_digest([folder]) if folder.is_dir() else source


def check_memory(needed: int, what: str) -> None:
    """Raise `MemoryError` where `needed` bytes for `what` are not free: the system might end the process instead."""
    had = memory_available()
    if had is not None and needed > had:
        raise MemoryError(f"{what}: {needed} bytes, of {had} that are free")


def _kernel_available(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _group_available(folder: Path) -> int | None:
    try:
        most, used = ((folder / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        # Pages of files count as used, and are given up as soon as anybody needs the room.
        return max(0, int(most) - int(used) + _group_reclaimable(folder))
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return None


def _group_reclaimable(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
    except (OSError, ValueError, IndexError):
        return 0
