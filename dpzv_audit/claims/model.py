"""What a claims file may say: four forms of claim, each validated as a whole, the defaults for all, the JSON schema."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from dpzv_audit.findings import AdversaryName, NeighbourRelation
from dpzv_audit.limits import (
    LARGEST_SIZES,
    LONGEST_TEXT,
    MOST_CLIENTS,
    MOST_QUERIES,
    MOST_RECORDS,
    MOST_SETTINGS,
)

DEFAULT_ALPHA = 1e-3
DEFAULT_DELTA = 1e-5
LONGEST_NAME = 200
PLANTED_PREFIX = "planted:"


def _readable(text: str) -> str:
    """Refuse what a terminal or a page would obey, not show: control, surrogate and reordering characters."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            raise ValueError(f"holds the character U+{ord(character):04X}, must hold characters that can be seen")
    return text


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_readable)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_readable)]
Epsilon = Annotated[
    float,
    AfterValidator(_finite),
    Field(gt=0, le=1e6, description="The claimed epsilon: a finite number above 0."),
]
Delta = Annotated[
    float, AfterValidator(_finite), Field(gt=0, lt=1, description="The delta of (epsilon, delta), between 0 and 1.")
]
Limit = Annotated[
    float,
    AfterValidator(_finite),
    Field(gt=0, lt=1, description="The largest success that is claimed for the attack, between 0 and 1."),
]


def _bounded(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse settings past every limit before anything that knows the method is loaded."""
    if len(settings) > MOST_SETTINGS:
        raise ValueError(f"holds {len(settings):,} settings, must hold at most {MOST_SETTINGS}")
    for key, value in settings.items():
        if isinstance(value, int) and value > LARGEST_SIZES.get(key, MOST_RECORDS):
            most = LARGEST_SIZES.get(key, MOST_RECORDS)
            raise ValueError(f"holds {key:.60} = {value!s:.40}, must hold at most {most:,}")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise ValueError(f"holds {key:.60} of {len(value):,} characters, must hold at most {LONGEST_TEXT:,}")
        if isinstance(value, list | dict) and len(value) > MOST_CLIENTS:
            raise ValueError(f"holds {key:.60} of {len(value):,} entries, must hold at most {MOST_CLIENTS:,}")
    return settings


Settings = Annotated[
    dict[str, Any],
    AfterValidator(_bounded),
    Field(description="Settings of the method, as in the method's configuration; see the method's own page."),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Named(_Strict):
    name: Name = Field(description="What the claim is called in every result; no two claims share one.")
    source: Text | None = Field(None, description="Who claims it and where: a paper's section, a policy's number.")
    revision: int | None = Field(
        None,
        ge=1,
        le=10**6,
        description="Raised after a repair: it is then another claim, which a ledger that refuted it tests anew.",
    )


class _EpsilonClaim(_Named):
    kind: Literal["epsilon"] = "epsilon"
    epsilon: Epsilon
    delta: Delta = DEFAULT_DELTA
    adversary: AdversaryName = Field("client", description="Who must not learn more than epsilon allows.")
    neighbours: NeighbourRelation = Field("replace-label", description="What may differ between the two worlds.")


class _Trained(_Strict):
    dataset: Text = Field("digits", description="Data set; see `dpzv-audit list datasets`.")
    data_dir: Text | None = Field(None, description="Folder with the data set's original files.")
    clients: int | None = Field(None, ge=1, le=MOST_CLIENTS, description="Clients; by default the data set's own.")
    config: Settings = Field(default_factory=dict)


class MethodClaim(_EpsilonClaim, _Trained):
    """(epsilon, delta) of one of the tool's training methods; its noise is calibrated to the claim."""

    method: Text = Field(description="Training method; see `dpzv-audit list methods`.")
    records: int | None = Field(
        None,
        ge=1,
        le=MOST_RECORDS,
        description="Train nothing: simulate the transcript of so many records, in place of a data set.",
    )


class AttackClaim(_Named, _Trained):
    """What an attack on one of the tool's training methods achieves at most."""

    kind: Literal["attack"]
    method: Text = Field(description="Training method; see `dpzv-audit list methods`.")
    attack: Text = Field(description="Attack; see `dpzv-audit list attacks`.")
    success_at_most: Limit
    adversary: AdversaryName = Field("client", description="Who mounts the attack.")
    queries: int = Field(1, ge=1, le=MOST_QUERIES, description="Times that a curious client asks about each batch.")


class ScoreFiles(_Strict):
    """Two files of scores, a number a run, below the folder of the claims file."""

    in_: Text = Field(alias="in", description="Scores of runs with the canary: CSV, NPY, NPZ or JSON lines.")
    out: Text = Field(description="Scores of runs without it.")


class ScoresClaim(_EpsilonClaim):
    """(epsilon, delta) of any system, tested on an attack's scores that it wrote itself."""

    scores: ScoreFiles
    exactly_gaussian: bool = Field(False, description="The scores are Gaussian with one variance by construction.")


class MechanismClaim(_EpsilonClaim):
    """(epsilon, delta) of a mechanism of the user's own, run where `trust_code` allows it, or of a planted one."""

    mechanism: Annotated[
        Text,
        Field(
            pattern=r"^(planted:[a-z0-9-]+|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)$",
            description="Import path, package.module:factory; or planted:NAME, one that is wrong on purpose.",
        ),
    ]
    exactly_gaussian: bool = Field(False, description="The scores are Gaussian with one variance by construction.")
    depends: list[Text] = Field(
        default_factory=list,
        max_length=100,
        description="Files and folders that the mechanism reads outside the folder of its package or module.",
    )

    @property
    def planted(self) -> bool:
        """Whether the mechanism is one of the tool's own that are wrong on purpose."""
        return self.mechanism.startswith(PLANTED_PREFIX)


Claim = MethodClaim | AttackClaim | ScoresClaim | MechanismClaim
FORMS: dict[str, type[Claim]] = {
    "scores": ScoresClaim,
    "mechanism": MechanismClaim,
    "attack": AttackClaim,
    "method": MethodClaim,
}
"""Forms by the key that tells them; the attack of a method has `attack` beside `method`."""


class Defaults(_Strict):
    """What holds for every claim that does not say otherwise, and the error rate of the whole file."""

    alpha: Annotated[
        float, Field(gt=0, lt=0.5, description="Largest chance that any true claim of the file is refuted.")
    ] = DEFAULT_ALPHA
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    adversary: AdversaryName | None = None
    neighbours: NeighbourRelation | None = None
    method: Text | None = None
    dataset: Text | None = None
    data_dir: Text | None = None
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] | None = None
    config: Settings = Field(default_factory=dict)


