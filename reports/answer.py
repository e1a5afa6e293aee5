"""What stands beside a verdict on every face: the system, what was measured and proven, the attacks and the checks.

`answer_of` is read by the terminal, by pages and from Python, so that they cannot differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import singledispatch
from operator import itemgetter

from dpzv_audit.base.findings import LEAST_TRAININGS, STATED, Control, Interval
from dpzv_audit.base.rounding import p_equals
from dpzv_audit.results import (
    AttackResult,
    AttacksResult,
    AuditResult,
    Cell,
    ClaimResult,
    CoinGameBeside,
    MatrixResult,
    NegativeControls,
    Privacy,
    Repeatable,
    Reported,
    RunResult,
    ScoresResult,
    Tradeoff,
    TrainResult,
    Utility,
    VerifyResult,
)

from . import verification
from .document import Answer, Judgement, Row
from .head import (
    LABELS,
    LEAST_CERTIFIED,
    AttackSuccess,
    failed_controls,
    head_of,
    judged,
    no_bound,
    share,
    short_metric,
    successes,
)
from .matrix import attack_of, column_of_cell, worst_first, worst_of_each
from .measured import sound_bound
from .risk import at_least, at_most, by_claim, in_words
from .text import attacker, clean, lower_bound, percent, upper_bound
from .verdicts import words_of

_LIMITS = ("claimed", "measured", "proved")
_MOST_ATTACKERS = 2
_MOST_CLAIMS = 5
MOST_ROWS = 8
"""Rows of a table beside a verdict; a line says how many there are more."""
_UNTESTED = "other attackers, attacks and data"
"""Subjects that no result of one attack or audit is about."""


@singledispatch
def answer_of(result: Reported) -> Answer:
    """Return the answer that a result gives."""
    return Answer(judgement=head_of(result))


@answer_of.register
def _(result: AttackResult) -> Answer:
    attacks = sorted(successes(result), key=lambda attack: -attack.harm)
    known = _without_assumptions(result.privacy)
    over = None if result.success is None else result.success.over_trainings
    count = "" if over is None else f", {_counted(over.count, 'training')}"
    return Answer(
        judgement=_beyond(head_of(result), _untested(result)),
        subject=_subject(result, result.adversary),
        condition=_condition(result),
        facts=_facts(result),
        caption=f"Attacks{count}",
        rows=_of_one_metric(
            [_of_success(attack, known if attack.adversary == result.adversary else 0.0) for attack in attacks]
        ),
        checks=_joined(_controls(result), _accuracy(result.utility)),
    )


@answer_of.register
def _(result: TrainResult) -> Answer:
    return Answer(
        judgement=head_of(result),
        subject=_subject(result, result.privacy.adversary or ""),
        facts=_facts(result) | ({"protects": clean(result.protects)} if result.protects else {}),
        checks=_accuracy(result.utility),
    )


@answer_of.register
def _(result: AuditResult) -> Answer:
    return Answer(
        judgement=_beyond(head_of(result), _UNTESTED),
        subject=_subject(result, result.adversary),
        condition=_condition(result),
        facts=_facts(result) | _choices(result.game),
        checks=_limit(result.privacy),
    )


@answer_of.register
def _(result: ScoresResult) -> Answer:
    counts = [result.scores.get(key) for key in ("n_in", "n_out")]
    of = f": {counts[0]:,} with the canary, {counts[1]:,} without it" if all(isinstance(n, int) for n in counts) else ""
    return Answer(
        judgement=_beyond(head_of(result), "attackers with better scores"),
        subject=f"Scores of a system{of}. Attacker: anyone who can compute these scores.",
        facts={"measured": clean(result.meaning)} if result.meaning else {},
    )


@answer_of.register
def _(result: AttacksResult) -> Answer:
    cells = worst_first(result.attacks)
    trainings = {cell.trainings for cell in cells if cell.trainings}
    counts = f", {min(trainings)} to {max(trainings)} trainings" if len(trainings) > 1 else ""
    if len(trainings) == 1:
        (count,) = trainings
        counts = f", {_counted(count, 'training')}"
    untested = sum(cell.state == "does not apply" for cell in result.attacks)
    left = f"{untested} pairs of attack and attacker do not apply here and were not tested" if untested else ""
    return Answer(
        judgement=head_of(result),
        subject=_subject(result, *dict.fromkeys(cell.adversary for cell in cells)),
        caption=f"Attacks{counts}",
        rows=_of_one_metric([_of_cell(cell, _attacked(cell)) for cell in cells[:MOST_ROWS]]),
        links=[cell.run or "" for cell in cells[:MOST_ROWS]],
        more=_joined(_left_out(cells[MOST_ROWS:]), left),
        facts=_of_coin_games(result),
        checks=_together(result.negative_controls, result.attacks),
    )


@answer_of.register
def _(result: MatrixResult) -> Answer:
    worst = worst_of_each(result.cells)
    tried = [cell for cell in result.cells if cell.state != "does not apply"]
    attacks, methods = set(map(attack_of, tried)), {cell.method for cell in tried}
    dataset = f", data set {clean(result.dataset)}" if result.dataset else ""
    failed = sum(cell.state == "failed" for cell in result.cells)
    failures = f"{_counted(failed, 'cell')} failed, which tested nothing" if failed else ""
    return Answer(
        judgement=head_of(result),
        subject=f"{_counted(len(attacks), 'attack')} on {_counted(len(methods), 'method')}{dataset}.",
        caption="Each attack where it finds most",
        rows=rows_of_cells(worst[:MOST_ROWS]),
        links=[cell.run or "" for cell in worst[:MOST_ROWS]],
        more=_joined(_left_out(worst[MOST_ROWS:]), failures),
        checks=_joined(
            _together(result.negative_controls, result.cells),
            *(f"positive control of {clean(c.attack)} FAILED" for c in result.self_checks if c.holds is False),
        ),
    )


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def rows_of_cells(cells: Sequence[Cell]) -> list[Row]:
    """Return cells of a matrix as rows, each with its attacker and method."""
    return _of_one_metric([_of_cell(cell, f"{_attacked(cell)} on {column_of_cell(cell)}") for cell in cells])


@answer_of.register
def _(result: VerifyResult) -> Answer:
    ranked = verification.ranked(result.claims)
    claims = [claim for _, claim in ranked]
    words = Counter(words_of(claim.judged) for claim in claims[_MOST_CLAIMS:])
    others = ", ".join(f"{count} {word}" for word, count in words.items())
    return Answer(
        judgement=head_of(result),
        subject=f"{clean(result.claims_file.rpartition('/')[2])}: {_counted(len(result.claims), 'claim')}. "
        f"The chance that any true claim here is called refuted is at most {result.level:g}.",
        caption="Claims, the gravest first",
        rows=[_of_claim(claim) for claim in claims[:_MOST_CLAIMS]],
        links=[f"#claim-{place}" for place, _ in ranked[:_MOST_CLAIMS]],
        more=f"{words.total()} more claims in the report: {others}" if others else "",
        checks=_of_file(result),
    )


def _condition(result: RunResult) -> str:
    """Return whether the noise is Gaussian that a verdict takes so, as far as the configuration says it."""
    kinds = {"grid": "Gaussian noise, rounded to a fine grid", "float": "Gaussian noise"}
    verdict = judged(result.privacy)
    kind = kinds.get(str(result.config.get("noise")), "")
    if verdict is None or "Gaussian" not in (verdict.given or "") or not kind:
        return ""
    return f"This method is configured to add {kind}."


def _choices(game: Mapping[str, object]) -> dict[str, str]:
    """Return which inputs a hunt chose, and which score; nothing where neither was chosen."""
    if "hunted" not in game:
        return {}
    variant, hunted, score, runs = (
        clean(game.get(key, "")) for key in ("variant", "hunted", "fitted_score", "fitted_on")
    )
    return {"variant": f"{variant}: {hunted}"} | ({"score": f"{score}; chosen on {runs}"} if score else {})


def _untested(result: AttackResult) -> str:
    """Return what an attack leaves untested. An attack on labels leaves features, which may be unprotected too."""
    if result.metric != LABELS:
        return _UNTESTED
    return f"{_UNTESTED}; features{' (unprotected)' if _leaves_features_open(result.protects or '') else ''}"


def _leaves_features_open(protects: str) -> bool:
    """Return whether a method says that it protects nothing, labels alone, or no features; False where it is silent."""
    if "features stay open" in protects:
        return True
    return "features" not in protects and any(word in protects for word in ("nothing", "labels"))


def _beyond(judgement: Judgement, untested: str) -> Judgement:
    """Return a verdict whose first note says what this kind of run does not test."""
    return replace(judgement, notes=[f"Not tested: {untested}.", *judgement.notes])


def _subject(result: Repeatable, *adversaries: str) -> str:
    """Return the system, its data and the attackers as sentences."""
    on = f" on {clean(result.dataset)}" if result.dataset not in ("", "its own") else ""
    if result.config.get("top_model") is False:
        on += ", no top model"
    data = result.data
    sizes = [
        _counted(count, name)
        for name, count in {"client": data.clients, "record": data.records}.items()
        if count is not None
    ]
    system = f"{clean(result.method)}{on}{': ' if sizes else ''}{', '.join(sizes)}."
    attackers = [attacker(name) for name in adversaries if name]
    if not attackers:
        return system
    if len(attackers) > _MOST_ATTACKERS:
        return f"{system} Attackers: {len(attackers)} kinds, named below."
    return f"{system} Attacker{'s' if len(attackers) > 1 else ''}: {'; '.join(attackers)}."


def _facts(result: RunResult) -> dict[str, str]:
    """Return the verdict on the claim where the head says another word, and the epsilons."""
    verdict = judged(result.privacy)
    claim = {}
    if verdict is not None and verdict.word not in ("refuted", "overclaimed") and isinstance(result, AttackResult):
        claim = {"claim": f"{clean(verdict.claim)}: {words_of(verdict)}"}
    stated = STATED if result.method.startswith("system:") else ""
    facts = claim | epsilons(result.privacy, result.tradeoff, stated)
    if result.privacy.empirical_lower is not None:
        facts["measured"] += _of_game(result)
    return facts


def _of_game(result: RunResult) -> str:
    """Return where a lower bound comes from, and the smaller bound that assumes nothing."""
    game = " (audit)" if isinstance(result, AttackResult) else ""
    privacy = result.privacy
    plain = _without_assumptions(privacy)
    if not privacy.given or not plain:
        return game
    return f"{game}; {lower_bound(plain, privacy.claimed)} without assumptions"


def epsilons(privacy: Privacy, tradeoff: Tradeoff | None, stated: str = "") -> dict[str, str]:
    """Return what was measured of epsilon, what is proven, and what both mean for one record.

    `stated` says on what a bound rests where nothing is claimed.
    """
    facts = {}
    verdict = judged(privacy)
    if privacy.empirical_lower is not None:
        confidence = "" if privacy.confidence is None else f", {percent(privacy.confidence)} confidence"
        beside_word = verdict is not None and verdict.given
        assumed = f", {clean(privacy.given)}" if privacy.given and not beside_word else ""
        facts["measured"] = f"ε ≥ {lower_bound(privacy.empirical_lower, privacy.claimed)}{confidence}{assumed}"
    elif privacy.not_audited or privacy.claimed is not None:
        facts["measured"] = f"nothing: {clean(privacy.not_audited or 'no audit was made')}"
    if privacy.upper is not None:
        rests_on = stated if verdict is None or verdict.proven is None else verdict.proven.rests_on
        gap = f"rests on a proof gap: {clean(privacy.gap)}" if privacy.gap else ""
        facts["proven"] = ", ".join(
            filter(None, [f"ε ≤ {upper_bound(privacy.upper, privacy.claimed)}", clean(rests_on), gap])
        )
    elif privacy.gap or privacy.claimed is not None or facts:
        facts["proven"] = no_bound(privacy)
    low, _ = at_least(privacy, tradeoff)
    claimed = by_claim(privacy) if verdict is not None and verdict.word == "refuted" else None
    means = in_words(privacy.neighbours, low, at_most(sound_bound(privacy)), claimed)
    if verdict is not None and verdict.not_tested and privacy.empirical_lower is None:
        facts.pop("measured", None)  # the notes say so
    return facts | ({"meaning": means} if means else {})


def _of_coin_games(result: AttacksResult) -> dict[str, str]:
    """Return the largest epsilon that the coins of a game or of an attack certify, or the command that plays a game.

    All of them hold together, each at the same confidence.
    """
    game = result.coin_game
    if game is None:
        return {}
    by, epsilon = largest_certified(result, game)
    unplayed = ""
    if game.epsilon_lower is None:
        unplayed = f"no coin game was played, {clean(game.reason or '')}; {clean(game.command)}"
        if not epsilon:
            return {"measured": f"no epsilon: {unplayed}"}
        unplayed = f"; {unplayed}"
    at = "" if result.confidence_each is None else f", {percent(result.confidence_each)} confidence"
    return {"measured": f"ε ≥ {lower_bound(epsilon)}{at} ({clean(by)}){unplayed}"}


def largest_certified(result: AttacksResult, game: CoinGameBeside) -> tuple[str, float]:
    """Return whose coins certify the largest epsilon, and that epsilon: of the game, or of an attack beside it."""
    certified = {f"coin game of the {game.adversary}": game.epsilon_lower or 0.0}
    for cell in result.attacks:
        by = f"coins of {cell.attack}"
        certified[by] = max(certified.get(by, 0.0), cell.certified or 0.0)
    return max(certified.items(), key=itemgetter(1))


def _of_success(attack: AttackSuccess, known: float) -> Row:
    """Return an attack as a row, with the epsilon that its coins prove where that is more than is `known` anyway."""
    word = _judged(leaks=attack.leaks, undecided=attack.undecided, certified=attack.certified)
    word = word if attack.certified > known else word.partition("; ")[0]
    word = word if attack.trusted else "a control failed"
    return _row(attack.attack, attack.metric, attack.value, attack.reference, word)


def _without_assumptions(privacy: Privacy) -> float:
    """Return the largest lower bound on epsilon that assumes nothing, 0 without one."""
    plain = [b.epsilon_lower for b in privacy.estimators if not b.assumes and b.claim_kind == "epsilon-delta"]
    return max(plain, default=0.0)


def _judged(*, leaks: bool, undecided: bool, certified: float) -> str:
    """Return what an attack shows; its guesses of coins may prove an epsilon where it finds no more than a baseline."""
    if leaks:
        return "leaks"
    if certified >= LEAST_CERTIFIED:
        return f"{'undecided' if undecided else 'no gain seen'}; ε ≥ {lower_bound(certified)}"
    return "undecided" if undecided else "no leak seen"


def _of_cell(cell: Cell, name: str) -> Row:
    few = cell.trainings is not None and cell.trainings < LEAST_TRAININGS
    word = _judged(leaks=bool(cell.clear), undecided=few, certified=cell.certified or 0.0)
    if cell.controls_hold is False:  # at the confidence of its interval, at which chance does so too
        word += ", a control is off"
    if cell.learnt is False:
        word += ", model not learnt"
    return _row(name, clean(cell.metric or LABELS), cell.success or 0.0, cell.reference, word)


def _attacked(cell: Cell) -> str:
    return f"{attack_of(cell)} ({clean(cell.adversary)})"


def _row(name: str, metric: str, success: float, reference: float | None, word: str) -> Row:
    beside = "" if reference is None else share(reference, metric)
    return {"attack": name, "success": share(success, metric), "metric": metric, "baseline": beside, "result": word}


def _of_one_metric(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose success is headed by their metric, where all share it."""
    metrics = {row["metric"] for row in rows}
    if len(metrics) != 1:
        return [{**row, "metric": short_metric(str(row["metric"]))} for row in rows]
    (metric,) = metrics
    titles = {"success": str(metric)}
    return [{titles.get(key, key): value for key, value in row.items() if key != "metric"} for row in rows]


