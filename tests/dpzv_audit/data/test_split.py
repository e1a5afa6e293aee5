import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.data import load
from dpzv_audit.data.vertical import fixed_order, fixed_split, sample_of_training

from ...helpers.refusals import refused


@given(count=st.integers(2, 700), seed=st.integers(0, 2**32))
def test_the_parts_are_disjoint_complete_and_whole_batches_where_they_can_be(count, seed):
    train, test = fixed_split(count, seed=seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(count))
    assert 1 <= len(train) <= max(1, 0.8 * count)
    assert len(test) >= 1
    assert count < 80 or len(train) % 64 == 0
    again, _ = fixed_split(count, seed=seed)
    assert np.array_equal(train, again)


def test_the_order_is_fixed_for_good_and_follows_the_seed():
    assert fixed_order(1797, seed=1797)[:8].tolist() == [1302, 591, 711, 307, 1499, 1394, 1563, 184]
    assert fixed_order(100, seed=1).tolist() != fixed_order(100, seed=2).tolist()


def test_one_record_cannot_be_split():
    with refused("there are 1 records; use at least 2"):
        fixed_split(1, seed=0)


def test_a_sample_is_of_training_records_with_their_labels_and_says_so():
    whole = load("digits")
    part = sample_of_training(whole, 100)
    assert len(part.train) == 100
    assert part.notes == (*whole.notes, "a sample: 100 of 1,408 training records")
    assert part.test is whole.test
    rows = {row.tobytes(): label for row, label in zip(_joined(whole), whole.train.labels, strict=True)}
    assert [rows[row.tobytes()] for row in _joined(part)] == part.train.labels.tolist()
    assert set(part.train.labels) == set(range(10))  # in no order of classes
    assert np.array_equal(sample_of_training(whole, 100).train.labels, part.train.labels)


def _joined(data):
    return np.concatenate([block.reshape(len(data.train), -1) for block in data.train.features], axis=1)


@pytest.mark.parametrize(("count", "line"), [(0, "records is 0"), (1409, "records is 1409; use at most 1408")])
def test_a_sample_of_none_or_of_more_than_there_are_is_one_line(count, line):
    with refused(line):
        sample_of_training(load("digits"), count)
