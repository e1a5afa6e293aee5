"""Digest of the files of a mechanism of the user's own: what was kept of it is not taken for that of an edit."""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from dpzv_audit.errors import InputError
from dpzv_audit.trees import python_files, tree_digest

_OWN_PACKAGES = frozenset({"dpzv_audit", "mechanisms", "attacks", "reports"})
"""Code of the tool, which is no part of a mechanism that uses it."""
_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})


def code_of(mechanism: str, outputs: Collection[Path] = ()) -> str:
    """SHA-256 of all files, data too, of "package.module:factory" and of what it imports: what its answers depend on.

    Of a package its whole folder counts, of a lone module the folder that it lies in (see `dpzv_audit.trees` for what
    is left out, `outputs` beside it). Imports are read from the files (nothing is run), those inside functions too,
    and those of what is imported in turn. Not seen are the standard library, installed packages, this tool, modules
    that are imported by a name which only a run computes, and data read from elsewhere. Modules are looked for as an
    import would: the caller sets up the import path.

    Raises:
        InputError: There is no such module on the import path.
        Undigested: There are too many files, or one that cannot be read.
    """
    first = mechanism.partition(":")[0].partition(".")[0]
    spec = _spec(first)
    if spec is None:
        raise InputError(f"but there is no module {first!r} on the import path", "mechanism", mechanism)
    found = {first: spec}
    waiting = [first]
    while waiting:
        for name in sorted(_imported(_code(found[waiting.pop()]))):
            if name in found or name in _OWN_PACKAGES:
                continue
            spec = _spec(name)
            if spec is not None and not _installed(spec):
                found[name] = spec
                waiting.append(name)
    folders = [folder for name in sorted(found) for folder in _folders(found[name])]
    return tree_digest(dict.fromkeys(folders), outputs=outputs)


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # __main__, or a module that took its description away
        return None


def _folders(spec: ModuleSpec) -> list[Path]:
    """The folders of a package, or the one that a module lies in; none of what is built in."""
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    if spec.origin is None or not Path(spec.origin).is_file():
        return []
    # Of an installed module its own file: beside it lie all others that are installed.
    return [Path(spec.origin) if _installed(spec) else Path(spec.origin).parent]


def _code(spec: ModuleSpec) -> list[Path]:
    """The Python files of a package, or the one of a module."""
    if not spec.submodule_search_locations:
        return [Path(spec.origin)] if spec.origin is not None and Path(spec.origin).is_file() else []
    return [path for folder in spec.submodule_search_locations for path in python_files(Path(folder))]


def _installed(spec: ModuleSpec) -> bool:
    """Whether a module is of the standard library or an installed package, and nowhere beside it too."""
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    places = [Path(place).resolve() for place in spec.submodule_search_locations or [spec.origin or ""]]
    return all(
        not _LIBRARY_FOLDERS.isdisjoint(place.parts) or any(place.is_relative_to(folder) for folder in standard)
        for place in places
    )


def _imported(files: Collection[Path]) -> set[str]:
    """Top-level names of the modules that the files import anywhere, those of their own package aside."""
    return {name.partition(".")[0] for path in files for name in _names(path)}


def _names(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):  # its import says what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
