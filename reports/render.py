"""Draws a result as one self-contained HTML page and as Markdown, and writes both beside the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv_audit.errors import InputError
from dpzv_audit.results import VerifyResult, check_schema, read
from dpzv_audit.runs import RESULT_FILE, load_measured, load_run
from dpzv_audit.store import write_atomically
from reports.ci import to_junit, to_sarif
from reports.content import report_content
from reports.model import Block, Code, Column, Picture, Prose, Report, Section, Table
from reports.text import MISSING, markdown
from reports.verification import Drawings

if TYPE_CHECKING:
    from jinja2 import Template


FORMATS = ("html", "md", "json", "junit", "sarif")
VERDICT_FORMATS = {"junit": "junit.xml", "sarif": "claims.sarif"}
"""Formats that only a result of `verify` has, and their files."""


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    kinds = {"table": Table, "picture": Picture, "prose": Prose, "code": Code}
    for name, kind in kinds.items():
        environment.tests[name] = lambda block, kind=kind: isinstance(block, kind)
    return environment.get_template("report.html")


def to_html(report: Report) -> str:
    """Return the report as one HTML page without script, network or other files."""
    from markupsafe import Markup

    # A drawing is markup made here, with every text in it escaped; all else is escaped by the template.
    return _template().render(report=report, markup=Markup)


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
    folder: Path, formats: Collection[str] = ("html", "md"), *, drawings: Drawings | None = None
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
        pictures = [b for section in report.sections for b in section.blocks if isinstance(b, Picture)]
        texts |= {f"{p.name}.svg": p.svg for p in pictures}
    if isinstance(result, VerifyResult):
        texts |= {VERDICT_FORMATS["junit"]: to_junit(result, timings)} if "junit" in formats else {}
        texts |= {VERDICT_FORMATS["sarif"]: to_sarif(result)} if "sarif" in formats else {}
    # All are drawn before any is written.
    files = [write_atomically(folder / name, text) for name, text in texts.items()]
    return [*files, folder / RESULT_FILE] if "json" in formats else files


def _cell(text: str, column: Column, strong: bool) -> str:
    if not text:
        return " "
    if column.kind == "link" and text != MISSING:
        return f"[report]({text})"
    shown = markdown(text)
    return f"**{shown}**" if strong and column.kind != "code" else shown


def _table(table: Table) -> str:
    header = "| " + " | ".join(markdown(column.title) for column in table.columns) + " |"
    rule = "|" + "|".join(" ---: " if column.kind == "number" else " --- " for column in table.columns) + "|"
    rows = (
        "| "
        + " | ".join(
            _cell(cell, column, index in table.strong) for cell, column in zip(row, table.columns, strict=True)
        )
        + " |"
        for index, row in enumerate(table.rows)
    )
    note = f" ({markdown(table.note)})" if table.note else ""
    return "\n".join((f"**{markdown(table.caption)}**{note}", "", header, rule, *rows))


def _fence(text: str) -> str:
    longest, run = 0, 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    mark = "`" * max(3, longest + 1)
    return f"{mark}json\n{text}\n{mark}"


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Picture():
            return f"![{markdown(block.alt)}]({block.name}.svg)\n\n*{markdown(block.caption)}*"
        case Prose():
            return markdown(block.text)
        case Code():
            return _fence(block.text)


def _section(section: Section) -> str:
    return "\n\n".join((f"## {markdown(section.title)}", *(_block(block) for block in section.blocks)))


def _tiles(report: Report) -> str:
    header = "| " + " | ".join(markdown(tile.label) for tile in report.tiles) + " |"
    values = "| " + " | ".join(f"**{markdown(tile.value)}**" for tile in report.tiles) + " |"
    notes = "| " + " | ".join(markdown(tile.note) or " " for tile in report.tiles) + " |"
    return "\n".join((header, "|" + " --- |" * len(report.tiles), values, notes))


def to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown; text of the result shows literally, never as markup."""
    parts = [f"# {markdown(report.title)}"]
    if report.verdict is not None:
        parts.append(f"**Verdict: {markdown(report.verdict.word)}.** {markdown(report.verdict.meaning)}")
    parts += [markdown(report.lead)] if report.lead else []
    parts += [_tiles(report)] if report.tiles else []
    parts += [_section(section) for section in report.sections]
    parts.append(f"*{markdown(report.kind)} by dpzv-audit, drawn from result.json.*")
    return "\n\n".join(parts) + "\n"
