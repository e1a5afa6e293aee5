"""What the runs of all baselines share: the parties, whose turn it is, and noise on the protected channel."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor

from mechanisms.calibration import calibrated
from mechanisms.config import ProtectedConfig
from mechanisms.context import RunContext
from mechanisms.federation import Federation
from mechanisms.plan import active_clients
from mechanisms.protection import ChannelNoise
from mechanisms.training_data import TrainingData

P = TypeVar("P", bound=ProtectedConfig)


class BaselineRun(Generic[P]):
    """One stack of K trainings in progress, a round at a time, with noise calibrated; see `mechanisms.method.Run`."""

    def __init__(self, data: TrainingData, config: P, context: RunContext) -> None:
        clients = len(data.features)
        self.config = calibrated(config, records=data.records, clients=clients, seed=context.seed)
        self.federation = Federation(data, self.config, context)
        self._active = active_clients(config, clients, context.seed)
        self._noise = ChannelNoise(self.config, context)
        self.round = 0

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.method.Run.own_tensors`."""
        return {"noise-draws": self._noise.draws}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.method.Run.skip_to`."""
        self.round = rounds
        for _ in range(rounds):
            next(self._active)
