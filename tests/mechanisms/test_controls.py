import numpy as np
import pytest

from mechanisms.controls import RATE_GRID, frozen_clients, tuned_frozen_clients
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.methods.compressed import SplitConfig
from mechanisms.methods.dpzv import DPZVConfig

from ..helpers.built_in import train
from .conftest import random_dataset, training_data

SMALL = {"batch_size": 6, "epochs": 6, "embedding": 4, "hidden": 6, "dtype": "float64"}
BOTH = RunContext(seed=0, replicas=(0, 1))


@pytest.fixture
def data():
    return training_data(records=30, test=50)


def test_frozen_clients_is_dpzv_whose_clients_do_not_move(data):
    """At the same rate: clients at rate 0 and a table whose rows are their embeddings (h+ = h- in the limit)."""
    config = DPZVConfig(**SMALL, server_rate=0.1, sigma=0.0, client_rate=0.0, smoothing=1e-9)
    control = frozen_clients(data, config, BOTH, rate=0.1)
    trained = train(data, config, seed=0, replicas=(0, 1))
    assert np.array_equal(control.correct, trained.correct)
    other = frozen_clients(data, config, BOTH, rate=0.0)
    assert not np.array_equal(control.correct, other.correct)


@pytest.mark.parametrize("config", [DPZVConfig(**SMALL), SplitConfig(**SMALL)])
def test_the_tuned_control_is_the_best_in_training_of_its_grid(config, data):
    done = []
    at_rate, tuned = tuned_frozen_clients(data, config, BOTH, progress=done.append)
    rates = dict.fromkeys((config.server_rate, *RATE_GRID))
    tried = {rate: frozen_clients(data, config, BOTH, rate=rate) for rate in rates}
    assert at_rate.server_rate == config.server_rate
    assert np.array_equal(at_rate.correct, tried[config.server_rate].correct)
    assert tuned.train_accuracy == max(c.train_accuracy for c in tried.values())
    assert tuned.train_accuracy > at_rate.train_accuracy or tuned.server_rate == at_rate.server_rate
    assert done == list(range(1, len(rates) + 1))


def test_test_labels_choose_nothing():
    dataset = random_dataset(records=30, test=50)
    chosen = []
    for shift in (0, 1):
        data = training_data(dataset)
        data = TrainingData(
            data.features, data.labels, data.test_features, (data.test_labels + shift) % 3, data.classes
        )
        chosen.append(tuned_frozen_clients(data, DPZVConfig(**SMALL), RunContext(seed=0))[1].server_rate)
    assert chosen[0] == chosen[1]


def test_train_accuracy_is_of_the_training_labels():
    dataset = random_dataset(records=30)
    labels = np.stack([dataset.train.labels, np.zeros(30, dtype=np.int64)])
    data = training_data(dataset, labels=labels)
    config = DPZVConfig(**{**SMALL, "epochs": 60})
    constant = frozen_clients(data, config, BOTH, rate=0.2)
    shared = training_data(dataset)
    alone = frozen_clients(shared, config, RunContext(seed=0), rate=0.2)
    # The replica whose labels are all 0 learns them all, so the mean of both follows from the other alone.
    assert constant.train_accuracy == pytest.approx((1.0 + alone.train_accuracy) / 2)


def test_without_a_top_model_nothing_is_trained(data):
    config = DPZVConfig(**SMALL, top_model=False)
    controls = [frozen_clients(data, config, RunContext(seed=0), rate=rate) for rate in (0.0, 0.5)]
    assert np.array_equal(controls[0].correct, controls[1].correct)


@pytest.mark.ci
def test_the_best_rate_is_not_always_the_largest_or_the_last():
    """Rates tried last would pass for best ones in the test above if the largest always won."""
    best = set()
    for seed in range(6):
        data = training_data(records=30, seed=seed)
        _, tuned = tuned_frozen_clients(data, DPZVConfig(**{**SMALL, "epochs": 20}), RunContext(seed=seed))
        rates = (0.005, *RATE_GRID)
        tried = {
            rate: frozen_clients(data, DPZVConfig(**{**SMALL, "epochs": 20}), RunContext(seed=seed), rate=rate)
            for rate in rates
        }
        assert tuned.train_accuracy == max(c.train_accuracy for c in tried.values())
        best.add(tuned.server_rate)
    assert best - {RATE_GRID[-1]}
