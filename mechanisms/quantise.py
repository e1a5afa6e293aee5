"""The uniform scale quantiser of compressed VFL and CZOFO: b bits a value between a message's extremes (paper 003)."""

from __future__ import annotations

import torch
from torch import Tensor

HEADER_BITS = 64
"""A quantised message starts with two 4-byte floats, the smallest value and the step."""

BITS = (1, 2, 4, 8)


def quantise(values: Tensor, bits: int | None) -> Tensor:
    """What the receiver reads: each replica's values on 2^bits even levels from its smallest to its largest.

    Args:
        values: (K, ...), one message a replica.
        bits: One of `BITS`, or None to leave the values as they are.

    Returns:
        Tensor of the same shape; the error is at most half a step, (max - min) / (2^bits - 1) / 2.
    """
    if bits is None:
        return values
    flat = values.flatten(1)
    low, high = flat.aminmax(dim=1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    # A constant message has no step: all its values are the smallest one.
    levels = torch.where(step > 0, ((flat - low) / step).round_(), torch.zeros_like(flat))
    read: Tensor = (low + levels * step).view(values.shape)
    return read


def message_bits(values: int, bits: int | None) -> int:
    """Bits of a message of so many numbers: 32 each, or a header and `bits` each."""
    return 32 * values if bits is None else HEADER_BITS + bits * values
