"""Records the messages between the parties of a training, as copies, in the order in which they are sent.

Nothing here needs torch but `Recorder.cut`. Tensors past a stated memory go to a file as they come.
"""

import re
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import InputError, some
from ..base.loading import short
from . import transcript
from .messages import OF_A_BATCH, PER_RECORD, SERVER, Note, Sent, as_array, finite_numbers, numbers_of

if TYPE_CHECKING:
    from torch import Tensor

_MEANT = {
    "embedding": "embeddings",
    "gradients": "gradient",
    "predictions": "prediction",
    "scalars": "scalar",
    "loss": "losses",
    "group": "groups",
}
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_MEMORY = 1 << 30
_BUFFER = 1 << 20
"""Bytes of small tensors that are written at once; large ones are written as they are."""
_TOGETHER = 256
"""Messages of cuts that are checked together at most."""


class Scaler(Protocol):
    """Multiplies a loss before its backward pass, as `torch.amp.GradScaler` does."""

    def get_scale(self) -> float:
        """Return the factor."""


class Tensors:
    """Arrays by name: in memory, and past `memory` bytes in a temporary file that goes away with them."""

    def __init__(self, memory: int = _MEMORY) -> None:
        self._memory = memory
        self._here: dict[str, NDArray[Any]] = {}
        # Names, arrays and block as they were added: after a refused message a name comes again.
        self._blocks: list[tuple[Sequence[str], Sequence[NDArray[Any]], NDArray[Any]]] = []
        self._bytes = 0
        self._written: dict[str, _Place] = {}
        self._file: IO[bytes] | None = None
        self._end = 0

    def __len__(self) -> int:
        return len(self._here) + len(self._written)

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Keep an array in the order of C, which nobody may change any more."""
        self.add_all([name], [values], values)

    def add_all(self, names: Sequence[str], arrays: Iterable[NDArray[Any]], block: NDArray[Any]) -> None:
        """Keep `arrays` that lie behind each other in a `block` in the order of C."""
        views = [*arrays]
        self._here.update(zip(names, views, strict=True))
        self._blocks.append((names, views, block))
        self._bytes += block.nbytes
        if self._bytes > self._memory:
            self._spill()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._here[name] if name in self._here else self._read(self._written[name])

    def shards(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield all arrays, those that were written at once or are in memory together."""
        for _, shard in groupby(self._written.items(), lambda item: item[1].spill):
            yield {name: self._read(place) for name, place in shard}
        if self._here:
            yield self._here

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=_BUFFER)  # noqa: SIM115
            weakref.finalize(self, _close, self._file)
        spill = self._end
        for names, views, _ in self._blocks:
            for name, values in zip(names, views, strict=True):
                self._written[name] = _Place(spill, self._end, values.dtype, values.shape)
                self._end += values.nbytes
        self._file.seek(spill)
        self._file.writelines(block.data for _, _, block in self._blocks)
        self._file.flush()  # a full disk is an error of the message that fills it
        self._here = {}
        self._blocks = []
        self._bytes = 0

    def _read(self, place: "_Place") -> NDArray[Any]:
        assert self._file is not None
        self._file.seek(place.offset)
        return np.fromfile(self._file, place.dtype, prod(place.shape)).reshape(place.shape)


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # what a full disk did not take is written once more
        file.close()


class _Place(NamedTuple):
    """Location of an array in a file of bare numbers, and the spill with which it was written."""

    spill: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(eq=False)
