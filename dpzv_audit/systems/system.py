"""A training of the user's own: a function `train(task, record, seed)`; `System.play` calls it, each time anew."""

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

from mechanisms.core.models import GivenModel

from ..base.errors import AuditError, InputError
from ..base.loading import printing_aside, words_of
from ..base.seeds import Purpose, stream
from ..base.signals import TimeIsUp, TooLong, until
from .defences import CutDefences
from .messages import Recording, check_order, finite_numbers
from .record import Recorder
from .task import Task
from .trials import Trial, TrialStore


class _TooLongTraining(TooLong):
    """The time limit of one training, not that of a block around it."""


class SystemFailed(AuditError):
    """A training of the user's own raised, or took too long."""


@dataclass(frozen=True)
class Played:
    """The result of one training: its messages, what its function returned, and answers (n, ...) of its `predict`.

    `seconds` says how long it took.
    """

    record: Recording
    predict: Callable[[list[Tensor]], Any] | None = None
    clients: Mapping[int, nn.Module] = field(default_factory=dict)
    answers: tuple[np.ndarray, ...] = ()
    seconds: float = 0.0

    @property
    def trial(self) -> Trial:
        """The same without the code of the user's."""
        models = {}
        for client, module in self.clients.items():
            model = GivenModel(module)
            flat = [torch.zeros(0), *(held.detach().float().cpu().flatten() for held in model.state.values())]
            models[client] = model.layout, torch.cat(flat).numpy()
        record = self.record
        return Trial(record.messages, record.notes, record.tensors, self.answers, models)


class Player(Protocol):
    """A source of trainings: a system, or the transcript of one training."""

    @property
    def name(self) -> str:
        """Name in messages."""

    @property
    def seconds(self) -> float:
        """Time limit of one training."""

    @property
    def trials(self) -> TrialStore:
        """Place where trainings are carried out and kept."""

    def play(self, task: Task, seed: int, which: str, queries: Sequence[Sequence[np.ndarray]] = ()) -> Played:
        """Return the result of a training."""


