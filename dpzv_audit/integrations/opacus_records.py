"""Records of a training under audit: the data set with its canaries, named canaries, and other data to hunt on."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from ..base.errors import InputError

Record: TypeAlias = tuple[Tensor, Any]
Records: TypeAlias = "Callable[[Dataset[Record], int], Dataset[Any]]"
"""Makes a number of records of those of a data set."""
Canary = Literal["gradient", "input", "mislabelled"]

LARGE = 1e3
"""Every feature of an input canary; features to hunt on are as much larger than the data's."""
_MOST = 1000
"""Records among which targets are looked for."""


class Marked(Dataset[tuple[Tensor, Any, int]]):
    """Records of a data set, and the canaries last, each with a mark: 0, and the number of a canary, from 1."""

    def __init__(self, data: "Dataset[Record]", canaries: Sequence[tuple[Record, int]]) -> None:
        self._data = data
        self._others = number_of(data)
        self._canaries = canaries

    def __len__(self) -> int:
        return self._others + len(self._canaries)

    def __getitem__(self, place: int) -> tuple[Tensor, Any, int]:
        if place < self._others:
            return (*self._data[place], 0)
        record, mark = self._canaries[place - self._others]
        return (*record, mark)


def number_of(data: "Dataset[Any]") -> int:
    """Return the number of records."""
    return len(data)  # type: ignore[arg-type]


def targets_of(data: "Dataset[Record]") -> list[Any]:
    """Return the targets that there are among the first 1,000 records, in order."""
    targets = (data[place][1] for place in range(min(_MOST, number_of(data))))
    return list({float(torch.as_tensor(target)): target for target in targets}.values())


def mislabelled(data: "Dataset[Record]") -> Record:
    """Return the first record with the label of another class; `InputError` where there is none."""
    features, target = data[0]
    others = targets_of(data)[1:]
    if not others or torch.as_tensor(target).is_floating_point():
        raise InputError("needs labels of two classes at least, in whole numbers", "canary", "mislabelled")
    return features, others[0]


def extreme_input(data: "Dataset[Record]", model: Callable[[], nn.Module], loss: nn.Module) -> Record:
    """Return a record of large features with that target which the model at its start finds least likely."""
    features, _ = data[0]
    if not features.is_floating_point():
        raise InputError("needs features that are not whole numbers", "canary", "input")
    large = torch.full_like(features, LARGE)
    with torch.no_grad():
        predicted = model()(large[None])
        return large, max(targets_of(data), key=lambda target: float(loss(predicted, torch.as_tensor(target)[None])))


def few(data: "Dataset[Record]", count: int) -> "Dataset[Any]":
    """Return the first `count` records."""
    return Subset(data, range(count))


def alike(data: "Dataset[Record]", count: int) -> "Dataset[Any]":
    """Return the first record `count` times."""
    return Subset(data, [0] * count)


def blank(data: "Dataset[Record]", count: int) -> "Dataset[Any]":
    """Return `count` records whose features are 0, with the target of the first."""
    features, target = data[0]
    return TensorDataset(features.new_zeros(count, *features.shape), torch.stack([torch.as_tensor(target)] * count))


def huge(data: "Dataset[Record]", count: int) -> "Dataset[Any]":
    """Return the first `count` records with their features made 1,000 times as large."""
    features, targets = zip(*(data[place] for place in range(count)), strict=True)
    return TensorDataset(torch.stack(features) * LARGE, torch.stack([torch.as_tensor(target) for target in targets]))


def nothing(data: "Dataset[Record]") -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch without records, where a loader has seen none yet."""
    features, target = data[0]
    return features[None][:0], torch.as_tensor(target)[None][:0], torch.zeros(0, dtype=torch.int64)
