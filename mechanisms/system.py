"""A training of the user's own as a method: each replica is one call of its function, and its messages are replayed.

What an attack, a control or a coin game asks of a method it can then ask of a system: it is trained again, on labels
that are permuted, dealt by coins, or its own.
"""

import inspect
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol, cast

import numpy as np
import torch
from pydantic import model_serializer
from torch import Tensor, nn

from dpzv_audit.accounting import Release
from dpzv_audit.base.errors import AuditError, InputError, check_delta
from dpzv_audit.base.executor import in_own_process
from dpzv_audit.base.findings import AdversaryName
from dpzv_audit.base.loading import function_at, module_at, printing_aside, short, words_of
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.base.signals import TimeIsUp, can_ring, until
from dpzv_audit.data.vertical import VerticalDataset, array_digest
from dpzv_audit.systems.record import (
    SERVER,
    Recorder,
    Recording,
    Sent,
    check_order,
    finite_numbers,
    with_ids,
)
from dpzv_audit.systems.task import Part, Task, dataset_of

from .core.channel import VALUE_BYTES, Channel, Message
from .core.config import TrainingConfig
from .core.context import Deployment, RunContext, TrainedStack, TrainingData, dtype_of
from .core.defence import CutDefences, Place, origin_of
from .core.federation import Federation
from .core.method import Games, MethodSpec, Offers, Protection, Traffic, downlink_of, no_noise
from .core.models import Architecture, GivenModel, Layout
from .core.replicas import ParameterStack
from .stated import CARRIES, Excerpt, Rehearsal, held_against
from .trials import Asked, Trial, Trials, carried_out

PREFIX = "system:"
ROUNDS = 1000
"""Parts into which the progress of a stack of trainings is told, in the place of rounds."""
_LATE_ROUNDS = 8
"""Rounds of a training whose ids are checked near its end too."""
_LATE_ROWS = 3
_STANDS_OUT = 10.0
"""By what factor the row of a changed label moves more than any other."""
UNSTATED = "not known: the system states no release"
RELEASE = ("channel", "clip", "clip_scope", "sigma", "batch_size", "rounds", "sampler", "server_update")
"""What a release that a system states must say; all else is as `dpzv_audit.accounting.Release` has it by default."""
AUDIENCE: Mapping[str, tuple[AdversaryName, ...]] = {
    "gradient": ("client", "colluding-clients", "all-but-one"),
    "scalar": ("client", "colluding-clients", "all-but-one", "eavesdropper"),
    "embedding": ("server",),
}
"""Against whom the noise of a channel stands."""


class SystemFailed(AuditError):
    """A training of the user's own raised, or took too long."""


class _TooLong(BaseException):
    """Raised inside a training that is past its limit; no `except Exception` of its code stops it."""


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


@dataclass(frozen=True)
class Played:
    """What one training gave: its messages, what its function returned, and answers (n, ...) of its `predict`."""

    record: Recording
    predict: Callable[[list[Tensor]], Any] | None = None
    clients: Mapping[int, nn.Module] = field(default_factory=dict)
    answers: tuple[np.ndarray, ...] = ()

    @property
    def trial(self) -> Trial:
        """The same without the code of the user's."""
        models = {}
        for client, model in self.clients.items():
            given = GivenModel(model)
            flat = [held.detach().float().cpu().flatten() for held in given.state.values()]
            models[client] = given.layout, (torch.cat(flat) if flat else torch.zeros(0)).numpy()
        record = self.record
        return Trial(record.messages, record.notes, record.tensors, self.answers, models)


