"""Carries out trainings of a system, here or in worker processes, and keeps each until the command that asked is done.

A training becomes one file of safetensors, the same whoever trained it: attacks on one training then share it, and a
command that is taken up goes on behind the last.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.models import Layout

from ..base.executor import Workers, carry_out
from ..base.files import json_in
from ..base.npy import open_safetensors
from ..base.signals import GRACE_SECONDS
from ..base.store import Store
from ..data.vertical import FeatureArray, LabelArray, array_digest
from .messages import Arrays, Note, Recording, Sent

SUFFIX = ".safetensors"
_MOST_VALUES = 20_000_000
"""Values in the facts of a trial, whose header safetensors limits to 100 MB."""


@dataclass(frozen=True, eq=False)
class Trial:
    """The result of one training.

    Attributes:
        messages: Messages in order.
        notes: Notes of parties for themselves.
        tensors: The arrays that messages and notes name.
        answers: Answers of its `predict` to the queries; none where it returns none.
        models: Layout and flat float32 parameters of the models of clients that it returns, by client.
    """

    messages: Sequence[Sent]
    notes: Sequence[Note]
    tensors: Arrays
    answers: tuple[NDArray[Any], ...] = ()
    models: Mapping[int, tuple[Layout, NDArray[np.float32]]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all that it holds."""
        named = {message.tensor for message in self.messages} | {message.ids for message in self.messages} - {""}
        arrays = [self.tensors[name] for name in named] + [self.tensors[note.tensor] for note in self.notes]
        return sum(array.nbytes for array in (*arrays, *self.answers, *(flat for _, flat in self.models.values())))

    def to_bytes(self, record: Recording) -> bytes:
        """Return the trial, with the tensors of its `record`, as the content of a file."""
        from safetensors.numpy import save

        tensors = {name: values for shard in record.tensors.shards() for name, values in shard.items()}
        tensors |= {f"answer/{place}": np.ascontiguousarray(values) for place, values in enumerate(self.answers)}
        tensors |= {f"client/{client}": flat for client, (_, flat) in self.models.items() if flat.size}
        facts = {
            "messages": self.messages,
            "notes": self.notes,
            "answers": len(self.answers),
            "models": {client: layout for client, (layout, _) in self.models.items()},
        }
        return save(tensors, {"trial": json.dumps(facts)})


def read_trial(path: Path) -> Trial:
    """Return the trial in a file, whose tensors are read when they are asked for; `ValueError` for a damaged one."""
    from safetensors import SafetensorError

    opened = _Opened(open_safetensors(path))
    try:
        facts = json_in(opened.file.metadata()["trial"].encode(), _MOST_VALUES)
        models = {}
        for client, shapes in facts["models"].items():
            layout = tuple((name, tuple(shape)) for name, shape in shapes)
            flat = opened[f"client/{client}"] if layout else np.zeros(0, np.float32)
            models[int(client)] = layout, flat
        return Trial(
            messages=[Sent(*fields) for fields in facts["messages"]],
            notes=[Note(*fields) for fields in facts["notes"]],
            tensors=opened,
            answers=tuple(opened[f"answer/{place}"] for place in range(facts["answers"])),
            models=models,
        )
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True)
class _Opened:
    """A file of safetensors, which stays open."""

    file: Any

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.asarray(self.file.get_tensor(name))


def digest_of(features: Iterable[FeatureArray], test_features: Iterable[FeatureArray], test_labels: LabelArray) -> str:
    """Return the digest of all arrays that trainings share."""
    return " ".join(map(array_digest, (*features, *test_features, test_labels)))


@dataclass(frozen=True)
class TrialRequest:
    """One training that is wanted: labels (N,), the rows (N,) of the features that they belong to, a seed, its name.

    Without rows all features are trained on, in their order. With rows, predictions of all rows are wanted too.
    """

    labels: NDArray[np.int64]
    rows: NDArray[np.int64] | None
    seed: int
    which: str

    def key(self, features: str) -> str:
        """Return the name of its file, given the digest of the `features`."""
        rows = "" if self.rows is None else array_digest(self.rows)
        facts = f"{features} {self.seed} {array_digest(self.labels)} {rows}"
        return f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}{SUFFIX}"


MOST_SHARED = 1 << 30
"""Bytes of trainings, at most, that wait in a process for other attacks of their claims."""


