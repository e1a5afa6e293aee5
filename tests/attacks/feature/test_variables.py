"""Variables of a data set by name: what an attack on an attribute can be asked for."""

import numpy as np
import pytest

from attacks.feature.variables import AUTO, HOLDER, attribute_named, held
from dpzv_audit.data import load, load_csv
from dpzv_audit.data.vertical import Records, Variable, VerticalDataset

from ...helpers.refusals import refused


def people(named=True):
    """Client 1 holds an age and a job of three (the last record has none), client 2 a coin and a city of two."""
    ages = np.array([0.2, 0.3, 0.4, 0.5, 0.6])
    jobs = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]])
    coins = np.array([0, 1, 1, 0, 1])
    cities = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [1, 0]])
    blocks = np.c_[ages, jobs], np.c_[coins, cities]
    records = Records(tuple(np.ascontiguousarray(b, np.float32) for b in blocks), np.array([0, 1, 0, 1, 0]))
    variables = (
        Variable("age", 1, slice(0, 1)),
        Variable("job", 1, slice(1, 4), ("cook", "smith", "tailor")),
        Variable("coin", 2, slice(0, 1)),
        Variable("city", 2, slice(1, 3), ("Ulm", "Jena")),
    )
    return VerticalDataset("people", records, records, 2, "by hand", {}, variables=variables if named else ())


@pytest.mark.parametrize(
    ("name", "target", "holder", "categories", "values"),
    [
        ("age", HOLDER, 1, (), [0.2, 0.3, 0.4, 0.5, 0.6]),
        ("job", HOLDER, 1, ("cook", "smith", "tailor", "none of them"), [0, 1, 0, 2, 3]),
        ("job=smith", HOLDER, 1, ("not smith", "smith"), [0, 1, 0, 0, 0]),
        ("coin", "1", 2, ("0", "1"), [0, 1, 1, 0, 1]),
        ("3", HOLDER, 1, ("cook", "smith", "tailor", "none of them"), [0, 1, 0, 2, 3]),
        ("3", "2", 2, ("Ulm", "Jena"), [0, 1, 0, 0, 0]),
        (AUTO, HOLDER, 1, ("cook", "smith", "tailor", "none of them"), [0, 1, 0, 2, 3]),
        (AUTO, "2", 2, ("0", "1"), [0, 1, 1, 0, 1]),
    ],
)
def test_a_variable_has_its_holder_its_categories_and_its_values(name, target, holder, categories, values):
    attribute = attribute_named(people(), name, target)
    assert attribute.holder == holder
    assert attribute.categories == categories
    assert attribute.values == pytest.approx(values)


def test_columns_without_names_make_variables():
    data = people(named=False)
    assert [v.name for v in held(data, 1)] == ["column 1", "columns 2 to 4"]
    assert attribute_named(data, "2", HOLDER).categories == ("1", "2", "3", "none of them")


def test_of_a_picture_the_column_that_varies_most_is_taken():
    digits = load("digits")
    block = digits.train.features[0]
    assert attribute_named(digits, AUTO, HOLDER).name == f"column {1 + block.var(0).argmax()}"


@pytest.mark.parametrize(
    ("data", "name", "target", "words"),
    [
        (people(), "jbo", HOLDER, "attribute is 'jbo': did you mean 'job'. use one of age, job, coin, city"),
        (people(), "job=baker", HOLDER, "category of job is 'baker'; use"),
        (people(), "age=4", HOLDER, "attribute is 'age', a number, which has no categories; leave =... out"),
        (people(), "5", HOLDER, "attribute is '5'; use a column of client 1: 1 to 4"),
        (people(), "age", "3", "target is '3'; use one of 1 to 2, or holder"),
        (people(named=False), "age", HOLDER, "no variable of these data has a name; use the number of a column, or"),
    ],
)
def test_an_attribute_that_is_none_is_told_in_one_line(data, name, target, words):
    with refused(words):
        attribute_named(data, name, target)


def test_a_csv_file_names_its_variables(tmp_path):
    header = "age,job,city,label\n"
    rows = "".join(f"{i},j{i % 3},c{i % 2},{i % 2}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(header + rows)

    data = load_csv(
        tmp_path / "t.csv", label="label", clients=2, categories=("job", "city"), buckets=4, classes=("0", "1")
    )
    assert [(v.name, v.client, v.columns.start, v.columns.stop) for v in data.variables] == [
        ("age", 1, 0, 1),
        ("job", 1, 1, 5),
        ("city", 2, 0, 4),
    ]
