"""Public randomness of a run: which client is active in which round, and which records are in its batch.

Activation is shared by all replicas of a run (they move in lockstep); batches differ by replica. Neither
depends on the data, so an accountant may read participation counts off them.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NotRequired, TypedDict, assert_never

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.accounting.release import SamplerName
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory

from .secret import Origin, generator, key_of

# Rounds of batches drawn at a time: enough to make a draw cheap, and part of what a seed means.
_BLOCK = 64


class Streams(TypedDict):
    """Arguments that everything takes that draws for K replicas at once; `device` is cpu where it is left out.

    `seed` may be secret bits in its place.
    """

    seed: Origin
    replicas: Sequence[int]
    dtype: NotRequired[torch.dtype]
    device: NotRequired[str]


@dataclass(eq=False, kw_only=True)
class Drawn:
    """What is drawn for K replicas, for each from its own stream, and where it is to lie.

    `seed` may be secret bits in its place: once their key is renewed, all that is drawn follows from the new one.
    """

    seed: Origin
    replicas: Sequence[int]
    dtype: torch.dtype | None = None
    device: str = "cpu"

    def stacked(self, rows: Sequence[np.ndarray], axis: int = 0) -> Tensor:
        """Return what has been drawn for each replica as one tensor, the replicas along `axis`."""
        return torch.from_numpy(np.stack(rows, axis=axis)).to(device=self.device, dtype=self.dtype)


def cyclic(clients: int) -> Iterator[int]:
    """Clients 1..M take turns."""
    turn = tuple(range(1, clients + 1))  # the same objects in every turn: a plan of millions of rounds keeps them all
    while True:
        yield from turn


def random_activation(probabilities: Sequence[float], *, seed: int) -> Iterator[int]:
    """Client m is active with probability q_m, independently each round (paper 001, assumption 4.3)."""
    block = 0
    cumulative = np.cumsum(probabilities)
    while True:
        draws = stream(seed, Purpose.ACTIVATION, block).random(4096) * cumulative[-1]
        yield from (1 + np.searchsorted(cumulative, draws, side="right")).tolist()
        block += 1


def by_compute_times(times: Sequence[float]) -> Iterator[int]:
    """Yield a client whenever its computation ends, client m's taking `times[m-1]`; ties go to the lower number.

    Slow clients are active less often and their rows in the server's table grow stale: asynchrony without threads.
    """
    clock = [(time, client) for client, time in enumerate(times, start=1)]
    heapq.heapify(clock)
    while True:
        now, client = heapq.heappop(clock)
        yield client
        heapq.heappush(clock, (now + times[client - 1], client))


@dataclass(frozen=True, slots=True)
class Batch:
    """Record ids of one round.

    Attributes:
        ids: (K, B) record numbers; for Poisson sampling B is the largest batch of the block and short ones are padded.
        flat: The same ids as one vector (K * B,).
        places: (K * B,) row numbers in a table that holds the records of replica 0, then of replica 1, and so on,
            and one scratch row at the end, which padding points to.
        weights: None when every place counts, else (K, B) with 1 for a record and 0 for padding.
        sizes: Records in each replica's batch where places are padded, else None.
    """

    ids: Tensor
    flat: Tensor
    places: Tensor
    weights: Tensor | None = None
    sizes: list[int] | None = None

    @property
    def members(self) -> Tensor:
        """Ids (K, B) of the records that take part, -1 where a place is padding: what travels beside messages."""
        if self.weights is None:
            return self.ids
        return self.ids.masked_fill(self.weights == 0, -1)

    def cleared(self, rows: Tensor) -> Tensor:
        """`rows` (K, B, n) or (K, e, B, n) with zeros where a place is padding: no record is there to tell of."""
        if self.weights is None:
            return rows
        empty = (self.weights == 0).unsqueeze(2)
        return rows.masked_fill(empty if rows.dim() == 3 else empty.unsqueeze(1), 0.0)


@dataclass(eq=False)
class BatchStream(Drawn):
    """One client's batches, round after round, for each replica from its own stream.

    `shuffled`: through the data once a pass, in random order, the short last batch dropped; `uniform`: without
    replacement within a batch; `poisson`: each record with probability `sample_rate`, or B/D where that is None, so
    that B is the expected size. So many batches have been `drawn`.
    """

    sampler: SamplerName
    _: KW_ONLY
    records: int
    batch_size: int
    client: int
    sample_rate: float | None = None
    drawn: int = field(default=0, init=False)
    _block: int = field(default=0, init=False)
    _key: bytes | None = field(default=None, init=False)
    _ready: list[Batch] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._per_block = self.records // self.batch_size if self.sampler == "shuffled" else _BLOCK

    def next(self) -> Batch:
        """Return the batch of this client's next round."""
        if self._ready and self._key != key_of(self.seed):
            self.skip_to(self.drawn)
        if not self._ready:
            self._key = key_of(self.seed)
            self._ready = self._draw(self._block)[::-1]
            self._block += 1
        self.drawn += 1
        return self._ready.pop()

    def skip_to(self, count: int) -> None:
        """Go to where `count` batches have been drawn."""
        self._block, used = divmod(count, self._per_block)
        self._ready = []
        for _ in range(used):
            self.next()
        self.drawn = count

    def _draw(self, block: int) -> list[Batch]:
        # At most: rows and their stack, and of Poisson's the order and two masks; else ids, places, and both by round.
        each = 11 * self.records if self.sampler == "poisson" else 40 * self.batch_size
        stack = len(self.replicas)
        check_memory(self._per_block * each * stack, f"batches of {stack} trainings")
        streams = (generator(self.seed, Purpose.BATCHES, self.client, k, block) for k in self.replicas)
        drawn = np.stack([self._draw_one(stream) for stream in streams])
        if self.sampler != "poisson":
            return self._batches(drawn, None)
        width = max(drawn.sum(2).max(), 1)
        # A stable sort of "not drawn" brings the drawn records to the front, in order.
        ids = np.argsort(~drawn, axis=2, kind="stable")[:, :, :width]
        return self._batches(ids, np.take_along_axis(drawn, ids, axis=2))

    def _draw_one(self, stream: np.random.Generator) -> np.ndarray:
        """Ids (rounds, B) of one block, or for Poisson sampling membership (rounds, D)."""
        if self.sampler == "shuffled":
            order = stream.permutation(self.records)[: self._per_block * self.batch_size]
            return order.reshape(self._per_block, self.batch_size)
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
        by_round = self._by_round(ids)
        places = self._by_round(where).flatten(1)
        rounds = zip(by_round, by_round.flatten(1), places, strict=True)
        if weights is None:
            return [Batch(*parts) for parts in rounds]
        sizes = weights.sum(2).T.tolist()
        masked = zip(rounds, self._by_round(weights), sizes, strict=True)
        return [Batch(*parts, mask, size) for parts, mask, size in masked]

    def _by_round(self, block: np.ndarray) -> Tensor:
        return torch.from_numpy(block.swapaxes(0, 1).copy()).to(self.device)


