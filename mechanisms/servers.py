"""The server's side of the loss: a top model on the concatenated embeddings, or a plain sum of the clients' outputs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mechanisms.models import Layout
from mechanisms.replicas import Evaluator, Pullback, Views


class SumServer:
    """Logits are the sum of the clients' outputs ("model without split"): no parameters, nothing to train.

    Inputs of shape (S, n, M * classes) hold the M clients' outputs side by side.
    """

    layout: Layout = ()

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def forward(self, parameters: Views, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return inputs.unflatten(2, (self._clients, -1)).sum(2)

    def forward_with_pullback(self, parameters: Views, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.forward_with_pullback`."""

        def pullback(gradient: Tensor) -> tuple[Tensor, Tensor]:
            return gradient.new_empty(gradient.shape[0], 0), gradient.repeat(1, 1, self._clients)

        return self.forward(parameters, inputs), pullback


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each record, shape (S, n), of `logits` (S, n, classes) and `labels` (S, n)."""
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)


def loss_gradient(logits: Tensor, labels: Tensor, weights: Tensor | None, divisor: int) -> Tensor:
    """Gradient at the logits of the batch loss (sum over records / `divisor`): (softmax - one-hot) / divisor."""
    gradient = torch.softmax(logits, -1)
    gradient.scatter_add_(2, labels.unsqueeze(2), gradient.new_full((1,), -1.0).expand_as(labels).unsqueeze(2))
    gradient.mul_(1.0 / divisor)
    return gradient if weights is None else gradient * weights.unsqueeze(2)


def per_record_gradients(server: Evaluator, parameters: Views, rows: Tensor, labels: Tensor) -> Tensor:
    """Gradient of each record's own loss at the server's parameters, shape (K, B, d_0).

    A record is treated as a stack of its own, so that any evaluator serves; K * B copies of the gradient are held.
    """
    replicas, batch = labels.shape
    repeated = {name: value.repeat_interleave(batch, 0) for name, value in parameters.items()}
    single = rows.flatten(0, 1).unsqueeze(1)
    own = labels.flatten().unsqueeze(1)
    logits, pullback = server.forward_with_pullback(repeated, single)
    gradients, _ = pullback(loss_gradient(logits, own, None, 1))
    return gradients.view(replicas, batch, -1)
