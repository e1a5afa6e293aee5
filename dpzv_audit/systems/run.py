"""A system as a method: each replica is one call of its function (`System.play`), whose messages `replay` sends again.

Attacks, controls and coin games then run it like a method: it is trained again, on labels that are permuted, dealt by
coins, or its own.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mechanisms.core.context import Deployment, RunContext, TrainedStack, TrainingData
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
from .draft import draft_of
from .rehearsal import SystemCapabilities, rehearse
from .release_tests import held_against
from .replay import replay, stack_of
from .stated import AUDIENCE, UNSTATED, stated_release, system_at
from .system import Played, Player, System, SystemFailed, classes_of, logits, seed_of
from .task import Task
from .trials import Trial, TrialRequest, carried_out, digest_of

PREFIX = "system:"
ROUNDS = 1000
"""Steps of the progress of a stack of trainings, in the place of rounds."""


class SystemConfig(TrainingConfig):
    """Settings of a system that the tool knows: those that the system states; one round is a whole training."""

    epochs: int = 1
    batch_size: int = 1

    @property
    def defended_at(self) -> tuple[Place, ...]:
        """See `TrainingConfig.defended_at`: at labels, and where gradients pass its cuts."""
        return ("labels", "embedding", "gradient")

    @model_serializer
    def _of_its_own(self) -> dict[str, object]:
        own: dict[str, object] = {"top_model": self.top_model}
        if self.defences:
            own["defences"] = [defence.model_dump(mode="json") for defence in self.defences]
        return own

    def steps_per_pass(self, records: int) -> int:
        """Return the steps of a stack's progress; rounds are the system's own."""
        return ROUNDS


class SystemRun:
    """K trainings of a system as one stack in one step; it is its own federation."""

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
        raise InputError(f"system {self._system.name} has no checkpoints within a training; train it anew")

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.own_tensors()

    def step(self) -> None:
        """Train all replicas, each by itself, and replay their messages as those of the stack."""
        system, job, requests = self._asked()
        if system.trials.folder is None:
            latest = system.trials.latest
            arrays = "" if latest is None else job.digest
            for request in requests:
                train = partial(_trial_of, job, request)
                self._played.append(
                    train() if latest is None else latest.once(f"{system.trials.mark} {request.key(arrays)}", train)
                )
                self._report(len(self._played))
        else:
            self._played += self._carried_out(job, requests)
        replay(self._played, self.channel, system.name)
        self.round = ROUNDS

    def train_ahead(self) -> bool:
        """Train all replicas where trainings are kept, and keep them; return whether they are."""
        system, job, requests = self._asked()
        if system.trials.folder is None:
            return False
        for _ in self._carried_out(job, requests):
            pass
        return True

    def _asked(self) -> "tuple[Player, TrialJob, list[TrialRequest]]":
        system = self._system
        job = TrialJob(
            load=lambda: system,
            features=tuple(block.cpu().numpy() for block in self._data.features),
            test_features=tuple(block.cpu().numpy() for block in self._data.test_features),
            test_labels=self._data.test_labels.cpu().numpy(),
            classes=self._data.classes,
            values=self._data.values,
            defended=self._defended,
        )
        requests = [self._request(place, replica) for place, replica in enumerate(self._context.replicas)]
        return system, job, requests

    def _carried_out(self, job: "TrialJob", requests: Sequence[TrialRequest]) -> Iterator[Trial]:
        system = self._system
        if system.trials.workers.kind != "here":
            job = replace(job, load=partial(system_at, system.name, system.seconds, Path.cwd()), apart=True)
        return carried_out(
            requests,
            system.trials,
            job,
            features=job.digest,
            seconds=system.seconds,
            failure=lambda words: SystemFailed(f"system {system.name}: {words}"),
            progress=self._report,
        )

    def _report(self, done: int) -> None:
        if self._context.progress is not None:
            self._context.progress(ROUNDS * done // len(self._context.replicas))

    def _request(self, place: int, replica: int) -> TrialRequest:
        data = self._data.of_replicas(place, place + 1)
        return TrialRequest(
            labels=(data.labels if data.labels.dim() == 1 else data.labels[0]).cpu().numpy(),
            rows=None if data.selection is None else data.selection[0].cpu().numpy(),
            seed=seed_of(self._context.seed, replica),
            which=f"training {replica + 1}",
        )

    def epoch_record(self, epoch: int) -> tuple[int, float, float]:
        """(epoch, mean test accuracy, mean test loss) after the training."""
        correct = self._correct()
        return epoch, float(correct.mean()) if correct.size else math.nan, math.nan

    def finish(self, rounds: int, history: Sequence[tuple[int, float, float]]) -> TrainedStack:
        """Return the models, the correct test records, and the answers of `predict`."""
        # Of trainings that stopped at different rounds the longest counts.
        messages = max((played.messages for played in self._played), key=len)
        clients = range(1, len(self._data.features) + 1)
        models = [[played.models.get(m) for played in self._played] for m in clients]
        active = {(party, message.round) for message in messages for party in (message.sender, message.receiver)}
        rounds_of = Counter(party for party, _ in active)
        return TrainedStack(
            clients=tuple(map(stack_of, models)),
            server=ParameterStack(torch.zeros(len(self._played), 0), ()),
            correct=self._correct(),
            loss=np.full(len(self._played), np.nan),
            ledger=self.channel.ledger,
            rounds=len({message.round for message in messages}),
            rounds_by_client=tuple(rounds_of[m] for m in clients),
            architectures=tuple(None if None in models[m - 1] else self._architectures.get(m) for m in clients),
            answers=self._scores(),
        )

    def _correct(self) -> np.ndarray:
        """Return which test records are classified right, (K, n); (K, 0) without a `predict`, or of classes."""
        if self._data.values is not None or not all(played.answers for played in self._played):
            return np.zeros((len(self._played), 0), bool)
        truth = self._data.test_labels.cpu().numpy()
        name = self._system.name
        return np.stack([classes_of(played.answers[0], len(truth), name) == truth for played in self._played])

    def _scores(self) -> tuple[np.ndarray, ...]:
        """Return logits (K, n, classes) of the test records and of all rows, where predictions of these were wanted."""
        if self._data.selection is None or not all(played.answers for played in self._played):
            return ()
        name = self._system.name
        queries = zip(*([logits(answer, name) for answer in played.answers] for played in self._played), strict=True)
        return tuple(_side_by_side(scores, name) for scores in queries)


def _side_by_side(scores: Sequence[np.ndarray], name: str) -> np.ndarray:
    """Return scores (n, classes) of K trainings as (K, n, classes)."""
    shapes = sorted({str(of.shape) for of in scores})
    if len(shapes) > 1:
        given = " and ".join(shapes)
        raise InputError(f"system {name}: predict answers scores of shapes {given} in different trainings; use one")
    return np.stack(scores)


def _trial_of(job: "TrialJob", request: TrialRequest) -> Trial:
    return job.played(request).trial


def _at_cuts(system: Player, config: TrainingConfig, context: RunContext) -> CutDefences | None:
    """Return the defences at a system's cuts; `InputError` where one would break a statement of the system."""
    defended = CutDefences(config.defences, context.noise_origin)
    if not defended.any:
        return None
    if getattr(system, "stated", None) is not None:
        for defence in config.defences:
            if defence.reads_labels:
                rule = "leave it out: it reads labels, beside a release that is stated"
                raise InputError(rule, "defence", defence.name)
    return defended


