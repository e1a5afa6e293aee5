"""Tells before anything is drawn what the planned trials could show of a claim at most.

That is what they show where they err least: each test then has its least p-value and its largest bound.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..statistics.estimators import GENERAL_TESTS
from ..statistics.fixed import unseen
from ..statistics.sequential import ESTIMATED, largest_limit, most_refutable, success_p_value
from .gathering import Question, Subject, planned
from .verdict import combined_p_value


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What `trials` trials could show at most: the least p-value, and the largest epsilon, or success, certified."""

    trials: int
    p_value: float
    most: float


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
    blocks = Counter({stage.pool: count for stage, count, _ in planned(subject, asked)})
    trials = sum((subject.pools[name].trials or sum(subject.pools[name].sides(1))) * n for name, n in blocks.items())
    if asked.success_at_most is not None:
        (count,) = blocks.values()
        p_value = success_p_value([1.0] * count, asked.success_at_most, least=asked.least_success)
        return Reach(trials=trials, p_value=p_value, most=largest_limit(count, level, least=asked.least_success))
    tests = [*_sequential(subject, asked, blocks, level), *_full(subject, asked, level)]
    most = max((test.most for test in tests), default=0.0)
    p_value = combined_p_value((test.p_value, test.share) for test in tests)
    return Reach(trials=trials, p_value=0.0 if asked.epsilon < most else p_value, most=most)


def _sequential(subject: Subject, asked: Question, blocks: Counter[str], level: float) -> Iterator[_Test]:
    """Yield the e-processes of all pools, see `gathering.sequential_looks`."""
    for name, count in blocks.items():
        pool = subject.pools[name]
        planned = [stage for stage in subject.stages if stage.pool == name]
        share = sum(stage.sequential for stage in planned)
        pairs = min(pool.sides(count))
        if not share:
            continue
        if pool.gaussian and pairs > ESTIMATED:
            # A likelihood ratio has no largest result.
            yield _Test(0.5 * share, math.inf, 0.0)
        general = 0.5 * share if pool.gaussian else share
        planned_pairs = min(pool.sides(sum(stage.blocks for stage in planned)))
        yield _Test(general, *most_refutable(pairs, planned_pairs, asked.epsilon, asked.delta, level * general))


def _full(subject: Subject, asked: Question, level: float) -> Iterator[_Test]:
    """Yield the tests at the ends of stages, see `gathering.full_looks`."""
    for stage, count, share in planned(subject, asked):
        pool = subject.pools[stage.pool]
        names = (*GENERAL_TESTS, *(subject.gaussian_tests if pool.gaussian else ()))
        for name in names if share and count else ():
            test = unseen(*pool.sides(count), name=name, delta=asked.delta)
            each = share / len(names)
            most = test.ceiling(level * each)
            if asked.epsilon >= most:
                most = test.reach(level * each)
            yield _Test(each, most, 0.0 if asked.epsilon < most else test.least_p_value(asked.epsilon))
