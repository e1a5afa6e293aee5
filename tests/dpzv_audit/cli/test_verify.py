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

from dpzv_audit.cli import main
from dpzv_audit.runs import load_run

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
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "in.csv", rng.normal(1.0, 1.0, 4000))
    np.savetxt(tmp_path / "out.csv", rng.normal(0.0, 1.0, 4000))
    monkeypatch.setenv("DPZV_AUDIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text, name="claims.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def verified(capsys, *arguments):
    """Exit code and the one JSON object on stdout."""
    code = main(["verify", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_refuted_claim_fails_and_the_others_do_not(folder, capsys):
    code, result = verified(capsys, write(folder, FILE))
    assert code == 1
    assert result["schema"] == "dpzv-audit/verify/1"
    assert [entry["verdict"] for entry in result["claims"]] == ["refuted", "inconclusive"]
    assert result["summary"] == {"refuted": 1, "overclaimed": 0, "supported": 0, "inconclusive": 1}
    stored = load_run(folder / result["run"])
    assert stored["claims"] == result["claims"]
    assert verified(capsys, "claims.toml", "--only", "not refuted")[0] == 0
    assert verified(capsys, "claims.toml", "--only", "not refuted", "--strict")[0] == 1


def test_the_second_run_says_the_same_from_the_cache(folder, capsys):
    path = write(folder, FILE)
    first = verified(capsys, path)[1]["claims"]
    again = verified(capsys, path)[1]["claims"]
    assert [entry["cached"] for entry in first] == [False, False]
    assert [entry["cached"] for entry in again] == [True, True]
    strip = ("cached", "seconds")
    assert [{k: v for k, v in e.items() if k not in strip} for e in again] == [
        {k: v for k, v in e.items() if k not in strip} for e in first
    ]
    assert not verified(capsys, path, "--no-cache")[1]["claims"][0]["cached"]


def test_methods_are_accounted_and_refuted_by_their_own_transcript(folder, capsys):
    code, result = verified(capsys, write(folder, METHODS))
    assert code == 1
    by_name = {entry["name"]: entry for entry in result["claims"]}
    theorem = by_name["theorem 5.1 against one client"]
    assert theorem["verdict"] == "refuted"
    tests = [(look["stage"], look["estimator"]) for look in theorem["looks"]]
    assert tests == [
        ("sequential, simulated transcripts", "sequential"),
        ("sequential, simulated transcripts", "sequential-gaussian"),
        ("simulated transcripts", "clopper-pearson"),
        ("simulated transcripts", "gaussian"),
    ]
    assert theorem["trials"] == 0, "the mechanism's own transcript decides before anything is trained"
    assert sum(theorem["split"].values()) == pytest.approx(1.0)
    assert theorem["given"] == "given Gaussian noise"
    assert 1.0 < theorem["epsilon_lower"] < 2.7, "one client of four sees mu = sqrt(2) / 2.25, epsilon 2.6"
    assert by_name["embedding noise hides labels"]["verdict"] == "overclaimed"
    assert by_name["embedding noise hides labels"]["gap"] == "unprotected-channel"
    assert by_name["czofo hides labels by its directions"]["gap"] == "known-directions"
    assert verified(capsys, "claims.toml", "--only", "embedding noise hides labels", "--allow", "overclaimed")[0] == 0


def test_other_adversaries_and_relations_are_audited_or_it_is_said_why_not(folder, capsys, monkeypatch):
    monkeypatch.setattr("dpzv_audit.claims.games.TRAINED_BLOCK", 8)
    _, result = verified(capsys, write(folder, OTHERS), "--max-trials", "32", "--allow", "overclaimed")
    by_name = {entry["name"]: entry for entry in result["claims"]}

    def pools(name):
        return {look["stage"].rpartition(", ")[2].replace("cut off", "trainings") for look in by_name[name]["looks"]}

    assert pools("the wire") == {"simulated transcripts", "trainings"}
    assert pools("the final model") == {"trainings"}
    assert by_name["the final model"]["facts"]["game"]["canary"] == "mislabelled"
    assert pools("a record set to 0") == {"simulated transcripts", "trainings"}
    assert pools("one record less, on the wire") == {"simulated transcripts", "trainings"}
    assert {entry["verdict"] for entry in result["claims"]} <= {"supported", "overclaimed"}
    for name, says in (
        ("one record less, by its batches", "the batch ids themselves show whether the record is there"),
        ("the server", "it owns the labels"),
        ("the final model of a size", "name a dataset, not records"),
        ("the wire of a large size", "without batch ids every scalar is drawn, and 300,000 rounds are more than"),
    ):
        assert by_name[name]["looks"] == []
        assert says in by_name[name]["unaudited"]
        assert by_name[name]["sentence"].startswith("Not audited: ")


def test_junit_holds_every_claim_and_the_failures(folder, capsys):
    main(["verify", write(folder, FILE), "--junit", "out.xml", "--quiet"])
    root = ElementTree.parse(folder / "out.xml").getroot()
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


def test_sarif_points_at_the_line_of_the_claim(folder, capsys):
    main(["verify", write(folder, FILE).rpartition("/")[2], "--sarif", "out.sarif", "--quiet"])
    sarif = json.loads((folder / "out.sarif").read_text())
    first, second = sarif["runs"][0]["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "claims.toml"
    line = place["region"]["startLine"]
    assert FILE.splitlines()[line - 1] == "[[claim]]"
    assert HOSTILE in FILE.splitlines()[line]
    assert (first["level"], first["kind"], first["ruleId"]) == ("error", "fail", "claim-refuted")
    assert (second["level"], second["kind"]) == ("none", "open")


def test_the_step_summary_is_appended_where_github_asks(folder, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    (folder / "summary.md").write_text("before\n")
    main(["verify", write(folder, FILE), "--quiet"])
    text = (folder / "summary.md").read_text()
    assert text.startswith("before\n## Privacy claims: failed\n")
    assert "| not refuted | inconclusive |" in text
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, "a bar in a name opens no cell"


def test_the_report_shows_hostile_names_as_text(folder, capsys):
    _, result = verified(capsys, write(folder, FILE))
    page = (folder / result["run"] / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    assert "<b>" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []
    assert "<script>" not in (folder / result["run"] / "report.md").read_text()


def test_the_report_command_draws_verdicts_again(folder, capsys):
    _, result = verified(capsys, write(folder, FILE))
    run = folder / result["run"]
    page = (run / "report.html").read_text()
    (run / "report.html").unlink()
    formats = [part for name in ("html", "md", "junit", "sarif") for part in ("--format", name)]
    assert main(["report", str(run), *formats]) == 0
    assert (run / "report.html").read_text() == page
    assert json.loads((run / "claims.sarif").read_text())["version"] == "2.1.0"
    ElementTree.parse(run / "junit.xml")
    capsys.readouterr()
    value = json.loads((run / "result.json").read_text())
    value["claims"][0]["verdict"] = 3
    (run / "result.json").write_text(json.dumps(value))
    assert main(["report", str(run)]) == 2
    assert "run verify again" in capsys.readouterr().err


def test_a_ledger_holds_the_level_of_all_runs(folder, capsys):
    path = write(folder, FILE)
    levels = []
    for epsilon in (4.5, 4.6, 4.6, 4.7):
        write(folder, FILE.replace("4.5", str(epsilon)))
        code, result = verified(capsys, path, "--ledger", "ledger.jsonl", "--alpha", "0.01")
        assert code == 1, "the refuted claim stays refuted, though the level falls"
        levels.append(result["level"])
    assert levels == pytest.approx([0.01 / 2, 0.01 / 6, 0.01 / 12, 0.01 / 12])
    assert verified(capsys, path, "--ledger", "ledger.jsonl", "--alpha", "0.01")[1]["claims"][1]["cached"]
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == 4


def test_evidence_that_a_budget_cut_off_decides_for_itself_alone_in_a_ledger(folder, capsys):
    """A run without time for any test must not fix the verdict of the runs after it."""
    path = write(folder, '[[claim]]\nname = "false"\nmechanism = "planted:noise-over-b"\nepsilon = 1.0\n')
    again = (path, "--ledger", "ledger.jsonl", "--resume")
    code, cut = verified(capsys, *again, "--max-minutes", "1e-6")
    assert (code, cut["missing"], cut["claims"][0]["verdict"]) == (0, ["false"], "supported")  # by theory
    code, whole = verified(capsys, *again)
    assert (code, whole["missing"], whole["claims"][0]["verdict"]) == (1, [], "refuted")
    assert whole["level"] == pytest.approx(1e-3 / 6)
    assert verified(capsys, *again)[0] == 1
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]
    keys = [result["claims"][0]["evidence_key"] for result in (cut, whole)]
    assert [row["refuted"] for row in rows] == [{keys[0]: False}, {keys[1]: True}]


def test_an_interrupt_leaves_a_partial_report_and_code_130(folder, capsys, monkeypatch):
    from dpzv_audit.claims import sources

    path = write(folder, FILE)
    read = sources.load_scores
    calls = []

    def interrupted(place):
        calls.append(place)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return read(place)

    monkeypatch.setattr(sources, "load_scores", interrupted)
    code = main(["verify", path, "--json"])
    printed = capsys.readouterr()
    assert code == 130
    result = json.loads(printed.out)
    assert result["interrupted"]
    assert result["missing"] == ["not refuted"]
    assert [entry["verdict"] for entry in result["claims"]] == ["refuted", "inconclusive"]
    assert "--resume" in printed.err
    assert "interrupted" in (folder / result["run"] / "report.html").read_text()
    monkeypatch.setattr(sources, "load_scores", read)
    assert not verified(capsys, path, "--resume")[1]["interrupted"]


def test_nothing_runs_when_one_claim_is_wrong(folder, capsys):
    later = FILE + '\n[[claim]]\nname = "third"\nmethod = "dpzw"\nepsilon = 1.0\n'
    assert main(["verify", write(folder, later), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "claim 'third': method is 'dpzw': did you mean 'dpzv'?" in printed.err
    assert not (folder / "dpzv-runs").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("config = { batchsize = 3 }", "did you mean 'batch_size'?"),
        ("config = { batch_size = 0 }", "batch_size is 0"),
        ("config = { batch_size = 5000 }", "must be at most the 1408 records"),
        ('dataset = "digit"', "did you mean 'digits'?"),
        ("clients = 0", "clients is 0"),
        ('config = { sampler = "poison" }', "sampler"),
    ],
)
def test_a_wrong_setting_of_a_method_is_one_line(folder, capsys, change, says):
    text = f'[[claim]]\nname = "c"\nmethod = "dpzv"\nepsilon = 1.0\n{change}\n'
    assert main(["verify", write(folder, text)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "claims.toml:" in printed
    assert says in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "CLAIMS.TOML is missing"),
        (["absent.toml"], "cannot be read"),
        (["claims.toml", "--allow", "refuted"], "--allow is 'refuted'"),
        (["claims.toml", "--only", "not refutd"], "did you mean 'not refuted'?"),
        (["claims.toml", "--alpha", "0.7"], "--alpha is 0.7"),
        (["claims.toml", "--max-minutes", "nan"], "--max-minutes is nan"),
        (["claims.toml", "--max-trials", "0"], "--max-trials"),
        (["claims.toml", "--no-cache", "--resume"], "--no-cache keeps nothing"),
        (["claims.toml", "--ledger", "."], "--ledger"),
    ],
)
def test_a_wrong_flag_is_one_line_and_code_two(folder, capsys, arguments, says):
    write(folder, FILE)
    assert main(["verify", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert says in printed.err


def test_output_that_cannot_be_written_is_one_line_and_code_three(folder, capsys, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dpzv_audit.cli.verify_output.write_atomically", full)
    write(folder, FILE)
    assert main(["verify", "claims.toml", "--junit", "out.xml", "--quiet"]) == 3
    assert "--junit is out.xml, which cannot be written (No space left on device)" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "path"), [("--junit", "."), ("--sarif", "absent/claims.sarif")])
def test_an_output_that_can_be_no_file_is_told_before_anything_runs(folder, capsys, flag, path):
    write(folder, FILE)
    assert main(["verify", "claims.toml", flag, path, "--quiet"]) == 2
    assert f"{flag} is {path}, " in capsys.readouterr().err
    assert sorted(file.name for file in folder.iterdir()) == ["claims.toml", "in.csv", "out.csv"]


def test_a_reader_who_has_gone_is_no_refuted_claim():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "dpzv_audit", "verify", "--schema"], stdout=writing, check=False)
    os.close(writing)
    assert done.returncode == 3


def test_a_check_validates_and_runs_nothing(folder, capsys):
    assert main(["verify", write(folder, FILE), "--check"]) == 0
    assert "2 claims, all of them valid" in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in folder.iterdir()) == ["claims.toml", "in.csv", "out.csv"]
    write(folder, FILE.replace("out.csv", "absent.csv"))
    assert main(["verify", "claims.toml", "--check"]) == 2


def test_the_schema_is_printed_alone(capsys):
    assert main(["verify", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "dpzv-audit claims file"
