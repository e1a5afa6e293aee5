"""What a planted mechanism is: trials in both worlds, the claim made for it, and the verdict that it must get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpzv_audit.accounting import Release, upper_bounds
from dpzv_audit.findings import AdversaryName, NeighbourRelation, UpperBound, Verdict
from dpzv_audit.games.outcome import Trials

REFUTED: tuple[Verdict, ...] = ("refuted",)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism that is there: the claim, what its maker accounts for, and the games that are played on it.

    `release` is what the configuration says is released: the upper bounds are of it. Games by name; they share the
    error of the verdict.
    """

    epsilon: float
    delta: float
    release: Release
    games: dict[str, Trials]


Build = Callable[[int], Case]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A mechanism that is wrong on purpose, or right, and the verdicts that are right for it.

    `build` takes the seed. `runs` in each world suffice for the verdict at 95%; `score` says what the adversary, who
    has read the code, computes from its view.
    """

    name: str
    summary: str
    expected: tuple[Verdict, ...]
    adversary: AdversaryName
    neighbours: NeighbourRelation
    score: str
    runs: int
    build: Build

    def upper_bounds(self, case: Case) -> list[UpperBound]:
        """Return what accountants say of the release as its maker describes it; of the bug they know nothing."""
        return upper_bounds(
            case.release,
            delta=case.delta,
            adversaries=[self.adversary],
            neighbours=[self.neighbours],
            accountants=("gdp-exact", "rdp", "prv"),
            enough=case.epsilon,
        )


REGISTERED: dict[str, Planted] = {}


def register(
    name: str,
    summary: str,
    build: Build,
    *,
    score: str,
    runs: int,
    adversary: AdversaryName,
    expected: tuple[Verdict, ...] = REFUTED,
    neighbours: NeighbourRelation = "replace-label",
) -> None:
    """Enter a mechanism as `name`, with dashes for underscores."""
    name = name.replace("_", "-")
    REGISTERED[name] = Planted(
        name=name,
        summary=summary,
        expected=expected,
        adversary=adversary,
        neighbours=neighbours,
        score=score,
        runs=runs,
        build=build,
    )


def case(
    summary: str,
    *,
    score: str,
    runs: int,
    adversary: AdversaryName = "eavesdropper",
    expected: tuple[Verdict, ...] = REFUTED,
    neighbours: NeighbourRelation = "replace-label",
) -> Callable[[Build], Build]:
    """Enter the decorated function, which builds the case of a seed, under its own name."""

    def enter(build: Build) -> Build:
        register(
            build.__name__,
            summary,
            build,
            score=score,
            runs=runs,
            adversary=adversary,
            expected=expected,
            neighbours=neighbours,
        )
        return build

    return enter
