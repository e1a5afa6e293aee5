"""The gate: every claim of a file is put to the test, and its evidence is kept for the next run.

Time and trials are spent stage by stage over the whole file, so that a budget that runs out has seen something of every
claim. A worker gets a claim and a task, builds what the claim is about itself and keeps it, so that nothing but claims
and blocks travels. Every block draws from streams of its own: the numbers do not depend on where and in which order it
was drawn.
"""

import hashlib
import heapq
import itertools
import logging
import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..base.errors import AuditError, one_line
from ..base.executor import Workers, carry_out
from ..base.files import Undigested
from ..base.findings import to_jsonable
from ..base.inputs import CHANGED, Inputs, add_inputs, begin, inputs_of, recording
from ..base.registry import NotImported, importing_nothing
from ..base.signals import GRACE_SECONDS, TimeIsUp, until
from ..evidence.controls import Judge
from ..evidence.gathering import (
    THEORY,
    Block,
    Done,
    Gathering,
    Question,
    Step,
    Subject,
    Task,
    follows,
    gather,
    reach_of,
    result_of,
    scores_digest,
)
from ..evidence.verdict import Evidence, refutable
from ..statistics.panel import stopping_level
from .access import Access, Remembering
from .cache import Cache, code_digest, evidence_key
from .file import ClaimsFile, OwnClaim, PlacedClaim
from .forms import form_of
from .reach import Plans, least_success, reach_in_words, refutable_at

WHOLE: Task = ("the whole claim", 0)


@dataclass
class ClaimRun:
    """One claim on its way through the gate: its evidence is gathered, and then `found`.

    Its `gathering` is let go once the evidence is complete. `unkept` says why the evidence cannot be kept for another
    run, where what it depends on cannot be told; "" where it can. `judge` judges its controls.
    """

    placed: PlacedClaim
    key: str
    seed: int
    gathering: Gathering | None = None
    found: Evidence | None = None
    unkept: str = ""
    cached: bool = False
    seconds: float = 0.0
    judge: Judge = field(default_factory=Judge)

    def evidence(self) -> Evidence:
        """Return what was found out so far, with what failed controls void."""
        return self.judge(self.gathered())

    def gathered(self) -> Evidence:
        """Return what was found out so far, whatever its controls say: this is kept."""
        if self.found is not None:
            return self.found
        assert self.gathering is not None
        return self.gathering.evidence()

    @property
    def evidence_key(self) -> str:
        """Return the identity of the evidence so far: `key`, or its content where it was cut off or `key` is not all.

        A run that goes on draws more of the same, which is new evidence: what a cut one decided does not decide it.
        """
        evidence = self.gathered()
        if self.key and not self.unkept and not evidence.missing:
            return self.key
        return evidence_key({"claim": self.key, "so far": to_jsonable(evidence)})


