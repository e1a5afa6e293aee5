"""The privacy section of a result: the claim, upper bounds, lower bounds and trade-off curves against an adversary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from mechanisms import MethodSpec, Training, TrainingConfig
from mechanisms.core.context import Deployment, Plan
from mechanisms.core.defence import label_release
from mechanisms.core.scalars import ScalarConfig, scalar_config, scalar_release

from ..accounting import Release, gaps_of
from ..accounting.labels import LabelRelease
from ..base.findings import AdversaryName, EmpiricalBound, NeighbourRelation, Void
from ..games.game import Game, GameAdversary
from ..games.messages import READ
from ..games.real import RealTrials
from ..results import Privacy, Tradeoff
from ..statistics.tradeoff import empirical_tradeoff
from .bounding import NEIGHBOURS, AuditPlan, Bounded, bounded_by
from .games import account, theory_of, unaccounted, voids_of, voids_of_release
from .sentences import said
from .verdict import (
    NO_PROMISE,
    NO_RELEASE,
    Theory,
    given_by,
    largest_gating,
    on_privacy,
    theory_curves,
)

_UNAUDITED = (
    "the label game is played on the scalar channel with a client's known batches; this adversary is not audited"
)


_LABELS_UNAUDITED = (
    "labels are privatised before training: the game of labels that an attack plays bounds epsilon from below"
)


@dataclass(frozen=True)
class Claimed:
    """The claim about a training or a mechanism, the adversary, and what may differ between the two worlds."""

    epsilon: float | None
    delta: float | None
    adversary: str
    neighbours: str


def privacy_sections(
    training: Training,
    adversary: AdversaryName,
    plan: Plan | None,
    audit: AuditPlan,
    *,
    deployment: Deployment | None = None,
    repeats: int = 1,
    warnings: Sequence[str] = (),
) -> tuple[Privacy, Tradeoff | None]:
    """Return the claim, upper bounds and lower bound against one adversary, and the trade-off curves of all three.

    `deployment` says more of a training that is published. `warnings` are those of the training, which the verdict
    repeats.
    """
    method = training.method
    config = training.config
    deployment = deployment or training.deployment()
    labels = label_release(config.defences)
    if labels is not None:
        return _of_labels(training, deployment, labels, adversary, warnings=warnings), None
    noised = scalar_config(method, config)
    if noised is None and adversary in method.protection(config).audience:
        return section_of_channel(training, deployment, adversary, warnings=warnings), None
    if noised is None or plan is None or plan.sigma == 0.0:
        method.check_noise(config, clients=deployment.clients)
        protection = method.protection(config)
        claims = noised.calibration != "none" if noised is not None else bool(protection.not_released)
        epsilon = protection.epsilon if claims else None
        delta = protection.delta if noised is not None or claims else None
        theory = unaccounted(method, config)
        if any(defence.place == "gradient" for defence in config.defences):
            theory = Theory(applies=True, unaccounted=NO_PROMISE)
        return section(theory, Claimed(epsilon, delta, adversary, NEIGHBOURS), warnings=warnings), None
    if audit.runs and adversary in ("client", "colluding-clients"):
        game = game_of(method, noised, adversary, audit, repeats)
        trials = RealTrials(game, training.dataset, training.seed, training.device)
        bounded = bounded_by(trials, audit, delta=noised.delta)
        return privacy_of(noised, adversary, NEIGHBOURS, plan, deployment, bounded, warnings=warnings)
    why_not = _UNAUDITED if audit.runs else "no audit was asked for"
    unaudited: dict[str, Any] = {"confidence": audit.confidence, "not_audited": why_not}
    return privacy_of(noised, adversary, NEIGHBOURS, plan, deployment, warnings=warnings, **unaudited)


def game_of(method: MethodSpec, config: ScalarConfig, adversary: str, audit: AuditPlan, repeats: int = 1) -> Game:
    """Return the game that `audit` asks for; `InputError` where there is none."""
    return Game(
        method=method,
        config=config,
        adversary=cast(GameAdversary, adversary),
        neighbours=audit.neighbours,
        canary=audit.canary,
        others=audit.others,
        first_pass_repeats=repeats,
        norm=audit.norm,
    )


def privacy_of(
    config: ScalarConfig,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    plan: Plan,
    deployment: Deployment,
    bounded: Bounded | None = None,
    **more: Any,
) -> tuple[Privacy, Tradeoff | None]:
    """Return the privacy section and the trade-off curves of a training and, if there was an audit, of what it proved.

    `more` are further arguments of `section`: without an audit the `confidence` that was asked for, and why there was
    none as `not_audited`.
    """
    claim = Claimed(config.epsilon, config.delta, adversary, neighbours)
    release = scalar_release(config, plan, deployment)
    # Where certified bounds decide the claim, nothing is composed.
    theory = account(release, adversary, neighbours, config.delta, enough=config.epsilon)
    facts = {
        "sigma": plan.sigma,
        "noise": release.noise,
        "noise_multiplier": release.noise_multiplier(neighbours),
        "rounds": len(plan.active),
        "rounds_by_client": list(plan.rounds_by_client),
        "participations": plan.participations,
    }
    privacy = section(theory, claim, bounded, release=facts, **more)
    if bounded is None:
        return privacy, None
    note = said("curves", bounded.scores.participations, plan.participations)
    return privacy, tradeoff_of(bounded, claim, theory, of_method=True, note=note)


def section(
    theory: Theory,
    claim: Claimed,
    bounded: Bounded | None = None,
    *,
    confidence: float | None = None,
    voids: Sequence[Void] = (),
    not_tested: Sequence[str] = (),
    warnings: Sequence[str] = (),
    **more: Any,
) -> Privacy:
    """Return what theory and an audit say of a claim, and the verdict.

    With `confidence`, by default the audit's, also what the audit takes as given. `voids`, `not_tested` and `warnings`
    are those of the verdict.
    """
    estimators: list[EmpiricalBound] = []
    if bounded is not None:
        estimators = list(bounded.bounds)
        confidence = bounded.plan.confidence
        warnings = [*warnings, *bounded.scores.warnings]
    if confidence is not None:
        more |= {"confidence": confidence, "given": given_by(estimators)}
    privacy = Privacy(
        claimed=claim.epsilon,
        upper=theory.upper,
        gap=more.pop("gap", theory.gap or None),
        empirical_lower=largest_gating(estimators),
        delta=claim.delta,
        adversary=claim.adversary,
        neighbours=claim.neighbours,
        bounds=list(theory.bounds),
        estimators=estimators,
        gap_explanations=theory.explanations,
        **more,
    )
    return on_privacy(
        privacy, theory=theory.applies, stated=theory.stated, voids=voids, not_tested=not_tested, warnings=warnings
    )


def privacy_of_system(training: Training, adversary: AdversaryName, bounded: Bounded, epsilon: float | None) -> Privacy:
    """Return what a system states and what a game of its labels found, beside a claimed `epsilon`.

    Theory speaks where the system states a release that stands against the adversary, and of nothing else.
    """
    method = training.method
    protection = method.protection(training.config)
    if adversary in protection.audience and protection.neighbours == NEIGHBOURS:
        return section_of_channel(training, training.deployment(), adversary, bounded, epsilon)
    return section(
        Theory(unaccounted=NO_RELEASE),
        Claimed(epsilon, protection.delta, adversary, NEIGHBOURS),
        bounded,
        voids=voids_of(method, training.dataset.clients, READ),
        not_tested=method.capabilities.not_made,
    )


def _of_labels(
    training: Training,
    deployment: Deployment,
    labels: LabelRelease,
    adversary: AdversaryName,
    *,
    warnings: Sequence[str] = (),
) -> Privacy:
    """Return the claim and the upper bounds of labels that are privatised once, before training.

    Those of noise that the method adds too count where they hold of private labels: see `own_release`.
    """
    method, config = training.method, training.config
    delta = labels.delta or method.protection(config).delta
    bounds = [labels.bound(adversary, NEIGHBOURS, delta, seeded=deployment.seeded_noise)]
    own = own_release(method, config, deployment)
    if own is not None:
        bounds += account(own, adversary, NEIGHBOURS, delta, enough=labels.epsilon).bounds
    return section(
        Theory(applies=True, bounds=tuple(bounds)),
        Claimed(labels.epsilon, delta, adversary, NEIGHBOURS),
        release={"defences": [defence.model_dump(mode="json") for defence in config.defences]},
        not_audited=_LABELS_UNAUDITED,
        warnings=warnings,
    )


def own_release(method: MethodSpec, config: TrainingConfig, deployment: Deployment) -> Release | None:
    """Return the release of the noise that a method adds to private labels, where its bound holds of true ones too.

    It does where a label that is replaced moves no other record's private label (`LabelRelease.by_record`); None
    elsewhere, and where no noise is asked for.
    """
    labels = label_release(config.defences)
    if labels is None or not labels.by_record or not method.protection(config).draws:
        return None
    return next(iter(method.releases(config, deployment)), None)


def section_of_channel(
    training: Training,
    deployment: Deployment,
    adversary: AdversaryName,
    bounded: Bounded | None = None,
    epsilon: float | None = None,
    *,
    warnings: Sequence[str] = (),
) -> Privacy:
    """Return the claim and the upper bounds of noise on embeddings or gradients, which stands against `adversary`.

    `epsilon` is claimed where the configuration claims none; `bounded` is what an audit proved.
    """
    method, config = training.method, training.config
    noise = method.protection(config)
    relation = noise.neighbours
    claim = Claimed(noise.epsilon if epsilon is None else epsilon, noise.delta, adversary, relation)
    theory = theory_of(method, config, deployment, adversary=adversary, neighbours=relation, delta=noise.delta)
    if theory.unaccounted:
        return section(theory, claim, bounded, warnings=warnings)
    (release,) = method.releases(config, deployment)
    gaps = gaps_of(release, adversary, relation)
    gap = None
    if theory.tightest is None:
        gap = ", ".join(gaps) or next((bound.gap for bound in theory.bounds if bound.gap), None)
    stated = ("channel", "sigma", "noise", "clip", "rounds", "participations")
    facts = {
        **{name: getattr(release, name) for name in stated},
        "noise_multiplier": release.noise_multiplier(relation),
        "words": said("channel", release, adversary, relation, gaps),
    }
    more: dict[str, Any] = {} if bounded is not None else {"not_audited": method.games(config).why_not}
    return section(
        theory,
        claim,
        bounded,
        gap=gap,
        release=facts,
        voids=[*voids_of_release(method), *voids_of(method, deployment.clients, READ)],
        not_tested=method.capabilities.not_made,
        warnings=warnings,
        **more,
    )


def tradeoff_of(bounded: Bounded, claim: Claimed, theory: Theory, *, of_method: bool, note: str) -> Tradeoff:
    """Return the curves of the claimed (epsilon, delta), of the sound bound and of the scores on one grid."""
    assert claim.delta is not None
    curve = empirical_tradeoff(*bounded.scores.sides, confidence=bounded.plan.confidence)
    curves = theory_curves(curve.alpha, theory, epsilon=claim.epsilon, delta=claim.delta, of_method=of_method)
    return Tradeoff(**vars(curve), **curves, note=note)
