import csv
import io
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.base.errors import InputError
from dpzv_audit.statistics import scores
from dpzv_audit.statistics.scores import load_score_files, load_scores

from ...helpers.memory import memory_below
from ...helpers.places import toml_beside
from ...helpers.refusals import refused

VALUES = np.array([1.5, -2.0, 3e-7])


def npy(array, allow_pickle=False):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


GOOD = {
    "plain.csv": b"1.5\n-2\n3e-7\n",
    "header.csv": b"score\n1.5\n-2\n3e-7\n",
    "windows.CSV": b'\xef\xbb\xbf"score"\r\n 1.5 \r\n"-2"\r\n+3e-7\r\n\r\n\r\n',
    "no_newline.csv": b"1.5\n-2\n3e-7",
    "numbers.jsonl": b"1.5\n-2\n3e-7\n",
    "objects.ndjson": b'{"score": 1.5, "run": 0}\n{"score": -2}\n3e-7\n\n',
    "doubles.npy": npy(VALUES),
    "big_endian.npy": npy(VALUES.astype(">f8")),
    "one.npz": npz(scores=VALUES),
}


@pytest.mark.parametrize("name", GOOD)
def test_every_format_gives_the_same_scores(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(GOOD[name])
    read = load_scores(path)
    assert read.dtype == np.float64
    assert np.array_equal(read, VALUES)


@pytest.mark.parametrize(
    "header", ["score (nats)", "$s", "_s", "得分", "-log p", "loss [bits]", "# score", '"a b"', "%"]
)
def test_a_name_or_a_comment_is_no_score(tmp_path, header):
    (tmp_path / "a.csv").write_text(f"{header}\n1.5\n# a remark\n-2\n3e-7\n")
    assert np.array_equal(load_scores(tmp_path / "a.csv"), VALUES)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_infinities_and_whole_numbers_are_read_as_they_are(tmp_path, suffix):
    names = ["inf", "-Infinity", "+INF"] if suffix == "csv" else ["Infinity", "-Infinity", '{"score": Infinity}']
    (tmp_path / f"a.{suffix}").write_text("\n".join([*names, "0.5"]))
    assert load_scores(tmp_path / f"a.{suffix}").tolist() == [np.inf, -np.inf, np.inf, 0.5]
    (tmp_path / f"b.{suffix}").write_text("9007199254740990\n9007199254740991\n1152921504606846976\n")
    read = load_scores(tmp_path / f"b.{suffix}")
    assert read.dtype == np.int64
    assert read.tolist() == [9007199254740990, 9007199254740991, 2**60]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int8, np.uint64])
def test_the_type_of_the_file_is_kept(tmp_path, kind):
    (tmp_path / "a.npy").write_bytes(npy(np.arange(4, dtype=kind)))
    assert load_scores(tmp_path / "a.npy").dtype == kind


def pair(tmp_path, first, second, rows=20, **options):
    """The scores of two CSV files that begin with these lines and go on with random numbers of their own."""
    rng = np.random.default_rng(0)
    paths = []
    for name, line in (("in", first), ("out", second)):
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text("\n".join([line, *map(repr, rng.normal(size=rows).tolist())]))
    return load_score_files(*paths, **options)


@pytest.mark.parametrize("cell", ["0", "1e3", "2026", '"0"', '"0.5"'])
def test_a_number_that_both_files_begin_with_and_no_row_is_spelled_like_is_a_header_and_said_to_be(tmp_path, cell):
    files = pair(tmp_path, cell, cell)
    assert files.inside.size == files.outside.size == 20
    (note,) = files.notes
    assert "is taken for a header" in note
    kept = pair(tmp_path, cell, cell, header=False)
    assert (kept.inside.size, kept.notes) == (21, ())


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("0", "0.25", "unlike all other rows"),
        ("0.25", "3", "unlike all other rows"),
        ("0.5", "0.5", "the files share no other row"),
        ("1e-3", "1e-3", None),
    ],
)
def test_a_number_that_may_be_a_header_is_asked_about(tmp_path, first, second, why):
    if why is None:
        assert "taken for a header" in pair(tmp_path, first, second).notes[0]
        return
    with refused(why) as caught:
        pair(tmp_path, first, second)
    assert "give ‹header› yes or no" in str(caught.value.words)
    assert pair(tmp_path, first, second, header=True).inside.size == 20
    assert pair(tmp_path, first, second, header=False).inside.size == 21


def test_numbers_like_all_others_are_scores_and_where_both_files_begin_with_one_it_is_said(tmp_path):
    assert pair(tmp_path, "0.5", "-0.25").notes == ()
    for name, lines in (("in", "0\n1\n1\n0"), ("out", "0\n0\n1\n0")):
        (tmp_path / f"{name}.csv").write_text(lines)
    files = load_score_files(tmp_path / "in.csv", tmp_path / "out.csv")
    assert files.inside.tolist() == [0, 1, 1, 0]
    assert "is taken for a score (header yes" in files.notes[0]


