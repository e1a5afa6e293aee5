"""A ledger of decisions, so that a gate run on every commit keeps one error rate over all its runs together.

The k-th look at new scores may err with probability alpha / (zeta(1.4) k^1.4), which sums to alpha however long the
ledger grows (alpha spending, Foster and Stine, JRSS B 70, 2008) and leaves a late look more than alpha / (k (k + 1)): 5
times as much at k = 100, 20 times at k = 1,000. How each claim shares its part of that out among its tests (the
sequential test, the full audit) was fixed before anything was drawn, and is written beside the decision.

What is charged is a claim, by all that it says, with a digest of the scores: the same scores decide nothing anew,
however often and by whatever code they are drawn. A refuted claim stays refuted until the claim itself changes, and
what it was refuted by stands beside it: the p-value, the digest of the scores, and what was taken as given. An entry on
scores that are there again must have their p-value: one that has not is refused where code, seed and limits are those
that made it, and decides nothing where they are others.

The file is JSON lines in a chain of hashes. The first line names the ledger, its error rate, the number of entries and
the hash of the last; every other line is an entry and the hash of the line before. A file that was emptied, shortened,
reordered or edited does not fit together and is refused. One that was put back to an earlier state does fit: the cache
remembers the newest state of each ledger and which ledger was last used at a path, so that this is told too, and that a
file is gone. All of it finds accidents: who can write both the file and the cache can forge them.

An entry is appended, and then the first line, which has a fixed width, is overwritten in place. A kill between the two
leaves one entry more than the first line counts: it was decided, so it counts. A kill within the first leaves a line
without its end: nobody has heard of it, so it is dropped.
"""

import glob
import hashlib
import json
import math
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from ..base.errors import AuditError, InputError
from ..base.files import check_values, open_plain
from ..base.rounding import exact_p_value
from ..base.store import Store, lock, write_atomically
from ..base.tracked import tracked_at
from ..evidence.verdict import GIVEN_GAUSSIAN, Evidence
from ..results import Refutation
from ..statistics.binomial import LEAST_P
from ..statistics.panel import holm
from .file import PlacedClaim

EXPONENT = 1.4
SUM_OF_POWERS = 3.1055473
"""At least the sum of k^-1.4 over all k, zeta(1.4) = 3.10554727..."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on a claim by the scores of a digest; the claim's `name` is for people.

    `given` is what a refutation takes as given, "" for nothing; `made` is a digest of what else made the p-value: the
    tool's code, versions, seed and limits. Ledgers that did not keep one of these, or `p_value`, have None.
    """

    scores: str
    refuted: bool
    name: str = ""
    p_value: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    given: str | None = None
    split: Mapping[str, float] = field(default_factory=dict)
    made: str | None = None

    def is_of(self, evidence: Evidence, level: float) -> bool:
        """Return whether it is what `evidence` on the same scores says, for an entry judged at `level`."""
        if self.p_value is None or not math.isclose(self.p_value, evidence.p_value, rel_tol=1e-6, abs_tol=LEAST_P):
            return False
        if self.split.keys() != evidence.split.keys():
            return False
        if not all(math.isclose(share, evidence.split[test]) for test, share in self.split.items()):
            return False
        return self.given != "" or not self.refuted or evidence.general_p_value <= level


@dataclass(frozen=True)
class Entry:
    """One run that brought new scores: its error rate, and what was decided, by the digest of the claim."""

    level: Annotated[float, Field(gt=0.0, lt=1.0)]
    decisions: Mapping[str, Decision]


