"""A data set cut vertically, as methods train on it: a feature block for each client, the labels at the server.

Strips and patches are paper 001's MNIST and CIFAR-10 partitions, runs of flattened pixels those of papers 002 and 003.
Every block is a fresh C-contiguous array of the input's type; together the blocks hold every feature exactly once.
Train and test parts, where a source has none, are fixed by the number of records, never by a run's seed.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..base.errors import InputError, check_count

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
TokenArray = npt.NDArray[np.int64]
FeatureArray = FloatArray | TokenArray
LabelArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Records:
    """N records: `features[m]` is client m's block (N, *shape_m), C-contiguous; `labels` int64 (N,).

    A block is float32, or int64 where its features are token ids of a text (at least 0); a party without features has
    one without columns. Made only if all
    blocks and the labels have the same N >= 1 and every feature is finite: `InputError` otherwise, naming the
    block.
    """

    features: tuple[FeatureArray, ...]
    labels: LabelArray

    def __post_init__(self) -> None:
        if not self.features:
            raise InputError("features is empty; use at least one block (one a client)")
        check_array("labels", self.labels, np.int64)
        if self.labels.ndim != 1 or len(self.labels) == 0:
            raise InputError(f"labels has shape {self.labels.shape}; use (N,) with N at least 1")
        for client, block in enumerate(self.features):
            name = f"features[{client}]"
            check_array(name, block, np.float32, np.int64)
            if block.ndim < 2 or len(block) != len(self):
                raise InputError(f"{name} has shape {block.shape}; use ({len(self)}, ...): a row a label")
            if block.dtype == np.int64 and int(block.min(initial=0)) < 0:
                raise InputError(f"{name} holds {block.min()}; use token ids of at least 0")
            if block.dtype == np.float32 and not np.isfinite(block).all():
                raise InputError(f"{name} holds nan or inf; use finite features")

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class Variable:
    """A variable of a table: its `name`, and the `columns` of the block of `client` (from 1) that hold it.

    `values` names its categories, one per column; a record with none of them has zeros there. A number has none, nor
    has a category in hash buckets.
    """

    name: str
    client: int
    columns: slice
    values: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class VerticalDataset:
    """A train and a test part over the same clients, with labels in 0 .. `classes` - 1.

    `partition` says in words how the features were cut. `digests` maps each source (a file, or an embedded
    array) to its SHA-256 as 64 hexadecimal digits. `vocabulary` is the number of token ids (0 .. vocabulary - 1,
    0 for padding) where blocks are int64, None where none is. `notes` are sentences that whoever reads a result
    on these data should know; `fitted` are sentences too, each on something of the preprocessing that was read off the
    records themselves: a release that no noise covers, so that no bound is sound. `hints` say what in the records
    usually keeps a model from learning, with options as `base.errors.with_options` reads them. `columns` is the
    width in pixels where a flattened block is a picture, row by row, None where it is none or its shape says so.
    `variables` are those of a table whose names are known, in the order of the blocks' columns. Where the target is a
    number, label c stands for `values[c]`, of (classes,) increasing numbers; else `values` is None.
    Raises `InputError` where the two parts differ in clients or in the shape or type of a client's block, or where a
    label or a token id is out of range.
    """

    name: str
    train: Records
    test: Records
    classes: int
    partition: str
    digests: dict[str, str]
    vocabulary: int | None = None
    notes: tuple[str, ...] = ()
    columns: int | None = None
    fitted: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    values: FloatArray | None = None

    def __post_init__(self) -> None:
        check_count("classes", self.classes, least=2)
        if self.values is not None:
            check_array("values", self.values, np.float32)
            if self.values.shape != (self.classes,) or not (np.diff(self.values) > 0).all():
                raise InputError(f"{self.name}: values has shape {self.values.shape}; use increasing ones, one a class")
        train, test = self.train.features, self.test.features
        if [block.shape[1:] for block in train] != [block.shape[1:] for block in test]:
            raise InputError(f"{self.name}: train and test blocks differ in number or shape; use the same")
        if [block.dtype for block in train] != [block.dtype for block in test]:
            raise InputError(f"{self.name}: train and test blocks differ in type; use the same")
        blocks = [block for block in (*train, *test) if block.dtype == np.int64]
        if bool(blocks) != (self.vocabulary is not None):
            raise InputError(
                f"{self.name}: vocabulary is {self.vocabulary}; use None where no block is int64 and a "
                "number of token ids where one is"
            )
        if self.vocabulary is not None:
            check_count("vocabulary", self.vocabulary, least=2)
            largest = max(int(block.max()) for block in blocks)
            if largest >= self.vocabulary:
                raise InputError(f"{self.name}: token id {largest} is out of range; use 0 to {self.vocabulary - 1}")
        for split, records in (("train", self.train), ("test", self.test)):
            low = int(records.labels.min())
            high = int(records.labels.max())
            if low < 0 or high >= self.classes:
                raise InputError(
                    f"{self.name}: {split} labels run from {low} to {high}; use numbers in 0 .. {self.classes - 1}"
                )

    @property
    def clients(self) -> int:
        """Number of clients M."""
        return len(self.train.features)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of one record's block at each client."""
        return tuple(block.shape[1:] for block in self.train.features)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, as 64 hexadecimal digits, of all that is trained and tested on: what numbers depend on.

        Files and options that decode to the same arrays have one fingerprint, others (another scale, another order of
        the classes) have another. Takes about a second a gigabyte, the first time.
        """
        digest = hashlib.sha256(f"{self.classes} {self.vocabulary}".encode())
        if self.values is not None:
            digest.update(self.values.tobytes())
        for records in (self.train, self.test):
            for array in (*records.features, records.labels):
                digest.update(f" {array.dtype.str} {array.shape} ".encode())
                digest.update(array.data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def picture(self, client: int) -> tuple[int, int] | None:
        """Return height and width in pixels of the block of `client` (from 0); None where the block is no picture."""
        shape = self.shapes[client]
        if len(shape) in (2, 3) and self.train.features[client].dtype == np.float32:
            return (shape[-2], shape[-1])
        width = self.columns
        if len(shape) == 1 and width is not None and shape[0] % width == 0:
            return (shape[0] // width, width)
        return None


def check_array(name: str, array: Array, *dtypes: type[np.generic]) -> None:
    """Raise `InputError` naming `name` unless `array` is a C-contiguous array of one of `dtypes`."""
    if not isinstance(array, np.ndarray) or array.dtype not in dtypes:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f" is {kind}; use an array of {' or '.join(str(np.dtype(d)) for d in dtypes)}", name)
    if not array.flags.c_contiguous:
        raise InputError(f"{name} is not C-contiguous; use numpy.ascontiguousarray")


def array_digest(array: Array) -> str:
    """Return the SHA-256 of the bytes of `array`, in hexadecimal digits."""
    return hashlib.sha256(array.tobytes()).hexdigest()


TaskName = Literal["classification", "regression"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
"""What labels are: classes, or numbers that are ordered or continuous."""


def distinct_numbers(numbers: npt.ArrayLike) -> FloatArray:
    """Return the different numbers in `numbers`, increasing; `InputError` unless all are finite and two differ."""
    flat = np.asarray(numbers).ravel()
    if not np.isfinite(flat).all():
        raise InputError("labels hold nan or inf; use finite numbers")
    values = np.unique(flat.astype(np.float32))
    if len(values) == 1:
        raise InputError(f"labels are all {flat[0]}; use two different numbers at least")
    return values


Blocks = tuple[Array, ...]


def split_evenly(length: int, parts: int, *, name: str, of: str) -> int:
    """Return `length` / `parts`; `InputError` naming `name` and what would divide if it is not whole."""
    check_count(name, parts)
    if length % parts:
        choices = ", ".join(str(n) for n in range(1, length + 1) if not length % n)
        raise InputError(f"use a divisor of the {length} {of}: {choices}", name, parts)
    return length // parts


def patches(images: Array, *, rows: int = 2, columns: int = 2) -> Blocks:
    """Cut images (N, H, W) or (N, C, H, W) into a grid of rows x columns patches, row by row.

    Each patch is (N, C, H / rows, W / columns), C = 1 where the images have no channel axis; `rows` divide H, and
    `columns` W. CIFAR-10 in paper 001: 2 x 2 patches of 16 x 16. MNIST there: 7 x 1, strips of 4 rows.
    """
    bands = np.split(images[:, None] if images.ndim == 3 else images, rows, axis=2)
    return tuple(np.ascontiguousarray(patch) for band in bands for patch in np.split(band, columns, axis=3))


def equal_runs(records: Array, clients: int, *, uneven: bool = False) -> Blocks:
    """Flatten each record of (N, ...) and cut it into `clients` equal runs: blocks of (N, d / clients).

    `clients` divide the d features, or the first runs have one more where they may be `uneven`. Two runs are the halves
    of paper 003 (392 pixels each on MNIST).
    """
    cut = np.array_split if uneven else np.split
    return tuple(map(np.ascontiguousarray, cut(records.reshape(len(records), -1), clients, axis=1)))


def scaled(blocks: Blocks, divisor: float) -> tuple[FloatArray, ...]:
    """Return the blocks divided by the public constant `divisor`, in float32.

    A constant known beforehand: preprocessing that looked at the data would leak from it unaccounted.
    """
    return tuple(np.divide(block, divisor, dtype=np.float32) for block in blocks)


BATCH = 64
"""Train parts are whole batches of this size where they can be, so that no batch of an epoch is short."""


def fixed_order(count: int, *, seed: int) -> LabelArray:
    """Return the fixed permutation of 0 .. count - 1 that `seed`, a constant of the data set, names.

    The rank of Philox's raw 64-bit words: bit streams keep their values across numpy versions, which
    `Generator.permutation` does not promise.
    """
    words = np.random.Philox(np.random.SeedSequence(seed)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def train_count(count: int) -> int:
    """Return how many of `count` records train in a fixed split; `InputError` for fewer than 2 records."""
    if count < 2:
        raise InputError(f"there are {count} records; use at least 2 for a train and a test part")
    train = count * 4 // 5
    return train - (train % BATCH if train >= BATCH else 0)


def fixed_split(count: int, *, seed: int) -> tuple[LabelArray, LabelArray]:
    """Return the indices of the train and of the test records, disjoint, together 0 .. count - 1 in a fixed order.

    At most four fifths train, in whole batches of 64 where there are 80 records or more. Which side a record
    falls on follows from its position, `count` and `seed`, never from what it holds. Raises `InputError` for
    fewer than 2 records.
    """
    train = train_count(count)
    order = fixed_order(count, seed=seed)
    return order[:train], order[train:]


def split_records(records: Records, *, seed: int) -> tuple[Records, Records]:
    """Return the train and the test records of `records` as `fixed_split` parts them."""
    train, test = (take(records, rows) for rows in fixed_split(len(records), seed=seed))
    return train, test


def take(records: Records, rows: LabelArray) -> Records:
    """Return the records at the places `rows`, in that order."""
    return Records(tuple(block[rows] for block in records.features), records.labels[rows])


def sample_of_training(dataset: VerticalDataset, count: int) -> VerticalDataset:
    """Return `dataset` with `count` of its training records, in order, and a note that says so; test records stay.

    Which records those are follows from `count` alone, never from what they hold.

    Raises:
        InputError: `count` is below 1 or above the number of training records.
    """
    records = len(dataset.train)
    if check_count("records", count) > records:
        raise InputError(f"use at most {records}: {dataset.name} has no more to train on", "records", count)
    chosen = np.sort(fixed_order(records, seed=0)[:count])
    note = f"a sample: {count:,} of {records:,} training records"
    return replace(dataset, train=take(dataset.train, chosen), notes=(*dataset.notes, note))
