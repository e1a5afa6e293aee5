"""The files that others copy from: examples, the action, the hooks, the snippets of the CI page."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.file import load_claims
from dpzv_audit.claims.gate import Gate
from dpzv_audit.claims.subjects import Access
from dpzv_audit.cli import app

ROOT = Path(__file__).parents[3]
FILES = sorted(path for path in (ROOT / "examples").rglob("*.toml") if path.parent.name not in ("extension", "flower"))
"""All but those of the example of an outside package, which must be installed: `tests/e2e/test_extension.py`."""


def parses(arguments):
    """Whether the command line knows every flag of `dpzv-audit ARGUMENTS`."""
    command = typer.main.get_command(app)
    context = command.make_context("dpzv-audit", list(arguments))
    context.command.get_command(context, arguments[0]).make_context(arguments[0], list(arguments[1:]), parent=context)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name + "/" + path.name)
def test_every_example_file_is_valid_whole(path, monkeypatch):
    monkeypatch.delitem(sys.modules, "noisy_vfl", raising=False)  # two examples have a module of this name
    Gate(
        file=load_claims(path), access=Access.of(path, root=None, trust_code=True, device="cpu"), cache=Cache(None)
    ).prepare()


def test_every_claim_of_the_papers_names_its_source():
    claims = tomllib.loads((ROOT / "examples" / "papers.toml").read_text())["claim"]
    assert all(re.match(r"00[0-4] |the repair|VAFL itself", claim["source"]) for claim in claims)
    assert {claim["source"][:3] for claim in claims} >= {"000", "001", "002", "003"}
    assert any("004" in claim["source"] for claim in claims)


def test_the_flags_of_action_hooks_and_page_exist(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()  # as in the checkout that the hooks run in
    monkeypatch.chdir(tmp_path)
    action = (ROOT / "action.yml").read_text()
    command = re.search(r"dpzv-audit (verify .+?)\\\n", action, flags=re.DOTALL).group(1)
    parses(shlex.split(command))
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


def test_the_action_hands_no_input_to_the_shell_as_code():
    script = (ROOT / "action.yml").read_text().partition("runs:")[2]
    for block in re.findall(r"run: (?:\|\n((?:        .+\n?)+)|(.+))", script):
        assert "${{" not in "".join(block), "inputs reach a script through the environment alone"


def test_the_action_keeps_what_was_refuted_though_the_gate_fails_and_lets_no_log_command_through(tmp_path):
    """Its script, run with a `dpzv-audit` that speaks as GitHub does and fails."""
    action = (ROOT / "action.yml").read_text()
    assert re.search(r"- if: always\(\)\n      uses: actions/cache/save@v4\n", action)
    script = re.search(r"- id: verify\n(?:.*\n)*?      run: \|\n((?:        .*\n)+)", action).group(1)
    tool = tmp_path / "dpzv-audit"
    tool.write_text('#!/bin/sh\necho "::error::$*"\nexit 1\n')
    tool.chmod(0o755)
    settings = {"CLAIMS": "c.toml", "MINUTES": "", "ARGUMENTS": "--strict", "LEDGER": "l.jsonl", "OUT": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(tmp_path / "output"), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    first, said, last = done.stdout.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert last == f"::{token}::"
    assert said.startswith("::error::verify c.toml --out ")
    assert said.endswith(" --ledger l.jsonl --strict")
