"""Data sets in which a leak of known strength is planted: what positive controls run on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.seeds import Purpose, stream


def labels_in_own_features(dataset: VerticalDataset) -> VerticalDataset:
    """`dataset` with the first client's block replaced by the one-hot label: whoever reads it well finds them all."""

    def planted(records: Records) -> Records:
        block = np.eye(dataset.classes, dtype=np.float32)[records.labels]
        others = [b for b in records.features[1:] if b.dtype == np.float32]
        return Records(features=(np.ascontiguousarray(block), *others), labels=records.labels)

    return replace(
        dataset,
        name=f"{dataset.name} with labels planted at client 1",
        train=planted(dataset.train),
        test=planted(dataset.test),
        vocabulary=None,
    )


def labels_by_heart(dataset: VerticalDataset, seed: int) -> VerticalDataset:
    """Records of noise in as many blocks as `dataset` has, labels dealt at random: only learning by heart fits them.

    256 to train on, or to draw members from, in 10 classes; 16 numbers a block.
    """
    generator = stream(seed, Purpose.CONTROL, 1)

    def part(count: int) -> Records:
        blocks = tuple(generator.standard_normal((count, 16), dtype=np.float32) for _ in dataset.train.features)
        return Records(features=blocks, labels=generator.integers(10, size=count))

    return VerticalDataset("labels to learn by heart", part(256), part(64), 10, "blocks of noise", {})
