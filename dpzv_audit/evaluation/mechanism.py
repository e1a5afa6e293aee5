"""Audits a mechanism of the user's own: the `result.json` of `audit` with `mechanism`."""

from __future__ import annotations

from dataclasses import replace

from dpzv_audit.errors import InputError
from dpzv_audit.evaluation.auditing import AuditOutcome
from dpzv_audit.evaluation.privacy import section, tradeoff_of
from dpzv_audit.evaluation.published import published_by_simulation
from dpzv_audit.evaluation.sections import versions
from dpzv_audit.evidence.bounding import (
    AuditPlan,
    Reporter,
    bounded,
    bounds_by_runs,
    memory_section,
    score_files,
    warnings_of,
)
from dpzv_audit.evidence.model import Theory
from dpzv_audit.findings import down
from dpzv_audit.games.engine import Arrays
from dpzv_audit.games.fitted import WORDS, fitted_facts
from dpzv_audit.games.game import SCORES
from dpzv_audit.games.mechanism import MechanismTrials
from dpzv_audit.games.outcome import GameScores, GaussianPart, scores_of
from dpzv_audit.results import AuditResult, Plain, Privacy
from dpzv_audit.statistics import can_refute
from dpzv_audit.trees import Undigested
from reports.text import percent


def mechanism_outcome(
    path: str,
    audit: AuditPlan,
    *,
    epsilon: float | None,
    delta: float,
    trial_seconds: float,
    exactly_gaussian: bool = False,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> AuditOutcome:
    """Run the mechanism at `path` in both worlds and bound its epsilon; schema `dpzv-audit/audit/1`.

    There is no theory of it here, so a claim is refuted or the audit is inconclusive. `exactly_gaussian` is the user's
    word that its scores are Gaussian with one variance: bounds on a Gaussian curve may then refute the claim, given
    Gaussian noise, where a test of normality does not object.

    Raises:
        InputError: No such mechanism, or an answer that is no score.
        MechanismFailed: It raised, or took too long.
    """
    trials = MechanismTrials(path, seed, trial_seconds)
    audit, not_kept = _kept(trials, audit)

    def scored(arrays: Arrays) -> GameScores:
        inside, outside, fitted = scores_of(arrays, ("linear",) if exactly_gaussian else tuple(WORDS))
        part = GaussianPart(inside, outside, 0, 1.0, vouched=True) if exactly_gaussian else None
        return GameScores(outside, inside, "fitted" if fitted else "own", gaussian=part, fitted=fitted)

    found = bounded(trials, audit, scored, delta=delta, seed=seed, reporter=reporter)
    scores, done = found.scores, found.done
    warnings = warnings_of(scores)
    game: dict[str, Plain] = {
        "mechanism": path,
        "canary": "as the mechanism has it: the worlds are its own",
        "neighbours": "as the mechanism has it",
        "adversary": "whoever sees what a run answers",
        "score": SCORES["fitted"] if scores.fitted else "the mechanism's own",
        "runs_in": len(scores.in_scores),
        "runs_out": len(scores.out_scores),
        **fitted_facts(scores.fitted),
        **({"stopped": done.stopped, "runs_asked": audit.runs} if done.stopped else {}),
    }
    privacy = section(
        Theory(),
        found.bounds,
        claimed=epsilon,
        delta=delta,
        confidence=audit.confidence,
        adversary="whoever sees the view",
        neighbours="its own",
    )
    note = "the claimed curve is the least that an (epsilon, delta) mechanism may have"
    result = AuditResult(
        method=path,
        dataset="its own",
        adversary="the view's owner",
        game=game,
        privacy=privacy,
        exactly_gaussian=exactly_gaussian,
        sentence=_sentence(path, privacy, audit) + "".join(f" Warning: {warning}." for warning in warnings),
        warnings=warnings,
        tradeoff=tradeoff_of(
            scores, (epsilon, delta), Theory(), of_method=False, confidence=audit.confidence, note=note
        ),
        by_runs=bounds_by_runs(scores, delta=delta, confidence=audit.confidence, seed=seed),
        seed=seed,
        compute={
            "device": "cpu",
            "audit_chunk": audit.chunk,
            "workers": audit.workers.words(),
            **memory_section(done),
            **({"not_kept": not_kept} if not_kept else {}),
        },
        versions=versions(),
    )
    result = result.model_copy(update={"published": published_by_simulation(result, None)})
    return AuditOutcome(result, score_files(scores), found.forget)


def _kept(trials: MechanismTrials, audit: AuditPlan) -> tuple[AuditPlan, str]:
    """Return the plan without a place for chunks, and why, where they could be taken for those of other files."""
    try:
        trials.facts()
    except Undigested as why:
        if audit.resume:
            raise InputError(f"‹resume›: what the mechanism depends on cannot be told: {why}") from None
        return replace(audit, folder=None), str(why)
    return audit, ""


def _sentence(path: str, privacy: Privacy, audit: AuditPlan) -> str:
    lower, epsilon = privacy.empirical_lower or 0.0, privacy.claimed
    ceiling = max(bound.ceiling for bound in privacy.estimators if can_refute(bound))
    rests = f", {privacy.given}" if privacy.given and lower > 0.0 else ""
    text = f"The audit certifies epsilon of at least {down(lower)} for {path} at {percent(audit.confidence)}{rests}"
    if epsilon is not None:
        refutes = lower > epsilon
        text += f"{',' if rests else ''} and {'refutes' if refutes else 'does not refute'} the claimed epsilon of "
        text += f"{epsilon:g}{'' if refutes else ', which confirms nothing'}"
    return f"{text}; so many runs could certify at most {down(ceiling)}."
