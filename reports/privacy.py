"""The privacy section of a report: claim, measured lower bounds, recomputed upper bounds, proof gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpzv_audit.findings import ADVERSARIES, EmpiricalBound, UpperBound
from dpzv_audit.results import AttackResult, AuditResult, JudgedBound, Privacy, ScoresResult, Tradeoff, TrainResult
from reports.curves import runs_figure, wealth_figure
from reports.figures import epsilon_figure, tradeoff_figure
from reports.model import Block, Prose, Section, Table, Tile, Verdict, columns, hoisted, picture
from reports.text import MISSING, clean, lower_bound, number, percent, proportion, upper_bound, verdict_words, words

MEANINGS = {
    "refuted": "The measured lower bound lies above the claimed ε at the stated confidence.",
    "not refuted": "The audit found nothing that contradicts the claim. That is not a proof of the claim.",
    "overclaimed": "Nothing refuted the claim, but no sound upper bound against this adversary supports it.",
    "supported": "A sound upper bound lies at or below the claim, and nothing refuted it.",
    "inconclusive": "There is no theory to lean on, and the audit did not refute the claim.",
}
_ONLY_GIVEN = " That bound holds where the noise is Gaussian; no bound that takes nothing as given exceeds the claim."
_CURVE_ROWS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def verdict(privacy: Privacy) -> Verdict | None:
    """Return the result's verdict with what its word means; None where the result has none."""
    word = privacy.verdict
    if word is None:
        return None
    shown = verdict_words(word, privacy.verdict_given)
    meaning = MEANINGS[word] + (_ONLY_GIVEN if shown != word else "")
    return Verdict(word=shown, meaning=meaning, alarming=word in ("refuted", "overclaimed"))


def _source_of(value: float, estimators: Sequence[EmpiricalBound]) -> str:
    """Return which estimator gave the bound `value`, and at which confidence; "measured" if that cannot be told."""
    found = next((e for e in estimators if e.epsilon_lower == value), None)
    return "measured" if found is None else f"{words(found.name)} at {percent(found.confidence)} confidence"


def _source_of_upper(privacy: Privacy) -> str:
    for bound in privacy.bounds:
        same = bound.epsilon is not None and bound.epsilon.upper == privacy.upper
        if same and bound.adversary == privacy.adversary and bound.sound:
            return f"{words(bound.accountant)}, against this adversary"
    return "recomputed against this adversary"


def tiles(privacy: Privacy) -> list[Tile]:
    """Return the claimed, measured and recomputed epsilon as first-glance numbers, where there are any."""
    lower, upper, gap = privacy.empirical_lower, privacy.upper, privacy.gap
    found = []
    if privacy.claimed is not None:
        scope = [f"δ = {number(privacy.delta)}"] if privacy.delta is not None else []
        scope += [words(part) for part in (privacy.adversary, privacy.neighbours) if part]
        found.append(Tile(label="Claimed", value=f"ε ≤ {number(privacy.claimed)}", note=", ".join(scope)))
    if lower is not None:
        note = _source_of(lower, privacy.estimators)
        found.append(Tile(label="Measured", value=f"ε ≥ {lower_bound(lower)}", note=note, strong=True))
    if upper is not None:
        note = f"rests on a proof gap: {clean(gap)}" if gap else _source_of_upper(privacy)
        found.append(Tile(label="Recomputed", value=f"ε ≤ {upper_bound(upper)}", note=note))
    elif gap:
        found.append(Tile(label="Recomputed", value="no bound", note=f"proof gap: {clean(gap)}"))
    return found


