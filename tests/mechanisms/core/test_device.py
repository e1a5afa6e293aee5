"""Trainings on a device of their own: to the same numbers, and nothing that they need is left on the machine."""

import numpy as np
import pytest
import torch

from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms import METHODS
from mechanisms.controls import PrivateControlConfig, frozen_clients, private_frozen_clients
from mechanisms.core import streams
from mechanisms.core.channel import StalenessObserver
from mechanisms.core.checkpoint import load_checkpoint, save_checkpoint
from mechanisms.core.context import RunContext, TrainingData, dtype_of

from ...helpers.built_in import new_run, train
from ...helpers.pretended import OnDevice, pretended_cuda, waits
from ..conftest import random_dataset

SMALL = {"batch_size": 8, "epochs": 2, "embedding": 4, "hidden": 5}

VARIANTS = [
    *((method, {}) for method in METHODS),
    ("dpzv", {"server_update": "zo"}),
    ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}),
    ("dpzv", {"server_update": "dp-zo", "server_noise_multiplier": 1.0}),
    ("dpzv", {"perturbation": "in-place"}),
    ("dpzv", {"directions": 2, "activation": "random"}),
    ("dpzv", {"sampler": "poisson", "participation_cap": 2, "distinct_ids": True}),
    ("compressed", {"forward_bits": 2, "local_steps": 2}),
    ("split", {"sampler": "poisson", "dp": "embedding", "dp_sigma": 0.5}),
    ("vafl", {"dp": "gradient", "dp_sigma": 0.5, "top_model": False}),
    ("vafl", {"dp": "embedding-batch", "dp_sigma": 0.5}),
    ("zoo-vfl", {"dp": "embedding", "dp_sigma": 0.5, "direction": "sphere"}),
    ("czofo", {"scalars": "record", "forward_bits": 4, "backward_bits": 8}),
]

ONE_ROUND = ("fixed-features", "feature-private", "label-private", "one-upload")
"""Methods whose rounds are not many: what is uploaded once is made on the machine."""


def trained_on(device, dataset, config, replicas=(0, 1)):
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=device)
    return train(data, config, seed=0, replicas=replicas, device=device, evaluate_epochs=True)


def check_same_on_both(dataset, config, *, atol=0.0, **rest):
    here = trained_on("cpu", dataset, config, **rest)
    with pretended_cuda():
        there = trained_on("cuda", dataset, config, **rest)
    assert np.allclose(there.history, here.history, rtol=0, atol=atol)
    for mine, its in zip((*here.clients, here.server), (*there.clients, there.server), strict=True):
        assert isinstance(its.flat, OnDevice)
        assert torch.allclose(its.flat.held, mine.flat, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, options) for method, options in VARIANTS if method not in ONE_ROUND),
        ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0, "noise": "float"}),
        ("dpzv-sound", {"direction": "rademacher"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("large", [False, True])
def test_no_round_waits_for_the_device(method, options, large, monkeypatch):
    """Rounds of several blocks of batches, directions and noise; those of large models' directions too."""
    monkeypatch.setattr(streams, "LARGE", 0 if large else streams.LARGE)
    config = METHODS[method].configure(**METHODS[method].used(SMALL | {"epochs": 20}) | options)
    with pretended_cuda(), torch.no_grad():
        data = TrainingData.of(random_dataset(), dtype=dtype_of(config), device="cuda")
        ages = StalenessObserver(data.records, len(data.features), 100)
        run = new_run(data, config, seed=0, replicas=(0, 1), device="cuda", observers=(ages,))
        run.step()
        waits.clear()
        for _ in range(12):
            run.step()
        assert waits == []
        ages.summary()
        assert waits == ["a copy from the device"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("method", [method for method in METHODS if method not in ONE_ROUND])
def test_no_round_waits_for_a_gpu(method):
    """As above, where torch itself looks for what waits."""
    config = METHODS[method].configure(**METHODS[method].used(SMALL | {"epochs": 20}))
    with torch.no_grad():
        data = TrainingData.of(random_dataset(), dtype=dtype_of(config), device="cuda")
        run = new_run(data, config, seed=0, replicas=(0, 1), device="cuda")
        run.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(12):
                run.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def images(*shape):
    """Two clients' random images."""
    return random_dataset(records=16, clients=2, classes=2, width=shape)


def tokens(most=9):
    """Two clients' random token ids."""
    generator = np.random.default_rng(0)

    def part(count):
        drawn = tuple(generator.integers(most, size=(count, 6)) for _ in range(2))
        return Records(features=drawn, labels=generator.integers(2, size=count))

    return VerticalDataset("tokens", part(16), part(4), 2, "random blocks", {}, vocabulary=most)


@pytest.mark.parametrize(("method", "options"), VARIANTS, ids=str)
def test_a_method_trains_on_a_device(method, options):
    check_same_on_both(random_dataset(), METHODS[method].configure(**METHODS[method].used(SMALL) | options))


@pytest.mark.parametrize("method", ["split", "dpzv"])
@pytest.mark.parametrize(
    ("dataset", "model"),
    [
        (images(1, 14, 28), {}),
        (images(3, 16, 16), {}),
        pytest.param(images(3, 4, 4), {"client_model": "resnet18-stem", "embedding": 32 * 16}, marks=pytest.mark.slow),
    ],
    ids=["strip-cnn", "patch-cnn", "resnet18-stem"],
)
def test_convolutions_train_on_a_device(method, dataset, model):
    """There a stack of them goes under vmap, which adds numbers up in another order."""
    config = METHODS[method].configure(**{**SMALL, "epochs": 1, "dtype": "float64", **model})
    check_same_on_both(dataset, config, atol=1e-6)


@pytest.mark.parametrize("method", ["split", "dpzv"])
def test_tokens_train_on_a_device(method):
    """One training at a time: under vmap torch makes indices that the pretended device knows nothing of."""
    check_same_on_both(tokens(), METHODS[method].configure(**SMALL), replicas=(0,))


def test_controls_train_on_a_device():
    dataset = random_dataset()
    config = METHODS["vafl"].configure(**SMALL)
    private = PrivateControlConfig(epsilon=1.0, delta=1e-5, steps=3)

    def controls(device):
        data = TrainingData.of(dataset, dtype=torch.float32, device=device)
        context = RunContext(seed=0, replicas=(0, 1), device=device)
        frozen = frozen_clients(data, config, context, rate=0.1)
        logits = private_frozen_clients(data, private, RunContext(seed=0, device=device))
        return frozen.correct, logits.argmax(2).cpu().numpy()

    here = controls("cpu")
    with pretended_cuda():
        there = controls("cuda")
    assert all(np.array_equal(mine, its) for mine, its in zip(here, there, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_saved_from_a_device_and_taken_up_on_it(method):
    config = METHODS[method].configure(**METHODS[method].used(SMALL))
    with pretended_cuda():
        data = TrainingData.of(random_dataset(), dtype=dtype_of(config), device="cuda")
        first, second = (new_run(data, config, seed=0, replicas=(0,), device="cuda") for _ in range(2))
        first.step()
        load_checkpoint(second, save_checkpoint(first, [], "key"), "key")
        for run in (first, second):
            run.step()
        for mine, its in zip(first.federation.clients, second.federation.clients, strict=True):
            assert torch.equal(mine.parameters.flat, its.parameters.flat)
