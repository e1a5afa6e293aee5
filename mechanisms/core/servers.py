"""The server's side of the loss: a top model on the concatenated embeddings, or a plain sum of the clients' outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mechanisms.core.config import TrainingConfig
from mechanisms.core.grid import Grid, truncated_steps
from mechanisms.core.models import Architecture, Layout
from mechanisms.core.parameters import ParameterStack
from mechanisms.core.replicas import Evaluator, FusedMLP, Pullback, evaluator_for

_FORMED_BITS = 24


class Server:
    """Maps rows (S, n, M * width) of the clients' embeddings side by side to logits; an `Evaluator`.

    With an `evaluator` by a top model, otherwise as the sum of the clients' outputs ("model without split"): no
    parameters, nothing to train. With `softmax` its outputs are probabilities, on which the losses below take a second
    softmax: the public code of paper 003 computes its loss on MNIST that way; the paper does not.
    """

    def __init__(self, evaluator: Evaluator | None, *, clients: int = 1, softmax: bool = False) -> None:
        self.layout: Layout = () if evaluator is None else evaluator.layout
        self._evaluator = evaluator
        self._clients = clients
        self._softmax = softmax

    @property
    def fused(self) -> FusedMLP | None:
        """Its evaluator where that is a fused MLP, whose per-record gradients need not be formed."""
        return self._evaluator if isinstance(self._evaluator, FusedMLP) and not self._softmax else None

    def _logits(self, parameters: ParameterStack, rows: Tensor) -> Tensor:
        if self._evaluator is not None:
            return self._evaluator.forward(parameters, rows)
        summed: Tensor = rows.unflatten(2, (self._clients, -1)).sum(2)
        return summed

    def _outputs(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 2) if self._softmax else logits

    def forward(self, parameters: ParameterStack, inputs: Tensor) -> Tensor:
        """See `Evaluator.forward`."""
        return self._outputs(self._logits(parameters, inputs))

    def forward_with_pullback(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        """See `Evaluator.forward_with_pullback`."""
        logits, inner = self._logits_with_pullback(parameters, inputs)
        if not self._softmax:
            return logits, inner
        outputs = self._outputs(logits)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> tuple[Tensor, Tensor]:
            centred = gradient - (gradient * outputs).sum(2, keepdim=True)
            return inner(outputs * centred, at_inputs=at_inputs)

        return outputs, pullback

    def _logits_with_pullback(self, parameters: ParameterStack, inputs: Tensor) -> tuple[Tensor, Pullback]:
        if self._evaluator is not None:
            return self._evaluator.forward_with_pullback(parameters, inputs)

        def pullback(gradient: Tensor, at_inputs: bool = True) -> tuple[Tensor, Tensor]:
            return gradient.new_empty(gradient.shape[0], 0), gradient.repeat(1, 1, self._clients)

        return self._logits(parameters, inputs), pullback

    def pair_logits(self, parameters: ParameterStack, rows: Tensor, uploads: Tensor, slot: slice) -> Tensor:
        """Logits (K, 2B, classes) of `rows` (K, B, M * width) with `slot` replaced by either of `uploads`.

        `uploads` (K, 2, B, width) are evaluated one after the other: first the B rows of h+, then those of h-. Both
        evaluations share the parameters, so they go as one batch of 2B rows; of a sum, what others add is summed once.
        """
        if self._evaluator is None:
            others = self._logits(parameters, rows).sub_(rows[..., slot])
            return self._outputs((others.unsqueeze(1) + uploads).flatten(1, 2))
        pair = torch.cat((rows, rows), 1)
        pair.unflatten(1, (2, -1))[..., slot] = uploads
        return self.forward(parameters, pair)

    def moved_logits(
        self, parameters: ParameterStack, rows: Tensor, shifts: Tensor, slot: slice, scale: float
    ) -> Tensor:
        """Logits (K, (q + 1) B, classes) of `rows` (K, B, M * width), then of them with `slot` moved by each shift.

        `shifts` (K, q, B, width) are scaled by `scale`; all go through the server in one batched product.
        """
        if self._evaluator is None:
            base = self._logits(parameters, rows).unsqueeze(1)
            return self._outputs(torch.cat((base, torch.add(base, shifts, alpha=scale)), 1).flatten(1, 2))
        if isinstance(self._evaluator, FusedMLP):
            return self._outputs(self._evaluator.forward_moved(parameters, rows, shifts, slot, scale))
        stacked = rows.unsqueeze(1).repeat(1, shifts.shape[1] + 1, 1, 1)
        stacked[:, 1:, :, slot].add_(shifts, alpha=scale)
        return self.forward(parameters, stacked.flatten(1, 2))


def server_of(model: Architecture | None, config: TrainingConfig, *, clients: int, stack: int, device: str) -> Server:
    """The server that evaluates `model`, or sums where it is None, for stacks of about `stack` replicas."""
    evaluator = None if model is None else evaluator_for(model, stack=stack, device=device)
    return Server(evaluator, clients=clients, softmax=config.softmax_outputs)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each record, shape (S, n), of `logits` (S, n, classes) and `labels` (S, n).

    Softmax runs over classes as the second axis, where torch's kernel is vectorised along the records (ten times faster
    than over ten last entries).
    """
    scores = torch.log_softmax(logits.transpose(1, 2), 1)
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1).neg_()


