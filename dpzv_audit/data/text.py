"""Text as token ids, in runs for each client: IMDb (Maas et al., 2011) and Amazon review polarity (Zhang et al., 2015).

No vocabulary is fitted on any text: tokens are hashed lower-case words, or those of a pre-trained transformer through
the extra `[text]`. Such a model is a local folder or a name on the Hugging Face hub; only a name ever uses the network.
Weights are read from safetensors alone, never from a pickle, and no code that comes with a model is run.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError, check_count, out_of_memory
from ..base.files import kind_of, may_open, open_plain
from .files import TarLimits, bounded_lines, check_size, read_tar_members, reading
from .spec import DataRequest
from .vertical import LabelArray, Records, TokenArray, VerticalDataset, equal_runs, fixed_order, split_evenly

WORD = re.compile(rb"[a-z0-9\x80-\xff]+(?:'[a-z]+)?")
"""Bytes of UTF-8 after ASCII lower-casing: what a word is depends on no version of the Unicode tables."""

DEFAULT_VOCABULARY = 1 << 15

_LARGEST_JSON = 200_000_000
"""Bytes of a configuration or a vocabulary of a model: six times those of the largest vocabularies."""


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
        """The tokenizer in words."""
        return f"lower-case words hashed to {self.vocabulary} ids, the first {self.length}"

    def encode(self, texts: Sequence[str]) -> TokenArray:
        """Return ids, int64 (N, length); 0 pads."""
        contents = (text.encode("utf-8", "surrogatepass").lower() for text in texts)
        words = (islice(WORD.finditer(content), self.length) for content in contents)
        return _padded([[word_id(word[0], self.vocabulary) for word in row] for row in words], self.length)


def _padded(rows: Sequence[Sequence[int]], length: int, padding: int = 0) -> TokenArray:
    """Return ids as int64 (N, length), a shorter row filled up with `padding`."""
    ids = np.full((len(rows), length), padding, np.int64)
    for row, numbers in zip(ids, rows, strict=True):
        row[: len(numbers)] = numbers
    return ids


@lru_cache(maxsize=1 << 17)
def word_id(word: bytes, vocabulary: int) -> int:
    """Return the id of a lower-case word, in 1 .. vocabulary - 1."""
    return 1 + int.from_bytes(hashlib.blake2b(word, digest_size=8).digest()) % (vocabulary - 1)


def choose_tokenizer(tokenizer: "Tokenizer | None", *, clients: int, length: int, vocabulary: int) -> "Tokenizer":
    """Return `tokenizer`, or the hashing one of `length` and `vocabulary`, once `clients` divide its length."""
    chosen = tokenizer or HashTokenizer(length=length, vocabulary=vocabulary)
    split_evenly(chosen.length, clients, name="clients", of="tokens")
    return chosen


def text_dataset(
    request: DataRequest, tokenizer: "Tokenizer", parts: Iterable[Records], *, complete: int
) -> VerticalDataset:
    """Return ids (N, length) of train and test reviews in two classes as a data set of equal runs of tokens.

    A note says where there are other than `complete` reviews.
    """
    count = request.clients
    train, test = (Records(equal_runs(records.features[0], count), records.labels) for records in parts)
    length = tokenizer.length
    return request.dataset(
        train,
        test,
        f"{length // count} of {length} tokens each; {tokenizer.name}",
        vocabulary=tokenizer.vocabulary,
        complete=(complete, "reviews"),
    )


def read_pretrained(kind: str, source: str, **options: Any) -> Any:
    """Return what `transformers`' class `kind` reads from `source`, its progress bars and logs silenced.

    Raises:
        InputError: The extra is not installed, or `source` holds or names no such thing.
    """
    try:
        import transformers
    except ImportError:
        needs = "which needs the extra [text]: pip install 'dpzv-audit[text]'"
        raise InputError(needs, "transformer", source) from None
    local = Path(source).is_dir()
    if local:
        _check_model(Path(source), source)
    logs = transformers.utils.logging
    verbosity = logs.get_verbosity()
    bars = logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        return getattr(transformers, kind).from_pretrained(
            source,
            local_files_only=local,
            trust_remote_code=False,
            **options,
        )
    except Exception as error:  # whatever the library makes of a file
        if out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            "use a folder with config.json, model.safetensors and a tokenizer, or a name on the Hugging "
            f"Face hub: {reason}",
            "transformer",
            source,
        ) from None
    finally:
        logs.set_verbosity(verbosity)
        if bars:
            logs.enable_progress_bar()


def _check_model(folder: Path, source: str) -> None:
    """Raise `InputError` for a file in the folder of a model that the library must not open, or not read as a whole."""
    for path in sorted(folder.iterdir()):
        if not path.is_dir() and not may_open(path):
            raise InputError(f"whose {path.name} is {kind_of(path)}; use a regular file", "transformer", source)
        if path.suffix == ".json" and path.stat().st_size > _LARGEST_JSON:
            raise InputError(
                f"whose {path.name} is too large; use {_LARGEST_JSON:,} bytes at most", "transformer", source
            )


@lru_cache(maxsize=2)
def _tokenizer(source: str) -> Any:
    return read_pretrained("AutoTokenizer", source)


@dataclass(frozen=True, kw_only=True)
class PretrainedTokenizer:
    """A pre-trained model's own tokenizer: the first `length` ids of a text, without marks of begin and end, padded."""

    source: str
    length: int

    def __post_init__(self) -> None:
        check_count("length", self.length)

    @property
    def name(self) -> str:
        """The tokenizer in words."""
        return f"the tokenizer of {Path(self.source).name} ({self.vocabulary} ids), the first {self.length}"

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(_tokenizer(self.source))

    def encode(self, texts: Sequence[str]) -> TokenArray:
        """Return ids, int64 (N, length); each row depends on its own text alone.

        Raises `InputError` where the tokenizer has no id for padding.
        """
        read = _tokenizer(self.source)
        if read.pad_token_id is None:
            raise InputError("whose tokenizer has no padding token; use another", "transformer", self.source)
        if not texts:
            return _padded([], self.length)
        ids = read([*texts], add_special_tokens=False, truncation=True, max_length=self.length)["input_ids"]
        return _padded(ids, self.length, read.pad_token_id)


