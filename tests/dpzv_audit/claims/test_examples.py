"""The files that others copy from: examples, the action, the hooks, the snippets of the CI page."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import typer

from dpzv_audit.cli import app

from ...helpers.gates import gate_of
from ...helpers.places import ROOT

APART = ("extension", "flower")
EXAMPLES = (ROOT / "examples").rglob("*.toml")
FILES = sorted(path for path in EXAMPLES if path.parent.name not in APART and path.name != "options.toml")
"""Claims; those of the example of an outside package must be installed: `tests/e2e/test_extension.py`."""


def parses(arguments):
    """Whether the command line knows every flag of `dpzv-audit ARGUMENTS`."""
    context = typer.main.get_command(app).make_context("dpzv-audit", list(arguments))
    context.command.get_command(context, arguments[0]).make_context(arguments[0], list(arguments[1:]), parent=context)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name + "/" + path.name)
def test_every_example_file_is_valid_whole(path, monkeypatch):
    monkeypatch.delitem(sys.modules, "noisy_vfl", raising=False)  # two examples have a module of this name
    gate_of(path, trust_code=True).prepare()


def test_every_claim_of_the_papers_names_its_source():
    claims = tomllib.loads((ROOT / "examples" / "papers.toml").read_text())["claim"]
    assert all(re.match(r"00[0-4] |the repair|VAFL itself", claim["source"]) for claim in claims)
    assert {claim["source"][:3] for claim in claims} >= {"000", "001", "002", "003"}
    assert any("004" in claim["source"] for claim in claims)


def test_the_flags_of_action_hooks_and_page_exist(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()  # as in the checkout that the hooks run in
    monkeypatch.chdir(tmp_path)
    action = (ROOT / "action.yml").read_text()
    parses(shlex.split(re.search(r"dpzv-audit\" (verify .+?)\\\n", action, flags=re.DOTALL).group(1)))
    for entry, arguments in re.findall(
        r"entry: dpzv-audit (.+)\n(?:.+\n)*?  args: \[(.+)\]", (ROOT / ".pre-commit-hooks.yaml").read_text()
    ):
        parses([*entry.split(), *re.findall(r'"([^"]+)"', arguments)])
    page = (ROOT / "docs" / "ci.md").read_text()
    found = re.findall(r"^(?: +(?:- )?|\$ )dpzv-audit (verify .+)$", page, flags=re.MULTILINE)
    found += re.findall(r"`dpzv-audit (verify [^`]+)`", page)
    assert len(found) >= 4
    for line in found:
        parses(shlex.split(line))


def scripts():
    """Yield name and text of action.yml, of every workflow and of the one among the examples."""
    yield "action.yml", (ROOT / "action.yml").read_text()
    for path in (*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "examples" / "ledger.yml"):
        yield path.name, path.read_text()


def test_no_workflow_hands_an_expression_to_the_shell_as_code():
    for name, text in scripts():
        for block in re.findall(r"^ *(?:- )?run: (?:[|>]-?\n((?: {8,}.+\n|\n)+)|(.+))", text, flags=re.MULTILINE):
            assert "${{" not in "".join(block), f"{name}: what is given reaches a script through the environment alone"


def test_what_others_wrote_is_pinned_by_its_commit_and_workflows_begin_with_no_permission():
    for name, text in scripts():
        for used in re.findall(r"uses: (.+)", text):
            if used.startswith("dpzv-audit/dpzv-audit@v"):
                continue
            assert re.fullmatch(r"\./[\w./-]*|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), f"{name}: {used}"
        assert name == "action.yml" or re.search(r"^permissions: \{\}$", text, flags=re.MULTILINE), name


def verified(folder, tool, arguments="--strict\n--seed 3"):
    """Run the action's verification with `tool`, a script in the place of `dpzv-audit`; return how it ended."""
    action = (ROOT / "action.yml").read_text()
    assert re.search(r"- if: always\(\) .*\n      uses: actions/cache/save@", action)
    script = re.search(r"- id: verify\n(?:.*\n)*?      run: \|\n((?:        .*\n)+)", action).group(1)
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "dpzv-audit").write_text(f"#!/bin/sh\n{tool}\n")
    (folder / "env" / "bin" / "dpzv-audit").chmod(0o755)
    (folder / "env" / "bin" / "python").symlink_to(sys.executable)
    settings = {"CLAIMS": "c.toml", "MINUTES": "", "ARGUMENTS": arguments, "LEDGER": "l.jsonl", "PYTHONPATH": "theirs"}
    places = {"WORK": str(folder), "HOME": str(folder), "ACTION": str(ROOT), "GITHUB_OUTPUT": f"{folder}/output"}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        env={"PATH": os.environ["PATH"], **settings, **places},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", ["--strict", "--check", "--strict\n  --check", "--checked"])
