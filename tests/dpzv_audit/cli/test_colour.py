"""What refutes a claim is red on a terminal and nowhere else; `NO_COLOR` and `FORCE_COLOR` are honoured."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from dpzv_audit.cli.output import coloured, print_table
from dpzv_audit.cli.summary import table_from
from dpzv_audit.results import Verdict

from ...helpers.places import ROOT

SCORES = ROOT / "examples" / "scores"
RED = "\x1b[1;31m"


def drawn(what):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=100, no_color=False)
    print_table(console, what) if hasattr(what, "columns") else console.print(what)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("words", "red"),
    [
        ("refuted", "refuted"),
        ("refuted given Gaussian noise", "refuted"),
        ("95% confidence; claim refuted given Gaussian noise", "refuted"),
        ("at least 1.45 against the client (95% confidence), which refutes the claimed epsilon of 1.", "refutes"),
        ("12 claims: 10 refuted, 2 supported.", "refuted"),
        ("An earlier look refuted it (entry 3)", "refuted"),
        ("not refuted", None),
        ("cannot refute", None),
        ("95% confidence; claim not refuted", None),
        ("This does not refute the claimed epsilon of 1 and does not confirm it.", None),
        ("which neither refutes nor confirms the claimed 2", None),
        ("A true claim among them is refuted with probability at most 0.001.", None),
        ("refuted or overclaimed", "refuted"),
    ],
)
def test_only_what_refutes_is_red(words, red):
    shown = drawn(coloured(words))
    assert shown.count(RED) == (red is not None)
    assert red is None or f"{RED}{red}\x1b[0m" in shown


def test_a_verdict_in_the_table_of_a_result_is_red():
    judged = {"claim": "c", "reason": "measured-above-claim", "why": "w"}
    fell = Verdict(word="refuted", given="given Gaussian noise", **judged)
    privacy = SimpleNamespace(estimators=[], claimed=1.0, delta=1e-5, judged=fell)
    result = SimpleNamespace(method="our[bold]mechanism", game={}, privacy=privacy)
    shown = drawn(table_from("mechanism", result))
    assert f"{RED}refuted\x1b[0m given Gaussian noise" in shown
    assert "our[bold]mechanism" in shown
    privacy.judged = Verdict(word="inconclusive", **judged)
    assert RED not in drawn(table_from("mechanism", result))


@pytest.mark.parametrize(
    ("environment", "colour"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_the_environment_decides_over_colour(environment, colour, monkeypatch, cli):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    command = f"audit scores {SCORES}/in.csv {SCORES}/out.csv --epsilon 0.1 --estimator joint"
    done = cli(command)
    assert done.code == 0
    assert ("31m" in done.out) == colour
    assert done.out.count(f"{RED}REFUTED") == (1 if colour else 0)
    done = cli(f"{command} --json")
    assert done.code == 0
    assert "\x1b" not in done.out
