import numpy as np
import pytest

from dpzv_audit.data import load
from dpzv_audit.data.text import CHUNK, HashTokenizer, read_fasttext
from dpzv_audit.data.vertical import fixed_split

from ...helpers.places import sparse
from ...helpers.refusals import refusal

TOKENIZER = HashTokenizer(length=6, vocabulary=500)


def line(number):
    return f"__label__{1 + number % 2} Title {number}: the text of review {number}\n"


def write(folder, name, count):
    path = folder / name
    path.write_text("".join(line(number) for number in range(count)), encoding="utf-8")
    return path


def refused(folder, **options):
    return refusal(load, "amazon-polarity", data_dir=folder, **options)


def test_a_subset_is_split_in_a_fixed_way_and_cut_into_three_runs(tmp_path):
    inner = tmp_path / "amazon_polarity"
    inner.mkdir()
    path = write(inner, "train.ft.txt", 100)
    data = load("amazon-polarity", data_dir=tmp_path, subset=True, tokenizer=TOKENIZER)
    assert data.shapes == ((2,),) * 3
    assert (len(data.train), len(data.test), data.classes, data.vocabulary) == (64, 36, 2, 500)
    assert data.notes == ("a subset: 100 of 4,000,000 reviews",)
    ids, labels = read_fasttext(path, TOKENIZER)
    train, test = fixed_split(100, seed=6459)
    for part, rows in ((data.train, train), (data.test, test)):
        np.testing.assert_array_equal(np.hstack(part.features), ids[rows])
        np.testing.assert_array_equal(part.labels, rows % 2)
    np.testing.assert_array_equal(labels, np.arange(100) % 2)
    text = line(7).partition(" ")[2]
    np.testing.assert_array_equal(ids[7], TOKENIZER.encode([text])[0])


def test_the_source_s_own_test_file_is_used_where_it_is_there(tmp_path):
    write(tmp_path, "train.ft.txt", 10)
    write(tmp_path, "test.ft.txt", 4)
    data = load("amazon-polarity", data_dir=tmp_path, subset=True, length=9, vocabulary=50, clients=1)
    assert (len(data.train), len(data.test), data.shapes) == (10, 4, ((9,),))
    assert sorted(data.digests) == ["test.ft.txt", "train.ft.txt"]
    assert "train.ft.txt: has 10 lines, the original has 3600000; give subset" in refused(tmp_path)


def test_rows_do_not_depend_on_the_rows_beside_them(tmp_path):
    many = read_fasttext(write(tmp_path, "many", CHUNK + 5), TOKENIZER)
    few = read_fasttext(write(tmp_path, "few", 3), TOKENIZER)
    assert len(many[1]) == CHUNK + 5
    np.testing.assert_array_equal(many[0][:3], few[0])
    np.testing.assert_array_equal(many[1][:3], few[1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"\n", "line 3 starts ''; use __label__1 or __label__2, a space and text"),
        (b"__label__3 text\n", "line 3 starts '__label__3 text'"),
        (b"__label__1\n", "line 3 starts '__label__1'"),
        (b"__label__1   \n", "line 3 starts '__label__1'"),
        (b"plain text\n", "line 3 starts 'plain text'"),
        (b"__label__1 \xff\xfe\n", "line 3 is no UTF-8 text"),
        (b"__label__1 " + b"x" * 70_000, "line 3 has more than 65536 bytes"),
        (b"\x1f\x8b\x08\x00\n", "line 3 "),
    ],
)
def test_malformed_lines_are_named(tmp_path, bad, message):
    path = tmp_path / "train.ft.txt"
    path.write_bytes((line(0) + line(1)).encode() + bad + line(3).encode())
    text = refused(tmp_path, subset=True)
    assert text.startswith(f"{path}: ")
    assert message in text


def test_empty_and_huge_files_are_refused_and_a_test_file_missed(tmp_path):
    path = tmp_path / "train.ft.txt"
    path.write_bytes(b"")
    assert f"{path}: is empty; use one line per review" in refused(tmp_path, subset=True)
    sparse(path)
    assert f"{path}: has {1 << 40} bytes" in refused(tmp_path, subset=True)
    assert "test.ft.txt: no such file" in refused(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("real", ["amazon_polarity/train.ft.txt"], indirect=True)
def test_real_reviews(real):
    data = load("amazon-polarity", data_dir=real, subset=True)
    assert data.shapes == ((32,),) * 3
    if len(data.train) + len(data.test) == 6459:
        assert (len(data.train), len(data.test)) == (5120, 1339)
        assert (np.bincount(data.train.labels) + np.bincount(data.test.labels)).tolist() == [3137, 3322]
    assert (data.train.features[0][:, 0] > 0).all()
