"""Gathers the evidence about one subject: theory first, then stage by stage until a test has decided.

`Gathering.steps` yields what to compute and is sent the results, which are computed here or in worker processes.

A claim spends one alpha however many looks it takes; the shares of all planned tests sum to at most 1. The sequential
test comes first: it may be looked at after every block and stops the audit once it has decided. Where it has not, the
full audit takes all pairs of the same kind, the sequential test's among them. A p-value of the claim is the least p /
share over its tests, however they depend on each other, so a pair may serve both; leaving out the later test because of
what the earlier one showed only raises it.

Before anything is drawn `reach_of` says what the planned trials could show at most: each test where they err least.

Blocks of trials are data, which caches and worker processes pass on: scores of both worlds, or an attack's success.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..base.findings import Control, Void
from ..base.rounding import p_equals
from ..games.scores import GameScores, joined
from ..statistics.assumptions import GAUSSIAN_ASSUMPTION, gaussian_assumption
from ..statistics.binomial import LEAST_P
from ..statistics.fixed import TestName, fixed_test, unseen
from ..statistics.one_run import best_coin_test, coin_test
from ..statistics.panel import (
    CUT_SHARE,
    GAUSSIAN_TESTS,
    GENERAL_TESTS,
    PLANNED_SHARE,
    SEQUENTIAL_TESTS,
    Panel,
    at_once,
    combined_p_value,
    in_two_stages,
)
from ..statistics.sequential import ESTIMATED, SequentialTest, bet_on, likelihood_of, most_refutable
from ..statistics.success import largest_limit, least_p_value, success_p_value
from ..statistics.tradeoff import empirical_tradeoff
from .controls import pooled
from .trainings import FEWEST, MOST_TRAININGS, TrainingsRule
from .verdict import AttackEvidence, Evidence, Look, Reach, Theory

THEORY = "theory"


@dataclass(frozen=True, kw_only=True)
class Success:
    """The success of an attack in each training of a block, means of its baselines, and its controls, by name.

    `mounted` says which attack it was and by which clients. `excluded` says why the claim is not about it, "" where it
    is. `warnings` say that the model has not learnt.
    """

    rates: tuple[float, ...]
    baselines: dict[str, float]
    controls: Mapping[str, tuple[Control, ...]]
    mounted: str = ""
    excluded: str = ""
    warnings: tuple[str, ...] = ()


Block = GameScores | Success
Task = tuple[str, int]
"""(`THEORY`, 0) or (pool, number of the block)."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A claim, and how much of an error its test may spend.

    A claim is that the subject is (`epsilon`, `delta`), or, with `success_at_most`, that the mean success of an attack
    is at most so large; no success lies below `least_success`. Tests are designed for the error `alpha`, and an upper
    limit on success is at that level; from a p-value of `stop` on there is no further look. `seed` draws pilots and
    orders. `max_trials` bounds trainings or runs; a claim about success takes at most `MOST_TRAININGS` without it.
    """

    epsilon: float = 0.0
    delta: float = 0.0
    success_at_most: float | None = None
    least_success: float = 0.0
    alpha: float
    stop: float
    seed: int = 0
    max_trials: int | None = None


@dataclass(frozen=True)
class Step:
    """Tasks that may run side by side; of all gatherings under way those of the lowest `order` go first."""

    order: int
    tasks: tuple[Task, ...]
    doing: str


@dataclass(frozen=True)
class Done:
    """Results of a step's tasks, in order; fewer than asked where time was up, which `limit` then says."""

    results: tuple[Block | Theory, ...]
    limit: str = ""


def gather(subject: "Subject", question: Question) -> Evidence:
    """Return the evidence about `subject`, everything computed here and now."""
    gathering = Gathering(subject, question)
    steps = gathering.steps()
    done = None
    try:
        while True:
            step = next(steps) if done is None else steps.send(done)
            done = Done(tuple(result_of(subject, task) for task in step.tasks))
    except StopIteration:
        return gathering.evidence()


