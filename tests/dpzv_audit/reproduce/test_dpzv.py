"""Bytes until an accuracy, and the noise of the baselines that stand beside DPZV."""

import dataclasses

import pytest

from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown, with_rows
from dpzv_audit.reproduce.training import TrainingRow

from .conftest import drawn_figure


def row(*accuracies, megabytes=(30.0, 10.0)):
    interval = {"value": accuracies[-1], "low": 0.0, "high": 1.0, "n": 100}
    return TrainingRow(
        label="a row",
        accuracy=interval,
        standard_deviation=None,
        history=[{"epoch": float(i), "accuracy": a} for i, a in enumerate(accuracies, start=1)],
        megabytes_up=megabytes[0],
        megabytes_down=megabytes[1],
        frozen_clients_tuned=interval,
    )


def test_bytes_are_counted_to_the_first_epoch_that_reaches_the_target():
    found = row(0.5, 0.91, 0.89, 0.95)
    assert found.epochs_to_target() == 2.0
    assert found.megabytes_to_target() == "20.0"
    assert row(0.5, 0.6, 0.89, 0.95).megabytes_to_target() == "40.0"
    assert row(0.5, 0.89).epochs_to_target() is None
    assert row(0.5, 0.89).megabytes_to_target() == "not reached (best 89.00%)"


@pytest.fixture
def on_digits(digits):
    """Rows of a table of strips, with the model that fits digits."""

    def run(name, *rows):
        table = with_rows(TABLES[name], rows)
        items = tuple(
            dataclasses.replace(item, options={**item.options, "batch_size": 64}, dataset={"clients": 4})
            for item in table.items
        )
        table = dataclasses.replace(table, items=items)
        return table, reproduce(table, Setting(load=digits, epochs=2, seeds=1))

    return run


def test_figure_3_draws_a_line_a_method_with_no_noise_at_infinity(on_digits):
    table, result = on_digits("dpzv-figure3-mnist", "DPZV, epsilon 1", "DPZV, no noise", "VAFL, epsilon 1")
    by_label = {r.label: r for r in result.rows}
    assert by_label["DPZV, no noise"].epsilon is None
    assert by_label["DPZV, epsilon 1"].epsilon == 1.0
    assert by_label["VAFL, epsilon 1"].to_json()["protects"].startswith("embeddings")
    assert "label" in by_label["DPZV, epsilon 1"].to_json()["protects"]
    drawn = drawn_figure(table, result)
    assert "∞" in drawn
    assert "DPZV" in drawn
    assert "VAFL" in drawn


def test_table_1_says_where_the_target_is_not_reached(on_digits):
    table, result = on_digits("dpzv-table1-mnist", "VAFL, epsilon 1")
    (found,) = result.rows
    best = max(point.accuracy for point in found.history)
    assert best < 0.9
    assert f"| not reached (best {100 * best:.2f}%) | 1209.6 | - |" in to_markdown(table, result)
    assert drawn_figure(table, result).startswith("<svg")
