"""IMDb reviews (Maas et al., 2011) read from their tar.gz in place, as token ids; one client holds the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpzv_audit.data.archives import TarLimits, read_tar_members
from dpzv_audit.data.files import Source, file_digest
from dpzv_audit.data.split import fixed_order
from dpzv_audit.data.tokens import DEFAULT_VOCABULARY, Tokenizer, choose_tokenizer, describe_runs, token_runs
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

IMDB_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
IMDB_ARCHIVE = "aclImdb_v1.tar.gz"
IMDB_MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
IMDB_SOURCE = Source(
    name="imdb",
    folder="imdb",
    holds=f"{IMDB_ARCHIVE} itself",
    origin=f"download {IMDB_URL} (or give --download)",
)
REVIEW = re.compile(r"aclImdb/(?P<part>train|test)/(?P<side>pos|neg)/(?P<id>[0-9]{1,9})_(?P<rating>[0-9]{1,2})\.txt")
LIMITS = TarLimits(members=250_000, member_bytes=1 << 18, total_bytes=1 << 30)
RATINGS = {"neg": range(1, 5), "pos": range(7, 11)}
SPLIT_SEED = 25_000


@dataclass(frozen=True, kw_only=True)
class ImdbFiles:
    """What the complete archive is: its MD5, and its reviews in each of train and test."""

    md5: str = IMDB_MD5
    reviews: int = 25_000


IMDB_FILES = ImdbFiles()


def load_imdb(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    subset: bool = False,
    length: int = 256,
    vocabulary: int = DEFAULT_VOCABULARY,
    tokenizer: Tokenizer | None = None,
    files: ImdbFiles = IMDB_FILES,
) -> VerticalDataset:
    """Return IMDb (25,000 train and 25,000 test reviews, 2 classes: 0 negative, 1 positive).

    Blocks are token ids, int64 (N, length / clients), one client by default (paper 002). Neighbouring files
    review the same film, so that each part is shuffled in a fixed way; the source's own parts share no film.
    `tokenizer` replaces the hashing one of `length` and `vocabulary`. With `subset` any archive
    `aclImdb*.tar.gz` of that layout will do, with any number of reviews. `partition` may only be "runs".
    `data_dir` is the folder that holds `imdb/` or the archive itself; without it DPZV_AUDIT_DATA. Raises
    `InputError` naming the archive, and the file in it, for whatever is malformed.
    """
    count = 1 if clients is None else clients
    chosen = choose_tokenizer(
        tokenizer, name="imdb", clients=count, partition=partition, length=length, vocabulary=vocabulary
    )
    path = _archive(IMDB_SOURCE.locate(data_dir), files, subset=subset)
    reviews = _reviews(path)

    def records(part: str) -> Records:
        chosen_ones = sorted(key for key in reviews if key[0] == part)
        if len(chosen_ones) != files.reviews and not subset:
            raise InputError(f"{path}: has {len(chosen_ones)} {part} reviews, the original has {files.reviews}")
        if not chosen_ones:
            raise InputError(f"{path}: has no aclImdb/{part}/pos or neg/ID_RATING.txt, must have some")
        keys = [chosen_ones[place] for place in fixed_order(len(chosen_ones), seed=SPLIT_SEED)]
        ids = chosen.encode([reviews[key] for key in keys])
        labels = np.array([key[1] == "pos" for key in keys], dtype=np.int64)
        return Records(features=token_runs(ids, count), labels=labels)

    train, test = records("train"), records("test")
    found, right = len(train) + len(test), 2 * files.reviews
    return VerticalDataset(
        name="imdb",
        train=train,
        test=test,
        classes=2,
        partition=describe_runs(chosen, count),
        digests={path.name: file_digest(path)},
        vocabulary=chosen.vocabulary,
        notes=() if found == right else (f"a subset: {found:,} of {right:,} reviews",),
    )


def _archive(folder: Path, files: ImdbFiles, *, subset: bool) -> Path:
    original = folder / IMDB_ARCHIVE
    others = sorted(folder.glob("aclImdb*.tar.gz"))
    if subset and others:
        return original if original in others else others[0]
    if not original.is_file():
        hint = f"; or give --subset to use {others[0].name}" if others else ""
        raise InputError(f"{IMDB_SOURCE.missing(original)}{hint}")
    found = file_digest(original, "md5")
    if found != files.md5:
        raise InputError(f"{original}: md5 is {found}, must be {files.md5}; download {IMDB_URL} again")
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
