"""What tests of attacks share: one thread, the digits, a small random data set, and settings on it."""

import numpy as np
import pytest
import torch

from attacks.core.setting import AttackSetting
from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset
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
        config=method.configure(**{**base, **(options or {})}),
        dataset=data or random_dataset(),
        confidence=CONFIDENCE,
        options=options_of_attack or {},
        **{"adversary": spec.adversaries[0], "trials": 4, **rest},
    )
