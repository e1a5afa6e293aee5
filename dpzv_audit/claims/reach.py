"""Says before anything runs what each claim of a file could be refuted at: formulas alone, no data and no training."""

from functools import lru_cache

from ..base.rounding import down, percent_down
from ..evidence.gathering import Question, Subject, reach_of
from ..evidence.trainings import MOST_TRAININGS
from ..evidence.verdict import Reach
from ..statistics.success import largest_limit, least_p_value, trainings_needed
from .access import Access
from .file import Claim
from .forms import form_of

MOST_PLANS = 3
"""Different plans of runs that a check works out: each takes a second."""
MOST_PLANNED = 100
"""Claims that a check plans at most: each is configured for it."""


def refutable_at(claim: Claim, access: Access, level: float, max_trials: int | None, plans: "Plans") -> str:
    """Return in words what a claim could be refuted at, at the error `level`, with at most `max_trials` trials.

    Says when it is known where that takes scores, a rehearsal or a plan.
    """
    if claim.kind == "attack":
        return success_in_words(
            claim.success_at_most,
            level,
            least=least_success(claim.attack, claim.adversary),
            most=MOST_TRAININGS if max_trials is None else max_trials,
        )
    form = form_of(claim)
    planned = form.plan(access) if plans.more() else None
    if planned is not None:
        reach = plans.of(planned, claim.delta, level, max_trials)
        if reach is not None:
            return reach_in_words(reach, claim.claimed)
    return f"known when {form.known_when}"


@lru_cache(maxsize=1024)
def success_in_words(limit: float, level: float, *, least: float, most: int) -> str:
    """Return what trainings can show of a limit on success: the planned number, else how many it takes."""
    if limit <= least:
        return "nothing: no success lies below the limit"
    needed = trainings_needed(limit, level, least=least)
    if needed <= most:
        return _trainings_refute(needed, largest_limit(needed, level, least=least), limit)
    few = _trainings_refute(most, largest_limit(most, level, least=least), limit)
    if least_p_value(most, limit, least=least) <= level:
        return few
    return f"{few}; the claimed {100.0 * limit:g}% takes {needed:,} trainings"


def _trainings_refute(count: int, most: float, limit: float) -> str:
    return f"{count:,} trainings can refute a limit below {percent_down(most, beside=limit)}"


def reach_in_words(reach: Reach, claimed: float) -> str:
    """Return what planned trials can show at most."""
    trials = f"{reach.trials:,} {reach.unit}"
    if reach.most is None:
        return f"{trials} can refute any epsilon, given Gaussian noise"
    if reach.unit == "trainings":
        return _trainings_refute(reach.trials, reach.most, claimed)
    return f"{trials} can refute an epsilon below {down(reach.most, beside=claimed)}"


def least_success(attack: str, adversary: str) -> float:
    """Return the least success that an attack can have."""
    from ..evidence.choosing import named

    return min(spec.goal.least_success for spec, _ in named(attack, adversary))


class Plans:
    """The reach of plans of runs, of at most `MOST_PLANS` different ones."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Reach | None] = {}
        self._asked = 0

    def more(self) -> bool:
        """Count one more claim, and return whether it is still to be planned."""
        self._asked += 1
        return self._asked <= MOST_PLANNED

    def of(self, subject: Subject, delta: float, level: float, max_trials: int | None) -> Reach | None:
        """Return what the runs of a subject can show; None where too many plans were worked out before."""
        key = (delta, subject.stages, *(pool.gaussian for pool in subject.pools.values()))
        if key not in self._known:
            if len(self._known) >= MOST_PLANS:
                return None
            question = Question(epsilon=1.0, delta=delta, alpha=level, stop=level, max_trials=max_trials)
            self._known[key] = reach_of(subject, question, level)
        return self._known[key]
