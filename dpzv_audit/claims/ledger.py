"""A ledger of decisions, so that a gate run on every commit keeps one error rate over all its runs together.

The k-th look at new scores may err with probability alpha / (zeta(1.4) k^1.4), which sums to alpha however long the
ledger grows (alpha spending, Foster and Stine, JRSS B 70, 2008) and leaves a late look more than alpha / (k (k + 1)): 5
times as much at k = 100, 20 times at k = 1,000. How each claim shares its part of that out among its tests (the
sequential test, the full audit) was fixed before anything was drawn, and is written beside the decision.

What is charged is a claim, by all that it says, with a digest of the scores: the same scores decide nothing anew,
however often and by whatever code they are drawn. A refuted claim stays refuted until the claim itself changes, and
what it was refuted by stands beside it: the p-value, the digest of the scores, and what was taken as given.

The file is JSON lines in a chain of hashes. The first line names the ledger, its error rate, the number of entries and
the hash of the last; every other line is an entry and the hash of the line before. A file that was emptied, shortened,
reordered or edited does not fit together and is refused. One that was put back to an earlier state does fit: the cache
remembers the newest state of each ledger and which ledger was last used at a path, so that this is told too, and that a
file is gone. All of it finds accidents: who can write both the file and the cache can forge them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter

from dpzv_audit.errors import AuditError, InputError
from dpzv_audit.evidence.verdict import GIVEN_GAUSSIAN, holm
from dpzv_audit.files import open_plain
from dpzv_audit.results import Refutation
from dpzv_audit.store import Store, lock, write_atomically

EXPONENT = 1.4
SUM_OF_POWERS = 3.1055473
"""At least the sum of k^-1.4 over all k, zeta(1.4) = 3.10554727..."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One claim with what was drawn for it: `claim` and `scores` are digests, `split` how its alpha was shared out.

    `general_p_value` is that of the tests that take nothing as given, by default the same. `tested` says whether there
    are scores at all: without any, nothing can be refuted and nothing is spent.
    """

    claim: str
    scores: str
    name: str
    p_value: float
    general_p_value: float | None = None
    tested: bool = True
    split: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a claim was refuted by the scores of that digest; the claim's `name` then is for people.

    `given` is what a refutation takes as given, "" for nothing. Ledgers that did not keep it, nor `p_value`, have None.
    """

    scores: str
    refuted: bool
    name: str = ""
    p_value: float | None = None
    given: str | None = None
    split: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One run that brought new scores: its error rate, and what was decided, by the digest of the claim."""

    level: float
    decisions: Mapping[str, Decision]


@dataclass(frozen=True)
class Ledger:
    """The ledger's own error rate, which its first run fixed, its runs so far, and a name that no other ledger has."""

    alpha: float
    entries: tuple[Entry, ...] = ()
    name: str = ""

    def refuted(self) -> dict[str, Refutation]:
        """The claims that were refuted, each with what first did it."""
        numbered = reversed(list(enumerate(self.entries, start=1)))
        return {
            claim: Refutation(entry=number, level=entry.level, scores=one.scores, p_value=one.p_value, given=one.given)
            for number, entry in numbered
            for claim, one in entry.decisions.items()
            if one.refuted
        }

    def decided(self) -> set[tuple[str, str]]:
        """Claims with the scores that were decided on."""
        return {(claim, one.scores) for entry in self.entries for claim, one in entry.decisions.items()}

    def next_level(self) -> float:
        """The error rate of the next run with new scores."""
        return level_of(len(self.entries) + 1, self.alpha)

    def spent(self) -> float:
        """What all runs so far may have erred together: at most `alpha`."""
        return sum(entry.level for entry in self.entries)


def level_of(look: int, alpha: float) -> float:
    """Return what the `look`-th look, from 1, may spend of `alpha`: all looks together spend at most `alpha`."""
    return float(alpha / (SUM_OF_POWERS * look**EXPONENT))


