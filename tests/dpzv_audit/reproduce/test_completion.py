"""Model completion as a table: baselines and paired differences on digits, and one sentence that follows from them."""

import copy
import dataclasses

import pytest

from attacks.label.completion import RAW, UNTRAINED
from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown, with_rows
from dpzv_audit.reproduce.attacks import Attacked, remarks, verdict

from .conftest import drawn_figure


def with_steps(item, steps):
    """`item` whose heads train for so many steps."""
    assert isinstance(item, Attacked)
    return dataclasses.replace(item, attack_options={**item.attack_options, "steps": steps})


@pytest.fixture(scope="module")
def table():
    table = with_rows(TABLES["fu-completion"], ("MNIST, split learning", "MNIST, DPZV, no noise"))
    return dataclasses.replace(table, items=tuple(with_steps(item, 100) for item in table.items))


@pytest.fixture(scope="module")
def result(table, digits):
    return reproduce(table, Setting(load=digits, epochs=2, seeds=2))


@pytest.mark.slow
def test_a_row_holds_the_attack_both_baselines_and_the_accuracy_with_its_controls(result, table):
    for row in result.to_json()["rows"]:
        assert row["success"]["n"] == 2 * (1408 - 100)
        assert row["baselines"][RAW]["n"] == row["baselines"][UNTRAINED]["n"] == row["success"]["n"]
        assert row["measures"]["held-out records"]["n"] == 389  # both seeds' test records are the same
        for name, interval in (("success", row["success"]), (RAW, row["baselines"][RAW])):
            assert sum(row["by_trial"][name]) / 2 == pytest.approx(interval["value"])
        assert row["training"]["accuracy"]["value"] > 0.2
        assert 0 < row["frozen_clients"]["value"] < 1
        assert row["frozen_clients_tuned"]["train_accuracy"] >= row["frozen_clients"]["train_accuracy"]
    text = to_markdown(table, result)
    assert "2 of the protocol's 3 epochs, 2 seeds" in text
    assert verdict(result.rows) in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {len(table.columns) + 1}


@pytest.mark.slow
def test_a_difference_is_by_records_and_seed_by_seed(result):
    row = result.rows[0]
    for name in (RAW, UNTRAINED):
        found = row.gains()[name]
        assert found.value == pytest.approx(row.success.value - row.baselines[name]["value"])
        assert found.low < found.value < found.high
        assert row.gains(0.99)[name].high > found.high  # more rows, less error for each
        assert found.over_trainings.least <= found.value <= found.over_trainings.most
        assert found.over_trainings.count == 2


def changed(row, change):
    """Return `row` after a `change` of its JSON."""
    values = copy.deepcopy(row.to_json())
    change(values)
    return type(row)(**values)


def with_rates(row, success, raw, untrained):
    return changed(row, lambda values: set_rates(values, success, raw, untrained))


def set_rates(row, success, raw, untrained):
    row["by_trial"] |= {"success": success, RAW: raw, UNTRAINED: untrained}
    for found, rates in ((row["success"], success), (row["baselines"][RAW], raw), (row["baselines"][UNTRAINED], raw)):
        found |= {"n": 10_000 * len(rates), "value": sum(rates) / len(rates)}
    row["baselines"][UNTRAINED]["value"] = sum(untrained) / len(untrained)


def with_size(row, n):
    def resize(values):
        for found in (values["success"], values["baselines"][RAW], values["baselines"][UNTRAINED]):
            found["n"] = n

    return changed(row, resize)


@pytest.mark.slow
def test_the_sentence_says_leak_where_both_baselines_are_beaten_and_only_there(result):
    first, second = result.rows
    high, low = [0.81, 0.80, 0.79], [0.52, 0.50, 0.51]
    leaking, aligned = with_rates(first, high, low, low), with_rates(second, high, low, high)
    leak, _, rest = verdict([leaking, aligned]).partition("; ")
    assert leak.startswith("in every one of 3 seeds training gave the client's bottom model more labels away")
    assert f"{first.label} (+0.290)" in leak
    assert second.label not in leak
    assert f"in {second.label} (+0.000) not in every seed, or by too little to be told from luck" in rest
    assert "from luck" not in verdict([leaking])
    assert "more labels away" not in verdict([aligned])
    broken = changed(leaking, lambda values: values["controls"]["shuffled_labels"].update(value=0.3, p_value=1e-4))
    assert f"The negative control is NOT at chance in {first.label}" in remarks([broken, aligned])
    assert "The negative control is at chance in all 2 rows" in remarks([leaking, aligned])
    noisy = with_rates(first, [0.9, 0.3, 0.6], low, low)  # ahead on average, by one seed's luck
    assert "more labels away" not in verdict([noisy])
    hardly = with_rates(first, [0.53, 0.53, 0.53], low, [0.51, 0.52, 0.51])  # in every seed, but by few records
    assert "more labels away" not in verdict([with_size(hardly, 1000)])
    assert "more labels away" in verdict([with_size(hardly, 100_000)])


@pytest.mark.slow
def test_the_figure_names_all_three_for_every_row(result, table):
    drawn = drawn_figure(table, result)
    for row in result.rows:
        assert f"{row.label}: trained {row.success.value:.3f}, raw features " in drawn


def test_both_data_sets_are_there_in_halves_with_five_seeds():
    table = TABLES["fu-completion"]
    assert table.seeds == 5
    assert {(item.dataset["name"], item.dataset["clients"]) for item in table.items} == {("mnist", 2), ("cifar10", 2)}
    assert {item.attack_options["labels_per_class"] for item in table.items if item.dataset["name"] == "mnist"} == {10}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("real", [("mnist", "cifar-10-batches-bin")], indirect=True)
def test_the_protocol_runs_on_samples_of_both_real_data_sets(real):
    from dpzv_audit.data import load

    table = with_rows(TABLES["fu-completion"], ("MNIST, split learning", "CIFAR-10, split learning, 4 labels a class"))
    items = [dataclasses.replace(with_steps(item, 300), passes=1) for item in table.items]
    table = dataclasses.replace(table, items=tuple(items))
    result = reproduce(
        table, Setting(load=lambda keywords: load(**keywords, data_dir=real), epochs=2, seeds=2, records=1280)
    )
    digits, photographs = result.rows
    assert digits.success.value > 0.3  # far above 0.1 and its luck
    assert photographs.notes[-1] == "a sample: 1,280 of 10,000 training records"
    assert all(0.05 < row.success.value < 1 for row in result.rows)
