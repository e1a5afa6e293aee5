"""Noise draws from streams that nothing else draws from: independent over parties, replicas, chunks and processes."""

import math
import os
import sys
from collections import Counter

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from joblib import Parallel, delayed
from scipy import stats

import dpzv_audit.base.seeds as seeds
from dpzv_audit.base.seeds import PRIVATE, Purpose, stream
from mechanisms import METHODS
from mechanisms.core.defence import DEFENCES
from mechanisms.core.noise import GaussianNoise, SecretBits, normal_of
from mechanisms.core.streams import Streams

from ...helpers.built_in import train
from ..conftest import training_data

# Workers cannot import tests by name: what they run of this file travels with its code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LEVEL = 1e-4
"""False-alarm rate of every statistical test here; all but one have fixed seeds."""

SMALL = {"batch_size": 5, "epochs": 2, "embedding": 4, "hidden": 6}
NOISY = [
    ("dpzv", {}),
    ("dpzv", {"sampler": "poisson", "sigma": 0.3, "activation": "random"}),
    ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}),
    ("dpzv", {"server_update": "dp-zo", "server_noise_multiplier": 1.0}),
    ("dpzv-sound", {"epsilon": 4.0}),
    ("dp-zo", {"sigma": 0.3}),
    ("split", {"dp": "gradient", "dp_sigma": 0.3}),
    ("compressed", {"dp": "embedding", "dp_sigma": 0.3, "local_steps": 2}),
    ("vafl", {"dp": "embedding", "dp_sigma": 0.3}),
    ("zoo-vfl", {"dp": "embedding", "dp_sigma": 0.1}),
    ("syn-zoo-vfl", {"dp": "embedding-batch", "epsilon": 4.0}),
    ("cascaded", {"dp": "embedding", "dp_sigma": 0.1, "sampler": "uniform"}),
    ("czofo", {"dp": "embedding-batch", "dp_sigma": 0.3}),
    ("fixed-features", {"features": "random"}),
    ("feature-private", {}),
]
noisy = pytest.mark.parametrize(
    ("method", "options"), NOISY, ids=[f"{m}-{'-'.join(map(str, o.values()))}" for m, o in NOISY]
)
MAKERS_OF_NOISE = {"mechanisms.core.noise"}


@pytest.fixture
def data():
    return training_data(records=23, dtype=torch.float32)


@pytest.fixture
def opened(monkeypatch):
    """Every (purpose, key, seed) that any module of the mechanisms opens a stream for, and which module did."""
    streams = []
    assert [*METHODS.values(), *DEFENCES.values()]  # whose modules are imported when they are looked up

    def watched(seed, purpose, *key):
        streams.append((purpose, key, seed, sys._getframe(1).f_globals["__name__"]))
        return stream(seed, purpose, *key)

    for module in [module for name, module in sys.modules.items() if name.startswith("mechanisms.")]:
        if getattr(module, "stream", None) is stream:
            monkeypatch.setattr(module, "stream", watched)
    return streams


@noisy
def test_a_stream_of_noise_is_opened_once_and_by_nothing_else(method, options, data, opened):
    """Over a whole training: no public randomness comes from a stream of noise, and none is drawn from twice."""
    train(data, METHODS[method].configure(**METHODS[method].used(SMALL), **options), seed=5, replicas=(0, 3))
    noise = [(purpose, key) for purpose, key, *_ in opened if purpose in PRIVATE]
    assert noise
    assert set(Counter(noise).values()) == {1}
    assert {module for purpose, *_, module in opened if purpose in PRIVATE} == MAKERS_OF_NOISE
    assert not {module for purpose, *_, module in opened if purpose not in PRIVATE} & MAKERS_OF_NOISE


def test_streams_of_other_purposes_keys_and_seeds_are_other_streams():
    """First draws of 1,500 streams: that two of 2^53 values agree by chance has probability 1e-10."""
    keys = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (2**32 - 1,), (1, 0, 0), (0, 1, 0), *((n, 2) for n in range(30))]
    first = {
        (seed, purpose, key): stream(seed, purpose, *key).random()
        for seed in (0, 1, 2**40)
        for purpose in Purpose
        for key in keys
    }
    assert len(set(first.values())) == len(first)


@pytest.mark.parametrize(("seed", "key"), [(0, (2**32,)), (0, (0, 2**40)), (0, (-1,)), (-1, (0,))])
def test_what_numpy_would_cut_into_words_of_another_stream_is_refused(seed, key):
    with pytest.raises(ValueError, match="use at least 0, the key below"):
        stream(seed, Purpose.NOISE, *key)


