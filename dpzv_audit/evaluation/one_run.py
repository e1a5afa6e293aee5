"""Audits a configuration from one training with many canaries: the `result.json` of `audit` with `canaries`."""

from __future__ import annotations

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evaluation.auditing import AuditOutcome
from dpzv_audit.evaluation.common import check_noise, noised
from dpzv_audit.evaluation.privacy import privacy_of
from dpzv_audit.evaluation.published import noise_section, published_by_simulation
from dpzv_audit.evaluation.sections import provenance
from dpzv_audit.evaluation.sentences import privacy_sentence
from dpzv_audit.evidence.bounding import AuditPlan, Reporter, score_files, silent
from dpzv_audit.games.game import CANARIES
from dpzv_audit.games.outcome import GameScores
from dpzv_audit.games.worst_case import play_one_run
from dpzv_audit.results import AuditResult
from dpzv_audit.statistics import audit_scores
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.context import Deployment

ESTIMATORS = ("one-run", "one-run-fdp")
_OF_ONE_RUN = {"canary": "worst-case", "neighbours": "replace-label", "others": "zero"}
"""What the game of one training is, by flag."""


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
    config = noised(method, config)
    for field, given in (("canary", audit.canary), ("neighbours", audit.neighbours), ("others", audit.others)):
        if given != _OF_ONE_RUN[field]:
            raise InputError(f"must be {_OF_ONE_RUN[field]} with ‹canaries›", field, given)
    stage = (reporter or silent()).stage("one training", 1)
    played = play_one_run(method, config, dataset, canaries=canaries, adversary=adversary, seed=seed, device=device)
    stage(1)
    check_noise(played.plan.sigma)
    inside, outside = played.sides
    if not (len(inside) and len(outside)):
        raise InputError(": all coins fell alike, must be more", "canaries", canaries)
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
    deployment = Deployment(
        records=len(dataset.train), clients=dataset.clients, data_dependent_side=bool(dataset.fitted)
    )
    privacy, _ = privacy_of(
        config,
        played.plan,
        deployment,
        scores,
        bounds,
        adversary=adversary,
        neighbours=audit.neighbours,
        confidence=audit.confidence,
    )
    result = AuditResult(
        method=method.name,
        dataset=dataset.name,
        adversary=adversary,
        game={
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
        privacy=privacy,
        noise=noise_section(method, config, None, seed),
        sentence=privacy_sentence(privacy),
        tradeoff=None,  # the canaries of one training depend on each other, so their scores have no band
        protects=method.protects(config),
        **vars(provenance(config, dataset, seed, device, None)),
    )
    result = result.model_copy(update={"published": published_by_simulation(result, config)})
    return AuditOutcome(result, score_files(scores), lambda: None)
