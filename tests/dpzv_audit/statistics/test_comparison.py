"""A measurement beside a baseline: of the trainings that were made, training by training, and of further ones."""

from dataclasses import replace

import pytest

from attacks.core.metrics import behind, rate_interval
from dpzv_audit.base.findings import Interval, OverTrainings
from dpzv_audit.statistics.comparison import compared

SUCCESS = Interval(
    value=1.0,
    low=0.994,
    high=1.0,
    n=11_248,
    over_trainings=OverTrainings(count=8, least=1.0, most=1.0, low=0.37, high=1.0),
)
BASELINE = Interval(
    value=0.857,
    low=0.817,
    high=0.891,
    n=11_248,
    over_trainings=OverTrainings(count=8, least=0.5, most=0.996, low=0.31, high=0.99),
)


def counted(number, **more):
    return replace(BASELINE, **more, over_trainings=replace(BASELINE.over_trainings, behind=number))


@pytest.mark.parametrize(
    ("other", "side"),
    [
        (BASELINE, None),  # in one training it comes near what the attack finds by records
        (counted(8), "above"),
        (counted(7), None),
        (counted(8, high=0.995), None),  # by records not below
    ],
)
def test_a_baseline_that_shares_the_luck_of_trainings_is_compared_in_each(other, side):
    found = compared(SUCCESS, other)
    assert found.side == side
    assert found.of_these == (side == "above")


def test_trainings_in_which_a_baseline_lies_below_are_counted():
    rates = rate_interval([[True, False, False], [True, True, False]])
    assert behind(rates, [0.3, 0.7], [0.4, 0.7]).over_trainings.behind == 1
    assert rates.over_trainings.behind is None
    alone = replace(rates, over_trainings=None)
    assert behind(alone, [0.3], [0.4]) is alone


@pytest.mark.parametrize(("shared", "side"), [({}, "above"), ({"shared_low": 0.45, "shared_high": 0.7}, None)])
def test_records_that_all_trainings_share_count_once(shared, side):
    """A score that follows from features says the same in each training, and owes its success to one set of labels."""
    over = OverTrainings(count=64, least=0.58, most=0.6, low=0.52, high=0.66, **shared)
    assert compared(Interval(value=0.59, low=0.56, high=0.62, n=10_240, over_trainings=over), 0.5).side == side
