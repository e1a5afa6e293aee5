"""Keeps evidence between runs, keyed by claim, code and data, so that what has not changed is not audited again."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from ..errors import AuditError
from ..evidence.gathering import Block
from ..evidence.verdict import Evidence
from ..runs import version_of
from ..store import Store

T = TypeVar("T")


def default_cache() -> Path:
    """Folder of the cache: DPZV_AUDIT_CACHE, else dpzv-audit in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("DPZV_AUDIT_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpzv-audit"


@cache
def code_digest() -> str:
    """SHA-256 of the code that makes evidence and of the versions of the libraries it computes with."""
    root = Path(__file__).resolve().parents[2]
    shows = ("dpzv_audit/cli", "dpzv_audit/pytest_plugin.py")  # evidence and makes none
    found = hashlib.sha256()
    for package in ("dpzv_audit", "mechanisms", "attacks"):
        for path in sorted((root / package).rglob("*.*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in (".py", ".toml") and not name.startswith(shows):
                found.update(name.encode())
                found.update(path.read_bytes())
    for library in ("torch", "numpy", "scipy", "scikit-learn", "prv-accountant", "transformers"):
        found.update(f"{library} {version_of(library) or 'absent'}".encode())
    return found.hexdigest()


@dataclass(frozen=True)
class _Kept:
    """A block as it is kept."""

    block: Block


@dataclass(frozen=True)
class Cache:
    """Evidence and unfinished blocks under `folder`; with None nothing is read and nothing is kept.

    A file that is damaged is named in the log and counts as absent, and what cannot be written is not kept: a cache
    never fails a run.
    """

    folder: Path | None

    def evidence(self, key: str) -> Evidence | None:
        """Return the complete evidence stored under `key`."""
        return self._read(key, "evidence", Evidence)

    def keep(self, key: str, evidence: Evidence) -> None:
        """Store complete evidence; the blocks it came from are no longer needed."""
        self._write(key, "evidence", evidence)
        self.forget_blocks(key)

    def forget_blocks(self, key: str) -> None:
        """Remove the blocks that were kept for `resume`."""
        if self.folder is not None:
            for path in _store(self.folder, key).folder.glob("block-*.json"):
                path.unlink(missing_ok=True)

    def block(self, key: str, pool: str, number: int) -> Block | None:
        """Block `number` of the trials of `pool`, of a run that did not end."""
        kept = self._read(key, _block_name(pool, number), _Kept)
        return None if kept is None else kept.block

    def keep_block(self, key: str, pool: str, number: int, block: Block) -> None:
        """Store a block, for `resume`."""
        self._write(key, _block_name(pool, number), _Kept(block))

    def drawing(self, key: str, draw: Callable[[], str]) -> str:
        """Return a figure drawn before, else draw and keep it: that takes longest in a run that audits nothing."""
        found = self._read(key, "drawing", str)
        if found is None:
            found = draw()
            self._write(key, "drawing", found)
        return found

    def _read(self, key: str, name: str, kind: type[T]) -> T | None:
        if self.folder is None:
            return None
        return _store(self.folder, key).read(f"{name}.json", kind, again="what it kept is made again")

    def _write(self, key: str, name: str, value: object) -> None:
        if self.folder is not None:
            with suppress(AuditError):
                _store(self.folder, key).write(f"{name}.json", value, cure="")


def _store(folder: Path, key: str) -> Store:
    return Store(folder / key[:2] / key)


def _block_name(pool: str, number: int) -> str:
    return f"block-{pool.replace(' ', '-')}-{number}"


def evidence_key(parts: Mapping[str, object]) -> str:
    """SHA-256 of everything that decides the evidence about a claim."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
