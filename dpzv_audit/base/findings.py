"""Findings as frozen dataclasses that serialise to JSON: intervals, bounds, and the words for verdicts."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import unknown_name

AdversaryName = Literal[
    "client",
    "colluding-clients",
    "all-but-one",
    "malicious-client",
    "eavesdropper",
    "release",
    "server",
    "malicious-server",
]
NeighbourRelation = Literal["replace-label", "replace-record", "zero-out", "add-remove"]
Preset = Literal["learned", "paper"]
"""Which settings of a training are meant where neither the user nor the method says: see `mechanisms.presets`."""
ClaimKind = Literal["epsilon-delta", "trade-off"]
VerdictWord = Literal["refuted", "not-tested", "overclaimed", "inconclusive", "held", "supported"]
"""The words for a verdict, the gravest first."""
VoidReason = Literal["failed-control", "unread-messages", "release-contradicted", "stale-ids", "same-scores"]
VerdictReason = Literal[
    "measured-above-claim",
    "refuted-before",
    VoidReason,
    "proven",
    "bound-above-claim",
    "no-sound-bound",
    "no-test",
    "never-refutable",
    "limit-below-claim",
    "not-refuted",
]
"""Reasons of a verdict; its numbers stand beside it."""

ADVERSARIES: dict[str, str] = {
    "client": "one honest-but-curious client: what it is sent (scalars, gradients), its features and batches",
    "colluding-clients": "all clients together: every scalar, direction and batch",
    "all-but-one": "everything but one record's label: all features, models, directions, batches and other labels",
    "malicious-client": "one client that also chooses what it sends",
    "eavesdropper": "the scalars on the wire; batch ids only when they travel in the clear",
    "release": "the final model, or the published scalars",
    "server": "the embeddings; it owns the labels",
    "malicious-server": "a server that also chooses what it answers",
}
SERVERS: tuple[AdversaryName, ...] = ("server", "malicious-server")
"""Adversaries that are the server: what a bound protects from one it protects from the other, whatever it answers."""


def adversary_named(name: str) -> AdversaryName:
    """Return the adversary of a name; `InputError` for a name that is none's."""
    known: tuple[AdversaryName, ...] = get_args(AdversaryName)
    if name not in known:
        raise unknown_name("adversary", name, known)
    return known[known.index(name)]


LEAST_TRAININGS = 8
"""Fewer trainings get no interval over trainings: of two, any interval that covers says next to nothing."""
FALSE_ALARM = 1e-3
"""Probability, at most, that any negative control of a correct build is found off chance: of all in one matrix, of all
attacks on one training, in one self-check, or of all claims of a file."""
STRONGEST = "strongest"
"""The name by which users ask for the attack that does most harm."""


@dataclass(frozen=True, kw_only=True)
class OverTrainings:
    """The spread of `count` trainings: the `least` and the `most` of them.

    [`low`, `high`] is an interval for the mean over further trainings, None where there are too few for one. Of a
    baseline, `behind` is in how many of them it lay below the attack in the same training, None where nobody counted.
    [`shared_low`, `shared_high`] is an interval by the records that these trainings share, each with what it gave in
    all of them as one draw; None where trainings have records of their own.
    """

    count: int
    least: float
    most: float
    low: float | None = None
    high: float | None = None
    behind: int | None = None
    shared_low: float | None = None
    shared_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A proportion `value` of `n` records, or of another `unit`, with its interval [low, high] at `confidence`.

    Where several trainings were measured the interval is about these trainings, their records drawn one by one;
    `over_trainings` says how they differ, and what that tells of others.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95
    over_trainings: OverTrainings | None = None
    unit: str = "records"


def value_of(measured: float | Interval) -> float:
    """Return a number that was measured, with an interval or without."""
    return measured.value if isinstance(measured, Interval) else measured


