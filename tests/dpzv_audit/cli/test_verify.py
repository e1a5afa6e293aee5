"""`dpzv-audit verify` as a user meets it: exit codes, files it writes, hostile input, interruption."""

import errno
import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from dpzv_audit.base.rounding import p_equals
from dpzv_audit.claims.ledger import level_of
from dpzv_audit.cli import _report, main
from dpzv_audit.runs import load_run

from ...helpers.places import read_json
from ...helpers.scores import score_files

HOSTILE = '<script>alert("x")</script> & | `rm`'
FILE = f"""
[[claim]]
name = '{HOSTILE}'
scores = {{ in = "in.csv", out = "out.csv" }}
epsilon = 0.5
source = "a policy, section 3 <b>"

[[claim]]
name = "not refuted"
scores = {{ in = "in.csv", out = "out.csv" }}
epsilon = 4.5
"""
METHODS = """
[[claim]]
name = "theorem 5.1 against one client"
method = "dpzv"
epsilon = 1.0

[[claim]]
name = "embedding noise hides labels"
method = "vafl"
epsilon = 1.0
config = { dp = "embedding" }

[[claim]]
name = "czofo hides labels by its directions"
method = "czofo"
epsilon = 5.24
delta = 0.09
"""
OTHERS = """
[defaults]
method = "dpzv-sound"
epsilon = 1.0
config = { epochs = 1 }

[[claim]]
name = "the wire"
adversary = "eavesdropper"

[[claim]]
name = "the final model"
adversary = "release"

[[claim]]
name = "a record set to 0"
adversary = "colluding-clients"
neighbours = "zero-out"

[[claim]]
name = "one record less, by its batches"
neighbours = "add-remove"

[[claim]]
name = "one record less, on the wire"
adversary = "eavesdropper"
neighbours = "add-remove"
config = { sampler = "poisson", sample_rate = 0.1, sigma = 0.5 }

[[claim]]
name = "one record less, which moves every rate"
adversary = "eavesdropper"
neighbours = "add-remove"
config = { sampler = "poisson", sigma = 0.5 }

[[claim]]
name = "the server"
adversary = "server"

[[claim]]
name = "the wire of a large size"
adversary = "eavesdropper"
records = 300000
config = { batch_size = 1, epochs = 1 }

[[claim]]
name = "the final model of a size"
adversary = "release"
records = 1000
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, own_cache):
    score_files(tmp_path, 4000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text, name="claims.toml"):
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def verified(folder, cli):
    """Verifies a claims file, written anew where its text is given: exit code and the one JSON object on stdout."""

    def run(flags="", *, claims="claims.toml", text=None):
        if text is not None:
            write(folder, text)
        done = cli(f"verify {claims} {flags} --json")
        return done.code, done.json

    return run


def test_a_refuted_claim_fails_and_the_others_do_not(folder, verified):
    code, result = verified(text=FILE)
    assert code == 1
    assert result["schema"] == "dpzv-audit/verify/1"
    assert [entry["verdict"] for entry in result["claims"]] == ["refuted", "inconclusive"]
    assert {word: count for word, count in result["summary"].items() if count} == {"refuted": 1, "inconclusive": 1}
    assert load_run(folder / result["run"])["claims"] == result["claims"]
    assert result["noise"] is None  # scores of others: nothing was drawn here
    assert verified("--only 'not refuted'")[0] == 0
    assert verified("--only 'not refuted' --strict")[0] == 1


def test_the_second_run_says_the_same_from_the_cache(folder, verified):
    write(folder, FILE)
    first = verified()[1]
    again = verified()[1]
    assert (first["cached"], again["cached"]) == ([], [HOSTILE, "not refuted"])
    assert again["claims"] == first["claims"]
    assert (first["measured"]["claims from the cache"], again["measured"]["claims from the cache"]) == (0, 2)
    assert verified("--no-cache")[1]["cached"] == []


MIXED = """
[[claim]]
name = "scores"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 0.5

[[claim]]
name = "ours"
mechanism = "ours_same:build"
epsilon = 4.5

