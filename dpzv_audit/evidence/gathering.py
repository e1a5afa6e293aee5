"""Gathers the evidence about one subject: theory first, then stage by stage until a test has decided.

`Gathering.steps` yields what to compute and is sent the results; who computes them, here or in worker processes, is no
concern of it.

A claim spends one alpha however many looks it takes; the shares of all planned tests sum to at most 1. The sequential
test comes first: it may be looked at after every block and stops the audit once it has decided. Where it has not, the
full audit takes all pairs of the same kind, the sequential test's among them. A p-value of the claim is the least p /
share over its tests, however they depend on each other, so a pair may serve both; leaving out the later test because of
what the earlier one showed only raises it.

What the planned trials could show at most is told before anything is drawn: each test where the trials err least.

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

from ..base.findings import Control, PooledControl, Void
from ..base.rounding import p_value
from ..games.scores import GameScores, joined
from ..statistics.assumptions import GAUSSIAN_ASSUMPTION, gaussian_assumption
from ..statistics.binomial import LEAST_P
from ..statistics.estimators import GAUSSIAN_TESTS, GENERAL_TESTS
from ..statistics.fixed import TestName, fixed_test, unseen
from ..statistics.one_run import best_coin_test, coin_test
from ..statistics.sequential import ESTIMATED, SequentialTest, bet_on, likelihood_of, most_refutable
from ..statistics.success import largest_limit, least_p_value, success_p_value
from .controls import pooled
from .trainings import FEWEST, MOST_TRAININGS, TrainingsRule
from .verdict import Evidence, Look, Reach, Theory, combined_p_value

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
    """What is claimed, and how much of an error its test may spend.

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
    rates: tuple[float, ...] = ()
    pools: dict[str, list[Block]] = field(default_factory=dict)
    trials: int = 0
    missing: str = "interrupted before anything was done"

    @property
    def p_value(self) -> float:
        """Of the looks taken so far."""
        asked = self.question
        if asked.success_at_most is not None:
            return success_p_value(self.rates, asked.success_at_most, least=asked.least_success)
        return combined_p_value((look.p_value, look.weight) for look in self.looks if look.weight > 0)

    def evidence(self) -> Evidence:
        """Return what was found out so far."""
        last = next((blocks for blocks in reversed(self.pools.values()) if blocks), [])
        scores = scores_in(last)
        attack = attack_facts(self._successes(self.subject.stages[0].pool)) if self.rates else {}
        learnt = self._successes(self.subject.stages[0].pool)[0].warnings if self.rates else ()
        others = self._others()
        fitted = scores[0].fitted if scores else {}
        return Evidence(
            p_value=self.p_value,
            theory=self.theory,
            looks=self.looks,
            rates=self.rates,
            least_success=self.question.least_success,
            others={pool: rates for pool in others if (rates := self._rates(pool))},
            unmeasured=tuple(pool for pool in others if not self.pools.get(pool)),
            excluded={pool: why for pool in others if (why := self._excluded(pool))},
            reach=self.reach,
            attack=attack,
            controls=self._controls(),
            # Scores of one training depend on each other: they have no band.
            tradeoff=tradeoff_of(joined(scores)) if self.looks and not scores[0].coins else None,
            facts={**self.subject.facts, **fitted, "seed": self.question.seed},
            trials=self.trials,
            missing=self.missing,
            unaudited=self.subject.unaudited,
            warnings=tuple(joined(scores).warnings) if self.looks else learnt,
            voids=(*self.subject.voids, *(scores[0].voids if scores else ())),
            not_tested=self.subject.not_tested,
            split=split_of(self.subject.stages),
            scores=scores_digest(self.pools),
        )

    def _controls(self) -> tuple[PooledControl, ...]:
        """Return the controls of every attack that was mounted."""
        by_attack: dict[str, list[Success]] = {}
        for block in chain.from_iterable(self.pools.values()):
            if isinstance(block, Success):
                by_attack.setdefault(block.mounted, []).append(block)
        least = self.question.least_success
        found = [pooled(attack, [one.controls for one in of], least=least) for attack, of in by_attack.items()]
        return tuple(chain.from_iterable(found))

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

        Return what cut them off, "" for nothing.
        """
        asked = self.question
        chosen, *others = self.subject.stages
        candidates = max(1, len(others))
        for order, stage in enumerate((chosen, *others), start=1):
            if order > 1 and stage.pool not in self._others():
                continue
            pool = self.subject.pools[stage.pool]
            # Trainings of the others come out of the same budget.
            most = allowed(stage, pool, asked, self.trials) * pool.trials
            rule = TrainingsRule(
                limit=limit,
                least=asked.least_success,
                stop=asked.stop,
                held_at=asked.alpha / candidates,
                most=most,
                fewest=FEWEST if order == 1 else 1,
            )
            cut = yield from self._trainings(stage, rule, order)
            if cut:
                return cut
            if not (self._excluded(stage.pool) or rule.held(self._rates(stage.pool))):
                break
        return ""

    def _trainings(self, stage: "Stage", rule: TrainingsRule, order: int) -> Generator[Step, Done, str]:
        """Draw blocks of trainings under one attack as the rule says; return what cut them off, "" for nothing."""
        blocks = self.pools.setdefault(stage.pool, [])
        cost = self.subject.pools[stage.pool].trials
        self.missing = f"interrupted in the {stage.words}"
        while not self._excluded(stage.pool) and rule.goes_on(rates := self._rates(stage.pool)):
            # What cannot decide anything yet may run side by side.
            size = max(1, math.ceil((rule.first - len(rates)) / cost))
            tasks = tuple((stage.pool, number) for number in range(len(blocks), len(blocks) + size))
            most = f"at most {rule.most:,}" if order == 1 else stage.pool
            done = yield Step(order, tasks, f"{len(rates)} trainings of {most}, p = {p_value(self.p_value)}")
            drawn = [block for block in done.results if isinstance(block, Success)]
            blocks += drawn
            self.trials += cost * len(drawn)
            if order == 1:
                self.rates = self._rates(stage.pool)
            if done.limit:
                return f"{done.limit} ended in the {stage.words}"
        return ""

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
        if self.question.success_at_most is None or not self.subject.stages:
            return []
        chosen, *others = self.subject.stages
        mounted = {block.mounted for block in self._successes(chosen.pool)}
        return [stage.pool for stage in others if stage.pool not in mounted]

    def _stage(self, stage: "Stage", order: int) -> Generator[Step, Done, str]:
        """Draw the blocks of one stage and take its looks; return what cut it off, "" for nothing."""
        asked = self.question
        blocks = self.pools.setdefault(stage.pool, [])
        pool = self.subject.pools[stage.pool]
        cost = pool.trials
        wanted = allowed(stage, pool, asked, self.trials)
        limit = ""
        if wanted < stage.blocks:
            limit = f"the limit of {asked.max_trials} trials ended the {stage.words}"
        end = len(blocks) + wanted
        while len(blocks) < end:
            # Where the test may stop the audit it is looked at after every block.
            size = 1 if stage.stops else end - len(blocks)
            tasks = tuple((stage.pool, number) for number in range(len(blocks), len(blocks) + size))
            done = yield Step(order, tasks, f"{stage.words}, p = {p_value(self.p_value)}")
            drawn = [block for block in done.results if not isinstance(block, Theory)]
            blocks += drawn
            self.trials += cost * len(drawn)
            if done.limit:
                limit = f"{done.limit} ended in the {stage.words}"
                break
            if stage.stops:
                self._bet(stage, bound=False)
                if self.p_value <= asked.stop:
                    self._bet(stage)
                    return ""
        if blocks:
            self._bet(stage)
            share = CUT_SHARE if limit else stage.full
            if share and not pool.coins:
                name = f"{stage.words}, cut off" if limit else stage.words
                gaussian = self.subject.gaussian_tests if pool.gaussian else ()
                scores = joined(scores_in(blocks))
                self.looks += tuple(full_looks(scores, asked, stage=name, share=share, on_gaussian=gaussian))
        return limit

    def _bet(self, stage: "Stage", *, bound: bool = True) -> None:
        """Bring the e-process of the stage's pool up to date; it is one look, however often it is taken.

        Without `bound` for its p-value alone, as long as it may go on.
        """
        blocks = self.pools[stage.pool]
        pool = self.subject.pools[stage.pool]
        planned = [other for other in self.subject.stages if other.pool == stage.pool]
        share = sum(other.sequential for other in planned)
        if not share or not blocks:
            return
        name = f"sequential, {stage.pool}"
        if pool.coins:
            looks = [coin_look(scores_in(blocks), self.question, stage=name, share=share)]
        else:
            looks = sequential_looks(
                scores_in(blocks),
                self.question,
                stage=name,
                share=share,
                gaussian=pool.gaussian,
                most_pairs=sum(other.blocks for other in planned) * pool.pairs,
                bound=bound,
            )
        self.looks = (*(look for look in self.looks if look.stage != name), *looks)


def sequential_looks(
    blocks: Sequence[GameScores],
    asked: Question,
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
    scores = joined([block.permuted(asked.seed, number) for number, block in enumerate(blocks)])
    general = 0.5 * share if gaussian else share
    looks = []
    bets = bet_on(*scores.sides, epsilon=asked.epsilon, delta=asked.delta, most_pairs=most_pairs, bound=bound)
    if bets is not None:
        looks.append(Look(stage=stage, weight=general, test=bets, p_value=bets.least_p_value))
    if gaussian:
        part, delta, assumes = _for_gaussian(scores, asked.delta)
        if delta < 1.0:
            ratio = likelihood_of(*part.sides, epsilon=asked.epsilon, delta=delta, bound=bound)
            weight = 0.0 if assumes else share - general
            looks.append(Look(stage=stage, weight=weight, test=ratio, p_value=ratio.least_p_value, assumes=assumes))
    return looks


def coin_look(blocks: Sequence[GameScores], asked: Question, *, stage: str, share: float) -> Look:
    """Return the look of the bets on the coins of trainings, each a block, which spends `share` of alpha."""
    sides = [block.sides for block in blocks]
    test = coin_test(sides, delta=asked.delta, design_error=asked.alpha * share)
    return Look(stage=stage, weight=share, test=test, p_value=test.p_value(asked.epsilon))


def full_looks(
    scores: GameScores, asked: Question, *, stage: str, share: float, on_gaussian: Sequence[TestName] = ()
) -> list[Look]:
    """Return the looks of the full test at all `scores` of a pool, which spend `share` of alpha together.

    They are the tests of `audit` on the same scores, score files or those of a game, and share the error as there;
    those of `on_gaussian` take the scores that are Gaussian by construction.
    """
    each = share / (len(GENERAL_TESTS) + len(on_gaussian))

    def look(name: TestName, part: GameScores, delta: float, assumes: str | None = None) -> Look:
        given: dict[str, Any] = {"delta": delta, "design_error": asked.alpha * each, "seed": asked.seed}
        test = fixed_test(*part.sides, name=name, assumes=assumes, pilot=part.pilot, **given)
        weight = 0.0 if assumes else each
        return Look(stage=stage, weight=weight, test=test, p_value=test.p_value(asked.epsilon), assumes=assumes or "")

    looks = [look(name, scores, asked.delta) for name in GENERAL_TESTS]
    if on_gaussian:
        part, delta, assumes = _for_gaussian(scores, asked.delta)
        if delta < 1.0:
            looks += [look(name, part, delta, assumes) for name in on_gaussian]
    return looks


def _for_gaussian(scores: GameScores, delta: float) -> tuple[GameScores, float, str]:
    """Return the scores for a test of mu, their delta, and what it rests on; all scores where none are Gaussian."""
    if scores.gaussian is None:
        return scores, delta, GAUSSIAN_ASSUMPTION
    part, given = scores.gaussian
    return part, delta / given.probability, gaussian_assumption(*part.sides, vouched=given.vouched)


CUT_SHARE = 0.1
"""Share of alpha for the one full test of a stage that a budget or an interrupt cut off."""


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
        """What the stage is called."""
        if self.name == self.pool:
            return self.name
        return f"{self.name} test on {self.pool}"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Trials of one kind, drawn block by block from streams of their own; `draw(number)` may take seconds.

    A block has `pairs` pairs, and takes `trials` trainings or runs. Where its scores may be `gaussian` by construction
    half of each share goes to a test of mu. `stored` says whether blocks cost enough to be kept for `resume`. Of scores
    that are there already `given` counts both sides. Where a fair coin decided the side of each score a block is one
    training with so many `coins` at most, which the sequential test bets on whole.
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
    """What is put to the test: its theory, pools of trials by name, and the stages in which these are drawn.

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


