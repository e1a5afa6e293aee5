import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.rounding import down
from dpzv_audit.cli import main
from dpzv_audit.cli.commands import Audits, audit
from dpzv_audit.cli.flags import said
from dpzv_audit.statistics.estimators import audit_scores

APP = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, cls=Audits, callback=audit)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores [bold]")
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000)
    np.savetxt(folder / "in.csv", inside, fmt="%.17g")
    np.save(folder / "out.npy", outside)
    return str(folder / "in.csv"), str(folder / "out.npy"), inside, outside


def run(files, *flags: str):
    return CliRunner().invoke(APP, ["scores", files[0], files[1], *flags], env={"COLUMNS": "120"})


def answer(files, *flags: str) -> dict:
    done = run(files, *flags, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_json_is_the_library_answer(files):
    result = answer(files)
    bounds = audit_scores(files[2], files[3], delta=1e-5)
    assert result["schema"] == "dpzv-audit/audit-scores/1"
    assert result["scores"] == {"in": files[0], "out": files[1], "n_in": 2000, "n_out": 2000}
    assert result["claim"] is None
    assert [e["name"] for e in result["estimators"]] == ["joint", "gaussian"]
    for shown, bound in zip(result["estimators"], bounds, strict=True):
        assert shown["epsilon_lower"] == bound.epsilon_lower
        assert (shown["confidence"], shown["assumes"]) == (0.95, bound.assumes)
        assert shown["verdict"] is None
    assert "with 2,000 + 2,000 scores this test can certify at most" in result["meaning"]


def test_options_reach_the_estimators(files):
    flags = ("--delta", "1e-3", "--confidence", "0.9", "--seed", "4", "--estimator", "clopper-pearson")
    result = answer(files, *flags)
    bound = audit_scores(files[2], files[3], delta=1e-3, confidence=0.9, seed=4, estimators=["clopper-pearson"])[0]
    assert [e["epsilon_lower"] for e in result["estimators"]] == [bound.epsilon_lower]


def test_a_trade_off_bound_refutes_no_epsilon_delta_claim_unless_told(files):
    # The gaussian bound says about 3.6, joint about 1.8; the truth is 4.38.
    result = answer(files, "--epsilon", "2.5")
    assert [e["verdict"] for e in result["estimators"]] == ["not refuted", "cannot refute"]
    assert (result["claim"]["verdict"], result["claim"]["judged"]["reason"]) == ("inconclusive", "not-refuted")
    blind = answer(files, "--epsilon", "2.5", "--estimator", "gaussian")["claim"]
    assert (blind["verdict"], blind["judged"]["reason"]) == ("not-tested", "no-test")
    told = answer(files, "--epsilon", "2.5", "--exactly-gaussian")
    assert [e["verdict"] for e in told["estimators"]] == ["not refuted", "refuted"]
    assert (told["claim"]["verdict"], told["claim"]["judged"]["given"]) == ("refuted", "given Gaussian noise")
    assert "given Gaussian noise" in told["meaning"]
    shown = " ".join(run(files, "--epsilon", "2.5", "--exactly-gaussian").stdout.split())
    assert "refuted given" in shown
    # What `joint` refutes by itself is refuted, whatever the noise.
    assert answer(files, "--epsilon", "1", "--exactly-gaussian")["claim"]["judged"]["given"] == ""


def test_files_whose_rows_depend_on_each_other_are_said_so(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("in", "out"):
        np.save(tmp_path / f"{name}.npy", np.sort(rng.normal(size=300)))
    sorted_files = (str(tmp_path / "in.npy"), str(tmp_path / "out.npy"))
    (warning,) = answer(sorted_files)["warnings"]
    assert warning.startswith("the scores do not look independent")
    assert "Warning: the scores do not look independent" in " ".join(run(sorted_files).stdout.split())


def test_independent_files_have_no_warning(files):
    assert answer(files)["warnings"] == []


def test_estimators_that_may_refute_share_the_error_with_a_claim_and_without(files):
    """The best of several bounds at 95% each is no bound at 95%: the sentence names the best."""
    assert [e["confidence"] for e in answer(files, "--epsilon", "1")["estimators"]] == [0.95, 0.95]
    shared = answer(files, "--epsilon", "1", "--exactly-gaussian")["estimators"]
    assert [e["confidence"] for e in shared] == pytest.approx([0.975, 0.975])
    best = answer(files, "--exactly-gaussian")
    assert [e["confidence"] for e in best["estimators"]] == pytest.approx([0.975, 0.975])
    lower = down(max(e["epsilon_lower"] for e in best["estimators"]))
    said = f"at least {lower} with 95% confidence (gaussian, given Gaussian noise, the best of 2 that share the error)"
    assert said in best["meaning"]
    assert "with 95% confidence (joint);" in answer(files)["meaning"]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--epsilon", "1", "--fail-on", "refuted"), 1),
        (("--epsilon", "1"), 0),
        (("--epsilon", "3", "--fail-on", "refuted"), 0),
        (("--epsilon", "3", "--fail-on", "refuted", "--exactly-gaussian"), 1),
        (("--epsilon", "1", "--fail-on", "refuted", "--json"), 1),
        (("--epsilon", "1", "--fail-on", "refuted", "--quiet"), 1),
    ],
)
def test_fail_on_refuted_sets_the_exit_code(files, flags, code):
    assert run(files, *flags).exit_code == code