@dataclass
class Gate:
    """Gathers the evidence about all claims of a file within a budget; an interrupt leaves what there is so far.

    `max_minutes` is for the whole file, `max_trials` bounds the trainings (or runs) for each claim; None for no limit.
    `status` is told of work in progress: (claim's place in the file, what it is doing now; None: it ended). `share` is
    the error rate of this run in a ledger, None without one: claims are planned to be refuted at it. `looks` says of
    each claim, by its digest, at which look of the ledger it is first decided, from 0; without a ledger all are at 0.
    """

    file: ClaimsFile
    access: Access
    cache: Cache
    seed: int = 0
    resume: bool = False
    max_minutes: float | None = None
    max_trials: int | None = None
    workers: Workers = field(default_factory=Workers)
    status: Callable[[int, str | None], None] = lambda index, doing: None
    share: float | None = None
    looks: Mapping[str, int] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic, init=False)

    def prepare(self) -> list[ClaimRun]:
        """Find what the cache knows, and validate every other claim before any runs; `InputError` names the line.

        Time counts from here.
        """
        self._began = time.monotonic()
        begin(self.access.folder)
        judge = Judge.of_file([placed for placed in self.file.claims if placed.claim.kind == "attack"])
        with recording(self.access.folder):
            runs = [self._identified(placed, judge) for placed in self.file.claims]
            for run in runs:
                if run.cached:
                    continue
                with self._in_time(run.placed):
                    subject = form_of(run.placed.claim).subject(self.access, run.seed, self.max_trials)
                    run.gathering = self.gathering(subject, run)
                if run.gathering is None:
                    run.found = _untested(run, f"{self.budget} ended before it was planned")
        return runs

    def _identified(self, placed: PlacedClaim, judge: Judge) -> ClaimRun:
        """Return the run of a claim with its key, and with its evidence where the cache has it."""
        unkept = "its time was over before its files were read"
        data = ""
        with self._in_time(placed):
            try:
                data = form_of(placed.claim).key(self.access)
                unkept = ""
            except Undigested as why:
                unkept = str(why)
        run = ClaimRun(placed, self._key(placed, data), self.seed_of(placed), unkept=unkept, judge=judge)
        run.found = None if unkept else self._known(run)
        run.cached = run.found is not None
        return run

    def _known(self, run: ClaimRun) -> Evidence | None:
        """Return what the cache holds of a claim, unless its p-value is not that of its own tests."""
        evidence = self.cache.evidence(run.key, self.access.folder)
        if evidence is None or follows(evidence, self.question(run)):
            return evidence
        words = f"claim {run.placed.name!r}: its p-value in the cache is not that of its tests; it is audited again"
        logging.getLogger(__name__).warning("%s", one_line(words))
        return None

    def seed_of(self, placed: PlacedClaim) -> int:
        """Return the seed of a claim's streams; see `claim_seed`."""
        return claim_seed(placed, self.seed, self.looks.get(placed.digest(), 0))

    @property
    def level(self) -> float:
        """Return the error rate of all claims of this run together."""
        return self.file.alpha if self.share is None else self.share

    def gathering(self, subject: Subject, run: ClaimRun) -> Gathering:
        """Return the gathering of evidence about one claim, with what its planned trials could show at most."""
        question = self.question(run)
        return Gathering(subject, question, reach=reach_of(subject, question, self.level / len(self.file.claims)))

    def out_of_reach(self, runs: Sequence[ClaimRun]) -> dict[str, str]:
        """Return, by name, the claims whose planned trials could never refute them, each with the reason."""
        evidence = [run.evidence() for run in runs]
        reaches = [each.reach for each in evidence]
        return {
            run.placed.name: f"{reach.trials:,} {reach.unit} can certify "
            f"{run.placed.claim.certified_in_words(reach.most or 0.0)}"
            for run, reach, could in zip(runs, reaches, refutable(evidence, self.level), strict=True)
            if reach is not None and not could
        }

    def plans(self, runs: Sequence[ClaimRun]) -> dict[str, str]:
        """Return by name, in words, what the planned trials of each claim could refute; none of one in the cache."""
        reaches = [(run.placed, run.evidence().reach) for run in runs if not run.cached]
        return {
            placed.name: reach_in_words(reach, placed.claim.claimed) for placed, reach in reaches if reach is not None
        }

    def refutable_at(self) -> dict[str, str]:
        """Return by name, in words, what each claim could be refuted at; runs, reads and imports nothing."""
        level = self.level / len(self.file.claims)
        plans = Plans()
        access = Remembering(**vars(self.access))
        limits = {}
        for placed in self.file.claims:
            limits[placed.name] = "known when planned"  # all that can be told of what a plug-in brings
            with suppress(NotImported), importing_nothing():
                limits[placed.name] = refutable_at(placed.claim, access, level, self.max_trials, plans)
        return limits

    def check(self) -> None:
        """Validate every claim as `prepare` does, but for what takes planning; data are counted, no code is imported.

        Takes seconds whatever sizes the file names; raises `InputError` naming the line.
        """
        access = Remembering(**vars(self.access))
        for placed in self.file.claims:
            # Of what a plug-in brings nothing more can be told.
            with named(self.file.path, placed), suppress(NotImported), importing_nothing():
                form_of(placed.claim).check(access)

    def gather(self, runs: Sequence[ClaimRun]) -> None:
        """Account for and test every claim, stage by stage; raises `KeyboardInterrupt` where it is interrupted."""
        for index, run in enumerate(runs):
            if run.found is not None:
                self.status(index, None)
        schedule = _Schedule(self, runs)
        try:
            with recording(self.access.folder):
                carry_out(schedule, self.workers, schedule.job)
        except KeyboardInterrupt:
            for run in runs:
                if run.gathering is not None and run.gathering.pools:
                    self._still_of_its_files(run)
            raise

    @property
    def budget(self) -> str:
        """Return the name of the time limit, for messages."""
        return f"the budget of {self.max_minutes:g} minutes"

    @property
    def deadline(self) -> float | None:
        """Return the end of all blocks of trials, on `time.monotonic()`'s clock."""
        if self.max_minutes is None:
            return None
        return self._began + 60.0 * self.max_minutes

    @property
    def last(self) -> float | None:
        """Return the end of everything: the deadline and a grace for theory and for score files."""
        return None if self.deadline is None else self.deadline + GRACE_SECONDS

    def stored(self, run: ClaimRun, task: Task) -> Block | None:
        """Return a block of a run that did not end, where this one goes on from there."""
        if not self.resume or not self._keeps(run, task):
            return None
        entry = self.cache.block(run.key, *task, self.access.folder)
        if entry is None:
            return None
        block, inputs = entry
        add_inputs(self.access.folder, inputs)
        return block

    def keep(self, run: ClaimRun, task: Task, block: Block) -> None:
        """Store a block that is worth it."""
        if self._keeps(run, task):
            self.cache.keep_block(run.key, *task, block, self._inputs(run))

    def ended(self, index: int, run: ClaimRun) -> None:
        """Settle the evidence of a claim, let its blocks go, and keep it where it is whole."""
        run.found = run.gathered()
        if run.gathering is not None:
            run.found = replace(run.found, reach=run.gathering.reach)
        run.gathering = None
        self.status(index, None)
        if self._still_of_its_files(run) and not run.found.missing:
            self.cache.keep(run.key, run.found, self._inputs(run))

    def _inputs(self, run: ClaimRun) -> Inputs:
        """Return what code that is none of the tool's has read so far; what other claims' code read is among it."""
        return inputs_of(self.access.folder) if form_of(run.placed.claim).runs_code else Inputs()

    def _keeps(self, run: ClaimRun, task: Task) -> bool:
        return not run.unkept and run.gathering is not None and run.gathering.subject.pools[task[0]].stored

    def question(self, run: ClaimRun) -> Question:
        """Return what a claim asks, where all claims of the file share its error and none needs a look below a level.

        See `stopping_level`.
        """
        claim = run.placed.claim
        question = Question(alpha=self.file.alpha, stop=self._stop, seed=run.seed, max_trials=self.max_trials)
        if claim.kind != "attack":
            return replace(question, epsilon=claim.epsilon, delta=claim.delta)
        least = least_success(claim.attack, claim.adversary)
        return replace(question, success_at_most=claim.success_at_most, least_success=least, stop=self._least_error)

    @property
    def _least_error(self) -> float:
        """Return the least error at which a claim about success may have to be refuted: trainings end there.

        A ledger's share is taken down to a power of ten: it moves with every entry, and would else ask for new
        trainings in every run.
        """
        level = self.level if self.share is None else 10.0 ** math.floor(math.log10(self.share))
        return level / len(self.file.claims)

    @property
    def made(self) -> str:
        """Return a digest of all that decides a p-value beside the claim and its scores."""
        return evidence_key({"code": code_digest(), "seed": self.seed, "max_trials": self.max_trials})

    def _key(self, placed: PlacedClaim, data: str) -> str:
        stop = self._least_error if placed.claim.kind == "attack" else self._stop
        parts = {"claim": placed.digest(), "data": data, "code": code_digest(), "alpha": self.file.alpha}
        parts |= {"stop": stop, "seed": self.seed_of(placed), "max_trials": self.max_trials}
        return evidence_key(parts | {"device": self.access.device})

    @contextmanager
    def _in_time(self, placed: PlacedClaim) -> Iterator[None]:
        """Let the block go on until the last of the time is over, and its errors be named."""
        with suppress(TimeIsUp), named(self.file.path, placed), until(self.last):
            yield

    @property
    def _stop(self) -> float:
        return stopping_level(self.file.alpha, len(self.file.claims))

    def _still_of_its_files(self, run: ClaimRun) -> bool:
        """Return whether evidence may be kept: not where files changed meanwhile, which its key does not say."""
        if run.unkept or self.cache.folder is None or not run.key:
            return False
        run.unkept = self._inputs(run).unkept
        with suppress(AuditError):
            if not run.unkept and self._key(run.placed, form_of(run.placed.claim).key(self.access)) == run.key:
                return True
        run.unkept = run.unkept or CHANGED
        self.cache.forget_blocks(run.key)
        return False


