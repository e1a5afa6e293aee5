"""The setting of an attack: a training, who looks at it, and all else that a result depends on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dpzv_audit.base.findings import SERVERS
from dpzv_audit.base.halving import as_share, in_pieces
from mechanisms import METHODS, Training, train
from mechanisms.core.capabilities import downlink_of
from mechanisms.core.channel import Adversary
from mechanisms.core.config import Downlink
from mechanisms.core.context import (
    Behaviour,
    Plan,
    RunContext,
    TrainedStack,
    TrainingData,
    repeats_of,
)

from .metrics import Ints

T = TypeVar("T")
Progress = Callable[[int], None]
# The adversary's client where no other is chosen.
ATTACKER = 1
COLLUDING = "colluding-clients"
ALONE = ("client", "malicious-client")
"""Adversaries that are one client, whichever."""
BY_CLIENTS = (*ALONE, COLLUDING)
"""Adversaries that are clients."""


def abilities(adversary: str) -> tuple[str, ...]:
    """Return whom an adversary can act as: as itself, and who deviates or colludes as one that does not."""
    honest = "client" if adversary in BY_CLIENTS else "server" if adversary in SERVERS else adversary
    return tuple(dict.fromkeys((adversary, honest)))


@dataclass(frozen=True, kw_only=True)
class AttackSetting(Training):
    """One attack on one training: everything its result depends on.

    `trials` trainings run as replicas of one stack; `queries` is how often a curious client asks about each batch of
    its first pass; `options` are the attack's own, by the names in its `Setup.options`. Without `with_positive`
    the positive control, which is the same whatever the method, is left out (a matrix runs it once per attack).
    A `pilot` is mounted to choose by, without the control that is another training.
    `first` is the number of the first replica; `at_once` how many trainings at a time are known to fit into memory,
    None where nothing is known. `clients` are those that look where clients do: by default the first, or of colluding
    clients all, of those that exchange messages. Settings that are mounted `together` share a training where they may.
    """

    adversary: str = "client"
    public_ids: bool = False
    queries: int = 1
    trials: int = 64
    confidence: float = 0.95
    options: Mapping[str, Any] = field(default_factory=dict)
    with_positive: bool = True
    pilot: bool = False
    progress: Progress | None = None
    first: int = 0
    at_once: int | None = None
    clients: tuple[int, ...] = ()
    together: "Together | None" = None

    @classmethod
    def of(cls, training: Training, **more: Any) -> "AttackSetting":
        """Return the setting of an attack on a training, with `more` of its fields."""
        return cls(**vars(training), **more)

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
    def key(self) -> tuple[object, ...]:
        """Return what decides the outcome of an attack in this setting, for a table in memory."""
        about = (self.method.name, self.method.run, self.config.model_dump_json(), self.dataset.fingerprint, self.seed)
        looks = (self.looks, self.queries, self.trials, self.first, self.confidence, self.device)
        return (*about, *looks, self.pilot, self.with_positive, *sorted(self.options.items()))

    @property
    def labels(self) -> Ints:
        """Return the true training labels (N,)."""
        return self.dataset.train.labels

    def plan(self, behaviours: Mapping[int, Behaviour] | None = None) -> Plan | None:
        """Return schedule and noise of the scalars where some clients deviate; None for methods without scalars."""
        return self.method.plan(self.config, self.deployment(repeats=repeats_of(behaviours or {})))

    def with_others(self, behave: "Callable[[AttackSetting], Mapping[int, Behaviour]]") -> "tuple[AttackSetting, ...]":
        """Return this setting and those that share its training, where none has clients that `behave` in another way.

        Trainings of the user's own are shared elsewhere.
        """
        settings = self.together.settings if self.together is not None else ()
        shared = self.method.capabilities.simulated and self.key in [one.key for one in settings]
        return settings if shared and not any(map(behave, settings)) else (self,)

    def context(self, **more: Any) -> RunContext:
        """Return where and for whom a method runs, with `more` of it."""
        return RunContext(seed=self.seed, replicas=self.replicas, device=self.device, **more)

    def train(self, data: TrainingData, **more: Any) -> TrainedStack:
        """Return the replicas, trained on `data` as one stack with `more` of a context."""
        return train(self.method, data, self.config, self.context(progress=self.progress, **more))

    def in_stacks(
        self, work: "Callable[[AttackSetting, slice], T]", rounds: int, *, whole: bool = False
    ) -> tuple[list[T], int | None]:
        """Do `work` for all `trials` at once or, where memory runs out, for ever fewer at a time.

        Args:
            work: Gets the setting of a stack, whose progress goes from 0 to `rounds`, and the places of its trainings.
            rounds: Rounds that the work on a stack counts.
            whole: All must be one stack, whatever memory there is.

        Returns:
            What `work` gave for each stack, and how many at a time memory sufficed for, None where for all.
        """

        def piece(first: int, last: int) -> T:
            progress = as_share(self.progress, (first, last), of=self.trials, rounds=rounds)
            progress(0)
            stack = replace(self, first=self.first + first, trials=last - first, progress=progress)
            return work(stack, slice(first, last))

        if whole:
            return [piece(0, self.trials)], None
        results, at_once = zip(*in_pieces(piece, 0, self.trials, self.at_once), strict=True)
        return list(results), at_once[-1]

    def on(self, method: str, options: Mapping[str, object], /, **changes: Any) -> "AttackSetting":
        """Return this setting on another `method` with its `options`, and with `changes` of other fields.

        Batches are as large as here where `options` do not say. Built-in methods train on classes, whatever they stand
        for here.
        """
        spec = METHODS[method]
        config = spec.configure(**spec.used({"batch_size": self.config.batch_size}) | dict(options))
        data = replace(changes.pop("dataset", self.dataset), values=None)
        return replace(self, method=spec, config=config, clients=(), dataset=data, together=None, **changes)


@dataclass(eq=False)
class Together:
    """Settings of one training at which several clients look, each for itself, and what those saw who come later.

    Where none of them deviates from the protocol the training is the same, whoever looks: it is done once.
    """

    settings: tuple[AttackSetting, ...]
    seen: dict[tuple[object, ...], Any] = field(default_factory=dict)
    """What those saw who have not attacked yet, by the key of their setting."""
