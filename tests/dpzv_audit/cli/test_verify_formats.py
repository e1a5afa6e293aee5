"""What a CI reads: SARIF against the rules of its schema, JUnit against those of Jenkins, claims files against our own.

`SARIF` restates, for the objects that are written here, what the schema of OASIS says of SARIF 2.1.0 (committee
specification, sarif-schema-2.1.0.json): names, types, what is required, what may not repeat; whatever the object has
more than is written here is left out, so that a new property needs a line here. Where DPZV_AUDIT_SARIF_SCHEMA names the
published schema itself (`.ci/run` fetches it where it can), that is asked too. `JUNIT` restates junit-10.xsd of the
Jenkins xunit plugin in the same way.
"""

import os
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from dpzv_audit.claims.file import claims_schema
from dpzv_audit.cli import main
from dpzv_audit.results import VerifyResult
from reports.verification import word_of

from ...helpers.places import ROOT, read_json
from ...helpers.scores import score_files

TEXT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["text"],
    "properties": {"text": {"type": "string"}, "markdown": {"type": "string"}},
}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
BAG = {
    "type": "object",
    "additionalProperties": True,
    "properties": {"tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}},
}


def closed(required, **properties):
    """An object that has no other properties: in SARIF only property bags may have."""
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


REGION = closed([], startLine={"type": "integer", "minimum": 1}, startColumn={"type": "integer", "minimum": 1})
PLACE = closed(
    ["artifactLocation"],  # one of this and an address
    artifactLocation=closed([], uri={"type": "string", "format": "uri-reference"}),
    region=REGION,
)
RESULT = closed(
    ["message"],
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": -1},
    kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
    level=LEVEL,
    message=TEXT,  # one of text and id
    locations={"type": "array", "items": closed([], physicalLocation=PLACE)},
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
    properties=BAG,
)
RULE = closed(
    ["id"],
    id={"type": "string"},
    name={"type": "string"},
    shortDescription=TEXT,
    fullDescription=TEXT,
    defaultConfiguration=closed([], level=LEVEL),
)
RUN = closed(
    ["tool"],
    tool=closed(
        ["driver"],
        driver=closed(
            ["name"],
            name={"type": "string"},
            version={"type": "string"},
            rules={"type": "array", "uniqueItems": True, "items": RULE},
        ),
    ),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations={
        "type": "array",
        "items": closed(["executionSuccessful"], executionSuccessful={"type": "boolean"}),
    },
    results={"type": "array", "items": RESULT},
)
SARIF = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **closed(
        ["version", "runs"],
        **{
            "$schema": {"type": "string", "format": "uri"},
            "version": {"enum": ["2.1.0"]},
            "runs": {"type": "array", "items": RUN},
        },
    ),
}
SECONDS = r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?"
JUNIT = {
    # element: (attributes it must have, those it may have, children)
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
HOSTILE = '<script>alert("x")</script> & | `rm` ]]>'
CLAIMS = f"""
[[claim]]
name = '{HOSTILE}'
scores = {{ in = "in.csv", out = "out.csv" }}
epsilon = 0.5

[[claim]]
name = "not refuted"
scores = {{ in = "in.csv", out = "out.csv" }}
epsilon = 4.5

[[claim]]
name = "overclaimed"
method = "vafl"
epsilon = 1.0
config = {{ dp = "embedding" }}

[[claim]]
name = "supported"
method = "dpzv-sound"
epsilon = 1.0
records = 1000
adversary = "eavesdropper"
config = {{ epochs = 2 }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    score_files(folder, 2000)
    (folder / "a b.toml").write_text(CLAIMS)
    outputs = ("--junit", folder / "junit.xml", "--sarif", folder / "claims.sarif", "--out", folder / "runs")
    assert main(["verify", *map(str, (folder / "a b.toml", "--no-cache", "--quiet", *outputs))]) == 1
    return folder


def wrong_in_sarif(sarif):
    """Return what the schema finds wrong, and what the specification says beside it."""
    checker = jsonschema.FormatChecker()
    found = [e.message for e in jsonschema.Draft7Validator(SARIF, format_checker=checker).iter_errors(sarif)]
    for run in sarif["runs"]:
        rules = run["tool"]["driver"]["rules"]
        for result in run["results"]:
            if rules[result["ruleIndex"]]["id"] != result["ruleId"]:
                found.append("ruleIndex and ruleId name two rules (3.27.6)")
            if (result["kind"] == "fail") == (result["level"] == "none"):
                found.append("what is of another kind than fail has the level none (3.27.10)")
            for location in result["locations"]:
                if not re.fullmatch(r"[\w./%~:-]+", location["physicalLocation"]["artifactLocation"]["uri"]):
                    found.append("a uri holds characters that must be percent-encoded (RFC 3986)")
    return found


def test_sarif_keeps_its_schema_for_every_verdict(folder):
    sarif = read_json(folder / "claims.sarif")
    assert wrong_in_sarif(sarif) == []
    results = sarif["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == [
        "claim-refuted",
        "claim-inconclusive",
        "claim-overclaimed",
        "claim-supported",
    ]


@pytest.mark.skipif("DPZV_AUDIT_SARIF_SCHEMA" not in os.environ, reason="no DPZV_AUDIT_SARIF_SCHEMA")
def test_sarif_keeps_the_published_schema(folder):
    schema = read_json(Path(os.environ["DPZV_AUDIT_SARIF_SCHEMA"]))
    assert "SARIF" in schema["title"]
    assert "2.1.0" in schema["title"]
    published = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    sarif = read_json(folder / "claims.sarif")
    assert [error.message for error in published.iter_errors(sarif)] == []
    sarif["runs"][0]["results"][0]["line"] = 3
    assert not published.is_valid(sarif)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sarif: sarif.update(version="2.0"),
        lambda sarif: sarif.pop("runs"),
        lambda sarif: sarif["runs"][0]["results"][0].update(level="fatal"),
        lambda sarif: sarif["runs"][0]["results"][0].update(line=3),
        lambda sarif: sarif["runs"][0]["results"][0].pop("message"),
        lambda sarif: sarif["runs"][0]["results"][0].update(level="none"),
        lambda sarif: sarif["runs"][0]["results"][0].update(ruleIndex=2),
        lambda sarif: sarif["runs"][0]["invocations"][0].update(executionSuccessful="yes"),
        lambda sarif: sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"].update(startLine=0),
    ],
)
def test_what_is_no_sarif_is_found(folder, spoil):
    sarif = read_json(folder / "claims.sarif")
    spoil(sarif)
    if "runs" not in sarif:
        assert not jsonschema.Draft7Validator(SARIF).is_valid(sarif)
    else:
        assert wrong_in_sarif(sarif)


def wrong_in_junit(element):
    """Return what the schema finds wrong in an element and all below it."""
    must, may, children = JUNIT.get(element.tag, (set(), set(), set()))
    given = set(element.attrib)
    found = [] if element.tag in JUNIT else [f"no element {element.tag}"]
    found += [f"{element.tag} lacks {name}" for name in must - given]
    found += [f"{element.tag} has {name}" for name in given - must - may]
    if "time" in given and not re.fullmatch(SECONDS, element.get("time")):
        found.append(f"{element.tag} takes {element.get('time')} s")
    for child in element:
        found += [] if child.tag in children else [f"{element.tag} holds {child.tag}"]
        found += wrong_in_junit(child)
    return found


def test_junit_keeps_the_schema_of_jenkins(folder):
    root = ElementTree.parse(folder / "junit.xml").getroot()
    assert wrong_in_junit(root) == []
    cases = root.findall("testsuite/testcase")
    assert [case.get("name") for case in cases] == [HOSTILE, "not refuted", "overclaimed", "supported"]
    assert [[child.tag for child in case] for case in cases] == [["failure"], ["skipped"], ["failure"], ["system-out"]]
    assert cases[0].find("failure").text.startswith("a b.toml:2: Refuted. The audit measures")


def test_what_is_no_junit_is_found(folder):
    root = ElementTree.parse(folder / "junit.xml").getroot()
    root[0][0].set("line", "3")
    root[0].set("time", "1e-3 s")
    ElementTree.SubElement(root[0][1], "passed")
    del root[0].attrib["tests"]
    assert set(wrong_in_junit(root)) == {
        "testcase has line",
        "testsuite takes 1e-3 s s",
        "testcase holds passed",
        "no element passed",
        "testsuite lacks tests",
    }


def test_every_example_keeps_our_own_schema_and_a_wrong_key_does_not():
    schema = claims_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = sorted((ROOT / "examples").rglob("claims.toml")) + [
        ROOT / "examples" / f"{n}.toml" for n in ("papers", "planted")
    ]
    assert len(files) >= 4
    for path in files:
        assert [e.message for e in validator.iter_errors(tomllib.loads(path.read_text()))] == []
    for wrong in ({"claims": []}, {"claim": [{"name": "c", "epsilno": 1.0, "method": "dpzv"}]}, {"claim": []}):
        assert not validator.is_valid(wrong)


@pytest.mark.parametrize(
    ("verdicts", "failed", "word"),
    [
        (("supported", "supported"), False, "supported"),
        (("supported", "inconclusive"), False, "inconclusive"),
        (("overclaimed", "supported"), False, "overclaimed"),
        (("refuted", "supported"), True, "failed"),
    ],
)
def test_a_file_that_does_not_fail_is_not_called_passed(verdicts, failed, word):
    summary = {name: verdicts.count(name) for name in ("refuted", "overclaimed", "supported", "inconclusive")}
    assert word_of(VerifyResult.model_construct(failed=failed, summary=summary)) == word
