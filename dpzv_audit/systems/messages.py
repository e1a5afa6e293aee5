"""Messages between the parties of a training of yours: who sent which numbers, about which records."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SERVER = 0
"""Number of the party that holds the labels."""
GROUPS = "groups"
"""Kind of messages that say which records are in one node of a tree: the number of each record's node."""
PER_RECORD = ("embeddings", "gradient", "prediction", GROUPS)
"""Kinds of messages of which each row is about one record, so that they need ids."""
UPLOADS = ("table", "embeddings")
"""Kinds of messages to the server that hold what a client makes of its features."""
OF_A_BATCH = "batch-gradient"
"""Kind of messages that hold one gradient of all records of a batch, whose ids they have."""
SUMS = "sums"
"""Kind of messages that hold one sum over a set of records, whose ids they have."""
MASKED = "masked"
"""Kind of uploads that the server can read in sum alone, as under secure aggregation."""


class Sent(NamedTuple):
    """One message: its sender, receiver, kind and round, and the names of its tensor and of its ids.

    Attributes:
        round: Round number, from 0; -1 for what is sent before training starts.
        sender: Party number (0 is the server).
        receiver: Party number.
        kind: What it is: `embeddings`, `gradient`, `prediction`, `groups`, `scalar`, `losses`, `batch-gradient`,
            `sums`, `masked`, or a word of the system's own.
        tensor: Name of the numbers that travelled.
        ids: Name of the ids (B,) of its records, by row; "" where it is about none.
    """

    round: int
    sender: int
    receiver: int
    kind: str
    tensor: str
    ids: str = ""


class Note(NamedTuple):
    """Something that `party` knows by itself, by `name`, and the name of its tensor."""

    party: int
    name: str
    tensor: str


class Arrays(Protocol):
    """Gives arrays by name."""

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """Return the array of this name."""


class Shards(Arrays, Protocol):
    """Gives arrays by name, and all of them shard by shard."""

    def shards(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield all arrays, those of one shard together."""


class Recording(Protocol):
    """The record of one training: a `Recorder` keeps it, a transcript gives it back."""

    @property
    def messages(self) -> list[Sent]:
        """Messages in order."""

    @property
    def notes(self) -> list[Note]:
        """Notes of parties for themselves."""

    @property
    def tensors(self) -> Shards:
        """The arrays that messages and notes name."""


def with_ids(messages: Iterable[Sent], tensors: Arrays) -> list[Sent]:
    """Return messages in order, those without ids with the ids of that client's embeddings of the round.

    Masked ones will do. A message stays without ids where the client sends none in the round, or of several batches.
    """
    messages = list(messages)
    batches: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for message in messages:
        if message.kind in ("embeddings", MASKED):
            batches[message.sender, message.round].add(message.ids)

    def ids_of(message: Sent) -> str:
        known = batches[message.receiver, message.round] or batches[message.sender, message.round]
        first, *others = sorted(known) or [""]
        alike = first != "" and all(np.array_equal(tensors[first], tensors[other]) for other in others)
        return first if alike else ""

    return [message if message.ids else message._replace(ids=ids_of(message)) for message in messages]


def paired(messages: Iterable[Sent]) -> frozenset[int]:
    """Return the clients that send two embeddings in a round in which scalars or losses answer them."""
    seen: dict[str, Counter[tuple[int, int]]] = {"up": Counter(), "down": Counter()}
    for message in messages:
        if message.kind == "embeddings" and message.receiver == SERVER:
            seen["up"][message.sender, message.round] += 1
        elif message.kind in ("scalar", "losses") and message.sender == SERVER:
            seen["down"][message.receiver, message.round] += 1
    return frozenset(client for client, number in seen["down"] if seen["up"][client, number] > 1)


def like_groups(messages: Iterable[Sent], tensors: Arrays) -> frozenset[str]:
    """Return the kinds of a system's own whose messages, with ids, hold what `groups` hold.

    That is a column or more of whole numbers, each shared by two rows or more on average.
    """
    like: dict[str, bool] = {}
    for message in messages:
        if message.kind in (*PER_RECORD, "scalar", "losses") or not like.get(message.kind, True):
            continue
        values = tensors[message.tensor]
        shared = bool(message.ids) and values.ndim in (1, 2) and len(values) == len(tensors[message.ids])
        shared = shared and all(
            2 * len(np.unique(column)) <= len(column) for column in values.reshape(len(values), -1).T
        )
        like[message.kind] = shared and bool((values == np.floor(values)).all())
    return frozenset(kind for kind, whole in like.items() if whole)


def check_order(messages: Iterable[Sent]) -> None:
    """Raise `InputError` for a gradient that comes before any embeddings of its client in its round, masked or not."""
    uploaded = set()
    for message in messages:
        if message.kind in ("embeddings", MASKED):
            uploaded.add((message.sender, message.round))
        elif (
            message.kind == "gradient"
            and message.sender == SERVER
            and (message.receiver, message.round) not in uploaded
        ):
            raise InputError(
                f"the gradient of round {message.round} to party {message.receiver} comes before any embeddings "
                "of that client in that round; send it after them"
            )


def as_array(values: "Tensor | ArrayLike") -> NDArray[Any]:
    """Return numbers of torch or numpy as an array; floats of other widths than 32 and 64 bits as float32."""
    if hasattr(values, "detach"):
        tensor = cast("Tensor", values)
        narrow = tensor.element_size() < 4 and tensor.is_floating_point()
        return (tensor.detach().float() if narrow else tensor).numpy(force=True)
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def numbers_of(kind: str, values: "Tensor | ArrayLike") -> NDArray[Any]:
    """Return a copy of the numbers of a message of a `kind`: finite ones, and whole ones where they number nodes.

    Raises `InputError` for others.
    """
    numbers = finite_numbers(values)
    if kind == GROUPS and numbers.dtype.kind == "f" and (numbers != np.floor(numbers)).any():
        broken = numbers[numbers != np.floor(numbers)][0]
        raise InputError(f" holds {broken}; use whole numbers: the node of each record, -1 for none")
    return numbers


def finite_numbers(values: "Tensor | ArrayLike") -> NDArray[Any]:
    """Return a copy of finite numbers; `InputError` for others."""
    numbers = np.array(as_array(values), order="C")
    if numbers.dtype.kind not in "fiu" or numbers.size == 0:
        raise InputError(f" holds values of type {numbers.dtype} and shape {numbers.shape}; use numbers")
    # A sum of squares is finite unless an entry is not, or is very large: then each is looked at.
    if numbers.dtype.kind == "f" and not isfinite(np.vdot(numbers, numbers)) and not np.isfinite(numbers).all():
        raise InputError(f" holds {numbers[~np.isfinite(numbers)][0]}; use finite numbers: has the training diverged?")
    return numbers
