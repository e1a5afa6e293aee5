"""Audits planted mechanisms and holds the verdict against the one they must get: the `result.json` of `planted:`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from dpzv_audit.evaluation.sections import versions
from dpzv_audit.evidence.bounding import AuditPlan, Reporter, bounded
from dpzv_audit.evidence.model import Theory
from dpzv_audit.evidence.verdict import largest_gating, verdict_on
from dpzv_audit.findings import EmpiricalBound
from dpzv_audit.games.fitted import fitted_facts
from dpzv_audit.games.outcome import outcome_of
from dpzv_audit.games.planted.cases import Planted
from dpzv_audit.games.simulated import DrawnTrials
from dpzv_audit.results import PlantedGame, PlantedResult, PlantedRow


def planted_row(
    planted: Planted, audit: AuditPlan, *, runs: int | None = None, seed: int = 0, reporter: Reporter | None = None
) -> PlantedRow:
    """Audit one planted mechanism: the claim, both bounds, the verdict found and the ones that are right.

    `runs` in each world replace the mechanism's own number; `audit` gives confidence, chunk, workers and folder.
    """
    case = planted.build(seed)
    shared = 1.0 - (1.0 - audit.confidence) / len(case.games)
    estimators: list[EmpiricalBound] = []
    games: dict[str, PlantedGame] = {}
    number = runs or planted.runs
    for name, trials in case.games.items():
        # Vectorised draws are cheap: a chunk of theirs is as large as their blocks.
        chunk = audit.chunk if not isinstance(trials, DrawnTrials) else max(audit.chunk, 4096)
        plan = replace(audit, runs=number, chunk=chunk, folder=None, confidence=shared)
        found = bounded(trials, plan, partial(outcome_of, trials), delta=case.delta, seed=seed, reporter=reporter)
        estimators += found.bounds
        facts = fitted_facts(found.scores.fitted)
        games[name or "the game"] = PlantedGame(
            empirical_lower=largest_gating(found.bounds), estimators=list(found.bounds), **facts
        )
    theory, lower = Theory(applies=True, bounds=tuple(planted.upper_bounds(case))), largest_gating(estimators)
    verdict = verdict_on(case.epsilon, lower, theory.upper)
    return PlantedRow(
        name=planted.name,
        bug=planted.summary,
        adversary=planted.adversary,
        neighbours=planted.neighbours,
        score=planted.score,
        runs=number,
        claimed=case.epsilon,
        delta=case.delta,
        empirical_lower=lower,
        upper=theory.upper,
        gap=theory.gap or None,
        expected=list(planted.expected),
        verdict=verdict,
        as_expected=verdict in planted.expected,
        games=games,
    )


def planted_result(
    chosen: Sequence[Planted],
    audit: AuditPlan,
    *,
    runs: int | None = None,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> PlantedResult:
    """Audit every mechanism of `chosen`; schema `dpzv-audit/planted/1`."""
    rows = [planted_row(planted, audit, runs=runs, seed=seed, reporter=reporter) for planted in chosen]
    return PlantedResult(
        method="planted",
        rows=rows,
        sentence=planted_sentence(rows),
        confidence=audit.confidence,
        seed=seed,
        versions=versions(),
    )


def planted_sentence(rows: Iterable[PlantedRow]) -> str:
    """How many verdicts are right, and which are not."""
    rows = list(rows)
    wrong = [row.name for row in rows if not row.as_expected]
    right = f"{len(rows) - len(wrong)} of {len(rows)} mechanisms got the verdict they must get"
    return f"{right}{': not ' + ', '.join(wrong) if wrong else ''}."