def allowed(stage: Stage, pool: Pool, asked: Question, spent: int) -> int:
    """Return how many blocks of a stage the limit on trials allows, of which so many are `spent`."""
    most = asked.max_trials
    if most is None and asked.success_at_most is not None:
        most = MOST_TRAININGS
    if most is None or not pool.trials:
        return stage.blocks
    return min(stage.blocks, max(0, (most - spent) // pool.trials))


def planned(subject: Subject, asked: Question) -> Iterator[tuple[Stage, int, float]]:
    """Yield each stage that will be begun: with the blocks of its pool at its end, and the share of its full test."""
    drawn: Counter[str] = Counter()
    spent = 0
    for stage in subject.stages:
        pool = subject.pools[stage.pool]
        wanted = allowed(stage, pool, asked, spent)
        drawn[stage.pool] += wanted
        spent += wanted * pool.trials
        cut = wanted < stage.blocks
        yield stage, drawn[stage.pool], CUT_SHARE if cut else stage.full
        if cut:
            return


def two_stages(pool: str, *, first: int, rest: int, share: float = 1.0 - CUT_SHARE) -> tuple[Stage, ...]:
    """Return the sequential test on `first` blocks and the full audit on `rest` more, within `share` of alpha."""
    return (
        Stage(name="sequential", pool=pool, blocks=first, sequential=share / 3.0, stops=True),
        Stage(name="full", pool=pool, blocks=rest, full=2.0 * share / 3.0),
    )


def all_at_once(pool: str, *, blocks: int, share: float = 1.0) -> tuple[Stage, ...]:
    """Return both tests on one lot of pairs that cost next to nothing: drawing fewer would spare nothing."""
    return (Stage(name=pool, pool=pool, blocks=blocks, sequential=0.2 * share, full=0.8 * share),)


def follows(evidence: Evidence, asked: Question) -> bool:
    """Return whether the p-values of `evidence` are those of its own tests, or trainings, for what is `asked`."""
    if asked.success_at_most is not None:
        found = success_p_value(evidence.rates, asked.success_at_most, least=asked.least_success)
        return _equal(found, evidence.p_value)
    each = [
        look.test.least_p_value if isinstance(look.test, SequentialTest) else look.test.p_value(asked.epsilon)
        for look in evidence.looks
    ]
    found = combined_p_value((p, look.weight) for p, look in zip(each, evidence.looks, strict=True) if look.weight > 0)
    alike = all(_equal(p, look.p_value) for p, look in zip(each, evidence.looks, strict=True))
    return alike and _equal(found, evidence.p_value)


def _equal(found: float, said: float) -> bool:
    # Last digits differ between machines.
    return math.isclose(found, said, rel_tol=1e-6, abs_tol=LEAST_P)


def scores_in(blocks: Sequence[Block]) -> list[GameScores]:
    """Return the blocks that hold scores."""
    return [block for block in blocks if isinstance(block, GameScores)]


def split_of(stages: Sequence[Stage]) -> dict[str, float]:
    """Return the share of alpha of every planned test, by name; with what is kept back for a stage cut off."""
    shares: dict[str, float] = {}
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
            columns: list[ArrayLike] = []
            given = None
            named = []
            if isinstance(block, Success):
                columns.append(block.rates)
            else:
                columns += block.sides
                columns += block.pilot or ()
                if block.given is not None:
                    given = {name: value for name, value in vars(block.given).items() if value}
                    if block.given.count is not None:
                        named = ["in", "out"]
                        columns += block.counts or ()
            digest.update(json.dumps([pool, given, named], sort_keys=True).encode())
            for numbers in columns:
                array = np.ascontiguousarray(numbers, dtype="<f8")
                digest.update(str(array.shape).encode())
                digest.update(array.data)
    return digest.hexdigest()


def tradeoff_of(scores: GameScores, confidence: float = 0.95) -> dict[str, object]:
    """Return the empirical trade-off curve of the scores with its 95% band, for the picture alone."""
    from ..statistics.tradeoff import empirical_tradeoff

    inside, outside = map(np.median, scores.sides)
    curve = empirical_tradeoff(
        *scores.sides,
        confidence=confidence,
        points=51,
        in_is_high=bool(inside >= outside),
    )
    return vars(curve)


def attack_facts(blocks: Sequence[Success]) -> dict[str, object]:
    """Return the mean success of an attack, of its baselines and of its controls over all blocks."""
    return {
        "success": float(np.mean([rate for block in blocks for rate in block.rates])),
        "baselines": _means([block.baselines for block in blocks]),
        "controls": _means([_values(block.controls) for block in blocks]),
        "mounted": blocks[0].mounted,
    }


def _values(controls: Mapping[str, Sequence[Control]]) -> dict[str, float]:
    return {name: float(np.mean([run.value for run in runs])) for name, runs in controls.items()}


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found if name in one])) for name in found[0]}


