"""Limits that the server of DPZV enforces against clients that cheat: distinct ids, and a cap on participations."""

import numpy as np
import pytest
import torch

from mechanisms.core.streams import Batch
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.worlds import SMALL, saturated, two_worlds
from ..conftest import random_dataset, start_run, steps


class Repeating:
    """A batch stream that cheats: one record again and again."""

    def __init__(self, ids, replicas=1, records=8):
        row = torch.tensor(ids)
        self.ids = row.repeat(replicas, 1)
        self.places = (self.ids + torch.arange(replicas).unsqueeze(1) * records).flatten()

    def next(self):
        return Batch(self.ids, self.places)


def cheated(ids, rounds=1, **options):
    """Shift of the scalars (rounds,) between the labels 0 and 1 of record 3 when client 1 names `ids` every round."""
    dataset = random_dataset(records=8, clients=1)
    labels = np.tile(dataset.train.labels, (2, 1))
    labels[:, 3] = (0, 1)
    config = DPZVConfig(**{**SMALL, "epochs": 10}, top_model=False, **options)
    run, log = start_run(config, replicas=(0, 0), labels=labels, dataset=dataset, behaviours=saturated(3, clients=1))
    run.federation.clients[0].batches = Repeating(ids, replicas=2)
    steps(run, rounds)
    scalars = log.scalars()
    return (scalars[:, 1] - scalars[:, 0]) / (2 * config.clip / config.batch_size)


@pytest.mark.parametrize(("ids", "copies"), [([3, 3, 3, 3], 4), ([3, 1, 3, 2], 2), ([1, 2, 4, 3], 1)])
def test_distinct_ids_are_enforced_against_a_client_that_repeats_a_record(ids, copies):
    unlimited = cheated(ids)
    assert unlimited.tolist() == pytest.approx([copies])
    assert cheated(ids, distinct_ids=True).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("cap", [1, 3])
def test_the_participation_cap_is_enforced_over_rounds(cap):
    shifts = cheated([3, 1, 3, 2], rounds=6, distinct_ids=True, participation_cap=cap)
    assert shifts.tolist() == pytest.approx([1.0] * cap + [0.0] * (6 - cap))
    free = cheated([1, 2, 4, 3], rounds=6)
    assert free.tolist() == pytest.approx([1.0] * 6)


def test_the_cap_counts_all_clients_rounds_and_each_replica_apart():
    config = DPZVConfig(**{**SMALL, "epochs": 12, "participation_cap": 2, "batch_size": 4})
    run, log = start_run(config, replicas=(0, 1), records=8, behaviours=saturated(99))
    steps(run)
    counts = run._counts[:-1].view(2, 8)
    drawn = torch.zeros(2, 8, dtype=torch.int64)
    for message in (m for m in log.messages if m.kind == "scalar"):
        drawn.scatter_add_(1, message.ids, torch.ones_like(message.ids))
    assert (drawn > 2).all()
    assert (counts == 2).all()


@pytest.mark.parametrize("update", ["sgd", "zo", "dp-sgd", "dp-zo"])
def test_a_record_past_the_cap_no_longer_moves_the_server(update):
    dataset = random_dataset(records=8, clients=1)
    labels = two_worlds(dataset, 3, 1)
    config = DPZVConfig(
        **{**SMALL, "epochs": 10, "server_update": update},
        participation_cap=1,
        distinct_ids=True,
        server_noise_multiplier=1.0,
    )
    run, _ = start_run(config, replicas=(0, 0), labels=labels, dataset=dataset)
    run.federation.clients[0].batches = Repeating([3, 3, 3, 3], replicas=2)
    run._counts[:-1].view(2, 8)[:, 3] = 1
    steps(run, 4)
    flat = run.federation.server_parameters.flat
    assert torch.equal(flat[0], flat[1])


@pytest.mark.parametrize("update", ["sgd", "joint-zo"])
def test_distinct_ids_leave_honest_batches_of_several_sizes_alone(update):
    """Nobody is at a padded place: it is the first of its id, and must count no more than without the limit."""
    outcomes = []
    for distinct in (False, True):
        options = {**SMALL, "epochs": 6, "sampler": "poisson", "server_update": update, "distinct_ids": distinct}
        run, log = start_run(DPZVConfig(**options), replicas=(0, 1))
        steps(run, 12)
        scalars = [message for message in log.messages if message.kind == "scalar"]
        assert any((message.ids < 0).any() for message in scalars), "some batch is padded"
        moved = [client.parameters.flat for client in run.federation.clients]
        outcomes.append([log.scalars(), run.federation.server_parameters.flat, *moved])
    for free, limited in zip(*outcomes, strict=True):
        assert torch.equal(free, limited)