@dataclass(frozen=True)
class Ledger:
    """The ledger's own error rate, which its first run fixed, its runs so far, and a name that no other ledger has.

    `head` is the hash of its last line, "" where it was not computed yet; `size` is the bytes of its file up to the end
    of that line. A file of which `grows` is False must be written anew as a whole before it can grow.
    """

    alpha: float
    entries: tuple[Entry, ...] = ()
    name: str = ""
    head: str = field(default="", compare=False)
    size: int = field(default=0, compare=False)
    grows: bool = field(default=False, compare=False)

    def refuted(self) -> dict[str, Refutation]:
        """Return the claims that were refuted, each with what first did it."""
        numbered = reversed(list(enumerate(self.entries, start=1)))
        return {
            claim: Refutation(
                entry=number, level=entry.level, scores=decision.scores, p_value=decision.p_value, given=decision.given
            )
            for number, entry in numbered
            for claim, decision in entry.decisions.items()
            if decision.refuted
        }

    def spent_on(self, claims: Collection[str]) -> float:
        """Return an upper bound on the chance that entries so far refuted a true one of these claims."""
        return math.fsum(entry.level for entry in self.entries if not entry.decisions.keys().isdisjoint(claims))

    def without_last(self) -> "Ledger":
        """Return the ledger as it was before its last entry."""
        return replace(self, entries=self.entries[:-1], head="")

    def look_of(self, claims: Collection[str], made: str, *, resume: bool) -> int:
        """Return which look, from 1, a run at these claims is: the next one.

        A run that goes on (`resume`) is the last look again where all that it decided were such claims, made alike.
        """
        last = self.entries[-1].decisions if self.entries else {}
        again = resume and last and all(claim in claims and decision.made == made for claim, decision in last.items())
        return len(self.entries) + (not again)

    def first_looks(self, claims: Collection[str]) -> dict[str, int]:
        """Return at which look, from 0, each of these claims was first decided; of others it is the next look."""
        first = {claim: look for look, entry in reversed(list(enumerate(self.entries))) for claim in entry.decisions}
        return {claim: first.get(claim, len(self.entries)) for claim in claims}

    def check(self) -> None:
        """Raise `InputError` where an entry was not judged as it must have been: at another level, or against its p."""
        for number, entry in enumerate(self.entries, start=1):
            level = level_of(number, self.alpha)
            if not math.isclose(entry.level, level, rel_tol=1e-9):
                fault = f"entry {number} was judged at {entry.level:g}, but look {number} has {level:g}"
                raise InputError(f"{fault}; {_PUT_BACK}, {_ANEW}")
            p_values = [decision.p_value for decision in entry.decisions.values() if decision.p_value is not None]
            if len(p_values) < len(entry.decisions):
                continue
            judged = zip(entry.decisions.values(), p_values, holm(p_values, entry.level), strict=True)
            for decision, p, refuted in judged:
                if decision.refuted != refuted:
                    verdict = "was refuted" if decision.refuted else "was not refuted"
                    entered = f"entry {number} says that {decision.name!r} {verdict}"
                    fault = f"{entered}, but not its p-value of {exact_p_value(p)}"
                    raise InputError(f"{fault}; {_PUT_BACK}, {_ANEW}")

    def decided_in(self, claim: str, evidence: Evidence, made: str | None) -> int | None:
        """Return the number of the entry, from 1, that decided on the scores of a claim's evidence; None for none.

        Raises `InputError` where an entry says of them what they do not show, though it was `made` as they are now;
        without `made` what it says is not looked at.
        """
        known = None
        for number, entry in enumerate(self.entries, start=1):
            decision = entry.decisions.get(claim)
            if decision is None or decision.scores != evidence.scores:
                continue
            if made is None:
                return number
            if decision.p_value is None:
                continue
            if decision.is_of(evidence, entry.level):
                known = known or number
            elif decision.made == made:
                entered = f"entry {number} says p = {exact_p_value(decision.p_value)} of {decision.name!r}"
                measured = f"its scores give p = {exact_p_value(evidence.p_value)}, or another test"
                raise InputError(f"{entered}, but {measured}; {_PUT_BACK}, {_ANEW}")
        return known


def level_of(look: int, alpha: float) -> float:
    """Return what the `look`-th look, from 1, may spend of `alpha`: all looks together spend at most `alpha`."""
    return float(alpha / (SUM_OF_POWERS * look**EXPONENT))