@dataclass
class _Open:
    """A step of one claim that is under way, of the generator `steps`."""

    run: ClaimRun
    gathering: Gathering
    steps: Generator[Step, Done, None]
    step: Step
    results: dict[int, Any] = field(default_factory=dict)
    limit: str = ""


def _whole(run: ClaimRun) -> Generator[Step, Done, None]:
    """Put a claim to the test as one task."""
    done = yield Step(0, (WHOLE,), "testing")
    evidence = next(iter(done.results), None)
    missing = f"{done.limit} ended before any test"
    run.found = evidence if isinstance(evidence, Evidence) else _untested(run, missing)


class _Schedule:
    """The steps of all claims, as `base.executor.Work`: a task is a claim's place and a number in its step."""

    def __init__(self, gate: Gate, runs: Sequence[ClaimRun]) -> None:
        self.gate = gate
        self.job = perform if gate.workers.kind == "here" else perform_apart
        self._open: dict[int, _Open] = {}
        self._queue: list[tuple[int, tuple[int, int]]] = []
        for index, run in enumerate(runs):
            gathering = run.gathering
            if gathering is not None:
                steps = _whole(run) if gathering.subject.quick else gathering.steps()
                self._add(index, _Open(run, gathering, steps, next(steps)))

    def _add(self, index: int, opened: _Open) -> None:
        self._open[index] = opened
        for number in range(len(opened.step.tasks)):
            heapq.heappush(self._queue, (opened.step.order, (index, number)))
        if not opened.step.tasks:
            self._resolve(index)

    def take(self) -> tuple[int, int] | None:
        """See `Work`: blocks that are stored, and tasks whose time is over, need none."""
        while self._queue:
            _, task = heapq.heappop(self._queue)
            index, number = task
            opened = self._open[index]
            tasks = opened.step.tasks
            end = self.ends(task)
            block = self.gate.stored(opened.run, tasks[number]) if self._drawn(task) else None
            if block is not None:
                self._settle(task, block)
            elif end is not None and time.monotonic() >= end:
                self.give_up(task)
            else:
                many = f" {number + 1}/{len(tasks)}" if len(tasks) > 1 else ""
                self.gate.status(index, opened.step.doing + many)
                return task
        return None

    def arguments(self, task: tuple[int, int]) -> tuple[Any, ...]:
        """See `Work`."""
        opened = self._open[task[0]]
        gathering = opened.gathering
        content = opened.step.tasks[task[1]]
        if self.job is perform:
            return gathering.subject, gathering.question, content
        return opened.run.placed, opened.run.seed, self.gate.access, content, gathering.question

    def ends(self, task: tuple[int, int]) -> float | None:
        """See `Work`."""
        return self.gate.deadline if self._drawn(task) else self.gate.last

    def _drawn(self, task: tuple[int, int]) -> bool:
        """Return whether a task draws a block of trials; theory and a whole quick claim have a grace."""
        return self._open[task[0]].step.tasks[task[1]] not in (WHOLE, (THEORY, 0))

    def done(self, task: tuple[int, int], result: tuple[Any, float, Inputs]) -> None:
        """See `Work`."""
        opened = self._open[task[0]]
        content, seconds, inputs = result
        opened.run.seconds += seconds
        add_inputs(self.gate.access.folder, inputs)
        if self._drawn(task):
            self.gate.keep(opened.run, opened.step.tasks[task[1]], content)
        self._settle(task, content)

    def give_up(self, task: tuple[int, int]) -> None:
        """See `Work`."""
        self._open[task[0]].limit = self.gate.budget
        self._settle(task, None)

    def failed(self, task: tuple[int, int], error: BaseException, *, deaths: int = 0) -> None:
        """See `Work`."""
        with named(self.gate.file.path, self._open[task[0]].run.placed):
            if deaths:
                raise AuditError(f"a worker died {deaths} times on it; ‹resume› goes on") from error
            raise error

    def _settle(self, task: tuple[int, int], result: Any) -> None:
        index, number = task
        opened = self._open[index]
        opened.results[number] = result
        if len(opened.results) == len(opened.step.tasks):
            self._resolve(index)

    def _resolve(self, index: int) -> None:
        """Hand on the results of a step that is done, or given up, and take the next step."""
        opened = self._open.pop(index)
        run = opened.run
        started = time.monotonic()
        step = None
        results = [opened.results[number] for number in sorted(opened.results)]
        unbroken = itertools.takewhile(lambda result: result is not None, results)
        try:
            with named(self.gate.file.path, run.placed), until(self.gate.last), suppress(StopIteration):
                step = opened.steps.send(Done(tuple(unbroken), opened.limit))
        except TimeIsUp:
            opened.gathering.missing = f"{self.gate.budget} ended in its tests"
        run.seconds += time.monotonic() - started
        if step is None:
            self.gate.ended(index, run)
        else:
            self._add(index, _Open(run, opened.gathering, opened.steps, step))


