"""Ages of table rows against a slow count, and what a slow client does to them."""

import pytest
import torch

from mechanisms import METHODS
from mechanisms.core.channel import StalenessObserver
from mechanisms.methods.vafl import VAFLConfig

from ...helpers.built_in import train
from ..conftest import random_dataset, training_data

SMALL = {"batch_size": 5, "epochs": 6, "embedding": 3, "hidden": 4}


class SlowCount:
    """The same ages record by record."""

    def __init__(self, records, clients):
        self.last = [[-1] * records for _ in range(clients)]
        self.ages = []

    def on_message(self, message):
        if message.kind != "embeddings":
            return
        for record in message.ids[0].tolist():
            for client, row in enumerate(self.last, start=1):
                if client == message.sender:
                    row[record] = message.round
                else:
                    self.ages.append(message.round - row[record])

    def on_note(self, *args):
        pass


def observed(**options):
    dataset = random_dataset(records=20)
    data = training_data(dataset, dtype=torch.float32)
    fast, slow = StalenessObserver(20, 3, 24), SlowCount(20, 3)
    train(data, VAFLConfig(**SMALL, **options), seed=0, observers=(fast, slow))
    return fast.summary().to_json(), slow.ages


def test_ages_are_those_of_a_slow_count():
    summary, ages = observed(activation="random")
    assert summary["mean"] == pytest.approx(sum(ages) / len(ages))
    assert summary["largest"] == max(ages)
    ordered = sorted(ages)
    for name, share in (("q10", 0.1), ("q50", 0.5), ("q90", 0.9)):
        assert summary[name] in (ordered[int(share * len(ages)) - 1], ordered[int(share * len(ages))])


def test_a_slow_client_makes_the_table_older():
    even, _ = observed()
    slow, _ = observed(compute_times=(1.0, 1.0, 12.0))
    assert slow["mean"] > even["mean"]


def test_the_distribution_and_the_means_by_client_are_those_of_a_slow_count():
    summary, ages = observed(compute_times=(1.0, 2.0, 5.0))
    ranges = summary["distribution"]
    assert [row["from"] for row in ranges] == [2**k for k in range(len(ranges))]
    assert [row["to"] + 1 for row in ranges[:-1]] == [row["from"] for row in ranges[1:]]
    assert ranges[-1]["to"] == summary["largest"]
    for row in ranges:
        assert row["share"] == pytest.approx(sum(row["from"] <= a <= row["to"] for a in ages) / len(ages))
    means = list(summary["mean_by_client"].values())
    assert list(summary["mean_by_client"]) == ["client 1", "client 2", "client 3"]
    assert means == sorted(means), "the slower a client, the older its rows"
    assert min(means) < summary["mean"] < max(means)


@pytest.mark.parametrize("method", ["split", "compressed", "syn-zoo-vfl"])
def test_no_row_is_stale_where_all_clients_take_part(method):
    data = training_data(records=20, dtype=torch.float32)
    ages = StalenessObserver(20, 3, 24)
    train(data, METHODS[method].configure(**SMALL), seed=0, observers=(ages,))
    assert ages.summary() is None


def test_nothing_observed_is_no_figure():
    assert StalenessObserver(4, 2, 5).summary() is None
