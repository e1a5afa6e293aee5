"""Records as the parties of a run hold them: on the device, in its precision, shared by the replicas of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.data.vertical import VerticalDataset
from mechanisms.core.channel import Ledger
from mechanisms.core.config import TrainingConfig
from mechanisms.core.replicas import ParameterStack
from mechanisms.core.streams import Batch


@dataclass(frozen=True)
class TrainingData:
    """Records on the device: a feature block a client and labels, (N,) for all replicas or (K, N) by replica."""

    features: tuple[Tensor, ...]
    labels: Tensor
    test_features: tuple[Tensor, ...]
    test_labels: Tensor
    classes: int
    vocabulary: int | None = None
    """Number of token ids where the features are such, else None."""
    selection: Tensor | None = None
    """(K, N): which row of `features` each replica trains on as its record i (shadow models); None: row i."""

    @property
    def records(self) -> int:
        """Number N of records that a replica trains on."""
        return self.features[0].shape[0] if self.selection is None else self.selection.shape[1]

    @classmethod
    def of(
        cls, dataset: VerticalDataset, *, dtype: torch.dtype, device: str, labels: np.ndarray | None = None
    ) -> TrainingData:
        """Copy `dataset` to `device`; `labels` (N,) or (K, N) replace the training labels (label games, controls)."""

        def blocks(source: tuple[np.ndarray, ...]) -> tuple[Tensor, ...]:
            # Token ids stay integers.
            return tuple(
                torch.from_numpy(block).to(device=device, dtype=dtype if block.dtype.kind == "f" else None)
                for block in source
            )

        train = dataset.train.labels if labels is None else labels
        return cls(
            blocks(dataset.train.features),
            torch.from_numpy(np.ascontiguousarray(train)).to(device),
            blocks(dataset.test.features),
            torch.from_numpy(dataset.test.labels).to(device),
            dataset.classes,
            getattr(dataset, "vocabulary", None),
        )

    def of_replicas(self, first: int, last: int) -> TrainingData:
        """What the replicas at places `first` to `last` of a stack train on."""
        labels = self.labels if self.labels.dim() == 1 else self.labels[first:last]
        selection = None if self.selection is None else self.selection[first:last]
        return replace(self, labels=labels, selection=selection)

    def batch_labels(self, batch: Batch) -> Tensor:
        """Labels (K, B) of `batch`."""
        if self.labels.dim() == 1:
            return self.labels.index_select(0, batch.flat).view(batch.ids.shape)
        return self.labels.gather(1, batch.ids)


def dtype_of(config: TrainingConfig) -> torch.dtype:
    """Precision of the simulation as torch names it."""
    return torch.float64 if config.dtype == "float64" else torch.float32


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
