"""Sends what separate trainings sent as the messages of one stack, which attacks and games read."""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch

from mechanisms.core.channel import VALUE_BYTES, Channel, Message
from mechanisms.core.models import Layout
from mechanisms.core.replicas import ParameterStack

from ..base.errors import InputError
from .messages import Sent, with_ids
from .trials import Trial


def replay(played: Sequence[Trial], channel: Channel, name: str) -> None:
    """Send what K trainings sent as messages of a stack.

    Raises:
        InputError: They did not send the same messages, which a stack must.
    """
    sent = [with_ids(one.messages, one.tensors) for one in played]
    for place, group in enumerate(zip_longest(*sent)):
        first = _head(group[0])
        for number, other in enumerate(group):
            if _head(other) != first:
                there = f"message {place + 1} of training {number + 1} is {_head(other)}, of training 1 {first}"
                raise InputError(f"system {name}: {there}: all trainings must send the same messages in one order")
        channel.send(_stacked([one for one in group if one is not None], played, name))
    for notes in zip(*(one.notes for one in played), strict=False):
        values = [one.tensors[note.tensor] for one, note in zip(played, notes, strict=True)]
        if len({value.shape for value in values}) == 1:
            channel.note(notes[0].party, -1, notes[0].name, torch.from_numpy(np.stack(values)))


def _head(sent: Sent | None) -> str:
    if sent is None:
        return "none"
    return f"{sent.kind!r} of round {sent.round} from {sent.sender} to {sent.receiver}"


def _stacked(group: Sequence[Sent], played: Sequence[Trial], name: str) -> Message:
    """Return one message of all trainings; where batches differ in size, padded, as those of Poisson sampling are."""
    first = group[0]
    values = [one.tensors[sent.tensor] for one, sent in zip(played, group, strict=True)]
    ids = [one.tensors[sent.ids] for one, sent in zip(played, group, strict=True) if sent.ids]
    named = len(ids) == len(values)
    # Ids of a whole batch beside numbers that are about all of it.
    by_row = named and all(value.ndim and len(value) == len(rows) for value, rows in zip(values, ids, strict=True))
    if len({value.shape[1:] for value in values}) > 1 or (not by_row and len({v.shape for v in values}) > 1):
        shapes = " and ".join(sorted({str(value.shape) for value in values}))
        raise InputError(f"system {name}: {_head(first)} has shapes {shapes} in different trainings, must have one")
    # A number costs what it travels as, where that is not the float that a built-in method sends.
    bits = 8 * values[0].nbytes if values[0].itemsize != VALUE_BYTES else None
    if not named:
        payload = torch.from_numpy(np.stack(values))
        return Message(first.round, first.sender, first.receiver, first.kind, payload, bits=bits)
    sizes = [len(rows) for rows in ids]
    if len(set(sizes)) > 1:
        most = max(sizes)
        if by_row:
            values = [np.pad(v, ((0, most - len(v)), *[(0, 0)] * (v.ndim - 1))) for v in values]
        ids = [np.pad(rows, (0, most - len(rows)), constant_values=-1) for rows in ids]
    payload = torch.from_numpy(np.stack(values))
    if not by_row:
        payload = payload.flatten(1).unsqueeze(1)
    else:
        payload = payload.flatten(2) if payload.dim() > 2 else payload.unsqueeze(2)
    return Message(
        first.round,
        first.sender,
        first.receiver,
        first.kind,
        payload,
        torch.from_numpy(np.stack(ids)),
        bits=bits if len(set(sizes)) == 1 or not by_row else None,
        sizes=sizes if len(set(sizes)) > 1 and by_row else None,
    )


def stack_of(models: Sequence[tuple[Layout, np.ndarray] | None]) -> ParameterStack:
    """Return the models of one client as a stack, float parameters and buffers flattened; empty for none."""
    given = [model for model in models if model is not None]
    if len(given) < len(models):
        return ParameterStack(torch.zeros(len(models), 0), ())
    layouts = {layout for layout, _ in given}
    if len(layouts) > 1:
        raise InputError("clients: models of different trainings differ in their parameters, must be of one shape")
    return ParameterStack(torch.from_numpy(np.stack([flat for _, flat in given])), given[0][0])
