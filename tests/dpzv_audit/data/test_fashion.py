import gzip
import hashlib
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.data import DATASETS, VerticalDataset, load
from dpzv_audit.data.images import IdxFiles, declared_idx_files, read_idx_images
from dpzv_audit.errors import InputError

FASHION_FILES, MNIST_FILES = declared_idx_files("fashion-mnist"), declared_idx_files("mnist")


def load_fashion_mnist(*, files: IdxFiles, **options: object) -> VerticalDataset:
    """Fashion-MNIST where its four files are `files`."""
    return replace(DATASETS["fashion-mnist"], reader=partial(read_idx_images, files)).load(**options)


def idx(array: np.ndarray) -> bytes:
    plain = struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()
    return gzip.compress(plain, mtime=0)


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "train_images": random.integers(0, 256, (12, 28, 28), dtype=np.uint8),
        "train_labels": random.integers(0, 10, 12, dtype=np.uint8),
        "test_images": random.integers(0, 256, (4, 28, 28), dtype=np.uint8),
        "test_labels": random.integers(0, 10, 4, dtype=np.uint8),
    }


def written(tmp_path: Path) -> IdxFiles:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    files = {}
    for field, array in arrays().items():
        expected = getattr(FASHION_FILES, field)
        content = idx(array)
        (folder / f"{expected.name}.gz").write_bytes(content)
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        files[field] = replace(expected, shape=array.shape, md5_gzip=digest)
    return IdxFiles(**files)


def test_it_is_read_from_its_own_folder_as_mnist_is(tmp_path):
    files = written(tmp_path)
    fashion = load_fashion_mnist(data_dir=tmp_path, files=files)
    assert (fashion.name, fashion.clients, fashion.classes) == ("fashion-mnist", 7, 10)
    images = np.concatenate(fashion.train.features, axis=2)[:, 0]
    np.testing.assert_array_equal(np.rint(images * 255), arrays()["train_images"])
    halves = load_fashion_mnist(data_dir=tmp_path, partition="runs", files=files)
    assert halves.shapes == ((392,), (392,))


def test_an_unpacked_file_has_no_published_md5_and_is_refused(tmp_path):
    files = written(tmp_path)
    path = tmp_path / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    with pytest.raises(InputError, match="is unpacked, and only the gzipped file has a published md5"):
        load_fashion_mnist(data_dir=tmp_path, files=files)


def test_mnist_in_its_place_is_told_by_the_md5(tmp_path):
    files = written(tmp_path)
    other = idx(arrays()["train_images"][::-1].copy())
    (tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(other)
    with pytest.raises(InputError, match=f"must be {files.train_images.md5_gzip}"):
        load_fashion_mnist(data_dir=tmp_path, files=files)


def test_absent_files_are_told_with_their_source(tmp_path):
    with pytest.raises(InputError) as caught:
        load("fashion-mnist", data_dir=tmp_path)
    text = str(caught.value)
    assert text.startswith(
        f"{tmp_path}/train-images-idx3-ubyte.gz: no such file; download the four .gz files from http"
    )
    assert text.endswith("(or give download), to go into fashion-mnist/ of the data folder")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"\(download it from https://raw\.githubusercontent\.com/zalandoresearch/"):
        load("fashion-mnist", data_dir=tmp_path)


def test_published_md5s_are_md5s_and_differ_from_mnists():
    parts = ("train_images", "train_labels", "test_images", "test_labels")
    fashion = [getattr(FASHION_FILES, part).md5_gzip for part in parts]
    mnist = [getattr(MNIST_FILES, part).md5_gzip for part in parts]
    assert all(len(bytes.fromhex(value)) == 16 for value in fashion)
    assert len({*fashion, *mnist}) == 8
