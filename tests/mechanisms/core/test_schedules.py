import heapq
from collections import Counter
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mechanisms.core.schedules import by_compute_times, cyclic, largest_participation, random_activation
from mechanisms.core.streams import BatchStream, Streams

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""

repeatable = settings(derandomize=True, deadline=None, max_examples=40)


def batches(sampler, *, records=20, batch_size=6, seed=0, client=1, replicas=(0,), **options):
    streams = Streams(seed=seed, replicas=replicas)
    return BatchStream(sampler, streams, records=records, batch_size=batch_size, client=client, **options)


def members(batch, replica=0):
    """Ids that count, of one replica."""
    ids = batch.ids[replica]
    return ids if batch.weights is None else ids[batch.weights[replica].bool()]


@repeatable
@given(st.integers(1, 40), st.data(), st.integers(0, 1000))
def test_shuffled_covers_each_record_at_most_once_a_pass_and_leaves_out_less_than_a_batch(records, data, seed):
    size = data.draw(st.integers(1, records))
    stream = batches("shuffled", records=records, batch_size=size, seed=seed)
    orders = []
    for _ in range(3):
        seen = torch.cat([stream.next().ids[0] for _ in range(records // size)]).tolist()
        assert len(seen) == len(set(seen)) == records - records % size
        assert set(seen) <= set(range(records))
        orders.append(seen)
    if records >= 30:
        assert orders[0] != orders[1] != orders[2]


@repeatable
@given(st.integers(1, 30), st.data())
def test_uniform_batches_repeat_no_record(records, data):
    size = data.draw(st.integers(1, records))
    stream = batches("uniform", records=records, batch_size=size, replicas=(0, 1))
    for _ in range(70):
        batch = stream.next()
        assert batch.ids.shape == (2, size)
        assert batch.weights is None
        for row in batch.ids.tolist():
            assert len(set(row)) == size
            assert set(row) <= set(range(records))


@pytest.mark.parametrize("sampler", ["shuffled", "uniform"])
def test_every_record_is_drawn_equally_often(sampler):
    """Hits of records over first batches of 2,000 seeds: B/D each, chi-square with D - 1 degrees, level 1e-4.

    Within a batch records exclude each other, which shrinks the statistic by (D - B)/(D - 1): it is scaled back.
    """
    records, size, runs = 10, 4, 2000
    stream = batches(sampler, records=records, batch_size=size, replicas=range(runs))
    counts = torch.bincount(stream.next().ids.flatten(), minlength=records).numpy()
    expected = runs * size / records
    variance = expected * (1 - size / records)
    statistic = ((counts - expected) ** 2).sum() / variance * (records - 1) / records
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], records - 1)
    assert low < statistic < high


def test_poisson_sizes_are_binomial():
    """Sizes of 1,280 batches of 4 replicas: dispersion test of Binomial(D, B/D), mean and variance, level 1e-4 each."""
    records, size, rounds, replicas = 50, 10, 320, 4
    stream = batches("poisson", records=records, batch_size=size, replicas=range(replicas))
    sizes = torch.stack([stream.next().weights.sum(1) for _ in range(rounds)]).flatten().numpy()
    p, n = size / records, rounds * replicas
    low, high = stats.binom.ppf([LEVEL / 2, 1 - LEVEL / 2], records * n, p)
    assert low <= sizes.sum() <= high
    dispersion = ((sizes - records * p) ** 2).sum() / (records * p * (1 - p))
    # A binomial with 50 trials has kurtosis below the normal's, so chi-square quantiles are conservative.
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], n)
    assert low < dispersion < high


@pytest.mark.parametrize("public", [None, 0.55])
def test_poisson_draws_each_record_independently_with_rate_b_over_d_or_its_own(public):
    """Joint membership of each pair in 2,000 batches against the rate squared: level 1e-4 over all of them."""
    records, size, rounds = 6, 2, 2000
    stream = batches("poisson", records=records, batch_size=size, sample_rate=public)
    drawn = np.zeros((rounds, records), dtype=int)
    for row in drawn:
        row[members(stream.next())] = 1
    together = drawn.T @ drawn
    p = public or size / records
    for i, j in zip(*np.triu_indices(records), strict=True):
        rate = p if i == j else p * p
        low, high = stats.binom.ppf([LEVEL / 42, 1 - LEVEL / 42], rounds, rate)
        assert low <= together[i, j] <= high


def test_poisson_padding_points_to_the_scratch_row():
    records, replicas = 12, (3, 5)
    stream = batches("poisson", records=records, batch_size=4, replicas=replicas)
    padded = 0
    for _ in range(70):
        batch = stream.next()
        places = batch.places.view(batch.ids.shape)
        kept = batch.weights.bool()
        padded += int((~kept).sum())
        assert (places[~kept] == len(replicas) * records).all()
        offsets = torch.tensor([[0], [records]])
        assert torch.equal(places[kept], (batch.ids + offsets)[kept])
        for replica in range(2):
            ids = members(batch, replica).tolist()
            assert len(ids) == len(set(ids))
    assert padded > 0


