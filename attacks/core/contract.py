"""The one contract of all attacks: a view and the declared further knowledge go in, guesses or scores come out.

An attack is a function `infer(view, known)`. `View` is what the adversary saw; `Knowledge` is what its threat model
lets it know beside that. Neither holds a training label, a membership or another party's feature that the threat
model does not grant: the truth is used by the metric alone (attacks.md, rules 1 to 5).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
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
from dpzv_audit.base.findings import Control, Interval
from dpzv_audit.base.halving import as_share, in_pieces
from dpzv_audit.data.vertical import VerticalDataset
from mechanisms import METHODS, MethodSpec, TrainingConfig, train
from mechanisms.core.capabilities import downlink_of
from mechanisms.core.channel import Adversary, View
from mechanisms.core.config import Downlink, rounds_of
from mechanisms.core.context import (
    Behaviour,
    Deployment,
    Plan,
    RunContext,
    TrainedStack,
    TrainingData,
    dtype_of,
    repeats_of,
)
from mechanisms.core.defence import label_release
from mechanisms.core.method import Differences
from mechanisms.core.replicas import Evaluator, ParameterStack

from .controls import known_records, reaches

T = TypeVar("T")
Progress = Callable[[int], None]
Option = bool | int | float | str
# The client that looks where nobody says which.
ATTACKER = 1
LABELS = "labels"
"""Kind of the messages by which a server hands clients the labels that it trains on."""
COLLUDING = "colluding-clients"
ALONE = ("client", "malicious-client")
"""Adversaries that are one client, whichever."""
BY_CLIENTS = (*ALONE, COLLUDING)
"""Adversaries that are clients."""


def abilities(adversary: str) -> tuple[str, ...]:
    """Return whom an adversary can act as: as itself, and a client that deviates or colludes as one that does not."""
    return (adversary, "client") if adversary in BY_CLIENTS and adversary != "client" else (adversary,)


class DoesNotApply(InputError):
    """The attack is none for this method, configuration or data set: no number, and not a zero."""


@dataclass(frozen=True, kw_only=True)
class AttackSetting:
    """One attack on one method: everything its result depends on.

    `trials` trainings run as replicas of one stack; `queries` is how often a curious client asks about each batch of
    its first pass; `options` are the attack's own, by the names in its `AttackSpec.options`. Without `with_positive`
    the positive control, which is the same whatever the method, is left out (a matrix runs it once per attack).
    A `pilot` is mounted to choose by, without the control that is another training.
    `first` is the number of the first replica; `at_once` how many trainings at a time are known to fit into memory,
    None where nothing is known. `clients` are those that look where clients do: by default the first, or of colluding
    clients all, of those that exchange messages.
    """

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset
    adversary: str = "client"
    public_ids: bool = False
    queries: int = 1
    trials: int = 64
    seed: int = 0
    device: str = "cpu"
    confidence: float = 0.95
    options: Mapping[str, Any] = field(default_factory=dict)
    with_positive: bool = True
    pilot: bool = False
    progress: Progress | None = None
    first: int = 0
    at_once: int | None = None
    clients: tuple[int, ...] = ()

    @property
    def parties(self) -> tuple[int, ...]:
        """Return the clients that look where clients do."""
        return self.clients or (self.everyone if self.adversary == COLLUDING else self.everyone[:1])

    @property
    def everyone(self) -> tuple[int, ...]:
        """Return the clients that may look: those that exchange messages."""
        return self.method.exchanging(self.dataset.clients)

    @property
    def client(self) -> int:
        """Return the client that looks, the first of those that do."""
        return self.parties[0]

    @property
    def replicas(self) -> range:
        """Return the numbers of the trainings as replicas."""
        return range(self.first, self.first + self.trials)

    def of_control(self, at_once: int | None) -> "AttackSetting":
        """Return the setting of a control, whose trainings must not share the luck of those that are attacked."""
        return replace(self, first=self.trials, at_once=at_once)

    @property
    def told(self) -> frozenset[str]:
        """Return the kinds of messages that a system sends those who look; none for a method, which has a downlink."""
        return self.method.capabilities.told_to(self.parties if self.adversary in BY_CLIENTS else None)

    @property
    def downlink(self) -> Downlink:
        """Return what the server answers those who look with."""
        return self.method.downlink if self.method.capabilities.simulated else downlink_of(self.told)

    @property
    def looks(self) -> Adversary:
        """Return who looks: the curious client where it is one."""
        plays = self.adversary in BY_CLIENTS
        public = self.public_ids or self.method.capabilities.public_ids
        return Adversary(self.adversary, self.parties if plays else (), public)

    @property
    def records(self) -> int:
        """Return the number of training records."""
        return len(self.dataset.train)

    @property
    def labels(self) -> np.ndarray:
        """Return the true training labels (N,)."""
        return self.dataset.train.labels

    @property
    def rounds(self) -> int:
        """Return the rounds of a training."""
        return rounds_of(self.config, self.records)

    def plan(self, behaviours: Mapping[int, Behaviour] | None = None) -> Plan | None:
        """Return schedule and noise of the scalars where some clients deviate; None for methods without scalars."""
        deployment = Deployment(
            records=self.records,
            clients=self.dataset.clients,
            seed=self.seed,
            repeats=repeats_of(behaviours or {}),
        )
        return self.method.plan(self.config, deployment)

    def data(self, labels: np.ndarray | None = None) -> TrainingData:
        """Return the data as trainings take them, with `labels` (N,) or (K, N) in the place of the true ones."""
        return TrainingData.of(self.dataset, dtype=dtype_of(self.config), device=self.device, labels=labels)

    def context(self, **more: Any) -> RunContext:
        """Return where and for whom a method runs, with `more` of it."""
        return RunContext(seed=self.seed, replicas=self.replicas, device=self.device, **more)

    def train(self, data: TrainingData, **options: Any) -> TrainedStack:
        """Return the replicas, trained on `data` as one stack with further `options` of `mechanisms.train`."""
        return train(
            self.method,
            data,
            self.config,
            replicas=self.replicas,
            seed=self.seed,
            device=self.device,
            progress=self.progress,
            **options,
        )

    def in_stacks(
        self, work: "Callable[[AttackSetting, slice], T]", rounds: int, *, whole: bool = False
    ) -> tuple[list[T], int | None]:
        """Do `work` for all `trials` at once or, where memory runs out, for ever fewer at a time.

        Args:
            work: Gets the setting of a stack, whose progress goes from 0 to `rounds`, and the places of its trainings.
            rounds: Rounds that the work on a stack counts.
            whole: Whether they must be one stack, whatever memory there is.

        Returns:
            What `work` gave for each stack, and how many at a time memory sufficed for, None where for all.
        """

        def piece(first: int, last: int) -> T:
            progress = as_share(self.progress, (first, last), of=self.trials, rounds=rounds)
            progress(0)
            one = replace(self, first=self.first + first, trials=last - first, progress=progress)
            return work(one, slice(first, last))

        if whole:
            return [piece(0, self.trials)], None
        found = list(in_pieces(piece, 0, self.trials, self.at_once))
        return [one for one, _ in found], found[-1][1]

    def on(self, method: str, options: Mapping[str, object], /, **changes: Any) -> "AttackSetting":
        """Return this setting on another `method` with its `options`, and with `changes` of other fields.

        Batches are as large as here where `options` do not say.
        """
        spec = METHODS[method]
        config = spec.configure(**{"batch_size": self.config.batch_size, **options})
        return replace(self, method=spec, config=config, clients=(), **changes)


@dataclass(frozen=True)
class OwnParty:
    """What a client has of its own: its feature block, its model before and after training, and how to run it.

    `initial` makes the model before training when it is first asked for: few attacks do; None where nobody knows it.
    """

    features: Tensor
    held_out: Tensor
    evaluator: Evaluator
    trained: ParameterStack
    initial: Callable[[], ParameterStack] | None


@dataclass(frozen=True)
class ServerStart:
    """A server's model before training, where all parties know it: how to run it, and for how many clients."""

    server: Evaluator
    parameters: ParameterStack
    clients: int


