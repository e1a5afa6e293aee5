"""A training of the user's own: a function `train(task, record, seed)`, and what one call of it gives."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mechanisms.core.context import TrainingData
from mechanisms.core.models import GivenModel

from ..base.errors import AuditError, InputError
from ..base.loading import printing_aside, words_of
from ..base.seeds import Purpose, stream
from ..base.signals import TimeIsUp, until
from .defences import CutDefences
from .messages import Recording, check_order, finite_numbers
from .record import Recorder
from .task import Task
from .trials import Trial, TrialStore


class SystemFailed(AuditError):
    """A training of the user's own raised, or took too long."""


class _TooLong(BaseException):
    """Raised inside a training that is past its limit; no `except Exception` of its code stops it."""


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
    def trials(self) -> TrialStore:
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
    trials: TrialStore = field(default_factory=TrialStore)
    defended: CutDefences | None = None
    stated: Callable[[Task], Mapping[str, object]] | None = None
    home: str = ""

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


def classes_of(found: np.ndarray, count: int, name: str) -> np.ndarray:
    """Return the predicted classes (n,) of an answer: scores (n, classes), or classes (n,)."""
    if found.shape == (count,) and found.dtype.kind in "iub":
        return found.astype(np.int64)
    if found.ndim == 2 and found.shape[1] > 1 and len(found) == count:
        return np.asarray(found.argmax(1))
    right = f"must answer scores ({count}, classes) or whole classes ({count},)"
    if found.size == count and found.dtype.kind == "f":
        right += "; of one logit z for two classes, torch.stack([0 * z, z], 1)"
    raise InputError(f"system {name}: predict answers {found.dtype} of shape {found.shape}, {right}")


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
