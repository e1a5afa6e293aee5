"""A system as a method: each replica is one call of its function, and its messages are replayed.

What an attack, a control or a coin game asks of a method it can then ask of a system: it is trained again, on labels
that are permuted, dealt by coins, or its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pydantic import model_serializer
from torch import Tensor

from mechanisms.core.capabilities import downlink_of
from mechanisms.core.channel import Channel
from mechanisms.core.config import TrainingConfig
from mechanisms.core.context import Deployment, RunContext, TrainedStack, TrainingData, dtype_of
from mechanisms.core.defence import Place
from mechanisms.core.method import Games, MethodSpec, Protection, no_noise
from mechanisms.core.models import Architecture
from mechanisms.core.replicas import ParameterStack

from ..accounting import Release
from ..base.errors import InputError
from ..base.executor import in_own_process
from ..base.signals import can_ring
from ..data.vertical import VerticalDataset, array_digest
from .defences import CutDefences
from .rehearsal import SystemCapabilities, rehearse
from .release_tests import held_against
from .replay import replay, stack_of
from .stated import AUDIENCE, UNSTATED, stated_release, system_at
from .system import Played, Player, System, SystemFailed, classes_of, logits, seed_of, task_of
from .task import Task
from .trials import Trial, TrialRequest, carried_out

PREFIX = "system:"
ROUNDS = 1000
"""Parts into which the progress of a stack of trainings is told, in the place of rounds."""


class SystemConfig(TrainingConfig):
    """What the tool knows of how a system trains: nothing but what the system states; one round is a whole training."""

    epochs: int = 1
    batch_size: int = 1

    @property
    def defended_at(self) -> tuple[Place, ...]:
        """See `TrainingConfig.defended_at`: at labels, and where gradients pass its cuts."""
        return ("labels", "embedding", "gradient")

    @model_serializer
    def _of_its_own(self) -> dict[str, object]:
        own: dict[str, object] = {"top_model": self.top_model}
        return own | ({"defences": [one.model_dump(mode="json") for one in self.defences]} if self.defences else {})

    def steps_per_pass(self, records: int) -> int:
        """Return into how many parts a stack's progress is told; rounds are the system's own."""
        return ROUNDS


class SystemRun:
    """K trainings of a system as one stack in one step; what it is asked for of a federation it answers itself."""

    steps_per_pass = 1

    def __init__(
        self,
        system: Player,
        architectures: Mapping[int, Architecture],
        data: TrainingData,
        config: TrainingConfig,
        context: RunContext,
    ) -> None:
        self._architectures = architectures
        self.federation = self
        self.channel = Channel(context.observers)
        self.round = 0
        self._system = system
        self._defended = _at_cuts(system, config, context)
        self._data = data
        self._context = context
        self._played: list[Trial] = []

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        raise InputError(f"system {self._system.name} has no checkpoints within a training, must be trained anew")

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.own_tensors()

    def step(self) -> None:
        """Train all replicas, each by itself, and replay what was sent as messages of the stack."""
        replicas = self._context.replicas
        system = self._system
        asked = [self._asked(place, replica) for place, replica in enumerate(replicas)]
        job = TrialJob(
            load=lambda: system,
            features=tuple(block.cpu().numpy() for block in self._data.features),
            test_features=tuple(block.cpu().numpy() for block in self._data.test_features),
            test_labels=self._data.test_labels.cpu().numpy(),
            classes=self._data.classes,
            defended=self._defended,
        )

        def told(done: int) -> None:
            if self._context.progress is not None:
                self._context.progress(ROUNDS * done // len(replicas))

        if system.trials.folder is None:
            for one in asked:
                self._played.append(job.played(one).trial)
                told(len(self._played))
        else:
            if system.trials.workers.kind != "here":
                load = partial(system_at, system.name, system.seconds, Path.cwd())
                job = replace(job, load=load, apart=True)
            kept = carried_out(
                asked,
                system.trials,
                job,
                features=job.digest,
                seconds=system.seconds,
                failure=lambda words: SystemFailed(f"system {system.name}: {words}"),
                told=told,
            )
            self._played += kept
        replay(self._played, self.channel, system.name)
        self.round = ROUNDS

    def _asked(self, place: int, replica: int) -> TrialRequest:
        one = self._data.of_replicas(place, place + 1)
        return TrialRequest(
            labels=(one.labels if one.labels.dim() == 1 else one.labels[0]).cpu().numpy(),
            rows=None if one.selection is None else one.selection[0].cpu().numpy(),
            seed=seed_of(self._context.seed, replica),
            which=f"training {replica + 1}",
        )

    def epoch_record(self, epoch: int) -> tuple[int, float, float]:
        """(epoch, mean test accuracy, mean test loss) after the training."""
        correct = self._correct()
        return epoch, float(correct.mean()) if correct.size else math.nan, math.nan

    def finish(self, rounds: int, history: Sequence[tuple[int, float, float]]) -> TrainedStack:
        """Hand over the models, what is right of the test records, and what was answered."""
        messages = self._played[0].messages
        clients = range(1, len(self._data.features) + 1)
        models = [[played.models.get(m) for played in self._played] for m in clients]
        active: dict[int, set[int]] = {}
        for one in messages:
            for party in (one.sender, one.receiver):
                active.setdefault(party, set()).add(one.round)
        correct = self._correct()
        nothing = stack_of([None] * len(self._played))
        stacks = tuple(nothing if not any(of_client) else stack_of(of_client) for of_client in models)
        known = self._architectures
        return TrainedStack(
            clients=stacks,
            server=ParameterStack(torch.zeros(len(self._played), 0), ()),
            correct=correct,
            loss=np.full(len(self._played), np.nan),
            ledger=self.channel.ledger,
            rounds=len({one.round for one in messages}),
            rounds_by_client=tuple(len(active.get(m, ())) for m in clients),
            architectures=tuple(known.get(m) if None not in models[m - 1] else None for m in clients),
            answers=self._scores(),
        )

    def _correct(self) -> np.ndarray:
        """Whether each test record is classified right, (K, n); (K, 0) where the system returns no `predict`."""
        if not all(played.answers for played in self._played):
            return np.zeros((len(self._played), 0), bool)
        truth = self._data.test_labels.cpu().numpy()
        name = self._system.name
        return np.stack([classes_of(played.answers[0], len(truth), name) == truth for played in self._played])

    def _scores(self) -> tuple[np.ndarray, ...]:
        """Logits (K, n, classes) of the test records and of all rows, where predictions of these were asked for."""
        if self._data.selection is None or not all(played.answers for played in self._played):
            return ()
        blocks = zip(*(played.answers for played in self._played), strict=True)
        return tuple(np.stack([logits(one, self._system.name) for one in block]) for block in blocks)


def _at_cuts(system: Player, config: TrainingConfig, context: RunContext) -> CutDefences | None:
    """Return the defences that stand at a system's cuts; `InputError` where one would break what the system states."""
    defended = CutDefences(config.defences, context.noise_origin)
    if not defended.any:
        return None
    if getattr(system, "stated", None) is not None:
        reading = next((one.name for one in config.defences if one.reads_labels), None)
        if reading is not None:
            raise InputError("must be left out: it reads labels, beside a release that is stated", "defence", reading)
    return defended


