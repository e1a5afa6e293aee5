"""A release: all that an upper bound on epsilon may depend on in one noisy channel (paper 001, eq. 8; 003, 6.2)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from ..base.errors import InputError, check_count, check_names, check_positive
from ..base.findings import SERVERS, AdversaryName, NeighbourRelation
from .selection import Selection

SamplerName = Literal["shuffled", "uniform", "poisson"]
"""How a client draws its batches. Who adds one says how it is drawn (`mechanisms.core.streams`), how often a record
takes part (`mechanisms.core.config`, `dpzv_audit.games.transcript`), and what secret batches are worth (`gaps`,
`bounds`).
"""
ClipRule = Literal["symmetric", "paper-one-sided"]
ServerUpdate = Literal["sgd", "zo", "frozen", "dp-sgd", "dp-zo", "joint-zo", "released", "none"]
IdsVisibility = Literal["secret", "public"]
Channel = Literal["scalar", "gradient", "embedding", "zo-gradient", "model"]
ClipScope = Literal["record", "batch"]
ClientUpdate = Literal["zeroth-order", "first-order", "frozen"]
NoiseForm = Literal["exact", "grid", "float"]

SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
CHANNELS: dict[Channel, str] = {
    "scalar": "the noised mean of clipped loss differences, from the server to a client",
    "gradient": "a noised row per record of clipped partial gradients, from the server to a client",
    "embedding": "a noised row per record of clipped embeddings, from a client to the server",
    "model": "the noised sum of clipped gradients of a batch, by which a released model moves; no message carries it",
    "zo-gradient": "CZOFO's gradient estimate, to which no noise is added: the direction is meant to hide it",
}
REPLACES: frozenset[str] = frozenset({"replace-label", "replace-record"})
NEIGHBOURS: tuple[NeighbourRelation, ...] = get_args(NeighbourRelation)

_MOST = 10**15
"""More rounds, records or messages than that are a mistake, and past what a float counts one by one."""

_SCALES = 1e50
"""Noise further than this from a record's contribution is a mistake; its square would leave the floats."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """`rounds` noisy messages of ALL parties on one side, each about one batch.

    The scalar channel sends Delta = (1/B) sum_i clip_C(delta_i) + N(0, sigma^2), with B public and fixed; the gradient
    and embedding channels send a row clip_C(v_i) + N(0, sigma^2 I) for each record of the batch. The model
    channel has sum_i clip_C(g_i) + N(0, sigma^2 I) for each step of a model. Raises `InputError` naming the field and
    its allowed range.

    Attributes:
        batch_size: B, at most `dataset_size`: the public divisor, and where the sampler is `poisson` the expected size
            of a batch unless `sample_rate` is given.
        dataset_size: D, the number of records; may be left out where `sample_rate` is given.
        rounds: T, the number of batches served, all clients together.
        clip: C, the clipping norm of one record's part; for `zo-gradient` zeta, the largest norm that was seen.
        sigma: Standard deviation of the noise on the message itself; for `zo-gradient` that of the estimate, sigma_s.
        server_update: How the server's parameters move; `none` where it has none (it sums the embeddings, say),
            `released` where it moves by the noised messages alone.
        sample_rate: Q, the chance that a record is in a batch, where Q and `rounds` are public constants; `poisson`
            only. None: B/D, which one record more or less would move for every record, and floor(D/B) rounds with it.
        directions: q, messages a round about the same batch: q directions of one estimate, or two embeddings (h+ and
            h-).
        participations: Realised largest count of rounds that a record takes part in, over all clients; `shuffled` only.
            The schedule does not depend on the data, so the count may be read off it; None: passes begun.
        whole_data_rounds: Messages about every record besides the sampled rounds, such as the server's table filled by
            each client.
        clip_scope: `batch`: one clip over the whole tensor of a batch (the public implementation of embedding noise).
        participation_cap: Participations of a record, all clients' rounds together, that the server enforces; None: no
            cap.
        distinct_ids: The server refuses a batch that names a record twice.
        batch_coupling: A layer mixes the records of a batch (batch statistics).
        data_dependent_side: Something else was fitted on the data or published: scalers, vocabularies, best
            checkpoints, logs of losses.
        seeded_noise: The noise follows from a seed that is published, kept beside the result or shared: it can be
            subtracted.
        seeded_batches: The batches, or directions that are to hide something, follow from such a seed, which may have
            been chosen before: then no record's participations are random.
        own_rounds_only: `rounds` counts one of several clients' rounds alone, which is too few for every adversary.
        ids: Whether batch ids travel where an eavesdropper can read them.
        padded: Messages have one length whatever the size of the batch.
        clear_uploads: Clients' uploads, functions of their features alone, travel where an eavesdropper reads them.
        secret_batches: Hidden batches reach later messages, or other records' numbers, otherwise than through what is
            released. Amplification by sampling assumes that they do not; see `batches_reach_further`.
        client_update: How clients step; `first-order` chains what they receive with derivatives at their clear
            features.
        noise: How noise is computed: `exact`, Gaussian noise as on paper; `grid`, a rounded Gaussian in whole steps of
            a grid that each record is rounded to first, which is its post-processing; `float`, drawn and added in
            floating point.
        server_mu: Gaussian-DP parameter, under the relation asked about, of all the server's own noised updates, or of
            what clients release once beside embeddings; None: not given. It counts the participations that are planned:
            against a malicious client it closes nothing.
        server_noise_multiplier: dp-sgd or dp-zo on the batch of each round: noise on the sum over what is clipped of
            each record, in clips; None: not given so. Give one of the two: this one where participations are random,
            since both channels then share a batch.
    """

    batch_size: int
    dataset_size: int | None = None
    rounds: int
    clip: float
    sigma: float
    sampler: SamplerName
    server_update: ServerUpdate
    sample_rate: float | None = None
    clients: int = 1
    channel: Channel = "scalar"
    directions: int = 1
    participations: int | None = None
    whole_data_rounds: int = 0
    clip_rule: ClipRule = "symmetric"
    clip_scope: ClipScope = "record"
    participation_cap: int | None = None
    distinct_ids: bool = False
    batch_coupling: bool = False
    data_dependent_side: bool = False
    seeded_noise: bool = False
    seeded_batches: bool = False
    own_rounds_only: bool = False
    ids: IdsVisibility = "secret"
    padded: bool = False
    clear_uploads: bool = False
    secret_batches: bool = False
    client_update: ClientUpdate = "zeroth-order"
    noise: NoiseForm = "exact"
    server_mu: float | None = None
    server_noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None or NoneType not in get_args(kind):
                object.__setattr__(self, name, _checked(name, value, kind))
        if self.sample_rate is None and self.dataset_size is None:
            raise InputError("dataset_size is missing: give it, or a public sample_rate with sampler 'poisson'")
        for wrong, name, rule in self._contradictions():
            if wrong:
                raise InputError(rule, name, getattr(self, name))

    def _contradictions(self) -> Iterator[tuple[bool, str, str]]:
        """Yield what fields may not be together: whether they are, the field that is named, and the rule."""
        other = f" with sampler {self.sampler!r}; leave it out: "
        if self.sample_rate is not None:
            yield self.sample_rate > 1.0, "sample_rate", "use a number in (0, 1]"
            yield self.sampler != "poisson", "sample_rate", f"{other}batches of one size have the rate B/D"
        else:
            most = f"use a number in [1, dataset_size = {self.dataset_size}]"
            yield self.batch_size > self.records, "batch_size", f"{most}: the sampling rate B/D is at most 1"
        scales = f"use a number between {1.0 / _SCALES:g} and {_SCALES:g}"
        of = "clip / batch_size" if self.channel == "scalar" else "clip"
        yield not 1.0 / _SCALES < self.sigma / self.sigma_unit < _SCALES, "sigma", f"{scales} times {of}"
        for name in ("server_mu", "server_noise_multiplier"):
            yield not 1.0 / _SCALES < (getattr(self, name) or 1.0) < _SCALES, name, scales
        if self.participations is not None:
            rounds = f"use a number in [1, rounds = {self.rounds}]: a record takes part at most once a round"
            yield self.participations > self.rounds, "participations", rounds
            binomial = f"{other}participations are Binomial(T, r) there"
            yield self.sampler != "shuffled", "participations", binomial
        if self.server_mu is not None:
            both = f" and server_noise_multiplier {self.server_noise_multiplier}; use one of the two: "
            both += "both describe the server's own noised updates"
            yield self.server_noise_multiplier is not None, "server_mu", both
        batch = self.clip_scope == "batch" and self.channel == "scalar"
        yield batch, "clip_scope", "use 'record' on the scalar channel"

    @property
    def max_grad_norm(self) -> float:
        """C by the name that it has in DP-SGD: the same as `clip`."""
        return self.clip

    @property
    def rate(self) -> float:
        """Sampling rate r, in (0, 1]: the public `sample_rate`, else B/D."""
        if self.sample_rate is None:
            return self.batch_size / self.records
        return self.sample_rate

    @property
    def records(self) -> float:
        """D, the number of records there are; B over the public rate where it is not given."""
        if self.dataset_size is not None:
            return self.dataset_size
        return self.nominal_records

    @property
    def nominal_records(self) -> float:
        """D as formulas that divide by it mean it: D, or B/Q where the public rate Q replaces B/D."""
        if self.sample_rate is not None:
            return self.batch_size / self.sample_rate
        return self.records

    @property
    def sigma_unit(self) -> float:
        """What one clipped record adds to a message where it is finite: C/B in a scalar, C in a row of its own."""
        return self.clip / self.batch_size if self.channel == "scalar" else self.clip

    @property
    def contribution(self) -> float:
        """c, the most that one record adds to a message: C/B in a scalar, C in a row of its own.

        Infinite under the one-sided clip.
        """
        return math.inf if self.clip_rule == "paper-one-sided" else self.sigma_unit

    def sensitivity(self, neighbours: NeighbourRelation) -> float:
        """Return s, the most a message moves: 2c where a record is replaced, c where it comes or goes.

        One clip over a whole batch makes every record's row depend on every other: 2c for each relation.
        """
        if neighbours not in NEIGHBOURS:
            raise InputError(f"use one of {', '.join(NEIGHBOURS)}", "neighbours", neighbours)
        return (2.0 if neighbours in REPLACES or self.clip_scope == "batch" else 1.0) * self.contribution

    def noise_multiplier(self, neighbours: NeighbourRelation) -> float:
        """Return z = sigma / s; 0 under the one-sided clip, whose sensitivity is infinite."""
        return self.sigma / self.sensitivity(neighbours)

    def participation_mu(self, neighbours: NeighbourRelation) -> float:
        """Return the Gaussian-DP mu of one participation: q messages, and the server's update on the same batch.

        sqrt(q / z^2 + 1 / z_s^2), where z_s = `server_noise_multiplier`, halved where a record is replaced.
        """
        z = self.noise_multiplier(neighbours)
        own = math.sqrt(self.directions) / z if z > 0.0 else math.inf
        if self.server_noise_multiplier is None:
            return own
        return math.hypot(own, (2.0 if neighbours in REPLACES else 1.0) / self.server_noise_multiplier)

    def certain_mu(self, neighbours: NeighbourRelation) -> float:
        """Return the mu of what happens whatever the batches are: `server_mu` and the `whole_data_rounds`."""
        z = self.noise_multiplier(neighbours)
        whole = math.sqrt(self.whole_data_rounds) / z if self.whole_data_rounds else 0.0
        return math.hypot(whole, self.server_mu or 0.0)

    @property
    def passes_begun(self) -> int:
        """Passes over the data begun in all clients' rounds together, with the shuffled sampler.

        Activation is cyclic: client m makes T // M rounds, the first T mod M clients one more. A pass takes
        D // B rounds (the short last batch is dropped), and a record takes part at most once in each.
        """
        rounds_a_pass = int(self.records // self.batch_size)
        base, more = divmod(self.rounds, self.clients)
        return more * -(-(base + 1) // rounds_a_pass) + (self.clients - more) * -(-base // rounds_a_pass)

    @property
    def fixed_participations(self) -> int | None:
        """Largest number of rounds a record takes part in, where fixed; None where it is Binomial(T, r).

        For shuffled batches the realised count, or the passes begun; T where every record is in every batch.
        Never more than the enforced cap.
        """
        count = self.participations
        if count is None and self.sampler == "shuffled":
            count = self.passes_begun
        if count is None and self.rate == 1.0:
            count = self.rounds
        if count is None or self.participation_cap is None:
            return count
        return min(count, self.participation_cap)


@dataclass(frozen=True)
class Composition:
    """Several releases seen together, whose batches are drawn independently of each other (phases, channels).

    With a `selection` these are what one trial of a search releases, the noised score that chooses among them, and the
    best trial alone is seen. Messages about the SAME batch are one `Release` (`directions`, `server_noise_multiplier`):
    their samplings are not independent. Raises `InputError` where there is no part, or the parts speak of different
    numbers of records.
    """

    parts: tuple[Release, ...]
    selection: Selection | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("a composition has no releases; use at least one")
        sizes = sorted({release.dataset_size for release in self.parts if release.dataset_size is not None})
        if len(sizes) > 1:
            raise InputError(
                f" in one release and {sizes[-1]} in another; use the same in both", "dataset_size", sizes[0]
            )


AnyRelease = Release | Composition


def random_batches(sampler: object) -> bool:
    """Return whether chance decides how often a record is in a batch, so that a bound counts on how they are drawn."""
    return sampler in ("poisson", "uniform")


def batches_reach_further(sampler: SamplerName, clients: int) -> bool:
    """Return whether in a training of this package hidden batches reach further than through what is released.

    Under `poisson` a record that is drawn or not shifts the rows of the others, and a matrix product rounds by place.
    With two clients or more the server's table keeps embeddings of each client's earlier batches; one client's own
    batch is always sent anew. The batches of `shuffled` do not amplify, so that nothing leans on it.
    """
    return sampler == "poisson" or (sampler == "uniform" and clients > 1)


def parts_of(release: AnyRelease) -> tuple[Release, ...]:
    """Return the releases of a composition, or the release itself."""
    return release.parts if isinstance(release, Composition) else (release,)


def relevant_parts(release: AnyRelease, adversary: AdversaryName) -> tuple[Release, ...]:
    """Return the parts whose noise stands between `adversary` and the record; all parts where none does.

    For the server those are the embeddings: what it sends is a function of them, its labels and its own noise. For
    everybody else it is what the server sends, whatever the embeddings look like.
    """
    parts = parts_of(release)
    wanted = tuple(candidate for candidate in parts if (candidate.channel == "embedding") == (adversary in SERVERS))
    return wanted or parts


_KINDS: dict[str, Any] = get_type_hints(Release)
"""The type of each field."""


def _checked(name: str, value: Any, kind: Any) -> object:
    """Return `value` as the type `kind` of its field has it; `InputError` unless it is one."""
    if get_origin(kind) is Literal:
        check_names(name, [str(value)], get_args(kind))
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise InputError("use true or false", name, value)
        return value
    if kind is float or float in get_args(kind):
        return float(check_positive(name, value))
    return check_count(name, value, least=0 if name == "whole_data_rounds" else 1, most=_MOST)


def realised_participations(
    batches: Iterable[ArrayLike], *, dataset_size: int, rounds: int, distinct_ids: bool = False
) -> int:
    """Return the largest number of `batches`, of all clients together, that one record is in.

    Each batch holds record numbers in [0, `dataset_size`); -1 marks an empty place. There must be one for each of
    `rounds`: part of a schedule, one client's say, would count too few. A record named twice in a batch moves the
    message twice as far, so it is refused unless the server reads it once (`distinct_ids`). Raises `InputError`.
    """
    check_count("dataset_size", dataset_size)
    check_count("rounds", rounds)
    counts = np.zeros(dataset_size, dtype=np.int64)
    number = 0
    for number, batch in enumerate(batches, start=1):
        ids = np.asarray(batch)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise InputError(f"batch {number} has shape {ids.shape} of {ids.dtype}; use one row of record numbers")
        if ids.size and not (ids.min() >= -1 and ids.max() < dataset_size):
            wrong = ids.min() if ids.min() < -1 else ids.max()
            raise InputError(f"batch {number} names record {wrong}; use a number in [0, {dataset_size - 1}], or be -1")
        named, times = np.unique(ids[ids >= 0].astype(np.int64), return_counts=True)
        if not distinct_ids and (times > 1).any():
            raise InputError(
                f"batch {number} names record {named[times > 1][0]} more than once; name it once, or let the server "
                "enforce distinct ids"
            )
        counts[named] += 1
    if number != rounds:
        raise InputError(f"the schedule has {number} batches; use one for each of the {rounds} rounds")
    return max(1, int(counts.max()))
