import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtr, bdtrc

from dpzv_audit.statistics.binomial import lower_limit, upper_limit

ERRORS = (0.05, 0.01, 1e-3, 1e-9)


@pytest.mark.parametrize("n", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("error", ERRORS)
def test_no_success_and_all_successes_have_closed_forms(n, error):
    none = -np.expm1(np.log(error) / n)
    assert float(upper_limit(0, n, error)) == pytest.approx(none, rel=1e-9)
    assert float(lower_limit(n, n, error)) == pytest.approx(error ** (1 / n), rel=1e-9)
    assert float(upper_limit(n, n, error)) == 1.0
    assert float(lower_limit(0, n, error)) == 0.0


@given(st.integers(1, 5000), st.data(), st.sampled_from(ERRORS))
@settings(max_examples=100, deadline=None)
def test_limits_invert_the_binomial_tails(n, data, error):
    k = data.draw(st.integers(0, n))
    if k < n:
        assert bdtr(k, n, float(upper_limit(k, n, error))) == pytest.approx(error, rel=1e-6)
    if k > 0:
        assert bdtrc(k - 1, n, float(lower_limit(k, n, error))) == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("n", [5, 20, 61])
@pytest.mark.parametrize("p", [0.003, 0.1, 0.5, 0.93])
def test_exact_coverage_summed_over_every_outcome(n, p):
    k = np.arange(n + 1)
    chance = bdtr(k, n, p) - np.concatenate([[0.0], bdtr(k[:-1], n, p)])
    assert chance[upper_limit(k, n, 0.05) < p].sum() <= 0.05
    assert chance[lower_limit(k, n, 0.05) > p].sum() <= 0.05


def test_arguments_broadcast():
    limits = upper_limit(np.array([0.0, 5.0, 10.0])[:, None], 10, np.array([0.05, 0.01]))
    assert limits.shape == (3, 2)
    assert np.all(limits[:, 0] <= limits[:, 1])
    assert limits[1, 1] == float(upper_limit(5, 10, 0.01))
