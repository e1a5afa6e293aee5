"""Gathers the evidence about one subject: theory first, then stage by stage until a test has decided.

`Gathering.steps` yields what to compute and is sent the results; who computes them, here or in worker processes, is no
concern of it. A claim spends one alpha however many looks it takes, see `dpzv_audit.evidence.subject`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from dpzv_audit.evidence.blocks import (
    Block,
    Sides,
    all_sides,
    attack_facts,
    gaussian_sides,
    permuted_blocks,
    score_facts,
    scores_digest,
    tradeoff_of,
    warnings_of,
)
from dpzv_audit.evidence.model import Evidence, Look, Theory
from dpzv_audit.evidence.subject import CUT_SHARE, Stage, Subject, split_of
from dpzv_audit.evidence.verdict import combined_p_value
from dpzv_audit.statistics import GENERAL_TESTS
from dpzv_audit.statistics.assumptions import GAUSSIAN_ASSUMPTION, gaussian_assumption
from dpzv_audit.statistics.fixed import TestName, fixed_test
from dpzv_audit.statistics.sequential import bet_on, likelihood_of
from dpzv_audit.statistics.wealth import success_p_value

THEORY = "theory"
Task = tuple[str, int]
"""(`THEORY`, 0) or (pool, number of the block)."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is claimed, and how much of an error its test may spend.

    A claim is that the subject is (`epsilon`, `delta`), or, with `success_at_most`, that the mean success of an attack
    is at most so large; no success lies below `least_success`. Tests are designed for the error `alpha`; from a p-value
    of `stop` on there is no further look. `seed` draws pilots and orders. `max_trials` bounds trainings or runs.
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
    """Results of a step's tasks, in order; fewer than asked where time was up, which `cut` then says."""

    results: tuple[Block | Theory, ...]
    cut: str = ""


def gather(subject: Subject, question: Question) -> Evidence:
    """Return the evidence about `subject`, everything computed here and now."""
    gathering = Gathering(subject, question)
    steps, done = gathering.steps(), None
    try:
        while True:
            step = next(steps) if done is None else steps.send(done)
            done = Done(tuple(result_of(subject, task) for task in step.tasks))
    except StopIteration:
        return gathering.evidence()


def result_of(subject: Subject, task: Task) -> Block | Theory:
    """Do one task."""
    pool, number = task
    return subject.theory() if pool == THEORY else subject.pools[pool].draw(number)


