"""A verification as a few lines of Markdown, for the step summary of a CI."""

from __future__ import annotations

from dpzv_audit.results import VerifyResult
from reports.text import markdown
from reports.verification import row_of, word_of

MOST_ROWS = 500
"""A step summary holds a megabyte at most."""


def to_summary(result: VerifyResult) -> str:
    """Return the verdicts on a claims file as a table in Markdown, and what the claims that fail lack."""
    lines = [f"## Privacy claims: {word_of(result)}", "", markdown(result.sentence), ""]
    lines += ["| claim | verdict | claimed | measured | proved | p |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    claims = result.claims
    for entry in claims[:MOST_ROWS]:
        lines.append("| " + " | ".join(markdown(cell) for cell in row_of(entry)) + " |")
    if len(claims) > MOST_ROWS:
        lines.append(f"\n{len(claims) - MOST_ROWS:,} more claims stand in the report.")
    told = [entry for entry in claims if entry.fails or entry.verdict == "overclaimed"][:50]
    lines += ["", *(f"- **{markdown(entry.name)}**: {markdown(entry.sentence)}" for entry in told)]
    return "\n".join(lines).rstrip() + "\n"
