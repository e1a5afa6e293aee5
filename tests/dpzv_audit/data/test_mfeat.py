import struct
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from dpzv_audit.data import load
from dpzv_audit.data.mfeat import MFEAT_FILE, VIEWS, read_mat5
from dpzv_audit.data.vertical import fixed_split

from ...helpers.memory import memory_below
from ...helpers.refusals import refusal as refusal_of
from ...helpers.refusals import refused

WIDTHS = (216, 76, 64, 6, 240, 47)


def views(rows=2000):
    random = np.random.default_rng(3)
    return [random.integers(0, 100, (rows, width)).astype(np.float32) for width in WIDTHS]


def write(folder, cells=None, *, compressed=False, **variables):
    cell = np.empty((1, len(cells if cells is not None else WIDTHS)), dtype=object)
    for place, view in enumerate(views() if cells is None else cells):
        cell[0, place] = view
    labels = np.repeat(np.arange(1, 11, dtype=np.uint8), 200)[None]
    path = folder / MFEAT_FILE
    savemat(path, {"X": cell, "Y": labels, **variables}, do_compression=compressed)
    return path


def refusal(folder, **options):
    return refusal_of(load, "mfeat", data_dir=folder, **options)


@pytest.mark.parametrize("compressed", [False, True])
def test_six_views_reassemble_the_file(tmp_path, compressed):
    write(tmp_path, compressed=compressed)
    data = load("mfeat", data_dir=tmp_path)
    assert data.shapes == tuple((width,) for width in WIDTHS)
    assert (len(data.train), len(data.test), data.classes) == (1600, 400, 10)
    train, test = fixed_split(2000, seed=2000)
    for part, rows in ((data.train, train), (data.test, test)):
        np.testing.assert_array_equal(part.labels, rows // 200)
        for block, view, kind in zip(part.features, views(), VIEWS, strict=True):
            np.testing.assert_allclose(block * kind.divisors, view[rows], rtol=1e-6)


@pytest.mark.parametrize(("clients", "shapes"), [(1, (649,)), (2, (356, 293)), (3, (292, 70, 287))])
def test_fewer_clients_hold_neighbouring_views(tmp_path, clients, shapes):
    write(tmp_path)
    six, fewer = load("mfeat", data_dir=tmp_path), load("mfeat", data_dir=tmp_path, clients=clients)
    assert fewer.shapes == tuple((width,) for width in shapes)
    np.testing.assert_array_equal(np.hstack(fewer.test.features), np.hstack(six.test.features))


def test_each_column_has_its_divisor():
    for view, kind in zip(views(50), VIEWS, strict=True):
        assert len(kind.divisors) == view.shape[1]


def test_other_contents_are_refused(tmp_path):
    write(tmp_path, views()[:5])
    assert "X has shape (1, 5) of object; use a cell array of 6 views" in refusal(tmp_path)
    write(tmp_path, [*views()[:5], views()[5][:, :46]])
    assert "view 'Zernike moments' has shape (2000, 46); use (2000, 47)" in refusal(tmp_path)
    broken = views()
    broken[1][7, 3] = np.nan
    write(tmp_path, broken)
    assert "view 'Fourier coefficients' holds nan or inf" in refusal(tmp_path)
    write(tmp_path, Y=np.repeat(np.arange(10, dtype=np.uint8), 200)[None])
    assert "use Y from 1 to 10, 200 records of each" in refusal(tmp_path)
    savemat(tmp_path / MFEAT_FILE, {"Y": np.ones((1, 2000))})
    assert "has no variable 'X'" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 128 + 4, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path, keep):
    path = write(tmp_path, compressed=isinstance(keep, int))
    stored = path.read_bytes()
    path.write_bytes(stored[: keep if isinstance(keep, int) else int(keep * len(stored))])
    text = refusal(tmp_path)
    assert text.startswith(f"{path}: ")
    assert "truncated" in text or "no MATLAB 5 file" in text


