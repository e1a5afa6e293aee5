"""The benchmarks' table: what counts as kept, what the page says, and the command end to end on one quick section."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """The modules of the benchmarks, which are scripts beside each other."""
    monkeypatch.syspath_prepend(str(BENCH))
    import measuring
    import ratios
    import run

    return run, ratios.Row, measuring


def test_a_promise_is_kept_or_missed_by_a_factor_in_its_own_direction(bench):
    _, row, _ = bench
    base = {"what": "w", "ours": "o", "beside": "b"}
    assert row(**base, ratio=5.0, promised=2.5).missed_by == 2.0
    assert row(**base, ratio=2.5, promised=2.5).missed_by == 1.0
    assert row(**base, ratio=6.0, promised=12.0, at_least=True).missed_by == 2.0
    assert row(**base, ratio=24.0, promised=12.0, at_least=True).missed_by == 0.5
    assert row(**base, ratio=24.0).missed_by is None
    assert row(**base, ratio=None, promised=1.0).missed_by is None


def test_the_page_says_by_how_much_a_promise_was_missed_and_that_the_machine_was_busy(bench):
    run, row, _ = bench
    rows = [
        row(what="slow", ours="5 s", beside="1 s", ratio=5.0, promised=2.5),
        row(what="gain", ours="1 s", beside="13 s", ratio=13.0, promised=12.0, at_least=True),
        row(what="absent", ours="not installed", beside="-", ratio=None),
    ]
    page = run.markdown(run.SECTIONS[0], rows)
    assert "| slow | 5 s | 1 s | 5.00 | at most 2.5 | missed, 2.00 times |" in page
    assert "| gain | 1 s | 13 s | 13.00 | at least 12 | kept |" in page
    assert "| absent | not installed | - | - | - | - |" in page
    assert run.promises(rows) == "1 of 2 promises kept. Missed: slow (5.00, at most 2.5)."
    assert "not idle" in run.load_words(2.0, 2.0, 2)
    assert "not idle" not in run.load_words(0.1, 1.0, 2)


def test_the_bare_products_of_a_step_are_its_products_and_nothing_else(bench):
    _, _, measuring = bench
    left, right = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    steps = []

    def step():
        steps.append(torch.relu(torch.bmm(left, right)) + torch.baddbmm(torch.zeros(3, 1, 6), left, right))

    with measuring.CaptureProducts() as captured:
        step()
    assert len(captured.calls) == 2
    assert torch.equal(captured.calls[0](), torch.bmm(left, right))
    measuring.products_of(step, before=2)()
    assert len(steps) == 4  # the one above, two before and the one that is captured: bare products take no step


@pytest.mark.slow
def test_the_command_measures_a_section_and_writes_the_page(tmp_path):
    """docs/benchmarks.md sums up docs/printed/benchmarks.md and docs/printed/benchmarks-large.md, which it writes."""
    page = tmp_path / "page.md"
    command = [sys.executable, str(BENCH / "run.py"), "estimators", "--quick", "--output", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert f"OMP_NUM_THREADS=1 python benchmarks/run.py estimators --quick --output {page}" in text
    assert "| clopper-pearson, 100,000 scores a side |" in text
    assert "Load average" in text
    wrong = subprocess.run([*command[:2], "estimaters"], capture_output=True, text=True, timeout=300, check=False)
    assert wrong.returncode == 2
    assert "no section estimaters; there are replicas, " in wrong.stderr


def test_a_round_with_noise_on_a_grid_is_measured_beside_one_with_float_noise(bench):
    """Three short turns on a busy machine: the promise of 1.15 is for the page, this finds a round twice as long."""
    import grid

    rows = list(grid.rows(quick=True))
    assert [row.what for row in rows] == ["dpzv, K = 128, B = 64", "dpzv-sound, K = 128, B = 64"]
    assert all(row.promised == 1.15 for row in rows)
    assert all(0.5 < row.ratio < 1.5 for row in rows)


@pytest.mark.slow
def test_throughput_is_measured_on_workers_too(bench, monkeypatch):
    import throughput

    from dpzv_audit.base.executor import Workers
    from dpzv_audit.data import load
    from dpzv_audit.games.game import Game
    from dpzv_audit.games.real import RealTrials
    from mechanisms import METHODS

    monkeypatch.setattr(throughput, "CHUNK", 2)
    trials = RealTrials(Game(config=METHODS["dpzv"].configure(batch_size=512)), load("digits"))
    assert throughput.rate_here(trials, 1) > 0.0
    assert throughput.rate_on(Workers(kind="loky", jobs=2), trials, 2) > 0.0
