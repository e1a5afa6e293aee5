"""The privacy section of a report: claim, measured lower bounds, recomputed upper bounds, proof gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpzv_audit.evidence import ADVERSARIES
from reports.bounds import bound_blocks, estimator_blocks, gap_table
from reports.figures import epsilon_figure, tradeoff_figure
from reports.model import Block, Column, Picture, Prose, Section, Table, Tile, Verdict
from reports.runs_figure import runs_figure
from reports.svg import label_of
from reports.text import clean, lower_bound, number, percent, proportion, upper_bound, verdict_words, words
from reports.wealth_figure import wealth_figure

Mapped = Mapping[str, Any]

MEANINGS = {
    "refuted": "The measured lower bound lies above the claimed ε at the stated confidence.",
    "not refuted": "The audit found nothing that contradicts the claim. That is not a proof of the claim.",
    "overclaimed": "Nothing refuted the claim, but no sound upper bound against this adversary supports it.",
    "supported": "A sound upper bound lies at or below the claim, and nothing refuted it.",
    "inconclusive": "There is no theory to lean on, and the audit did not refute the claim.",
}
_ONLY_GIVEN = " That bound holds where the noise is Gaussian; no bound that takes nothing as given exceeds the claim."
_CURVE_ROWS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def verdict(known: Mapped) -> Verdict | None:
    """Return the result's verdict with what its word means; None where the result has none."""
    privacy = known.get("privacy") or {}
    word = privacy.get("verdict")
    if word is None:
        return None
    shown = verdict_words(word, privacy.get("verdict_given"))
    meaning = MEANINGS[word] + (_ONLY_GIVEN if shown != word else "")
    return Verdict(word=shown, meaning=meaning, alarming=word in ("refuted", "overclaimed"))


def _estimators(known: Mapped) -> list[Mapped]:
    return [*((known.get("privacy") or {}).get("estimators") or []), *(known.get("estimators") or [])]


def _source_of(value: object, estimators: Sequence[Mapped]) -> str:
    """Return which estimator gave the bound `value`, and at which confidence; "" if that cannot be told."""
    found = next((e for e in estimators if e.get("epsilon_lower") == value), None)
    if found is None:
        return ""
    confidence = found.get("confidence")
    level = "" if confidence is None else f" at {percent(confidence)} confidence"
    return f"{words(found.get('name'))}{level}"


def _source_of_upper(privacy: Mapped) -> str:
    value, adversary = privacy.get("upper"), privacy.get("adversary")
    for bound in privacy.get("bounds") or []:
        epsilon = bound.get("epsilon") or {}
        if epsilon.get("upper") == value and bound.get("adversary") == adversary and bound.get("sound"):
            return f"{words(bound.get('accountant'))}, against this adversary"
    return "recomputed against this adversary"


def tiles(known: Mapped) -> list[Tile]:
    """Return the claimed, measured and recomputed epsilon as first-glance numbers, where there are any."""
    privacy = known.get("privacy") or {}
    lower, upper, gap = (privacy.get(k) for k in ("empirical_lower", "upper", "gap"))
    found = []
    if privacy.get("claimed") is not None:
        scope = [f"δ = {number(privacy['delta'])}"] if privacy.get("delta") is not None else []
        scope += [words(privacy[k]) for k in ("adversary", "neighbours") if privacy.get(k)]
        found.append(Tile(label="Claimed", value=f"ε ≤ {number(privacy['claimed'])}", note=", ".join(scope)))
    if lower is not None:
        note = _source_of(lower, _estimators(known)) or "measured"
        found.append(Tile(label="Measured", value=f"ε ≥ {lower_bound(lower)}", note=note, strong=True))
    if upper is not None:
        note = f"rests on a proof gap: {clean(gap)}" if gap else _source_of_upper(privacy)
        found.append(Tile(label="Recomputed", value=f"ε ≤ {upper_bound(upper)}", note=note))
    elif gap:
        found.append(Tile(label="Recomputed", value="no bound", note=f"proof gap: {clean(gap)}"))
    return found


def _claim_in_words(privacy: Mapped) -> list[Block]:
    """Return the claim as one sentence and the proof gap as another, as far as there are any."""
    blocks: list[Block] = []
    adversary, neighbours = privacy.get("adversary"), privacy.get("neighbours")
    meaning = ADVERSARIES.get(adversary or "", "")
    parts = [f"ε ≤ {number(privacy['claimed'])}"] if privacy.get("claimed") is not None else []
    parts += [f"δ = {number(privacy['delta'])}"] if privacy.get("delta") is not None else []
    parts += [f"neighbours {clean(neighbours)}"] if neighbours else []
    parts += [f"against {clean(adversary)}" + (f" ({meaning})" if meaning else "")] if adversary else []
    level = privacy.get("confidence")
    audited = privacy.get("empirical_lower") is not None
    parts += [f"audited at {percent(level)} confidence"] if audited and level is not None else []
    parts += [clean(privacy["given"])] if privacy.get("given") else []
    if parts:
        start = "Claimed" if privacy.get("claimed") is not None else "No epsilon is claimed. The setting"
        blocks.append(Prose(text=f"{start}: {', '.join(parts)}."))
    if privacy.get("not_audited"):
        blocks.append(Prose(text=f"Not audited: {clean(privacy['not_audited'])}."))
    if privacy.get("gap"):
        blocks.append(Prose(text=f"Proof gap: {clean(privacy['gap'])}."))
    return blocks


