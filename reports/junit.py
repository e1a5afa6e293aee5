"""A verification as JUnit XML, the form that CI servers show: a test case a claim, a failure a verdict that fails.

Attributes are those of junit-10.xsd of the Jenkins xunit plugin, which the other servers read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

from dpzv_audit.inert import inert_xml
from dpzv_audit.results import VerifyResult
from reports.text import clean
from reports.verification import words_of


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
