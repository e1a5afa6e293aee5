"""Evidence about one claim as data, and verdicts as pure functions of it: by tests, and from upper bounds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, get_args

import numpy as np

from reports.verdicts import set_aside

from ..accounting import GAPS, epsilon_delta_tradeoff, gaussian_tradeoff, mu_from_epsilon, tightest_sound
from ..base.findings import (
    CONTRADICTED,
    STATED,
    EmpiricalBound,
    PooledControl,
    UpperBound,
    VerdictReason,
    VerdictWord,
    Void,
)
from ..base.rounding import as_claimed
from ..results import Measured, Privacy, Proven, Verdict
from ..statistics.estimators import can_refute
from ..statistics.fixed import FixedTest, MeansTest
from ..statistics.one_run import CoinTest
from ..statistics.panel import Panel, combined_p_value, holm
from ..statistics.sequential import SequentialTest
from ..statistics.success import least_p_value, success_upper
from .sentences import said, supports

VERDICTS: tuple[VerdictWord, ...] = get_args(VerdictWord)

GIVEN_GAUSSIAN = "given Gaussian noise"
"""What a bound on a Gaussian trade-off curve takes as given where it may refute a claim of (epsilon, delta)."""


def decide(
    *,
    refuted: bool,
    theory: bool,
    upper: float | None,
    claimed: float | None,
    voids: Sequence[Void] = (),
    refuted_before: bool = False,
    held: bool = False,
    powerless: VerdictReason | None = None,
) -> tuple[VerdictWord, VerdictReason]:
    """Return the verdict on one claim and why: the first that applies, from the top.

    Args:
        refuted: whether a test says so at the error rate of the whole file.
        theory: whether theory speaks about this claim at all: an accountant answered, be it "no sound bound".
        upper: the tightest *sound* upper bound on epsilon against this adversary; None where there is none.
        claimed: the claimed epsilon; None for a claim about an attack, which no theorem covers.
        voids: what voids the evidence, and a release that is only stated.
        refuted_before: whether an earlier look, of which a ledger knows, refuted it: that stands.
        held: whether all controls of an attack passed and the upper limit of its success lies within the claim.
        powerless: why no test could have refuted the claim, had the evidence been the strongest; None where one could.
    """
    if refuted_before:
        return "refuted", "refuted-before"
    if refuted and not any(void.refutations for void in voids):
        return "refuted", "measured-above-claim"
    if voids:
        return "not-tested", voids[0].reason
    if theory and claimed is not None:
        if upper is None:
            return "overclaimed", "no-sound-bound"
        return ("supported", "proven") if supports(upper, claimed) else ("overclaimed", "bound-above-claim")
    if held:
        return "held", "limit-below-claim"
    return ("inconclusive", "not-refuted") if powerless is None else ("not-tested", powerless)


def why_powerless(*, tested: bool, could_refute: bool) -> VerdictReason | None:
    """Return why no test could have refuted a claim: none was made, or none could at its best; None where one could."""
    if not tested:
        return "no-test"
    return None if could_refute else "never-refutable"


def fails(word: VerdictWord, *, audited: bool, allow: Collection[str] = (), strict: bool = False) -> bool:
    """Return whether a claim fails the gate: refuted always, overclaimed and not tested unless allowed.

    With `strict` also where it is inconclusive, and where it was not `audited`: no test was made, or a budget cut it.
    """
    if strict and (word == "inconclusive" or not audited):
        return True
    return word == "refuted" or (word in ("overclaimed", "not-tested") and word not in allow)


def on_privacy(
    privacy: Privacy,
    *,
    theory: bool,
    stated: bool = False,
    voids: Sequence[Void] = (),
    not_tested: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Privacy:
    """Return the privacy section of a result with the verdict on its claim; unchanged where nothing is claimed.

    `theory` says whether theory speaks about it, `stated` whether it rests on a release that a system states.
    """
    claimed, estimators = privacy.claimed, privacy.estimators
    if claimed is None:
        return privacy
    gating = [bound for bound in estimators if can_refute(bound)]
    lower = privacy.empirical_lower
    word, reason = decide(
        refuted=lower is not None and lower > claimed,
        theory=theory,
        upper=privacy.upper,
        claimed=claimed,
        voids=voids,
        powerless=why_powerless(tested=bool(gating), could_refute=any(bound.ceiling > claimed for bound in gating)),
    )
    missing = []
    if privacy.not_audited and lower is None:
        prefix = "" if privacy.not_audited.startswith(("no audit", "the bounds are")) else "no audit was made: "
        missing = [f"{prefix}{privacy.not_audited}"]
    assumed = [(bound.epsilon_lower, bound.assumes) for bound in estimators]
    measured = None
    if lower is not None:
        assumes = given_by(estimators) or ""
        measured = Measured(quantity="epsilon", value=lower, confidence=privacy.confidence, assumes=assumes)
    verdict = Verdict(
        claim=claim_in_words(claimed, privacy.delta),
        claimed=claimed,
        adversary=privacy.adversary,
        neighbours=privacy.neighbours,
        word=word,
        reason=reason,
        why=said("why", privacy, word, voids, STATED if stated else ""),
        given=refuted_given(claimed, estimators) if word == "refuted" else "",
        measured=measured,
        proven=proven(privacy.upper, stated=stated),
        not_tested=[*not_tested, *missing],
        warnings=[*dict.fromkeys([*(void.words for void in voids), *warnings]), *set_aside(assumed, lower, claimed)],
    )
    return privacy.model_copy(update={"verdict": word, "judged": verdict})


def proven(upper: float | None, *, stated: bool) -> Proven | None:
    """Return the tightest sound upper bound with what it rests on, None where there is none."""
    return None if upper is None else Proven(value=upper, rests_on=STATED if stated else "")


def claim_in_words(epsilon: float, delta: float | None) -> str:
    """Return a claim of (epsilon, delta) in words."""
    return f"epsilon at most {as_claimed(epsilon)}" + ("" if delta is None else f" (delta {delta:g})")


def largest_gating(bounds: Sequence[EmpiricalBound]) -> float | None:
    """Return the largest epsilon among bounds that may refute an (epsilon, delta) claim, None where none may."""
    return max((bound.epsilon_lower for bound in bounds if can_refute(bound)), default=None)


def refuted_given(claimed: float, bounds: Sequence[EmpiricalBound]) -> str:
    """Return what a refutation of `claimed` takes as given; "" where a bound that takes nothing refutes it too.

    "" as well where no bound that may refute it does.
    """
    kinds = {bound.claim_kind for bound in bounds if can_refute(bound) and bound.epsilon_lower > claimed}
    return GIVEN_GAUSSIAN if kinds == {"trade-off"} else ""


def given_by(bounds: Sequence[EmpiricalBound]) -> str | None:
    """Return what the largest gating bound takes as given: Gaussian noise where it is one on a trade-off curve."""
    best = max(filter(can_refute, bounds), key=attrgetter("epsilon_lower"), default=None)
    return GIVEN_GAUSSIAN if best is not None and best.claim_kind == "trade-off" else None


NO_NOISE = "no-noise"
NO_RELEASE = "no-release"
NOT_RELEASED = "not-released"
NO_PROMISE = "no-promise"
_UNACCOUNTED = {
    NO_NOISE: "no noise is added to what the server sends, so no upper bound is known",
    NO_RELEASE: "the system states no release, so no theorem covers it",
    NOT_RELEASED: "noise is drawn, and the method states no release of it, so no theorem covers it",
    NO_PROMISE: "the defences change messages without a guarantee, so no upper bound is known",
}


@dataclass(frozen=True, kw_only=True)
class Theory:
    """The answers of all accountants about a release; where no release is known, nothing `applies`.

    `bounds` are every accountant's answers; `unaccounted` is the gap that leaves nothing to account for, and `why` what
    the method says of that. `stated` says that they are on a release that a system states.
    """

    applies: bool = False
    bounds: tuple[UpperBound, ...] = ()
    unaccounted: str = ""
    why: str = ""
    stated: bool = False

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
        """The proof gap where no bound is sound: that of the bound which comes nearest to it, with the fewest gaps.

        That is the gap of the exact Gaussian bound wherever this accounts for the release, in `audit` and `verify`
        alike; where it does not, as of secret Poisson batches under `add-remove`, another accountant's says more than
        "no-accountant".
        """
        if self.unaccounted or not self.applies or self.tightest:
            return self.unaccounted
        gaps = [bound.gap for bound in self.bounds if bound.gap and "no-accountant" not in bound.gap]
        return min(gaps, key=lambda gap: (gap.count(","), "clt" in gap or "known-ids" in gap), default="no-accountant")

    @property
    def explanations(self) -> dict[str, str]:
        """The gaps of all bounds, and what each is."""
        if self.unaccounted in _UNACCOUNTED:
            why = f": {self.why}" if self.why else ""
            return {self.unaccounted: f"{_UNACCOUNTED[self.unaccounted]}{why}"}
        gaps = [*(bound.gap or "" for bound in self.bounds), self.unaccounted]
        names = dict.fromkeys(name.strip() for gap in gaps for name in gap.split(","))
        return {name: GAPS[name] for name in names if name in GAPS}


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a claim: a test, and the share of the claim's alpha that it may spend.

    A look of weight 0 is shown and gates nothing: `assumes` says what it would rest on.
    """

    stage: str
    weight: float
    test: MeansTest | FixedTest | SequentialTest | CoinTest
    p_value: float
    assumes: str = ""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The most that `trials` trials could show: the least p-value, and the largest epsilon, or success, certified.

    `most` is None where no result is the largest; `unit` is what trials are called.
    """

    trials: int
    p_value: float
    most: float | None
    unit: str = "trials"


@dataclass(frozen=True, kw_only=True)
class AttackEvidence:
    """Measurements of the attacks that a claim on success is about.

    Attributes:
        rates: Success by training of the attack that the claim names, or that a pilot chose.
        least_success: The least success that the attack can have.
        means: Mean success of that attack, of its baselines and of its controls, and who mounted it.
        controls: The controls of all attacks that were mounted, pooled over their trainings.
        others: Success by training of the other attacks that the claim is about, by attack and client; empty where the
            claim names one attack by one client, or it was not held against the one that a pilot chose.
        unmeasured: Attacks and clients that the claim is about too, and that were not mounted.
        excluded: Attacks and clients that the claim is not about, each with the reason.
    """

    rates: tuple[float, ...] = ()
    least_success: float = 0.0
    means: Mapping[str, Any] = field(default_factory=dict)
    controls: tuple[PooledControl, ...] = ()
    others: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)

    def success_upper(self, error: float) -> float | None:
        """Return an upper limit, at `error`, on the mean success of every attack that the claim is about.

        Each attack by each client has its share of the error. None where one of them was not mounted.
        """
        if not self.rates or self.unmeasured:
            return None
        return max(self.upper_of(rates, error) for rates in (self.rates, *self.others.values()))

    def upper_of(self, rates: Sequence[float], error: float) -> float:
        """Return the upper limit on the mean success of one attack, which has its share of `error`."""
        panel = Panel(("chosen", *self.others, *self.unmeasured, *self.excluded))
        return success_upper(rates, panel.level(error), least=self.least_success)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that was found out about one claim, apart from the verdict, which depends on the whole file.

    Attributes:
        attack: What was measured of the attacks that the claim is about; empty where it is about none.
        reach: What the planned trials could have shown; None where nothing is tested.
        facts: Configuration, data and game: what a repeat needs.
        trials: Trainings, or runs of the mechanism, in both worlds together.
        missing: What a budget or an interrupt left out; "" where the evidence is complete.
        unaudited: Why no test was made of this claim, where none can be: nobody plays a game for its adversary and its
            relation, or there is too little to play it on.
        warnings: What speaks against the tests, such as scores that do not look independent.
        voids: What voids the evidence: a failed control, messages that no score reads.
        not_tested: What was not looked at, each as a sentence without a full stop.
        split: How the claim's one alpha was shared out before anything was drawn: shares by test.
        scores: Digest of all that was drawn (`evidence.gathering.scores_digest`).
    """

    p_value: float
    theory: Theory = field(default_factory=Theory)
    looks: tuple[Look, ...] = ()
    attack: AttackEvidence = field(default_factory=AttackEvidence)
    reach: Reach | None = None
    tradeoff: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 0
    missing: str = ""
    unaudited: str = ""
    warnings: tuple[str, ...] = ()
    voids: tuple[Void, ...] = ()
    not_tested: tuple[str, ...] = ()
    split: Mapping[str, float] = field(default_factory=dict)
    scores: str = ""

    @property
    def tested(self) -> bool:
        """Whether there is a test that could refute the claim."""
        return bool(self.attack.rates or self._gating)

    @property
    def _gating(self) -> list[Look]:
        return [look for look in self.looks if look.weight > 0]

    def epsilon_lower(self, error: float) -> float | None:
        """Return the largest lower bound on epsilon of any gating look at `error` in all; None without a test."""
        return max((look.test.epsilon_lower(error * look.weight) for look in self._gating), default=None)

    def ceiling(self, error: float) -> float | None:
        """Return the largest epsilon that as many scores could have proved; None where nothing was tested."""
        gating = self._gating
        # A likelihood ratio has no largest result: it says nothing here where another test does.
        bounded = [look for look in gating if look.test.name != "sequential-gaussian"] or gating
        return max((look.test.ceiling(error * look.weight) for look in bounded), default=None)

    def could_refute(self, error: float, claimed: float) -> bool:
        """Return whether as much evidence could have refuted a claimed epsilon, or success of an attack, at `error`."""
        if self.attack.rates:
            return least_p_value(len(self.attack.rates), claimed, least=self.attack.least_success) <= error
        return any(
            look.test.name == "sequential-gaussian" or look.test.ceiling(error * look.weight) > claimed
            for look in self._gating
        )

    def set_aside(self, error: float, claimed: float) -> list[str]:
        """Return a warning where a stronger bound at `error` gates nothing because the scores contradict it."""
        aside = [look for look in self.looks if not look.weight and CONTRADICTED in look.assumes]
        bounds = [(look.test.epsilon_lower(error), look.assumes) for look in aside]
        return set_aside(bounds, self.epsilon_lower(error), claimed)

    def given(self, error: float) -> str:
        """Return what the largest of the lower bounds at `error` takes as given by construction; "" for nothing."""
        best = max(self._gating, key=lambda look: look.test.epsilon_lower(error * look.weight), default=None)
        if best is not None and best.test.family.claim_kind == "trade-off":
            return GIVEN_GAUSSIAN
        return ""

    @property
    def general_p_value(self) -> float:
        """P-value of those gating looks alone that take nothing as given; that of an attack's success is one."""
        if not self.looks:
            return self.p_value
        general = [look for look in self._gating if look.test.family.claim_kind == "epsilon-delta"]
        return combined_p_value((look.p_value, look.weight) for look in general)


