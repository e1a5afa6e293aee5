"""The uniform quantiser: error, levels, extremes, one message a replica, and what a message costs."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.core.channel import HEADER_BITS, Message, quantise, quantised
from mechanisms.core.config import Bits

BITS = get_args(Bits)

numbers = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 6)), min_size=1, max_size=40)


def bound(values, bits):
    """Half a step of one message, and what rounding may add to it in its precision."""
    span = (values.max() - values.min()).item()
    return span / (2**bits - 1) / 2 + 4 * torch.finfo(values.dtype).eps * values.abs().max().item()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(numbers, st.sampled_from(BITS), st.sampled_from([torch.float32, torch.float64]))
def test_the_error_is_at_most_half_a_step_on_at_most_2_to_the_bits_levels(values, bits, dtype):
    sent = torch.tensor([values], dtype=dtype)
    read = quantise(sent, bits)
    assert read.shape == sent.shape
    assert read.dtype == dtype
    assert (read - sent).abs().max().item() <= bound(sent, bits)
    assert len(read.unique()) <= 2**bits
    # Order is kept, and the extremes are levels: the smallest exactly, the largest but for rounding of the step.
    assert (read[0, sent[0].argsort()].diff() >= 0).all()
    assert read.min() == sent.min()
    assert (read.max() - sent.max()).abs().item() <= 4 * torch.finfo(dtype).eps * sent.abs().max().item()


@pytest.mark.parametrize("bits", BITS)
def test_values_on_the_levels_are_read_as_they_are(bits):
    levels = torch.arange(2**bits, dtype=torch.float64).unsqueeze(0) - 3
    assert torch.equal(quantise(levels, bits), levels)


@pytest.mark.parametrize("bits", BITS)
def test_the_bound_is_reached_and_all_levels_are_used(bits):
    """Halfway between two levels the error is half a step; a fine grid meets every level."""
    count = 2**bits - 1
    fine = torch.linspace(0, count, 20 * count + 1, dtype=torch.float64).unsqueeze(0)
    read = quantise(fine, bits)
    assert (read - fine).abs().max().item() == pytest.approx(0.5)
    assert len(read.unique()) == 2**bits


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [0.0, -3.25, 1e30, 1e-30])
def test_a_constant_message_is_read_as_it_is(bits, value):
    sent = torch.full((2, 3, 4), value)
    assert torch.equal(quantise(sent, bits), sent)
    assert torch.equal(quantise(sent[:, :1, :1], bits), sent[:, :1, :1])


def test_without_bits_nothing_changes():
    sent = torch.randn(2, 3, 4)
    assert quantised(sent, None) == (sent, None)


@pytest.mark.parametrize("bits", BITS)
def test_every_replica_is_a_message_of_its_own(bits):
    sent = torch.randn(3, 5, 4, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    read = quantise(sent, bits)
    for k in range(3):
        assert torch.equal(read[k : k + 1], quantise(sent[k : k + 1], bits))
    # One scale for all would leave the smallest replica on a single level.
    assert len(read[0].unique()) > 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_spoils_its_own_replica_alone(bad):
    sent = torch.randn(2, 5, dtype=torch.float64)
    clean = quantise(sent, 8)
    sent[0, 2] = bad
    read = quantise(sent, 8)
    assert not read[0].isfinite().all()
    assert torch.equal(read[1], clean[1])


def test_what_was_given_is_not_written_to():
    sent = torch.randn(2, 6)
    before = sent.clone()
    quantise(sent, 2)
    assert torch.equal(sent, before)


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 10**6), st.sampled_from(BITS))
def test_a_message_costs_a_header_and_its_bits_in_whole_bytes(values, bits):
    read, size = quantised(torch.zeros(1, 1).expand(1, values), bits)
    assert size == HEADER_BITS + 8 * ((bits * values + 7) // 8)
    message = Message(0, 1, 0, "embeddings", read, None, size)
    assert message.nbytes == 8 + (bits * values + 7) // 8


def test_a_full_message_costs_the_same_with_and_without_its_bits_stated():
    payload, size = quantised(torch.zeros(3, 5, 4), None)
    assert size is None
    stated = Message(0, 1, 0, "embeddings", payload, None, 32 * 20)
    assert stated.nbytes == Message(0, 1, 0, "embeddings", payload).nbytes == 80
