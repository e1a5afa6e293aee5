"""NoPeek: a client minimises the distance correlation between its features and its embeddings beside the loss.

Vepakomma et al., "NoPeek: information leakage reduction to share activations in distributed deep learning", ICDM
Workshops 2020. What is sent stays as it is, and nothing is promised about it: a decoder may read features off
embeddings that hardly correlate with them.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from dpzv_audit.base.errors import InputError

from ..core.defence import Defence, DefenceSpec

# Squares below this count as 0: the slope of a root is infinite there.
_LEAST = 1e-12


class DistanceCorrelation(Defence):
    """Adds the gradient of `weight` times the distance correlation of features and embeddings to a client's own."""

    place = "embedding"

    name: Literal["dcor"] = "dcor"
    weight: Annotated[float, Field(gt=0, le=1000)] = 0.1
    """What the correlation counts beside the mean loss of a batch."""

    def on_embeddings(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """See `Defence.on_embeddings`; `InputError` for token ids, between which there is no distance."""
        if not features.is_floating_point():
            raise InputError(f"{self.name} needs numbers to correlate embeddings with, and a client holds token ids")
        with torch.enable_grad():
            moved = embeddings.detach().requires_grad_()
            # The sum over replicas keeps their gradients apart.
            total = distance_correlation(features.flatten(2), moved).sum()
            (gradient,) = torch.autograd.grad(total, moved)
        return self.weight * gradient


def distance_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return the distance correlation (K,), from 0 to 1, of rows (K, B, d) and (K, B, e).

    Szekely, Rizzo and Bakirov, Annals of Statistics 2007, definition 3, of the sample; 0 where either is constant.
    """
    left, right = _centred(first), _centred(second)
    covariance = (left * right).mean((1, 2))
    variances = (left * left).mean((1, 2)) * (right * right).mean((1, 2))
    ratio = covariance / variances.clamp(min=_LEAST**2).sqrt()
    return ratio.clamp(min=_LEAST).sqrt() * (variances > _LEAST**2)


def _centred(rows: Tensor) -> Tensor:
    """Return distances (K, B, B) between rows (K, B, d), less the means of their rows and columns."""
    squares = (rows.unsqueeze(2) - rows.unsqueeze(1)).square().sum(3)
    distances = squares.clamp(min=_LEAST).sqrt() * (squares > _LEAST)
    means = distances.mean(1, keepdim=True)
    return distances - means - means.mT + means.mean(2, keepdim=True)


SPEC = DefenceSpec(
    name="dcor",
    summary="each client lowers the distance correlation of its features and embeddings beside the loss (NoPeek)",
    source="Vepakomma et al., ICDM Workshops 2020 (NoPeek)",
    settings=DistanceCorrelation,
)
