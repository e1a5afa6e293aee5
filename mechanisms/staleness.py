"""How old the server's table is: rounds since the other clients' embeddings of a batch were last refreshed."""

from __future__ import annotations

import numpy as np
import torch

from mechanisms.messages import SERVER, Message

QUANTILES = (0.1, 0.5, 0.9, 0.99)


class StalenessObserver:
    """Counts the age, in rounds, of every row the server reads, in the first replica; needs no change to a method."""

    def __init__(self, records: int, clients: int) -> None:
        self._refreshed = torch.full((clients, records), -1, dtype=torch.int64)
        self._counts: dict[int, int] = {}

    def on_message(self, message: Message) -> None:
        """Note the embeddings of a batch: the sender's rows are fresh, the others' have an age."""
        if message.receiver != SERVER or message.ids is None or message.kind != "embeddings":
            return
        ids = message.ids[0].cpu()
        ids = ids[ids >= 0]
        others = torch.arange(len(self._refreshed)) != message.sender - 1
        ages, counts = torch.unique(message.round - self._refreshed[others][:, ids], return_counts=True)
        for age, count in zip(ages.tolist(), counts.tolist(), strict=True):
            self._counts[age] = self._counts.get(age, 0) + count
        self._refreshed[message.sender - 1, ids] = message.round

    def summary(self) -> dict[str, float] | None:
        """Mean, quantiles and largest age in rounds of the rows read; None where no client's rows are ever stale."""
        if not self._counts:
            return None
        ages = np.array(sorted(self._counts))
        counts = np.array([self._counts[int(age)] for age in ages])
        reached = np.cumsum(counts) / counts.sum()
        quantiles = {f"q{100 * q:g}": int(ages[np.searchsorted(reached, q)]) for q in QUANTILES}
        return {"mean": float((ages * counts).sum() / counts.sum()), **quantiles, "largest": int(ages[-1])}
