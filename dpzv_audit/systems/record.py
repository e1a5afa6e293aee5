"""Records what the parties of a training send each other, as copies, in the order in which it is sent.

Nothing here needs torch but `Recorder.cut`. Tensors past a stated memory go to a file as they come.
"""

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SERVER = 0
"""Number of the party that holds the labels."""
PER_RECORD = ("embeddings", "gradient", "prediction")
"""Kinds of messages of which each row is about one record, so that they need ids."""
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Sent:
    """One message: who sent what kind to whom in which round, and the names of its tensor and of its ids.

    Attributes:
        round: Round number, from 0; -1 for what is sent before training starts.
        sender: Party number (0 is the server).
        receiver: Party number.
        kind: What it is: `embeddings`, `gradient`, `prediction`, `scalar`, `losses`, or a word of the system's own.
        tensor: Name of the numbers that travelled.
        ids: Name of the ids (B,) of its records, by row; "" where it is about none.
    """

    round: int
    sender: int
    receiver: int
    kind: str
    tensor: str
    ids: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What `party` knows of itself, by `name`, and the name of its tensor."""

    party: int
    name: str
    tensor: str


class Scaler(Protocol):
    """What multiplies a loss before its backward pass, as `torch.amp.GradScaler` does."""

    def get_scale(self) -> float:
        """Return the factor."""


class Tensors:
    """Arrays by name: in memory, and past `memory` bytes in safetensors files of a folder that goes away with it."""

    def __init__(self, memory: int = _MEMORY) -> None:
        self._memory = memory
        self._here: dict[str, NDArray[Any]] = {}
        self._bytes = 0
        self._written: dict[str, Path] = {}
        self._folder: Path | None = None

    def __len__(self) -> int:
        return len(self._here) + len(self._written)

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Keep an array, which nobody may change any more."""
        self._here[name] = values
        self._bytes += values.nbytes
        if self._bytes > self._memory:
            self._spill()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._here:
            return self._here[name]
        from safetensors import safe_open

        with safe_open(self._written[name], "np") as file:
            return np.asarray(file.get_tensor(name))

    def shards(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield all arrays, those of one file or of memory together."""
        from safetensors.numpy import load_file

        for path in dict.fromkeys(self._written.values()):
            yield load_file(path)
        if self._here:
            yield self._here

    def _spill(self) -> None:
        from safetensors.numpy import save_file

        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dpzv-audit-record-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / f"{len(self._written)}.safetensors"
        save_file(self._here, path)
        self._written |= dict.fromkeys(self._here, path)
        self._here = {}
        self._bytes = 0


@dataclass(eq=False)
class Recorder:
    """Records the messages and notes of one training among `clients` clients and the server, on `records` records.

    Arguments of its methods are checked where they are called: `InputError` in one line says what is wrong with which
    message. Tensors of torch or arrays of numpy are taken; floats are kept as float32, or float64 where they are.

    Attributes:
        records: Number N of training records; ids are in 0 .. N - 1.
        clients: Number M of clients, parties 1 to M.
        memory: Bytes of tensors above which they go to a temporary file.
        messages: What was sent, in order.
        notes: What parties noted for themselves.
    """

    records: int
    clients: int
    memory: int = _MEMORY
    messages: list[Sent] = field(default_factory=list, init=False)
    notes: list[Note] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.tensors = Tensors(self.memory)
        self._lock = RLock()
        self._evaluating = False
        self._latest_ids: tuple[NDArray[np.int64], str] | None = None
        self._uploaded: set[tuple[int, int]] = set()

    def cut(
        self, client: int, round: int, ids: ArrayLike, *, scaler: Scaler | None = None
    ) -> "Callable[[Tensor], Tensor]":
        """Return the layer that stands where `client`'s embeddings of records `ids` (B,) leave for the server.

        It passes on what it gets, (B, ...). What passes forward is a message of kind `embeddings`, and what passes back
        in each backward pass one of kind `gradient` to the client. It stands after all that the client does to its
        embeddings, and before any detaching or hook of the server's: a hook on its output acts before the gradient is
        recorded. A forward pass without gradients is none of training, and is recorded within `evaluation` alone.
        With a `scaler` its factor is taken out of gradients.
        """
        self._check_client(client, "cut")
        return partial(self._pass, client=client, round=round, ids=ids, scaler=scaler)

    def _pass(self, values: "Tensor", *, client: int, round: int, ids: ArrayLike, scaler: Scaler | None) -> "Tensor":
        import torch

        from .cut import Cut, in_backward

        if not torch.is_grad_enabled():
            if self._evaluating:
                self.sent(round, client, SERVER, "prediction", values, ids)
            return values
        if not values.requires_grad:
            where = f"the cut of client {client} in round {round} gets values that need no gradient"
            raise InputError(f"{where}: it must stand before any detach, or after requires_grad_() of a detached leaf")
        with self._lock:
            again = in_backward() and (client, round) in self._uploaded
            if not again:
                self.sent(round, client, SERVER, "embeddings", values, ids)

        def received(gradient: "Tensor") -> None:
            whole = gradient if scaler is None else gradient / scaler.get_scale()
            self.sent(round, SERVER, client, "gradient", whole, ids)

        passed: Tensor = Cut.apply(values, received)  # type: ignore[no-untyped-call]
        return passed

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Record what passes a cut without gradients in this block as kind `prediction`: what is served later."""
        before = self._evaluating
        self._evaluating = True
        try:
            yield
        finally:
            self._evaluating = before

    def sent(
        self,
        round: int,
        sender: int,
        receiver: int,
        kind: str,
        tensor: "Tensor | ArrayLike",
        ids: ArrayLike | None = None,
    ) -> None:
        """Record a message as it travels: after the sender's own clipping and noise.

        Args:
            round: Round number, from 0; -1 for what is sent before training starts.
            sender: Party number (0 is the server, clients are 1 to M).
            receiver: Party number.
            kind: `embeddings`, `gradient` and `prediction` have a row for each record, so they need `ids`; `scalar`,
                `losses`, or any other word of small letters, digits and dashes.
            tensor: Numbers of any shape.
            ids: Ids (B,) of the records by row of the tensor.
        """
        what = f"a {kind!r} of round {round} from party {sender} to party {receiver}"
        if not isinstance(round, int) or round < -1:
            raise InputError(f"{what}: the round must be a whole number of at least -1")
        for party in (sender, receiver):
            if party not in range(self.clients + 1):
                raise InputError(f"{what}: parties are 0, the server, and clients 1 to {self.clients}")
        if sender == receiver:
            raise InputError(f"{what}: must go to another party")
        if not _KIND.fullmatch(kind):
            raise InputError(f"{what}: the kind must be a word of small letters, digits and dashes")
        values = _numbers(tensor, what)
        with self._lock:
            named = self._named_ids(ids, kind, values, what)
            name = f"m{len(self.messages)}"
            self.tensors.add(name, values)
            self.messages.append(Sent(round, sender, receiver, kind, name, named))
            if kind == "embeddings":
                self._uploaded.add((sender, round))

    def note(self, party: int, name: str, tensor: "Tensor | ArrayLike") -> None:
        """Record what `party` knows by itself and nobody tells it, under a `name`."""
        what = f"the note {name!r} of party {party}"
        if party not in range(self.clients + 1):
            raise InputError(f"{what}: parties are 0, the server, and clients 1 to {self.clients}")
        values = _numbers(tensor, what)
        with self._lock:
            held = f"n{len(self.notes)}"
            self.tensors.add(held, values)
            self.notes.append(Note(party, name, held))

    def _check_client(self, client: int, what: str) -> None:
        if client not in range(1, self.clients + 1):
            raise InputError(f"{what} of client {client}, must be one of 1 to {self.clients}: party 0 keeps its own")

    def _named_ids(self, ids: ArrayLike | None, kind: str, values: NDArray[Any], what: str) -> str:
        """Return the name of checked `ids`, kept once where the message before had the same; "" for none."""
        if ids is None:
            if kind in PER_RECORD:
                raise InputError(f"{what} has no ids: which record each row is about must be said")
            return ""
        found = _array(ids)
        if found.dtype.kind not in "iu" or found.ndim != 1:
            right = "must be whole numbers (B,)"
            raise InputError(f"{what}: ids are of type {found.dtype} and shape {found.shape}, {right}")
        if kind in PER_RECORD and (values.ndim == 0 or len(found) != len(values)):
            rows = f"{len(found)} ids for a tensor of shape {values.shape}"
            raise InputError(f"{what} has {rows}, must have one for each row")
        if found.size and not 0 <= found.min() <= found.max() < self.records:
            wrong = found.min() if found.min() < 0 else found.max()
            raise InputError(f"{what} has id {wrong}, must be in 0 to {self.records - 1}: places in task.labels")
        if self._latest_ids is not None and np.array_equal(self._latest_ids[0], found):
            return self._latest_ids[1]
        name = f"i{len(self.messages)}"
        kept = found.astype(np.int64)
        self.tensors.add(name, kept)
        self._latest_ids = kept, name
        return name


def check_order(messages: Iterable[Sent]) -> None:
    """Raise `InputError` for a gradient that comes before any embeddings of its client in its round."""
    uploaded = set()
    for one in messages:
        if one.kind == "embeddings":
            uploaded.add((one.sender, one.round))
        elif one.kind == "gradient" and one.sender == SERVER and (one.receiver, one.round) not in uploaded:
            where = f"the gradient of round {one.round} to party {one.receiver}"
            raise InputError(f"{where} comes before any embeddings of that client in that round, must follow them")


def _array(values: "Tensor | ArrayLike") -> NDArray[Any]:
    """Return numbers of torch or numpy as an array; floats of other widths than 32 and 64 bits as float32."""
    if hasattr(values, "detach"):
        tensor: Tensor = values.detach()
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        values = tensor.cpu().numpy()
    found = np.asarray(values)
    return found.astype(np.float32) if found.dtype == np.float16 else found


def _numbers(values: "Tensor | ArrayLike", what: str) -> NDArray[Any]:
    """Return a copy of finite numbers; `InputError` for anything else."""
    found = _array(values)
    if found.dtype.kind not in "fiu" or found.size == 0:
        raise InputError(f"{what} holds values of type {found.dtype} and shape {found.shape}, must be numbers")
    # A sum is finite unless an entry is not, or numbers are near the largest float: then each is looked at.
    if found.dtype.kind == "f" and not np.isfinite(found.sum()) and not np.isfinite(found).all():
        raise InputError(f"{what} holds {found[~np.isfinite(found)][0]}, must be finite: has the training diverged?")
    return np.array(found, order="C")
