"""Noise of the baselines from (epsilon, delta): what a protected channel releases, to whom, and for which neighbours.

Sensitivities of a message (accounting.md): a row clipped to C moves by 2C where a record is replaced and by C where its
block is zeroed out; one clip over the whole tensor of a batch moves by 2C in either case. Every message about a record
is counted: both uploads of a zeroth-order client, the first table, and all clients' messages of a synchronous round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, TypeVar

from dpzv_audit.accounting import Release, calibrate
from dpzv_audit.accounting.release import ServerUpdate, batches_reach_further
from dpzv_audit.errors import InputError
from dpzv_audit.findings import AdversaryName, NeighbourRelation
from mechanisms.config import ProtectedConfig
from mechanisms.context import Deployment
from mechanisms.method import Games, Protection
from mechanisms.plan import active_clients, check_plan, participations_of
from mechanisms.protection import PROTECTS

P = TypeVar("P", bound=ProtectedConfig)

RowChannel = Literal["embedding", "gradient"]

AUDIENCE: dict[RowChannel, tuple[AdversaryName, ...]] = {
    "embedding": ("server",),
    "gradient": ("client", "colluding-clients", "all-but-one"),
}
"""Whom the noise on a channel stands against; the first is meant where none is named."""


def channel_protection(config: ProtectedConfig) -> Protection:
    """Return what the noise of a baseline protects; nothing where `config` asks for none."""
    claim: dict[str, Any] = {"epsilon": config.epsilon, "delta": config.delta}
    if not config.protected:
        return Protection(words=PROTECTS["none"], **claim)
    channel = channel_of(config)
    return Protection(
        words=PROTECTS[config.dp],
        channel=channel,
        audience=AUDIENCE[channel],
        neighbours=relation_of(config),
        draws=True,
        **claim,
    )


def channel_games(config: ProtectedConfig) -> Games:
    """Return that no game is played on the channels of the baselines."""
    return Games(why_not="the games are played on noised scalars; noise on another channel is accounted, not audited")


def channel_releases(config: ProtectedConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return the noised messages of a training; () where no channel is protected.

    Raises `InputError` where the schedule does not fit the clients, or no noise reaches a target epsilon.
    """
    if not config.protected:
        return ()
    config = calibrated(config, records=deployment.records, clients=deployment.clients, seed=deployment.seed)
    return (channel_release(config, deployment),)


def channel_of(config: ProtectedConfig) -> RowChannel:
    """The channel that the noise of `config` is on; `InputError` where it has none."""
    if config.dp == "none":
        raise InputError("must be embedding, embedding-batch or gradient: no channel is protected", "dp", config.dp)
    return "gradient" if config.dp == "gradient" else "embedding"


def relation_of(config: ProtectedConfig) -> NeighbourRelation:
    """The neighbour relation of `config`: its own, or the one that the channel is about."""
    return config.neighbours or ("replace-label" if config.dp == "gradient" else "replace-record")


def channel_release(config: ProtectedConfig, deployment: Deployment) -> Release:
    """Return the messages of a training noised by `dp_sigma`, as an accountant takes them.

    Raises `InputError` where no channel is protected, or the schedule does not fit the clients.
    """
    records, clients = deployment.records, deployment.clients
    channel, rounds = channel_of(config), check_plan(config, records=records, clients=clients)
    if config.all_at_once:
        by_client = [rounds]
    else:
        counted = Counter(islice(active_clients(config, clients, deployment.seed), rounds))
        by_client = [counted[m] for m in range(1, clients + 1)]
    moved: ServerUpdate = "frozen" if config.server_rate == 0 else config.server_step
    return Release(
        batch_size=config.batch_size,
        dataset_size=records,
        rounds=rounds,
        clip=config.dp_clip,
        sigma=config.dp_sigma,
        sampler=config.sampler,
        sample_rate=config.sample_rate,
        server_update=moved if config.top_model else "none",
        # All clients of a synchronous round send about one batch: a record takes part once, with all their messages.
        clients=1 if config.all_at_once else clients,
        channel=channel,
        directions=(config.uploads if channel == "embedding" else 1) * (clients if config.all_at_once else 1),
        participations=participations_of(config, by_client, records=records),
        whole_data_rounds=0 if config.all_at_once or channel == "gradient" else clients,
        clip_scope="batch" if config.dp == "embedding-batch" else "record",
        client_update="frozen" if config.client_rate == 0 else config.client_step,
        secret_batches=batches_reach_further(config.sampler, clients),
        noise=config.noise,
        seeded_noise=deployment.seeded_noise,
        data_dependent_side=deployment.data_dependent_side,
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
    unit = config.model_copy(update={"dp_sigma": config.dp_clip})
    release = channel_release(unit, Deployment(records=records, clients=clients, seed=seed))
    if config.calibration == "messages":
        release = replace(release, client_update="frozen", server_update="none", noise="exact")
    answer = calibrate(
        release,
        unknown="sigma",
        epsilon=config.epsilon,
        delta=config.delta,
        adversary=AUDIENCE[channel_of(config)][0],
        neighbours=relation_of(config),
    )
    if not answer.reached or answer.value is None:
        raise InputError(
            f" with dp {config.dp}, must be another setting: {answer.reason}", "calibration", config.calibration
        )
    return config.model_copy(update={"dp_sigma": float(answer.value)})
