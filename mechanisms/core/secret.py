"""Secret bits from the operating system, and the generators of what a run draws: of secret bits, or of a seed.

Secret bits are SHAKE-256 of a key, a domain, a purpose and a tuple of numbers. Noise takes the bits themselves.
Batches, directions and starts take a Philox generator for each purpose and tuple, whose key is 128 such bits: an
adversary who learned one of these keys, from a model say, would know no other.
"""

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.base.seeds import Purpose, stream

Words = NDArray[np.uint64]
KEY_BYTES = 32
NOISE = b"dpzv-audit/noise/1"
SAMPLING = b"dpzv-audit/sampling/1"
"""Domains of one key: bits of one tell nothing about those of the other."""


class SecretBits:
    """Uniform bits of one 32-byte key; a purpose and a tuple of numbers name independent stretches of them.

    All bits follow from `key`: whoever has it can subtract the noise. `drawn` holds the purposes of what was drawn.
    """

    def __init__(self, key: bytes | None = None, domain: bytes = NOISE) -> None:
        """Take up `key`, or draw one from the operating system; `ValueError` where it is not 32 bytes long."""
        self.key = os.urandom(KEY_BYTES) if key is None else bytes(key)
        self.drawn: set[Purpose] = set()
        self._domain = domain
        self.renew(self.key)

    def renew(self, key: bytes) -> None:
        """Let all bits from now on follow from `key`, 32 bytes; `ValueError` for another length."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"key has {len(key)} bytes, must have {KEY_BYTES}")
        self.key = bytes(key)

    def __repr__(self) -> str:
        """Leave the key out: a log or a traceback must not hold it."""
        return "SecretBits(...)"

    def words(self, count: int, purpose: Purpose, *place: int) -> Words:
        """Return the first `count` words of 64 uniform bits of the stretch (`purpose`, `place`), in [0, 2^64).

        The entries of `place` are whole numbers in [0, 2^64). Stretches with different names share no input of the
        hash function: the number of entries is part of the name.
        """
        self.drawn.add(purpose)
        parts = (int(purpose), len(place), *place)
        name = b"".join(entry.to_bytes(8, "little") for entry in parts)
        digest = hashlib.shake_256(self.key + self._domain + name).digest(8 * count)
        return np.frombuffer(digest, dtype="<u8")


Origin = SecretBits | int
"""What numbers are drawn from: secret bits, or the streams of a seed."""


def generator(origin: Origin, purpose: Purpose, *key: int) -> np.random.Generator:
    """Return the generator of (purpose, key): Philox with a key of secret bits, or the stream of a seed."""
    if isinstance(origin, SecretBits):
        return np.random.Generator(np.random.Philox(key=origin.words(2, purpose, *key)))
    return stream(origin, purpose, *key)


def key_of(origin: Origin | None) -> bytes | None:
    """Return the present key of secret bits, None of a seed."""
    return origin.key if isinstance(origin, SecretBits) else None
