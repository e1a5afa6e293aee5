"""Noise of the baselines from (epsilon, delta): what a protected channel releases, to whom, and for which neighbours.

Sensitivities of a message (accounting.md): a row clipped to C moves by 2C where a record is replaced and by C where its
block is zeroed out; one clip over the whole tensor of a batch moves by 2C in either case. Every message about a record
is counted: both uploads of a zeroth-order client, the first table, and all clients' messages of a synchronous round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from dpzv_audit.accounting import Release, calibrate, gaps_of
from dpzv_audit.accounting.release import Channel, ClientUpdate, ServerUpdate, batches_reach_further
from dpzv_audit.errors import InputError
from dpzv_audit.evidence import AdversaryName, NeighbourRelation
from mechanisms.config import CompressedConfig, ProtectedConfig, ZerothOrderConfig
from mechanisms.plan import active_clients, check_plan, participations_of
from mechanisms.protection import PROTECTS

P = TypeVar("P", bound=ProtectedConfig)

AUDIENCE: dict[Channel, tuple[AdversaryName, ...]] = {
    "embedding": ("server",),
    "gradient": ("client", "colluding-clients", "all-but-one"),
}
"""Whom the noise on a channel stands against; the first is meant where none is named."""


@dataclass(frozen=True, kw_only=True)
class ChannelGuarantee:
    """What the noise of a baseline says: on which channel, against whom, for which neighbours, and on what it rests."""

    channel: Channel
    adversary: AdversaryName
    neighbours: NeighbourRelation
    release: Release
    gaps: tuple[str, ...]
    """Names of the proof gaps (`dpzv_audit.accounting.GAPS`) that any epsilon of this release rests on; none: sound."""

    @property
    def words(self) -> str:
        """The same in words, for a result."""
        rests = f"rests on the gap {', '.join(self.gaps)}" if self.gaps else "sound"
        return (
            f"noise of standard deviation {self.release.sigma:.6g} on every coordinate of a row clipped to "
            f"{self.release.clip:g}, {self.channel} channel, against the {self.adversary}, {self.neighbours}: {rests}"
        )


def channel_of(config: ProtectedConfig) -> Channel:
    """The channel that the noise of `config` is on; `InputError` where it has none."""
    if config.dp == "none":
        raise InputError("dp is 'none', must be embedding, embedding-batch or gradient: no channel is protected")
    return "gradient" if config.dp == "gradient" else "embedding"


def relation_of(config: ProtectedConfig) -> NeighbourRelation:
    """The neighbour relation of `config`: its own, or the one that the channel is about."""
    return config.neighbours or ("replace-label" if config.dp == "gradient" else "replace-record")


def channel_release(config: ProtectedConfig, *, sigma: float, records: int, clients: int, seed: int) -> Release:
    """Return the noised messages of a training on `records` records, as an accountant takes them.

    Raises `InputError` where no channel is protected, or the schedule does not fit the clients.
    """
    channel, rounds = channel_of(config), check_plan(config, records=records, clients=clients)
    zeroth = isinstance(config, ZerothOrderConfig)
    uploads = 2 if zeroth and channel == "embedding" else 1
    synchronous = isinstance(config, CompressedConfig) or (isinstance(config, ZerothOrderConfig) and config.synchronous)
    if synchronous:
        by_client = [rounds]
    else:
        counted = Counter(islice(active_clients(config, clients, seed), rounds))
        by_client = [counted[m] for m in range(1, clients + 1)]
    return Release(
        batch_size=config.batch_size,
        dataset_size=records,
        rounds=rounds,
        clip=config.dp_clip,
        sigma=sigma,
        sampler=config.sampler,
        sample_rate=config.sample_rate,
        server_update=_server_update(config),
        # All clients of a synchronous round send about one batch: a record takes part once, with all their messages.
        clients=1 if synchronous else clients,
        channel=channel,
        directions=uploads * (clients if synchronous else 1),
        participations=participations_of(config, by_client, records=records),
        whole_data_rounds=0 if synchronous or channel == "gradient" else clients,
        clip_scope="batch" if config.dp == "embedding-batch" else "record",
        client_update=_client_update(config),
        secret_batches=batches_reach_further(config.sampler, clients),
        noise=config.noise,
    )


def calibrated(config: P, *, records: int, clients: int, seed: int) -> P:
    """`config` with the `dp_sigma` that follows from its epsilon, or as it is where none is given.

    With calibration `messages` the noised messages alone are accounted, as if the clients' and the server's states and
    the low bits of floating-point noise told nothing more; with `sound` they must not.

    Raises:
        InputError: Calibration is `sound` and no sound bound exists; the line names the gap.
    """
    if config.epsilon is None:
        return config
    release = channel_release(config, sigma=config.dp_clip, records=records, clients=clients, seed=seed)
    if config.calibration == "messages":
        release = replace(release, client_update="frozen", server_update="none", noise="exact")
    answer = calibrate(
        release,
        unknown="sigma",
        epsilon=config.epsilon,
        delta=config.delta,
        adversary=AUDIENCE[release.channel][0],
        neighbours=relation_of(config),
    )
    if not answer.reached or answer.value is None:
        raise InputError(
            f"calibration is {config.calibration!r} with dp {config.dp}, must be another setting: {answer.reason}"
        )
    return config.model_copy(update={"dp_sigma": float(answer.value)})


def guarantee(
    config: ProtectedConfig,
    *,
    records: int,
    clients: int,
    seed: int,
    adversary: AdversaryName | None = None,
    seeded_noise: bool = False,
    data_dependent_side: bool = False,
) -> ChannelGuarantee:
    """What the noise of `config` is worth; `adversary` is one of the channel's `AUDIENCE`.

    `seeded_noise` and `data_dependent_side` are those of `dpzv_audit.accounting.Release`.

    Raises `InputError` where no noise is added, or it does not stand against that adversary.
    """
    channel = channel_of(config)
    whom = adversary or AUDIENCE[channel][0]
    if whom not in AUDIENCE[channel]:
        raise InputError(f"adversary is {whom!r}, must be {' or '.join(AUDIENCE[channel])}: {PROTECTS[config.dp]}")
    sigma = calibrated(config, records=records, clients=clients, seed=seed).dp_sigma
    if sigma == 0.0:
        raise InputError("dp_sigma is 0, must be above 0: a clip alone protects nothing")
    release = replace(
        channel_release(config, sigma=sigma, records=records, clients=clients, seed=seed),
        seeded_noise=seeded_noise,
        data_dependent_side=data_dependent_side,
    )
    neighbours = relation_of(config)
    return ChannelGuarantee(
        channel=channel,
        adversary=whom,
        neighbours=neighbours,
        release=release,
        gaps=gaps_of(release, whom, neighbours),
    )


def _server_update(config: ProtectedConfig) -> ServerUpdate:
    if not config.top_model:
        return "none"
    if config.server_rate == 0:
        return "frozen"
    return "zo" if isinstance(config, ZerothOrderConfig) and not config.server_first_order else "sgd"


def _client_update(config: ProtectedConfig) -> ClientUpdate:
    if config.client_rate == 0:
        return "frozen"
    return "zeroth-order" if isinstance(config, ZerothOrderConfig) else "first-order"
