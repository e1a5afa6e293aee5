"""Models of the parties as plain descriptions, one torch module each, with torch's default initialisation."""

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpzv_audit.base.errors import InputError

from .config import ClientModel, FeatureKind, TrainingConfig
from .fixed import fixed_map
from .patches import PatchFeatures, Shape, kind_for, regions_of
from .pretrained import TransformerModel, client_transformer, server_transformer

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
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(GROUPS, channels))

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, channels_in, h, w) to (n, channels, h / stride, w / stride)."""
        value = functional.relu(self.first_norm(self.first(images)))
        value = self.second_norm(self.second(value)) + self.shortcut(images)
        return functional.relu(value)


def stem(input_channels: int, width: int) -> nn.Conv2d:
    """Return the first convolution of ResNet-18 for small images."""
    return nn.Conv2d(input_channels, width, 3, padding=1, bias=False)


def after_stem(width: int) -> nn.Sequential:
    """Return what follows the first convolution: its norm and ReLU, then four stages of two blocks."""
    layers: list[nn.Module] = [nn.GroupNorm(GROUPS, width), nn.ReLU()]
    before = width
    stride = 1
    for channels in (width, 2 * width, 4 * width, 8 * width):
        layers.append(ResidualBlock(before, channels, stride))
        layers.append(ResidualBlock(channels, channels, 1))
        before = channels
        stride = 2
    return nn.Sequential(*layers)


class Mean(nn.Module):
    """The mean of each channel's map."""

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, channels)."""
        return images.mean((2, 3))


class SideBySide(nn.Module):
    """Feature maps of the clients beside each other as one (paper 002, section VI-B)."""

    def __init__(self, clients: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self._shape = (clients, channels, height, width)

    def forward(self, rows: Tensor) -> Tensor:
        """Map (n, clients * channels * height * width), a flattened map a client, to (n, channels, h, clients * w)."""
        maps = rows.unflatten(1, self._shape).transpose(1, 3).transpose(1, 2)
        # (n, channels, height, clients, width): the parts of a row of pixels lie beside each other.
        beside: Tensor = maps.flatten(3)
        return beside


def with_head(channels: int, outputs: int, **layers: nn.Module) -> nn.Sequential:
    """Return named `layers`, then the mean of each of their `channels` and a linear layer."""
    return nn.Sequential(OrderedDict(**layers, mean=Mean(), head=nn.Linear(channels, outputs)))


class TokenBag(nn.Module):
    """Sum of token embeddings over the root of their number, then one linear layer: a text model without a download.

    Token 0 is padding. The root keeps the scale of a sum of independent vectors whatever the length; their mean would
    shrink with it, and at the usual rates first-order training then stays at chance for many epochs.
    """

    def __init__(self, vocabulary: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids (n, length), integers below the vocabulary, to (n, outputs)."""
        present = (ids != 0).unsqueeze(-1).to(self.tokens.weight.dtype)
        total = (self.tokens(ids) * present).sum(1)
        outputs: Tensor = self.head(torch.relu(total / present.sum(1).clamp(min=1.0).sqrt()))
        return outputs


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
        """Return the same model as a torch module that takes (n, *input shape)."""
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(self.sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers if self.final_relu else layers[:-1])