def result_of(subject: "Subject", task: Task) -> Block | Theory:
    """Do one task."""
    pool, number = task
    return subject.theory() if pool == THEORY else subject.pools[pool].draw(number)


@dataclass
class Gathering:
    """The evidence about one subject as it grows, look by look, with the blocks so far by pool."""

    subject: "Subject"
    question: Question
    reach: Reach | None = None
    theory: Theory = field(default_factory=Theory)
    looks: tuple[Look, ...] = ()
    pools: dict[str, list[Block]] = field(default_factory=dict)
    trials: int = 0
    missing: str = "interrupted before anything was done"

    @property
    def p_value(self) -> float:
        """P-value of the looks taken so far."""
        question = self.question
        if question.success_at_most is not None:
            return success_p_value(self._rates(self._chosen), question.success_at_most, least=question.least_success)
        return combined_p_value((look.p_value, look.weight) for look in self.looks if look.weight > 0)

    def evidence(self) -> Evidence:
        """Return what was found out so far."""
        subject = self.subject
        blocks = scores_in(next((blocks for blocks in reversed(self.pools.values()) if blocks), []))
        scores = joined(blocks) if self.looks else None
        warnings: Sequence[str] = ()
        if scores is not None:
            warnings = scores.warnings
        elif self._rates(self._chosen):
            warnings = self._successes(self._chosen)[0].warnings
        return Evidence(
            p_value=self.p_value,
            theory=self.theory,
            looks=self.looks,
            attack=self._attack_evidence(),
            reach=self.reach,
            # Scores of one training depend on each other: they have no band.
            tradeoff=None if scores is None or scores.coins else tradeoff_of(scores),
            facts={**subject.facts, **(blocks[0].fitted if blocks else {}), "seed": self.question.seed},
            trials=self.trials,
            missing=self.missing,
            unaudited=subject.unaudited,
            warnings=tuple(warnings),
            voids=(*subject.voids, *(blocks[0].voids if blocks else ())),
            not_tested=subject.not_tested,
            split=split_of(subject.stages),
            scores=scores_digest(self.pools),
        )

    def _attack_evidence(self) -> AttackEvidence:
        """Return what was measured of attacks, with the controls of every one that was mounted."""
        by_attack: dict[str, list[Success]] = {}
        for pool in self.pools:
            for block in self._successes(pool):
                by_attack.setdefault(block.mounted, []).append(block)
        others = self._others()
        least = self.question.least_success
        rates = self._rates(self._chosen)
        controls = [
            pooled(attack, [block.controls for block in blocks], least=least) for attack, blocks in by_attack.items()
        ]
        return AttackEvidence(
            rates=rates,
            least_success=least,
            means=attack_means(self._successes(self._chosen)) if rates else {},
            controls=tuple(chain.from_iterable(controls)),
            others={pool: rates for pool in others if (rates := self._rates(pool))},
            unmeasured=tuple(pool for pool in others if not self.pools.get(pool)),
            excluded={pool: why for pool in others if (why := self._excluded(pool))},
        )

    def steps(self) -> Generator[Step, Done, None]:
        """Yield what to do: account, then stage by stage until the question is decided or the stages end."""
        stages = self.subject.stages
        stop = self.question.stop
        done = yield Step(0, ((THEORY, 0),), "accounting")
        if done.limit:
            self.missing = f"{done.limit} ended before anything was proved"
            return
        theory = done.results[0]
        assert isinstance(theory, Theory)
        self.theory = theory
        self.missing = "interrupted before any test" if stages else ""
        if self.question.success_at_most is not None and stages:
            self.missing = yield from self._attacks(self.question.success_at_most)
            return
        for order, stage in enumerate(stages, start=1):
            if order > 1 and self.p_value <= stop:
                break
            self.missing = f"interrupted in the {stage.words}"
            self.missing = yield from self._stage(stage, order)
            if self.missing:
                return
            if order < len(stages) and self.p_value > stop:
                self.missing = f"interrupted before the {stages[order].words}"
        self.missing = ""

    def _attacks(self, limit: float) -> Generator[Step, Done, str]:
        """Mount the attack that a pilot chose until its claim is decided; where it is held, all others too.

        Return what ended them early, "" for nothing.
        """
        question = self.question
        stages = self.subject.stages
        for order, stage in enumerate(stages, start=1):
            if order > 1 and stage.pool not in self._others():
                continue
            pool = self.subject.pools[stage.pool]
            rule = TrainingsRule(
                limit=limit,
                least=question.least_success,
                stop=question.stop,
                held_at=Panel(stages[1:]).level(question.alpha),
                # Trainings of the others come out of the same budget.
                most=allowed(stage, pool, question, self.trials) * pool.trials,
                fewest=FEWEST if order == 1 else 1,
            )
            ended = yield from self._trainings(stage, rule, order)
            if ended:
                return ended
            if not (self._excluded(stage.pool) or rule.held(self._rates(stage.pool))):
                break
        return ""

    def _trainings(self, stage: "Stage", rule: TrainingsRule, order: int) -> Generator[Step, Done, str]:
        """Draw blocks of trainings under one attack as the rule says; return what ended them early, "" for nothing."""
        cost = self.subject.pools[stage.pool].trials
        self.missing = f"interrupted in the {stage.words}"
        most = f"at most {rule.most:,}" if order == 1 else stage.pool
        while not self._excluded(stage.pool) and rule.goes_on(rates := self._rates(stage.pool)):
            # What cannot decide anything yet may run side by side.
            size = max(1, math.ceil((rule.first - len(rates)) / cost))
            doing = f"{len(rates)} trainings of {most}, {p_equals(self.p_value)}"
            limit = yield from self._draw(stage, size, order, doing)
            if limit:
                return limit
        return ""

    def _draw(self, stage: "Stage", size: int, order: int, doing: str) -> Generator[Step, Done, str]:
        """Draw so many further blocks of a stage's pool; return what ended them early, "" for nothing."""
        blocks = self.pools.setdefault(stage.pool, [])
        tasks = tuple((stage.pool, number) for number in range(len(blocks), len(blocks) + size))
        done = yield Step(order, tasks, doing)
        drawn = [block for block in done.results if not isinstance(block, Theory)]
        blocks += drawn
        self.trials += self.subject.pools[stage.pool].trials * len(drawn)
        return f"{done.limit} ended in the {stage.words}" if done.limit else ""

    @property
    def _chosen(self) -> str:
        """The pool of the attack that a pilot chose."""
        return self.subject.stages[0].pool if self.subject.stages else ""

    def _successes(self, pool: str) -> list[Success]:
        return [block for block in self.pools.get(pool, []) if isinstance(block, Success)]

    def _rates(self, pool: str) -> tuple[float, ...]:
        """Return the success of each training so far."""
        return tuple(rate for block in self._successes(pool) for rate in block.rates)

    def _excluded(self, pool: str) -> str:
        """Return why the claim is not about the attack of a pool, "" where it is or nothing is known yet."""
        return next((block.excluded for block in self._successes(pool) if block.excluded), "")

    def _others(self) -> list[str]:
        """Return the pools of the attacks that a claim is about, but for the one that a pilot chose."""
        if self.question.success_at_most is None:
            return []
        mounted = {block.mounted for block in self._successes(self._chosen)}
        return [stage.pool for stage in self.subject.stages[1:] if stage.pool not in mounted]

    def _stage(self, stage: "Stage", order: int) -> Generator[Step, Done, str]:
        """Draw the blocks of one stage and take its looks; return what ended it early, "" for nothing."""
        question = self.question
        blocks = self.pools.setdefault(stage.pool, [])
        pool = self.subject.pools[stage.pool]
        wanted = allowed(stage, pool, question, self.trials)
        limit = ""
        if wanted < stage.blocks:
            limit = f"the limit of {question.max_trials} trials ended the {stage.words}"
        end = len(blocks) + wanted
        while len(blocks) < end:
            # Where the test may stop the audit it is looked at after every block.
            size = 1 if stage.stops else end - len(blocks)
            ended = yield from self._draw(stage, size, order, f"{stage.words}, {p_equals(self.p_value)}")
            if ended:
                limit = ended
                break
            if stage.stops:
                self._bet(stage, bound=False)
                if self.p_value <= question.stop:
                    self._bet(stage)
                    return ""
        if blocks:
            self._bet(stage)
            share = CUT_SHARE if limit else stage.full
            if share and not pool.coins:
                name = f"{stage.words}, cut off" if limit else stage.words
                gaussian = self.subject.gaussian_tests if pool.gaussian else ()
                scores = joined(scores_in(blocks))
                self.looks += tuple(full_looks(scores, question, stage=name, share=share, on_gaussian=gaussian))
        return limit

    def _bet(self, stage: "Stage", *, bound: bool = True) -> None:
        """Bring the e-process of the stage's pool up to date; it is one look, however often it is taken.

        Without `bound` for its p-value alone, as long as it may go on.
        """
        blocks = self.pools[stage.pool]
        pool = self.subject.pools[stage.pool]
        share, drawn = _planned_of(self.subject, stage.pool)
        if not share or not blocks:
            return
        name = f"sequential, {stage.pool}"
        scores = scores_in(blocks)
        if pool.coins:
            # Bets on the coins of trainings, each a block.
            error = self.question.alpha * share
            test = coin_test([block.sides for block in scores], delta=self.question.delta, design_error=error)
            looks = [Look(stage=name, weight=share, test=test, p_value=test.p_value(self.question.epsilon))]
        else:
            looks = sequential_looks(
                scores,
                self.question,
                stage=name,
                share=share,
                gaussian=pool.gaussian,
                most_pairs=drawn * pool.pairs,
                bound=bound,
            )
        self.looks = (*(look for look in self.looks if look.stage != name), *looks)


