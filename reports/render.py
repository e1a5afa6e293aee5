"""Draws a result as one self-contained HTML page and as Markdown, and writes both beside the result."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dpzv_audit.errors import InputError
from dpzv_audit.results import VerifyResult, check_schema, read
from dpzv_audit.runs import RESULT_FILE, load_measured, load_run
from dpzv_audit.store import write_atomically
from reports.ci import to_junit, to_sarif
from reports.content import environment, report_content
from reports.document import Block, Code, Column, Picture, Report, Table
from reports.text import MISSING, markdown
from reports.verification import Drawings

FORMATS = ("html", "md", "json", "junit", "sarif")
VERDICT_FORMATS = {"junit": "junit.xml", "sarif": "claims.sarif"}
"""Formats that only a result of `verify` has, and their files."""


def to_html(report: Report) -> str:
    """Return the report as one HTML page without script, network or other files."""
    return environment().get_template("report.html").render(report=report)


def to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown; text of the result shows literally, never as markup."""
    parts = [f"# {markdown(report.title)}"]
    if report.verdict is not None:
        word, meaning = markdown(report.verdict.word), markdown(report.verdict.meaning)
        parts.append(f"**Verdict: {word}.** {meaning}")
    if report.lead:
        parts.append(markdown(report.lead))
    if report.tiles:
        values = (f"**{markdown(tile.value)}**" for tile in report.tiles)
        notes = (markdown(tile.note) or " " for tile in report.tiles)
        labels = [Column(title=tile.label) for tile in report.tiles]
        parts.append("\n".join((*_heading(labels), _line(values), _line(notes))))
    for section in report.sections:
        parts.append(f"## {markdown(section.title)}")
        parts += map(_block, section.blocks)
    parts.append(f"*{markdown(report.kind)} by dpzv-audit, drawn from result.json.*")
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Table():
            note = f" ({markdown(block.note)})" if block.note else ""
            rows = (_row(block, index) for index in range(len(block.rows)))
            title = f"**{markdown(block.caption)}**{note}"
            return "\n".join((title, "", *_heading(block.columns), *rows))
        case Picture():
            return f"![{markdown(block.alt)}]({block.name}.svg)\n\n*{markdown(block.caption)}*"
        case Code():
            ticks = max(map(len, re.findall("`+", block.text)), default=0)
            mark = "`" * max(3, ticks + 1)
            return f"{mark}json\n{block.text}\n{mark}"
    return markdown(block)


def _heading(columns: Collection[Column]) -> tuple[str, str]:
    rules = (" ---: " if column.kind == "number" else " --- " for column in columns)
    return _line(markdown(column.title) for column in columns), f"|{'|'.join(rules)}|"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(table: Table, index: int) -> str:
    cells = []
    for text, column in zip(table.rows[index], table.columns, strict=True):
        shown = markdown(text)
        if column.kind == "link" and text != MISSING:
            shown = f"[report]({text})"
        elif index in table.strong and column.kind != "code":
            shown = f"**{shown}**"
        cells.append(shown)
    return _line(cells)


def render_html(result: Mapping[str, object]) -> str:
    """Return the report on `result`, as read from JSON, as one HTML page without script, network or other files.

    Raises `InputError` if the result's schema is unknown, or one of `verify` is not as it was written.
    """
    return to_html(report_content(*read(result)))


def render_markdown(result: Mapping[str, object]) -> str:
    """Return the report on `result`, as read from JSON, as Markdown that refers to the figures' files beside it.

    Raises `InputError` if the result's schema is unknown, or one of `verify` is not as it was written.
    """
    return to_markdown(report_content(*read(result)))


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

    `formats` are any of `FORMATS`: "html" is report.html, "md" is report.md with its figures beside it as
    SVG, "json" is result.json itself, which is never rewritten; "junit" and "sarif" are junit.xml and
    claims.sarif of a result of `verify`. `drawings` keeps the figures of such a result. Raises `InputError` if
    the folder holds no readable result or one of an unknown schema. `folder` may be the path of the result file.
    """
    raw = load_run(folder)
    check_formats(raw, str(folder), formats)
    folder = folder.parent if folder.is_file() else folder
    timings = load_measured(folder)
    result, other = read(raw)
    report = report_content(result, other, timings=timings, drawings=drawings)
    texts: dict[str, str] = {}
    if "html" in formats:
        texts["report.html"] = to_html(report)
    if "md" in formats:
        texts["report.md"] = to_markdown(report)
        blocks = (block for section in report.sections for block in section.blocks)
        texts |= {f"{block.name}.svg": block.svg for block in blocks if isinstance(block, Picture)}
    if isinstance(result, VerifyResult):
        if "junit" in formats:
            texts[VERDICT_FORMATS["junit"]] = to_junit(result, timings)
        if "sarif" in formats:
            texts[VERDICT_FORMATS["sarif"]] = to_sarif(result)
    # All are drawn before any is written.
    files = [write_atomically(folder / name, text) for name, text in texts.items()]
    return [*files, folder / RESULT_FILE] if "json" in formats else files
