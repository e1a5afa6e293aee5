"""A ledger of decisions, so that a gate run on every commit keeps one error rate over all its runs together.

The k-th look at new scores may err with probability alpha / (zeta(1.4) k^1.4), which sums to alpha however long the
ledger grows (alpha spending, Foster and Stine, JRSS B 70, 2008) and leaves a late look more than alpha / (k (k + 1)): 5
times as much at k = 100, 20 times at k = 1,000. How each claim shares its part of that out among its tests (the
sequential test, the full audit) was fixed before anything was drawn, and is written beside the decision.

What is charged is a claim, by all that it says, with a digest of the scores: the same scores decide nothing anew,
however often and by whatever code they are drawn. A refuted claim stays refuted until the claim itself changes, and
what it was refuted by stands beside it: the p-value, the digest of the scores, and what was taken as given.
`dpzv_audit.claims.ledger_file` keeps it on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpzv_audit.evidence.verdict import GIVEN_GAUSSIAN, holm
from dpzv_audit.results import Refutation

EXPONENT = 1.4
SUM_OF_POWERS = 3.1055473
"""At least the sum of k^-1.4 over all k, zeta(1.4) = 3.10554727..."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One claim with what was drawn for it: `claim` and `scores` are digests, `split` how its alpha was shared out.

    `general_p_value` is that of the tests that take nothing as given, by default the same. `tested` says whether there
    are scores at all: without any, nothing can be refuted and nothing is spent.
    """

    claim: str
    scores: str
    name: str
    p_value: float
    general_p_value: float | None = None
    tested: bool = True
    split: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a claim was refuted by the scores of that digest; the claim's `name` then is for people.

    `given` is what a refutation takes as given, "" for nothing. Ledgers that did not keep it, nor `p_value`, have None.
    """

    scores: str
    refuted: bool
    name: str = ""
    p_value: float | None = None
    given: str | None = None
    split: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One run that brought new scores: its error rate, and what was decided, by the digest of the claim."""

    level: float
    decisions: Mapping[str, Decision]


@dataclass(frozen=True)
class Ledger:
    """The ledger's own error rate, which its first run fixed, its runs so far, and a name that no other ledger has."""

    alpha: float
    entries: tuple[Entry, ...] = ()
    name: str = ""

    def refuted(self) -> dict[str, Refutation]:
        """The claims that were refuted, each with what first did it."""
        numbered = reversed(list(enumerate(self.entries, start=1)))
        return {
            claim: Refutation(entry=number, level=entry.level, scores=one.scores, p_value=one.p_value, given=one.given)
            for number, entry in numbered
            for claim, one in entry.decisions.items()
            if one.refuted
        }

    def decided(self) -> set[tuple[str, str]]:
        """Claims with the scores that were decided on."""
        return {(claim, one.scores) for entry in self.entries for claim, one in entry.decisions.items()}

    def next_level(self) -> float:
        """The error rate of the next run with new scores."""
        return level_of(len(self.entries) + 1, self.alpha)

    def spent(self) -> float:
        """What all runs so far may have erred together: at most `alpha`."""
        return sum(entry.level for entry in self.entries)


def level_of(look: int, alpha: float) -> float:
    """Return what the `look`-th look, from 1, may spend of `alpha`: all looks together spend at most `alpha`."""
    return float(alpha / (SUM_OF_POWERS * look**EXPONENT))


def refuted_over_time(
    ledger: Ledger, looks: Sequence[Look]
) -> tuple[tuple[bool, ...], tuple[Refutation | None, ...], Entry]:
    """Return which claims are refuted, by what in an earlier entry (None for this look), and the entry for this look.

    Claims that the ledger has refuted stay so; scores that it has decided on decide nothing anew. The others are
    tested together by Holm's method at the next run's level. An entry without decisions spends nothing.
    """
    before, decided = ledger.refuted(), ledger.decided()
    earlier = tuple(before.get(look.claim) for look in looks)
    new = [
        index
        for index, look in enumerate(looks)
        if look.tested and earlier[index] is None and (look.claim, look.scores) not in decided
    ]
    level = ledger.next_level()
    tested = dict(zip(new, holm([looks[index].p_value for index in new], level), strict=True))
    general = [
        look.p_value if look.general_p_value is None else look.general_p_value for look in (looks[i] for i in new)
    ]
    alone = dict(zip(new, holm(general, level), strict=True))
    refuted = tuple(entry is not None or tested.get(index, False) for index, entry in enumerate(earlier))
    decisions = {
        look.claim: Decision(
            scores=look.scores,
            refuted=tested[index],
            name=look.name,
            p_value=look.p_value,
            given=GIVEN_GAUSSIAN if tested[index] and not alone[index] else "",
            split=look.split,
        )
        for index, look in enumerate(looks)
        if index in tested
    }
    return refuted, earlier, Entry(level, decisions)
