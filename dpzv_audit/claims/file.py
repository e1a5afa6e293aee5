"""Says what a claims file may hold, and reads one: validated whole, every mistake one line with its place."""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import ErrorDetails

from ..base.errors import LEAST_DELTA, InputError, accounted_delta, did_you_mean, plain_rule, unknown_name
from ..base.findings import AdversaryName, NeighbourRelation
from ..base.limits import (
    LARGEST_SIZES,
    LONGEST_TEXT,
    MOST_CLIENTS,
    MOST_COLUMNS,
    MOST_QUERIES,
    MOST_RECORDS,
    MOST_SETTINGS,
)
from ..base.rounding import down, percent_down
from ..base.toml import Loc, key_lines, line_at, parsed_toml, read_toml
from ..data.vertical import TaskName
from ..evidence.verdict import claim_in_words

MOST_CLAIMS = 10_000

NO_DELTA = LEAST_DELTA
"""Delta of a claim about coins: the test takes logarithms of it, and it adds nothing to a p-value."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class PlacedClaim:
    """A valid claim, the line of the file it starts on, and the lines of its keys."""

    claim: "Claim"
    line: int
    lines: Mapping[str, int]

    @property
    def name(self) -> str:
        """Return the claim's name."""
        return self.claim.name

    def line_of(self, key: str) -> int:
        """Return the line of `key`, or of the claim where a default gave the key."""
        return self.lines.get(key, self.line)

    def digest(self) -> str:
        """Return the SHA-256 of all that the claim says but its name and source: its evidence may depend on that."""
        # A claim without such a key has the digest, and so the seed, that it had before there were these keys.
        said = {key: value for key, value in said_by(self.claim).items() if value or key not in ("depends", "revision")}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ClaimsFile:
    """A valid claims file: its path as given, the error rate of the whole file, and its claims in order."""

    path: Path
    alpha: float
    claims: tuple[PlacedClaim, ...]

    def only(self, names: Sequence[str] | None) -> "ClaimsFile":
        """Return the claims called `names` (none: all), in the file's order; `InputError` for a name no claim has."""
        if not names:
            return self
        known = [placed.name for placed in self.claims]
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f"no claim of the file is called so; the first is {known[0]!r}"
                raise InputError(f": {hint}", "only", name)
        kept = tuple(placed for placed in self.claims if placed.name in names)
        return replace(self, claims=kept)


@dataclass(frozen=True)
class _Lines:
    """The line on which each key of a file stands; `shown` is the file's name, "" for keys that stand in none."""

    lines: Mapping[Loc, int]
    shown: str

    def of(self, loc: Loc) -> int:
        """Return the line of the value at `loc`, or of the nearest table around it that has one."""
        return line_at(self.lines, loc)

    def at(self, loc: Loc) -> str:
        """Return how an error about the value at `loc` opens."""
        return f"{self.shown}:{self.of(loc)}: " if self.shown else ""


def load_claims(path: Path) -> ClaimsFile:
    """Return the claims in the TOML file `path`, all of them valid.

    Names of methods, attacks and data sets, and a method's settings, are checked by `Gate.prepare` of
    `dpzv_audit.claims.gate`, which loads those registries. Raises `InputError` naming file, line and key.
    """
    return parse_claims(_read(path), path)


def parse_claims(text: str, path: Path) -> ClaimsFile:
    """Return the claims of the TOML `text`, which stands in the file `path`; errors as `load_claims`."""
    shown = str(path)
    data = parsed_toml(text, shown)
    lines = _Lines(key_lines(text), shown)
    tables = ("claim", "defaults")
    for key in data:
        if key not in tables:
            raise InputError(f"{lines.at((key,))}{_unknown(key, tables)}")
    claims = data.get("claim")
    if not isinstance(claims, list) or not claims or not all(isinstance(entry, dict) for entry in claims):
        raise InputError(f"{shown}: holds no [[claim]]; use one or more: an array of tables")
    if len(claims) > MOST_CLAIMS:
        raise InputError(f"{shown}: holds {len(claims):,} claims; use at most {MOST_CLAIMS:,}")
    table: Any = data.get("defaults", {})
    defaults = _validated(Defaults, table, ("defaults",), lines, "[defaults]")
    placed = tuple(_claim(entry, index, table, lines) for index, entry in enumerate(claims))
    _refuse_duplicates(placed, shown)
    return ClaimsFile(path, defaults.alpha, placed)