def refuted_over_time(
    ledger: Ledger, looks: Sequence[tuple[PlacedClaim, Evidence]], made: str | None = None
) -> tuple[tuple[bool, ...], tuple[Refutation | None, ...], Entry]:
    """Return which claims are refuted, by what in an earlier entry (None for this look), and the entry for this look.

    Claims that the ledger has refuted stay so; scores that it has decided on decide nothing anew, and where there are
    none nothing is spent. The others are tested together by Holm's method at the next run's level. An entry without
    decisions spends nothing. `made` tells what made the p-values, see `Decision`; without it what entries say of the
    same scores is believed.

    Raises `InputError` where an entry is not what was measured.
    """
    before = ledger.refuted()
    digests = [placed.digest() for placed, _ in looks]
    earlier = tuple(before.get(digest) for digest in digests)
    new = {
        index: evidence
        for index, (_, evidence) in enumerate(looks)
        if evidence.tested and ledger.decided_in(digests[index], evidence, made) is None and earlier[index] is None
    }
    level = level_of(len(ledger.entries) + 1, ledger.alpha)
    tested = dict(zip(new, holm([evidence.p_value for evidence in new.values()], level), strict=True))
    alone = dict(zip(new, holm([evidence.general_p_value for evidence in new.values()], level), strict=True))
    decisions = {
        digests[index]: Decision(
            scores=evidence.scores,
            refuted=tested[index],
            name=looks[index][0].name,
            p_value=evidence.p_value,
            given=GIVEN_GAUSSIAN if tested[index] and not alone[index] else "",
            split=evidence.split,
            made=made,
        )
        for index, evidence in new.items()
    }
    refuted = tuple(entry is not None or tested.get(index, False) for index, entry in enumerate(earlier))
    return refuted, earlier, Entry(level, decisions)


_SCHEMA: Final = "dpzv-audit/ledger/2"
LARGEST_LEDGER = 64_000_000
LARGEST_DECISION = 4_000
"""Bytes of one decision in its entry, at most: 2,400 are a name of 200 characters as JSON."""
_WIDTH = 256
"""Bytes of the first line, which is overwritten in place."""
_SHORTEST = 40
"""Bytes of the shortest entry."""
_PUT_BACK = "put back the file that was last used"
_ANEW = "or move it away and give ‹new_ledger›, which begins a new error rate"


@dataclass(frozen=True, kw_only=True)
class _FirstLine:
    """The first line of the file; `head` is the hash of the last."""

    schema: Literal["dpzv-audit/ledger/2"]
    ledger: str
    alpha: float
    entries: int
    head: str


@dataclass(frozen=True)
class _Line(Entry):
    """An entry with the hash of the line before."""

    previous: str


_FIRST = TypeAdapter(_FirstLine)
_LINE = TypeAdapter(_Line)
_ENTRY = TypeAdapter(Entry)


@dataclass(frozen=True, kw_only=True)
class State:
    """A ledger by its name, the number of its entries, and the hash of its last line, as they were last seen."""

    ledger: str = ""
    entries: int
    head: str = ""


@dataclass(frozen=True)
class LedgerMemory:
    """The states of ledgers that the cache in `folder` remembers (None: no cache); without `keeps` it is only read."""

    folder: Path | None = None
    keeps: bool = True

    def state(self, name: str) -> State | None:
        """Return the newest state of the ledger `name`, or of the one that was last used at the real path `name`."""
        if self.folder is None:
            return None
        return Store(self.folder / "ledgers").read(
            _file_of(name), State, again="nothing is remembered of the ledger that it was about"
        )

    def remember(self, path: Path, ledger: Ledger) -> None:
        """Remember the state of `ledger`, which is at `path`; what cannot be written is not remembered."""
        if self.folder is None or not self.keeps:
            return
        with suppress(AuditError):
            for name in (os.path.realpath(path), ledger.name):
                Store(self.folder / "ledgers").write(_file_of(name), state_of(ledger), cure="")


def _file_of(key: str) -> str:
    return f"{hashlib.sha256(os.fsencode(key)).hexdigest()}.json"


