"""Every defence: a run that is taken up from a checkpoint goes on as if nothing had happened."""

import numpy as np
import pytest
import torch

from mechanisms import METHODS
from mechanisms.core.checkpoint import load_checkpoint, save_checkpoint
from mechanisms.core.context import RunContext
from mechanisms.core.noise import SecretBits
from mechanisms.defences import DEFENCES

from ..conftest import steps, training_data

SMALL = {"batch_size": 8, "epochs": 2, "embedding": 4, "hidden": 6}
WHERE = {
    "labels": ("split", "dpzv", "zoo-vfl", "czofo"),
    "embedding": ("split", "vafl", "compressed"),
    "gradient": ("split", "vafl", "compressed"),
}
CASES = [(name, method) for name, spec in DEFENCES.items() for method in WHERE[spec.settings.place]]


@torch.no_grad()
@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(name, method):
    data = training_data(records=64, clients=2, classes=2, dtype=torch.float32)
    spec = METHODS[method]
    config = spec.configure(**SMALL, defences={"name": name})
    key = SecretBits().key
    whole, first, second = (
        spec.start(data, config, RunContext(seed=0, origin=SecretBits(key), replicas=(0, 1))) for _ in range(3)
    )
    steps(whole, 9)
    steps(first, 4)
    load_checkpoint(second, save_checkpoint(first, [], "key"), "key")
    steps(second, 5)
    for expected, actual in zip(whole.federation.optimizers, second.federation.optimizers, strict=True):
        assert torch.equal(expected.parameters.flat, actual.parameters.flat)
    expected, actual = (run.federation.finish(9, []) for run in (whole, second))
    assert np.array_equal(expected.correct, actual.correct)
    assert np.array_equal(expected.loss, actual.loss)
    defended = whole.own_tensors().get("defended-messages")
    assert (defended is not None) == (DEFENCES[name].settings.place == "gradient")
