"""Replicas that are trained in several stacks, for want of memory, end as those of one."""

import numpy as np
import pytest
import torch

from mechanisms import METHODS
from mechanisms import train as train_method
from mechanisms.controls import frozen_clients
from mechanisms.core import training
from mechanisms.core.checkpoints import FileCheckpoints
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.training import train_in_stacks

from ...helpers.built_in import train
from ..conftest import same_models, training_data

SMALL = {"batch_size": 5, "epochs": 3, "embedding": 4, "hidden": 6, "dtype": "float64"}
TRIALS = 5
FULL = "CUDA out of memory. Tried to allocate 20.00 MiB."


@pytest.fixture
def data():
    return training_data(records=23)


@pytest.fixture
def room_for_two(monkeypatch):
    """Planted: no more than two trainings fit; the sizes of the stacks that were tried."""
    tried = []

    def too_small(method, data, config, context, **options):
        tried.append(len(context.replicas))
        if len(context.replicas) > 2:
            raise torch.OutOfMemoryError(FULL)
        return train_method(method, data, config, context, **options)

    monkeypatch.setattr(training, "train", too_small)
    return tried


def close(one, other):
    return pytest.approx(other, rel=1e-9, abs=1e-12) == one


def assert_same(first, second):
    assert same_models(first, second, rtol=1e-9, atol=1e-12)
    assert [client.layout for client in first.clients] == [client.layout for client in second.clients]
    assert np.array_equal(first.correct, second.correct)
    assert close(first.loss, second.loss)
    assert (first.rounds, first.rounds_by_client) == (second.rounds, second.rounds_by_client)
    assert first.ledger == second.ledger
    assert len(first.history) == len(second.history) > 0
    for a, b in zip(first.history, second.history, strict=True):
        assert a[0] == b[0]
        assert close(a, b)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((name, {}) for name in METHODS),
        ("dpzv", {"sampler": "poisson", "sigma": 0.1}),
        ("vafl", {"sampler": "poisson"}),
    ],
)
def test_where_memory_runs_out_replicas_train_in_halves_to_the_same_numbers(method, options, data, room_for_two):
    config = METHODS[method].configure(**METHODS[method].used(SMALL), **options)
    heard, notes = [], []
    whole = train(data, config, seed=3, replicas=range(TRIALS), evaluate_epochs=True)
    method = METHODS[method]
    halved, at_once = train_in_stacks(
        method, data, config, RunContext(seed=3, replicas=range(TRIALS), progress=heard.append), on_epoch=notes.append
    )
    assert at_once == 2
    assert room_for_two == [TRIALS, 2, 2, 1]
    assert_same(halved, whole)
    if options.get("sampler") == "poisson":  # bytes differ by replica: a mean of rounded means
        assert np.abs(np.subtract(halved.traffic, whole.traffic)).max() <= 1
    else:
        assert halved.traffic == whole.traffic
    assert heard == sorted(heard)
    assert heard[-1] == whole.rounds
    assert [note.split(",")[0] for note in notes[:: config.epochs]] == [
        "trainings 1 to 2",
        "trainings 3 to 4",
        "trainings 5 to 5",
    ]


def test_with_room_for_all_one_stack_is_trained(data):
    method, notes = METHODS["dpzv"], []
    config = method.configure(**SMALL)
    done, at_once = train_in_stacks(
        method, data, config, RunContext(seed=3, replicas=range(3), progress=lambda r: None), on_epoch=notes.append
    )
    assert at_once is None
    assert_same(done, train(data, config, seed=3, replicas=range(3), evaluate_epochs=True))
    assert notes[0].startswith("epoch 1: accuracy ")


def test_models_of_all_that_memory_cannot_hold_are_refused_before_the_first(data, room_for_two):
    config = METHODS["dpzv"].configure(**SMALL)
    with pytest.raises(MemoryError, match="models of 1000000000000 trainings"):
        train_in_stacks(
            METHODS["dpzv"], data, config, RunContext(seed=0, replicas=range(10**12), progress=lambda r: None)
        )
    assert not room_for_two


class CutOff(Exception):
    """Stands for whatever ended a run."""


def test_stacks_that_were_cut_off_are_taken_up_each_where_it_was(data, room_for_two, tmp_path):
    config = METHODS["dpzv"].configure(**SMALL, momentum=0.5)
    files = FileCheckpoints(tmp_path / "c", "key", resume=True)

    def go_on(files, on_epoch=lambda note: None):
        return train_in_stacks(
            METHODS["dpzv"],
            data,
            config,
            RunContext(seed=3, replicas=range(TRIALS), progress=lambda done: None),
            on_epoch=on_epoch,
            checkpoints=lambda first, last: files.of_stack(first, last, TRIALS),
        )

    def cut(note):
        if note.startswith("trainings 3 to 4, epoch 3"):
            raise CutOff

    with pytest.raises(CutOff):
        go_on(files, cut)
    assert sorted(path.name for path in files.path.parent.iterdir()) == [
        "key-0-2.safetensors",
        "key-2-4.safetensors",
    ]
    assert (
        files.kept(3) == f"memory ran out, but 5 epochs of 2 smaller stacks are kept in {tmp_path}/c/key-*.safetensors"
    )
    assert files.resumed_at == 0
    again, notes = FileCheckpoints(tmp_path / "c", "key", resume=True), []
    resumed, at_once = go_on(again, notes.append)
    assert at_once == 2
    assert again.resumed_at == 2
    assert [note.split(":")[0] for note in notes] == [
        "trainings 3 to 4, epoch 3",
        *(f"trainings 5 to 5, epoch {epoch}" for epoch in (1, 2, 3)),
    ]
    assert_same(resumed, train(data, config, seed=3, replicas=range(TRIALS), evaluate_epochs=True))
    (tmp_path / "c" / "other.safetensors").touch()
    again.remove()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["other.safetensors"]


def test_frozen_clients_in_pieces_are_those_of_one_stack(data):
    config = METHODS["split"].configure(**SMALL)
    labels = torch.stack([(data.labels + k) % 3 for k in range(TRIALS)])
    for some in (data, TrainingData(data.features, labels, data.test_features, data.test_labels, data.classes)):
        whole, pieces = (
            frozen_clients(some, config, RunContext(seed=1, replicas=range(TRIALS)), rate=0.3, at_once=at_once)
            for at_once in (None, 2)
        )
        assert np.array_equal(pieces.correct, whole.correct)
        assert np.array_equal(pieces.fitted, whole.fitted)
        assert whole.fitted.shape == (TRIALS, 23)
