"""Finds the user's own code: a function by the name `package.module:function`, in a folder or on the import path.

A file in the folder is meant before all else of its name. Where that name is taken by another module (of Python's own
library, an installed package, a file of the same name in another folder), the file is imported under a name that is
marked with its folder: every other import of the name gives the same module as before.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from .errors import InputError, did_you_mean
from .files import PACKAGE_FOLDERS
from .inputs import note_file, recording

_LIBRARY = str(Path(os.__file__).parent)
"""Python's own library."""


class _FromSource(SourceFileLoader):
    """Compile a module from its source: `__pycache__` tells versions apart by whole seconds and by size alone."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        note_file(path)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _SourceFinder:
    """Find modules as the other finders do; those that are neither installed nor Python's own come from their source.

    A name that is marked with the folder `home` is that of the file there.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder.find_spec`."""
        if path is None and name.endswith(_mark(self._home)):
            return _marked(name, self._home)
        for finder in sys.meta_path:
            find = None if isinstance(finder, _SourceFinder) else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                loader = spec.loader
                if type(loader) is SourceFileLoader and not loader.path.startswith(_LIBRARY) and not _installed(loader):
                    spec.loader = _FromSource(loader.name, loader.path)
                return spec
        return None


_HOME: ContextVar[Path | None] = ContextVar("_HOME", default=None)


def name_of_import(module: str) -> str:
    """Return the name under which `module` is imported within `importable`: marked where its own is another module's.

    Imports nothing.
    """
    home = _HOME.get()
    if home is None:
        return module
    top, dot, rest = module.partition(".")
    file, folder = _place(home, top)
    inner = None if folder is None else folder.joinpath(*rest.split("."))
    if file is None and not (rest and inner and (os.path.isfile(f"{inner}.py") or os.path.isdir(inner))):
        return module
    try:
        taken = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # it is being run, or took its description away
        taken = None
    return module if taken is not None and _same(taken, file, folder) else f"{top}{_mark(home)}{dot}{rest}"


def _same(taken: ModuleSpec, file: Path | None, folder: Path | None) -> bool:
    """Return whether a module is that of `file`, or where there is none a package of `folder` among others."""
    places = [taken.origin] if taken.origin else taken.submodule_search_locations or ()
    if (file is None) == bool(taken.origin):
        return False
    return os.path.realpath(file or str(folder)) in map(os.path.realpath, places)


def _mark(home: Path) -> str:
    return f"@{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"


def _place(home: Path, top: str) -> tuple[Path | None, Path | None]:
    """Return the file of the module `top` in a folder, and the folder of its package; None for an absent one."""
    package = home / top
    if os.path.isfile(package / "__init__.py"):
        return package / "__init__.py", package
    if os.path.isfile(home / f"{top}.py"):
        return home / f"{top}.py", None
    return None, package if os.path.isdir(package) else None


def _marked(name: str, home: Path) -> ModuleSpec | None:
    file, folder = _place(home, name.removesuffix(_mark(home)))
    within = None if folder is None else [str(folder)]
    if file is not None:
        loader = _FromSource(name, str(file))
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=within)
    if within is None:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = within
    return spec


def _installed(loader: SourceFileLoader) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(loader.path).parts)


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Put a folder (None: the current one) at the end of the import path while a block runs: the user's code is there.

    Modules of the user's own are imported from their sources, and what they and their runs read is recorded
    (`dpzv_audit.base.inputs`). What is imported stays: a run may import more of it later, within such a block too.
    """
    home = (folder or Path.cwd()).resolve()
    place = str(home)
    added = place not in sys.path
    if added:
        sys.path.append(place)
    finder = _SourceFinder(home)
    sys.meta_path.insert(0, finder)
    importlib.invalidate_caches()
    token = _HOME.set(home)
    try:
        with recording(home):
            yield
    finally:
        _HOME.reset(token)
        with suppress(ValueError):  # the user's code may have taken it away
            sys.meta_path.remove(finder)
        if added and place in sys.path:
            sys.path.remove(place)


@contextmanager
def printing_aside() -> Iterator[None]:
    """Send prints of a block of the user's code to stderr, those of its libraries and processes too.

    Only the answer of a command goes to stdout.
    """
    with ExitStack() as left:
        with suppress(OSError):  # one of the two is closed
            own = os.dup(1)
            left.callback(os.close, own)
            os.dup2(2, 1)
            left.callback(os.dup2, own, 1)
        with redirect_stdout(sys.stderr):
            yield


def module_at(path: str, field: str, right: str, folder: Path | None = None) -> tuple[ModuleType, str]:
    """Import `pkg.mod` of the path `pkg.mod:name` and return it with the name; `InputError` where that cannot be.

    The module is looked for in `folder`, by default the current one, and on the import path. The error names the
    `field` of the path, and a `right` value.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f"use {right}", field, path)
    if module_name.endswith(".py") or module_name.startswith(".") or "/" in module_name or os.sep in module_name:
        file = Path(module_name)
        stem = file.name.removesuffix(".py")
        raise InputError(f"use {stem}:{name}, in the folder {os.path.realpath(file.parent)}", field, path)
    with importable(folder), printing_aside():
        imported = name_of_import(module_name)
        try:
            module = importlib.import_module(imported)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # asyncio's ends are no Exception
            reason = f"importing {module_name} failed: {words_of(error)}"
            if isinstance(error, ModuleNotFoundError) and error.name == imported:
                reason += f", neither in the folder {(folder or Path.cwd()).resolve()} nor on the import path"
            elif imported != module_name:
                top = module_name.partition(".")[0]
                reason += f"; {top} is also the name of another module, which every import of {top} gives"
            raise InputError(f"{field} {path}: {reason}") from error
    _refuse_changed(module, f"{field} {path}")
    return module, name


_imported: "WeakKeyDictionary[ModuleType, bytes]" = WeakKeyDictionary()
"""Digests of the files of modules as they were when they were first asked for."""


def _refuse_changed(module: ModuleType, named: str) -> None:
    """Raise `InputError` where a module's file is another than at its import: what would run is the old code."""
    file = getattr(module, "__file__", None)
    if file is None or not os.path.isfile(file):
        return
    digest = hashlib.sha256(Path(file).read_bytes()).digest()
    if _imported.setdefault(module, digest) != digest:
        raise InputError(f"{named}: {file} has changed since it was imported; restart Python to run the new code")


def function_at(path: str, field: str, right: str, folder: Path | None = None) -> Callable[..., Any]:
    """Return the function at `pkg.mod:name`; arguments and errors as `module_at`."""
    module, name = module_at(path, field, right, folder)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        hint = did_you_mean(name, (known for known, value in vars(module).items() if callable(value)))
        rule = hint or "define it there"
        raise InputError(f"{field} {path}: {path.partition(':')[0]} has no callable {name}; {rule}")
    return function


def words_of(error: BaseException) -> str:
    """Return an error of the user's code in one short line, with its file and line of code where they are known."""
    kind = type(error).__name__
    try:
        message = " ".join(str(error).split())
    except Exception:  # its own fault too
        message = ""
    return short(f"{kind}: {message}" if message else kind) + _line_of(error)


def _line_of(error: BaseException) -> str:
    """Return " (file:line)", the innermost line of neither an installed package nor this project; "" for none."""
    ours = Path(__file__).parents[2]
    packages = tuple(str(ours / name) for name in PACKAGE_FOLDERS)
    location = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(("<", _LIBRARY, *packages)) and "site-packages" not in file:
            location = f" ({Path(file).name}:{line})"
    return location


def short(text: str) -> str:
    """Return at most 200 characters of `text`."""
    return text if len(text) <= 200 else text[:197] + "..."