def form_of(keys: dict[str, object]) -> str | None:
    """Return which form a claim of such keys has, None where no key tells."""
    if keys.get("kind") == "attack":
        return "attack"
    return next((form for form in FORMS if form in keys), None)


# Python's standard library knows compatibility forms (NFKC), not which letters of different scripts look alike: the
# table holds those of Cyrillic and Greek that hide in Latin text, with digits and marks. Control, reordering and
# zero-width characters (category Cf) are refused in any name, see `_readable`.
_ALIKE = {
    # Cyrillic
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405": "ABEKMHOPCTYXlJS",
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u051b\u051d\u04cf\u04c0": (
        "aeopcyxijsdhqwll"
    ),
    # Greek, and Latin letters of phonetics
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7": "ABEZHlKMNOPTYX",
    "\u03b1\u03b9\u03bd\u03bf\u03c1\u03c5\u0131\u0251\u0261": "aivopuiag",
    # digits and marks
    "I1|0": "lllO",
    "\u2010\u2012\u2013\u2014\u2212": "-----",
    "\u2018\u2019`\u02b9\u2032": "'''''",
    "\u2044\u2215\ua789\u2236\u02d0": "//:::",
}
_TABLE = {ord(one): other for ones, others in _ALIKE.items() for one, other in zip(ones, others, strict=True)}
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Characters that nothing is drawn for and that are not of category Cf."""
_BLANK = "\u2800"


def skeleton(name: str) -> str:
    """Return what `name` looks like (Unicode Standard 39, section 4): equal for names that readers could confuse."""
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", name)).replace(_BLANK, " ")
    return " ".join(text.split()).translate(_TABLE).replace("rn", "m")


def claims_schema() -> dict[str, object]:
    """Return the JSON schema (draft 2020-12) of a claims file: `[defaults]` and the four forms of `[[claim]]`."""
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
