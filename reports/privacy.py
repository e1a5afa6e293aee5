"""What templates of a report say of epsilon: where a bound comes from, the claim in words, adversary by accountant."""

from __future__ import annotations

from collections.abc import Sequence

from dpzv_audit.findings import ADVERSARIES, UpperBound
from dpzv_audit.results import Privacy, Tradeoff
from reports.document import Row
from reports.text import number, percent, proportion, upper_bound

_CURVE_ROWS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def scope(privacy: Privacy) -> str:
    """Return what a claimed epsilon holds for: delta, adversary and neighbours."""
    parts = [] if privacy.delta is None else [f"δ = {number(privacy.delta)}"]
    parts += [part for part in (privacy.adversary, privacy.neighbours) if part]
    return ", ".join(parts)


def source_of_lower(privacy: Privacy) -> str:
    """Return which estimator measured the lower bound, and at which confidence; "measured" if that cannot be told."""
    for found in privacy.estimators:
        if found.epsilon_lower == privacy.empirical_lower:
            return f"{found.name} at {percent(found.confidence)} confidence"
    return "measured"


def source_of_upper(privacy: Privacy) -> str:
    """Return which accountant gave the upper bound."""
    for bound in privacy.bounds:
        if is_upper(bound, privacy.upper, privacy.adversary):
            return f"{bound.accountant}, against this adversary"
    return "recomputed against this adversary"


def is_upper(bound: UpperBound, upper: float | None, adversary: str | None) -> bool:
    """Return whether a bound is the sound one, `upper`, against the adversary."""
    if not bound.sound or bound.epsilon is None:
        return False
    return bound.epsilon.upper == upper and bound.adversary == adversary


def claim_in_words(privacy: Privacy) -> str:
    """Return what is known of the claim and its setting, without a verb; "" where nothing is."""
    adversary = privacy.adversary or ""
    meaning = ADVERSARIES.get(adversary)
    audited = privacy.empirical_lower is not None and privacy.confidence is not None
    parts = {
        f"ε ≤ {number(privacy.claimed)}": privacy.claimed is not None,
        f"δ = {number(privacy.delta)}": privacy.delta is not None,
        f"neighbours {privacy.neighbours}": privacy.neighbours,
        f"against {adversary}{f' ({meaning})' if meaning else ''}": adversary,
        f"audited at {percent(privacy.confidence)} confidence": audited,
        f"{privacy.given}": privacy.given,
    }
    return ", ".join(part for part, known in parts.items() if known)


def curve_rows(tradeoff: Tradeoff) -> list[Row]:
    """Return the trade-off curves at a few of their own points; the result file holds every one of them."""
    alpha = tradeoff.alpha
    curves = {
        "claimed": tradeoff.claimed,
        "recomputed": tradeoff.recomputed,
        "measured": tradeoff.empirical,
        "band from": tradeoff.empirical_low,
        "band to": tradeoff.empirical_high,
    }
    present = {title: curve for title, curve in curves.items() if curve}
    if not alpha or not present:
        return []
    inside = [i for i in range(len(alpha)) if 0 < alpha[i] < 1] or range(len(alpha))
    picks = dict.fromkeys(min(inside, key=lambda i: abs(alpha[i] - x)) for x in _CURVE_ROWS)
    rows: list[Row] = []
    for i in picks:
        rates = {title: proportion(curve[i]) for title, curve in present.items()}
        rows.append({"false positive rate": alpha[i], **rates})
    return rows


def epsilon_text(bound: UpperBound) -> str:
    """Return the upper end of a bound, rounded up."""
    return "no bound" if bound.epsilon is None else upper_bound(bound.epsilon.upper)


def by_accountant(bounds: Sequence[UpperBound], adversary: str, accountants: Sequence[str]) -> Row:
    """Return the bounds against an adversary as a row with a column for each accountant."""
    cells: dict[str, str] = {"adversary": adversary}
    for accountant in accountants:
        found = [b for b in bounds if (b.adversary, b.accountant) == (adversary, accountant)]
        several = len({bound.neighbours for bound in found}) > 1
        texts = []
        for bound in found:
            gap = "" if bound.sound or bound.epsilon is None else " *"
            relation = f" ({bound.neighbours})" if several else ""
            texts.append(f"{epsilon_text(bound)}{gap}{relation}")
        cells[accountant] = ", ".join(texts)
    return cells
