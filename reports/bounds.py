"""The tables of bounds on epsilon: estimators from below, accountants from above, proof gaps in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.model import Block, Column, Prose, Table, hoisted
from reports.text import MISSING, clean, lower_bound, number, percent, upper_bound, words

Mapped = Mapping[str, Any]


def _estimator_row(estimator: Mapped) -> tuple[str, ...]:
    kinds = {"epsilon-delta": "(ε, δ)", "trade-off": "trade-off curve"}
    kind = kinds.get(estimator.get("claim_kind") or "", words(estimator.get("claim_kind")))
    assumes = estimator.get("assumes")
    runs = f"{number(estimator.get('n_in'))} in, {number(estimator.get('n_out'))} out"
    rule = words(estimator.get("threshold_rule"))
    searches = f"{number(estimator.get('directions'))}/{number(estimator.get('looks'))}"
    return (
        words(estimator.get("name")),
        lower_bound(estimator.get("epsilon_lower")),
        lower_bound(estimator.get("mu_lower")),
        number(estimator.get("ceiling")),
        kind,
        clean(assumes) if assumes else "nothing",
        words(estimator.get("verdict")),
        number(estimator.get("delta")),
        percent(estimator.get("confidence")),
        runs,
        rule,
        searches,
    )


def estimator_blocks(estimators: Sequence[Mapped], lower: object) -> list[Block]:
    """Return the table of empirical bounds, the one that equals `lower` stressed, and what they can show."""
    if not estimators:
        return []
    numeric: tuple[str, ...] = ("ε at least", "μ at least", "most it could show", "δ", "confidence")
    titles = (
        "estimator",
        *numeric[:3],
        "speaks about",
        "assumes",
        "verdict",
        *numeric[3:],
        "runs",
        "threshold",
        "directions/looks",
    )
    columns = tuple(Column(title=t, kind="number" if t in numeric else "text") for t in titles)
    strong = frozenset(i for i, e in enumerate(estimators) if lower is not None and e.get("epsilon_lower") == lower)
    table = Table(
        caption="Lower bounds on ε from the distinguishing game",
        columns=columns,
        rows=tuple(_estimator_row(e) for e in estimators),
        strong=strong,
    )
    power = (
        "A lower bound cannot exceed what its number of runs can show (“most it could show”): a true ε above "
        "that stays unseen. A bound refutes only the kind of claim it speaks about; one that assumes "
        "something refutes only where that holds."
    )
    return [hoisted(table, blank=MISSING), Prose(text=power)]


def _epsilon_text(bound: Mapped) -> str:
    epsilon = bound.get("epsilon")
    if not epsilon:
        return "no bound"
    return upper_bound(epsilon.get("upper"))


def _matrix(bounds: Sequence[Mapped]) -> Table | None:
    """Return adversary x accountant with an upper bound a cell; None for a single row or column."""
    adversaries = list(dict.fromkeys(words(b.get("adversary")) for b in bounds))
    accountants = list(dict.fromkeys(words(b.get("accountant")) for b in bounds))
    if len(adversaries) < 2 or len(accountants) < 2:
        return None

    def cell(adversary: str, accountant: str) -> str:
        found = [
            b for b in bounds if (words(b.get("adversary")), words(b.get("accountant"))) == (adversary, accountant)
        ]
        several = len({b.get("neighbours") for b in found}) > 1
        texts = [
            _epsilon_text(b)
            + ("" if b.get("sound") or not b.get("epsilon") else " *")
            + (f" ({words(b.get('neighbours'))})" if several else "")
            for b in found
        ]
        return ", ".join(texts) or MISSING

    return Table(
        caption="Upper bounds on ε: adversary by accountant (* not sound: rests on the gap named below)",
        columns=(Column(title="adversary"), *(Column(title=a, kind="number") for a in accountants)),
        rows=tuple((adv, *(cell(adv, acc) for acc in accountants)) for adv in adversaries),
    )


def _bound_row(bound: Mapped) -> tuple[str, ...]:
    epsilon = bound.get("epsilon") or {}
    spread = f"{lower_bound(epsilon.get('lower'))} / {number(epsilon.get('estimate'))}" if epsilon else MISSING
    sound = {True: "yes", False: "no"}.get(bound.get("sound"), MISSING)  # type: ignore[arg-type]
    sound = sound if epsilon else MISSING
    return (
        words(bound.get("accountant")),
        words(bound.get("adversary")),
        words(bound.get("neighbours")),
        _epsilon_text(bound),
        spread,
        sound,
        words(bound.get("gap")),
        number(bound.get("delta")),
        upper_bound(bound.get("mu")),
        words(bound.get("note")),
    )


def bound_blocks(privacy: Mapped) -> list[Block]:
    """Return adversary by accountant where there are several of both, and every upper bound in detail."""
    bounds = privacy.get("bounds") or []
    if not bounds:
        return []
    numeric = ("ε at most", "numerical lower / estimate", "δ", "μ")
    titles = (
        "accountant",
        "adversary",
        "neighbours",
        *numeric[:2],
        "sound",
        "proof gap",
        *numeric[2:],
        "note",
    )
    strong = frozenset(
        i
        for i, b in enumerate(bounds)
        if b.get("sound")
        and privacy.get("upper") is not None
        and (b.get("epsilon") or {}).get("upper") == privacy["upper"]
        and b.get("adversary") == privacy.get("adversary")
    )
    table = Table(
        caption="Upper bounds on ε, one accountant a row",
        columns=tuple(Column(title=t, kind="number" if t in numeric else "text") for t in titles),
        rows=tuple(_bound_row(b) for b in bounds),
        strong=strong,
    )
    matrix = _matrix(bounds)
    details = hoisted(table, blank=MISSING)
    return [details] if matrix is None else [matrix, details]


def gap_table(privacy: Mapped) -> Table | None:
    """Return each proof gap with the sentence that explains it; None where the result explains none."""
    gaps = privacy.get("gap_explanations") or {}
    if not gaps:
        return None
    return Table(
        caption="What the proof gaps mean",
        columns=(Column(title="gap"), Column(title="meaning")),
        rows=tuple((clean(k), words(v)) for k, v in gaps.items()),
    )