@dataclass(frozen=True)
class TrialJob:
    """Trains a system once, here or `apart` in a worker, which loads it by itself; see `Task` for the arrays."""

    load: Callable[[], Player]
    features: tuple[np.ndarray, ...]
    test_features: tuple[np.ndarray, ...]
    test_labels: np.ndarray
    classes: int
    values: np.ndarray | None = None
    apart: bool = False
    defended: CutDefences | None = None

    @property
    def digest(self) -> str:
        """Digest of all arrays, and the defences at cuts."""
        facts = [] if self.defended is None else [self.defended.facts]
        facts += [] if self.values is None else [array_digest(self.values)]
        return " ".join([digest_of(self.features, self.test_features, self.test_labels), *facts])

    def played(self, request: TrialRequest) -> Played:
        """Return the result of the training that is wanted."""
        features, queries = self.features, [self.test_features]
        if request.rows is not None:
            features = tuple(block[request.rows] for block in features)
            queries.append(self.features)
        task = Task.valued(features, request.labels, self.test_features, self.test_labels, self.classes, self.values)
        player = self.load()
        if self.defended is not None:
            assert isinstance(player, System)  # a recorded training has no cuts
            player = replace(player, defended=self.defended)
        return player.play(task, request.seed, request.which, queries)

    def __call__(self, request: TrialRequest) -> bytes:
        """Return the same as the content of a file.

        In a thread of a worker it is trained in a process of its own: generators are seeded for a whole process, and a
        timer reaches a main thread alone.
        """
        if self.apart and not can_ring():
            content: bytes = in_own_process(self, request)
            return content
        played = self.played(request)
        return played.trial.to_bytes(played.record)


def prepared(system: System, dataset: VerticalDataset, seed: int) -> tuple[MethodSpec, SystemConfig]:
    """Rehearse a system on a data set, and return it as a method with its configuration; errors as `rehearse`."""
    config, task = setting_of(system, dataset)
    return method_of(system, rehearse(system, task, seed), task), config


def setting_of(system: System, dataset: VerticalDataset) -> tuple[SystemConfig, Task]:
    """Return the configuration of a system on a data set, and its task there."""
    return SystemConfig(batch_size=min(64, len(dataset.train)), top_model=system.top_model), Task.of(dataset)


def method_of(system: System, capabilities: SystemCapabilities, task: Task) -> MethodSpec:
    """Return a rehearsed system as a method, by the name `system:module:function`; errors as `stated_release`."""
    stated = stated_release(system, task, capabilities)
    protection = Protection(words=UNSTATED)
    released = no_noise
    rehearsed, capabilities = capabilities.rehearsed, replace(capabilities, rehearsed=None)
    if stated is None:
        if rehearsed is not None:
            draft = draft_of(rehearsed.first, capabilities, task.records, top_model=system.top_model)
            capabilities = replace(capabilities, draft=draft)
    else:
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