@dataclass(frozen=True)
class FewLabels:
    """Labels that the threat model grants: (K, n) record ids of each replica and their labels (K, n)."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SomeFeatures:
    """Features (n, ...) at client 1 of records `ids` (n,) that a server is granted, to fit a decoder."""

    ids: Tensor
    features: Tensor


@dataclass(frozen=True)
class Population:
    """What an adversary that asks about membership may know of the data: records that may have been trained on.

    `confidence` is what the released models of the targets say of each, log(p / (1 - p)) of its label's probability
    p, (targets, P); `shadows` the same of the adversary's own shadow models, (S, P), of which `members` (S, P) says
    who trained on what. `outside` and `shadows_outside` are confidences in records that nobody trained on. `copies`
    (targets, Q, P) and `shadows_copies` (S, Q, P) are what they say of Q slightly changed copies of each record.
    """

    confidence: np.ndarray
    outside: np.ndarray
    shadows: np.ndarray
    shadows_outside: np.ndarray
    members: np.ndarray
    copies: np.ndarray
    shadows_copies: np.ndarray


@dataclass(frozen=True)
class AllButOne:
    """What one has who lacks a single label of each training, and which two labels it may be.

    Of training k that is the label of record `records[k]`, which is `candidates[k, 0]` or `candidates[k, 1]`; the
    others are those of `dataset`. `unit` is what a step of noise stands for where it comes in whole steps whatever the
    configuration says (a planted fault), and `progress` hears how many rounds were played again.
    """

    dataset: VerticalDataset
    records: np.ndarray
    candidates: np.ndarray
    unit: float | None = None
    progress: Progress = lambda done: None


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What the threat model lets an adversary know beside its view: public parameters, and what it owns or is granted.

    `batches` is the number of batches in a pass over the data, `sigma` the standard deviation of the noise on a
    scalar (0 for methods without), `options` the attack's own with their defaults filled in, `client` the first that
    looks and `clients` how many take part. `shares`, those of the classes among the training records, are public.
    `grants` holds an `OwnParty` of each client that looks, and at most one of each of `ServerStart`, `FewLabels`,
    `SomeFeatures`, `Population` and `AllButOne`.
    """

    method: MethodSpec
    config: TrainingConfig
    classes: int
    records: int
    batches: int
    sigma: float
    replicas: tuple[int, ...]
    seed: int
    queries: int
    options: Mapping[str, Any]
    client: int = ATTACKER
    clients: int = 1
    shares: tuple[float, ...] = (0.5, 0.5)
    grants: tuple[object, ...] = ()

    @property
    def rarer(self) -> int:
        """Return the class with the fewest records."""
        return int(np.argmin(self.shares))

    @property
    def share_of_ones(self) -> float:
        """Return the share of class 1."""
        return self.shares[1]

    def granted(self, kind: type[T]) -> T:
        """Return what of a `kind` the threat model grants; `InputError` where this adversary does not hold it."""
        return granted(next((one for one in self.grants if isinstance(one, kind)), None), kind.__name__)

    def all_granted(self, kind: type[T]) -> list[T]:
        """Return all of a `kind` that the threat model grants; `InputError` where this adversary holds none."""
        found = [one for one in self.grants if isinstance(one, kind)]
        return found or [self.granted(kind)]

    @property
    def differences(self) -> Differences:
        """Return how answers measure a gradient; `InputError` for a method whose answers do not."""
        found = self.method.differences(self.config)
        if found is None:
            rule = "must be one whose answers are differences of losses"
            raise InputError(rule, "method", self.method.name)
        return found


