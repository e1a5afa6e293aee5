import shlex
from pathlib import Path

import pytest

from dpzv_audit.cli import account as command

from ...helpers.places import read_json

SIZES = "--batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10 --server-update joint-zo"


@pytest.fixture
def run(cli, monkeypatch):
    """Runs the command with some flags."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda flags: cli(f"calibrate {flags}")


@pytest.fixture
def answer(cli):
    """The JSON object of the command."""
    return lambda flags: cli.answer(f"calibrate {flags}")["calibration"]


@pytest.fixture
def refusal(cli):
    """The line with which the command is refused."""
    return lambda flags: cli.refusal(f"calibrate {flags}")


def test_known_noise_against_a_client(answer):
    found = answer(f"--epsilon 1 --delta 1e-5 --adversary client {SIZES}")
    # mu = 0.2681 at (1, 1e-5), n = 101 passes begun, s = 20/128
    assert found["reached"]
    assert found["value"] == pytest.approx(20 / 128 * 101**0.5 / 0.26805, rel=1e-4)
    assert found["bound"]["accountant"] == "gdp-exact"
    assert found["bound"]["epsilon"]["upper"] <= 1.0
    assert found["release"]["sigma"] == found["value"]


def test_words_name_value_target_and_check(run):
    text = " ".join(run(f"--epsilon 1 --adversary client {SIZES}").out.split())
    assert "sigma = 5.858" in text
    assert (
        "epsilon = 1, delta = 1e-05 against one curious client (replace-label): the least sigma that meets it" in text
    )
    assert "Checked forward: gdp-exact gives epsilon <= " in text


def test_rounds_and_batches(answer):
    sizes = "--dataset-size 60000 --clip 1 --sigma 1 --server-update joint-zo"
    rounds = answer(f"--epsilon 1 --solve rounds --batch-size 64 {sizes}")
    assert rounds["value"] == rounds["release"]["rounds"] == 68_401
    batch = answer(f"--epsilon 1 --solve batch-size --rounds 10000 {sizes}")
    assert batch["value"] == batch["release"]["batch_size"]
    assert batch["bound"]["epsilon"]["upper"] <= 1.0


def test_secret_ids_need_less_noise(answer):
    flags = f"--epsilon 1 {SIZES} --sampler poisson"
    client, release = answer(f"{flags} --adversary client"), answer(f"{flags} --adversary release")
    assert release["value"] < client["value"] / 10
    assert release["bound"]["accountant"] == "prv"
    assert release["bound"]["epsilon"]["upper"] <= 1.0


def test_cannot_be_reached_is_an_answer(run, answer):
    result = run("--epsilon 1 --batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10 --server-update sgd")
    assert result.code == 0
    assert "cannot be reached" in result.out
    assert "server-state" in result.out
    found = answer("--epsilon 1 --batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10 --server-update sgd")
    assert (found["reached"], found["value"]) == (False, None)
    assert "server-state" in found["reason"]


def test_a_method_is_calibrated(answer):
    found = answer("--epsilon 2 --method dpzv-sound --dataset-size 1408 --clients 4")
    assert found["reached"]
    assert found["bound"]["epsilon"]["upper"] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("subject", "word"),
    [
        (f"{SIZES} --adversary all-but-one", "Supported if the system releases what it states"),
        ("--method dpzv-sound --dataset-size 1408 --clients 4", "Supported"),
    ],
)
def test_out_writes_a_page_that_accounts_for_the_answer(subject, word, run, cli, tmp_path):
    printed = cli.answer(f"calibrate --epsilon 2 {subject} --out {tmp_path}")
    folder = Path(printed["run"])
    assert folder.parent == tmp_path
    stored = read_json(folder / "result.json")
    assert stored["release"]["sigma"] == printed["calibration"]["value"]
    assert stored["privacy"]["upper"] == printed["calibration"]["bound"]["epsilon"]["upper"]
    head = (folder / "report.md").read_text().partition("\n## ")[0]
    assert f"**{word}: ε ≤ 2 " in head
    assert run(f"--epsilon 2 {subject} --out {tmp_path}").out.splitlines()[-1].endswith("report.html")


def test_without_an_answer_or_out_nothing_is_written(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(f"--epsilon 1 {SIZES}").code == 0
    done = run(f"--epsilon 1 {SIZES.replace('joint-zo', 'sgd')} --out {tmp_path}/runs")
    assert "cannot be reached" in done.out
    assert list(tmp_path.iterdir()) == []


def test_example_of_the_help_runs_as_printed(run):
    name, sub, *arguments = shlex.split(" ".join(command.calibrate.__doc__.split("Example:")[1].split()))
    assert (name, sub) == ("dpzv-audit", "calibrate")
    assert run(shlex.join(arguments)).code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"--epsilon 0 {SIZES}", "--epsilon is 0"),
        (f"--epsilon 1 --delta 2 {SIZES}", "--delta is 2"),
        (f"--epsilon 1 --adversary clent {SIZES}", "did you mean 'client'"),
        (f"--epsilon 1 --neighbours all {SIZES}", "--neighbours is 'all'"),
        (f"--epsilon 1 --solve noise {SIZES}", "--solve is 'noise'"),
        (f"--epsilon 1 --sigma 1 {SIZES}", "--sigma is what --solve sigma seeks"),
        (f"--epsilon 1 --solve rounds {SIZES}", "--rounds is what --solve rounds seeks"),
        ("--epsilon 1 --solve rounds --batch-size 2 --dataset-size 9 --clip 1", "--sigma is missing"),
        ("--epsilon 1 --batch-size 2 --dataset-size 9 --rounds 3", "--clip is missing"),
        ("--epsilon 1 --batch-size 20 --dataset-size 9 --rounds 3 --clip 1", "--batch-size is 20"),
        ("--epsilon 1 --clip 1", "--batch-size is missing"),
        ("--epsilon 1 --method dpzv-sound --dataset-size 1408 --solve rounds", "--method plans its rounds"),
    ],
)
def test_wrong_flags_are_one_line(arguments, says, refusal):
    assert says in refusal(arguments)


def test_quiet_leaves_the_answer_in_one_line(run):
    lines = run(f"--epsilon 1 --adversary client {SIZES} --quiet").out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sigma = 5.858")
    out_of_reach = run(f"--epsilon 1 --adversary server {SIZES} --quiet").out.splitlines()
    assert len(out_of_reach) == 1
    assert out_of_reach[0].startswith("epsilon = 1, delta = 1e-05 against the server (replace-label)")


@pytest.mark.parametrize(
    ("rate", "delta", "warned"),
    [
        ("--batch-size 10 --dataset-size 1000", "0.02", True),
        ("--batch-size 10 --dataset-size 1000", "0.01", True),  # one batch in the clear is (0, 0.01)-private
        ("--batch-size 10 --dataset-size 1000", "0.0099", False),
        ("--batch-size 10 --sample-rate 0.001 --sampler poisson --adversary release", "0.002", True),
        ("--batch-size 1000 --dataset-size 1000", "0.5", False),
    ],
)
def test_a_delta_that_the_sampling_rate_meets_is_warned_of(rate, delta, warned, run, answer):
    flags = f"--epsilon 1 --delta {delta} --rounds 50 --clip 1 {rate}"
    said = run(flags)
    assert said.code == 0
    assert ("not below the sampling rate" in said.err) == warned
    assert said.err.count("\n") == warned
    found = answer(flags)
    assert (found["warning"] is not None) == warned
    assert found["reached"]


def test_add_remove_is_solved_at_a_public_rate_alone(answer, refusal):
    flags = "--epsilon 1 --neighbours add-remove --adversary release --rounds 1000 --clip 1 --sampler poisson"
    assert answer(f"{flags} --batch-size 64 --sample-rate 0.01")["bound"]["accountant"] == "prv"
    follows = answer(f"{flags} --batch-size 64 --dataset-size 6400")
    assert not follows["reached"]
    assert "removing a record moves every other record's rate B/D" in follows["reason"]
    refused = refusal(f"{flags} --sample-rate 0.01 --sigma 1 --solve batch-size")
    assert refused == "dpzv-audit: error: --sample-rate is 0.01; leave it out with --solve batch-size"
