"""Bytes until an accuracy, accuracy at equal bytes, and the noise of the baselines that stand beside DPZV."""

import dataclasses

import pytest

from dpzv_audit.data import load
from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown, with_rows
from dpzv_audit.reproduce.figures import (
    accuracy_at_budget,
    accuracy_by_epsilon,
    looser_claim,
    loss_by_epoch,
    tighter_claim,
)
from dpzv_audit.reproduce.planning import checked
from dpzv_audit.reproduce.table import TableResult
from dpzv_audit.reproduce.training import TrainingRow
from mechanisms import method_named
from mechanisms.core.baselines import calibrated
from mechanisms.core.context import Deployment

from .conftest import drawn_figure

OF_DPZV = [name for name in TABLES if name.startswith("dpzv-") and "figure4" not in name]


def row(*accuracies, megabytes=(30.0, 10.0), label="a row", **tags):
    interval = {"value": accuracies[-1], "low": 0.0, "high": 1.0, "n": 100}
    return TrainingRow(
        label=label,
        accuracy=interval,
        standard_deviation=None,
        history=[{"epoch": float(i), "accuracy": a, "loss": 1 / i} for i, a in enumerate(accuracies, start=1)],
        megabytes_up=megabytes[0],
        megabytes_down=megabytes[1],
        frozen_clients_tuned=interval,
        **tags,
    )


def result_of(*rows):
    """A result of two epochs with these rows."""
    counts = {"epochs": 2, "paper_epochs": 100, "seeds": 1, "records": None, "seed": 0}
    return TableResult(table="a-table", source="a paper", rows=list(rows), notes=[], **counts)


def test_bytes_are_counted_to_the_first_epoch_that_reaches_the_target():
    found = row(0.5, 0.91, 0.89, 0.95)
    assert found.epochs_to_target() == 2.0
    assert found.megabytes_to_target() == "20.0"
    assert row(0.5, 0.6, 0.89, 0.95).megabytes_to_target() == "40.0"
    assert row(0.5, 0.89).epochs_to_target() is None
    assert row(0.5, 0.89).megabytes_to_target() == "not reached (best 89.00%)"
    assert row(0.3, 0.41, target=0.4).megabytes_to_target() == "40.0"


def test_what_is_uploaded_once_counts_where_no_round_sends_anything():
    once = row(0.5, 0.91, megabytes=(0.0, 0.0), megabytes_table=7.0, budget=8.0)
    assert once.megabytes_to_target() == "7.0"
    assert once.within_budget().accuracy == 0.91
    assert row(0.5, megabytes=(0.0, 0.0), megabytes_table=7.0, budget=6.0).within_budget() is None


def test_accuracy_at_equal_bytes_is_that_of_the_last_epoch_within_them():
    """40 MB in two epochs: 20 MB an epoch."""
    assert row(0.5, 0.6, budget=39.0).within_budget().accuracy == 0.5
    assert row(0.5, 0.6, budget=40.0).within_budget().epoch == 2.0
    assert row(0.5, 0.6, budget=19.0).within_budget() is None
    assert row(0.5, 0.6).within_budget().accuracy == 0.6
    drawn = accuracy_at_budget(result_of(row(0.5, 0.6, series="a", epsilon=1.0, budget=20.0)))
    assert drawn.series == {"a": [[1.0, 50.0]]}


def test_a_row_without_noise_ends_every_line_of_its_method():
    rows = [
        row(0.5, method="vafl", series="VAFL, known ids", epsilon=1.0),
        row(0.6, method="vafl", series="VAFL, papers' noise", epsilon=1.0),
        row(0.7, method="dpzv", series="DPZV", epsilon=5.0),
        row(0.9, method="vafl", series="VAFL"),
        row(0.8, method="czofo", series="VFL-CZOFO"),
    ]
    assert accuracy_by_epsilon(result_of(*rows)).series == {
        "VAFL, known ids": [[1.0, 50.0], [20.0, 90.0]],
        "VAFL, papers' noise": [[1.0, 60.0], [20.0, 90.0]],
        "DPZV": [[5.0, 70.0]],
        "VFL-CZOFO": [[20.0, 80.0]],
    }


