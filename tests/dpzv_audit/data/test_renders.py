import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dpzv_audit.data import load, load_views
from dpzv_audit.data.views import list_shapes

from ...helpers.refusals import refusal as refusal_of
from ...helpers.refusals import refused

VIEWS = 12


def picture(seed, side=16):
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def shape(folder, name, seed, *, views=VIEWS, pattern="{}_{:03d}.png"):
    folder.mkdir(parents=True, exist_ok=True)
    for view in range(1, views + 1):
        Image.fromarray(picture(100 * seed + view)).save(folder / pattern.format(name, view))


@pytest.fixture
def folder(tmp_path):
    """Two classes, with two train shapes and one test shape each, in the layout of MVCNN's renders."""
    for label, kind in enumerate(("airplane", "bathtub")):
        shape(tmp_path / kind / "train", f"{kind}_0001", 10 * label + 1)
        shape(tmp_path / kind / "train", f"{kind}_0002", 10 * label + 2, pattern="{}.obj.shaded_v{:03d}.png")
        shape(tmp_path / kind / "test", f"{kind}_0627", 10 * label + 3)
    return tmp_path


def refusal(folder, **options):
    return refusal_of(load_views, folder, **{"size": 16, **options})


def test_a_view_a_client_in_the_order_of_their_numbers(folder):
    data = load_views(folder, colour="rgb", size=16)
    assert data.shapes == ((3, 16, 16),) * 12
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1, 1], [0, 1])
    for client, block in enumerate(data.train.features):
        for record, seed in enumerate((1, 2, 11, 12)):
            back = np.rint(block[record] * 255).transpose(1, 2, 0)
            np.testing.assert_array_equal(back, picture(100 * seed + client + 1))


def test_fewer_clients_greys_and_sizes(folder):
    data = load_views(folder, clients=4, size=4)
    assert data.fitted == ("the set of classes was read off the folders' names",)
    assert data.shapes == ((3, 4, 4),) * 4
    expected = (picture(101)[:4, :4].reshape(-1, 3) @ [0.299, 0.587, 0.114]).mean() / 255
    assert data.train.features[0][0, 0, 0, 0] == pytest.approx(expected, abs=1e-6)
    assert data.partition == "4 clients, views: 3 of 12 views each, grey, 4 x 4 pixels"


def test_a_shape_reads_the_same_whatever_else_is_there(folder, tmp_path):
    before = load_views(folder, size=16)
    shape(folder / "airplane" / "train", "airplane_0009", 77)
    for one, two in zip(before.train.features, load_views(folder, size=16).train.features, strict=True):
        np.testing.assert_array_equal(one[:2], two[:2])


def test_without_train_and_test_folders_a_hash_of_the_name_decides(tmp_path):
    for kind in ("a", "b"):
        for number in range(40):
            (tmp_path / kind).mkdir(exist_ok=True)
            for view in (0, 1):
                (tmp_path / kind / f"s{number}_{view}.png").touch()
    shapes = list_shapes(tmp_path, 2, ["a", "b"])
    assert len(shapes) == 80
    tested = {(s.label, s.name) for s in shapes if not s.train}
    assert 5 <= len(tested) <= 30
    for view in (0, 1):
        (tmp_path / "a" / f"t_{view}.jpg").touch()
    again = {(s.label, s.name) for s in list_shapes(tmp_path, 2, ["a", "b"]) if not s.train}
    assert tested == {entry for entry in again if entry != (0, "t")}


def test_malformed_folders_are_refused(folder):
    place = folder / "airplane" / "train"
    (place / "airplane_0001_012.png").unlink()
    assert "shape 'airplane_0001' has 11 views; use 12" in refusal(folder)
    Image.fromarray(picture(1)).save(place / "airplane_0001_12.jpg")
    Image.fromarray(picture(1)).save(place / "airplane_0001_012.png")
    assert "is a second file for view 12 of 'airplane_0001'" in refusal(folder)
    (place / "airplane_0001_12.jpg").unlink()
    (place / "notes.txt").write_text("hello")
    assert f"{place / 'notes.txt'}: does not belong here" in refusal(folder)
    (place / "notes.txt").rename(place / ".notes.txt")
    assert len(load_views(folder, size=16).train) == 4


def test_a_size_is_checked_before_room_is_made_for_it(folder):
    for size in (0, 32, 10**9):
        assert f"size is {size}; use a" in refusal(folder, size=size)


def test_a_missing_part_or_folder_is_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty: has no shapes" in refusal(tmp_path / "empty")
    (tmp_path / "empty").rmdir()
    assert "absent: no such folder" in refusal(tmp_path / "absent")
    for kind in ("airplane", "bathtub"):
        for path in (folder / kind / "test").iterdir():
            path.unlink()
    assert "has no test shapes" in refusal(folder)


def test_images_of_another_size_or_shape_are_refused(folder):
    path = folder / "airplane" / "train" / "airplane_0001_003.png"
    Image.fromarray(picture(1, side=32)).save(path)
    assert f"{path}: is 32 pixels wide; use 16 like airplane_0001_001.png" in refusal(folder)
    Image.fromarray(picture(1)[:8]).save(path)
    assert f"{path}: is 16 x 8 pixels; use square" in refusal(folder)
    assert "size is 5; use a divisor of the 16 pixels of the images' side" in refusal(folder, size=5)


def test_what_is_no_image_is_refused(folder):
    path = folder / "airplane" / "train" / "airplane_0001_003.png"
    stored = path.read_bytes()
    for content in (b"", b"<html>", stored[: len(stored) // 2], stored[:40]):
        path.write_bytes(content)
        assert f"{path}: is no PNG or JPEG image" in refusal(folder)
    Image.fromarray(picture(1)).save(path, format="GIF")
    assert f"{path}: is no PNG or JPEG image" in refusal(folder)


def test_a_bomb_of_a_png_is_refused_by_its_header(folder):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = folder / "airplane" / "train" / "airplane_0001_001.png"
    for side in (5_000, 9_500, 60_000):
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        body = chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body)
        text = refusal(folder)
        # beyond Pillow's own limit its warning comes first
        reason = "is no PNG or JPEG image" if side > 9_459 else f"is {side} x {side} pixels; use square images, at most"
        assert text.startswith(f"{path}: {reason}")


def test_modelnet40_wants_all_its_classes_unless_asked_for_a_subset(folder, tmp_path):
    with refused("has 2 of modelnet40's 40 class folders, not bed; give subset"):
        load("modelnet40", data_dir=folder)
    data = load("modelnet40", data_dir=folder, subset=True, size=8)
    assert (data.name, data.clients, data.shapes[0]) == ("modelnet40", 12, (1, 8, 8))
    assert data.notes == ("a subset: 2 of 40 classes",)
    assert data.classes == 40
    shape(folder / "bed" / "train", "bed_0001", 5)
    assert load("modelnet40", data_dir=folder, subset=True, size=8).train.labels.tolist() == [0, 0, 1, 1, 2]
    (folder / "bed").rename(folder / "xbox")
    assert load("modelnet40", data_dir=folder, subset=True, size=8).train.labels.tolist() == [0, 0, 1, 1, 39]
    (folder / "mnist").mkdir()
    with refused("mnist: is no class; use one of airplane, bathtub"):
        load("modelnet40", data_dir=folder, subset=True, size=8)
    (tmp_path / "modelnet40").mkdir()
    with refused(r"modelnet40/airplane: no such file; get ModelNet40's 12 shaded renders"):
        load("modelnet40", data_dir=tmp_path)
