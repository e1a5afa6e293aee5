"""Run folders: what a run leaves on disk, written whole or not at all, and read back with one-line errors."""

import errno
import importlib.metadata
import itertools
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from .base.errors import AuditError, InputError
from .base.files import PACKAGE_FOLDERS, json_in, of_the_kernel, read_plain
from .base.findings import to_jsonable
from .base.store import partial_folder, private_file, private_folder, remove_abandoned, sync

RESULT_FILE = "result.json"
ENVIRONMENT_FILE = "environment.json"
"""What a result may depend on beside its options, and when it was computed."""
MEASURED_FILE = "measured.json"
"""What a repeat of the run need not give again: times and memory, kept apart from the result."""

_LARGEST_RESULT = 128_000_000
_MOST_VALUES = 6_000_000
"""Bytes, and values, of a result: ten thousand claims take 110 million, and 5 million."""
_LONGEST_TEXT = 1_000_000

PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "prv-accountant",
    "matplotlib",
    "typer",
    "rich",
    "pydantic",
    "jinja2",
    "joblib",
    "safetensors",
)

_STAMP = "%Y%m%d-%H%M%S"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class RunFolder:
    """A run folder that is being written.

    `path` is a hidden temporary folder while the block of `write_run` runs, and the run folder for good after it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: object) -> Path:
        """Write the file `name`: letters, digits, `.`, `_`, `-` a part, `/` between parts; return its path.

        Bytes go out as they are and text as UTF-8, with bytes of no encoding (from a command line) as backslash
        escapes; all else as `json_text`. Raises `AuditError` (exit code 3) for nan and infinity, and if the disk
        refuses.
        """
        if not _FILE_NAME.fullmatch(name):
            raise InputError("use parts of letters, digits, '.', '_', '-' joined by '/'", "run file name", name)
        if not isinstance(content, str | bytes):
            try:
                content = json_text(content)
            except ValueError as error:
                raise AuditError(f"{name} cannot be written as JSON: {error}") from error
        path = self.path / name
        with _refusing(f"cannot write {name}", self.path.parent):
            private_folder(path.parent)
            with private_file(path, "wb") as file:
                file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
        return path


@contextmanager
def write_run(out: Path, name: str) -> Iterator[RunFolder]:
    """Write the run folder `out`/`name` as one step: it appears whole when the block ends, or not at all.

    `out` is made where it does not exist. `name` is sanitised; where it is taken, `-2`, `-3`, ... is
    appended. The folder and its files are their owner's alone (0700, 0600). On any exception, an interrupt too, the
    temporary folder is removed and the exception goes on; one that a process left which was killed is removed here
    (`dpzv_audit.base.store`). Raises `InputError` if `out` is a file or carries the name
    of one of this distribution's packages, and `AuditError` if the disk refuses (full, read-only).
    """
    check_out(out)
    name = slug(name, limit=160)
    with _refusing(f"cannot write the run folder {name}", out):
        out.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out)
        with partial_folder(out, name) as partial:
            folder = RunFolder(partial)
            yield folder
            for parent, _, files in os.walk(partial):
                for path in (*(Path(parent) / file for file in files), Path(parent)):
                    sync(path)
            folder.path = _publish(partial, out, name)


def load_run(path: Path) -> dict[str, object]:
    """Return the `result.json` of the run folder `path` (or the JSON file `path`) as a dict.

    Raises `InputError` naming the file if it is missing, unreadable or no JSON object; `results.read` asks what it is.
    """
    file = path / RESULT_FILE if os.path.isdir(path) else path
    if not os.path.lexists(file):
        raise InputError(
            f": no such file; use a run folder that holds {RESULT_FILE}, such as dpzv-audit attack writes",
            str(file),
        )
    value = _json_of(file, "a result that dpzv-audit wrote")
    if not isinstance(value, dict):
        raise InputError(f": holds a JSON {type(value).__name__}; use an object with a schema", str(file))
    return value


def _json_of(file: Path, right: str) -> Any:
    try:
        value = json_in(read_plain(file, _LARGEST_RESULT), _MOST_VALUES)
        _check_texts(value)
        return value
    except OSError as error:
        raise InputError(f": cannot be read ({error.strerror}); use a readable file", str(file)) from error
    except ValueError as error:
        raise InputError(f": is not JSON ({error}); use {right}", str(file)) from error


def _check_texts(value: Any) -> None:
    """Raise `ValueError` for a text that is longer than any of a result: a report would copy it many times."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, str) and len(inner) > _LONGEST_TEXT:
            raise ValueError(f"it holds a text of {len(inner):,} characters")
        if isinstance(inner, dict):
            waiting += (*inner, *inner.values())
        elif isinstance(inner, list):
            waiting += inner


def run_name(
    command: str,
    method: str | None = None,
    dataset: str | None = None,
    attack: str | None = None,
    *,
    seed: int,
    now: datetime | None = None,
) -> str:
    """Return a folder name that sorts by time: UTC timestamp, command, method, data set, attack, seed.

    Such as `20261120-231530-attack-dpzv-digits-label_direct-seed0`. `now` is the present unless given, and
    must carry a time zone. Every part is sanitised by `slug`.
    """
    moment = (datetime.now(UTC) if now is None else now).astimezone(UTC)
    names = [slug(name) for name in (command, method, dataset, attack) if name]
    return "-".join([moment.strftime(_STAMP), *names, f"seed{int(seed)}"])


