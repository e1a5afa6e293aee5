"""The command `report`: draws the report of finished runs again, from their `result.json` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpzv_audit.cli.flags import takes
from dpzv_audit.cli.output import Output
from dpzv_audit.errors import InputError
from dpzv_audit.runs import load_run
from reports.render import FORMATS, check_formats, write_report

SCHEMA = "dpzv-audit/report/1"
DEFAULT_FORMATS = ("html", "md")


def _formats(chosen: list[str]) -> tuple[str, ...]:
    """Return the formats to draw, each once; `InputError` naming the flag for one that does not exist."""
    for name in chosen:
        if name not in FORMATS:
            raise InputError(f"must be one of {', '.join(FORMATS)}", "format", name)
    return tuple(dict.fromkeys(chosen))


@takes
def report(
    *,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, each with a result.json in it.")],
    formats: Annotated[list[str], "--format"] = list(DEFAULT_FORMATS),  # noqa: B006  typer copies it
    output: Output,
) -> None:
    """Render run folders again, from their result.json alone.

    Writes report.html, and report.md with its figures, into each folder; nothing trains again.

    Example: dpzv-audit report dpzv-runs/*-attack-*

    Options:
        formats html|md|json|junit|sarif: What to draw; may be given several times.
    """
    wanted = _formats(formats)
    for run in runs:  # all inputs are checked before anything is written
        check_formats(load_run(run), str(run), wanted)

    done: list[dict[str, Any]] = []
    for run in runs:
        files = write_report(run, wanted)
        done.append({"run": str(run), "files": [str(file) for file in files]})
        if not output.as_json:
            for file in files[:1] if output.quiet else files:
                typer.echo(str(file))
    output.result({"schema": SCHEMA, "runs": done})