@dataclass(frozen=True)
class System:
    """A function `train(task, record, seed)` of the user's, and its statements about itself.

    Attributes:
        name: `module:function`, as the user named it.
        train: The function.
        seconds: Time limit of one training.
        top_model: Whether the server has a model of its own; without one it only sums what clients send.
        random: Whether a training draws numbers that its seed does not decide.
        trials: Where its trainings are carried out and kept.
        defended: Defences at its cuts.
        stated: Its release under noise, given a task, in the terms of `Release`; None where it states nothing.
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
        queries: Sequence[Sequence[np.ndarray]] = (),
        in_round: Callable[[int], None] | None = None,
    ) -> Played:
        """Train once, with the generators of Python, numpy and torch seeded before and restored after.

        Its `predict`, where it returns one, then answers the `queries`: records, as the blocks of all clients.
        `in_round` is called with the round of each message before it is recorded.

        Raises:
            InputError: It recorded or answered what cannot be.
            SystemFailed: It raised, or took longer than it may.
        """
        where = f"system {self.name}: {which}"
        defend = None if self.defended is None else self.defended.at(task, seed)
        record = Recorder(task.records, task.clients, defend=defend, in_round=in_round)
        try:
            began = time.monotonic()
            ends = began + self.seconds
            with printing_aside(), _threads_heard(), _seeded(seed), torch.enable_grad(), until(ends, _TooLongTraining):
                answer = self.train(task, record, seed)
                check_order(record.messages)
                if defend is not None and all(message.kind != "gradient" for message in record.messages):
                    raise InputError("sent no gradient through record.cut, where the defence would stand")
                return replace(_played(record, answer, queries), seconds=time.monotonic() - began)
        except AuditError as error:
            raise error.placed(f"{where}: ") from error
        except _TooLongTraining:
            raise SystemFailed(f"{where} took longer than ‹trial_seconds› {self.seconds:g}") from None
        except (KeyboardInterrupt, TimeIsUp):
            raise
        except BaseException as error:  # asyncio's and a generator's ends are no Exception
            raise SystemFailed(f"{where} raised {words_of(error)}") from error


def _played(record: Recorder, answer: object, queries: Sequence[Sequence[np.ndarray]]) -> Played:
    """Check the `answer` of a training, nothing or a dictionary with `predict` and `clients`, and ask the queries."""
    if answer is None:
        return Played(record)
    if not isinstance(answer, Mapping) or not set(answer) <= {"predict", "clients"}:
        shown = sorted(map(str, answer)) if isinstance(answer, Mapping) else type(answer).__name__
        raise InputError(f"returned {shown}; return nothing, or a dictionary with predict, clients or both")
    predict = answer.get("predict")
    if predict is not None and not callable(predict):
        raise InputError(f"returned a predict of type {type(predict).__name__}; use a function of test features")
    models = answer.get("clients") or {}
    if not isinstance(models, Mapping):
        raise InputError(
            f"returned clients of type {type(models).__name__}; use a dictionary of torch modules by client, {{1: ...}}"
        )
    for number, model in models.items():
        if number not in range(1, record.clients + 1) or not isinstance(model, nn.Module):
            shown = f"{{{number!r}: {type(model).__name__}}}"
            raise InputError(f"returned clients {shown}; use torch modules by client, 1 to {record.clients}")
    return Played(record, predict, models, () if predict is None else _answers(predict, queries))


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
    """Raise after the block the error of the first of its threads that failed."""
    raised: list[BaseException | None] = []
    before = threading.excepthook
    threading.excepthook = lambda failure: raised.append(failure.exc_value)
    try:
        yield
    finally:
        threading.excepthook = before
    for error in filter(None, raised):
        raise error


@torch.no_grad()
def _answers(predict: Callable[[list[Tensor]], Any], queries: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Return the answers of `predict` about records, as arrays.

    Raises `InputError` where it answers anything but finite numbers, or truth values.
    """
    answers = []
    for blocks in queries:
        answer = predict([torch.from_numpy(np.ascontiguousarray(block)) for block in blocks])
        if str(getattr(answer, "dtype", "")).endswith("bool"):
            answer = answer.astype(int) if isinstance(answer, np.ndarray) else answer.long()
        try:
            answers.append(finite_numbers(answer))
        except InputError as error:
            raise error.placed("what predict answers") from None
    return tuple(answers)


def logits(answer: np.ndarray, name: str) -> np.ndarray:
    """Return scores (n, classes) as logits: rows of probabilities, which sum to 1, by their logarithms.

    Raises `InputError` where a system answers classes alone.
    """
    if answer.ndim != 2 or answer.dtype.kind != "f":
        raise InputError(f"system {name}: predict answers {answer.dtype} of shape {answer.shape}; return scores")
    scores = answer.astype(np.float64)
    if (scores >= 0.0).all() and np.allclose(scores.sum(1), 1.0, atol=1e-3):
        return np.log(np.maximum(scores, 1e-30))
    return scores


def classes_of(answer: np.ndarray, count: int, name: str) -> np.ndarray:
    """Return the predicted classes (n,) of an answer: scores (n, classes), or classes (n,)."""
    if answer.shape == (count,) and answer.dtype.kind in "iub":
        return answer.astype(np.int64)
    if answer.ndim == 2 and answer.shape[1] > 1 and len(answer) == count:
        return np.asarray(answer.argmax(1))
    right = f"return scores ({count}, classes) or whole classes ({count},)"
    if answer.size == count and answer.dtype.kind == "f":
        right += "; of one logit z for two classes, torch.stack([0 * z, z], 1)"
    raise InputError(f"system {name}: predict answers {answer.dtype} of shape {answer.shape}, {right}")


def check_answer(answer: np.ndarray, task: Task, name: str) -> None:
    """Raise `InputError` unless an answer about the test records is scores or classes, or of numbers (n,) or (n, 1)."""
    count = len(task.test_labels)
    if task.classes:
        classes_of(answer, count, name)
    elif answer.shape not in ((count,), (count, 1)):
        raise InputError(f"system {name}: predict answers shape {answer.shape}; return numbers ({count},)")


def seed_of(seed: int, replica: int) -> int:
    """Return the seed of one training, in [0, 2^31)."""
    return int(stream(seed, Purpose.SYSTEM, replica).integers(2**31))