def sequential_looks(
    blocks: Sequence[GameScores],
    question: Question,
    *,
    stage: str,
    share: float,
    gaussian: bool,
    most_pairs: int,
    bound: bool = True,
) -> list[Look]:
    """Return the looks of the sequential test at all `blocks` of a pool, which spend `share` of alpha together.

    `most_pairs` are planned in all: the betting test is left out where they could not refute the claim. Without `bound`
    the looks have p-values alone. Each side of each block is read in a random order that follows from the seed.
    """
    scores = joined([block.permuted(question.seed, number) for number, block in enumerate(blocks)])
    weight = _sequential_panel(share, gaussian=gaussian).weight
    looks = []
    bets = bet_on(*scores.sides, epsilon=question.epsilon, delta=question.delta, most_pairs=most_pairs, bound=bound)
    if bets is not None:
        looks.append(Look(stage=stage, weight=weight, test=bets, p_value=bets.least_p_value))
    if gaussian:
        runs, delta, assumes = _for_gaussian(scores, question.delta)
        if delta < 1.0:
            ratio = likelihood_of(*runs.sides, epsilon=question.epsilon, delta=delta, bound=bound)
            gates = 0.0 if assumes else weight
            looks.append(Look(stage=stage, weight=gates, test=ratio, p_value=ratio.least_p_value, assumes=assumes))
    return looks


