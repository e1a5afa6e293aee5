import numpy as np
import pytest
from sklearn import datasets

from dpzv_audit.data import load
from dpzv_audit.data.spec import declared
from dpzv_audit.data.vertical import fixed_split

SCALES = np.array(declared("breast-cancer", "scales", tuple[float, ...]))


@pytest.mark.parametrize("clients", [None, 1, 2, 30])
def test_blocks_reassemble_the_embedded_table(clients):
    data = load("breast-cancer", clients=clients)
    assert data.clients == (clients or 3)
    assert (len(data.train), len(data.test), data.classes) == (448, 121, 2)
    source = datasets.load_breast_cancer()
    for part, rows in zip((data.train, data.test), fixed_split(569, seed=569), strict=True):
        np.testing.assert_allclose(np.hstack(part.features) * SCALES, source.data[rows], rtol=1e-6)
        np.testing.assert_array_equal(part.labels, source.target[rows])
        assert 0.0 <= np.hstack(part.features).min() <= np.hstack(part.features).max() <= 1.0


def test_digests_are_fixed():
    assert load("breast-cancer").digests == {
        "breast-cancer/data": "6b202a2072f9a0385f405a8f8605b1b06f6f36ae6d23d9cd6cbbc0974a416bc7",
        "breast-cancer/target": "9d6ceae78443535169ef00f2c8012032241393c09a9adb2f9e82c55e1ba534bd",
    }
