from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpzv_audit.data import DATASETS, load
from dpzv_audit.data.images import BATCHES as NAMES
from dpzv_audit.data.images import CIFAR_FOLDER, TRAIN_BATCHES, read_cifar10

from ...helpers.places import sparse
from ...helpers.refusals import refusal
from .packed import md5, tar_of

CIFAR = replace(DATASETS["cifar10"], reader=partial(read_cifar10, 20))


def batch(number, rows=20):
    table = np.random.default_rng(number).integers(0, 256, (rows, 3073), dtype=np.uint8)
    table[:, 0] = np.arange(rows) % 10
    return table


BATCHES = {name: batch(number) for number, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path):
    """A data folder with six tiny, complete batches."""
    inner = tmp_path / CIFAR_FOLDER
    inner.mkdir()
    for name, table in BATCHES.items():
        (inner / name).write_bytes(table.tobytes())
    return tmp_path


def packed(folder, names=NAMES):
    """Pack the batches into the archive, remove them, and return the data set whose archive it is."""
    inner = folder / CIFAR_FOLDER
    path = inner / "cifar-10-binary.tar.gz"
    tar_of(path, {f"{CIFAR_FOLDER}/{name}": (inner / name).read_bytes() for name in names})
    for name in NAMES:
        (inner / name).unlink()
    digest = md5(path.read_bytes())
    return replace(CIFAR, source=replace(CIFAR.source, remote=(replace(CIFAR.remote[0], digest=digest),)))


def refused(folder, spec=CIFAR, **options):
    return refusal(spec.load, data_dir=folder, **options)


def images(*names):
    return np.concatenate([BATCHES[name][:, 1:] for name in names]).reshape(-1, 3, 32, 32)


def test_patches_halves_and_strips_reassemble_the_files(folder):
    cifar = CIFAR.load(data_dir=folder)
    assert cifar.shapes == ((3, 16, 16),) * 4
    top, bottom = (np.concatenate(cifar.train.features[i : i + 2], axis=3) for i in (0, 2))
    halves = CIFAR.load(data_dir=folder, clients=2)
    assert halves.shapes == ((3, 32, 16),) * 2
    strips = CIFAR.load(data_dir=folder, partition="strips", clients=8)
    assert strips.shapes == ((3, 4, 32),) * 8
    padded = CIFAR.load(data_dir=folder, partition="padded-halves")
    assert padded.shapes == ((3, 32, 32),) * 2
    assert not padded.train.features[0][..., 16:].any()
    assert not padded.train.features[1][..., :16].any()
    for back in (
        np.concatenate([top, bottom], axis=2),
        np.concatenate(halves.train.features, axis=3),
        sum(padded.train.features),
        np.concatenate(strips.train.features, axis=2),
    ):
        np.testing.assert_array_equal(np.rint(back * 255), images(*TRAIN_BATCHES))
    np.testing.assert_array_equal(cifar.train.labels, np.tile(np.arange(20) % 10, 5))
    np.testing.assert_array_equal(np.rint(np.concatenate(halves.test.features, axis=3) * 255), images("test_batch.bin"))
    assert cifar.notes == ()


def test_the_archive_reads_as_the_files_it_holds(folder):
    loose = CIFAR.load(data_dir=folder)
    spec = packed(folder)
    archived = spec.load(data_dir=folder)
    assert spec.load(data_dir=folder, subset=True).notes == ()  # nothing is missing
    np.testing.assert_array_equal(loose.train.features[2], archived.train.features[2])
    assert list(archived.digests) == ["cifar-10-binary.tar.gz"]
    assert len(loose.digests) == 6


def test_an_archive_with_another_md5_or_without_a_batch_is_refused(folder):
    spec = packed(folder, NAMES[1:])
    assert "holds no complete cifar-10-batches-bin/data_batch_1.bin" in refused(folder, spec)
    assert f"not {CIFAR.remote[0].digest}" in refused(folder)


def test_fewer_or_shorter_batches_only_when_asked_for(folder):
    inner = folder / CIFAR_FOLDER
    (inner / "data_batch_3.bin").unlink()
    text = refused(folder)
    assert text.startswith(f"{inner / 'data_batch_3.bin'}: no such file; download https://")
    assert "to go into cifar-10-batches-bin/" in text
    assert text.endswith("give subset to use what is there")
    (inner / "test_batch.bin").write_bytes(BATCHES["test_batch.bin"][:7].tobytes())
    cifar = CIFAR.load(data_dir=folder, subset=True)
    assert (len(cifar.train), len(cifar.test)) == (80, 7)
    assert cifar.notes == ("a subset: 87 of 120 images",)
    whole = images("data_batch_1.bin", "data_batch_2.bin", "data_batch_4.bin", "data_batch_5.bin")
    np.testing.assert_array_equal(np.rint(cifar.train.features[0] * 255), whole[:, :, :16, :16])


def test_a_shorter_batch_is_refused_without_subset(folder):
    path = folder / CIFAR_FOLDER / "data_batch_2.bin"
    path.write_bytes(BATCHES["data_batch_2.bin"][:19].tobytes())
    assert f"{path}: has {19 * 3073} bytes, must have {20 * 3073} (20 rows of 3073)" in refused(folder)


@pytest.mark.parametrize("size", [0, 1, 3072, 3073 * 5 + 1])
def test_a_subset_must_still_be_whole_rows(folder, size):
    path = folder / CIFAR_FOLDER / "data_batch_1.bin"
    path.write_bytes(BATCHES["data_batch_1.bin"].tobytes()[:size])
    assert f"{path}: is truncated: {size} bytes; use whole rows of 3073" in refused(folder, subset=True)


def test_a_longer_file_is_refused_after_a_bounded_read(folder):
    path = folder / CIFAR_FOLDER / "data_batch_1.bin"
    sparse(path)
    assert f"has more than {20 * 3073} bytes" in refused(folder, subset=True)


def test_labels_out_of_range_and_out_of_balance_are_refused(folder):
    path = folder / CIFAR_FOLDER / "data_batch_1.bin"
    table = BATCHES["data_batch_1.bin"].copy()
    table[4, 0] = 10
    path.write_bytes(table.tobytes())
    assert "cifar10: train labels run from 0 to 10; use numbers in 0 .. 9" in refused(folder, subset=True)
    table[4, 0] = 5
    path.write_bytes(table.tobytes())
    assert "train has 9 to 11 records a class, the original has 10 of each" in refused(folder)


def test_a_subset_needs_a_test_batch_and_a_train_batch(folder):
    inner = folder / CIFAR_FOLDER
    (inner / "test_batch.bin").unlink()
    assert "test_batch.bin: no such file" in refused(folder, subset=True)


def test_batches_that_are_not_there_are_not_offered(tmp_path):
    assert "subset" not in refused(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("real", ["cifar-10-batches-bin/data_batch_1.bin"], indirect=True)
def test_real_batches_have_the_published_first_labels(real):
    cifar = load("cifar10", data_dir=real, subset=True)
    assert cifar.shapes == ((3, 16, 16),) * 4
    # the first batch as widely published: frog, truck, truck, deer, automobile; 1,005 aeroplanes
    assert cifar.train.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert np.bincount(cifar.train.labels[:10_000]).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert cifar.test.labels[:4].tolist() == [3, 8, 8, 0]
    # the first pixel of the first image: red 59, green 62, blue 63
    assert np.rint(cifar.train.features[0][0, :, 0, 0] * 255).tolist() == [59, 62, 63]
