"""IMDb reviews (Maas et al., 2011) read from their tar.gz in place, as token ids; one client holds the text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dpzv_audit.data.archives import TarLimits, read_tar_members
from dpzv_audit.data.files import file_digest
from dpzv_audit.data.spec import DataRequest
from dpzv_audit.data.split import fixed_order
from dpzv_audit.data.tokens import DEFAULT_VOCABULARY, Tokenizer, choose_tokenizer, text_dataset
from dpzv_audit.data.vertical import LabelArray, TokenArray, VerticalDataset
from dpzv_audit.errors import InputError

REVIEW = re.compile(r"aclImdb/(?P<part>train|test)/(?P<side>pos|neg)/(?P<id>[0-9]{1,9})_(?P<rating>[0-9]{1,2})\.txt")
LIMITS = TarLimits(members=250_000, member_bytes=1 << 18, total_bytes=1 << 30)
RATINGS = {"neg": range(1, 5), "pos": range(7, 11)}
SPLIT_SEED = 25_000


def read_imdb(
    complete: int,
    request: DataRequest,
    *,
    subset: bool = False,
    length: int = 256,
    vocabulary: int = DEFAULT_VOCABULARY,
    tokenizer: Tokenizer | None = None,
) -> VerticalDataset:
    """Return IMDb (`complete` reviews, 25,000, in each of train and test; 2 classes: 0 negative, 1 positive).

    Blocks are token ids, int64 (N, length / clients). Neighbouring files review the same film, so that each part is
    shuffled in a fixed way; the source's own parts share no film. `tokenizer` replaces the hashing one of `length` and
    `vocabulary`. With `subset` any archive `aclImdb*.tar.gz` of that layout will do, with any number of reviews. Raises
    `InputError` naming the archive, and the file in it, for whatever is malformed.
    """
    chosen = choose_tokenizer(tokenizer, clients=request.clients, length=length, vocabulary=vocabulary)
    path = _archive(request, subset=subset)
    reviews = _reviews(path)

    def part(name: str) -> tuple[TokenArray, LabelArray]:
        found = sorted(key for key in reviews if key[0] == name)
        if len(found) != complete and not subset:
            raise InputError(f"{path}: has {len(found)} {name} reviews, the original has {complete}")
        if not found:
            raise InputError(f"{path}: has no aclImdb/{name}/pos or neg/ID_RATING.txt, must have some")
        keys = [found[place] for place in fixed_order(len(found), seed=SPLIT_SEED)]
        labels = np.array([key[1] == "pos" for key in keys], dtype=np.int64)
        return chosen.encode([reviews[key] for key in keys]), labels

    digests = {path.name: file_digest(path)}
    return text_dataset(request, chosen, part("train"), part("test"), complete=2 * complete, digests=digests)


def _archive(request: DataRequest, *, subset: bool) -> Path:
    remote = request.spec.remote[0]
    original = request.folder / remote.name
    others = sorted(request.folder.glob("aclImdb*.tar.gz"))
    if subset and others:
        return original if original in others else others[0]
    if not original.is_file():
        hint = f"; or give ‹subset› to use {others[0].name}" if others else ""
        raise request.spec.missing(original).placed("", hint)
    remote.check(original)
    return original


def _reviews(path: Path) -> dict[tuple[str, str, int], str]:
    """Return the texts of the labelled reviews by (part, side, number)."""
    reviews: dict[tuple[str, str, int], str] = {}
    for name, content in read_tar_members(path, lambda name: REVIEW.fullmatch(name) is not None, LIMITS):
        match = REVIEW.fullmatch(name)
        if match is None:
            continue
        if int(match["rating"]) not in RATINGS[match["side"]]:
            raise InputError(f"{path}: {name!r} has rating {match['rating']}, which is not {match['side']}")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: {name!r} is no UTF-8 text ({error.reason})") from error
        key = (match["part"], match["side"], int(match["id"]))
        if key in reviews:
            raise InputError(f"{path}: {name!r} is a second review of number {match['id']}")
        # line breaks of the source's HTML, which are no words
        reviews[key] = text.replace("<br />", " ")
    return reviews
