"""Joins results of stacks of replicas that were trained one after the other, as if by one stack."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError, out_of_memory

T = TypeVar("T")
Known = dict[tuple[int, ...], tuple[Sequence[Any], Tensor]]


def joined(parts: Sequence[T]) -> T:
    """Return `parts`, in the order of their replicas, as one.

    Tensors, arrays and lists of whole numbers have an entry for each replica and are put end to end. Dataclasses,
    mappings and sequences are joined entry by entry, lists from their end and used up: there may be no room for all of
    it twice. Anything else is the same in all parts. Whole numbers in a tensor are ids of a batch, which several
    messages share, and share again afterwards.

    Raises:
        InputError: Sequences differ in length, or batches in width, as where each training has another number of
            rounds.
        MemoryError: There is no room for the whole; `RuntimeError` where torch says so.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        whole: T = _joined(parts, {})
    except (ValueError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        why = "trainings were made in several stacks, and they differ in the number or size of their messages"
        raise InputError(f"memory ran out: {why}; use fewer ‹trials›, or a machine with more") from error
    return whole


def _joined(parts: Sequence[Any], known: Known) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        if first.is_floating_point():
            return torch.cat(list(parts))
        return _ids(parts, known)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if is_dataclass(first):
        names = [field.name for field in fields(first) if field.init]
        return replace(parts[0], **{name: _joined([getattr(stack, name) for stack in parts], known) for name in names})
    if isinstance(first, dict):
        return {key: _joined([stack[key] for stack in parts], known) for key in first}
    if isinstance(first, list) and first and isinstance(first[0], int):
        return list(chain(*parts))
    if isinstance(first, tuple):
        make = getattr(first, "_make", tuple)
        return make(_joined(same, known) for same in zip(*parts, strict=True))
    if isinstance(first, list):
        if len({len(stack) for stack in parts}) > 1:
            raise ValueError("sequences of different lengths cannot be joined")
        backwards = [_joined([stack.pop() for stack in parts], known) for _ in range(len(first))]
        return backwards[::-1]
    return first


def _ids(parts: Sequence[Tensor], known: Known) -> Tensor:
    key = tuple(map(id, parts))
    if key not in known:
        # With the parts: an id means nothing once its tensor is gone.
        known[key] = parts, torch.cat(list(parts))
    return known[key][1]
