from itertools import pairwise

import numpy as np
import pytest
import torch

from mechanisms.core.config import TrainingConfig, rounds_of
from mechanisms.core.context import RunContext
from mechanisms.core.federation import Federation
from mechanisms.core.models import MLP
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import module_of
from ...helpers.refusals import refused
from ..conftest import random_dataset, training_data

CONFIG = TrainingConfig(batch_size=5, embedding=2, hidden=3, dtype="float64")


@pytest.fixture
def dataset():
    return random_dataset(records=23)


@pytest.fixture
def data(dataset):
    return training_data(dataset)


@pytest.fixture
def federation(data, message_log):
    fed = Federation(data, CONFIG, RunContext(seed=0, replicas=(3, 1), observers=(message_log,)))
    with torch.no_grad():
        fed.fill_table()
    return fed


def modules(fed, replica):
    """Models of the clients, and of the server, of the replica at a place of the stack."""
    clients = [module_of(MLP((3, 2), final_relu=True), client.parameters, replica) for client in fed.clients]
    return clients, module_of(MLP((6, 3, 3)), fed.server_parameters, replica)


def test_test_metrics_against_plain_modules(federation, dataset, data):
    with torch.no_grad():
        correct, loss = federation.test_metrics()
    for k in range(2):
        clients, server = modules(federation, k)
        logits = server(torch.cat([client(data.test_features[m]) for m, client in enumerate(clients)], 1))
        labels = torch.from_numpy(dataset.test.labels)
        assert np.array_equal(correct[k], (logits.argmax(1) == labels).numpy())
        assert loss[k] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())


def test_batch_labels_shared_and_by_replica(federation, dataset):
    batch = federation.clients[0].batches.next()
    truth = torch.from_numpy(dataset.train.labels)
    shared = training_data(dataset)
    assert torch.equal(shared.batch_labels(batch), truth[batch.ids])
    rows = np.stack([dataset.train.labels, (dataset.train.labels + 1) % 3])
    own = training_data(dataset, labels=rows)
    assert torch.equal(own.batch_labels(batch)[0], truth[batch.ids[0]])
    assert torch.equal(own.batch_labels(batch)[1], (truth[batch.ids[1]] + 1) % 3)


def test_a_clients_first_batches_serve_as_often_as_it_asks(federation):
    client = federation.clients[0]
    seen = [client.next_batch(3, 2).ids[0].tolist() for _ in range(10)]
    assert seen[0] == seen[1] == seen[2]
    assert seen[3] == seen[4] == seen[5] != seen[0]
    later = seen[5:]
    assert all(a != b for a, b in pairwise(later))
    assert client.rounds == 10


@pytest.mark.parametrize("kind", [TrainingConfig, DPZVConfig])
def test_a_batch_larger_than_the_data_is_one_line(data, kind):
    with refused(r"batch_size is 24; use at most the 23 training records"):
        Federation(data, kind(batch_size=24), RunContext(seed=0))


def test_rounds_are_epochs_of_whole_batches():
    assert rounds_of(TrainingConfig(batch_size=5, epochs=3), 23) == 12
