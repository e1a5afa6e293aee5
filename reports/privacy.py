"""The privacy section of a report: claim, measured lower bounds, recomputed upper bounds, proof gaps."""

from __future__ import annotations

from collections.abc import Sequence

from dpzv_audit.findings import ADVERSARIES, EmpiricalBound, UpperBound
from dpzv_audit.results import (
    AttackResult,
    AuditResult,
    JudgedBound,
    Privacy,
    ScoresResult,
    Tradeoff,
    TrainResult,
)
from reports.curves import runs_figure, tradeoff_figure, wealth_figure
from reports.document import Block, Row, Section, Tile, Verdict, pairs, picture, section, table, words
from reports.figures import epsilon_figure
from reports.text import lower_bound, number, percent, proportion, upper_bound, verdict_words

_KINDS = {"epsilon-delta": "(ε, δ)", "trade-off": "trade-off curve"}
_CURVE_ROWS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def verdict(privacy: Privacy) -> Verdict | None:
    """Return the result's verdict with what its word means; None where the result has none."""
    word = privacy.verdict
    if word is None:
        return None
    shown = verdict_words(word, privacy.verdict_given)
    meaning = words("result", word)
    if shown != word:
        meaning += words("result", "given")
    return Verdict(word=shown, meaning=meaning, alarming=word in ("refuted", "overclaimed"))


def _is_upper(bound: UpperBound, upper: float | None, adversary: str | None) -> bool:
    """Whether a sound bound against the adversary is `upper`."""
    if not bound.sound or bound.epsilon is None:
        return False
    return bound.epsilon.upper == upper and bound.adversary == adversary


def tiles(privacy: Privacy) -> list[Tile]:
    """Return the claimed, measured and recomputed epsilon as first-glance numbers, where there are any."""
    lower, upper, gap = privacy.empirical_lower, privacy.upper, privacy.gap
    found = []
    if privacy.claimed is not None:
        scope = [] if privacy.delta is None else [f"δ = {number(privacy.delta)}"]
        scope += [part for part in (privacy.adversary, privacy.neighbours) if part]
        value = f"ε ≤ {number(privacy.claimed)}"
        found.append(Tile(label="Claimed", value=value, note=", ".join(scope)))
    if lower is not None:
        by = (e for e in privacy.estimators if e.epsilon_lower == lower)
        notes = (f"{e.name} at {percent(e.confidence)} confidence" for e in by)
        value = f"ε ≥ {lower_bound(lower)}"
        found.append(Tile(label="Measured", value=value, note=next(notes, "measured"), strong=True))
    if upper is not None:
        tight = (b for b in privacy.bounds if _is_upper(b, upper, privacy.adversary))
        notes = (f"{b.accountant}, against this adversary" for b in tight)
        note = next(notes, "recomputed against this adversary")
        if gap:
            note = f"rests on a proof gap: {gap}"
        found.append(Tile(label="Recomputed", value=f"ε ≤ {upper_bound(upper)}", note=note))
    elif gap:
        found.append(Tile(label="Recomputed", value="no bound", note=f"proof gap: {gap}"))
    return found


def privacy_section(result: AttackResult | TrainResult | AuditResult | ScoresResult) -> list[Section]:
    """Return the privacy section; nothing where the result says nothing about privacy."""
    privacy, lower = result.privacy, result.privacy.empirical_lower
    blocks = _claim_in_words(privacy)
    blocks += picture("epsilon", epsilon_figure(privacy.claimed, lower, privacy.upper))
    if not isinstance(result, ScoresResult) and result.tradeoff:
        blocks += _tradeoff_blocks(result.tradeoff)
    if isinstance(result, AuditResult):
        blocks += picture("runs", runs_figure(result.by_runs, privacy.claimed))
        blocks += picture("wealth", wealth_figure(result.wealth))
    blocks += _estimator_blocks(privacy.estimators, lower)
    blocks += bound_blocks(privacy.bounds, privacy.upper, privacy.adversary)
    blocks += pairs("What the proof gaps mean", ("gap", "meaning"), privacy.gap_explanations)
    if not isinstance(result, ScoresResult) and result.protects:
        blocks.append(f"What the noise protects: {result.protects}")
    return section("privacy", "The privacy claim", blocks)


def _claim_in_words(privacy: Privacy) -> list[Block]:
    """Return the claim as one sentence and the proof gap as another, as far as there are any."""
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
    said = ", ".join(part for part, known in parts.items() if known)
    start = "No epsilon is claimed. The setting" if privacy.claimed is None else "Claimed"
    found = {start: said, "Not audited": privacy.not_audited, "Proof gap": privacy.gap}
    return [f"{what}: {text}." for what, text in found.items() if text]


