"""Data sets in which a leak of known strength is planted: what positive controls run on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpzv_audit.data.vertical import Records, VerticalDataset


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