[[claim]]
name = "theory"
method = "dpzv-sound"
records = 1000
epsilon = 1.0
"""


@pytest.mark.ci
def test_results_are_the_same_bytes_in_another_folder_in_workers_and_from_the_cache(folder, monkeypatch, verified):
    found = []
    for name, more in (
        ("a", "--cache ../c"),
        ("b", "--jobs 2 --no-cache --junit b.xml"),
        ("a", "--cache ../c"),
    ):
        here = folder / name
        here.mkdir(exist_ok=True)
        for scores in ("in.csv", "out.csv"):
            (here / scores).write_bytes((folder / scores).read_bytes())
        write(here, "def build():\n    return lambda world, rng: rng.normal(world)\n", "ours_same.py")
        write(here, MIXED)
        monkeypatch.chdir(here)
        # The path of the file is given in full: where the checkout lies is no part of the result.
        code, result = verified(f"--trust-code {more} --out ../{name}-runs", claims=here / "claims.toml")
        assert code == 1
        run = here / result["run"]
        assert "bounds assume secret noise" in result["noise"]["words"]
        assert result["noise"]["words"] in (run / "report.html").read_text()
        assert read_json(run / "measured.json") == result["measured"]
        found.append((run / "result.json").read_bytes())
    assert result["cached"] == ["scores", "ours", "theory"]
    assert found[0] == found[1] == found[2]
    assert str(folder).encode() not in found[0]
    cases = ElementTree.parse(folder / "b" / "b.xml").iter("testcase")
    assert all(float(case.get("time")) > 0 for case in cases), "seconds are in the file for the CI all the same"


def test_methods_are_accounted_and_refuted_by_their_own_transcript(folder, verified):
    code, result = verified(text=METHODS)
    assert code == 1
    by_name = {entry["name"]: entry for entry in result["claims"]}
    theorem = by_name["theorem 5.1 against one client"]
    assert theorem["verdict"] == "refuted"
    tests = [(look["stage"], look["estimator"]) for look in theorem["looks"]]
    assert tests == [
        ("sequential, simulated transcripts", "sequential"),
        ("sequential, simulated transcripts", "sequential-gaussian"),
        ("simulated transcripts", "joint"),
        ("simulated transcripts", "gaussian"),
        ("simulated transcripts", "curve"),
    ]
    assert theorem["trials"] == 0, "the mechanism's own transcript decides before anything is trained"
    assert sum(theorem["split"].values()) == pytest.approx(1.0)
    assert theorem["given"] == "given Gaussian noise"
    assert 1.0 < theorem["epsilon_lower"] < 2.7, "one client of four sees mu = sqrt(2) / 2.25, epsilon 2.6"
    assert by_name["embedding noise hides labels"]["verdict"] == "overclaimed"
    assert by_name["embedding noise hides labels"]["gap"] == "unprotected-channel"
    assert by_name["czofo hides labels by its directions"]["gap"] == "known-directions"
    assert verified("--only 'embedding noise hides labels' --allow overclaimed")[0] == 0


@pytest.mark.ci
def test_other_adversaries_and_relations_are_audited_or_it_is_said_why_not(folder, verified, monkeypatch):
    monkeypatch.setattr("dpzv_audit.evidence.games.TRAINED_BLOCK", 8)
    _, result = verified("--max-trials 32 --allow overclaimed", text=OTHERS)
    by_name = {entry["name"]: entry for entry in result["claims"]}

    def pools(name):
        return {look["stage"].rpartition(", ")[2].replace("cut off", "trainings") for look in by_name[name]["looks"]}

    assert pools("the wire") == {"simulated transcripts", "trainings"}
    assert pools("the final model") == {"trainings"}
    assert by_name["the final model"]["facts"]["game"]["canary"] == "mislabelled"
    assert pools("a record set to 0") == {"simulated transcripts", "trainings"}
    assert pools("one record less, on the wire") == {"simulated transcripts", "trainings"}
    assert {entry["verdict"] for entry in result["claims"]} <= {"supported", "overclaimed"}
    assert by_name["one record less, which moves every rate"]["verdict"] == "overclaimed"
    for name, says in (
        ("one record less, by its batches", "the batch ids themselves show whether the record is there"),
        ("one record less, which moves every rate", "set sample_rate"),
        ("the server", "it owns the labels"),
        ("the final model of a size", "name a dataset, not records"),
        ("the wire of a large size", "without batch ids every scalar is drawn, and 300,000 rounds are more than"),
    ):
        assert by_name[name]["looks"] == []
        assert says in by_name[name]["unaudited"]
        assert by_name[name]["judged"]["not_tested"]


UNAUDITED = """
[[claim]]
name = "nothing is played on the channel of vafl"
method = "vafl"
epsilon = 1.0
config = { dp = "embedding" }
adversary = "server"

