"""Defences of the tool's at the cuts of a training of the user's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mechanisms.core.defence import Defence, Draws, penalised
from mechanisms.core.secret import Origin

from .record import Defend
from .task import Task


@dataclass(frozen=True)
class CutDefences:
    """Defences at the cuts of a training of the user's own, whose `key` names its draws.

    They see gradients as they travel, which mostly are parts of a batch mean. The object goes whole to other processes.
    """

    defences: tuple[Defence, ...]
    origin: Origin

    @property
    def any(self) -> bool:
        """Return whether any of them stands at a cut."""
        return bool(self.facts)

    @property
    def facts(self) -> str:
        """Return the settings that identify them, without the origin of their draws."""
        return " ".join(defence.model_dump_json() for defence in self.defences if defence.place != "labels")

    def at(self, task: Task, key: int) -> Defend:
        """Return the function that they apply to each gradient of a training on `task`; see `Recorder.defend`."""
        number = 0

        def defend(
            client: int, gradient: Tensor, embeddings: Tensor, ids: "Tensor | NDArray[Any]"
        ) -> tuple[Tensor, Tensor]:
            nonlocal number
            number += 1
            chosen = np.asarray(ids)
            labels = torch.from_numpy(task.labels[chosen])[None].to(gradient.device)
            rows = gradient.detach().flatten(1)[None].double()
            for place, defence in enumerate(self.defences):
                if defence.place == "gradient":
                    draws = Draws(self.origin, 0, (key,), place, number=number)
                    rows = defence.on_gradients(rows, labels, torch.ones_like(labels, dtype=torch.bool), draws)
            rows = rows.to(gradient.dtype)
            features = torch.from_numpy(task.features[client - 1][chosen])[None].to(gradient.device)
            pulled = penalised(rows, self.defences, features, embeddings.flatten(1)[None].to(rows.dtype))
            return rows[0].reshape(gradient.shape), pulled[0].reshape(gradient.shape)

        return defend