def _sequential_panel(share: float, *, gaussian: bool) -> Panel:
    return Panel(SEQUENTIAL_TESTS if gaussian else SEQUENTIAL_TESTS[:1], share)


def full_looks(
    scores: GameScores, question: Question, *, stage: str, share: float, on_gaussian: Sequence[TestName] = ()
) -> list[Look]:
    """Return the looks of the full test at all `scores` of a pool, which spend `share` of alpha together.

    They are the tests of `audit` on the same scores, score files or those of a game, and share the error as there;
    those of `on_gaussian` take the scores that are Gaussian by construction.
    """
    each = Panel((*GENERAL_TESTS, *on_gaussian), share).weight

    def look(name: TestName, runs: GameScores, delta: float, assumes: str | None = None) -> Look:
        test = fixed_test(
            *runs.sides,
            name=name,
            delta=delta,
            design_error=question.alpha * each,
            seed=question.seed,
            assumes=assumes,
            pilot=runs.pilot,
        )
        weight, assumes = (0.0, assumes) if assumes else (each, "")
        return Look(stage=stage, weight=weight, test=test, p_value=test.p_value(question.epsilon), assumes=assumes)

    looks = [look(name, scores, question.delta) for name in GENERAL_TESTS]
    if on_gaussian:
        runs, delta, assumes = _for_gaussian(scores, question.delta)
        if delta < 1.0:
            looks += [look(name, runs, delta, assumes) for name in on_gaussian]
    return looks