def test_readable_output_has_the_table_the_meaning_and_never_says_passed(files):
    done = run(files, "--epsilon", "5")
    assert done.exit_code == 0
    for words in ("joint", "not refuted", "cannot refute", "does not confirm it", "random pilot"):
        assert words in " ".join(done.stdout.split())
    assert "passed" not in done.stdout.lower()
    assert "no result of so few scores could refute it" not in done.stdout
    assert "no result of so few scores could refute it" in run(files, "--epsilon", "50").stdout
    assert "refutes the claimed epsilon of 1;" in run(files, "--epsilon", "1").stdout


def test_quiet_prints_the_meaning_alone(files):
    lines = run(files, "--quiet").stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("At delta = 1e-05, epsilon is at least 1.")


def test_only_an_assumed_bound_says_what_it_rests_on(files):
    text = answer(files, "--estimator", "gaussian")["meaning"]
    assert text.startswith("Nothing here can refute an (epsilon, delta) claim")
    assert "only if the view is exactly Gaussian" in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--delta", "0"), "--delta is 0.0"),
        (("--confidence", "95"), "--confidence is 95.0"),
        (("--epsilon", "-1"), "--epsilon is -1.0, must be a finite number of at least 0"),
        (("--epsilon", "nan"), "--epsilon is nan"),
        (("--fail-on", "refuted"), "--fail-on needs a claim"),
        (("--epsilon", "1", "--fail-on", "never"), "--fail-on is 'never': must be one of refuted"),
        (("--estimator", "clopper"), "--estimator is 'clopper': did you mean 'clopper-pearson'"),
    ],
)
def test_a_wrong_flag_is_named(files, flags, words):
    error = run(files, *flags).exception
    assert isinstance(error, InputError)
    assert words in said(error)


@pytest.mark.parametrize(
    "flags",
    [
        ("--runs", "10"),
        ("--adversary", "server"),
        ("--canary", "state"),
        ("--max-minutes", "nan"),
        ("--jobs", "2"),
        ("--resume",),
        ("--out", "elsewhere"),
        ("--trial-seconds", "5"),
        ("--device", "gpu"),
    ],
)
def test_a_flag_of_another_audit_is_one_line(files, flags, capsys):
    assert main(["audit", "scores", *files[:2], *flags]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"dpzv-audit: error: No such option: {flags[0]}")
    assert told.count("\n") == 1


def test_a_bound_that_the_user_vouches_for_does_not_say_that_it_assumes_nothing(files):
    flags = ("--epsilon", "1", "--estimator", "gaussian")
    assert "nothing" not in run(files, *flags, "--exactly-gaussian").stdout
    assert "what --exactly-gaussian" in run(files, *flags, "--exactly-gaussian").stdout
    assert "the view is exactly" in run(files, *flags).stdout


@pytest.mark.parametrize(
    ("words", "follows"),
    [
        ((), "nothing"),
        (("--method", "dpzv"), "--method"),
        (("--json", "method", "dpzv"), "--json"),
        (("--", "x"), "--"),
    ],
)
def test_an_audit_names_its_command_first(words, follows):
    error = CliRunner().invoke(APP, [*words]).exception
    assert isinstance(error, InputError)
    right = "must be followed by a command: method, system, defence, mechanism, scores, coverage"
    assert said(error) == f"audit is followed by {follows}, {right}; see dpzv-audit audit --help"


def test_missing_files_are_named(files, tmp_path):
    error = CliRunner().invoke(APP, ["scores", files[0], str(tmp_path / "no.csv")]).exception
    assert isinstance(error, InputError)
    assert "no.csv: there is no such file" in said(error)


def test_the_group_lists_its_commands_and_each_shows_its_own_options(capsys):
    assert main(["audit", "--help"]) == 0
    text = capsys.readouterr().out
    for name, own, of_others in (
        ("method", "--canary", "--coin-flips"),
        ("system", "--fit-trials", "--runs"),
        ("mechanism", "--trial-seconds", "--epochs"),
        ("scores", "--coin-flips", "--runs"),
        ("coverage", "--audits", "--out"),
    ):
        assert f"Example: dpzv-audit audit {name} " in text
        assert f"\n  {name} " in text.partition("Commands:")[2]
        assert main(["audit", name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"Example: dpzv-audit audit {name} " in shown
        assert f" {own} " in shown
        assert f" {of_others} " not in shown
    assert main(["audit", "score"]) == 2
    assert "No such command 'score'. Did you mean 'scores'?" in capsys.readouterr().err


def test_a_refuted_claim_fails_and_a_wrong_choice_is_named(files, capsys):
    given = ("--epsilon", "1", "--estimator", "clopper-pearson", "--fail-on", "refuted", "--json")
    assert main(["audit", "scores", *files[:2], *given]) == 1
    capsys.readouterr()
    assert main(["audit", "scores", *files[:2], "--fail-on", "never"]) == 2
    assert "--fail-on is 'never': must be one of refuted" in capsys.readouterr().err
