"""Draws a result as one self-contained HTML page and as Markdown, and writes both beside the result."""

from collections.abc import Collection, Mapping
from pathlib import Path

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.store import write_atomically
from dpzv_audit.results import VerifyResult, check_schema, read
from dpzv_audit.runs import RESULT_FILE, load_measured, load_origin, load_run

from .ci import to_junit, to_sarif
from .content import environment, report_content
from .document import Report
from .verification import Drawings

FORMATS = ("html", "summary", "md", "json", "junit", "sarif")
VERDICT_FORMATS = {"junit": "junit.xml", "sarif": "claims.sarif"}
"""Formats that only a result of `verify` has, and their files."""


def to_html(report: Report, *, summary: bool = False) -> str:
    """Return the report as one HTML page without script, network or other files; of a `summary` the head alone."""
    return environment().get_template("report.html").render(report=report, summary=summary)


def to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown; text of the result shows literally, never as markup."""
    return environment().get_template("report.md").render(report=report) + "\n"


def check_formats(result: Mapping[str, object], place: str, formats: Collection[str]) -> None:
    """Raise `InputError` unless `result` has a known schema and can be drawn in every one of `formats`."""
    schema = check_schema(result, place)
    for name in formats:
        if name in VERDICT_FORMATS and schema != VerifyResult.SCHEMA:
            raise InputError(f"which needs a result of verify, but {place} holds {schema}", "format", name)


def write_report(
    folder: Path,
    formats: Collection[str] = ("html", "md"),
    *,
    drawings: Drawings | None = None,
) -> list[Path]:
    """Draw `folder`/result.json again and return the files that hold the report, each written atomically.

    `formats` are any of `FORMATS`: "html" is report.html, "summary" is summary.html, one page to sign, "md" is
    report.md with its figures beside it as SVG. "json" is result.json itself, which is never rewritten; "junit" and
    "sarif" are junit.xml and claims.sarif of a result of `verify`. `drawings` keeps the figures of such a result.
    `folder` may be the path of the result file.

    Raises:
        InputError: The folder holds no readable result, or one of an unknown schema.
    """
    raw = load_run(folder)
    check_formats(raw, str(folder), formats)
    folder = folder.parent if folder.is_file() else folder
    timings = load_measured(folder)
    result, other = read(raw)
    report = report_content(result, other, timings=timings, origin=load_origin(folder), drawings=drawings)
    texts: dict[str, str] = {}
    if "html" in formats:
        texts["report.html"] = to_html(report)
    if "summary" in formats:
        texts["summary.html"] = to_html(report, summary=True)
    if "md" in formats:
        texts["report.md"] = to_markdown(report)
        texts |= {f"{picture.name}.svg": picture.svg for picture in report.pictures}
    if isinstance(result, VerifyResult):
        if "junit" in formats:
            texts[VERDICT_FORMATS["junit"]] = to_junit(result, timings)
        if "sarif" in formats:
            texts[VERDICT_FORMATS["sarif"]] = to_sarif(result)
    # All are drawn before any is written.
    files = [write_atomically(folder / name, text) for name, text in texts.items()]
    return [*files, folder / RESULT_FILE] if "json" in formats else files
