"""The evidence about one claim as data: upper bounds from theory, looks of a test, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from dpzv_audit.accounting import GAPS, tightest_sound
from dpzv_audit.evidence.verdict import GIVEN_GAUSSIAN, combined_p_value
from dpzv_audit.findings import UpperBound, to_jsonable
from dpzv_audit.statistics.fixed import FixedTest
from dpzv_audit.statistics.sequential import SequentialTest

NO_NOISE = "no-noise"
NO_NOISE_WHY = "no noise is added to what the server sends, so no upper bound is known"


@dataclass(frozen=True, kw_only=True)
class Theory:
    """What the accountants say of a release; where none is known to account for, nothing `applies`."""

    applies: bool = False
    bounds: tuple[UpperBound, ...] = ()
    """Every accountant's answer."""
    unaccounted: str = ""
    """The gap that leaves nothing to account for."""

    @property
    def tightest(self) -> UpperBound | None:
        """The tightest sound upper bound, None where there is none."""
        return tightest_sound(self.bounds)

    @property
    def upper(self) -> float | None:
        """The tightest sound upper bound on epsilon, None where there is none."""
        best = self.tightest
        return best.epsilon.upper if best and best.epsilon else None

    @property
    def gap(self) -> str:
        """The proof gap where no bound is sound: of the bound that comes nearest to it, the one with the fewest."""
        if self.unaccounted or not self.applies or self.tightest:
            return self.unaccounted
        gaps = [bound.gap for bound in self.bounds if bound.gap and "no-accountant" not in bound.gap]
        return min(gaps, key=lambda gap: (gap.count(","), "clt" in gap or "known-ids" in gap), default="no-accountant")

    @property
    def explanations(self) -> dict[str, str]:
        """The gaps of all bounds, and what each is."""
        if self.unaccounted == NO_NOISE:
            return {NO_NOISE: NO_NOISE_WHY}
        found = [bound.gap for bound in self.bounds if bound.gap] + [self.unaccounted]
        names = [name.strip() for gap in found for name in gap.split(",")]
        return {name: GAPS[name] for name in dict.fromkeys(names) if name in GAPS}


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a claim: a test, and the share of the claim's alpha that it may spend.

    A look of weight 0 is shown and gates nothing: `assumes` says what it would rest on.
    """

    stage: str
    weight: float
    test: FixedTest | SequentialTest
    p_value: float
    assumes: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that was found out about one claim, apart from the verdict, which depends on the whole file."""

    p_value: float
    theory: Theory = field(default_factory=Theory)
    looks: tuple[Look, ...] = ()
    rates: tuple[float, ...] = ()
    """Success of an attack by block of trainings."""
    attack: Mapping[str, Any] = field(default_factory=dict)
    """Baselines and controls of an attack."""
    tradeoff: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Configuration, data and game: what a repeat needs."""
    trials: int = 0
    """Trainings, or runs of the mechanism, in both worlds together."""
    missing: str = ""
    """What a budget or an interrupt left out; "" where the evidence is complete."""
    unaudited: str = ""
    """Why no test was made of this claim, where none can be."""
    warnings: tuple[str, ...] = ()
    """What speaks against the tests, such as scores that do not look independent."""
    split: Mapping[str, float] = field(default_factory=dict)
    """How the claim's one alpha was shared out before anything was drawn: shares by test."""
    scores: str = ""
    """Digest of all that was drawn (`dpzv_audit.evidence.blocks.scores_digest`)."""

    @property
    def tested(self) -> bool:
        """Whether there is a test that could refute the claim."""
        return bool(self.rates) or any(look.weight > 0 for look in self.looks)

    def epsilon_lower(self, error: float) -> float | None:
        """The largest lower bound on epsilon of any gating look at `error` in all; None where nothing was tested."""
        bounds = [look.test.epsilon_lower(error * look.weight) for look in self.looks if look.weight > 0]
        return max(bounds, default=None)

    def ceiling(self, error: float) -> float | None:
        """The largest epsilon that as many scores could have proved; None where nothing was tested."""
        gating = [look for look in self.looks if look.weight > 0]
        # A likelihood ratio has no largest result: it says nothing here where another test does.
        bounded = [look for look in gating if look.test.name != "sequential-gaussian"] or gating
        return max((look.test.ceiling(error * look.weight) for look in bounded), default=None)

    def given(self, error: float) -> str:
        """What the largest of the lower bounds at `error` takes as given by construction; "" for nothing."""
        gating = [look for look in self.looks if look.weight > 0]
        best = max(gating, key=lambda look: look.test.epsilon_lower(error * look.weight), default=None)
        return GIVEN_GAUSSIAN if best is not None and best.test.claim_kind == "trade-off" else ""

    @property
    def general_p_value(self) -> float:
        """P-value of those gating looks alone that take nothing as given; that of an attack's success is one."""
        if not self.looks:
            return self.p_value
        general = [look for look in self.looks if look.weight > 0 and look.test.claim_kind == "epsilon-delta"]
        return combined_p_value((look.p_value, look.weight) for look in general)

    def to_json(self) -> dict[str, object]:
        """A dictionary of plain values, which `evidence_from_json` reads back."""
        value: dict[str, Any] = to_jsonable(self)
        return value


def evidence_from_json(value: Mapping[str, object]) -> Evidence:
    """Return the evidence that `Evidence.to_json` wrote; raise `ValueError` for another value."""
    return _EVIDENCE.validate_python(value)


_EVIDENCE = TypeAdapter(Evidence)
