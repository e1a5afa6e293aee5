"""Replicas that train on records of their own, out of one pool: what shadow models are."""

import numpy as np
import pytest
import torch

from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms import METHODS
from mechanisms.core.context import TrainingData

from ...helpers.built_in import train


def pool(records=40, clients=2, classes=3):
    generator = np.random.default_rng(0)
    blocks = tuple(generator.uniform(-1, 1, (records, 3)).astype(np.float32) for _ in range(clients))
    labels = generator.integers(classes, size=records)
    part = Records(features=blocks, labels=labels)
    return VerticalDataset("pool", part, part, classes, "blocks", {})


def restricted(dataset, rows):
    """`dataset` with these rows alone to train on."""
    part = Records(
        features=tuple(np.ascontiguousarray(f[rows]) for f in dataset.train.features), labels=dataset.train.labels[rows]
    )
    return VerticalDataset("part", part, dataset.test, dataset.classes, "blocks", {})


@pytest.mark.parametrize("method", METHODS)
def test_a_replica_with_a_selection_trains_as_if_its_records_were_all_there_is(method):
    dataset = pool()
    generator = np.random.default_rng(1)
    rows = np.stack([generator.permutation(40)[:20] for _ in range(3)])
    config = METHODS[method].configure(batch_size=5, epochs=3, dtype="float64")
    whole = TrainingData.of(dataset, dtype=torch.float64, device="cpu", labels=dataset.train.labels[rows])
    stacked = train(
        TrainingData(
            whole.features,
            whole.labels,
            whole.test_features,
            whole.test_labels,
            whole.classes,
            selection=torch.from_numpy(rows),
        ),
        config,
        seed=0,
        replicas=range(3),
    )
    for k in range(3):
        part = TrainingData.of(restricted(dataset, rows[k]), dtype=torch.float64, device="cpu")
        alone = train(part, config, seed=0, replicas=(k,))
        for one, other in zip((*stacked.clients, stacked.server), (*alone.clients, alone.server), strict=True):
            assert torch.allclose(one.flat[k], other.flat[0], rtol=1e-9, atol=1e-12)
        assert stacked.rounds == alone.rounds
        assert stacked.ledger.up == alone.ledger.up
