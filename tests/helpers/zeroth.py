"""Systems of zeroth order: a server sums clients' logits and answers with numbers, by which clients step."""

from dataclasses import dataclass

import torch
from torch import nn

STEP = 0.01


def _sign(first, second):
    return torch.sign(first - second)


@dataclass(frozen=True)
class ZerothOrder:
    """`train(task, record, seed)`: each client in turn sends two embeddings of the batch and steps by the answer.

    Attributes:
        answer: Makes the number of the losses at h(w + step u) and at h(w - step u).
        kind: Kind of the answers: `scalar`, or `losses` of both.
        plus_first: Whether h(w + step u) is sent before h(w - step u).
        pair: Whether both are recorded.
    """

    answer: object = _sign
    kind: str = "scalar"
    plus_first: bool = True
    pair: bool = True
    epochs: int = 20
    batch: int = 64
    rate: float = 0.02

    def __call__(self, task, record, seed):
        x, y = task.torch()
        bottoms = [nn.Linear(block.shape[1], task.classes) for block in x]
        loss = nn.CrossEntropyLoss()
        batches = [ids for _ in range(self.epochs) for ids in torch.randperm(len(y)).split(self.batch)]
        with torch.no_grad():
            for number, ids in enumerate(batches):
                for m, bottom in enumerate(bottoms, 1):
                    own = x[m - 1][ids]
                    others = sum(b(block[ids]) for b, block in zip(bottoms, x, strict=True)) - bottom(own)
                    u = [torch.randn_like(weights) for weights in bottom.parameters()]
                    plus, minus = (_moved(bottom, u, side * STEP, own) for side in (1.0, -1.0))
                    for h in ([plus, minus] if self.plus_first else [minus, plus])[: 2 if self.pair else 1]:
                        record.sent(number, m, 0, "embeddings", h, ids)
                    losses = [loss(others + h, y[ids]) for h in (plus, minus)]
                    s = self.answer(*losses)
                    sent = losses if self.plus_first else losses[::-1]
                    record.sent(number, 0, m, self.kind, s if self.kind == "scalar" else torch.stack(sent))
                    for weights, along in zip(bottom.parameters(), u, strict=True):
                        weights -= self.rate * s * along


def _moved(model, along, step, rows):
    """Return the outputs of `model` whose parameters went a `step` along, and put them back."""
    for weights, direction in zip(model.parameters(), along, strict=True):
        weights += step * direction
    outputs = model(rows)
    for weights, direction in zip(model.parameters(), along, strict=True):
        weights -= step * direction
    return outputs