def test_of_a_csv_beside_another_kind_the_first_row_is_asked_about(tmp_path):
    (tmp_path / "in.csv").write_text("0\n0.5\n0.25\n")
    (tmp_path / "out.npy").write_bytes(npy(VALUES))
    with refused("may be a header or a score"):
        load_score_files(tmp_path / "in.csv", tmp_path / "out.npy")
    with refused("header is True, is about CSV files"):
        load_score_files(tmp_path / "out.npy", tmp_path / "out.npy", header=True)


def test_whole_numbers_and_compressed_archives_load(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(np.arange(4, dtype=np.uint8)))
    np.savez_compressed(tmp_path / "b.npz", x=np.arange(4, dtype=np.float32))
    assert load_scores(tmp_path / "a.npy").tolist() == load_scores(tmp_path / "b.npz").tolist() == [0, 1, 2, 3]


PICKLED = npy(np.array([1.0, None], dtype=object), allow_pickle=True)
NUMBER = "use a number such as -0.25 or inf"
FINE = "which no double holds exactly: subtract one number from all scores"
BAD = {
    "fine.npy": (npy(np.array([1, 2**53 + 1])), f"row 2 is 9007199254740993, {FINE}"),
    "finest.npy": (npy(np.array([0, 2**64 - 1], dtype=np.uint64)), f"row 2 is 18446744073709551615, {FINE}"),
    "fine_wide.npy": (npy(np.array([0, 2**53 + 1], dtype=np.longdouble)), f"row 2 is 9007199254740993.0, {FINE}"),
    "lost_wide.npy": (
        npy(np.longdouble(1) + np.arange(2) * np.finfo(np.longdouble).eps),
        "differ by less than doubles",
    ),
    "latin.csv": (b"1\n\xe92\n", "byte 3 is not UTF-8; use UTF-8 text"),
    "far_latin.csv": (b"1234567\n" * 300_000 + b"\xe92\n", "byte 2400001 is not UTF-8"),
    "far_latin.jsonl": (b"1234567\n" * 300_000 + b"1\xc3\n", "byte 2400002 is not UTF-8"),
    "far_word.csv": (b"1234567\n" * 300_000 + b"abc\n", "row 300001: found 'abc'"),
    "far_blank.csv": (b"1234567\n" * 131_072 + b"\n\n1\n", "row 131073: is blank"),
    "blanks.csv": (b"\n" * 3_000_000, "is empty"),
    "far_nan.csv": (b"1234567\n" * 300_000 + b"nan\n", "row 300001: found 'nan'"),
    "far_number.jsonl": (b"1234567\n" * 200_000 + b"[]\n", "row 200001: found"),
    "long.csv": (b"1\n" + b"x" * 500 + b"\n", "row 2: found 'x{37}\\.\\.\\.'"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", "row 1: found"),
    "huge.jsonl": (b"1" + b"0" * 400 + b"\n", "row 1: found"),
    "digits.jsonl": (b"1" * 5000 + b"\n", "row 1: found"),
    "nan.npy": (npy(np.array([1.0, np.nan])), "row 2 is nan; use a number"),
    "matrix.npy": (npy(np.zeros((3, 1))), r"has shape \(3, 1\); use one dimension"),
    "scalar.npy": (npy(np.array(1.0)), r"has shape \(\)"),
    "empty.npy": (npy(np.zeros(0)), "is empty"),
    "text.npy": (npy(np.array(["1"])), "holds values of type <U1; use real numbers"),
    "bool.npy": (npy(np.array([True])), "holds values of type bool"),
    "complex.npy": (npy(np.array([1j])), "holds values of type complex128"),
    "pickled.npy": (PICKLED, "without pickled objects"),
    "raw_pickle.npy": (b"\x80\x04K\x01.", "is not a complete NPY file"),
    "truncated.npy": (npy(VALUES)[:-3], "is not a complete NPY file"),
    "nothing.npy": (b"", "is not a complete NPY file"),
    "wide.npy": (npy(np.array([1e300], dtype=np.longdouble) ** 2), f"row 1 is 1.0*1051e.600, {FINE}"),
    "two.npz": (npz(a=VALUES, b=VALUES), "holds 2 arrays; use exactly one"),
    "none.npz": (npz(), "holds 0 arrays"),
    "not_a_zip.npz": (npy(VALUES), "is not a complete NPZ file"),
    "truncated.npz": (npz(a=VALUES)[:-30], "is not a complete NPZ file"),
    "flipped.npz": (npz(a=VALUES).replace(VALUES.tobytes(), VALUES[::-1].tobytes()), r"array a\.npy: Bad CRC-32"),
}


WRITTEN = toml_beside(__file__, "wrong_scores.toml")
BAD |= {name: (text.encode(), words) for name, (text, words) in WRITTEN.items()}


@pytest.mark.parametrize("name", BAD)
def test_one_line_names_the_file_the_row_and_the_cure(tmp_path, name):
    content, words = BAD[name]
    path = tmp_path / name
    path.write_bytes(content)
    with refused(words) as caught:
        load_scores(path)
    message = str(caught.value)
    assert message.startswith(f"scores file {path}")
    assert len(message) < len(str(path)) + 200


def test_a_pickle_inside_an_archive_is_not_opened(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", PICKLED)
    with refused("without pickled objects"):
        load_scores(path)


def packed(name, declared):
    """An archive whose entry says that it unpacks to `declared` bytes, in both places where that stands."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, npy(np.zeros(1000)))
    real, said = (size.to_bytes(4, "little") for size in (len(npy(np.zeros(1000))), declared))
    assert buffer.getvalue().count(real) == 2
    return buffer.getvalue().replace(real, said)


def test_an_archive_that_unpacks_without_measure_is_refused_by_what_it_declares(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(10_000_000))
    assert path.stat().st_size < 100_000
    with memory_below(6_000_000):  # the room for a directory, 4 MB, and little else
        with refused(r"array a\.npy unpacks to 80000128 bytes from \d+; use \d+ at most"):
            load_scores(path)
        path.write_bytes(packed("a.npy", 2**32 - 2))
        with refused(r"unpacks to 4294967294 bytes"):
            load_scores(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npy", "npz"])
def test_reading_takes_a_few_times_the_array(tmp_path, suffix):
    values = np.random.default_rng(0).normal(size=60_000)
    path = tmp_path / f"a.{suffix}"
    lines = "".join(f"{value!r}\n" for value in values.tolist())
    if suffix == "npy":
        np.save(path, values)
    elif suffix == "npz":
        np.savez_compressed(path, values)
    else:
        path.write_text(lines)
    with memory_below(3 * values.nbytes + 8_000_000):  # lines as Python strings take 20 times the array
        read = load_scores(path)
    assert np.array_equal(read[-values.size :], values)


LINES = st.lists(
    st.sampled_from(
        ["1", "-2.5", "1e3", " 3 ", "", "\t", "score", "nan", "1_0", "x" * 9, '"4"', "1,2", "\u0663", "\x0c"]
    ),
    max_size=8,
)


def by_the_letter(lines):
    """Return the numbers of the rows as the csv module reads them; None where the file is no column of numbers.

    Nor where a whole number comes first and all others have a point or stand otherwise: that may be a header.
    """
    rows = [line.strip() for line in lines]
    while rows and not rows[-1]:
        rows.pop()
    if rows[:1] == ["score"]:
        del rows[0]
    if not rows or "" in rows:
        return None
    cells = [cell.strip() for row in rows for cell in next(csv.reader([row]))]
    if len(cells) != len(rows) or any("_" in cell for cell in cells):
        return None
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    whole = [cell.lstrip("+-").isdigit() or cell == "1e3" for cell in cells]
    spelled = list(zip(whole, [row.startswith('"') for row in rows], strict=True))
    if len(rows) > 1 and any(spelled[0]) and spelled[0] not in spelled[1:]:
        return None
    return numbers if np.isfinite(numbers).all() else None


@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_rows_give_what_the_csv_module_gives(tmp_path_factory, lines, end, mark):
    path = tmp_path_factory.getbasetemp() / "lines.csv"
    path.write_bytes(("\ufeff" * mark + end.join(lines)).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "LINE_LIMIT", 8)
        try:
            found = load_scores(path).tolist()
        except InputError:
            found = None
    assert found == by_the_letter(lines)


def test_missing_files_and_folders(tmp_path):
    with refused(re.escape(f"scores file {tmp_path}/a.csv: there is no such file")):
        load_scores(tmp_path / "a.csv")
    for suffix in ("csv", "jsonl", "npy", "npz"):
        (tmp_path / f"folder.{suffix}").mkdir()
        with refused("is a folder; use a regular file"):
            load_scores(tmp_path / f"folder.{suffix}")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_binary_file_gives_scores_or_one_line(tmp_path_factory, data):
    suffix = data.draw(st.sampled_from(["npy", "npz"]))
    content = bytearray(GOOD["doubles.npy"] if suffix == "npy" else GOOD["one.npz"])
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"damaged.{suffix}"
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        read = load_scores(path)
    except InputError as error:
        message = str(error)
    else:
        assert read.size > 0
        assert not np.any(np.isnan(read))
        message = ""
    assert "\n" not in message
