"""A claims file from somebody who means harm: an error in one line, or text that does nothing, wherever it is shown."""

import json
import re
import sys
from xml.etree import ElementTree

import pytest

from dpzv_audit.base.toml import LARGEST_FILE

from ...helpers.places import read_json, toml_beside
from ...helpers.scores import score_files

CLAIM = '[[claim]]\nname = "c"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 1.0\n'
REFUSED = {
    "a file of 10 MB": (CLAIM + "# " + "x" * 10_000_000, f"is larger than {LARGEST_FILE:,} bytes"),
    "a string of 7 MB": (CLAIM.replace('"c"', '"' + "x" * 7_000_000 + '"'), "name is 'xxx"),
    "arrays without end": (CLAIM + "config = " + "[" * 200_000, "is nested too deeply"),
    "tables without end": (CLAIM + "config = " + "{ a = " * 5000, "is nested too deeply"),
    "dotted keys without end": (CLAIM + "a" + ".a" * 2_000_000 + " = 1", "holds more than 300,000 lines"),
    "quoted dotted keys without end": (CLAIM + '"a"' + '."a"' * 1_000_000 + " = 1", "holds more than 300,000 lines"),
    "dotted keys in a table": (
        CLAIM + "config = { b = 1, a" + ". a" * 1_000_000 + " = 1}",
        "holds more than 300,000 lines",
    ),
    "a number without end": (CLAIM.replace("1.0", "1" * 100_000), "is not valid TOML"),
    "two claims of one name": (CLAIM + CLAIM, "two claims are called 'c'"),
    "a name in another script": (
        CLAIM + CLAIM.replace('"c"', '"\u0441"'),
        "the name '\\u0441' looks like 'c' in line 2",
    ),
    "a ligature": (CLAIM.replace('"c"', '"fine"') + CLAIM.replace('"c"', '"\ufb01ne"'), "looks like 'fine'"),
    "an accent apart": (CLAIM.replace('"c"', '"\u00e9"') + CLAIM.replace('"c"', '"e\u0301"'), "looks like '\\xe9'"),
    "a filler": (CLAIM + CLAIM.replace('"c"', '"c\u3164"'), "looks like 'c'"),
    "a digit for a letter": (
        CLAIM.replace('"c"', '"claim l"') + CLAIM.replace('"c"', '"claim 1"'),
        "the name 'claim 1' looks like 'claim l' in line 2; use a name that a reader can tell from it",
    ),
    "an alpha that is no number": ("[defaults]\nalpha = nan\n" + CLAIM, "alpha is nan"),
    "a release without end": (
        CLAIM.replace('scores = { in = "in.csv", out = "out.csv" }', 'system = "trap:train"')
        + "release = { "
        + ", ".join(f"a{k} = 1" for k in range(101))
        + " }",
        "release holds 101 settings; use at most 100",
    ),
}
WRITTEN = toml_beside(__file__, "hostile_claims.toml")
for old, cases in WRITTEN["in place of"].items():
    REFUSED |= {what: (CLAIM.replace(old, new), says) for what, (new, says) in cases.items()}
REFUSED |= {what: (CLAIM + text, says) for what, (text, says) in WRITTEN["behind the claim"].items()}
REFUSED |= {what: ('[[claim]]\nname = "c"\n' + text, says) for what, (text, says) in WRITTEN["after the name"].items()}
COMMANDS = (
    "::error file=a.py,line=1::green",
    "::set-output name=verdict::supported",
    "x" * 74 + "::warning::green",
    " ".join(["word"] * 15) + " ::stop-commands::green",
    ":::error::green",
    "##[set-output name=verdict]supported",
    "##vso[task.complete result=Succeeded;]green",
    "##teamcity[buildStatus status='SUCCESS']",
    "###[error]green",
)
NAMES = (
    '<script>alert("x")</script>',
    "</td></tr></table><img src=x onerror=alert(1)>",
    "[bold red]rich[/] [link=https://example.org]x[/link] [/nope]",
    "| cell | `code` | [a](javascript:alert(1)) ![b](https://example.org/c.png)",
    "]]> <!-- &amp; %20 ${HOME} $(touch executed) {{ 7 * 7 }} {% raw %}",
)


@pytest.fixture
def folder(tmp_path, monkeypatch, own_cache):
    inner = tmp_path / "inner"
    inner.mkdir()
    score_files(inner, 500)
    (tmp_path / "in.csv").write_text("1\n")
    (inner / "trap.py").write_text("import pathlib\npathlib.Path('executed').write_text('')\n")
    monkeypatch.chdir(inner)
    return inner


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_claim_is_one_line(folder, cli, what):
    text, says = REFUSED[what]
    (folder / "claims.toml").write_text(text)
    printed = cli.refusal("verify claims.toml")
    assert printed.startswith("dpzv-audit: error: ")
    assert len(printed) < 700
    assert says in printed
    assert printed.isprintable(), "nothing that a terminal would obey"
    assert "trap" not in sys.modules
    assert not (folder / "executed").exists()
    assert not (folder / "dpzv-runs").exists()


