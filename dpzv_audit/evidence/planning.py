"""Plans the trainings of attacks and of a coin game on a system of the user's before the first of them.

The number of trainings follows from the time that one took in the rehearsal, and from nothing that any of them shows:
so bounds hold as if it had been fixed.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from attacks import AttackSpec
from attacks.core.metrics import class_shares
from attacks.core.setting import AttackSetting
from mechanisms import Training

from ..base.errors import AuditError, InputError
from ..base.rounding import down, duration
from ..base.signals import TimeIsUp, until
from ..games.system import FIT_TRAININGS, TRAININGS, SystemGame
from ..statistics.one_run import most_provable
from ..statistics.panel import Panel
from .choosing import Attack, pilot_of, possible

SHARE = 0.75
"""Share of the time left that trainings may take; the rest is for the attacks themselves."""
LATE = 1.02
"""Factor on the minutes at which work under way is ended."""
FEW = 2
"""Trainings of an attack, at least, as long as others can be left out instead."""
LEAST_SHADOWS = 2

Trainings = Counter[tuple[object, ...]]
"""Numbers of trainings by what they are made on; attacks share those of one name."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Time for the trainings of a command.

    Attributes:
        minutes: Most minutes, from when this was made on; None for no limit.
        jobs: Trainings at a time.
        began: When that was, on the clock of `time.monotonic()`.
    """

    minutes: float | None = None
    jobs: int = 1
    began: float = field(default_factory=time.monotonic)

    @property
    def ends(self) -> float | None:
        """When nothing more is to begin."""
        return None if self.minutes is None else self.began + 60.0 * self.minutes

    @property
    def last(self) -> float | None:
        """When what is under way is to end."""
        return None if self.minutes is None else self.began + 60.0 * LATE * self.minutes

    @property
    def over(self) -> bool:
        """Whether nothing more is to begin."""
        return self.ends is not None and time.monotonic() >= self.ends

    @property
    def budget(self) -> str:
        """The time limit in words; "" for none."""
        return "" if self.minutes is None else f"the budget of {self.minutes:g} minutes"

    @contextmanager
    def lasting(self, what: str) -> Iterator[None]:
        """End the block with `AuditError` where the time is over before `what` is done."""
        try:
            with until(self.last):
                yield
        except TimeIsUp:
            raise AuditError(f"‹max_minutes› is {self.minutes:g}: over before {what} was done; use more") from None

    def seconds(self, trainings: Trainings, each: float) -> float:
        """Return how long trainings take of so many seconds `each`; those of one name are made together."""
        return each * sum(math.ceil(count / self.jobs) for count in trainings.values())

    def holds(self, trainings: Trainings, each: float) -> bool:
        """Return whether trainings fit into the time that is left."""
        return self.ends is None or self.seconds(trainings, each) <= SHARE * (self.ends - time.monotonic())

    def check(self, trainings: Trainings, each: float) -> None:
        """Raise `InputError` where the time that is left does not hold trainings, the least that there can be."""
        if self.holds(trainings, each):
            return
        spent = time.monotonic() - self.began
        need = math.ceil((spent + self.seconds(trainings, each) / SHARE) / 6.0) / 10.0
        least = f"the least is {_counted(trainings.total())}, each of which takes {duration(each)}"
        raise InputError(f"‹max_minutes› is {self.minutes:g}; use {need:g} or more: {least}")


@dataclass(frozen=True, kw_only=True)
class TrainingsPlan:
    """The trainings of a command, and what their scores could certify at most.

    Attributes:
        count: About how many trainings are to be made.
        seconds: How long they take.
        most: Largest epsilon that their scores could certify; 0.0 for none.
        pace: The time for them.
        shorter: What there was no time for, in words; "" for nothing.
    """

    count: int
    seconds: float
    most: float
    pace: Pace
    shorter: str = ""

    @property
    def lines(self) -> list[str]:
        """The plan in words."""
        by = f" by {self.pace.jobs} workers" if self.pace.jobs > 1 else ""
        line = f"about {_counted(self.count)}, {duration(self.seconds)}{by}"
        if self.most:
            line += f"; their scores can certify at most epsilon {down(self.most)}"
        return [line, *filter(None, [self.shorter])]


@dataclass(frozen=True, kw_only=True)
class AttacksPlan(TrainingsPlan):
    """The same of attacks.

    Attributes:
        mounted: Attacks in their settings, each with as many trainings as there is time for.
        left_out: Attacks for whose trainings there is no time.
        game: The coin game that is played too; None for none.
    """

    mounted: Sequence[Attack]
    left_out: Sequence[Attack] = ()
    game: SystemGame | None = None


def plan_attacks(
    attacks: Sequence[Attack],
    pace: Pace,
    *,
    confidence: float,
    game: SystemGame | None = None,
    made: Callable[[Sequence[Attack]], Trainings] | None = None,
) -> AttacksPlan:
    """Plan attacks on one system, and a `game` on it where there is one, within the time that is left.

    Where that is short, what takes the most trainings of its own is left out, as long as others then have `FEW`
    trainings each; then each has as many as there is time for, at most its setting's.

    Args:
        attacks: Those that apply, in their settings.
        pace: The time.
        confidence: Confidence of all results together.
        game: The coin game on the system.
        made: Returns the trainings of attacks; by default of all of them together.

    Raises:
        InputError: There is no time for the least that there can be.
    """
    each = attacks[0][1].method.capabilities.seconds
    usual = max(setting.trials for _, setting in attacks)
    kept = list(attacks)
    left_out: list[Attack] = []
    played = game

    def together(of: Sequence[Attack], trials: int, played: SystemGame | None) -> Trainings:
        trainings = (made or trainings_of)([_of_size(*attack, trials) for attack in of])
        return trainings if played is None else trainings + _of_game(played, TRAININGS, FIT_TRAININGS)

    few = min(FEW, usual)
    while not pace.holds(together(kept, few, played), each):
        groups = _groups(kept)
        if len(groups) == 1 and played is None:
            break
        # What saves most goes first.
        left = [[attack for attack in kept if attack not in group] for group in groups]
        costs = [together(others, few, played).total() if others else math.inf for others in left]
        if played is not None and together(kept, few, None).total() <= min(costs):
            played = None
            continue
        place = costs.index(min(costs))
        left_out += groups[place]
        kept = left[place]
    trials = usual
    while trials > 1 and not pace.holds(together(kept, trials, played), each):
        trials -= 1
    trainings = together(kept, trials, played)
    pace.check(trainings, each)
    mounted = [_of_size(*attack, trials) for attack in kept]
    coins = [_coins_of(*attack) for attack in mounted]
    if played is not None:
        coins.append(_coins_of_game(played, TRAININGS))
    level = Panel([*kept, *([] if played is None else [played])]).level(1.0 - confidence)
    shorter = [f"{_counted(trials)} of each attack, not {usual}"] if trials < usual else []
    if left_out:
        shorter.append(f"left out: {', '.join(dict.fromkeys(spec.name for spec, _ in left_out))}")
    if played is None and game is not None:
        shorter.append("no coin game")
    return AttacksPlan(
        count=trainings.total(),
        seconds=pace.seconds(trainings, each),
        most=_provable(attacks[0][1], max(coins), level),
        pace=pace,
        shorter=f"{pace.budget}: {'; '.join(shorter)}" if shorter else "",
        mounted=mounted,
        left_out=left_out,
        game=played,
    )


def plan_game(
    game: SystemGame, pace: Pace, *, confidence: float, trainings: int, fit_trainings: int
) -> tuple[TrainingsPlan, int, int]:
    """Plan a coin game on a system; also returns the trainings whose coins are guessed, and those of the fit.

    Where time is short the fit has fewer first, down to two. Raises `InputError` where there is no time for one of
    each.
    """
    each = game.training.method.capabilities.seconds
    fits = range(fit_trainings, min(2, fit_trainings) - 1, -1)
    choices = [(trainings, fit) for fit in fits]
    choices += [(count, fits[-1]) for count in range(trainings - 1, 0, -1)]
    choices.append((1, 1))

    audited, fit = next((choice for choice in choices if pace.holds(_of_game(game, *choice), each)), (1, 1))
    made = _of_game(game, audited, fit)
    pace.check(made, each)
    shorter = ""
    if (audited, fit) != (trainings, fit_trainings):
        shorter = f"{pace.budget}: {audited} audited and {fit} of the fit, not {trainings} and {fit_trainings}"
    plan = TrainingsPlan(
        count=made.total(),
        seconds=pace.seconds(made, each),
        most=_provable(game.training, _coins_of_game(game, audited), 1.0 - confidence),
        pace=pace,
        shorter=shorter,
    )
    return plan, audited, fit


def trainings_of(attacks: Sequence[Attack]) -> Trainings:
    """Return the trainings of attacks on one system, with the pilots that choose a client."""
    made = Trainings()
    for spec, setting in attacks:
        made |= _of_attack(spec, setting)
        if len(possible(spec, setting)) > 1:
            made |= _of_attack(spec, pilot_of(spec, setting))
    return made


ATTACK_SECONDS = 5.0
"""About what an attack takes beside trainings of a system, for the time left."""


def weights_of(attacks: Sequence[Attack], pace: Pace) -> list[float]:
    """Return about how many seconds each of the attacks takes in turn; trainings count where they are first made."""
    before = Trainings()
    weights = []
    for attack in attacks:
        made = before | trainings_of([attack])
        new = pace.seconds(made - before, attack[1].method.capabilities.seconds)
        weights.append(ATTACK_SECONDS + new)
        before = made
    return weights


@dataclass(frozen=True)
class TimeLeft:
    """How long steps still take that weigh so much each, at the pace of those that are done."""

    weights: Sequence[float]
    began: float = field(default_factory=time.monotonic)

    def after(self, done: int) -> str:
        """Return how long those after the first so many steps take, as ", about 40 s left"; "" before the first."""
        if not done:
            return ""
        pace = (time.monotonic() - self.began) / sum(self.weights[:done])
        return f", {duration(pace * sum(self.weights[done:]))} left"


def trainings_of_strongest(attacks: Sequence[Attack]) -> Trainings:
    """Return the trainings of the pilots of all attacks, and of the one among them that makes most."""
    pilots = Trainings()
    for spec, setting in attacks:
        pilots |= _of_attack(spec, pilot_of(spec, setting))
    return pilots + max((_of_attack(*attack) for attack in attacks), key=Trainings.total)


def _of_attack(spec: AttackSpec, setting: AttackSetting) -> Trainings:
    """Return the trainings of an attack as it is mounted: see `attacks.label.mount` and those of other goals."""
    trials, seed = setting.trials, setting.seed
    if spec.goal.reveals == "membership":
        shares_block = setting.adversary == "client"
        members = ("members", shares_block, spec.count(setting, "pool"), seed)
        return Trainings({members: 2 * trials + spec.count(setting, "shadows")})
    if setting.pilot:
        return Trainings({("as they are", seed): trials})
    # The first as they are was the rehearsal.
    made = Trainings({("as they are", seed): trials - 1})
    if spec.goal.reveals == "features":
        values = int("attribute" in spec.setup.options)  # dealt by coins
        return made + Trainings({("in another order", spec.name, seed): trials, ("values", seed): values})
    # Of records whose labels are given no coin decides.
    few = spec.own_options(setting).get("labels_per_class", spec.name) if spec.setup.few_labels else 0
    return made + Trainings({("by coins", few, seed): trials})


def _of_game(game: SystemGame, trainings: int, fit_trainings: int) -> Trainings:
    """Return the trainings of a coin game: those whose coins are guessed and of the fit together, others in turn."""
    together = trainings + fit_trainings
    made = Trainings({("coin game",): together})
    made.update(("numbers of messages", n) for n in range(game.most_trainings(trainings, fit_trainings) - together))
    return made


def _of_size(spec: AttackSpec, setting: AttackSetting, trials: int) -> Attack:
    """Return an attack with at most so many trainings, and as much fewer shadow models."""
    if trials >= setting.trials:
        return spec, setting
    options = dict(setting.options)
    if "shadows" in spec.setup.options:
        shadows = spec.count(setting, "shadows")
        options["shadows"] = min(shadows, max(LEAST_SHADOWS, shadows * trials // setting.trials))
    return spec, replace(setting, trials=trials, options=options)


def _groups(attacks: Sequence[Attack]) -> list[list[Attack]]:
    """Return attacks by what they train on: those of a group share all trainings."""
    groups: dict[frozenset[object], list[Attack]] = {}
    for attack in attacks:
        groups.setdefault(frozenset(trainings_of([attack])), []).append(attack)
    return list(groups.values())


def _coins_of(spec: AttackSpec, setting: AttackSetting) -> int:
    """Return about how many coins an attack scores: of labels, those of records whose two candidates differ."""
    if spec.goal.reveals == "membership":
        return setting.trials * (min(spec.count(setting, "pool"), setting.records) // 2)
    if spec.goal.reveals != "labels":
        return 0
    shares = class_shares(setting.labels, setting.dataset.classes)
    return int(setting.trials * setting.records * (1.0 - float((shares**2).sum())))


def _coins_of_game(game: SystemGame, trainings: int) -> int:
    return trainings * game.coins


def _provable(training: Training, coins: int, error: float) -> float:
    delta = training.method.protection(training.config).delta
    return most_provable(coins, delta=delta, error=error) if coins else 0.0


def _counted(count: int) -> str:
    return f"{count:,} training{'' if count == 1 else 's'}"
