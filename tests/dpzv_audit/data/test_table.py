import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.data import table
from dpzv_audit.data.table import (
    CHUNK,
    LOADING,
    ROW_BYTES,
    CategoryColumn,
    Hashed,
    Layout,
    NumberColumn,
    column_runs,
    read_table,
)

from ...helpers.places import sparse
from ...helpers.refusals import refusal as refusal_of
from ...helpers.refusals import refused

COLUMNS = (NumberColumn("age", 10.0), CategoryColumn("colour", ("red", "green")), Hashed("town", 4))
LAYOUT = Layout()
WIDTH = 7


def write(folder, text):
    path = folder / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path, layout=LAYOUT):
    text = refusal_of(read_table, path, layout, COLUMNS, "y")
    assert text.startswith(f"{path}: ")
    return text


GOOD = "age,colour,town,y\n20,red,Bonn,a\n-5e1, blue ,Köln,b\n"


def test_rows_are_encoded_by_constants(tmp_path):
    table = read_table(write(tmp_path, GOOD), LAYOUT, COLUMNS, "y")
    assert table.blocks["age"].tolist() == [[2.0], [-5.0]]
    assert table.blocks["colour"].tolist() == [[1.0, 0.0], [0.0, 0.0]]  # blue is not in the list
    assert table.blocks["town"].sum(axis=1).tolist() == [1.0, 1.0]
    assert (table.labels, table.lines) == (["a", "b"], [2, 3])
    assert all(block.dtype == np.float32 for block in table.blocks.values())


@given(
    cells=st.lists(
        st.tuples(st.integers(-1000, 1000), st.sampled_from(["red", "green", "x"]), st.sampled_from("abcdefgh")),
        min_size=1,
        max_size=20,
    ),
    start=st.integers(0, 19),
)
def test_a_row_reads_the_same_whatever_rows_are_beside_it(tmp_path_factory, cells, start):
    folder = tmp_path_factory.mktemp("rows")
    lines = [f"{age},{colour},{town},y" for age, colour, town in cells]
    kept = lines[start % len(lines) :]
    whole = read_table(write(folder, "\n".join(["age,colour,town,y", *lines])), LAYOUT, COLUMNS, "y")
    part = read_table(write(folder, "\n".join(["age,colour,town,y", *kept])), LAYOUT, COLUMNS, "y")
    for name, block in part.blocks.items():
        np.testing.assert_array_equal(block, whole.blocks[name][len(lines) - len(kept) :])


def test_buckets_are_fixed_for_good_and_differ_by_column():
    assert [int(np.argmax(Hashed("job", 16).encode([cell]))) for cell in ("clerk", "nurse", "pilot")] == [15, 3, 14]
    cells = [f"v{n}" for n in range(40)]
    one, two = ([int(np.argmax(Hashed(name, 16).encode([cell]))) for cell in cells] for name in ("a", "b"))
    assert one != two


def test_long_files_are_read_in_chunks(tmp_path):
    rows = CHUNK + 3
    text = "age,colour,town,y\n" + "".join(f"{n},red,x,{n}\n" for n in range(rows))
    table = read_table(write(tmp_path, text), LAYOUT, COLUMNS, "y")
    np.testing.assert_allclose(table.blocks["age"][:, 0], np.arange(rows) / 10, rtol=1e-6)
    assert table.labels[-1] == str(rows - 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "x,red,Bonn,a\n", "line 4, column 'age': 'x' is not a number"),
        (GOOD + ",red,Bonn,a\n", "line 4, column 'age': '' is not a number"),
        (GOOD + "1_000,red,Bonn,a\n", "line 4, column 'age': '1_000' is not a number"),
        (GOOD + "٣,red,Bonn,a\n", "line 4, column 'age': '٣' is not a number"),
        (GOOD + "nan,red,Bonn,a\n", "line 4, column 'age': 'nan' is not a finite number"),
        (GOOD + "1e400,red,Bonn,a\n", "line 4, column 'age': '1e400' is too large; use at most 3.4e+38"),
        (GOOD + "1e40,red,Bonn,a\n", "line 4, column 'age': '1e40' is too large; use at most 3.4e+38"),
        (GOOD + "1,red,Bonn\n", "line 4 has 3 columns; use 4"),
        (GOOD + "1,red,Bonn,a,5\n", "line 4 has 5 columns; use 4"),
        (GOOD + '1,"red,Bonn,a\n', "line 4 cannot be read"),
        (GOOD + "1," + "r" * 200_000 + ",Bonn,a\n", "line 4 cannot be read (field larger than field limit"),
        ("", "line 1 is empty; use each column once"),
        ("age,colour,town,y\n", "has no rows"),
        ("age,colour,y\n1,red,a\n", "has no column 'town'; its columns are age, colour, y"),
        ("age,age,town,y\n", "line 1 names 'age' twice or not at all"),
        ("age,,town,y\n", "line 1 names '' twice or not at all"),
        (b"age,colour,town,y\n1,\xff,a,b\n", "byte 21 is not UTF-8 text"),
    ],
)
def test_malformed_files_are_refused_by_line_and_column(tmp_path, text, message):
    assert message in refusal(write(tmp_path, text))


def test_names_that_a_layout_gives_must_be_those_of_the_file(tmp_path):
    path = write(tmp_path, GOOD)
    layout = Layout(names=("age", "colour", "city", "y"))
    assert "line 1 names age, colour, town, y; use age, colour, city, y" in refusal(path, layout)


def test_comments_byte_order_marks_and_empty_lines_are_passed_over(tmp_path):
    path = write(tmp_path, "\ufeffage;colour;town;y\r\n\r\n|note\r\n20;red;x;a\r\n\r\n")
    table = read_table(path, Layout(separator=";", comment="|"), COLUMNS, "y")
    assert (table.labels, table.lines) == (["a"], [4])


