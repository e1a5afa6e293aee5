"""Mounts every attack that applies to one training, at one error rate for all: the `result.json` of `attack` with all.

Of m attacks each has intervals and certified epsilons at confidence 1 - alpha / m (Bonferroni), so that all of them
hold together at 1 - alpha, and the largest may be read off as if it had been the only one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from attacks.core import needs
from attacks.core.setting import AttackSetting
from attacks.core.spec import AttackSpec, DoesNotApply

from ..base.errors import InputError, with_options
from ..base.files import LARGEST_STATE, read_plain
from ..base.findings import LEAST_TRAININGS, adversary_named
from ..base.grouping import grouped
from ..base.signals import TimeIsUp, until
from ..base.store import Store, verified
from ..games.system import ADVERSARIES, NEIGHBOURS, TRAININGS, SystemGame
from ..results import AttackResult, AttacksResult, Cell, CellKey, CoinGameBeside, read
from ..statistics.panel import Panel
from .auditing import system_outcome
from .bounding import AuditPlan, Reporter, silent
from .choosing import Attack, lacking, possible, target_in
from .games import LENGTHS, PLAYED_BY, features_unread, voids_of
from .matrix import measured_cell, negative_controls
from .planning import AttacksPlan, Pace, TimeLeft, weights_of
from .sections import provenance
from .sentences import said
from .training import attack_result

LEFT_OUT = "left out"
"""State of an attack for which there was no time."""


def folder_of(key: CellKey) -> str:
    """Return the folder of an attack's own result, below that of all."""
    return f"{key.attack}-{key.adversary}"


def attacks_result(
    mounted: Iterable[Attack],
    base: AttackSetting,
    reporter: Reporter = silent,
    store: Store | None = None,
    plan: Callable[..., AttacksPlan] | None = None,
    game_command: Callable[[str], str] = lambda adversary: "",
) -> tuple[AttacksResult, dict[str, AttackResult]]:
    """Mount each of the attacks that applies; schema `dpzv-audit/attacks/1`. Also returns their own results, by folder.

    Args:
        mounted: Attacks, each with its own setting of one training, at most one for each attack and adversary.
        base: What their settings share: the training, and the confidence in all of them together.
        reporter: Hears how far each attack is.
        store: Keeps the result of each attack as it is done, and gives those that were done before.
        plan: Plans the trainings of those that apply to a system, and of the coin game on it, as
            `evidence.planning.plan_attacks` does. What it does not leave out shares the error rate. What its time does
            not suffice for is not tested.
        game_command: Returns the command that plays the coin game of an adversary.

    Raises:
        InputError: The configuration does not fit the data, a system recorded what cannot be, or the time of the plan
            is too short.
        AuditError: A training of a system failed.
    """
    apply, idle = _sorted_out(mounted)
    planned = _planned(apply, base, mounted, plan)
    attacks = planned.attacks
    each = Panel([*attacks, *([] if planned.game is None else [planned.game])]).confidence(base.confidence)
    coin_game = _game_played(planned, each, reporter, game_command)
    done = _all_mounted(planned, each, reporter, store)
    measured = sorted(done.measured, key=attrgetter("harm"), reverse=True)
    late = [*planned.left_out, *done.late]
    controls = negative_controls(measured)
    missing = _not_tested(base, attacks, done.looked, late)
    words = (measured, len(attacks), each, base.confidence, controls, LEAST_TRAININGS)
    sentences = [said("attacks", base.method.name, *words)]
    sentences += [] if coin_game is None else [said("coin_game", coin_game)]
    everything = AttacksResult(
        sentence=" ".join([*sentences, *(f"Not tested: {words}." for words in missing)]),
        not_tested=missing,
        attacks=[*measured, *late, *idle, *done.idle],
        coin_game=coin_game,
        mounted=len(attacks),
        confidence=base.confidence,
        confidence_each=each,
        negative_controls=controls,
        **provenance(base),
    )
    return everything, done.results


