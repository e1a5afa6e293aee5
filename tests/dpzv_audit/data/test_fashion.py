import gzip
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpzv_audit.data import DATASETS, load
from dpzv_audit.data.images import GZIP_MARK, IdxFiles, declared_idx_files, read_idx_images
from dpzv_audit.data.spec import DATA_VARIABLE

from ...helpers.places import DEBIAN, fashion_folder
from ...helpers.refusals import refusal, refused
from .packed import declared_as, idx_arrays, idx_bytes

FASHION_FILES, MNIST_FILES = declared_idx_files("fashion-mnist"), declared_idx_files("mnist")


def load_fashion_mnist(*, files, **options):
    """Fashion-MNIST where its four files are `files`."""
    return replace(DATASETS["fashion-mnist"], reader=partial(read_idx_images, files)).load(**options)


def arrays():
    return idx_arrays(12, 4)


def written(tmp_path):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    files = {}
    for field, array in arrays().items():
        files[field] = declared_as(getattr(FASHION_FILES, field), array)
        (folder / f"{files[field].name}.gz").write_bytes(gzip.compress(idx_bytes(array), mtime=0))
    return IdxFiles(**files)


def test_it_is_read_from_its_own_folder_as_mnist_is(tmp_path):
    files = written(tmp_path)
    fashion = load_fashion_mnist(data_dir=tmp_path, files=files)
    assert (fashion.name, fashion.clients, fashion.classes) == ("fashion-mnist", 7, 10)
    images = np.concatenate(fashion.train.features, axis=2)[:, 0]
    np.testing.assert_array_equal(np.rint(images * 255), arrays()["train_images"])
    assert load_fashion_mnist(data_dir=tmp_path, partition="runs", files=files).shapes == ((392,), (392,))


def test_mnist_in_its_place_is_told_by_the_md5(tmp_path):
    files = written(tmp_path)
    other = idx_bytes(arrays()["train_images"][::-1].copy())
    (tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(other))
    with refused(f"not {files.train_images.md5}"):
        load_fashion_mnist(data_dir=tmp_path, files=files)


def test_absent_files_are_told_with_their_source(tmp_path):
    text = refusal(load, "fashion-mnist", data_dir=tmp_path)
    assert text.startswith(
        f"{tmp_path}/train-labels-idx1-ubyte.gz: no such file; download the four .gz files from http"
    )
    assert "or install Debian's dataset-fashion-mnist and give data_dir /usr/share/datasets" in text


def test_published_md5s_are_md5s_and_differ_from_mnists():
    fashion, mnist = ([file.md5 for file in files] for files in (FASHION_FILES, MNIST_FILES))
    assert all(len(bytes.fromhex(value)) == 16 for value in fashion)
    assert len({*fashion, *mnist}) == 8


@pytest.mark.data
@pytest.mark.skipif(fashion_folder() is None, reason=f"no Fashion-MNIST in {DATA_VARIABLE}, ../shared/data or {DEBIAN}")
def test_the_real_files_load_as_they_lie_and_unpacked(tmp_path):
    folder = fashion_folder()
    fashion = load("fashion-mnist", data_dir=folder)
    assert (len(fashion.train), len(fashion.test), fashion.clients) == (60_000, 10_000, 7)
    for part, count in ((fashion.train, 6000), (fashion.test, 1000)):
        assert np.bincount(part.labels).tolist() == [count] * 10
    # mean grey value of the train images as widely published
    mean = np.mean([block.mean(dtype=np.float64) for block in fashion.train.features])
    assert mean == pytest.approx(0.2860, abs=5e-5)
    for file in FASHION_FILES:
        stored = next((folder / "fashion-mnist").glob(f"{file.name}*")).read_bytes()
        plain = gzip.decompress(stored) if stored.startswith(GZIP_MARK) else stored
        (tmp_path / file.name).write_bytes(plain)
    unpacked = load("fashion-mnist", data_dir=tmp_path)
    assert unpacked.digests == fashion.digests
    np.testing.assert_array_equal(unpacked.test.features[6], fashion.test.features[6])
