"""Keeps evidence between runs, keyed by claim, code and data, so that what has not changed is not audited again."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import TypeVar

from ..base.errors import AuditError, InputError
from ..base.files import PACKAGE_FOLDERS, tree_digest
from ..base.inputs import Inputs
from ..base.registry import plug_ins
from ..base.store import Store, private_file, private_folder
from ..base.tracked import tracked_at
from ..evidence.gathering import Block
from ..evidence.verdict import Evidence
from ..games.mechanism import code_of
from ..runs import PACKAGES, version_of

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
"""The folder of the tool's own packages."""


CACHE_VARIABLE = "DPZV_AUDIT_CACHE"


def default_cache() -> Path:
    """Return the folder of the cache: DPZV_AUDIT_CACHE, else dpzv-audit in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpzv-audit"


def check_untracked(folder: Path, field: str) -> None:
    """Raise `InputError` for a cache that git tracks: whoever proposes a change could bring evidence of their own."""
    if tracked := tracked_at(folder):
        rule = f"where git tracks {tracked}: a change of the repository could add evidence; use a folder"
        raise InputError(
            f"{rule} outside it, or one that git ignores, and take this one out of git's index", field, str(folder)
        )


@cache
def code_digest() -> str:
    """Return the SHA-256 of the tool's code, and of the versions of Python and of all packages beside it.

    Whatever a mechanism of the user's computes with is among these.
    """
    digest = hashlib.sha256(tree_digest(ROOT / package for package in sorted(PACKAGE_FOLDERS)).encode())
    every = (package.metadata for package in distributions())
    versions = [f"{metadata['Name']} {metadata['Version']}" for metadata in every]
    # The first of two that are installed in two places is the one that is imported.
    versions += [f"{package} {version_of(package)}" for package in (*PACKAGES, "transformers")]
    digest.update("\n".join([platform.python_version(), *sorted(set(versions))]).encode())
    return digest.hexdigest()


def plug_in_digest() -> str:
    """Return a digest of all packages that bring the tool anything, and of what they import that is not installed."""
    parts = []
    for point in plug_ins():
        package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            code = code_of(point.value)
        except InputError:  # there is no such module
            code = "absent"
        parts.append(f"{point.group} {point.name} {point.value} {package} {code}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest() if parts else ""


@dataclass(frozen=True)
class _Block:
    """A block of trials, and the inputs that the user's code had read until it was drawn."""

    content: Block
    inputs: Inputs


@dataclass(frozen=True)
class _Evidence:
    """Complete evidence, and the inputs that the user's code had read."""

    content: Evidence
    inputs: Inputs


@dataclass(frozen=True)
class Cache:
    """Evidence and unfinished blocks under `folder`; with None nothing is read and nothing is kept.

    An entry counts as absent where an input of the user's code has changed since; `code` is the folder of that code.
    A damaged file is named in the log and counts as absent, and an entry that cannot be written is not kept: a cache
    never fails a run.
    """

    folder: Path | None

    def evidence(self, key: str, code: Path = Path()) -> Evidence | None:
        """Return the complete evidence stored under `key`."""
        entry = self._read(key, "evidence", _Evidence)
        return entry.content if entry is not None and entry.inputs.hold(code) else None

    def keep(self, key: str, evidence: Evidence, inputs: Inputs = Inputs()) -> None:
        """Store complete evidence; the blocks it came from are no longer needed."""
        self._write(key, "evidence", _Evidence(evidence, inputs))
        self.forget_blocks(key)

    def forget_blocks(self, key: str) -> None:
        """Remove the blocks that were kept for `resume`."""
        if self.folder is not None:
            for path in _store(self.folder, key).folder.glob("block-*.json"):
                path.unlink(missing_ok=True)

    def block(self, key: str, pool: str, number: int, code: Path = Path()) -> tuple[Block, Inputs] | None:
        """Return block `number` of the trials of `pool`, and the inputs, unchanged, that the user's code had read."""
        entry = self._read(key, _block_name(pool, number), _Block)
        return (entry.content, entry.inputs) if entry is not None and entry.inputs.hold(code) else None

    def keep_block(self, key: str, pool: str, number: int, block: Block, inputs: Inputs = Inputs()) -> None:
        """Store a block, for `resume`."""
        self._write(key, _block_name(pool, number), _Block(block, inputs))

    def drawing(self, key: str, draw: Callable[[], str]) -> str:
        """Return a figure drawn before, else draw and keep it: drawing takes longest in a run that audits nothing."""
        drawing = self._read(key, "drawing", str)
        if drawing is None:
            drawing = draw()
            self._write(key, "drawing", drawing)
        return drawing

    def _read(self, key: str, name: str, kind: type[T]) -> T | None:
        if self.folder is None:
            return None
        return _store(self.folder, key).read(f"{name}.json", kind, again="what it kept is made again")

    def _write(self, key: str, name: str, value: object) -> None:
        if self.folder is not None:
            with suppress(AuditError, OSError):
                if not self.folder.exists():
                    private_folder(self.folder)
                    with private_file(self.folder / ".gitignore", "wb") as file:
                        file.write(b"*\n")  # a git add of everything leaves it out
                _store(self.folder, key).write(f"{name}.json", value, cure="")


def _store(folder: Path, key: str) -> Store:
    return Store(folder / key[:2] / key)


def _block_name(pool: str, number: int) -> str:
    return f"block-{pool.replace(' ', '-')}-{number}"


def evidence_key(parts: Mapping[str, object]) -> str:
    """Return the SHA-256 of everything that decides the evidence about a claim."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
