"""Records the inputs of the user's own code while evidence is made: environment variables, files and folders.

Evidence holds as long as these stay the same. Reads are seen by Python's audit events (`open`, `os.listdir`, ...)
and by the look-ups in `os.environ`; a read counts where a frame of the user's code asked for it, through libraries too,
and not where the tool or the import of a library did. A file that the code itself wrote before is no input.

Not seen: what native code opens by itself (HDF5, Parquet, safetensors), the clock, and random bits of the system. Where
the code starts processes or uses the network the record says so, and what rests on it cannot be kept.
"""

import functools
import hashlib
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import source_from_cache
from operator import or_
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

from .files import MOST_FILES, PACKAGE_FOLDERS, Undigested, data_digest, of_the_kernel

ABSENT = "absent"
CHANGED = "files that it depends on changed while it was audited"
_FOLDER = "a folder"
_PROCESSES = "its code starts processes, and what they read is not seen"
_NETWORK = "its code uses the network, whose answers may change"
_SPAWNS = (
    "subprocess.Popen",
    "os.system",
    "os.posix_spawn",
    "os.spawn",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
)
_SOCKETS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")
_UNSEEN = dict.fromkeys(_SPAWNS, _PROCESSES) | dict.fromkeys((*_SOCKETS, "urllib.Request"), _NETWORK)
_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"})
_NOT_LISTED = frozenset({"__pycache__", "dpzv-runs", ".git", ".pytest_cache"})
_LIBRARIES = frozenset(
    {
        "numpy",
        "scipy",
        "torch",
        "torchgen",
        "functorch",
        "sklearn",
        "joblib",
        "threadpoolctl",
        "prv_accountant",
        "matplotlib",
        "mpl_toolkits",
        "typer",
        "click",
        "rich",
        "pydantic",
        "pydantic_core",
        "jinja2",
        "markupsafe",
        "safetensors",
        "mpmath",
        "sympy",
        "networkx",
        "transformers",
        "tokenizers",
        "huggingface_hub",
        "opacus",
        "flwr",
        "distributed",
        "dask",
        "cloudpickle",
        "PIL",
        "pandas",
        "typing_extensions",
    }
)
"""Libraries that the tool itself computes with: the installed version stands for their own files."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What code read, and its content then.

    Attributes:
        variables: SHA-256 of the value by environment variable; None for one that was not set.
        environment: SHA-256 of all variables together where the code read them all, else "".
        files: Digest of the content by path, `ABSENT` for none; a path below the folder of the code is relative to it.
        folders: Digest of the names in each folder that was listed.
        unkept: Why nothing that rests on them can be kept; "" where it can.
    """

    variables: Mapping[str, str | None] = field(default_factory=dict)
    environment: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    unkept: str = ""

    def __or__(self, other: "Inputs") -> "Inputs":
        """Return all that either holds; where the two saw different values of one input nothing can be kept."""
        environment = self.environment or other.environment
        changed = environment != (other.environment or environment)
        merged: dict[str, Any] = {}
        for name in ("variables", "files", "folders"):
            own, others = getattr(self, name), getattr(other, name)
            merged[name] = {**own, **others}
            changed = changed or merged[name] != {**others, **own}
        unkept = self.unkept or other.unkept or (CHANGED if changed else "")
        return Inputs(environment=environment, unkept=unkept, **merged)

    def hold(self, folder: Path) -> bool:
        """Return whether all of it is still so, for code in `folder`."""
        if self.unkept or (self.environment and self.environment != _whole_environment()):
            return False
        if any(_value(name) != value for name, value in self.variables.items()):
            return False
        if any(_names(str(folder / path)) != names for path, names in self.folders.items()):
            return False
        places = ((str(folder / path), content) for path, content in self.files.items())
        return all(_content(path, _status(path)) == content for path, content in places)


_Status = tuple[int, ...] | None
"""Tells a file from a changed one without reading it; None for no file."""


@dataclass
class _Seen:
    """The inputs of code of one folder in this process; `fresh` are those of the evidence under way."""

    variables: dict[str, str | None] = field(default_factory=dict)
    environment: str = ""
    files: dict[str, _Status] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    """Files that the code wrote itself, and variables (as `NAME=`) that it set."""
    fresh: set[tuple[str, str]] = field(default_factory=set)
    changed: bool = False
    elsewhere: Inputs = field(default_factory=Inputs)
    """Inputs in other processes."""

    def note(self, kind: str, name: str, now: Any) -> None:
        """Note that `name` was read as it is `now`; modules stay imported, so that their inputs stay too."""
        known = getattr(self, kind)
        if name in known and known[name] != now and (kind, name) in self.fresh:
            self.changed = True
        known[name] = now
        self.fresh.add((kind, name))


_seen: dict[str, _Seen] = {}
_depth = 0
_now: _Seen | None = None
_threads: WeakSet[threading.Thread] = WeakSet()
_inside = threading.local()
_REAL: dict[str, Callable[..., Any]] = {}
_environ_class: Any = type(os.environ)


