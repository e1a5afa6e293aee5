"""A release: all that an upper bound on epsilon may depend on in the scalar channel (paper 001, eq. 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from dpzv_audit.errors import InputError, check_count, check_positive
from dpzv_audit.evidence import NeighbourRelation

SamplerName = Literal["shuffled", "uniform", "poisson"]
ClipRule = Literal["symmetric", "paper-one-sided"]
ServerUpdate = Literal["sgd", "zo", "frozen", "dp-sgd", "joint-zo", "none"]
IdsVisibility = Literal["secret", "public"]

SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
CLIP_RULES: tuple[ClipRule, ...] = get_args(ClipRule)
SERVER_UPDATES: tuple[ServerUpdate, ...] = get_args(ServerUpdate)
IDS: tuple[IdsVisibility, ...] = get_args(IdsVisibility)
NEIGHBOURS: tuple[NeighbourRelation, ...] = get_args(NeighbourRelation)

_SCALES = 1e50
"""Noise further than this from a record's contribution is a mistake; its square would leave the floats."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """`rounds` noisy scalars Delta = (1/B) sum_i clip_C(delta_i) + N(0, sigma^2), of ALL clients together.

    The divisor B is public and fixed. Raises `InputError` naming the field and its allowed range.
    """

    batch_size: int
    """B, at most `dataset_size`; the expected size where the sampler is `poisson`."""
    dataset_size: int
    """D, the number of records."""
    rounds: int
    """T, the number of scalars released, all clients together; a round with q directions counts q times."""
    clip: float
    """C, the clipping norm of one record's difference."""
    sigma: float
    """Standard deviation of the noise on the scalar itself."""
    sampler: SamplerName
    server_update: ServerUpdate
    """How the server's parameters move; `none` where it has none (it sums the embeddings, say)."""
    clients: int = 1
    participations: int | None = None
    """Realised largest count of scalars that a record takes part in, over all clients; `shuffled` only.

    The schedule does not depend on the data, so the count may be read off it; None: passes begun."""
    clip_rule: ClipRule = "symmetric"
    participation_cap: int | None = None
    """Participations of a record, all clients' rounds together, that the server enforces; None: no cap."""
    distinct_ids: bool = False
    """The server refuses a batch that names a record twice."""
    batch_coupling: bool = False
    """A layer mixes the records of a batch (batch statistics)."""
    ids: IdsVisibility = "secret"
    """Whether batch ids travel where an eavesdropper can read them."""
    padded: bool = False
    """Messages have one length whatever the size of the batch."""
    server_mu: float | None = None
    """Gaussian-DP parameter of all the server's own noised updates together; None: not accounted."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "dataset_size", "rounds", "clients"):
            self._set(name, _whole(name, getattr(self, name)))
        for name in ("participations", "participation_cap"):
            if getattr(self, name) is not None:
                self._set(name, _whole(name, getattr(self, name)))
        for name in ("clip", "sigma"):
            self._set(name, float(check_positive(name, getattr(self, name))))
        scale = self.clip / self.batch_size
        if not 1.0 / _SCALES < self.sigma / scale < _SCALES:
            raise InputError(
                f"sigma is {self.sigma}, must lie between {1.0 / _SCALES:g} and {_SCALES:g} times clip / batch_size"
            )
        if self.server_mu is not None:
            self._set("server_mu", float(check_positive("server_mu", self.server_mu)))
        if self.batch_size > self.dataset_size:
            raise InputError(
                f"batch_size is {self.batch_size}, must lie in [1, dataset_size = {self.dataset_size}]: "
                "the sampling rate B/D is at most 1"
            )
        if self.participations is not None and self.participations > self.rounds:
            raise InputError(
                f"participations is {self.participations}, must lie in [1, rounds = {self.rounds}]: "
                "a record takes part at most once a round"
            )
        if self.participations is not None and self.sampler != "shuffled":
            raise InputError(
                f"participations is {self.participations} with sampler {self.sampler!r}, must be left out: "
                "participations are Binomial(T, r) there"
            )
        for name, allowed in (
            ("sampler", SAMPLERS),
            ("clip_rule", CLIP_RULES),
            ("server_update", SERVER_UPDATES),
            ("ids", IDS),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}, must be one of {', '.join(allowed)}")

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    @property
    def rate(self) -> float:
        """Sampling rate r = B/D, in (0, 1]."""
        return self.batch_size / self.dataset_size

    @property
    def contribution(self) -> float:
        """c = C/B, the most that one record adds to a scalar; infinite under the one-sided clip."""
        return math.inf if self.clip_rule == "paper-one-sided" else self.clip / self.batch_size

    def sensitivity(self, neighbours: NeighbourRelation) -> float:
        """Return s, the most a scalar moves: 2c where a record is replaced, c where it comes or goes."""
        if neighbours not in NEIGHBOURS:
            raise InputError(f"neighbours is {neighbours!r}, must be one of {', '.join(NEIGHBOURS)}")
        return (2.0 if neighbours in ("replace-label", "replace-record") else 1.0) * self.contribution

    def noise_multiplier(self, neighbours: NeighbourRelation) -> float:
        """Return z = sigma / s; 0 under the one-sided clip, whose sensitivity is infinite."""
        return self.sigma / self.sensitivity(neighbours)

    @property
    def passes_begun(self) -> int:
        """Passes over the data begun in all clients' rounds together, with the shuffled sampler.

        Activation is cyclic: client m makes T // M rounds, the first T mod M clients one more. A pass takes
        D // B rounds (the short last batch is dropped), and a record takes part at most once in each.
        """
        rounds_a_pass = self.dataset_size // self.batch_size
        base, more = divmod(self.rounds, self.clients)
        return more * -(-(base + 1) // rounds_a_pass) + (self.clients - more) * -(-base // rounds_a_pass)

    @property
    def fixed_participations(self) -> int | None:
        """Largest number of scalars a record takes part in, where fixed; None where it is Binomial(T, r).

        For shuffled batches the realised count, or the passes begun; T where every record is in every batch.
        Never more than the enforced cap.
        """
        count = self.participations
        if count is None and self.sampler == "shuffled":
            count = self.passes_begun
        if count is None and self.batch_size == self.dataset_size:
            count = self.rounds
        if count is None or self.participation_cap is None:
            return count
        return min(count, self.participation_cap)


def _whole(name: str, value: object) -> int:
    """Return `value` as a Python int (numpy's are not taken everywhere); `InputError` unless whole, >= 1."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name} is {value!r}, must be a whole number of at least 1")
    number = float(value)
    return check_count(name, int(value) if number.is_integer() else number)  # type: ignore[call-overload,arg-type]