def _sorted_out(mounted: Iterable[Attack]) -> tuple[list[Attack], list[Cell]]:
    """Return the attacks that apply, and the cells of those that do not, with the reason."""
    apply = []
    idle = []
    for spec, setting in mounted:
        why = lacking(spec, possible(spec, setting)[0])
        if why is None and setting.method.capabilities.repeatable:
            try:
                spec.setup.rounds(spec, setting)
            except DoesNotApply as error:  # what it trains on are too few records
                why = error.words
        if why is None:
            apply.append((spec, setting))
        else:
            idle.append(_without(_key_of(spec, setting), why))
    return apply, idle


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """The attacks that there is time for, the cells of those left out, and the coin game, or why there is none.

    `weights` say about how long each attack takes beside the others.
    """

    attacks: Sequence[Attack]
    weights: Sequence[float]
    pace: Pace
    left_out: Sequence[Cell] = ()
    game: SystemGame | None = None
    no_game: str | None = None


def _planned(
    apply: Sequence[Attack], base: AttackSetting, mounted: Iterable[Attack], plan: Callable[..., AttacksPlan] | None
) -> _Planned:
    """Plan the attacks that apply, and the coin game beside them; without a plan all are mounted, and none is played.

    Raises `InputError` where the time of the plan is too short for anything.
    """
    if plan is None or not apply:
        return _Planned(attacks=apply, weights=[1.0] * len(apply), pace=Pace())
    game, no_game = game_beside(base, mounted)
    planned = plan(apply, game=game)
    why = f"{planned.pace.budget} holds too few trainings"
    if game is not None and planned.game is None:
        game, no_game = None, why
    left_out = [_without(_key_of(*attack), why, LEFT_OUT) for attack in planned.left_out]
    return _Planned(
        attacks=planned.mounted,
        weights=weights_of(planned.mounted, planned.pace),
        pace=planned.pace,
        left_out=left_out,
        game=game,
        no_game=no_game,
    )


@dataclass(kw_only=True)
class _Mounted:
    """What came of attacks: their own results by folder, and cells of those measured, out of time, or without use.

    `looked` are the clients whose features were attacked.
    """

    results: dict[str, AttackResult] = field(default_factory=dict)
    measured: list[Cell] = field(default_factory=list)
    late: list[Cell] = field(default_factory=list)
    idle: list[Cell] = field(default_factory=list)
    looked: set[int | None] = field(default_factory=set)


def _all_mounted(planned: _Planned, confidence: float, reporter: Reporter, store: Store | None) -> _Mounted:
    """Mount attacks one after the other, each at a confidence of its own; see `attacks_result`."""
    done = _Mounted()
    attacks, pace = planned.attacks, planned.pace
    stage = reporter("attacks", len(attacks))
    left = TimeLeft(planned.weights)
    for number, (spec, setting) in enumerate(attacks, start=1):
        stage(number - 1, note=f"{spec.name} by the {setting.adversary}{left.after(number - 1)}")
        key = _key_of(spec, setting)
        below = _below(f"attack {number} of {len(attacks)}", reporter)
        audit = AuditPlan(runs=0, confidence=confidence, reporter=below)
        try:
            result = _mounted_once(spec, replace(setting, confidence=confidence), audit, pace, store)
        except DoesNotApply as error:
            done.idle.append(_without(key, error.words))
            continue
        except TimeIsUp:
            done.late.append(_without(key, f"{pace.budget} ended before it was done", LEFT_OUT))
            continue
        if spec.goal.reveals == "features":
            done.looked.update(target_in(alone) for alone in possible(spec, setting))
        folder = folder_of(key)
        done.results[folder] = result
        done.measured.append(measured_cell(key, result, f"{folder}/report.html"))
    stage(len(attacks))
    return done


def _mounted_once(
    spec: AttackSpec, setting: AttackSetting, audit: AuditPlan, pace: Pace, store: Store | None
) -> AttackResult:
    """Return the result of an attack that the `store` keeps, or mount it and keep it; `TimeIsUp` where time is over."""
    name = f"{folder_of(_key_of(spec, setting))}.json"
    result = None if store is None else store.load(name, _read_result, again="it is mounted again")
    if result is not None:
        return result
    with until(pace.last):
        if pace.over:
            raise TimeIsUp
        result = attack_result(spec, setting, audit)
    if store is not None:
        store.write(name, result.to_json(), cure="make room and go on with ‹resume›")
    return result


