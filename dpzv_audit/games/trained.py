"""Trials of a game that are real trainings of a method on data, without a game of their own in `real.py`."""

from dataclasses import dataclass
from typing import Any

import torch

from mechanisms.core.method import MethodSpec

from ..data.vertical import VerticalDataset


@dataclass(frozen=True)
class TrainedTrials:
    """Trials that train a `method` with `config` on `dataset` (see `dpzv_audit.games.engine.Trials`)."""

    method: MethodSpec
    config: Any
    dataset: VerticalDataset
    seed: int = 0
    device: str = "cpu"

    def facts_of(self, kind: str, **more: object) -> dict[str, object]:
        """Return the facts of trials of a kind, and `more`; see `Trials.facts`."""
        return {
            "trials": kind,
            "method": self.method.name,
            **more,
            "config": self.config.model_dump(mode="json"),
            "data": self.dataset.fingerprint,
            "seed": self.seed,
            "device": self.device,
            "threads": torch.get_num_threads(),
        }