def _of_claim(claim: ClaimResult) -> Row:
    """Return a claim with its verdict and bare numbers, whose column says what they are."""
    row = {**verification.row_of(claim)}
    del row["p over the file"]
    return {key: str(text or "").removeprefix("ε ") if key in _LIMITS else text for key, text in row.items()}


def _left_out(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    leaks = sum(bool(cell.clear) for cell in cells)
    return f"{len(cells)} more, {leaks or 'none'} of them above {'their baselines' if leaks > 1 else 'its baseline'}"


def _controls(result: AttackResult) -> str:
    """Return how many controls of an attack passed, and the names of those that failed."""
    controls = [value for value in result.controls.values() if isinstance(value, Control)]
    failed = failed_controls(result)
    others = [clean(cell.attack) for cell in result.beside if cell.controls_hold is False]
    if not controls:
        return "no control was run"
    tested = [c for c in controls if c.kind == "positive" or (c.kind != "permutation" and c.p_value is not None)]
    untested = sum(control.kind == "negative" and control.p_value is None for control in controls)
    passed = sum(control.holds for control in tested)
    return _joined(
        f"{passed} of {len(tested)} controls passed" if tested else "",
        f"{untested} not tested, for lack of trainings" if untested else "",
        "one recorded training, which does not generalise" if len(tested) + untested < len(controls) else "",
        f"FAILED: {', '.join(failed)}" if failed else "",
        f"controls of {', '.join(others)} FAILED" if others else "",
    )


def _together(controls: NegativeControls | None, cells: Sequence[Cell]) -> str:
    """Return whether negative controls passed together, or that none was tested."""
    if controls is None and any(cell.control is not None for cell in cells):
        return "negative controls not tested, for lack of trainings"
    if controls is None:
        return "no negative control was run"
    if controls.hold:
        return f"{controls.tests} negative controls passed together ({p_equals(controls.together_p)})"
    return f"negative controls FAILED together, the worst {clean(controls.worst)}"


def _of_file(result: VerifyResult) -> str:
    controls = [control for claim in result.claims for control in claim.controls]
    named = [] if result.controls is None else result.controls.failed
    passed = sum(control.holds for control in controls)
    counted = f"{passed} of {len(controls)} controls passed" if controls else ""
    return _joined(counted, f"FAILED: {', '.join(map(clean, named))}" if named else "")


def _accuracy(utility: Utility) -> str:
    """Return the test accuracy beside the controls of a training."""
    if utility.test_accuracy is None:
        return ""
    names = {"majority": "majority class", "frozen-clients-tuned": "tuned frozen clients"}
    beside = [
        f"{shown} {share(value.value if isinstance(value, Interval) else value, LABELS)}"
        for name, shown in names.items()
        if (value := utility.controls.get(name)) is not None
    ]
    controls = f" ({', '.join(beside)})" if beside else ""
    return f"test accuracy {share(utility.test_accuracy.value, LABELS)}{controls}"


def _limit(privacy: Privacy) -> str:
    """Return the detection limit of an audit: what its evidence could show at most."""
    bounds = privacy.estimators
    sound = [bound for bound in bounds if not bound.assumes] or bounds
    best = max(sound, key=lambda bound: bound.ceiling, default=None)
    return "" if best is None else f"detection limit of this evidence ε {lower_bound(best.ceiling, privacy.claimed)}"


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))
