import numpy as np
import pytest

from dpzv_audit.base.rounding import down
from dpzv_audit.statistics.estimators import ESTIMATORS, audit_scores
from dpzv_audit.statistics.fixed import TOO_FEW

from ...helpers.scores import gaussian


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores [bold]")
    inside, outside = gaussian(0, 1.0, 2000)
    np.savetxt(folder / "in.csv", inside, fmt="%.17g")
    np.save(folder / "out.npy", outside)
    return f"{folder}/in.csv", f"{folder}/out.npy", inside, outside


@pytest.fixture
def run(files, cli, monkeypatch):
    """Audits the scores of `files`, or of others, with some flags."""
    monkeypatch.setenv("COLUMNS", "120")
    return lambda flags="", scores=files: cli("audit scores", *scores[:2], *flags.split())


@pytest.fixture
def answer(files, cli):
    """The JSON object of such an audit."""
    return lambda flags="", scores=files: cli.answer("audit scores", *scores[:2], *flags.split())


@pytest.fixture
def refusal(files, cli):
    """The line with which such an audit is refused."""
    return lambda flags: cli.refusal("audit scores", *files[:2], *flags.split())


def test_json_is_the_library_answer(files, answer):
    result = answer()
    bounds = audit_scores(files[2], files[3], delta=1e-5)
    assert result["schema"] == "dpzv-audit/audit-scores/1"
    assert result["scores"] == {"in": files[0], "out": files[1], "n_in": 2000, "n_out": 2000}
    assert result["claim"] is None
    assert [e["name"] for e in result["estimators"]] == ["joint", "gaussian"]
    for shown, bound in zip(result["estimators"], bounds, strict=True):
        assert shown["epsilon_lower"] == bound.epsilon_lower
        assert (shown["confidence"], shown["assumes"]) == (0.95, bound.assumes)
        assert shown["verdict"] is None
    assert "With 2,000 + 2,000 scores this test can certify at most" in result["meaning"]


def test_options_reach_the_estimators(files, answer):
    flags = "--delta 1e-3 --confidence 0.9 --seed 4 --estimator clopper-pearson"
    result = answer(flags)
    bound = audit_scores(files[2], files[3], delta=1e-3, confidence=0.9, seed=4, estimators=["clopper-pearson"])[0]
    assert [e["epsilon_lower"] for e in result["estimators"]] == [bound.epsilon_lower]


def test_a_trade_off_bound_refutes_no_epsilon_delta_claim_unless_told(run, answer):
    # The gaussian bound says about 3.6, joint about 1.8; the truth is 4.38.
    result = answer("--epsilon 2.5")
    assert [e["verdict"] for e in result["estimators"]] == ["not refuted", "cannot refute"]
    assert (result["claim"]["verdict"], result["claim"]["judged"]["reason"]) == ("inconclusive", "not-refuted")
    blind = answer("--epsilon 2.5 --estimator gaussian")["claim"]
    assert (blind["verdict"], blind["judged"]["reason"]) == ("not-tested", "no-test")
    told = answer("--epsilon 2.5 --exactly-gaussian")
    assert [e["verdict"] for e in told["estimators"]] == ["not refuted", "refuted"]
    assert (told["claim"]["verdict"], told["claim"]["judged"]["given"]) == ("refuted", "given Gaussian noise")
    assert "given Gaussian noise" in told["meaning"]
    assert "refuted given" in " ".join(run("--epsilon 2.5 --exactly-gaussian").out.split()).lower()
    # What `joint` refutes by itself is refuted, whatever the noise.
    assert answer("--epsilon 1 --exactly-gaussian")["claim"]["judged"]["given"] == ""


def test_files_whose_rows_depend_on_each_other_are_said_so(tmp_path, run, answer, rng):
    for name in ("in", "out"):
        np.save(tmp_path / f"{name}.npy", np.sort(rng.normal(size=300)))
    sorted_files = (f"{tmp_path}/in.npy", f"{tmp_path}/out.npy")
    (warning,) = answer(scores=sorted_files)["warnings"]
    assert warning.startswith("the scores do not look independent")
    assert "Warning: the scores do not look independent" in " ".join(run(scores=sorted_files).out.split())


def test_independent_files_have_no_warning(answer):
    assert answer()["warnings"] == []


def test_estimators_that_may_refute_share_the_error_with_a_claim_and_without(answer):
    """The best of several bounds at 95% each is no bound at 95%: the sentence names the best."""
    assert [e["confidence"] for e in answer("--epsilon 1")["estimators"]] == [0.95, 0.95]
    shared = answer("--epsilon 1 --exactly-gaussian")["estimators"]
    assert [e["confidence"] for e in shared] == pytest.approx([0.975, 0.975])
    best = answer("--exactly-gaussian")
    assert [e["confidence"] for e in best["estimators"]] == pytest.approx([0.975, 0.975])
    lower = down(max(e["epsilon_lower"] for e in best["estimators"]))
    said = (
        f"at least {lower} with 95% confidence (gaussian, given Gaussian noise, best of 2 tests that share the error)"
    )
    assert said in best["meaning"]
    assert "with 95% confidence (joint)." in answer()["meaning"]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--epsilon 1 --fail-on refuted", 1),
        ("--epsilon 1", 0),
        ("--epsilon 3 --fail-on refuted", 0),
        ("--epsilon 3 --fail-on refuted --exactly-gaussian", 1),
        ("--epsilon 1 --fail-on refuted --json", 1),
        ("--epsilon 1 --fail-on refuted --quiet", 1),
    ],
)
def test_fail_on_refuted_sets_the_exit_code(flags, code, run):
    assert run(flags).code == code