def _for_gaussian(scores: GameScores, delta: float) -> tuple[GameScores, float, str]:
    """Return the scores for a test of mu, their delta, and what it rests on; all scores where none are Gaussian."""
    if scores.gaussian is None:
        return scores, delta, GAUSSIAN_ASSUMPTION
    runs, condition = scores.gaussian
    return runs, delta / condition.probability, gaussian_assumption(*runs.sides, vouched=condition.vouched)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One planned step of an audit.

    `pool` names the game whose pairs it draws: tests of a pool take all of its pairs so far. `blocks` counts the blocks
    it adds. `sequential` and `full` are shares of the claim's alpha, for the e-process of the pool, which is carried on
    from stage to stage (so it is given once a pool), and for one test at the end of the stage. Where it `stops`, the
    sequential test is looked at after every block and ends the audit once it has decided.
    """

    name: str
    pool: str
    blocks: int
    sequential: float = 0.0
    full: float = 0.0
    stops: bool = False

    @property
    def words(self) -> str:
        """Name of the stage in words."""
        if self.name == self.pool:
            return self.name
        return f"{self.name} test on {self.pool}"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Trials of one kind, drawn block by block from streams of their own; `draw(number)` may take seconds.

    A block has `pairs` pairs, and takes `trials` trainings or runs. Where its scores may be `gaussian` by construction,
    each share is split evenly among general tests and tests of mu (`statistics.panel`). `stored` says whether blocks
    cost enough to be kept for `resume`. For existing scores `given` counts both sides. Where a fair coin decided the
    side of each score, a block is one training with at most `coins` coins, on which the sequential test bets at once.
    """

    draw: Callable[[int], Block]
    pairs: int = 0
    trials: int = 0
    gaussian: bool = False
    stored: bool = False
    given: Callable[[], tuple[int, int]] | None = None
    coins: int = 0

    def sides(self, blocks: int) -> tuple[int, int]:
        """Return how many scores of each side so many blocks hold."""
        return (blocks * self.pairs, blocks * self.pairs) if self.given is None else self.given()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a claim: its theory, pools of trials by name, and the stages in which these are drawn.

    `stages` is empty where no test can be made, and `unaudited` says why. `gaussian_tests` are the full tests of mu
    that the scores of Gaussian pools are put to. What is `quick` takes so little that it is one piece of work, and ends
    though time is up. `voids` and `not_tested` are what is known before anything is drawn: see `Evidence`.
    """

    theory: Callable[[], Theory] = Theory
    stages: tuple[Stage, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    gaussian_tests: tuple[TestName, ...] = GAUSSIAN_TESTS
    quick: bool = False
    unaudited: str = ""
    voids: tuple[Void, ...] = ()
    not_tested: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def allowed(stage: Stage, pool: Pool, question: Question, spent: int) -> int:
    """Return how many blocks of a stage the limit on trials allows, of which so many are `spent`."""
    most = question.max_trials
    if most is None and question.success_at_most is not None:
        most = MOST_TRAININGS
    if most is None or not pool.trials:
        return stage.blocks
    return min(stage.blocks, max(0, (most - spent) // pool.trials))


def planned(subject: Subject, question: Question) -> Iterator[tuple[Stage, int, float]]:
    """Yield each stage that will be begun: with the blocks of its pool at its end, and the share of its full test."""
    drawn: Counter[str] = Counter()
    spent = 0
    for stage in subject.stages:
        pool = subject.pools[stage.pool]
        wanted = allowed(stage, pool, question, spent)
        drawn[stage.pool] += wanted
        spent += wanted * pool.trials
        cut = wanted < stage.blocks
        yield stage, drawn[stage.pool], CUT_SHARE if cut else stage.full
        if cut:
            return


def two_stages(pool: str, *, first: int, rest: int, share: float = PLANNED_SHARE) -> tuple[Stage, ...]:
    """Return the sequential test on `first` blocks and the full audit on `rest` more, within `share` of alpha."""
    sequential, full = in_two_stages(share)
    return (
        Stage(name="sequential", pool=pool, blocks=first, sequential=sequential, stops=True),
        Stage(name="full", pool=pool, blocks=rest, full=full),
    )


def one_stage(pool: str, *, blocks: int, share: float = 1.0) -> tuple[Stage, ...]:
    """Return both tests on one lot of pairs that cost next to nothing: drawing fewer would spare nothing."""
    sequential, full = at_once(share)
    return (Stage(name=pool, pool=pool, blocks=blocks, sequential=sequential, full=full),)


def follows(evidence: Evidence, question: Question) -> bool:
    """Return whether the p-values of `evidence` are those of its own tests, or trainings, for the `question`."""
    if question.success_at_most is not None:
        rates = evidence.attack.rates
        again = success_p_value(rates, question.success_at_most, least=question.least_success)
        return _equal(again, evidence.p_value)
    p_values = []
    for look in evidence.looks:
        test = look.test
        p = test.least_p_value if isinstance(test, SequentialTest) else test.p_value(question.epsilon)
        if not _equal(p, look.p_value):
            return False
        if look.weight > 0:
            p_values.append((p, look.weight))
    return _equal(combined_p_value(p_values), evidence.p_value)


def _equal(again: float, stored: float) -> bool:
    # Last digits differ between machines.
    return math.isclose(again, stored, rel_tol=1e-6, abs_tol=LEAST_P)


def scores_in(blocks: Sequence[Block]) -> list[GameScores]:
    """Return the blocks that hold scores."""
    return [block for block in blocks if isinstance(block, GameScores)]


def split_of(stages: Sequence[Stage]) -> dict[str, float]:
    """Return the share of alpha of every planned test, by name; with what is kept back for a stage cut off."""
    shares = {}
    for stage in stages:
        for test, share in (("sequential", stage.sequential), ("full", stage.full)):
            if share:
                shares[f"{test} test on {stage.pool}"] = share
    if any(stage.full and (len(stages) > 1 or stage.blocks > 1) for stage in stages):
        shares["a stage cut off"] = CUT_SHARE
    return shares


FIT_PAIRS = 400
"""Runs in each world that a score is fitted to, where a mechanism answers with views; they are not tested."""


def scores_digest(pools: Mapping[str, Sequence[Block]]) -> str:
    """SHA-256 of all that was drawn, pool by pool: scores in order and what they are given, or success of trainings."""
    digest = hashlib.sha256()
    for pool in sorted(pools):
        for block in pools[pool]:
            condition, named, columns = _drawn(block)
            digest.update(json.dumps([pool, condition, named], sort_keys=True).encode())
            for numbers in columns:
                array = np.ascontiguousarray(numbers, dtype="<f8")
                digest.update(str(array.shape).encode())
                digest.update(array.data)
    return digest.hexdigest()


def _drawn(block: Block) -> tuple[dict[str, object] | None, list[str], list[ArrayLike]]:
    """Return what makes scores Gaussian, the sides whose counts that needs, and all numbers of a block."""
    if isinstance(block, Success):
        return None, [], [block.rates]
    columns: list[ArrayLike] = [*block.sides, *(block.pilot or ())]
    if block.given is None:
        return None, [], columns
    condition = {name: value for name, value in vars(block.given).items() if value}
    if block.given.count is None:
        return condition, [], columns
    return condition, ["in", "out"], [*columns, *(block.counts or ())]


def tradeoff_of(scores: GameScores) -> dict[str, object]:
    """Return the empirical trade-off curve of the scores with its 95% band, for the picture alone."""
    inside, outside = map(np.median, scores.sides)
    return vars(empirical_tradeoff(*scores.sides, points=51, in_is_high=bool(inside >= outside)))


def attack_means(blocks: Sequence[Success]) -> dict[str, object]:
    """Return the mean success of an attack, of its baselines and of its controls over all blocks."""
    controls = [
        {name: float(np.mean([run.value for run in runs])) for name, runs in block.controls.items()} for block in blocks
    ]
    return {
        "success": float(np.mean([rate for block in blocks for rate in block.rates])),
        "baselines": means_by_name([block.baselines for block in blocks]),
        "controls": means_by_name(controls),
        "mounted": blocks[0].mounted,
    }


def means_by_name(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each value that the first row names, over the rows that have it."""
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in rows[0]}


