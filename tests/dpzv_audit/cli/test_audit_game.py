"""The games, simulations, mechanisms and planted bugs of `dpzv-audit audit`, through the command."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ...helpers.places import toml_beside

FULL_SIZE = "method dpzv --simulate --dataset-size 60000 --batch-size 128 --rounds 46900"
CLAIM = "--clients 7 --epsilon 1 --delta 1e-3"
QUICK = "method dpzv --epochs 1 --runs 12 --chunk 8"


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return lambda line: cli(f"audit {line} --out {tmp_path}")


@pytest.fixture
def answer(tmp_path, cli):
    return lambda line: cli.answer(f"audit {line} --out {tmp_path}")


@pytest.mark.slow
def test_theorem_5_1_at_full_size_in_one_command(answer):
    """Certified at 95%: at least 30 by all clients together, 12 by one of seven."""
    all_clients = answer(f"{FULL_SIZE} {CLAIM} --adversary colluding-clients --runs 10000")
    assert all_clients["privacy"]["empirical_lower"] >= 30.0
    assert all_clients["privacy"]["verdict"] == "refuted"
    assert all_clients["game"]["mechanism"] == "scalars simulated without training"
    one = answer(f"{FULL_SIZE} {CLAIM} --adversary client --runs 10000")
    assert 12.0 <= one["privacy"]["empirical_lower"] < all_clients["privacy"]["empirical_lower"]


@pytest.mark.slow
def test_theorem_5_1_is_not_refuted_without_the_ids(answer):
    """The same game without them does not refute 1.02, at 10,000 runs a side."""
    result = answer(f"{FULL_SIZE} {CLAIM} --adversary eavesdropper --runs 10000")
    assert result["privacy"]["empirical_lower"] < 1.02
    assert result["privacy"]["verdict"] == "overclaimed"


def test_scores_are_kept_and_read_again_by_other_estimators(answer, cli, tmp_path):
    result = answer(QUICK)
    files = [f"{result['run']}/{side}.npz" for side in ("in", "out")]
    again = cli.answer("audit scores --delta 1e-5", *files)
    first = next(e for e in result["privacy"]["estimators"] if e["name"] == "joint")
    assert again["scores"]["n_in"] == first["n_in"] == 12
    with np.load(files[0], allow_pickle=False) as archive:
        assert archive["scores"].shape == (12,)
    assert not (tmp_path / "audits").exists()


@pytest.mark.parametrize(
    "flags",
    [
        "--canary state --adversary colluding-clients --canary-norm 100",
        "--canary random --neighbours replace-record --runs 30",
        "--canary mislabelled --adversary release",
        "--neighbours add-remove --adversary eavesdropper --set sampler=poisson --set sample_rate=0.1",
    ],
)
def test_all_five_parts_of_the_game_stand_in_the_result(flags, answer):
    game = answer(f"{QUICK} {flags}")["game"]
    assert {"mechanism", "canary", "neighbours", "adversary", "score", "runs_in", "runs_out"} <= set(game)
    for flag, value in re.findall(r"--(canary|neighbours|adversary) (\S+)", flags):
        assert str(game[flag]).startswith(value)


def test_whether_the_canary_saturated_is_printed(answer):
    assert answer(QUICK)["game"]["saturated"] == "yes, in every run"
    lost = answer(f"{QUICK} --epochs 2 --set server_rate=5.0")
    assert lost["game"]["saturated"].startswith("no")
    assert "saturated: no" in lost["sentence"]


@pytest.mark.ci
def test_jobs_and_interruptions_give_the_same_numbers(answer, run, tmp_path, monkeypatch):
    alone = answer(QUICK)
    assert answer(f"{QUICK} --jobs 2")["privacy"]["estimators"] == alone["privacy"]["estimators"]
    from dpzv_audit.games import real

    original, calls = real.RealTrials.__call__, []

    def interrupted(self, first, last):
        calls.append(first)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, first, last)

    with monkeypatch.context() as patched:
        patched.setattr(real.RealTrials, "__call__", interrupted)
        assert run(QUICK).code == 130
    assert len(list((tmp_path / "audits").rglob("*.npz"))) == 2
    with monkeypatch.context() as patched:
        patched.setattr(real.RealTrials, "__call__", lambda self, a, b: calls.append(a) or original(self, a, b))
        calls.clear()
        resumed = answer(f"{QUICK} --resume")
    assert calls == [8]
    assert resumed["privacy"] == alone["privacy"]
    assert resumed["tradeoff"] == alone["tradeoff"]


@pytest.mark.ci
def test_a_time_limit_answers_with_what_is_there(answer):
    result = answer(f"{QUICK} --runs 100000 --max-minutes 0.05")
    assert result["game"]["stopped"] == "max-minutes"
    assert 0 < result["game"]["runs_in"] < 100_000 == result["game"]["runs_asked"]
    assert "time limit ended it after" in result["sentence"]


def test_planted_mechanisms_by_name(answer, run):
    result = answer("mechanism planted:noise-over-b")
    assert [row["verdict"] for row in result["rows"]] == ["refuted"]
    assert result["sentence"] == "1 of 1 mechanisms got the expected verdict."
    for file in ("table.md", "report.md"):
        assert "| noise scaled for B times the sensitivity too little |" in Path(result["run"], file).read_text()
    assert "**As expected: planted:noise-over-b is refuted.**" in Path(result["run"], "report.md").read_text()
    assert "noise-over-b" in run("mechanism planted:noise-over-b").out
    assert run("mechanism planted:noise-over-b --fail-on refuted").code == 1
    # With two runs a side nothing can be refuted: the verdict is wrong, and the command says so.
    wrong = run("mechanism planted:noise-over-b --runs 2")
    assert wrong.code == 3
    assert "NOT AS EXPECTED: planted:noise-over-b is supported, and refuted is right" in wrong.out
    page = Path(wrong.out.splitlines()[-1].removeprefix("Report: ")).with_suffix(".md").read_text()
    assert "**Not as expected: planted:noise-over-b is supported, and refuted is right.**" in page


@pytest.mark.ci
def test_a_mechanism_of_ones_own(answer, cli, tmp_path, monkeypatch):
    (tmp_path / "mine_here.py").write_text(
        "class M:\n"
        "    def run(self, world, rng):\n"
        "        return 3.0 * world + rng.normal()\n"
        "def build():\n"
        "    return M()\n"
        "class V:\n"
        "    def run(self, world, rng):\n"
        "        raise ValueError('no')\n"
        "def wrong():\n"
        "    return V()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    result = answer("mechanism mine_here:build --epsilon 1 --runs 300 --jobs 1")
    assert result["privacy"]["verdict"] == "refuted"
    assert result["game"]["mechanism"] == "mine_here:build"
    assert answer("mechanism mine_here:build --epsilon 50 --runs 300")["privacy"]["verdict"] == "not-tested"
    line = cli.refusal(f"audit mechanism mine_here:wrong --runs 300 --out {tmp_path}", code=3)
    assert "raised ValueError: no (mine_here.py:8); no run was done before it" in line


@pytest.mark.parametrize(
    ("flags", "words"),
    toml_beside(__file__, "wrong_audit_flags.toml").items(),
)
def test_a_wrong_flag_is_one_line(flags, words, cli, tmp_path):
    assert words in cli.refusal(f"audit {flags} --out {tmp_path}")


def test_where_memory_runs_out_the_scores_are_those_of_one_go_and_it_is_said_once(run, answer, monkeypatch):
    """Planted: no more than two pairs fit, as on a device that is too small."""
    from dpzv_audit.games.real import RealTrials

    whole = answer(QUICK)
    play = RealTrials.__call__

    def too_small(trials, first, last):
        if last - first > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return play(trials, first, last)

    monkeypatch.setattr(RealTrials, "__call__", too_small)
    halved = answer(QUICK)
    for side in ("in", "out"):
        first, again = (np.load(Path(result["run"]) / f"{side}.npz")["scores"] for result in (whole, halved))
        assert np.allclose(first, again, rtol=1e-5, atol=0)
    said = "ran out: from then on 4 trainings at a time, to the same numbers"
    assert "memory" not in whole["compute"]
    assert halved["compute"]["memory"] == said
    assert run(QUICK).out.replace("\n", " ").count(f"Memory {said}.") == 1


@pytest.mark.parametrize("activation", ["cyclic", pytest.param("random", marks=pytest.mark.slow)])
def test_noise_is_that_of_the_deployed_training_whatever_relation_is_audited(activation, answer, tmp_path, cli):
    """The same flags give the schedule and the sound noise of `train` to the game, played or simulated."""
    same = f"--epsilon 2 --batch-size 128 --clients 2 --seed 4 --set activation={activation}"
    deployed = cli.answer(f"train --method dpzv-sound {same} --epochs 1 --out {tmp_path}")["privacy"]["release"]
    for relation in ("replace-label", "replace-record", "zero-out"):
        game = f"method dpzv-sound {same} --neighbours {relation} --adversary colluding-clients --runs 2"
        size = f"--dataset-size 1408 --rounds {deployed['rounds']}"
        for release in (
            answer(f"{game} --epochs 1")["privacy"]["release"],
            answer(f"{game} --simulate {size}")["privacy"]["release"],
        ):
            assert release["sigma"] == deployed["sigma"]
            assert release["rounds_by_client"] == deployed["rounds_by_client"]
            times = 2 if relation == "zero-out" else 1
            assert release["noise_multiplier"] == pytest.approx(times * deployed["noise_multiplier"])