@pytest.mark.ci
def test_names_are_text_wherever_they_are_shown(folder, cli, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", f"{folder}/summary.md")
    monkeypatch.setenv("COLUMNS", "400")
    claims = [CLAIM.replace('"c"', json.dumps(name)) + f"source = {json.dumps(name)}\n" for name in NAMES]
    # True of these scores, whose epsilon is 4.38.
    (folder / "[claims] <b>.toml").write_text("\n".join(claims).replace("epsilon = 1.0", "epsilon = 5.0"))
    printed = cli("verify '[claims] <b>.toml' --junit junit.xml --sarif claims.sarif")
    assert printed.code == 1, "not tested"
    warnings = printed.err.splitlines()
    assert len(warnings) == len(NAMES), "as many scores could certify 4.38 of the claimed 5"
    assert all(line.startswith("dpzv-audit: warning: [claims] <b>.toml:") for line in warnings)
    shown = " ".join(printed.out.split())
    for name in NAMES:
        assert name in shown
    (run,) = (folder / "dpzv-runs").iterdir()
    page = (run / "report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert not re.search(r"<[^>]*(?:onerror|javascript:)", page), "no tag holds what a name says"
    cases = ElementTree.parse(folder / "junit.xml").iter("testcase")
    assert [case.get("name") for case in cases] == list(NAMES)
    results = read_json(folder / "claims.sarif")["runs"][0]["results"]
    assert [result["partialFingerprints"]["claimName/v1"] for result in results] == list(NAMES)
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "%5Bclaims%5D%20%3Cb%3E.toml"
    for text in ((folder / "summary.md").read_text(), (run / "report.md").read_text()):
        assert "<script" not in text
        assert "<img" not in text
        assert not re.search(r"(?<!\\)\]\((?!figure|claim)", text), "no link and no picture but the report's own"
    assert not (folder / "executed").exists()


def commands_in(line):
    """What GitHub (actions/runner, ActionCommand.cs), Azure (azure-pipelines-agent, Command.cs) or TeamCity obey."""
    start = re.match(r"::.+?::", line.lstrip())
    return ([start.group()] if start else []) + re.findall(r"##[A-Za-z]*\[.*?\]", line)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_for_a_log_is_one(name):
    assert commands_in(name[name.index("::") if "::" in name else 0 :])


@pytest.mark.ci
@pytest.mark.parametrize("columns", ["20", "80", "400"])
def test_no_name_is_a_command_to_a_service_that_keeps_logs(folder, cli, monkeypatch, columns):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", f"{folder}/summary.md")
    monkeypatch.setenv("COLUMNS", columns)
    claims = [CLAIM.replace('"c"', json.dumps(name)) + f"source = {json.dumps(name)}\n" for name in COMMANDS]
    (folder / "claims.toml").write_text("\n".join(claims).replace("epsilon = 1.0", "epsilon = 0.01"))
    shown = cli("verify claims.toml --junit junit.xml --sarif claims.sarif")
    assert shown.code == 1
    as_json = cli("verify claims.toml --json")
    assert as_json.code == 1
    assert [entry["name"] for entry in as_json.json["claims"]] == list(COMMANDS)
    cases = ElementTree.parse(folder / "junit.xml").iter("testcase")
    assert [case.get("name") for case in cases] == list(COMMANDS)
    results = read_json(folder / "claims.sarif")["runs"][0]["results"]
    assert [result["partialFingerprints"]["claimName/v1"] for result in results] == list(COMMANDS)
    files = [(folder / file).read_text() for file in ("junit.xml", "claims.sarif", "summary.md")]
    for text in (shown.out, shown.err, as_json.out, as_json.err, *files):
        assert [line for line in re.split(r"[\r\n]", text) if commands_in(line)] == []
        assert "\x1b" not in text


@pytest.mark.parametrize("name", [name for name in COMMANDS if len(name) < 60])
def test_no_error_is_a_command_either(folder, cli, name):
    for text in (CLAIM.replace('"c"', json.dumps(name)).replace("1.0", "-1.0"), f"{json.dumps(name)} = 1\n" + CLAIM):
        (folder / "claims.toml").write_text(text)
        assert commands_in(cli.refusal("verify claims.toml")) == []
