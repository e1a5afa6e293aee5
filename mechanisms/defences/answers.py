"""A client that checks answers: gradients that its own embeddings predict tell of no label, so it does not follow them.

The gradient of a loss at an embedding depends on the record's label, which the embedding does not hold: of two records
with one embedding and two labels it points two ways. A server that trains a client towards a space of its own (feature
space hijacking: Pasquini, Ateniese and Bernaschi, CCS 2021) sends gradients that are functions of the embeddings alone.
Gradients as a client's sign of such a server, with labels: Erdogan, Kupcu and Cicek, WPES 2022 (SplitGuard); Fu et al.,
"Focusing on Pinocchio's nose", NDSS 2023. Here the client has no labels.

Nothing is promised: a server that mixes both kinds of gradients is followed as long as labels have a good part in them.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core.defence import Defence, DefenceSpec

# Ridge penalty per record on standardised embeddings.
_PENALTY = 1e-3


class AnswerCheck(Defence):
    """Sets gradients of a batch to 0 that are predicted by the client's embeddings of that batch."""

    place = "embedding"

    name: Literal["answer-check"] = "answer-check"
    most: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the gradients' squares that embeddings may predict: beyond it the client takes no step."""

    def on_answers(self, embeddings: Tensor, gradient: Tensor) -> Tensor:
        """See `Defence.on_answers`."""
        followed = predicted_share(embeddings, gradient) <= self.most
        return gradient * followed[:, None, None]


def predicted_share(embeddings: Tensor, gradient: Tensor) -> Tensor:
    """Return which share (K,) of the squares of gradients (K, B, width) the embeddings (K, B, width) predict.

    Each record's gradient is predicted by a linear regression on the other records of the batch (leave-one-out, in
    closed form). The share is below 0 where the prediction is worse than none, and 0 where a batch has no more than
    twice as many records as the regression has numbers, or no gradient.
    """
    rows, target = embeddings.double(), gradient.double()
    records, width = rows.shape[1:]
    if records <= 2 * (width + 1):
        return rows.new_zeros(len(rows))
    about = rows - rows.mean(1, keepdim=True)
    about = about / about.std(1, keepdim=True).clamp(min=1e-12)
    inputs = torch.cat((torch.ones_like(about[:, :, :1]), about), 2)
    penalty = _PENALTY * records * torch.eye(width + 1, dtype=inputs.dtype, device=inputs.device)
    hat = inputs @ torch.linalg.solve(inputs.mT @ inputs + penalty, inputs.mT)
    left = (target - hat @ target) / (1.0 - hat.diagonal(dim1=1, dim2=2).unsqueeze(2)).clamp(min=1e-6)
    squares = target.square().sum((1, 2))
    share = 1.0 - left.square().sum((1, 2)) / squares.clamp(min=1e-300)
    return torch.where(squares > 0.0, share, 0.0)


SPEC = DefenceSpec(
    name="answer-check",
    summary="each client ignores gradients that its own embeddings predict: they tell of no label (against hijacking)",
    source="ours, after SplitGuard (Erdogan et al., WPES 2022) and Fu et al. (NDSS 2023)",
    settings=AnswerCheck,
)