class Player(Protocol):
    """What gives trainings: a system, or the transcript of one training."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def seconds(self) -> float:
        """What one training may take."""

    @property
    def trials(self) -> Trials:
        """Where trainings are carried out and kept."""

    def play(self, task: Task, seed: int, which: str, asked: Sequence[Sequence[np.ndarray]] = ()) -> Played:
        """Return what a training gives."""


@dataclass(frozen=True)
class System:
    """A function `train(task, record, seed)` of the user's, and what it states about itself.

    Attributes:
        name: `module:function`, as the user named it.
        train: The function.
        seconds: What one training may take.
        top_model: Whether the server has a model of its own; without one it only sums what clients send.
        random: Whether a training draws numbers that its seed does not decide.
        trials: Where its trainings are carried out and kept.
        defended: Defences at its cuts.
        stated: What it releases under noise, given a task, in the terms of `Release`; None where it states nothing.
        home: The module that states all this, and has its data.
    """

    name: str
    train: Callable[[Task, Recorder, int], Any]
    seconds: float = 600.0
    top_model: bool = True
    random: bool = False
    trials: Trials = field(default_factory=Trials)
    defended: CutDefences | None = None
    stated: Callable[[Task], Mapping[str, object]] | None = None
    home: str = ""

    def release(self, task: Task, offers: Offers) -> tuple[Release, float] | None:
        """Return what the system states that it releases, and the delta; None where it states nothing.

        What it does not state of it is as its rehearsal showed. Raises `InputError` for a key that is missing, unknown
        or wrong.
        """
        if self.stated is None:
            return None
        said = self.stated(task)
        release, delta = release_of(said, task.records, f"system {self.name}: its release")
        return _rehearsed(release, said, offers), delta

    def play(
        self,
        task: Task,
        seed: int,
        which: str,
        asked: Sequence[Sequence[np.ndarray]] = (),
        in_round: Callable[[int], None] | None = None,
    ) -> Played:
        """Train once, with the generators of Python, numpy and torch seeded before and restored after.

        Its `predict`, where it returns one, is then `asked` about records: the blocks of all clients. `in_round` is
        called with the round of each message before it is recorded.

        Raises:
            InputError: It recorded or answered what cannot be.
            SystemFailed: It raised, or took longer than it may.
        """
        where = f"system {self.name}: {which}"
        record = Recorder(task.records, task.clients, in_round=in_round)
        if self.defended is not None:
            record.defend = self.defended.at(task, seed)
        try:
            ends = time.monotonic() + self.seconds
            with printing_aside(), _threads_heard(), _seeded(seed), torch.enable_grad(), until(ends, _TooLong):
                answer = self.train(task, record, seed)
                check_order(record.messages)
                if self.defended is not None and not any(one.kind == "gradient" for one in record.messages):
                    raise InputError("sent no gradient through record.cut, where the defence would stand")
                played = _played(record, answer, task.clients)
                return replace(played, answers=_answers(played.predict, asked))
        except AuditError as error:
            raise error.placed(f"{where}: ") from error
        except _TooLong:
            raise SystemFailed(f"{where} took longer than ‹trial_seconds› {self.seconds:g}") from None
        except (KeyboardInterrupt, TimeIsUp):
            raise
        except BaseException as error:  # asyncio's and a generator's ends are no Exception
            raise SystemFailed(f"{where} raised {words_of(error)}") from error


def release_of(stated: Mapping[str, object], records: int, where: str = "") -> tuple[Release, float]:
    """Return what is `stated` about a release on `records` records, and the delta; errors open with `where`.

    Noise is taken to be drawn and added in floating point, as programs do it, unless `noise` is stated.

    Raises `InputError` for a key that is missing, unknown or wrong.
    """
    said: dict[str, Any] = dict(stated)
    missing = [key for key in RELEASE if key not in said]
    if missing:
        raise InputError(f"{where} does not say {', '.join(missing)}, must say {', '.join(RELEASE)}")
    delta = said.pop("delta", 1e-5)
    try:
        return Release(**{"dataset_size": records, "noise": "float", **said}), check_delta("delta", delta)
    except TypeError as error:
        raise InputError(f"{where}: {words_of(error)}") from error
    except InputError as error:
        raise error.placed(f"{where}: ") from error


def system_at(path: str, seconds: float, folder: Path | None = None) -> System:
    """Return the system at `module:function`, with what its module states about it.

    Raises:
        InputError: There is none, or what it states is of the wrong type.
    """
    right = "module:function, such as our_vfl:train for the file our_vfl.py"
    home, _ = module_at(path, "system", right, folder)
    return system_of(function_at(path, "system", right, folder), path, seconds, home=home.__name__)


def system_of(train: Callable[..., Any], path: str, seconds: float, home: str | None = None) -> System:
    """Return the function `train`, which is called `path`, as a system; what it states, and errors, as `system_at`.

    The module `home`, by default that which defines the function, states it.
    """
    _check_signature(train, path)
    home = str(getattr(train, "__module__", "")) if home is None else home
    module = sys.modules.get(home)
    stated: dict[str, Any] = {"home": home}
    for name in ("top_model", "random"):
        value = getattr(module, name, None)
        if isinstance(value, bool):
            stated[name] = value
        elif value is not None and not isinstance(value, ModuleType):
            given = f"{name} = {value!r}"
            raise InputError(f"system {path}: its module states {given}, must be True or False")
    release = getattr(module, "releases", getattr(module, "release", None))
    if isinstance(release, Mapping):
        release = partial(_given, release)
    elif release is not None and not callable(release):
        given = f"a release of type {type(release).__name__}"
        raise InputError(f"system {path}: its module states {given}, must be a dictionary, or a function of the task")
    return System(path, train, seconds, stated=release, **stated)


def _check_signature(train: Callable[..., Any], path: str) -> None:
    try:
        takes = inspect.signature(train)
    except (TypeError, ValueError):  # some callables have no signature to check
        return
    words = " ".join(str(takes).split())
    try:
        takes.bind(None, None, 0)
    except TypeError as error:
        raise InputError(f"system {path}: must take (task, record, seed), not {short(words)}") from error


def data_of(system: System) -> VerticalDataset | None:
    """Return the data that the system's module gives by a function `data()`; None where it has none.

    Raises `InputError` where it fails, or gives something else.
    """
    module = sys.modules.get(system.home)
    found = getattr(module, "data", None)
    if found is None or not isinstance(found, FunctionType):
        return None
    where = f"{system.name.partition(':')[0]}:data"
    try:
        with printing_aside():
            answer = found()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SystemFailed(f"{where} raised {words_of(error)}") from error
    return dataset_of(answer, where)


def _given(release: Mapping[str, object], task: Task) -> Mapping[str, object]:
    return release


def _played(record: Recorder, answer: object, clients: int) -> Played:
    """Check what a training returned: nothing, or a dictionary with `predict` and `clients`."""
    if answer is None:
        return Played(record)
    if not isinstance(answer, Mapping) or not set(answer) <= {"predict", "clients"}:
        shown = sorted(map(str, answer)) if isinstance(answer, Mapping) else type(answer).__name__
        raise InputError(f"returned {shown}, must return nothing, or a dictionary with predict, clients or both")
    predict = answer.get("predict")
    if predict is not None and not callable(predict):
        raise InputError(f"returned a predict of type {type(predict).__name__}, must be a function of test features")
    models = answer.get("clients") or {}
    if not isinstance(models, Mapping):
        given = f"clients of type {type(models).__name__}"
        raise InputError(f"returned {given}, must be a dictionary of torch modules by client, {{1: ...}}")
    for number, model in models.items():
        if number not in range(1, clients + 1) or not isinstance(model, nn.Module):
            given = f"{number!r}: {type(model).__name__}"
            raise InputError(f"returned clients {{{given}}}, must be torch modules by client, 1 to {clients}")
    return Played(record, predict, models)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that a training may draw from; restore them, and what else it may set, after the block."""
    python = random.getstate()
    # The user's code may draw from the generator that numpy shares.
    legacy = np.random.get_state()  # noqa: NPY002
    folder = Path.cwd()
    dtype = torch.get_default_dtype()
    device = torch.get_default_device()
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            os.chdir(folder)
            torch.set_default_dtype(dtype)
            if torch.get_default_device() != device:  # setting one slows every call down
                torch.set_default_device(device)
            torch.set_num_threads(threads)


