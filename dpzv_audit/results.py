"""Results as types: the model of each command's `result.json`, its JSON schema, and how a file is read back.

`to_json` of a model is the file, key by key in the order of its fields: a field that was never set is absent, one that
was set to None is null. A command sets all that belongs to its result; since a file of an older version may lack some
of it, fields that a reader can do without have defaults.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import models_json_schema

from .base.errors import InputError
from .base.findings import Control, EmpiricalBound, Interval, UpperBound, VerdictReason, VerdictWord

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

LARGEST = 1e100
"""A number of a file beyond it belongs to no result: no axis of a figure reaches so far."""


def _between(low: float, high: float) -> AfterValidator:
    """Refuse to read a number that no figure could show."""

    def check(value: float, info: ValidationInfo) -> float:
        if info.context and not low <= value <= high:
            raise ValueError(f"a number is not in [{low:g}, {high:g}]")
        return value

    return AfterValidator(check)


Whole = Annotated[StrictInt, _between(-LARGEST, LARGEST)]
Number = Annotated[StrictInt | StrictFloat, _between(-LARGEST, LARGEST)]
Share = Annotated[StrictInt | StrictFloat, _between(0.0, 1.0)]
Success = Annotated[StrictInt | StrictFloat, _between(-1.0, 1.0)]
"""A share of guesses that are right, or a cosine."""
Plain = Number | StrictBool | str | None
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
# Context of a validation that reads a file: what is made here is right by construction and not checked again.
_READING = {"reading": True}


def _as_it_is(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    """Take an object of JSON for a dataclass only where no value in it would become another, such as text a number."""
    made = handler(value)
    if isinstance(value, dict) and {k: v for k, v in _values(made).items() if k in value} != value:
        raise ValueError("a value has another type")
    return made


def _values(made: object) -> dict[str, object]:
    """Return `asdict` of a dataclass whose lists hold no other ones: it need not copy what is compared only."""
    return {name: _values(part) if is_dataclass(part) else part for name, part in vars(made).items()}


Read = WrapValidator(_as_it_is)
Measurement = Annotated[Interval, Read]
Upper = Annotated[UpperBound, Read]
Lower = Annotated[EmpiricalBound, Read]


def _curve(values: list[float], info: ValidationInfo) -> list[float]:
    """Refuse to read a curve that leaves [0, 1], or has no value for each of two or more `alpha`."""
    axis = info.data.get("alpha", values)
    if info.context and not (2 <= len(values) == len(axis) and all(0.0 <= value <= 1.0 for value in values)):
        raise ValueError("a curve has a value in [0, 1] for each of two or more alpha")
    return values


Curve = Annotated[list[Number], AfterValidator(_curve)]


class Part(BaseModel):
    """A part of a result: frozen, without keys that are not its own."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", populate_by_name=True)

    def to_json(self) -> dict[str, object]:
        """Return the part as `result.json` holds it."""
        return self.model_dump(by_alias=True, exclude_unset=True)


@dataclass(frozen=True, kw_only=True)
class CertifiedBound(EmpiricalBound):
    """The bound that an attack's own scores certify, the relation that one coin decides, and whose coins they are."""

    neighbours: str
    game: str


@dataclass(frozen=True, kw_only=True)
class Accuracy(Interval):
    """A test accuracy over `trainings`, which share the `n` test records."""

    trainings: int


@dataclass(frozen=True, kw_only=True)
class ControlAccuracy(Accuracy):
    """The test accuracy of a control, the server rate of its training, and what it is."""

    server_rate: float
    what: str


@dataclass(frozen=True, kw_only=True)
class JudgedBound(EmpiricalBound):
    """A bound from scores and what it says of the claim; None without a claim."""

    verdict: str | None = None


class Tradeoff(Part):
    """False negative rates over false positive rates `alpha`: claimed, recomputed, and measured with a band."""

    alpha: Curve = []
    claimed: Curve | None = None
    recomputed: Curve | None = None
    empirical: Curve | None = None
    empirical_low: Curve | None = None
    empirical_high: Curve | None = None
    confidence: Number | None = None
    note: str | None = None

    @property
    def curves(self) -> dict[str, list[Number]]:
        """The curves that there are, by what a report calls them."""
        curves = {"claimed": self.claimed, "recomputed": self.recomputed, "measured": self.empirical}
        return {name: curve for name, curve in curves.items() if curve}


class Measured(Part):
    """What was measured of a claim: the largest lower bound on epsilon, or the mean `success` of an attack in [0, 1].

    `confidence` is that of the bound, and `assumes` what it takes as given. `limit` is the upper limit of a success.
    """

    quantity: Literal["epsilon", "success"]
    value: Number
    confidence: Share | None = None
    assumes: str = ""
    limit: Number | None = None


