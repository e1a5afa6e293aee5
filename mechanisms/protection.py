"""Differential privacy for the baselines: noise on embeddings going up, or on gradients coming down.

`embedding`: each record's embedding is clipped in L2 norm to C_h and N(0, sigma^2 I) is added (the "VAFL mechanism"
that paper 001 gives its baselines); `embedding-batch`: the clip is over the whole B x d_h tensor, as the one public
implementation has it; `gradient`: each record's dL/dh_m is clipped to C_g and noised (paper 003, section 6.2).
Embedding noise protects features from the server and does nothing for labels against clients; gradient noise the
reverse.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose
from mechanisms.config import ProtectedConfig
from mechanisms.context import RunContext
from mechanisms.grid import ROW_BITS, Grid, truncated_steps
from mechanisms.noise import NoiseOrigin, gaussian
from mechanisms.training_data import dtype_of

PROTECTS = {
    "none": "nothing: no noise is added anywhere",
    "embedding": "embeddings sent to the server, hence features; labels stay open to clients",
    "embedding-batch": "embeddings sent to the server, clipped as one tensor a batch; labels stay open to clients",
    "gradient": "gradients sent to clients, hence labels; features stay open to the server",
}
"""Which channel a baseline's noise protects, in words for every result."""


class ChannelNoise:
    """Clips and noises what travels on the protected channel; leaves the other as it is."""

    def __init__(self, config: ProtectedConfig, context: RunContext) -> None:
        self._config = config
        self._origin: NoiseOrigin = context.seed if context.origin is None else context.origin
        whole = config.noise == "grid" and config.dp_sigma > 0.0
        self._grid = Grid.fit(config.dp_clip, config.dp_sigma, bits=ROW_BITS) if whole else None
        self._replicas = tuple(context.replicas)
        self.draws = torch.zeros(1, dtype=torch.int64)
        """How often noise has been drawn: each draw is a stream of its own, so a run can be taken up again."""
        self._dtype = dtype_of(config)
        self._device = context.device

    def embeddings(self, values: Tensor) -> Tensor:
        """Embeddings (K, n, width) as they are sent; of (K, 2, n, width), two messages, each by itself."""
        if not self._config.dp.startswith("embedding"):
            return values
        if values.dim() == 4:
            return torch.stack([self.embeddings(part) for part in values.unbind(1)], 1)
        return self._noised(values)

    def gradients(self, values: Tensor) -> Tensor:
        """Per-record gradients (K, B, width) of the batch mean as they are sent.

        The clip bounds a record's own gradient, which is B times its part of the mean.
        """
        if self._config.dp != "gradient":
            return values
        size = self._config.batch_size
        return self._noised(values * size) / size

    def through_clip(self, embeddings: Tensor, gradient: Tensor) -> Tensor:
        """Pull a gradient at the clipped embeddings (K, B, width) back through the clip, to the model's own output."""
        if not self._config.dp.startswith("embedding"):
            return gradient
        factor = self._clip_factor(embeddings)
        norms: Tensor = torch.linalg.vector_norm(embeddings, dim=self._axes, keepdim=True)
        unit = embeddings / norms.clamp(min=torch.finfo(self._dtype).tiny)
        along = (unit * gradient).sum(self._axes, keepdim=True) * unit
        return torch.where(factor < 1, factor * (gradient - along), gradient)

    @property
    def _axes(self) -> tuple[int, ...]:
        """What is clipped as one vector: a record, or a whole message."""
        return (1, 2) if self._config.dp == "embedding-batch" else (2,)

    def _clip_factor(self, values: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(values, dim=self._axes, keepdim=True)
        return self._config.dp_clip / norms.clamp(min=self._config.dp_clip)

    def _noised(self, values: Tensor) -> Tensor:
        """Clip `values` (K, n, width) and add noise: on the grid in whole steps, which become floats at the end."""
        grid, sigma = self._grid, self._config.dp_sigma
        if grid is not None:
            steps = truncated_steps(values, grid, self._axes).add_(self._draw(values, grid.steps(sigma)))
            return steps.mul_(grid.step).to(self._dtype)
        clipped = values * self._clip_factor(values)
        return clipped if sigma == 0.0 else clipped + self._draw(values, sigma).to(self._dtype)

    def _draw(self, values: Tensor, std: float) -> Tensor:
        """Noise for `values` in float64, whole numbers with a grid."""
        shape, number = tuple(values.shape[1:]), int(self.draws)
        self.draws += 1
        rows = [
            gaussian(
                shape,
                std,
                self._origin,
                purpose=Purpose.NOISE,
                key=(k, number),
                rounded=self._grid is not None,
            )
            for k in self._replicas
        ]
        return torch.from_numpy(np.stack(rows)).to(self._device)
