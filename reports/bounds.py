"""The tables of bounds on epsilon: estimators from below, accountants from above, proof gaps in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpzv_audit.findings import EmpiricalBound, UpperBound
from dpzv_audit.results import JudgedBound
from reports.model import Block, Prose, Table, columns, hoisted
from reports.text import MISSING, clean, lower_bound, number, percent, upper_bound, words

_KINDS = {"epsilon-delta": "(ε, δ)", "trade-off": "trade-off curve"}


def _estimator_row(bound: EmpiricalBound) -> tuple[str, ...]:
    return (
        words(bound.name),
        lower_bound(bound.epsilon_lower),
        lower_bound(bound.mu_lower),
        number(bound.ceiling),
        _KINDS[bound.claim_kind],
        clean(bound.assumes) or "nothing",
        words(bound.verdict if isinstance(bound, JudgedBound) else None),
        number(bound.delta),
        percent(bound.confidence),
        f"{number(bound.n_in)} in, {number(bound.n_out)} out",
        words(bound.threshold_rule),
        f"{number(bound.directions)}/{number(bound.looks)}",
    )


def estimator_blocks(estimators: Sequence[EmpiricalBound], lower: float | None) -> list[Block]:
    """Return the table of empirical bounds, the one that equals `lower` stressed, and what they can show."""
    if not estimators:
        return []
    table = Table(
        caption="Lower bounds on ε from the distinguishing game",
        columns=columns(
            "estimator",
            "ε at least",
            "μ at least",
            "most it could show",
            "speaks about",
            "assumes",
            "verdict",
            "δ",
            "confidence",
            "runs",
            "threshold",
            "directions/looks",
            numbers=("ε at least", "μ at least", "most it could show", "δ", "confidence"),
        ),
        rows=tuple(map(_estimator_row, estimators)),
        strong=frozenset(i for i, e in enumerate(estimators) if e.epsilon_lower == lower),
    )
    power = (
        "A lower bound cannot exceed what its number of runs can show (“most it could show”): a true ε above "
        "that stays unseen. A bound refutes only the kind of claim it speaks about; one that assumes "
        "something refutes only where that holds."
    )
    return [hoisted(table), Prose(text=power)]


def _epsilon_text(bound: UpperBound) -> str:
    return "no bound" if bound.epsilon is None else upper_bound(bound.epsilon.upper)


def _matrix(bounds: Sequence[UpperBound]) -> list[Block]:
    """Return adversary x accountant with an upper bound in each cell; nothing for a single row or column."""
    adversaries = list(dict.fromkeys(words(b.adversary) for b in bounds))
    accountants = list(dict.fromkeys(words(b.accountant) for b in bounds))
    if len(adversaries) < 2 or len(accountants) < 2:
        return []

    def cell(adversary: str, accountant: str) -> str:
        found = [b for b in bounds if (words(b.adversary), words(b.accountant)) == (adversary, accountant)]
        several = len({b.neighbours for b in found}) > 1
        texts = [
            _epsilon_text(b)
            + ("" if b.sound or b.epsilon is None else " *")
            + (f" ({words(b.neighbours)})" if several else "")
            for b in found
        ]
        return ", ".join(texts) or MISSING

    table = Table(
        caption="Upper bounds on ε: adversary by accountant (* not sound: rests on the gap named below)",
        columns=columns("adversary", *accountants, numbers=accountants),
        rows=tuple((adv, *(cell(adv, acc) for acc in accountants)) for adv in adversaries),
    )
    return [table]


def _bound_row(bound: UpperBound) -> tuple[str, ...]:
    epsilon = bound.epsilon
    return (
        words(bound.accountant),
        words(bound.adversary),
        words(bound.neighbours),
        _epsilon_text(bound),
        MISSING if epsilon is None else f"{lower_bound(epsilon.lower)} / {number(epsilon.estimate)}",
        MISSING if epsilon is None else number(bound.sound),
        words(bound.gap),
        number(bound.delta),
        upper_bound(bound.mu),
        words(bound.note),
    )


def bound_blocks(bounds: Sequence[UpperBound], upper: float | None, adversary: str | None) -> list[Block]:
    """Return adversary by accountant where there are several of both, and every upper bound in detail.

    Stressed are sound ones that equal `upper`, against `adversary`.
    """
    if not bounds:
        return []
    table = Table(
        caption="Upper bounds on ε, one accountant a row",
        columns=columns(
            "accountant",
            "adversary",
            "neighbours",
            "ε at most",
            "numerical lower / estimate",
            "sound",
            "proof gap",
            "δ",
            "μ",
            "note",
            numbers=("ε at most", "numerical lower / estimate", "δ", "μ"),
        ),
        rows=tuple(map(_bound_row, bounds)),
        strong=frozenset(
            i
            for i, b in enumerate(bounds)
            if b.sound and b.epsilon is not None and b.epsilon.upper == upper and b.adversary == adversary
        ),
    )
    return [*_matrix(bounds), hoisted(table)]


def gap_table(explanations: Mapping[str, str]) -> list[Block]:
    """Return each proof gap with the sentence that explains it; nothing where none is explained."""
    rows = tuple((clean(gap), words(meaning)) for gap, meaning in explanations.items())
    return [Table(caption="What the proof gaps mean", columns=columns("gap", "meaning"), rows=rows)] if rows else []
