"""The game of an attribute: a fair coin picks one of two values of it for each record before a training.

What an attack then says of a record whose coin it does not know is a guess about that coin. One coin replaces what a
record holds in one block, and the guesses are one mechanism of all coins, so that theorem 5.2 of Steinke, Nasr and
Jagielski (NeurIPS 2023) bounds how many are right. Features and labels tell nothing about a coin.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dpzv_audit.data.vertical import VerticalDataset

from ..core.metrics import Booleans
from .variables import Attribute

LOW, HIGH = 0.1, 0.9
"""Quantiles of a number that stand for its two values."""


def values_of(attribute: Attribute) -> tuple[int, int] | None:
    """Return two records that hold the two values: of the most frequent categories, or a low and a high number.

    None where all records hold one.
    """
    values = attribute.values
    if attribute.categories:
        common = np.argsort(-attribute.counts, kind="stable").tolist()
        first, second = common[0], common[min(1, len(common) - 1)]
    else:
        first, second = np.quantile(values, (LOW, HIGH), method="nearest").tolist()
    places = np.flatnonzero(values == first), np.flatnonzero(values == second)
    if first == second or not all(len(some) for some in places):
        return None
    return int(places[0][0]), int(places[1][0])


def dealt(dataset: VerticalDataset, attribute: Attribute, coins: Booleans) -> VerticalDataset | None:
    """Return the data set whose training records have one of two values by their coin (N,); None where there is one."""
    holders = values_of(attribute)
    if holders is None:
        return None
    block = dataset.train.features[attribute.holder - 1]
    flat: Any = block.reshape(len(block), -1).copy()
    flat[:, attribute.columns] = flat[list(holders), attribute.columns][coins.astype(np.int64)]
    blocks: list[Any] = list(dataset.train.features)
    blocks[attribute.holder - 1] = np.ascontiguousarray(flat.reshape(block.shape))
    return replace(dataset, train=replace(dataset.train, features=tuple(blocks)))