def granted(what: T | None, words: str) -> T:
    """Return `what` the threat model grants, in words; `InputError` where this adversary does not hold it."""
    if what is None:
        raise InputError(f"the attack needs {words}, which this adversary does not hold")
    return what


@dataclass(frozen=True)
class LabelGuesses:
    """Guessed labels (answers, K, B), place by place in the batches of the attacked rounds.

    `ids` (answers, K, B) says which records those are, or is None where the attacker does not know. An attack that
    guesses records of its choice, not places of batches, gives one answer. `scores` (answers, K, B, classes) are
    what the labels were read off, the larger the likelier; `held_out` (K, n, classes) the same for test records.
    `less` holds guesses of the same attacker with less to go by, by name, where both share their work: baselines beside
    those of `AttackSpec.baselines`.
    `unnamed` guesses tell records apart by class first and name the classes then: success under the best names, which
    the truth alone knows, stands beside theirs.
    """

    labels: Tensor
    ids: Tensor | None
    scores: Tensor | None = None
    held_out: Tensor | None = None
    unnamed: bool = False
    less: "Mapping[str, LabelGuesses]" = field(default_factory=dict)

    def about(self, records: Tensor) -> "LabelGuesses":
        """Return of guesses about all records in order those about `records` (K, n) alone."""
        scores = self.scores
        if scores is not None:
            scores = scores.gather(2, records[None, :, :, None].expand(1, -1, -1, scores.shape[3]))
        return replace(self, labels=self.labels.gather(2, records[None]), ids=records[None], scores=scores)


SECOND = (
    "a score is how much likelier the second is. Nothing is assumed of how scores of one training depend on each other"
)
"""What scores of pairs say, in the words of a game."""