def one_claim(keys: Mapping[str, object]) -> PlacedClaim:
    """Return the claim that `keys` of a `[[claim]]` table say; `InputError` naming the key where one is wrong."""
    return _claim(keys, 0, {}, _Lines({(): 1}, ""))


def _read(path: Path) -> str:
    try:
        return read_toml(path)
    except InputError as error:
        raise error.placed("claims file ") from None
    except OSError as error:
        raise InputError(f"claims file {path}: cannot be read ({error.strerror}); use a readable file") from error


def _claim(entry: Mapping[str, object], index: int, defaults: Mapping[str, Any], lines: _Lines) -> PlacedClaim:
    loc = ("claim", index)
    name = entry.get("name")
    label = f"claim {name!r}" if isinstance(name, str) and len(name) < 100 else f"claim {index + 1}"

    def wrong(rule: str, *key: str) -> InputError:
        return InputError(f"{lines.at((*loc, *key))}{label}{rule}")

    form = form_of(entry) or ("method" if "method" in defaults else None)
    if form is None:
        # A misspelt key comes first: it also explains the one that is missing.
        known = list(dict.fromkeys(key for model in FORMS.values() for key in _aliases(model)))
        for key in entry:
            if key not in known:
                raise wrong(f": {_unknown(key, known)}", key)
        raise wrong(" has none of the keys method, system, scores and mechanism; use one of them")
    kind = entry.get("kind", "epsilon")
    if kind not in ("epsilon", "attack", "coins"):
        raise wrong(f": kind is {_short(kind)}; use epsilon or attack, or coins with coin_success_at_most", "kind")
    others = [key for key in ("method", "system", "scores", "mechanism") if key in entry]
    if len(others) > 1:
        raise wrong(f" has the keys {' and '.join(others)}; use one of them")
    model = FORMS[form]
    # A table stands in the place of the data set that the defaults name.
    known = [key for key in _aliases(model) if "csv" not in entry or key not in ("dataset", "data_dir")]
    merged = {**{key: value for key, value in defaults.items() if key in known}, **entry}
    if isinstance(merged.get("config"), dict):
        merged["config"] = {**defaults.get("config", {}), **merged["config"]}
    claim = _validated(model, merged, loc, lines, label)
    for key, rule in claim.contradictions(merged):
        raise wrong(f": {key} {rule}", key)
    return PlacedClaim(claim, lines.of(loc), {key: lines.of((*loc, key)) for key in entry})


def said_by(claim: "Claim") -> dict[str, object]:
    """Return everything that a claim says but its name and source, as JSON has it; of a table what is given alone."""
    said = claim.model_dump(mode="json", by_alias=True, exclude={"name", "source"})
    return {key: value for key, value in said.items() if value or key not in TABLE}


