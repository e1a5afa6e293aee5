import json
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from dpzv_audit.accounting import ACCOUNTANTS, GAPS
from dpzv_audit.cli import account as command
from dpzv_audit.errors import AuditError, InputError
from dpzv_audit.evidence import ADVERSARIES

BASE = "--batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10"
CLAIM = BASE + " --claim-epsilon 1 --delta 1e-3"


def run(arguments):
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command("account")(command.account)
    return CliRunner().invoke(app, shlex.split(arguments), env={"COLUMNS": "200"})


def answer(arguments):
    result = run(arguments + " --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_is_the_contract():
    found = answer(CLAIM + " --adversary client --neighbours replace-label")
    assert set(found) == {"release", "bounds"}
    assert found["release"]["sigma"] == pytest.approx(0.1859, abs=5e-5)
    assert [b["accountant"] for b in found["bounds"]] == list(ACCOUNTANTS)
    for bound in found["bounds"]:
        assert {"accountant", "adversary", "neighbours", "epsilon", "sound", "gap"} <= set(bound)
        assert bound["adversary"] == "client"
        assert bound["epsilon"] is None or set(bound["epsilon"]) == {"lower", "estimate", "upper"}
    by_name = {b["accountant"]: b for b in found["bounds"]}
    assert by_name["gdp-exact"]["epsilon"]["upper"] == pytest.approx(60.95, abs=0.005)
    assert by_name["gdp-exact"]["sound"] is True
    assert by_name["gdp-paper"]["epsilon"]["estimate"] == pytest.approx(1.0)
    assert (by_name["gdp-paper"]["sound"], by_name["gdp-paper"]["gap"]) == (False, "known-ids")


def test_all_is_every_adversary_and_relation():
    found = answer(BASE + " --sigma 0.2")
    assert len(found["bounds"]) == len(ADVERSARIES) * 4 * len(ACCOUNTANTS)
    assert found["bounds"] == answer(BASE + " --sigma 0.2 --adversary all --neighbours all")["bounds"]


def test_table_marks_sound_gap_and_tightest():
    result = run(CLAIM + " --sampler poisson --server-update joint-zo --neighbours replace-label")
    assert result.exit_code == 0
    assert result.stdout.startswith("Release: 46900 scalars, B = 128 of D = 60000 (poisson)")
    rows = {line.split()[1]: line for line in result.stdout.splitlines() if line.startswith("│ ")}
    assert "64.11 sound *" in rows["client"]
    assert "(1) known-ids" in rows["client"]
    assert "64.11 sound " in rows["release"]
    assert "1.005 sound *" in rows["release"]
    explained = set(re.findall(r"^([a-z-]+): ", result.stdout, flags=re.MULTILINE))
    assert explained == {
        "known-ids",
        "clt",
        "no-accountant",
        "unbounded-participation",
        "unprotected-channel",
    }
    assert explained <= set(GAPS)


def test_server_state_is_named():
    found = answer(CLAIM + " --server-update sgd --adversary client --neighbours replace-label")
    assert not any(bound["sound"] for bound in found["bounds"])
    assert found["bounds"][2]["gap"] == "server-state"


def test_malicious_client_with_cap():
    flags = CLAIM + " --adversary malicious-client --neighbours zero-out"
    assert all(b["epsilon"] is None for b in answer(flags)["bounds"])
    found = answer(flags + " --participation-cap 101 --distinct-ids")
    assert [b["accountant"] for b in found["bounds"] if b["sound"]] == ["gdp-exact"]


def test_quiet_prints_nothing():
    assert run(BASE + " --sigma 0.2 --neighbours zero-out --quiet").stdout == ""


def test_example_of_the_help_runs_as_printed():
    text = " ".join(command.account.__doc__.split("Example:")[1].split())
    name, sub, *arguments = shlex.split(text)
    assert (name, sub) == ("dpzv-audit", "account")
    assert run(shlex.join([*arguments, "--neighbours", "replace-label"])).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (BASE, "exactly one of --sigma and --claim-epsilon"),
        (CLAIM + " --sigma 1", "exactly one of --sigma and --claim-epsilon"),
        (BASE + " --sigma 1 --adversary clent", "--adversary is 'clent': did you mean 'client'"),
        (BASE + " --sigma 1 --neighbours replace", "--neighbours is 'replace'"),
        (BASE + " --sigma 1 --sampler poison", "--sampler is 'poison': did you mean 'poisson'"),
        (BASE + " --sigma 1 --server-update adam", "--server-update is 'adam'"),
        (BASE + " --sigma 1 --clip-rule x", "must be one of symmetric, paper-one-sided"),
        (BASE + " --sigma 1 --ids x", "must be one of secret, public"),
        (BASE + " --sigma 1 --delta 0", "--delta is 0"),
        (BASE + " --sigma -1", "sigma is -1"),
        (BASE + " --claim-epsilon -1", "--claim-epsilon is -1"),
        (BASE + " --sigma 1 --rounds 0", "rounds is 0"),
        (BASE + " --sigma 1 --batch-size 70000", "batch_size is 70000"),
        (BASE + " --sigma nan", "sigma is nan"),
    ],
)
def test_wrong_flags_are_one_line(arguments, says):
    error = run(arguments).exception
    assert isinstance(error, InputError)
    assert isinstance(error, AuditError)
    assert says in str(error)
    assert "\n" not in str(error)
