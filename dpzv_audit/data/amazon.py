"""Amazon review polarity (Zhang, Zhao, LeCun, 2015) from fastText lines, three equal runs of tokens (paper 001)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from dpzv_audit.data.files import check_size, file_digest, unreadable
from dpzv_audit.data.spec import DataRequest
from dpzv_audit.data.split import fixed_split
from dpzv_audit.data.tokens import DEFAULT_VOCABULARY, Tokenizer, choose_tokenizer, text_dataset
from dpzv_audit.data.vertical import LabelArray, TokenArray, VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.plain_files import open_plain

TRAIN_FILE, TEST_FILE = "train.ft.txt", "test.ft.txt"
TRAIN_LINES, TEST_LINES = 3_600_000, 400_000
LABELS = {"__label__1": 0, "__label__2": 1}
SPLIT_SEED = 6_459
FILE_LIMIT = 4 << 30
LINE_LIMIT = 1 << 16
CHUNK = 4096


def read_amazon_polarity(
    request: DataRequest,
    *,
    subset: bool = False,
    length: int = 96,
    vocabulary: int = DEFAULT_VOCABULARY,
    tokenizer: Tokenizer | None = None,
) -> VerticalDataset:
    """Return Amazon review polarity (3,600,000 train and 400,000 test reviews, 2 classes: 0 negative, 1 positive).

    Blocks are token ids, int64 (N, length / clients); a review's title comes first, as in the file. `tokenizer`
    replaces the hashing one of `length` and `vocabulary`. With `subset` any number of lines will do, and without
    `test.ft.txt` a fixed split of `train.ft.txt` makes the test. Raises `InputError` naming the file and the line for
    whatever is malformed.
    """
    chosen = choose_tokenizer(tokenizer, clients=request.clients, length=length, vocabulary=vocabulary)
    train_path = request.find(TRAIN_FILE)
    test_path = train_path.with_name(TEST_FILE)
    if not subset and not test_path.is_file():
        raise request.spec.missing(test_path).placed("", "; or give ‹subset›, whose test is a part of train")
    digests = {}

    def read(path: Path, right: int) -> tuple[TokenArray, LabelArray]:
        ids, labels = read_fasttext(path, chosen)
        if not subset and len(labels) != right:
            found = f"{path}: has {len(labels)} lines, the original has {right}"
            raise InputError(f"{found}; give ‹subset› to use what is there")
        digests[path.name] = file_digest(path)
        return ids, labels

    train = read(train_path, TRAIN_LINES)
    if test_path.is_file():
        test = read(test_path, TEST_LINES)
    else:
        rows = fixed_split(len(train[1]), seed=SPLIT_SEED)
        train, test = ((train[0][part], train[1][part]) for part in rows)
    return text_dataset(request, chosen, train, test, complete=TRAIN_LINES + TEST_LINES, digests=digests)


def read_fasttext(path: Path, tokenizer: Tokenizer) -> tuple[TokenArray, LabelArray]:
    """Return ids (N, length) and labels (N,) of the lines `__label__1 text` or `__label__2 text` of `path`.

    Raises `InputError` naming the line that is empty, too long, no UTF-8, or has another label, and the file if
    it is empty, too large or cannot be read.
    """
    check_size(path, FILE_LIMIT)
    ids: list[TokenArray] = []
    labels: list[int] = []
    lines = _lines(path)
    while chunk := list(islice(lines, CHUNK)):
        ids.append(tokenizer.encode([text for _, text in chunk]))
        labels.extend(label for label, _ in chunk)
    if not labels:
        raise InputError(f"{path}: is empty, must have a line a review: __label__1 title: text")
    return np.concatenate(ids), np.array(labels, dtype=np.int64)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with open_plain(path) as file:
            while line := file.readline(LINE_LIMIT + 1):
                number += 1
                yield _parse(path, number, line)
    except OSError as error:
        raise unreadable(path, error) from error


def _parse(path: Path, number: int, line: bytes) -> tuple[int, str]:
    if len(line) > LINE_LIMIT:
        raise InputError(f"{path}: line {number} has more than {LINE_LIMIT} bytes, must have {LINE_LIMIT} at most")
    try:
        label, _, text = line.decode("utf-8").rstrip("\r\n").partition(" ")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line {number} is no UTF-8 text ({error.reason})") from error
    if label not in LABELS or not text.strip():
        found = ascii(line[:30].decode("utf-8", "replace").strip())
        raise InputError(f"{path}: line {number} starts {found}, must be __label__1 or __label__2, a space and text")
    return LABELS[label], text