@dataclass(frozen=True)
class _Test:
    """A planned test: its share of alpha, the largest epsilon that it certifies, and its least p-value."""

    share: float
    most: float
    p_value: float


def reach_of(subject: Subject, question: Question, level: float) -> Reach | None:
    """Return what the planned trials of a subject could show at the error rate `level`; None where nothing is tested.

    The p-value is 0 where the claim lies below what can be certified.
    """
    if not subject.stages:
        return None
    if question.success_at_most is not None:
        chosen = subject.stages[0]
        pool = subject.pools[chosen.pool]
        count = allowed(chosen, pool, question, 0) * pool.trials
        least = question.least_success
        return Reach(
            trials=count,
            p_value=least_p_value(count, question.success_at_most, least=least),
            most=largest_limit(count, level, least=least),
            unit="trainings",
        )
    pools = subject.pools
    blocks = Counter({stage.pool: count for stage, count, _ in planned(subject, question)})
    tests = [*_sequential(subject, question, blocks, level), *_full(subject, question, level)]
    most = max((test.most for test in tests), default=0.0)
    p_value = combined_p_value((test.p_value, test.share) for test in tests)
    coins = sum(pools[name].coins * count for name, count in blocks.items())
    trials = sum((pools[name].trials or sum(pools[name].sides(1))) * count for name, count in blocks.items())
    return Reach(
        trials=coins or trials,
        p_value=0.0 if question.epsilon < most else p_value,
        most=most if math.isfinite(most) else None,
        unit="coins" if coins else "trials",
    )


