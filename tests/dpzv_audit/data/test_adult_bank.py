from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpzv_audit.data import DATASETS, load
from dpzv_audit.data.spec import declared
from dpzv_audit.data.table import CategoryColumn, PublishedTable, read_published_set
from dpzv_audit.data.vertical import fixed_split

from ...helpers.refusals import refusal

ADULT, BANK = (declared(name, "table", PublishedTable) for name in ("adult", "bank"))

ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K"
)
RICH_ROW = ADULT_ROW.replace("39", "52").replace("State-gov", "?").replace("<=50K", ">50K")
BANK_HEADER = ";".join(f'"{name}"' for name in BANK.layout.names)
BANK_ROW = '58;"management";"married";"tertiary";"no";2143;"yes";"no";"unknown";5;"may";261;1;-1;0;"unknown";"no"'


def features(table, data, cut):
    """The train features of each column, cut out of the clients' blocks again."""
    widths = {column.name: column.width for column in table.columns}
    found = {}
    for block, names in zip(data.train.features, cut, strict=True):
        bounds = np.cumsum([0, *(widths[name] for name in names)])
        assert bounds[-1] == block.shape[1]
        found.update({name: block[:, a:b] for name, a, b in zip(names, bounds, bounds[1:], strict=False)})
    return found


def write_adult(folder, train, test):
    (folder / "adult.data").write_text("\n".join(train) + "\n\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(f"{row}." for row in test) + "\n\n")
    return folder


def write_bank(folder, rows, name="bank-full.csv"):
    (folder / name).write_text("\n".join([BANK_HEADER, *rows]) + "\n")
    return folder


def refused(name, folder, **options):
    return refusal(load, name, data_dir=folder, **options)


def test_adult_rows_by_hand(tmp_path):
    write_adult(tmp_path, [ADULT_ROW, RICH_ROW], [RICH_ROW])
    data = load("adult", data_dir=tmp_path, subset=True)
    assert data.train.labels.tolist() == [0, 1]
    assert data.test.labels.tolist() == [1]  # its label ends in a full stop
    assert sum(shape[0] for shape in data.shapes) == 105
    found = features(ADULT, data, tuple(ADULT.groups.values()))
    assert found.keys() == {column.name for column in ADULT.columns}
    assert found["age"][:, 0] == pytest.approx([0.39, 0.52])
    assert found["fnlwgt"][0, 0] == pytest.approx(0.077516)
    assert found["workclass"].tolist() == [[0, 0, 0, 0, 0, 1, 0, 0], [0] * 8]  # "?" is in no list
    assert found["sex"][0].tolist() == [0, 1]
    assert data.notes == ("a subset: 3 of 48,842 rows",)


def test_bank_rows_by_hand_without_duration(tmp_path):
    write_bank(tmp_path, [BANK_ROW, BANK_ROW.replace('"no"', '"yes"', 1).replace("management", "juggler")] * 40)
    data = load_bank_anyway(tmp_path, 80)
    found = features(BANK, data, tuple(BANK.groups.values()))
    assert "duration" not in found
    train, _ = fixed_split(80, seed=45_211)
    odd = train % 2 == 1
    assert found["job"][~odd].sum(axis=0).tolist() == [0, 0, 0, (~odd).sum(), 0, 0, 0, 0, 0, 0, 0, 0]
    assert not found["job"][odd].any()
    np.testing.assert_array_equal(found["default"][:, 1], odd)
    assert found["balance"][0, 0] == pytest.approx(0.2143)
    assert found["pdays"][0, 0] == pytest.approx(-0.001)
    assert "column duration is dropped" in data.notes[0]


def load_bank_anyway(folder, no):
    table = replace(BANK, rows={**BANK.rows, "bank-full.csv": (no, 0)})
    return replace(DATASETS["bank"], reader=partial(read_published_set, table)).load(data_dir=folder)


def test_what_duration_holds_changes_nothing(tmp_path):
    write_bank(tmp_path, [BANK_ROW] * 4)
    before = load_bank_anyway(tmp_path, 4)
    write_bank(tmp_path, [BANK_ROW.replace("261", "leak")] * 4)
    for one, two in zip(before.train.features, load_bank_anyway(tmp_path, 4).train.features, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("clients", [1, 2, 5, 14])
def test_runs_of_whole_columns_hold_the_same_features(tmp_path, clients):
    write_adult(tmp_path, [ADULT_ROW, RICH_ROW], [ADULT_ROW])
    groups = features(ADULT, load("adult", data_dir=tmp_path, subset=True), tuple(ADULT.groups.values()))
    data = load("adult", data_dir=tmp_path, subset=True, clients=clients, partition="columns")
    assert data.clients == clients
    order = [column.name for column in ADULT.columns]
    np.testing.assert_array_equal(np.hstack(data.train.features), np.hstack([groups[name] for name in order]))


@pytest.mark.parametrize(("name", "table"), [("adult", ADULT), ("bank", BANK)])
def test_groups_hold_every_column_once_and_lists_name_no_value_twice(name, table):
    groups = DATASETS[name].partitions["groups"]
    assert (groups.clients, groups.of) == (len(table.groups), ", ".join(table.groups))
    grouped = [name for names in table.groups.values() for name in names]
    assert sorted(grouped) == sorted(column.name for column in table.columns)
    for column in table.columns:
        if isinstance(column, CategoryColumn):
            assert len(set(column.values)) == len(column.values)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("77516", "many", "adult.data: line 2, column 'fnlwgt': 'many' is not a number"),
        ("77516, ", "", "adult.data: line 2 has 14 columns; use 15"),
        ("<=50K", "poor", "adult.data: line 2 has label 'poor'; use one of '<=50K', '>50K'"),
    ],
)
def test_malformed_adult_rows_are_named(tmp_path, old, new, message):
    write_adult(tmp_path, [ADULT_ROW, ADULT_ROW.replace(old, new)], [ADULT_ROW])
    assert message in refused("adult", tmp_path, subset=True)