[[claim]]
name = "supported by theory alone"
method = "dpzv-sound"
records = 300000
epsilon = 1.0
adversary = "eavesdropper"
config = { batch_size = 1, epochs = 1 }
"""


def test_strict_fails_what_a_budget_cut_off(folder, verified):
    write(folder, '[[claim]]\nname = "cut"\nmechanism = "planted:noise-over-b"\nepsilon = 1\ndelta = 1e-5\n')
    code, result = verified("--max-trials 2")
    assert (code, result["claims"][0]["verdict"], result["missing"]) == (0, "supported", ["cut"])
    code, result = verified("--max-trials 2 --strict")
    assert (code, result["claims"][0]["verdict"], result["claims"][0]["fails"]) == (1, "supported", True)
    assert result["sentence"].endswith(" With strict, 1 more fails: inconclusive, cut off or not audited.")
    assert verified("--max-minutes 1e-6 --strict")[0] == 1


def test_strict_fails_what_was_not_audited(folder, verified, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", f"{folder}/summary.md")
    write(folder, UNAUDITED)
    code, result = verified("--allow overclaimed")
    assert (code, result["failed"]) == (0, False)
    verdicts = [entry["verdict"] for entry in result["claims"]]
    assert verdicts == ["overclaimed", "supported"]
    assert all(entry["unaudited"] for entry in result["claims"])
    code, result = verified("--allow overclaimed --strict --junit strict.xml --sarif strict.sarif")
    assert (code, [entry["fails"] for entry in result["claims"]]) == (1, [True, True])
    suite = ElementTree.parse(folder / "strict.xml").find("testsuite")
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "0")
    assert [case.find("failure").get("type") for case in suite.findall("testcase")] == verdicts
    results = read_json(folder / "strict.sarif")["runs"][0]["results"]
    assert [(found["level"], found["kind"]) for found in results] == [("error", "fail")] * 2
    assert "- **supported by theory alone**: Not tested: " in (folder / "summary.md").read_text()


@pytest.mark.parametrize("allow", ["--allow overclaimed", ""])
def test_what_is_allowed_fails_nowhere(folder, allow, verified):
    code, _ = verified(f"{allow} --junit o.xml --sarif o.sarif", text=UNAUDITED)
    root = ElementTree.parse(folder / "o.xml").getroot()
    failures = "0" if allow else "1"
    assert code == int(failures)
    for element in (root, root.find("testsuite")):
        assert (element.get("failures"), element.get("errors"), element.get("tests")) == (failures, "0", "2")
    cases = root.findall("testsuite/testcase")
    assert [child.tag for child in cases[0]] == ["system-out" if allow else "failure"]
    run = read_json(folder / "o.sarif")["runs"][0]
    assert run["results"][0]["level"] == ("warning" if allow else "error")
    rules = {rule["id"]: rule["defaultConfiguration"]["level"] for rule in run["tool"]["driver"]["rules"]}
    assert rules["claim-overclaimed"] == ("warning" if allow else "error")
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_junit_holds_every_claim_and_the_failures(folder, verified):
    verified("--junit out.xml", text=FILE)
    root = ElementTree.parse(folder / "out.xml").getroot()
    assert {k: root.get(k) for k in ("tests", "failures", "errors")} == {"tests": "2", "failures": "1", "errors": "0"}
    suite = root.find("testsuite")
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [HOSTILE, "not refuted"]
    assert cases[0].find("failure").get("type") == "refuted"
    assert "which refutes the claimed 0.5" in cases[0].find("failure").text
    assert cases[1].find("skipped") is not None


def test_sarif_points_at_the_line_of_the_claim(folder, verified):
    verified("--sarif out.sarif", text=FILE)
    first, second = read_json(folder / "out.sarif")["runs"][0]["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "claims.toml"
    line = place["region"]["startLine"]
    assert FILE.splitlines()[line - 1] == "[[claim]]"
    assert HOSTILE in FILE.splitlines()[line]
    assert (first["level"], first["kind"], first["ruleId"]) == ("error", "fail", "claim-refuted")
    assert (second["level"], second["kind"]) == ("none", "open")


def test_the_step_summary_is_appended_where_github_asks(folder, verified, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", f"{folder}/summary.md")
    (folder / "summary.md").write_text("before\n")
    verified(text=FILE)
    text = (folder / "summary.md").read_text()
    assert text.startswith("before\n## Privacy claims: failed\n")
    assert "| not refuted | inconclusive |" in text
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, "a bar in a name opens no cell"


def test_the_report_shows_hostile_names_as_text(folder, verified):
    _, result = verified(text=FILE)
    page = (folder / result["run"] / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    assert "<b>" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []
    assert "<script>" not in (folder / result["run"] / "report.md").read_text()


def test_the_report_command_draws_verdicts_again(folder, cli, verified):
    _, result = verified(text=FILE)
    run = folder / result["run"]
    page = (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert cli(f"report {run} --format html --format md --format junit --format sarif").code == 0
    assert (run / "report.html").read_text() == page
    assert read_json(run / "claims.sarif")["version"] == "2.1.0"
    ElementTree.parse(run / "junit.xml")
    value = read_json(run / "result.json")
    value["claims"][0]["verdict"] = 3
    (run / "result.json").write_text(json.dumps(value))
    assert "run verify again" in cli.refusal(f"report {run}")


def test_a_ledger_holds_the_level_of_all_runs(folder, verified):
    write(folder, FILE)
    levels = []
    for epsilon in (4.5, 4.6, 4.6, 4.7):
        write(folder, FILE.replace("4.5", str(epsilon)))
        code, result = verified("--ledger ledger.jsonl --alpha 0.01")
        assert code == 1, "the refuted claim stays refuted, though the level falls"
        levels.append(result["level"])
    # The claim that is refuted was so by the first look, the other was tested at the first, second and third.
    assert levels == pytest.approx([sum(level_of(j, 0.01) for j in looks) for looks in ([1], [1, 2], [1, 2], [1, 3])])
    again = verified("--ledger ledger.jsonl --alpha 0.01")[1]
    assert again["cached"] == [HOSTILE, "not refuted"]
    by, none = (entry["refuted_by"] for entry in again["claims"])
    assert none is None
    assert (by["entry"], by["level"], by["given"]) == (1, level_of(1, 0.01), "")
    assert by["scores"] == again["claims"][0]["scores_digest"]
    assert "refute" not in again["claims"][0]["sentence"].split("An earlier look")[0], "the level of this look is none"
    assert re.search(
        r"An earlier look refuted it \(entry 1 of the ledger, p < 0\.0001, the same scores\)",
        again["claims"][0]["sentence"],
    )
    assert again["ledger"]["entries"] == 3
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert (len(rows), rows[0]["head"], rows[0]["entries"]) == (4, again["ledger"]["head"], 3)


@pytest.fixture
def killed(folder, cli, monkeypatch, verified):
    """What a run with a ledger says that nothing stopped, after another was stopped once it had entered its decisions.

    Also the flags of the second.
    """
    write(folder, FILE + '[[claim]]\nname = "drawn"\nmechanism = "planted:noise-over-b"\nepsilon = 1.0\n')
    write(folder, FILE[: FILE.index("[[claim]]", 20)], "one.toml")
    whole_flags, flags = (f"--ledger {name}.jsonl --cache {name}" for name in ("whole", "stopped"))
    for look_before in (whole_flags, flags):
        assert verified(look_before, claims="one.toml")[0] == 1
    code, whole = verified(whole_flags)
    with monkeypatch.context() as patched:
        patched.setattr("dpzv_audit.cli.verify.write_folder", stopped)
        done = cli(f"verify claims.toml {flags}")
    assert done.code == 130
    assert "all claims were judged, but not all files are written; the same" in done.err
    return code, whole, flags


def stopped(*arguments, **options):
    raise KeyboardInterrupt


VARYING = ("run", "measured", "cached", "not_cached", "command_line", "ledger")


def told(result):
    return {key: value for key, value in result.items() if key not in VARYING}


@pytest.mark.ci
def test_a_run_that_was_stopped_after_its_ledger_resumes_to_the_same_result(killed, verified):
    code, whole, flags = killed
    again, resumed = verified(f"{flags} --resume")
    assert (again, told(resumed)) == (code, told(whole))
    assert resumed["ledger"]["entries"] == whole["ledger"]["entries"] == 2
    assert [one["decided_in"] and one["decided_in"]["entry"] for one in resumed["claims"]] == [1, None, None]


def test_without_resume_it_says_at_which_level_its_scores_were_decided(killed, verified):
    code, whole, flags = killed
    again, result = verified(flags)
    assert (again, result["level"]) == (code, whole["level"])
    assert [one["decided_in"]["entry"] for one in result["claims"]] == [1, 2, 2]
    for before, after in zip(whole["claims"], result["claims"], strict=True):
        same = ("p_value", "level", "epsilon_lower", "ceiling", "looks", "verdict", "scores_digest", "reach")
        assert [before[key] for key in same] == [after[key] for key in same]
        number = after["decided_in"]["entry"]
        assert after["level"] == pytest.approx(level_of(number, 1e-3) / 3)
        decided = (
            f"Entry {number} of the ledger decided on these scores; the error rate for all claims of that look was"
        )
        assert f"{decided} {level_of(number, 1e-3):.3g}." in after["sentence"]


def test_a_refutation_that_takes_gaussian_noise_as_given_says_so_as_long_as_it_stays(folder, verified):
    """Of mu = 1, epsilon 4.38, the Gaussian test alone sees that 3.3 is too little.

    Over 40 seeds the deviate of its p-value is 11.5 with a spread of 0.9, where 4 suffices, and the joint bound at
    1e-4 is 2.10 with a spread of 0.13: another seed gives another verdict with probability below 1e-8.
    """
    rng = np.random.default_rng(5)
    write(
        folder,
        '[[claim]]\nname = "g"\nscores = { in = "gi.npy", out = "go.npy" }\nexactly_gaussian = true\nepsilon = 3.3\n',
    )
    results = []
    for n in (20_000, 300):
        np.save(folder / "gi.npy", rng.normal(1.0, 1.0, n))
        np.save(folder / "go.npy", rng.normal(0.0, 1.0, n))
        code, result = verified("--ledger ledger.jsonl")
        assert code == 1
        results.append(result["claims"][0])
    first, later = results
    assert (first["judged"]["given"], first["refuted_by"]) == ("given Gaussian noise", None)
    assert (later["judged"]["given"], later["refuted_by"]["given"]) == ("given Gaussian noise", "given Gaussian noise")
    assert later["refuted_by"]["scores"] == first["scores_digest"] != later["scores_digest"]
    assert f", given Gaussian noise, scores of digest {first['scores_digest'][:12]})" in later["sentence"]


@pytest.mark.ci
def test_a_refutation_stays_whatever_is_edited_but_the_claim(folder, verified):
    """Six runs of a mechanism with one more comment each, then one that keeps the claim, then another claim."""
    for name in ("comment_kept", "comment_quiet"):
        sys.modules.pop(name, None)
    source = (
        "import numpy as np\n\ndef build():\n    return lambda world, rng: float(rng.random() < (0.9, 0.1)[world])\n"
    )
    claim = '[[claim]]\nname = "{name}"\nmechanism = "comment_kept:build"\nepsilon = 1.0\n'
    flags, heads = "--ledger ledger.jsonl --trust-code", []
    for run in range(6):
        write(folder, source + "# a comment\n" * run, "comment_kept.py")
        sys.modules.pop("comment_kept", None)  # each run of the command is a process of its own
        code, result = verified(flags, text=claim.format(name=f"renamed {run}"))
        assert (code, result["cached"]) == (1, [])
        heads.append(result["ledger"]["head"])
    assert len(set(heads)) == 1, "and nothing is charged for what decides nothing anew"
    write(folder, source.replace("(0.9, 0.1)[world]", "0.5"), "comment_kept.py")
    sys.modules.pop("comment_kept")
    code, result = verified(flags)
    assert (code, result["claims"][0]["p_value"]) == (1, 1.0)
    by = result["claims"][0]["refuted_by"]
    (decision,) = json.loads((folder / "ledger.jsonl").read_text().splitlines()[1])["decisions"].values()
    assert (by["scores"], by["p_value"], by["given"]) == (decision["scores"], decision["p_value"], "")
    assert by["p_value"] < 1e-6
    assert result["claims"][0]["sentence"].endswith(
        f"An earlier look refuted it (entry 1 of the ledger, {p_equals(by['p_value'])}, scores of digest "
        f"{by['scores'][:12]}). That stands until the claim, or its revision, changes."
    )
    assert "which refutes the claimed" not in result["claims"][0]["sentence"]
    code, result = verified(flags, text=claim.format(name="repaired") + "revision = 2\n")
    assert (code, result["claims"][0]["verdict"]) == (0, "inconclusive")
    assert result["level"] == pytest.approx(level_of(2, 1e-3))


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (0, "is empty, which no ledger ever is; put back the file that was last"),
        (None, "is gone, but held 1 entry when it was last used: put it back, or give --new"),
        (1, "holds 0 entries, but was left with 1; put back the file that was last used, or move it away"),
    ],
)
def test_a_ledger_that_was_lost_is_refused_until_a_new_one_is_asked_for(folder, cli, verified, left, says):
    ledger = folder / "ledger.jsonl"
    assert verified("--ledger ledger.jsonl", text=FILE)[0] == 1
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.unlink()
    if left is not None:
        ledger.write_text("".join(lines[:left]))
    before = ledger.exists() and ledger.read_text()
    for more in ("", "--no-cache", "--check"):
        line = cli.refusal(f"verify claims.toml --ledger ledger.jsonl {more}")
        assert f"--ledger ledger.jsonl: {says}" in line
    assert (ledger.exists() and ledger.read_text()) == before
    ledger.unlink(missing_ok=True)
    done = cli("verify claims.toml --ledger ledger.jsonl --new-ledger")
    assert done.code == 1
    assert "A new ledger begins in ledger.jsonl" in done.out
    assert verified("--ledger ledger.jsonl")[0] == 1


def test_evidence_that_a_budget_cut_off_is_a_look_of_its_own_in_a_ledger(folder, verified):
    """A run without time for any test must not fix the verdict of the runs after it, and spends nothing."""
    write(folder, '[[claim]]\nname = "false"\nmechanism = "planted:noise-over-b"\nepsilon = 1.0\n')
    again = "--ledger ledger.jsonl --resume"
    code, cut = verified(f"{again} --max-minutes 1e-6")
    assert (code, cut["missing"], cut["claims"][0]["verdict"]) == (0, ["false"], "supported")  # by theory
    assert not (folder / "ledger.jsonl").exists()
    code, whole = verified(again)
    assert (code, whole["missing"], whole["claims"][0]["verdict"]) == (1, [], "refuted")
    assert whole["level"] == pytest.approx(level_of(1, 1e-3))
    assert verified(again)[0] == 1
    (entry,) = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]
    (decision,) = entry["decisions"].values()
    assert (decision["refuted"], decision["scores"]) == (True, whole["claims"][0]["scores_digest"])


def test_an_interrupt_leaves_a_partial_report_and_code_130(folder, cli, monkeypatch, verified):
    from dpzv_audit.claims import forms

    write(folder, FILE)
    read = forms.load_score_files
    calls = []

    def interrupted(*places):
        calls.append(places)
        if len(calls) > 3:  # the files of both claims are counted before the first one is tested
            raise KeyboardInterrupt
        return read(*places)

    monkeypatch.setattr(forms, "load_score_files", interrupted)
    done = cli("verify claims.toml --json --sarif stopped.sarif")
    assert done.code == 130
    stopped = read_json(folder / "stopped.sarif")["runs"][0]["invocations"]
    assert stopped == [{"executionSuccessful": False}]
    result = done.json
    assert result["interrupted"]
    assert result["missing"] == ["not refuted"]
    assert [entry["verdict"] for entry in result["claims"]] == ["refuted", "not-tested"]
    assert "--resume" in done.err
    assert "interrupted" in (folder / result["run"] / "report.html").read_text()
    monkeypatch.setattr(forms, "load_score_files", read)
    assert not verified("--resume")[1]["interrupted"]


def test_nothing_runs_when_one_claim_is_wrong(folder, cli):
    write(folder, FILE + '\n[[claim]]\nname = "third"\nmethod = "dpzw"\nepsilon = 1.0\n')
    assert "claim 'third': method is 'dpzw': did you mean 'dpzv'?" in cli.refusal("verify claims.toml --json")
    assert not (folder / "dpzv-runs").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("config = { batchsize = 3 }", "did you mean 'batch_size'?"),
        ("config = { batch_size = 0 }", "batch_size is 0"),
        ("config = { batch_size = 5000 }", "use at most the 1408 training records"),
        ('dataset = "digit"', "did you mean 'digits'?"),
        ("clients = 0", "clients is 0"),
        ('config = { sampler = "poison" }', "sampler"),
    ],
)
def test_a_wrong_setting_of_a_method_is_one_line(folder, cli, change, says):
    write(folder, f'[[claim]]\nname = "c"\nmethod = "dpzv"\nepsilon = 1.0\n{change}\n')
    line = cli.refusal("verify claims.toml")
    assert "claims.toml:" in line
    assert says in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "CLAIMS.TOML is missing"),
        ("absent.toml", "cannot be read"),
        ("claims.toml --allow refuted", "--allow is 'refuted'"),
        ("claims.toml --check --allow bogus --allow overclaimed", "--allow is 'bogus'"),
        ("claims.toml --only 'not refutd'", "did you mean 'not refuted'?"),
        ("claims.toml --alpha 0.7", "--alpha is 0.7"),
        ("claims.toml --max-minutes nan", "--max-minutes is nan"),
        ("claims.toml --max-trials 0", "--max-trials"),
        ("claims.toml --no-cache --resume", "--no-cache keeps nothing"),
        ("claims.toml --ledger .", "--ledger"),
        ("claims.toml --new-ledger", "--new-ledger needs --ledger FILE"),
    ],
)
def test_a_wrong_flag_is_one_line_and_code_two(folder, cli, arguments, says):
    write(folder, FILE)
    assert says in cli.refusal(f"verify {arguments}")


def test_output_that_cannot_be_written_is_one_line_and_code_three(folder, cli, monkeypatch):
    def full(path, text, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dpzv_audit.cli.verify.write_atomically", full)
    write(folder, FILE)
    line = cli.refusal("verify claims.toml --junit out.xml --quiet", code=3)
    assert "--junit is out.xml, which cannot be written (No space left on device)" in line


@pytest.mark.parametrize(("flag", "path"), [("--junit", "."), ("--sarif", "absent/claims.sarif")])
def test_an_output_that_can_be_no_file_is_told_before_anything_runs(folder, cli, flag, path):
    write(folder, FILE)
    assert f"{flag} is {path}" in cli.refusal(f"verify claims.toml {flag} {path} --quiet")
    assert sorted(file.name for file in folder.iterdir()) == ["claims.toml", "in.csv", "out.csv"]


def test_a_reader_who_has_gone_is_told_as_a_failure():
    for gone in (BrokenPipeError(errno.EPIPE, "Broken pipe"), SystemExit(1)):
        if isinstance(gone, SystemExit):  # typer's answer, which says that a claim is refuted
            gone.__context__ = BrokenPipeError(errno.EPIPE, "Broken pipe")
        assert _report(gone) == 3


@pytest.mark.parametrize("command", ["verify --schema", "list attacks", "list attacks --json"])
def test_a_reader_who_has_gone_is_no_refuted_claim(command, forked):
    """As of `| head`: 1 would say that a claim is refuted, 0 that all was read; and nobody reads a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*forked, *command.split()], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, b"")


