"""A head on frozen embeddings, trained from few labels in the MixMatch way (Berthelot et al., NeurIPS 2019).

It is batch norm, ReLU and a linear layer (Fu et al., USENIX Security 2022). Batch norm stands first, so its statistics
are those of the embeddings themselves, taken over all of them. Frozen embeddings have no augmentation but mixup.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dpzv_audit.base.seeds import Purpose, stream

from ..core.knowledge import FewLabels, Knowledge

SHARPENING = 0.8
MIXUP = 0.75
UNLABELLED_WEIGHT = 50.0
DECAY = 0.999
RATE = 2e-3
BATCH = 16


@dataclass(frozen=True)
class Head:
    """A trained head of each replica, with the embeddings' statistics that its batch norm goes by."""

    mean: Tensor
    deviation: Tensor
    parameters: tuple[Tensor, ...]

    @torch.no_grad()
    def probabilities(self, embeddings: Tensor) -> Tensor:
        """Return probabilities (K, n, classes) of embeddings (K, n, width), some thousand rows at a time."""
        scaled = ((rows - self.mean) / self.deviation for rows in embeddings.split(4096, 1))
        return torch.cat([_logits(self.parameters, rows).softmax(2) for rows in scaled], 1)


def train_head(embeddings: Tensor, few: FewLabels, known: Knowledge) -> Head:
    """Train a head of each replica on embeddings (K, N, width), of which a `few` carry labels.

    Settings are attacks.md's: sharpening 0.8, mixup 0.75, unlabelled weight 50 ramped linearly, exponential moving
    average of 0.999 (corrected for its start), Adam at 2e-3, batches of 16.
    """
    mean = embeddings.mean(1, keepdim=True)
    deviation = embeddings.std(1, keepdim=True) + 1e-5
    inputs = (embeddings - mean) / deviation
    parameters = _initial(known, inputs)
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    average = [torch.zeros_like(p) for p in parameters]
    labels = one_hot(few.labels, known.classes).to(inputs.dtype)
    steps = known.options["steps"]
    for step, (picked, free, order, weight) in enumerate(_draws(known, few.ids.shape[1], inputs)):
        unknown = _rows(inputs, free)
        with torch.no_grad():
            guessed = _logits(parameters, unknown).softmax(2) ** (1.0 / SHARPENING)
            guessed = guessed / guessed.sum(2, keepdim=True)
        rows = torch.cat((_rows(inputs, few.ids.gather(1, picked)), unknown), 1)
        wanted = torch.cat((_rows(labels, picked), guessed), 1)
        mixed, target = (weight * values + (1.0 - weight) * _rows(values, order) for values in (rows, wanted))
        with torch.enable_grad():
            logs = _logits(parameters, mixed).log_softmax(2)
            labelled = -(target[:, :BATCH] * logs[:, :BATCH]).sum(2).mean(1)
            free_loss = ((logs[:, BATCH:].exp() - target[:, BATCH:]) ** 2).mean((1, 2))
            ramp = UNLABELLED_WEIGHT * (step + 1) / steps
            optimiser.zero_grad()
            # The sum over replicas keeps their gradients apart.
            (labelled + ramp * free_loss).sum().backward()
        optimiser.step()
        for mean_of, value in zip(average, parameters, strict=True):
            mean_of.mul_(DECAY).add_(value.detach(), alpha=1.0 - DECAY)
    return Head(mean, deviation, tuple(a / (1.0 - DECAY**steps) for a in average))


def _logits(parameters: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
    scale, shift, weight, bias = parameters
    return torch.relu(inputs * scale + shift) @ weight + bias


def _initial(known: Knowledge, inputs: Tensor) -> tuple[Tensor, ...]:
    """Return parameters to start from: batch norm the identity, the linear layer uniform within 1/sqrt(width)."""
    count, _, width = inputs.shape
    bound = 1.0 / np.sqrt(width)
    shape = (width, known.classes)
    drawn = [stream(known.seed, Purpose.ATTACK, k, 5).uniform(-bound, bound, shape) for k in known.replicas]
    weights = torch.from_numpy(np.stack(drawn)).to(inputs)
    scale = inputs.new_ones(count, 1, width)
    shift = inputs.new_zeros(count, 1, width)
    bias = inputs.new_zeros(count, 1, known.classes)
    return tuple(p.requires_grad_() for p in (scale, shift, weights, bias))


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Return rows (K, n, c) of (K, N, c) at `places` (K, n)."""
    return values.take_along_dim(places.unsqueeze(2), 1)


def _draws(known: Knowledge, labelled: int, inputs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield by step places of labelled and of free records (K, BATCH), mixup partners (K, 2 BATCH) and weights.

    Weights are (K, 2 BATCH, 1); each replica draws from a stream of its own.
    """
    steps = known.options["steps"]
    records = inputs.shape[1]
    drawn = []
    for replica in known.replicas:
        generator = stream(known.seed, Purpose.ATTACK, replica, 6)
        picked = generator.integers(labelled, size=(steps, BATCH))
        free = generator.integers(records, size=(steps, BATCH))
        order = generator.permuted(np.tile(np.arange(2 * BATCH), (steps, 1)), axis=1)
        beta = generator.beta(MIXUP, MIXUP, size=(steps, 2 * BATCH, 1))
        drawn.append((picked, free, order, np.maximum(beta, 1.0 - beta)))
    stacks = (np.stack(values, 1) for values in zip(*drawn, strict=True))
    *places, weights = (torch.from_numpy(values).to(inputs.device) for values in stacks)
    return zip(*places, weights.to(inputs.dtype), strict=True)
