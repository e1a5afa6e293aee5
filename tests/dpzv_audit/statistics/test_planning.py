import itertools

import numpy as np
import pytest

from dpzv_audit.statistics.estimators import audit_scores
from dpzv_audit.statistics.fixed import expected_bound

from ...helpers.refusals import refused

DELTA = 1e-5


def test_what_is_expected_is_about_what_comes():
    # mu = 1 has epsilon 4.377; the mean of 30 bounds at n = 1,000 has a standard error of 0.05.
    found = [
        audit_scores(
            np.random.default_rng(s).normal(1, 1, 1000),
            np.random.default_rng(1000 + s).normal(0, 1, 1000),
            delta=DELTA,
            estimators=["joint"],
        )[0].epsilon_lower
        for s in range(30)
    ]
    expected = expected_bound(4.377, n_in=1000, n_out=1000, delta=DELTA)
    assert np.mean(found) - 0.1 < expected < np.mean(found) + 0.5


def test_more_runs_see_more_and_never_more_than_there_is():
    seen = [expected_bound(4.377, n_in=n, n_out=n, delta=DELTA) for n in (7, 100, 1000, 10_000, 10**7)]
    assert seen[0] == 0.0
    assert all(a < b for a, b in itertools.pairwise(seen))
    assert seen[-1] < 4.377
    assert expected_bound(0.0, n_in=1000, n_out=1000, delta=DELTA) == 0.0


@pytest.mark.parametrize(("n_in", "n_out"), [(300, 300), (100, 900), (900, 100)])
def test_what_is_expected_of_worlds_far_apart_is_the_ceiling(n_in, n_out):
    (bound,) = audit_scores(*(np.full(n_in, 9.0), np.full(n_out, 0.5)), delta=DELTA, estimators=["joint"])
    assert expected_bound(300.0, n_in=n_in, n_out=n_out, delta=DELTA) == pytest.approx(bound.ceiling, rel=1e-9)


def test_a_side_too_small_for_a_pilot_sees_nothing():
    for n_in, n_out in ((7, 1000), (1000, 7)):
        assert expected_bound(300.0, n_in=n_in, n_out=n_out, delta=DELTA) == 0.0


def test_wrong_numbers_are_named():
    with refused("n_in is 0"):
        expected_bound(1.0, n_in=0, n_out=5, delta=DELTA)