class Proven(Part):
    """The tightest sound upper bound on epsilon, and what it rests on: "" where this program runs what it is about."""

    value: Number
    rests_on: str = ""


class Verdict(Part):
    """The verdict on one claim, which every page, table, file and message shows; made by `evidence.verdict`.

    Attributes:
        claim: The claim in words, as "epsilon at most 1 (delta 1e-05)".
        claimed: The claimed number, an epsilon or a success.
        adversary: The adversary; None where the claim names none.
        neighbours: The neighbour relation of an epsilon; None for a claim about an attack.
        word: The verdict.
        reason: Why, by name.
        why: The same in sentences, with the numbers.
        given: What a refutation takes as given, as "given Gaussian noise"; "" for nothing.
        measured: What was measured; None where nothing was.
        proven: What theory proves; None where it proves nothing.
        not_tested: What was not tested, each as a sentence without a full stop.
        warnings: What changes how the verdict reads, each as a sentence without a full stop.
    """

    claim: str
    claimed: Number | None = None
    adversary: str | None = None
    neighbours: str | None = None
    word: VerdictWord
    reason: VerdictReason
    why: str
    given: str = ""
    measured: Measured | None = None
    proven: Proven | None = None
    not_tested: list[str] = []
    warnings: list[str] = []


class Privacy(Part):
    """The claim, the upper bounds and the lower bounds against one adversary; proportions of a bound are epsilons."""

    claimed: Number | None = None
    upper: Number | None = None
    gap: str | None = None
    empirical_lower: Number | None = None
    delta: Number | None = None
    confidence: Number | None = None
    adversary: str | None = None
    neighbours: str | None = None
    verdict: VerdictWord | None = None
    judged: Verdict | None = None
    given: str | None = None
    bounds: list[Upper] = []
    estimators: list[Lower] = []
    gap_explanations: dict[str, str] = {}
    release: dict[str, object] = {}
    not_audited: str | None = None

    @property
    def agreed(self) -> Verdict | None:
        """The verdict on the claim; None where nothing is claimed, or a file contradicts itself."""
        return self.judged if self.judged is not None and self.judged.word == self.verdict else None


class Noise(Part):
    """Where the noise came from, the seed it follows from if any, and both as a sentence."""

    source: str | None = Field(default=None, alias="from")
    seed: StrictInt | None = None
    words: str | None = None

    @classmethod
    def of_simulation(cls, seed: int, *, batches: bool = False) -> Self:
        """Return what a result says of noise that follows from `seed`, and `batches` too where bounds count on them."""
        subject, assumed = ("Noise", "secret noise")
        if batches:
            subject, assumed = ("Noise and batches", "that both are secret")
        words = f"{subject} came from seed {seed} so that you can repeat this run; the bounds assume {assumed}."
        return cls(source="seed", seed=seed, words=words)


class Published(Part):
    """What the stated bound covers: parts of the run folder that may leave, and those that may not, each with why."""

    words: str | None = None
    inside_bound: dict[str, str] = {}
    not_inside: dict[str, str] = {}
    of_no_record: list[str] = []


class Epoch(Part):
    """An epoch of a training: test accuracy, loss (None where it diverged), and the bytes sent by then."""

    epoch: Number
    test_accuracy: Share | None = None
    loss: Number | None = None
    bytes_up: Number | None = None
    bytes_down: Number | None = None


class Utility(Part):
    """Test accuracy beside its controls, and the history of the training."""

    test_accuracy: Annotated[Accuracy, Read] | Measurement | None = None
    controls: dict[str, Annotated[ControlAccuracy, Read] | Measurement | Number] = {}
    final_loss: Number | None = None
    history: list[Epoch] = []


class Bytes(Part):
    """Bytes that parties exchanged, by direction and by kind of message."""

    up: Number | None = None
    down: Number | None = None
    by_kind: dict[str, Number] = {}


class Ages(Part):
    """The share of the rows that the server read at an age of `first` to `last` rounds."""

    first: Number = Field(alias="from")
    last: Number = Field(alias="to")
    share: Share


class Staleness(Part):
    """Ages, in rounds, of the rows that the server read: mean, quantiles, shares by age, and the mean by client."""

    mean: Number | None = None
    q10: Number | None = None
    q50: Number | None = None
    q90: Number | None = None
    q99: Number | None = None
    largest: Number | None = None
    distribution: list[Ages] = []
    mean_by_client: dict[str, Number] = {}


