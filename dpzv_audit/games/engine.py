"""Collects the trials of an audit chunk by chunk: here, in worker processes (loky) or on a Dask cluster.

A chunk of pairs (one run in each world) is the unit of work, of storage and of loss: a worker that dies costs its
chunk, which another does again. Every pair draws from streams of its own, so the numbers are those of a run in one go.
`ChunkStore` keeps chunks on disk: each file whole or absent, NPZ without pickled objects.
"""

import io
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from ..base.errors import AuditError, InputError, check_count
from ..base.executor import Workers, carry_out
from ..base.halving import in_pieces
from ..base.npy import read_npz
from ..base.store import Store, hold
from .arrays import Arrays, joined_arrays
from .scores import GameScores

Play = Callable[[int, int], Arrays]
"""Plays pairs `first` to `last` (exclusive)."""
Span = tuple[int, int]
"""Pairs from the first to the last (exclusive)."""


class Trials(Protocol):
    """The trials of one game; must pickle, since every worker process gets a copy, once."""

    @property
    def seed(self) -> int:
        """Return the seed of every stream."""

    def facts(self) -> dict[str, object]:
        """Return what decides the numbers, as plain values: runs with equal facts may share stored chunks."""

    def __call__(self, first: int, last: int) -> Arrays:
        """Return arrays with one row a pair, for pairs `first` to `last` (exclusive).

        Fewer rows than asked say that the mechanism failed after them; `failure` (one string) then says how.
        """

    def scored(self, arrays: Arrays) -> GameScores:
        """Return the scores that `arrays` of these trials hold, with a score fitted where need be."""


