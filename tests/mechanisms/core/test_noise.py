import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.noise import GaussianNoise, SecretBits, clip, gaussian
from mechanisms.core.streams import Streams

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
thresholds = st.floats(1e-3, 1e3)
repeatable = settings(derandomize=True, deadline=None)


@repeatable
@given(
    st.lists(floats, min_size=1, max_size=20),
    thresholds,
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["symmetric", "paper-one-sided"]),
)
def test_a_clip_is_bounded_whatever_comes(values, threshold, dtype, rule):
    clipped = clip(torch.tensor(values, dtype=dtype), threshold, rule)
    bound = torch.tensor(threshold, dtype=dtype)
    assert (clipped <= bound).all()  # also fails on NaN
    assert rule == "paper-one-sided" or (clipped >= -bound).all()


@repeatable
@given(st.floats(-1e6, 1e6), thresholds)
def test_symmetric_clip_is_min_1_C_over_x_times_x(value, threshold):
    expected = min(1.0, threshold / abs(value)) * value if value else 0.0
    got = clip(torch.tensor([value], dtype=torch.float64), threshold).item()
    assert got == pytest.approx(expected, rel=1e-12)


@repeatable
@given(st.floats(-1e6, 1e6), thresholds)
def test_one_sided_clip_is_min_of_x_and_C(value, threshold):
    got = clip(torch.tensor([value], dtype=torch.float64), threshold, "paper-one-sided").item()
    assert got == min(value, threshold)


def test_nan_is_0_and_infinity_saturates():
    values = torch.tensor([float("nan"), float("inf"), float("-inf")])
    assert clip(values, 2.0).tolist() == [0.0, 2.0, -2.0]


def noise(std=1.0, *, size=None, seed=0, replicas=(0,), dtype=torch.float64, **options):
    streams = Streams(seed=seed, replicas=replicas, dtype=dtype)
    return GaussianNoise(std, streams, shape=() if size is None else (size,), **options)


def draws(source, rounds):
    return torch.stack([source.next() for _ in range(rounds)])


@pytest.mark.parametrize(("size", "rounds"), [(None, 3000), (5, 600), (300, 20)])
def test_variance_is_sigma_squared(size, rounds):
    """Sum of squares over sigma^2 is chi-square with as many degrees of freedom as draws: level 1e-4, two-sided."""
    sigma = 0.37
    sample = draws(noise(sigma, size=size, replicas=(0, 4)), rounds).numpy()
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], sample.size)
    assert low < (sample**2).sum() / sigma**2 < high
    # The mean of n draws is N(0, sigma^2 / n).
    assert abs(sample.mean()) < stats.norm.isf(LEVEL / 2) * sigma / math.sqrt(sample.size)


def test_noise_is_gaussian():
    """Kolmogorov-Smirnov against N(0, sigma^2), exact null distribution: level 1e-4."""
    sample = draws(noise(2.5), 5000).flatten().numpy()
    assert stats.kstest(sample, stats.norm(scale=2.5).cdf).pvalue > LEVEL


@pytest.mark.parametrize("lag", [1, 2, 256])
def test_rounds_are_independent(lag):
    """x_t x_{t+lag} / sigma^2 have mean 0, variance 1, no correlation: their sum is N(0, n) by the CLT. Level 1e-4."""
    sample = draws(noise(), 4000).flatten().numpy()
    statistic = (sample[:-lag] * sample[lag:]).sum() / math.sqrt(sample.size - lag)
    assert abs(statistic) < stats.norm.isf(LEVEL / 2)
    assert len(np.unique(sample)) == sample.size


def test_replicas_and_coordinates_are_independent():
    """As over rounds, for all pairs of 4 replicas x 2 coordinates: level 1e-4 over the 28 pairs together."""
    sample = draws(noise(size=2, replicas=range(4)), 2000).flatten(1).numpy()
    products = sample.T @ sample / math.sqrt(len(sample))
    off_diagonal = products[np.triu_indices(8, 1)]
    assert np.abs(off_diagonal).max() < stats.norm.isf(LEVEL / 2 / off_diagonal.size)


def test_replica_draws_the_same_in_every_stack():
    alone = draws(noise(replicas=(7,)), 600)
    stacked = draws(noise(replicas=(2, 7, 3)), 600)
    assert torch.equal(alone[:, 0], stacked[:, 1])


def test_seeds_and_purposes_have_streams_of_their_own():
    first = draws(noise(), 50)
    assert not torch.isin(first, draws(noise(seed=1), 50)).any()
    assert not torch.isin(first, draws(noise(purpose=Purpose.SERVER_NOISE), 50)).any()


def test_sigma_0_is_exactly_zero():
    silent = noise(0.0, size=3, replicas=(0, 1), dtype=torch.float32)
    for _ in range(5):
        assert torch.equal(silent.next(), torch.zeros(2, 3))
    assert torch.equal(noise(0.0, replicas=(0, 1)).next(), torch.zeros(2, dtype=torch.float64))


def test_noise_scales_with_sigma_alone():
    assert torch.allclose(draws(noise(3.0), 300), 3.0 * draws(noise(1.0), 300), rtol=1e-14, atol=0)


@pytest.mark.parametrize("origin", [SecretBits(bytes(32)), 0])
def test_a_rounded_zero_has_no_sign(origin):
    """A minus sign would let a sum of -0, which only some records make, through to what is released."""
    draws = gaussian((4000,), 0.3, origin, Purpose.NOISE, 0, rounded=True)
    zeros = draws[draws == 0.0]
    assert len(zeros) > 1000
    assert not np.signbit(zeros).any()


def test_a_one_sided_clip_is_open_below_for_infinity_too():
    values = torch.tensor([-1e30, float("-inf")])
    assert (clip(values, 1.0, "paper-one-sided") <= -1e30).all()
