"""Claims in the report on a claims file: their order, verdicts in words, rows of tables, and pictures."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from dpzv_audit.base import rounding
from dpzv_audit.base.findings import VerdictWord, to_jsonable
from dpzv_audit.results import ClaimResult, VerifyResult

from .curves import tradeoff_figure
from .figures import epsilon_figure, success_figure
from .text import lower_bound, percent
from .verdicts import measured_of, proven_of, words_of

MOST_SECTIONS = 200
"""Claims with a section of their own; those that failed the gate come first, the table names all."""
MOST_PICTURES = 40
ORDER: tuple[VerdictWord, ...] = get_args(VerdictWord)


Drawings = Callable[[str, Callable[[], str]], str]
"""Returns the drawing kept under a key, or draws and keeps it: drawing takes longer than all else where nothing is
audited again."""


def ranked(claims: Sequence[ClaimResult]) -> list[tuple[int, ClaimResult]]:
    """Return claims with their places in the file, the gravest first: those that failed the gate, then by verdict."""
    return sorted(enumerate(claims, start=1), key=lambda pair: (not pair[1].fails, ORDER.index(pair[1].verdict)))


def word_of(result: VerifyResult) -> str:
    """Return the file in a word: what ends with exit code 1 fails; else the gravest verdict, never "passed"."""
    return "failed" if result.failed else gravest(result).replace("-", " ")


def gravest(result: VerifyResult) -> VerdictWord:
    """Return the gravest verdict on a claim of the file."""
    return next((word for word in ORDER if result.summary.get(word)), "inconclusive")


def row_of(claim: ClaimResult) -> dict[str, str | None]:
    """Return a claim as a row: name, verdict, claimed, measured, proved, p-value over the file."""
    limit = percent(claim.claimed) if claim.form == "attack" else rounding.as_claimed(claim.claimed)
    return {
        "claim": claim.name,
        "verdict": words_of(claim.judged) + (" *" if claim.missing else ""),
        "claimed": f"≤ {limit}" if claim.form == "attack" else f"ε ≤ {limit}",
        "measured": measured_of(claim.judged),
        "proved": proven_of(claim.judged),
        "p over the file": rounding.p_value(claim.adjusted_p_value),
    }


def planned(claim: ClaimResult) -> str:
    """Return what the planned trials could have refuted at most."""
    reach = claim.reach
    if reach is None:
        return "no test"
    trials = f"{reach.trials:,} {reach.unit}"
    if reach.most is None:
        return f"{trials} could refute any epsilon, given Gaussian noise"
    if claim.form == "attack":
        limit = rounding.percent_down(reach.most, beside=claim.claimed)
        return f"{trials} at most, which could refute a limit below {limit}"
    return f"{trials}, which could refute an epsilon below {lower_bound(reach.most, claim.claimed)}"


def share(value: float | None) -> str | None:
    """Return a success in percent."""
    return None if value is None else percent(round(value, 4))


def picture_of(claim: ClaimResult, drawings: Drawings | None) -> tuple[str, str]:
    """Return kind and SVG of the picture that decides a claim.

    That is the success of an attack, and of an epsilon the bounds; curves alone show why one is refuted.
    """
    if claim.form == "attack":
        attack = claim.attack
        name = str(claim.claim.get("attack"))
        baselines = {"the claimed limit": claim.claimed, **attack.baselines}
        kind = "success"
        draw = partial(success_figure, name, attack.success, baselines, attack.controls, "mean success over trainings")
    elif claim.verdict == "refuted" and claim.tradeoff is not None:
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
