"""A verification in the forms that CI servers read: JUnit XML, SARIF 2.1.0, and a step summary in Markdown.

JUnit has the attributes of junit-10.xsd of the Jenkins xunit plugin, which other servers read too; SARIF follows the
OASIS standard, and code hosts show it at the line of the claims file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from urllib.parse import quote
from xml.etree import ElementTree

from dpzv_audit.errors import inert_json, inert_xml
from dpzv_audit.findings import Verdict
from dpzv_audit.results import ClaimResult, GateOptions, VerifyResult
from reports.text import clean, markdown
from reports.verification import MEANINGS, ORDER, row_of, word_of, words_of


def to_junit(result: VerifyResult, measured: Mapping[str, float] | None = None) -> str:
    """Return JUnit XML of a result of `verify`: one suite; an inconclusive claim that passes counts as skipped.

    `measured` holds the seconds of each claim (`dpzv_audit.claims.result.measured`), where they are known.
    """
    known, file = measured or {}, clean(result.claims_file)
    skipped = [claim.verdict == "inconclusive" and not claim.fails for claim in result.claims]
    totals = {"tests": str(len(skipped)), "failures": str(sum(claim.fails for claim in result.claims)), "errors": "0"}
    time = {"time": f"{known.get('seconds', 0.0):.3f}"}
    root = ElementTree.Element("testsuites", {"name": "dpzv-audit", **totals, **time})
    counts = {**totals, "skipped": str(sum(skipped)), **time}
    suite = ElementTree.SubElement(root, "testsuite", {"name": file, **counts})
    for place, (claim, passed_over) in enumerate(zip(result.claims, skipped, strict=True), start=1):
        seconds = f"{known.get(f'seconds of claim {place}', 0.0):.3f}"
        named = {"classname": file, "name": clean(claim.name), "time": seconds}
        case = ElementTree.SubElement(suite, "testcase", named)
        text = clean(claim.sentence)
        if claim.fails:
            failure = ElementTree.SubElement(case, "failure", {"type": words_of(claim), "message": text})
            failure.text = f"{file}:{claim.line}: {text}"
        elif passed_over:
            ElementTree.SubElement(case, "skipped", {"message": text})
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + inert_xml(ElementTree.tostring(root, encoding="unicode")) + "\n"


SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(result: VerifyResult) -> str:
    """Return SARIF of a result of `verify`: a rule a verdict, a result a claim, at its line of the claims file."""
    rules = [
        {
            "id": f"claim-{verdict}",
            "name": f"Claim{verdict.capitalize()}",
            "shortDescription": {"text": f"A privacy claim is {verdict}."},
            "fullDescription": {"text": MEANINGS[verdict]},
            "defaultConfiguration": {"level": _level(verdict, result.options)},
        }
        for verdict in ORDER
    ]
    found = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "dpzv-audit",
                        "version": clean(result.versions.get("dpzv-audit") or "0"),
                        "rules": rules,
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": not result.interrupted}],
                "results": [_result(claim, result) for claim in result.claims],
            }
        ],
    }
    return inert_json(json.dumps(found, indent=2, allow_nan=False)) + "\n"


def _level(verdict: Verdict, options: GateOptions) -> str:
    """Return the level of a verdict under the run's options, whatever else one claim of it may lack."""
    if verdict == "overclaimed":
        return "warning" if options.allow_overclaimed else "error"
    return "error" if verdict == "refuted" or (verdict == "inconclusive" and options.strict) else "note"


def _standing(claim: ClaimResult, options: GateOptions) -> dict[str, str]:
    """Return level and kind: only what is of kind "fail" has a level (section 3.27.10)."""
    if claim.fails or claim.verdict == "overclaimed":
        return {"level": "error" if claim.fails else _level(claim.verdict, options), "kind": "fail"}
    return {"level": "none", "kind": "pass" if claim.verdict == "supported" else "open"}


def _result(claim: ClaimResult, result: VerifyResult) -> dict[str, object]:
    place = {"artifactLocation": {"uri": _uri(result.claims_file)}, "region": {"startLine": claim.line}}
    return {
        "ruleId": f"claim-{claim.verdict}",
        "ruleIndex": ORDER.index(claim.verdict),
        **_standing(claim, result.options),
        "message": {"text": f"{clean(claim.name)}: {clean(claim.sentence)}"},
        "locations": [{"physicalLocation": place}],
        # An alert stays the same alert for as long as the claim keeps its name.
        "partialFingerprints": {"claimName/v1": clean(claim.name)},
        "properties": {
            "adjustedPValue": claim.adjusted_p_value,
            "evidence": claim.evidence_key,
            "verdict": words_of(claim),
        },
    }


def _uri(path: str) -> str:
    """Return the path as a relative URI reference, or a file URI where it is absolute."""
    pure = PurePath(path)
    text = quote(pure.as_posix(), safe="/")
    return f"file://{text}" if pure.is_absolute() else text


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
