"""Label-free features: what they are computed from, their shapes, and that they are what they say."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from mechanisms.core.features import fitted
from mechanisms.core.models import feature_model
from mechanisms.core.patches import SIDE

from ...helpers.refusals import refused


def images(count=60, shape=(1, 4, 20), seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(size=(count, *shape)))


def test_components_are_principal_components_of_one_scale():
    rows = images(shape=(7,)) * torch.arange(1, 8)
    features = fitted(rows, "auto", 3, seed=0, client=1).rows(rows)
    other = PCA(3).fit_transform(rows.numpy())
    ratio = features.numpy() / other
    assert np.allclose(ratio, ratio[0, 0] * np.sign(ratio[:1] / ratio[0, 0]))
    assert float(features.square().mean()) == pytest.approx(1.0, rel=0.05)


def test_what_a_block_has_not_is_zero():
    rows = images(shape=(3,))
    features = fitted(rows, "components", 5, seed=0, client=1).rows(rows)
    assert features.shape == (60, 5)
    assert (features[:, 3:] == 0).all()
    assert (features[:, :3] != 0).any(0).all()


@pytest.mark.parametrize(("shape", "width"), [((1, 4, 20), 50), ((3, 16, 16), 40)])
def test_patches_are_standardised_and_of_their_own_place(shape, width):
    """Pixels beyond the patches of a region do not reach its features."""
    block = images(shape=shape)
    made = fitted(block, "auto", width, seed=0, client=1)
    features = made.rows(block)
    regions = (1, 4) if shape[1] == 4 else (3, 3)
    atoms = width // (regions[0] * regions[1])
    held = atoms * regions[0] * regions[1]
    assert features.shape == (60, width)
    assert torch.allclose(features[:, :held].mean(0), torch.zeros(held, dtype=features.dtype), atol=1e-9)
    assert (features[:, held:] == 0).all()
    changed = block.clone()
    changed[..., -1] += 1.0
    same = (made.rows(changed) == features)[:, :held].view(60, atoms, *regions)
    assert same[..., 0].all()
    assert not same[..., -1].all()
    assert shape[2] > SIDE


def test_draws_are_those_of_seed_client_and_replica():
    block = images()
    first = fitted(block, "patches", 16, seed=0, client=1)
    assert torch.equal(first.flat, fitted(block, "patches", 16, seed=0, client=1).flat)
    for other in ({"seed": 1}, {"client": 2}, {"replica": 1}):
        assert not torch.equal(first.flat, fitted(block, "patches", 16, **{"seed": 0, "client": 1, **other}).flat)


def test_constant_images_have_features_of_zero():
    block = torch.ones(20, 1, 4, 20)
    assert (fitted(block, "auto", 16, seed=0, client=1).rows(block) == 0).all()


def test_what_cannot_be_is_one_line():
    with refused("features of shape \\(7,\\) are no images"):
        feature_model("patches", (7,), 8)
    with refused("embedding is 3; use at least 4 for patches of 4 x 20"):
        feature_model("auto", (1, 4, 20), 3)