def element(kind, data):
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind, sizes, *content):
    flags = element(6, struct.pack("<II", kind, 0))
    dimensions = element(5, struct.pack(f"<{len(sizes)}i", *sizes))
    return element(14, flags + dimensions + element(1, b"X") + b"".join(content))


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + matrix(1, (2**31 - 1, 1)), "has a matrix of 2147483647 entries"),
        (HEADER + matrix(1, (-1, -5)), "has a matrix of 5 entries"),
        (HEADER + matrix(1, (50, 1)), "has a cell array whose cells are not 50 matrices"),
        (HEADER + matrix(1, (1, 1), matrix(1, (1, 1))), "has a cell array whose cells are not 1 matrices"),
        (HEADER + matrix(1, (1, 1), matrix(6, (2**30, 1))), "has a matrix of 1073741824 entries"),
        (HEADER + matrix(2, (1, 1)), "has a variable of class 2, must have numbers and cells only"),
        (HEADER + matrix(17, (1, 1)), "has a variable of class 17"),
        (HEADER + matrix(6, (1, 1), element(3647, bytes(8))), "has an array of 1 numbers of type 3647"),  # ended scipy
        (HEADER + matrix(6, (1, 1), element(9, bytes(8)), element(9, bytes(8))), "has an array of complex numbers"),
        (HEADER + matrix(6, (1, 1)), "has an array of 1 numbers of type 0"),
        (HEADER + matrix(6, (10, 10), element(9, bytes(16))), "has 16 bytes of data for 100 numbers of 8 bytes"),
        (HEADER + element(9, b"12345678"), "has an element of type 9, must have matrices only"),
        (HEADER + element(14, b""), "has a matrix without flags or dimensions"),
        (HEADER + struct.pack("<II", 14, 10**9), "is truncated: an element of 1000000000 bytes"),
        (HEADER + element(15, b"no zlib stream"), "has a corrupted zlib stream"),
        (HEADER + element(15, zlib.compress(bytes(2_000_000))), "unpacks to more than its limit"),
        (b"MATLAB 7.3 MAT-file".ljust(600), "is no MATLAB 5 file"),
    ],
)
def test_hostile_structures_are_refused(tmp_path, content, message):
    path = tmp_path / "x.mat"
    path.write_bytes(content)
    text = refusal_of(read_mat5, path, ("X",), 1_000_000)
    assert message in text
    assert text.startswith(f"{path}: ")


@pytest.mark.parametrize("compressed", [False, True])
def test_numbers_and_cells_are_those_that_scipy_reads(tmp_path, compressed):
    random = np.random.default_rng(0)
    cell = np.empty((2, 3), dtype=object)
    for place in np.ndindex(2, 3):
        cell[place] = random.normal(size=(2, place[1]))
    kinds = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
    written = {f"v_{kind}": (100 * random.random((2, 3, 4))).astype(kind) for kind in kinds}
    path = tmp_path / "x.mat"
    savemat(path, {"cell": cell, "small": np.array([[7]], dtype=np.uint8), **written}, do_compression=compressed)
    ours, theirs = read_mat5(path, ("cell", "small", *written), 1_000_000), loadmat(path)
    for name in ("small", *written):
        assert ours[name].dtype == theirs[name].dtype
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert ours["cell"].shape == theirs["cell"].shape == (2, 3)
    for place in np.ndindex(2, 3):
        np.testing.assert_array_equal(ours["cell"][place], theirs["cell"][place])


def test_a_bomb_is_never_unpacked_beyond_the_limit(tmp_path):
    path = tmp_path / "x.mat"
    path.write_bytes(HEADER + element(15, zlib.compress(bytes(50_000_000))))
    with memory_below(5_000_000), refused("unpacks to more than its limit"):
        read_mat5(path, ("X",), 1_000_000)


@pytest.mark.data
@pytest.mark.parametrize("real", [f"mfeat/{MFEAT_FILE}"], indirect=True)
def test_real_features_lie_about_within_one_and_are_of_use(real):
    data = load("mfeat", data_dir=real)
    assert data.shapes == tuple((width,) for width in WIDTHS)
    for block in data.train.features:
        assert 0.5 < np.abs(block).max() < 1.01
    # the nearest class mean of the pixel view alone tells most digits
    pixels, labels = data.train.features[4], data.train.labels
    means = np.stack([pixels[labels == digit].mean(axis=0) for digit in range(10)])
    distances = ((data.test.features[4][:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == data.test.labels).mean() > 0.85
