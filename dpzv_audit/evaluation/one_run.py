"""Audits a configuration from one training with many canaries: the `result.json` of `audit --canaries M`."""

from __future__ import annotations

from dpzv_audit.auditing import audit_scores
from dpzv_audit.auditing.games.definition import CANARIES
from dpzv_audit.auditing.games.one_run import play_one_run
from dpzv_audit.auditing.games.outcome import GameScores
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evaluation.auditing import AuditOutcome
from dpzv_audit.evaluation.common import AuditPlan, Reporter, silent
from dpzv_audit.evaluation.lower import score_files
from dpzv_audit.evaluation.privacy import privacy_of
from dpzv_audit.evaluation.sections import provenance
from dpzv_audit.evaluation.sentences import privacy_sentence
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig

ESTIMATORS = ("one-run", "one-run-fdp")


def one_run_outcome(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    canaries: int,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> AuditOutcome:
    """Train once with `canaries` coin-flip labels and set what the guesses prove beside every upper bound."""
    if not isinstance(config, DPZVConfig):
        raise InputError(f"--method is {method.name!r}, which adds no noise: there is no epsilon to audit")
    if audit.canary != "worst-case" or audit.neighbours != "replace-label" or audit.others != "zero":
        raise InputError("--canaries is a game of worst-case canaries whose labels are replaced, the others at zero")
    stage = (reporter or silent()).stage("one training", 1)
    played = play_one_run(config, dataset, canaries=canaries, adversary=adversary, seed=seed, device=device)
    stage(1)
    if played.plan.sigma == 0.0:
        raise InputError("the noise is 0 (sigma 0 or calibration none): there is no epsilon to audit")
    inside, outside = played.sides
    if not (len(inside) and len(outside)):
        raise InputError(f"--canaries is {canaries}: all coins fell alike, must be more")
    bounds = audit_scores(
        inside,
        outside,
        delta=config.delta,
        confidence=audit.confidence,
        estimators=ESTIMATORS,
        coin_flips=True,
        seed=seed,
    )
    scores = GameScores(outside, inside, "one-run", saturated=played.saturated)
    privacy, _ = privacy_of(
        config,
        played.plan.release(config, len(dataset.train)),
        played.plan,
        scores,
        adversary=adversary,
        neighbours=audit.neighbours,
        confidence=audit.confidence,
        why_not="",
        seed=seed,
        estimators=bounds,
    )
    result = {
        "schema": "dpzv-audit/audit/1",
        "method": method.name,
        "dataset": dataset.name,
        "adversary": adversary,
        "game": {
            "mechanism": "one real training",
            "canary": f"{canaries} worst-case records ({CANARIES['worst-case']}), labels by fair coins",
            "neighbours": audit.neighbours,
            "adversary": adversary,
            "score": "best linear guess of every coin from the scalars of known batches",
            "canaries": canaries,
            "label_1": len(inside),
            "label_0": len(outside),
            "rounds_seen": played.rounds_seen,
            "saturated": "yes" if played.saturated else "no: the server undid it",
        },
        "privacy": privacy,
        "sentence": privacy_sentence(privacy),
        "tradeoff": None,  # the canaries of one training depend on each other, so their scores have no band
        "protects": method.protects(config),
        **provenance(config, dataset, seed, device, None),
    }
    return AuditOutcome(result, score_files(scores), lambda: None)
