"""Clients that do not do as the method says: what one is told, and what it may do other than train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mechanisms.schedules import Batch


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

    first_pass_repeats: int
    """How many successive own rounds each batch of its first pass serves (1: every round draws a new batch)."""

    def uploads(self, turn: Turn) -> Tensor | None:
        """The two embeddings (K, 2, B, width) to send instead of the model's, or None to follow the protocol."""


class GradientBehaviour(Protocol):
    """A client of a first-order method that steps by something else than the gradient that it computed."""

    first_pass_repeats: int

    def own_gradient(self, gradient: Tensor) -> Tensor:
        """What to step by, (K, d), in place of `gradient`, whose storage may be written again after the step."""


Behaviour = ClientBehaviour | GradientBehaviour
