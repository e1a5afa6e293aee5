"""What the template of a report on a claims file says of claims: order, verdicts in words, rows, and pictures."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dpzv_audit.findings import Verdict, to_jsonable
from dpzv_audit.results import ClaimResult, VerifyResult

from .curves import tradeoff_figure
from .figures import epsilon_figure, success_figure
from .text import lower_bound, number, p_value, percent, upper_bound, verdict_words

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


Drawings = Callable[[str, Callable[[], str]], str]
"""Returns the drawing kept under a key, or draws and keeps it: drawing takes longer than all else where nothing is
audited again."""


def ranked(claims: Sequence[ClaimResult]) -> list[tuple[int, ClaimResult]]:
    """Return the gravest claims with their places in the file, those that failed the gate first."""
    found = enumerate(claims, start=1)
    return sorted(found, key=lambda pair: (not pair[1].fails, ORDER.index(pair[1].verdict)))[:MOST_SECTIONS]


def word_of(result: VerifyResult) -> str:
    """Return the file in a word: what ends with exit code 1 fails; else the gravest verdict, never "passed"."""
    return "failed" if result.failed else gravest(result)


def gravest(result: VerifyResult) -> Verdict:
    """Return the gravest verdict on a claim of the file."""
    return next((verdict for verdict in ORDER if result.summary.get(verdict)), "inconclusive")


def row_of(claim: ClaimResult) -> dict[str, str | None]:
    """Return a claim as a row: name, verdict, claimed, measured, proved, p-value over the file."""
    measured = proved = None
    if claim.form == "attack":
        claimed = f"≤ {percent(claim.claimed)}"
        measured = share(claim.attack.success) if claim.rates else None
    else:
        claimed = f"ε ≤ {number(claim.claimed)}"
        if claim.epsilon_lower is not None:
            measured = f"ε ≥ {lower_bound(claim.epsilon_lower)}"
        if claim.upper is not None:
            proved = f"ε ≤ {upper_bound(float(f'{claim.upper:.9g}'))}"
    return {
        "claim": claim.name,
        "verdict": words_of(claim) + (" *" if claim.missing else ""),
        "claimed": claimed,
        "measured": measured,
        "proved": proved,
        "p over the file": p_value(claim.adjusted_p_value),
    }


def words_of(claim: ClaimResult) -> str:
    """Return the verdict on a claim as it is shown: one that rests on an assumption alone says so."""
    return verdict_words(claim.verdict, claim.verdict_given)


def share(value: float | None) -> str | None:
    """Return a success in percent."""
    return None if value is None else percent(round(value, 4))


def picture_of(claim: ClaimResult, drawings: Drawings | None) -> tuple[str, str]:
    """Return kind and SVG of the picture that decides a claim: trade-off curves, else epsilons, else success."""
    if claim.form == "attack":
        attack = claim.attack
        name = str(claim.claim.get("attack"))
        baselines = {"the claimed limit": claim.claimed, **attack.baselines}
        kind = "success"
        draw = partial(success_figure, name, attack.success, baselines, attack.controls, "mean success over trainings")
    elif claim.tradeoff is not None:
        kind = "tradeoff"
        draw = partial(tradeoff_figure, claim.tradeoff)
    else:
        kind = "epsilon"
        draw = partial(epsilon_figure, claim.claimed, claim.epsilon_lower, claim.upper)
    if drawings is None:
        return kind, draw()
    # A drawing is of what it shows, and of the evidence, which says with which code it was gathered.
    subject = json.dumps(to_jsonable([claim.evidence_key, kind, draw.args]))
    key = hashlib.sha256(subject.encode()).hexdigest()
    return kind, drawings(key, draw)