class MaxPool(nn.Module):
    """The largest of each 2 x 2 pixels; odd last rows and columns are dropped."""

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, channels, h // 2, w // 2)."""
        if torch.is_grad_enabled():
            return functional.max_pool2d(images, 2)
        # On a CPU torch's own keeps places for a backward pass, and takes 6 to 20 times as long.
        images = images[..., : images.shape[-2] // 2 * 2, : images.shape[-1] // 2 * 2]
        rows = torch.maximum(images[..., ::2, :], images[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def conv_net(
    block: str, per_stage: int, channels: tuple[int, int], shape: tuple[int, int, int], embedding: int
) -> nn.Module:
    """Build two stages of `per_stage` convolutions (3x3, padding 1) with ReLU and 2x2 max pooling, then a linear layer.

    It takes a `part` of an image, (n, *shape); `channels` are those of the stages.
    """
    before, height, width = shape
    if height < 4 or width < 4:
        raise InputError(f"a {block} of {height} x {width} is too small for two poolings; at least 4 x 4")
    layers: list[nn.Module] = []
    for wide in channels:
        for _ in range(per_stage):
            layers += [nn.Conv2d(before, wide, 3, padding=1), nn.ReLU()]
            before = wide
        layers.append(MaxPool())
    last = before * (height // 4) * (width // 4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(last, embedding))


STRIP = ("strip", 1, (8, 16))
"""Paper 001, appendix E: "a two-layer CNN" on 7 strips of 4 x 28; channels are ours."""
PATCH = ("patch", 2, (16, 32))
"""Paper 001, appendix E: "a four-layer CNN" on 2 x 2 patches of CIFAR-10."""


def resnet(input_channels: int, embedding: int, width: int = 64) -> nn.Module:
    """Build ResNet-18 (He et al. 2016, table 1) with group norm, a 3x3 stem without pooling (papers 001, 002, 003)."""
    features = nn.Sequential(stem(input_channels, width), *after_stem(width))
    return with_head(8 * width, embedding, features=features)


def resnet_stem(input_channels: int, channels: int) -> nn.Module:
    """Return the first convolution of ResNet-18 at a client, its feature map flattened to the embedding (paper 002)."""
    return nn.Sequential(stem(input_channels, channels), nn.Flatten())


def resnet_rest(clients: int, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Return ResNet-18 past its first convolution, at the server, on the maps of `clients` side by side (paper 002)."""
    maps = SideBySide(clients, channels, height, width)
    return with_head(8 * channels, classes, maps=maps, features=after_stem(channels))


@dataclass(frozen=True)
class Network:
    """A network of the torch module that `build(*sizes)` makes."""

    build: Callable[..., nn.Module]
    sizes: tuple[Any, ...]

    def module(self) -> nn.Module:
        """Return the model as a torch module that takes (n, *input shape)."""
        return self.build(*self.sizes)


@dataclass(frozen=True)
class GivenModel:
    """A torch module of the user's, as it is when it is evaluated; its float buffers count as parameters."""

    made: nn.Module

    def module(self) -> nn.Module:
        """Return a copy of the module."""
        return copy.deepcopy(self.made).eval()

    @property
    def state(self) -> dict[str, Tensor]:
        """Return parameters and float buffers by name."""
        buffers = {name: held for name, held in self.made.named_buffers() if held.is_floating_point()}
        return {**dict(self.made.named_parameters()), **buffers}

    @property
    def layout(self) -> Layout:
        """Return names and shapes of `state`."""
        return tuple((name, tuple(held.shape)) for name, held in self.state.items())


Architecture = MLP | Network | TransformerModel | GivenModel


def layout_of(architecture: Architecture) -> Layout:
    """Return names and shapes of the parameters of `architecture`."""
    if isinstance(architecture, GivenModel):
        return architecture.layout
    with torch.device("meta"):
        module = architecture.module()
    return tuple((name, tuple(p.shape)) for name, p in module.named_parameters())


def dimension(layout: Layout) -> int:
    """Return the number of parameters, d."""
    return sum(math.prod(shape) for _, shape in layout)


def initial_parameters(layout: Layout, generator: np.random.Generator) -> np.ndarray:
    """Draw one flat parameter vector, float64 of shape (d,): uniform within 1/sqrt(fan in), torch's own default.

    A bias shares the bound of the weight before it; a norm's weights (one axis) start at 1 and its biases at 0.
    """
    pieces = [np.empty(0)]
    bound = 1.0
    for name, shape in layout:
        weight = name.endswith("weight")
        if weight:
            bound = 1.0 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.0
        start = float(weight and not bound)
        pieces.append(start + generator.uniform(-bound, bound, size=math.prod(shape)))
    return np.concatenate(pieces)


def default_architectures(
    config: TrainingConfig, shapes: Sequence[Shape], classes: int, vocabulary: int | None = None
) -> tuple[tuple[Architecture, ...], Architecture | None]:
    """Return client models of `config` for feature blocks of the given `shapes`, and the server's model.

    `resnet18-stem` and `transformer-stem` give the server the rest of the network and no other top model.

    By default flat blocks get one linear layer (with ReLU under a top model), images of fewer than 16 rows a two-layer
    CNN, larger ones a four-layer CNN, and token ids (`vocabulary` given) a bag of embeddings, or the pre-trained
    transformer where one is named; the server gets two linear layers on the concatenated embeddings
    (paper 001, appendix E), or none when it only sums the clients' `classes` outputs ("model without split", paper 002,
    section VI-B).

    Raises:
        InputError: The client model does not fit the features.
    """
    width = config.embedding if config.top_model else classes
    clients = tuple(_client_model(config, shape, width, vocabulary) for shape in shapes)
    if config.client_model == "resnet18-stem":
        return clients, _rest_of_resnet(shapes, width, classes)
    if config.client_model == "transformer-stem":
        assert config.transformer is not None
        return clients, server_transformer(config, config.transformer, classes)
    if not config.top_model:
        return clients, None
    hidden = () if config.linear_head else (config.hidden,)
    return clients, MLP((width * len(shapes), *hidden, classes))


def feature_model(kind: FeatureKind, shape: Shape, width: int) -> MLP | Network:
    """Return the model of features of records of `shape`, `width` of them; `InputError` where so few cannot be."""
    if kind_for(kind, shape) == "components":
        return MLP((math.prod(shape), width))
    regions = regions_of(shape)
    atoms = width // math.prod(regions)
    if not atoms:
        least = math.prod(regions)
        raise InputError(f"use at least {least} for patches of {shape[1]} x {shape[2]}", "embedding", width)
    return Network(PatchFeatures, (shape, atoms, regions, width))


def _client_model(config: TrainingConfig, shape: Shape, width: int, vocabulary: int | None) -> Architecture:
    if config.label_free is not None and vocabulary is not None:
        raise InputError("use local: token ids have no label-free features here", "bottoms", "features")
    if config.label_free is not None:
        return feature_model(config.label_free, shape, width)
    if config.data_free is not None and vocabulary is not None:
        raise InputError("features: use a data set of numbers: token ids have no data-free features here")
    if config.data_free is not None:
        return GivenModel(fixed_map(config.data_free, shape, width))
    kind = config.client_model
    if kind == "auto":
        kind = _fitting(config, shape, vocabulary)
    if kind in ("tokens", "transformer", "transformer-stem"):
        if vocabulary is None:
            raise InputError("use another: the features are not token ids", "client_model", kind)
        if kind != "tokens" and config.transformer is not None:
            outputs = width if kind == "transformer" else None
            return client_transformer(config, config.transformer, outputs, vocabulary=vocabulary, length=shape[0])
        return Network(TokenBag, (vocabulary, width))
    if kind == "mlp":
        return MLP((math.prod(shape), width), final_relu=config.top_model)
    if len(shape) != 3:
        raise InputError(f"use mlp: features of shape {shape} are no images", "client_model", kind)
    if kind == "resnet18":
        return Network(resnet, (shape[0], width))
    if kind == "resnet18-stem":
        return Network(resnet_stem, (shape[0], _stem_channels(config, shape)))
    stages = STRIP if kind == "strip-cnn" else PATCH
    return Network(conv_net, (*stages, shape, width))


def _fitting(config: TrainingConfig, shape: Shape, vocabulary: int | None) -> ClientModel:
    if config.transformer is not None:
        return "transformer"
    if vocabulary is not None:
        return "tokens"
    if len(shape) != 3:
        return "mlp"
    return "strip-cnn" if shape[1] < 16 else "patch-cnn"


def _stem_channels(config: TrainingConfig, shape: Shape) -> int:
    """Return channels of a first convolution whose whole map is the embedding; `InputError` where it cannot be."""
    if not config.top_model:
        raise InputError("use another without a top model: the server has the rest", "client_model", "resnet18-stem")
    pixels = shape[1] * shape[2]
    channels, rest = divmod(config.embedding, pixels)
    if rest or channels == 0 or channels % GROUPS:
        raise InputError(
            f"use channels x height x width with channels a multiple of {GROUPS}: "
            f"{64 * pixels} for 64 on images of {shape[1]} x {shape[2]}",
            "embedding",
            config.embedding,
        )
    return channels


def _rest_of_resnet(shapes: Sequence[Shape], width: int, classes: int) -> Network:
    """Return the server's part of 002's split ResNet-18; `InputError` unless all clients hold images of one size."""
    if len({shape[1:] for shape in shapes}) > 1:
        raise InputError("use another: the clients' images differ in size", "client_model", "resnet18-stem")
    height, columns = shapes[0][1:]
    channels = width // (height * columns)
    return Network(resnet_rest, (len(shapes), channels, height, columns, classes))
