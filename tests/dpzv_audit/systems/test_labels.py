"""Labels of a transcript are read from CSV, lines or an array, and what is wrong is one line that names its place."""

import re

import numpy as np
import pytest

from dpzv_audit.systems.labels import read_labels

from ...helpers.refusals import refused


@pytest.mark.parametrize(
    "text",
    [
        "0\n2\n1\n",
        "0\r\n2\r\n1",
        "label\n0\n2\n1\n",
        "\ufeffid,label\n7,0\n8,2\n9,1\n",
        '"label", id\n" 0",7\n2,8\n1,9\n',
    ],
)
def test_labels_are_read_from_text(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_text(text, newline="")
    assert read_labels(path, 3, 3).tolist() == [0, 2, 1]


def test_labels_are_read_from_an_array(tmp_path):
    np.save(tmp_path / "labels.npy", np.array([0, 2, 1], np.uint8))
    found = read_labels(tmp_path / "labels.npy", 3, 3)
    assert found.tolist() == [0, 2, 1]
    assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0\n1\n", "holds 2 labels; use 3, one for each record of the transcript"),
        ("0\n1\n3\n", "the label of record 2 is 3; use 0 to 2"),
        ("0\n1\n-1\n", "line 3 holds '-1'; use a label: a whole number from 0"),
        ("0\n1.0\n1\n", "line 2 holds '1.0'"),
        ("0\n1_0\n1\n", "line 2 holds '1_0'"),
        ("0\n\n1\n", "line 2 has 0 columns; use 1"),
        ("y\n0\n1\n2\n", "line 1 holds 'y'"),
        ("id,y\n1,0\n", "line 1 holds id, y; name a column 'label', or write one number per line"),
        ("", "line 1 holds nothing"),
        ("id,label\n1,0\n2\n", "line 3 has 1 columns; use 2"),
        ('label\n"0\n', "is no CSV: "),
        ("0\n" + "9" * 2_000_000, "line 2 has more than 1048576 characters"),
    ],
)
def test_wrong_text_is_one_line(tmp_path, text, words):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with refused(re.escape(words)) as caught:
        read_labels(path, 3, 3)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((3, 1), int), np.zeros((), int), np.array(["a"] * 3)])
def test_wrong_arrays_are_one_line(tmp_path, values):
    np.save(tmp_path / "labels.npy", values)
    with refused("use whole numbers"):
        read_labels(tmp_path / "labels.npy", 3, 3)


def test_what_cannot_be_read_is_one_line(tmp_path):
    with refused(r"absent.csv: cannot be read"):
        read_labels(tmp_path / "absent.csv", 3, 3)
    (tmp_path / "labels.npy").write_bytes(b"no array")
    with refused(r"labels.npy: is no NPY array"):
        read_labels(tmp_path / "labels.npy", 3, 3)
    (tmp_path / "latin.csv").write_bytes(b"0\n\xe9\n")
    with refused(r"latin.csv: byte 3 is not UTF-8"):
        read_labels(tmp_path / "latin.csv", 3, 3)
    with refused("a folder"):
        read_labels(tmp_path, 3, 3)