def test_a_check_on_github_installs_and_imports_nothing_of_the_repository(tmp_path, arguments):
    checks = "--check" in arguments.split()
    done = verified(tmp_path / "job", 'echo "PYTHONPATH=$PYTHONPATH, $PYTHONSAFEPATH$PYTHONNOUSERSITE"', arguments)
    assert ("PYTHONPATH=, 1" if checks else "PYTHONPATH=theirs, ") in done.stdout
    # The installation, with a Python that writes down what it is asked for.
    action = (ROOT / "action.yml").read_text()
    script = re.search(r"- id: install\n(?:.*\n)*?      run: \|\n((?:        .*\n)+)", action).group(1)
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n'
        'if [ "$2 $3" = "-m venv" ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi\n'
    )
    python.chmod(0o755)
    given = {"ACTION": "here", "ARGUMENTS": arguments, "LOCK": "hashes", "REQUIREMENTS": "theirs.txt", "VERSION": ""}
    given |= {"WHERE": str(tmp_path), "USE": "", "GITHUB_OUTPUT": f"{tmp_path}/output"}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], env={"PATH": path, **given}, check=True)
    asked = (tmp_path / "asked").read_text()
    assert "--require-hashes --requirement here/requirements.lock" in asked
    assert ("theirs.txt" in asked) is not checks


def test_the_action_lets_no_command_of_a_log_through_and_says_itself_what_is_wrong(tmp_path):
    """A tool that speaks as GitHub does, on both streams, and ends without verdicts."""
    hostile = 'echo "::error::$*"; echo "::add-mask::x" >&2; echo "dpzv-audit: error: c.toml:7: 9%" >&2; exit 2'
    done = verified(tmp_path, hostile)
    assert done.returncode == 2, done.stdout
    first, *said, last, shown = done.stdout.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert last == f"::{token}::"
    assert shown == "::error file=c.toml,line=7,title=dpzv-audit verify ended with exit code 2::9%25"
    masked, given, error = sorted(said)
    assert (masked, error) == ("::add-mask::x", "dpzv-audit: error: c.toml:7: 9%")
    assert given.startswith("::error::verify c.toml --out ")
    assert given.endswith(" --ledger l.jsonl --strict --seed 3")
    assert (tmp_path / "output").read_text() == "exit-code=2\n"


def test_the_action_shows_what_fails_at_its_line_and_a_name_is_never_a_command(tmp_path):
    def result(level, text, verdict):
        place = {"artifactLocation": {"uri": "a%2Cb/c%3A.toml"}, "region": {"startLine": 4}}
        found = {"level": level, "message": {"text": text}, "locations": [{"physicalLocation": place}]}
        return {**found, "properties": {"verdict": verdict}}

    results = [result("error", "x\n::error::y\r50%", "refuted"), result("none", "z", "supported")]
    results.append(result("warning", "w", "overclaimed"))
    (tmp_path / "kept.sarif").write_text(json.dumps({"runs": [{"results": results}]}))
    done = verified(tmp_path, f"cp {tmp_path}/kept.sarif {tmp_path}/claims.sarif; exit 1")
    assert done.returncode == 1
    assert done.stdout.splitlines()[2:] == [
        "::error file=a%2Cb/c%3A.toml,line=4,title=privacy claim refuted::x%0A::error::y%0D50%25",
        "::warning file=a%2Cb/c%3A.toml,line=4,title=privacy claim overclaimed::w",
    ]
    outputs = dict(line.split("=") for line in (tmp_path / "output").read_text().splitlines())
    assert outputs.keys() == {"exit-code", "junit", "sarif", "report"}
    assert outputs["exit-code"] == "1"