def _aliases(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _validated(model: type[Model], value: object, loc: Loc, lines: _Lines, label: str) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # A misspelt key comes first: it also explains the one that is missing.
        order = {"extra_forbidden": 0, "missing": 2}
        first = min(
            error.errors(include_url=False),
            key=lambda e: (order.get(e["type"], 1), lines.of((*loc, *e["loc"]))),
        )
        raise InputError(f"{lines.at((*loc, *first['loc']))}{label}: {_mistake(model, first)}") from None
    except RecursionError:
        raise InputError(f"{lines.at(loc)}{label} is nested too deeply") from None


def _mistake(model: type[BaseModel], error: ErrorDetails) -> str:
    """Return what is wrong: the key, what was given, what would be right."""
    *around, last = (str(key) for key in error["loc"] or ("it",))
    if error["type"] == "extra_forbidden":
        return _unknown(last, _aliases(ScoreFiles if around else model))
    key = ".".join((*around, last))
    right = plain_rule(error["msg"])
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "string_pattern_mismatch":
        right = "use an import path such as package.module:factory, or planted:NAME"
        if last == "system":
            right = "use module:function, such as our_vfl:train for the file our_vfl.py"
    if error["type"] in ("model_type", "dict_type"):
        right = "use a table"
    if right.startswith("holds"):
        return f"{key} {right}"
    return f"{key} is {_short(error['input'])}; {right if right.startswith('use ') else f'use {right}'}"


def _unknown(key: str, known: Sequence[str]) -> str:
    return f"unknown key {_short(key)}{unknown_name('', key, known).rule}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_duplicates(claims: Sequence[PlacedClaim], shown: str) -> None:
    first: dict[str, PlacedClaim] = {}
    for placed in claims:
        other = first.setdefault(skeleton(placed.name), placed)
        if other is placed:
            continue
        where = f"{shown}:{placed.line_of('name')}"
        at = f"in line {other.line_of('name')}"
        if other.name == placed.name:
            raise InputError(f"{where}: two claims are called {placed.name!r} (the first {at}); use other names")
        told_apart = "use a name that a reader can tell from it"
        raise InputError(f"{where}: the name {placed.name!a} looks like {other.name!a} {at}; {told_apart}")


DEFAULT_ALPHA = 1e-3


def _readable(text: str) -> str:
    """Refuse what a terminal or a page would obey, not show: control, surrogate and reordering characters."""
    for character in text:
        category = unicodedata.category(character)
        if category.startswith("C") or category in ("Zl", "Zp"):
            raise ValueError(f"holds the character U+{ord(character):04X}; use characters that can be seen")
    return text


Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_readable)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_readable)]
Epsilon = Annotated[FiniteFloat, Field(gt=0, le=1e6, description="The claimed epsilon: a finite number above 0.")]
Delta = Annotated[FiniteFloat, Field(gt=0, lt=1, description="The delta of (epsilon, delta), between 0 and 1.")]
AccountedDelta = Annotated[Delta, AfterValidator(accounted_delta)]
"""The delta of a claim about which accountants are asked."""
ExactlyGaussian = Annotated[bool, Field(description="The scores are Gaussian with one variance by construction.")]


def _bounded(settings: dict[str, object]) -> dict[str, object]:
    """Refuse settings past every limit before anything that knows the method is loaded."""
    if len(settings) > MOST_SETTINGS:
        raise ValueError(f"holds {len(settings):,} settings; use at most {MOST_SETTINGS}")
    for key, value in settings.items():
        most = LARGEST_SIZES.get(key, MOST_RECORDS)
        if isinstance(value, int) and value > most:
            raise ValueError(f"holds {key:.60} = {value!s:.40}; use at most {most:,}")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise ValueError(f"holds {key:.60} of {len(value):,} characters; use at most {LONGEST_TEXT:,}")
        if isinstance(value, list | dict) and len(value) > MOST_CLIENTS:
            raise ValueError(f"holds {key:.60} of {len(value):,} entries; use at most {MOST_CLIENTS:,}")
    return settings


Settings = Annotated[
    dict[str, object],
    AfterValidator(_bounded),
    Field(description="Settings of the method, as in the method's configuration; see the method's own page."),
]


def _without_delta(release: dict[str, object]) -> dict[str, object]:
    """Refuse a delta, which the claim has itself."""
    if "delta" in release:
        raise ValueError("holds delta; give it in the claim's own key delta")
    return release


