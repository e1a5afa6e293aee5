"""Small models as plain descriptions: what a party trains, one module each, with torch's default initialisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dpzv_audit.errors import InputError

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of a model's parameters, in the order in which they lie in its flat vector."""


@dataclass(frozen=True)
class MLP:
    """Linear layers with ReLU between them (and after the last when `final_relu`); inputs are flattened.

    `sizes` are the widths from input to output: (16, 32) is one linear layer.
    """

    sizes: tuple[int, ...]
    final_relu: bool = False

    def module(self) -> nn.Module:
        """The same model as a torch module that takes (n, *input shape)."""
        layers: list[nn.Module] = [nn.Flatten()]
        for index, (fan_in, fan_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            layers.append(nn.Linear(fan_in, fan_out))
            if self.final_relu or index < len(self.sizes) - 2:
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)


@dataclass(frozen=True)
class StripCNN:
    """Two convolutions (3x3, padding 1) with ReLU and 2x2 max pooling, then a linear layer to the embedding.

    For strips of `height` x `width` pixels (paper 001, appendix E: "a two-layer CNN" on 7 strips of 4 x 28;
    channels are our choice).
    """

    height: int
    width: int
    embedding: int
    channels: tuple[int, int] = (8, 16)
    input_channels: int = 1

    def module(self) -> nn.Module:
        """The model as a torch module that takes (n, input_channels, height, width)."""
        if self.height < 4 or self.width < 4:
            raise InputError(f"a strip of {self.height} x {self.width} is too small for two poolings; at least 4 x 4")
        first, second = self.channels
        return nn.Sequential(
            nn.Conv2d(self.input_channels, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (self.height // 4) * (self.width // 4), self.embedding),
        )


Architecture = MLP | StripCNN


def layout_of(architecture: Architecture) -> Layout:
    """Names and shapes of the parameters of `architecture`."""
    with torch.device("meta"):
        module = architecture.module()
    return tuple((name, tuple(p.shape)) for name, p in module.named_parameters())


def dimension(layout: Layout) -> int:
    """Number of parameters d."""
    return sum(math.prod(shape) for _, shape in layout)


def initial_parameters(layout: Layout, generator: np.random.Generator) -> np.ndarray:
    """Draw one flat parameter vector, float64 of shape (d,): uniform within 1/sqrt(fan in), torch's own default.

    A bias shares the bound of the weight before it.
    """
    pieces: list[np.ndarray] = []
    bound = 1.0
    for name, shape in layout:
        if name.endswith("weight"):
            bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        pieces.append(generator.uniform(-bound, bound, size=math.prod(shape)))
    return np.concatenate(pieces) if pieces else np.empty(0)


def default_architectures(
    shapes: tuple[tuple[int, ...], ...],
    classes: int,
    *,
    embedding: int,
    hidden: int,
    top_model: bool,
) -> tuple[tuple[Architecture, ...], Architecture | None]:
    """Client models for feature blocks of the given `shapes`, and the server's model.

    Flat blocks get one linear layer (with ReLU under a top model), image blocks a two-layer CNN; the server
    gets two linear layers on the concatenated embeddings (paper 001, appendix E), or none when it only sums
    the clients' `classes` outputs ("model without split", paper 002, section VI-B).
    """
    width = embedding if top_model else classes

    def build(shape: tuple[int, ...]) -> Architecture:
        if len(shape) == 3:
            return StripCNN(shape[1], shape[2], width, input_channels=shape[0])
        return MLP((math.prod(shape), width), final_relu=top_model)

    clients = tuple(build(shape) for shape in shapes)
    return clients, MLP((width * len(shapes), hidden, classes)) if top_model else None
