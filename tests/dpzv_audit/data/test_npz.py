import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.data.npz import Expected, read_npz
from dpzv_audit.errors import InputError

RIGHT = {"a": Expected(kind="u", item_bytes=1, shape=(3, 4)), "b": Expected(kind="i", item_bytes=8, shape=(5,))}


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def good() -> dict[str, np.ndarray]:
    return {"a": np.arange(12, dtype=np.uint8).reshape(3, 4), "b": np.arange(5, dtype=np.int64)}


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_npz(path, RIGHT)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def test_arrays_come_back_and_others_are_left_alone(tmp_path):
    path = saved(tmp_path / "x.npz", **good(), other=np.array([{}], dtype=object))
    found = read_npz(path, RIGHT)
    assert found.keys() == {"a", "b"}
    for key, array in good().items():
        np.testing.assert_array_equal(found[key], array)


def test_a_name_that_is_no_text_is_damage(tmp_path):
    content = bytearray(saved(tmp_path / "x.npz", **good()).read_bytes())
    content[7] |= 0x08  # the local header says that the name is UTF-8
    content[30] = 0x8C  # which its first byte is not
    (tmp_path / "x.npz").write_bytes(content)
    assert "is truncated or no npz file" in refused(tmp_path / "x.npz")


def test_pickled_objects_are_never_read(tmp_path):
    path = saved(tmp_path / "x.npz", a=np.array([print] * 12, dtype=object).reshape(3, 4), b=good()["b"])
    assert "a holds pickled objects" in refused(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.zeros((3, 5), np.uint8)}, "a has shape (3, 5), must be (3, 4)"),
        ({"a": np.zeros((3, 4), np.int8)}, "a is int8, must be of kind 'u'"),
        ({"a": np.asfortranarray(np.zeros((3, 4), np.uint8))}, "a is uint8, must be of kind 'u' in rows"),
        ({"b": np.zeros(100_000, np.int64)}, "b has 800128 bytes, must have 4136 at most"),
    ],
)
def test_other_arrays_are_refused(tmp_path, change, message):
    assert message in refused(saved(tmp_path / "x.npz", **{**good(), **change}))


def test_a_missing_array_is_told_with_those_there(tmp_path):
    assert "has no array 'b', only: a, c" in refused(saved(tmp_path / "x.npz", a=good()["a"], c=good()["b"]))


def member(content: bytes) -> bytes:
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
        (whole[:-1], "a has 11 bytes of data, must be 12"),
        (whole.replace(b"(3, 4)", b"(9**9)"), "a is no array file"),
        (b"no array", "a is no array file"),
        (b"", "a is no array file"),
    ):
        path.write_bytes(member(content))
        assert message in refused(path)


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
    assert "x.npz: " in refused(path)
