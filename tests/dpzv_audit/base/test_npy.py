import io
import zipfile

import numpy as np
import pytest

from dpzv_audit.base.npy import read_npz

MOST = {"a": 12, "b": 40}


def saved(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


def good():
    return {"a": np.arange(12, dtype=np.uint8).reshape(3, 4), "b": np.arange(5, dtype=np.int64)}


def refused(path, most=MOST):
    with pytest.raises(ValueError) as caught:
        read_npz(path, most)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_arrays_come_back_and_others_are_left_alone(tmp_path):
    found = read_npz(saved(tmp_path / "x.npz", **good(), other=np.array([{}], dtype=object)), MOST)
    assert found.keys() == {"a", "b"}
    for key, array in good().items():
        np.testing.assert_array_equal(found[key], array)


def test_a_name_that_is_no_text_is_damage(tmp_path):
    content = bytearray(saved(tmp_path / "x.npz", **good()).read_bytes())
    content[7] |= 0x08  # the local header says that the name is UTF-8
    content[30] = 0x8C  # which its first byte is not
    (tmp_path / "x.npz").write_bytes(content)
    assert "can't decode byte 0x8c" in refused(tmp_path / "x.npz")


def test_pickled_objects_are_never_read(tmp_path):
    path = saved(tmp_path / "x.npz", a=np.array([print] * 12, dtype=object).reshape(3, 4), b=good()["b"])
    assert "entry a.npy at byte 0: holds pickled objects" in refused(path)


def test_larger_arrays_are_refused_unread(tmp_path):
    path = saved(tmp_path / "x.npz", **{**good(), "b": np.zeros(100_000, np.int64)})
    assert "b.npy has 800128 bytes; use 4136 at most" in refused(path)
    assert read_npz(path)["b"].shape == (100_000,)


def test_a_missing_array_is_told_with_those_there(tmp_path):
    assert "has no array 'b', only: a, c" in refused(saved(tmp_path / "x.npz", a=good()["a"], c=good()["b"]))


def member(content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", content)
    return stream.getvalue()


def test_headers_that_claim_what_is_not_there_are_refused(tmp_path):
    stream = io.BytesIO()
    np.save(stream, good()["a"])
    whole = stream.getvalue()
    path = tmp_path / "x.npz"
    for content, message in (
        (whole[:-1], "is truncated: shape (3, 4) of uint8 takes 12 bytes"),
        (whole.replace(b"(3, 4)", b"(9, 9)"), "is truncated: shape (9, 9) of uint8 takes 81 bytes"),
        (whole.replace(b"(3, 4)", b"(9**9)"), "entry a.npy at byte 0: has no complete NPY header"),
        (b"no array", "entry a.npy at byte 0: has no complete NPY header"),
        (b"", "entry a.npy at byte 0: has no complete NPY header"),
    ):
        path.write_bytes(member(content))
        assert message in refused(path, {"a": 12})


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_truncated_and_other_files_are_refused(tmp_path, keep):
    path = saved(tmp_path / "x.npz", **good())
    path.write_bytes(path.read_bytes()[:keep])
    assert "is truncated or no npz file" in refused(path)


def test_a_flipped_byte_is_refused(tmp_path):
    path = saved(tmp_path / "x.npz", **good())
    stored = bytearray(path.read_bytes())
    place = stored.index(b"a.npy") + 60
    stored[place] ^= 0xFF
    path.write_bytes(stored)
    assert refused(path)