def refutable(evidence: Sequence[Evidence], level: float) -> tuple[bool, ...]:
    """Return which claims Holm's method would reject at `level` if every planned trial spoke against its claim.

    Those without planned trials keep the p-value that they have.
    """
    return holm([(claim if claim.reach is None else claim.reach).p_value for claim in evidence], level)


def theory_curves(
    alpha: Sequence[float], theory: Theory, *, epsilon: float | None, delta: float, of_method: bool
) -> dict[str, list[float] | None]:
    """Return the trade-off curves at (n,) `alpha` of a claim and of the tightest sound bound, None for what is not.

    `of_method`: of the scalar channel of a method, whose theorem claims the Gaussian curve (mu-GDP) through
    (epsilon, delta). Of anything else the least of every (epsilon, delta) mechanism is claimed, and no more.
    """
    grid = np.asarray(alpha)

    def curve(epsilon: float | None, mu: float | None) -> list[float] | None:
        if epsilon is None:
            return None
        rates = epsilon_delta_tradeoff(grid, epsilon, delta) if mu is None else gaussian_tradeoff(grid, mu)
        return [float(rate) for rate in rates]

    best = theory.tightest
    recomputed = None
    if best is not None and best.epsilon is not None:
        recomputed = curve(best.epsilon.upper, best.mu)
    claimed_mu = mu_from_epsilon(epsilon, delta) if of_method and epsilon is not None else None
    return {"claimed": curve(epsilon, claimed_mu), "recomputed": recomputed}
