"""How often a record took part in a schedule that was drawn: a count that does not depend on the data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from dpzv_audit.errors import InputError, check_count


def realised_participations(
    batches: Iterable[ArrayLike], *, dataset_size: int, rounds: int, distinct_ids: bool = False
) -> int:
    """Return the largest number of `batches`, of all clients together, that one record is in.

    Each batch holds record numbers in [0, `dataset_size`); -1 marks an empty place. There must be one for each of
    `rounds`: part of a schedule, one client's say, would count too few. A record named twice in a batch moves the
    message twice as far, so it is refused unless the server reads it once (`distinct_ids`). Raises `InputError`.
    """
    check_count("dataset_size", dataset_size)
    check_count("rounds", rounds)
    counts = np.zeros(dataset_size, dtype=np.int64)
    number = 0
    for number, batch in enumerate(batches, start=1):
        ids = np.asarray(batch)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise InputError(f"batch {number} has shape {ids.shape} of {ids.dtype}, must be one row of record numbers")
        if ids.size and not (ids.min() >= -1 and ids.max() < dataset_size):
            wrong = ids.min() if ids.min() < -1 else ids.max()
            raise InputError(f"batch {number} names record {wrong}, must lie in [0, {dataset_size - 1}], or be -1")
        named, times = np.unique(ids[ids >= 0].astype(np.int64), return_counts=True)
        if not distinct_ids and (times > 1).any():
            raise InputError(
                f"batch {number} names record {named[times > 1][0]} more than once, must name it once, or the server "
                "must enforce distinct ids"
            )
        counts[named] += 1
    if number != rounds:
        raise InputError(f"the schedule has {number} batches, must have one for each of the {rounds} rounds")
    return max(1, int(counts.max()))
