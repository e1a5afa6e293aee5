"""Replicas are separate trainings: what one draws and learns does not depend on the stack it is in."""

import pytest
import torch

from mechanisms.core import streams
from mechanisms.core.replicas import shift_in_place
from mechanisms.core.streams import Directions
from mechanisms.methods import METHODS, dpzv_run
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import train
from ..conftest import MessageLog, random_dataset, same_models, start_run, steps, training_data

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


def outcome(config, replicas):
    """All that a run of `replicas` ends with, each with a leading replica axis."""
    run, log = start_run(config, replicas=replicas)
    steps(run)
    fed = run.federation
    table = fed.table[:-1].unflatten(0, (fed.stack, fed.records))
    flats = [client.parameters.flat for client in fed.clients]
    return [*flats, fed.server_parameters.flat, table, log.scalars(1)]


UPDATES = [
    *({"server_update": update} for update in ("sgd", "zo", "joint-zo", "frozen")),
    {"server_update": "dp-sgd", "server_noise_multiplier": 1.0},
    {"top_model": False},
]


OPTIONS = [
    *({**update, "sampler": sampler} for update in UPDATES for sampler in ("shuffled", "uniform", "poisson")),
    {"perturbation": "in-place"},
    {"perturbation": "in-place", "momentum": 0.0},
    {"activation": "random", "activation_probabilities": (0.5, 0.3, 0.2)},
    {"compute_times": (1.0, 2.0, 3.0)},
    {"directions": 2, "server_update": "joint-zo"},
    {"participation_cap": 2},
    {"distinct_ids": True, "participation_cap": 3, "sampler": "poisson"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_replica_is_the_same_run_alone(options):
    chunks = [(0,), (1, 2, 3), (4, 0, 3, 1, 2)]
    results = [outcome(DPZVConfig(**SMALL, **options), chunk) for chunk in chunks]
    for alone, three, five in zip(*results, strict=True):
        assert torch.allclose(alone[0], five[1], rtol=0, atol=TOLERANCE)
        for place, replica in enumerate(chunks[1]):
            assert torch.allclose(three[place], five[chunks[2].index(replica)], rtol=0, atol=TOLERANCE)
    # Replicas are not one and the same run.
    assert not torch.isclose(five[0], five[1]).any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("width", "embedding", "epochs", "large"), [(3, 3, 13, None), (300, 60, 2, None), (3, 3, 2, 0)]
)
def test_in_place_agrees_with_functional_in_float64(momentum, width, embedding, epochs, large, monkeypatch):
    """Notes of direction and model too; of a client of more than 2^14 parameters u is drawn again piece by piece.

    A large client takes the last shift back with its step, and says of its model what it is without that shift.
    """
    passes = []
    if large is not None:
        monkeypatch.setattr(streams, "LARGE", large)
    monkeypatch.setattr(MessageLog, "reads_notes", ("direction", "model"), raising=False)
    monkeypatch.setattr(dpzv_run, "shift_in_place", lambda *a: [passes.append(a), shift_in_place(*a)])
    config = {**SMALL, "epochs": epochs, "embedding": embedding, "momentum": momentum}
    runs = []
    for perturbation in ("functional", "in-place"):
        run, log = start_run(DPZVConfig(**config, perturbation=perturbation), replicas=(0, 1), width=width, clients=2)
        steps(run)
        clients = run.federation.clients
        assert (clients[0].parameters.flat.shape[1] > 2**14) == (width == 300)
        values = [client.parameters.flat for client in clients] + [value for *_, value in log.notes]
        runs.append((values, [note[:3] for note in log.notes]))
    assert runs[0][1] == runs[1][1]
    assert len(runs[0][1]) == 2 * run.round + len(clients)  # clients fill the table first
    merged = large is not None and momentum == 0.0
    assert (
        len(passes) == (4 if momentum == 0.0 and not merged else 3) * run.round
    )  # momentum steps in a pass of its own
    for functional, in_place in zip(runs[0][0], runs[1][0], strict=True):
        assert torch.allclose(functional, in_place, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    "config",
    [
        *(DPZVConfig(**SMALL, **o) for o in ({}, {"momentum": 0.0}, {"directions": 3}, {"server_update": "joint-zo"})),
        METHODS["zoo-vfl"].configure(batch_size=6, epochs=3, embedding=3, dtype="float64", momentum=0.5),
    ],
    ids=range(5),
)
def test_steps_along_pieces_of_a_direction_are_those_along_the_whole(config, monkeypatch):
    def pieces(directions, round_):
        whole = directions.at(round_)
        for start in range(0, directions.d, 7):
            stop = min(start + 7, directions.d)
            yield start, stop, whole[:, start:stop]

    data = training_data(width=5, clients=2)
    wanted = train(data, config, seed=0, replicas=(0, 1))
    monkeypatch.setattr(Directions, "parts", pieces)
    assert same_models(wanted, train(data, config, seed=0, replicas=(0, 1)), atol=1e-13)


def test_a_label_by_replica_reaches_its_replica_alone():
    dataset = random_dataset()
    labels = torch.from_numpy(dataset.train.labels).repeat(3, 1)
    labels[1] = (labels[1] + 1) % 3
    runs = []
    for given_labels in (labels.numpy(), None):
        run, log = start_run(DPZVConfig(**SMALL), replicas=(0, 1, 2), labels=given_labels, dataset=dataset)
        steps(run)
        runs.append(log.scalars(1))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][2], runs[1][2])
    # Dead units make a few scalars noise alone, whatever the labels.
    assert torch.isclose(runs[0][1], runs[1][1]).double().mean() < 0.5


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
