"""Puts every claim of a file to the test: theory first, the sequential test, the full audit where it did not decide.

Time and trials are spent stage by stage over the whole file, so that a budget that runs out has seen something of every
claim.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpzv_audit.auditing.workers import Workers
from dpzv_audit.claims.blocks import Block
from dpzv_audit.claims.cache import Cache, code_digest, evidence_key
from dpzv_audit.claims.load import ClaimsFile, PlacedClaim
from dpzv_audit.claims.model import ScoresClaim
from dpzv_audit.claims.progress import ClaimRun, Task
from dpzv_audit.claims.schedule import Hooks, Terms, carry_out
from dpzv_audit.claims.sources import Place, Source, check_claim, data_key, source_of
from dpzv_audit.claims.verdicts import stopping_level
from dpzv_audit.deadline import TRIAL_SECONDS, TimeIsUp, until
from dpzv_audit.errors import AuditError
from dpzv_audit.trees import Undigested


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What verifying a file may cost: minutes for the whole file, trainings (or runs) a claim; None for no limit."""

    max_minutes: float | None = None
    max_trials: int | None = None
    workers: Workers = field(default_factory=Workers)


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """What is told of work in progress: (claim's index, what it is doing now)."""

    status: Callable[[int, str], None] = lambda index, text: None


