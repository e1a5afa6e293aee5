"""What tests of attacks share: one thread, the digits, a small random data set, and settings on it."""

import numpy as np
import pytest
import torch

from attacks.core import setting as setting_module
from attacks.core.setting import AttackSetting
from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.statistics.estimators import audit_scores
from mechanisms import METHODS
from mechanisms.methods.dpzv import DPZVConfig

CONFIDENCE = 1 - 1e-4
"""Every interval of a test here misses the truth with probability at most 1e-4."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digits():
    return load("digits")


def random_dataset(records=48, clients=3, classes=4, seed=0, held_out=4):
    """Features that tell nothing about the labels."""
    generator = np.random.default_rng(seed)

    def part(count):
        blocks = tuple(generator.uniform(-1, 1, (count, 3)).astype(np.float32) for _ in range(clients))
        return Records(features=blocks, labels=generator.integers(classes, size=count))

    return VerticalDataset("random", part(records), part(held_out), classes, "random blocks", {})


def small_setting(spec, method="dpzv", data=None, *, options=None, options_of_attack=None, **rest):
    """`spec` on `method`, small, with what the attack requires; no noise unless asked for."""
    method = METHODS[method]
    base = {"batch_size": 8, "epochs": 6, **spec.needs.requires}
    if method.config is DPZVConfig and "sigma" not in (options or {}):
        base["calibration"] = "none"
    return AttackSetting(
        method=method,
        config=method.configure(**method.used(base) | (options or {})),
        dataset=data or random_dataset(),
        confidence=CONFIDENCE,
        options=options_of_attack or {},
        **{"adversary": spec.adversaries[0], "trials": 4, **rest},
    )


def mount(spec, *arguments, with_positive=False, **options):
    """The outcome of `spec` in a small setting."""
    return spec.mount(small_setting(spec, *arguments, with_positive=with_positive, **options))


def certified(game, seed=0, **options):
    """Epsilon that a game of coins certifies."""
    options = {"delta": 1e-5, "estimators": ("one-run",), "coin_flips": True, "seed": seed, **options}
    (bound,) = audit_scores(game.on_one, game.on_zero, **options)
    return bound.epsilon_lower


@pytest.fixture
def largest_stack(monkeypatch):
    """A function: as if no more than so many trainings fit into memory; returns the list of stacks that are tried."""

    def plant(most):
        train, stacks = setting_module.train, []

        def too_small(method, data, config, context):
            stacks.append(len(context.replicas))
            if len(context.replicas) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return train(method, data, config, context)

        monkeypatch.setattr(setting_module, "train", too_small)
        return stacks

    return plant