def loss_differences(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the first B rows less that of the last B, shape (K, B).

    `logits` (K, 2B, classes) hold two evaluations of a batch with `labels` (K, B).
    """
    first, second = torch.log_softmax(logits.transpose(1, 2), 1).chunk(2, 2)
    gap = second - first
    return gap.gather(1, labels.unsqueeze(1)).squeeze(1)


def loss_gradient(logits: Tensor, labels: Tensor, weights: Tensor | None, divisor: int) -> Tensor:
    """Gradient at the logits of the batch loss (sum over records / `divisor`): (softmax - one-hot) / divisor."""
    gradient = torch.softmax(logits.transpose(1, 2), 1)
    gradient.scatter_(1, labels.unsqueeze(1), -1.0, reduce="add")
    gradient.mul_(1.0 / divisor)
    if weights is not None:
        gradient *= weights.unsqueeze(1)
    return gradient.transpose(1, 2)


def per_record_gradients(server: Evaluator, parameters: ParameterStack, rows: Tensor, labels: Tensor) -> Tensor:
    """Gradient of each record's own loss at the server's parameters, shape (K, B, d_0).

    A record is treated as a stack of its own, so that any evaluator serves; K * B copies of the gradient are held.
    """
    replicas, batch = labels.shape
    repeated = ParameterStack(parameters.flat.repeat_interleave(batch, 0), parameters.layout)
    single = rows.flatten(0, 1).unsqueeze(1)
    own = labels.flatten().unsqueeze(1)
    logits, pullback = server.forward_with_pullback(repeated, single)
    gradients, _ = pullback(loss_gradient(logits, own, None, 1), at_inputs=False)
    return gradients.view(replicas, batch, -1)


def clipped_gradient_sum(
    server: Server, parameters: ParameterStack, rows: Tensor, labels: Tensor, clip: float, weights: Tensor | None
) -> Tensor:
    """Sum over records of `per_record_gradients`, each clipped to L2 norm `clip`; shape (K, d_0).

    `weights` (K, B) say which records count. A gradient that is no number, or too large to be one, counts as 0:
    embeddings sent to overflow must not reach w_0, where the label may decide whether they do.
    """
    if server.fused is not None:
        return server.fused.clipped_gradient_sum(parameters, rows, _own_gradients(labels), clip, weights)
    gradients = per_record_gradients(server, parameters, rows, labels)
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=2, keepdim=True)
    clipped = (gradients * (clip / norms.clamp(min=clip))).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return (clipped if weights is None else clipped * weights.unsqueeze(2)).sum(1)


def clipped_gradient_steps(
    server: Server,
    parameters: ParameterStack,
    rows: Tensor,
    labels: Tensor,
    grid: Grid,
    weights: Tensor | None,
    noise: Tensor | None = None,
) -> Tensor:
    """Return `clipped_gradient_sum` with each record's clipped gradient in whole steps of `grid`, (K, d_0) in float64.

    One record's part has a norm of at most 2^bits steps, whatever the server's model is. It is added to `noise` in
    place where that is given, (K, d_0) whole numbers in float64.
    """
    total = parameters.flat.new_zeros(parameters.flat.shape, dtype=torch.float64) if noise is None else noise
    if server.fused is not None:
        server.fused.add_clipped_gradient_steps(parameters, rows, _own_gradients(labels), grid, weights, total)
        return total
    gradients = per_record_gradients(server, parameters, rows, labels)
    # Squares of more steps than that would not be exact; a coarser grid is part of the finer one.
    coarse = Grid(grid.clip, min(grid.bits, _FORMED_BITS))
    for place, own in enumerate(gradients.unbind(1)):
        steps = truncated_steps(own, coarse, (1,)).mul_(2.0 ** (grid.bits - coarse.bits))
        total += steps if weights is None else steps * weights[:, place, None]
    return total


def _own_gradients(labels: Tensor) -> Callable[[Tensor], Tensor]:
    """The map from logits to each record's own gradient there."""
    return lambda logits: loss_gradient(logits, labels, None, 1)