@dataclass
class Gate:
    """Gathers the evidence about all claims of a file within a budget; an interrupt leaves what there is so far."""

    file: ClaimsFile
    place: Place
    cache: Cache
    seed: int = 0
    resume: bool = False
    effort: Effort = Effort()
    watcher: Watcher = Watcher()
    _began: float = field(default_factory=time.monotonic, init=False)

    def prepare(self, sources: Sequence[Source] = ()) -> list[ClaimRun]:
        """Find what the cache knows, and validate every other claim before any runs; `InputError` names the line.

        `sources` replace the claims' own, one for each claim; there is then nothing to look up. Time counts from here.
        """
        self._began = time.monotonic()
        if sources:
            pairs = zip(self.file.claims, sources, strict=True)
            return [ClaimRun(placed, "", claim_seed(placed, self.seed), source) for placed, source in pairs]
        runs = []
        for placed in self.file.claims:
            unkept, data = "its time was over before its files were read", ""
            with self._in_time(placed):
                try:
                    data, unkept = data_key(placed, self.place), ""
                except Undigested as why:
                    unkept = str(why)
            run = ClaimRun(placed, self._key(placed, data), claim_seed(placed, self.seed), unkept=unkept)
            run.complete = None if unkept else self.cache.evidence(run.key)
            run.cached = run.complete is not None
            runs.append(run)
        for run in runs:
            if run.complete is None:
                run.missing = f"{self._terms.over} ended before it was planned"
                with self._in_time(run.placed):
                    run.source = source_of(run.placed, self.place, run.seed)
        return runs

    def check(self) -> None:
        """Validate every claim as `prepare` does, but for what takes planning; neither data are kept nor code imported.

        Takes seconds whatever sizes the file names; raises `InputError` naming the line.
        """
        for placed in self.file.claims:
            with self._named(placed):
                check_claim(placed, self.place)

    def gather(self, runs: Sequence[ClaimRun]) -> None:
        """Account for and test every claim, stage by stage; raises `KeyboardInterrupt` where it is interrupted."""
        for index, run in enumerate(runs):
            waiting = "from the cache" if run.cached else "waiting"
            self.watcher.status(index, run.missing if run.source is None and run.missing else waiting)
        hooks = Hooks(
            named=self._named,
            stored=self._stored,
            keep=self._keep,
            status=self.watcher.status,
            ended=self._ended,
        )
        open_ones = {index: run for index, run in enumerate(runs) if run.source is not None}
        try:
            carry_out(open_ones, self.effort.workers, place=self.place, terms=self._terms, hooks=hooks)
        except KeyboardInterrupt:
            for run in open_ones.values():
                if run.pools:
                    self._still_of_its_files(run)
            raise

    def _key(self, placed: PlacedClaim, data: str) -> str:
        return evidence_key(
            {
                "claim": placed.digest(),
                "data": data,
                "code": code_digest(),
                "alpha": self.file.alpha,
                "stop": self._stop,
                "seed": self.seed,
                "max_trials": self.effort.max_trials,
                "device": self.place.device,
            }
        )

    @property
    def _terms(self) -> Terms:
        minutes = self.effort.max_minutes
        return Terms(
            alpha=self.file.alpha,
            stop=self._stop,
            max_trials=self.effort.max_trials,
            deadline=None if minutes is None else self._began + 60.0 * minutes,
            over="" if minutes is None else f"the budget of {minutes:g} minutes",
        )

    @contextmanager
    def _in_time(self, placed: PlacedClaim) -> Iterator[None]:
        """Let the block go on until the last of the time is over, and its errors be named."""
        with suppress(TimeIsUp), self._named(placed), until(self._terms.last):
            yield

    @property
    def _stop(self) -> float:
        return stopping_level(self.file.alpha, len(self.file.claims))

    def _stored(self, run: ClaimRun, task: Task) -> Block | None:
        if not self.resume or run.unkept or run.source is None or task[0] not in run.source.stored:
            return None
        return self.cache.block(run.key, *task)

    def _keep(self, run: ClaimRun, task: Task, block: Block) -> None:
        if not run.unkept and run.source is not None and task[0] in run.source.stored:
            self.cache.keep_block(run.key, *task, block)

    def _ended(self, index: int, run: ClaimRun) -> None:
        self.watcher.status(index, run.missing or "done")
        run.finish()
        if self._still_of_its_files(run) and not run.missing:
            self.cache.keep(run.key, run.evidence())

    def _still_of_its_files(self, run: ClaimRun) -> bool:
        """Whether what was found may be kept; where files changed meanwhile, it may be of others than its key says."""
        if run.unkept or self.cache.folder is None or not run.key:
            return False
        try:
            same = self._key(run.placed, data_key(run.placed, self.place)) == run.key
        except AuditError:
            same = False
        if not same:
            run.unkept = "files that it depends on changed while it was audited"
            self.cache.forget_blocks(run.key)
        return same

    @contextmanager
    def _named(self, placed: PlacedClaim) -> Iterator[None]:
        """Let an error of the block open with file, line and name of the claim."""
        try:
            yield
        except AuditError as error:
            # What is not about a field is about what is audited, where code or files of the user's are.
            subject = next((key for key in ("mechanism", "scores") if hasattr(placed.claim, key)), "")
            line = placed.line_of(re.split(r"[ .]", error.field or subject)[0])
            where = f"{self.file.path}:{line}: claim {placed.name!r}: "
            raise error.placed(where) from error


def claim_seed(placed: PlacedClaim, seed: int) -> int:
    """Return the seed of a claim's streams: it follows from what the claim says, so no change there, none in it.

    Of scores that are there already nothing is drawn but the pilot: with `seed` itself, as `audit` does of score files.
    """
    if isinstance(placed.claim, ScoresClaim):
        return seed
    return int.from_bytes(hashlib.sha256(f"{placed.digest()} {seed}".encode()).digest()[:4], "big") * 1000


def place_of(
    path: Path,
    *,
    root: Path | None,
    trust_code: bool,
    device: str,
    outputs: Sequence[Path | None] = (),
    trial_seconds: float = TRIAL_SECONDS,
) -> Place:
    """Return where the claims file at `path` may reach: score files lie below `root`, by default the file's folder.

    In full: workers of a cluster start in folders of their own. `outputs` are files that the run writes.
    """
    folder = path.parent.absolute()
    written = tuple(output.absolute() for output in outputs if output is not None)
    return Place(
        folder=folder,
        root=root or folder,
        trust_code=trust_code,
        device=device,
        outputs=written,
        trial_seconds=trial_seconds,
    )