@given(
    seed=st.integers(0, 2**300) | st.sampled_from([0, 7, 2**32 - 1, 2**32, 2**64, 2**128 - 1, 2**128, 2**160]),
    key=st.lists(st.integers(0, 2**32 - 1), max_size=4),
)
def test_the_generator_is_the_documented_one(seed, key):
    """Philox 4x64, keyed by numpy's SeedSequence of the seed and (purpose, key)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(Purpose.NOISE, *key))
    by_hand = np.random.Generator(np.random.Philox(key=sequence.generate_state(2, np.uint64)))
    assert (stream(seed, Purpose.NOISE, *key).standard_normal(8) == by_hand.standard_normal(8)).all()


def test_a_stream_draws_known_numbers():
    assert stream(0, Purpose.NOISE, 0, 0).standard_normal(3).tolist() == KNOWN


KNOWN = [-1.071868262923102, 0.6021455503714446, 0.6593081452953523]


def noise_of(replicas, rounds=2048, **options):
    streams = Streams(seed=11, replicas=tuple(replicas), dtype=torch.float64)
    source = GaussianNoise(1.0, streams, **options)
    return torch.stack([source.next() for _ in range(rounds)]).flatten(1).T.numpy()


def check_independent(rows):
    """Every pair of rows: x.y / |y| is exactly N(0, 1) for independent standard normal rows. Level 1e-4 over all."""
    normed = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    statistics = (rows @ normed.T)[np.triu_indices(len(rows), 1)]
    assert np.abs(statistics).max() < stats.norm.isf(LEVEL / 2 / statistics.size)


def test_chunks_replicas_and_server_have_independent_noise():
    """48 replicas in chunks of 16, and the server's own noise: no number twice, and no correlation.

    Of 1.5e5 draws of at least 52 bits each, two agree by chance with probability below 1e-5.
    """
    chunks = [noise_of(range(first, first + 16)) for first in (0, 16, 32)]
    server = [noise_of(range(first, first + 8), purpose=Purpose.SERVER_NOISE) for first in (0, 8, 16)]
    rows = np.concatenate(chunks + server)
    assert len(np.unique(rows)) == rows.size
    check_independent(rows)


def test_processes_draw_what_one_process_would():
    """Workers share no stream: what each draws is decided by its replicas, so two of them never draw the same."""
    parts = Parallel(n_jobs=2, backend="loky")(delayed(_draws)(range(first, first + 4)) for first in (0, 4))
    assert (np.concatenate(parts) == _draws(range(8))).all()


def _draws(replicas):
    return np.stack([stream(11, Purpose.NOISE, replica, 0).standard_normal(256) for replica in replicas])


def test_a_check_that_finds_shared_noise():
    """What the checks above are for: replicas that share a stream, and one that is another's with a delay."""
    rows = noise_of(range(4))
    with pytest.raises(AssertionError):
        check_independent(np.concatenate([rows, 0.3 * rows[:1] + rows[1:2]]))


def fixed_bytes(monkeypatch, seed=3):
    source = np.random.default_rng(seed)
    monkeypatch.setattr(os, "urandom", lambda count: source.bytes(count))


def system_normal(count, *place, key=None):
    return normal_of(SecretBits(key).words(count, Purpose.NOISE, *place))


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_system_noise_is_finite_whatever_the_bits(word):
    (value,) = normal_of(np.array([word], dtype=np.uint64))
    assert math.isclose(abs(value), 8.2095, abs_tol=1e-3)
    assert (value > 0) == (word > 0)


@noisy
def test_with_the_systems_noise_none_comes_from_the_seed(method, options, data, opened, monkeypatch):
    """Public randomness still does: only the noise differs between two runs of one seed."""
    config = METHODS[method].configure(**METHODS[method].used(SMALL), **options)
    common = {"seed": 5, "replicas": (0, 3), "noise_from": "os"}
    runs = []
    for seed in (1, 2):
        fixed_bytes(monkeypatch, seed)
        runs.append(train(data, config, **common).server.flat.numpy())
    assert not {purpose for purpose, *_ in opened} & PRIVATE
    assert not np.array_equal(*runs)
    fixed_bytes(monkeypatch, 1)
    assert np.array_equal(train(data, config, **common).server.flat.numpy(), runs[0])


@noisy
def test_a_noise_seed_moves_the_noise_alone(method, options, data, opened):
    """By the streams that are opened: those of noise follow from the noise seed, all others from the run's."""
    config = METHODS[method].configure(**METHODS[method].used(SMALL), **options)
    other = train(data, config, seed=5, noise_from=0).server.flat.numpy()
    assert {(purpose in PRIVATE, seed) for purpose, _, seed, _ in opened} == {(True, 0), (False, 5)}
    assert not np.array_equal(other, train(data, config, seed=5).server.flat.numpy())


@pytest.mark.parametrize(("shape", "at"), [((), 5), ((), 256), ((), 700), ((3,), 100), ((300,), 2)])
def test_a_renewed_key_is_that_of_every_draw_after_it(shape, at):
    """As if the noise had been skipped to there under the new key, wherever in a block of draws that is."""
    first, second = bytes(32), bytes(range(32))

    def drawn(bits):
        return GaussianNoise(1.0, Streams(seed=bits, replicas=(0, 2), dtype=torch.float64), shape=shape)

    secret = SecretBits(first)
    noise = drawn(secret)
    before = torch.stack([noise.next() for _ in range(at)])
    secret.renew(second)
    after = torch.stack([noise.next() for _ in range(600)])
    by_first, by_second = (drawn(SecretBits(key)) for key in (first, second))
    assert torch.equal(before, torch.stack([by_first.next() for _ in range(at)]))
    by_second.skip_to(at)
    assert torch.equal(after, torch.stack([by_second.next() for _ in range(600)]))


def test_two_real_draws_of_the_system_differ():
    """Unseeded, so that it is the system's: 64 draws of 52 bits agree by chance with probability below 1e-12."""
    draws = np.concatenate([system_normal(32), system_normal(32)])
    assert len(np.unique(draws)) == 64


def test_nothing_private_is_missing():
    """Labels are privatised, and gradients defended, by draws that must stay as unknown as noise."""
    noise = {purpose for purpose in seeds.Purpose if "NOISE" in purpose.name}
    assert noise | {seeds.Purpose.LABELS, seeds.Purpose.DEFENCE} == PRIVATE
