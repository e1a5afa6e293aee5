"""Confusional autoencoder: labels become soft labels of other classes, and predictions are decoded again.

Zou et al., "Defending batch-level label inference and replacement attacks in vertical federated learning", IEEE Trans.
Big Data 2022 (arXiv 2112.05409). The party with the labels trains an encoder and a decoder that only it has. Weights
and losses are those of the authors' public code, whose cross-entropies take a softmax of probabilities: they are
bounded, also the one that is to be large.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.seeds import Purpose, stream

from ..core.context import LabelDecoder, TrainingData
from ..core.defence import Defence, DefenceSpec, Draws
from ..core.replicas import SoftTargets

RECONSTRUCTION = 10.0
"""What the decoder's loss counts beside that of hiding the label."""
STEPS = 1500
RATE = 5e-3
_START = 0.1


class ConfusionalAutoencoder(Defence):
    """Trains on soft labels by an encoder, which spread over several classes and hardly name the true one."""

    name: Literal["confusional-autoencoder"] = "confusional-autoencoder"
    entropy: Annotated[float, Field(ge=0, le=100)] = 0.5
    """What the entropy of soft labels counts, lambda_2; with 0 classes merely swap names."""

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""
        coder = _of_replicas(data.classes, self.entropy, draws.seed, tuple(draws.replicas), draws.place)
        soft = coder.soft.to(data.like)
        labels = data.labels.expand(len(soft), -1)
        rows = soft.gather(1, labels.unsqueeze(2).expand(-1, -1, data.classes))
        decoder = LabelDecoder(tuple(tensor.to(data.like) for tensor in coder.decoder))
        return replace(data, labels=rows.argmax(2), soft=SoftTargets(rows), decoder=decoder)


@dataclass(frozen=True)
class Autoencoder:
    """Soft labels (K, classes, classes) of each class, and the decoder's weights and biases in turn."""

    soft: Tensor
    decoder: tuple[Tensor, ...]


def autoencoder(classes: int, entropy: float, generators: list[np.random.Generator]) -> Autoencoder:
    """Train an autoencoder with each of the `generators`: two layers either way, 6 classes + 2 units between them.

    Raises:
        InputError: A decoder mistakes a class: the entropy counts for too much.
    """
    hidden = 6 * classes + 2
    shapes = ((classes, hidden), (1, hidden), (hidden, classes), (1, classes)) * 2
    drawn = [
        [_START * generator.standard_normal(shape) * (shape[0] > 1) for shape in shapes] for generator in generators
    ]
    with torch.enable_grad():
        parts = [torch.from_numpy(np.stack(each)).requires_grad_() for each in zip(*drawn, strict=True)]
        optimiser = torch.optim.Adam(parts, lr=RATE)
        for _ in range(STEPS):
            soft, decoded = _coded(parts)
            loss = RECONSTRUCTION * _own_losses(decoded) - _own_losses(soft) - entropy * _entropies(soft)
            optimiser.zero_grad()
            # The sum over replicas keeps their gradients apart.
            loss.sum().backward()
            optimiser.step()
    with torch.no_grad():
        soft, decoded = _coded(parts)
    if not torch.equal(decoded.argmax(2), torch.arange(classes).expand(len(decoded), -1)):
        rule = "which leaves soft labels that cannot be decoded; use a smaller one"
        raise InputError(rule, "option entropy of defence confusional-autoencoder", entropy)
    return Autoencoder(soft, tuple(tensor.detach() for tensor in parts[4:]))


@lru_cache(maxsize=8)
def _of_replicas(classes: int, entropy: float, seed: int, replicas: tuple[int, ...], place: int) -> Autoencoder:
    """Train the autoencoder of each replica from a stream of its own; a run that is made again has them at once."""
    return autoencoder(classes, entropy, [stream(seed, Purpose.LABELS, k, place) for k in replicas])


def _coded(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return soft labels (K, classes, classes) of all classes, and the classes' probabilities that are decoded."""
    first, shift, second, bias, *decoder = parts
    soft = torch.softmax(torch.relu(first + shift) @ second + bias, 2)
    return soft, LabelDecoder(tuple(decoder)).probabilities(soft)


def _own_losses(probabilities: Tensor) -> Tensor:
    """Return the mean cross-entropy (K,) of each class with its own row, after another softmax."""
    return -torch.log_softmax(probabilities, 2).diagonal(dim1=1, dim2=2).mean(1)


def _entropies(soft: Tensor) -> Tensor:
    """Return the mean entropy (K,) of soft labels in nats."""
    return -(soft * soft.clamp(min=1e-12).log()).sum(2).mean(1)


SPEC = DefenceSpec(
    name="confusional-autoencoder",
    summary="soft labels of other classes by an autoencoder, which decodes what is predicted (CAE)",
    source="Zou et al., IEEE Trans. Big Data 2022",
    settings=ConfusionalAutoencoder,
)
