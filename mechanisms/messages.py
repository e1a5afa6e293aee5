"""Messages are the only channel between parties: the byte ledger, transcripts and views all derive from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

SERVER = 0
"""Party number of the server; clients are parties 1..M, as in paper 001, section 2."""

VALUE_BYTES = 4
"""Every number travels as a 4-byte float, whatever precision the simulation computes in."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one round, sent in each of K replicas at once.

    Attributes:
        round: Round number, from 0; -1 for what is sent before training starts.
        sender: Party number (0 is the server).
        receiver: Party number.
        kind: What it is: `table`, `embeddings`, `scalar`, `losses` or `gradient`.
        payload: Tensor of shape (K, ...): the numbers that travel, with a leading replica axis.
        ids: Record ids of shape (K, B) that both ends need to know, -1 where a place is padding, or None. They cost
            no bytes here because the parties derive them from a shared seed; whether an outsider learns them is a
            property of the view.
    """

    round: int
    sender: int
    receiver: int
    kind: str
    payload: torch.Tensor
    ids: torch.Tensor | None = None
    bits: int | None = None
    """Bits of the whole message in one replica where it is compressed; None: `VALUE_BYTES` a number."""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire in one replica."""
        if self.bits is not None:
            return -(-self.bits // 8)
        return self.payload.numel() // self.payload.shape[0] * VALUE_BYTES


class Observer(Protocol):
    """Sees every message as it is sent, and what parties note for themselves."""

    def on_message(self, message: Message) -> None:
        """Called once a message, in order."""

    def on_note(self, party: int, round_: int, name: str, value: torch.Tensor) -> None:
        """Called when `party` notes something that it knows without being told, such as its direction."""


@runtime_checkable
class StatefulObserver(Protocol):
    """An observer whose count goes on where a run is taken up again."""

    def own_tensors(self) -> dict[str, torch.Tensor]:
        """State that a checkpoint of the run must hold, by names of its own; restored in place."""


@dataclass
class Ledger:
    """Bytes and messages of one replica by direction and kind."""

    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    messages: int = 0

    def record(self, message: Message) -> None:
        """Count `message`."""
        side = self.bytes_down if message.sender == SERVER else self.bytes_up
        side[message.kind] = side.get(message.kind, 0) + message.nbytes
        self.messages += 1

    @property
    def up(self) -> int:
        """Bytes from clients to the server."""
        return sum(self.bytes_up.values())

    @property
    def down(self) -> int:
        """Bytes from the server to clients."""
        return sum(self.bytes_down.values())


class Channel:
    """Delivers messages, counts them, and shows them to observers. A method hands nothing over in any other way."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.ledger = Ledger()
        self._observers = tuple(observers)

    def send(self, message: Message) -> torch.Tensor:
        """Send `message`; what the receiver gets is the return value, and nothing else."""
        self.ledger.record(message)
        for observer in self._observers:
            observer.on_message(message)
        return message.payload

    def observer_tensors(self) -> dict[str, torch.Tensor]:
        """State of all observers that have any."""
        stateful = (observer for observer in self._observers if isinstance(observer, StatefulObserver))
        return {name: tensor for observer in stateful for name, tensor in observer.own_tensors().items()}

    def note(self, party: int, round_: int, name: str, value: torch.Tensor) -> None:
        """Note what `party` knows by itself, for views that include its knowledge; costs no bytes."""
        for observer in self._observers:
            observer.on_note(party, round_, name, value)
