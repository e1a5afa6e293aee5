"""Messages are the only channel between parties: the byte ledger, transcripts and views all derive from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.findings import ADVERSARIES, SERVERS
from dpzv_audit.results import Ages, Staleness

SERVER = 0
"""Party number of the server; clients are parties 1..M, as in paper 001, section 2."""
VALUE_BYTES = 4
"""Every number travels as a 4-byte float, whatever precision the simulation computes in."""
Size = int | list[int]
"""Bits or bytes of one replica where all K send alike, else those of each."""


class Message(NamedTuple):
    """One message of one round, sent in each of K replicas at once.

    Attributes:
        round: Round number, from 0; -1 for what is sent before training starts.
        sender: Party number (0 is the server).
        receiver: Party number.
        kind: What it is: `table`, `embeddings`, `scalar`, `losses`, `gradient`, or `features` that a defence asks for.
        payload: Tensor of shape (K, ...): the numbers that travel, with a leading replica axis.
        ids: Record ids of shape (K, B) that both ends need to know, -1 where a place is padding, or None. They cost
            no bytes here because the parties derive them from a shared seed; whether an outsider learns them is a
            property of the view.
        bits: Bits of the whole message in one replica where it is compressed; None: `VALUE_BYTES` a number, and one bit
            a truth value.
        sizes: How many of the B places hold a record, by replica; None: all do. Padding is simulated, never sent.
            Places are then the last axis but one of the payload: (K, ..., B, width).
    """

    round: int
    sender: int
    receiver: int
    kind: str
    payload: Tensor
    ids: Tensor | None = None
    bits: int | None = None
    sizes: list[int] | None = None

    @property
    def nbits(self) -> Size:
        """Return bits on the wire in one replica, or in each where their batches differ in size."""
        if self.bits is not None:
            return self.bits
        each = 1 if self.payload.dtype == torch.bool else 8 * VALUE_BYTES
        whole = self.payload.numel() // self.payload.shape[0] * each
        if self.sizes is None:
            return whole
        row = whole // self.payload.shape[-2]
        return [row * size for size in self.sizes]

    @property
    def nbytes(self) -> Size:
        """Return bytes that hold `nbits`."""
        bits = self.nbits
        return whole_bytes(bits) if isinstance(bits, int) else list(map(whole_bytes, bits))


def whole_bytes(bits: int) -> int:
    """Return how many bytes hold so many bits."""
    return -(-bits // 8)


class Observer(Protocol):
    """Sees every message as it is sent; one that is a `NoteReader` also what parties note for themselves."""

    def on_message(self, message: Message) -> None:
        """Take a message; called once for each, in order."""


@runtime_checkable
class NoteReader(Protocol):
    """An observer that reads notes, of the names in `reads_notes`, directions unless it says; others are not computed.

    A party notes its `direction`, and a client its `model` (K, d) at each upload.
    """

    def on_note(self, party: int, round_: int, name: str, value: Tensor) -> None:
        """Take what `party` notes: something that it knows without being told, such as its direction."""


@runtime_checkable
class StatefulObserver(Protocol):
    """An observer whose count goes on where a run is taken up again."""

    def own_tensors(self) -> dict[str, Tensor]:
        """Return state that a checkpoint of the run must hold, by names of its own; restored in place."""


@dataclass
class ByteLedger:
    """Bits by direction and kind, and messages: answers of one bit cost one bit each.

    What is read off it is bytes of one replica: of the mean where their batches differ in size (Poisson sampling).
    """

    counted_up: dict[str, Size] = field(default_factory=dict)
    counted_down: dict[str, Size] = field(default_factory=dict)
    messages: int = 0

    def record(self, message: Message) -> None:
        """Count `message`."""
        side = self.counted_down if message.sender == SERVER else self.counted_up
        before = side.get(message.kind, 0)
        sent = message.nbits
        if isinstance(before, int) and isinstance(sent, int):
            side[message.kind] = before + sent
        else:
            side[message.kind] = np.add(before, sent).tolist()
        self.messages += 1

    @property
    def bytes_up(self) -> dict[str, int]:
        """Return bytes from clients to the server by kind of message."""
        return {kind: _mean_bytes(n) for kind, n in self.counted_up.items()}

    @property
    def bytes_down(self) -> dict[str, int]:
        """Return bytes from the server to clients by kind of message."""
        return {kind: _mean_bytes(n) for kind, n in self.counted_down.items()}

    @property
    def up(self) -> int:
        """Return bytes from clients to the server."""
        return sum(self.bytes_up.values())

    @property
    def down(self) -> int:
        """Return bytes from the server to clients."""
        return sum(self.bytes_down.values())


def _mean_bytes(bits: Size) -> int:
    return whole_bytes(bits) if isinstance(bits, int) else round(np.mean(bits) / 8)


class Channel:
    """Delivers messages, counts them, and shows them to observers. A method hands nothing over in any other way."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.ledger = ByteLedger()
        self.observe(observers)

    def observe(self, observers: Sequence[Observer]) -> None:
        """Show what is sent from now on to `observers`, and to no others."""
        self._observers = tuple(observers)
        self._note_readers = tuple(o for o in observers if isinstance(o, NoteReader))

    def send(self, message: Message) -> Tensor:
        """Send `message`; what the receiver gets is the return value, and nothing else."""
        self.ledger.record(message)
        for observer in self._observers:
            observer.on_message(message)
        return message.payload

    def observer_tensors(self) -> dict[str, Tensor]:
        """Return state of all observers that have any."""
        stateful = (observer for observer in self._observers if isinstance(observer, StatefulObserver))
        return {name: tensor for observer in stateful for name, tensor in observer.own_tensors().items()}

    def note(self, party: int, round_: int, name: str, value: Tensor | Callable[[], Tensor]) -> None:
        """Note what `party` knows by itself, for views that include its knowledge; costs no bytes.

        A function is called for the value only where somebody reads notes.
        """
        readers = [reader for reader in self._note_readers if name in getattr(reader, "reads_notes", ("direction",))]
        if not readers:
            return
        if not isinstance(value, Tensor):
            value = value()
        for reader in readers:
            reader.on_note(party, round_, name, value)


