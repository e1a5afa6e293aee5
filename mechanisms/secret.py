"""Secret bits for noise that nobody is to draw again: SHAKE-256 of a key that the operating system gives.

Every number follows from the key, the purpose and a tuple of numbers (replica, block), as a seeded stream follows from
its seed, so whoever holds the key can draw the same noise again: a run that was broken off goes on from its last
checkpoint without a second release of the same rounds. The key is as secret as the noise. It is to be kept only as long
as a round may have to be repeated; `SecretBits(key)` takes it up again.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.seeds import Purpose

KEY_BYTES = 32
_DOMAIN = b"dpzv-audit/noise/1"


class SecretBits:
    """Uniform bits of one 32-byte key; a purpose and a tuple of numbers name independent stretches of them."""

    def __init__(self, key: bytes | None = None) -> None:
        """Take up `key`, or draw one from the operating system; `ValueError` where it is not 32 bytes long."""
        self.key = os.urandom(KEY_BYTES) if key is None else bytes(key)
        """What all bits follow from: whoever has it can subtract the noise."""
        self.drawn = False
        """Whether any bits have been drawn."""
        self.renew(self.key)

    def renew(self, key: bytes) -> None:
        """Let all bits from now on follow from `key`, 32 bytes; `ValueError` for another length."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"key has {len(key)} bytes, must have {KEY_BYTES}")
        self.key = bytes(key)

    def __repr__(self) -> str:
        """Leave the key out: a log or a traceback must not hold it."""
        return "SecretBits(...)"

    def words(self, count: int, purpose: Purpose, *place: int) -> NDArray[np.uint64]:
        """Return the first `count` words of 64 uniform bits of the stretch (`purpose`, `place`), in [0, 2^64).

        The entries of `place` are whole numbers in [0, 2^64). Stretches with different names share no input of the
        hash function: the number of entries is part of the name.
        """
        self.drawn = True
        parts = (int(purpose), len(place), *place)
        name = b"".join(part.to_bytes(8, "little") for part in parts)
        return np.frombuffer(hashlib.shake_256(self.key + _DOMAIN + name).digest(8 * count), dtype="<u8")
