"""An adversary's view: the projection of the message log to what that adversary sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from dpzv_audit.errors import InputError
from dpzv_audit.findings import ADVERSARIES
from mechanisms.messages import SERVER, IdsTogether, Message


@dataclass(frozen=True)
class Adversary:
    """Who looks: a kind of `dpzv_audit.findings.ADVERSARIES`, the clients it controls, and whether ids are public."""

    kind: str
    clients: tuple[int, ...] = ()
    public_ids: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ADVERSARIES:
            raise InputError(f"must be one of {', '.join(ADVERSARIES)}", "adversary", self.kind)

    def sees(self, message: Message) -> bool:
        """Whether `message` is in the view: a client's own mail; for an outsider everything the server sends."""
        if self.kind in ("server", "all-but-one"):
            return True
        if self.kind == "eavesdropper":
            return message.sender == SERVER
        return message.sender in self.clients or message.receiver in self.clients

    def knows_ids(self) -> bool:
        """Whether batch ids are known: a client draws its own batches; an outsider only if they are public."""
        return self.kind != "eavesdropper" or self.public_ids

    def reads_notes_of(self, party: int) -> bool:
        """Whether the adversary is, or controls, `party` and so knows what it noted for itself."""
        if self.kind == "all-but-one":
            return party != SERVER
        return party in self.clients or (self.kind == "server" and party == SERVER)


@dataclass
class View:
    """Everything that `adversary` saw, message by message; an attack gets this and nothing else."""

    adversary: Adversary
    messages: list[Message] = field(default_factory=list)
    notes: dict[tuple[int, str], list[torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[View], together: IdsTogether) -> View:
        """The view of a stack whose replicas trained in several: `parts` in the order of the replicas, used up.

        Raises:
            ValueError: The views differ in length, or their batches in size (Poisson sampling).
        """
        if len(parts) == 1:
            return parts[0]
        if len({part._lengths() for part in parts}) > 1:
            raise ValueError("views of different lengths cannot be joined")
        whole = cls(parts[0].adversary)
        # From the end, so that what is joined can be let go: there may be no room for all of it twice.
        for _ in range(len(parts[0].messages)):
            whole.messages.append(Message.joined([part.messages.pop() for part in parts], together))
        whole.messages.reverse()
        for key, notes in parts[0].notes.items():
            whole.notes[key] = [torch.cat([part.notes[key].pop() for part in parts]) for _ in range(len(notes))][::-1]
        return whole

    def _lengths(self) -> tuple[int, frozenset[tuple[tuple[int, str], int]]]:
        return len(self.messages), frozenset((key, len(values)) for key, values in self.notes.items())

    def received(self, kind: str) -> list[Message]:
        """Messages of `kind` that the server sent, in order."""
        return [m for m in self.messages if m.kind == kind and m.sender == SERVER]

    def sent(self, kind: str) -> list[Message]:
        """Messages of `kind` that clients under the adversary's control sent, in order."""
        return [m for m in self.messages if m.kind == kind and m.sender in self.adversary.clients]

    def scalars(self) -> torch.Tensor:
        """Scalars from the server, stacked to shape (rounds seen, K)."""
        return torch.stack([m.payload for m in self.received("scalar")])

    def batches(self) -> torch.Tensor:
        """Batch ids beside the scalars, stacked to (rounds seen, K, B); `InputError` if this adversary lacks them."""
        ids = [m.ids for m in self.received("scalar") if m.ids is not None]
        if not ids:
            raise InputError(f"the view of {self.adversary.kind!r} holds no batch ids")
        return _stacked(ids)

    def noted(self, party: int, name: str) -> torch.Tensor:
        """What `party` noted under `name`, stacked over its rounds; `InputError` if the view does not hold it."""
        values = self.notes.get((party, name))
        if not values:
            raise InputError(f"the view of {self.adversary.kind!r} holds no {name!r} of party {party}")
        return torch.stack(values)


class ViewRecorder:
    """Records, while a method trains, the view of one adversary: nothing outside it is ever stored.

    Tensors are kept as sent; methods never write to a payload after sending it. An adversary that needs only some
    `kinds` of messages keeps only those.
    """

    def __init__(self, adversary: Adversary, *, kinds: tuple[str, ...] | None = None) -> None:
        self.view = View(adversary)
        self._kinds = kinds

    def on_message(self, message: Message) -> None:
        """Keep `message` if the adversary sees it, without ids it does not know."""
        adversary = self.view.adversary
        if not adversary.sees(message) or (self._kinds is not None and message.kind not in self._kinds):
            return
        if message.ids is not None and not adversary.knows_ids():
            message = replace(message, ids=None)
        self.view.messages.append(message)

    def on_note(self, party: int, round_: int, name: str, value: torch.Tensor) -> None:
        """Keep a note of a party that the adversary is or controls."""
        if self._kinds is None and self.view.adversary.reads_notes_of(party):
            self.view.notes.setdefault((party, name), []).append(value)


class BatchLog:
    """Batch ids of every answer, for *scoring* an attack's guesses; no attack is given one."""

    def __init__(self, kind: str, clients: tuple[int, ...] | None = None) -> None:
        self._kind = kind
        self._clients = clients
        self._ids: list[torch.Tensor] = []

    @classmethod
    def joined(cls, parts: Sequence[BatchLog], together: IdsTogether) -> BatchLog:
        """The log of a stack whose replicas trained in several: `parts` in the order of the replicas.

        Raises:
            ValueError, RuntimeError: The logs differ in length, or their batches in size (Poisson sampling).
        """
        if len(parts) == 1:
            return parts[0]
        whole = cls(parts[0]._kind, parts[0]._clients)
        whole._ids = [together(same) for same in zip(*(part._ids for part in parts), strict=True)]
        return whole

    def on_message(self, message: Message) -> None:
        """Keep the ids beside answers of the logged kind to the logged clients."""
        wanted = self._clients is None or message.receiver in self._clients
        if message.sender == SERVER and message.kind == self._kind and wanted and message.ids is not None:
            self._ids.append(message.ids)

    def stacked(self) -> torch.Tensor:
        """Ids of shape (answers, K, B), -1 where a place is padding."""
        return _stacked(self._ids)


def _stacked(ids: Sequence[torch.Tensor]) -> torch.Tensor:
    """Ids (K, B) of rounds as one tensor; Poisson batches of different blocks differ in width and are padded by -1."""
    width = max(i.shape[1] for i in ids)
    return torch.stack([torch.nn.functional.pad(i, (0, width - i.shape[1]), value=-1) for i in ids])