@dataclass(frozen=True)
class CoinGame:
    """Scores of what fair coins decided: of those that fell on 1 and on 0, from which an audit certifies an epsilon.

    `neighbours` is the relation that one coin decides; `what` says in words whose coins they are. Scores of one
    training may depend on each other: only the one-run estimators may read them.
    """

    on_one: np.ndarray
    on_zero: np.ndarray
    neighbours: str
    what: str

    @classmethod
    def of(cls, scores: np.ndarray, on_one: np.ndarray, neighbours: str, what: str) -> "CoinGame | None":
        """Return the game of `scores` where the booleans `on_one` are the coins; None where all fell alike."""
        if on_one.all() or not on_one.any():
            return None
        return cls(scores[on_one], scores[~on_one], neighbours, what)


@dataclass(frozen=True)
class Pictures:
    """Records as pictures of `shape` (height, width): greys (n, height * width) in [0, 1] by what they are."""

    shape: tuple[int, int]
    rows: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class AttackOutcome:
    """Success beside what it must be compared with, and the training that was attacked.

    Attributes:
        success: What `metric` says in words.
        baselines: Success of guesses, and of the same attacker with less to go by.
        controls: Runs whose result is known.
        trained: The trainings that were attacked.
        plan: Schedule and noise of the attacked training; None for methods without a scalar channel.
        metric: What `success` is a measure of.
        chance: Success without any information.
        measures: Further numbers beside it.
        by_trial: Rates of each trial by name: `success`, controls and baselines, which can be compared trial by trial.
        curves: Rows of numbers for a figure or a table, by name.
        game: Scores that it gave to what fair coins decided.
        no_game: Why there are none.
        pictures: What it made out, beside what it was.
        at_once: How many trainings memory sufficed for at a time, where not for all.
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


Need = Callable[[AttackSetting], str | None]


@dataclass(frozen=True)
class Positive:
    """A setting in which the attack must succeed: in words, how to make it, and the least success it must reach."""

    what: str
    setting: Callable[[AttackSetting], AttackSetting]
    least: float


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """An attack as users name it: who can mount it, what it needs of the method, and the function that infers.

    Attributes:
        name: The name on the command line.
        summary: One line about it.
        adversaries: Who can mount it; the first where the user names none.
        infer: What it makes of a view and the knowledge beside it.
        mounted_by: Trains with the adversary in place, scores, and adds controls: one such function for each goal.
        positive: Where it must succeed.
        requires: Method options that the attack needs; training is set up with them, and says so.
        requires_because: Why.
        suggests: Method options that suit the attack where the user gives none.
        options: The attack's own options with their defaults.
        choices: What an option that is a word may be.
        least_success: The least success that there is, which claims may name: -1 where success is a correlation.
        needs: What a method, configuration and data set must have; the first that they lack is told.
        behave: Clients that the adversary plays in training: none for one that only looks.
        baselines: The same attacker with less to go by, for attacks on labels; see also `LabelGuesses.less`.
        queries: How often a curious client asks about each batch where the user does not say.
        trials: Trainings where the user does not say.
        unsupervised: Whether features alone may give labels away to it, trained on or not: the control's truth is then
            permuted too, and what it finds after training on permuted labels is a baseline, which says how much
            features alone do.
        trains_on: What one replica trains on, by default the setting's data set: accountants and controls of accuracy
            take it.
        few_labels: Whether the threat model grants `labels_per_class` training labels of each class.
        granted_among: Records (K, n) of each training among which these are drawn; by default all.
        grants: What else the threat model grants, of the data as trainings take them and a setting.
        rounds: Rounds that its progress counts to: by default those of an attacked training and, but in a pilot, of its
            control.
        one_view: Whether the view of one training suffices, so that it can be mounted on one that was recorded.
        reads: Kinds of messages that it reads, to keep no others in memory; None: everything that its adversary sees.
        reads_of: Parties whose messages it reads, to keep no others; None: everybody's.
        answers: The kind of answers that its guesses are about where it cannot name records; None: the method's own.
        in_pilot: Options of its own with which a pilot takes less time.
        reveals: What it finds out; `gradients` are about no record.
    """

    name: str
    summary: str
    adversaries: tuple[str, ...]
    infer: Callable[[View, Knowledge], Any]
    mounted_by: "Callable[[AttackSpec, AttackSetting], AttackOutcome]"
    positive: Positive
    requires: Mapping[str, object] = field(default_factory=dict)
    requires_because: str = ""
    suggests: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    least_success: float = 0.0
    needs: tuple[Need, ...] = ()
    behave: Callable[[AttackSetting], Mapping[int, Behaviour]] = lambda setting: {}
    baselines: Callable[[View, Knowledge], Mapping[str, LabelGuesses]] = lambda view, known: {}
    queries: int = 1
    trials: int = 64
    unsupervised: bool = False
    trains_on: "Callable[[AttackSpec, AttackSetting], VerticalDataset]" = lambda spec, setting: setting.dataset
    few_labels: bool = False
    granted_among: Callable[[AttackSetting], Tensor] | None = None
    grants: Callable[[TrainingData, AttackSetting], tuple[object, ...]] = lambda data, setting: ()
    rounds: "Callable[[AttackSpec, AttackSetting], int]" = lambda spec, setting: (
        (1 if setting.pilot else 2) * setting.rounds
    )
    one_view: bool = False
    reads: tuple[str, ...] | None = None
    reads_of: tuple[int, ...] | None = None
    answers: str | None = None
    in_pilot: Mapping[str, Option] = field(default_factory=dict)
    reveals: Literal["labels", "membership", "features", "gradients"] = "labels"

    def lacks(self, setting: AttackSetting) -> str | None:
        """Return in one line why the attack does not apply to `setting`; None where it does."""
        capabilities = setting.method.capabilities
        if not (capabilities.repeatable or self.one_view):
            return (
                "it needs more than one view, and a transcript is one; a method or a system trains as often as it needs"
            )
        if setting.adversary == "eavesdropper" and capabilities.encrypted:
            return "its messages were sent under TLS, of which an eavesdropper sees lengths and times alone"
        by_mail = setting.adversary not in ("server", "release")
        by_model = self.reads == () and label_release(setting.config.defences) is not None
        if setting.config.labels_shared and by_mail and LABELS not in (self.reads or ()) and not by_model:
            return "its server sends every client the labels that it trains on: label_received reads them"
        if setting.downlink == "none" and by_mail and self.reads not in ((), (LABELS,)):
            return "its server sends clients nothing about records"
        reasons = (need(setting) for need in self.needs)
        return next((why for why in reasons if why is not None), None)

    def check(self, adversary: str, options: dict[str, object]) -> dict[str, object]:
        """Return method options with what this attack requires and suggests; `InputError` where that cannot be."""
        if adversary not in self.adversaries:
            raise InputError(f"but {self.name} is mounted by {' or '.join(self.adversaries)}", "adversary", adversary)
        for key, value in self.requires.items():
            if options.get(key, value) != value:
                given = f"{key} {options[key]!r}, needs {value!r}"
                raise DoesNotApply(f"{self.name} does not apply with {given}: {self.requires_because}")
        return {**self.suggests, **options, **self.requires}

    def mount(self, setting: AttackSetting) -> AttackOutcome:
        """Train with the adversary in place, attack, score and run the controls; `InputError` where it cannot be."""
        outcome = self.mount_alone(setting)
        if not self.misses_positive(setting, outcome.controls):
            return outcome
        return replace(outcome, controls={**outcome.controls, "positive": self.positive_control(setting)})

    def mount_alone(self, setting: AttackSetting) -> AttackOutcome:
        """Do the same without the positive control, which is another training, but where the attack has its own."""
        self.check(setting.adversary, {key: getattr(setting.config, key, None) for key in self.requires})
        reason = self.lacks(setting)
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

        Records are drawn anew (`controls.known_records`): its answer is known, whatever the user's data are.
        """
        on_known = replace(setting, dataset=known_records(setting.dataset, setting.seed))
        planted = replace(self.positive.setting(on_known), progress=None, with_positive=False)
        return reaches(self.mount(planted).success, what=self.positive.what, least=self.positive.least)

    def count(self, setting: AttackSetting, key: str) -> int:
        """Return the attack's own option `key`, a whole number; errors as `own_options`."""
        return int(self.own_options(setting)[key])

    def own_options(self, setting: AttackSetting) -> dict[str, Option]:
        """Return the attack's own options, the setting's over defaults; `InputError` for an unknown or wrong one."""
        for key, value in setting.options.items():
            if key not in self.options:
                raise unknown_name(f"option of {self.name}", key, self.options)
            what = f"option {key} of {self.name}"
            default = self.options[key]
            if isinstance(default, float):
                check_positive(what, value)
            elif type(value) is not type(default):
                raise InputError(f"must be as {default!r}", what, value)
            elif isinstance(value, str):
                check_names(what, [value], self.choices.get(key, [value]))
            elif not isinstance(value, bool):
                check_count(what, value)
        return {**self.options, **setting.options}