def _sequential(subject: Subject, question: Question, blocks: Counter[str], level: float) -> Iterator[_Test]:
    """Yield the e-processes of all pools, see `sequential_looks`."""
    for name, count in blocks.items():
        pool = subject.pools[name]
        share, drawn = _planned_of(subject, name)
        if not share:
            continue
        if pool.coins:
            best = best_coin_test(count, pool.coins, delta=question.delta)
            yield _Test(share, best.ceiling(level * share), best.p_value(question.epsilon))
            continue
        pairs = min(pool.sides(count))
        weight = _sequential_panel(share, gaussian=pool.gaussian).weight
        if pool.gaussian and pairs > ESTIMATED:
            # A likelihood ratio has no largest result.
            yield _Test(weight, math.inf, 0.0)
        most_pairs = min(pool.sides(drawn))
        yield _Test(weight, *most_refutable(pairs, most_pairs, question.epsilon, question.delta, level * weight))


def _planned_of(subject: Subject, pool: str) -> tuple[float, int]:
    """Return the share of the e-process of a pool, and the blocks of all stages that draw from it."""
    stages = [stage for stage in subject.stages if stage.pool == pool]
    return sum(stage.sequential for stage in stages), sum(stage.blocks for stage in stages)


def _full(subject: Subject, question: Question, level: float) -> Iterator[_Test]:
    """Yield the tests at the ends of stages, see `full_looks`."""
    for stage, count, share in planned(subject, question):
        pool = subject.pools[stage.pool]
        names = (*GENERAL_TESTS, *(subject.gaussian_tests if pool.gaussian else ()))
        for name in names if share and count and not pool.coins else ():
            test = unseen(*pool.sides(count), name=name, delta=question.delta)
            each = Panel(names, share).weight
            most = test.ceiling(level * each)
            yield _Test(each, most, 0.0 if question.epsilon < most else test.least_p_value(question.epsilon))
