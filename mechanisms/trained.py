"""What K trainings gave, as one stack: models, test accuracy, costs, and the facts that an accountant needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from mechanisms.messages import Ledger
from mechanisms.parameters import ParameterStack


@dataclass(frozen=True)
class TrainedStack:
    """What K trainings gave: models, accuracy, costs and the facts an accountant needs.

    `correct` says which test records are classified right, booleans (K, n), and `loss` is the mean test loss (K,).
    """

    clients: tuple[ParameterStack, ...]
    server: ParameterStack
    correct: np.ndarray
    loss: np.ndarray
    ledger: Ledger
    rounds: int
    rounds_by_client: tuple[int, ...]
    history: tuple[tuple[int, float, float], ...] = field(default=())
    """(epoch, mean test accuracy, mean test loss) where evaluation by epoch was asked for."""
    traffic: tuple[tuple[int, int], ...] = field(default=())
    """Bytes (up, down) sent by the end of each epoch of `history`, the table's filling included."""

    @property
    def accuracy(self) -> np.ndarray:
        """Test accuracy of each replica, (K,)."""
        return np.asarray(self.correct.mean(1))

    @classmethod
    def joined(cls, parts: Sequence[TrainedStack]) -> TrainedStack:
        """One stack of the replicas of several, in their order; what `history` says is the mean over all of them."""
        sizes = [len(part.correct) for part in parts]

        def together(stacks: Sequence[ParameterStack]) -> ParameterStack:
            return ParameterStack(torch.cat([stack.flat for stack in stacks]), stacks[0].layout)

        def means(stacks: Iterable[Sequence[tuple[float, ...]]]) -> list[list[float]]:
            same_epochs = zip(*stacks, strict=True)
            return [np.average(rows, axis=0, weights=sizes).tolist() for rows in same_epochs]

        if len(parts) == 1:
            return parts[0]
        records, sent = means(part.history for part in parts), means(part.traffic for part in parts)
        return replace(
            parts[0],
            clients=tuple(together(same) for same in zip(*(part.clients for part in parts), strict=True)),
            server=together([part.server for part in parts]),
            correct=np.concatenate([part.correct for part in parts]),
            loss=np.concatenate([part.loss for part in parts]),
            ledger=Ledger.joined([part.ledger for part in parts]),
            history=tuple((round(epoch), accuracy, loss) for epoch, accuracy, loss in records),
            traffic=tuple((round(up), round(down)) for up, down in sent),
        )

    def on_cpu(self) -> TrainedStack:
        """The same with its models in the machine's memory: room on the device for the next stack."""

        def moved(stack: ParameterStack) -> ParameterStack:
            return ParameterStack(stack.flat.cpu(), stack.layout)

        return replace(self, clients=tuple(map(moved, self.clients)), server=moved(self.server))