@dataclass(frozen=True)
class _Test:
    """A planned test: its share of alpha, the largest epsilon that it certifies, and its least p-value."""

    share: float
    most: float
    p_value: float


def reach_of(subject: Subject, asked: Question, level: float) -> Reach | None:
    """Return what the planned trials of a subject could show at the error rate `level`; None where nothing is tested.

    The p-value is 0 where the claim lies below what can be certified.
    """
    if not subject.stages:
        return None
    if asked.success_at_most is not None:
        chosen = subject.stages[0]
        pool = subject.pools[chosen.pool]
        count = allowed(chosen, pool, asked, 0) * pool.trials
        least = asked.least_success
        return Reach(
            trials=count,
            p_value=least_p_value(count, asked.success_at_most, least=least),
            most=largest_limit(count, level, least=least),
            unit="trainings",
        )
    blocks = Counter({stage.pool: count for stage, count, _ in planned(subject, asked)})
    trials = sum((subject.pools[name].trials or sum(subject.pools[name].sides(1))) * n for name, n in blocks.items())
    tests = [*_sequential(subject, asked, blocks, level), *_full(subject, asked, level)]
    most = max((test.most for test in tests), default=0.0)
    p_value = combined_p_value((test.p_value, test.share) for test in tests)
    coins = sum(subject.pools[name].coins * n for name, n in blocks.items())
    return Reach(
        trials=coins or trials,
        p_value=0.0 if asked.epsilon < most else p_value,
        most=most if math.isfinite(most) else None,
        unit="coins" if coins else "trials",
    )


