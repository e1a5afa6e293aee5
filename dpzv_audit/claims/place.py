"""Where a claims file may reach: files and folders below its own folder, or the one of `root`, links followed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError
from dpzv_audit.plain_files import kind_of

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOST_FILES = 10_000
FILE, FOLDER = "a regular file", "a folder"
_EITHER = "is {kind}, must be a file or a folder below {root}"
_REFUSALS = {
    (FILE,): ("is no file below {folder}", "is no file but {kind} below {folder}"),
    (FOLDER,): ("does not exist below {folder}", "is no folder but {kind} below {folder}"),
    (FILE, FOLDER): (_EITHER, _EITHER),
}
"""What is said of a path where there is nothing, and where there is something else than the kinds that may be."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a claims file may reach: its folder, the one that score files must lie in, and whether code is trusted.

    `outputs` are files that the run itself writes: they are no part of a mechanism that lies beside them.
    """

    folder: Path
    root: Path
    trust_code: bool = False
    device: str = "cpu"
    outputs: tuple[Path, ...] = ()
    trial_seconds: float = TRIAL_SECONDS
    """What one run of a mechanism that a claim names may take."""


def place_of(
    path: Path,
    *,
    root: Path | None,
    trust_code: bool,
    device: str,
    outputs: Sequence[Path | None] = (),
    trial_seconds: float = TRIAL_SECONDS,
) -> Place:
    """Return where the claims file at `path` may reach: score files lie below `root`, by default the file's folder.

    In full: workers of a cluster start in folders of their own. `outputs` are files that the run writes.
    """
    folder = path.parent.absolute()
    written = tuple(output.absolute() for output in outputs if output is not None)
    return Place(
        folder=folder,
        root=root or folder,
        trust_code=trust_code,
        device=device,
        outputs=written,
        trial_seconds=trial_seconds,
    )


def path_below(key: str, given: str, place: Place, kinds: tuple[str, ...]) -> Path:
    """Return the path that `key` names, of one of `kinds`: (FILE,), (FOLDER,) or (FILE, FOLDER).

    Raises `InputError` for anything else, and for a path outside the root.
    """
    path = _check_below(key, given, "which", place.folder / given, place)
    kind = kind_of(path)
    if kind not in kinds:
        absent, another = _REFUSALS[kinds]
        found = (absent if kind == "nothing" else another).format(kind=kind, folder=place.folder, root=place.root)
        raise InputError(f"which {found}", key, given)
    return path


def transformer_below(given: str, place: Place) -> str:
    """Return what to read a pre-trained transformer from: a folder below the root, or with trust a name on a hub.

    Raises `InputError` for another folder, one with a link that leads out of the root, and for a name without trust:
    it is fetched from the network.
    """
    key = "config.transformer"
    is_name = _HUB_NAME.fullmatch(given) and not Path(given).exists()
    if is_name and not (place.folder / given).exists():
        if not place.trust_code:
            right = f"no folder below {place.folder}; a name on a hub, which is fetched, needs ‹trust_code›"
            raise InputError(f"which is {right}", key, given)
        return given
    folder = path_below(key, given, place, (FOLDER,))
    seen = 0
    for inner, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > _MOST_FILES:
            raise InputError(f"with more than {_MOST_FILES:,} files, must hold one model", key, given)
        for name in (*folders, *files):
            _check_below(key, given, f"whose {name}", Path(inner) / name, place)
    return str(folder)


def _check_below(key: str, given: str, what: str, path: Path, place: Place) -> Path:
    try:
        found = path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long
        raise InputError(f"{what} cannot be followed, must be a path below {place.root}", key, given) from None
    if not found.is_relative_to(place.root.resolve()):
        raise InputError(f"{what} lies elsewhere, must lie below {place.root} (or below ‹root› DIR)", key, given)
    return found
