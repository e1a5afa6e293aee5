"""Builds a report from a result alone: the sections in reading order, and what no section draws as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpzv_audit.results import (
    AttackResult,
    AuditResult,
    MatrixResult,
    Privacy,
    Published,
    Reported,
    ScoresResult,
    TrainResult,
    Utility,
    VerifyResult,
)
from reports import matrix, privacy, sections
from reports.model import Code, Prose, Report, Section
from reports.text import clean, to_json
from reports.verification import Drawings, verification_content


def _title(result: Reported) -> str:
    on = (
        f" on {clean(result.dataset)}" if not isinstance(result, ScoresResult | VerifyResult) and result.dataset else ""
    )
    match result:
        case MatrixResult():
            return f"Methods against attacks{on}"
        case AttackResult(attack=attack, method=method) if attack and method:
            return f"{clean(attack)} against {clean(method)}{on}"
        case TrainResult(method=method) if method:
            return f"{clean(method)} trained{on}"
        case AuditResult(method=method, adversary=adversary) if method:
            return f"{clean(method)} audited{on}{f', against {clean(adversary)}' if adversary else ''}"
    return result.KIND


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
    else:
        claim = Privacy() if isinstance(result, MatrixResult) else result.privacy
        attack = sections.success_tile(result) if isinstance(result, AttackResult) else []
        trained = result.utility if isinstance(result, AttackResult | TrainResult) else Utility()
        accuracy = sections.accuracy_tile(trained.test_accuracy)
        report = Report(
            kind=result.KIND,
            title=_title(result),
            lead=clean(result.meaning if isinstance(result, ScoresResult) else result.sentence),
            verdict=privacy.verdict(claim),
            tiles=(*attack, *privacy.tiles(claim), *accuracy),
            sections=_sections(result, timings or {}),
        )
    if not other:
        return report
    intro = Prose(text="Keys of the result that no section above draws, as they stand in it.")
    blocks = (intro, Code(text=to_json(other, indent=2)))
    return replace(report, sections=(*report.sections, Section(anchor="else", title="Everything else", blocks=blocks)))


def _sections(
    result: AttackResult | TrainResult | AuditResult | ScoresResult | MatrixResult, timings: Mapping[str, float]
) -> tuple[Section, ...]:
    found = [matrix.section(result) if isinstance(result, MatrixResult) else privacy.section(result)]
    if isinstance(result, AuditResult):
        found.append(sections.game_section(result.game))
    if isinstance(result, AttackResult):
        found.append(sections.success_section(result))
    if isinstance(result, AttackResult | TrainResult):
        found += [sections.utility_section(result), sections.bytes_section(result, timings)]
    if isinstance(result, TrainResult):
        found.append(sections.staleness_section(result.staleness))
    if not isinstance(result, ScoresResult):
        parts = Published() if isinstance(result, MatrixResult) else result.published
        found.append(sections.published_section(result.noise, parts))
    found.append(sections.repeat_section(result))
    return tuple(section for section in found if section is not None)
