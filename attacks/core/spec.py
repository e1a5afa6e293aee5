"""An attack as users name it: what it needs, how it is mounted, what it finds out, and the outcome of mounting it.

An attack is a function `infer(view, known)`. `View` is what the adversary saw; `Knowledge` is what its threat model
lets it know beside that.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from dpzv_audit.base.errors import (
    InputError,
    NotFinite,
    check_count,
    check_names,
    check_positive,
    check_probability,
    unknown_name,
)
from dpzv_audit.base.findings import SERVERS, Control, Interval
from dpzv_audit.data.vertical import VerticalDataset
from mechanisms.core.channel import View
from mechanisms.core.context import Behaviour, Plan, TrainedStack, TrainingData
from mechanisms.core.defence import label_release

from .controls import known_records, reaches
from .knowledge import Knowledge
from .metrics import Booleans, Floats
from .setting import AttackSetting

Option = bool | int | float | str
LABELS = "labels"
"""Kind of the messages by which a server hands clients the labels that it trains on."""


class DoesNotApply(InputError):
    """The attack is none for this method, configuration or data set: no number, and not a zero."""


@dataclass(frozen=True)
class LabelGuesses:
    """Guessed labels (answers, K, B), place by place in the batches of the attacked rounds.

    `ids` (answers, K, B) says which records those are, or is None where the attacker does not know. An attack that
    guesses records of its choice, not places of batches, gives one answer. `scores` (answers, K, B, classes) are
    what the labels were read off, the larger the likelier; `held_out` (K, n, classes) the same for test records.
    `less` holds guesses of the same attacker with less to go by, by name, where both share their work: baselines beside
    those of `Goal.baselines`.
    Where the target is a number, `numbers` (answers, K, B) are guesses of it, and `labels` the nearest that there are.
    `unnamed` guesses tell records apart by class first and name the classes then: success under the best names, which
    the truth alone knows, stands beside theirs.
    """

    labels: Tensor
    ids: Tensor | None
    scores: Tensor | None = None
    held_out: Tensor | None = None
    numbers: Tensor | None = None
    unnamed: bool = False
    less: "Mapping[str, LabelGuesses]" = field(default_factory=dict)

    @classmethod
    def of(cls, scores: Tensor, ids: Tensor | None) -> "LabelGuesses":
        """Return guesses of the likeliest classes by `scores` (answers, K, B, classes)."""
        return cls(scores.argmax(3), ids, scores)

    @classmethod
    def about(cls, records: Tensor, scores: Tensor) -> "LabelGuesses":
        """Return guesses about `records` (K, n) by `scores` (K, N, classes) of all records in order."""
        return cls.of(scores.take_along_dim(records.unsqueeze(2), 1)[None], records[None])


SECOND = (
    "a score is how much likelier the second is. Nothing is assumed of how scores of one training depend on each other"
)
"""Describes scores of pairs, in the sentence of a game."""


@dataclass(frozen=True)
class CoinGame:
    """Scores of what fair coins decided: of those that fell on 1 and on 0, from which an audit certifies an epsilon.

    `neighbours` is the relation that one coin decides; `what` says in words whose coins they are. Scores of one
    training may depend on each other: only the one-run estimators may read them.
    """

    on_one: Floats
    on_zero: Floats
    neighbours: str
    what: str

    @classmethod
    def of(cls, scores: Floats, on_one: Booleans, neighbours: str, what: str) -> "CoinGame | None":
        """Return the game of `scores` where the booleans `on_one` are the coins; None where all fell alike."""
        if on_one.all() or not on_one.any():
            return None
        return cls(scores[on_one], scores[~on_one], neighbours, what)


@dataclass(frozen=True)
class Pictures:
    """Records as pictures of `shape` (height, width): greys (n, height * width) in [0, 1] by what they are."""

    shape: tuple[int, int]
    rows: Mapping[str, Floats]


@dataclass(frozen=True)
class AttackOutcome:
    """Success beside what it must be compared with, and the training that was attacked.

    Attributes:
        success: The success, in the unit of `metric`.
        baselines: Success of guesses, and of the same attacker with less to go by.
        controls: Runs whose result is known.
        trained: The trainings that were attacked.
        plan: Schedule and noise of the attacked training; None for methods without a scalar channel.
        metric: The measure of success, in words.
        chance: Success without any information.
        measures: Further numbers beside it.
        by_trial: Rates of each trial by name: `success`, controls and baselines, which can be compared trial by trial.
        curves: Rows of numbers for a figure or a table, by name.
        game: Scores that it gave to what fair coins decided.
        no_game: The reason where there are none.
        pictures: Reconstructions beside the originals.
        at_once: Largest stack of trainings that fitted into memory; None where all did.
    """

    success: Interval
    baselines: dict[str, float | Interval]
    controls: dict[str, Control]
    trained: TrainedStack
    plan: Plan | None
    metric: str = "labels found"
    chance: float = 0.0
    measures: Mapping[str, Interval] = field(default_factory=dict)
    by_trial: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    curves: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    game: CoinGame | None = None
    no_game: str = ""
    pictures: Pictures | None = None
    at_once: int | None = None


Condition = Callable[[AttackSetting], str | None]
"""Returns in one line why a setting does not meet it; None where it does."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The needs of an attack: of the method, its configuration, the data set and the view.

    Attributes:
        requires: Method options that the attack needs; training is set up with them, and says so.
        requires_because: The reason.
        suggests: Method options that suit the attack where the user gives none.
        conditions: Conditions on a setting; the first that it does not meet is reported.
        one_view: The view of one training suffices, so that a recorded training can be attacked.
        reads: Kinds of messages and notes that it reads, to keep no others in memory; None: everything that its
            adversary sees.
        reads_of: Returns the parties whose messages it reads, to keep no others; None: everybody's.
        answers: The kind of answers that its guesses are about where it cannot name records; None: the method's own.
        numbers: It can tell labels that are numbers, and not classes alone.
        first_pass: It reads what is sent in the first pass over the data of each client alone.
    """

    requires: Mapping[str, object] = field(default_factory=dict)
    requires_because: str = ""
    suggests: Mapping[str, object] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    one_view: bool = False
    reads: tuple[str, ...] | None = None
    reads_of: Callable[[AttackSetting], tuple[int, ...]] | None = None
    answers: str | None = None
    numbers: bool = False
    first_pass: bool = False

    def unmet(self, setting: AttackSetting) -> str | None:
        """Return in one line what `setting` lacks; None where the attack applies."""
        capabilities = setting.method.capabilities
        if not (capabilities.repeatable or self.one_view):
            return (
                "it needs more than one view, and a transcript is one; a method or a system trains as often as it needs"
            )
        if setting.adversary == "eavesdropper" and capabilities.encrypted:
            return "its messages were sent under TLS, of which an eavesdropper sees lengths and times alone"
        by_mail = setting.adversary not in (*SERVERS, "release")
        by_model = self.reads == () and label_release(setting.config.defences) is not None
        if setting.config.labels_shared and by_mail and LABELS not in (self.reads or ()) and not by_model:
            return "its server sends every client the labels that it trains on: label_received reads them"
        if setting.downlink == "none" and by_mail and self.reads not in ((), (LABELS,)):
            return "its server sends clients nothing about records"
        if setting.dataset.values is not None and not self.numbers:
            return "it tells classes, and the target is a number"
        reasons = (condition(setting) for condition in self.conditions)
        return next((why for why in reasons if why is not None), None)


def plays_nobody(setting: AttackSetting) -> Mapping[int, Behaviour]:
    """Return no client: the adversary only looks."""
    return {}


def no_target(setting: AttackSetting) -> tuple[int, ...]:
    """Return no client: nobody has to be chosen."""
    return ()


def own_dataset(spec: "AttackSpec", setting: AttackSetting) -> VerticalDataset:
    """Return the data set of the setting, on which every replica trains."""
    return setting.dataset


def nothing_granted(data: TrainingData, setting: AttackSetting) -> tuple[object, ...]:
    """Return no grants."""
    return ()


def rounds_with_control(spec: "AttackSpec", setting: AttackSetting) -> int:
    """Return the rounds of an attacked training and, but in a pilot, of its control."""
    return setting.rounds if setting.pilot else 2 * setting.rounds


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The way an attack is mounted: its own options, the clients that it plays, and what it is granted.

    Attributes:
        options: The attack's own options with their defaults.
        choices: The words that an option may be.
        behave: Clients that the adversary plays in training.
        targets: Clients of which one is attacked, by the option `target`, where the setting leaves open which.
        queries: Queries of a curious client about each batch, unless the user gives a number.
        trials: Trainings, unless the user gives a number.
        trains_on: The data set that one replica trains on: accountants and controls of accuracy take it.
        few_labels: The threat model grants `labels_per_class` training labels of each class.
        granted_among: Records (K, n) of each training among which these are drawn; by default all.
        grants: Makes all else that the threat model grants, of the data of a training and its setting.
        rounds: Rounds that its progress counts to.
        in_pilot: Options of its own with which a pilot takes less time.
    """

    options: Mapping[str, Option] = field(default_factory=dict)
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    behave: Callable[[AttackSetting], Mapping[int, Behaviour]] = plays_nobody
    targets: Callable[[AttackSetting], tuple[int, ...]] = no_target
    queries: int = 1
    trials: int = 64
    trains_on: "Callable[[AttackSpec, AttackSetting], VerticalDataset]" = own_dataset
    few_labels: bool = False
    granted_among: Callable[[AttackSetting], Tensor] | None = None
    grants: Callable[[TrainingData, AttackSetting], tuple[object, ...]] = nothing_granted
    rounds: "Callable[[AttackSpec, AttackSetting], int]" = rounds_with_control
    in_pilot: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True)