@dataclass(frozen=True)
class Adversary:
    """An adversary: its kind (`base.findings.ADVERSARIES`), the clients it controls, and whether ids are public."""

    kind: str
    clients: tuple[int, ...] = ()
    public_ids: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ADVERSARIES:
            raise InputError(f"use one of {', '.join(ADVERSARIES)}", "adversary", self.kind)

    def sees(self, message: Message) -> bool:
        """Return whether `message` is in the view: a client's own mail; for an outsider everything the server sends."""
        if self.kind in (*SERVERS, "all-but-one"):
            return True
        if self.kind == "eavesdropper":
            return message.sender == SERVER
        return message.sender in self.clients or message.receiver in self.clients

    def knows_ids(self) -> bool:
        """Return whether batch ids are known: a client draws its own batches; an outsider only if they are public."""
        return self.kind != "eavesdropper" or self.public_ids

    def reads_notes_of(self, party: int) -> bool:
        """Return whether the adversary is, or controls, `party` and so knows what it noted for itself."""
        if self.kind == "all-but-one":
            return party != SERVER
        return party in self.clients or (self.kind in SERVERS and party == SERVER)


@dataclass
class View:
    """Everything that `adversary` saw, message by message; an attack gets this and nothing else.

    A client's holds the messages that it sent or got, with the ids of their batches, and in `notes`, by (party, name),
    what it noted for itself; `Adversary` says which messages and notes another sees.
    """

    adversary: Adversary
    messages: list[Message] = field(default_factory=list)
    notes: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)

    def received(self, kind: str) -> list[Message]:
        """Return messages of `kind` that the server sent, in order."""
        return [m for m in self.messages if m.kind == kind and m.sender == SERVER]

    def sent(self, kind: str) -> list[Message]:
        """Return messages of `kind` that clients under the adversary's control sent, in order."""
        return [m for m in self.messages if m.kind == kind and m.sender in self.adversary.clients]

    def scalars(self) -> Tensor:
        """Return scalars from the server, stacked to shape (rounds seen, K)."""
        return torch.stack([m.payload for m in self.received("scalar")])

    def batches(self) -> Tensor:
        """Return batch ids beside the scalars, (rounds seen, K, B); `InputError` if this adversary lacks them."""
        ids = [m.ids for m in self.received("scalar") if m.ids is not None]
        if not ids:
            raise InputError(f"the view of {self.adversary.kind!r} holds no batch ids")
        return stacked_ids(ids)

    def noted(self, party: int, name: str) -> Tensor:
        """Return what `party` noted under `name`, stacked over its rounds; `InputError` if the view lacks it."""
        values = self.notes.get((party, name))
        if not values:
            raise InputError(f"the view of {self.adversary.kind!r} holds no {name!r} of party {party}")
        return torch.stack(values)


