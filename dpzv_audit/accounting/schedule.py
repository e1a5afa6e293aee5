"""How often a record took part in a schedule that was drawn: a count that does not depend on the data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from dpzv_audit.errors import InputError, check_count


def realised_participations(batches: Iterable[ArrayLike], *, dataset_size: int) -> int:
    """Return the largest number of `batches`, of all clients together, that one record is in.

    Each batch holds record numbers in [0, `dataset_size`); -1 marks an empty place. A record named twice in a batch is
    in it once, as a server with distinct ids reads it. Raises `InputError` for anything else, and for no batches.
    """
    check_count("dataset_size", dataset_size)
    counts = np.zeros(dataset_size + 1, dtype=np.int64)
    rounds = 0
    for rounds, batch in enumerate(batches, start=1):
        ids = np.asarray(batch)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise InputError(f"batch {rounds} has shape {ids.shape} of {ids.dtype}, must be one row of record numbers")
        if ids.size and not (ids.min() >= -1 and ids.max() < dataset_size):
            wrong = ids.min() if ids.min() < -1 else ids.max()
            raise InputError(f"batch {rounds} names record {wrong}, must lie in [0, {dataset_size - 1}], or be -1")
        counts[np.unique(ids.astype(np.int64))] += 1
    if rounds == 0:
        raise InputError("the schedule has no batches, must have at least one")
    return max(1, int(counts[:-1].max()))
