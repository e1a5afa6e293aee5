"""A reproduced table holds what was run beside what was printed, and its costs are those of the messages."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from dpzv_audit import reproduce as tables
from dpzv_audit.base.findings import Interval, OverTrainings
from dpzv_audit.data import load
from dpzv_audit.reproduce import FILES, TABLES, Setting, reproduce, table_named, to_markdown, with_rows
from dpzv_audit.reproduce.attacks import Attacked
from dpzv_audit.reproduce.convergence import Rate
from dpzv_audit.reproduce.costs import Clocked, CountedWork
from dpzv_audit.reproduce.figures import accuracy_by_clients, accuracy_by_server_rate, accuracy_by_width
from dpzv_audit.reproduce.implicit import ImplicitNoise
from dpzv_audit.reproduce.kept import whole_setting
from dpzv_audit.reproduce.memory import PeakMemory
from dpzv_audit.reproduce.search import Searched, Taken
from dpzv_audit.reproduce.training import TrainedAlone, TrainedRow, TrainingRow, spread_over_rates
from dpzv_audit.reproduce.words import filled, shown
from dpzv_audit.runs import json_text
from mechanisms import METHODS, method_named
from mechanisms.core.context import Deployment, TrainingData

from ...helpers.built_in import new_run
from ...helpers.refusals import refused
from .conftest import drawn_figure


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_every_table_is_a_valid_configuration(name):
    table = TABLES[name]
    labels = [item.label for item in table.items]
    assert len(set(labels)) == len(labels)
    assert table.name == name
    assert table.columns[0][0] == "row"
    accounted = set()  # a guarantee takes a second: one row of each trainer
    for item in table.items:
        if isinstance(item, TrainedRow):
            method_named(item.method).configure(**item.settings, epochs=table.epochs * item.passes)
            assert item.accuracy is None or 0 < item.accuracy < 100
        elif isinstance(item, Attacked):
            method_named(item.method).configure(**item.options, epochs=table.epochs * item.passes)
        elif isinstance(item, ImplicitNoise):
            method_named("czofo").configure(**item.options, epochs=table.epochs)
        elif isinstance(item, Searched):
            assert item.tried  # tests/dpzv_audit/reproduce/test_soundness.py looks at each
        elif isinstance(item, Taken):
            settings = item.shortened(table.epochs)
            if type(item.trainer) not in accounted:
                accounted.add(type(item.trainer))
                item.trainer.guarantee(settings, Deployment(records=1000, clients=4, seed=0))
        elif isinstance(item, PeakMemory):
            method_named(item.method).configure(**item.options)
        elif isinstance(item, Rate):
            assert item.check(whole_setting(table)) == item.label
        else:
            assert isinstance(item, CountedWork | Clocked)
            method_named(item.method).configure(**item.options).passes(item.dataset["clients"])


def data(name):
    """Return what stands in a file of tables."""
    return tomllib.loads((Path(tables.__file__).parent / "tables" / f"{name}.toml").read_text("utf-8"))


def test_everything_that_a_file_of_tables_names_is_there_and_used():
    used = {"columns": set(), "about": set()}
    for name in FILES:
        paper = data(name)
        groups = paper.get("groups", {})
        rows = []
        for table in paper["table"]:
            own = [row for group in table.get("groups", ()) for row in groups[group]] + table.get("rows", [])
            rows += [{**table["each"], **row} for row in own]
        assert {group for table in paper["table"] for group in table.get("groups", ())} == set(groups), name
        named = [
            setting
            for part in (*rows, *(table["each"] for table in paper["table"]))
            for setting in part.get("settings", ())
        ]
        assert set(named) == set(paper.get("settings", {})), name
        assert {row["dataset"] for row in rows if "dataset" in row} == set(paper["datasets"]), name
        for table in paper["table"]:
            used["columns"] |= set(table["columns"])
            used["about"] |= set(table["about"]) & set(data("text")["about"])
    assert used == {"columns": set(data("text")["columns"]), "about": set(data("text")["about"])}


def test_what_is_missing_is_a_dash_and_shares_are_in_percent():
    over = OverTrainings(count=2, least=0.4, most=0.6)
    interval = Interval(value=0.5, low=0.25, high=0.75, n=100, over_trainings=over)
    values = {"none": None, "share": 0.12345, "interval": interval}
    assert filled("{{ none|shown('interval .2f') }} {{ share|shown('+.2p') }}", values) == "- +12.35"
    assert [shown(None, ".2f"), shown(values["share"], ".1p")] == ["-", "12.3"]
    assert shown(interval, "bracket .1p") == "50.0 [25.0, 75.0]"
    assert shown(interval, "interval .2f") == "0.50 [0.25, 0.75]; 2 seeds 0.40 to 0.60"
    assert shown(dataclasses.asdict(interval), "interval .2f") == shown(interval, "interval .2f")
    assert shown(values["share"], "interval .3f") == "0.123"


def test_the_papers_tables_and_figures_are_all_there():
    named = ("czofo-table2", "czofo-table3", "czofo-table4", "czofo-table5", "cascaded-table2-mnist", "cascaded-table1")
    of_dpzv = [
        f"dpzv-{name}-{data}" for name in ("figure2", "figure3", "table1") for data in ("mnist", "cifar10", "eth80")
    ]
    ablations = ("dpzv-clip-mnist", "dpzv-clip-cifar10", "dpzv-figure5-cifar10")
    assert {*named, *of_dpzv, *ablations, "dpzv-figure4-memory", "dpzv-figure4-bert"} <= set(TABLES)
    rest = ("czofo-server-work", "czofo-cifar10", "cascaded-table2-cifar10", "cascaded-table3-clock")
    assert {*rest, "cascaded-figure4", "convergence"} <= set(TABLES)


def test_an_epoch_of_papers_002_and_003_is_a_pass_of_every_client(digits):
    """Rounds say how many clients take part in one: where all do, a pass of every client is one epoch of this tool."""
    data = TrainingData.of(digits({"clients": 2}), dtype=torch.float32, device="cpu")
    synchronous = {}
    for name in METHODS:
        run = new_run(data, METHODS[name].configure(epochs=1), seed=0)
        run.step()
        synchronous[name] = sum(client.rounds for client in run.federation.clients) == 2
    for table in TABLES.values():
        if table.name.startswith(("czofo-", "cascaded-", "direct-")):
            for item in table.items:
                assert item.passes == (1 if synchronous[item.method] else item.dataset["clients"]), item.label


def test_an_unknown_table_is_one_line_with_a_suggestion():
    with refused("did you mean 'czofo-table3'"):
        table_named("czofo-tabel3")


def test_rows_are_chosen_by_part_of_their_label_and_whole_labels_stand_for_themselves():
    table = TABLES["czofo-table4"]

    def labels(*wanted):
        return [item.label for item in with_rows(table, wanted).items]

    assert labels() == [item.label for item in table.items]
    assert labels("q = 10") == ["q = 10"]
    assert labels("q = ") == ["q = 100", "q = 10", "q = 1"]
    assert labels("q = 1", "VAFL") == ["first order (VAFL)", "q = 1"]
    with refused(r"row is 'q = 7'; use part of a row's label: first order \(VAFL\); q = 100"):
        labels("q = 7")


@pytest.fixture(scope="module")
def result(small_table, digits):
    return reproduce(small_table, Setting(load=digits, epochs=2, seeds=2))


def test_costs_are_those_of_the_messages_without_the_first_table(result):
    first_order, czofo = result.to_json()["rows"]
    rounds = 2 * 2 * 22  # two epochs of the paper are four of D/B rounds
    assert first_order["rounds"] == czofo["rounds"] == rounds
    assert first_order["megabytes_up"] == pytest.approx(rounds * 64 * 64 * 4 / 1e6)
    assert first_order["megabytes_down"] == pytest.approx(rounds * 64 * 64 * 4 / 1e6)
    assert czofo["megabytes_down"] == pytest.approx(rounds * 10 * 4 / 1e6)


def test_rows_hold_ours_theirs_the_history_and_both_controls(result, small_table):
    for row in result.to_json()["rows"]:
        assert len(row["by_seed"]) == 2
        assert row["accuracy"]["value"] == pytest.approx(np.mean(row["by_seed"]))
        assert row["standard_deviation"] == pytest.approx(np.std(row["by_seed"], ddof=1))
        assert [point["epoch"] for point in row["history"]] == [0.5, 1.0, 1.5, 2.0]
        assert row["history"][-1]["accuracy"] == pytest.approx(row["accuracy"]["value"])
        same, tuned = row["frozen_clients"], row["frozen_clients_tuned"]
        assert same["server_rate"] == row["options"]["server_rate"]
        assert tuned["train_accuracy"] >= same["train_accuracy"]
    text = to_markdown(small_table, result)
    assert "2 of the paper's 100 epochs, 2 seeds" in text
    for row in result.rows:
        assert f"| {row.label} | {100 * row.accuracy.value:.2f} +- " in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {len(small_table.columns) + 1}


def test_rows_that_frozen_clients_match_are_named(result, small_table):
    def page(*leads):
        rows = []
        for row, lead in zip(result.rows, leads, strict=True):
            control = dataclasses.replace(row.frozen_clients_tuned, value=row.accuracy.value - lead)
            rows.append(row.model_copy(update={"frozen_clients_tuned": control}))
        return to_markdown(small_table, result.model_copy(update={"rows": rows}))

    said = f"- no better than frozen clients with a tuned server: {result.rows[0].label}. What"
    assert said in page(0.0, 0.01)
    assert "no better than" not in page(0.01, 0.01)


def test_a_result_is_plain_json_and_the_same_for_the_same_seed(result, small_table, digits):
    assert json.loads(json_text(result)) == result.to_json()
    assert reproduce(small_table, Setting(load=digits, epochs=2, seeds=2)) == result
    other = reproduce(small_table, Setting(load=digits, epochs=2, seeds=2, seed=1))
    assert other.rows[0].to_json()["by_seed"] != result.rows[0].to_json()["by_seed"]


def test_a_row_whose_data_cannot_be_cut_is_skipped_and_named(small_table, digits):
    first, second = small_table.items
    six = dataclasses.replace(first, dataset={"clients": 6})
    table = dataclasses.replace(small_table, items=(six, second))
    result = reproduce(table, Setting(load=digits, epochs=1, seeds=1))
    assert [row.label for row in result.rows] == [second.label]
    reason = "clients is 6; use a divisor of the 8 image columns: 1, 2, 4, 8"
    assert result.skipped == {first.label: reason}
    assert f"- skipped: {first.label}: {reason}\n" in to_markdown(table, result)
    with refused(f"{re.escape(first.label)}: {reason}"):
        reproduce(dataclasses.replace(small_table, items=(six,)), Setting(load=digits, epochs=1, seeds=1))


def test_a_page_names_the_rows_for_which_memory_ran_out(result, small_table):
    first, second = result.rows
    short = type(first)(**{**first.to_json(), "memory": "ran out: from then on 1 trainings at a time"})
    text = to_markdown(small_table, result.model_copy(update={"rows": [short, second]}))
    assert text.count(": memory ran out") == 1
    assert f"- {first.label}: memory ran out: from then on 1 trainings at a time.\n" in text


def test_a_figure_names_every_row_and_its_last_value(result, small_table):
    drawn = drawn_figure(small_table, result)
    assert drawn.startswith("<svg")
    for row in result.rows:
        assert f"{row.label}  {100 * row.accuracy.value:.1f}" in drawn
        assert f"{row.label} {100 * row.accuracy.value:.1f}" in drawn.split("aria-label=")[1]


def row(label="row", accuracies=(0.5, 0.7, 0.6, 0.92), **more):
    """A row of so many accuracies after an epoch each, 100 rounds of two losses and 3 MB in all."""
    history = [{"epoch": epoch, "accuracy": value} for epoch, value in enumerate(accuracies, 1)]
    last = Interval(value=accuracies[-1], low=0.0, high=1.0, n=1)
    sizes = {"rounds": 100, "queries_per_round": 2, "megabytes_up": 2.0, "megabytes_down": 1.0}
    return TrainingRow(label=label, standard_deviation=None, accuracy=last, history=history, **(sizes | more))


def test_costs_until_a_target_follow_from_the_first_epoch_at_it():
    found = row()
    assert found.megabytes_to_target(0.6) == "1.5"  # two of four epochs
    assert found.queries_to_target(0.6) == 2 * 100 / 2
    assert found.queries_to_target() == 200
    assert found.queries_to_target(0.95) is None
    assert found.megabytes_to_target(0.95) == "not reached (best 92.00%)"
    assert found.largest_fall() == pytest.approx(0.1)
    assert row(accuracies=(0.5, 0.5, 0.6)).largest_fall() == 0.0


def test_the_losses_that_a_client_asks_for_stand_in_every_row_of_table_3(digits):
    table = TABLES["czofo-table3"]
    asked = {item.label: item._stated["queries_per_round"] for item in table.items}
    assert asked == {
        "split learning": 1,
        "compressed VFL, 8 bits up": 1,
        "VAFL": 1,
        "VAFL + gradient DP": 1,
        "Syn-ZOO-VFL": 3,
        "ZOO-VFL": 2,
        "VFL-CZOFO, 8 bits both ways": 101,
    }


def test_the_spread_over_rates_is_from_the_best_to_the_worst_of_each_method():
    rows = [
        row("a", (0.9,), series="ZOO-VFL"),
        row("b", (0.1,), series="ZOO-VFL"),
        row("c", (0.95,), series="ours"),
        row("d", (0.97,), series="ours"),
        row("e", (0.2,), series="alone"),
    ]
    said = spread_over_rates(rows)
    assert said == (
        "from its best rate to its worst, ZOO-VFL loses 80.0 points (90.0 to 10.0%); ours loses 2.0 points "
        "(97.0 to 95.0%)"
    )
    assert spread_over_rates(rows[-1:]) == ""


def test_accuracy_is_drawn_by_what_varies(result):
    def drawn(figure, *rows):
        return figure(result.model_copy(update={"rows": [*rows]})).series

    rows = [row(f"{size}", (size / 10,), series="m", clients=size, options={"hidden": 64 * size}) for size in (4, 2)]
    assert drawn(accuracy_by_clients, *rows) == {"m": [[2.0, 20.0], [4.0, 40.0]]}
    assert drawn(accuracy_by_width, *rows) == {"m": [[128.0, 20.0], [256.0, 40.0]]}
    rates = [row("r", (0.5,), series="m", options={"server_rate": 0.01})]
    assert drawn(accuracy_by_server_rate, *rates) == {"m": [[0.01, 50.0]]}


def test_a_figure_may_be_of_some_of_the_rows(result):
    table = TABLES["cascaded-table2-mnist"]
    rows = [row(item.label, (0.5,), **item.tags, options=item.options) for item in table.items]
    whole = result.model_copy(update={"rows": rows})
    figures = {name: figure(whole) for name, figure in table.figures.items()}
    assert figures["six-clients"].series == {item.label: [[1, 50.0]] for item in table.items if "6 cl" in item.label}
    assert figures["six-clients"].subject.endswith(", 6 clients")
    assert {tuple(point) for points in figures["figure"].series.values() for point in points} == {
        (4.0, 50.0),
        (6.0, 50.0),
        (8.0, 50.0),
    }
    few = whole.model_copy(update={"rows": rows[:1]})
    assert table.figures["six-clients"](few) is None


@pytest.mark.parametrize(("rate", "diverges"), [(0.05, False), (1e38, True)])
def test_the_area_of_a_training_that_diverged_is_left_out(rate, diverges):
    options = {"client_rate": rate, "server_rate": rate, "batch_size": 64}
    where = {"name": "breast-cancer", "clients": 3}
    item = TrainedAlone(label="row", method="vafl", options=options, dataset=where, passes=1)
    row = item.run(Setting(load=lambda keywords: load(**keywords), epochs=1, seeds=1))
    assert (row.auc is None) == (row.history[-1].loss is None) == diverges
