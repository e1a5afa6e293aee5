"""Records what the parties of a training send each other, as copies, in the order in which it is sent.

Nothing here needs torch but `Recorder.cut`. Tensors past a stated memory go to a file as they come.
"""

import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from pathlib import Path
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import InputError, some
from ..base.loading import short
from .messages import (
    PER_RECORD,
    SERVER,
    Note,
    Sent,
    as_array,
    finite_numbers,
)
from .transcript import merge, save

if TYPE_CHECKING:
    from torch import Tensor

_MEANT = {
    "embedding": "embeddings",
    "gradients": "gradient",
    "predictions": "prediction",
    "scalars": "scalar",
    "loss": "losses",
}
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_MEMORY = 1 << 30
_GATHERED = 512
"""Tensors that are written at once; systems take 1024 at least."""
_TOGETHER = 256
"""Messages of cuts that are checked together at most."""


class Scaler(Protocol):
    """What multiplies a loss before its backward pass, as `torch.amp.GradScaler` does."""

    def get_scale(self) -> float:
        """Return the factor."""


class Tensors:
    """Arrays by name: in memory, and past `memory` bytes in a temporary file that goes away with them."""

    def __init__(self, memory: int = _MEMORY) -> None:
        self._memory = memory
        self._here: dict[str, NDArray[Any]] = {}
        self._blocks: list[tuple[Sequence[str], NDArray[Any]]] = []  # what is here as it lies, and its arrays' names
        self._bytes = 0
        self._written: dict[str, _Place] = {}
        self._file: IO[bytes] | None = None
        self._end = 0

    def __len__(self) -> int:
        return len(self._here) + len(self._written)

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Keep an array in the order of C, which nobody may change any more."""
        self._keep([name], [values], values)

    def add_rows(self, names: Sequence[str], block: NDArray[Any]) -> None:
        """Keep the rows of an array (n, ...) in the order of C as arrays of their own, n `names` for them."""
        self._keep(names, block, block)

    def _keep(self, names: Sequence[str], arrays: Iterable[NDArray[Any]], block: NDArray[Any]) -> None:
        self._here.update(zip(names, arrays, strict=True))
        self._blocks.append((names, block))
        self._bytes += block.nbytes
        if self._bytes > self._memory:
            self._spill()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._here[name] if name in self._here else self._read(self._written[name])

    def shards(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield all arrays, those that were written at once or are in memory together."""
        for _, part in groupby(self._written.items(), lambda item: item[1].spill):
            yield {name: self._read(place) for name, place in part}
        if self._here:
            yield self._here

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, _close, self._file)
        number = self._end
        for names, _ in self._blocks:
            first = self._here[names[0]]
            for name in names:
                self._written[name] = _Place(number, self._end, first.dtype, first.shape)
                self._end += first.nbytes
        _write(self._file, [block for _, block in self._blocks])
        self._here = {}
        self._blocks = []
        self._bytes = 0

    def _read(self, place: "_Place") -> NDArray[Any]:
        assert self._file is not None
        self._file.seek(place.offset)
        return np.fromfile(self._file, place.dtype, prod(place.shape)).reshape(place.shape)


def _write(file: IO[bytes], arrays: list[NDArray[Any]]) -> None:
    """Write arrays behind each other, without a copy of them where the system can gather them itself."""
    for start in range(0, len(arrays), _GATHERED):
        some = arrays[start : start + _GATHERED]
        written = os.writev(file.fileno(), [values.data for values in some]) if hasattr(os, "writev") else 0
        if written < sum(values.nbytes for values in some):
            file.write(b"".join(values.tobytes() for values in some)[written:])
    file.flush()  # a full disk is an error of the message that fills it


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # what a full disk did not take is written once more
        file.close()


class _Place(NamedTuple):
    """Where in a file of bare numbers an array lies, and with which spill it was written."""

    spill: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(eq=False)