@dataclass(eq=False)
class LatestTrials:
    """The latest trainings of a process that several attacks may ask for, those of at most `most` bytes together."""

    most: int = MOST_SHARED
    _trials: dict[str, tuple[Trial, int]] = field(default_factory=dict, init=False)

    def once(self, name: str, train: Callable[[], Trial]) -> Trial:
        """Return the training of a name, which is made where it is not held any more."""
        if name in self._trials:
            self._trials[name] = self._trials.pop(name)  # the latest stands last
            return self._trials[name][0]
        trial = train()
        self._trials[name] = trial, trial.size
        while len(self._trials) > 1 and sum(size for _, size in self._trials.values()) > self.most:
            del self._trials[next(iter(self._trials))]
        return trial


@dataclass(frozen=True, kw_only=True)
class TrialStore:
    """The workers that carry out trainings of a system, and what keeps them.

    Attributes:
        workers: The workers.
        folder: The folder that keeps them; None: they are made here, one after another.
        latest: Keeps the latest where there is no folder; None: none is kept.
        mark: Tells them from those of other code and of another time, which `latest` keeps as well.
    """

    workers: Workers = field(default_factory=Workers)
    folder: Path | None = None
    latest: LatestTrials | None = None
    mark: str = ""

    def keep(self, request: TrialRequest, features: str, content: bytes) -> None:
        """Keep the result of a training that was made elsewhere, such as in a rehearsal; see `TrialRequest.key`."""
        assert self.folder is not None
        Store(self.folder).write(request.key(features), content, cure="make room and go on with ‹resume›")

    @property
    def kept(self) -> int:
        """Number of trainings in the folder."""
        return 0 if self.folder is None else sum(1 for _ in self.folder.glob(f"*{SUFFIX}"))


@dataclass(eq=False)
class TrialWork:
    """Trainings as tasks of the executor, by their places among the `requests`.

    Attributes:
        requests: All trainings that are wanted.
        waiting: The places of those that are not in the folder.
        keep: Takes the place and the result of each.
        seconds: Time limit of one training.
        failure: Makes an error of words that say which training failed, and how.
    """

    requests: Sequence[TrialRequest]
    waiting: Iterator[int]
    keep: Callable[[int, bytes], None]
    seconds: float
    failure: Callable[[str], Exception]
    _begun: dict[int, float] = field(default_factory=dict, init=False)

    def take(self) -> int | None:
        """Take the next training."""
        place = next(self.waiting, None)
        if place is not None:
            self._begun[place] = time.monotonic()
        return place

    def arguments(self, task: int) -> tuple[TrialRequest]:
        """Return the arguments of the job."""
        return (self.requests[task],)

    def ends(self, task: int) -> float:
        """Return when a training must have ended by itself, which native code may keep it from."""
        return self._begun[task] + self.seconds + GRACE_SECONDS

    def done(self, task: int, result: bytes) -> None:
        """Keep the result of the training."""
        self.keep(task, result)

    def give_up(self, task: int) -> None:
        """Raise: a training that no signal reaches is past its time."""
        raise self.failure(f"{self.requests[task].which} took longer than ‹trial_seconds› {self.seconds:g}")

    def failed(self, task: int, error: BaseException, *, deaths: int = 0) -> None:
        """Raise the error of the training; one on which workers die has failed."""
        if deaths:
            raise self.failure(f"{self.requests[task].which} took its process down {deaths} times") from error
        raise error


def carried_out(
    requests: Sequence[TrialRequest],
    trials: TrialStore,
    job: Callable[[TrialRequest], bytes],
    *,
    features: str,
    seconds: float,
    failure: Callable[[str], Exception],
    progress: Callable[[int], None],
) -> Iterator[Trial]:
    """Train what is wanted and not in the folder; yield the results of all `requests`, in order.

    `progress` is called with the number of those that are done.

    Raises what `job` raises, and what `failure` makes of the words that say which training failed, and how.
    """
    assert trials.folder is not None
    store = Store(trials.folder)
    names = [request.key(features) for request in requests]
    again = "it is trained again"
    waiting = [place for place, name in enumerate(names) if store.load(name, read_trial, again=again) is None]
    done = len(requests) - len(waiting)

    def keep(place: int, content: bytes) -> None:
        nonlocal done
        store.write(names[place], content, cure="make room and go on with ‹resume›")
        done += 1
        progress(done)

    if waiting:
        carry_out(TrialWork(requests, iter(waiting), keep, seconds, failure), trials.workers, job)
    for name in names:
        yield read_trial(trials.folder / name)
