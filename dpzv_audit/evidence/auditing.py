"""Audits a configuration, a mechanism of the user's own or planted ones: the `result.json` of `audit`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.context import Deployment, Plan

from ..base.errors import InputError
from ..base.files import Undigested
from ..base.findings import EmpiricalBound, adversary_named
from ..data.vertical import VerticalDataset
from ..games.fitting import pilot_size
from ..games.game import CANARIES, CANARY, KNOWS_IDS, SCORES, Game
from ..games.hunting import hunted, variants_of
from ..games.labels import LabelTrials, private_labels
from ..games.mechanism import MechanismTrials
from ..games.planted import Planted
from ..games.real import RealTrials, play_one_run
from ..games.scores import GameScores
from ..games.system import FIT_TRAININGS, NEIGHBOURS, TRAININGS, SystemGame, given_labels, system_game
from ..games.transcript import DrawnTrials, SimulatedTrials
from ..results import AuditResult, Data, Plain, PlantedGame, PlantedResult, PlantedRow
from ..runs import versions
from ..statistics.estimators import audit_scores, can_refute
from .bounding import NEIGHBOURS as NEIGHBOURS_OF_LABELS
from .bounding import AuditPlan, Bounded, bounded, wealth_by_pairs
from .privacy import Claimed, check_noise, game_of, noised, privacy_of, privacy_of_system, section, tradeoff_of
from .sections import Case, Provenance, noise_of_simulation, provenance, published_by_simulation
from .sentences import said
from .verdict import Theory, decide, largest_gating

WHOEVER = "whoever sees the view"
"""Against whom a bound on a mechanism holds, which names no party: who sees what a run answers."""


@dataclass(frozen=True)
class AuditOutcome:
    """A result, and what it was made of: scores that are kept beside it, and stored chunks to forget at the end."""

    result: AuditResult
    found: Bounded


def audit_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    device: str = "cpu",
) -> AuditResult:
    """Play a game on real trainings and set the lower bound beside every upper bound; schema `dpzv-audit/audit/1`."""
    against = adversary_named(adversary)
    case = Case(method=method, config=config, dataset=dataset, adversary=against, seed=seed, device=device)
    return audit_outcome(case, audit).result


def audit_outcome(case: Case, audit: AuditPlan) -> AuditOutcome:
    """Like `audit_result`, with the scores."""
    trials = _trials_of(case, audit)
    check_noise(trials.plan.sigma)
    return _outcome(trials, trials.plan, case.deployment, audit, provenance(case, chunk=audit.chunk))


def _trials_of(case: Case, audit: AuditPlan) -> RealTrials:
    game = game_of(case.method, noised(case.method, case.config), case.adversary, audit)
    return RealTrials(game, case.dataset, case.seed, case.device)


def simulated_outcome(
    method: MethodSpec,
    config: TrainingConfig,
    deployment: Deployment,
    *,
    adversary: str,
    audit: AuditPlan,
) -> AuditOutcome:
    """Play the worst-case game on simulated transcripts of a training of any size: scalars alone, nothing trained."""
    config = noised(method, config)
    seed = deployment.seed
    game = game_of(method, config, adversary, audit)
    plan = method.scalar_plan(config, deployment)
    check_noise(plan.sigma)
    trials = SimulatedTrials.of(game, plan, deployment.records, seed)
    facts = Provenance(
        method=method.name,
        dataset="simulated",
        protects=method.protects(config),
        noise=noise_of_simulation(method, config, deployment),
        config=config.model_dump(mode="json"),
        seed=seed,
        compute={"device": "cpu", "threads": 1, "audit_chunk": audit.chunk},
        data=Data(partition=f"simulated: {deployment.records:,} records, {deployment.clients} clients"),
        versions=versions(),
    )
    return _outcome(trials, plan, deployment, audit, facts)


def _outcome(
    trials: RealTrials | SimulatedTrials,
    plan: Plan,
    deployment: Deployment,
    audit: AuditPlan,
    facts: Provenance,
) -> AuditOutcome:
    game = trials.game
    config = game.config
    found = bounded(trials, audit, delta=config.delta)
    privacy, tradeoff = privacy_of(config, game.adversary, game.neighbours, plan, deployment, found)
    scores = found.scores
    done = found.done
    assert done is not None
    caveats = said("caveats", scores.saturated, done.stopped, done.pairs, audit.runs)
    labels = trials.worlds.labels if isinstance(trials, RealTrials) else None
    wealth = wealth_by_pairs(scores, epsilon=config.epsilon, delta=config.delta, confidence=audit.confidence)
    facts = replace(facts, compute={**facts.compute, **found.compute})
    result = AuditResult(
        adversary=game.adversary,
        privacy=privacy,
        sentence=f"{said('privacy', privacy)} {caveats}".strip(),
        tradeoff=tradeoff,
        warnings=scores.warnings,
        game={**_game(game, scores, labels), **found.facts},
        by_runs=found.by_runs,
        wealth=wealth,
        **vars(facts),
    )
    return _published(result, config.sampler, found)


def _published(result: AuditResult, sampler: object, found: Bounded) -> AuditOutcome:
    published = published_by_simulation(result, sampler)
    return AuditOutcome(result.model_copy(update={"published": published}), found)


def _game(game: Game, scores: GameScores, labels: tuple[int, int] | None) -> dict[str, Plain]:
    """Return what is played, in words; all five parts of the game stand in it. Without `labels`: simulated."""
    canary = f"{game.canary} (record {CANARY}: {CANARIES[game.canary]}"
    if game.canary == "worst-case":
        canary += f"; the others contribute {'0' if game.others == 'zero' else '+C'}"
    section: dict[str, Plain] = {
        "mechanism": "scalars simulated without training" if labels is None else "real trainings",
        "canary": canary + ")",
        "neighbours": game.neighbours,
        "adversary": game.adversary,
        "score": SCORES[scores.kind],
        **scores.runs,
    }
    if labels is not None and game.neighbours not in ("add-remove", "zero-out"):
        section["labels"] = f"{labels[0]} in the world 'out', {labels[1]} in 'in'"
    return section


def mechanism_outcome(
    path: str,
    audit: AuditPlan,
    *,
    epsilon: float | None,
    delta: float,
    trial_seconds: float,
    exactly_gaussian: bool = False,
    seed: int = 0,
) -> AuditOutcome:
    """Run the mechanism at `path` in both worlds and bound its epsilon; schema `dpzv-audit/audit/1`.

    There is no theory of it here, so a claim is refuted or the audit is inconclusive. `exactly_gaussian` is the user's
    word that its scores are Gaussian with one variance: bounds on a Gaussian curve may then refute the claim, given
    Gaussian noise, where a test of normality does not object.

    Raises:
        InputError: No such mechanism, or an answer that is no score.
        MechanismFailed: It raised, or took too long.
    """
    trials = MechanismTrials(path, seed, trial_seconds, exactly_gaussian=exactly_gaussian)
    # What is Gaussian on the user's word keeps its own score.
    pilots = 0 if exactly_gaussian else pilot_size(audit.runs)
    return _of_mechanism(replace(trials, pilots=pilots), audit, epsilon=epsilon, delta=delta)


def hunted_outcome(
    path: str,
    audit: AuditPlan,
    *,
    epsilon: float | None,
    delta: float,
    trial_seconds: float,
    pilot: int,
    seed: int = 0,
) -> AuditOutcome:
    """Look on pilots for the variant of the mechanism at `path` that tells most, and audit it as `mechanism_outcome`.

    `pilot` runs in each world of each variant choose it. Its score is chosen anew on at least as many, and tested on
    fresh runs. A warning says which variants failed and were left out. Raises as `mechanism_outcome`, where all of them
    fail.
    """
    trials = MechanismTrials(path, seed, trial_seconds)
    names = variants_of(path)
    stage = audit.reporter("pilots", len(names))
    found = hunted(trials, runs=pilot, delta=delta, epsilon=epsilon, done=lambda number, name: stage(number, note=name))
    best = found.candidates[0]
    chosen = replace(trials.of_variant(best.variant), pilots=max(pilot, pilot_size(audit.runs)))
    variants = "1 variant" if len(names) == 1 else f"{len(names)} variants"
    facts: dict[str, Plain] = {
        "hunted": f"{variants}, {found.scores} scores in all, by pilots of {pilot} + {pilot} runs each",
        "variant": best.variant,
        "pilots said": "; ".join(
            f"{one.variant}: {one.lower:.3g} by {one.score.words}" for one in found.candidates[:3]
        ),
    }
    warnings = []
    if found.failures:
        name, error = next(iter(found.failures.items()))
        warnings = [f"{len(found.failures)} of {len(names)} variants failed and were left out, first {name!r}: {error}"]
    return _of_mechanism(chosen, audit, epsilon=epsilon, delta=delta, facts=facts, warned=warnings)


def _of_mechanism(
    trials: MechanismTrials,
    audit: AuditPlan,
    *,
    epsilon: float | None,
    delta: float,
    facts: Mapping[str, Plain] | None = None,
    warned: Sequence[str] = (),
) -> AuditOutcome:
    path, seed, exactly_gaussian = trials.path, trials.seed, trials.exactly_gaussian
    audit, not_kept = _kept(trials, audit)
    # Of a copy: workers import the mechanism themselves.
    epsilon = replace(trials).claimed(delta) if epsilon is None else epsilon
    trials = replace(trials, delta=delta)
    found = bounded(trials, audit, delta=delta, pilots=trials.pilots)
    scores = found.scores
    warnings = [*warned, *scores.warnings]
    game: dict[str, Plain] = {
        "mechanism": path,
        "canary": "as the mechanism has it: the worlds are its own",
        "neighbours": "as the mechanism has it",
        "adversary": WHOEVER,
        "score": SCORES[scores.kind],
        **(facts or {}),
        **scores.runs,
    }
    claim = Claimed(epsilon, delta, WHOEVER, "as the mechanism has it")
    theory = Theory()
    privacy = section(theory, claim, found, warnings=warned)
    ceiling = max(bound.ceiling for bound in found.bounds if can_refute(bound))
    note = "the claimed curve is the least that an (epsilon, delta) mechanism may have"
    unkept = {"not_kept": not_kept} if not_kept else {}
    result = AuditResult(
        method=path,
        dataset="its own",
        adversary=WHOEVER,
        game={**game, **found.facts},
        privacy=privacy,
        exactly_gaussian=exactly_gaussian,
        sentence=said("mechanism", _where(path, facts), privacy, ceiling),
        warnings=warnings,
        tradeoff=tradeoff_of(found, claim, theory, of_method=False, note=note),
        by_runs=found.by_runs,
        seed=seed,
        compute={"device": "cpu", "audit_chunk": audit.chunk, **found.compute, **unkept},
        versions=versions(),
    )
    return _published(result, None, found)


def defence_outcome(case: Case, audit: AuditPlan) -> AuditOutcome:
    """Release labels in both worlds as the case's defence does, and set what that tells beside every upper bound.

    Raises `InputError` where the defence promises nothing, or does not fit the data.
    """
    defence = private_labels(case.config.defences)
    release = defence.releases()
    assert release is not None
    trials = LabelTrials(defence, case.dataset, case.seed)
    record, out, inside = trials.canary
    delta = release.delta or case.method.protection(case.config).delta
    found = bounded(trials, audit, delta=delta)
    adversary = case.adversary
    bound = release.bound(adversary, NEIGHBOURS_OF_LABELS, delta)
    claim = Claimed(release.epsilon, delta, adversary, NEIGHBOURS_OF_LABELS)
    privacy = section(Theory(applies=True, bounds=(bound,)), claim, found)
    facts = replace(provenance(case, chunk=audit.chunk), method=defence.name)
    result = AuditResult(
        adversary=adversary,
        privacy=privacy,
        sentence=said("privacy", privacy),
        warnings=found.scores.warnings,
        game={
            "mechanism": "labels released before training; all that follows is post-processing",
            "canary": f"record {record}, whose released label is in doubt",
            "labels": f"{out} in the world 'out', {inside} in 'in'",
            "neighbours": NEIGHBOURS_OF_LABELS,
            "adversary": case.adversary,
            "score": "how much more is released for one label than for the other",
            **found.scores.runs,
            **found.facts,
        },
        by_runs=found.by_runs,
        **vars(replace(facts, compute={**facts.compute, **found.compute})),
    )
    return _published(result, None, found)


def _where(path: str, facts: Mapping[str, Plain] | None) -> str:
    return path if not facts else f"{path} ({facts['variant']})"


def _kept(trials: MechanismTrials, audit: AuditPlan) -> tuple[AuditPlan, str]:
    """Return the plan without a place for chunks, and why, where they could be taken for those of other files."""
    try:
        trials.facts()
    except Undigested as why:
        if audit.resume:
            raise InputError(f"‹resume›: what the mechanism depends on cannot be told: {why}") from None
        return replace(audit, folder=None), str(why)
    return audit, ""


_OF_ONE_RUN = {"canary": "worst-case", "neighbours": "replace-label", "others": "zero"}
"""What the game of one training is, by flag."""


def one_run_outcome(case: Case, audit: AuditPlan, *, canaries: int) -> AuditOutcome:
    """Train once with `canaries` coin-flip labels and set what the guesses prove beside every upper bound."""
    for field, right in _OF_ONE_RUN.items():
        if getattr(audit, field) != right:
            raise InputError(f"must be {right} with ‹canaries›", field, getattr(audit, field))
    if case.adversary not in KNOWS_IDS:
        raise InputError(f"must be one of {', '.join(KNOWS_IDS)} with ‹canaries›", "adversary", case.adversary)
    trials = _trials_of(case, audit)
    game = trials.game
    delta = game.config.delta
    stage = audit.reporter("one training", 1)
    played = play_one_run(trials, canaries)
    stage(1)
    check_noise(trials.plan.sigma)
    inside, outside = played.sides
    if not (len(inside) and len(outside)):
        raise InputError(": all coins fell alike, must be more", "canaries", canaries)
    bounds = audit_scores(
        inside,
        outside,
        delta=delta,
        confidence=audit.confidence,
        estimators=("one-run", "one-run-fdp"),
        coin_flips=True,
        seed=case.seed,
    )
    scores = GameScores(inside, outside, "one-run", saturated=played.saturated)
    found = Bounded(scores=scores, bounds=bounds, plan=audit, delta=delta, seed=case.seed)
    privacy, _ = privacy_of(game.config, game.adversary, game.neighbours, trials.plan, case.deployment, found)
    result = AuditResult(
        adversary=game.adversary,
        privacy=privacy,
        sentence=said("privacy", privacy),
        tradeoff=None,  # the canaries of one training depend on each other: their scores have no band
        game={
            "mechanism": "one real training",
            "canary": f"{canaries} worst-case records ({CANARIES['worst-case']}), labels by fair coins",
            "neighbours": game.neighbours,
            "adversary": game.adversary,
            "score": "best linear guess of every coin from the scalars of known batches",
            "canaries": canaries,
            "label_1": len(inside),
            "label_0": len(outside),
            "rounds_seen": played.rounds_seen,
            "saturated": "yes" if played.saturated else "no: the server undid it",
        },
        **vars(provenance(case)),
    )
    return _published(result, game.config.sampler, found)


def system_outcome(
    case: Case,
    audit: AuditPlan,
    *,
    epsilon: float | None = None,
    trainings: int = TRAININGS,
    fit_trainings: int = FIT_TRAININGS,
) -> AuditOutcome:
    """Train a system on coin-flip labels, and set what a fitted score tells of the coins beside what it states.

    Raises:
        InputError: There is nothing to score, or all coins fell alike; and what training raises.
    """
    game = SystemGame(
        method=case.method, config=case.config, dataset=case.dataset, adversary=case.adversary, seed=case.seed
    )
    stage = audit.reporter("trainings of the fit, and audited ones", fit_trainings + trainings)
    scores = system_game(game, trainings=trainings, fit_trainings=fit_trainings, progress=stage)
    inside, outside = scores.sides
    if not (len(inside) and len(outside)):
        raise InputError("give fewer than one coin on either side, must be more", "trainings", trainings)
    delta = case.method.protection(case.config).delta
    bounds = audit_scores(
        inside,
        outside,
        delta=delta,
        confidence=audit.confidence,
        estimators=("one-run",),
        coin_flips=True,
        seed=case.seed,
    )
    found = Bounded(scores=scores, bounds=bounds, plan=audit, delta=delta, seed=case.seed)
    privacy = privacy_of_system(case, found, epsilon)
    given = given_labels(len(case.dataset.train), case.dataset.classes)
    words = said("system", case.method.name, privacy, bounds[0].ceiling, len(inside) + len(outside))
    result = AuditResult(
        adversary=game.adversary,
        privacy=privacy,
        sentence=words,
        warnings=scores.warnings,
        tradeoff=None,  # scores of one training depend on each other: they have no band
        game={
            "mechanism": f"{trainings} training{'s' if trainings > 1 else ''} of the system",
            "canary": f"every record but {given} of given labels: its label is one of two by a fair coin",
            "neighbours": NEIGHBOURS,
            "adversary": game.adversary,
            "score": SCORES[scores.kind],
            **found.facts,
            "label_second": len(inside),
            "label_first": len(outside),
        },
        **vars(provenance(case)),
    )
    return _published(result, case.config.sampler, found)


def planted_row(planted: Planted, audit: AuditPlan, *, runs: int | None = None, seed: int = 0) -> PlantedRow:
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
        found = bounded(trials, plan, delta=case.delta)
        estimators += found.bounds
        facts = found.scores.fitted
        games[name or "the game"] = PlantedGame(
            empirical_lower=largest_gating(found.bounds), estimators=list(found.bounds), **facts
        )
    theory = Theory(applies=True, bounds=tuple(planted.upper_bounds(case)))
    lower = largest_gating(estimators)
    refuted = lower is not None and lower > case.epsilon
    word, _ = decide(refuted=refuted, theory=True, upper=theory.upper, claimed=case.epsilon)
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
        verdict=word,
        as_expected=word in planted.expected,
        games=games,
    )


def planted_result(
    chosen: Sequence[Planted],
    audit: AuditPlan,
    *,
    runs: int | None = None,
    seed: int = 0,
) -> PlantedResult:
    """Audit every mechanism of `chosen`; schema `dpzv-audit/planted/1`."""
    rows = [planted_row(planted, audit, runs=runs, seed=seed) for planted in chosen]
    return PlantedResult(
        method="planted",
        rows=rows,
        sentence=said("planted", rows),
        confidence=audit.confidence,
        seed=seed,
        versions=versions(),
    )
