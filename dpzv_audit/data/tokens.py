"""Text as token ids without a vocabulary fitted on any text: lower-case words, hashed; and runs of tokens a client."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.partition import equal_runs, split_evenly
from dpzv_audit.data.spec import DataRequest
from dpzv_audit.data.vertical import LabelArray, Records, TokenArray, VerticalDataset
from dpzv_audit.errors import check_count

PADDING = 0
WORD = re.compile(rb"[a-z0-9\x80-\xff]+(?:'[a-z]+)?")
"""Bytes of UTF-8 after ASCII lower-casing: what a word is depends on no version of the Unicode tables."""

DEFAULT_VOCABULARY = 1 << 15


class Tokenizer(Protocol):
    """Turns texts into rows of ids: `vocabulary` ids in all, `length` of them a text, and a `name` for the record."""

    @property
    def name(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def length(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> TokenArray:
        """Return ids, int64 (N, length), in 0 .. vocabulary - 1; each row depends on its own text alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class HashTokenizer:
    """Words hashed to 1 .. vocabulary - 1 (BLAKE2b modulo), the first `length` of a text, padded with 0.

    Two words may share an id; the hash has no key and follows from nothing but the word, so that the tokenizer
    can leak nothing about a text to anyone but who holds that text.
    """

    length: int
    vocabulary: int = DEFAULT_VOCABULARY

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("vocabulary", self.vocabulary, least=2)

    @property
    def name(self) -> str:
        """What the tokenizer is, in words."""
        return f"lower-case words hashed to {self.vocabulary} ids, the first {self.length}"

    def encode(self, texts: Sequence[str]) -> TokenArray:
        """Return ids, int64 (N, length); 0 pads."""
        ids = np.full((len(texts), self.length), PADDING, dtype=np.int64)
        for row, text in enumerate(texts):
            words = islice(WORD.finditer(text.encode("utf-8", "surrogatepass").lower()), self.length)
            found = [word_id(word[0], self.vocabulary) for word in words]
            ids[row, : len(found)] = found
        return ids


@lru_cache(maxsize=1 << 17)
def word_id(word: bytes, vocabulary: int) -> int:
    """Return the id of a lower-case word, in 1 .. vocabulary - 1."""
    number = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "big")
    return 1 + number % (vocabulary - 1)


def choose_tokenizer(tokenizer: Tokenizer | None, *, clients: int, length: int, vocabulary: int) -> Tokenizer:
    """Return `tokenizer`, or the hashing one of `length` and `vocabulary`, once `clients` divide its length."""
    chosen = HashTokenizer(length=length, vocabulary=vocabulary) if tokenizer is None else tokenizer
    split_evenly(chosen.length, clients, name="clients", of="tokens")
    return chosen


def token_runs(ids: TokenArray, clients: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Cut ids (N, length) into `clients` equal runs of neighbouring tokens: blocks (N, length / clients)."""
    return tuple(block.astype(np.int64, copy=False) for block in equal_runs(ids, clients))


def text_dataset(
    request: DataRequest,
    tokenizer: Tokenizer,
    train: tuple[TokenArray, LabelArray],
    test: tuple[TokenArray, LabelArray],
    *,
    complete: int,
    digests: dict[str, str],
) -> VerticalDataset:
    """Return ids (N, length) and labels (N,) of reviews in two classes as a data set of runs of tokens.

    A note says where there are other than `complete` reviews.
    """
    count, found = request.clients, len(train[1]) + len(test[1])
    runs = f"{tokenizer.length // count} of {tokenizer.length} tokens each; {tokenizer.name}"
    return VerticalDataset(
        name=request.spec.name,
        train=Records(token_runs(train[0], count), train[1]),
        test=Records(token_runs(test[0], count), test[1]),
        classes=2,
        partition=f"{count} clients, runs: {runs}",
        digests=digests,
        vocabulary=tokenizer.vocabulary,
        notes=() if found == complete else (f"a subset: {found:,} of {complete:,} reviews",),
    )