def open_ledger(path: Path, alpha: float, memory: LedgerMemory = LedgerMemory(), *, new: bool = False) -> Ledger:
    """Return the ledger at `path`, an empty one of error rate `alpha` where no file was ever there.

    With `new`, which a user asks for by hand, a file that is gone makes place for a new ledger, and one that is there
    is taken though the cache remembers another at its path.

    Raises:
        InputError: The file is no ledger, or not whole, or not the one that was left here; its error rate is another;
            git tracks it.
    """
    if tracked := tracked_at(path):
        fault = f"git tracks {tracked}: a change of the repository could write decisions"
        raise _wrong(path, f"{fault}; use a file that git does not track, or take this one out of git's index")
    text = _read(path)
    left = memory.state(os.path.realpath(path))
    if text is None:
        if left is not None and not new:
            gone = f"is gone, but held {_entries(left.entries)} when it was last used"
            raise _wrong(path, f"{gone}: put it back, or give ‹new_ledger› to begin a new error rate")
        return Ledger(alpha, name=secrets.token_hex(16))
    ledger, hashes = _parsed(path, text)
    if not math.isclose(ledger.alpha, alpha, rel_tol=1e-9):
        fault = f"holds an error rate of {ledger.alpha:g}, but alpha is {alpha:g}; use the same, or a new ledger"
        raise _wrong(path, fault)
    if left is not None and left.ledger != ledger.name and not new:
        fault = f"is not the ledger of {_entries(left.entries)} that was last used here"
        raise _lost(path, fault, "give ‹new_ledger›")
    newest = memory.state(ledger.name)
    if newest is not None and newest.entries > len(ledger.entries):
        raise _lost(path, f"holds {_entries(len(ledger.entries))}, but held {newest.entries} when it was last used")
    if newest is not None and hashes[newest.entries] != newest.head:
        raise _lost(path, "is another history of the ledger that was last used here, as on another branch")
    return ledger


def check_room(path: Path, ledger: Ledger, claims: int) -> None:
    """Raise `InputError` where the file at `path` may have no room for an entry of so many claims: it is full."""
    if ledger.size + _WIDTH + claims * LARGEST_DECISION > LARGEST_LEDGER:
        held = f"is full: {_entries(len(ledger.entries))} fill {ledger.size:,} of {LARGEST_LEDGER:,} bytes"
        raise _wrong(path, f"{held}, too many for another entry; {_ANEW.removeprefix('or ')}")


def append_entry(path: Path, ledger: Ledger, entry: Entry, memory: LedgerMemory = LedgerMemory()) -> Ledger:
    """Add `entry` to the file, whole or not at all, on the disk when this returns; the caller holds `ledger_lock`.

    Raises `InputError` where the file is full, `AuditError` where the disk refuses.
    """
    check_room(path, ledger, len(entry.decisions))
    row = {**_row(entry), "previous": state_of(ledger).head}
    line = _line(row)
    head = _hash(row)
    count = len(ledger.entries) + 1
    first = _FirstLine(schema=_SCHEMA, ledger=ledger.name, alpha=ledger.alpha, entries=count, head=head)
    start = _line(vars(first), _WIDTH)
    try:
        if ledger.grows:
            _append(path, ledger.size, line, start)
            size = ledger.size + len(line)
        else:
            links = zip(ledger.entries, _hashes(ledger), strict=False)
            before = [_line({**_row(each), "previous": link}) for each, link in links]
            text = b"".join([start, *before, line])
            for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):  # by a kill in this very place
                left.unlink(missing_ok=True)
            write_atomically(path, text, shared=True, durable=True)
            size = len(text)
    except OSError as error:
        raise AuditError(f"‹ledger› {path}: cannot be written ({error.strerror})") from error
    entries = (*ledger.entries, entry)
    longer = replace(ledger, entries=entries, head=head, size=size, grows=len(start) == _WIDTH)
    memory.remember(path, longer)
    return longer


