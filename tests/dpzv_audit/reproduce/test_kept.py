"""Finished rows on file: taken as they are while settings and the first epoch agree, computed again otherwise."""

import dataclasses

import pytest

from dpzv_audit.reproduce import TABLES, KeptRows, Setting, TableParts, kept_result, reproduce
from mechanisms.core.replicas import MomentumSGD

from ...helpers.places import read_json
from ...helpers.refusals import refused

SETTING = Setting(load=lambda keywords: None, epochs=100, seeds=3)


@pytest.fixture
def setting(digits):
    return Setting(load=digits, epochs=2, seeds=1)


@pytest.fixture
def kept(tmp_path, small_table):
    return KeptRows(tmp_path, small_table.name)


def untrained(item):
    """The item, which must not be trained."""
    return type(type(item).__name__, (type(item),), {"run": lambda *_: pytest.fail("computed again")})(
        **{field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    )


def test_a_finished_row_is_taken_from_its_file(small_table, setting, kept):
    whole = reproduce(small_table, setting, kept=kept)
    idle = dataclasses.replace(small_table, items=tuple(map(untrained, small_table.items)))
    assert reproduce(idle, setting, kept=kept) == whole
    entry = read_json(kept.file(small_table.items[0], setting))
    assert entry["schema"] == "dpzv-audit/row/1"
    assert entry["label"] == small_table.items[0].label
    assert set(entry["made"]) == {"date", "version", "commit", "seconds"}
    assert entry["follows_from"]["epochs"] == 2
    assert entry["row"] == whole.rows[0].to_json()


def test_what_is_printed_of_a_row_may_change_and_its_settings_may_not(small_table, setting, kept):
    item = small_table.items[0]
    kept.compute(item, setting)
    shown = dataclasses.replace(untrained(item), tags={"series": "another"}, accuracy=12.5)
    row = kept.compute(shown, setting)
    assert (row.series, row.paper_accuracy) == ("another", 0.125)
    for other in (
        dataclasses.replace(item, options={**item.options, "client_rate": 0.02}),
        dataclasses.replace(item, passes=item.passes + 1),
        type("OtherRow", (type(item),), {})(**{f.name: getattr(item, f.name) for f in dataclasses.fields(item)}),
    ):
        assert kept.row(other, setting) is None
    for other in ({"epochs": 3}, {"seeds": 2}, {"seed": 1}, {"records": 500}):
        assert kept.row(item, dataclasses.replace(setting, **other)) is None


def test_a_row_whose_training_begins_with_other_numbers_is_computed_again(small_table, setting, kept, monkeypatch):
    item = small_table.items[0]
    before = kept.compute(item, setting)
    assert kept.row(item, setting) == before
    step = MomentumSGD.step
    monkeypatch.setattr(MomentumSGD, "step", lambda self, gradient: step(self, 0.5 * gradient))
    assert kept.row(item, setting) is None
    after = kept.compute(item, dataclasses.replace(setting, kept=TableParts()))
    assert after.history[0].loss != before.history[0].loss
    assert kept.row(item, setting) == after


def test_a_row_of_another_length_or_seed_replaces_none(small_table, setting, kept):
    item = small_table.items[0]
    first = kept.compute(item, setting)
    kept.compute(item, dataclasses.replace(setting, seed=1, epochs=1))
    assert len(list(kept.file(item, setting).parent.iterdir())) == 2
    assert kept.row(item, setting) == first


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "dpzv-audit/row/1"}', '{"schema": "other"}'])
def test_a_damaged_file_is_one_line(small_table, setting, kept, content):
    path = kept.file(small_table.items[0], setting)
    path.parent.mkdir()
    path.write_text(content)
    with refused(f"{path} is no finished row; remove it"):
        kept.compute(small_table.items[0], setting)


def test_a_row_may_have_its_own_number_of_trainings(small_table, setting, kept):
    two = dataclasses.replace(small_table.items[0], seeds=2)
    table = dataclasses.replace(small_table, items=(two, small_table.items[1]))
    rows = reproduce(table, setting, kept=kept).rows
    assert [len(row.to_json()["by_seed"]) for row in rows] == [2, 1]


def test_a_page_is_made_of_what_is_on_file_alone(small_table, digits, kept, tmp_path):
    table = dataclasses.replace(small_table, epochs=1, seeds=1)
    with refused("holds no finished row at the table's own length"):
        kept_result(table, tmp_path)
    setting = Setting(load=digits, epochs=1, seeds=1)
    row = kept.compute(table.items[1], setting)
    result = kept_result(table, tmp_path)
    assert result.rows == [row]
    assert result.skipped == {table.items[0].label: "not run yet"}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_table_have_files_of_their_own(name, tmp_path):
    files = [KeptRows(tmp_path, name).file(item, SETTING) for item in TABLES[name].items]
    assert len(set(files)) == len(files)
    assert all(len(file.name) < 120 for file in files)
