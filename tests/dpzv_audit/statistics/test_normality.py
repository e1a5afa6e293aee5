import numpy as np
import pytest
from scipy.special import fdtrc
from scipy.stats import binom

from dpzv_audit.statistics.assumptions import (
    anderson_darling_p_value,
    equal_variance_p_value,
    gaussian_assumption,
    kurtosis_p_value,
    normality_p_value,
    tail_of_statistic,
)

from ...helpers.refusals import refused
from ...helpers.scores import gaussian


def test_anderson_darling_agrees_with_an_independent_statistic():
    # scipy.stats computes the same statistic; its p-value here follows from the published table 4.9.
    from scipy.stats import norm

    x = np.random.default_rng(3).gumbel(size=60)
    z = np.sort((x - x.mean()) / x.std(ddof=1))
    statistic = -60 - np.sum((2 * np.arange(1, 61) - 1) / 60 * (np.log(norm.cdf(z)) + np.log(norm.sf(z[::-1]))))
    a = statistic * (1 + 0.75 / 60 + 2.25 / 3600)
    assert a > 0.6
    assert anderson_darling_p_value(x) == pytest.approx(np.exp(1.2937 - 5.709 * a + 0.0186 * a * a), rel=1e-9)


@pytest.mark.parametrize(
    ("a", "p", "gap"),
    [
        (0.2, 0.884, 3e-4),
        (0.34, 0.495, 7e-3),
        (0.6, 0.119, 0.025),
        (0.631, 0.1, 1e-6),
        (0.752, 0.05, 1e-6),
        (1.035, 0.01, 1e-6),
    ],
)
def test_the_branches_meet_and_give_the_published_critical_values(a, p, gap):
    assert tail_of_statistic(a) == pytest.approx(p, rel=0.02)
    assert tail_of_statistic(a - 1e-9) == pytest.approx(tail_of_statistic(a), rel=gap)


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_scores_that_do_not_vary_are_not_gaussian(value):
    assert anderson_darling_p_value(np.full(20, value)) == 0.0


def test_the_tail_falls_and_never_turns_up():
    values = [tail_of_statistic(a) for a in np.linspace(0.01, 400.0, 20_000)]
    assert all(0.0 <= v <= 1.0 for v in values)
    assert values[-1] < 1e-29
    assert max(np.diff(values)) < 3e-3  # the published pieces meet to 0.003


def test_f_test_is_the_textbook_one():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=12), 2.0 * rng.normal(size=30)
    tail = float(fdtrc(11, 29, np.var(a, ddof=1) / np.var(b, ddof=1)))
    expected = 2 * min(tail, 1 - tail)
    assert equal_variance_p_value(a, b) == pytest.approx(expected, rel=1e-9)
    assert equal_variance_p_value(b, a) == pytest.approx(expected, rel=1e-9)


def test_gaussian_scores_are_rejected_at_no_more_than_the_level():
    # 3,000 samples, level 1%: more than `allowed` rejections have probability below 1e-5 if the level holds.
    rng = np.random.default_rng(11)
    allowed = binom.isf(1e-5, 3000, 0.01)
    rejected = sum(normality_p_value(rng.normal(5, 2, 60), rng.normal(-1, 2, 90)) < 0.01 for _ in range(3000))
    assert 0 < rejected <= allowed


@pytest.mark.parametrize(
    "sides",
    [
        lambda r: (r.laplace(1, 1, 2000), r.laplace(0, 1, 2000)),
        lambda r: (r.gumbel(0, 1, 2000), -r.gumbel(0, 1, 2000)),
        lambda r: (r.normal(0, 1, 2000), r.normal(0, 1.3, 2000)),
        lambda r: (r.normal(0, 1, 2000), r.integers(0, 2, 2000).astype(float)),
        lambda r: (r.normal(0, 1, 2000), np.full(2000, 3.0)),
    ],
    ids=["laplace", "opposite skews", "variances", "binary", "constant"],
)
def test_what_is_not_gaussian_with_one_variance_is_rejected(sides):
    assert normality_p_value(*sides(np.random.default_rng(2))) < 1e-9


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e300])
def test_scale_does_not_matter(scale):
    rng = np.random.default_rng(8)
    a, b = rng.normal(0, 1, 50), rng.normal(0.5, 1, 50)
    assert normality_p_value(a * scale, b * scale) == pytest.approx(normality_p_value(a, b), rel=1e-6)


def test_too_few_scores_are_an_error_that_names_the_side():
    with refused("out_scores has 7 scores"):
        normality_p_value(np.arange(9.0), np.arange(7.0))


def test_the_kurtosis_test_is_the_published_one():
    from scipy.stats import kurtosistest

    rng = np.random.default_rng(4)
    for scores in (rng.normal(size=60), rng.laplace(size=300), rng.uniform(size=50), rng.standard_t(5, 1000) * 1e200):
        expected = kurtosistest(scores / np.max(np.abs(scores))).pvalue
        assert kurtosis_p_value(scores) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert kurtosis_p_value(np.full(30, 2.0)) == 0.0


@pytest.mark.parametrize(("law", "caught"), [("laplace", 40), ("logistic", 32)])
def test_a_users_word_gives_way_where_the_tails_are_not_gaussian(law, caught):
    # 40 pairs of 500 scores a side: Laplace ones are all objected to, logistic ones at 97%, so fewer than 32 of 40
    # have probability below 1e-5. Of fewer than 500 the word is never taken.
    draw = getattr(np.random.default_rng(9), law)
    found = [gaussian_assumption(draw(3, 1, 500), draw(0, 1, 500), vouched=True) for _ in range(40)]
    assert sum("contradict" in words for words in found) >= caught
    assert "500 a side are needed" in gaussian_assumption(draw(3, 1, 499), draw(0, 1, 600), vouched=True)


def test_a_true_word_is_taken_nineteen_times_in_twenty():
    # 200 pairs: more objections than allowed have probability below 1e-4 at a level of 5%.
    rng = np.random.default_rng(10)
    objected = sum(gaussian_assumption(*gaussian(rng, 1.0), vouched=True) != "" for _ in range(200))
    assert objected <= binom.isf(1e-4, 200, 0.05)