def _not_tested(
    base: AttackSetting, attacks: Sequence[Attack], looked: Collection[int | None], late: Sequence[Cell]
) -> list[str]:
    """Return in words what was not tested: messages and features that no attack reads, and attacks without time."""
    read = needs.read_by(spec for spec, _ in attacks)
    missing = [void.words for void in voids_of(base.method, base.dataset.clients, read)]
    capabilities = base.method.capabilities
    if not capabilities.simulated:
        missing += capabilities.not_made
        if capabilities.lengths_tell:
            missing.append(LENGTHS)
        unread = features_unread(base, looked)
        # What nobody looked at for want of a file comes first: its owner may have it.
        missing = [*unread, *missing] if capabilities.featureless else [*missing, *unread]
    by_reason = grouped((cell.reason, f"{cell.attack} ({cell.adversary})") for cell in late)
    return missing + [f"{', '.join(names)}: {why}" for why, names in by_reason.items()]


def game_beside(base: AttackSetting, mounted: Iterable[Attack]) -> tuple[SystemGame | None, str | None]:
    """Return the coin game that is played beside attacks on a system, or None and why there is none."""
    settings = {PLAYED_BY.get(setting.adversary, setting.adversary): setting for _, setting in mounted}
    adversary = next((name for name in ADVERSARIES if name in settings), None)
    if adversary is None:
        return None, f"it is played by clients, not by the {', '.join(settings)}"
    clients = settings[adversary].clients
    players = base.everyone[:1] if adversary == "client" else base.everyone
    if clients and clients != players:
        return None, f"it is played by client{'s' if len(players) > 1 else ''} {', '.join(map(str, players))}"
    game = SystemGame(base, adversary)
    why = game.unplayable
    return (game, None) if why is None else (None, why)


def _game_played(
    planned: _Planned, confidence: float, reporter: Reporter, command: Callable[[str], str]
) -> CoinGameBeside | None:
    """Play the coin game that is planned, or say why there is none; None where none was planned at all."""
    if planned.game is not None:
        played = _played(planned.game, confidence, planned.pace, _below("coin game", reporter))
    elif planned.no_game is not None:
        played = CoinGameBeside(adversary="client", reason=planned.no_game)
    else:
        return None
    return played.model_copy(update={"command": command(played.adversary)})


def _played(game: SystemGame, confidence: float, pace: Pace, reporter: Reporter) -> CoinGameBeside:
    """Play the coin game, or say why that could not be."""
    about = CoinGameBeside(adversary=game.adversary, neighbours=NEIGHBOURS, trainings=TRAININGS)
    try:
        with until(pace.last):
            plan = AuditPlan(runs=0, confidence=confidence, reporter=reporter)
            (bound,) = system_outcome(game.training, adversary_named(game.adversary), plan).bounded.bounds
    except TimeIsUp:
        return about.model_copy(update={"reason": f"{pace.budget} ended before it was done"})
    except InputError as error:
        return about.model_copy(update={"reason": error.words})
    return about.model_copy(update={"epsilon_lower": bound.epsilon_lower, "ceiling": bound.ceiling})


def _below(heading: str, reporter: Reporter) -> Reporter:
    """Return a reporter whose stages have a heading before their names."""
    return lambda name, total: reporter(f"{heading}: {name}", total)


def _read_result(path: Path) -> AttackResult:
    value = verified(read_plain(path, LARGEST_STATE))
    result, left = read(value) if isinstance(value, dict) else (None, {})
    if not isinstance(result, AttackResult) or left:
        raise ValueError("it holds no result of an attack")
    return result


def _without(key: CellKey, why: str, state: str = "does not apply") -> Cell:
    return Cell(**key.to_json(), state=state, reason=with_options(why))


def _key_of(spec: AttackSpec, setting: AttackSetting) -> CellKey:
    return CellKey(attack=spec.name, adversary=setting.adversary, method=setting.method.name, noise=None, epsilon=None)