def slug(text: str, *, limit: int = 40) -> str:
    """Return `text` with all but ASCII letters, digits and `_` as `-`, at most `limit` long, never empty.

    No dots and no separators survive, so the result is one path component that cannot climb out of a folder.
    """
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:limit].strip("-") or "unnamed"


def load_measured(folder: Path) -> dict[str, float]:
    """Return the times and memory that were measured beside the run in `folder`; empty where none were kept.

    Raises `InputError` naming the file if it is there and is no JSON object of numbers.
    """
    file = folder / MEASURED_FILE
    right = "what dpzv-audit wrote, or be removed"
    if not os.path.lexists(file):
        return {}
    value = _json_of(file, right)
    if not isinstance(value, dict) or not all(type(v) in (int, float) for v in value.values()):
        raise InputError(f": is not a JSON object of numbers; use {right}", str(file))
    return value


def load_origin(folder: Path) -> list[str]:
    """Return the version and the date with which the run in `folder` was computed, in words, as far as they are known.

    They are those of its `environment.json`, or of that of the folder around it, where an attack keeps further results.
    A date that is not there is that of the folder's name.
    """
    for place in (folder, folder.parent):
        file = place / ENVIRONMENT_FILE
        if os.path.isfile(file):
            with suppress(InputError):  # a page says less where the file is damaged
                facts = _json_of(file, "what dpzv-audit wrote")
                return origin_of(facts if isinstance(facts, dict) else {}, place.resolve().name)
    return origin_of({}, folder.resolve().name)


def origin_of(facts: Mapping[str, object], name: str = "") -> list[str]:
    """Return the version and the date of an environment in words, or the date in the `name` of a run folder."""
    version, date = facts.get("dpzv_audit"), str(facts.get("date", ""))
    stamp = re.match(r"\d{8}-\d{6}(?=-)", name)
    words = [f"dpzv-audit {version}"] if isinstance(version, str) else []
    with suppress(ValueError):
        moment = datetime.fromisoformat(date) if date or not stamp else datetime.strptime(stamp[0], _STAMP)
        words.append(f"{moment.day} {moment:%B %Y, %H:%M} UTC")
    return words


def json_text(value: Any) -> str:
    """Return `value` as the JSON text of run folders: two spaces, keys in their order, a newline at the end.

    Raises `ValueError` for nan and infinity, which JSON does not have.
    """
    return json.dumps(to_jsonable(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def environment(arguments: Sequence[str] | None = None) -> dict[str, object]:
    """Return what a result may depend on: Python, platform, package versions, processors, command line; and the date.

    Versions come from the installed metadata (None where a package is absent), so nothing is imported. numpy and torch
    choose their kernels by `cpu_features`: sums of floats differ between kernels in their last bits.
    `arguments` replaces the process's own command line (`sys.argv`), whose program keeps its name alone.
    """
    return {
        "dpzv_audit": version_of("dpzv-audit"),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_features": cpu_features(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "command_line": [_program(sys.argv[0]), *sys.argv[1:]] if arguments is None else list(arguments),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of this tool, Python and the packages that numbers may depend on."""
    own = {"dpzv-audit": version_of("dpzv-audit"), "python": platform.python_version()}
    return own | {name: version_of(name) for name in PACKAGES}


def cpu_features() -> dict[str, object]:
    """Return the vector instructions in use by those of numpy and torch that are loaded."""
    features: dict[str, object] = {}
    if "numpy" in sys.modules:
        import numpy as np

        features["numpy"] = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    if "torch" in sys.modules:
        import torch

        features["torch"] = torch.backends.cpu.get_cpu_capability()
    return features


def _program(argument: str) -> str:
    path = Path(argument)
    return f"python -m {path.parent.name}" if path.name == "__main__.py" else path.name


@cache
def version_of(package: str) -> str | None:
    """Return the version of an installed package, None where it is absent; nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_out(out: Path) -> None:
    """Raise what `write_run` would raise for its folder `out`, as far as that shows without making anything.

    `InputError` where `out` is no folder, or carries the name of one of this distribution's packages; `AuditError`
    where nothing can be written there.
    """
    try:
        folder = out.resolve()
        there = next((place for place in (folder, *folder.parents) if place.exists()), Path(folder.anchor))
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long
        raise InputError("which cannot be followed; give a folder", "out", str(out)) from None
    for place in (folder, *folder.parents):
        if place.name in PACKAGE_FOLDERS and (place == folder or not place.exists()):
            names = ", ".join(sorted(PACKAGE_FOLDERS))
            raise InputError(f"use a folder that has no name of a package of the tool: {names}", "out", out)
    if not there.is_dir():
        raise InputError(f"but {there} is not a folder; give a folder", "out", out)
    if of_the_kernel(folder):
        raise InputError(f"but {there} is a folder of the kernel's; give one on a disk", "out", out)
    if not os.access(there, os.W_OK | os.X_OK):
        raise AuditError(f"but {there} cannot be written to (Permission denied); give another ‹out› DIR", "out", out)


def _publish(partial: Path, out: Path, name: str) -> Path:
    for number in itertools.count(1):
        final = out / (name if number == 1 else f"{name}-{number}")
        if os.path.lexists(final):
            continue
        try:
            partial.rename(final)
        except OSError as error:
            # another process took the name since we looked: renaming onto its folder fails, so try the next
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                continue
            raise
        sync(out)
        break
    return final


@contextmanager
def _refusing(failure: str, out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise AuditError(
            f"{failure} under {out}: {reason}; no run folder was left, make room or give another ‹out› DIR"
        ) from error