def test_bank_with_other_columns_or_separators_is_refused(tmp_path):
    (tmp_path / "bank-full.csv").write_text(f"{BANK_HEADER.replace('age', 'years')}\n{BANK_ROW}\n")
    assert "bank-full.csv: line 1 names years, job, " in refused("bank", tmp_path)
    (tmp_path / "bank-full.csv").write_text(f"{BANK_HEADER}\n{BANK_ROW}\n".replace(";", ","))
    assert "bank-full.csv: line 1 cannot be read (';' expected" in refused("bank", tmp_path)
    write_bank(tmp_path, [BANK_ROW, BANK_ROW.replace("2143", "x")])
    assert "bank-full.csv: line 3, column 'balance': 'x' is not a number" in refused("bank", tmp_path)


def test_files_with_other_counts_are_refused(tmp_path):
    write_adult(tmp_path, [ADULT_ROW, RICH_ROW], [ADULT_ROW])
    text = refused("adult", tmp_path)
    assert "adult.data: has [1, 1] rows by class, the original has [24720, 7841]; give subset" in text
    write_bank(tmp_path, [BANK_ROW])
    assert "has [1, 0] rows by class, the original has [39922, 5289]" in refused("bank", tmp_path)
    write_bank(tmp_path, [BANK_ROW], "bank.csv")
    assert "bank.csv: has [1, 0] rows by class, the original has [4000, 521]" in refused("bank", tmp_path, subset=True)


@pytest.mark.data
@pytest.mark.parametrize("real", ["adult/adult.test"], indirect=True)
def test_real_adult(real):
    data = load("adult", data_dir=real)
    assert (len(data.train), len(data.test), data.shapes) == (32_561, 16_281, ((49,), (23,), (17,), (16,)))
    assert int(data.train.labels.sum()) == 7_841
    found = features(ADULT, data, tuple(ADULT.groups.values()))
    # published: 1,836 unknown work classes, no unknown education; every value is in its list
    assert int((found["workclass"].sum(axis=1) == 0).sum()) == 1_836
    assert int((found["native-country"].sum(axis=1) == 0).sum()) == 583
    for name in ("education", "marital-status", "relationship", "race", "sex"):
        assert (found[name].sum(axis=1) == 1).all()
    assert float(found["age"].mean()) == pytest.approx(0.3858, abs=1e-4)


@pytest.mark.data
@pytest.mark.parametrize("real", [("bank/bank-full.csv", "bank/bank.csv")], indirect=True)
def test_real_bank(real):
    data = load("bank", data_dir=real)
    assert (len(data.train), len(data.test), data.shapes) == (36_160, 9_051, ((27,), (16,), (7,)))
    assert int(data.train.labels.sum() + data.test.labels.sum()) == 5_289
    found = features(BANK, data, tuple(BANK.groups.values()))
    for column in BANK.columns:
        if isinstance(column, CategoryColumn):
            assert (found[column.name].sum(axis=1) == 1).all(), column.name
    sample = load("bank", data_dir=real, subset=True)
    assert len(sample.train) + len(sample.test) == 4_521