class Data(Part):
    """The data set's partition, its training records and clients, notes on it, and digests.

    `hints` say what usually keeps such data from being learnt.
    """

    partition: str | None = None
    records: Whole | None = None
    clients: Whole | None = None
    notes: list[str] = []
    hints: list[str] = []
    digests: dict[str, str] = {}


class PictureRow(Part):
    """Records of one kind, each a flat list of greys in [0, 1]."""

    what: str = ""
    records: list[Curve] = []


class Reconstructions(Part):
    """Records as pictures of `shape` (height, width)."""

    shape: list[StrictInt] = []
    rows: list[PictureRow] = []


class BoundByRuns(Part):
    """What the first `runs` runs in each world prove by themselves."""

    runs: Whole
    estimator: str
    epsilon_lower: Number
    assumes: str = ""


class Wealth(Part):
    """Wealth of the betting test against `epsilon` by pairs of runs; `goal` refutes it, first at `refuted_at`."""

    epsilon: Number
    pairs: list[Whole]
    log10_wealth: list[Number]
    goal: Number
    refuted_at: Whole | None = None


class Display(Protocol):
    """Shows a result in Python: `reports.display`."""

    def line(self) -> str:
        """Return the result in a line of less than 300 characters."""

    def html(self) -> str:
        """Return the head of its page."""

    def figure(self) -> "Figure":
        """Return the figure that decides."""

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of its data frame."""


class Result(Part):
    """What the results of all commands share: a schema that names command and version, and what it says in words.

    `KIND` is what a report on it is called. A file that lacks a part, or holds a wrong one, is refused where `STRICT`:
    a verdict must not rest on half a result. `ORDER` has the keys of the file where shared fields do not come first.

    In a notebook a result shows the head of its report. `verdict`, `plot` and `to_frame` work everywhere.
    """

    SCHEMA: ClassVar[str]
    KIND: ClassVar[str]
    STRICT: ClassVar[bool] = False
    ORDER: ClassVar[str] = ""

    @classmethod
    def in_order(cls, values: Mapping[str, object]) -> dict[str, object]:
        """Return values by key in the order of `result.json`."""
        return {key: values[key] for key in cls.ORDER.split() or values if key in values}

    def to_json(self) -> dict[str, object]:
        """Return the result as `result.json` holds it."""
        return {"schema": self.SCHEMA, **self.in_order(super().to_json())}

    def with_command_line(self, words: Sequence[str]) -> Self:
        """Return the result with the command line that repeats it, as run folders keep it."""
        return self.model_copy(update={"command_line": list(words)})

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the claim; None where nothing is claimed."""
        privacy = getattr(self, "privacy", None)
        return privacy.agreed if isinstance(privacy, Privacy) else None

    @property
    def _display(self) -> "Display":
        # What shows results imports this module, so that the package loads it by its name when it is first asked for.
        shown: Display = sys.modules[__package__].Display(self)
        return shown

    def __repr__(self) -> str:
        """Return the result in a line of less than 300 characters: subject, verdict, what was measured and proven."""
        return self._display.line()

    __str__ = __repr__

    def __rich_repr__(self) -> Any:
        """Return nothing: rich then prints the same line."""

    def _repr_html_(self) -> str:
        """Return the head of the report page, for notebooks; it holds no script."""
        return self._display.html()

    def plot(self) -> "Figure":
        """Return the figure that decides: epsilons as claimed, measured and proven, or an attack's success.

        Raises:
            InputError: The result has nothing to draw.
        """
        return self._display.figure()

    def to_frame(self) -> "DataFrame":
        """Return the numbers as a pandas data frame.

        It has a row per claim, attack, estimator, bound or mechanism where a result has several, else one row.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError:
            needs = "to_frame() needs pandas, which is not installed: pip install pandas"
            raise ModuleNotFoundError(needs, name="pandas") from None
        return DataFrame(self._display.rows())


class Repeatable(Result):
    """What the results of one or all attacks, a training and an audit share: the subject, and how to repeat it."""

    method: str = ""
    dataset: str = ""
    noise: Noise | None = None
    sentence: str = ""
    protects: str | None = None
    config: dict[str, object] = {}
    seed: StrictInt | None = None
    compute: dict[str, Plain] = {}
    data: Data = Data()
    versions: dict[str, str | None] = {}
    command_line: list[str] | None = None
    run: str | None = None


class RunResult(Repeatable):
    """What the results of an attack, a training and an audit share."""

    privacy: Privacy = Privacy()
    published: Published = Published()
    warnings: list[str] = []
    tradeoff: Tradeoff | None = None


class TrainingRun(RunResult):
    """What the results of an attack and a training share."""

    utility: Utility = Utility()
    bytes: Bytes = Bytes()
    rounds: Number | None = None


class Tried(Part):
    """What the pilot of an attack by some clients found, or why there was none.

    `success` is beside `chance`, that of knowing nothing, and `reference`, the best of what needs no attack; `target`
    is the client that a server attacked.
    """

    attack: str
    adversary: str
    clients: list[StrictInt] = []
    target: StrictInt | None = None
    success: Success | None = None
    chance: Success | None = None
    reference: Success | None = None
    trainings: StrictInt | None = None
    reason: str | None = None


class CellKey(Part):
    """What a cell of a matrix is about: who mounts which attack, and on what."""

    attack: str = ""
    adversary: str = ""
    method: str = ""
    noise: str | None = None
    """The channel on which a method gets the noise of `epsilon`."""
    defence: str | None = None
    """A defence by its name, with settings as NAME:KEY=VALUE where it has others than its own."""
    epsilon: Number | None = None


class CellSummary(Part):
    """An attack's success in a cell, beside the best without an attack; see `dpzv_audit.evidence.matrix.summary_of`."""

    metric: str | None = None
    success: Success | None = None
    low: Success | None = None
    high: Success | None = None
    reference: Success | None = None
    trainings: StrictInt | None = None
    least: Number | None = None
    most: Number | None = None
    unit: str | None = None
    """What the limits `low` and `high` are by: records, batches or trainings."""
    over_low: Success | None = None
    over_high: Success | None = None
    reference_high: Number | None = None
    clear: StrictBool | None = None
    damage: Share | None = None
    control: Number | None = None
    certified: Number | None = None
    neighbours: str | None = None
    """What the certified epsilon is about."""
    controls_hold: StrictBool | None = None
    control_p: Number | None = None
    permutation_p: Number | None = None
    """Of a recorded training, in the place of a negative control: see `dpzv_audit.base.findings.Control`."""
    accuracy: Number | None = None
    learnt: StrictBool | None = None
    """Whether that is shown to be above the majority class."""
    frozen: Number | None = None
    """The test accuracy of the control of frozen clients."""
    upper: Number | None = None
    """The sound upper bound on epsilon against the adversary."""
    bytes: Number | None = None
    """Bytes that a training exchanges."""