@dataclass(frozen=True)
class TrialJob:
    """Trains a system once, here or `apart` in a worker, which loads it by itself; see `Task` for the arrays."""

    load: Callable[[], Player]
    features: tuple[np.ndarray, ...]
    test_features: tuple[np.ndarray, ...]
    test_labels: np.ndarray
    classes: int
    apart: bool = False
    defended: CutDefences | None = None

    @property
    def digest(self) -> str:
        """The digest of all arrays, and what the defences at cuts are."""
        own = [] if self.defended is None else [self.defended.facts]
        return " ".join([*map(array_digest, (*self.features, *self.test_features, self.test_labels)), *own])

    def played(self, one: TrialRequest) -> Played:
        """Return what the training that is asked for gives."""
        task = Task(
            features=self.features if one.rows is None else tuple(block[one.rows] for block in self.features),
            labels=one.labels,
            test_features=self.test_features,
            test_labels=self.test_labels,
            classes=self.classes,
        )
        asked = [self.test_features] if one.rows is None else [self.test_features, self.features]
        player = self.load()
        if self.defended is not None:
            assert isinstance(player, System)  # a recorded training has no cuts
            player = replace(player, defended=self.defended)
        return player.play(task, one.seed, one.which, asked)

    def __call__(self, one: TrialRequest) -> bytes:
        """Return the same as the content of a file.

        In a thread of a worker it is trained in a process of its own: generators are seeded for a whole process, and a
        timer reaches a main thread alone.
        """
        if self.apart and not can_ring():
            content: bytes = in_own_process(self, one)
            return content
        played = self.played(one)
        return played.trial.to_bytes(played.record)


def prepared(system: System, dataset: VerticalDataset, seed: int) -> tuple[MethodSpec, SystemConfig]:
    """Rehearse a system on a data set, and return it as a method with its configuration; errors as `rehearse`."""
    config, task = setting_of(system, dataset)
    return method_of(system, rehearse(system, task, seed), task), config


def setting_of(system: System, dataset: VerticalDataset) -> tuple[SystemConfig, Task]:
    """Return the configuration of a system on a data set, and its task there."""
    config = SystemConfig(batch_size=min(64, len(dataset.train)), top_model=system.top_model)
    return config, task_of(TrainingData.of(dataset, dtype=dtype_of(config), device="cpu"))


def method_of(system: System, capabilities: SystemCapabilities, task: Task) -> MethodSpec:
    """Return a rehearsed system as a method, by the name `system:module:function`; errors as `stated_release`."""
    stated = stated_release(system, task, capabilities)
    protection = Protection(words=UNSTATED)
    released = no_noise
    rehearsed, capabilities = capabilities.rehearsed, replace(capabilities, rehearsed=None)
    if stated is not None:
        release, delta = stated
        if rehearsed is not None:
            assert system.stated is not None
            tests = held_against(release, rehearsed, joined=system.stated(task).get("own_rounds_only") is False)
            not_made = (*tests.not_made, *capabilities.not_made)
            capabilities = replace(capabilities, contradicted=tests.contradicted, not_made=not_made)
        protection = Protection(
            words=f"what the system states: noise on its {release.channel} messages",
            channel=release.channel if release.channel != "zo-gradient" else None,
            audience=AUDIENCE.get(release.channel, ()),
            neighbours="replace-record" if release.channel == "embedding" else "replace-label",
            draws=True,
            delta=delta,
        )
        released = partial(_released, release)
    return MethodSpec(
        name=f"{PREFIX}{system.name}",
        summary="a training of the user's own",
        config=SystemConfig,
        run=partial(SystemRun, system, capabilities.architectures),
        released=released,
        downlink=downlink_of(capabilities.told_to()),
        protection=lambda config: protection,
        games=lambda config: Games(why_not="no game was played: the command audit plays one"),
        defaults={"top_model": system.top_model},
        capabilities=capabilities,
    )


def _released(release: Release, config: TrainingConfig, deployment: Deployment) -> tuple[Release, ...]:
    return (release,)
