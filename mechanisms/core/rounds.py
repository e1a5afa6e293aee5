"""The verbs of a round, in the order of paper 001's algorithm 1: whose turn it is, what goes up, what comes down.

A method's `step` says them one after the other. A client that deviates from the protocol is handled in them: what it
sends takes the place of what it should send, and it steps by an answer as it likes.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose

from .channel import SERVER, Message
from .config import AsyncConfig, Bits, Downlink
from .context import RunContext, TrainingData, repeats_of
from .federation import Federation
from .replicas import ParameterStack, ServerBatch
from .streams import Batch, DirectionKind, Directions


class ZerothOrderParty:
    """One party's K models, moved and stepped along a direction in each of its rounds.

    With `count` above 1 the estimates scalar * direction of so many successive rounds are averaged into one step; what
    is averaged so far is `total`, (K, d), empty where every estimate is a step.
    """

    def __init__(self, federation: Federation, number: int, kind: DirectionKind, *, count: int = 1) -> None:
        purpose = Purpose.SERVER_DIRECTIONS if number == SERVER else Purpose.DIRECTIONS
        self._optimizer = federation.optimizers[number]
        self.parameters = self._optimizer.parameters
        flat = self.parameters.flat
        self.directions = Directions(kind, flat.shape[1], federation.streams, party=number, purpose=purpose)
        self._count = count
        self.total = torch.zeros_like(flat) if count > 1 else flat.new_empty(0)

    @cached_property
    def _both(self) -> tuple[ParameterStack, Sequence[Tensor]]:
        """Return storage for the 2K moved models, used again every round, and its two halves (K, d)."""
        both = self.parameters.empty(2 * len(self.parameters.flat))
        return both, both.flat.unflatten(0, (-1, 2)).unbind(1)

    def moved(self, round_: int, first: float, second: float) -> ParameterStack:
        """Return the 2K models w_k + `first` u_k and w_k + `second` u_k in turn, u_k the directions of `round_`."""
        both, halves = self._both
        for start, stop, direction in self.directions.parts(round_):
            for half, scale in zip(halves, (first, second), strict=True):
                here = slice(start, stop)
                torch.add(self.parameters.flat[:, here], direction, alpha=scale, out=half[:, here])
        return both

    def step(self, round_: int, scalar: Tensor) -> None:
        """Step along the direction of `round_` by `scalar` (K,), or every `count` rounds by the mean of so many."""
        for start, stop, direction in self.directions.parts(round_):
            if self._count == 1:
                self._optimizer.step_along(direction, scalar, slice(start, stop))
            else:
                self.total[:, start:stop].addcmul_(direction, scalar.unsqueeze(1), value=1.0 / self._count)
        if self._count == 1:
            return
        if (round_ + 1) % self._count == 0:
            self._optimizer.step(self.total)
            self.total.zero_()


class Turn(NamedTuple):
    """The clients that are active in a round, by number, and the batch that they all work on.

    `own_round` is the number of this round among those of the client that drew the batch. `honest` clients send what
    the protocol says; `deviating` holds what the others send in place of their embeddings, (K, 2, B, width) each.
    """

    clients: Sequence[int]
    honest: Sequence[int]
    own_round: int
    batch: Batch
    deviating: Mapping[int, Tensor]


A = TypeVar("A", bound=AsyncConfig)


class AsyncRun(Generic[A]):
    """One stack of K trainings in progress, clients in the order of `active`; see `core.method.Run`.

    `parties` are those that step along directions, by number; a client that does notes its direction for itself.
    """

    def __init__(self, data: TrainingData, config: A, context: RunContext, active: Iterator[int]) -> None:
        self.config = config
        self.federation = Federation(data, config, context)
        self.parties: Mapping[int, ZerothOrderParty] = {}
        self._repeats = repeats_of(context.behaviours)
        self._active = active
        self.round = 0

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        return {}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.round = rounds
        for _ in range(rounds):
            next(self._active)

    def next_turn(self) -> Turn:
        """Begin the next round: return who is active, and the batch.

        In synchronous methods all clients work on one batch, which client 1 draws.
        """
        fed = self.federation
        fed.begin(self.round)
        numbers = fed.numbers if self.config.all_at_once else (next(self._active),)
        drawer = fed.clients[numbers[0] - 1]
        own_round = drawer.rounds
        repeats = max([self._repeats.get(m, 1) for m in numbers]) if self._repeats else 1
        batch = drawer.next_batch(repeats, fed.steps_per_pass)
        for other in numbers[1:]:
            fed.clients[other - 1].rounds += 1
        deviating = fed.deviations(numbers, self.round, own_round, batch) if self.parties else {}
        honest = [number for number in numbers if number not in deviating] if deviating else numbers
        for number in honest:
            if number in self.parties:
                direction = partial(self.parties[number].directions.at, own_round)
                fed.channel.note(number, self.round, "direction", direction)
        return Turn(numbers, honest, own_round, batch, deviating)

    def embed_both_ways(self, turn: Turn, first: float, second: float) -> dict[int, Tensor]:
        """Return embeddings of the batch at w + `first` u and w + `second` u by client, (K, 2, B, width) each."""
        pairs = {}
        for number in turn.honest:
            models = self.parties[number].moved(turn.own_round, first, second)
            pairs[number] = self.federation.embed_pair(number, turn.batch, models)
        return pairs

    def send_up(self, turn: Turn, embeddings: Mapping[int, Tensor], bits: Bits | None = None) -> dict[int, Tensor]:
        """Send embeddings by client, in `bits` a value where that is set; return what the server receives."""
        upload = self.federation.upload
        sent = {**embeddings, **turn.deviating}
        return {m: upload(m, self.round, turn.batch, rows, bits) for m, rows in sorted(sent.items())}

    def server_batch(self, batch: Batch, received: Mapping[int, Tensor]) -> ServerBatch:
        """Return what the server steps by: rows of what it `received` from all clients, or of its table."""
        fed = self.federation
        if not self.config.keeps_table:
            return fed.server_batch(torch.cat([received[m] for m in sorted(received)], 2), batch)
        ((number, embeddings),) = received.items()
        return fed.server_batch(fed.refresh(number, batch, embeddings), batch)

    def send_down(
        self, turn: Turn, kind: Downlink, answers: Mapping[int, Tensor], bits: int | None = None
    ) -> dict[int, Tensor]:
        """Send answers by client, each of so many `bits` where it is compressed; return what honest clients receive.

        An answer of rows (K, B, n) has none for places where no record is.
        """
        received = {}
        for number, answer in answers.items():
            sizes = turn.batch.sizes if answer.dim() == 3 else None
            message = Message(self.round, SERVER, number, kind, answer, turn.batch.members, bits, sizes)
            received[number] = self.federation.channel.send(message)
        return {number: received[number] for number in turn.honest}
