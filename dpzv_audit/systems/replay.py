"""Replays separate trainings: sends their messages as those of one stack, which attacks and games read."""

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
    """Send the messages of K trainings as messages of a stack.

    Raises:
        InputError: They did not send the same messages, which a stack must.
    """
    sent = [with_ids(trial.messages, trial.tensors) for trial in played]
    for place, group in enumerate(zip_longest(*sent)):
        first = _head(group[0])
        for number, other in enumerate(group):
            if _head(other) != first:
                raise InputError(
                    f"system {name}: message {place + 1} of training {number + 1} is {_head(other)}, "
                    f"of training 1 {first}; send the same messages in one order in all trainings"
                )
        channel.send(_stacked(group, played, name))
    for notes in zip(*(trial.notes for trial in played), strict=False):
        values = [trial.tensors[note.tensor] for trial, note in zip(played, notes, strict=True)]
        if len({value.shape for value in values}) == 1:
            channel.note(notes[0].party, -1, notes[0].name, torch.from_numpy(np.stack(values)))


def _head(sent: Sent | None) -> str:
    if sent is None:
        return "none"
    return f"{sent.kind!r} of round {sent.round} from {sent.sender} to {sent.receiver}"


def _stacked(group: Sequence[Sent], played: Sequence[Trial], name: str) -> Message:
    """Return one message of all trainings; where batches differ in size, padded, as those of Poisson sampling are."""
    first = group[0]
    values = [trial.tensors[sent.tensor] for trial, sent in zip(played, group, strict=True)]
    ids = [trial.tensors[sent.ids] for trial, sent in zip(played, group, strict=True) if sent.ids]
    named = len(ids) == len(values)
    # Ids of a whole batch beside numbers that are about all of it.
    by_row = named and all(value.ndim and len(value) == len(rows) for value, rows in zip(values, ids, strict=True))
    if len({value.shape[1:] if by_row else value.shape for value in values}) > 1:
        shapes = " and ".join(sorted({str(value.shape) for value in values}))
        raise InputError(f"system {name}: {_head(first)} has shapes {shapes} in different trainings; use one")
    # A number has the size that it travels in, where that is not the float of a built-in method.
    bits = 8 * values[0].nbytes if values[0].itemsize != VALUE_BYTES else None
    head = (first.round, first.sender, first.receiver, first.kind)
    if not named:
        return Message(*head, torch.from_numpy(np.stack(values)), bits=bits)
    sizes = [len(rows) for rows in ids]
    padded = by_row and len(set(sizes)) > 1
    if padded:
        values = [np.pad(v, ((0, max(sizes) - len(v)), *[(0, 0)] * (v.ndim - 1))) for v in values]
    ids = [np.pad(rows, (0, max(sizes) - len(rows)), constant_values=-1) for rows in ids]
    payload = torch.from_numpy(np.stack(values))
    if by_row:
        payload = payload.flatten(2) if payload.dim() > 2 else payload.unsqueeze(2)
    else:
        payload = payload.flatten(1).unsqueeze(1)
    named_rows = torch.from_numpy(np.stack(ids))
    if padded:
        return Message(*head, payload, named_rows, sizes=sizes)
    return Message(*head, payload, named_rows, bits=bits)


def stack_of(models: Sequence[tuple[Layout, np.ndarray] | None]) -> ParameterStack:
    """Return the models of one client as a stack, float parameters and buffers flattened; empty for none."""
    present = [model for model in models if model is not None]
    if len(present) < len(models):
        return ParameterStack(torch.zeros(len(models), 0), ())
    layouts = {layout for layout, _ in present}
    if len(layouts) > 1:
        raise InputError("clients: models of different trainings differ in their parameters; keep one shape")
    return ParameterStack(torch.from_numpy(np.stack([flat for _, flat in present])), *layouts)
