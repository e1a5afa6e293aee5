import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.data.vertical import equal_runs, patches, scaled, split_evenly

from ...helpers.refusals import refusal, refused

count = st.integers(1, 4)
few = st.integers(1, 5)


def numbered(*shape):
    return np.arange(np.prod(shape)).reshape(shape)


@given(n=count, rows=few, columns=few, height=few, width=few, channels=st.none() | st.integers(1, 3))
def test_patches_reassemble_row_by_row(n, rows, columns, height, width, channels):
    middle = () if channels is None else (channels,)
    images = numbered(n, *middle, rows * height, columns * width)
    blocks = patches(images, rows=rows, columns=columns)
    assert [block.shape for block in blocks] == [(n, channels or 1, height, width)] * (rows * columns)
    bands = [np.concatenate(blocks[r * columns : (r + 1) * columns], axis=3) for r in range(rows)]
    np.testing.assert_array_equal(np.concatenate(bands, axis=2).reshape(images.shape), images)


def test_uneven_runs_reassemble_and_differ_by_one_entry():
    records = np.arange(2 * 10).reshape(2, 10)
    blocks = equal_runs(records, 4, uneven=True)
    assert [block.shape[1] for block in blocks] == [3, 3, 2, 2]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), records)


@given(n=count, clients=few, length=few)
def test_equal_runs_reassemble(n, clients, length):
    records = numbered(n, clients, length)
    blocks = equal_runs(records, clients)
    assert [block.shape for block in blocks] == [(n, length)] * clients
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), records.reshape(n, -1))


@given(length=st.integers(1, 30), clients=st.integers(1, 30))
def test_a_partition_divides_or_is_refused_with_numbers_that_do(length, clients):
    if length % clients == 0:
        assert split_evenly(length, clients, name="clients", of="features") == length // clients
        assert len(equal_runs(numbered(2, length), clients)) == clients
        return
    text = refusal(split_evenly, length, clients, name="clients", of="features")
    assert text.startswith(f"clients is {clients}; use a divisor of the {length} features")
    offered = [int(word) for word in text.rsplit(": ", 1)[1].split(", ")]
    assert offered == [n for n in range(1, length + 1) if length % n == 0]


def test_known_blocks():
    image = numbered(1, 4, 4)
    assert patches(image, rows=1, columns=2)[1].tolist() == [[[[2, 3], [6, 7], [10, 11], [14, 15]]]]
    assert patches(image, rows=2, columns=1)[1].tolist() == [[[[8, 9, 10, 11], [12, 13, 14, 15]]]]
    assert patches(image)[2].tolist() == [[[[8, 9], [12, 13]]]]
    assert equal_runs(image, 2)[0].tolist() == [list(range(8))]


def test_blocks_are_contiguous_and_own_their_data():
    images = numbered(2, 4, 4)
    halves = patches(images, rows=1, columns=2)
    for block in (*halves, *patches(images, rows=2, columns=1), *patches(images), *equal_runs(images, 2)):
        assert block.flags.c_contiguous
    halves[0][:] = -1
    assert images.min() == 0


@pytest.mark.parametrize("clients", [0, -1])
def test_no_clients_are_refused(clients):
    with refused(f"clients is {clients}; use a whole number of at least 1"):
        split_evenly(4, clients, name="clients", of="image rows")


def test_scaling_by_a_constant_is_float32_and_looks_at_no_record():
    (dim,), (bright,) = (scaled((np.array([[0, top]], dtype=np.uint8),), 255.0) for top in (51, 255))
    assert dim.dtype == np.float32
    assert dim.tolist() == [[0.0, pytest.approx(0.2)]]
    assert bright.tolist() == [[0.0, 1.0]]
