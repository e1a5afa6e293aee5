"""Keeps the finished parts of a reproduced table on disk, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpzv_audit.checkpoints import FileCheckpoints, run_key
from dpzv_audit.store import Store

Part = Mapping[str, Any]


class TableParts:
    """Parts of a table by the facts that they follow from: each is computed once, and read back with `resume`.

    A part is a file in `folder`, written whole or not at all; while it is computed, its training keeps its epoch
    checkpoint beside it. Without a folder parts live in memory only.
    """

    def __init__(self, folder: Path | None = None, *, resume: bool = False) -> None:
        self._folder = folder
        self._resume = resume
        self._parts: dict[str, Part] = {}

    def part(self, facts: Mapping[str, object], compute: Callable[[FileCheckpoints | None], Part]) -> Part:
        """The part that follows from `facts`, by `compute` where it is not kept yet; must be plain JSON values.

        Raises:
            InputError: The kept file is damaged.
        """
        key = run_key(facts)
        if key not in self._parts:
            found = self._read(key)
            self._parts[key] = self._computed(key, compute) if found is None else found
        return self._parts[key]

    def remove(self) -> None:
        """Forget the parts that were asked for: the table is done."""
        if self._folder is None:
            return
        for key in self._parts:
            (self._folder / f"{key}.json").unlink(missing_ok=True)
        with suppress(OSError):  # not there, or not empty
            self._folder.rmdir()

    def _read(self, key: str) -> Part | None:
        if self._folder is None or not self._resume:
            return None
        return Store(self._folder).read(
            f"{key}.json", dict, cure="remove it, or start without ‹resume›, which replaces it"
        )

    def _computed(self, key: str, compute: Callable[[FileCheckpoints | None], Part]) -> Part:
        if self._folder is None:
            return compute(None)
        checkpoints = FileCheckpoints(self._folder, key, resume=self._resume)
        part = compute(checkpoints)
        cure = "make room and go on with ‹resume›"
        Store(self._folder).write(f"{key}.json", part, cure=cure)
        checkpoints.remove()
        return part
