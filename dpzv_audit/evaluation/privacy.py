"""The privacy section of a result: the claim, upper bounds, lower bounds and trade-off curves against an adversary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from dpzv_audit.accounting import gaps_of
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evidence.bounding import NEIGHBOURS, AuditPlan, Reporter, bounded
from dpzv_audit.evidence.games import account, recomputed_curve
from dpzv_audit.evidence.verdict import NO_NOISE, Theory, given_by, largest_gating, refuted_given, verdict_on
from dpzv_audit.findings import AdversaryName, EmpiricalBound, NeighbourRelation
from dpzv_audit.games.game import Canary, Game, Neighbours, Others, as_game_adversary
from dpzv_audit.games.outcome import GameScores, outcome_of
from dpzv_audit.games.real import RealTrials
from dpzv_audit.results import Privacy, Tradeoff
from dpzv_audit.statistics import can_refute
from dpzv_audit.statistics.tradeoff import claimed_curve, empirical_tradeoff
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig
from mechanisms.core.context import Deployment, Plan
from mechanisms.methods.dpzv import scalar_config, scalar_release

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
        return _of_channel(method, config, deployment, facing), None
    if noised is None or the_plan is None or the_plan.sigma == 0.0:
        method.check_noise(config, clients=dataset.clients)
        nothing = Theory(applies=True, unaccounted=NO_NOISE)
        claimed = noised.epsilon if noised is not None and noised.calibration != "none" else None
        delta = noised.delta if noised is not None else None
        return section(nothing, claimed=claimed, delta=delta, adversary=adversary, neighbours=NEIGHBOURS), None
    found = None
    if audit.runs and adversary in ("client", "colluding-clients"):
        game = game_of(method, noised, adversary, audit, repeats)
        trials = RealTrials(game, dataset, seed, device)
        scored = partial(outcome_of, trials)
        found = bounded(trials, audit, scored, delta=noised.delta, seed=seed, reporter=reporter)
    return privacy_of(
        noised,
        the_plan,
        deployment,
        None if found is None else found.scores,
        () if found is None else found.bounds,
        adversary=adversary,
        neighbours=NEIGHBOURS,
        confidence=audit.confidence,
        why_not=_UNAUDITED if audit.runs else "no audit was asked for",
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
    the_plan: Plan,
    deployment: Deployment,
    scores: GameScores | None,
    estimators: Sequence[EmpiricalBound],
    *,
    adversary: str,
    neighbours: str,
    confidence: float,
    why_not: str = "",
) -> tuple[Privacy, Tradeoff | None]:
    """The privacy section and the trade-off curves of a training and, if there was an audit, its scores and bounds."""
    release, relation = scalar_release(config, the_plan, deployment), cast(NeighbourRelation, neighbours)
    theory = account(
        release,
        adversary=cast(AdversaryName, adversary),
        neighbours=relation,
        delta=config.delta,
        enough=config.epsilon,  # where certified bounds decide the claim, nothing is composed
    )
    facts = {
        "sigma": the_plan.sigma,
        "noise": release.noise,
        "noise_multiplier": release.noise_multiplier(relation),
        "rounds": len(the_plan.active),
        "rounds_by_client": list(the_plan.rounds_by_client),
        "participations": the_plan.participations,
    }
    privacy = section(
        theory,
        estimators,
        claimed=config.epsilon,
        delta=config.delta,
        confidence=confidence,
        adversary=adversary,
        neighbours=neighbours,
        release=facts,
        **({"not_audited": why_not} if scores is None else {}),
    )
    if scores is None:
        return privacy, None
    note = (
        "the claimed curve is the Gaussian one (mu-GDP) that goes through the claimed (epsilon, delta), as theorem 5.1 "
        f"claims it; {seen_in_words(scores)}, and the recomputed curve counts the rounds of all clients"
    )
    claim = (config.epsilon, config.delta)
    return privacy, tradeoff_of(scores, claim, theory, of_method=True, confidence=confidence, note=note)


def section(
    theory: Theory,
    estimators: Sequence[EmpiricalBound] = (),
    *,
    claimed: float | None,
    delta: float | None,
    adversary: str,
    neighbours: str,
    confidence: float | None = None,
    **more: Any,
) -> Privacy:
    """Return what theory and estimators say of a claim; with `confidence`, that of an audit, also the verdict."""
    gating, lower = [bound for bound in estimators if can_refute(bound)], largest_gating(estimators)
    if confidence is not None:
        verdict = None if claimed is None else verdict_on(claimed, lower, theory.upper, theory=theory.applies)
        more = {
            "confidence": confidence,
            "conclusion": verdict,
            "given": given_by(gating),
            "verdict_given": None if claimed is None else refuted_given(claimed, gating),
            **more,
        }
    refuted = None if lower is None or claimed is None else "refuted" if lower > claimed else "not refuted"
    return Privacy(
        claimed=claimed,
        upper=theory.upper,
        gap=more.pop("gap", theory.gap or None),
        empirical_lower=lower,
        delta=delta,
        adversary=adversary,
        neighbours=neighbours,
        verdict=refuted,
        bounds=list(theory.bounds),
        estimators=list(estimators),
        gap_explanations=theory.explanations,
        **more,
    )


def _of_channel(
    method: MethodSpec, config: TrainingConfig, deployment: Deployment, adversary: AdversaryName
) -> Privacy:
    """The claim and the upper bounds of noise on embeddings or gradients, which stands against `adversary`."""
    noise, releases = method.protection(config), method.releases(config, deployment)
    if not releases:
        nothing = Theory(applies=True, unaccounted=NO_NOISE)
        return section(
            nothing, claimed=noise.epsilon, delta=noise.delta, adversary=adversary, neighbours=noise.neighbours
        )
    (release,) = releases
    gaps = gaps_of(release, adversary, noise.neighbours)
    theory = account(release, adversary=adversary, neighbours=noise.neighbours, delta=noise.delta)
    rests = f"rests on the gap {', '.join(gaps)}" if gaps else "sound"
    return section(
        theory,
        claimed=noise.epsilon,
        delta=noise.delta,
        adversary=adversary,
        neighbours=noise.neighbours,
        gap=None if theory.tightest else ", ".join(gaps) or next((b.gap for b in theory.bounds if b.gap), None),
        release={
            "channel": release.channel,
            "sigma": release.sigma,
            "noise": release.noise,
            "clip": release.clip,
            "noise_multiplier": release.noise_multiplier(noise.neighbours),
            "rounds": release.rounds,
            "participations": release.participations,
            "words": f"noise of standard deviation {release.sigma:.6g} on every coordinate of a row clipped to "
            f"{release.clip:g}, {release.channel} channel, against the {adversary}, {noise.neighbours}: {rests}",
        },
        not_audited="the label game is played on the scalar channel; noise on another is accounted, not audited",
    )


def tradeoff_of(
    scores: GameScores,
    claim: tuple[float | None, float],
    theory: Theory,
    *,
    of_method: bool,
    confidence: float,
    note: str,
) -> Tradeoff:
    """Return the curves of the claimed (epsilon, delta), of the sound bound and of the scores on one grid."""
    curve = empirical_tradeoff(scores.in_scores, scores.out_scores, confidence=confidence)
    return Tradeoff(
        alpha=list(curve.alpha),
        claimed=claimed_curve(curve.alpha, *claim, of_method=of_method),
        recomputed=recomputed_curve(curve.alpha, theory, claim[1]),
        empirical=list(curve.beta),
        empirical_low=list(curve.beta_low),
        empirical_high=list(curve.beta_high),
        confidence=curve.confidence,
        note=note,
    )


def seen_in_words(scores: GameScores) -> str:
    """How often the adversary saw the canary."""
    if scores.participations is None:
        return "the adversary did not know which rounds held the canary"
    low, high = scores.participations
    seen = str(low) if low == high else f"{low} to {high}"
    return f"the adversary saw the canary in {seen} of its own rounds"


def noised(method: MethodSpec, config: TrainingConfig) -> DPZVConfig:
    """`config` of a method that adds noise of its own; `InputError` for another."""
    found = scalar_config(method, config)
    if found is None and method.protection(config).draws:
        why = method.games(config).why_not or "it states a release of its own, and games on scalars speak of DPZV's"
        raise InputError(f"must be another: {why}", "method", method.name)
    if found is None:
        raise InputError(
            "which adds no noise: there is no epsilon to bound; give dpzv or dpzv-sound", "method", method.name
        )
    return found


def check_noise(sigma: float) -> None:
    """Raise `InputError` where a configuration that may add noise adds none."""
    if sigma == 0.0:
        raise InputError(
            "the noise is 0 (‹sigma› 0 or ‹calibration› none), must be above 0: there is no epsilon to bound"
        )
