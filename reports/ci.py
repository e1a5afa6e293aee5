"""A verification in the forms that CI servers read: JUnit XML, SARIF 2.1.0, and a step summary in Markdown.

JUnit has the attributes of junit-10.xsd of the Jenkins xunit plugin, which other servers read too; SARIF follows the
OASIS standard, and code hosts show it at the line of the claims file.
"""

import json
from collections.abc import Mapping
from pathlib import PurePath
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from dpzv_audit.base.errors import inert_json, inert_xml
from dpzv_audit.results import ClaimResult, VerifyResult

from .content import environment
from .text import clean
from .verdicts import MEANINGS, lines_of, words_of
from .verification import ORDER

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_junit(result: VerifyResult, measured: Mapping[str, float] | None = None) -> str:
    """Return JUnit XML of a result of `verify`: one suite; an undecided claim that passes counts as skipped.

    `measured` holds the seconds of each claim (`dpzv_audit.claims.result.measured`), where they are known.
    """
    claims = result.claims
    file = clean(result.claims_file)
    skipped = [claim.verdict in ("inconclusive", "not-tested") and not claim.fails for claim in claims]

    def seconds_of(key: str) -> str:
        return f"{(measured or {}).get(key, 0.0):.3f}"

    totals = {"tests": str(len(claims)), "failures": str(sum(claim.fails for claim in claims)), "errors": "0"}
    seconds = {"time": seconds_of("seconds")}
    root = Element("testsuites", {"name": "dpzv-audit", **totals, **seconds})
    totals["skipped"] = str(sum(skipped))
    suite = SubElement(root, "testsuite", {"name": file, **totals, **seconds})
    for place, claim in enumerate(claims, start=1):
        named = {"classname": file, "name": clean(claim.name)}
        named["time"] = seconds_of(f"seconds of claim {place}")
        case = SubElement(suite, "testcase", named)
        text = _text(claim)
        if claim.fails:
            failure = SubElement(case, "failure", {"type": words_of(claim.judged), "message": text})
            failure.text = f"{file}:{claim.line}: {text}"
        elif skipped[place - 1]:
            SubElement(case, "skipped", {"message": text})
        else:
            SubElement(case, "system-out").text = text
    indent(root)
    source = inert_xml(tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{source}\n'


def to_sarif(result: VerifyResult) -> str:
    """Return SARIF of a result of `verify`: a rule per verdict, a result per claim, at its line of the claims file.

    A rule's level is that of its verdict under the run's options, whatever else one claim of it may lack.
    """
    levels = dict.fromkeys(("refuted", "not-tested", "overclaimed"), "error")
    levels |= dict.fromkeys(result.options.allow, "warning")
    levels["inconclusive"] = "error" if result.options.strict else "note"
    rules = [
        {
            "id": f"claim-{verdict}",
            "name": f"Claim{verdict.title().replace('-', '')}",
            "shortDescription": {"text": f"A privacy claim is {verdict.replace('-', ' ')}."},
            "fullDescription": {"text": MEANINGS[verdict]},
            "defaultConfiguration": {"level": levels.get(verdict, "note")},
        }
        for verdict in ORDER
    ]
    version = clean(result.versions.get("dpzv-audit") or "0")
    run = {
        "tool": {"driver": {"name": "dpzv-audit", "version": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not result.interrupted}],
        "results": [_result(claim, result) for claim in result.claims],
    }
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return inert_json(json.dumps(log, indent=2, allow_nan=False)) + "\n"


def _standing(claim: ClaimResult) -> dict[str, str]:
    """Return level and kind: only what is of kind "fail" has a level (section 3.27.10)."""
    word = claim.verdict
    if claim.fails or word in ("overclaimed", "not-tested"):
        return {"level": "error" if claim.fails else "warning", "kind": "fail"}
    return {"level": "none", "kind": "pass" if word in ("supported", "held") else "open"}


def _text(claim: ClaimResult) -> str:
    """Return the verdict of a claim in words, with what was not tested, warnings and why, on one line."""
    return f"{words_of(claim.judged).capitalize()}. {' '.join(lines_of(claim.judged))}"


def _result(claim: ClaimResult, result: VerifyResult) -> dict[str, object]:
    path = PurePath(result.claims_file)
    # A relative URI reference, or a file URI where the path is absolute.
    # Bytes of a name that are no text stay the bytes they are.
    uri = ("file://" if path.is_absolute() else "") + quote(path.as_posix(), safe="/", errors="surrogateescape")
    place = {"artifactLocation": {"uri": uri}, "region": {"startLine": claim.line}}
    name = clean(claim.name)
    return {
        "ruleId": f"claim-{claim.verdict}",
        "ruleIndex": ORDER.index(claim.verdict),
        **_standing(claim),
        "message": {"text": f"{name}: {_text(claim)}"},
        "locations": [{"physicalLocation": place}],
        # An alert stays the same alert for as long as the claim keeps its name.
        "partialFingerprints": {"claimName/v1": name},
        "properties": {
            "adjustedPValue": claim.adjusted_p_value,
            "evidence": claim.evidence_key,
            "verdict": words_of(claim.judged),
        },
    }


def to_summary(result: VerifyResult) -> str:
    """Return the verdicts on a claims file as a table in Markdown, and what the claims that fail lack."""
    # A step summary holds a megabyte at most.
    return environment().get_template("summary.md").render(result=result, most=500).rstrip() + "\n"
