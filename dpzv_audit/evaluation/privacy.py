"""The privacy section of a result: the claim, upper bounds, lower bounds and trade-off curves against an adversary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from dpzv_audit.accounting import (
    GAPS,
    Release,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    tightest_sound,
    upper_bounds,
)
from dpzv_audit.auditing import can_refute
from dpzv_audit.auditing.games.definition import Canary, Game, Neighbours, Others, as_game_adversary
from dpzv_audit.auditing.games.outcome import GameScores, outcome_of
from dpzv_audit.auditing.games.real import RealTrials
from dpzv_audit.auditing.tradeoff import claimed_curve, empirical_tradeoff
from dpzv_audit.auditing.verdict import GIVEN_GAUSSIAN, largest_gating, refuted_given, verdict_on
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.channels import channel_section
from dpzv_audit.evaluation.common import NEIGHBOURS, AuditPlan, Reporter, silent
from dpzv_audit.evaluation.lower import collected, lower_bounds
from dpzv_audit.evidence import AdversaryName, EmpiricalBound, NeighbourRelation, UpperBound
from dpzv_audit.results import Privacy, Tradeoff
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig
from mechanisms.context import Deployment, Plan
from mechanisms.dpzv import scalar_config, scalar_release

NO_NOISE = "no-noise"
_NO_NOISE_WHY = "no noise is added to what the server sends, so no upper bound is known"
_UNAUDITED = (
    "the label game is played on the scalar channel with a client's known batches; this adversary is not audited"
)


def privacy_sections(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    the_plan: Plan | None,
    *,
    adversary: str,
    audit: AuditPlan,
    repeats: int = 1,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
    seeded_noise: bool = False,
) -> tuple[Privacy, Tradeoff | None]:
    """The claim, the upper bounds and the lower bound against one adversary, and the trade-off curves of all three.

    `seeded_noise` says that the training is released and its noise is not: see `dpzv_audit.accounting.Release`.
    """
    deployment = Deployment(
        records=len(dataset.train),
        clients=dataset.clients,
        seed=seed,
        seeded_noise=seeded_noise,
        data_dependent_side=bool(dataset.fitted),
    )
    noised = scalar_config(method, config)
    facing = next((name for name in method.protection(config).audience if name == adversary), None)
    if noised is None and facing is not None:
        return channel_section(method, config, deployment, adversary=facing), None
    if noised is None or the_plan is None or the_plan.sigma == 0.0:
        method.check_noise(config, clients=dataset.clients)
        return _without_noise(noised, adversary), None
    scores = None
    if audit.runs and adversary in ("client", "colluding-clients"):
        game = game_of(method, noised, adversary, audit, repeats)
        trials = RealTrials(game, dataset, seed, device)
        done, _ = collected(trials, audit, reporter or silent(), noised.delta)
        scores = outcome_of(trials, done.arrays)
    release = scalar_release(noised, the_plan, deployment)
    return privacy_of(
        noised,
        release,
        the_plan,
        scores,
        adversary=adversary,
        neighbours=NEIGHBOURS,
        confidence=audit.confidence,
        why_not=_UNAUDITED if audit.runs else "no audit was asked for",
        seed=seed,
    )


def game_of(method: MethodSpec, config: DPZVConfig, adversary: str, audit: AuditPlan, repeats: int = 1) -> Game:
    """The game that `audit` asks for; `InputError` where there is none."""
    return Game(
        method=method,
        config=config,
        adversary=as_game_adversary(adversary),
        neighbours=cast(Neighbours, audit.neighbours),
        canary=cast(Canary, audit.canary),
        others=cast(Others, audit.others),
        first_pass_repeats=repeats,
        norm=audit.norm,
    )


def privacy_of(
    config: DPZVConfig,
    release: Release,
    the_plan: Plan,
    scores: GameScores | None,
    *,
    adversary: str,
    neighbours: str,
    confidence: float,
    why_not: str,
    seed: int = 0,
    estimators: tuple[EmpiricalBound, ...] | None = None,
) -> tuple[Privacy, Tradeoff | None]:
    """The privacy section and the trade-off curves from a release and, if there was an audit, its scores.

    `estimators` are the lower bounds where they do not follow from the scores by `lower_bounds`.
    """
    relation = cast(NeighbourRelation, neighbours)
    bounds = upper_bounds(
        release,
        delta=config.delta,
        adversaries=[cast(AdversaryName, adversary)],
        neighbours=[relation],
        enough=config.epsilon,  # where certified bounds decide the claim, nothing is composed
    )
    tightest = tightest_sound(bounds)
    upper = tightest.epsilon.upper if tightest and tightest.epsilon else None
    if estimators is None:
        estimators = lower_bounds(scores, delta=config.delta, confidence=confidence, seed=seed) if scores else ()
    gating = [bound for bound in estimators if can_refute(bound)]
    lower = largest_gating(estimators)
    privacy = Privacy(
        claimed=config.epsilon,
        upper=upper,
        gap=None if tightest else _gap_of(bounds),
        empirical_lower=lower,
        delta=config.delta,
        confidence=confidence,
        adversary=adversary,
        neighbours=neighbours,
        verdict=_verdict(lower, config.epsilon),
        conclusion=None if config.epsilon is None else verdict_on(config.epsilon, lower, upper),
        given=given(gating),
        verdict_given=None if config.epsilon is None else refuted_given(config.epsilon, gating),
        bounds=bounds,
        estimators=list(estimators),
        gap_explanations=_explained(bounds),
        release=_release_facts(release, the_plan, relation),
    )
    if scores is None:
        privacy = privacy.model_copy(update={"not_audited": why_not})
    return privacy, _tradeoff(config, tightest, scores, confidence)


def _without_noise(config: DPZVConfig | None, adversary: str) -> Privacy:
    return Privacy(
        claimed=config.epsilon if config is not None and config.calibration != "none" else None,
        upper=None,
        gap=NO_NOISE,
        empirical_lower=None,
        delta=config.delta if config is not None else None,
        adversary=adversary,
        neighbours=NEIGHBOURS,
        verdict=None,
        bounds=[],
        estimators=[],
        gap_explanations={NO_NOISE: _NO_NOISE_WHY},
    )


def _release_facts(release: Release, the_plan: Plan, neighbours: NeighbourRelation) -> dict[str, object]:
    return {
        "sigma": the_plan.sigma,
        "noise": release.noise,
        "noise_multiplier": release.noise_multiplier(neighbours),
        "rounds": len(the_plan.active),
        "rounds_by_client": list(the_plan.rounds_by_client),
        "participations": the_plan.participations,
    }


def _gap_of(bounds: list[UpperBound]) -> str | None:
    """The gap of the exact bound, the one that would be sound without it."""
    return next((b.gap for b in bounds if b.accountant == "gdp-exact"), None)


def _explained(bounds: list[UpperBound]) -> dict[str, str]:
    names = [name.strip() for bound in bounds if bound.gap for name in bound.gap.split(",")]
    return {name: GAPS[name] for name in dict.fromkeys(names) if name in GAPS}


def _verdict(lower: float | None, claimed: float | None) -> Literal["refuted", "not refuted"] | None:
    if lower is None or claimed is None:
        return None
    return "refuted" if lower > claimed else "not refuted"


def given(gating: Sequence[EmpiricalBound]) -> str | None:
    """Return what the lower bound takes as given: Gaussian noise where one on a trade-off curve is the largest."""
    best = max(gating, key=lambda bound: bound.epsilon_lower, default=None)
    return GIVEN_GAUSSIAN if best is not None and best.claim_kind == "trade-off" else None


def _tradeoff(
    config: DPZVConfig, tightest: UpperBound | None, scores: GameScores | None, confidence: float
) -> Tradeoff | None:
    """Curves on one grid of false positive rates; None without an audit."""
    if scores is None:
        return None
    curve = empirical_tradeoff(scores.in_scores, scores.out_scores, confidence=confidence)
    alpha = np.asarray(curve.alpha)
    claimed = claimed_curve(curve.alpha, config.epsilon, config.delta, of_method=True)
    recomputed = None
    if tightest is not None and tightest.mu is not None:
        recomputed = gaussian_tradeoff(alpha, tightest.mu).tolist()
    elif tightest is not None and tightest.epsilon is not None:
        recomputed = epsilon_delta_tradeoff(alpha, tightest.epsilon.upper, config.delta).tolist()
    return Tradeoff(
        alpha=list(curve.alpha),
        claimed=claimed,
        recomputed=recomputed,
        empirical=list(curve.beta),
        empirical_low=list(curve.beta_low),
        empirical_high=list(curve.beta_high),
        confidence=curve.confidence,
        note="the claimed curve is the Gaussian one (mu-GDP) that goes through the claimed (epsilon, delta), "
        f"as theorem 5.1 claims it; {seen_in_words(scores)}, and the recomputed curve counts the rounds of all clients",
    )


def seen_in_words(scores: GameScores) -> str:
    """How often the adversary saw the canary."""
    if scores.participations is None:
        return "the adversary did not know which rounds held the canary"
    low, high = scores.participations
    seen = str(low) if low == high else f"{low} to {high}"
    return f"the adversary saw the canary in {seen} of its own rounds"
