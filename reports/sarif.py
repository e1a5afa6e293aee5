"""A verification as SARIF 2.1.0 (OASIS), which code hosts show at the line of the claims file."""

from __future__ import annotations

import json
from pathlib import PurePath
from urllib.parse import quote

from dpzv_audit.findings import Verdict
from dpzv_audit.inert import inert_json
from dpzv_audit.results import ClaimResult, GateOptions, VerifyResult
from reports.text import clean
from reports.verification import MEANINGS, ORDER, words_of

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
