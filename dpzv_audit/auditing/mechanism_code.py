"""Digest of the code of a mechanism of the user's own, so that what was kept of it is not taken for that of an edit."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from dpzv_audit.errors import InputError

_OWN_PACKAGES = frozenset({"dpzv_audit", "mechanisms", "attacks", "reports"})
"""Code of the tool, which is no part of a mechanism that uses it."""
_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})


def code_of(mechanism: str) -> str:
    """SHA-256 of the code of "package.module:factory": its top-level package or module, and those that it imports.

    Imports are read from the files (nothing is run), those inside functions too, and those of what is imported in
    turn. Left out are the standard library, installed packages, this tool, and modules that are imported by a name
    which only a run computes. Modules are looked for as an import would: the caller sets up the import path.

    Raises:
        InputError: There is no such module on the import path.
    """
    first = mechanism.partition(":")[0].partition(".")[0]
    spec = _spec(first)
    if spec is None:
        raise InputError(f"mechanism is {mechanism!r}, but there is no module {first!r} on the import path")
    found = {first: _files(spec)}
    waiting = [first]
    while waiting:
        for name in sorted(_imported(found[waiting.pop()])):
            if name in found or name in _OWN_PACKAGES:
                continue
            spec = _spec(name)
            if spec is not None and not _installed(spec):
                found[name] = _files(spec)
                waiting.append(name)
    digest = hashlib.sha256()
    for name in sorted(found):
        for within, path in sorted(found[name].items()):
            digest.update(f"{name} {within}\n".encode("utf-8", "surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # __main__, or a module that took its description away
        return None


def _files(spec: ModuleSpec) -> dict[str, Path]:
    """The files of a package, or the one of a module, by their places in it; none of what is built in."""
    files: dict[str, Path] = {}
    for folder in map(Path, spec.submodule_search_locations or ()):
        within = ((path.relative_to(folder), path) for path in folder.rglob("*.py"))
        # An environment that lies in the package's folder is no part of it.
        files |= {at.as_posix(): path for at, path in within if _LIBRARY_FOLDERS.isdisjoint(at.parts)}
    if not files and spec.origin is not None and Path(spec.origin).is_file():
        files = {Path(spec.origin).name: Path(spec.origin)}
    return files


def _installed(spec: ModuleSpec) -> bool:
    """Whether a module is of the standard library or an installed package, and nowhere beside it too."""
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    places = [Path(place).resolve() for place in spec.submodule_search_locations or [spec.origin or ""]]
    return all(
        not _LIBRARY_FOLDERS.isdisjoint(place.parts) or any(place.is_relative_to(folder) for folder in standard)
        for place in places
    )


def _imported(files: dict[str, Path]) -> set[str]:
    """Top-level names of the modules that the files import anywhere, those of their own package aside."""
    return {name.partition(".")[0] for path in files.values() for name in _names(path)}


def _names(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # its import says what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
