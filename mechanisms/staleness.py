"""How old the server's table is: rounds since the other clients' embeddings of a batch were last refreshed."""

from __future__ import annotations

import torch
from torch import Tensor

from dpzv_audit.results import Ages, Staleness
from mechanisms.messages import SERVER, Message

QUANTILES = (0.1, 0.5, 0.9, 0.99)


class StalenessObserver:
    """Counts the age, in rounds, of every row the server reads, in the first replica; needs no change to a method.

    `rounds` is the number of rounds of the run, which no age exceeds.
    """

    def __init__(self, records: int, clients: int, rounds: int) -> None:
        self._refreshed = torch.full((clients, records), -1, dtype=torch.int64)
        self._counts = torch.zeros(clients, rounds + 1, dtype=torch.int64)
        self._round = -1
        self._ids = torch.empty(0, dtype=torch.int64)
        self._senders: list[int] = []

    def own_tensors(self) -> dict[str, Tensor]:
        """State that a checkpoint of the run must hold, changed in place."""
        self._settle()
        return {"staleness-refreshed": self._refreshed, "staleness-counts": self._counts}

    def on_message(self, message: Message) -> None:
        """Note the embeddings of a batch: the rows of who sent any in this round are fresh, the others' have an age."""
        if message.receiver != SERVER or message.ids is None or message.kind != "embeddings":
            return
        if message.round != self._round:
            self._settle()
        ids = message.ids[0].cpu()
        self._round, self._ids = message.round, ids[ids >= 0]
        self._senders.append(message.sender - 1)

    def _settle(self) -> None:
        """Count the round that is over: the server reads its batch once all who take part have sent."""
        if not self._senders:
            return
        absent = [m for m in range(len(self._refreshed)) if m not in self._senders]
        others = torch.tensor(absent, dtype=torch.int64)
        ages = self._round - self._refreshed[others][:, self._ids]
        places = (others.unsqueeze(1) * self._counts.shape[1] + ages).flatten()
        self._counts.view(-1).index_add_(0, places, torch.ones_like(places))
        for sender in self._senders:
            self._refreshed[sender, self._ids] = self._round
        self._senders = []

    def summary(self) -> Staleness | None:
        """Ages in rounds of the rows read: mean, quantiles, largest, shares by age, and the mean by client.

        `distribution` has the share of each range of ages: 1, 2 to 3, 4 to 7, 8 to 15, ... up to the
        largest. None where no client's rows are ever stale.
        """
        self._settle()
        counts = self._counts.sum(0)
        total = int(counts.sum())
        if total == 0:
            return None
        ages = torch.arange(len(counts))
        reached = counts.cumsum(0)
        quantiles = {f"q{100 * q:g}": int(torch.searchsorted(reached, q * total)) for q in QUANTILES}
        largest = int(counts.nonzero().max())
        ranges = [(2**k, 2 ** (k + 1) - 1) for k in range(largest.bit_length())]
        shares = [(low, high, int(counts[low : high + 1].sum()) / total) for low, high in ranges]
        return Staleness(
            mean=float((ages * counts).sum() / total),
            **quantiles,
            largest=largest,
            distribution=[Ages(first=low, last=min(high, largest), share=share) for low, high, share in shares],
            mean_by_client={
                f"client {m}": float((ages * row).sum() / row.sum())
                for m, row in enumerate(self._counts, start=1)
                if row.any()
            },
        )