def refuted_over_time(
    ledger: Ledger, looks: Sequence[Look]
) -> tuple[tuple[bool, ...], tuple[Refutation | None, ...], Entry]:
    """Return which claims are refuted, by what in an earlier entry (None for this look), and the entry for this look.

    Claims that the ledger has refuted stay so; scores that it has decided on decide nothing anew. The others are
    tested together by Holm's method at the next run's level. An entry without decisions spends nothing.
    """
    before, decided = ledger.refuted(), ledger.decided()
    earlier = tuple(before.get(look.claim) for look in looks)
    new = [
        index
        for index, look in enumerate(looks)
        if look.tested and earlier[index] is None and (look.claim, look.scores) not in decided
    ]
    level = ledger.next_level()
    tested = dict(zip(new, holm([looks[index].p_value for index in new], level), strict=True))
    general = [
        look.p_value if look.general_p_value is None else look.general_p_value for look in (looks[i] for i in new)
    ]
    alone = dict(zip(new, holm(general, level), strict=True))
    refuted = tuple(entry is not None or tested.get(index, False) for index, entry in enumerate(earlier))
    decisions = {
        look.claim: Decision(
            scores=look.scores,
            refuted=tested[index],
            name=look.name,
            p_value=look.p_value,
            given=GIVEN_GAUSSIAN if tested[index] and not alone[index] else "",
            split=look.split,
        )
        for index, look in enumerate(looks)
        if index in tested
    }
    return refuted, earlier, Entry(level, decisions)


T = TypeVar("T")

SCHEMA = "dpzv-audit/ledger/2"
_OLD_SCHEMA = "dpzv-audit/ledger/1"
_ENTRY = TypeAdapter(Entry)
LARGEST_LEDGER = 64_000_000
_ANEW = "or move it away and give ‹new_ledger›, which begins a new error rate"


@dataclass(frozen=True, kw_only=True)
class LastUsed:
    """The ledger that was last used at a path, with its number of entries."""

    ledger: str
    entries: int


@dataclass(frozen=True, kw_only=True)
class NewestState:
    """The newest state of a ledger: its number of entries, and the hash of its last line."""

    entries: int
    head: str


@dataclass(frozen=True)
class LedgerMemory:
    """What the cache in `folder` remembers of ledgers; without `keeps` it is only asked."""

    folder: Path
    keeps: bool = True

    def of_path(self, path: Path) -> LastUsed | None:
        """Return what was last used at `path`."""
        return self._read(os.path.realpath(path), LastUsed)

    def of_ledger(self, name: str) -> NewestState | None:
        """Return the newest state of the ledger `name`."""
        return self._read(name, NewestState)

    def remember(self, path: Path, ledger: Ledger) -> None:
        """Remember the state of `ledger`, which is at `path`; what cannot be written is not remembered."""
        entries = len(ledger.entries)
        self._write(os.path.realpath(path), LastUsed(ledger=ledger.name, entries=entries))
        self._write(ledger.name, NewestState(entries=entries, head=head_of(ledger)))

    def _read(self, key: str, kind: type[T]) -> T | None:
        return self._store.read(_name(key), kind, again="nothing is remembered of the ledger that it was about")

    def _write(self, key: str, value: LastUsed | NewestState) -> None:
        if self.keeps:
            with suppress(AuditError):
                self._store.write(_name(key), value, cure="")

    @property
    def _store(self) -> Store:
        return Store(self.folder / "ledgers")


def _name(key: str) -> str:
    return f"{hashlib.sha256(os.fsencode(key)).hexdigest()}.json"


def open_ledger(path: Path, alpha: float, memory: LedgerMemory | None = None, *, new: bool = False) -> Ledger:
    """Return the ledger at `path`, an empty one of error rate `alpha` where no file was ever there.

    With `new`, which a user asks for by hand, a file that is gone makes place for a new ledger, and one that is there
    is taken though the cache remembers another at its path.

    Raises:
        InputError: The file is no ledger, or not whole, or not the one that was left here; its error rate is another.
    """
    text = _read(path)
    left = None if memory is None else memory.of_path(path)
    if text is None:
        if left is not None and not new:
            raise InputError(
                f"‹ledger› {path}: is gone, but held {_entries(left.entries)} when it was last used: put it back, "
                f"or give ‹new_ledger› to begin a new error rate"
            )
        return Ledger(alpha, name=secrets.token_hex(16))
    ledger, hashes = _parsed(path, text)
    if not math.isclose(ledger.alpha, alpha, rel_tol=1e-9):
        raise InputError(
            f"‹ledger› {path}: holds an error rate of {ledger.alpha:g}, but alpha is {alpha:g}; must be equal, or a "
            "new ledger"
        )
    if left is not None and left.ledger != ledger.name and not new:
        _refuse(
            path,
            f"is not the ledger of {_entries(left.entries)} that was last used here",
            "give ‹new_ledger›",
        )
    newest = None if memory is None else memory.of_ledger(ledger.name)
    if newest is not None and newest.entries > len(ledger.entries):
        _refuse(path, f"holds {_entries(len(ledger.entries))}, but held {newest.entries} when it was last used")
    if newest is not None and hashes[newest.entries] != newest.head:
        _refuse(path, "is another history of the ledger that was last used here, as on another branch")
    return ledger


