"""Membership as one client can ask about it: which of two records stands behind an id, by its mail of a whole training.

The parties of vertical learning aligned their ids, so a client knows which take part; what it does not know is what
the others hold under one. Both records of a pair have the client's own block here, and differ in the other blocks and
in the label. First-order methods send the client gradients of each record: they point one way for records of one class
(the direction attack of Li et al., ICLR 2022), and where both candidates have one label that label is known. How well
an id's gradients agree with those of a candidate's class stands for the model's confidence in the candidate. Scalar
methods send one number a batch: how small those of an id's batches are stands for it, the same for both candidates, so
that only shadow trainings tell them apart. Where a system serves its client predictions of records, the log-odds of a
candidate's class in these stand for it, and nothing else is read.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpzv_audit.data.vertical import VerticalDataset
from mechanisms.core.channel import SERVER, Message

from ..core.metrics import Floats, Ints
from ..core.predictions import log_odds, log_probabilities

# Share of the reference gradients that a round keeps: they turn as training goes on.
MEMORY = 0.9
# What is larger is cut to it: the numbers of a training that diverges would drown those of all rounds before.
LARGEST = 1e6


def sharing_own_block(pool: VerticalDataset) -> VerticalDataset:
    """Return `pool` whose records 2i + 1 have the block of record 2i at client 1."""
    own, *others = pool.train.features
    block = own.copy()
    block[1::2] = block[::2]
    return replace(pool, train=replace(pool.train, features=(block, *others)))


@dataclass
class MailReader:
    """Reads one client's mail of K trainings as it comes; an observer that sees no other message.

    `candidates` (pairs, 2) are the labels of the two records that may stand behind each id, which the client knows of
    the records that it asks about.
    """

    client: int
    candidates: Ints
    classes: int
    _served: bool = False
    _sum: Tensor | None = None
    _reference: Tensor | None = None

    def on_message(self, message: Message) -> None:
        """Take in an answer of the server to this client."""
        ids = message.ids
        if (message.sender, message.receiver) != (SERVER, self.client) or ids is None:
            return
        payload = message.payload.double()
        predicted = message.kind == "prediction"
        logs = log_probabilities(message.payload, ids >= 0, self.classes) if predicted else None
        if logs is not None:
            if not self._served:
                self._served, self._sum = True, None
            values = log_odds(logs)
        elif self._served:
            return
        elif message.kind == "gradient":
            values = self._agreement(payload, ids)
        else:
            sizes = payload[..., 0] if message.kind == "losses" else payload.abs()
            rows = sizes.reshape(len(sizes), -1)
            # Padding of rows of records is zeros, and no part of the mean.
            share = (ids >= 0).double().mean(1).clamp(min=1e-12) if rows.shape == ids.shape else 1.0
            values = -(rows.mean(1) / share)[:, None, None].expand(*ids.shape, self.classes)
        self._add(ids, values)

    def confidence(self) -> Floats:
        """Return confidence (K, 2 * pairs) in every candidate, in the order of the pool; 0 for ids that never came."""
        if self._sum is None:
            return np.zeros((1, self.candidates.size))
        means = (self._sum[..., :-1] / self._sum[..., -1:].clamp(min=1)).cpu().numpy()
        return np.take_along_axis(means, self.candidates[None], 2).reshape(len(means), -1)

    def _add(self, ids: Tensor, values: Tensor) -> None:
        """Add `values` (K, B, classes) to the ids (K, B); what is not finite, of a diverged model, tells nothing."""
        if self._sum is None:
            self._sum = values.new_zeros(len(ids), len(self.candidates), self.classes + 1)
        valid = values.isfinite().all(2, keepdim=True) & (ids >= 0).unsqueeze(2)  # -1 fills up a short batch
        kept = torch.where(valid, values.clamp(-LARGEST, LARGEST), 0.0)
        # The last place counts.
        counted = torch.cat((kept, valid), 2)
        self._sum.scatter_add_(1, ids.clamp(min=0).unsqueeze(2).expand(counted.shape), counted)

    def _agreement(self, gradients: Tensor, ids: Tensor) -> Tensor:
        """Return cosines (K, B, classes) of gradients (K, B, width) with each class's reference before these."""
        units = normalize(gradients, dim=2, eps=1e-300)
        diverged = ~units.isfinite().all(2, keepdim=True)
        if self._reference is None:
            self._reference = units.new_zeros(len(units), self.classes, units.shape[2])
        cosines: Tensor = units @ normalize(self._reference, dim=2, eps=1e-300).mT
        learnt = units.masked_fill(diverged, 0.0)
        # One-hot labels of ids whose candidates have one label; zeros elsewhere.
        first, second = self.candidates.T
        labels = np.eye(self.classes)[first] * (first == second)[:, None]
        known = torch.from_numpy(labels).to(ids.device)[ids]
        self._reference = MEMORY * self._reference + known.mT @ learnt
        return cosines