def largest_participation(rounds: int, *, steps_per_pass: int, first_pass_repeats: int = 1) -> int:
    """Return how many rounds of one client a record can be in under `shuffled` sampling: the passes begun.

    Each batch of the first pass counts `first_pass_repeats` times, as often as it serves.
    """
    first = first_pass_repeats * steps_per_pass
    if rounds <= first:
        return min(rounds, first_pass_repeats)
    return first_pass_repeats + -(-(rounds - first) // steps_per_pass)


DirectionKind = Literal["sphere", "unit-sphere", "gaussian"]
_BLOCK_NUMBERS = 2**14
_PIECE = 2**18


@dataclass(eq=False)
class Directions(Drawn):
    """Random directions of one party, for each replica from its own stream, one a round, that can be drawn again.

    `sphere`: uniform on the sphere of radius sqrt(d) (paper 001); `unit-sphere`: uniform on the unit sphere;
    `gaussian`: standard normal (papers 002, 003). Directions are drawn in blocks of rounds whose length depends on
    d alone, so that a direction depends on (seed, party, replica, round) and not on the stack.
    """

    kind: DirectionKind
    d: int
    _: KW_ONLY
    party: int
    purpose: Purpose = Purpose.DIRECTIONS
    _block: int = field(default=-1, init=False)
    _key: bytes | None = field(default=None, init=False)
    _ready: Sequence[Tensor] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._rounds = max(1, _BLOCK_NUMBERS // max(self.d, 1))
        self._radius = math.sqrt(self.d) if self.kind == "sphere" else 1.0

    def _generator(self, replica: int, block: int) -> np.random.Generator:
        return generator(self.seed, self.purpose, self.party, replica, block)

    def _scaled(self, draws: Tensor) -> Tensor:
        """Return normal draws (..., d) turned into directions of this kind."""
        if self.kind == "gaussian":
            return draws
        # Summed in float64: torch's float32 norm is off by 1e-5 at a million parameters and 2e-4 at eight.
        norms = torch.linalg.vector_norm(draws, dim=-1, keepdim=True, dtype=torch.float64)
        return draws.mul_((self._radius / norms).to(draws.dtype))

    def at(self, round_: int) -> Tensor:
        """Directions of shape (K, d) for this party's round number `round_`, from 0."""
        block, place = divmod(round_, self._rounds)
        if block != self._block or self._key != key_of(self.seed):
            shape = (self._rounds, self.d)
            draws = [self._normals(self._generator(k, block), shape) for k in self.replicas]
            self._ready = self._scaled(self.stacked(draws, axis=1)).unbind(0)
            self._block = block
            self._key = key_of(self.seed)
        return self._ready[place]

    def pieces(self, round_: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the direction of `round_`, drawn again in pieces (start, stop, (K, stop - start)), never the whole.

        For models of so many parameters that a block is one round (otherwise u is a row of a small block).
        """
        if self._rounds > 1:
            yield 0, self.d, self.at(round_)
            return
        factors = [1.0 if self.kind == "gaussian" else self._norm_factor(k, round_) for k in self.replicas]
        generators = [self._generator(k, round_) for k in self.replicas]
        for start in range(0, self.d, _PIECE):
            stop = min(start + _PIECE, self.d)
            drawn = zip(factors, generators, strict=True)
            rows = [f * self._normals(g, stop - start) for f, g in drawn]
            yield start, stop, self.stacked(rows)

    def _normals(self, stream: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
        dtype = np.float64 if self.dtype == torch.float64 else np.float32
        return stream.standard_normal(shape, dtype=dtype)

    def _norm_factor(self, replica: int, round_: int) -> float:
        stream = self._generator(replica, round_)
        total = 0.0
        for start in range(0, self.d, _PIECE):
            draws = self._normals(stream, min(_PIECE, self.d - start))
            total += float(np.square(draws, dtype=np.float64).sum())
        return self._radius / math.sqrt(total)


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