def test_readable_output_has_the_table_the_meaning_and_never_says_passed(run):
    done = run("--epsilon 5 --verbose")
    assert done.code == 0
    for words in ("joint", "not refuted", "cannot refute", "does not confirm it", "random sample"):
        assert words in " ".join(done.out.split())
    assert "passed" not in done.out.lower()
    assert "These scores could not have refuted it" not in done.out
    assert "These scores could not have refuted it" in run("--epsilon 50").out
    assert "refutes the claimed epsilon of 1." in run("--epsilon 1 --verbose").out


def test_quiet_prints_the_meaning_alone(run):
    lines = run("--quiet").out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("At delta = 1e-05, epsilon is at least 1.")


def test_only_an_assumed_bound_says_what_it_rests_on(answer):
    text = answer("--estimator gaussian")["meaning"]
    assert text.startswith("These scores cannot refute an (epsilon, delta) claim")
    assert "only if the view is exactly Gaussian" in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--delta 0", "--delta is 0.0"),
        ("--confidence 95", "--confidence is 95.0"),
        ("--epsilon -1", "--epsilon is -1.0; use a finite number of at least 0"),
        ("--epsilon nan", "--epsilon is nan"),
        ("--fail-on refuted", "--fail-on needs a claim"),
        ("--epsilon 1 --fail-on never", "--fail-on is 'never'; use one of refuted"),
        ("--estimator clopper", "--estimator is 'clopper': did you mean 'clopper-pearson'"),
    ],
)
def test_a_wrong_flag_is_named(refusal, flags, words):
    assert words in refusal(flags)


@pytest.mark.parametrize(
    "flags",
    [
        "--runs 10",
        "--adversary server",
        "--canary state",
        "--max-minutes nan",
        "--jobs 2",
        "--resume",
        "--out elsewhere",
        "--trial-seconds 5",
        "--device gpu",
    ],
)
def test_a_flag_of_another_audit_is_one_line(refusal, flags):
    assert refusal(flags).startswith(f"dpzv-audit: error: No such option: {flags.split()[0]}")


def test_a_bound_that_the_user_vouches_for_does_not_say_that_it_assumes_nothing(run):
    flags = "--epsilon 1 --estimator gaussian"
    assert "nothing" not in run(f"{flags} --exactly-gaussian --verbose").out
    assert "what --exactly-gaussian" in run(f"{flags} --exactly-gaussian --verbose").out
    assert "the view is exactly" in run(flags).out


@pytest.mark.parametrize(
    ("words", "follows"),
    [
        ("", "nothing"),
        ("--method dpzv", "--method"),
        ("--json method dpzv", "--json"),
        ("-- x", "--"),
    ],
)
def test_an_audit_names_its_command_first(words, follows, cli):
    right = "name a command: method, system, defence, mechanism, scores, coverage"
    line = cli.refusal(f"audit {words}")
    assert line == f"dpzv-audit: error: audit is followed by {follows}; {right}; see dpzv-audit audit --help"


def test_missing_files_are_named(files, tmp_path, cli):
    assert "no.csv: there is no such file" in cli.refusal("audit scores", files[0], tmp_path / "no.csv")


def test_the_group_lists_its_commands_and_each_shows_its_own_options(cli):
    done = cli("audit --help")
    assert done.code == 0
    text = done.out
    for name, own, of_others in (
        ("method", "--canary", "--coin-flips"),
        ("system", "--fit-trials", "--runs"),
        ("mechanism", "--trial-seconds", "--epochs"),
        ("scores", "--coin-flips", "--runs"),
        ("coverage", "--audits", "--out"),
    ):
        assert f"\n  {name} " in text.partition("Commands:")[2]
        done = cli(f"audit {name} --help")
        assert done.code == 0
        shown = done.out
        assert f"Example: dpzv-audit audit {name} " in shown
        assert f" {own} " in shown
        assert f" {of_others} " not in shown
    assert "No such command 'score'. Did you mean 'scores'?" in cli.refusal("audit score")


@pytest.mark.parametrize("sizes", [(2, 2), (7, 9)])
def test_so_few_scores_that_nothing_could_be_tested_are_refused(sizes, tmp_path, cli):
    files = [tmp_path / f"{side}.npy" for side in ("in", "out")]
    for file, size in zip(files, sizes, strict=True):
        np.save(file, np.arange(float(size)))
    assert cli.refusal("audit scores", *files, "--epsilon", "1") == (
        f"dpzv-audit: error: the files hold {sizes[0]} scores with the canary and {sizes[1]} without it: "
        "give at least 8 of each, or nothing can be tested"
    )
    assert cli("audit scores", *files, "--estimator", "sequential").code == 0


def test_too_few_scores_are_those_of_which_an_estimator_tests_nothing():
    for name, estimator in ESTIMATORS.items():
        for size in (7, 8):
            scores = np.arange(float(size))
            (bound,) = audit_scores(scores + 100, scores, delta=1e-5, estimators=(name,))
            assert bound.threshold_rule.startswith(TOO_FEW) == (size < estimator.least_a_side), name
