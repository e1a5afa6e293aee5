"""Capabilities of a training: what attacks can work with, and what a rehearsal showed of a user's own training."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .config import Downlink

if TYPE_CHECKING:
    from .models import Architecture

_NONE: frozenset[str] = frozenset()


class Traffic(NamedTuple):
    """How many messages of one kind there were, and the most of them `of_one` record."""

    messages: int
    of_one: int


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a training has for attacks. The defaults are those of a method whose rounds the toolkit simulates.

    Attributes:
        simulated: Whether the toolkit simulates the parties; False: a training of the user's own, or a recorded one.
        repeatable: Whether it can be trained again; a transcript is one training.
        predicts: Whether it returns a model that can be asked about records.
        public_ids: Whether ids travelled in the clear, so that an eavesdropper knows them too.
        encrypted: Whether an eavesdropper saw lengths and times of messages alone.
        apart: Clients that exchange nothing, whose features are the label party's own.
        featureless: Clients of a recorded training whose features nobody gave.
        told: Kinds of messages to each client of a training that is not simulated.
        architectures: Models that such a training returns, by client.
        named: How many records the messages that each client sees are about by their ids.
        down: Messages from the server that tell of labels, by kind.
        up: Messages to the server, by kind.
        widths: Numbers in each row of the embeddings that a client sends the server, by client, where it is known which
            records they are about; several where they differ.
        paired: Clients that send two embeddings of a batch in a round in which scalars or losses answer them.
        coupled: Whether a gradient depends on labels of other records.
        telling: Kinds of messages to each party that are not the same when labels differ.
        nameless: Kinds among `telling` whose messages do not say which records they are about.
        like_groups: Kinds of its own whose messages hold what `groups` hold: whole numbers that records share.
        contradicted: How a rehearsal contradicts the release that a system states.
        not_made: Tests of a rehearsal that were not made.
        seconds: How long one training took in a rehearsal; 0.0 where nothing was rehearsed.
        control_flow: How trainings differ in what they send, as a rehearsal showed; none where it showed nothing.
        lengths_tell: Whether the number of messages changed with labels in the rehearsal.
        draft: Source text of a half-filled release, for a system that states none.
    """

    simulated: bool = True
    repeatable: bool = True
    predicts: bool = True
    public_ids: bool = False
    encrypted: bool = False
    apart: frozenset[int] = frozenset()
    featureless: frozenset[int] = frozenset()
    told: Mapping[int, frozenset[str]] = field(default_factory=dict)
    architectures: "Mapping[int, Architecture]" = field(default_factory=dict)
    named: Mapping[int, int] = field(default_factory=dict)
    down: Mapping[str, Traffic] = field(default_factory=dict)
    up: Mapping[str, Traffic] = field(default_factory=dict)
    widths: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    paired: frozenset[int] = frozenset()
    coupled: bool = False
    telling: Mapping[int, frozenset[str]] = field(default_factory=dict)
    nameless: Mapping[int, frozenset[str]] = field(default_factory=dict)
    like_groups: frozenset[str] = _NONE
    contradicted: tuple[str, ...] = ()
    not_made: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    control_flow: tuple[str, ...] = ()
    lengths_tell: bool = False
    draft: str = ""

    def without_model(self, clients: Iterable[int]) -> list[int]:
        """Return which of the `clients` have a model that the training does not return."""
        return [] if self.simulated else [client for client in clients if client not in self.architectures]

    def unread(self, clients: Iterable[int], read: Collection[str]) -> tuple[str, ...]:
        """Return the kinds of messages to some `clients` that tell of labels and are none of those that are `read`.

        A kind is not read either where it is not known which records its messages are about.
        """
        kinds: set[str] = set()
        for client in clients:
            kinds |= (self.telling.get(client, _NONE) - set(read)) | self.nameless.get(client, _NONE)
        return tuple(sorted(kinds))

    def told_to(self, clients: Iterable[int] | None = None) -> frozenset[str]:
        """Return the kinds of messages that some `clients`, by default all, are told."""
        return _NONE.union(*(self.told.get(client, _NONE) for client in (self.told if clients is None else clients)))


def downlink_of(told: Collection[str]) -> Downlink:
    """Return what a server answers with that sends these kinds of messages."""
    known: tuple[Downlink, ...] = ("gradient", "losses", "scalar")
    return next((kind for kind in known if kind in told), "other")