class Positive:
    """A setting in which the attack must succeed: in words, how to make it, and the least success it must reach."""

    what: str
    setting: Callable[[AttackSetting], AttackSetting]
    least: float


def no_baselines(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return no baselines."""
    return {}


@dataclass(frozen=True)
class Goal:
    """The aim of an attack, and what its success is compared with.

    Attributes:
        positive: The setting in which it must succeed.
        reveals: The private thing that it finds out; `gradients` are about no record.
        baselines: The same attacker with less to go by, for attacks on labels; see also `LabelGuesses.less`.
        unsupervised: Features alone may give labels away to it, trained on or not: the control's truth is then
            permuted too, and what it finds after training on permuted labels is a baseline, which says how much
            features alone do.
        least_success: The least success that there is, which claims may name: -1 where success is a correlation.
    """

    positive: Positive
    reveals: Literal["labels", "membership", "features", "gradients"] = "labels"
    baselines: Callable[[View, Knowledge], Mapping[str, LabelGuesses]] = no_baselines
    unsupervised: bool = False
    least_success: float = 0.0


_POSITIVES: dict[tuple[object, ...], Interval] = {}
"""Success of positive controls by all that decides it: adversaries, clients and claims share them."""


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """An attack as users name it: who can mount it, what it needs of the method, and the function that infers.

    Attributes:
        name: The name on the command line.
        summary: One line about it.
        adversaries: Adversaries that can mount it; the first where the user names none.
        infer: Makes guesses or scores of a view and the knowledge beside it.
        mounted_by: Trains with the adversary in place, scores, and adds controls: one such function for each goal.
        goal: Its aim, and the setting in which it must succeed.
        needs: Its needs of the method, its configuration, the data set and the view.
        setup: The way it is mounted.
    """

    name: str
    summary: str
    adversaries: tuple[str, ...]
    infer: Callable[[View, Knowledge], Any]
    mounted_by: "Callable[[AttackSpec, AttackSetting], AttackOutcome]"
    goal: Goal
    needs: Needs = Needs()
    setup: Setup = Setup()

    def check(self, adversary: str, options: dict[str, object]) -> dict[str, object]:
        """Return method options with what this attack requires and suggests; `InputError` where that cannot be."""
        if adversary not in self.adversaries:
            raise InputError(f"but {self.name} is mounted by {' or '.join(self.adversaries)}", "adversary", adversary)
        for key, value in self.needs.requires.items():
            if options.get(key, value) != value:
                raise DoesNotApply(
                    f"{self.name} does not apply with {key} {options[key]!r}, needs {value!r}: "
                    f"{self.needs.requires_because}"
                )
        return {**self.needs.suggests, **options, **self.needs.requires}

    def mount(self, setting: AttackSetting) -> AttackOutcome:
        """Train with the adversary in place, attack, score and run the controls; `InputError` where it cannot be."""
        outcome = self.mount_alone(setting)
        if not self.misses_positive(setting, outcome.controls):
            return outcome
        return replace(outcome, controls={**outcome.controls, "positive": self.positive_control(setting)})

    def mount_alone(self, setting: AttackSetting) -> AttackOutcome:
        """Do the same without the positive control, which is another training, but where the attack has its own."""
        self.check(setting.adversary, {key: getattr(setting.config, key, None) for key in self.needs.requires})
        reason = self.needs.unmet(setting)
        if reason is not None:
            raise DoesNotApply(f"{self.name} does not apply to {setting.method.name}: {reason}")
        self.own_options(setting)
        check_count("trials", setting.trials)
        check_count("queries", setting.queries)
        check_probability("confidence", setting.confidence)
        try:
            return self.mounted_by(self, setting)
        except NotFinite as error:
            raise InputError(
                f"the training of {setting.method.name} that {self.name} attacks diverged ({error}); use a smaller "
                f"‹set› client_rate=X or server_rate=X, or with ‹csv› give ‹scales› that bring numbers near 1"
            ) from None

    def misses_positive(self, setting: AttackSetting, controls: Collection[str]) -> bool:
        """Return whether a positive control is asked for that is not among the `controls` so far."""
        return setting.with_positive and "positive" not in controls

    def positive_control(self, setting: AttackSetting) -> Control:
        """Mount the attack where it must succeed, by the same path as everything else.

        Records are drawn anew (`controls.known_records`): its answer is known, whatever the user's data are. Only its
        success counts, so it has neither baselines nor a control of its own. Equal ones are mounted once.
        """
        on_known = replace(setting, dataset=known_records(setting.dataset, setting.seed))
        planted = replace(self.goal.positive.setting(on_known), progress=None, with_positive=False, pilot=True)
        alone = replace(self, goal=replace(self.goal, baselines=no_baselines))
        key = (self.name, self.infer, self.mounted_by, planted.key)
        if key not in _POSITIVES:
            _POSITIVES[key] = alone.mount(planted).success
        return reaches(_POSITIVES[key], what=self.goal.positive.what, least=self.goal.positive.least)

    def count(self, setting: AttackSetting, key: str) -> int:
        """Return the attack's own option `key`, a whole number; errors as `own_options`."""
        return int(self.own_options(setting)[key])

    def own_options(self, setting: AttackSetting) -> dict[str, Option]:
        """Return the attack's own options, the setting's over defaults; `InputError` for an unknown or wrong one.

        A whole number will do for a word that is free, such as the name of a column.
        """
        free = {key for key, value in self.setup.options.items() if isinstance(value, str)} - set(self.setup.choices)
        given: dict[str, Any] = {
            key: str(value) if key in free and type(value) is int else value for key, value in setting.options.items()
        }
        for key, value in given.items():
            if key not in self.setup.options:
                raise unknown_name(f"option of {self.name}", key, self.setup.options)
            name = f"option {key} of {self.name}"
            default = self.setup.options[key]
            # Where the default is a fraction, a whole number will do.
            if isinstance(default, float):
                check_positive(name, value)
            elif type(value) is not type(default):
                raise InputError(f"use a value of the kind of {default!r}", name, value)
            elif isinstance(value, str):
                check_names(name, [value], self.setup.choices.get(key, [value]))
            elif not isinstance(value, bool):
                check_count(name, value)
        return {**self.setup.options, **given}