class Shelf:
    """Keeps small tensors of one shape, on one device, side by side in blocks.

    Tens of thousands of them, one or two per round between a round's own large tensors, leave the heap so full of holes
    that a process grows to many times what it holds.
    """

    PLACES = 256
    # Bytes above which a tensor is kept as it is.
    LARGEST = 1 << 16

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
        self._latest = self._kept = torch.empty(0)

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a copy of `tensor` in a block, or `tensor` itself where it is large.

        What is kept twice in a row, as a batch's ids are for each of its messages, is one copy.
        """
        if tensor is self._latest:
            return self._kept
        if tensor.nbytes > self.LARGEST:
            return tensor
        free = self._free.setdefault((tensor.shape, tensor.dtype), [])
        if not free:
            free.extend(tensor.new_empty(self.PLACES, *tensor.shape).unbind(0))
        self._latest = tensor
        self._kept = free.pop().copy_(tensor)
        return self._kept


class ViewRecorder:
    """Records, while a method trains, the view of one adversary: nothing outside it is ever stored.

    Methods never write to a payload after sending it. An adversary that needs only some `kinds` of messages and notes,
    or those of some `senders`, keeps only those.
    """

    def __init__(
        self,
        adversary: Adversary,
        *,
        kinds: tuple[str, ...] | None = None,
        senders: tuple[int, ...] | None = None,
    ) -> None:
        self.view = View(adversary)
        self._kinds = kinds
        self._senders = senders
        self.reads_notes = ("direction",) if kinds is None or "direction" in kinds else ()
        self._payloads = Shelf()
        self._ids = Shelf()

    def on_message(self, message: Message) -> None:
        """Keep `message` if the adversary sees it, without ids it does not know."""
        adversary = self.view.adversary
        kept = self._kinds is None or message.kind in self._kinds
        kept = kept and (self._senders is None or message.sender in self._senders)
        if not kept or not adversary.sees(message):
            return
        payload = self._payloads.keep(message.payload)
        ids = None
        if message.ids is not None and adversary.knows_ids():
            ids = self._ids.keep(message.ids)
        self.view.messages.append(message._replace(payload=payload, ids=ids))

    def on_note(self, party: int, round_: int, name: str, value: Tensor) -> None:
        """Keep a note of a party that the adversary is or controls."""
        if self.view.adversary.reads_notes_of(party):
            self.view.notes.setdefault((party, name), []).append(value)


@dataclass
class BatchLog:
    """Batch ids of every answer, for *scoring* an attack's guesses; no attack is given one."""

    kind: str
    clients: tuple[int, ...] | None = None
    ids: list[Tensor] = field(default_factory=list)
    _shelf: Shelf = field(default_factory=Shelf, init=False)

    def on_message(self, message: Message) -> None:
        """Keep the ids beside answers of the logged kind to the logged clients."""
        wanted = self.clients is None or message.receiver in self.clients
        answer = message.sender == SERVER and message.kind == self.kind
        if answer and wanted and message.ids is not None:
            self.ids.append(self._shelf.keep(message.ids))

    def stacked(self) -> Tensor:
        """Return ids of shape (answers, K, B), -1 where a place is padding."""
        return stacked_ids(self.ids)


def stacked_ids(ids: Sequence[Tensor]) -> Tensor:
    """Return ids (K, B) of rounds as one tensor, padded by -1 where batches differ in width."""
    width = max(i.shape[1] for i in ids)
    return torch.stack([pad(i, (0, width - i.shape[1]), value=-1) for i in ids])


HEADER_BITS = 64
"""A quantised message starts with two 4-byte floats, the smallest value and the step."""