@contextmanager
def recording(folder: Path | None) -> Iterator[None]:
    """Record the inputs of the user's code in `folder` while the block runs, and those of its threads after it.

    None stands for the folder of a plug-in, whose inputs count for the code in every folder.
    """
    global _depth, _now
    _listen()
    before = _now
    _now = _seen.setdefault("" if folder is None else str(folder.resolve()), _Seen())
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        _now = before if _depth else _now  # threads of the code may go on


def begin(folder: Path) -> None:
    """Let evidence begin: inputs of code in `folder` may have changed by now, and are read again."""
    seen = _seen.get(str(folder.resolve()))
    if seen is not None:
        seen.fresh.clear()
        seen.own.clear()
        seen.changed = False
        seen.elsewhere = Inputs()


def inputs_of(folder: Path) -> Inputs:
    """Return the inputs of code in `folder`, and of plug-ins, in this process, as far as they were seen."""
    known = [_seen[name] for name in (str(folder.resolve()), "") if name in _seen]
    return functools.reduce(or_, (_inputs_of(seen, folder) for seen in known), Inputs())


def _inputs_of(seen: _Seen, folder: Path) -> Inputs:
    unkept = min(seen.unseen, default="")
    if not unkept and len(seen.files) + len(seen.folders) > MOST_FILES:
        unkept = f"its code reads more than {MOST_FILES:,} files"
    changed = seen.changed or seen.environment not in ("", _whole_environment())
    files = {}
    for name, status in list(seen.files.items()) if not unkept else ():
        now = _status(name)
        changed = changed or now != status
        files[_within(folder, name)] = _content(name, now)
    folders = {}
    for name, names in list(seen.folders.items()):
        changed = changed or _names(name) != names
        folders[_within(folder, name)] = names
    here = Inputs(
        variables=dict(seen.variables),
        environment=seen.environment,
        files=files,
        folders=folders,
        unkept=unkept or (CHANGED if changed else ""),
    )
    return here | seen.elsewhere


def add_inputs(folder: Path, inputs: Inputs) -> None:
    """Add inputs of code in `folder` in another process."""
    _seen.setdefault(str(folder.resolve()), _Seen()).elsewhere |= inputs


def note_file(path: str) -> None:
    """Note that the user's code reads the file at `path`, as the import of a module of its own does."""
    if _now is not None:
        _file(_now, path)


def _within(folder: Path, name: str) -> str:
    path, root = Path(name), folder.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else name


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _value(name: str) -> str | None:
    """Return the digest of an environment variable; None for one that is not set."""
    with _not_listening():
        value = os.environ.get(name)
    return None if value is None else _sha(value)


def _whole_environment() -> str:
    with _not_listening():
        return _sha("\0".join(f"{name}={os.environ[name]}" for name in sorted(os.environ)))


def _status(name: str) -> _Status:
    try:
        status = _REAL.get("stat", os.stat)(name)
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return (stat.S_IFDIR,)
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _content(name: str, status: _Status) -> str:
    if status is None:
        return ABSENT
    return _FOLDER if len(status) == 1 else _digest(name, status)


@cache
def _digest(name: str, status: tuple[int, ...]) -> str:
    with _not_listening():
        try:
            return data_digest([Path(name)])
        except Undigested:
            return "cannot be read"


def _names(name: str) -> str:
    with _not_listening():
        try:
            return _sha("\n".join(sorted({*os.listdir(name)} - _NOT_LISTED)))
        except (OSError, ValueError):
            return ABSENT


@contextmanager
def _not_listening() -> Iterator[None]:
    before = getattr(_inside, "hook", False)
    _inside.hook = True
    try:
        yield
    finally:
        _inside.hook = before


@cache
def _listen() -> None:
    """Listen to audit events from now on, and to reads without one: variables, a file's status, threads, processes."""
    import _posixsubprocess

    sys.addaudithook(_heard)
    for name in ("__getitem__", "__iter__"):
        _REAL[name] = getattr(_environ_class, name)
    _environ_class.__getitem__ = _get_variable
    _environ_class.__iter__ = _all_variables
    for name in ("stat", "lstat", "access"):
        _REAL[name] = getattr(os, name)
        replaced = _asking(_REAL[name])
        for able in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if _REAL[name] in able:
                able.add(replaced)
        setattr(os, name, replaced)
    _REAL["start"] = threading.Thread.start
    setattr(threading.Thread, "start", _start_thread)  # noqa: B010
    _REAL["fork_exec"] = _posixsubprocess.fork_exec
    setattr(_posixsubprocess, "fork_exec", _starting)  # noqa: B010