UNTRUSTED = """
[[claim]]
name = "code of the repository"
mechanism = "theirs:mechanism"
epsilon = 1.0

[[claim]]
name = "a training of the repository"
system = "theirs:train"
epsilon = 1.0

[[claim]]
name = "scores"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 1.0

[[claim]]
name = "a method"
method = "vafl"
kind = "attack"
attack = "label_direct"
success_at_most = 0.5
"""
WATCHED = """
import os, sys

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    starts = ("subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system", "socket.connect", "socket.bind")
    changes = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
    if writes or event in (*starts, *changes):
        seen.append(f"{event} {arguments}")

seen = []
from dpzv_audit.cli import _report, main
sys.addaudithook(watch)
code = main(sys.argv[1:])
assert "theirs" not in sys.modules
assert not seen, seen
sys.exit(code)
"""


@pytest.mark.ci
def test_a_check_needs_no_trust_writes_nothing_and_runs_nothing(folder):
    """In a process whose files, processes and sockets are watched, beside code that would say that it was imported."""
    (folder / "theirs.py").write_text("raise SystemExit(7)\n")
    (folder / "watched.py").write_text(WATCHED)
    write(folder, UNTRUSTED)
    before = sorted(path.name for path in folder.iterdir())
    env = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": f"{folder}/cache", "GITHUB_STEP_SUMMARY": "sum.md"}
    command = [sys.executable, "-B", "watched.py", "verify", "claims.toml", "--check"]
    command += ["--ledger", "l.jsonl", "--junit", "j.xml", "--sarif", "s.sarif", "--out", "runs"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("claims.toml: 4 claims, all of them valid\n")
    assert sorted(path.name for path in folder.iterdir()) == before
    (folder / "out.csv").unlink()
    assert main(["verify", "claims.toml", "--check"]) == 2


PLUG_INS = """[dpzv_audit.methods]
theirs = plugged:SPEC
[dpzv_audit.attacks]
their_attack = plugged:SPEC
[dpzv_audit.defences]
their-defence = plugged:SPEC
[dpzv_audit.datasets]
their-data = plugged:SPEC
[pydantic]
theirs = plugged:SPEC
[torch.backends]
theirs = plugged:SPEC
"""
PLUGGED = """
[[claim]]
name = "a method"
method = "theirs"
epsilon = 1.0

[[claim]]
name = "an attack"
method = "vafl"
kind = "attack"
attack = "their_attack"
success_at_most = 0.5

[[claim]]
name = "all attacks"
method = "vafl"
kind = "attack"
attack = "strongest"
success_at_most = 0.5

[[claim]]
name = "a defence"
method = "vafl"
kind = "attack"
attack = "label_direct"
success_at_most = 0.5
config = { defences = [{ name = "their-defence" }] }

[[claim]]
name = "data"
method = "vafl"
kind = "attack"
attack = "label_direct"
success_at_most = 0.5
dataset = "their-data"
"""


@pytest.mark.parametrize("how", ["-P", *(pytest.param(way, marks=pytest.mark.ci) for way in ("-m", "PYTHONPATH"))])
def test_a_check_imports_nothing_of_the_repository_nor_what_it_installs(folder, how):
    """Modules that stand in the way of every library, and plug-ins: each would write that it was imported."""
    root = folder / "theirs"
    root.mkdir()
    names = ("conftest", "plugged", "sklearn", "scipy", "yaml", "torch", "joblib", "pydantic", "attacks", "random")
    # What PYTHONPATH puts before Python's own library runs before any line of the tool: the action takes it away.
    for name in names[:-1] if how == "PYTHONPATH" else names:
        (root / f"{name}.py").write_text(f"open({str(folder / 'executed')!r}, 'a').write({name!r})\n")
    about = root / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(PLUG_INS)
    write(root, UNTRUSTED + PLUGGED.replace('"a method"', '"their method"'))
    for name in ("in.csv", "out.csv"):
        (root / name).write_text("1\n2\n")
    if how == "-P":  # a site that holds the plug-ins, as after an installation of the repository
        (folder / "site-packages").mkdir()
        about.rename(folder / "site-packages" / about.name)
        (root / "plugged.py").rename(folder / "site-packages" / "plugged.py")
    flag = {"-m": [], "-P": ["-P"], "PYTHONPATH": ["-P"]}[how]
    env = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    env |= {"-m": {}, "-P": {"PYTHONPATH": f"{folder}/site-packages"}, "PYTHONPATH": {"PYTHONPATH": "."}}[how]
    command = [sys.executable, *flag, "-B", "-m", "dpzv_audit", "verify", "claims.toml", "--check"]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert not (folder / "executed").exists(), (folder / "executed").read_text()
    if how == "-P":
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("claims.toml: 9 claims, all of them valid\n")
    else:
        assert done.returncode == 2
        assert "method is 'theirs'" in done.stderr


def test_the_schema_is_printed_alone(cli):
    assert cli("verify --schema").json["title"] == "dpzv-audit claims file"