def _nearest(alpha: Sequence[float], candidates: Sequence[int], target: float) -> int:
    """Return the candidate index at which `alpha` comes nearest to `target`."""
    return min(candidates, key=lambda i: abs(alpha[i] - target))


def _curve_table(tradeoff: Mapped) -> Table | None:
    """Return the trade-off curves at a few of their own points; the result file holds every one of them."""
    alpha = tradeoff.get("alpha")
    names = {
        "claimed": "claimed",
        "recomputed": "recomputed",
        "empirical": "measured",
        "empirical_low": "band from",
        "empirical_high": "band to",
    }
    present = {key: title for key, title in names.items() if tradeoff.get(key)}
    if not alpha or not present:
        return None
    inside = [i for i in range(len(alpha)) if 0 < alpha[i] < 1] or list(range(len(alpha)))
    picks = list(dict.fromkeys(_nearest(alpha, inside, target) for target in _CURVE_ROWS))
    columns = (Column(title="false positive rate", kind="number"),)
    return Table(
        caption=f"False negative rates at {len(picks)} of the {len(alpha):,} points that result.json holds",
        columns=(*columns, *(Column(title=title, kind="number") for title in present.values())),
        rows=tuple((number(alpha[i]), *(proportion(tradeoff[k][i]) for k in present)) for i in picks),
    )


def _tradeoff_blocks(known: Mapped) -> list[Block]:
    tradeoff = known.get("tradeoff") or {}
    drawing = tradeoff_figure(known)
    blocks: list[Block] = []
    if drawing:
        level = tradeoff.get("confidence")
        band = "" if level is None else f" The band holds at {percent(level)} confidence."
        caption = (
            "What a test can do that tells the two neighbouring worlds apart. Lower is less private: a claim "
            f"allows no test below its curve.{band}"
        )
        alt = label_of(drawing)
        blocks.append(Picture(name="figure-tradeoff", svg=drawing, alt=alt, caption=caption))
    if tradeoff.get("note"):
        blocks.append(Prose(text=clean(tradeoff["note"])))
    table = _curve_table(tradeoff)
    return [*blocks, table] if table else blocks


def _runs_blocks(known: Mapped) -> list[Block]:
    drawing = runs_figure(known)
    if not drawing:
        return []
    caption = (
        "What ever more of the runs prove. Each point is an audit of its own; one picked because it is high proves "
        "nothing. An estimator that only assumes what its bound rests on is dashed."
    )
    return [Picture(name="figure-runs", svg=drawing, alt=label_of(drawing), caption=caption)]


def _wealth_blocks(known: Mapped) -> list[Block]:
    drawing = wealth_figure(known)
    if not drawing:
        return []
    caption = (
        "A gambler who bets against the claim, pair by pair, each bet chosen before the pair is seen. If the claim is "
        "true the wealth is not expected to grow; where it reaches the line the claim is refuted, whenever one looks. "
        "The path, and the pair at which it refutes, depend on the order of the pairs, here that of the runs: another "
        "order has another path, no less valid if it was fixed before anybody looked."
    )
    return [Picture(name="figure-wealth", svg=drawing, alt=label_of(drawing), caption=caption)]


def section(known: Mapped) -> Section | None:
    """Return the privacy section; None where the result says nothing about privacy."""
    privacy = known.get("privacy") or {}
    blocks: list[Block] = []
    blocks += _claim_in_words(privacy)
    drawing = epsilon_figure(known)
    if drawing:
        caption = (
            "The claim, the audit and the theory on one scale; the upright stroke marks the claim. Where the "
            "first two share no value, they contradict each other."
        )
        blocks.append(Picture(name="figure-epsilon", svg=drawing, alt=label_of(drawing), caption=caption))
    blocks += _tradeoff_blocks(known)
    blocks += _runs_blocks(known)
    blocks += _wealth_blocks(known)
    blocks += estimator_blocks(_estimators(known), privacy.get("empirical_lower"))
    blocks += bound_blocks(privacy)
    gaps = gap_table(privacy)
    blocks += [gaps] if gaps else []
    if known.get("protects"):
        blocks.append(Prose(text=f"What the noise protects: {clean(known['protects'])}"))
    return Section(anchor="privacy", title="The privacy claim", blocks=tuple(blocks)) if blocks else None
