"""The rounds of central zeroth-order training; `dpzo` has its settings and what it releases."""

import torch
from torch import Tensor

from ..core.streams import Batch
from .dpzv_run import DPZVRun


class DPZORun(DPZVRun):
    """Central zeroth-order training: DPZV's round with all parts of the model active."""

    def _received(self, batch: Batch, pairs: dict[int, Tensor]) -> tuple[Tensor, Tensor, slice]:
        """Return rows (K, B, n) in which nothing is kept, the pair of all parts together, and its place in the rows."""
        fed = self.federation
        parts = [pairs[number] for number in sorted(pairs)]
        if self.config.top_model:
            pair = torch.cat(parts, 3)
            return pair[:, 0], pair, slice(0, pair.shape[3])
        # Without layers of its own the server sums what the parts send.
        pair = torch.stack(parts).sum(0)
        nothing = pair.new_zeros(*batch.ids.shape, len(fed.clients) * fed.width)
        return nothing, pair, fed.slots[0]
