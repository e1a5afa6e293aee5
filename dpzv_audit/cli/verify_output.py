"""What `verify` leaves behind: the run folder with its report, and the files that a CI reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.result import shown_path
from dpzv_audit.cli.common import repeatable_command_line
from dpzv_audit.errors import AuditError, InputError
from dpzv_audit.results import VerifyResult
from dpzv_audit.runs import MEASURED_FILE, RESULT_FILE, environment, run_name, write_run
from dpzv_audit.store import write_atomically

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_CHANGE_NOTHING = ("--out", "--cache", "--junit", "--sarif", "--jobs", "--executor", "--scheduler")
"""Flags on which no number depends; all have a value."""


def check_file(flag: str, path: Path | None) -> None:
    """Raise `InputError` where `path` cannot be a file to write to: told before hours of work, not after them."""
    if path is None:
        return
    if not path.name or path.is_dir():
        raise InputError("a folder; must be a file to write to", flag, path)
    if not path.parent.is_dir():
        raise InputError("must be in a folder that exists", flag, path)


def summary_file() -> Path | None:
    """Return the file that GitHub shows on the page of the run; None elsewhere."""
    named = os.environ.get(SUMMARY_VARIABLE)
    return Path(named) if named else None


def save(
    result: VerifyResult,
    measured: Mapping[str, float],
    out: Path,
    cache: Cache,
    *,
    junit: Path | None,
    sarif: Path | None,
) -> dict[str, object]:
    """Write the run folder, then JUnit, SARIF and the step summary; return what goes out as JSON.

    `result` alone makes result.json; what was `measured` beside it, seconds and cache hits, has a file of its own.
    """
    from reports.ci import to_junit, to_sarif, to_summary
    from reports.render import write_report

    facts = environment([])
    versions = {"dpzv-audit": facts["dpzv_audit"], "python": facts["python"], **facts["packages"]}
    stored = result.model_copy(update={"command_line": _command_line(), "versions": versions})
    name = run_name("verify", Path(result.claims_file).stem, seed=result.seed)
    with write_run(out, name) as folder:
        folder.write_json(RESULT_FILE, stored)
        folder.write_json(MEASURED_FILE, measured)
        folder.write_json("environment.json", environment())
        write_report(folder.path, drawings=cache)
    if junit is not None:
        _write("--junit", junit, to_junit(stored, measured))
    if sarif is not None:
        _write("--sarif", sarif, to_sarif(stored))
    summary = summary_file()
    if summary is not None:
        _append(summary, to_summary(stored))
    return {**stored.to_json(), "measured": dict(measured), "run": str(folder.path)}


def _command_line() -> list[str]:
    """Return the command line as a repeat of the result needs it; in full it stands in environment.json."""
    parts = []
    for argument in repeatable_command_line(without=_CHANGE_NOTHING, plain=("--no-cache",)):
        flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        parts.append(f"{flag}{equals}{shown_path(value)}")
    return parts


def _write(flag: str, path: Path, text: str) -> None:
    try:
        write_atomically(path, text, shared=True)
    except OSError as error:
        raise AuditError(
            f"which cannot be written ({error.strerror}); give a file in a folder that exists", flag, path
        ) from error


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise AuditError(f"which cannot be written ({error.strerror})", SUMMARY_VARIABLE, path) from error
