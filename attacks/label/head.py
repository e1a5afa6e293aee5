"""A head on frozen embeddings, trained from few labels in the MixMatch way (Berthelot et al., NeurIPS 2019).

It is batch norm, ReLU and a linear layer (Fu et al., USENIX Security 2022). Batch norm stands first, so its statistics
are those of the embeddings themselves, taken over all of them. Frozen embeddings have no augmentation but mixup.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from dpzv_audit.base.seeds import Purpose, stream

from ..core.knowledge import FewLabels, Knowledge

SHARPENING = 0.8
MIXUP = 0.75
UNLABELLED_WEIGHT = 50.0
DECAY = 0.999
RATE = 2e-3
BETAS = (0.9, 0.999)
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


def train_heads(embeddings: Tensor, several: Sequence[FewLabels], known: Knowledge) -> list[Head]:
    """Train a head of each replica on embeddings (K, N, width) for each of `several` sets of labels, all as one stack.

    A step takes as long for few heads as for some dozens. Settings are attacks.md's: sharpening 0.8, mixup 0.75,
    unlabelled weight 50 ramped linearly, exponential moving average of 0.999 (corrected for its start), Adam at 2e-3,
    batches of 16.
    """
    mean = embeddings.mean(1, keepdim=True)
    deviation = embeddings.std(1, keepdim=True) + 1e-5
    # Views of the same rows for each set of labels.
    inputs = ((embeddings - mean) / deviation).expand(len(several), *embeddings.shape)
    start = _initial(known, inputs)
    flat = torch.cat([part.flatten() for part in start])
    parameters = parts(flat, start)
    adam = Adam(flat)
    average = torch.zeros_like(flat)
    most = max(few.ids.shape[1] for few in several)
    ids = torch.stack([pad(few.ids, (0, most - few.ids.shape[1])) for few in several])
    labels = one_hot(torch.stack([pad(few.labels, (0, most - few.labels.shape[1])) for few in several]), known.classes)
    labels = labels.to(inputs.dtype)
    steps = known.options["steps"]
    counts = [few.ids.shape[1] for few in several]
    for step, (picked, free, order, weight) in enumerate(_draws(known, counts, inputs)):
        unknown = _rows(inputs, free)
        guessed = _logits(parameters, unknown).softmax(3) ** (1.0 / SHARPENING)
        guessed = guessed / guessed.sum(3, keepdim=True)
        rows = torch.cat((_rows(inputs, ids.gather(2, picked)), unknown), 2)
        wanted = torch.cat((_rows(labels, picked), guessed), 2)
        mixed, target = (weight * values + (1.0 - weight) * _rows(values, order) for values in (rows, wanted))
        ramp = UNLABELLED_WEIGHT * (step + 1) / steps
        adam.step(_gradient(parameters, mixed, target, ramp))
        average.mul_(DECAY).add_(flat, alpha=1.0 - DECAY)
    trained = zip(*parts(average / (1.0 - DECAY**steps), start), strict=True)
    return [Head(mean, deviation, parts) for parts in trained]


class Adam:
    """Adam (Kingma and Ba, ICLR 2015) on one flat vector, as torch's in a third of its time."""

    def __init__(self, flat: Tensor, rate: float = RATE) -> None:
        self._flat = flat
        self._rate = rate
        self._first = torch.zeros_like(flat)
        self._second = torch.zeros_like(flat)
        self._steps = 0

    def step(self, gradient: Tensor) -> None:
        self._steps += 1
        self._first.lerp_(gradient, 1.0 - BETAS[0])
        self._second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1.0 - BETAS[1])
        root = math.sqrt(1.0 - BETAS[1] ** self._steps)
        spread = (self._second.sqrt() / root).add_(1e-8)
        self._flat.addcdiv_(self._first, spread, value=-self._rate / (1.0 - BETAS[0] ** self._steps))


