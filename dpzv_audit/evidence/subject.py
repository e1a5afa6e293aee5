"""How a claim spends its alpha: stages of pairs of runs, and the share of each test, summing to at most 1.

The sequential test comes first: it may be looked at after every block and stops the audit once it has decided. Where
it has not, the full audit takes all pairs of the same kind, the sequential test's among them. A p-value of the claim is
the least p / share over its tests, however they depend on each other, so a pair may serve both; leaving out the later
test because of what the earlier one showed only raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpzv_audit.evidence.blocks import Block
from dpzv_audit.evidence.model import Theory
from dpzv_audit.statistics import GAUSSIAN_TESTS
from dpzv_audit.statistics.fixed import TestName

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
        return self.name if self.name == self.pool else f"{self.name} test on {self.pool}"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Trials of one kind, drawn block by block from streams of their own; `draw(number)` may take seconds.

    A block has `pairs` pairs, and takes `trials` trainings or runs. Where its scores may be `gaussian` by construction
    half of each share goes to a test of mu. `stored` says whether blocks cost enough to be kept for `resume`.
    """

    draw: Callable[[int], Block]
    pairs: int = 0
    trials: int = 0
    gaussian: bool = False
    stored: bool = False


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is put to the test: its theory, pools of trials by name, and the stages in which these are drawn.

    `stages` is empty where no test can be made, and `unaudited` says why.
    """

    theory: Callable[[], Theory] = Theory
    stages: tuple[Stage, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    gaussian_tests: tuple[TestName, ...] = GAUSSIAN_TESTS
    """Full tests of mu that the scores of Gaussian pools are put to."""
    quick: bool = False
    """Whether all of it takes so little that it is one piece of work, and ends though time is up."""
    unaudited: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def two_stages(pool: str, *, first: int, rest: int, share: float = 1.0 - CUT_SHARE) -> tuple[Stage, ...]:
    """Return the sequential test on `first` blocks and the full audit on `rest` more, within `share` of alpha."""
    return (
        Stage(name="sequential", pool=pool, blocks=first, sequential=share / 3.0, stops=True),
        Stage(name="full", pool=pool, blocks=rest, full=2.0 * share / 3.0),
    )


def all_at_once(pool: str, *, blocks: int, share: float = 1.0) -> tuple[Stage, ...]:
    """Return both tests on one lot of pairs that cost next to nothing: drawing fewer would spare nothing."""
    return (Stage(name=pool, pool=pool, blocks=blocks, sequential=0.2 * share, full=0.8 * share),)


def split_of(stages: Sequence[Stage]) -> dict[str, float]:
    """Return the share of alpha of every planned test, by name; with what is kept back for a stage cut off."""
    shares: dict[str, float] = {}
    for stage in stages:
        for test, share in (("sequential", stage.sequential), ("full", stage.full)):
            if share:
                shares[f"{test} test on {stage.pool}"] = share
    if len(stages) > 1 or any(stage.full and stage.blocks > 1 for stage in stages):
        shares["a stage cut off"] = CUT_SHARE
    return shares
