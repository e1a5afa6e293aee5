"""Replays separate trainings: sends their messages as those of one stack, which attacks and games read."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.core.channel import VALUE_BYTES, Channel, Message
from mechanisms.core.models import Layout
from mechanisms.core.replicas import ParameterStack

from ..base.errors import InputError
from .messages import Sent, with_ids
from .trials import Trial


def replay(played: Sequence[Trial], channel: Channel, name: str) -> None:
    """Send the messages of K trainings as messages of a stack.

    Trainings may stop at different rounds, miss messages and have batches of different sizes: what one of them did not
    send is padding there, as batches of Poisson sampling have.

    Raises:
        InputError: Rows of one message have different widths in different trainings.
    """
    for group in lined_up([with_ids(trial.messages, trial.tensors) for trial in played]):
        channel.send(_stacked(group, played, name))
    notes = [_by_key(trial.notes, lambda note: (note.party, note.name)) for trial in played]
    for key, first in notes[0].items():
        values = [trial.tensors[own[key].tensor] for trial, own in zip(played, notes, strict=True) if key in own]
        if len(values) == len(played) and len({value.shape for value in values}) == 1:
            channel.note(first.party, -1, first.name, torch.from_numpy(np.stack(values)))


def lined_up(trainings: Sequence[Sequence[Sent]]) -> list[list[Sent | None]]:
    """Return the messages of K trainings side by side, each message with that of the others that is the same one.

    The same are messages of one round, sender, receiver and kind, and of one place among such. They are in the order of
    the training with the most messages; others come behind what they followed in their own. Where the rounds of all
    trainings count up, they are in the order of rounds. None stands for what a training did not send.
    """
    keyed = [_by_key(sent, lambda one: (one.round, one.sender, one.receiver, one.kind)) for sent in trainings]
    following = dict[_Key | None, _Key | None]()
    for messages in sorted(keyed, key=len, reverse=True):
        before = None
        for key in messages:
            if key not in following:
                following[key] = following.get(before)
                following[before] = key
            before = key
    keys = list[_Key]()
    after = following.get(None)
    while after is not None:
        keys.append(after)
        after = following[after]
    if all(a.round <= b.round for sent in trainings for a, b in pairwise(sent)):
        keys.sort(key=lambda key: key[0][0])
    return [[messages.get(key) for messages in keyed] for key in keys]


_Key = tuple[tuple[Any, ...], int]
_Item = TypeVar("_Item")


def _by_key(items: Iterable[_Item], key_of: Callable[[_Item], tuple[Any, ...]]) -> dict[_Key, _Item]:
    """Return items in order by their key and their place among those of the same one."""
    places = Counter[tuple[Any, ...]]()
    keyed = dict[_Key, _Item]()
    for item in items:
        key = key_of(item)
        keyed[key, places[key]] = item
        places[key] += 1
    return keyed


def _stacked(group: Sequence[Sent | None], played: Sequence[Trial], name: str) -> Message:
    """Return one message of all trainings, padded where they did not send equally many rows."""
    sent = [(trial.tensors, one) for trial, one in zip(played, group, strict=True) if one is not None]
    first = sent[0][1]
    values = [tensors[one.tensor] for tensors, one in sent]
    ids = [tensors[one.ids] for tensors, one in sent if one.ids]
    named = len(ids) == len(sent)
    # Ids of a whole batch beside numbers that are about all of it.
    by_row = named and all(value.ndim and len(value) == len(rows) for value, rows in zip(values, ids, strict=True))
    if len({value.shape[1:] if by_row else value.shape for value in values}) > 1:
        shapes = " and ".join(sorted({str(value.shape) for value in values}))
        which = f"{first.kind!r} of round {first.round} from {first.sender} to {first.receiver}"
        raise InputError(f"system {name}: {which} has shapes {shapes} in different trainings; use one")
    # A number has the size that it travels in, where that is not the float of a built-in method.
    bits = 8 * values[0].nbytes if values[0].itemsize != VALUE_BYTES else None
    head = (first.round, first.sender, first.receiver, first.kind)
    if by_row:
        rows = [value.reshape(len(value), prod(value.shape[1:])) for value in values]
    elif named or len(sent) < len(group):
        rows = [value.reshape(1, -1) for value in values]
    else:
        return Message(*head, torch.from_numpy(np.stack(values)), bits=bits)
    there = [one is not None for one in group]
    payload = _padded(rows, there, 0)
    sizes = np.zeros(len(group), int)
    sizes[there] = [len(own) for own in rows]
    padded = len(set(sizes)) > 1
    about = torch.from_numpy(_padded(ids, there, -1)) if named else None
    return Message(
        *head,
        torch.from_numpy(payload),
        about,
        bits=None if padded else bits,
        sizes=sizes.tolist() if padded else None,
    )


def _padded(rows: Sequence[NDArray[Any]], there: Sequence[bool], filler: int) -> NDArray[Any]:
    """Return rows (n, ...) of the trainings that are `there` as (K, B, ...), filled up, and for the others `filler`."""
    most = max(map(len, rows))
    stack = np.full((len(there), most, *rows[0].shape[1:]), filler, np.result_type(*rows))
    for place, own in zip(np.flatnonzero(there), rows, strict=True):
        stack[place, : len(own)] = own
    return stack


def stack_of(models: Sequence[tuple[Layout, np.ndarray] | None]) -> ParameterStack:
    """Return the models of one client as a stack, float parameters and buffers flattened; empty for none."""
    present = [model for model in models if model is not None]
    if len(present) < len(models):
        return ParameterStack(torch.zeros(len(models), 0), ())
    layouts = {layout for layout, _ in present}
    if len(layouts) > 1:
        raise InputError("clients: models of different trainings differ in their parameters; keep one shape")
    return ParameterStack(torch.from_numpy(np.stack([flat for _, flat in present])), *layouts)