def parts(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return views into a vector of the shapes of `like`."""
    blocks = flat.split([part.numel() for part in like])
    return tuple(block.view_as(part) for block, part in zip(blocks, like, strict=True))


def _logits(parameters: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
    scale, shift, weight, bias = parameters
    return torch.relu(inputs * scale + shift) @ weight + bias


def _gradient(parameters: tuple[Tensor, ...], inputs: Tensor, target: Tensor, ramp: float) -> Tensor:
    """Return the gradient of all heads' losses as one vector: what autograd gives, digit for digit, in less time.

    The loss is the cross entropy of the first `BATCH` rows and `ramp` times the squared error of the others.
    """
    scale, shift, weight, bias = parameters
    before = inputs * scale + shift
    hidden = torch.relu(before)
    logs = (hidden @ weight + bias).log_softmax(3)
    found = logs[:, :, BATCH:].exp()
    at_logs = torch.empty_like(logs)
    at_logs[:, :, :BATCH] = target[:, :, :BATCH] * (-1.0 / BATCH)
    share = torch.tensor(ramp, dtype=found.dtype, device=found.device) / (found.shape[2] * found.shape[3])
    at_logs[:, :, BATCH:] = (found - target[:, :, BATCH:]) * 2.0 * share * found
    delta = torch._log_softmax_backward_data(at_logs, logs, 3, logs.dtype)
    at_hidden = (delta @ weight.mT) * (hidden > 0)
    parts = ((at_hidden * inputs).sum(2), at_hidden.sum(2), hidden.mT @ delta, delta.sum(2))
    return torch.cat([part.flatten() for part in parts])


def _initial(known: Knowledge, inputs: Tensor) -> tuple[Tensor, ...]:
    """Return parameters to start from: batch norm the identity, the linear layer uniform within 1/sqrt(width).

    They are (sets, K, ...), of a replica the same for each set of labels.
    """
    sets, count, _, width = inputs.shape
    bound = 1.0 / np.sqrt(width)
    shape = (width, known.classes)
    drawn = [stream(known.seed, Purpose.ATTACK, k, 5).uniform(-bound, bound, shape) for k in known.replicas]
    weights = torch.from_numpy(np.stack(drawn)).to(inputs).repeat(sets, 1, 1, 1)
    scale = inputs.new_ones(sets, count, 1, width)
    shift = inputs.new_zeros(sets, count, 1, width)
    bias = inputs.new_zeros(sets, count, 1, known.classes)
    return scale, shift, weights, bias


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Return rows (sets, K, n, c) of (sets, K, N, c) at `places` (sets, K, n)."""
    return values.gather(2, places.unsqueeze(3).expand(*places.shape, values.shape[3]))


def _draws(known: Knowledge, counts: Sequence[int], inputs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield by step places of labelled and free records (sets, K, BATCH), partners (sets, K, 2 BATCH) and weights.

    Weights of mixup are (sets, K, 2 BATCH, 1). `counts` are how many labels each set has; each replica draws from a
    stream of its own, the same for each set.
    """
    steps = known.options["steps"]
    records = inputs.shape[2]
    drawn = []
    for labelled, replica in product(counts, known.replicas):
        generator = stream(known.seed, Purpose.ATTACK, replica, 6)
        picked = generator.integers(labelled, size=(steps, BATCH))
        free = generator.integers(records, size=(steps, BATCH))
        order = generator.permuted(np.tile(np.arange(2 * BATCH), (steps, 1)), axis=1)
        beta = generator.beta(MIXUP, MIXUP, size=(steps, 2 * BATCH, 1))
        drawn.append((picked, free, order, np.maximum(beta, 1.0 - beta)))
    stacks = (np.stack(values, 1) for values in zip(*drawn, strict=True))
    *places, weights = (torch.from_numpy(s).unflatten(1, (len(counts), -1)).to(inputs.device) for s in stacks)
    return zip(*places, weights.to(inputs.dtype), strict=True)
