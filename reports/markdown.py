"""Draws a report as Markdown: the same content as the page, with figures as files beside it."""

from __future__ import annotations

from reports.model import Block, Code, Column, Picture, Prose, Report, Section, Table
from reports.text import MISSING, markdown


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