def test_an_empty_poisson_batch_is_possible_and_has_no_member():
    stream = batches("poisson", records=5, batch_size=1)
    sizes = [len(members(stream.next())) for _ in range(200)]
    assert min(sizes) == 0


@pytest.mark.parametrize("sampler", ["shuffled", "uniform"])
def test_places_are_rows_of_the_replicas_own_part(sampler):
    batch = batches(sampler, records=20, replicas=(0, 8, 2)).next()
    expected = batch.ids + torch.tensor([[0], [20], [40]])
    assert torch.equal(batch.places, expected.flatten())


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
def test_batches_of_a_replica_do_not_depend_on_the_stack(sampler):
    alone, stacked = batches(sampler, replicas=(4,)), batches(sampler, replicas=(1, 4, 9))
    for _ in range(150):
        one, three = alone.next(), stacked.next()
        assert torch.equal(members(one, 0), members(three, 1))


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("change", [{"seed": 1}, {"client": 2}, {"replicas": (1,)}])
def test_batches_depend_on_seed_client_and_replica(sampler, change):
    first, other = batches(sampler), batches(sampler, **change)
    pairs = [(members(first.next()).tolist(), members(other.next()).tolist()) for _ in range(5)]
    assert any(a != b for a, b in pairs)


def brute_force(rounds, steps, repeats):
    """Largest count of a record when each batch of the first pass serves `repeats` rounds, by playing it."""
    counts = Counter()
    stream = batches("shuffled", records=steps * 2, batch_size=2)
    batch = None
    for round_ in range(rounds):
        if round_ >= repeats * steps or round_ % repeats == 0:
            batch = stream.next()
        counts.update(batch.ids[0].tolist())
    return max(counts.values(), default=0)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 60), st.integers(1, 7), st.integers(1, 5))
def test_largest_participation_is_what_is_counted(rounds, steps, repeats):
    got = largest_participation(rounds, steps_per_pass=steps, first_pass_repeats=repeats)
    assert got == brute_force(rounds, steps, repeats)


def test_cyclic_takes_turns():
    assert list(islice(cyclic(3), 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_random_activation_has_the_probabilities():
    """Counts of 20,000 rounds against q_m, weights in any unit: chi-square, level 1e-4; and of successive pairs."""
    weights = np.array([1.0, 2.0, 5.0])
    q = weights / weights.sum()
    drawn = np.array(list(islice(random_activation(weights, seed=3), 20_000)))
    counts = np.bincount(drawn, minlength=4)
    assert counts[0] == 0
    assert len(counts) == 4
    assert stats.chisquare(counts[1:], 20_000 * q).pvalue > LEVEL
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (drawn[0::2] - 1, drawn[1::2] - 1), 1)
    assert stats.chisquare(pairs.flatten(), 10_000 * np.outer(q, q).flatten()).pvalue > LEVEL
    again = list(islice(random_activation(weights, seed=3), 20_000))
    assert again == drawn.tolist()
    assert list(islice(random_activation(weights, seed=4), 50)) != again[:50]


def simulated(times, rounds):
    """Clients in the order in which their computations end, in exact arithmetic; ties by number."""
    ends = ((Fraction(t) * k, m) for m, t in enumerate(times, start=1) for k in range(1, rounds + 1))
    return [m for _, m in heapq.nsmallest(rounds, ends)]


@repeatable
@given(st.lists(st.integers(1, 64).map(lambda n: n / 8), min_size=1, max_size=5))
def test_compute_times_against_an_exact_simulation(times):
    # Multiples of 1/8 are exact in floating point, so that ties are ties.
    assert list(islice(by_compute_times(times), 60)) == simulated(times, 60)


@pytest.mark.parametrize(
    ("sampler", "needed"),
    [("shuffled", 40 * 10 * 10 * 3), ("uniform", 40 * 64 * 10 * 3), ("poisson", 11 * 64 * 100 * 3)],
)
def test_batches_that_memory_cannot_hold_are_refused_before_they_are_drawn(sampler, needed, monkeypatch):
    stream = BatchStream(sampler, Streams(seed=0, replicas=range(3)), records=100, batch_size=10, client=1)
    monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda: needed - 1)
    with pytest.raises(MemoryError, match=f"batches of 3 trainings: {needed} bytes, of {needed - 1} that are free"):
        stream.next()
    monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda: needed)
    assert stream.next().ids.shape[0] == 3
