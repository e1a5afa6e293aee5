import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import delta_from_mu, epsilon_from_mu
from dpzv_audit.accounting.gaussian import Participation, binomial_counts, participations_epsilon


def exact_delta(epsilon, rounds, rate, z, cap, server_mu=0.0):
    """The mixture at 40 digits over ALL counts 0..T, from equation 11 and exact binomial weights."""
    with mpmath.workdps(60):
        total, e, r = mpmath.mpf(0), mpmath.mpf(epsilon), mpmath.mpf(rate)
        for n in range(rounds + 1):
            mu = mpmath.sqrt(mpmath.mpf(min(n, cap)) / mpmath.mpf(z) ** 2 + mpmath.mpf(server_mu) ** 2)
            if mu == 0:
                continue
            first, second = (mpmath.erfc((e / mu + s * mu / 2) / mpmath.sqrt(2)) / 2 for s in (-1, 1))
            weight = mpmath.binomial(rounds, n) * r**n * (1 - r) ** (rounds - n)
            total += weight * (first - mpmath.exp(e) * second)
        return total


@settings(max_examples=25, deadline=None)
@given(
    rounds=st.integers(1, 60),
    rate=st.floats(0.001, 0.99),
    z=st.floats(0.2, 20.0),
    log_delta=st.floats(-25.0, -2.0),
    cap=st.one_of(st.none(), st.integers(1, 70)),
    server_mu=st.sampled_from([0.0, 0.7]),
)
def test_mixture_is_the_exact_sum(rounds, rate, z, log_delta, cap, server_mu):
    delta = math.exp(log_delta)
    found = participations_epsilon(
        [Participation(mu=1.0 / z, rounds=rounds, rate=rate, fixed=None, cap=cap)], delta=delta, certain_mu=server_mu
    )
    whole = cap or rounds
    at = exact_delta(found.estimate, rounds, rate, z, whole, server_mu)
    if found.upper == 0.0:
        assert at <= delta * (1 + 1e-9)
    else:
        assert float(at / delta) == pytest.approx(1.0, rel=1e-7)
        # `upper` is a bound, up to the rounding of delta itself
        assert exact_delta(found.upper, rounds, rate, z, whole, server_mu) <= delta * (1 + 1e-10)
    assert found.lower <= found.estimate <= found.upper <= found.lower * (1 + 1e-6) + 1e-9


@given(
    rounds=st.one_of(st.integers(1, 300), st.just(10**7)),
    rate=st.floats(1e-7, 0.999),
    tail=st.floats(1e-20, 1e-3),
    cap=st.one_of(st.none(), st.integers(1, 400)),
)
def test_counts_hold_the_whole_mass(rounds, rate, tail, cap):
    counts = binomial_counts(rounds, rate, tail=tail, cap=cap)
    assert counts.below <= tail * (1 + 1e-9)
    assert counts.above <= tail * (1 + 1e-9)
    assert counts.weights.sum() + counts.below + counts.above == pytest.approx(1.0, abs=1e-12)
    assert counts.low + len(counts.weights) - 1 <= min(rounds, cap or rounds)
    if cap is None:
        n = counts.low + np.arange(len(counts.weights))
        assert counts.weights @ n == pytest.approx(rounds * rate, rel=1e-9, abs=rounds * tail * 4 + 1e-12)


def test_fixed_counts_are_gaussian():
    found = participations_epsilon([Participation(mu=1.25, rounds=50, rate=0.1, fixed=9)], delta=1e-5, certain_mu=2.0)
    assert found.lower == found.upper == epsilon_from_mu(math.hypot(3.0 / 0.8, 2.0), 1e-5)


def test_ten_million_rounds():
    found = participations_epsilon([Participation(mu=0.05, rounds=10**7, rate=0.5, fixed=None)], delta=1e-12)
    # n = 5e6 +- a few thousand: near the fixed count, above it by the spread
    fixed = epsilon_from_mu(math.sqrt(5e6) / 20.0, 1e-12)
    assert fixed < found.estimate < 1.01 * fixed


def test_rare_participation_costs_nothing():
    found = participations_epsilon([Participation(mu=100.0, rounds=10, rate=1e-7, fixed=None)], delta=1e-5)
    assert found.upper == 0.0


def test_independent_counts_are_the_exact_double_sum():
    parts = [
        Participation(mu=0.8, rounds=12, rate=0.2, fixed=None),
        Participation(mu=0.5, rounds=20, rate=0.1, fixed=None, cap=3),
        Participation(mu=0.3, rounds=9, rate=0.5, fixed=4),
    ]
    found = participations_epsilon(parts, delta=1e-4, certain_mu=0.2)

    def weights(part):
        terms = {}
        for n in range(part.rounds + 1):
            p = math.comb(part.rounds, n) * part.rate**n * (1 - part.rate) ** (part.rounds - n)
            k = min(n, part.cap or n)
            terms[k] = terms.get(k, 0.0) + p
        return terms

    total = sum(
        p * q * float(delta_from_mu(found.estimate, math.sqrt(n * 0.64 + m * 0.25 + 4 * 0.09 + 0.04)))
        for n, p in weights(parts[0]).items()
        for m, q in weights(parts[1]).items()
    )
    assert total == pytest.approx(1e-4, rel=1e-7)
    assert found.lower <= found.estimate <= found.upper <= found.lower * (1 + 1e-6)


def test_many_counts_are_binned_outwards():
    wide = [Participation(mu=mu, rounds=10**6, rate=0.3, fixed=None) for mu in (0.01, 0.013)]
    found = participations_epsilon(wide, delta=1e-6)
    # the counts are nearly certain: a Gaussian of the mean, a little more for the spread
    near = epsilon_from_mu(math.sqrt(3e5 * (1e-4 + 1.69e-4)), 1e-6)
    assert found.lower <= found.estimate <= found.upper
    assert found.upper - found.lower < 1e-3 * found.estimate
    assert near < found.estimate < 1.01 * near


def test_what_a_wide_tail_leaves_out_is_no_part_of_the_weights():
    counts = binomial_counts(200, 0.3, tail=0.02)
    assert counts.above > 1e-5
    assert counts.weights.sum() == pytest.approx(1.0 - counts.below - counts.above, abs=1e-12)
    exact = [math.comb(200, n) * 0.3**n * 0.7 ** (200 - n) for n in range(201)]
    assert counts.weights == pytest.approx(exact[counts.low : counts.low + len(counts.weights)], rel=1e-9)
    assert counts.below == pytest.approx(sum(exact[: counts.low]), rel=1e-9)
