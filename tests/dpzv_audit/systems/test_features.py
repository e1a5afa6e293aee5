"""Features of a client are read from CSV or an array, and what is wrong is one line that names its place."""

import re

import numpy as np
import pytest

from dpzv_audit.systems.features import ClientFeatures

from ...helpers.refusals import refused


def test_a_table_has_numbers_and_categories(tmp_path):
    path = tmp_path / "bank.csv"
    path.write_text("age,sex,label\n30,f,1\n41.5,m,0\n-2,f,1\n")
    found = ClientFeatures.read(path, 3)
    assert found.values.tolist() == [[30.0, 1.0, 0.0], [41.5, 0.0, 1.0], [-2.0, 1.0, 0.0]]
    age, sex = found.variables(2)
    assert (age.name, age.client, age.columns, age.values) == ("age", 2, slice(0, 1), ())
    assert (sex.name, sex.columns, sex.values) == ("sex", slice(1, 3), ("f", "m"))


def test_an_array_keeps_its_shape(tmp_path):
    values = np.arange(24).reshape(3, 2, 4)
    np.save(tmp_path / "pictures.npy", values)
    found = ClientFeatures.read(tmp_path / "pictures.npy", 3)
    assert found.values.dtype == np.float32
    assert np.array_equal(found.values, values)
    assert found.variables(1) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n1\n", "holds 1 rows; use 3, one for each record of the transcript"),
        ("a,b\n1,2\nx,3\n4,5\n", "line 3, column 'a': 'x' is not a number"),
        ("a,b\n1,2\n3\n4,5\n", "line 3 has 1 columns; use 2"),
        ("label\n1\n0\n1\n", "has no column but 'label'; use at least one feature"),
        ("a,a\n1,2\n", "line 1 names 'a' twice"),
        ("a\n", "has no rows; use at least one"),
        (
            "a\n" + "".join(f"v{n}\n" for n in range(1001)),
            "line 1002, column 'a': is category 1,001; leave the column out",
        ),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path, text, words):
    path = tmp_path / "bank.csv"
    path.write_text(text)
    with refused(re.escape(words)) as caught:
        ClientFeatures.read(path, 3)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.arange(3.0), "holds float64 of shape (3,); use numbers (N, ...), a row for each record"),
        (np.array([["a"], ["b"], ["c"]]), "holds <U1 of shape (3, 1)"),
        (np.full((3, 2), np.nan), "holds a number that is not finite"),
        (np.zeros((2, 2)), "holds 2 rows; use 3"),
    ],
)
def test_a_wrong_array_is_one_line(tmp_path, values, words):
    np.save(tmp_path / "bank.npy", values)
    with refused(re.escape(words)):
        ClientFeatures.read(tmp_path / "bank.npy", 3)
