"""Networks that are more than a chain of layers: ResNet-18 with group norm, and a bag of token embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = 8
"""Channel groups of group norm. Batch norm would mix the records of a batch: one record would move every loss."""


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norm beside a shortcut (He et al. 2016, figure 2 and option B)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.GroupNorm(GROUPS, channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels_in, h, w) to (n, channels, h / stride, w / stride)."""
        value = functional.relu(self.first_norm(self.first(images)))
        value = self.second_norm(self.second(value)) + self.shortcut(images)
        return functional.relu(value)


def stem(input_channels: int, width: int) -> nn.Conv2d:
    """The first convolution of ResNet-18 for small images."""
    return nn.Conv2d(input_channels, width, 3, padding=1, bias=False)


def after_stem(width: int) -> list[nn.Module]:
    """What follows the first convolution: its norm and ReLU, then four stages of two blocks."""
    layers: list[nn.Module] = [nn.GroupNorm(GROUPS, width), nn.ReLU()]
    channels_in = width
    for stage in range(4):
        channels = width * 2**stage
        layers.append(ResidualBlock(channels_in, channels, 1 if stage == 0 else 2))
        layers.append(ResidualBlock(channels, channels, 1))
        channels_in = channels
    return layers


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016, table 1) for small images: a 3x3 stem without pooling, group norm throughout."""

    def __init__(self, input_channels: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(stem(input_channels, width), *after_stem(width))
        self.head = nn.Linear(8 * width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(n, input_channels, h, w) to (n, outputs)."""
        outputs: Tensor = self.head(self.features(images).mean((2, 3)))
        return outputs


class AfterStem(nn.Module):
    """ResNet-18 past its first convolution, on the clients' feature maps side by side (paper 002, section VI-B)."""

    def __init__(self, clients: int, channels: int, height: int, width: int, outputs: int) -> None:
        super().__init__()
        self._shape = (clients, channels, height, width)
        self.features = nn.Sequential(*after_stem(channels))
        self.head = nn.Linear(8 * channels, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, clients * channels * height * width), a flattened map a client, to (n, outputs)."""
        maps = rows.unflatten(1, self._shape).transpose(1, 3).transpose(1, 2)
        # (n, channels, height, clients, width): the parts of a row of pixels lie beside each other.
        outputs: Tensor = self.head(self.features(maps.flatten(3)).mean((2, 3)))
        return outputs


class TokenBag(nn.Module):
    """Sum of token embeddings over the root of their number, then one linear layer: a text model without a download.

    Token 0 is padding. The root keeps the scale of a sum of independent vectors whatever the length; their mean would
    shrink with it, and at the usual rates first-order training then stays at chance for many epochs.
    """

    def __init__(self, vocabulary: int, width: int, outputs: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (n, length), integers below the vocabulary, to (n, outputs)."""
        present = (ids != 0).unsqueeze(-1).to(self.tokens.weight.dtype)
        total = (self.tokens(ids) * present).sum(1)
        outputs: Tensor = self.head(torch.relu(total / present.sum(1).clamp(min=1.0).sqrt()))
        return outputs
