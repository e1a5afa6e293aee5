"""Plays a game on one configuration, trained or simulated: the `result.json` of `audit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.common import check_noise, noised
from dpzv_audit.evaluation.privacy import game_of, privacy_of
from dpzv_audit.evaluation.published import noise_section, published_by_simulation
from dpzv_audit.evaluation.sections import Provenance, provenance, versions
from dpzv_audit.evaluation.sentences import privacy_sentence
from dpzv_audit.evidence.bounding import (
    AuditPlan,
    Reporter,
    bounded,
    bounds_by_runs,
    memory_section,
    score_files,
    warnings_of,
    wealth_by_pairs,
)
from dpzv_audit.games.fitted import fitted_facts
from dpzv_audit.games.game import CANARIES, SCORES, Game
from dpzv_audit.games.outcome import GameScores, outcome_of
from dpzv_audit.games.real import RealTrials
from dpzv_audit.games.simulated import SimulatedTrials
from dpzv_audit.results import AuditResult, Data, Plain
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.context import Deployment, Plan


@dataclass(frozen=True)
class AuditOutcome:
    """A result, further files of its run folder by name, and what forgets the stored chunks once that is written."""

    result: AuditResult
    files: dict[str, bytes]
    forget: Callable[[], None]


def audit_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> AuditResult:
    """Play a game on real trainings and set the lower bound beside every upper bound; schema `dpzv-audit/audit/1`."""
    return audit_outcome(
        method, config, dataset, adversary=adversary, audit=audit, seed=seed, device=device, reporter=reporter
    ).result


def audit_outcome(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> AuditOutcome:
    """Like `audit_result`, with the scores as files."""
    game = game_of(method, noised(method, config), adversary, audit)
    trials = RealTrials(game, dataset, seed, device)
    check_noise(trials.plan.sigma)
    return _outcome(
        method,
        trials,
        trials.plan,
        audit,
        dataset.name,
        provenance(config, dataset, seed, device, audit.chunk),
        seed=seed,
        reporter=reporter,
    )


def simulated_outcome(
    method: MethodSpec,
    config: TrainingConfig,
    deployment: Deployment,
    *,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> AuditOutcome:
    """Play the worst-case game on simulated transcripts of a training of any size: scalars alone, nothing trained."""
    config = noised(method, config)
    game = game_of(method, config, adversary, audit)
    the_plan = method.scalar_plan(config, replace(deployment, seed=seed))
    check_noise(the_plan.sigma)
    trials = SimulatedTrials.of(game, the_plan, deployment.records, seed)
    facts = Provenance(
        config=config.model_dump(mode="json"),
        seed=seed,
        compute={"device": "cpu", "threads": 1, "audit_chunk": audit.chunk},
        data=Data(partition=f"simulated: {deployment.records:,} records, {deployment.clients} clients"),
        versions=versions(),
    )
    return _outcome(method, trials, the_plan, audit, "simulated", facts, seed=seed, reporter=reporter)


def _outcome(
    method: MethodSpec,
    trials: RealTrials | SimulatedTrials,
    the_plan: Plan,
    audit: AuditPlan,
    dataset: str,
    facts: Provenance,
    *,
    seed: int,
    reporter: Reporter | None,
) -> AuditOutcome:
    game = trials.game
    scored = partial(outcome_of, trials)
    found = bounded(trials, audit, scored, delta=game.config.delta, seed=seed, reporter=reporter)
    scores, done = found.scores, found.done
    warnings = warnings_of(scores)
    fitted = isinstance(trials, RealTrials) and bool(trials.dataset.fitted)
    deployment = Deployment(
        records=trials.sampling.records, clients=len(the_plan.rounds_by_client), data_dependent_side=fitted
    )
    privacy, tradeoff = privacy_of(
        game.config,
        the_plan,
        deployment,
        scores,
        found.bounds,
        adversary=game.adversary,
        neighbours=game.neighbours,
        confidence=audit.confidence,
    )
    compute = {**facts.compute, "workers": audit.workers.words(), **memory_section(done)}
    claimed, delta = game.config.epsilon, game.config.delta
    labels = trials.worlds.labels if isinstance(trials, RealTrials) else None
    stopped = {"stopped": done.stopped, "runs_asked": audit.runs} if done.stopped else {}
    result = AuditResult(
        method=method.name,
        dataset=dataset,
        adversary=game.adversary,
        game={**game_section(game, scores, labels), **stopped},
        privacy=privacy,
        noise=noise_section(method, game.config, None, seed),
        sentence=f"{privacy_sentence(privacy)}{_caveats(scores, audit, done.pairs, done.stopped)}"
        + "".join(f" Warning: {warning}." for warning in warnings),
        warnings=warnings,
        tradeoff=tradeoff,
        by_runs=bounds_by_runs(scores, delta=delta, confidence=audit.confidence, seed=seed),
        wealth=None
        if claimed is None
        else wealth_by_pairs(scores, epsilon=claimed, delta=delta, confidence=audit.confidence),
        protects=method.protects(game.config),
        **vars(replace(facts, compute=compute)),
    )
    result = result.model_copy(update={"published": published_by_simulation(result, game.config)})
    return AuditOutcome(result, score_files(scores), found.forget)


def game_section(game: Game, scores: GameScores, labels: tuple[int, int] | None) -> dict[str, Plain]:
    """What was played, in words and numbers; all five parts of the game stand in it. Without `labels`: simulated."""
    canary = f"{game.canary} (record {game.record}: {CANARIES[game.canary]}"
    if game.canary == "worst-case":
        canary += f"; the others contribute {'0' if game.others == 'zero' else '+C'}"
    section: dict[str, Plain] = {
        "mechanism": "scalars simulated without training" if labels is None else "real trainings",
        "canary": canary + ")",
        "neighbours": game.neighbours,
        "adversary": game.adversary,
        "score": SCORES[scores.kind],
        "runs_in": len(scores.in_scores),
        "runs_out": len(scores.out_scores),
    }
    if labels is not None and game.neighbours not in ("add-remove", "zero-out"):
        section["labels"] = f"{labels[0]} in the world 'out', {labels[1]} in 'in'"
    if scores.participations is not None:
        section["participations"] = "{} to {}".format(*scores.participations)
    if scores.saturated is not None:
        section["saturated"] = "yes, in every run" if scores.saturated else "no: the server undid it in some run"
    return section | fitted_facts(scores.fitted)


def _caveats(scores: GameScores, audit: AuditPlan, pairs: int, stopped: str | None) -> str:
    text = ""
    if scores.saturated is False:
        text += (
            " The canary did not saturate the clip throughout (saturated: no), "
            "so this audit sees less than the mechanism leaks."
        )
    if stopped:
        done = f"{pairs:,} of {audit.runs:,} runs in each world"
        text += f" The time limit ended it after {done}; it goes on where it is resumed."
    return text
