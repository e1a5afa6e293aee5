"""What one record's label can do to what is released: sensitivity, noise, and nothing else."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.worlds import SMALL, saturated, two_worlds
from ..conftest import random_dataset, start_run, steps

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""

UPDATES = ["sgd", "zo", "joint-zo", "frozen"]


def scalars_of_both(config, labels, dataset, seed=0, rounds=1, **options):
    """Released scalars (rounds, 2) of one replica's randomness under both labellings, and the log."""
    run, log = start_run(config, seed=seed, replicas=(0, 0), labels=labels, dataset=dataset, **options)
    steps(run, rounds)
    return log.scalars(), log


def labels_of_record_3(dataset):
    """Labels (2, N) of two worlds: of record 3 they are 0 and 1."""
    labels = np.tile(dataset.train.labels, (2, 1))
    labels[:, 3] = (0, 1)
    return labels


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    record=st.integers(0, 7),
    other=st.integers(1, 2),
    update=st.sampled_from(UPDATES),
    clip=st.sampled_from([1e-3, 0.05, 10.0]),
    top_model=st.booleans(),
)
def test_one_label_moves_the_noiseless_scalar_by_at_most_2c_over_b(seed, record, other, update, clip, top_model):
    dataset = random_dataset(records=8, seed=seed)
    config = DPZVConfig(**{**SMALL, "clip": clip, "server_update": update, "top_model": top_model})
    labels = two_worlds(dataset, record, other)
    scalars, log = scalars_of_both(config, labels, dataset, seed=seed)
    difference = (scalars[0, 0] - scalars[0, 1]).abs().item()
    assert difference <= 2 * clip / config.batch_size * (1 + 1e-12)
    if record not in log.messages[-1].ids[0]:
        assert difference == 0.0


def test_a_saturating_record_reaches_2c_over_b():
    dataset = random_dataset(records=8)
    labels = labels_of_record_3(dataset)
    config = DPZVConfig(**SMALL, top_model=False)
    scalars, log = scalars_of_both(config, labels, dataset, rounds=4, behaviours=saturated(3))
    held = torch.stack([(m.ids == 3).any(1) for m in log.messages if m.kind == "scalar"])
    assert held.any()
    assert not held.all()
    expected = held[:, :1] * torch.tensor([-1.0, 1.0], dtype=torch.float64) * config.clip / config.batch_size
    assert torch.allclose(scalars, expected, rtol=0, atol=1e-15)


def test_the_one_sided_clip_exceeds_it():
    dataset = random_dataset(records=8)
    labels = labels_of_record_3(dataset)
    config = DPZVConfig(**SMALL, top_model=False, clip_rule="paper-one-sided")
    scalars, _ = scalars_of_both(config, labels, dataset, rounds=4, behaviours=saturated(3))
    assert (scalars[:, 0] - scalars[:, 1]).abs().max() > 100 * 2 * config.clip / config.batch_size


class Sending:
    """Sends a constant for one record, ordinary numbers for the others."""

    first_pass_repeats = 1

    def __init__(self, record, value):
        self.record, self.value = record, value

    def uploads(self, turn):
        generator = torch.Generator().manual_seed(turn.round)
        # The same numbers in every replica, so that replicas which differ in labels alone can be compared.
        both = torch.randn(turn.shape[1:], generator=generator, dtype=turn.dtype).repeat(turn.shape[0], 1, 1, 1)
        mask = (turn.batch.ids == self.record).unsqueeze(2)
        plus, minus = both.unbind(1)
        return torch.stack((plus.masked_fill(mask, self.value), minus.masked_fill(mask, -self.value)), 1)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e200, 1e308])
@pytest.mark.parametrize("update", ["joint-zo", "dp-sgd", "dp-zo", "frozen"])
def test_no_embedding_makes_the_channel_or_a_private_server_nan(value, update):
    """A malicious client that overflows the loss gets a scalar that moves no more than any, and w_0 stays a number."""
    dataset = random_dataset(records=8)
    labels = labels_of_record_3(dataset)
    config = DPZVConfig(**SMALL, server_update=update, server_noise_multiplier=1.0)
    behaviours = {m: Sending(3, value) for m in (1, 2, 3)}
    run, log = start_run(config, replicas=(0, 0), labels=labels, dataset=dataset, behaviours=behaviours)
    steps(run)
    scalars = log.scalars()
    assert scalars.isfinite().all()
    assert run.federation.server_parameters.flat.isfinite().all()
    first = scalars[0]
    assert (first[0] - first[1]).abs() <= 2 * config.clip / config.batch_size + 1e-12


