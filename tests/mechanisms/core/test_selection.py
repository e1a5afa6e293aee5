"""Replicas that train on records of their own, out of one pool: what shadow models are."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpzv_audit.data.vertical import Records
from mechanisms import METHODS

from ...helpers.built_in import train
from ..conftest import random_dataset, training_data


@pytest.mark.parametrize("method", METHODS)
def test_a_replica_with_a_selection_trains_as_if_its_records_were_all_there_is(method):
    dataset = random_dataset(records=40, clients=2)
    generator = np.random.default_rng(1)
    rows = np.stack([generator.permutation(40)[:20] for _ in range(3)])
    config = METHODS[method].configure(**METHODS[method].used({"batch_size": 5, "epochs": 3}), dtype="float64")
    features, labels = dataset.train.features, dataset.train.labels
    whole = replace(training_data(dataset, labels=labels[rows]), selection=torch.from_numpy(rows))
    stacked = train(whole, config, seed=0, replicas=range(3))
    for k, own in enumerate(rows):
        records = Records(tuple(np.ascontiguousarray(block[own]) for block in features), labels[own])
        alone = train(training_data(replace(dataset, train=records)), config, seed=0, replicas=(k,))
        for stack, single in zip((*stacked.clients, stacked.server), (*alone.clients, alone.server), strict=True):
            assert torch.allclose(stack.flat[k], single.flat[0], rtol=1e-9, atol=1e-12)
        assert stacked.rounds == alone.rounds
        assert stacked.ledger.up == alone.ledger.up
