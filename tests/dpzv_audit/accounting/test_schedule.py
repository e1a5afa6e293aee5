import numpy as np
import pytest

from dpzv_audit.accounting.release import realised_participations

from ...helpers.refusals import refused


def test_the_largest_count_over_records():
    batches = [[0, 1, 2], [2, 3, -1], [2, 2, 4]]
    assert realised_participations(batches, dataset_size=5, rounds=3, distinct_ids=True) == 3
    assert realised_participations(np.array([[1], [3]]), dataset_size=5, rounds=2) == 1
    assert realised_participations([[0], [0, 1], [2]], dataset_size=3, rounds=3) == 2
    assert realised_participations([[-1, -1]], dataset_size=5, rounds=1) == 1


def test_a_shuffled_schedule_has_as_many_as_passes_begun(rng):
    batches = [batch for _ in range(7) for batch in rng.permutation(100).reshape(10, 10)]
    assert realised_participations(batches[:65], dataset_size=100, rounds=65) == 7


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([], "has 0 batches; use one for each of the 1 rounds"),
        ([[0], [1]], "has 2 batches"),
        # two places in one batch move the message twice as far: one participation would be too few
        ([[0, 3, 3]], "batch 1 names record 3 more than once"),
        ([[0, 5]], r"batch 1 names record 5; use a number in \[0, 4\]"),
        ([[0], [-2]], "batch 2 names record -2"),
        ([[0, -2]], "batch 1 names record -2"),
        ([[-1, 5]], "batch 1 names record 5"),
        ([[0.5]], "batch 1 has shape"),
        ([[[0]]], r"batch 1 has shape \(1, 1\)"),
    ],
)
def test_wrong_schedules_are_named(batches, says):
    with refused(says):
        realised_participations(batches, dataset_size=5, rounds=1)