def _append(path: Path, size: int, line: bytes, start: bytes) -> None:
    """Add a line to a file after its first `size` bytes, and then put `start` in the place of its first line."""
    with path.open("r+b") as file:
        try:
            file.truncate(size)  # what a kill has left of a line
            file.seek(size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
        file.seek(0)
        file.write(start)
        file.flush()
        os.fsync(file.fileno())


def _line(row: Mapping[str, object], width: int = 0) -> bytes:
    """Return `row` as a line of JSON, of `width` bytes at least."""
    return json.dumps(row).encode().ljust(width - 1) + b"\n"


def state_of(ledger: Ledger) -> State:
    """Return the state of `ledger`; the hash of its last line stands for all of them."""
    return State(ledger=ledger.name, entries=len(ledger.entries), head=ledger.head or _hashes(ledger)[-1])


def ledger_files(path: Path | None) -> tuple[Path, ...]:
    """Return the files that a run with the ledger at `path` writes: it and its lock."""
    return () if path is None else (path, _lock_of(path))


@contextmanager
def ledger_lock(path: Path) -> Iterator[None]:
    """Keep other runs from reading and writing the ledger at `path` while the block runs (POSIX; elsewhere no lock)."""
    try:
        handle = os.open(_lock_of(path), os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise _wrong(path, f"cannot be written ({error.strerror}); use a file in a folder") from error
    try:
        lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _lock_of(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Let an error of the block name the ledger at `path`."""
    try:
        yield
    except InputError as error:
        raise error.placed(f"‹ledger› {path}: ") from None


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _wrong(path: Path, fault: str) -> InputError:
    return InputError(f"‹ledger› {path}: {fault}")


def _lost(path: Path, fault: str, otherwise: str = _ANEW) -> InputError:
    return _wrong(path, f"{fault}; {_PUT_BACK}, {otherwise}")


def _read(path: Path) -> bytes | None:
    try:
        with open_plain(path) as file:
            text = file.read(LARGEST_LEDGER + 1)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise error.placed("‹ledger› ", ", or absent") from None
    except OSError as error:
        raise _wrong(path, f"cannot be read ({error.strerror}); use a file that can be read") from error
    if len(text) > LARGEST_LEDGER:
        raise _wrong(path, f"is larger than {LARGEST_LEDGER:,} bytes, which no ledger is; {_ANEW.removeprefix('or ')}")
    return text


def _parsed(path: Path, text: bytes) -> tuple[Ledger, list[str]]:
    """Return the ledger with the hashes of its lines; `InputError` for text that is none, or not whole."""
    if not text.strip():
        raise _lost(path, "is empty, which no ledger ever is")
    if text.count(b"\n") * _SHORTEST > LARGEST_LEDGER:
        raise _wrong(path, "is no ledger: its lines are too short to be entries")
    start, *lines = text.splitlines(keepends=True)
    if start.startswith(b'{"schema": "dpzv-audit/ledger/1"'):
        fault = "was written by an earlier version, which did not say which claims it refuted"
        raise _wrong(path, f"{fault}; {_ANEW.removeprefix('or ')}")
    try:
        check_values(text)
        first = _FIRST.validate_json(start, strict=True)
        if len(lines) > first.entries and not lines[-1].endswith(b"\n"):
            text = text.removesuffix(lines.pop())  # what a kill has left of a line
        rows = [_LINE.validate_json(line, strict=True) for line in lines]
    except ValueError:
        raise _wrong(path, "is no ledger; use a file that ‹ledger› wrote or a new one") from None
    ledger = Ledger(first.alpha, tuple(Entry(line.level, line.decisions) for line in rows), first.ledger)
    if not first.entries <= len(rows) <= first.entries + 1:
        raise _lost(path, f"holds {_entries(len(rows))}, but was left with {first.entries}")
    hashes = _hashes(ledger)
    wrong = [number for number, line in enumerate(rows, start=2) if line.previous != hashes[number - 2]]
    if wrong:
        raise _lost(path, f"was edited or reordered: line {wrong[0]} does not follow from those above it")
    if first.head != hashes[first.entries]:
        raise _lost(path, "was edited: its last line is not the one that it was left with")
    grows = len(start) == _WIDTH and text.endswith(b"\n")
    return replace(ledger, head=hashes[-1], size=len(text), grows=grows), hashes


def _row(entry: Entry) -> dict[str, object]:
    """Return an entry as its line says it; what a ledger did not keep when it was decided, and hash, is left out."""
    row: dict[str, object] = _ENTRY.dump_python(entry, exclude_none=True)
    return row


def _hashes(ledger: Ledger) -> list[str]:
    """Return the hash of the first line and those of all entries, each over the hash before and what the line says."""
    hashes = [_hash({"schema": _SCHEMA, "ledger": ledger.name, "alpha": ledger.alpha})]
    for entry in ledger.entries:
        hashes.append(_hash({**_row(entry), "previous": hashes[-1]}))
    return hashes


def _hash(value: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
