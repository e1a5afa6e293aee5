"""Reads files and tar archives of data sets up to a limit, and says how much memory is free for what they hold.

Archives are read in place. Refused are links, devices, sparse members, absolute names, names with `..`, a name twice,
and more members or bytes than allowed (headers included, which a hostile archive can make as large as it likes).
"""

import gzip
import hashlib
import logging
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, AnyStr

from ..base.errors import InputError
from ..base.files import data_digest, open_plain, read_plain

MUCH_MEMORY = 1_000_000_000
"""Bytes of memory that nobody should be surprised by."""
_warned_of: set[str] = set()
CHUNK = 1 << 20


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError`, or a `ValueError` that says what is wrong, of the block into an `InputError` naming `path`."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); use a readable file") from error


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the bytes of `path`; `InputError` if it cannot be read or has more than `limit`.

    At most one byte more than `limit` is ever read.
    """
    with reading(path):
        return read_plain(path, limit)


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a whole file in hexadecimal digits; `InputError` if it cannot be read."""
    new = partial(hashlib.new, algorithm, usedforsecurity=False)
    with reading(path), open_plain(path) as file:
        return hashlib.file_digest(file, new).hexdigest()


def unpacked_digest(path: Path, algorithm: str, limit: int) -> str | None:
    """Return the digest of what the gzipped file at `path` holds; None if it is broken or holds more than `limit`."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with reading(path), open_plain(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while chunk := unpacked.read(CHUNK):
                digest.update(chunk)
                if unpacked.tell() > limit:
                    return None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return None
    return digest.hexdigest()


def check_size(path: Path, limit: int, *, hint: str = "") -> int:
    """Return the size of `path` in bytes; `InputError`, with a `hint`, if it has more than `limit` or is unreadable."""
    with reading(path):
        size = path.stat().st_size
    if size > limit:
        raise InputError(f"{path}: has {size} bytes, more than {limit}{hint or '; use a smaller file'}")
    return size


def bounded_lines(file: IO[AnyStr], limit: int, units: str) -> Iterator[AnyStr]:
    """Yield the lines of `file`; `ValueError` for one of more than `limit` `units`."""
    for number in count(1):
        line = file.readline(limit + 1)
        if len(line) > limit:
            raise ValueError(f"line {number} has more than {limit} {units}; use {limit} at most")
        if not line:
            return
        yield line


def inflated(data: bytes, limit: int, *, kind: str = "zlib") -> bytes:
    """Return what a stream of `kind` "zlib" or "gzip" unpacks to, at most one byte more than `limit`.

    Raises `ValueError` for a stream that is corrupted or has no end.
    """
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS + (16 if kind == "gzip" else 0))
    try:
        content = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"has a corrupted {kind} stream ({error})") from error
    if len(content) <= limit and not stream.eof:
        raise ValueError(f"is truncated: its {kind} stream of {len(data)} bytes has no end")
    return content


def memory_available() -> int | None:
    """Return the bytes of memory that are free without swapping; None where the system does not say (Linux does).

    The least of what the machine has and what the control groups of this process leave it.
    """
    machine = _kernel_available(Path("/proc/meminfo"))
    return min((free for free in (machine, _group_available(Path("/sys/fs/cgroup"))) if free is not None), default=None)


def model_digest(source: str | None) -> str | None:
    """Return what tells a pre-trained model: the digest of its folder's files; a name on a hub stands for itself."""
    if source is None:
        return None
    folder = Path(source)
    return data_digest([folder]) if folder.is_dir() else source


def check_memory(needed: int, purpose: str) -> None:
    """Raise `MemoryError` where `needed` bytes for `purpose` are not free: the system might end the process instead.

    A warning names more than `MUCH_MEMORY` before it is taken, once in a process.
    """
    free = memory_available()
    if free is not None and needed > free:
        raise MemoryError(f"{purpose}: {needed} bytes, of {free} that are free")
    if needed > MUCH_MEMORY and purpose not in _warned_of:
        _warned_of.add(purpose)
        share = "" if free is None else f", of {free / 1e9:.1f} GB that are free"
        logging.getLogger(__name__).warning("%s", f"{purpose}: {needed / 1e9:.1f} GB of memory{share}")


def _kernel_available(path: Path) -> int | None:
    kilobytes = _numbers(path, "MemAvailable:").get("MemAvailable:")
    return None if kilobytes is None else 1024 * kilobytes


def _group_available(folder: Path) -> int | None:
    try:
        most, used = (int((folder / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return None
    pages = _numbers(folder / "memory.stat", "inactive_file", "active_file")
    # Pages of files count as used, and are given up as soon as anybody needs the room.
    return max(0, most - used + sum(pages.values()))


def _numbers(path: Path, *names: str) -> dict[str, int]:
    """Return the numbers by `names` of a file of lines `NAME NUMBER ...`; none where it is absent or holds others."""
    try:
        lines = (line.split() for line in path.read_text("ascii").splitlines() if line.startswith(names))
        return {name: int(number) for name, number, *_ in lines if name in names}
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True, kw_only=True)
class TarLimits:
    """The most an archive may hold: members, bytes of one that is read, and unpacked bytes of the whole archive."""

    members: int
    member_bytes: int
    total_bytes: int


def read_tar_members(path: Path, wanted: Callable[[str], object], limits: TarLimits) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the regular files in the tar.gz at `path` whose name is `wanted`, in its order.

    Names have no leading `./`. Raises `InputError` naming the archive, and the member where there is one, for
    anything refused above and for an archive that is corrupted, truncated or cannot be read. Members that are
    not wanted are passed over unread, but held to the same rules.
    """
    with reading(path), open_plain(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
        try:
            stream = _BoundedStream(unpacked, limits)
            with tarfile.open(fileobj=stream, mode="r:") as archive:  # type: ignore[call-overload]
                yield from _members(archive, wanted, limits)
        except InputError as error:
            raise error.placed(f"{path}: ") from error
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"is truncated or no tar.gz archive ({reason})") from error


def _members(
    archive: tarfile.TarFile, wanted: Callable[[str], object], limits: TarLimits
) -> Iterator[tuple[str, bytes]]:
    """Yield what `read_tar_members` does; here and below errors do not name the archive."""
    seen: set[str] = set()
    for number, member in enumerate(archive, start=1):
        if number > limits.members:
            raise InputError(f"has more than {limits.members} members; use {limits.members} at most")
        name = member.name
        path = PurePosixPath(name)
        if "\\" in name or "\0" in name or path.is_absolute() or ".." in path.parts:
            raise InputError(f"member {name!r} points outside the archive; use a relative path within")
        if member.isdir():
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise InputError(f"member {name!r} is a link or a special file; use a plain file or folder")
        plain = name.removeprefix("./")
        if plain in seen:
            raise InputError(f"holds {plain!r} twice; keep one")
        seen.add(plain)
        if not wanted(plain):
            continue
        size = member.size
        if size > limits.member_bytes:
            raise InputError(f"{plain!r} has {size} bytes; use {limits.member_bytes} at most")
        file = archive.extractfile(member)
        content = file.read() if file else b""
        if len(content) != size:
            raise InputError(f"is truncated within {plain!r}: {len(content)} bytes; use {size}")
        yield plain, content


class _BoundedStream:
    """An unpacked stream for `tarfile`, which refuses to read more than one member at once or to pass the total."""

    def __init__(self, stream: gzip.GzipFile, limits: TarLimits) -> None:
        self._stream = stream
        self._limits = limits

    def read(self, size: int = -1) -> bytes:
        # room for a block of tar's 512 bytes; a header of more, which tarfile would hold in memory, is no data set's
        largest = max(self._limits.member_bytes, tarfile.RECORDSIZE)
        if not 0 <= size <= largest + tarfile.BLOCKSIZE:
            raise InputError(f"has a header of {size} bytes, which no original archive has")
        self._within(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        self._within(position)
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _within(self, position: int) -> None:
        most = self._limits.total_bytes
        # tarfile may ask for one record beyond the end
        if position > most + tarfile.RECORDSIZE:
            raise InputError(f"unpacks to more than {most} bytes; use {most} at most")
