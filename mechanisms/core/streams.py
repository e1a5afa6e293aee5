"""Public randomness of a run: which records are in a client's batch, and along which directions it steps.

Batches and directions differ by replica, and depend on no data: an accountant may read participation counts off them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, Literal, TypeVar, assert_never

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.accounting.release import SamplerName
from dpzv_audit.base.seeds import Purpose
from dpzv_audit.data.files import check_memory

from .counters import PIECE, Words, normals, on_device, signs, squares, words_of
from .secret import Origin, generator, key_of

T = TypeVar("T")
# Rounds of batches drawn at a time: enough to make a draw cheap, and part of what a seed means.
_BLOCK = 64


@dataclass(frozen=True)
class Streams:
    """The streams that K replicas draw from, each from its own, and the layout of what is drawn.

    `seed` may be secret bits in its place: once their key is renewed, all that is drawn follows from the new one.
    """

    seed: Origin
    replicas: Sequence[int]
    dtype: torch.dtype | None = None
    device: str = "cpu"

    def stacked(self, rows: Sequence[np.ndarray], axis: int = 0) -> Tensor:
        """Return what has been drawn for each replica as one tensor, the replicas along `axis`."""
        return on_device(np.stack(rows, axis=axis), self.device, self.dtype)


class Blocks(ABC, Generic[T]):
    """Draws for one round after the other, a block of `per_block` rounds at a time; anew once a secret key is renewed.

    `drawn` counts the rounds that `next` has drawn.
    """

    streams: Streams
    per_block: int
    drawn = 0
    _block = -1
    _key: bytes | None = None
    _ready: Sequence[T] = ()

    @abstractmethod
    def _draw(self, block: int) -> Sequence[T]:
        """Return what is drawn for the rounds of a block."""

    def at(self, round_: int) -> T:
        """Return what is drawn for round `round_`, from 0."""
        block, place = divmod(round_, self.per_block)
        if block != self._block or self._key != key_of(self.streams.seed):
            self._block, self._key, self._ready = block, key_of(self.streams.seed), self._draw(block)
        return self._ready[place]

    def next(self) -> T:
        """Return what is drawn for the next round."""
        self.drawn += 1
        return self.at(self.drawn - 1)

    def skip_to(self, rounds: int) -> None:
        """Go to where `rounds` rounds have been drawn."""
        self.drawn = rounds
        self._block, self._ready = -1, ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Record ids of one round.

    Attributes:
        ids: (K, B) record numbers; for Poisson sampling B is the largest batch of the block and short ones are padded.
        places: (K * B,) row numbers in a table that holds the records of replica 0, then of replica 1, and so on,
            and one scratch row at the end, which padding points to.
        weights: None when every place counts, else (K, B) with 1 for a record and 0 for padding.
        sizes: Records in each replica's batch where places are padded, else None.
    """

    ids: Tensor
    places: Tensor
    weights: Tensor | None = None
    sizes: list[int] | None = None

    @property
    def members(self) -> Tensor:
        """Return ids (K, B) of the records that take part, -1 where a place is padding: they travel beside messages."""
        if self.weights is None:
            return self.ids
        return self.ids.masked_fill(self.weights == 0, -1)

    def cleared(self, rows: Tensor) -> Tensor:
        """Return `rows` (K, B, n) or (K, e, B, n) with zeros where a place is padding, of which nothing is to tell."""
        if self.weights is None:
            return rows
        empty = (self.weights == 0).unsqueeze(2)
        return rows.masked_fill(empty if rows.dim() == 3 else empty.unsqueeze(1), 0.0)