class Cell(CellSummary, CellKey):
    """One cell of a matrix: its key, and a summary of what was measured, or the reason why nothing was."""

    clients: list[StrictInt] = []
    """Those that look; of one client that looks the worst."""
    chosen: str | None = None
    """The attack that it is, of a cell of the strongest."""
    state: str = ""
    reason: str | None = None
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")] | None = None
    """The path of its report below the matrix's folder."""

    @property
    def harm(self) -> tuple[bool, float, float]:
        """What cells are ordered by: whether one is clear, then damage, which metrics share, then success."""
        return bool(self.clear), self.damage or 0.0, self.success or 0.0


class AttackResult(TrainingRun):
    """The result of `attack`.

    `clients` are those that look, and `tried` the pilots by which they, or the attack, were chosen. What stands
    `beside` it are another attack on the same system, and the attack on a method without noise.
    """

    SCHEMA = "dpzv-audit/attack/1"
    KIND = "Attack report"
    ORDER = """
        method dataset attack adversary clients tried metric success baselines controls measures curves reconstructions
        certified not_certified beside privacy noise sentence warnings tradeoff utility bytes rounds protects
        attack_setting config seed compute data versions published command_line run"""

    attack: str = ""
    adversary: str = ""
    clients: list[StrictInt] = []
    tried: list[Tried] = []
    metric: str = "labels found"
    success: Measurement | None = None
    baselines: dict[str, Measurement | Number] = {}
    controls: dict[str, Annotated[Control, Read] | Measurement | Number] = {}
    measures: dict[str, Measurement] = {}
    curves: dict[str, list[dict[str, Plain]]] = {}
    reconstructions: Reconstructions = Reconstructions()
    certified: Annotated[CertifiedBound, Read] | None = None
    not_certified: str | None = None
    beside: list[Cell] = []
    attack_setting: dict[str, object] = {}


class TrainResult(TrainingRun):
    """The result of `train`."""

    SCHEMA = "dpzv-audit/train/1"
    KIND = "Training report"
    ORDER = """
        method dataset utility privacy noise published sentence warnings tradeoff staleness bytes rounds protects
        config seed compute data versions command_line run"""

    staleness: Staleness | None = None


