"""Zeroth-order directions, and the gradient estimators that use them (paper 001, eq. 3; 002, 003, section III)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream

DirectionKind = Literal["sphere", "unit-sphere", "gaussian"]
_BLOCK_NUMBERS = 2**14
_PIECE = 2**18


class Directions:
    """Random directions of one party, for each replica from its own stream, one a round, that can be drawn again.

    `sphere`: uniform on the sphere of radius sqrt(d) (paper 001); `unit-sphere`: uniform on the unit sphere;
    `gaussian`: standard normal (papers 002, 003). Directions are drawn in blocks of rounds whose length depends on
    d alone, so that a direction depends on (seed, party, replica, round) and not on the stack.
    """

    def __init__(
        self,
        kind: DirectionKind,
        d: int,
        *,
        seed: int,
        party: int,
        replicas: Sequence[int],
        dtype: torch.dtype,
        device: str = "cpu",
        purpose: Purpose = Purpose.DIRECTIONS,
    ) -> None:
        self._kind = kind
        self._d = d
        self._key = (seed, purpose, party)
        self._replicas = tuple(replicas)
        self._dtype = dtype
        self._device = device
        self._rounds = max(1, _BLOCK_NUMBERS // max(d, 1))
        self._block = -1
        self._ready: Sequence[Tensor] = ()

    def _generator(self, replica: int, block: int) -> np.random.Generator:
        seed, purpose, party = self._key
        return stream(seed, purpose, party, replica, block)

    def _scaled(self, draws: Tensor) -> Tensor:
        """Normal draws (..., d) turned into directions of this kind."""
        if self._kind == "gaussian":
            return draws
        radius = math.sqrt(self._d) if self._kind == "sphere" else 1.0
        # Summed in float64: torch's float32 norm is off by 1e-5 at a million parameters and 2e-4 at eight.
        norms = torch.linalg.vector_norm(draws, dim=-1, keepdim=True, dtype=torch.float64)
        return draws.mul_((radius / norms).to(draws.dtype))

    def at(self, round_: int) -> Tensor:
        """Directions of shape (K, d) for this party's round number `round_`, from 0."""
        block, place = divmod(round_, self._rounds)
        if block != self._block:
            shape = (self._rounds, self._d)
            number = np.float64 if self._dtype == torch.float64 else np.float32
            draws = [self._generator(k, block).standard_normal(shape, dtype=number) for k in self._replicas]
            stacked = torch.from_numpy(np.stack(draws, axis=1)).to(device=self._device, dtype=self._dtype)
            self._ready = self._scaled(stacked).unbind(0)
            self._block = block
        return self._ready[place]

    def pieces(self, round_: int) -> Iterator[tuple[int, int, Tensor]]:
        """The direction of `round_` drawn again in pieces (start, stop, (K, stop - start)): u is never held whole.

        For models of so many parameters that a block is one round (otherwise u is a row of a small block).
        """
        if self._rounds > 1:
            yield 0, self._d, self.at(round_)
            return
        factors = [1.0 if self._kind == "gaussian" else self._norm_factor(k, round_) for k in self._replicas]
        generators = [self._generator(k, round_) for k in self._replicas]
        for start in range(0, self._d, _PIECE):
            stop = min(start + _PIECE, self._d)
            rows = [f * self._normals(g, stop - start) for f, g in zip(factors, generators, strict=True)]
            yield start, stop, torch.from_numpy(np.stack(rows)).to(device=self._device, dtype=self._dtype)

    def _normals(self, generator: np.random.Generator, size: int) -> np.ndarray:
        return generator.standard_normal(size, dtype=np.float64 if self._dtype == torch.float64 else np.float32)

    def _norm_factor(self, replica: int, round_: int) -> float:
        generator = self._generator(replica, round_)
        sizes = [min(_PIECE, self._d - start) for start in range(0, self._d, _PIECE)]
        total = sum(float(np.square(self._normals(generator, size), dtype=np.float64).sum()) for size in sizes)
        return (math.sqrt(self._d) if self._kind == "sphere" else 1.0) / math.sqrt(total)


def dimension_factor(kind: DirectionKind, d: int) -> float:
    """phi: what makes the two-point estimator unbiased to O(mu), d on the unit sphere and 1 otherwise."""
    return float(d) if kind == "unit-sphere" else 1.0


def forward_difference(
    f: Callable[[Tensor], Tensor], w: Tensor, directions: Tensor, *, mu: float, phi: float = 1.0
) -> Tensor:
    """Average of phi/mu (f(w + mu u_j) - f(w)) u_j over q directions (paper 003, eq. 2).

    Args:
        f: Maps points of shape (n, d) to values of shape (n,).
        w: Point of shape (d,).
        directions: (q, d); phi is d for the unit sphere and 1 for Gaussian directions or the sphere of radius sqrt(d).
        mu: Smoothing parameter, above 0.
        phi: Scale that makes the estimator unbiased to O(mu).

    Returns:
        Estimate of the gradient of f at w, shape (d,).
    """
    differences = (f(w + mu * directions) - f(w.unsqueeze(0))) * (phi / mu)
    return (differences.unsqueeze(1) * directions).mean(0)
