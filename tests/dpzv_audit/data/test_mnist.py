import gzip
import hashlib
import io
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpzv_audit.data import DATASETS, load
from dpzv_audit.data.images import GZIP_MARK, IdxFiles, declared_idx_files, read_idx_bytes, read_idx_images
from dpzv_audit.data.spec import DATA_VARIABLE

from ...helpers.memory import memory_below
from ...helpers.places import sparse
from ...helpers.refusals import refusal as refusal_of
from ...helpers.refusals import refused
from .packed import declared_as, idx_arrays, idx_bytes

MNIST_FILES = declared_idx_files("mnist")


def write_gzip(folder, expected, plain):
    path = folder / f"{expected.name}.gz"
    path.write_bytes(gzip.compress(plain, mtime=0))
    return path


def arrays():
    return idx_arrays(20, 5)


FILES = IdxFiles(**{field: declared_as(getattr(MNIST_FILES, field), array) for field, array in arrays().items()})


def load_mnist(files=FILES, **options):
    """MNIST where its four files are `files`."""
    return replace(DATASETS["mnist"], reader=partial(read_idx_images, files)).load(**options)


@pytest.fixture
def folder(tmp_path):
    """A data folder with a tiny, well-formed set of the four files in `mnist/`."""
    inner = tmp_path / "mnist"
    inner.mkdir()
    for field, array in arrays().items():
        write_gzip(inner, getattr(FILES, field), idx_bytes(array))
    return tmp_path


def refusal(folder, files=FILES):
    return refusal_of(load_mnist, data_dir=folder, files=files)


def image_file(folder):
    return folder / "mnist" / "train-images-idx3-ubyte.gz"


def test_strips_and_runs_reassemble_the_files(folder):
    strips = load_mnist(data_dir=folder, files=FILES)
    assert strips.shapes == ((1, 4, 28),) * 7
    runs = load_mnist(data_dir=folder / "mnist", partition="runs", files=FILES)
    assert runs.shapes == ((392,),) * 2
    assert load_mnist(data_dir=folder, partition="runs", clients=4, files=FILES).shapes == ((196,),) * 4
    sixths = load_mnist(data_dir=folder, partition="sixths", clients=6, files=FILES)
    assert sixths.shapes == (*((131,),) * 4, *((130,),) * 2)
    np.testing.assert_array_equal(np.hstack(sixths.train.features), np.hstack(runs.train.features))
    for part in ("train", "test"):
        images, labels = arrays()[f"{part}_images"], arrays()[f"{part}_labels"]
        from_strips = np.concatenate(getattr(strips, part).features, axis=2)[:, 0]
        for back in (from_strips, np.concatenate(getattr(runs, part).features, axis=1).reshape(images.shape)):
            np.testing.assert_array_equal(np.rint(back * 255).astype(np.uint8), images)
        np.testing.assert_array_equal(getattr(strips, part).labels, labels)


def packed_as_debian_does(plain):
    return gzip.compress(plain, mtime=0x5EDA0AED)  # `gzip -n`: no name, a time of its own


def packed_as_zalando_does(plain, name):
    stream = io.BytesIO()
    with gzip.GzipFile(name, "wb", fileobj=stream, mtime=0x59A7E9F3, compresslevel=6) as file:
        file.write(plain)
    return stream.getvalue()


def test_the_same_contents_are_the_same_data_set_however_they_are_packed(folder):
    first = load_mnist(data_dir=folder, files=FILES)
    path = image_file(folder)
    content = gzip.decompress(path.read_bytes())
    name = path.stem
    assert first.digests[name] == hashlib.sha256(content).hexdigest()
    packings = (packed_as_debian_does(content), packed_as_zalando_does(content, name), content)
    assert len(set(packings)) == 3
    for stored in packings:
        path.write_bytes(stored)
        again = load_mnist(data_dir=folder, files=FILES)
        assert again.digests == first.digests
        np.testing.assert_array_equal(again.train.features[3], first.train.features[3])
    path.rename(path.with_suffix(""))
    assert load_mnist(data_dir=folder, files=FILES).digests == first.digests


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.99])
def test_a_truncated_gzip_file_is_refused(folder, keep):
    path = image_file(folder)
    stored = path.read_bytes()
    path.write_bytes(stored[: int(len(stored) * keep)])
    text = refusal(folder)
    assert text.startswith(f"{path}: is truncated: its gzip stream of {int(len(stored) * keep)} bytes")
    assert "must unpack to 15696 bytes" in text
    assert text.endswith("; put the original train-images-idx3-ubyte in its place, gzipped or not")


def test_a_file_cut_within_its_gzip_header_is_refused(folder):
    image_file(folder).write_bytes(GZIP_MARK + b"\x08")
    assert "is truncated" in refusal(folder)


