"""Finds methods, attacks and data sets by name: those of this package, and those that installed packages add.

A package adds one by an entry point in the group `dpzv_audit.methods`, `dpzv_audit.attacks` or `dpzv_audit.datasets`:

    [project.entry-points."dpzv_audit.methods"]
    laplace = "my_package.laplace:SPEC"

The entry point has the object's own name. The object is imported when it is looked up, or all are listed. So are those
of this package that a registry names by their place, "module:attribute": what asks about one method loads no other.
"""

import ast
import importlib.util
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, TypeVar, cast

from .errors import AuditError, InputError, unknown_name
from .files import tree_digest
from .inputs import recording

OWN = "dpzv-audit"
GROUPS = "dpzv_audit."
"""Prefix of the tool's groups of entry points."""


class NotImported(AuditError):
    """An object of a plug-in was looked up where none is imported."""


_IMPORTS: ContextVar[bool] = ContextVar("_IMPORTS", default=True)


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Let registries import no plug-in while the block runs: a look-up raises `NotImported`, and none is listed."""
    token = _IMPORTS.set(False)
    try:
        yield
    finally:
        _IMPORTS.reset(token)


class Registered(Protocol):
    """An object that can be looked up by name."""

    @property
    def name(self) -> str:
        """Return the name on the command line, which is that of its entry point too."""

    @property
    def summary(self) -> str:
        """Return one line about it."""


T = TypeVar("T", bound=Registered)


class Registry(Mapping[str, T]):
    """Objects of one kind by name: the built-in ones, then what entry points of `group` add.

    Looking a name up raises `KeyError` where there is none, and `InputError` in one line where two packages bring it or
    its package is broken. Iterating leaves broken ones out, and names them in the log.
    """

    def __init__(self, group: str, kind: type[T] | str, built_in: Iterable[T] | Mapping[str, str] = ()) -> None:
        """`kind` is the type of the objects, or its place; `built_in` are the tool's own, as in `add`."""
        self.group = group
        self._kind = kind
        self._built_in: dict[str, T | EntryPoint] = {}
        self.add(built_in)

    def add(self, built_in: Iterable[T] | Mapping[str, str]) -> None:
        """Add objects of the tool's own, or the place of each by its name, "module:attribute"."""
        if isinstance(built_in, Mapping):
            self._built_in |= {name: EntryPoint(name, place, self.group) for name, place in built_in.items()}
        else:
            self._built_in |= {item.name: item for item in built_in}

    def __getitem__(self, name: str) -> T:
        installed = _installed(self.group).get(name, ())
        packages = [OWN] * (name in self._built_in) + [_package(point) for point in installed]
        if len(packages) > 1:
            rule = f"is brought to {self.group} by {' and '.join(packages)}"
            raise InputError(f"{rule}: uninstall all but one of these packages", repr(name))
        if installed:
            return self._load(installed[0])
        item = self._built_in[name]
        return cast(T, item.load()) if isinstance(item, EntryPoint) else item

    def __iter__(self) -> Iterator[str]:
        return iter(self._working if _IMPORTS.get() else self._built_in)

    def __len__(self) -> int:
        return len(self._working if _IMPORTS.get() else self._built_in)

    def named(self, name: str, field: str) -> T:
        """Return the object `name`; `InputError` that suggests the nearest name, as a value of `field`."""
        if name not in self:
            raise unknown_name(field, name, self, kind=self.group.removeprefix(GROUPS))
        return self[name]

    def summary(self, name: str) -> str:
        """Return the summary of `name`; that of the tool's own is read in its source, which imports nothing heavy."""
        item = self._built_in.get(name)
        stated = _stated(item) if isinstance(item, EntryPoint) else None
        return self[name].summary if stated is None else stated

    def package(self, name: str) -> str:
        """Return the package that brings `name`, with its version unless it is this one."""
        installed = _installed(self.group).get(name)
        return _package(installed[0]) if installed else OWN

    @cached_property
    def _working(self) -> tuple[str, ...]:
        working = list(self._built_in)
        for name, points in _installed(self.group).items():
            try:
                if len(points) == 1:
                    self._load(points[0])
            except InputError as error:
                logging.getLogger(__name__).warning("%s", error)
            else:
                working.append(name)
        return tuple(dict.fromkeys(working))

    @cached_property
    def _type(self) -> type[T]:
        if isinstance(self._kind, str):
            return cast(type[T], EntryPoint("kind", self._kind, self.group).load())
        return self._kind

    def _load(self, point: EntryPoint) -> T:
        where = f"{point.name!r} of {_package(point)} (entry point {point.name} = {point.value} in {self.group})"
        if not _IMPORTS.get():
            raise NotImported(f"{where} is not imported")
        try:
            with recording(None):
                item = point.load()
        except (Exception, SystemExit) as error:
            raise InputError(f"cannot be imported: {type(error).__name__}: {error}", where) from error
        kind = self._type
        if not isinstance(item, kind):
            raise InputError(f"is of type {type(item).__name__}; use a {kind.__name__}", where)
        if item.name != point.name:
            raise InputError(f"calls itself {item.name!r}; use the name of its entry point", where)
        return item


@cache
def plug_ins() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in any group of the tool's; imports nothing."""
    groups = sorted(group for group in entry_points().groups if group.startswith(GROUPS))
    return tuple(point for group in groups for point in entry_points(group=group))


def package_digest(group: str, name: str | None) -> str:
    """Return a digest of all files of the package that adds `name`, or anything, to `group`; empty where none does.

    Imports nothing.

    Raises `dpzv_audit.base.files.Undigested` where a file cannot be read.
    """
    points = (point for points in _installed(group).values() for point in points if name in (None, point.name))
    return "".join(tree_digest(_files(point)) for point in points)


@cache
def _installed(group: str) -> Mapping[str, list[EntryPoint]]:
    """Return the entry points of `group` by name, more than one where several packages have it."""
    by_name = defaultdict(list)
    for point in entry_points(group=group):
        by_name[point.name].append(point)
    return dict(sorted(by_name.items()))


def _package(point: EntryPoint) -> str:
    """Return name and version of the package that an entry point stands in."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "a package without a name"


def _stated(point: EntryPoint) -> str | None:
    """Return the `summary` that an object's own source states; None where it is no plain text there."""
    spec = importlib.util.find_spec(point.module)
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(point.module)
    for node in ast.parse(source or "").body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        if any(isinstance(target, ast.Name) and target.id == point.attr for target in node.targets):
            words = {part.arg: part.value for part in node.value.keywords}.get("summary")
            return words.value if isinstance(words, ast.Constant) and isinstance(words.value, str) else None
    return None


def _files(point: EntryPoint) -> list[Path]:
    """Return the folders, or the one file, of the top-level package that an entry point names; imports nothing."""
    spec = importlib.util.find_spec(point.module.partition(".")[0])
    if spec is None:
        return []
    origin = [spec.origin] if spec.origin else []
    return [Path(place) for place in spec.submodule_search_locations or origin]
