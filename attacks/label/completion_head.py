"""Heads trained from few labels in the MixMatch way (Berthelot et al., NeurIPS 2019), for a stack of replicas at once.

The head is batch norm, ReLU and a linear layer on frozen embeddings. Batch norm stands first, so its statistics are
those of the embeddings themselves, taken over all of them. Frozen embeddings have no augmentation but mixup.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream

SHARPENING = 0.8
MIXUP = 0.75
UNLABELLED_WEIGHT = 50.0
DECAY = 0.999
RATE = 2e-3
BATCH = 16
_ROWS = 4096


@dataclass(frozen=True)
class Head:
    """A trained head of each replica, with the embeddings' statistics that its batch norm goes by."""

    mean: Tensor
    deviation: Tensor
    parameters: tuple[Tensor, ...]

    @torch.no_grad()
    def probabilities(self, embeddings: Tensor) -> Tensor:
        """(K, n, classes) of embeddings (K, n, width), some thousand rows at a time."""
        pieces = [
            torch.softmax(_logits(self.parameters, (rows - self.mean) / self.deviation), 2)
            for rows in embeddings.split(_ROWS, 1)
        ]
        return torch.cat(pieces, 1)


def train_head(
    embeddings: Tensor, ids: Tensor, labels: Tensor, *, classes: int, steps: int, seed: int, replicas: tuple[int, ...]
) -> Head:
    """Train a head of each replica on embeddings (K, N, width), of which `ids` (K, n) carry `labels` (K, n).

    Settings are attacks.md's: sharpening 0.8, mixup 0.75, unlabelled weight 50 ramped linearly, exponential moving
    average of 0.999 (corrected for its start), Adam at 2e-3, batches of 16.
    """
    mean = embeddings.mean(1, keepdim=True)
    deviation = embeddings.std(1, keepdim=True) + 1e-5
    inputs = (embeddings - mean) / deviation
    parameters = _initial(inputs.shape[2], classes, seed, replicas, inputs)
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    average = [torch.zeros_like(p) for p in parameters]
    one_hot = torch.nn.functional.one_hot(labels, classes).to(inputs.dtype)
    draws = _Draws(seed, replicas, ids.shape[1], inputs.shape[1], steps, inputs)
    for step in range(steps):
        picked, free, order, weight = draws.at(step)
        known = _rows(inputs, ids.gather(1, picked))
        unknown = _rows(inputs, free)
        with torch.no_grad():
            guessed = torch.softmax(_logits(parameters, unknown), 2) ** (1.0 / SHARPENING)
            guessed = guessed / guessed.sum(2, keepdim=True)
        rows = torch.cat((known, unknown), 1)
        wanted = torch.cat((_rows(one_hot, picked), guessed), 1)
        mixed = weight * rows + (1.0 - weight) * _rows(rows, order)
        target = weight * wanted + (1.0 - weight) * _rows(wanted, order)
        with torch.enable_grad():
            logs = torch.log_softmax(_logits(parameters, mixed), 2)
            labelled = -(target[:, :BATCH] * logs[:, :BATCH]).sum(2).mean(1)
            free_loss = ((logs[:, BATCH:].exp() - target[:, BATCH:]) ** 2).mean((1, 2))
            ramp = UNLABELLED_WEIGHT * (step + 1) / steps
            # The sum over replicas keeps their gradients apart.
            loss = (labelled + ramp * free_loss).sum()
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        for mean_of, value in zip(average, parameters, strict=True):
            mean_of.mul_(DECAY).add_(value.detach(), alpha=1.0 - DECAY)
    correction = 1.0 - DECAY**steps
    return Head(mean, deviation, tuple(a / correction for a in average))


def _logits(parameters: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
    scale, shift, weight, bias = parameters
    return torch.relu(inputs * scale + shift) @ weight + bias


def _initial(width: int, classes: int, seed: int, replicas: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
    """Batch norm starts as the identity; the linear layer uniform within 1/sqrt(width)."""
    bound = 1.0 / np.sqrt(width)
    weights = np.stack([stream(seed, Purpose.ATTACK, k, 5).uniform(-bound, bound, (width, classes)) for k in replicas])
    count = len(replicas)
    parts = (
        like.new_ones(count, 1, width),
        like.new_zeros(count, 1, width),
        torch.from_numpy(weights).to(like),
        like.new_zeros(count, 1, classes),
    )
    return tuple(p.requires_grad_() for p in parts)


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Rows (K, n, c) of (K, N, c) at `places` (K, n)."""
    return values.gather(1, places.unsqueeze(2).expand(-1, -1, values.shape[2]))


class _Draws:
    """Batches, mixup partners and weights of all steps, each replica's from a stream of its own."""

    def __init__(
        self, seed: int, replicas: tuple[int, ...], known: int, records: int, steps: int, like: Tensor
    ) -> None:
        generators = [stream(seed, Purpose.ATTACK, k, 6) for k in replicas]
        picked = np.stack([g.integers(known, size=(steps, BATCH)) for g in generators], 1)
        free = np.stack([g.integers(records, size=(steps, BATCH)) for g in generators], 1)
        order = np.stack([g.permuted(np.tile(np.arange(2 * BATCH), (steps, 1)), axis=1) for g in generators], 1)
        drawn = np.stack([g.beta(MIXUP, MIXUP, size=(steps, 2 * BATCH, 1)) for g in generators], 1)
        self._parts = [torch.from_numpy(part).to(like.device) for part in (picked, free, order)]
        self._weights = torch.from_numpy(np.maximum(drawn, 1.0 - drawn)).to(like)

    def at(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places of labelled and of free records (K, BATCH), partners (K, 2 BATCH), weights (K, 2 BATCH, 1)."""
        picked, free, order = (part[step] for part in self._parts)
        return picked, free, order, self._weights[step]
