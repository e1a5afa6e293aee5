"""Builds a report from a result alone: the sections in reading order, and what no section draws as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpzv_audit.results import (
    AttackResult,
    AuditResult,
    MatrixResult,
    Published,
    Reported,
    ScoresResult,
    TrainResult,
    VerifyResult,
)
from reports import sections
from reports.document import Block, Code, Report, section, words
from reports.matrix import matrix_section
from reports.privacy import privacy_section, tiles, verdict
from reports.text import to_json
from reports.verification import Drawings, verification_content


def report_content(
    result: Reported,
    other: Mapping[str, object] | None = None,
    *,
    timings: Mapping[str, float] | None = None,
    drawings: Drawings | None = None,
) -> Report:
    """Return what a report on a result shows, for HTML and Markdown alike.

    Every key of the result is drawn by a section; `other`, what its file holds beside, stands in the last one as JSON.
    Trade-off curves and long training histories are drawn in full as figures and thinned in tables, which say so.
    `timings` are what was measured beside the result, `drawings` keeps the figures of one of `verify`.
    """
    if isinstance(result, VerifyResult):
        report = verification_content(result, drawings)
    elif isinstance(result, MatrixResult):
        report = _matrix(result)
    elif isinstance(result, ScoresResult):
        report = _scores(result)
    else:
        report = _run(result, timings or {})
    if not other:
        return report
    rest: list[Block] = [words("paragraphs", "else"), Code(text=to_json(other, indent=2))]
    return replace(report, sections=(*report.sections, *section("else", "Everything else", rest)))


def _matrix(result: MatrixResult) -> Report:
    found = matrix_section(result)
    found += sections.published_section(result.noise, Published())
    found += sections.repeat_section(result)
    return Report(
        kind=result.KIND,
        title=f"Methods against attacks{_on(result)}",
        lead=result.sentence,
        verdict=None,
        tiles=(),
        sections=tuple(found),
    )


def _scores(result: ScoresResult) -> Report:
    return Report(
        kind=result.KIND,
        title=result.KIND,
        lead=result.meaning,
        verdict=verdict(result.privacy),
        tiles=tuple(tiles(result.privacy)),
        sections=(*privacy_section(result), *sections.repeat_section(result)),
    )


def _run(result: AttackResult | TrainResult | AuditResult, timings: Mapping[str, float]) -> Report:
    """Return the report on an attack, a training or an audit, which share all sections but what they measure."""
    found = privacy_section(result)
    glance = tiles(result.privacy)
    if isinstance(result, AuditResult):
        found += sections.game_section(result.game)
    else:
        if isinstance(result, AttackResult):
            found += sections.attack_section(result)
            glance = sections.success_tile(result) + glance
        glance += sections.accuracy_tile(result.utility)
        found += sections.utility_section(result)
        found += sections.bytes_section(result, timings)
    if isinstance(result, TrainResult):
        found += sections.staleness_section(result.staleness)
    found += sections.published_section(result.noise, result.published)
    found += sections.repeat_section(result)
    return Report(
        kind=result.KIND,
        title=_title(result),
        lead=result.sentence,
        verdict=verdict(result.privacy),
        tiles=tuple(glance),
        sections=tuple(found),
    )


def _title(result: AttackResult | TrainResult | AuditResult) -> str:
    on = _on(result)
    match result:
        case AttackResult(attack=attack, method=method) if attack and method:
            return f"{attack} against {method}{on}"
        case TrainResult(method=method) if method:
            return f"{method} trained{on}"
        case AuditResult(method=method, adversary=adversary) if method:
            return f"{method} audited{on}{f', against {adversary}' if adversary else ''}"
    return result.KIND


def _on(result: AttackResult | TrainResult | AuditResult | MatrixResult) -> str:
    return f" on {result.dataset}" if result.dataset else ""