def append_entry(path: Path, ledger: Ledger, entry: Entry, memory: LedgerMemory | None = None) -> Ledger:
    """Add `entry` to the file, whole or not at all, on the disk when this returns; the caller holds `ledger_lock`."""
    longer = Ledger(ledger.alpha, (*ledger.entries, entry), ledger.name)
    hashes = _hashes(longer)
    head = {**_first(longer), "entries": len(longer.entries), "head": hashes[-1]}
    rows = [head] + [{**_row(e), "previous": before} for e, before in zip(longer.entries, hashes[:-1], strict=True)]
    try:
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows), shared=True, durable=True)
    except OSError as error:
        raise AuditError(f"‹ledger› {path}: cannot be written ({error.strerror})") from error
    if memory is not None:
        memory.remember(path, longer)
    return longer


def head_of(ledger: Ledger) -> str:
    """Return the hash of the ledger's last line, which stands for all of them."""
    return _hashes(ledger)[-1]


def ledger_files(path: Path | None) -> tuple[Path, ...]:
    """Return the files that a run with the ledger at `path` writes: it and its lock."""
    return () if path is None else (path, _lock_of(path))


@contextmanager
def ledger_lock(path: Path) -> Iterator[None]:
    """Keep other runs from reading and writing the ledger at `path` while the block runs (POSIX; elsewhere no lock)."""
    try:
        handle = os.open(_lock_of(path), os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise InputError(f"‹ledger› {path}: cannot be written ({error.strerror}), must be in a folder") from error
    try:
        lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _refuse(path: Path, what: str, otherwise: str = _ANEW) -> NoReturn:
    raise InputError(f"‹ledger› {path}: {what}; put back the file that was last used, {otherwise}")


def _read(path: Path) -> bytes | None:
    if not path.name or path.is_dir():
        raise InputError(f"‹ledger› {path}: is a folder, must be a file or absent")
    try:
        with open_plain(path) as file:
            return file.read(LARGEST_LEDGER + 1)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise error.placed("‹ledger› ", ", or absent") from None
    except OSError as error:
        raise InputError(f"‹ledger› {path}: cannot be read ({error.strerror}), must be a file or absent") from error


def _parsed(path: Path, text: bytes) -> tuple[Ledger, list[str]]:
    """Return the ledger with the hashes of its lines; `InputError` for text that is none, or not whole."""
    if not text.strip():
        _refuse(path, "is empty, which no ledger ever is")
    try:
        lines = text.decode("utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        first = rows[0]
        if first["schema"] == _OLD_SCHEMA:
            raise InputError(
                f"‹ledger› {path}: was written by an earlier version, which did not say which claims it refuted; move "
                f"it away and give ‹new_ledger›, which begins a new error rate"
            )
        entries = tuple(_ENTRY.validate_json(line, strict=True) for line in lines[1:])
        ledger = Ledger(float(first["alpha"]), entries, str(first["ledger"]))
        number, head = int(first["entries"]), str(first["head"])
        links = [str(row["previous"]) for row in rows[1:]]
        if first["schema"] != SCHEMA or not all(_is_possible(entry) for entry in entries):
            raise ValueError
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise InputError(f"‹ledger› {path}: is no ledger, must be a file that ‹ledger› wrote or a new one") from None
    if len(entries) != number:
        _refuse(path, f"holds {_entries(len(entries))}, but was left with {number}")
    hashes = _hashes(ledger)
    wrong = next((k for k, link in enumerate(links) if link != hashes[k]), None)
    if wrong is not None:
        _refuse(path, f"was edited or reordered: line {wrong + 2} does not follow from those above it")
    if head != hashes[-1]:
        _refuse(path, "was edited: its last line is not the one that it was left with")
    return ledger, hashes


def _is_possible(entry: Entry) -> bool:
    p_values = (one.p_value for one in entry.decisions.values() if one.p_value is not None)
    return 0.0 < entry.level < 1.0 and all(0.0 <= p_value <= 1.0 for p_value in p_values)


def _first(ledger: Ledger) -> dict[str, Any]:
    return {"schema": SCHEMA, "ledger": ledger.name, "alpha": ledger.alpha}


def _row(entry: Entry) -> dict[str, Any]:
    """Return an entry as its line says it; what a ledger did not keep when it was decided, and hash, is left out."""
    row: dict[str, Any] = _ENTRY.dump_python(entry, exclude_none=True)
    return row


def _hashes(ledger: Ledger) -> list[str]:
    """Return the hash of the first line and those of all entries, each over the hash before and what the line says."""
    found = [_hash(_first(ledger))]
    for entry in ledger.entries:
        found.append(_hash({**_row(entry), "previous": found[-1]}))
    return found


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