class AuditResult(RunResult):
    """The result of `audit method` and `audit mechanism`."""

    SCHEMA = "dpzv-audit/audit/1"
    KIND = "Audit report"
    ORDER = """
        method dataset adversary game privacy exactly_gaussian noise sentence warnings tradeoff by_runs wealth
        protects config seed compute data versions published command_line run"""

    adversary: str = ""
    game: dict[str, Plain] = {}
    exactly_gaussian: StrictBool | None = None
    by_runs: list[BoundByRuns] = []
    wealth: Wealth | None = None


class ScoresClaim(Part):
    """A claim put to the test by scores, and the verdict on it."""

    epsilon: Number | None = None
    delta: Number | None = None
    verdict: VerdictWord | None = None
    judged: Verdict | None = None


class ScoresResult(Result):
    """The result of `audit scores`."""

    SCHEMA = "dpzv-audit/audit-scores/1"
    KIND = "Audit of scores"

    scores: dict[str, Plain] = {}
    delta: Number | None = None
    confidence: Number | None = None
    seed: StrictInt | None = None
    exactly_gaussian: StrictBool | None = None
    family: str | None = None
    coin_flips: StrictBool | None = None
    claim: ScoresClaim | None = None
    estimators: list[Annotated[JudgedBound, Read]] = []
    meaning: str = ""
    warnings: list[str] = []
    run: str | None = None

    @property
    def privacy(self) -> Privacy:
        """The claim where other results have theirs; the measured bound is the largest that was allowed to refute.

        Those bounds share the error of one verdict.
        """
        if self.claim is None:
            return Privacy()
        gating = [e.epsilon_lower for e in self.estimators if e.verdict in ("refuted", "not refuted")]
        return Privacy(
            claimed=self.claim.epsilon,
            delta=self.claim.delta,
            verdict=self.claim.verdict,
            judged=self.claim.judged,
            confidence=self.confidence,
            empirical_lower=max(gating, default=None),
            estimators=list(self.estimators),
        )


class NegativeControls(Part):
    """One test of all negative controls of a matrix together, at a false-alarm rate."""

    tests: StrictInt
    smallest_p: Number
    together_p: Number
    false_alarm: Number
    hold: StrictBool
    worst: str


class SelfCheck(Part):
    """A positive control of an attack; `holds` is None where the data do not allow it."""

    attack: str
    what: str
    value: Number | None = None
    expected: Number | None = None
    holds: StrictBool | None = None


class MatrixResult(Result):
    """The result of `matrix`."""

    SCHEMA = "dpzv-audit/matrix/1"
    KIND = "Matrix of attacks"

    dataset: str = ""
    sentence: str = ""
    noise: Noise | None = None
    negative_controls: NegativeControls | None = None
    cells: list[Cell] = []
    self_checks: list[SelfCheck] = []
    attack_setting: dict[str, object] = {}
    seed: StrictInt | None = None
    command_line: list[str] | None = None
    run: str | None = None


class CoinGameBeside(Part):
    """The coin game of a system beside attacks on it: what it certifies, or why it was not played; `command` plays it.

    It shares their error rate: `epsilon_lower` holds at `confidence_each` of theirs.
    """

    adversary: str = ""
    epsilon_lower: Number | None = None
    ceiling: Number | None = None
    """The largest epsilon that as many coins could certify."""
    neighbours: str | None = None
    trainings: StrictInt | None = None
    """Those whose coins were guessed; the score was fitted on others."""
    reason: str | None = None
    command: str = ""


class AttacksResult(Repeatable):
    """The result of `attack` with every attack that applies, the largest first, then those that do not apply.

    `mounted` attacks share one error rate: each was tested at `confidence_each`, so that all together hold at
    `confidence`. `not_tested` says what none of them looked at, each as a sentence without a full stop. Of a system
    `coin_game` is one of those tests.
    """

    SCHEMA = "dpzv-audit/attacks/1"
    KIND = "Report on all attacks"
    ORDER = """
        method dataset sentence not_tested attacks coin_game mounted confidence confidence_each negative_controls noise
        protects attack_setting config seed compute data versions command_line run"""

    not_tested: list[str] = []
    attacks: list[Cell] = []
    coin_game: CoinGameBeside | None = None
    mounted: StrictInt = 0
    confidence: Number | None = None
    confidence_each: Number | None = None
    negative_controls: NegativeControls | None = None
    attack_setting: dict[str, object] = {}


class ClaimLook(Part):
    """One look at a claim: a test, the share of the claim's alpha that it may spend, and its bound with that."""

    stage: str
    estimator: str
    weight: Number
    p_value: Number
    epsilon_lower: Number
    ceiling: Number
    n_in: StrictInt
    n_out: StrictInt
    rule: str
    assumes: str


