"""Bounds from one game at one confidence: trials collected under a plan, and estimators that share one error."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from mechanisms.core.checkpoints import run_key

from ..base.errors import InputError
from ..base.executor import Workers
from ..base.findings import EmpiricalBound, NeighbourRelation
from ..base.halving import shortage
from ..base.rounding import down
from ..games.arrays import Arrays
from ..games.engine import ChunkStore, Collected, Effort, Trials, collect, npz_bytes
from ..games.game import DEFAULT_NORM, Canary, Neighbours, Others
from ..games.scores import GameScores, side_pair
from ..results import BoundByRuns, Plain, Wealth
from ..statistics.estimators import audit_scores
from ..statistics.fixed import fixed_test
from ..statistics.panel import GAUSSIAN_TESTS, GENERAL_TESTS, Panel
from ..statistics.sequential import paired, wealth_against

_WEALTH_POINTS = 200
NEIGHBOURS: NeighbourRelation = "replace-label"


def affordable_runs(rounds: int) -> int:
    """Return how many pairs of trainings an audit makes by default: 2,000 of up to 176 rounds, fewer of longer ones."""
    many = _affordable(2000, rounds, full=176, least=128)
    return many if many == 2000 else many - many % 128  # whole chunks of the usual size


def affordable_trials(usual: int, rounds: int) -> int:
    """Return how many trainings are attacked by default: `usual` of up to 550 rounds, fewer of longer ones."""
    return _affordable(usual, rounds, full=550, least=16)


def _affordable(usual: int, rounds: int, *, full: int, least: int) -> int:
    """Return how many trainings take as long as `usual` ones of `full` rounds; at least `least`, at most `usual`."""
    return min(usual, max(least, usual * full // rounds))


class ProgressStage(Protocol):
    """A stage of long work in progress."""

    def __call__(self, done: int | None = None, /, note: str | None = None) -> None:
        """Say how many steps are done, or how it goes in a few words; None changes nothing."""


Reporter = Callable[[str, int], ProgressStage]
"""Where long work reports: begins the stage of a name and of so many steps."""


def silent(name: str, total: int) -> ProgressStage:
    """Begin a stage of which nothing is said."""
    return lambda done=None, /, note=None: None


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """The plan of an audit: `runs` trainings in each world, `chunk` of both at a time; no runs, no audit.

    `neighbours`, `canary`, `others` and `norm` are those of `dpzv_audit.games.game.Game`. Chunks run on
    `workers`, are kept under `folder` (None: nowhere) and taken up with `resume`; no chunk begins past `max_minutes`.
    `reporter` hears how far it is.
    """

    runs: int = 2000
    chunk: int = 256
    confidence: float = 0.95
    others: Others = "zero"
    neighbours: Neighbours = NEIGHBOURS
    canary: Canary = "worst-case"
    norm: float = DEFAULT_NORM
    workers: Workers = field(default_factory=Workers)
    max_minutes: float | None = None
    folder: Path | None = None
    resume: bool = False
    reporter: Reporter = silent


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """The scores of one game, bounds from them at `delta`, and how and where its trials were collected."""

    scores: GameScores
    bounds: tuple[EmpiricalBound, ...]
    plan: AuditPlan
    delta: float
    seed: int
    done: Collected | None = None
    store: ChunkStore | None = None

    @property
    def compute(self) -> dict[str, Plain]:
        """Facts of the work for a result: who did it, and how many trainings memory sufficed for."""
        fitted = None if self.done is None else self.done.fitted
        return {"workers": self.plan.workers.words(), **shortage(fitted and 2 * fitted)}

    @property
    def facts(self) -> dict[str, Plain]:
        """Facts of the trials for a result, which stand beside the game."""
        scores = self.scores
        facts = dict[str, Plain]()
        if scores.participations is not None:
            facts["participations"] = "{} to {}".format(*scores.participations)
        if scores.saturated is not None:
            facts["saturated"] = "yes, in every run" if scores.saturated else "no: the server undid it in some run"
        facts |= scores.fitted
        if self.done is not None and self.done.stopped:
            facts |= {"stopped": self.done.stopped, "runs_asked": self.plan.runs}
        return facts

    @property
    def by_runs(self) -> list[BoundByRuns]:
        """Bounds from ever more of the runs, by estimator: each point is an audit of its own, the best is no bound."""
        total = min(map(len, self.scores.sides))
        return [
            BoundByRuns(runs=n, estimator=bound.name, epsilon_lower=bound.epsilon_lower, assumes=bound.assumes)
            for n in sorted({int(n) for n in np.geomspace(min(50, total), total, 8)})
            for bound in lower_bounds(
                self.scores, delta=self.delta, confidence=self.plan.confidence, seed=self.seed, share=n / total
            )
        ]

    @property
    def files(self) -> dict[str, bytes]:
        """The scores as the run folder keeps them: `in.npz` and `out.npz`, which `audit scores` reads."""
        sides = zip(("in", "out"), self.scores.sides, strict=True)
        return {f"{side}.npz": npz_bytes({"scores": scores}) for side, scores in sides}

    def forget(self) -> None:
        """Remove the stored chunks, unless a time limit left something to go on with."""
        if self.store is not None and self.done is not None and self.done.stopped is None:
            self.store.remove()


def bounded_by(trials: Trials, plan: AuditPlan, *, delta: float, pilots: int = 0) -> Bounded:
    """Collect `plan.runs` pairs of `trials` and return what their scores prove; progress shows the bound so far.

    With `pilots` so many pairs more are run first, on which `trials` choose a score.
    """
    if plan.max_minutes is not None and not plan.max_minutes > 0.0:
        raise InputError("use more than 0", "max_minutes", plan.max_minutes)
    # A chunk counts trainings, of which a pair has two.
    pairs = max(1, plan.chunk // 2)
    store = None
    if plan.folder is not None:
        key = run_key({**trials.facts(), "runs": plan.runs, "chunk": pairs})
        store = ChunkStore(plan.folder / key, resume=plan.resume)
    stage = plan.reporter("audit", 2 * (pilots + plan.runs))
    effort = Effort(
        chunk=pairs,
        workers=plan.workers,
        max_seconds=None if plan.max_minutes is None else 60.0 * plan.max_minutes,
        store=store,
        progress=lambda done, arrays: stage(2 * done, note=_so_far(arrays, delta, plan.confidence, pilots)),
    )
    done = collect(trials, pilots + plan.runs, effort)
    scores = trials.scored(done.arrays)
    bounds = lower_bounds(scores, delta=delta, confidence=plan.confidence, seed=trials.seed)
    return Bounded(scores=scores, bounds=bounds, plan=plan, delta=delta, seed=trials.seed, done=done, store=store)


def _so_far(arrays: Arrays, delta: float, confidence: float, pilots: int) -> str:
    if "in_scores" not in arrays or len(arrays["in_scores"]) <= pilots:
        return ""
    error = 1.0 - confidence
    inside, outside = (side[pilots:] for side in side_pair(arrays, "scores"))
    test = fixed_test(inside, outside, name="joint", delta=delta, design_error=error)
    return f"epsilon >= {down(test.epsilon_lower(error))} so far"


def lower_bounds(
    scores: GameScores, *, delta: float, confidence: float, seed: int = 0, share: float = 1.0
) -> tuple[EmpiricalBound, ...]:
    """Return the bounds of all estimators that apply; those that may refute the claim share its error (Bonferroni).

    `gaussian` and `curve` take the runs whose scores are Gaussian by construction (see `games.scores`), where there
    are any and delta over their probability is below 1; else `gaussian` takes all runs and says what it assumes, but
    not of scores that are discrete. Of the runs each takes the first `share`.
    """
    gaussian = scores.gaussian
    whole = scores.first(share)
    on_all = partial(audit_scores, *whole.sides, delta=delta, seed=seed, pilot=whole.pilot)
    if gaussian is None or delta / gaussian[1].probability >= 1.0:
        general = on_all(confidence=Panel(GENERAL_TESTS).confidence(confidence), estimators=GENERAL_TESTS)
        return general if scores.discrete else general + on_all(confidence=confidence, estimators=GAUSSIAN_TESTS[:1])
    runs, condition = gaussian
    each = Panel(GENERAL_TESTS + GAUSSIAN_TESTS).confidence(confidence)
    bounds = audit_scores(
        *runs.first(share).sides,
        delta=delta / condition.probability,
        confidence=each,
        estimators=GAUSSIAN_TESTS,
        exactly_gaussian=True,
        built=not condition.vouched,
        seed=seed,
    )
    if condition.count is not None:
        on = (
            f"; on the runs with {condition.count} participation{'s' if condition.count > 1 else ''}, "
            f"which have probability {condition.probability:.3g}, at delta {delta:g} / {condition.probability:.3g}"
        )
        bounds = tuple(replace(bound, delta=delta, threshold_rule=bound.threshold_rule + on) for bound in bounds)
    return on_all(confidence=each, estimators=GENERAL_TESTS) + bounds


def wealth_by_pairs(scores: GameScores, *, epsilon: float | None, delta: float, confidence: float) -> Wealth | None:
    """Return the wealth of the betting test against the claim, pair by pair in the order of the runs; None without one.

    Another order would have another path and refute at another pair: the order is that of the runs, whatever they show.
    `pairs` and `log10_wealth` hold at most `_WEALTH_POINTS` points, the last pair and the highest among them;
    `refuted_at` is the first pair at which the wealth reached 1 / (1 - confidence), or None. Claims above 300 are past
    what the test can write down.
    """
    pairs = min(map(len, scores.sides))
    if epsilon is None or pairs == 0 or not epsilon <= 300.0:
        return None
    sides = paired(*scores.sides)
    _, path = wealth_against(np.array([epsilon]), *sides, delta=delta)
    path = path[:, 0] / math.log(10.0)
    goal = -math.log10(1.0 - confidence)
    reached = np.flatnonzero(path >= goal)
    kept = np.unique(np.r_[np.linspace(0, pairs - 1, _WEALTH_POINTS).astype(np.intp), int(path.argmax())])
    return Wealth(
        epsilon=epsilon,
        pairs=(kept + 1).tolist(),
        log10_wealth=path[kept].tolist(),
        goal=goal,
        refuted_at=int(reached[0]) + 1 if reached.size else None,
    )
