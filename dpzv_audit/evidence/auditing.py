"""Audits a configuration, a mechanism of the user's own or planted ones: the `result.json` of `audit`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechanisms import MethodSpec, Training, TrainingConfig
from mechanisms.core.context import Deployment, Plan

from ..base.errors import InputError
from ..base.files import Undigested
from ..base.findings import AdversaryName, EmpiricalBound, adversary_named
from ..data.vertical import VerticalDataset
from ..games.fitting import pilot_size
from ..games.game import CANARIES, CANARY, KNOWS_IDS, SCORES, Game
from ..games.hunting import hunted, variants_of
from ..games.labels import LabelTrials, private_labels
from ..games.lengths import COINS
from ..games.mechanism import MechanismTrials
from ..games.messages import READ
from ..games.planted import Planted
from ..games.real import RealTrials, play_one_run
from ..games.rows import RowTrials
from ..games.scores import GameScores
from ..games.sums import SumTrials
from ..games.system import (
    FIT_TRAININGS,
    TRAININGS,
    SystemGame,
    fitted_score,
    play,
    play_numbers,
)
from ..games.transcript import DrawnTrials, SimulatedTrials
from ..results import AuditResult, Data, Plain, PlantedGame, PlantedResult, PlantedRow, Privacy
from ..runs import versions
from ..statistics.estimators import audit_scores, can_refute
from ..statistics.panel import Panel
from ..systems.run import ROUNDS
from .bounding import NEIGHBOURS, AuditPlan, Bounded, bounded_by, silent, wealth_by_pairs
from .games import voids_of
from .privacy import (
    Claimed,
    game_of,
    privacy_of,
    privacy_of_system,
    section,
    section_of_channel,
    tradeoff_of,
)
from .refusals import check_noise, noised
from .sections import Provenance, configured, provenance, published_simulation
from .sentences import said
from .verdict import Theory, decide, largest_gating

ANYONE = "anyone who sees its output"
"""The adversary of a bound on a mechanism, which names no party: it sees the answer of each run."""


@dataclass(frozen=True)
class AuditOutcome:
    """A result, and what one game proved: scores that are kept beside it, and stored chunks to forget at the end."""

    result: AuditResult
    bounded: Bounded


def _outcome(
    bounded: Bounded,
    privacy: Privacy,
    sentence: str,
    game: Mapping[str, Plain],
    facts: Provenance,
    **more: Any,
) -> AuditOutcome:
    """Return what one game proved as a result, with what of it may leave.

    `game` is what was played, in words, `facts` what a repeat needs, and `more` are further fields of the result. Of
    many runs it says what the first of them prove too, and how they were carried out.
    """
    if bounded.done is not None:
        more["by_runs"] = bounded.by_runs
        facts = {**facts, "compute": {**facts["compute"], **bounded.compute}}
    result = AuditResult(
        adversary=privacy.adversary or "", privacy=privacy, sentence=sentence, game=dict(game), **more, **facts
    )
    return AuditOutcome(published_simulation(result), bounded)


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
    training = Training(method=method, config=config, dataset=dataset, seed=seed, device=device)
    return audit_outcome(training, adversary_named(adversary), audit).result


def audit_outcome(training: Training, adversary: AdversaryName, audit: AuditPlan) -> AuditOutcome:
    """Like `audit_result`, with the scores."""
    trials = _trials_of(training, adversary, audit)
    return _of_worlds(trials, trials.plan, training.deployment(), audit, provenance(training, chunk=audit.chunk))


def _trials_of(training: Training, adversary: AdversaryName, audit: AuditPlan) -> RealTrials:
    game = game_of(training.method, noised(training.method, training.config), adversary, audit)
    return RealTrials(game, training.dataset, training.seed, training.device)


def sums_outcome(training: Training, adversary: AdversaryName, audit: AuditPlan) -> AuditOutcome:
    """Play the game of a record on the noised sums of real trainings, and set what they prove beside the upper bounds.

    Raises `InputError` for a game that is not played on sums, and an adversary against whom there is no bound.
    """
    trials = SumTrials(training.method, training.config, training.dataset, training.seed, training.device)
    out, inside = trials.labels
    words = {
        "canary": f"record {CANARY}, whose label differs; a label is part of a record",
        "labels": f"{out} in the world 'out', {inside} in 'in'",
        "adversary": f"{adversary}, who is shown every noised sum, from which the released head follows",
    }
    return _of_a_record(training, adversary, audit, trials, words, "noised sums")


def rows_outcome(training: Training, adversary: AdversaryName, audit: AuditPlan) -> AuditOutcome:
    """Play the game of a record on noised rows that clients upload, and set what they prove beside the upper bounds.

    Raises `InputError` for a game that is not played on rows, and an adversary against whom there is no bound.
    """
    trials = RowTrials(training.method, training.config, training.dataset, training.seed, training.device)
    words = {
        "canary": f"record {CANARY}, with features at one end or the other of each client's first component",
        "adversary": f"{adversary}, who is sent the record's noised row by every client and knows all other records",
    }
    return _of_a_record(training, adversary, audit, trials, words, "noised rows")


def _of_a_record(
    training: Training,
    adversary: AdversaryName,
    audit: AuditPlan,
    trials: SumTrials | RowTrials,
    words: Mapping[str, Plain],
    played_on: str,
) -> AuditOutcome:
    """Return what the trials of a record prove beside the upper bounds; `words` say what was played."""
    for field, right in _OF_ONE_RUN.items():
        if getattr(audit, field) != right:
            raise InputError(f"use {right}: no other game is played on {played_on}", field, getattr(audit, field))
    protection = training.method.protection(training.config)
    if not protection.draws:
        raise InputError("the noise is 0 (‹sigma› 0 or ‹calibration› none, or labels are private); use more than 0")
    if adversary not in protection.audience:
        raise InputError(f"use one of {', '.join(protection.audience)}", "adversary", adversary)
    bounded = bounded_by(trials, audit, delta=protection.delta)
    privacy = section_of_channel(training, training.deployment(), adversary, bounded)
    game: dict[str, Plain] = {
        "mechanism": "real trainings",
        **words,
        "neighbours": privacy.neighbours or NEIGHBOURS,
        "score": SCORES["replay"],
        **bounded.scores.runs,
        **bounded.facts,
    }
    facts = provenance(training, chunk=audit.chunk)
    return _outcome(bounded, privacy, said("privacy", privacy), game, facts, warnings=bounded.scores.warnings)


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
    game = game_of(method, config, adversary, audit)
    plan = method.scalar_plan(config, deployment)
    trials = SimulatedTrials.of(game, plan, deployment.records, deployment.seed)
    facts: Provenance = {
        "dataset": "simulated",
        **configured(method, config, deployment),
        "compute": {"device": "cpu", "threads": 1, "audit_chunk": audit.chunk},
        "data": Data(
            partition=f"simulated: {deployment.records:,} records, {deployment.clients} clients",
            records=deployment.records,
            clients=deployment.clients,
        ),
    }
    return _of_worlds(trials, plan, deployment, audit, facts)


def _of_worlds(
    trials: RealTrials | SimulatedTrials,
    plan: Plan,
    deployment: Deployment,
    audit: AuditPlan,
    facts: Provenance,
) -> AuditOutcome:
    check_noise(plan.sigma)
    game, config = trials.game, trials.game.config
    bounded = bounded_by(trials, audit, delta=config.delta)
    privacy, tradeoff = privacy_of(config, game.adversary, game.neighbours, plan, deployment, bounded)
    scores, done = bounded.scores, bounded.done
    assert done is not None
    caveats = said("caveats", scores.saturated, done.stopped, done.pairs, audit.runs)
    labels = trials.worlds.labels if isinstance(trials, RealTrials) else None
    return _outcome(
        bounded,
        privacy,
        f"{said('privacy', privacy)} {caveats}".strip(),
        {**_game(game, scores, labels), **bounded.facts},
        facts,
        tradeoff=tradeoff,
        warnings=[*scores.warnings, *([caveats.rstrip(".")] if caveats else [])],
        wealth=wealth_by_pairs(scores, epsilon=config.epsilon, delta=config.delta, confidence=audit.confidence),
    )


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
    ranked = hunted(
        trials, runs=pilot, delta=delta, epsilon=epsilon, done=lambda number, name: stage(number, note=name)
    )
    best = ranked.candidates[0]
    chosen = replace(trials.of_variant(best.variant), pilots=max(pilot, pilot_size(audit.runs)))
    variants = "1 variant" if len(names) == 1 else f"{len(names)} variants"
    shown = (f"{other.variant}: {other.lower:.3g} by {other.score.words}" for other in ranked.candidates[:3])
    facts: dict[str, Plain] = {
        "hunted": f"{variants}, {ranked.scores} scores in all, in trial runs of {pilot} + {pilot}",
        "variant": best.variant,
        "pilots said": "; ".join(shown),
    }
    warnings = []
    if ranked.failures:
        name, error = next(iter(ranked.failures.items()))
        left_out = f"{len(ranked.failures)} of {len(names)} variants failed and were left out"
        warnings = [f"{left_out}, first {name!r}: {error}"]
    return _of_mechanism(chosen, audit, epsilon=epsilon, delta=delta, facts=facts, warnings=warnings)


def _of_mechanism(
    trials: MechanismTrials,
    audit: AuditPlan,
    *,
    epsilon: float | None,
    delta: float,
    facts: Mapping[str, Plain] | None = None,
    warnings: Sequence[str] = (),
) -> AuditOutcome:
    """Return what the mechanism of `trials` proves; `facts` and `warnings` are those of the hunt that chose it."""
    path = trials.path
    audit, not_kept = _kept(trials, audit)
    # Of a copy: workers import the mechanism themselves.
    epsilon = replace(trials).claimed(delta) if epsilon is None else epsilon
    bounded = bounded_by(replace(trials, delta=delta), audit, delta=delta, pilots=trials.pilots)
    scores = bounded.scores
    own = "as the mechanism has it"
    claim = Claimed(epsilon, delta, ANYONE, own)
    theory = Theory()
    privacy = section(theory, claim, bounded, warnings=warnings)
    ceiling = max(bound.ceiling for bound in bounded.bounds if can_refute(bound))
    note = "the claimed curve is the least that an (epsilon, delta) mechanism may have"
    compute: dict[str, Plain] = {"device": "cpu", "audit_chunk": audit.chunk}
    if not_kept:
        compute["not_kept"] = not_kept
    game: dict[str, Plain] = {
        "mechanism": path,
        "canary": f"{own}: the mechanism draws both data sets",
        "neighbours": own,
        "adversary": ANYONE,
        "score": SCORES[scores.kind],
        **(facts or {}),
        **scores.runs,
        **bounded.facts,
    }
    return _outcome(
        bounded,
        privacy,
        said("mechanism", f"{path} ({facts['variant']})" if facts else path, privacy, ceiling),
        game,
        {"method": path, "dataset": "its own", "seed": trials.seed, "compute": compute, "versions": versions()},
        exactly_gaussian=trials.exactly_gaussian,
        warnings=[*warnings, *scores.warnings],
        tradeoff=tradeoff_of(bounded, claim, theory, of_method=False, note=note),
    )


def defence_outcome(training: Training, adversary: AdversaryName, audit: AuditPlan) -> AuditOutcome:
    """Release labels in both worlds as the training's defence does, and set what that tells beside every upper bound.

    Raises `InputError` where the defence promises nothing, or does not fit the data.
    """
    defence = private_labels(training.config.defences)
    release = defence.releases()
    assert release is not None
    trials = LabelTrials(defence, training.dataset, training.seed)
    record, out, inside = trials.canary
    delta = release.delta or training.method.protection(training.config).delta
    bounded = bounded_by(trials, audit, delta=delta)
    bound = release.bound(adversary, NEIGHBOURS, delta)
    claim = Claimed(release.epsilon, delta, adversary, NEIGHBOURS)
    privacy = section(Theory(applies=True, bounds=(bound,)), claim, bounded)
    game: dict[str, Plain] = {
        "mechanism": "labels released before training; all that follows is post-processing",
        "canary": f"record {record}, whose released label is in doubt",
        "labels": f"{out} in the world 'out', {inside} in 'in'",
        "neighbours": NEIGHBOURS,
        "adversary": adversary,
        "score": "how much more is released for one label than for the other",
        **bounded.scores.runs,
        **bounded.facts,
    }
    facts: Provenance = {**provenance(training, chunk=audit.chunk), "method": defence.name}
    return _outcome(bounded, privacy, said("privacy", privacy), game, facts, warnings=bounded.scores.warnings)


def _kept(trials: MechanismTrials, audit: AuditPlan) -> tuple[AuditPlan, str]:
    """Return the plan without a place for chunks, and why, where they could be taken for those of other files."""
    try:
        trials.facts()
    except Undigested as why:
        if audit.resume:
            raise InputError(f"‹resume›: the dependencies of the mechanism are not known: {why}") from None
        return replace(audit, folder=None), str(why)
    return audit, ""


_OF_ONE_RUN = {"canary": "worst-case", "neighbours": "replace-label", "others": "zero"}
"""What the game of one training is, by flag."""


def one_run_outcome(training: Training, adversary: AdversaryName, audit: AuditPlan, *, canaries: int) -> AuditOutcome:
    """Train once with `canaries` coin-flip labels and set what the guesses prove beside every upper bound."""
    for field, right in _OF_ONE_RUN.items():
        if getattr(audit, field) != right:
            raise InputError(f"use {right} with ‹canaries›", field, getattr(audit, field))
    if adversary not in KNOWS_IDS:
        raise InputError(f"use one of {', '.join(KNOWS_IDS)} with ‹canaries›", "adversary", adversary)
    trials = _trials_of(training, adversary, audit)
    config = trials.game.config
    stage = audit.reporter("one training", 1)
    played = play_one_run(trials, canaries)
    stage(1)
    check_noise(trials.plan.sigma)
    inside, outside = played.sides
    if not (len(inside) and len(outside)):
        raise InputError(": all coins fell alike; use more", "canaries", canaries)
    scores = GameScores(inside, outside, "one-run", saturated=played.saturated)
    bounded = _of_coins(scores, ("one-run", "one-run-fdp"), config.delta, audit, training.seed)
    privacy, _ = privacy_of(config, adversary, NEIGHBOURS, trials.plan, training.deployment(), bounded)
    game: dict[str, Plain] = {
        "mechanism": "one real training",
        "canary": f"{canaries} worst-case records ({CANARIES['worst-case']}), labels by fair coins",
        "neighbours": NEIGHBOURS,
        "adversary": adversary,
        "score": "best linear guess of every coin from the scalars of known batches",
        "canaries": canaries,
        "label_1": len(inside),
        "label_0": len(outside),
        "rounds_seen": played.rounds_seen,
        "saturated": "yes" if played.saturated else "no: the server undid it",
    }
    # The canaries of one training depend on each other: their scores have no band.
    return _outcome(bounded, privacy, said("privacy", privacy), game, provenance(training), tradeoff=None)


def _of_coins(scores: GameScores, estimators: Sequence[str], delta: float, audit: AuditPlan, seed: int) -> Bounded:
    """Return what scores prove of which fair coins decided the sides."""
    bounds = audit_scores(
        *scores.sides,
        delta=delta,
        confidence=audit.confidence,
        estimators=estimators,
        coin_flips=True,
        seed=seed,
        pilot=scores.pilot,
    )
    return Bounded(scores=scores, bounds=bounds, plan=audit, delta=delta, seed=seed)


def system_outcome(
    training: Training,
    adversary: AdversaryName,
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
    every = fit_trainings + trainings
    stage = audit.reporter("trainings of the fit, and audited ones", every)
    game = SystemGame(training, adversary)
    if game.train_ahead(range(every), lambda part: stage(part * every // ROUNDS)):
        stage = silent("the same again", every)
    score = fitted_score(game, fit_trainings, progress=stage)
    played = [play(game, score, trainings, progress=lambda done: stage(fit_trainings + done))]
    if not all(map(len, played[0].sides)):
        raise InputError(", which gives no coin on one side; use more", "trainings", trainings)
    numbers = ""
    if score.numbers is not None:
        stage = audit.reporter("trainings whose number of messages is read", COINS * trainings)
        played.append(play_numbers(game, score.numbers, trainings, progress=stage))
        numbers = f"{score.numbers.words}: a coin in each of {COINS * trainings} trainings"
    delta = training.method.protection(training.config).delta
    # Of several games, which share the error, the one that shows most counts.
    each = replace(audit, confidence=Panel(played).confidence(audit.confidence))
    of_games = [_of_coins(scores, ("one-run",), delta, each, training.seed) for scores in played]
    bounded = replace(max(of_games, key=lambda one: one.bounds[0].epsilon_lower), plan=audit)
    scores = bounded.scores
    inside, outside = map(len, scores.sides)
    privacy = privacy_of_system(training, adversary, bounded, epsilon)
    facts: dict[str, Plain] = {
        "mechanism": f"{trainings} training{'s' if trainings > 1 else ''} of the system",
        "canary": f"every record but {game.given} of given labels: its label is one of two by a fair coin",
        "neighbours": NEIGHBOURS,
        "adversary": adversary,
        "score": SCORES[scores.kind],
        **bounded.facts,
        **({"numbers_of_messages": numbers} if numbers else {}),
        "label_second": inside,
        "label_first": outside,
    }
    sentence = said("system", training.method.name, privacy, bounded.bounds[0].ceiling, inside + outside)
    # Where something is claimed the verdict says what no score reads.
    unread = voids_of(training.method, training.dataset.clients, READ) if privacy.judged is None else ()
    warnings = [*scores.warnings, *(void.words for void in unread)]
    # Scores of one training depend on each other: they have no band.
    return _outcome(bounded, privacy, sentence, facts, provenance(training), warnings=warnings, tradeoff=None)


def planted_row(planted: Planted, audit: AuditPlan, *, runs: int | None = None, seed: int = 0) -> PlantedRow:
    """Audit one planted mechanism: the claim, both bounds, the verdict found and the ones that are right.

    `runs` in each world replace the mechanism's own number; `audit` gives confidence, chunk, workers and folder.
    """
    case = planted.build(seed)
    shared = Panel(case.games).confidence(audit.confidence)
    estimators: list[EmpiricalBound] = []
    games = {}
    number = runs or planted.runs
    for name, trials in case.games.items():
        # Vectorised draws are cheap: a chunk of theirs is as large as their blocks.
        chunk = audit.chunk if not isinstance(trials, DrawnTrials) else max(audit.chunk, 4096)
        plan = replace(audit, runs=number, chunk=chunk, folder=None, confidence=shared)
        bounded = bounded_by(trials, plan, delta=case.delta)
        estimators += bounded.bounds
        games[name or "the game"] = PlantedGame(
            empirical_lower=largest_gating(bounded.bounds), estimators=list(bounded.bounds), **bounded.scores.fitted
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
