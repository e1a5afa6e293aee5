import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.data.split import fixed_order, fixed_split
from dpzv_audit.errors import InputError


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
    with pytest.raises(InputError, match="there are 1 records, must be at least 2"):
        fixed_split(1, seed=0)