@dataclass
class Gathering:
    """The evidence about one subject as it grows, look by look."""

    subject: Subject
    question: Question
    theory: Theory = field(default_factory=Theory)
    looks: tuple[Look, ...] = ()
    rates: tuple[float, ...] = ()
    pools: dict[str, list[Block]] = field(default_factory=dict)
    """Blocks so far by pool."""
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
        return Evidence(
            p_value=self.p_value,
            theory=self.theory,
            looks=self.looks,
            rates=self.rates,
            attack=attack_facts(last) if self.rates else {},
            tradeoff=tradeoff_of(last) if self.looks else None,
            facts={**self.subject.facts, **score_facts(last), "seed": self.question.seed},
            trials=self.trials,
            missing=self.missing,
            unaudited=self.subject.unaudited,
            warnings=warnings_of(last) if self.looks else (),
            split=split_of(self.subject.stages),
            scores=scores_digest(self.pools),
        )

    def steps(self) -> Generator[Step, Done, None]:
        """Yield what to do: account, then stage by stage until the question is decided or the stages end."""
        stages, stop = self.subject.stages, self.question.stop
        done = yield Step(0, ((THEORY, 0),), "accounting")
        if done.cut:
            self.missing = f"{done.cut} ended before anything was proved"
            return
        theory = done.results[0]
        assert isinstance(theory, Theory)
        self.theory = theory
        self.missing = "interrupted before any test" if stages else ""
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

    def _stage(self, stage: Stage, order: int) -> Generator[Step, Done, str]:
        """Draw the blocks of one stage and take its looks; return what cut it off, "" for nothing."""
        asked, blocks = self.question, self.pools.setdefault(stage.pool, [])
        pool = self.subject.pools[stage.pool]
        cost = pool.trials
        wanted, cut = stage.blocks, ""
        if asked.max_trials is not None and cost and self.trials + cost * wanted > asked.max_trials:
            wanted = max(0, (asked.max_trials - self.trials) // cost)
            cut = f"the limit of {asked.max_trials} trials ended the {stage.words}"
        end = len(blocks) + wanted
        while len(blocks) < end:
            # Where the test may stop the audit it is looked at after every block.
            size = 1 if stage.stops else end - len(blocks)
            tasks = tuple((stage.pool, number) for number in range(len(blocks), len(blocks) + size))
            done = yield Step(order, tasks, f"{stage.words}, p = {self.p_value:.1g}")
            drawn = [block for block in done.results if not isinstance(block, Theory)]
            blocks += drawn
            self.trials += cost * len(drawn)
            if done.cut:
                cut = f"{done.cut} ended in the {stage.words}"
                break
            if stage.stops:
                self._bet(stage, bound=False)
                if self.p_value <= asked.stop:
                    self._bet(stage)
                    return ""
        if blocks:
            self._bet(stage)
            share = CUT_SHARE if cut else stage.full
            if share and asked.success_at_most is None:
                name = f"{stage.words}, cut off" if cut else stage.words
                gaussian = self.subject.gaussian_tests if pool.gaussian else ()
                self.looks += tuple(full_looks(blocks, asked, stage=name, share=share, on_gaussian=gaussian))
        return cut

    def _bet(self, stage: Stage, *, bound: bool = True) -> None:
        """Bring the e-process of the stage's pool up to date; it is one look, however often it is taken.

        Without `bound` for its p-value alone, as long as it may go on.
        """
        blocks, pool = self.pools[stage.pool], self.subject.pools[stage.pool]
        if self.question.success_at_most is not None:
            self.rates = tuple(float(block["rate"]) for block in blocks)
            return
        planned = [other for other in self.subject.stages if other.pool == stage.pool]
        share = sum(other.sequential for other in planned)
        if not share or not blocks:
            return
        name = f"sequential, {stage.pool}"
        looks = sequential_looks(
            blocks,
            self.question,
            stage=name,
            share=share,
            gaussian=pool.gaussian,
            most_pairs=sum(other.blocks for other in planned) * pool.pairs,
            bound=bound,
        )
        self.looks = (*(look for look in self.looks if look.stage != name), *looks)


def sequential_looks(
    blocks: Sequence[Block],
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
    blocks = permuted_blocks(blocks, asked.seed)
    general = 0.5 * share if gaussian else share
    looks = []
    sides = all_sides(blocks)
    bets = bet_on(
        sides.inside, sides.outside, epsilon=asked.epsilon, delta=asked.delta, most_pairs=most_pairs, bound=bound
    )
    if bets is not None:
        looks.append(Look(stage=stage, weight=general, test=bets, p_value=bets.least_p_value))
    if gaussian:
        sides, delta, assumes = _for_gaussian(blocks, asked.delta)
        if delta < 1.0:
            ratio = likelihood_of(sides.inside, sides.outside, epsilon=asked.epsilon, delta=delta, bound=bound)
            weight = 0.0 if assumes else share - general
            looks.append(Look(stage=stage, weight=weight, test=ratio, p_value=ratio.least_p_value, assumes=assumes))
    return looks


def full_looks(
    blocks: Sequence[Block], asked: Question, *, stage: str, share: float, on_gaussian: Sequence[TestName] = ()
) -> list[Look]:
    """Return the looks of the full test at all `blocks` of a pool, which spend `share` of alpha together.

    They are the tests of `audit` on the same scores, score files or those of a game, and share the error as there;
    those of `on_gaussian` take the scores that are Gaussian by construction.
    """
    each = share / (len(GENERAL_TESTS) + len(on_gaussian))

    def look(name: TestName, sides: Sides, delta: float, assumes: str = "") -> Look:
        error = asked.alpha * each
        test = fixed_test(sides.inside, sides.outside, name=name, delta=delta, design_error=error, seed=asked.seed)
        weight = 0.0 if assumes else each
        return Look(stage=stage, weight=weight, test=test, p_value=test.p_value(asked.epsilon), assumes=assumes)

    looks = [look(name, all_sides(blocks), asked.delta) for name in GENERAL_TESTS]
    if on_gaussian:
        sides, delta, assumes = _for_gaussian(blocks, asked.delta)
        if delta < 1.0:
            looks += [look(name, sides, delta, assumes) for name in on_gaussian]
    return looks


def _for_gaussian(blocks: Sequence[Block], delta: float) -> tuple[Sides, float, str]:
    """Return the scores for a test of mu, their delta, and what it rests on; all scores where none are Gaussian."""
    sides = gaussian_sides(blocks)
    if sides is None:
        return all_sides(blocks), delta, GAUSSIAN_ASSUMPTION
    assumes = gaussian_assumption(sides.inside, sides.outside, vouched=sides.vouched)
    return sides, delta / sides.probability, assumes
