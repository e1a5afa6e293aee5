"""A reproduced table holds what was run beside what was printed, and its costs are those of the messages."""

import dataclasses

import numpy as np
import pytest

from dpzv_audit.data import load
from dpzv_audit.errors import InputError
from dpzv_audit.reproduce import TABLES, reproduce, table_named, to_markdown
from mechanisms import method_named


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_every_table_is_a_valid_configuration(name):
    table = TABLES[name]
    for row in table.rows:
        method_named(row.method).configure(**{**table.common, **row.options, "epochs": table.epochs})
        assert 0 < row.accuracy < 100


def test_an_unknown_table_is_one_line_with_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'czofo-table3'"):
        table_named("czofo-tabel3")


@pytest.fixture(scope="module")
def result():
    table = TABLES["czofo-table4"]
    few = dataclasses.replace(table, rows=(table.rows[0], table.rows[2]))
    return reproduce(few, load("digits", clients=2), epochs=2, seeds=2)


def test_costs_are_those_of_the_messages_without_the_first_table(result):
    first_order, czofo = result["rows"]
    rounds = 2 * 2 * 22  # two epochs of the paper are four of D/B rounds
    assert first_order["rounds"] == czofo["rounds"] == rounds
    assert first_order["megabytes_up"] == pytest.approx(rounds * 64 * 64 * 4 / 1e6)
    assert first_order["megabytes_down"] == pytest.approx(rounds * 64 * 64 * 4 / 1e6)
    assert czofo["megabytes_down"] == pytest.approx(rounds * 10 * 4 / 1e6)


def test_rows_hold_ours_theirs_and_the_control(result):
    for row in result["rows"]:
        assert len(row["by_seed"]) == 2
        assert row["accuracy"]["value"] == pytest.approx(np.mean(row["by_seed"]))
        assert row["standard_deviation"] == pytest.approx(np.std(row["by_seed"], ddof=1))
        assert 0 < row["frozen_clients"]["value"] < 1
    text = to_markdown(result)
    assert "2 of the paper's 100 epochs, 2 seeds" in text
    for row in result["rows"]:
        assert f"| {row['label']} | {100 * row['accuracy']['value']:.2f} +- " in text


def test_the_same_seed_gives_the_same_table(result):
    table = TABLES["czofo-table4"]
    few = dataclasses.replace(table, rows=(table.rows[0], table.rows[2]))
    assert reproduce(few, load("digits", clients=2), epochs=2, seeds=2) == result
