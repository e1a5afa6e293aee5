import numpy as np
import pytest

from dpzv_audit.base.errors import with_options
from dpzv_audit.data import load_csv

from ...helpers.places import toml_beside
from ...helpers.refusals import refusal

ROWS = 100


def write(folder, name="own.csv", rows=ROWS, label="n{}"):
    lines = ["a,b,town,c,y"]
    lines += [f"{n},{n * 10},t{n % 5},{-n},{label.format(n % 3)}" for n in range(rows)]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(path, **options):
    return refusal(load_csv, path, **{"label": "y", "categories": ["town"], **options})


def together(data, client):
    return np.concatenate([data.train.features[client], data.test.features[client]])


def test_runs_of_columns_by_default_for_two_clients(tmp_path):
    data = load_csv(write(tmp_path), label="y", categories=["town"], buckets=8)
    assert data.name == "csv:own.csv"
    assert data.shapes == ((2,), (9,))
    assert (len(data.train), len(data.test), data.classes) == (64, 36, 3)
    first = together(data, 0)
    order = first[:, 0].astype(int)
    assert sorted(order) == list(range(ROWS))
    np.testing.assert_array_equal(first[:, 1], order * 10)
    second = together(data, 1)
    np.testing.assert_array_equal(second[:, 8], -order)
    np.testing.assert_array_equal(second[:, :8].sum(axis=1), 1)
    np.testing.assert_array_equal(np.concatenate([data.train.labels, data.test.labels]), order % 3)


def test_notes_say_what_is_used_as_it_is(tmp_path):
    path = write(tmp_path)
    plain = load_csv(path, label="y", categories=["town"], scales={"b": 1000.0})
    assert plain.notes == ("used as they are, for want of a scaling constant: a, c",)
    assert plain.fitted == ("the set of classes was read off the label column 'y'",)
    told = load_csv(
        path, label="y", categories=["town"], scales={"a": 1.0, "b": 10.0, "c": 2.0}, classes=["n2", "n0", "n1"]
    )
    assert told.notes == told.fitted == ()
    np.testing.assert_array_equal(told.train.features[0][:, 0], told.train.features[0][:, 1])
    np.testing.assert_array_equal(told.train.labels, (told.train.features[0][:, 0].astype(int) + 1) % 3)


def test_groups_are_one_client_each(tmp_path):
    data = load_csv(write(tmp_path), label="y", groups=[["c"], ["town", "a"]], categories=["town"], drop=["b"])
    assert data.shapes == ((1,), (17,))
    assert data.partition == "2 clients, columns: c; town, a"


def test_rows_read_the_same_whatever_rows_are_beside_them(tmp_path):
    def rows(count):
        data = load_csv(write(tmp_path, rows=count), label="y", categories=["town"], clients=1, scales={"b": 7.0})
        return {int(row[0]): row for row in together(data, 0)}

    many, few = rows(100), rows(20)
    for key, row in few.items():
        np.testing.assert_array_equal(row, many[key])


def test_a_test_file_of_its_own(tmp_path):
    path, other = write(tmp_path), write(tmp_path, "later.csv", rows=7)
    data = load_csv(path, label="y", categories=["town"], test=other)
    assert (len(data.train), len(data.test)) == (100, 7)
    assert data.train.features[0][:, 0].tolist() == list(range(100))
    assert sorted(data.digests) == ["csv/own.csv", "test/later.csv"]
    assert "later.csv: line 2 has label 'n0'; use one of 'm0', 'm1', 'm2'" in refused(
        write(tmp_path, label="m{}"), test=other, classes=["m0", "m1", "m2"]
    )


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("a,y\n" + "".join(f"{n},{label}\n" for n, label in enumerate(["10", "9", "-1"])))
    data = load_csv(path, label="y", clients=1)
    labels = np.concatenate([data.train.labels, data.test.labels])
    assert dict(zip(together(data, 0)[:, 0].astype(int).tolist(), labels.tolist(), strict=True)) == {0: 2, 1: 1, 2: 0}


