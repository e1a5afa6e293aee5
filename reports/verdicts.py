"""A verdict in words: the same for terminals, pages, CI files and Python, since each of them calls these functions."""

from collections.abc import Iterable, Mapping

from dpzv_audit.base.findings import CONTRADICTED, VerdictWord
from dpzv_audit.base.rounding import down, up
from dpzv_audit.results import Verdict

from .document import Judgement, Table
from .text import clean

MEANINGS: Mapping[VerdictWord, str] = {
    "refuted": "The claim is false. If a claim is true, an audit at 95% confidence wrongly refutes it "
    "at most 5 times in 100.",
    "not-tested": "No evidence could have refuted the claim, or something voids the evidence.",
    "overclaimed": "Nothing refuted it, but no sound upper bound against this adversary supports it.",
    "inconclusive": "It was tested and not refuted; no theorem proves it.",
    "held": "All controls passed, and an upper confidence limit of the attacks' success lies within the claim. "
    "That speaks of these attacks on this data alone.",
    "supported": "A sound upper bound lies at or below the claim, and nothing refuted it.",
}


WORDS: Mapping[str, str] = {
    **{word.replace("-", " "): meaning for word, meaning in MEANINGS.items()},
    "failed": "At least one claim is refuted, overclaimed or not tested, or another word that the options refuse.",
    "leaks": "The adversary learns more here than it would by guessing.",
    "no leak seen": "No attack here finds more than its baseline. Other attacks may.",
    "too few trainings to tell": "An attack may find more than its baseline: these trainings are too few to say.",
    "measured": "Something was measured, and nothing is claimed that it could be held against.",
    "not measured": "No attack could be measured.",
    "no claim": "No epsilon is claimed, so there is nothing to refute or to support.",
    "not judged": "The result holds no verdict on its claim.",
    "not to be trusted": "A control failed, so the numbers may be wrong.",
    "bounded": "Theory proves this bound of what is stated. Nothing was run.",
    "no sound bound": "Theory proves no epsilon here, for the reasons that are named.",
    "as expected": "The audit gave the verdict that is known to be right.",
    "not as expected": "The audit gave another verdict than the one that is known to be right.",
    "full run": "All rows were run at the length that the table has.",
    "shortened run": "Fewer rows, epochs or records were run than the table has, so its numbers may differ.",
}
"""What the words of a page's head mean, the verdicts on claims among them."""
_GIVEN = {
    "refuted given Gaussian": "If the noise is Gaussian, the claim is false, and an audit at 95% confidence wrongly "
    "refutes a true one at most 5 times in 100. If it is not, this audit does not decide."
}
"""What verdicts mean that take something as given."""


def word_in(text: str) -> str:
    """Return the word of `WORDS` with which a text begins; "" where it begins with none."""
    return next((word for word in sorted(WORDS, key=len, reverse=True) if text.startswith(word)), "")


def anchor_of(text: str) -> str:
    """Return where on a page the word is explained with which a text begins; "" where it is not."""
    word = word_in(text)
    return f"word-{word.replace(' ', '-')}" if word else ""


def meaning_of(text: str) -> str:
    """Return what a verdict means, with what it takes as given."""
    conditional = (meaning for words, meaning in _GIVEN.items() if text.startswith(words))
    return next(conditional, WORDS.get(word_in(text), ""))


def words_on(judgement: Judgement, tables: Iterable[Table]) -> dict[str, str]:
    """Return the words that a page's head and the verdicts in its tables use, each with its meaning."""
    texts = [judgement.word, *(row.get("verdict", "") for table in tables for row in table.rows)]
    meanings: dict[str, str] = {}
    for text in texts:
        if word := word_in(text):
            meanings.setdefault(word, meaning_of(text))
    return meanings


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


def set_aside(bounds: Iterable[tuple[float, str]], lower: float | None, claimed: float | None = None) -> list[str]:
    """Return a warning where a bound above `lower` was set aside because the scores contradict its assumption.

    `bounds` are pairs of a lower bound and what it assumes.
    """
    best, assumes = max((bound for bound in bounds if CONTRADICTED in bound[1]), default=(0.0, ""))
    if best <= (lower or 0.0):
        return []
    assumption, _, evidence = assumes.partition(f" ({CONTRADICTED}: ")
    because = f"the scores contradict its assumption that {assumption}{f' ({evidence}' if evidence else ''}"
    return [f"a stronger bound, epsilon at least {down(best, beside=claimed)}, was set aside: {because}"]


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
