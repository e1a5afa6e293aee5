"""Secret bits follow from their key, purpose and place alone, and from the operating system where no key is given."""

import hashlib
import os

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.noise import SecretBits

KEY = bytes(range(32))
LEVEL = 1e-4
"""False-alarm rate of every statistical test here; keys are fixed."""


def test_words_are_shake_256_of_key_domain_and_name():
    name = b"".join(n.to_bytes(8, "little") for n in (4, 2, 7, 1))
    expected = hashlib.shake_256(KEY + b"dpzv-audit/noise/1" + name).digest(24)
    assert SecretBits(KEY).words(3, Purpose.NOISE, 7, 1).tobytes() == expected


def test_a_key_draws_the_same_again_and_a_longer_stretch_begins_alike():
    first = SecretBits(KEY).words(10, Purpose.NOISE, 0, 3)
    assert (SecretBits(KEY).words(25, Purpose.NOISE, 0, 3)[:10] == first).all()


def test_other_keys_purposes_and_places_share_no_word():
    """Of 3,000 words two agree by chance with probability 2.4e-13."""
    names = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (1, 0, 0), (0, 1, 0), (2**63,)]
    words = [
        SecretBits(key).words(50, purpose, *place)
        for key in (KEY, KEY[::-1], bytes(32))
        for purpose in (Purpose.NOISE, Purpose.SERVER_NOISE)
        for place in names
    ]
    assert len(np.unique(np.concatenate(words))) == sum(map(len, words))


def test_every_bit_is_a_fair_coin():
    """64 counts of 20,000 fair coins, two-sided, level 1e-4 over all of them together."""
    words = SecretBits(KEY).words(20_000, Purpose.NOISE, 5)
    counts = [(words >> np.uint64(bit) & np.uint64(1)).sum() for bit in range(64)]
    assert min(stats.binomtest(int(count), len(words)).pvalue for count in counts) > LEVEL / 64


def test_without_a_key_it_is_the_systems(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: KEY[:count])
    assert SecretBits().key == KEY


def test_a_renewed_key_is_a_new_start():
    bits = SecretBits(KEY)
    bits.renew(KEY[::-1])
    assert (bits.words(9, Purpose.NOISE, 1) == SecretBits(KEY[::-1]).words(9, Purpose.NOISE, 1)).all()
    with pytest.raises(ValueError, match="33 bytes, must have 32"):
        bits.renew(KEY + b"0")


def test_the_key_is_not_shown_and_must_be_whole():
    assert repr(SecretBits(KEY)) == "SecretBits(...)"
    with pytest.raises(ValueError, match="31 bytes, must have 32"):
        SecretBits(KEY[1:])