@dataclass(eq=False)
class BatchStream(Blocks[Batch]):
    """One client's batches, round after round, for each replica from its own stream.

    `shuffled`: through the data once a pass, in random order, the short last batch dropped; `uniform`: without
    replacement within a batch; `poisson`: each record with probability `sample_rate`, or B/D where that is None, so
    that B is the expected size.
    """

    sampler: SamplerName
    streams: Streams
    _: KW_ONLY
    records: int
    batch_size: int
    client: int
    sample_rate: float | None = None

    def __post_init__(self) -> None:
        self.per_block = self.records // self.batch_size if self.sampler == "shuffled" else _BLOCK

    def _draw(self, block: int) -> list[Batch]:
        # At most: rows and their stack, and of Poisson's the order and two masks; else ids, places, and both by round.
        each = 11 * self.records if self.sampler == "poisson" else 40 * self.batch_size
        replicas = self.streams.replicas
        check_memory(self.per_block * each * len(replicas), f"batches of {len(replicas)} trainings")
        generators = (generator(self.streams.seed, Purpose.BATCHES, self.client, k, block) for k in replicas)
        drawn = np.stack([self._draw_one(stream) for stream in generators])
        if self.sampler != "poisson":
            return self._batches(drawn, None)
        width = max(drawn.sum(2).max(), 1)
        # A stable sort of "not drawn" brings the drawn records to the front, in order.
        ids = np.argsort(~drawn, axis=2, kind="stable")[:, :, :width]
        return self._batches(ids, np.take_along_axis(drawn, ids, axis=2))

    def _draw_one(self, stream: np.random.Generator) -> np.ndarray:
        """Return ids (rounds, B) of one block, or for Poisson sampling membership (rounds, D)."""
        if self.sampler == "shuffled":
            order = stream.permutation(self.records)[: self.per_block * self.batch_size]
            return order.reshape(self.per_block, self.batch_size)
        if self.sampler == "uniform":
            draws = [stream.choice(self.records, self.batch_size, replace=False) for _ in range(_BLOCK)]
            return np.stack(draws)
        if self.sampler == "poisson":
            rate = self.batch_size / self.records if self.sample_rate is None else self.sample_rate
            return stream.random((_BLOCK, self.records)) < rate
        assert_never(self.sampler)

    def _batches(self, ids: np.ndarray, weights: np.ndarray | None) -> list[Batch]:
        """Split blocks of shape (K, rounds, B) into rounds."""
        where = ids + (np.arange(len(ids)) * self.records)[:, None, None]
        if weights is not None:
            where[~weights] = len(ids) * self.records
        rounds = self._by_round(ids), self._by_round(where).flatten(1)
        if weights is None:
            return list(map(Batch, *rounds))
        return list(map(Batch, *rounds, self._by_round(weights), weights.sum(2).T.tolist()))

    def _by_round(self, block: np.ndarray) -> Tensor:
        return on_device(block.swapaxes(0, 1).copy(), self.streams.device)


DirectionKind = Literal["sphere", "unit-sphere", "gaussian", "rademacher"]
_BLOCK_NUMBERS = 2**14
LARGE = 2**21
"""Directions of more numbers are drawn by counter, where they are used (`core.counters`)."""
# Numbers whose norms are taken at once.
_IN_CACHE = 2**18
# Pieces drawn at once: a CPU's cache holds one; on a device each costs as many launches as eight.
_AT_ONCE_ON_CPU, _AT_ONCE_ON_DEVICE = 1, 8


