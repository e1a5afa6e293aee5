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
    """Defences of what passes the cuts of a training of the user's own, whose `key` names its draws.

    They see gradients as they travel, which mostly are parts of a batch mean. All in one piece goes to another process.
    """

    defences: tuple[Defence, ...]
    origin: Origin

    @property
    def any(self) -> bool:
        """Return whether any of them stands at a cut."""
        return any(one.place != "labels" for one in self.defences)

    @property
    def facts(self) -> str:
        """Return what tells them from others, without what their draws follow from."""
        return " ".join(one.model_dump_json() for one in self.defences if one.place != "labels")

    def at(self, task: Task, key: int) -> Defend:
        """Return what they make of a gradient of a training on `task`; see `Recorder.defend`."""
        number = 0

        def defend(
            client: int, gradient: Tensor, embeddings: Tensor, ids: "Tensor | NDArray[Any]"
        ) -> tuple[Tensor, Tensor]:
            nonlocal number
            number += 1
            chosen = np.asarray(ids)
            labels = torch.from_numpy(task.labels[chosen])[None].to(gradient.device)
            rows = gradient.detach().flatten(1)[None].double()
            for place, one in enumerate(self.defences):
                if one.place == "gradient":
                    draws = Draws(self.origin, 0, (key,), place, number=number)
                    rows = one.on_gradients(rows, labels, torch.ones_like(labels, dtype=torch.bool), draws)
            sent = rows[0].to(gradient.dtype).reshape(gradient.shape)
            features = torch.from_numpy(task.features[client - 1][chosen])[None].to(gradient.device)
            given = embeddings.flatten(1)[None]
            pulled = penalised(sent.flatten(1)[None], self.defences, features, given.to(sent.dtype))
            return sent, pulled[0].reshape(gradient.shape)

        return defend