def _tradeoff_blocks(tradeoff: Tradeoff) -> list[Block]:
    level = tradeoff.confidence
    band = "" if level is None else f" The band holds at {percent(level)} confidence."
    caption = words("captions", "tradeoff", band=band)
    blocks = picture("tradeoff", tradeoff_figure(tradeoff), caption)
    blocks += [tradeoff.note] if tradeoff.note else []
    return blocks + _curve_table(tradeoff)


def _curve_table(tradeoff: Tradeoff) -> list[Block]:
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
    rows = [
        {
            "false positive rate": alpha[i],
            **{title: proportion(curve[i]) for title, curve in present.items()},
        }
        for i in picks
    ]
    caption = f"False negative rates at {len(rows)} of the {len(alpha):,} points that result.json holds"
    return table(caption, rows, numbers=rows[0])


def _estimator_blocks(estimators: Sequence[EmpiricalBound], lower: float | None) -> list[Block]:
    """Return the table of empirical bounds, the one that equals `lower` stressed, and what they can show."""
    blocks = table(
        "Lower bounds on ε from the distinguishing game",
        [_estimator_row(bound) for bound in estimators],
        numbers=("ε at least", "μ at least", "most it could show", "δ", "confidence"),
        strong=(i for i, e in enumerate(estimators) if e.epsilon_lower == lower),
        hoist=True,
    )
    return [*blocks, words("paragraphs", "power")] if blocks else []


def _estimator_row(bound: EmpiricalBound) -> Row:
    return {
        "estimator": bound.name,
        "ε at least": lower_bound(bound.epsilon_lower),
        "μ at least": lower_bound(bound.mu_lower),
        "most it could show": bound.ceiling,
        "speaks about": _KINDS[bound.claim_kind],
        "assumes": bound.assumes or "nothing",
        "verdict": bound.verdict if isinstance(bound, JudgedBound) else None,
        "δ": bound.delta,
        "confidence": percent(bound.confidence),
        "runs": f"{number(bound.n_in)} in, {number(bound.n_out)} out",
        "threshold": bound.threshold_rule,
        "directions/looks": f"{number(bound.directions)}/{number(bound.looks)}",
    }


def bound_blocks(bounds: Sequence[UpperBound], upper: float | None, adversary: str | None) -> list[Block]:
    """Return adversary by accountant where there are several of both, and every upper bound in detail.

    Stressed are sound ones that equal `upper`, against `adversary`.
    """
    detail = table(
        "Upper bounds on ε, one accountant a row",
        [_bound_row(bound) for bound in bounds],
        numbers=("ε at most", "numerical lower / estimate", "δ", "μ"),
        strong=(i for i, bound in enumerate(bounds) if _is_upper(bound, upper, adversary)),
        hoist=True,
    )
    return _by_adversary(bounds) + detail


def _bound_row(bound: UpperBound) -> Row:
    epsilon = bound.epsilon
    return {
        "accountant": bound.accountant,
        "adversary": bound.adversary,
        "neighbours": bound.neighbours,
        "ε at most": _epsilon_text(bound),
        "numerical lower / estimate": epsilon and f"{lower_bound(epsilon.lower)} / {number(epsilon.estimate)}",
        "sound": epsilon and bound.sound,
        "proof gap": bound.gap,
        "δ": bound.delta,
        "μ": upper_bound(bound.mu),
        "note": bound.note,
    }


def _epsilon_text(bound: UpperBound) -> str:
    return "no bound" if bound.epsilon is None else upper_bound(bound.epsilon.upper)


def _by_adversary(bounds: Sequence[UpperBound]) -> list[Block]:
    """Return adversary x accountant with an upper bound in each cell; nothing for a single row or column."""
    found: dict[str, dict[str, list[UpperBound]]] = {}
    for bound in bounds:
        found.setdefault(bound.adversary, {}).setdefault(bound.accountant, []).append(bound)
    accountants = tuple(dict.fromkeys(bound.accountant for bound in bounds))
    if len(found) < 2 or len(accountants) < 2:
        return []
    return table(
        "Upper bounds on ε: adversary by accountant (* not sound: rests on the gap named below)",
        [
            {"adversary": adversary, **{name: _together(by.get(name, ())) for name in accountants}}
            for adversary, by in found.items()
        ],
        numbers=accountants,
    )


def _together(bounds: Sequence[UpperBound]) -> str:
    """Return the bounds of one accountant against one adversary, each with its neighbours where these differ."""
    several = len({bound.neighbours for bound in bounds}) > 1
    texts = []
    for bound in bounds:
        text = _epsilon_text(bound)
        if not bound.sound and bound.epsilon is not None:
            text += " *"
        texts.append(f"{text} ({bound.neighbours})" if several else text)
    return ", ".join(texts)