def _asking(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `os.stat` or its like so that the path counts as read by the user's code that asks."""

    @functools.wraps(real)
    def stat_or_access(path: Any, *further: Any, **named: Any) -> Any:
        if not isinstance(path, int) and named.get("dir_fd") is None and (seen := _reader()) is not None:
            _file(seen, path)
        return real(path, *further, **named)

    return stat_or_access


def _get_variable(environ: Any, key: Any) -> Any:
    seen = _reader()
    if seen is not None and isinstance(key, str | bytes):
        name = os.fsdecode(key)
        if name and f"{name}=" not in seen.own:
            seen.note("variables", name, _value(name))
    return _REAL["__getitem__"](environ, key)


def _all_variables(environ: Any) -> Any:
    seen = _reader()
    if seen is not None:
        seen.environment = _whole_environment()
    return _REAL["__iter__"](environ)


def _start_thread(thread: threading.Thread) -> None:
    if _reader() is not None:
        _threads.add(thread)
    _REAL["start"](thread)


def _starting(*arguments: Any) -> Any:
    seen = _reader()
    if seen is not None:
        seen.unseen.add(_PROCESSES)
    return _REAL["fork_exec"](*arguments)


_WRITES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
"""Events that make a file, and which argument is its path."""
_READS = {"sqlite3.connect": 0, "ctypes.dlopen": 0, "import": 1}
"""Events that read a file, and which argument is its path."""
_LISTS = ("os.listdir", "os.scandir")
_SETS = ("os.putenv", "os.unsetenv")
_WATCHED = frozenset({*_UNSEEN, *_WRITES, *_READS, *_LISTS, *_SETS, "open"})


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED or (event == "import" and arguments[1] is None):
        return
    seen = _reader()
    if seen is None:
        return
    if event in _UNSEEN:
        seen.unseen.add(_UNSEEN[event])
    elif event in _SETS:
        seen.own.add(f"{os.fsdecode(arguments[0])}=")
    elif event in _WRITES:
        _wrote(seen, arguments[_WRITES[event]])
    elif event in _LISTS:
        if not isinstance(arguments[0], int) and not _of_an_import():
            _folder(seen, "." if arguments[0] is None else arguments[0])
    elif event == "open":
        path, _, flags = arguments
        # A file that is made empty is only written to: an append goes on with its content.
        made = isinstance(flags, int) and flags & (os.O_TRUNC | os.O_EXCL)
        (_wrote if made else _file)(seen, path)
    else:
        path = arguments[_READS[event]]
        if event == "sqlite3.connect" and isinstance(path, str) and path.startswith("file:"):
            path = path.removeprefix("file:").partition("?")[0]
        _file(seen, path)


def _file(seen: _Seen, path: Any) -> None:
    name = _absolute(path)
    if name is None or name in seen.own or name in _DEVICES or _kind(name) in ("tool", "library"):
        return
    if name.endswith(".pyc"):
        with suppress(NotImplementedError, ValueError):
            name = source_from_cache(name)
    status = _status(name)
    if status is not None and seen.files.get(name) == status and ("files", name) in seen.fresh:
        return
    kernel = of_the_kernel(name)
    if kernel or (status is not None and not stat.S_ISREG(status[0]) and not stat.S_ISDIR(status[0])):
        seen.unseen.add(f"its code reads {name}, which is no file on a disk")
    else:
        seen.note("files", name, status)


def _folder(seen: _Seen, path: Any) -> None:
    name = _absolute(path)
    if name is not None and name not in seen.own and _kind(name) not in ("tool", "library"):
        seen.note("folders", name, _names(name))


def _wrote(seen: _Seen, path: Any) -> None:
    name = _absolute(path)
    if name is not None and name not in seen.files and name not in seen.folders:
        seen.own.add(name)


def _absolute(path: Any) -> str | None:
    if isinstance(path, int) or path is None:
        return None
    try:
        name = os.path.abspath(os.fsdecode(path))
    except (TypeError, ValueError, OSError):  # no path, or in a folder that is gone
        return None
    return None if name.endswith(":memory:") or "\0" in name else name


def _reader() -> _Seen | None:
    """Return where a read of the frame above counts; None where no code of the user's asked for it."""
    if _now is None or not (_depth or _threads) or getattr(_inside, "hook", False):
        return None
    with _not_listening():
        below = ""
        frame = _outer() if _depth else None
        while frame is not None:
            code = frame.f_code
            kind = _kind(code.co_filename)
            if kind == "own":
                return _now
            if kind == "tool":  # which calls a package only where that is audited
                return _now if below == "package" else None
            if kind == "library" and code.co_name == "<module>":  # the import of a library
                return None
            below = below if kind == "text" else kind
            frame = frame.f_back
        return _now if threading.current_thread() in _threads else None


def _outer() -> FrameType | None:
    """Return the innermost frame of another module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _of_an_import() -> bool:
    frame = _outer()
    return frame is not None and frame.f_code.co_filename == "<frozen importlib._bootstrap_external>"


_TOOL = tuple(f"{Path(__file__).resolve().parents[2] / name}{os.sep}" for name in sorted(PACKAGE_FOLDERS))
_STANDARD = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})


@cache
def _kind(name: str) -> str:
    """Return whose the code or file at `name` is: "tool", "library", "own"; another "package", or "text" in no file."""
    if name.startswith("<"):
        return "library" if name.startswith("<frozen ") else "text"
    if name.startswith(_TOOL):
        return "tool"
    for folder in ("site-packages", "dist-packages"):
        _, inside, rest = name.rpartition(f"{os.sep}{folder}{os.sep}")
        if inside:
            return "library" if rest.split(os.sep)[0].split(".")[0] in _LIBRARIES else "package"
    return "library" if name.startswith(_STANDARD) else "own"
