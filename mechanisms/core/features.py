"""Label-free features of clients: models that each client fits to its own block alone, and that stay as they are.

`components`: principal components. `patches`: of image parts, how far each patch lies along directions that spherical
k-means found in whitened patches, half rectified, pooled by region, after Coates, Ng and Lee (AISTATS 2011:
whitening, a k-means dictionary, a soft threshold, pooling); their encoding is dot product and threshold
0.5 (Coates and Ng, ICML 2011), roots of what is pooled are taken here, and each feature is standardised.

A label that is replaced moves nothing here: no label is read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream

from .config import FeatureKind
from .models import Architecture, Network, feature_model, layout_of
from .patches import PatchFeatures
from .replicas import ParameterStack, embeddings_of, evaluator_for

_THRESHOLD = 0.5
# Added to the variances of patches before whitening, as a share of their mean.
_WHITENING = 0.1
_IMAGES = 4000
_PATCHES = 100_000
# Below this share of the largest deviation a patch is blank: its direction is noise.
_BLANK = 0.05

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """A client's frozen model, with its parameters by name."""

    architecture: Architecture
    parameters: Mapping[str, Tensor]

    @property
    def flat(self) -> Tensor:
        """Return all parameters in the order of the model's layout, (d,)."""
        return torch.cat([self.parameters[name].flatten() for name, _ in layout_of(self.architecture)])

    def rows(self, block: Tensor) -> Tensor:
        """Return features (n, width) of a `block` (n, ...) in floating point, a few thousand records at a time."""
        evaluator = evaluator_for(self.architecture, stack=1, device=str(block.device))
        flat = self.flat.to(block).unsqueeze(0)
        return embeddings_of(evaluator, ParameterStack(flat, evaluator.layout), block)[0]


def fitted(block: Tensor, kind: FeatureKind, width: int, *, seed: int, client: int, replica: int = 0) -> Fitted:
    """Return the features of one client's `block` (n, ...), fitted to it.

    Args:
        block: Floating point; all records that are trained on.
        kind: Which; `auto` is patches for images, components for all else.
        width: How many, at least 1; those that the block has not are 0.
        seed: Seed of what is drawn, which is public.
        client: Number of the client, by which its draws are its own, as by `replica`.
        replica: Number of the training.

    Raises:
        InputError: The block does not fit the kind or the width.
    """
    model = feature_model(kind, tuple(block.shape[1:]), width)
    if not isinstance(model, Network):
        return Fitted(model, _components(block.flatten(1), width))
    return Fitted(model, _patches(block, model, stream(seed, Purpose.FEATURES, client, replica)))


def _components(rows: Tensor, width: int) -> Mapping[str, Tensor]:
    """Return a linear layer to the first `width` principal components, with a mean square of 1 over all that are."""
    values = rows.cpu().numpy().astype(np.float64)
    mean = values.mean(0)
    centred = values - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / len(values))
    most = min(width, *values.shape)
    leading = directions[:, ::-1][:, :most].T
    # Either sign is an eigenvector's: that with which its largest entry is positive.
    leading = leading * np.sign(leading[np.arange(most), np.abs(leading).argmax(1)])[:, None]
    scale = 1.0 / (math.sqrt(max(variances[::-1][:most].mean(), 0.0)) or 1.0)
    weight = np.zeros((width, len(mean)))
    weight[:most] = leading * scale
    return {"1.weight": torch.from_numpy(weight), "1.bias": torch.from_numpy(-weight @ mean)}


def _patches(block: Tensor, model: Network, generator: np.random.Generator) -> Mapping[str, Tensor]:
    """Return filters of a dictionary of patches, and what standardises the features that they make."""
    from sklearn.cluster import MiniBatchKMeans

    module = model.module()
    assert isinstance(module, PatchFeatures)
    atoms, *size = module.filters.weight.shape
    images = block[torch.from_numpy(generator.permutation(len(block))[:_IMAGES]).to(block.device)]
    cut = images.unfold(2, size[1], 1).unfold(3, size[2], 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, math.prod(size))
    patches: Floats = cut.cpu().numpy().astype(np.float64)
    spread = patches.std(1)
    patches = patches[spread > _BLANK * spread.max()] if spread.max() else patches
    patches = patches[generator.permutation(len(patches))[:_PATCHES]]
    centre = patches.mean(0)
    covariance = np.cov((patches - centre).T).reshape(len(centre), len(centre))
    variances, directions = np.linalg.eigh(covariance)
    floor = _WHITENING * max(variances.mean(), 1e-12)
    whitening = directions / np.sqrt(np.maximum(variances, 0.0) + floor)
    units = _unit((patches - centre) @ whitening)
    count = min(atoms, len(units))
    seeded = int(generator.integers(2**31))
    means = MiniBatchKMeans(count, random_state=seeded, batch_size=4096, max_iter=15, n_init=1).fit(units)
    filters = np.zeros((atoms, len(centre)))
    filters[:count] = _unit(means.cluster_centers_) @ whitening.T
    parameters = {
        "filters.weight": torch.from_numpy(filters).view(atoms, *size),
        "filters.bias": torch.from_numpy(-filters @ centre - _THRESHOLD),
        "weight": torch.ones(len(module.weight)),
        "bias": torch.zeros(len(module.bias)),
    }
    raw = Fitted(model, parameters).rows(block)[:, : len(module.weight)].double().cpu()
    deviation = raw.std(0, unbiased=False)
    weight = torch.where(deviation > 1e-6, 1.0 / deviation.clamp(min=1e-6), 0.0)
    return {**parameters, "weight": weight, "bias": -raw.mean(0) * weight}


def _unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
