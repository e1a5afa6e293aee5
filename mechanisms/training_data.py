"""Records as the parties of a run hold them: on the device, in its precision, shared by the replicas of a stack."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.data.vertical import VerticalDataset
from mechanisms.config import TrainingConfig
from mechanisms.schedules import Batch


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