class OtherAttack(Part):
    """Mean success of another attack, or client, that a claim is about, and its upper limit."""

    trainings: StrictInt
    success: Number
    upper: Number


class AttackRates(Part):
    """Mean success of an attack, of its baselines and of its controls; nothing where none was `mounted`, by whom.

    `upper` is an upper limit of the mean success of every attack and client that the claim is about, at `confidence`;
    None where one of them was not mounted. `others` are those beside the one that a pilot chose, `unmeasured` those
    that were not mounted, and `excluded` those that the claim is not about, with the reasons.
    """

    mounted: str | None = None
    success: Number | None = None
    baselines: dict[str, Number] = {}
    controls: dict[str, Number] = {}
    upper: Number | None = None
    confidence: Number | None = None
    others: dict[str, OtherAttack] = {}
    unmeasured: list[str] = []
    excluded: dict[str, str] = {}


class PlannedReach(Part):
    """What the planned trials could show at most: the largest epsilon, or success, that they could refute.

    `most` is None where no result is the largest. `refutable` says whether they could have refuted the claim. `needed`
    trainings that all succeed refute a claim about an attack.
    """

    trials: StrictInt
    unit: str
    most: Number | None
    refutable: StrictBool
    needed: StrictInt | None = None


class ClaimControl(Part):
    """A control of an attack over all its runs; a negative one fails with a `p_value` below `level`."""

    attack: str
    name: str
    kind: str
    what: str
    value: Number
    expected: Number
    runs: StrictInt
    p_value: Number | None = None
    tested_by: str = ""
    level: Number | None = None
    holds: StrictBool


class FileControls(Part):
    """The controls of all claims of a file: negative ones share the `false_alarm` rate.

    `failed` are those that do not hold, each as "claim: attack: control".
    """

    tests: StrictInt
    false_alarm: Number
    failed: list[str]


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """What refuted a claim: the number of the ledger's entry, from 1, its error rate, and the decision's part in it."""

    entry: int
    level: float
    scores: str
    p_value: float | None
    given: str | None


@dataclass(frozen=True, kw_only=True)
class DecidedIn:
    """The ledger's entry, from 1, that decided on a claim's scores, and the error rate of all claims of that look."""

    entry: int
    level: float


# Its fields stay as they are: they are the keys of stored results, one for each fact that a gate's file shows.
class ClaimResult(Part):
    """One claim of a claims file with its evidence, its verdict, and whether it fails the gate."""

    name: str
    form: Literal["attack", "coins", "method", "system", "mechanism", "scores"]
    source: str | None
    line: StrictInt
    claim: dict[str, object]
    verdict: VerdictWord
    judged: Verdict
    p_value: Number
    adjusted_p_value: Number
    level: Number
    epsilon_lower: Number | None
    ceiling: Number | None
    given: str
    upper: Number | None
    accountant: str
    gap: str
    explanations: dict[str, str]
    bounds: list[Upper]
    looks: list[ClaimLook]
    attack: AttackRates
    controls: list[ClaimControl] = []
    rates: list[Number]
    reach: PlannedReach | None = None
    tradeoff: Tradeoff | None
    trials: StrictInt
    missing: str
    unaudited: str
    split: dict[str, Number] = {}
    facts: dict[str, object]
    evidence_key: str
    scores_digest: str
    refuted_by: Annotated[Refutation, Read] | None
    decided_in: Annotated[DecidedIn, Read] | None = None
    sentence: str
    fails: StrictBool

    @model_validator(mode="after")
    def _has_its_numbers(self) -> Self:
        if not isinstance(self.claim.get(self._claimed), int | float) or (self.rates and self.attack.success is None):
            raise ValueError(f"claim {self._claimed} or the success of an attack is no number")
        if self.verdict != self.judged.word:
            raise ValueError(f"verdict {self.verdict} is not {self.judged.word}, as its part judged says")
        return self

    @property
    def _claimed(self) -> str:
        return {"attack": "success_at_most", "coins": "coin_success_at_most"}.get(self.form, "epsilon")

    @property
    def claimed(self) -> float:
        """The claimed epsilon, or the largest success that a claim about an attack allows.

        For a claim about coins, the epsilon at delta 0 under which no coin is guessed with a larger chance.
        """
        claimed = cast("float", self.claim[self._claimed])
        return math.log(claimed / (1.0 - claimed)) if self.form == "coins" else claimed

    @property
    def audited(self) -> bool:
        """Whether the claim was put to a test that nothing cut off."""
        return bool(self.looks or self.rates) and not self.missing and not self.unaudited


