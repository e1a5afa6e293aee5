"""The rounded Gaussian has the law that is stated, from bits as from seeds; unclear draws are settled exactly."""

import numpy as np
import pytest
from mpmath import mp
from scipy import stats
from scipy.special import ndtri

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.noise import SecretBits, _between, _settled, gaussian, nearest

from ..conftest import secret_normals, secret_words

LEVEL = 1e-4
"""False-alarm rate of every statistical test here; seeds and keys are fixed."""
KEY = bytes(range(32))


def probabilities(scale):
    """P(round(scale Z) = n) for n = -w..w, from the normal's distribution function, the tails in the end cells."""
    width = max(1, int(4 * scale))
    edges = (np.arange(-width, width) + 0.5) / scale
    return np.arange(-width, width + 1), np.diff(np.concatenate([[0.0], stats.norm.cdf(edges), [1.0]]))


def p_value(drawn, scale):
    """Chi-square on cells of at least 5 expected draws."""
    values, expected = probabilities(scale)
    drawn = np.clip(drawn.ravel(), values[0], values[-1])
    counts = np.array([(drawn == n).sum() for n in values])
    assert counts.sum() == drawn.size
    kept = expected * drawn.size >= 5
    pooled = [np.append(x[kept], x[~kept].sum()) for x in (counts, expected * drawn.size)]
    return stats.chisquare(*(x if x[-1] > 0 else x[:-1] for x in pooled)).pvalue


@pytest.mark.parametrize("origin", [SecretBits(KEY), 3], ids=["bits", "seed"])
@pytest.mark.parametrize("shape", [(20_000,), (2_000, 10)], ids=["scalars", "vectors"])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.7])
def test_the_law_on_small_grids_is_that_of_the_rounded_gaussian(scale, shape, origin):
    """On 20,000 draws, at level 1e-4; a scale 5% too small is found."""
    drawn = gaussian(shape, scale, origin, Purpose.NOISE, 0, 1, rounded=True)
    assert p_value(drawn, scale) > LEVEL
    if scale == 4.7:
        assert p_value(gaussian(shape, 0.95 * scale, origin, Purpose.NOISE, 0, 1, rounded=True), scale) < LEVEL


@pytest.mark.parametrize("scale", [700.0, 2.0**20 + 0.25])
def test_secret_noise_is_the_quantile_of_its_bits_times_the_scale(scale):
    """Draw by draw, so that a scale that is 1% off shows in each of them."""
    whole = secret_normals(scale, 400, KEY, 3, 1)
    assert np.array_equal(gaussian((400,), scale, SecretBits(KEY), Purpose.NOISE, 3, 1, rounded=True), whole)
    exact = ndtri(((secret_words(400, KEY, 3, 1) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    drawn = gaussian((20, 20), scale, SecretBits(KEY), Purpose.NOISE, 3, 1)
    assert np.allclose(drawn.ravel(), scale * exact, rtol=1e-12)


def quantile(numerator, bits):
    """|Z| with upper tail numerator / 2^(bits + 1), by Newton's method in 120 digits."""
    with mp.workdps(120):
        tail = mp.ldexp(mp.mpf(numerator), -bits - 1)
        x = mp.mpf(-float(ndtri(float(tail))))
        for _ in range(6):
            density = mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)
            x -= (tail - mp.erfc(x / mp.sqrt(2)) / 2) / density
        return x


def test_the_error_of_the_quantile_in_double_precision():
    """`nearest` allows for 1e-13 of |Z|: a hundred times what `ndtri` is off anywhere from 2^-64 to 1/2."""
    rng = np.random.default_rng(5)
    tails = np.concatenate(
        [0.5 * rng.random(60), 2.0 ** -rng.uniform(1, 64, 60), np.exp(-2) + 1e-3 * rng.normal(size=9)]
    )
    for tail in tails:
        numerator = int(mp.ldexp(mp.mpf(float(tail)), 401))  # exact: a double of at least 2^-64 has no bit below 2^-117
        exact = quantile(numerator, 400)
        assert abs(mp.mpf(-float(ndtri(tail))) - exact) < 1e-15 * (1 + exact)


@pytest.mark.parametrize("scale", [0.7, 2.0**36, 2.0**49])
def test_unclear_draws_are_settled_as_a_slow_reference_settles_them(scale):
    """The same whole number as 120 digits give, however many bits it takes: at 2^49 steps no draw is clear at first."""
    bits = SecretBits(KEY)
    first = bits.words(60, Purpose.NOISE, 1) >> np.uint64(1)
    whole, certain = nearest(first, scale)
    assert certain.all() if scale < 1 else (not certain.any() if scale > 2**40 else True)
    for place, m in enumerate(first.tolist()):
        more = bits.words(6, Purpose.NOISE, 2, place)
        settled = _settled(m, scale, lambda n, more=more: more[:n])
        numerator = (m << 384) + int.from_bytes(more.tobytes(), "big")
        with mp.workdps(120):
            expected = int(mp.nint(mp.mpf(scale) * quantile(numerator, 63 + 384)))
        assert settled == expected
        if certain[place]:
            assert whole[place] == expected


def test_bits_that_leave_two_answers_are_not_decided():
    """The tail at 1.5 steps of 1: just beside it the answer is known, on it more bits are needed."""
    with mp.workprec(300):
        at = int(mp.floor(mp.ldexp(mp.erfc(mp.mpf("1.5") / mp.sqrt(2)), 200)))
        assert _between(at, 200, 1.0) is None
        assert _between(at + 5, 200, 1.0) == 1  # a larger tail is a smaller |Z|
        assert _between(at - 5, 200, 1.0) == 2


def test_the_largest_draws_are_never_taken_from_63_bits():
    first = np.array([0, 1, 2**20 - 1, 2**20, 2**63 - 1], dtype=np.uint64)
    assert nearest(first, 0.01)[1].tolist() == [False, False, False, True, True]
    zeros = iter([np.zeros(3, dtype=np.uint64), np.array([0, 0, 0, 2**40, 0, 0], dtype=np.uint64)])
    assert _settled(0, 1.0, lambda n: next(zeros)[:n]) == mp.nint(quantile(2**168, 63 + 384))
