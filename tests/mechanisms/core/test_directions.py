import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzv_audit.base.seeds import Purpose
from mechanisms.core import streams
from mechanisms.core.counters import words_of
from mechanisms.core.secret import SAMPLING, SecretBits
from mechanisms.core.streams import LARGE, Directions, Streams, forward_difference

from ..conftest import p_value

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""


def directions(kind="sphere", d=5, *, seed=0, party=1, replicas=(0,), dtype=torch.float64):
    return Directions(kind, d, Streams(seed=seed, replicas=replicas, dtype=dtype), party=party)


def many(source, rounds):
    return torch.stack([source.at(t) for t in range(rounds)])


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(0, 2**32), st.integers(0, 500))
def test_lengths(d, seed, round_):
    replicas = (0, 3)
    sphere = directions("sphere", d, seed=seed, replicas=replicas).at(round_)
    unit = directions("unit-sphere", d, seed=seed, replicas=replicas).at(round_)
    assert sphere.shape == unit.shape == (2, d)
    assert torch.allclose(sphere.norm(dim=1), torch.full((2,), math.sqrt(d), dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(unit * math.sqrt(d), sphere, rtol=1e-12)


@pytest.fixture
def all_counted(monkeypatch):
    """Directions of any size are drawn as those of large models are."""
    monkeypatch.setattr(streams, "LARGE", 0)


KINDS = [("sphere", 1.0), ("unit-sphere", 0.2), ("gaussian", 1.0), ("rademacher", 1.0)]


@pytest.mark.parametrize(("kind", "variance"), KINDS)
def test_second_moment(kind, variance):
    """E[u u^T] is `variance` times the identity: each entry's mean over n draws against 0 in standard errors.

    By the CLT, level 1e-4 over the 15 entries together.
    """
    sample = many(directions(kind), 4000)[:, 0].numpy()
    assert_second_moment(sample, variance)


def assert_second_moment(sample, variance):
    products = np.einsum("ni,nj->nij", sample, sample) - variance * np.eye(5)
    rows, columns = np.triu_indices(5)
    entries = products[:, rows, columns]
    errors = entries.mean(0) / (entries.std(0) / math.sqrt(len(sample)) + 1e-300)
    assert np.abs(errors).max() < stats.norm.isf(LEVEL / 2 / len(rows))


@pytest.mark.parametrize(("kind", "variance"), KINDS)
def test_second_moment_of_what_is_drawn_by_counter(kind, variance, all_counted):
    """As above, of five numbers in 600 rounds."""
    sample = many(directions(kind), 600)[:, 0].numpy()
    assert_second_moment(sample, variance)


def test_rademacher_numbers_are_plus_or_minus_1():
    for d in (5, LARGE + 1):
        drawn = directions("rademacher", d, replicas=(0, 2)).at(1)
        assert drawn.abs().eq(1).all()
        assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("kind", ["sphere", "unit-sphere", "gaussian", "rademacher"])
def test_a_large_direction_is_the_same_again_and_another_elsewhere(kind):
    d = LARGE + 3
    drawn = directions(kind, d, dtype=torch.float32)
    first = drawn.at(4)
    assert first.shape == (1, d)
    assert torch.equal(drawn.at(4), first)
    assert drawn._ready == ()
    fresh = directions(kind, d, replicas=(7, 0), dtype=torch.float32)
    assert torch.equal(fresh.at(4)[1:], first)
    others = (drawn.at(5), fresh.at(4)[:1], *(directions(kind, d, **o).at(4) for o in ({"seed": 1}, {"party": 2})))
    for other in others:
        # Independent: a correlation of d pairs is normal with a deviation of 1/sqrt(d); level 1e-4 over all.
        assert abs(torch.corrcoef(torch.cat((first.double(), other.double())))[0, 1]) < 5 / math.sqrt(d)
    length = {"sphere": math.sqrt(d), "rademacher": math.sqrt(d), "unit-sphere": 1.0}.get(kind)
    if length is not None:
        assert torch.linalg.vector_norm(first, dtype=torch.float64).item() == pytest.approx(length, rel=1e-6)


@pytest.mark.parametrize("kind", ["sphere", "rademacher"])
def test_a_large_direction_does_not_depend_on_how_much_is_drawn_at_once(kind, monkeypatch):
    d = LARGE + 2**19 + 5
    alone = directions(kind, d, dtype=torch.float32)
    wanted = alone.at(2)
    assert max(stop - start for start, stop, _ in alone.pieces(2)) == 2**18
    monkeypatch.setattr(streams, "_AT_ONCE_ON_CPU", 8)
    together = directions(kind, d, dtype=torch.float32)
    assert max(stop - start for start, stop, _ in together.pieces(2)) == 2**21
    assert torch.allclose(together.at(2), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["sphere", "gaussian", "rademacher"])
def test_large_directions_of_secret_bits_follow_from_their_key(kind):
    keys = bytes(32), bytes([1] * 32)
    secret = SecretBits(keys[0], SAMPLING)
    drawn = directions(kind, LARGE + 1, seed=secret, dtype=torch.float32)
    first = drawn.at(3)
    assert secret.drawn == {Purpose.DIRECTIONS}
    secret.renew(keys[1])
    second = drawn.at(3)
    assert not torch.equal(first, second)
    for key, wanted in zip(keys, (first, second), strict=True):
        again = directions(kind, LARGE + 1, seed=SecretBits(key, SAMPLING), dtype=torch.float32)
        assert torch.equal(again.at(3), wanted)
    # Shake's own words, not those of a generator that has a key of them.
    words = SecretBits(keys[1], SAMPLING).words(2, Purpose.DIRECTIONS, 1, 0, 3, 0).astype(np.int64)
    assert words_of(SecretBits(keys[1], SAMPLING), Purpose.DIRECTIONS, 1, 0, 3).at(0, 2, 1, 9)[0].tolist() == [*words]


def test_sphere_of_the_line_is_plus_or_minus_1():
    sample = many(directions("sphere", 1), 200).flatten()
    assert torch.allclose(sample.abs(), torch.ones_like(sample), rtol=1e-15)
    assert sample.unique().sign().unique().tolist() == [-1.0, 1.0]


def test_direction_depends_on_seed_party_replica_and_round_alone():
    stack = directions(replicas=(4, 1, 9))
    alone = directions(replicas=(9,))
    late = directions(replicas=(9,))
    wanted = stack.at(5000)[2]
    assert torch.equal(alone.at(5000)[0], wanted)
    late.at(17)
    assert torch.equal(late.at(5000)[0], wanted)
    late.at(3)
    assert torch.equal(late.at(5000)[0], wanted)
    for other in (directions(seed=1, replicas=(9,)), directions(party=2, replicas=(9,))):
        assert not torch.isin(other.at(5000), wanted).any()
    assert not torch.isin(alone.at(5001), wanted).any()
    assert not torch.isin(stack.at(5000)[0], wanted).any()


@pytest.mark.parametrize("kind", ["sphere", "unit-sphere", "gaussian", "rademacher"])
@pytest.mark.parametrize("d", [7, 2**14, 2**14 + 3, 2**18 + 5, 2**19 + 2**18 + 1, LARGE + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pieces_are_the_direction(kind, d, dtype):
    source = directions(kind, d, replicas=(0, 2), dtype=dtype)
    for round_ in (0, 2):
        whole = source.at(round_)
        joined = torch.full_like(whole, float("nan"))
        for start, stop, piece in source.pieces(round_):
            assert piece.shape == (2, stop - start)
            assert piece.dtype == dtype
            joined[:, start:stop] = piece
        # Norms are summed in another order (and in float64), so float32 agrees to rounding.
        assert torch.allclose(joined, whole, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.parametrize("d", [2**18 + 5, LARGE + 5])
def test_large_directions_are_never_held_whole(d):
    sizes = [stop - start for start, stop, _ in directions("sphere", d, dtype=torch.float32).pieces(0)]
    assert sum(sizes) == d
    assert max(sizes) <= 2**18


A = torch.tensor([[2.0, 0.3, -0.4], [0.3, 1.0, 0.2], [-0.4, 0.2, 1.5]], dtype=torch.float64)
B = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
W = torch.tensor([0.3, -0.1, 0.7], dtype=torch.float64)


def smooth(points):
    """A function with curvature and a third derivative."""
    quadratic = 0.5 * torch.einsum("ni,ij,nj->n", points, A, points)
    return quadratic + points @ B + torch.sin(points).sum(1)


GRADIENT = A @ W + B + torch.cos(W)


def samples(estimate, kind, mu, count=4000):
    source = directions(kind, 3)
    return np.stack([estimate(smooth, W, source.at(t), mu=mu).numpy() for t in range(count)])


@pytest.mark.parametrize(
    ("estimate", "kind"),
    [
        (lambda f, w, u, mu: forward_difference(f, w, u, mu=mu), "sphere"),
        (lambda f, w, u, mu: forward_difference(f, w, u, mu=mu), "gaussian"),
        (lambda f, w, u, mu: forward_difference(f, w, u, mu=mu), "rademacher"),
        (lambda f, w, u, mu: forward_difference(f, w, u, mu=mu, phi=3.0), "unit-sphere"),
    ],
)
def test_estimators_are_unbiased(estimate, kind):
    """The mean of 4,000 single-direction estimates at mu = 1e-5 against the gradient: level 1e-4."""
    assert p_value(samples(estimate, kind, 1e-5), GRADIENT.numpy()) > LEVEL


def test_the_test_of_bias_sees_a_wrong_scale():
    wrong = samples(lambda f, w, u, mu: forward_difference(f, w, u, mu=mu, phi=1.3), "gaussian", 1e-5)
    assert p_value(wrong, GRADIENT.numpy()) < LEVEL


def test_average_over_q_is_the_mean_of_single_estimates():
    u = many(directions("gaussian", 3), 4)[:, 0]
    single = [forward_difference(smooth, W, row.unsqueeze(0), mu=0.01, phi=2.0) for row in u]
    assert torch.allclose(forward_difference(smooth, W, u, mu=0.01, phi=2.0), torch.stack(single).mean(0))
