"""Tables of labels that are privatised once: rows by epsilon, beside noise of the methods' own, and bytes."""

import dataclasses

import pytest

from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown, with_rows
from dpzv_audit.reproduce.search import Taken

from .conftest import drawn_figure

TABLE = TABLES["labels-digits"]
ROWS = [
    "split, true labels",
    "split, label-cluster, epsilon 1",
    "vafl, label-cluster, epsilon 0.1",
    "label-free features, uploaded once, label-cluster of shares, epsilon 1",
    "local bottoms, uploaded once, label-cluster, epsilon 1",
    "private control: frozen clients, epsilon 1",
    "sound dpzv, dp-sgd server, epsilon 1",
    "dpzv, noise of theorem 5.1, epsilon 1",
]
EPSILONS = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.fixture(scope="module")
def table():
    wanted = with_rows(TABLE, ROWS)
    return dataclasses.replace(
        wanted, items=tuple(dataclasses.replace(i, dataset={"clients": 4}) for i in wanted.items)
    )


@pytest.fixture(scope="module")
def result(table, digits):
    return reproduce(table, Setting(load=digits, epochs=2, seeds=2, records=200))


def row_of(result, part):
    (found,) = [row.to_json() for row in result.rows if part in row.label]
    return found


@pytest.mark.parametrize("name", ["mnist", "cifar10", "digits", "adult", "bank"])
def test_every_table_has_every_epsilon_and_every_kind_of_training(name):
    items = TABLES[f"labels-{name}"].items
    by_series = {}
    for item in items:
        by_series.setdefault(item.tags.get("series"), []).append(item.tags.get("epsilon"))
    assert by_series[None] == [None] * 4
    of_epsilon = {series: found for series, found in by_series.items() if series is not None}
    assert {row.rpartition(", ")[0] for row in ROWS[1:]} <= of_epsilon.keys()
    assert all(found == EPSILONS for found in of_epsilon.values())
    assert all(item.tags["chosen"] for item in items)
    for item in items:
        claimed = (
            item.trainer.epsilon if isinstance(item, Taken) else item.options.get("defences", [{}])[0].get("epsilon")
        )
        assert claimed == item.tags.get("epsilon")


def test_labels_that_are_private_and_noise_that_is_sound_have_a_bound_and_the_theorem_has_none(result, table):
    for part, epsilon in {"private control": 1.0, "sound dpzv": 1.0}.items():
        guarantee = row_of(result, part)["guarantee"]
        assert guarantee["sound"]
        assert 0.99 * epsilon < guarantee["epsilon"] <= epsilon
    claimed = row_of(result, "theorem")["guarantee"]
    assert (claimed["sound"], claimed["gap"]) == (False, "server-state")
    lines = to_markdown(table, result).splitlines()
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines if line.startswith("| ")}
    at = cells["row"].index("epsilon at most")
    assert cells[ROWS[0]][at] == "-"
    assert cells[ROWS[2]][at] == "0.1"
    assert cells[ROWS[5]][at] == "1.00"
    assert cells[ROWS[7]][at].startswith("none (server-state; ")


def test_what_is_uploaded_once_is_counted_and_shown_at_its_end(result):
    by_label = {row.label: row for row in result.rows}
    features = by_label[ROWS[3]]
    ((megabytes, accuracy),) = features.by_megabytes()
    # Of 200 records as many components as four clients have features, and at most ten of each to group by.
    assert 200 * 4 * 4 <= 1e6 * megabytes <= 200 * 4 * (64 + 40)
    assert accuracy == pytest.approx(100 * features.accuracy.value)
    trained = by_label[ROWS[1]].by_megabytes()
    assert [round(after / trained[0][0], 6) for after, _ in trained] == [1.0, 2.0]
    drawn = {name: drawn_figure(TABLE, result, name) for name in TABLE.figures}
    for label in (*ROWS[:2], *ROWS[3:]):
        assert label.removesuffix(", epsilon 1") in drawn["bytes"]
    assert "vafl" not in drawn["bytes"]
    assert "vafl" in drawn["figure"]


@pytest.mark.parametrize(
    ("label", "key", "lengths"), [(ROWS[5], "steps", [5, 50, 100, 100]), (ROWS[7], "epochs", [1, 4, 8, 8])]
)
def test_given_settings_are_as_much_shorter_as_the_table_is_made(table, label, key, lengths):
    (item,) = with_rows(table, [label]).items
    assert [item.shortened(epochs)[key] for epochs in (1, 10, 20, 40)] == lengths
