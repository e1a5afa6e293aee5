"""Access of a claims file to files below a root and, with trust, to the code that it names."""

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..base.errors import InputError
from ..base.files import Undigested, confined_to, kind_of, tree_digest
from ..base.loading import importable
from ..base.signals import TRIAL_SECONDS
from ..games.mechanism import code_of, native_readers
from .file import Claim, MechanismClaim, OwnClaim, TrainedClaim

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOST_FILES = 10_000
FILE = "a regular file"
FOLDER = "a folder"


@dataclass(frozen=True, kw_only=True)
class Access:
    """The `folder` of a claims file, the `root` that its files must lie below, and whether its code is trusted.

    `outputs` are files that the run itself writes: they are no part of a mechanism that lies beside them. A run of a
    mechanism that a claim names may take `trial_seconds`. Claims of one `run` share trainings of a system.
    """

    folder: Path
    root: Path
    trust_code: bool = False
    device: str = "cpu"
    outputs: tuple[Path, ...] = ()
    trial_seconds: float = TRIAL_SECONDS
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, path: Path, *, root: Path | None = None, outputs: Sequence[Path | None] = (), **options: Any) -> Self:
        """Return what the claims file at `path` may reach; the root is by default the file's folder.

        In full: workers of a cluster start in folders of their own. `options` are the other fields. Raises `InputError`
        for a root that is no folder.
        """
        if root is not None and kind_of(root) != FOLDER:
            raise InputError(f"which is {kind_of(root)}; use a folder", "root", str(root))
        folder = path.parent.absolute()
        written = tuple(output.absolute() for output in outputs if output is not None)
        return cls(folder=folder, root=root or folder, outputs=written, **options)

    def path(self, key: str, value: str, *kinds: str) -> Path:
        """Return the path that `key` names, of one of `kinds`: FILE, FOLDER.

        Raises `InputError` for anything else, and for a path outside the root.
        """
        path = self._below(key, value, "which", self.folder / value)
        kind = kind_of(path)
        if kind not in kinds:
            raise InputError(f"which is {kind}; use {' or '.join(kinds)} below {self.root}", key, value)
        return path

    def _below(self, key: str, value: str, subject: str, path: Path) -> Path:
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long
            raise InputError(f"{subject} cannot be followed; use a path below {self.root}", key, value) from None
        if not resolved.is_relative_to(self.root.resolve()):
            raise InputError(f"{subject} lies elsewhere; use one below {self.root} (or below ‹root› DIR)", key, value)
        return resolved

    def files(self, claim: Claim) -> list[Path]:
        """Return the files of data that a claim names, in the order of its own `files`. Raises as `path`."""
        return [self.path(key, value, FILE) for key, value in claim.files.items()]

    def depends(self, claim: MechanismClaim | OwnClaim) -> list[Path]:
        """Return the paths that `depends` names. Raises as `path`."""
        return [self.path("depends", value, FILE, FOLDER) for value in claim.depends]

    @contextmanager
    def data_folder(self, claim: TrainedClaim | OwnClaim) -> Iterator[Path | None]:
        """Yield the folder of a claim's data, None where it names none; the block opens its files below the root alone.

        Raises as `path`.
        """
        folder = None if claim.data_dir is None else self.path("data_dir", claim.data_dir, FOLDER)
        with confined_to(None if folder is None and claim.csv is None else self.root):
            yield folder

    def transformer(self, claim: TrainedClaim) -> str | None:
        """Return what to read a claim's pre-trained transformer from; None where it names none.

        That is a folder below the root, or with trust a name on a hub. Raises `InputError` for another folder, one with
        a link that leads out of the root, and for a name without trust: it is fetched from the network.
        """
        value = claim.config.get("transformer")
        return self._model("config.transformer", value) if isinstance(value, str) else None

    def _model(self, key: str, value: str) -> str:
        if _HUB_NAME.fullmatch(value) and not Path(value).exists() and not (self.folder / value).exists():
            if not self.trust_code:
                right = f"no folder below {self.folder}; a name on a hub, which is fetched, needs ‹trust_code›"
                raise InputError(f"which is {right}", key, value)
            return value
        folder = self.path(key, value, FOLDER)
        seen = 0
        for inner, folders, files in os.walk(folder):
            seen += len(folders) + len(files)
            if seen > _MOST_FILES:
                raise InputError(f"with more than {_MOST_FILES:,} files; use a folder that holds one model", key, value)
            for name in (*folders, *files):
                self._below(key, value, f"whose {name}", Path(inner) / name)
        return str(folder)

    def require_trust(self, claim: MechanismClaim | OwnClaim) -> None:
        """Raise `InputError` unless code that the claim names may be imported."""
        if not self.trust_code:
            raise InputError("code that verify would import and run: give ‹trust_code› to allow it", *claim.code_named)

    def code(self, claim: MechanismClaim | OwnClaim) -> str:
        """Return a digest of the code that a claim names, and of what it says that this depends on.

        Raises `InputError` without trust, else as `code_of` and `path`; `Undigested` where it imports a package whose
        native code reads files, and names none.
        """
        self.require_trust(claim)
        key, path = claim.code_named
        with importable(self.folder):
            code = code_of(path, self.outputs, key)
            native = [] if claim.depends else native_readers(path, key)
        if native:
            raise Undigested(f"its code imports {native[0]}, which opens files unseen: name them in `depends`")
        return f"{code}, {tree_digest(self.depends(claim))}" if claim.depends else code


@dataclass(frozen=True, kw_only=True)
class Remembering(Access):
    """The same, for a check of a whole file in one go: each path is followed once, however many claims name it."""

    paths: dict[tuple[str, ...], Path] = field(default_factory=dict, compare=False)
    models: dict[str, str] = field(default_factory=dict, compare=False)

    def path(self, key: str, value: str, *kinds: str) -> Path:
        """See `Access.path`."""
        if (value, *kinds) not in self.paths:
            self.paths[value, *kinds] = super().path(key, value, *kinds)
        return self.paths[value, *kinds]

    def _model(self, key: str, value: str) -> str:
        if value not in self.models:
            self.models[value] = super()._model(key, value)
        return self.models[value]