Stated = Annotated[dict[str, object], AfterValidator(_bounded), AfterValidator(_without_delta)]
Names = Annotated[list[Text], Field(max_length=MOST_COLUMNS)]
Scale = Annotated[FiniteFloat, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class _Form(_Strict):
    def contradictions(self, keys: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the given `keys` that do not go with others, each with what is wrong."""
        return iter(())

    @property
    def files(self) -> dict[str, str]:
        """Return the files of data that it names, by their keys."""
        return {}


class _Named(_Form):
    name: Name
    """What the claim is called in every result; no two claims share one."""
    source: Text | None = None
    """Who claims it and where: a paper's section, a policy's number."""
    revision: int | None = Field(None, ge=1, le=10**6)
    """Raised after a repair: it is then another claim, which a ledger that refuted it tests anew, on new trainings."""


class _EpsilonClaim(_Named):
    kind: Literal["epsilon"] = "epsilon"
    epsilon: Epsilon
    delta: Delta = 1e-5
    adversary: AdversaryName = "client"
    """Who must not learn more than epsilon allows."""
    neighbours: NeighbourRelation = "replace-label"
    """What may differ between the two worlds."""

    @property
    def claimed(self) -> float:
        """Return the claimed epsilon."""
        return self.epsilon

    @property
    def in_words(self) -> str:
        """Return the claim in words."""
        return claim_in_words(self.epsilon, self.delta)

    def certified_in_words(self, most: float) -> str:
        """Return in words that trials can certify an epsilon of at most `most`."""
        return f"at most {down(most, beside=self.epsilon)} of the claimed {self.epsilon:g}"


class _Data(_Form):
    data_dir: Text | None = None
    """Folder with the data set's original files."""
    clients: int | None = Field(None, ge=1, le=MOST_CLIENTS)
    """Clients; by default the data set's own."""
    csv: Text | None = None
    """In place of a data set: a table below the folder of the claims file; its first line names the columns."""
    label: Text | None = None
    """With `csv`: the column to predict."""
    task: TaskName | None = None
    """With `csv`: "regression" where the label is a number, which systems alone learn."""
    columns: list[Names] = Field(default_factory=list, max_length=MOST_CLIENTS)
    """With `csv`: the columns of each client, in place of `clients`."""
    categories: Names = Field(default_factory=list)
    """With `csv`: text columns, which are hashed; all others are numbers."""
    scales: dict[Text, Scale] = Field(default_factory=dict)
    """With `csv`: constants that columns of numbers are divided by."""
    classes: Names = Field(default_factory=list)
    """With `csv`: all possible labels; without it they are read from the file, which no noise covers."""
    drop: Names = Field(default_factory=list)
    """With `csv`: columns to leave out."""
    test_csv: Text | None = None
    """With `csv`: test rows, in a file of their own."""
    separator: Text | None = None
    """With `csv`: the character between cells, such as ";" or "tab"; "," by default."""

    def contradictions(self, keys: Collection[str]) -> Iterator[tuple[str, str]]:
        """See `_Form.contradictions`."""
        if self.csv is None:
            yield from ((key, "goes with csv alone; leave it out") for key in TABLE if key in keys)
            return
        for key in ("dataset", "data_dir", "records"):
            if key in keys:
                yield key, "does not go with csv; leave it out"
        if self.label is None:
            yield "label", "is missing: csv needs the column to predict"

    @property
    def files(self) -> dict[str, str]:
        """Return its rows and, where they are apart, its test rows."""
        named = {"csv": self.csv, "test_csv": self.test_csv}
        return {key: path for key, path in named.items() if path is not None}


TABLE = ("csv", "label", "task", "columns", "categories", "scales", "classes", "drop", "test_csv", "separator")
"""Keys of a table of the user's."""


class _Trained(_Data):
    method: Text
    """Training method; see `dpzv-audit list methods`."""
    dataset: Text = "digits"
    """Data set; see `dpzv-audit list datasets`."""
    config: Settings = Field(default_factory=dict)

    def contradictions(self, keys: Collection[str]) -> Iterator[tuple[str, str]]:
        """See `_Form.contradictions`."""
        yield from super().contradictions(keys)
        if self.csv is not None and self.task == "regression":
            yield "task", "is regression, and methods learn classes; use a system for a number"


class _System(_Data):
    system: Text = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Training of the user's own, module:function; run where `trust_code` allows it."""
    dataset: Text | None = None
    """Data set; by default what `data()` of the system's module gives, else digits in two blocks."""
    depends: list[Text] = Field(default_factory=list, max_length=100)
    """Files and folders that the system reads outside the folder of its package or module."""

    @property
    def code_named(self) -> tuple[str, str]:
        """Return the key that names code, and the path that it gives."""
        return "system", self.system


class MethodClaim(_EpsilonClaim, _Trained):
    """(epsilon, delta) of one of the tool's training methods; its noise is calibrated to the claim."""

    delta: AccountedDelta = 1e-5

    form: ClassVar = "method"
    records: int | None = Field(None, ge=1, le=MOST_RECORDS)
    """Train nothing: simulate the transcript of so many records, in place of a data set."""


class SystemClaim(_EpsilonClaim, _System):
    """(epsilon, delta) of a training of the user's own: what it states that it releases, and a game on its labels."""

    delta: AccountedDelta = 1e-5

    form: ClassVar = "system"
    release: Stated = Field(default_factory=dict)
    """What it releases under noise, in the terms of `dpzv-audit account`, in place of what its module states."""


class CoinClaim(_Named, _System):
    """How often one coin of a game inside a training of the user's own is guessed right.

    It speaks of each coin given all others, not of a mean over trainings: where everything leaks in four of five
    trainings, coins of one training are guessed far above the mean. So it is the claim of an epsilon of
    ln(p / (1 - p)) at a delta of next to 0.
    """

    form: ClassVar = "coins"
    delta: ClassVar[float] = NO_DELTA
    neighbours: ClassVar[NeighbourRelation] = "replace-label"
    kind: Literal["coins"] = "coins"
    coin_success_at_most: FiniteFloat = Field(gt=0.5, lt=1)
    """The largest chance, between 0.5 and 1, of guessing a label that a fair coin decided, given all other coins."""
    adversary: AdversaryName = "client"
    """Who guesses the coins."""

    @property
    def epsilon(self) -> float:
        """Return the epsilon, at a delta of 0, under which no coin is guessed right with a larger chance."""
        return math.log(self.coin_success_at_most / (1.0 - self.coin_success_at_most))

    @property
    def claimed(self) -> float:
        """Return the claimed epsilon."""
        return self.epsilon

    @property
    def in_words(self) -> str:
        """Return the claim in words."""
        return f"each coin guessed right with a chance of at most {100.0 * self.coin_success_at_most:g}%"

    def certified_in_words(self, most: float) -> str:
        """Return in words that trials can certify an epsilon of at most `most`."""
        chance = percent_down(1.0 / (1.0 + math.exp(-most)))
        return f"a chance of at most {chance} of the claimed {100.0 * self.coin_success_at_most:g}%"


class AttackClaim(_Named):
    """What an attack on a training achieves at most."""

    form: ClassVar = "attack"
    kind: Literal["attack"]
    attack: Text
    """Attack; see `dpzv-audit list attacks`; or "strongest": of all that apply the one that finds most in a pilot."""
    success_at_most: FiniteFloat = Field(gt=0, lt=1)
    """The largest success that is claimed for the attack, between 0 and 1."""
    adversary: AdversaryName = "client"
    """Who mounts the attack; of clients the one that finds most in a pilot."""

    @property
    def claimed(self) -> float:
        """Return the largest success that is claimed."""
        return self.success_at_most

    @property
    def in_words(self) -> str:
        """Return the claim in words."""
        return f"success of {self.attack} at most {100.0 * self.success_at_most:g}%"

    def certified_in_words(self, most: float) -> str:
        """Return in words that trials can certify a success of at most `most`."""
        return f"a success of at most {percent_down(most)} of the claimed {100.0 * self.success_at_most:g}%"


class MethodAttackClaim(AttackClaim, _Trained):
    """What an attack on one of the tool's training methods achieves at most."""

    records: ClassVar[None] = None
    queries: int = Field(1, ge=1, le=MOST_QUERIES)
    """Times that a curious client asks about each batch."""


class SystemAttackClaim(AttackClaim, _System):
    """What an attack on a training of the user's own achieves at most."""


class ScoreFiles(_Strict):
    """Two files of scores, a number a run, below the folder of the claims file."""

    in_: Text = Field(alias="in")
    """Scores of runs with the canary: CSV, NPY, NPZ or JSON lines."""
    out: Text
    """Scores of runs without it."""
    header: bool | None = None
    """Whether the first row of a CSV is a header; by default a name is one, and a number may be asked about."""

    def names(self) -> dict[str, str]:
        """Return the files by their keys."""
        return {"in": self.in_, "out": self.out}


class ScoreFilesClaim(_EpsilonClaim):
    """(epsilon, delta) of any system, tested on an attack's scores that it wrote itself."""

    form: ClassVar = "scores"
    scores: ScoreFiles
    exactly_gaussian: ExactlyGaussian = False

    @property
    def files(self) -> dict[str, str]:
        """Return its two files of scores."""
        return {f"scores.{side}": path for side, path in self.scores.names().items()}


class MechanismClaim(_EpsilonClaim):
    """(epsilon, delta) of a mechanism of the user's own, run where `trust_code` allows it, or of a planted one."""

    form: ClassVar = "mechanism"
    mechanism: Text = Field(pattern=r"^(planted:[a-z0-9-]+|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)$")
    """Import path, package.module:factory; or planted:NAME, one that is wrong on purpose."""
    exactly_gaussian: ExactlyGaussian = False
    depends: list[Text] = Field(default_factory=list, max_length=100)
    """Files and folders that the mechanism reads outside the folder of its package or module."""

    @property
    def code_named(self) -> tuple[str, str]:
        """Return the key that names code, and the path that it gives."""
        return "mechanism", self.mechanism

    @property
    def planted(self) -> str:
        """Return the name of the planted mechanism (wrong on purpose, one of the tool's own); "" for another."""
        module, _, name = self.mechanism.partition(":")
        return name if module == "planted" else ""


TrainedClaim = MethodClaim | MethodAttackClaim
OwnClaim = SystemClaim | SystemAttackClaim | CoinClaim
Claim = TrainedClaim | OwnClaim | ScoreFilesClaim | MechanismClaim
ON_SYSTEM = "attack on a system"
FORMS: dict[str, type[Claim]] = {
    "scores": ScoreFilesClaim,
    "mechanism": MechanismClaim,
    ON_SYSTEM: SystemAttackClaim,
    "attack": MethodAttackClaim,
    "coin_success_at_most": CoinClaim,
    "system": SystemClaim,
    "method": MethodClaim,
}
"""Forms by the key that tells them; an attack has `attack` beside `method` or `system`."""


class Defaults(_Strict):
    """What holds for every claim that does not say otherwise, and the error rate of the whole file."""

    alpha: float = Field(DEFAULT_ALPHA, gt=0, lt=0.5)
    """Largest chance that any true claim of the file is refuted."""
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    adversary: AdversaryName | None = None
    neighbours: NeighbourRelation | None = None
    method: Text | None = None
    dataset: Text | None = None
    data_dir: Text | None = None
    clients: int | None = Field(None, ge=1, le=MOST_CLIENTS)
    config: Settings = Field(default_factory=dict)


def form_of(keys: Mapping[str, object]) -> str | None:
    """Return which form a claim of such keys has, None where no key tells."""
    if keys.get("kind") == "attack" or "attack" in keys:
        return ON_SYSTEM if "system" in keys else "attack"
    return next((form for form in FORMS if form in keys), None)


# Characters that nothing is drawn for (Default_Ignorable_Code_Point) and that are not of category Cf, see `_readable`.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def skeleton(name: str) -> str:
    """Return what `name` looks like (Unicode Standard 39, section 4): equal for names that readers could confuse."""
    shown = _INVISIBLE.sub("", name).replace("\u2800", " ")
    # Again, since a letter of another script with a mark becomes a Latin one with it, which the table may have.
    for _ in range(3):
        shown = "".join(map(_prototype, unicodedata.normalize("NFC", shown)))
    return " ".join(unicodedata.normalize("NFD", shown).split())


@cache
def _prototype(character: str) -> str:
    """Return the text that stands for all that look like a character, by Unicode's table of confusables.

    Characters that are not in it look like their compatibility forms (NFKD).
    """
    alike = _confusable_with(character)
    if not alike:
        plain = unicodedata.normalize("NFKD", character)
        return character if plain == character else "".join(map(_prototype, plain))
    # Each entry of the table leads to one prototype, which is therefore what most characters are confusable with.
    prototype = max({character, *alike}, key=lambda text: (len(_confusable_with(text)), len(text), text))
    return prototype if len(prototype) == 1 else "".join(map(_prototype, prototype))


def _confusable_with(text: str) -> set[str]:
    """Return what looks like `text`. The table has letters written from right to left between marks of direction."""
    from confusable_homoglyphs.confusables import confusables_data  # a megabyte, which most commands do without

    mark = "\u200e"
    return {entry["c"].strip(mark) for key in (text, f"{mark}{text}{mark}") for entry in confusables_data.get(key, ())}


def claims_schema() -> dict[str, object]:
    """Return the JSON schema (draft 2020-12) of a claims file: `[defaults]` and all forms of `[[claim]]`."""
    models = (*FORMS.values(), Defaults)
    places, definitions = models_json_schema([(model, "validation") for model in models], by_alias=True)
    for definition in definitions["$defs"].values():
        # What [defaults] may give need not stand in the claim itself.
        required = definition.get("required", [])
        if "name" in required:
            definition["required"] = [key for key in required if key not in Defaults.model_fields]
    refs = {model: places[(model, "validation")] for model in models}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dpzv-audit claims file",
        "type": "object",
        "additionalProperties": False,
        "required": ["claim"],
        "properties": {
            "defaults": refs[Defaults],
            "claim": {"type": "array", "minItems": 1, "items": {"anyOf": [refs[model] for model in FORMS.values()]}},
        },
        **definitions,
    }