class GateOptions(Part):
    """What fails: the verdicts that may pass though they fail by default, and whether an inconclusive one may not."""

    allow: list[Literal["overclaimed", "not-tested"]] = []
    strict: StrictBool


class VerifyResult(Result):
    """The result of `verify`."""

    SCHEMA = "dpzv-audit/verify/1"
    KIND = "Verdicts on a claims file"
    STRICT = True

    claims_file: str
    alpha: Number
    level: Number
    seed: StrictInt
    summary: dict[VerdictWord, StrictInt]
    sentence: str
    noise: Noise | None = None
    interrupted: StrictBool
    missing: list[str]
    failed: StrictBool
    options: GateOptions
    controls: FileControls | None = None
    ledger: dict[str, Plain] | None = None
    claims: list[ClaimResult]
    command_line: list[str] | None = None
    versions: dict[str, str | None] = {}
    run: str | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The gravest verdict on a claim of the file."""
        order = get_args(VerdictWord)
        gravest = min(self.claims, key=lambda claim: order.index(claim.verdict), default=None)
        return None if gravest is None else gravest.judged

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by the names of the claims."""
        return {claim.name: claim.judged for claim in self.claims}


class PlantedRow(Part):
    """What one planted mechanism got beside what it must get."""

    name: str
    bug: str
    adversary: str
    neighbours: str
    score: str
    runs: StrictInt
    claimed: Number
    delta: Number
    empirical_lower: Number | None
    upper: Number | None
    gap: str | None
    expected: list[str]
    verdict: str
    as_expected: StrictBool
    games: "dict[str, PlantedGame]"


class PlantedGame(Part):
    """The bounds from one game on a planted mechanism, and what its score was fitted on where it was."""

    empirical_lower: Number | None
    estimators: list[Lower]
    fitted_score: str | None = None
    fitted_on: str | None = None
    chosen_by: str | None = None


class PlantedResult(Result):
    """The result of `audit mechanism planted:NAME`."""

    SCHEMA = "dpzv-audit/planted/1"
    KIND = "Check of the audit on planted mechanisms"

    method: str = "planted"
    rows: list[PlantedRow] = []
    sentence: str = ""
    confidence: Number | None = None
    seed: StrictInt | None = None
    versions: dict[str, str | None] = {}
    command_line: list[str] | None = None
    run: str | None = None


class AccountFigures(Part):
    """Numbers of the figures of `account`: epsilon by rounds, and trade-off curves over `alpha`, by name."""

    rounds: dict[str, list[tuple[Whole, Number]]] = {}
    tradeoff: dict[str, Curve] = {}


class AccountResult(Result):
    """The result of `account`: a release in numbers and in `sentences`, and what every accountant says of it.

    `privacy` has the claim, where there is one, and the bounds against the adversary and under the relation that the
    page is about: those of the claim, else the first that were asked for. `bounds` are those of all.
    """

    SCHEMA = "dpzv-audit/account/1"
    KIND = "Upper bounds on epsilon"

    command_line: list[str] | None = None
    method: str = ""
    release: dict[str, object] = {}
    sentences: list[str] = []
    privacy: Privacy = Privacy()
    bounds: list[Upper] = []
    explanations: list[str] = []
    figures: AccountFigures = AccountFigures()
    versions: dict[str, str | None] = {}
    run: str | None = None


class PaperFigure(Part):
    """A figure of a reproduced table in numbers: points, or values with the ends of their intervals, by series.

    Attributes:
        kind: Lines or marks through (across, up); or, by rows, intervals (row, value, low, high) or bars (row, value).
        subject: What it shows, in words.
        scale: Scale of the horizontal axis, linear or log.
        ticks: Places that have a name: rows, or values across.
        levels: Levels that all series are compared with, by name.
        faint: Series that are drawn in grey.
    """

    kind: Literal["lines", "marks", "intervals", "bars"]
    subject: str
    across: str = ""
    up: str = ""
    scale: Literal["linear", "log"] = "linear"
    ticks: dict[str, Number] = {}
    series: dict[str, list[list[Number]]] = {}
    levels: dict[str, Number] = {}
    faint: list[str] = []