def test_another_separator(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text('a;b;y\n1;2;"x"\n3;4;"z"\n')
    assert load_csv(path, label="y", separator=";").shapes == ((1,), (1,))
    assert "separator is '; '; use one character" in refused(path, separator="; ")


@pytest.mark.parametrize(
    ("options", "message"),
    toml_beside(__file__, "csv_mistakes.toml")["mistakes"],
)
def test_mistakes_are_named(tmp_path, options, message):
    assert message in refused(write(tmp_path), **options)


def test_labels_that_are_no_classes_are_refused(tmp_path):
    assert "label column 'y' has 1 distinct value" in refused(write(tmp_path, label="same"))
    path = tmp_path / "many.csv"
    path.write_text("a,y\n" + "".join(f"{n},{n}\n" for n in range(1001)))
    assert "label column 'y' has 1001 distinct values; use 2 to 1000" in refused(path, categories=[], clients=1)
    path.write_text("a,y\n1,x\n2,\n3,z\n")
    assert "line 3, column 'y': is empty; use a label" in refused(path, categories=[], clients=1)


def test_a_missing_file_is_told(tmp_path):
    assert f"{tmp_path}/absent.csv: no such file; use a CSV file" in refused(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('""a"",""b"",""y""\n1,2,0\n', "a"),
        ('"""a""","""b""","""y"""\n1,2,0\n', "a"),
        ('"a,""b"",""y"""\n"1,2,0"\n', "b"),
        ('"a;""b"";""y"""\n"1;2;0"\n', "b"),  # told before the separator: with the right one it would come next
    ],
)
def test_names_quoted_twice_are_told_as_such(tmp_path, text, name):
    path = tmp_path / "twice.csv"
    path.write_text(text)
    told = refused(path, categories=[])
    assert told.startswith(f'{path}: line 1 quotes column names twice (""{name}""); use {name} or "{name}"; remove')


def test_a_quote_within_a_name_is_no_doubled_one(tmp_path):
    path = tmp_path / "inches.csv"
    path.write_text('"5"" disk","a ""b"" c","",y\n' + "1,2,3,0\n4,5,6,1\n")
    assert "names '' twice or not at all" in refused(path, categories=[])
    path.write_text('"5"" disk","a ""b"" c",y\n' + "1,2,0\n4,5,1\n")
    assert 'columns: 5" disk; a "b" c' in load_csv(path, label="y").partition


def hinted(folder, columns, **options):
    path = folder / "hinted.csv"
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return [with_options(hint) for hint in load_csv(path, label="y", clients=1, **options).hints]


def test_identifiers_and_raw_scales_get_a_hint(tmp_path):
    random = np.random.default_rng(0)
    plain = {"x": random.uniform(0.0, 1.0, ROWS), "y": random.integers(0, 2, ROWS)}
    sparse = random.permutation(10**6)[:ROWS]  # no two the same, as amounts may be
    codes = [f"c{n:04x}" for n in sparse]
    assert hinted(tmp_path, plain) == []
    assert hinted(tmp_path, {"amount": sparse, **plain}, scales={"amount": 1e6}) == []
    for name, cells, options in (
        ("ID", np.arange(ROWS) + 1, {}),
        ("row", random.permutation(ROWS), {"scales": {"row": 100.0}}),
        ("customerID", sparse, {}),
        ("code", codes, {"categories": ["code"]}),
    ):
        (hint,) = hinted(tmp_path, {name: cells, **plain}, **options)
        assert hint.startswith(f"column '{name}' looks like an identifier (no value occurs twice)")
        assert hint.endswith("leave it out (option drop)")
    (hint,) = hinted(tmp_path, {"amount": sparse, "paid": sparse // 10**5, **plain}, scales={"paid": 10.0})
    largest = f"'amount' reaches {max(sparse):.2g} and 'paid' 0.9"
    assert hint.startswith(f"numbers are used as they are, and {largest}. On scales so far from 1 clients")
    assert hint.endswith("(option scales, such as amount=1e+06)")
    assert hinted(tmp_path, {"amount": sparse // 10**4 - 50, **plain}) == []


def test_labels_that_are_numbers(tmp_path):
    path = write(tmp_path, label="{}.25")
    data = load_csv(path, label="y", categories=["town"], task="regression")
    np.testing.assert_array_equal(data.values, np.float32([0.25, 1.25, 2.25]))
    assert (data.classes, data.fitted) == (3, ())
    order = together(data, 0)[:, 0].astype(int)
    np.testing.assert_array_equal(np.concatenate([data.train.labels, data.test.labels]), order % 3)
    many = write(tmp_path, rows=3000, label="{}")
    many.write_text("a,y\n" + "".join(f"{n % 7},{n}.5\n" for n in range(1500)))
    assert "or task regression where the label is a number" in refusal(load_csv, many, label="y", clients=1)
    assert load_csv(many, label="y", clients=1, task="regression").classes == 1500


@pytest.mark.parametrize(
    ("label", "options", "words"),
    [
        ("n{}", {}, "line 2, column 'y': 'n0' is not a number"),
        ("inf", {}, "line 2, column 'y': 'inf' is not a finite number"),
        ("7", {}, "labels are all 7.0; use two different numbers at least"),
        ("{}", {"task": "ranking"}, "task is 'ranking'; use classification or regression"),
        ("{}", {"classes": ["0", "1"]}, "classes: leave them out where task is regression: the label is a number"),
    ],
)
def test_labels_that_are_no_numbers_are_one_line(label, options, words, tmp_path):
    path = write(tmp_path, label=label)
    assert words in refused(path, **{"task": "regression", **options})
