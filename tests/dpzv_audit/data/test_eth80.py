import numpy as np
import pytest

from dpzv_audit.data import load
from dpzv_audit.data.views import ETH80_FILE, object_split, prepared

from ...helpers.refusals import refused

LABELS = np.repeat(np.arange(8), 10)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(2).integers(0, 256, (80, 16, 64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, images):
    """A data folder with a well-formed file of random pixels."""
    inner = tmp_path_factory.mktemp("data") / "eth80"
    inner.mkdir()
    np.savez(inner / ETH80_FILE, images=images, labels=LABELS)
    return inner.parent


def test_a_view_a_client_reassembles_the_file_and_objects_stay_apart(folder, images):
    eth = load("eth80", data_dir=folder)
    assert eth.shapes == ((3, 64, 64),) * 16
    assert (len(eth.train), len(eth.test), eth.classes) == (64, 16, 8)
    train, test = object_split(LABELS)
    assert sorted([*train, *test]) == list(range(80))
    for part, objects in ((eth.train, train), (eth.test, test)):
        back = np.stack(part.features, axis=1).transpose(0, 1, 3, 4, 2)
        np.testing.assert_array_equal(np.rint(back * 255), images[objects])
        np.testing.assert_array_equal(part.labels, LABELS[objects])
    assert np.bincount(eth.train.labels).tolist() == [8] * 8
    assert np.bincount(eth.test.labels).tolist() == [2] * 8


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_fewer_clients_hold_neighbouring_views_as_channels(folder, images, clients):
    eth = load("eth80", data_dir=folder, clients=clients)
    assert eth.shapes == ((48 // clients, 64, 64),) * clients
    train, _ = object_split(LABELS)
    back = np.concatenate(eth.train.features, axis=1).reshape(64, 16, 3, 64, 64).transpose(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(np.rint(back * 255), images[train])


@pytest.mark.parametrize("clients", [2, 4, 16])
def test_rotations_use_every_view_of_an_object_once(folder, images, clients):
    eth = load("eth80", data_dir=folder, partition="rotations", clients=clients)
    turns = 16 // clients
    assert (len(eth.train), len(eth.test)) == (64 * turns, 16 * turns)
    assert eth.shapes == ((3, 64, 64),) * clients
    train, _ = object_split(LABELS)
    for client, block in enumerate(eth.train.features):
        for record in range(len(block)):
            view = images[train[record // turns], record % turns + client * turns]
            if record < 2 * turns:
                np.testing.assert_array_equal(np.rint(block[record] * 255).transpose(1, 2, 0), view)
    np.testing.assert_array_equal(eth.train.labels, np.repeat(LABELS[train], turns))


def test_colour_and_size_are_fixed_arithmetic_on_each_image_alone(folder, images):
    grey = load("eth80", data_dir=folder, colour="grey", size=16)
    assert grey.shapes == ((1, 16, 16),) * 16
    train, _ = object_split(LABELS)
    box = images[train[0], 5, 4:8, 8:12].reshape(-1, 3).astype(np.float64)
    expected = (box @ [0.299, 0.587, 0.114]).mean() / 255
    assert grey.train.features[5][0, 0, 1, 2] == pytest.approx(expected, abs=1e-6)
    alone = prepared(images[3:4], colour="grey", size=16)
    np.testing.assert_array_equal(prepared(images[:8], colour="grey", size=16)[3:4], alone)


def test_other_files_are_refused(tmp_path, images):
    path = tmp_path / ETH80_FILE
    np.savez(path, images=images[:79], labels=LABELS[:79])
    with refused(r"images has shape \(79, 16, 64, 64, 3\) of uint8; use \(80, 16, 64, 64, 3\) of kind 'u'"):
        load("eth80", data_dir=tmp_path)
    np.savez(path, images=images, labels=np.sort(np.arange(80) % 7))
    with refused(r"labels 0 \.\. 7 have \[12, 12, 12, 11, 11, 11, 11, 0\] objects"):
        load("eth80", data_dir=tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("real", [f"eth80/{ETH80_FILE}"], indirect=True)
def test_real_photographs(real):
    eth = load("eth80", data_dir=real, size=32)
    assert (len(eth.train), len(eth.test), eth.shapes) == (64, 16, ((3, 32, 32),) * 16)
    for block in eth.train.features:
        assert 0.0 <= block.min() <= block.max() <= 1.0
    # neighbouring views of the same object look more alike than those of opposite sides
    near = np.abs(eth.train.features[0] - eth.train.features[1]).mean()
    assert near < np.abs(eth.train.features[0] - eth.train.features[4]).mean()