def test_a_figure_has_the_rows_of_one_claim_and_losses_those_without_noise():
    loose, tight, plain = (
        row(0.5, 0.6, label="loose", epsilon=1.0),
        row(0.4, 0.5, label="tight", epsilon=0.5),
        row(0.7, 0.8, label="plain"),
    )
    result = result_of(loose, tight, plain)
    assert looser_claim(result).series == {"loose": [[1.0, 50.0], [2.0, 60.0]]}
    assert list(tighter_claim(result).series) == ["tight"]
    assert tighter_claim(result_of(loose, plain)) is None
    assert looser_claim(result_of(plain)) is None
    assert loss_by_epoch(result).series == {"plain": [[1.0, 1.0], [2.0, 0.5]]}


@pytest.mark.parametrize("name", [name for name in OF_DPZV if "clip" not in name])
def test_every_baseline_with_noise_stands_under_both_rules_at_every_epsilon(name):
    rules = {}
    for item in TABLES[name].items:
        if item.options.get("dp") == "embedding":
            rules.setdefault((item.method, item.options["epsilon"]), []).append(item.options["calibration"])
            assert item.tags["series"].endswith(("papers' noise", "known ids"))
            assert item.options["delta"] == 0.001
    assert len(rules) >= 3
    assert all(found == ["paper", "messages"] for found in rules.values())


def test_known_ids_ask_for_16_times_the_papers_noise():
    sigmas = [
        calibrated(
            method_named(item.method).configure(**item.options, epochs=100),
            Deployment(records=60_000, clients=7, seed=0),
        ).dp_sigma
        for item in with_rows(TABLES["dpzv-figure3-mnist"], ["VAFL, epsilon 1,"]).items
    ]
    assert sigmas == pytest.approx([3.36, 54.5], rel=2e-3)
    assert sigmas[1] / sigmas[0] == pytest.approx(16.2, abs=0.05)


def test_tables_of_one_data_set_share_their_trainings():
    """A part is kept by its settings: figure 2, figure 5 and table I train nothing that figure 3 does not have."""
    for data, epsilon in (("mnist", "1"), ("cifar10", "1"), ("eth80", "10")):
        whole = {item.label: item for item in TABLES[f"dpzv-figure3-{data}"].items}
        for name in OF_DPZV:
            if name.endswith(data) and "clip" not in name:
                for item in TABLES[name].items:
                    same = ("method", "options", "dataset", "passes")
                    assert all(getattr(item, key) == getattr(whole[item.label], key) for key in same), item.label
        assert f"DPZV, epsilon {epsilon}" in whole
    clipped = with_rows(TABLES["dpzv-clip-mnist"], ["C = 10, epsilon 1"]).items[0]
    assert clipped.options == with_rows(TABLES["dpzv-figure3-mnist"], ["DPZV, epsilon 1"]).items[0].options


@pytest.mark.parametrize("name", OF_DPZV)
def test_rows_are_accepted_at_the_length_and_the_sizes_of_their_data(name):
    """Of each data set only a few records are there, cut among as many clients as the table's."""
    table = TABLES[name]
    sizes = {"mnist": 4, "cifar10": 4, "eth80": 8}
    data = load("digits", clients=sizes[table.items[0].dataset["name"]])
    items = [dataclasses.replace(item, options={**item.options, "client_model": "auto"}) for item in table.items]
    setting = Setting(load=lambda keywords: data, epochs=table.length or table.epochs, seeds=1)
    assert len(checked(dataclasses.replace(table, items=tuple(items)), setting).rows) == len(items)


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
    table, result = on_digits("dpzv-figure3-mnist", "DPZV, epsilon 1", "DPZV, no noise", "VAFL, epsilon 1, known ids")
    by_label = {r.label: r for r in result.rows}
    assert by_label["DPZV, no noise"].epsilon is None
    assert by_label["DPZV, epsilon 1"].epsilon == 1.0
    assert by_label["VAFL, epsilon 1, known ids"].to_json()["protects"].startswith("embeddings")
    assert "label" in by_label["DPZV, epsilon 1"].to_json()["protects"]
    drawn = drawn_figure(table, result)
    assert "∞" in drawn
    assert "DPZV" in drawn
    assert "VAFL" in drawn


def test_table_1_says_where_the_target_is_not_reached(on_digits):
    table, result = on_digits("dpzv-table1-mnist", "VAFL, epsilon 1, known ids")
    (found,) = result.rows
    best = max(point.accuracy for point in found.history)
    assert best < 0.9
    assert f"| not reached (best {100 * best:.2f}%) | 1209.6 | - |" in to_markdown(table, result)
    assert drawn_figure(table, result).startswith("<svg")