def quantise(values: Tensor, bits: int) -> Tensor:
    """Return what the receiver reads: each replica's values on 2^bits even levels from its smallest to its largest.

    Args:
        values: (K, ...), one message a replica.
        bits: 1, 2, 4 or 8.

    Returns:
        Tensor of the same shape; the error is at most half a step, (max - min) / (2^bits - 1) / 2.
    """
    flat = values.flatten(1)
    low, high = flat.aminmax(dim=1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    # A constant message has no step: all its values are the smallest one.
    levels = torch.where(step > 0, ((flat - low) / step).round_(), torch.zeros_like(flat))
    read: Tensor = (low + levels * step).view(values.shape)
    return read


def quantised(values: Tensor, bits: int | None) -> tuple[Tensor, int | None]:
    """Return what the receiver reads of `values` (K, ...) in `bits` each, and a message's bits, None where 32 each.

    With its header a message fills whole bytes.
    """
    if bits is None:
        return values, None
    return quantise(values, bits), HEADER_BITS + 8 * whole_bytes(bits * values[0].numel())


_UNREAD = 256


class StalenessObserver:
    """Counts the age, in rounds, of every row the server reads, in the first replica; needs no change to a method.

    `rounds` is the number of rounds of the run, which no age exceeds.
    """

    def __init__(self, records: int, clients: int, rounds: int) -> None:
        self._refreshed = torch.full((clients, records), -1)
        self._counts = torch.zeros(clients, rounds + 1, dtype=torch.int64)
        self._round = -1
        self._ids = torch.arange(0)
        self._senders: list[int] = []
        self._unread: list[tuple[int, int, Tensor]] = []

    def own_tensors(self) -> dict[str, Tensor]:
        """Return state that a checkpoint of the run must hold, changed in place."""
        self._read()
        return {"staleness-refreshed": self._refreshed, "staleness-counts": self._counts}

    def on_message(self, message: Message) -> None:
        """Note the embeddings of a batch: the rows of who sent any in this round are fresh, the others' have an age."""
        if message.receiver != SERVER or message.ids is None or message.kind != "embeddings":
            return
        self._unread.append((message.round, message.sender - 1, message.ids[0]))
        # Read many at a time: a device is waited for once.
        if len(self._unread) == _UNREAD:
            self._read_messages()

    def _read_messages(self) -> None:
        """Count what has been noted, but for the last round, which may not be over."""
        if not self._unread:
            return
        noted = [ids for *_, ids in self._unread]
        rows = torch.cat(noted).cpu().split(list(map(len, noted)))
        for (round_, sender, _), ids in zip(self._unread, rows, strict=True):
            if round_ != self._round:
                self._settle()
            self._round = round_
            self._ids = ids[ids >= 0]
            self._senders.append(sender)
        self._unread = []

    def _read(self) -> None:
        """Count all that has been noted: the last round is over."""
        self._read_messages()
        self._settle()

    def _settle(self) -> None:
        """Count the round that is over: the server reads its batch once all who take part have sent."""
        if not self._senders:
            return
        absent = [m for m in range(len(self._refreshed)) if m not in self._senders]
        others = torch.tensor(absent, dtype=torch.int64)
        ages = self._round - self._refreshed[others][:, self._ids]
        places = (others.unsqueeze(1) * self._counts.shape[1] + ages).flatten()
        self._counts.view(-1).index_add_(0, places, torch.ones_like(places))
        for sender in self._senders:
            self._refreshed[sender, self._ids] = self._round
        self._senders = []

    def summary(self) -> Staleness | None:
        """Return ages in rounds of the rows read: mean, quantiles, largest, shares by age, and the mean by client.

        `distribution` has the share of each range of ages: 1, 2 to 3, 4 to 7, 8 to 15, ... up to the
        largest. None where no client's rows are ever stale.
        """
        self._read()
        counts = self._counts.sum(0)
        total = int(counts.sum())
        if total == 0:
            return None
        ages = torch.arange(len(counts))
        reached = counts.cumsum(0)
        largest = int(counts.nonzero().max())
        distribution = []
        for low in (2**k for k in range(largest.bit_length())):
            share = int(counts[low : 2 * low].sum()) / total
            distribution.append(Ages(first=low, last=min(2 * low - 1, largest), share=share))
        means = {
            f"client {client}": float((ages * row).sum() / row.sum())
            for client, row in enumerate(self._counts, start=1)
            if row.any()
        }
        return Staleness(
            mean=float((ages * counts).sum() / total),
            **{f"q{100 * q:g}": int(torch.searchsorted(reached, q * total)) for q in (0.1, 0.5, 0.9, 0.99)},
            largest=largest,
            distribution=distribution,
            mean_by_client=means,
        )
