"""Train and test parts where a source has none, and samples: fixed by the number of records, never by a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError, check_count

Indices = npt.NDArray[np.int64]

BATCH = 64
"""Train parts are whole batches of this size where they can be, so that no batch of an epoch is short."""


def fixed_order(count: int, *, seed: int) -> Indices:
    """Return the fixed permutation of 0 .. count - 1 that `seed`, a constant of the data set, names.

    The rank of Philox's raw 64-bit words: bit streams keep their values across numpy versions, which
    `Generator.permutation` does not promise.
    """
    words = np.random.Philox(np.random.SeedSequence(seed)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def fixed_split(count: int, *, seed: int) -> tuple[Indices, Indices]:
    """Return the indices of the train and of the test records, disjoint, together 0 .. count - 1 in a fixed order.

    At most four fifths train, in whole batches of 64 where there are 80 records or more. Which side a record
    falls on follows from its position, `count` and `seed`, never from what it holds. Raises `InputError` for
    fewer than 2 records.
    """
    if count < 2:
        raise InputError(f"there are {count} records, must be at least 2 for a train and a test part")
    train = max(1, count * 4 // 5)
    train = train - train % BATCH if train >= BATCH else train
    order = fixed_order(count, seed=seed)
    return order[:train], order[train:]


def split_records(records: Records, *, seed: int) -> tuple[Records, Records]:
    """Return the train and the test records of `records` as `fixed_split` parts them."""
    train, test = fixed_split(len(records), seed=seed)
    return take(records, train), take(records, test)


def take(records: Records, rows: Indices) -> Records:
    """Return the records at the places `rows`, in that order."""
    return Records(tuple(block[rows] for block in records.features), records.labels[rows])


def sample_of_training(dataset: VerticalDataset, count: int, *, seed: int = 0) -> VerticalDataset:
    """Return `dataset` with `count` of its training records, in order, and a note that says so; test records stay.

    Which records those are follows from `count` and `seed`, a constant, never from what they hold.

    Raises:
        InputError: `count` is below 1 or above the number of training records.
    """
    records = len(dataset.train)
    if check_count("records", count) > records:
        raise InputError(f"must be at most {records}: {dataset.name} has no more to train on", "records", count)
    chosen = np.sort(fixed_order(records, seed=seed)[:count])
    return replace(
        dataset,
        train=take(dataset.train, chosen),
        notes=(*dataset.notes, f"a sample: {count:,} of {records:,} training records"),
    )