def _claim_in_words(privacy: Privacy) -> list[Block]:
    """Return the claim as one sentence and the proof gap as another, as far as there are any."""
    blocks: list[Block] = []
    adversary, neighbours = privacy.adversary, privacy.neighbours
    meaning = ADVERSARIES.get(adversary or "", "")
    parts = [f"ε ≤ {number(privacy.claimed)}"] if privacy.claimed is not None else []
    parts += [f"δ = {number(privacy.delta)}"] if privacy.delta is not None else []
    parts += [f"neighbours {clean(neighbours)}"] if neighbours else []
    parts += [f"against {clean(adversary)}" + (f" ({meaning})" if meaning else "")] if adversary else []
    if privacy.empirical_lower is not None and privacy.confidence is not None:
        parts.append(f"audited at {percent(privacy.confidence)} confidence")
    parts += [clean(privacy.given)] if privacy.given else []
    if parts:
        start = "Claimed" if privacy.claimed is not None else "No epsilon is claimed. The setting"
        blocks.append(Prose(text=f"{start}: {', '.join(parts)}."))
    for what, why in (("Not audited", privacy.not_audited), ("Proof gap", privacy.gap)):
        if why:
            blocks.append(Prose(text=f"{what}: {clean(why)}."))
    return blocks


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
    inside = [i for i in range(len(alpha)) if 0 < alpha[i] < 1] or list(range(len(alpha)))
    picks = dict.fromkeys(min(inside, key=lambda i: abs(alpha[i] - target)) for target in _CURVE_ROWS)
    titles = ("false positive rate", *present)
    table = Table(
        caption=f"False negative rates at {len(picks)} of the {len(alpha):,} points that result.json holds",
        columns=columns(*titles, numbers=titles),
        rows=tuple((number(alpha[i]), *(proportion(curve[i]) for curve in present.values())) for i in picks),
    )
    return [table]


def _tradeoff_blocks(tradeoff: Tradeoff | None) -> list[Block]:
    if tradeoff is None:
        return []
    level = tradeoff.confidence
    caption = (
        "What a test can do that tells the two neighbouring worlds apart. Lower is less private: a claim "
        f"allows no test below its curve.{'' if level is None else f' The band holds at {percent(level)} confidence.'}"
    )
    note = [Prose(text=clean(tradeoff.note))] if tradeoff.note else []
    return [*picture("figure-tradeoff", tradeoff_figure(tradeoff), caption), *note, *_curve_table(tradeoff)]


def _audit_blocks(audit: AuditResult) -> list[Block]:
    """Return what ever more runs prove, and the wealth of the betting test."""
    runs = (
        "What ever more of the runs prove. Each point is an audit of its own; one picked because it is high proves "
        "nothing. An estimator that only assumes what its bound rests on is dashed."
    )
    wealth = (
        "A gambler who bets against the claim, pair by pair, each bet chosen before the pair is seen. If the claim is "
        "true the wealth is not expected to grow; where it reaches the line the claim is refuted, whenever one looks. "
        "The path, and the pair at which it refutes, depend on the order of the pairs, here that of the runs: another "
        "order has another path, no less valid if it was fixed before anybody looked."
    )
    return [
        *picture("figure-runs", runs_figure(audit.by_runs, audit.privacy.claimed), runs),
        *picture("figure-wealth", wealth_figure(audit.wealth), wealth),
    ]


def section(result: AttackResult | TrainResult | AuditResult | ScoresResult) -> Section | None:
    """Return the privacy section; None where the result says nothing about privacy."""
    privacy = result.privacy
    caption = (
        "The claim, the audit and the theory on one scale; the upright stroke marks the claim. Where the "
        "first two share no value, they contradict each other."
    )
    drawing = epsilon_figure(privacy.claimed, privacy.empirical_lower, privacy.upper)
    blocks = [*_claim_in_words(privacy), *picture("figure-epsilon", drawing, caption)]
    blocks += [] if isinstance(result, ScoresResult) else _tradeoff_blocks(result.tradeoff)
    blocks += _audit_blocks(result) if isinstance(result, AuditResult) else []
    blocks += estimator_blocks(privacy.estimators, privacy.empirical_lower)
    blocks += bound_blocks(privacy.bounds, privacy.upper, privacy.adversary)
    blocks += gap_table(privacy.gap_explanations)
    if not isinstance(result, ScoresResult) and result.protects:
        blocks.append(Prose(text=f"What the noise protects: {clean(result.protects)}"))
    return Section(anchor="privacy", title="The privacy claim", blocks=tuple(blocks)) if blocks else None


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
