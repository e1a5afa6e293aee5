from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from dpzv_audit.data import load
from dpzv_audit.data.spec import DataSpec
from dpzv_audit.data.vertical import fixed_split

from ...helpers.refusals import refused


def test_default_has_four_blocks_of_sixteen_and_whole_batches():
    digits = load("digits")
    assert digits.clients == 4
    assert digits.shapes == ((16,),) * 4
    assert (len(digits.train), len(digits.test), digits.classes) == (1408, 389, 10)
    assert len(digits.train) % 64 == 0
    for block in (*digits.train.features, *digits.test.features):
        assert 0.0 <= block.min() <= block.max() <= 1.0


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_blocks_and_split_reassemble_the_embedded_images(clients):
    digits = load("digits", clients=clients)
    assert digits.clients == clients
    source = datasets.load_digits()
    for part, indices in zip((digits.train, digits.test), fixed_split(1797, seed=1797), strict=True):
        columns = [block.reshape(len(part), 8, 8 // clients) for block in part.features]
        np.testing.assert_array_equal(np.concatenate(columns, axis=2) * 16, source.images[indices])
        np.testing.assert_array_equal(part.labels, source.target[indices])


def test_the_split_is_a_permutation_fixed_for_good():
    order = np.concatenate(fixed_split(1797, seed=1797))
    np.testing.assert_array_equal(np.sort(order), np.arange(1797))
    assert order[:8].tolist() == [1302, 591, 711, 307, 1499, 1394, 1563, 184]
    assert np.bincount(load("digits").test.labels).tolist() == [44, 42, 34, 35, 32, 47, 40, 29, 34, 52]


def test_digests_are_those_of_the_embedded_arrays():
    assert load("digits").digests == {
        "digits/images": "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
        "digits/labels": "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
    }


def test_digits_are_the_same_where_the_file_of_the_package_is_not_found(monkeypatch):
    by_file = load("digits")
    monkeypatch.setattr(DataSpec, "packaged", lambda spec, name: None)
    by_package = load("digits")
    assert by_package.fingerprint == by_file.fingerprint
    assert by_package.digests == by_file.digests


def test_registry_loads_by_name_and_suggests_the_nearest():
    assert load("digits", clients=2, data_dir=Path("absent")).shapes == ((32,), (32,))
    with refused(r"dataset is 'digit': did you mean 'digits'\?$"):
        load("digit")
    with refused(r"dataset is 'cifar': did you mean 'cifar10'\?$"):
        load("cifar")
    with refused("dataset is 'zebras'; see dpzv-audit list datasets$"):
        load("zebras")
