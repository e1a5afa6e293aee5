"""The report on a claims file: verdicts in one glance, then by claim the picture that decides it and its tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Protocol

from dpzv_audit.findings import Verdict, to_jsonable
from dpzv_audit.results import ClaimResult, VerifyResult
from reports import model
from reports.figures import epsilon_figure, success_figure, tradeoff_figure
from reports.model import Block, Code, Prose, Report, Section, Table, Tile, columns, picture
from reports.privacy import bound_blocks
from reports.text import MISSING, clean, lower_bound, number, percent, to_json, upper_bound, verdict_words, words

MOST_SECTIONS = 200
"""Claims with a section of their own; those that failed the gate come first, the table names all."""
MOST_PICTURES = 40
ORDER: tuple[Verdict, ...] = ("refuted", "overclaimed", "inconclusive", "supported")
MEANINGS: Mapping[Verdict, str] = {
    "refuted": "The measured lower bound, or the attack's success, lies above the claim at the stated confidence.",
    "overclaimed": "Nothing refuted it, but no sound upper bound against this adversary supports it.",
    "supported": "A sound upper bound lies at or below the claim, and nothing refuted it.",
    "inconclusive": "There is no theory to lean on, and the audit did not refute it. That is not a proof.",
}


class Drawings(Protocol):
    """Keeps drawings between runs: drawing takes longer than all else where nothing is audited again."""

    def drawing(self, key: str) -> str | None:
        """Return the drawing kept under `key`."""

    def keep_drawing(self, key: str, svg: str) -> None:
        """Keep a drawing."""


def verification_content(result: VerifyResult, drawings: Drawings | None = None) -> Report:
    """Return what a report on a claims file shows; `drawings` keeps its figures."""
    claims = result.claims
    ranked = sorted(
        enumerate(claims, start=1), key=lambda pair: (not pair[1].fails, ORDER.index(pair[1].verdict), pair[0])
    )
    sections = [
        _claim_section(place, claim, drawings, pictured=rank < MOST_PICTURES)
        for rank, (place, claim) in enumerate(ranked[:MOST_SECTIONS])
    ]
    worst = gravest(result)
    return Report(
        kind=VerifyResult.KIND,
        title=clean(result.claims_file).rpartition("/")[2],
        lead=clean(result.sentence),
        verdict=model.Verdict(
            word=word_of(result),
            meaning=f"The gravest verdict is “{worst}”. {MEANINGS[worst]}"
            + (" The run was interrupted: the evidence is partial." if result.interrupted else ""),
            alarming=result.failed,
        ),
        tiles=tuple(
            Tile(label=verdict, value=number(result.summary.get(verdict, 0)), note="", strong=verdict == "refuted")
            for verdict in ORDER
        ),
        sections=(_overview(result), *sections, _repeat(result)),
    )


def word_of(result: VerifyResult) -> str:
    """The whole file in a word: what ends with exit code 1 fails; else the gravest verdict, which is never "passed"."""
    return "failed" if result.failed else gravest(result)


def gravest(result: VerifyResult) -> Verdict:
    """The gravest verdict on a claim of the file."""
    return next((verdict for verdict in ORDER if result.summary.get(verdict)), "inconclusive")


def _overview(result: VerifyResult) -> Section:
    claims = result.claims
    numbers = ("claimed", "measured", "proved", "p over the file")
    table = Table(
        caption="Every claim of the file",
        columns=columns("claim", "verdict", *numbers, numbers=numbers),
        rows=tuple(row_of(claim) for claim in claims),
        strong=frozenset(i for i, claim in enumerate(claims) if claim.verdict == "refuted"),
        note=f"a true claim is refuted with probability at most {number(result.level)} over all of them (Holm)",
    )
    blocks: list[Block] = [table]
    if result.missing:
        names = ", ".join(clean(name) for name in result.missing[:20])
        more = "" if len(result.missing) <= 20 else f" and {len(result.missing) - 20} more"
        blocks.append(Prose(text=f"Incomplete evidence, marked *: {names}{more}."))
    if result.noise is not None:
        blocks.append(Prose(text=clean(result.noise.words)))
    if len(claims) > MOST_SECTIONS:
        blocks.append(Prose(text=f"Below are the {MOST_SECTIONS} gravest; result.json holds all {len(claims):,}."))
    return Section(anchor="verdicts", title="Verdicts", blocks=tuple(blocks))


def row_of(claim: ClaimResult) -> tuple[str, ...]:
    """Return a claim as a row: name, verdict, claimed, measured, proved, p-value over the file."""
    if claim.form == "attack":
        claimed = f"≤ {percent(claim.claimed)}"
        measured = _share(claim.attack.success) if claim.rates else MISSING
        proved = MISSING
    else:
        claimed = f"ε ≤ {number(claim.claimed)}"
        measured = MISSING if claim.epsilon_lower is None else f"ε ≥ {lower_bound(claim.epsilon_lower)}"
        proved = MISSING if claim.upper is None else f"ε ≤ {upper_bound(float(f'{claim.upper:.9g}'))}"
    mark = " *" if claim.missing else ""
    p_value = "1" if claim.adjusted_p_value >= 1 else f"{claim.adjusted_p_value:.1e}"
    return (clean(claim.name), words_of(claim) + mark, claimed, measured, proved, p_value)


def words_of(claim: ClaimResult) -> str:
    """The verdict on a claim as it is shown: one that rests on an assumption alone says so."""
    return verdict_words(claim.verdict, claim.verdict_given)


def _share(value: float | None) -> str:
    return MISSING if value is None else percent(round(value, 4))


def _claim_section(place: int, claim: ClaimResult, drawings: Drawings | None, *, pictured: bool) -> Section:
    verdict = words_of(claim)
    blocks: list[Block] = [Prose(text=f"{verdict[0].upper()}{verdict[1:]}: {clean(claim.sentence)}")]
    if claim.source:
        blocks.append(Prose(text=f"Source: {clean(claim.source)}"))
    if pictured:
        blocks += _picture(place, claim, drawings)
    blocks += _looks(claim)
    blocks += bound_blocks(claim.bounds, claim.upper, None)
    blocks += _attack_table(claim)
    gaps = claim.gap.split(",")
    rows = tuple((clean(name), clean(text)) for name, text in claim.explanations.items() if name in gaps)
    if rows:
        blocks.append(Table(caption="Proof gaps", columns=columns("gap", "what it means"), rows=rows))
    blocks.append(_settings(claim))
    return Section(anchor=f"claim-{place}", title=clean(claim.name), blocks=tuple(blocks))


def _picture(place: int, claim: ClaimResult, drawings: Drawings | None) -> list[Block]:
    """Return the picture that decides a claim: trade-off curves, else epsilons on one scale, else success."""
    draw: Callable[[], str]
    if claim.form == "attack":
        attack, name = claim.attack, "figure-success"
        baselines = {"the claimed limit": claim.claimed, **attack.baselines}
        shown = (str(claim.claim.get("attack")), attack.success, baselines, attack.controls)
        caption = "Success of the attack beside the claimed limit, guessing, and its controls."
        draw = lambda: success_figure(*shown)  # noqa: E731
        subject: object = shown
    elif claim.tradeoff is not None:
        subject, name = claim.tradeoff.model_dump(), "figure-tradeoff"
        caption = (
            "What a test can do that tells the two neighbouring worlds apart. Lower is less private: a claim allows no "
            "test below its curve. The band is for the eye; the verdict rests on the tests below."
        )
        draw = lambda: tradeoff_figure(claim.tradeoff)  # noqa: E731
    else:
        subject = numbers = (claim.claimed, claim.epsilon_lower, claim.upper)
        name, caption = "figure-epsilon", "The claim and what theory and the audit say of it, on one scale."
        draw = lambda: epsilon_figure(*numbers)  # noqa: E731
    # A drawing is of what it shows, and of the evidence, which says with which code it was gathered.
    key = hashlib.sha256(json.dumps(to_jsonable([claim.evidence_key, name, subject])).encode()).hexdigest()
    drawing = None if drawings is None else drawings.drawing(key)
    if drawing is None:
        drawing = draw()
        if drawings is not None and drawing:
            drawings.keep_drawing(key, drawing)
    own = f"claim-{place}-{name.removeprefix('figure-')}"
    return picture(own, drawing.replace(name, own), caption)


def _looks(claim: ClaimResult) -> list[Block]:
    if not claim.looks:
        return []
    numbers = ("p", "of alpha", "ε at least", "most it could show")
    rows = tuple(
        (
            words(look.stage),
            words(look.estimator),
            f"{look.p_value:.1e}" if look.p_value < 1 else "1",
            percent(look.weight) if look.weight else "gates nothing",
            lower_bound(look.epsilon_lower),
            lower_bound(look.ceiling),
            clean(look.assumes) or "nothing",
            clean(look.rule),
        )
        for look in claim.looks
    )
    note = f"bounds at an error of {number(claim.level)} times each look's share"
    if claim.split:
        shares = "; ".join(f"{clean(name)} {percent(share)}" for name, share in claim.split.items())
        note += f"; alpha was shared out before anything was drawn: {shares}"
    titles = columns("look", "test", *numbers, "assumes", "rule", numbers=numbers)
    return [Table(caption="Tests of the claim", columns=titles, rows=rows, note=note)]


def _attack_table(claim: ClaimResult) -> list[Block]:
    if not claim.rates:
        return []
    attack = claim.attack
    found = {"the attack": attack.success}
    found |= {f"baseline: {clean(name)}": value for name, value in attack.baselines.items()}
    found |= {f"control: {clean(name).replace('_', ' ')}": value for name, value in attack.controls.items()}
    rows = tuple((what, _share(value)) for what, value in found.items())
    titles = columns("what", "success", numbers=("success",))
    note = f"p = {claim.p_value:.1e} by an e-process over {len(claim.rates)} blocks of trainings"
    return [Table(caption="Success of the attack", columns=titles, rows=rows, note=note)]


def _settings(claim: ClaimResult) -> Table:
    rows = [(clean(key), to_json(value)) for key, value in claim.claim.items() if value not in (None, [])]
    rows += [(f"in full: {clean(key)}", to_json(value)) for key, value in claim.facts.items()]
    rows += [("line of the claims file", number(claim.line)), ("evidence", clean(claim.evidence_key))]
    titles = columns("key", "value", code=("value",))
    return Table(caption="The claim as it was put to the test", columns=titles, rows=tuple(rows))


def _repeat(result: VerifyResult) -> Section:
    found = result.to_json()
    facts = {key: found[key] for key in ("command_line", "versions", "seed", "alpha") if key in found}
    intro = Prose(text="Evidence follows from the claim, the seed, the code and the data: the same give the same.")
    return Section(anchor="repeat", title="To repeat it", blocks=(intro, Code(text=to_json(facts, indent=2))))