def test_an_empty_file_is_refused(folder):
    image_file(folder).write_bytes(b"")
    assert "is truncated: 0 bytes, not 15696" in refusal(folder)


@pytest.mark.parametrize("place", [12, 200, 5000, -6])
def test_any_flipped_byte_in_a_gzip_file_is_refused(folder, place):
    path = image_file(folder)
    stored = bytearray(path.read_bytes())
    stored[place] ^= 0xFF
    path.write_bytes(stored)
    text = refusal(folder)
    assert text.startswith(f"{path}: ")
    assert "corrupted gzip stream" in text or "truncated" in text


@pytest.mark.parametrize("gzipped", [False, True])
def test_the_md5_catches_what_is_well_formed(folder, gzipped):
    path = image_file(folder)
    images = arrays()["train_images"]
    images[3, 4, 5] ^= 1
    content = idx_bytes(images)
    path.write_bytes(gzip.compress(content) if gzipped else content)
    found = hashlib.md5(content).hexdigest()
    assert f"{path}: md5 of what it holds is {found}, not {FILES.train_images.md5}" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html><body>not found</body></html>", "is truncated: 35 bytes, not 15696"),
        (idx_bytes(arrays()["train_labels"]), "is truncated: 28 bytes, not 15696"),
        (idx_bytes(arrays()["test_images"]), "is truncated: 3936 bytes, not 15696"),
        (idx_bytes(arrays()["train_images"])[:10], "is truncated: 10 bytes, not 15696"),
        (idx_bytes(arrays()["train_images"])[:-1], "is truncated: 15695 bytes, not 15696"),
        (idx_bytes(arrays()["train_images"]) + b"\x00", "goes on after its last record"),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_wrong_contents_are_refused_whether_gzipped_or_not(folder, content, message, gzipped):
    path = image_file(folder)
    path.write_bytes(gzip.compress(content) if gzipped else content)
    text = refusal(folder)
    assert text.startswith(f"{path}: ")
    assert message in text


def test_labels_out_of_range_are_refused_even_with_the_right_md5(folder):
    labels = np.full(20, 10, dtype=np.uint8)
    expected = declared_as(FILES.train_labels, labels)
    write_gzip(folder / "mnist", expected, idx_bytes(labels))
    assert "train labels run from 10 to 10" in refusal(folder, FILES._replace(train_labels=expected))


def test_a_gzip_bomb_is_never_unpacked_beyond_the_right_size(tmp_path):
    expected = FILES.train_labels
    bomb = gzip.compress(bytes(4_000_000))
    (tmp_path / f"{expected.name}.gz").write_bytes(bomb)
    assert len(bomb) < 4096  # short enough to pass as a file of the right length
    with memory_below(400_000), refused("goes on after its last record"):
        read_idx_bytes(tmp_path / f"{expected.name}.gz", expected)


def test_a_huge_file_is_refused_after_a_bounded_read(tmp_path):
    expected = FILES.train_labels
    path = tmp_path / expected.name
    sparse(path)
    with refused("has more than 4124 bytes"):
        read_idx_bytes(path, expected)


def test_missing_file_says_where_to_put_it(folder):
    path = folder / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    text = refusal(folder)
    assert text.startswith(f"{path}: no such file; download the four .gz files from https://")
    assert text.endswith(", to go into mnist/ of the data folder")


def test_missing_folder_names_what_pointed_there(tmp_path, monkeypatch):
    absent = tmp_path / "absent"
    assert refusal(absent).startswith(f"data_dir is {absent}, which does not exist; use the folder")
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert refusal(file).startswith(f"data_dir is {file}, which is not a folder")
    monkeypatch.setenv(DATA_VARIABLE, str(absent))
    with refused(f"{DATA_VARIABLE} is .*absent, which does not exist"):
        load("mnist")


@pytest.mark.parametrize("value", [None, ""])
def test_no_folder_at_all_asks_for_the_flag(monkeypatch, value):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(DATA_VARIABLE, value)
    with refused(r"give data_dir DIR, the folder that holds mnist/"):
        load("mnist")


def test_the_variable_serves_where_no_flag_is_given(folder, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert len(load_mnist(files=FILES).test) == 5


@pytest.mark.data
@pytest.mark.parametrize("real", ["mnist"], indirect=True)
def test_real_mnist_is_the_published_one(real):
    mnist = load("mnist", data_dir=real)
    assert (len(mnist.train), len(mnist.test), mnist.clients) == (60_000, 10_000, 7)
    assert mnist.shapes == ((1, 4, 28),) * 7
    # class counts and mean grey value of the train images as widely published (mean 0.1307)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.train.labels).tolist() == counts
    mean = np.mean([block.mean(dtype=np.float64) for block in mnist.train.features])
    assert mean == pytest.approx(0.1307, abs=5e-5)
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.digests["train-images-idx3-ubyte"].startswith("ba891046e6505d7a")