def noise_in_scalars(replicas=(0, 1, 2), epochs=200, **options):
    """Noisy less noiseless scalars (rounds, K) of runs whose state the noise cannot reach."""
    base = {**SMALL, "client_rate": 0.0, "server_update": "frozen", "epochs": epochs, **options}
    both = []
    for sigma in (0.7, 0.0):
        run, log = start_run(DPZVConfig(**{**base, "sigma": sigma}), replicas=replicas, records=8)
        steps(run)
        both.append(log.scalars())
    return (both[0] - both[1]).numpy()


@pytest.mark.parametrize("sampler", ["shuffled", "poisson"])
def test_a_scalars_noise_has_variance_sigma_squared_not_divided_by_b(sampler):
    """Chi-square on 1,200 scalars, two-sided; products of neighbours in time and across replicas: level 1e-4 each."""
    noise = noise_in_scalars(sampler=sampler) / 0.7
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], noise.size)
    assert low < (noise**2).sum() < high
    quantile = stats.norm.isf(LEVEL / 2)
    successive = (noise[1:] * noise[:-1]).sum() / math.sqrt(noise[1:].size)
    across = (noise[:, :-1] * noise[:, 1:]).sum() / math.sqrt(noise[:, 1:].size)
    assert abs(successive) < quantile
    assert abs(across) < quantile


@pytest.mark.parametrize("noise", ["grid", "float"])
def test_noise_does_not_depend_on_labels_or_data(noise):
    """What noise adds is the same whole number of steps, whatever it is added to."""
    options = {**SMALL, "client_rate": 0.0, "server_update": "frozen", "noise": noise}
    noises = []
    for seed in (0, 1):
        dataset = random_dataset(records=8, seed=seed)
        both = []
        # Noise far below a step rounds to 0: what is left are the same whole numbers of steps.
        for sigma in (0.7, 1e-12 if noise == "grid" else 0.0):
            run, log = start_run(DPZVConfig(**{**options, "sigma": sigma}), dataset=dataset)
            steps(run)
            both.append(log.scalars())
        noises.append(both[0] - both[1])
    assert torch.allclose(*noises, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("clip", "batch"), [(0.1, 5), (10.0, 8)])
def test_what_is_released_is_a_whole_number_of_steps(clip, batch):
    """B Delta / g is whole, with g = C / 2^20, and so is each world's sum, of at most B 2^20 steps."""
    config = DPZVConfig(**{**SMALL, "sigma": 0.3, "clip": clip, "batch_size": batch})
    seen = []

    def noised(sums):
        seen.append(sums)
        return sums + 7

    run, log = start_run(config, noised=noised)
    steps(run)
    sums, scalars = torch.stack(seen), log.scalars()
    assert torch.equal(sums, sums.round())
    assert sums.abs().max() <= batch * 2**20
    assert torch.allclose(scalars * batch / clip * 2**20, sums + 7, rtol=0, atol=1e-8)
    run, log = start_run(config)
    steps(run)
    whole = log.scalars() * batch / clip * 2**20
    assert torch.allclose(whole, whole.round(), rtol=0, atol=1e-6)


def test_without_noise_the_scalar_is_the_clipped_mean_alone():
    config = DPZVConfig(**{**SMALL, "sampler": "uniform", "top_model": False})
    run, log = start_run(config, records=8, behaviours=saturated(99))
    steps(run)
    # All records send zeros, so that every difference is 0 and any noise would show.
    assert all(torch.equal(s, torch.zeros(1, dtype=torch.float64)) for s in log.payloads("scalar"))


def test_equal_released_scalars_mean_equal_server_states():
    """Post-processing: worlds with different labels whose scalars all saturate alike share every parameter."""
    dataset = random_dataset(records=8)
    labels = two_worlds(dataset, 3, 1)
    config = DPZVConfig(**{**SMALL, "server_update": "joint-zo", "clip": 1e-10, "sigma": 0.01})
    run, log = start_run(config, replicas=(0, 0), labels=labels, dataset=dataset)
    steps(run)
    # A clip this small makes the scalars equal to rounding, so states may differ by no more than that.
    scalars = log.scalars()
    assert (scalars[:, 0] - scalars[:, 1]).abs().max() <= 2e-10 / config.batch_size * (1 + 1e-3)
    flat = run.federation.server_parameters.flat
    assert torch.allclose(flat[0], flat[1], rtol=0, atol=1e-9)