class Recorder:
    """Records the messages and notes of one training among `clients` clients and the server, on `records` records.

    Arguments are checked: `InputError` in one line says what is wrong with which message. Tensors of torch or arrays of
    numpy are taken; floats are kept as float32, or float64 where they are.

    Attributes:
        records: Number N of training records; ids are in 0 .. N - 1.
        clients: Number M of clients, parties 1 to M.
        memory: Bytes of tensors above which they go to a temporary file.
        defend: Applies defences at a cut, given the client, the gradient and its embeddings (B, ...) and ids (B,):
            returns the gradient that travels, and the one that the client pulls back.
        in_round: Called with the round of each message before it is recorded.
        notes: Notes of parties for themselves.
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
        self._latest_cut: tuple[Any, int, Any] = (None, 0, None)  # ids of the latest cut, their version, their copy
        self._uploaded: set[tuple[int, int]] = set()

    @property
    def messages(self) -> list[Sent]:
        """Messages in order; `InputError` where something passed a cut that cannot have travelled."""
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

        It returns its input, (B, ...). The forward pass is a message of kind `embeddings`, and each backward pass one
        of kind `gradient` to the client; a batch without records is no message. It stands after all that the client
        does to its embeddings, and before any detaching or hook of the server's: a hook on its output acts before the
        gradient is recorded. A forward pass without gradients is not training, and is recorded within `evaluation`
        alone. With a `scaler` its factor is taken out of gradients, and one that overflowed, whose step it skips, is
        left out. The bottom model in front of it may be compiled by torch, the cut itself not. Messages are checked a
        little later, when `messages` are read at the latest.
        """
        if self._layer is None:
            from . import cut

            self._layer = cut
        layer = self._layer
        if layer.is_compiling():
            raise InputError(
                f"the cut of client {client} stands in code that torch.compile compiles; "
                "put it outside, behind the compiled bottom model"
            )
        where = f"the cut of client {client}"
        if client not in self._numbers:
            raise InputError(f"cut of client {client}; use one of 1 to {self.clients}: party 0 keeps its own")
        _check_round(round, where)
        if getattr(ids, "requires_grad", False) is True:
            raise InputError(
                f"{where} in round {round} gets embeddings as its ids; use places in task.labels: "
                "record.cut(client, round, ids) is the layer that embeddings pass"
            )
        if self.in_round is not None:
            self.in_round(round)

        # One function for all that is done on the way, since in a training each further call is one that is not cached.
        def passed(values: "Tensor") -> "Tensor":
            if not values.numel():
                return values  # of a batch that drew no record nothing travels
            if not layer.is_grad_enabled():
                if self._evaluating:
                    self.sent(round, client, SERVER, "prediction", values, ids)
                return values
            if not values.requires_grad:
                raise InputError(
                    f"the cut of client {client} in round {round} gets values that need no gradient; "
                    "put it before any detach, or after requires_grad_() of a detached leaf"
                )
            known = self._held(ids)
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

            # Later code may change the copy in place. As a hook of its node `received` runs after all hooks on it,
            # whenever they are registered, and before any on `values`.
            copied = values.clone()
            node: Any = copied.grad_fn
            node.register_prehook(received)
            return copied

        return passed

    def _held(self, ids: Any) -> "Tensor | NDArray[Any]":
        """Return a copy of ids, the same one where the cut before, such as another client's, got the same."""
        if not hasattr(ids, "detach"):
            return np.array(ids)
        latest, version, copy = self._latest_cut
        if latest is not ids or version != ids._version:
            copy = ids.clone()
            self._latest_cut = ids, ids._version, copy
        return cast("Tensor", copy)

    def _flush(self) -> None:
        """Check and keep the messages of cuts: together that costs a fraction of one at a time."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            checked: dict[int, _Ids] = {}  # a gradient has the very ids of its embeddings
            start = len(self._messages)
            alike = {}  # of messages whose numbers are finite, by place
            for places, block in self._layer.stacked([values for _, values, _, _ in waiting]):
                self._tensors.add_all([f"m{start + place}" for place in places], block, block)
                alike.update(dict.fromkeys(places, block.shape[1:]))
            try:
                for place, (head, values, version, ids) in enumerate(waiting):
                    if values._version != version:
                        raise InputError(" were changed in place behind the cut; change a copy")
                    known = checked.get(id(ids))
                    if known is None:
                        known = checked[id(ids)] = self._known(ids)
                    if place in alike:
                        self._add(head, alike[place], known)
                    else:
                        numbers = finite_numbers(values)
                        self._tensors.add(self._add(head, numbers.shape, known), numbers)
            except InputError as error:
                raise error.placed(_named(*head)) from None

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Record what passes a cut without gradients in this block as kind `prediction`: embeddings that are served."""
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
            kind: `embeddings`, `gradient`, `prediction` and `groups` have a row for each record, so they need `ids`;
                `scalar`, `losses`, `batch-gradient` (one of all records of a batch), `sums` (one over a set of
                records), `masked` (uploads that the server reads in sum alone), or any other word of small letters,
                digits and dashes. `groups` say who shares a node of a tree: the number of each record's node, (B,) or
                a column per tree, -1 for none.
            tensor: Numbers of any shape.
            ids: Ids (B,) of the records by row of the tensor.
        """
        head = (round, sender, receiver, kind)
        where = _named(*head)
        self._check_parties(where, sender, receiver)
        if sender == receiver:
            raise InputError(f"{where}: send it to another party")
        if self.defend is not None and kind == "gradient":
            raise InputError(f"{where}: use record.cut, where a defence of gradients can change it")
        if not _KIND.fullmatch(kind):
            raise InputError(f"{where}: use a kind that is a word of small letters, digits and dashes")
        if kind in _MEANT:
            raise InputError(f"{where}: no attack reads this kind, did you mean {_MEANT[kind]!r}?")
        _check_round(round, where)
        if self.in_round is not None:
            self.in_round(round)
        self._flush()
        if ids is not None and not len(as_array(ids)) and not as_array(tensor).size:
            return  # of a batch that drew no record nothing travels
        with self._lock:
            try:
                values = numbers_of(kind, tensor)
                known = None if ids is None else self._known(np.array(as_array(ids)))
                self._tensors.add(self._add(head, values.shape, known), values)
            except InputError as error:
                raise error.placed(where) from None
            if kind == "embeddings":
                self._uploaded.add((sender, round))

    def _check_parties(self, where: str, *parties: int) -> None:
        if any(party not in range(self.clients + 1) for party in parties):
            raise InputError(f"{where}: parties are 0, the server, and clients 1 to {self.clients}")

    def _add(self, head: "_Head", shape: tuple[int, ...], known: "_Ids | None") -> str:
        """Add a message of checked numbers of this shape about records of `known` ids; return the name of its tensor.

        `InputError` where shape and ids do not fit.
        """
        if head[3] in PER_RECORD:
            if known is None:
                raise InputError(" has no ids: say which record each row is about")
            if not shape or shape[0] != known.rows:
                rule = f"give one for each row, or use kind {OF_A_BATCH!r} for one gradient of the batch"
                rule = rule if head[3] == "gradient" else "give one for each row"
                raise InputError(f" has {known.rows} ids for a tensor of shape {shape}; {rule}")
        name = f"m{len(self._messages)}"
        self._messages.append(Sent(*head, name, known.name if known else ""))
        return name

    def note(self, party: int, name: str, tensor: "Tensor | ArrayLike") -> None:
        """Record what `party` knows by itself and nobody tells it, under a `name`."""
        where = f"the note {name!r} of party {party}"
        self._check_parties(where, party)
        try:
            values = finite_numbers(tensor)
        except InputError as error:
            raise error.placed(where) from None
        with self._lock:
            tensor_name = f"n{len(self.notes)}"
            self._tensors.add(tensor_name, values)
            self.notes.append(Note(party, name, tensor_name))

    save = transcript.save
    merge = transcript.merge

    def _known(self, ids: ArrayLike) -> "_Ids":
        """Return checked ids, nobody else's to change, which are kept once where the message before had the same."""
        rows = as_array(ids)
        if rows.dtype.kind not in "iu" or rows.ndim != 1:
            raise InputError(f": ids are of type {rows.dtype} and shape {rows.shape}; use whole numbers (B,)")
        rows = rows.astype(np.int64, copy=False)
        content = rows.tobytes()
        if self._latest_ids is not None and self._latest_ids.content == content:
            return self._latest_ids
        # A negative id is a very large one as an unsigned number.
        if rows.size and rows.view(np.uint64).max() >= self.records:
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise InputError(f" has id {wrong}; use 0 to {self.records - 1}: places in task.labels")
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
    """Ids that were checked and kept: the name of their tensor, their number, and their bytes."""

    name: str
    rows: int
    content: bytes


def _check_round(round: int, where: str) -> None:
    if not isinstance(round, int) or round < -1:
        raise InputError(f"{where}: use a round that is a whole number of at least -1, not {short(repr(round))}")


def _named(round: int, sender: int, receiver: int, kind: str) -> str:
    return f"{some(kind)} of round {round} from party {sender} to party {receiver}"
