"""Table 2 of paper 003: its formulas give its own numbers, and the estimates measured are those of the gradient."""

import dataclasses
import math

import pytest
import torch

from dpzv_audit.reproduce import TABLES, Setting, TableParts, implicit, reproduce
from dpzv_audit.reproduce.implicit import DELTA, claimed_epsilon, composed_epsilon
from mechanisms.core.replicas import loss_gradient

from ...helpers.refusals import refused

PAPER = {10: (1.61, 20.1, 2.8e-3), 100: (0.15, 7.3, 3.3e-3)}


@pytest.mark.parametrize("q", PAPER)
def test_eq_3_gives_the_papers_epsilon_from_its_sigma_and_zeta(q):
    variance, zeta, epsilon = PAPER[q]
    assert claimed_epsilon(zeta, variance, DELTA, 60_000) == pytest.approx(epsilon, rel=0.02)


@pytest.mark.parametrize("epsilon", [2.8e-3, 3.3e-3])
def test_the_noise_of_rows_at_the_same_epsilon_is_that_of_eq_3(epsilon):
    rows = {item.label: item for item in TABLES["czofo-figure2"].items}
    options = rows[f"VAFL, noise for {epsilon * 1e3:g}e-3 a round"].options
    assert claimed_epsilon(options["dp_clip"], options["dp_sigma"] ** 2, DELTA, 60_000) == pytest.approx(
        epsilon, rel=1e-12
    )


def test_the_papers_composed_epsilon_is_not_that_of_its_theorem():
    """sqrt(2 x 93,800 x ln 1e6) x 0.0028 + 93,800 x 0.0028 x (e^0.0028 - 1) = 4.508 + 0.736, where it prints 85.9."""
    assert composed_epsilon(2.8e-3, 93_800, 1e-6) == pytest.approx(4.508 + 0.736, abs=2e-3)


@pytest.fixture
def measured(digits, monkeypatch):
    """Every set of estimates that a short run measures, with the exact gradient at the same state."""
    seen = []
    original = implicit._Measures._estimates

    def spy(self, run):
        estimates = original(self, run)
        fed, size = run.federation, self.config.batch_size
        logits, pullback = fed.server.vjp(fed.server_parameters, fed.table[:size].unsqueeze(0))
        _, at_rows = pullback(loss_gradient(logits, self.data.labels[None, :size], None, 1))
        seen.append((estimates, at_rows[0][:, fed.slots[0]]))
        return estimates

    monkeypatch.setattr(implicit._Measures, "_estimates", spy)
    table = TABLES["czofo-table2"]
    table = dataclasses.replace(table, items=(table.items[0],))
    return reproduce(table, Setting(load=digits, epochs=1, seeds=1)).rows[0].to_json(), seen


def test_estimates_are_of_the_gradient_of_the_summed_loss_and_vary_as_measured(measured):
    row, seen = measured
    assert len(seen) == len(row["norms"]) == 2
    for estimates, gradient in seen:
        # An entry of the mean of 100 estimates deviates by sigma / 10; 4,096 entries stay within 6 of that (8e-6).
        spread = math.sqrt(float(estimates.var(0).mean())) / math.sqrt(len(estimates))
        assert float((estimates.mean(0) - gradient).abs().max()) < 6 * spread + 0.02 * float(gradient.abs().max())
        # sigma^2 = |G|^2 / q for directions on the unit sphere, one scalar a batch (to 1/width).
        assert float(estimates.var(0).mean()) == pytest.approx(float(gradient.square().sum()) / 10, rel=0.1)
    assert row["variance"] == pytest.approx(float(seen[-1][0].var(0).mean()))
    assert row["norm"] == max(float(torch.linalg.vector_norm(e, dim=2).max()) for e, _ in seen)


@pytest.fixture
def interrupted(digits, tmp_path):
    """The table's first row, the stage of its progress and the epochs it saw, which an interrupt ended at the third."""
    table = TABLES["czofo-table2"]
    table = dataclasses.replace(table, items=(table.items[0],))
    calls = []

    def stage(name, total):
        def done(count):
            calls.append(count)
            if len(calls) == 3:
                raise KeyboardInterrupt

        return done

    with pytest.raises(KeyboardInterrupt):
        reproduce(table, Setting(load=digits, epochs=2, seeds=1, kept=TableParts(tmp_path / "parts"), stage=stage))
    return table, stage, calls


@pytest.mark.slow
def test_measures_survive_an_interruption(digits, tmp_path, interrupted):
    table, stage, calls = interrupted
    whole = reproduce(table, Setting(load=digits, epochs=2, seeds=1))
    kept = TableParts(tmp_path / "parts", resume=True)
    assert reproduce(table, Setting(load=digits, epochs=2, seeds=1, kept=kept, stage=stage)) == whole
    assert len(calls) == 4
    kept.remove()
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "a measure of an epoch that was trained is missing; start without resume"),
        (lambda path: path.write_bytes(b"{"), r"\.json: is damaged: .*; remove it, or start without resume"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b"1", b"2")),
            r"\.json: is damaged: .*; remove it, or start without resume",
        ),
    ],
    ids=["missing", "cut short", "changed"],
)
def test_measures_that_are_damaged_are_one_line(digits, tmp_path, interrupted, spoil, message):
    table, stage, _ = interrupted
    for path in (tmp_path / "parts").glob("*.json"):
        spoil(path)
    with refused(message):
        reproduce(
            table,
            Setting(load=digits, epochs=2, seeds=1, kept=TableParts(tmp_path / "parts", resume=True), stage=stage),
        )