@dataclass(frozen=True, kw_only=True)
class Control(Interval):
    """A run whose result is known: it must be at `expected` (negative), or `value` reach it (positive).

    A negative one is judged by its `p_value`, found as `tested_by` says: one below the error of the interval, 1 -
    `confidence`, is off chance. Where both are None there are too few trainings to tell. A positive one is judged by
    its value alone: its target lies so far below the success of a working attack that chance plays no part. One by
    permutation, where nothing can be trained again, always holds: its `p_value` is that of the attack's own success
    among those with labels in another order, of which `value` is the mean.
    """

    what: str
    kind: str
    expected: float
    p_value: float | None = None
    tested_by: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the control came out as it must, as far as it was tested."""
        if self.kind == "positive":
            return self.value >= self.expected
        return self.kind == "permutation" or self.p_value is None or self.p_value >= 1.0 - self.confidence


@dataclass(frozen=True, kw_only=True)
class PooledControl:
    """A control of an attack over all its `runs`: `value` is their mean, of a positive one the least.

    `missed` counts the runs of a positive one that did not reach `expected`. The `p_value` of a negative one is None
    where its runs are too few to test.
    """

    attack: str
    name: str
    kind: str
    what: str
    value: float
    expected: float
    runs: int
    missed: int = 0
    p_value: float | None = None
    tested_by: str = ""

    def holds(self, level: float) -> bool:
        """Return whether it came out as it must; a negative one fails with a p-value below `level`."""
        return not self.missed and (self.p_value is None or self.p_value >= level)


def damage(success: float, reference: float) -> float:
    """Return success on a scale from the `reference`, which needs no attack (0), to a perfect attack (1)."""
    return (success - reference) / (1.0 - reference) if reference < 1.0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Void:
    """A fact that voids evidence: no test of the claim, and no release that is only stated, counts beside it.

    `words` names the fact and its numbers as a sentence without a full stop. With `refutations` it voids a refutation
    by the same evidence too, as a negative control off chance does.
    """

    reason: VoidReason
    words: str
    refutations: bool = False


@dataclass(frozen=True, kw_only=True)
class EpsilonRange:
    """Numerical range of an upper bound on epsilon; verdicts use `upper`. `inf` is never stored: see `UpperBound`."""

    lower: float
    estimate: float
    upper: float


@dataclass(frozen=True, kw_only=True)
class UpperBound:
    """An accountant's answer for one release, adversary and neighbour relation.

    `epsilon` is None when there is no bound or it is undefined; `gap` then names why. A bound with
    `sound=False` carries in `gap` the name of the proof gap it rests on (see the accounting
    documentation) and in `epsilon` the number it would be without that gap. `mu` is the Gaussian-DP
    parameter where the bound is a Gaussian trade-off curve, else None.
    """

    accountant: str
    adversary: AdversaryName
    neighbours: NeighbourRelation
    delta: float
    epsilon: EpsilonRange | None
    sound: bool
    gap: str | None = None
    note: str = ""
    mu: float | None = None

    @property
    def upper(self) -> float:
        """The upper end of epsilon, infinite where there is none."""
        return math.inf if self.epsilon is None else self.epsilon.upper

    @property
    def gaps(self) -> list[str]:
        """The gaps in `gap`, by name."""
        return self.gap.split(",") if self.gap else []


STATED = "on what the system states"
"""What a bound rests on that is believed and not checked."""
CONTRADICTED = "the scores contradict it"
"""How an assumption of a bound ends that a test of the scores rejects."""


@dataclass(frozen=True, kw_only=True)
class EmpiricalBound:
    """A lower bound on epsilon from scores of a distinguishing game, with its costs and its ceiling.

    `claim_kind` is the kind of claim that it can refute: a claim about (epsilon, delta), or one about a trade-off
    curve. `assumes` names the assumption under which an epsilon of the second kind holds, or is "".
    `ceiling` is the largest epsilon this estimator could certify from as many scores (perfect separation).
    """

    name: str
    epsilon_lower: float
    delta: float
    confidence: float
    claim_kind: ClaimKind
    assumes: str
    mu_lower: float | None
    threshold_rule: str
    directions: int
    looks: int
    n_in: int
    n_out: int
    ceiling: float


def to_jsonable(value: Any) -> Any:
    """Return `value` with dataclasses and models of results as dicts and tuples as lists, ready for `json.dumps`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    if hasattr(value, "tolist"):  # an array
        return value.tolist()
    # Of `dpzv_audit.results`, which the statistics, that stand without pydantic, do not load.
    return to_jsonable(value.to_json()) if hasattr(value, "to_json") else value