@contextmanager
def _threads_heard() -> Iterator[None]:
    """Raise after the block what the first of its threads to fail has raised."""
    raised: list[BaseException | None] = []
    before = threading.excepthook
    threading.excepthook = lambda told: raised.append(told.exc_value)
    try:
        yield
    finally:
        threading.excepthook = before
    for error in filter(None, raised):
        raise error


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
        self.federation = cast(Federation, self)
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

    def _asked(self, place: int, replica: int) -> Asked:
        one = self._data.of_replicas(place, place + 1)
        return Asked(
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
        return np.stack([_classes(played.answers[0], len(truth), name) == truth for played in self._played])

    def _scores(self) -> tuple[np.ndarray, ...]:
        """Logits (K, n, classes) of the test records and of all rows, where predictions of these were asked for."""
        if self._data.selection is None or not all(played.answers for played in self._played):
            return ()
        blocks = zip(*(played.answers for played in self._played), strict=True)
        return tuple(np.stack([logits(one, self._system.name) for one in block]) for block in blocks)


def _at_cuts(system: Player, config: TrainingConfig, context: RunContext) -> CutDefences | None:
    """Return the defences that stand at a system's cuts; `InputError` where one would break what the system states."""
    defended = CutDefences(config.defences, origin_of(context))
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

    def played(self, one: Asked) -> Played:
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
            player = replace(cast(System, player), defended=self.defended)
        return player.play(task, one.seed, one.which, asked)

    def __call__(self, one: Asked) -> bytes:
        """Return the same as the content of a file.

        In a thread of a worker it is trained in a process of its own: generators are seeded for a whole process, and a
        timer reaches a main thread alone.
        """
        if self.apart and not can_ring():
            content: bytes = in_own_process(self, one)
            return content
        played = self.played(one)
        return played.trial.to_bytes(played.record)


@torch.no_grad()
def _answers(
    predict: Callable[[list[Tensor]], Any] | None, asked: Sequence[Sequence[np.ndarray]]
) -> tuple[np.ndarray, ...]:
    """Return what `predict` answers about records, as arrays; none where there is none.

    Raises `InputError` where it answers anything but finite numbers, or truth values.
    """
    if predict is None:
        return ()
    found = []
    for blocks in asked:
        answer = predict([torch.from_numpy(np.ascontiguousarray(block)) for block in blocks])
        if str(getattr(answer, "dtype", "")).endswith("bool"):
            answer = answer.astype(int) if isinstance(answer, np.ndarray) else answer.long()
        try:
            found.append(finite_numbers(answer))
        except InputError as error:
            raise error.placed("what predict answers") from None
    return tuple(found)


def logits(answer: np.ndarray, name: str) -> np.ndarray:
    """Return scores (n, classes) as logits: rows of probabilities, which sum to 1, by their logarithms.

    Raises `InputError` where a system answers classes alone.
    """
    if answer.ndim != 2 or answer.dtype.kind != "f":
        raise InputError(f"system {name}: predict answers {answer.dtype} of shape {answer.shape}, must answer scores")
    found = answer.astype(np.float64)
    if (found >= 0.0).all() and np.allclose(found.sum(1), 1.0, atol=1e-3):
        return np.log(np.maximum(found, 1e-30))
    return found


def _classes(found: np.ndarray, count: int, name: str) -> np.ndarray:
    """Return the predicted classes (n,) of an answer: scores (n, classes), or classes (n,)."""
    if found.shape == (count,) and found.dtype.kind in "iub":
        return found.astype(np.int64)
    if found.ndim == 2 and found.shape[1] > 1 and len(found) == count:
        return np.asarray(found.argmax(1))
    right = f"must answer scores ({count}, classes) or whole classes ({count},)"
    if found.size == count and found.dtype.kind == "f":
        right += "; of one logit z for two classes, torch.stack([0 * z, z], 1)"
    raise InputError(f"system {name}: predict answers {found.dtype} of shape {found.shape}, {right}")


def stack_of(models: Sequence[tuple[Layout, np.ndarray] | None]) -> ParameterStack:
    """Return the models of one client as a stack, float parameters and buffers flattened; empty for none."""
    given = [model for model in models if model is not None]
    if len(given) < len(models):
        return ParameterStack(torch.zeros(len(models), 0), ())
    layouts = {layout for layout, _ in given}
    if len(layouts) > 1:
        raise InputError("clients: models of different trainings differ in their parameters, must be of one shape")
    return ParameterStack(torch.from_numpy(np.stack([flat for _, flat in given])), given[0][0])


def task_of(data: TrainingData) -> Task:
    """Return what one replica trains on as the task of a system."""
    features = data.features
    if data.selection is not None:
        features = tuple(block[data.selection[0]] for block in features)
    labels = data.labels if data.labels.dim() == 1 else data.labels[0]
    return Task(
        features=tuple(block.cpu().numpy() for block in features),
        labels=labels.cpu().numpy(),
        test_features=tuple(block.cpu().numpy() for block in data.test_features),
        test_labels=data.test_labels.cpu().numpy(),
        classes=data.classes,
    )


def seed_of(seed: int, replica: int) -> int:
    """Return the seed of one training, in [0, 2^31)."""
    return int(stream(seed, Purpose.SYSTEM, replica).integers(2**31))


def replay(played: Sequence[Trial], channel: Channel, name: str) -> None:
    """Send what K trainings sent as messages of a stack.

    Raises:
        InputError: They did not send the same messages, which a stack must.
    """
    sent = [with_ids(one.messages, one.tensors) for one in played]
    for place, group in enumerate(zip_longest(*sent)):
        first = _head(group[0])
        for number, other in enumerate(group):
            if _head(other) != first:
                there = f"message {place + 1} of training {number + 1} is {_head(other)}, of training 1 {first}"
                raise InputError(f"system {name}: {there}: all trainings must send the same messages in one order")
        channel.send(_stacked(cast(tuple[Sent, ...], group), played, name))
    for notes in zip(*(one.notes for one in played), strict=False):
        values = [one.tensors[note.tensor] for one, note in zip(played, notes, strict=True)]
        if len({value.shape for value in values}) == 1:
            channel.note(notes[0].party, -1, notes[0].name, torch.from_numpy(np.stack(values)))


def _head(sent: Sent | None) -> str:
    if sent is None:
        return "none"
    return f"{sent.kind!r} of round {sent.round} from {sent.sender} to {sent.receiver}"


def _stacked(group: Sequence[Sent], played: Sequence[Trial], name: str) -> Message:
    """Return one message of all trainings; where batches differ in size, padded, as those of Poisson sampling are."""
    first = group[0]
    values = [one.tensors[sent.tensor] for one, sent in zip(played, group, strict=True)]
    ids = [one.tensors[sent.ids] for one, sent in zip(played, group, strict=True) if sent.ids]
    named = len(ids) == len(values)
    # Ids of a whole batch beside numbers that are about all of it.
    by_row = named and all(value.ndim and len(value) == len(rows) for value, rows in zip(values, ids, strict=True))
    if len({value.shape[1:] for value in values}) > 1 or (not by_row and len({v.shape for v in values}) > 1):
        shapes = " and ".join(sorted({str(value.shape) for value in values}))
        raise InputError(f"system {name}: {_head(first)} has shapes {shapes} in different trainings, must have one")
    # A number costs what it travels as, where that is not the float that a built-in method sends.
    bits = 8 * values[0].nbytes if values[0].itemsize != VALUE_BYTES else None
    if not named:
        payload = torch.from_numpy(np.stack(values))
        return Message(first.round, first.sender, first.receiver, first.kind, payload, bits=bits)
    sizes = [len(rows) for rows in ids]
    if len(set(sizes)) > 1:
        most = max(sizes)
        if by_row:
            values = [np.pad(v, ((0, most - len(v)), *[(0, 0)] * (v.ndim - 1))) for v in values]
        ids = [np.pad(rows, (0, most - len(rows)), constant_values=-1) for rows in ids]
    payload = torch.from_numpy(np.stack(values))
    if not by_row:
        payload = payload.flatten(1).unsqueeze(1)
    else:
        payload = payload.flatten(2) if payload.dim() > 2 else payload.unsqueeze(2)
    return Message(
        first.round,
        first.sender,
        first.receiver,
        first.kind,
        payload,
        torch.from_numpy(np.stack(ids)),
        bits=bits if len(set(sizes)) == 1 or not by_row else None,
        sizes=sizes if len(set(sizes)) > 1 and by_row else None,
    )


def rehearse(system: System, task: Task, seed: int) -> Offers:
    """Train a few times before anything is attacked, and return what there is to attack.

    Raises:
        InputError: It sends nothing; its messages are the same when half of its labels change; or differ when nothing
            does, although it does not state that it is `random`; its ids name other records than its gradients are
            about, early or late in the training; or its rounds do not count.
        SystemFailed: As `System.play`.
    """
    drawn = seed_of(seed, 0)
    first = system.play(task, drawn, "the rehearsal", [task.test_features])
    where = f"system {system.name}: the rehearsal"
    for answer in first.answers:
        _classes(answer, len(task.test_labels), system.name)
    if not first.record.messages:
        raise InputError(f"{where} recorded no message: must call record.cut or record.sent where parties send")
    still = _standing_still(first.record, task.clients)
    if still is not None:
        found = f"gradients of more than one batch to client {still}, all in one round"
        raise InputError(f"{where} sent {found}: round must count batches, as in record.cut({still}, number, ids)")
    sent = _excerpt(first.record)
    other = None
    coupled = False
    not_made = ["whether ids are right: the system draws numbers that its seed does not decide"]
    if not system.random:
        if not _same(first, system.play(task, drawn, "the rehearsal again")):
            rule = "its random numbers must come from its seed and nothing stay of a training before, "
            rule += "or it must state random = True"
            raise InputError(f"{where} sent other messages when it was trained again with the same seed: {rule}")
        order = stream(seed, Purpose.SYSTEM, 0, 1).permutation(task.records)
        next_class = (task.labels + 1) % task.classes
        # Where messages hold few sums of labels, half of these may change and the sums may not.
        for changed in (order < (task.records + 1) // 2, np.ones(task.records, bool)):
            relabelled = np.where(changed, next_class, task.labels)
            other = system.play(replace(task, labels=relabelled), drawn, "the rehearsal on other labels")
            if not _same(first, other):
                break
        else:
            raise InputError(f"{where} sent the same messages when its labels were changed: it ignores task.labels")
        coupled = _check_ids(first.record, other.record, changed, where)
        not_made = _late(system, task, drawn, relabelled, first.record, where)
    models = {client: GivenModel(model) for client, model in first.clients.items()}
    telling = _telling(first.record, None if other is None else other.record, task.clients)

    def refeatured() -> Excerpt:
        moved = tuple(np.roll(block, 1, axis=0) for block in task.features)
        return _excerpt(system.play(replace(task, features=moved), drawn, "the rehearsal on other features").record)

    return Offers(
        told_to_clients(first.record.messages, task.clients),
        frozenset(models),
        first.predict is not None,
        models,
        down=_traffic(sent, telling, down=True),
        up=_traffic(sent, telling, down=False),
        coupled=coupled,
        named={client: _named(sent, client) for client in range(1, task.clients + 1)},
        apart=apart(first.record.messages, task.clients),
        telling=telling,
        nameless=nameless(sent.messages, telling),
        rehearsed=Rehearsal(sent) if other is None else Rehearsal(sent, _excerpt(other.record), refeatured),
        not_made=tuple(not_made),
    )


def _excerpt(record: Recording) -> Excerpt:
    return Excerpt.of(with_ids(record.messages, record.tensors), record.tensors)


def _check_ids(first: Recording, other: Recording, changed: np.ndarray, where: str, start: int = 0) -> bool:
    """Return whether gradients depend on labels of other records; `InputError` where ids name other records."""
    misled, coupled = _moved(first, other, changed, start)
    if misled is not None:
        late = f" in round {first.messages[start].round}" if start else ""
        found = f"client {misled} a gradient{late} that changed with labels of records which its ids do not name"
        rule = "ids must be places in task.labels, those of the batch in its order"
        raise InputError(f"{where} sent {found}: {rule}")
    return coupled


@dataclass(frozen=True, eq=False, kw_only=True)
class _ChangingTask(Task):
    """A task whose labels change while it is trained on, in the arrays and tensors that were handed out."""

    handed_out: list[Tensor] = field(default_factory=list)

    def torch(self, part: Part = "train", device: str = "cpu") -> tuple[list[Tensor], Tensor]:
        """See `Task.torch`."""
        blocks, labels = super().torch(part, device)
        if part == "train":
            self.handed_out.append(labels)
        return blocks, labels

    def change(self, labels: np.ndarray) -> None:
        """Put other labels (N,) in the place of those that were handed out."""
        self.labels[:] = labels
        with torch.no_grad():
            for held in self.handed_out:
                held.copy_(torch.from_numpy(labels))


def _late(system: System, task: Task, seed: int, relabelled: np.ndarray, first: Recording, where: str) -> list[str]:
    """Check ids late in a training, where labels change shortly before its end; return why that was not possible.

    Until then both trainings are the same, so that the first gradients that differ tell which records they are about.
    """
    rounds = list(dict.fromkeys(one.round for one in first.messages if one.kind == "gradient"))
    if len(rounds) < _LATE_ROUNDS:
        return []
    late = rounds[-max(_LATE_ROUNDS // 2, len(rounds) // 20)]
    changing = _ChangingTask(**{**vars(task), "labels": task.labels.copy()})
    waiting = [late]

    def in_round(number: int) -> None:
        if waiting and number == late:
            waiting.clear()
            changing.change(relabelled)

    why = "whether ids are right late in a training"
    try:
        other = system.play(changing, seed, "the rehearsal on labels that change late", in_round=in_round).record
        differing = _first_difference(first, other)
    except AuditError as error:
        return [f"{why}: {error.words}"]
    if differing is None:  # it keeps a copy of the labels
        return [] if _one_label(system, task, seed, first, where) else [f"{why}: no gradient showed it"]
    _check_ids(first, other, task.labels != relabelled, where, differing)
    return []


def _one_label(system: System, task: Task, seed: int, first: Recording, where: str) -> bool:
    """Check ids late in a training by one label that changes before it; return whether late gradients showed it.

    What one label changes about all other records is small beside what it changes about its own. Where it does not
    belong to the one row that stands out, time and again, ids name other records: `InputError`.
    """
    gradients = [place for place, one in enumerate(first.messages) if one.kind == "gradient" and one.ids]
    record = int(first.tensors[first.messages[gradients[0]].ids][0])
    labels = task.labels.copy()
    labels[record] = (labels[record] + 1) % task.classes
    other = system.play(replace(task, labels=labels), seed, "the rehearsal on one other label").record
    least = math.inf
    right = wrong = 0
    for place in gradients:
        if place >= len(other.messages) or first.messages[place] != other.messages[place]:
            break
        values, changed = _values(first, place), _values(other, place)
        if values.shape != changed.shape or len(values) < 2:
            continue
        moved = np.linalg.norm((changed - values).reshape(len(values), -1), axis=1)
        *_, second, largest = np.sort(moved)
        named = first.tensors[first.messages[place].ids][moved.argmax()] == record
        if least == math.inf and largest:
            least = 0.5 * float(largest) if named else math.inf
        elif largest >= least and largest > _STANDS_OUT * second and place > gradients[len(gradients) // 2]:
            right, wrong = right + bool(named), wrong + (not named)
    if wrong >= _LATE_ROWS and wrong > 4 * right:
        found = f"{wrong} late gradients that changed with the label of record {record} under ids of others"
        raise InputError(f"{where} sent {found}: ids must be places in task.labels, those of the batch in its order")
    return right >= _LATE_ROWS


def _first_difference(one: Recording, other: Recording) -> int | None:
    """Return the place of the first message that differs between two trainings; None where none does."""
    for place, (a, b) in enumerate(zip(one.messages, other.messages, strict=False)):
        if a != b or not np.array_equal(one.tensors[a.tensor], other.tensors[b.tensor]):
            return place
    return None


def _standing_still(record: Recording, clients: int) -> int | None:
    """Return a client that got gradients of several batches where everything is of one round; None without one."""
    if len({one.round for one in record.messages}) > 1:
        return None
    for client in range(1, clients + 1):
        sent = [one.ids for one in record.messages if one.kind == "gradient" and one.receiver == client]
        if len({record.tensors[name].tobytes() for name in sent}) > 1:
            return client
    return None


def _named(sent: Excerpt, client: int) -> int:
    """Return how many records the messages that a client sends and receives are about, by their ids."""
    seen = [one.ids for one in sent.messages if one.ids and client in (one.sender, one.receiver)]
    return len(set().union(*(sent.tensors[name].tolist() for name in seen)))


def _telling(one: Recording, other: Recording | None, clients: int) -> dict[int, frozenset[str]]:
    """Return the kinds of messages to each party that are not the same in the `other` training, on other labels.

    Without another training all kinds are taken to tell of labels.
    """

    def by_kind(record: Recording, party: int) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, sent in enumerate(record.messages):
            if sent.receiver == party:
                places.setdefault(sent.kind, []).append(place)
        return places

    def moves(kind: str, here: list[int], there: list[int]) -> bool:
        if other is None or len(here) != len(there):
            return True
        return any(not np.array_equal(_values(one, a), _values(other, b)) for a, b in zip(here, there, strict=True))

    found = {}
    for party in range(clients + 1):
        before = by_kind(one, party)
        after = {} if other is None else by_kind(other, party)
        found[party] = frozenset(kind for kind in before if moves(kind, before[kind], after.get(kind, [])))
    return found


def nameless(messages: Iterable[Sent], telling: Mapping[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """Return the kinds of messages to each party that tell of labels and do not all say which records they are about.

    The messages have the ids that `with_ids` gives them.
    """
    without = {(one.receiver, one.kind) for one in messages if not one.ids}
    return {party: frozenset(kind for kind in kinds if (party, kind) in without) for party, kinds in telling.items()}


def _traffic(sent: Excerpt, telling: Mapping[int, frozenset[str]], *, down: bool) -> dict[str, Traffic]:
    """Count the messages from the server (`down`) or to it, by kind; those from it of kinds that tell of labels."""
    tells = frozenset().union(*(kinds for party, kinds in telling.items() if party != SERVER))
    found = {}
    chosen = [one for one in sent.messages if (one.sender if down else one.receiver) == SERVER]
    for kind in sorted({one.kind for one in chosen if not down or one.kind in tells}):
        of_kind = [one for one in chosen if one.kind == kind]
        ids = [sent.tensors[message.ids] for message in of_kind if message.ids]
        found[kind] = Traffic(len(of_kind), int(np.bincount(np.concatenate(ids)).max()) if ids else 0)
    return found


def _values(record: Recording, place: int) -> np.ndarray:
    return record.tensors[record.messages[place].tensor]


def _rehearsed(release: Release, said: Collection[str], offers: Offers) -> Release:
    """Return a release with what the rehearsal showed, or what is worse, where it was not `said`.

    Labels in messages beside those with noise are data that were published. Messages are counted as if each had a clip
    of its own.
    """
    kind = CARRIES[release.channel]
    sent = offers.up if release.channel == "embedding" else offers.down
    seen = sent.get(kind, Traffic(0, 0))
    more = seen.messages > release.rounds * release.directions + release.whole_data_rounds
    most = release.fixed_participations
    if most is not None:
        more |= seen.of_one > most * release.directions + release.whole_data_rounds
    shown: dict[str, Any] = {
        "client_update": "first-order",
        "data_dependent_side": bool(sent.keys() - {kind}),
        "own_rounds_only": more,
        "batch_coupling": offers.coupled and release.clip_scope == "record",
    }
    return replace(release, **{key: value for key, value in shown.items() if key not in said})


def _released(release: Release, config: TrainingConfig, deployment: Deployment) -> tuple[Release, ...]:
    return (release,)


def _same(one: Played, other: Played) -> bool:
    """Whether two trainings sent the same, bit for bit."""
    if one.record.messages != other.record.messages:
        return False
    pairs = ((one.record.tensors[s.tensor], other.record.tensors[s.tensor]) for s in one.record.messages)
    return all(np.array_equal(a, b) for a, b in pairs)


def _moved(one: Recording, other: Recording, changed: np.ndarray, start: int = 0) -> tuple[int | None, bool]:
    """Return a client whose ids name other records, and whether a gradient depends on labels of other records.

    Compared are the first gradients that each client got in one round of two trainings, whose labels `changed` (N,) in
    one from the message at place `start` on. Its ids name other records where some record's gradient is not the same
    although its label is, and another's is although its label changed; a gradient of zeros tells of no label. The first
    alone means that a gradient depends on a whole batch. What is embedded after a gradient was sent is left out: a
    server may have learnt in between.
    """
    coupled: dict[int, bool] = {}
    rounds = set()
    for first, second in zip(one.messages[start:], other.messages[start:], strict=False):
        before, after = one.tensors[first.tensor], other.tensors[second.tensor]
        if first != second or before.shape != after.shape:
            break
        if first.kind == "embeddings" and coupled:
            break
        if first.kind == "gradient" and first.ids:
            rounds.add(first.round)
            if len(rounds) > 1 or first.receiver in coupled:
                break
            rows = before.reshape(len(before), -1)
            moved = (before != after).reshape(len(before), -1).any(1)
            of_changed = changed[one.tensors[first.ids]]
            coupled[first.receiver] = bool((moved & ~of_changed).any())
            if coupled[first.receiver] and (of_changed & ~moved & rows.any(1)).any():
                return first.receiver, True
        elif not np.array_equal(before, after):
            break
    return None, next(iter(coupled.values()), False)


def prepared(system: System, dataset: VerticalDataset, seed: int) -> tuple[MethodSpec, SystemConfig]:
    """Rehearse a system on a data set, and return it as a method with its configuration; errors as `rehearse`."""
    config, task = setting_of(system, dataset)
    return method_of(system, rehearse(system, task, seed), task), config


def setting_of(system: System, dataset: VerticalDataset) -> tuple[SystemConfig, Task]:
    """Return the configuration of a system on a data set, and its task there."""
    config = SystemConfig(batch_size=min(64, len(dataset.train)), top_model=system.top_model)
    return config, task_of(TrainingData.of(dataset, dtype=dtype_of(config), device="cpu"))


def told_to_clients(messages: Iterable[Sent], clients: int) -> dict[int, frozenset[str]]:
    """Return the kinds of messages that each of so many clients gets."""
    told: dict[int, set[str]] = {m: set() for m in range(1, clients + 1)}
    for one in messages:
        if one.receiver in told:
            told[one.receiver].add(one.kind)
    return {m: frozenset(kinds) for m, kinds in told.items()}


def apart(messages: Iterable[Sent], clients: int) -> frozenset[int]:
    """Return which of so many clients no message is from or to; none where there is no message at all."""
    heard = {party for one in messages for party in (one.sender, one.receiver)}
    return frozenset(range(1, clients + 1)) - heard if heard else frozenset()


def method_of(system: System, offers: Offers, task: Task) -> MethodSpec:
    """Return a rehearsed system as a method, by the name `system:module:function`; errors as `System.release`."""
    stated = system.release(task, offers)
    protection = Protection(words=UNSTATED)
    released = no_noise
    rehearsed, offers = offers.rehearsed, replace(offers, rehearsed=None)
    if stated is not None:
        release, delta = stated
        if rehearsed is not None:
            assert system.stated is not None
            tests = held_against(release, rehearsed, joined=system.stated(task).get("own_rounds_only") is False)
            not_made = (*tests.not_made, *offers.not_made)
            offers = replace(offers, contradicted=tests.contradicted, not_made=not_made)
        offers = replace(offers, states=True)
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
        run=partial(SystemRun, system, offers.architectures),
        released=released,
        downlink=downlink_of(offers.told_to()),
        protection=lambda config: protection,
        games=lambda config: Games(why_not="no game was played: the command audit plays one"),
        defaults={"top_model": system.top_model},
        offers=offers,
    )
