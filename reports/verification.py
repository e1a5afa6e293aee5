"""The report on a claims file: verdicts in one glance, then by claim the picture that decides it and its tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Protocol

from dpzv_audit.findings import Verdict, to_jsonable
from dpzv_audit.results import ClaimResult, VerifyResult
from reports import document
from reports.curves import tradeoff_figure
from reports.document import Block, Code, Picture, Report, Section, Tile, pairs, section, table, words
from reports.figures import epsilon_figure, success_figure
from reports.privacy import bound_blocks
from reports.text import lower_bound, number, percent, to_json, upper_bound, verdict_words

MOST_SECTIONS = 200
"""Claims with a section of their own; those that failed the gate come first, the table names all."""
MOST_PICTURES = 40
ORDER: tuple[Verdict, ...] = ("refuted", "overclaimed", "inconclusive", "supported")


class Drawings(Protocol):
    """Keeps drawings between runs: drawing takes longer than all else where nothing is audited again."""

    def drawing(self, key: str) -> str | None:
        """Return the drawing kept under `key`."""

    def keep_drawing(self, key: str, svg: str) -> None:
        """Keep a drawing."""


def verification_content(result: VerifyResult, drawings: Drawings | None = None) -> Report:
    """Return what a report on a claims file shows; `drawings` keeps its figures."""
    ranked = sorted(
        enumerate(result.claims, start=1),
        key=lambda pair: (not pair[1].fails, ORDER.index(pair[1].verdict)),
    )
    sections = _overview(result)
    for rank, (place, claim) in enumerate(ranked[:MOST_SECTIONS]):
        pictures = _picture(place, claim, drawings) if rank < MOST_PICTURES else []
        sections += section(f"claim-{place}", claim.name, _claim_blocks(claim, pictures))
    worst = gravest(result)
    meaning = f"The gravest verdict is “{worst}”. {words('claims', worst)}"
    if result.interrupted:
        meaning += words("claims", "interrupted")
    verdict = document.Verdict(word=word_of(result), meaning=meaning, alarming=result.failed)
    counts = {verdict: number(result.summary.get(verdict, 0)) for verdict in ORDER}
    return Report(
        kind=VerifyResult.KIND,
        title=result.claims_file.rpartition("/")[2],
        lead=result.sentence,
        verdict=verdict,
        tiles=tuple(Tile(label=k, value=v, note="", strong=k == "refuted") for k, v in counts.items()),
        sections=(*sections, *_repeat(result)),
    )


def word_of(result: VerifyResult) -> str:
    """The whole file in a word: what ends with exit code 1 fails; else the gravest verdict, which is never "passed"."""
    return "failed" if result.failed else gravest(result)


def gravest(result: VerifyResult) -> Verdict:
    """The gravest verdict on a claim of the file."""
    return next((verdict for verdict in ORDER if result.summary.get(verdict)), "inconclusive")


def _overview(result: VerifyResult) -> list[Section]:
    claims = result.claims
    rows = [row_of(claim) for claim in claims]
    level = number(result.level)
    blocks = table(
        "Every claim of the file",
        rows,
        numbers=("claimed", "measured", "proved", "p over the file"),
        strong=(i for i, claim in enumerate(claims) if claim.verdict == "refuted"),
        note=f"a true claim is refuted with probability at most {level} over all of them (Holm)",
    )
    if result.missing:
        names, more = ", ".join(result.missing[:20]), len(result.missing) - 20
        rest = f" and {more} more" if more > 0 else ""
        blocks.append(f"Incomplete evidence, marked *: {names}{rest}.")
    if result.noise is not None and result.noise.words:
        blocks.append(result.noise.words)
    if len(claims) > MOST_SECTIONS:
        blocks.append(f"Below are the {MOST_SECTIONS} gravest; result.json holds all {len(claims):,}.")
    return section("verdicts", "Verdicts", blocks)


def row_of(claim: ClaimResult) -> dict[str, str | None]:
    """Return a claim as a row: name, verdict, claimed, measured, proved, p-value over the file."""
    measured = proved = None
    if claim.form == "attack":
        claimed = f"≤ {percent(claim.claimed)}"
        measured = _share(claim.attack.success) if claim.rates else None
    else:
        claimed = f"ε ≤ {number(claim.claimed)}"
        if claim.epsilon_lower is not None:
            measured = f"ε ≥ {lower_bound(claim.epsilon_lower)}"
        if claim.upper is not None:
            proved = f"ε ≤ {upper_bound(float(f'{claim.upper:.9g}'))}"
    p_value = claim.adjusted_p_value
    return {
        "claim": claim.name,
        "verdict": words_of(claim) + (" *" if claim.missing else ""),
        "claimed": claimed,
        "measured": measured,
        "proved": proved,
        "p over the file": "1" if p_value >= 1 else f"{p_value:.1e}",
    }


def words_of(claim: ClaimResult) -> str:
    """The verdict on a claim as it is shown: one that rests on an assumption alone says so."""
    return verdict_words(claim.verdict, claim.verdict_given)


def _share(value: float | None) -> str | None:
    return None if value is None else percent(round(value, 4))


def _claim_blocks(claim: ClaimResult, pictures: list[Block]) -> list[Block]:
    verdict = words_of(claim)
    blocks: list[Block] = [f"{verdict[0].upper()}{verdict[1:]}: {claim.sentence}"]
    if claim.source:
        blocks.append(f"Source: {claim.source}")
    blocks += pictures
    blocks += _looks(claim)
    blocks += bound_blocks(claim.bounds, claim.upper, None)
    blocks += _rates(claim)
    named = claim.gap.split(",")
    gaps = {name: text for name, text in claim.explanations.items() if name in named}
    blocks += pairs("Proof gaps", ("gap", "what it means"), gaps)
    return blocks + _settings(claim)


def _picture(place: int, claim: ClaimResult, drawings: Drawings | None) -> list[Block]:
    """Return the picture that decides a claim: trade-off curves, else epsilons on one scale, else success."""
    draw: Callable[..., str]
    shown: tuple[Any, ...]
    if claim.form == "attack":
        attack, kind, draw = claim.attack, "success", success_figure
        baselines = {"the claimed limit": claim.claimed, **attack.baselines}
        shown = (str(claim.claim.get("attack")), attack.success, baselines, attack.controls)
    elif claim.tradeoff is not None:
        kind, draw = "tradeoff", tradeoff_figure
        shown = (claim.tradeoff,)
    else:
        kind, draw = "epsilon", epsilon_figure
        shown = (claim.claimed, claim.epsilon_lower, claim.upper)
    # A drawing is of what it shows, and of the evidence, which says with which code it was gathered.
    subject = json.dumps(to_jsonable([claim.evidence_key, kind, shown]))
    key = hashlib.sha256(subject.encode()).hexdigest()
    drawing = None if drawings is None else drawings.drawing(key)
    if drawing is None:
        drawing = draw(*shown)
        if drawings is not None and drawing:
            drawings.keep_drawing(key, drawing)
    own = f"claim-{place}-{kind}"
    drawing = drawing.replace(f"figure-{kind}", own)
    return [Picture(name=own, svg=drawing, caption=words("captions", f"claim-{kind}"))] if drawing else []


def _looks(claim: ClaimResult) -> list[Block]:
    rows = [
        {
            "look": look.stage,
            "test": look.estimator,
            "p": f"{look.p_value:.1e}" if look.p_value < 1 else "1",
            "of alpha": percent(look.weight) if look.weight else "gates nothing",
            "ε at least": lower_bound(look.epsilon_lower),
            "most it could show": lower_bound(look.ceiling),
            "assumes": look.assumes or "nothing",
            "rule": look.rule,
        }
        for look in claim.looks
    ]
    note = f"bounds at an error of {number(claim.level)} times each look's share"
    if claim.split:
        shares = "; ".join(f"{name} {percent(share)}" for name, share in claim.split.items())
        note += f"; alpha was shared out before anything was drawn: {shares}"
    numbers = ("p", "of alpha", "ε at least", "most it could show")
    return table("Tests of the claim", rows, numbers=numbers, note=note)


def _rates(claim: ClaimResult) -> list[Block]:
    if not claim.rates:
        return []
    attack = claim.attack
    found = {"the attack": attack.success}
    found |= {f"baseline: {name}": value for name, value in attack.baselines.items()}
    found |= {f"control: {name.replace('_', ' ')}": value for name, value in attack.controls.items()}
    shares = {what: _share(value) for what, value in found.items()}
    note = f"p = {claim.p_value:.1e} by an e-process over {len(claim.rates)} blocks of trainings"
    return pairs("Success of the attack", ("what", "success"), shares, kind="number", note=note)


def _settings(claim: ClaimResult) -> list[Block]:
    found = {key: to_json(value) for key, value in claim.claim.items() if value not in (None, [])}
    found |= {f"in full: {key}": to_json(value) for key, value in claim.facts.items()}
    found |= {"line of the claims file": number(claim.line), "evidence": claim.evidence_key}
    return pairs("The claim as it was put to the test", ("key", "value"), found, kind="code")


def _repeat(result: VerifyResult) -> list[Section]:
    found = result.to_json()
    facts = {key: found[key] for key in ("command_line", "versions", "seed", "alpha") if key in found}
    blocks: list[Block] = [words("paragraphs", "evidence"), Code(text=to_json(facts, indent=2))]
    return section("repeat", "To repeat it", blocks)
