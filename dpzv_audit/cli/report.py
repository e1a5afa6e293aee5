"""The command `report`: draws the report of finished runs again, from their `result.json` alone."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from reports.render import check_formats, write_report

from ..runs import load_run
from .flags import takes
from .output import Output

Format = Literal["html", "summary", "md", "json", "junit", "sarif"]


@takes
def report(
    *,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    formats: Annotated[list[Format] | None, "--format"] = None,
    summary: bool = False,
    output: Output,
) -> None:
    """Write the reports of finished runs again.

    Writes report.html, and report.md with its figures, into each folder from its result.json; nothing is trained.

    Example: dpzv-audit report dpzv-runs/*-attack-*

    Output:
        formats NAME: html, summary, md, json, junit or sarif. By default html and md. May be given several times.
        summary: Write summary.html, one printed page to sign. Short for --format summary.
    """
    wanted = tuple(dict.fromkeys(("summary", *(formats or ())) if summary else formats or ("html", "md")))
    for run in runs:  # all inputs are checked before anything is written
        check_formats(load_run(run), str(run), wanted)

    done = []
    for run in runs:
        files = write_report(run, wanted)
        done.append({"run": str(run), "files": [str(file) for file in files]})
        if not output.as_json:
            for file in files[:1] if output.quiet else files:
                typer.echo(str(file))
    output.result({"schema": "dpzv-audit/report/1", "runs": done})