class Recorder:
    """Records the messages and notes of one training among `clients` clients and the server, on `records` records.

    What is given is checked: `InputError` in one line says what is wrong with which message. Tensors of torch or arrays
    of numpy are taken; floats are kept as float32, or float64 where they are.

    Attributes:
        records: Number N of training records; ids are in 0 .. N - 1.
        clients: Number M of clients, parties 1 to M.
        memory: Bytes of tensors above which they go to a temporary file.
        defend: What defences make of a gradient that passes a cut, given the client, the gradient and its embeddings
            (B, ...) and ids (B,): what travels, and what the client pulls back.
        in_round: Called with the round of each message before it is recorded; None: nothing is.
        notes: What parties noted for themselves.
    """

    records: int
    clients: int
    memory: int = _MEMORY
    defend: "Defend | None" = None
    in_round: Callable[[int], None] | None = None
    notes: list[Note] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._numbers = range(1, self.clients + 1)
        self._messages: list[Sent] = []
        self._tensors = Tensors(self.memory)
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._layer: Any = None  # the module `cut`, which needs torch: to import it anew takes long beside a message
        self._lock = RLock()
        self._evaluating = False
        self._latest_ids: _Ids | None = None
        self._latest_given: tuple[Any, int, Any] = (None, 0, None)  # ids of the latest cut, their version, their copy
        self._uploaded: set[tuple[int, int]] = set()

    @property
    def messages(self) -> list[Sent]:
        """What was sent, in order; `InputError` where what passed a cut cannot have travelled."""
        self._flush()
        return self._messages

    @property
    def tensors(self) -> Tensors:
        """Tensors by the names that messages and notes have for them."""
        self._flush()
        return self._tensors

    def cut(
        self, client: int, round: int, ids: ArrayLike, *, scaler: Scaler | None = None
    ) -> "Callable[[Tensor], Tensor]":
        """Return the layer that stands where `client`'s embeddings of records `ids` (B,) leave for the server.

        It passes on what it gets, (B, ...). What passes forward is a message of kind `embeddings`, and what passes back
        in each backward pass one of kind `gradient` to the client. It stands after all that the client does to its
        embeddings, and before any detaching or hook of the server's: a hook on its output acts before the gradient is
        recorded. A forward pass without gradients is none of training, and is recorded within `evaluation` alone.
        With a `scaler` its factor is taken out of gradients, and one that overflowed, whose step it skips, is left out.
        The bottom model in front of it may be compiled by torch, the cut itself not. What passes is checked a little
        later, when `messages` are read at the latest.
        """
        if self._layer is None:
            from . import cut

            self._layer = cut
        layer = self._layer
        if layer.is_compiling():
            where = f"the cut of client {client} stands in code that torch.compile compiles"
            raise InputError(f"{where}: must stand outside, behind the compiled bottom model")
        given: Any = ids
        if client not in self._numbers or not isinstance(round, int) or round < -1 or _needs_gradient(given):
            self._refuse(client, round)
        if self.in_round is not None:
            self.in_round(round)

        # One function for all that is done on the way, since in a training each further call is one that is not cached.
        def passed(values: "Tensor") -> "Tensor":
            if not layer.is_grad_enabled():
                if self._evaluating:
                    self.sent(round, client, SERVER, "prediction", values, ids)
                return values
            if not values.requires_grad:
                where = f"the cut of client {client} in round {round} gets values that need no gradient"
                right = "it must stand before any detach, or after requires_grad_() of a detached leaf"
                raise InputError(f"{where}: {right}")
            known = self._held(given)
            place = client, round
            if place not in self._uploaded or not layer.in_backward():
                self._uploaded.add(place)
                # The next step changes a parameter and what shares its memory; whatever else is changed in place,
                # which hardly happens, has another version then.
                stays = values.is_cpu and not values.is_leaf and not values._is_view()
                held = values.detach() if stays else values.detach().clone()
                self._waiting.append(((round, client, SERVER, "embeddings"), held, held._version, known))
                self._waiting_bytes += 2 * held.nbytes
                if len(self._waiting) >= _TOGETHER or self._waiting_bytes > self.memory:
                    self._flush()

            def received(gradients: "tuple[Tensor | None, ...]") -> "tuple[Tensor] | None":
                gradient = gradients[0]
                if scaler is not None and gradient is not None:
                    gradient = layer.unscaled(gradient, scaler.get_scale())
                if gradient is None:
                    return None
                pulled = None
                if self.defend is not None:
                    gradient, pulled = self.defend(client, gradient, values.detach(), known)
                # Of the size of its embeddings, which count for both.
                self._waiting.append(((round, SERVER, client, "gradient"), gradient.clone(), 0, known))
                if pulled is None:
                    return None
                return ((pulled if scaler is None else pulled * scaler.get_scale()).to(values.dtype),)

            # What follows may change the copy in place. As a hook of its node `received` runs after all hooks on it,
            # whenever they are registered, and before any on `values`.
            copied = values.clone()
            node: Any = copied.grad_fn
            node.register_prehook(received)
            return copied

        return passed

    def _refuse(self, client: int, round: int) -> None:
        if client not in self._numbers:
            right = f"must be one of 1 to {self.clients}: party 0 keeps its own"
            raise InputError(f"cut of client {client}, {right}")
        where = f"the cut of client {client}"
        _check_round(round, where)
        right = "must be places in task.labels: record.cut(client, round, ids) is the layer that embeddings pass"
        raise InputError(f"{where} in round {round} gets embeddings as its ids, {right}")

    def _held(self, ids: Any) -> "Tensor | NDArray[Any]":
        """Return a copy of ids, the same one where the cut before, another client's say, was given the same."""
        if not hasattr(ids, "detach"):
            return np.array(ids)
        given, version, copy = self._latest_given
        if given is not ids or version != ids._version:
            copy = ids.clone()
            self._latest_given = ids, ids._version, copy
        return cast("Tensor", copy)

    def _flush(self) -> None:
        """Check and keep what passed cuts: together that costs a fraction of one at a time."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            checked: dict[int, _Ids] = {}  # a gradient has the very ids of its embeddings
            start = len(self._messages)
            alike = {}  # of messages whose numbers are finite, by place
            for places, block in self._layer.stacked([one[1] for one in waiting]):
                self._tensors.add_rows([f"m{start + place}" for place in places], block)
                alike.update(dict.fromkeys(places, block.shape[1:]))
            try:
                for place, (head, values, version, ids) in enumerate(waiting):
                    if values._version != version:
                        right = "must stay as they passed it: change a copy"
                        raise InputError(f" were changed in place behind the cut, {right}")
                    known = checked.get(id(ids))
                    if known is None:
                        known = checked[id(ids)] = self._known(ids)
                    if place in alike:
                        self._tell(head, alike[place], known)
                    else:
                        self._add(head, finite_numbers(values), known)
            except InputError as error:
                raise error.placed(_words(*head)) from None

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
        what = _words(round, sender, receiver, kind)
        for party in (sender, receiver):
            if party not in range(self.clients + 1):
                raise InputError(f"{what}: parties are 0, the server, and clients 1 to {self.clients}")
        if sender == receiver:
            raise InputError(f"{what}: must go to another party")
        if self.defend is not None and kind == "gradient":
            right = "must pass record.cut, where a defence of gradients can change it"
            raise InputError(f"{what}: {right}")
        if not _KIND.fullmatch(kind):
            raise InputError(f"{what}: the kind must be a word of small letters, digits and dashes")
        if kind in _MEANT:
            raise InputError(f"{what}: no attack reads this kind, did you mean {_MEANT[kind]!r}?")
        _check_round(round, what)
        if self.in_round is not None:
            self.in_round(round)
        self._flush()
        head = (round, sender, receiver, kind)
        with self._lock:
            try:
                values = finite_numbers(tensor)
                self._add(head, values, None if ids is None else self._known(np.array(as_array(ids))))
            except InputError as error:
                raise error.placed(what) from None
            if kind == "embeddings":
                self._uploaded.add((sender, round))

    def _add(self, head: "_Head", values: NDArray[Any], known: "_Ids | None") -> None:
        """Keep a message of checked numbers about records of `known` ids; `InputError` where they do not fit."""
        self._tell(head, values.shape, known)
        self._tensors.add(self._messages[-1].tensor, values)

    def _tell(self, head: "_Head", shape: tuple[int, ...], known: "_Ids | None") -> None:
        """Note a message of numbers of this shape, kept by its place among messages; errors as `_add`."""
        if head[3] in PER_RECORD:
            if known is None:
                raise InputError(" has no ids: which record each row is about must be said")
            if not shape or shape[0] != known.rows:
                rows = f"{known.rows} ids for a tensor of shape {shape}"
                raise InputError(f" has {rows}, must have one for each row")
        name = f"m{len(self._messages)}"
        self._messages.append(Sent(*head, name, known.name if known else ""))

    def note(self, party: int, name: str, tensor: "Tensor | ArrayLike") -> None:
        """Record what `party` knows by itself and nobody tells it, under a `name`."""
        what = f"the note {name!r} of party {party}"
        if party not in range(self.clients + 1):
            raise InputError(f"{what}: parties are 0, the server, and clients 1 to {self.clients}")
        try:
            values = finite_numbers(tensor)
        except InputError as error:
            raise error.placed(what) from None
        with self._lock:
            held = f"n{len(self.notes)}"
            self._tensors.add(held, values)
            self.notes.append(Note(party, name, held))

    def save(
        self,
        folder: Path | str,
        *,
        classes: int,
        public_ids: bool = False,
        top_model: bool = True,
        encrypted: bool = False,
    ) -> Path:
        """Write what was recorded as a transcript; arguments and errors as `dpzv_audit.systems.transcript.save`."""
        return save(
            self, Path(folder), classes=classes, public_ids=public_ids, top_model=top_model, encrypted=encrypted
        )

    def merge(self, *folders: Path | str) -> None:
        """Add what other parties recorded of the same training; errors as `dpzv_audit.systems.transcript.merge`."""
        merge(self, *map(Path, folders))

    def _known(self, ids: ArrayLike) -> "_Ids":
        """Return checked ids, nobody else's to change, which are kept once where the message before had the same."""
        found = as_array(ids)
        if found.dtype.kind not in "iu" or found.ndim != 1:
            right = "must be whole numbers (B,)"
            raise InputError(f": ids are of type {found.dtype} and shape {found.shape}, {right}")
        rows = found.astype(np.int64, copy=False)
        content = rows.tobytes()
        if self._latest_ids is not None and self._latest_ids.content == content:
            return self._latest_ids
        # A negative id is a very large one as an unsigned number.
        if rows.size and rows.view(np.uint64).max() >= self.records:
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise InputError(f" has id {wrong}, must be in 0 to {self.records - 1}: places in task.labels")
        name = f"i{len(self._messages)}"
        self._tensors.add(name, rows)
        self._latest_ids = _Ids(name, len(rows), content)
        return self._latest_ids


Defend: TypeAlias = "Callable[[int, Tensor, Tensor, Tensor | NDArray[Any]], tuple[Tensor, Tensor]]"
_Head: TypeAlias = tuple[int, int, int, str]
"""Round, sender, receiver and kind of a message."""
_Waiting: TypeAlias = "tuple[_Head, Tensor, int, Tensor | NDArray[Any]]"
"""A message that passed a cut and is not checked yet: its head, numbers, their version then, and ids."""


class _Ids(NamedTuple):
    """Ids that were checked and kept: the name of their tensor, how many they are, and their bytes."""

    name: str
    rows: int
    content: bytes


def _check_round(round: int, what: str) -> None:
    if not isinstance(round, int) or round < -1:
        raise InputError(f"{what}: the round must be a whole number of at least -1, not {short(repr(round))}")


def _words(round: int, sender: int, receiver: int, kind: str) -> str:
    return f"{some(kind)} of round {round} from party {sender} to party {receiver}"


def _needs_gradient(values: Any) -> bool:
    return getattr(values, "requires_grad", False) is True
