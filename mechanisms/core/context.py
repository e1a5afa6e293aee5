"""What a run is given beside its data and configuration, and what an accountant is told of a deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from mechanisms.core.channel import Observer
from mechanisms.core.noise import NoiseOrigin
from mechanisms.core.streams import Batch, Streams


@dataclass(frozen=True)
class Plan:
    """Activation by round, rounds by client, largest participation of a record (None: random), and the noise."""

    active: tuple[int, ...]
    rounds_by_client: tuple[int, ...]
    participations: int | None
    sigma: float


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where and for whom a method runs.

    Attributes:
        seed: Seed of every stream; replica k draws from streams of its own, whatever stack it is in.
        replicas: Numbers of the K replicas.
        device: `cpu` or `cuda`.
        observers: See every message.
        origin: What noise is drawn from; None: the streams of `seed`.
        behaviours: Clients, by number from 1, that do not follow the protocol.
        plan: Schedule and noise of a scalar channel where they are decided already; None: the run decides them.
        noised: Gets the sums without noise (`ScalarChannel.sums`) of a round, (K,), and returns them with noise of its
            own: who plays two worlds at once sees both.
        released: Maps a round's noised scalars (K,) to what goes out instead.
    """

    seed: int
    replicas: Sequence[int] = (0,)
    device: str = "cpu"
    observers: Sequence[Observer] = ()
    origin: NoiseOrigin | None = None
    behaviours: Mapping[int, ClientBehaviour | GradientBehaviour] = field(default_factory=lambda: MappingProxyType({}))
    plan: Plan | None = None
    noised: Callable[[Tensor], Tensor] | None = None
    released: Callable[[Tensor], Tensor] | None = None

    def streams(self, dtype: torch.dtype) -> Streams:
        """Return the arguments of what draws numbers of `dtype` for these replicas."""
        return {"seed": self.seed, "replicas": self.replicas, "dtype": dtype, "device": self.device}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Public facts of a training beside its configuration.

    Attributes:
        records: Training records, D.
        clients: Clients, M.
        seed: Decides who is active when activation is random.
        rounds: Rounds of all clients together; None: those of the configuration's epochs.
        repeats: How many successive own rounds each batch of a client's first pass serves, by client where not 1.
        seeded_noise: Whether the noise can be drawn again by who sees the release (`Release.seeded_noise`).
        data_dependent_side: Whether something else was fitted on the data (`Release.data_dependent_side`).
    """

    records: int
    clients: int
    seed: int = 0
    rounds: int | None = None
    repeats: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    seeded_noise: bool = False
    data_dependent_side: bool = False


def repeats_of(behaviours: Mapping[int, ClientBehaviour | GradientBehaviour]) -> dict[int, int]:
    """Return how many own rounds a batch of the first pass serves, by client that deviates."""
    return {number: behaviour.first_pass_repeats for number, behaviour in behaviours.items()}


@dataclass(frozen=True)
class Turn:
    """What a client knows when it is active: its number, its own round count, its batch and the shape it must send."""

    round: int
    client: int
    own_round: int
    batch: Batch
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


class ClientBehaviour(Protocol):
    """A client that does not do as the method says: a curious client's queries, a canary's embeddings.

    It acts through messages like everybody else: it chooses what it uploads and keeps what comes back.
    """

    @property
    def first_pass_repeats(self) -> int:
        """How many successive own rounds each batch of its first pass serves (1: every round draws a new batch)."""

    def uploads(self, turn: Turn) -> Tensor | None:
        """The two embeddings (K, 2, B, width) to send instead of the model's, or None to follow the protocol."""


class GradientBehaviour(Protocol):
    """A client of a first-order method that steps by something else than the gradient that it computed."""

    @property
    def first_pass_repeats(self) -> int:
        """See `ClientBehaviour.first_pass_repeats`."""

    def own_gradient(self, gradient: Tensor) -> Tensor:
        """What to step by, (K, d), in place of `gradient`, whose storage may be written again after the step."""


Behaviour = ClientBehaviour | GradientBehaviour