def _sequential(subject: Subject, asked: Question, blocks: Counter[str], level: float) -> Iterator[_Test]:
    """Yield the e-processes of all pools, see `sequential_looks`."""
    for name, count in blocks.items():
        pool = subject.pools[name]
        stages = [stage for stage in subject.stages if stage.pool == name]
        share = sum(stage.sequential for stage in stages)
        if not share:
            continue
        if pool.coins:
            best = best_coin_test(count, pool.coins, delta=asked.delta)
            yield _Test(share, best.ceiling(level * share), best.p_value(asked.epsilon))
            continue
        pairs = min(pool.sides(count))
        if pool.gaussian and pairs > ESTIMATED:
            # A likelihood ratio has no largest result.
            yield _Test(0.5 * share, math.inf, 0.0)
        general = 0.5 * share if pool.gaussian else share
        planned_pairs = min(pool.sides(sum(stage.blocks for stage in stages)))
        yield _Test(general, *most_refutable(pairs, planned_pairs, asked.epsilon, asked.delta, level * general))


def _full(subject: Subject, asked: Question, level: float) -> Iterator[_Test]:
    """Yield the tests at the ends of stages, see `full_looks`."""
    for stage, count, share in planned(subject, asked):
        pool = subject.pools[stage.pool]
        names = (*GENERAL_TESTS, *(subject.gaussian_tests if pool.gaussian else ()))
        for name in names if share and count and not pool.coins else ():
            test = unseen(*pool.sides(count), name=name, delta=asked.delta)
            each = share / len(names)
            most = test.ceiling(level * each)
            yield _Test(each, most, 0.0 if asked.epsilon < most else test.least_p_value(asked.epsilon))
