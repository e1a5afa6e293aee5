"""A verdict in words: the same for terminals, pages, CI files and Python, since each of them calls these functions."""

from collections.abc import Mapping

from dpzv_audit.base.findings import VerdictWord
from dpzv_audit.base.rounding import down, up
from dpzv_audit.results import Verdict

from .text import clean

MEANINGS: Mapping[VerdictWord, str] = {
    "refuted": "The claim is false, at the stated error.",
    "not-tested": "No evidence could have refuted the claim, or something voids the evidence.",
    "overclaimed": "Nothing refuted it, but no sound upper bound against this adversary supports it.",
    "inconclusive": "It was tested and not refuted; no theorem proves it.",
    "held": "All controls passed, and an upper confidence limit of the attacks' success lies within the claim. "
    "That speaks of these attacks on this data alone.",
    "supported": "A sound upper bound lies at or below the claim, and nothing refuted it.",
}


def words_of(verdict: Verdict) -> str:
    """Return the verdict as it is shown, with what it takes as given."""
    if verdict.word == "refuted" and verdict.given:
        return f"refuted {clean(verdict.given)}"
    if verdict.word == "supported" and verdict.proven is not None and verdict.proven.rests_on:
        return "supported if the system releases what it states"
    return verdict.word.replace("-", " ")


def notes_of(verdict: Verdict) -> list[str]:
    """Return what was not tested, then the warnings, each as a sentence."""
    return [
        *(f"Not tested: {clean(text).rstrip('.')}." for text in verdict.not_tested),
        *warnings_of(verdict.warnings),
    ]


def warnings_of(warnings: list[str]) -> list[str]:
    """Return warnings, each as a sentence."""
    return [f"Warning: {clean(text).rstrip('.')}." for text in warnings]


def notes_on(verdict: Verdict | None, warnings: list[str]) -> list[str]:
    """Return the notes of a result: those of its verdict, where there is one, then its other `warnings`."""
    if verdict is None:
        return warnings_of(warnings)
    return [*notes_of(verdict), *warnings_of([text for text in warnings if text not in verdict.warnings])]


def lines_of(verdict: Verdict) -> list[str]:
    """Return what was not tested, the warnings, and why the verdict is what it is."""
    return [*notes_of(verdict), clean(verdict.why)]


def measured_of(verdict: Verdict) -> str | None:
    """Return the measured value as it is shown: a lower bound on epsilon rounded down, a success in percent."""
    measured = verdict.measured
    if measured is None:
        return None
    if measured.quantity == "success":
        return f"{100.0 * measured.value:.1f}%"
    return f"ε ≥ {down(measured.value, beside=verdict.claimed)}"


def proven_of(verdict: Verdict) -> str | None:
    """Return the proven upper bound on epsilon as it is shown, rounded up."""
    return None if verdict.proven is None else f"ε ≤ {up(verdict.proven.value, beside=verdict.claimed)}"