class ReproduceResult(Result):
    """The result of `reproduce`: rows with all their numbers, and the table as it is shown.

    `columns` and `cells` are the table, `rows_of_table` is how many rows it has in all, and `skipped` says by label why
    a row is missing. `scope` says how much of the table was run, `lead` and `remark` what the rows together say, and
    `sentence` the same in one sentence.
    """

    SCHEMA = "dpzv-audit/reproduce/1"
    KIND = "Reproduced table"

    table: str = ""
    source: str = ""
    epochs: StrictInt = 0
    paper_epochs: StrictInt = 0
    seeds: StrictInt = 0
    records: StrictInt | None = None
    seed: StrictInt = 0
    rows: list[dict[str, object]] = []
    skipped: dict[str, str] = {}
    notes: list[str] = []
    rows_of_table: StrictInt = 0
    sentence: str = ""
    scope: str = ""
    about: str = ""
    lead: str = ""
    remark: str = ""
    columns: list[str] = []
    cells: list[list[str]] = []
    figures: dict[str, PaperFigure] = {}
    versions: dict[str, str | None] = {}
    command_line: list[str] | None = None
    run: str | None = None


Reported = (
    AttackResult
    | AttacksResult
    | TrainResult
    | AuditResult
    | ScoresResult
    | MatrixResult
    | VerifyResult
    | PlantedResult
    | AccountResult
    | ReproduceResult
)
"""The results that have a report."""
REPORTED: Mapping[str, type[Reported]] = {model.SCHEMA: model for model in get_args(Reported)}
"""Their models by schema."""


def check_schema(result: Mapping[str, object], place: str = "result") -> str:
    """Return the result's schema; raise `InputError` naming `place` and the known ones for another."""
    schema = result.get("schema")
    if isinstance(schema, str) and schema in REPORTED:
        return schema
    value = "missing" if schema is None else repr(str(schema)[:80])
    raise InputError(f"{place}: key 'schema' is {value}; use one of {', '.join(REPORTED)}")


def read(result: Mapping[str, object]) -> tuple[Reported, dict[str, object]]:
    """Return the model of a result that was read from JSON, and what of it the model has no place for.

    The second part holds unknown keys, values of a wrong type, parts that lack what they are about, and curves that
    leave [0, 1] or do not fit their axis, each below the keys that lead to it: nothing of a file is lost.

    Raises:
        InputError: The schema is unknown, or the result is one in which only unknown keys are left out, such as that of
            `verify`, and it has more faults.
    """
    model = REPORTED[check_schema(result)]
    left: dict[str, Any] = {key: value for key, value in result.items() if key != "schema"}
    rest: dict[str, object] = {}
    while True:
        try:
            return model.model_validate(left, context=_READING), rest
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        left, taken = _parted(left, [fault["loc"] for fault in faults])
        wrong = [fault for fault in faults if not model.STRICT or fault["type"] not in _UNKNOWN]
        if wrong and (model.STRICT or not taken):
            where = ".".join(map(str, wrong[0]["loc"]))[:80]
            command = model.SCHEMA.split("/")[1]
            raise InputError(f"no result of {command}: {where}: {wrong[0]['msg']}; run {command} again")
        rest = _merged(rest, taken)


def _parted(value: Any, locs: Sequence[tuple[str | int, ...]]) -> tuple[Any, dict[str, object]]:
    """Return `value` without the parts that `locs` lead to, and those parts below their keys.

    What follows such a part in a place is the name of an alternative of its type, or of what it lacks.
    """
    kept: dict[str | int, Any] = {}
    taken: dict[str, object] = {}
    for key, item in _items(value).items():
        below = [loc[1:] for loc in locs if loc[0] == key]
        if not below:
            kept[key] = item
        elif all(loc and loc[0] in _items(item) for loc in below):
            kept[key], taken[str(key)] = _parted(item, below)
        else:
            taken[str(key)] = item
    return kept if isinstance(value, dict) else list(kept.values()), taken


def _items(value: object) -> Mapping[Any, object]:
    """Return the values of an object or a list of JSON by key or place; of another value none."""
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, object]:
    merged = dict(first)
    for key, value in second.items():
        known = merged.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            merged[key] = _merged(known, value)
            continue
        while key in merged:  # of a list, whose items move up when one before them is taken
            key += "'"
        merged[key] = value
    return merged


def schema_of_results() -> dict[str, object]:
    """Return the JSON schema (draft 2020-12) of every `result.json` that has a report."""
    models = [(model, "serialization") for model in REPORTED.values()]
    refs, schema = models_json_schema(models, by_alias=True, title="result.json of dpzv-audit")  # type: ignore[arg-type]
    for model in REPORTED.values():
        definition = schema["$defs"][model.__name__]
        definition["properties"] = {"schema": {"const": model.SCHEMA}, **model.in_order(definition["properties"])}
        definition["required"] = ["schema", *definition.get("required", ())]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "oneOf": list(refs.values()), **schema}


def main() -> None:
    """Print the JSON schema of results, as the documentation publishes it."""
    print(json.dumps(schema_of_results(), indent=1))


if __name__ == "__main__":
    main()
