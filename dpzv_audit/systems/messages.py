"""What travels between the parties of a training of yours: one message, its numbers, and the records it is about."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SERVER = 0
"""Number of the party that holds the labels."""
PER_RECORD = ("embeddings", "gradient", "prediction")
"""Kinds of messages of which each row is about one record, so that they need ids."""


class Sent(NamedTuple):
    """One message: who sent what kind to whom in which round, and the names of its tensor and of its ids.

    Attributes:
        round: Round number, from 0; -1 for what is sent before training starts.
        sender: Party number (0 is the server).
        receiver: Party number.
        kind: What it is: `embeddings`, `gradient`, `prediction`, `scalar`, `losses`, or a word of the system's own.
        tensor: Name of the numbers that travelled.
        ids: Name of the ids (B,) of its records, by row; "" where it is about none.
    """

    round: int
    sender: int
    receiver: int
    kind: str
    tensor: str
    ids: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What `party` knows of itself, by `name`, and the name of its tensor."""

    party: int
    name: str
    tensor: str


class Arrays(Protocol):
    """Gives arrays by name."""

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """Return the array of this name."""


class Shards(Arrays, Protocol):
    """Gives arrays by name, and all of them in parts."""

    def shards(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield all arrays, those of one part together."""


class Recording(Protocol):
    """What was recorded of one training: what a `Recorder` keeps, and a transcript gives back."""

    @property
    def messages(self) -> list[Sent]:
        """Messages in order."""

    @property
    def notes(self) -> list[Note]:
        """What parties noted for themselves."""

    @property
    def tensors(self) -> Shards:
        """The arrays that messages and notes name."""


def with_ids(messages: Iterable[Sent], tensors: Arrays) -> list[Sent]:
    """Return messages in order, those without ids with the ids of that client's embeddings of the round.

    A message stays without ids where the client sends no embeddings in the round, or embeddings of several batches.
    """
    messages = list(messages)
    batches: dict[tuple[int, int], set[str]] = {}
    for one in messages:
        if one.kind == "embeddings":
            batches.setdefault((one.sender, one.round), set()).add(one.ids)

    def ids_of(one: Sent) -> str:
        known = next((batches[m, one.round] for m in (one.receiver, one.sender) if (m, one.round) in batches), set())
        first, *others = sorted(known) or [""]
        alike = all(np.array_equal(tensors[first], tensors[other]) for other in others)
        return first if alike else ""

    return [one if one.ids else one._replace(ids=ids_of(one)) for one in messages]


def check_order(messages: Iterable[Sent]) -> None:
    """Raise `InputError` for a gradient that comes before any embeddings of its client in its round."""
    uploaded = set()
    for one in messages:
        if one.kind == "embeddings":
            uploaded.add((one.sender, one.round))
        elif one.kind == "gradient" and one.sender == SERVER and (one.receiver, one.round) not in uploaded:
            where = f"the gradient of round {one.round} to party {one.receiver}"
            raise InputError(f"{where} comes before any embeddings of that client in that round, must follow them")


def as_array(values: "Tensor | ArrayLike") -> NDArray[Any]:
    """Return numbers of torch or numpy as an array; floats of other widths than 32 and 64 bits as float32."""
    if isinstance(values, np.ndarray):
        found = values
    elif hasattr(values, "detach"):
        tensor = cast("Tensor", values)
        narrow = tensor.element_size() < 4 and tensor.is_floating_point()
        found = (tensor.detach().float() if narrow else tensor).numpy(force=True)
    else:
        found = np.asarray(values)
    return found.astype(np.float32) if found.dtype == np.float16 else found


def finite_numbers(values: "Tensor | ArrayLike") -> NDArray[Any]:
    """Return a copy of finite numbers; `InputError` for others."""
    found = np.array(as_array(values), order="C")
    if found.dtype.kind not in "fiu" or found.size == 0:
        raise InputError(f" holds values of type {found.dtype} and shape {found.shape}, must be numbers")
    # A sum of squares is finite unless an entry is not, or is very large: then each is looked at.
    if found.dtype.kind == "f" and not isfinite(np.vdot(found, found)) and not np.isfinite(found).all():
        raise InputError(f" holds {found[~np.isfinite(found)][0]}, must be finite: has the training diverged?")
    return found