@dataclass(eq=False)
class Directions(Blocks[Tensor]):
    """Random directions (K, d) of one party, one per round, that can be drawn again.

    `sphere`: uniform on the sphere of radius sqrt(d) (paper 001); `unit-sphere`: uniform on the unit sphere;
    `gaussian`: standard normal (papers 002, 003); `rademacher`: each number 1 or -1 with equal chance, of length
    sqrt(d) exactly (Spall 1992). A direction depends on (seed, party, replica, round) and not on the stack. Up to
    `LARGE` numbers it is numpy's, drawn in blocks of rounds whose length depends on d alone. A larger one is drawn by
    counter, anew each time it is used; of the sphere's its length alone is kept.
    """

    kind: DirectionKind
    d: int
    streams: Streams
    _: KW_ONLY
    party: int
    purpose: Purpose = Purpose.DIRECTIONS

    def __post_init__(self) -> None:
        self.per_block = max(1, _BLOCK_NUMBERS // max(self.d, 1))
        self._radius = math.sqrt(self.d) if self.kind == "sphere" else 1.0
        self._normed = self.kind in ("sphere", "unit-sphere")
        self._dtype = np.float64 if self.streams.dtype == torch.float64 else np.float32
        self._factor_of: tuple[tuple[int, bytes | None], Tensor] | None = None

    @property
    def counted(self) -> bool:
        """Return whether they are drawn by counter."""
        return self.d > LARGE

    def at(self, round_: int) -> Tensor:
        """See `Blocks.at`; a large direction is not kept."""
        if not self.counted:
            return super().at(round_)
        return torch.cat([piece for _, _, piece in self._counted(round_)], 1)

    def _generator(self, replica: int, block: int) -> np.random.Generator:
        return generator(self.streams.seed, self.purpose, self.party, replica, block)

    def _draw(self, block: int) -> Sequence[Tensor]:
        replicas = self.streams.replicas
        # One replica's rows stay in the cache until they are where they belong in each round's.
        own = np.empty((self.per_block, self.d), self._dtype)
        numbers = np.empty((self.per_block, len(replicas), self.d), self._dtype)
        for place, k in enumerate(replicas):
            numbers[:, place] = self._draw_into(own, self._generator(k, block))
        draws = on_device(numbers, self.streams.device, self.streams.dtype)
        if self._normed:
            # Summed in float64: torch's float32 norm is off by 1e-5 at a million parameters and 2e-4 at eight. A few
            # rounds at a time, so that the copy in float64 stays in the cache.
            for rows in draws.split(max(1, _IN_CACHE // max(1, draws[0].numel()))):
                norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
                rows.mul_((self._radius / norms).to(draws.dtype))
        return draws.unbind(0)

    def parts(self, round_: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the direction of `round_` as (start, stop, (K, stop - start)): whole, or a large one in pieces."""
        if self.counted:
            yield from self._counted(round_)
        else:
            yield 0, self.d, self.at(round_)

    def pieces(self, round_: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the direction of `round_`, drawn again in pieces (start, stop, (K, stop - start)), never the whole.

        For models of so many parameters that a block is one round (otherwise u is a row of a small block).
        """
        if self.per_block > 1 or self.counted:
            yield from self.parts(round_)
            return
        factors = [self._norm_factor(k, round_) if self._normed else 1.0 for k in self.streams.replicas]
        generators = [self._generator(k, round_) for k in self.streams.replicas]
        for start in range(0, self.d, PIECE):
            stop = min(start + PIECE, self.d)
            drawn = zip(factors, generators, strict=True)
            rows = [f * self._draw_into(np.empty(stop - start, self._dtype), g) for f, g in drawn]
            yield start, stop, self.streams.stacked(rows)

    def _draw_into(self, numbers: np.ndarray, stream: np.random.Generator) -> np.ndarray:
        if self.kind == "rademacher":
            numbers[...] = 2 * stream.integers(0, 2, numbers.shape, dtype=np.int8) - 1
            return numbers
        return stream.standard_normal(dtype=self._dtype, out=numbers)

    def _norm_factor(self, replica: int, round_: int) -> float:
        stream = self._generator(replica, round_)
        total = 0.0
        for start in range(0, self.d, PIECE):
            draws = self._draw_into(np.empty(min(PIECE, self.d - start), self._dtype), stream)
            total += float(np.square(draws, dtype=np.float64).sum())
        return self._radius / math.sqrt(total)

    def _counted(self, round_: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield a large direction in pieces (start, stop, (K, stop - start))."""
        dtype = self.streams.dtype or torch.float64
        draw = signs if self.kind == "rademacher" else normals
        words = self._words(round_)
        factor = self._factor(round_, words).to(dtype) if self._normed else None
        for first, pieces in self._some_pieces(-(-self.d // PIECE)):
            drawn = torch.cat([draw(own, first, pieces).view(1, -1) for own in words])
            start, stop = first * PIECE, min((first + pieces) * PIECE, self.d)
            piece = drawn[:, : stop - start].to(dtype)
            yield start, stop, piece if factor is None else piece.mul_(factor)

    def _words(self, round_: int) -> list[Words]:
        place = self.streams.seed, self.purpose, self.party
        return [words_of(*place, k, round_, device=self.streams.device) for k in self.streams.replicas]

    def _some_pieces(self, pieces: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the number of pieces to be drawn at once."""
        most = _AT_ONCE_ON_CPU if self.streams.device == "cpu" else _AT_ONCE_ON_DEVICE
        for first in range(0, pieces, most):
            yield first, min(most, pieces - first)

    def _factor(self, round_: int, words: Sequence[Words]) -> Tensor:
        """Return by what the normals of a large direction are multiplied, (K, 1), on the device: nothing waits."""
        of = (round_, key_of(self.streams.seed))
        if self._factor_of is None or self._factor_of[0] != of:
            whole, rest = divmod(self.d, PIECE)
            totals = []
            for own in words:
                # A pair's own length says what both add up to.
                parts = [squares(own, *some).sum(dtype=torch.float64) for some in self._some_pieces(whole)]
                last = normals(own, whole)[:, :rest] if rest else torch.zeros(1, device=self.streams.device)
                totals.append(torch.stack([*parts, last.square().sum(dtype=torch.float64)]).sum())
            self._factor_of = of, self._radius * torch.stack(totals).rsqrt().unsqueeze(1)
        return self._factor_of[1]


def dimension_factor(kind: DirectionKind, d: int) -> float:
    """Return phi, which makes the two-point estimator unbiased to O(mu): d on the unit sphere and 1 otherwise."""
    return float(d) if kind == "unit-sphere" else 1.0


def forward_difference(
    f: Callable[[Tensor], Tensor], w: Tensor, directions: Tensor, *, mu: float, phi: float = 1.0
) -> Tensor:
    """Return average of phi/mu (f(w + mu u_j) - f(w)) u_j over q directions (paper 003, eq. 2).

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
