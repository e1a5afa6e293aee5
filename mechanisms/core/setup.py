"""What is trained: a method as configured, on a data set. It needs no torch until its data are asked for."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpzv_audit.data.vertical import VerticalDataset

from .config import TrainingConfig, rounds_of
from .context import Deployment, TrainingData, dtype_of
from .method import MethodSpec


@dataclass(frozen=True, kw_only=True)
class Training:
    """A method as configured, on a data set, from a seed and on a device."""

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset
    seed: int = 0
    device: str = "cpu"

    @property
    def records(self) -> int:
        """Return the number of training records."""
        return len(self.dataset.train)

    @property
    def rounds(self) -> int:
        """Return the rounds of the training."""
        return rounds_of(self.config, self.records)

    def deployment(self, **more: Any) -> Deployment:
        """Return the public facts of the training, with `more` of them."""
        return Deployment(
            records=self.records,
            clients=self.dataset.clients,
            seed=self.seed,
            data_dependent_side=bool(self.dataset.fitted),
            **more,
        )

    def data(self, labels: np.ndarray | None = None) -> TrainingData:
        """Return the data as trainings take them, with `labels` (N,) or (K, N) in the place of the true ones."""
        return TrainingData.of(self.dataset, dtype=dtype_of(self.config), device=self.device, labels=labels)