def _untested(run: ClaimRun, missing: str) -> Evidence:
    """Return the evidence about a claim of which nothing was found out in time."""
    return Evidence(p_value=1.0, facts={"seed": run.seed}, missing=missing, scores=scores_digest({}))


def perform(subject: Subject, question: Question, task: Task) -> tuple[Any, float, Inputs]:
    """Return the result of a task, the seconds it took, and what code of the user's read in another process for it."""
    started = time.monotonic()
    result = gather(subject, question) if task == WHOLE else result_of(subject, task)
    return result, time.monotonic() - started, Inputs()


_subjects: dict[tuple[str, int, Access, int | None], Subject] = {}


def perform_apart(
    placed: PlacedClaim, seed: int, access: Access, task: Task, question: Question
) -> tuple[Any, float, Inputs]:
    """Return what `perform` does, in a worker process, which keeps what the last claims that it met are about."""
    key = (placed.digest(), seed, access, question.max_trials)
    with recording(access.folder):
        if key not in _subjects:
            while len(_subjects) >= 4:
                _subjects.pop(next(iter(_subjects)))
            _subjects[key] = form_of(placed.claim).subject(access, seed, question.max_trials)
        result, seconds, _ = perform(_subjects[key], question, task)
    return result, seconds, inputs_of(access.folder)


