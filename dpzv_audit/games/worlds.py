"""The two neighbouring data sets of a game: what the canary is in the world "out" and in the world "in"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpzv_audit.data.vertical import FeatureArray, Records, VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.games.definition import Game, labels_of

Features = tuple[FeatureArray, ...]


@dataclass(frozen=True)
class Worlds:
    """Both worlds: data sets of "out" and "in", the canary's labels, and whether only its label differs.

    `present` says in which of the worlds the canary is there (`add-remove`: not in "out"; `zero-out`: in "out" its
    record is there, but what is sent for it is 0).
    """

    data: tuple[VerticalDataset, VerticalDataset]
    labels: tuple[int, int]
    label_alone: bool
    present: tuple[bool, bool] = (True, True)


def worlds_of(game: Game, dataset: VerticalDataset) -> Worlds:
    """Return the two worlds of `game` on `dataset`.

    `state` multiplies the canary's features by `game.norm` in both worlds. `replace-record`: in "in" the record has the
    features of another record of the label that it has there, except in the blocks that the adversary holds; to one who
    holds them all it is `replace-label`.
    `add-remove`: "out" lacks the record. `zero-out`: both have it, in "out" nobody sends anything but 0 for it.
    Raises `InputError` for a record or labels that cannot be.
    """
    count = len(dataset.train)
    if not 0 <= game.record < count:
        raise InputError(f"canary is record {game.record}, must be from 0 to {count - 1}")
    own_label = int(dataset.train.labels[game.record])
    unlikely = _unlikely_label(dataset, game.record) if game.canary == "mislabelled" else own_label
    labels = labels_of(game, own_label, unlikely, dataset.classes)
    features: Features = dataset.train.features
    if game.canary == "state":
        features = _scaled(features, game)
    if game.neighbours == "add-remove":
        # The worst-case canary's contribution is -C where the others are at +C: there a wrong divisor shows.
        label = labels[0] if game.others == "saturated" else labels[1]
        own = label if game.canary in ("worst-case", "state") else labels[0]
        inside = _with(dataset, features, game.record, own)
        return Worlds((_without(inside, game.record), inside), labels, False, (False, True))
    if game.neighbours == "zero-out":
        inside = _with(dataset, features, game.record, labels[1])
        return Worlds((inside, inside), labels, False, (False, True))
    out, inside = (_with(dataset, features, game.record, label) for label in labels)
    held = {"client": 1, "colluding-clients": len(features)}.get(game.adversary, 0)
    if game.neighbours == "replace-label" or held == len(features):
        return Worlds((out, inside), labels, True)
    donors = np.flatnonzero(dataset.train.labels == labels[1])
    donors = donors[donors != game.record]
    if donors.size == 0:
        raise InputError(
            f"but no other record has label {labels[1]} to take the canary's place: must be replace-label",
            "neighbours",
            "replace-record",
        )
    changed: Features = tuple(
        block if m < held else _row(block, game.record, block[donors[0]]) for m, block in enumerate(features)
    )
    return Worlds((out, _with(dataset, changed, game.record, labels[1])), labels, False)


def _unlikely_label(dataset: VerticalDataset, record: int) -> int:
    """The label whose records' mean is furthest from the record's features; not its own."""
    rows = np.concatenate([block.reshape(len(block), -1) for block in dataset.train.features], axis=1)
    labels = dataset.train.labels
    others = [label for label in np.unique(labels) if label != labels[record]]
    if not others:
        raise InputError("must be another: all records have one label", "canary", "mislabelled")
    distances = [np.linalg.norm(rows[labels == label].mean(0) - rows[record]) for label in others]
    return int(others[int(np.argmax(distances))])


def _scaled(features: Features, game: Game) -> Features:
    if any(block.dtype.kind != "f" for block in features):
        raise InputError("‹canary› state needs numeric features, must be used on other data than token ids")
    return tuple(_row(block, game.record, block[game.record] * np.float32(game.norm)) for block in features)


def _row(block: FeatureArray, record: int, value: Any) -> FeatureArray:
    changed = block.copy()
    changed[record] = value
    return changed


def _with(dataset: VerticalDataset, features: Features, record: int, label: int) -> VerticalDataset:
    labels = dataset.train.labels.copy()
    labels[record] = label
    return replace(dataset, train=Records(features=features, labels=labels))


def _without(dataset: VerticalDataset, record: int) -> VerticalDataset:
    train = dataset.train
    kept = np.delete(np.arange(len(train)), record)
    features: Features = tuple(block[kept].copy() for block in train.features)
    return replace(dataset, train=Records(features=features, labels=train.labels[kept]))