def test_missing_and_huge_files_are_refused(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "absent.csv")
    path = tmp_path / "huge.csv"
    sparse(path)
    assert f"has {1 << 40} bytes, more than {2 << 30}" in refusal(path)


CELLS = st.one_of(
    st.floats(width=32).map(str),
    st.sampled_from(["1e308", "-1e300", "9" * 400, "1e-320"]),
    st.integers(-(10**9), 10**9).map(str),
    st.text("0123456789.e+-_ naif٣", max_size=6),
)


@given(cells=st.lists(CELLS, min_size=1, max_size=8), scale=st.sampled_from([1.0, 3.0, 1e-30, 1e30]))
def test_numbers_encode_together_as_they_do_one_by_one(cells, scale):
    column = NumberColumn("x", scale)
    try:
        singly = [column.encode([cell])[0] for cell in cells]
    except ValueError:
        with pytest.raises(ValueError, match="is "):
            column.encode(cells)
    else:
        np.testing.assert_array_equal(column.encode(cells), singly)


def test_rows_that_memory_cannot_hold_are_refused_from_the_first_ones(tmp_path, monkeypatch):
    """The file says that it is a hundred times as long as it is: its first rows are enough to refuse it."""
    path = write(tmp_path, "age,colour,town,y\n" + "20,red,x,a\n" * 100)
    size, free = path.stat().st_size, 100 * (LOADING * 4 * WIDTH + ROW_BYTES)
    monkeypatch.setattr(table, "memory_available", lambda: free)
    assert len(read_table(path, LAYOUT, COLUMNS, "y").labels) == 100
    monkeypatch.setattr(table, "check_size", lambda *_, **__: 100 * size)
    message = refusal(path)
    assert re.search(
        rf"has [45],\d\d\d rows or more of {WIDTH} features each, .* GB to load, and 0.0 GB is free", message
    )
    assert message.endswith("; use a sample of its rows, or fewer columns")


def test_rows_that_only_their_number_gives_away_are_refused_on_the_way(tmp_path, monkeypatch):
    """The first rows are long, so that the estimate is far too low."""
    path = write(tmp_path, f"age,colour,town,y\n20,{'r' * 5000},x,a\n" + "20,red,x,a\n" * 200)
    monkeypatch.setattr(table, "CHUNK", 2)
    monkeypatch.setattr(table, "memory_available", lambda: 100 * (LOADING * 4 * WIDTH + ROW_BYTES))
    assert "has 102 rows or more" in refusal(path)


def test_where_nothing_is_known_of_memory_nothing_is_refused_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "memory_available", lambda: None)
    assert len(read_table(write(tmp_path, GOOD), LAYOUT, COLUMNS, "y").labels) > 0


def test_a_column_keeps_its_whole_name():
    assert column_runs(["a\0", "b", "longer"], 2) == (("a\0", "b"), ("longer",))


@given(names=st.lists(st.text(min_size=1), min_size=1, max_size=30, unique=True), data=st.data())
def test_runs_of_columns_reassemble_and_differ_by_one_at_most(names, data):
    clients = data.draw(st.integers(1, len(names)))
    runs = column_runs(names, clients)
    assert [name for run in runs for name in run] == names
    assert len(runs) == clients
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
    with refused("use at most the"):
        column_runs(names, len(names) + 1)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_must_be_positive(scale):
    with refused("scale of column 'age'"):
        NumberColumn("age", scale)


def test_a_table_beyond_memory_fails_after_its_first_rows(tmp_path, monkeypatch):
    path = tmp_path / "big.csv"
    path.write_text("a,b,y\n" + "1,2,0\n" * 5000)
    columns = [NumberColumn("a"), Hashed("b", 100)]
    monkeypatch.setattr(table, "CHUNK", 10)
    read = []
    monkeypatch.setattr(table, "_encoded", lambda *given: read.append(given) or np.zeros((10, 1), np.float32))
    monkeypatch.setattr(table, "FEATURE_LIMIT", 4 * 101 * 2000)
    with refused(r"features each, .* GB in memory, more than .* GB; use a sample"):
        read_table(path, Layout(), columns, "y")
    assert read == [], "told by the size of the file, before any row is encoded"
    monkeypatch.setattr(table, "FEATURE_LIMIT", 4 * 101 * 5000)
    read_table(path, Layout(), columns, "y")
    assert read


def test_the_rows_themselves_count_where_the_estimate_was_wrong(tmp_path, monkeypatch):
    path = tmp_path / "big.csv"
    path.write_text("a,y\n" + "1000000000,0\n" * 10 + "1,0\n" * 90)
    monkeypatch.setattr(table, "CHUNK", 10)
    monkeypatch.setattr(table, "FEATURE_LIMIT", 4 * 50)
    with refused("has 60 rows or more of 1 features each"):
        read_table(path, Layout(), [NumberColumn("a")], "y")


def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "long.csv"
    path.write_text("a,y\n" + "1," * 5000)
    monkeypatch.setattr(table, "LINE_LIMIT", 100)
    with refused(r"long\.csv: line 2 has more than 100 characters; use 100 at most"):
        read_table(path, Layout(), [NumberColumn("a")], "y")


def test_a_file_that_is_too_large_comes_with_advice(tmp_path, monkeypatch):
    path = tmp_path / "large.csv"
    path.write_text("a,y\n1,0\n")
    monkeypatch.setattr(table, "FILE_LIMIT", 4)
    with refused("has 8 bytes, more than 4; use a sample of its rows"):
        read_table(path, Layout(), [NumberColumn("a")], "y")