class MechanismFailed(AuditError):
    """A mechanism under audit raised, hung or answered something else than a score: exit code 3."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How trials are run: pairs in memory at once, workers, the time limit, and where chunks are kept.

    `progress` is called with the pairs done and their arrays after each chunk, in the order in which chunks end.
    """

    chunk: int = 128
    workers: Workers = field(default_factory=Workers)
    max_seconds: float | None = None
    store: "ChunkStore | None" = None
    progress: Callable[[int, Arrays], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Arrays of all pairs that were done, in order, and why there are fewer than asked for, if so.

    `fitted` is the pairs at once that memory sufficed for, where it did not for a chunk; the numbers are the same.
    """

    arrays: Arrays
    pairs: int
    stopped: str | None = None
    fitted: int | None = None


def collect(trials: Play, pairs: int, effort: Effort) -> Collected:
    """Run `pairs` pairs of `trials` and return their arrays.

    Chunks that `effort.store` holds are not run again. Past `effort.max_seconds` no new chunk starts and what worker
    processes have under way is given up; the pairs done so far come back.

    Raises:
        InputError: `pairs` or the chunk below 1.
        MechanismFailed: The mechanism failed; what was done before is in the store.
        AuditError: A worker died on one chunk again and again, the time was over before any pair was done, or another
            process has the store open.
    """
    check_count("runs", pairs)
    check_count("chunk", effort.chunk)
    with nullcontext() if effort.store is None else effort.store.opened():
        return _Collection(trials, pairs, effort).run()


class _Collection:
    """One collection under way, as `base.executor.Work`: a task is a chunk."""

    def __init__(self, trials: Play, pairs: int, effort: Effort) -> None:
        self._trials = trials
        self._effort = effort
        self._here = effort.workers.kind == "here"
        self._end = float("inf") if effort.max_seconds is None else time.monotonic() + effort.max_seconds
        stored = effort.store.load() if effort.store else {}
        self._done: dict[Span, Arrays] = {}
        self._pending: list[Span] = []
        for begin in range(0, pairs, effort.chunk):
            first, last = begin, min(begin + effort.chunk, pairs)
            # A failure may have cut a chunk short, and the rest of it another: what is stored goes on where it ends.
            while ends := [end for start, end in stored if start == first < end <= last]:
                self._done[first, max(ends)] = stored[first, max(ends)]
                first = max(ends)
            if first < last:
                self._pending.append((first, last))
        self._fitted: int | None = None
        self._longest = self._begun = 0.0
        if self._done:
            self._report()

    def run(self) -> Collected:
        carry_out(self, self._effort.workers, partial(run_chunk, self._trials))
        if not self._done:
            raise AuditError(
                f"‹max_minutes› is {(self._effort.max_seconds or 0.0) / 60.0:g}: over before one chunk of runs was "
                f"done; use more (or a smaller ‹chunk›)"
            )
        stopped = "max-minutes" if self._pending else None
        return Collected(arrays=self._arrays, pairs=self._pairs, stopped=stopped, fitted=self._fitted)

    @property
    def _pairs(self) -> int:
        return sum(last - first for first, last in self._done)

    @property
    def _arrays(self) -> Arrays:
        return joined_arrays([self._done[span] for span in sorted(self._done)])

    def take(self) -> Span | None:
        """See `Work`. Here a chunk is not begun that would end after the limit, as far as the slowest so far tells."""
        self._begun = time.monotonic()
        if self._pending and self._begun + self._longest < self._end:
            return self._pending.pop(0)
        return None

    def arguments(self, task: Span) -> tuple[int, int, int | None]:
        """See `Work`."""
        return (*task, self._fitted)

    def ends(self, task: Span) -> float | None:
        """See `Work`: what a worker has under way is given up, and what this process has is done to its end."""
        return None if self._here else self._end

    def give_up(self, task: Span) -> None:
        """See `Work`."""
        self._pending.insert(0, task)

    def failed(self, task: Span, error: BaseException, *, deaths: int = 0) -> None:
        """See `Work`."""
        if not deaths:
            raise error
        raise AuditError(
            f"a worker died {deaths} times on runs {task[0] + 1} to {task[1]}: use a smaller ‹chunk› if memory ran "
            f"out; the chunks done so far are kept for ‹resume›"
        ) from error

    def done(self, task: Span, result: tuple[Arrays, int | None]) -> None:
        """See `Work`."""
        arrays, fitted = result
        if fitted is not None:
            self._fitted = min(fitted, self._fitted or fitted)
        failure = arrays.pop("failure", None)
        rows = min((len(a) for a in arrays.values()), default=0)
        if rows:
            span = (task[0], task[0] + rows)
            self._done[span] = arrays
            if self._effort.store is not None:
                self._effort.store.save(*span, arrays)
        if failure is not None:
            kept = self._pairs
            words = f"the {kept} pairs of runs before it are kept for ‹resume›" if kept else "no run was done before it"
            kind = InputError if str(failure[0]) == "input" else MechanismFailed
            raise kind(f"{failure[1]}; {words}")
        self._report()
        if self._here:
            self._longest = max(self._longest, time.monotonic() - self._begun)

    def _report(self) -> None:
        if self._effort.progress is not None:
            self._effort.progress(self._pairs, self._arrays)


def run_chunk(trials: Play, first: int, last: int, at_once: int | None = None) -> tuple[Arrays, int | None]:
    """Run pairs `first` to `last`, at most `at_once` at a time and half as many where memory does not suffice.

    Also return how many at a time it sufficed for, None where it sufficed for all that was tried. The numbers are
    those of one go, since every pair draws from streams of its own. A failure ends the chunk after its pairs.
    """
    pieces = []
    fitted = at_once
    failure: Arrays = {}
    for arrays, sufficed in in_pieces(trials, first, last, at_once):
        fitted = sufficed
        if rows := {name: array for name, array in arrays.items() if name != "failure"}:
            pieces.append(rows)
        if "failure" in arrays:
            failure = {"failure": arrays["failure"]}
            break
    return {**(joined_arrays(pieces) if pieces else {}), **failure}, fitted


_NAME = re.compile(r"(\d{9})-(\d{9})\.npz")


def npz_bytes(arrays: Arrays) -> bytes:
    """Return `arrays` as the bytes of one NPZ file; loads without unpickling."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


class ChunkStore:
    """Keeps the arrays of pairs `first` to `last` (exclusive) as `folder`/FIRST-LAST.npz.

    What an earlier run left is taken up with `resume` and removed without, when the store is opened. Raises
    `AuditError` where the disk refuses, and where another process has the store open.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        self._resume = resume

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes off the chunks while the block runs."""
        with self._held():
            if not self._resume:
                shutil.rmtree(self.folder, ignore_errors=True)
            yield

    def _held(self) -> AbstractContextManager[None]:
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        return hold(lock, f"the unfinished audit in {self.folder}")

    def load(self) -> dict[tuple[int, int], Arrays]:
        """Return every whole chunk by its (first, last); a damaged file is named in the log and counts as not there."""
        chunks = {}
        for path in sorted(self.folder.glob("*.npz")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            first = int(match[1])
            last = int(match[2])
            again = f"its {last - first} pairs are drawn again"
            chunk = Store(self.folder).load(path.name, partial(_read_chunk, pairs=last - first), again=again)
            if chunk is not None:
                chunks[first, last] = chunk
        return chunks

    def save(self, first: int, last: int, arrays: Arrays) -> None:
        """Write one chunk: after a kill at any moment the file is whole or absent."""
        cure = "make room and go on with ‹resume›"
        Store(self.folder).write(f"{first:09d}-{last:09d}.npz", npz_bytes(arrays), cure=cure)

    def remove(self) -> None:
        """Forget the audit: it is done. The folder above goes too where nothing else is in it."""
        with suppress(AuditError), self._held():  # another process has begun the same audit: the chunks are its own
            shutil.rmtree(self.folder, ignore_errors=True)


def _read_chunk(path: Path, pairs: int) -> Arrays:
    arrays = read_npz(path)
    if not arrays or not all(array.ndim and len(array) == pairs for array in arrays.values()):
        raise ValueError(f"has arrays of other lengths than {pairs}")
    return arrays