Tokenizer = HashTokenizer | PretrainedTokenizer
"""Turns texts into ids: `vocabulary` ids in all, `length` of them for each text, and a `name` for the record."""


REVIEW = re.compile(r"aclImdb/(train|test)/(pos|neg)/([0-9]{1,9})_([0-9]{1,2})\.txt")
"""Part, side, number and rating."""
LIMITS = TarLimits(members=250_000, member_bytes=1 << 18, total_bytes=1 << 30)
RATINGS = {"neg": range(1, 5), "pos": range(7, 11)}


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
    path = request.found(_archive(request, subset=subset))
    reviews = _reviews(path)

    def records(split: str) -> Records:
        keys = sorted(key for key in reviews if key[0] == split)
        if not keys:
            raise InputError(f"{path}: has no aclImdb/{split}/pos or neg/ID_RATING.txt; use a folder that has some")
        keys = [keys[place] for place in fixed_order(len(keys), seed=request.spec.seed)]
        ids = chosen.encode([reviews[key] for key in keys])
        return Records((ids,), np.array([key[1] == "pos" for key in keys], np.int64))

    return text_dataset(request, chosen, map(records, ("train", "test")), complete=2 * complete)


def _archive(request: DataRequest, *, subset: bool) -> Path:
    remote = request.spec.remote[0]
    original = request.folder / remote.name
    others = sorted(request.folder.glob("aclImdb*.tar.gz"))
    if subset and others:
        return original if original in others else others[0]
    if not original.is_file():
        raise request.spec.missing(original).placed("", f"; or give ‹subset› to use {others[0].name}" if others else "")
    remote.check(original)
    return original


def _reviews(path: Path) -> dict[tuple[str, str, int], str]:
    """Return the texts of the labelled reviews by (split, side, number)."""
    reviews: dict[tuple[str, str, int], str] = {}
    for name, content in read_tar_members(path, REVIEW.fullmatch, LIMITS):
        [(split, side, number, rating)] = REVIEW.findall(name)
        where = f"{path}: {name!r}"
        if int(rating) not in RATINGS[side]:
            raise InputError(f"{where} has rating {rating}, which is not {side}")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is no UTF-8 text ({error.reason})") from error
        key = (split, side, int(number))
        if key in reviews:
            raise InputError(f"{where} is a second review of number {number}")
        # line breaks of the source's HTML, which are no words
        reviews[key] = text.replace("<br />", " ")
    return reviews


TRAIN_LINES = 3_600_000
TEST_LINES = 400_000
LABELS = {"__label__1": 0, "__label__2": 1}
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
    train_path = request.find("train.ft.txt")
    test_path = train_path.with_name("test.ft.txt")
    there = test_path.is_file()
    if not subset and not there:
        raise request.spec.missing(test_path).placed("", "; or give ‹subset›, whose test is a part of train")

    def read(path: Path, right: int) -> Records:
        ids, labels = read_fasttext(path, chosen)
        if not subset and len(labels) != right:
            raise InputError(
                f"{path}: has {len(labels)} lines, the original has {right}; give ‹subset› to use what is there"
            )
        return Records((ids,), labels)

    train = read(train_path, TRAIN_LINES)
    parts = (train, read(request.found(test_path), TEST_LINES)) if there else request.split(train)
    return text_dataset(request, chosen, parts, complete=TRAIN_LINES + TEST_LINES)


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
        labels.extend(LABELS[label] for label, _ in chunk)
    if not labels:
        raise InputError(f"{path}: is empty; use one line per review: __label__1 title: text")
    return np.concatenate(ids), np.array(labels, np.int64)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each line."""
    with reading(path), open_plain(path) as file:
        for number, line in enumerate(bounded_lines(file, LINE_LIMIT, "bytes"), start=1):
            try:
                label, _, text = line.decode("utf-8").rstrip("\r\n").partition(" ")
            except UnicodeDecodeError as error:
                raise ValueError(f"line {number} is no UTF-8 text ({error.reason})") from error
            if label not in LABELS or not text.strip():
                start = ascii(line[:30].decode("utf-8", "replace").strip())
                raise ValueError(f"line {number} starts {start}; use __label__1 or __label__2, a space and text")
            yield label, text