@contextmanager
def named(path: Path, placed: PlacedClaim) -> Iterator[None]:
    """Let an error of the block open with file, line and name of the claim."""
    try:
        yield
    except AuditError as error:
        # What is not about a field is about what is audited, where code or files of the user's are.
        subject = next((key for key in ("mechanism", "system", "scores") if hasattr(placed.claim, key)), "")
        field = re.split(r"[ .]", error.field)[0]
        line = placed.line_of(field if field in placed.lines else subject)
        raise error.placed(f"{path}:{line}: claim {placed.name!r}: ") from error


def claim_seed(placed: PlacedClaim, seed: int, look: int = 0) -> int:
    """Return the seed of a claim's streams: it follows from what the claim says, so no change there, none in it.

    Claims on one system have one seed, and so share its trainings. The error rates that they share hold however claims
    depend on each other, if all are written before anybody knows the trainings. So claims that are first decided at
    different looks of a ledger, and those of different revisions, have trainings of their own.
    Of scores that are there already nothing is drawn but the pilot: with `seed` itself, as `audit` does of score files.
    """
    claim = placed.claim
    if claim.form == "scores":
        return seed
    drawn = f"{claim.system} {claim.revision or 0} {look}" if isinstance(claim, OwnClaim) else placed.digest()
    return int.from_bytes(hashlib.sha256(f"{drawn} {seed}".encode()).digest()[:4], "big") * 1000
