"""What a claims file may reach: the files below a root, and with trust the code that it names."""

import os
import re
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
from .file import MechanismClaim, OwnClaim, ScoresClaim, TrainedClaim

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOST_FILES = 10_000
FILE = "a regular file"
FOLDER = "a folder"


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a claims file may reach: its `folder`, the `root` that files must lie below, and whether code is trusted.

    `outputs` are files that the run itself writes: they are no part of a mechanism that lies beside them. A run of a
    mechanism that a claim names may take `trial_seconds`.
    """

    folder: Path
    root: Path
    trust_code: bool = False
    device: str = "cpu"
    outputs: tuple[Path, ...] = ()
    trial_seconds: float = TRIAL_SECONDS

    @classmethod
    def of(cls, path: Path, *, root: Path | None = None, outputs: Sequence[Path | None] = (), **options: Any) -> Self:
        """Return what the claims file at `path` may reach; the root is by default the file's folder.

        In full: workers of a cluster start in folders of their own. `options` are the other fields. Raises `InputError`
        for a root that is no folder.
        """
        if root is not None and kind_of(root) != FOLDER:
            raise InputError(f"which is {kind_of(root)}, must be a folder", "root", str(root))
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
            raise InputError(f"which is {kind}, must be {' or '.join(kinds)} below {self.root}", key, value)
        return path

    def _below(self, key: str, value: str, what: str, path: Path) -> Path:
        try:
            found = path.resolve()
        except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long
            raise InputError(f"{what} cannot be followed, must be a path below {self.root}", key, value) from None
        if not found.is_relative_to(self.root.resolve()):
            raise InputError(f"{what} lies elsewhere, must lie below {self.root} (or below ‹root› DIR)", key, value)
        return found

    def scores(self, claim: ScoresClaim) -> list[Path]:
        """Return the two score files of a claim. Raises as `path`."""
        return [self.path(key, value, FILE) for key, value in claim.files.items()]

    def depends(self, claim: MechanismClaim | OwnClaim) -> list[Path]:
        """Return what `depends` names. Raises as `path`."""
        return [self.path("depends", value, FILE, FOLDER) for value in claim.depends]

    def tables(self, claim: TrainedClaim | OwnClaim) -> list[Path]:
        """Return the files of a claim's table: its rows and, where they are apart, its test rows. Raises as `path`."""
        return [self.path(key, value, FILE) for key, value in claim.files.items()]

    @contextmanager
    def data_folder(self, claim: TrainedClaim | OwnClaim) -> Iterator[Path | None]:
        """Yield the folder of a claim's data, and let nothing outside the root be opened; None where it names none.

        Raises as `path`.
        """
        folder = None if claim.data_dir is None else self.path("data_dir", claim.data_dir, FOLDER)
        with confined_to(None if folder is None else self.root):
            yield folder

    def transformer(self, claim: TrainedClaim) -> str | None:
        """Return what to read a claim's pre-trained transformer from; None where it names none.

        That is a folder below the root, or with trust a name on a hub. Raises `InputError` for another folder, one with
        a link that leads out of the root, and for a name without trust: it is fetched from the network.
        """
        key = "config.transformer"
        value = claim.config.get("transformer")
        if not isinstance(value, str):
            return None
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
                raise InputError(f"with more than {_MOST_FILES:,} files, must hold one model", key, value)
            for name in (*folders, *files):
                self._below(key, value, f"whose {name}", Path(inner) / name)
        return str(folder)

    def require_trust(self, claim: MechanismClaim | OwnClaim) -> None:
        """Raise `InputError` unless code that the claim names may be imported."""
        if not self.trust_code:
            right = "code that verify would import and run: give ‹trust_code› to allow it"
            raise InputError(right, *claim.code_named)

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

    known: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False)

    @classmethod
    def as_in(cls, access: Access) -> Self:
        """Return what reaches the same."""
        return cls(**vars(access))

    def path(self, key: str, value: str, *kinds: str) -> Path:
        """See `Access.path`."""
        asked = (value, *kinds)
        if asked not in self.known:
            self.known[asked] = super().path(key, value, *kinds)
        found: Path = self.known[asked]
        return found

    def transformer(self, claim: TrainedClaim) -> str | None:
        """See `Access.transformer`."""
        value = claim.config.get("transformer")
        if not isinstance(value, str):
            return None
        if (value,) not in self.known:
            self.known[value,] = super().transformer(claim)
        found: str | None = self.known[value,]
        return found
