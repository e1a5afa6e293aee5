"""Every random stream of a run comes from here: one seed, spawned by purpose and replica.

A stream depends on (seed, purpose, key) alone, never on chunk sizes or the number of workers, so replica 7
of a stack draws the same numbers as alone. Noise has a purpose of its own: it shares no stream with public
randomness such as batches or directions.
"""

from enum import IntEnum
from operator import index
from struct import error, pack

import numpy as np


class Purpose(IntEnum):
    """Purposes of streams. Values are part of the reproducibility contract: append, never renumber."""

    DATA = 0
    INIT = 1
    BATCHES = 2
    DIRECTIONS = 3
    NOISE = 4
    CANARY = 5
    ACTIVATION = 6
    ATTACK = 7
    SPLIT = 8
    SERVER_DIRECTIONS = 9
    SERVER_NOISE = 10
    CONTROL = 11
    SIMULATION = 12
    SYSTEM = 13
    PILOT = 14
    LABELS = 15
    SHIFTS = 16
    FEATURES = 17
    DEFENCE = 18
    ORDER = 19


PRIVATE = frozenset({Purpose.NOISE, Purpose.SERVER_NOISE, Purpose.LABELS, Purpose.DEFENCE})
"""Streams whose draws must stay unknown to every adversary; all others are public randomness."""


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """Return the generator of (seed, purpose, key): Philox, a counter-based generator, from a `SeedSequence`.

    `seed` is a whole number of at least 0, and so is every part of `key` (replica, client, block, ...), below 2^32:
    numpy would cut a larger one into words, and two keys could then name one stream. `ValueError` for another.
    """
    # What SeedSequence(seed, spawn_key=(purpose, *key)) makes of its arguments, in a third of the time: 32-bit words,
    # of the seed four at least.
    try:
        size = max(16, -(-index(seed).bit_length() // 32) * 4)
        words = index(seed).to_bytes(size, "little") + pack(f"<{1 + len(key)}I", purpose, *key)
    except (OverflowError, error):
        raise ValueError(f"seed is {seed} and stream key {key}; use at least 0, the key below 2^32") from None
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(np.frombuffer(words, "<u4"))))
