"""Replicas are separate trainings: what one draws and learns does not depend on the stack it is in."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.core.streams import Directions
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import train
from ..conftest import random_dataset, start_run, steps, training_data

TOLERANCE = 1e-10
SMALL = {
    "batch_size": 6,
    "epochs": 3,
    "embedding": 3,
    "hidden": 4,
    "dtype": "float64",
    "sigma": 0.05,
    "client_rate": 0.02,
    "server_rate": 0.05,
}
UPDATES = {
    "sgd": {"server_update": "sgd"},
    "zo": {"server_update": "zo"},
    "joint-zo": {"server_update": "joint-zo"},
    "frozen": {"server_update": "frozen"},
    "dp-sgd": {"server_update": "dp-sgd", "server_noise_multiplier": 1.0},
}


def outcome(config, replicas, seed=0):
    """All that a run of `replicas` ends with, each with a leading replica axis."""
    run, log = start_run(config, seed=seed, replicas=replicas)
    steps(run)
    fed = run.federation
    table = fed.table[:-1].unflatten(0, (fed.stack, fed.records))
    flats = [client.parameters.flat for client in fed.clients]
    return [*flats, fed.server_parameters.flat, table, torch.stack(log.payloads("scalar"), 1)]


def check(config, seed=0):
    chunks = [(0,), (1, 2, 3), (4, 0, 3, 1, 2)]
    results = [outcome(config, chunk, seed) for chunk in chunks]
    for part, values in enumerate(results[2]):
        alone = results[0][part]
        three = results[1][part]
        assert torch.allclose(alone[0], values[1], rtol=0, atol=TOLERANCE)
        for place, replica in enumerate(chunks[1]):
            assert torch.allclose(three[place], values[chunks[2].index(replica)], rtol=0, atol=TOLERANCE)
    # Replicas are not one and the same run.
    scalars = results[2][-1]
    assert not torch.isclose(scalars[0], scalars[1]).any()


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("update", UPDATES)
def test_a_replica_is_the_same_run_alone(update, sampler):
    check(DPZVConfig(**SMALL, **UPDATES[update], sampler=sampler))


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
def test_a_replica_is_the_same_run_alone_without_a_top_model(sampler):
    check(DPZVConfig(**SMALL, top_model=False, sampler=sampler))


@pytest.mark.parametrize(
    "options",
    [
        {"perturbation": "in-place"},
        {"perturbation": "in-place", "momentum": 0.0},
        {"activation": "random", "activation_probabilities": (0.5, 0.3, 0.2)},
        {"compute_times": (1.0, 2.0, 3.0)},
        {"directions": 2, "server_update": "joint-zo"},
        {"participation_cap": 2},
        {"distinct_ids": True, "participation_cap": 3, "sampler": "poisson"},
    ],
    ids=str,
)
def test_a_replica_is_the_same_run_alone_whatever_the_options(options):
    check(DPZVConfig(**SMALL, **options))


@settings(derandomize=True, deadline=None, max_examples=6)
@given(st.integers(0, 2**40))
def test_a_replica_is_the_same_run_alone_for_any_seed(seed):
    check(DPZVConfig(**SMALL), seed=seed)


def test_equal_seeds_give_identical_results_and_others_do_not():
    config = DPZVConfig(**SMALL)
    first, again, other = (outcome(config, (0, 1), seed) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.isclose(a, b).all() for a, b in zip(first, other, strict=True))


def test_a_label_by_replica_reaches_its_replica_alone():
    dataset = random_dataset()
    labels = torch.from_numpy(dataset.train.labels).repeat(3, 1)
    labels[1] = (labels[1] + 1) % 3
    runs = []
    for given_labels in (labels.numpy(), None):
        run, log = start_run(DPZVConfig(**SMALL), replicas=(0, 1, 2), labels=given_labels, dataset=dataset)
        steps(run)
        runs.append(torch.stack(log.payloads("scalar"), 1))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][2], runs[1][2])
    # Dead units make a few scalars noise alone, whatever the labels.
    assert torch.isclose(runs[0][1], runs[1][1]).double().mean() < 0.5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_in_place_agrees_with_functional_in_float64(momentum):
    config = {**SMALL, "epochs": 13, "momentum": momentum}
    results = [
        outcome(DPZVConfig(**config, perturbation=perturbation), (0, 1)) for perturbation in ("functional", "in-place")
    ]
    assert results[0][-1].shape == (2, 52)
    for functional, in_place in zip(*results, strict=True):
        assert torch.allclose(functional, in_place, rtol=0, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_in_place_drifts_little_from_functional_in_float32(momentum):
    """1,000 rounds of three in-place shifts each, at the default rates: rounding of 1e-7 a shift may add up to 1e-4."""
    config = {
        **SMALL,
        "dtype": "float32",
        "epochs": 250,
        "momentum": momentum,
        "client_rate": 5e-4,
        "server_rate": 5e-3,
    }
    run_of = {}
    for perturbation in ("functional", "in-place"):
        run, _ = start_run(DPZVConfig(**config, perturbation=perturbation), replicas=(0, 1))
        start = [client.parameters.flat.clone() for client in run.federation.clients]
        steps(run)
        assert run.round == 1000
        run_of[perturbation] = run.federation.clients
    for first, second, begin in zip(run_of["functional"], run_of["in-place"], start, strict=True):
        drift = (first.parameters.flat - second.parameters.flat).abs().max()
        moved = (first.parameters.flat - begin).abs().max()
        assert 0 < drift < 0.02 * moved
        assert moved > 2e-3


def test_in_place_steps_of_large_models_redraw_the_direction_in_pieces():
    """A client of more than 2^14 parameters, whose direction is drawn again piece by piece in every shift."""
    config = {**SMALL, "epochs": 2, "embedding": 60, "dtype": "float64"}
    for momentum in (0.0, 0.9):
        clients = []
        for perturbation in ("functional", "in-place"):
            run, _ = start_run(DPZVConfig(**config, momentum=momentum, perturbation=perturbation), width=300, clients=2)
            assert run.federation.clients[0].parameters.flat.shape[1] > 2**14
            steps(run)
            clients.append(run.federation.clients)
        for first, second in zip(*clients, strict=True):
            assert torch.allclose(first.parameters.flat, second.parameters.flat, rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [3, 300])
def test_in_place_clients_note_the_direction_that_they_step_along(width):
    """A client's view must hold u however it perturbs; for a large model u is put together for the reader alone."""
    config = {**SMALL, "epochs": 2, "embedding": 60, "dtype": "float64"}
    notes = []
    for perturbation in ("functional", "in-place"):
        run, log = start_run(DPZVConfig(**config, perturbation=perturbation), replicas=(0, 1), width=width, clients=2)
        steps(run)
        notes.append(log.notes)
    assert [note[:3] for note in notes[0]] == [note[:3] for note in notes[1]]
    assert len(notes[0]) == run.round
    for (*_, functional), (*_, in_place) in zip(*notes, strict=True):
        assert torch.allclose(functional, in_place, rtol=1e-12)


def test_a_large_direction_is_not_held_where_nobody_reads_notes(monkeypatch):
    data = training_data(width=300, clients=2)
    config = DPZVConfig(**{**SMALL, "embedding": 60, "dtype": "float64", "momentum": 0.0}, perturbation="in-place")

    def whole(directions, round_):
        assert directions._rounds > 1, "a direction of a large model was held whole"
        return held(directions, round_)

    held = Directions.at
    monkeypatch.setattr(Directions, "at", whole)

    class Blind:
        def on_message(self, message):
            pass

    train(data, config, seed=0, observers=(Blind(),))
