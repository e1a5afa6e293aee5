import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attacks.core.metrics import rate_limits


@given(st.integers(1, 5000), st.data(), st.sampled_from([0.5, 0.95, 0.999]))
def test_agrees_with_the_exact_interval_of_scipy(n, data, confidence):
    k = data.draw(st.integers(0, n))
    reference = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
    low, high = rate_limits(k, n, confidence)
    assert low == pytest.approx(reference.low, rel=1e-7, abs=1e-10)
    assert high == pytest.approx(reference.high, rel=1e-7, abs=1e-10)


def test_known_answers():
    low, high = np.transpose([rate_limits(hits, 10) for hits in (0, 5, 10)])
    # 0 of n: high = 1 - (alpha/2)^(1/n). 5 of 10: the tabulated 18.71% to 81.29%.
    np.testing.assert_allclose(low, [0.0, 0.1871, 0.025 ** (1 / 10)], atol=5e-5)
    np.testing.assert_allclose(high, [1 - 0.025 ** (1 / 10), 0.8129, 1.0], atol=5e-5)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.9999])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_each_side_errs_no_more_than_stated_for_every_proportion(n, confidence):
    successes = np.arange(n + 1)
    low, high = np.transpose([rate_limits(hits, n, confidence) for hits in successes])
    # The worst proportions for one side are the limits themselves, approached from the wrong side.
    for limit in low[1:]:
        assert stats.binom.pmf(successes[low > limit * (1 - 1e-9)], n, limit * (1 - 1e-9)).sum() <= (
            1 - confidence
        ) / 2 * (1 + 1e-6)
    for limit in high[:-1]:
        p = limit + (1 - limit) * 1e-9
        assert stats.binom.pmf(successes[high < p], n, p).sum() <= (1 - confidence) / 2 * (1 + 1e-6)


def test_a_count_that_is_not_whole_is_rounded_outwards():
    assert rate_limits(2.5, 10) == (rate_limits(2, 10)[0], rate_limits(3, 10)[1])


def test_needs_neither_scipy_stats_nor_matplotlib():
    heavy = ("scipy.stats", "matplotlib")
    code = f"import sys, attacks.core.metrics; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
