"""Options that describe a release to an accountant by its numbers, shared by `account` and `calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any


@dataclass(frozen=True, kw_only=True)
class SizeFlags:
    """The sizes of a release, as the user said them; None where not given.

    Options:
        batch_size B: Records in a batch; with --sample-rate the public divisor, 1 by default.
        dataset_size D: Records in all.
        sample_rate Q: Chance that a record is in a Poisson batch, where it and --rounds are public constants; else B/D.
        rounds T: Rounds, all clients together: a batch each.
        clip C: Clipping norm of one record's part in a message.
    """

    batch_size: int | None = None
    dataset_size: int | None = None
    sample_rate: float | None = None
    rounds: int | None = None
    clip: Annotated[float | None, "--clip", "--max-grad-norm"] = None


@dataclass(frozen=True, kw_only=True)
class DetailFlags:
    """What else tells one release from another, as the user said it; None or False where not given.

    Options:
        sampler NAME: How batches are drawn: shuffled (default), uniform or poisson.
        clients M: Number of clients, which take turns.
        channel NAME: What carries the noise: scalar (default), gradient, embedding or zo-gradient.
        directions Q: Messages a round about the same batch.
        whole_data_rounds N: Messages about every record, such as the table's filling.
        server_update NAME: How the server learns: none (default: no parameters), joint-zo, frozen, dp-sgd, sgd or zo.
        server_mu X: Gaussian-DP mu of all of the server's own noised updates together.
        server_noise_multiplier X: Instead of --server-mu: dp-sgd's noise over its clip, on each round's batch.
        client_update NAME: How clients step: zeroth-order (default), first-order or frozen.
        clip_rule NAME: How a scalar is clipped: symmetric (default) or paper-one-sided.
        clip_scope NAME: What is clipped: record (default), or batch, one clip over a whole tensor.
        ids NAME: Whether batch ids are secret on the wire (default) or public.
        participations N: Most rounds that any record took part in, where batches are shuffled.
        schedule FILE: The batches drawn, in place of --participations: a .npy, record numbers by round (-1: empty).
        participation_cap N: Most rounds that the server lets a record take part in.
        distinct_ids: The server refuses a batch that names a record twice.
        batch_coupling: A layer mixes the records of a batch.
        data_dependent_side: Scalers, stopping, checkpoints or logs depend on the data too.
        seeded_noise: The noise follows from a seed that others learn.
        own_rounds_only: --rounds counts the rounds of one of several clients alone.
        padded: Messages have one length whatever the batch's size.
    """

    sampler: str | None = None
    clients: int | None = None
    channel: str | None = None
    directions: int | None = None
    whole_data_rounds: int | None = None
    server_update: str | None = None
    server_mu: float | None = None
    server_noise_multiplier: float | None = None
    client_update: str | None = None
    clip_rule: str | None = None
    clip_scope: str | None = None
    ids: str | None = None
    participations: int | None = None
    schedule: Path | None = None
    participation_cap: int | None = None
    distinct_ids: bool = False
    batch_coupling: bool = False
    data_dependent_side: bool = False
    seeded_noise: bool = False
    own_rounds_only: bool = False
    padded: bool = False


def release_flags(sizes: SizeFlags, details: DetailFlags) -> dict[str, Any]:
    """Return all flags of a release by field of `Release` (and `schedule`), None where not given."""
    return {key: None if value is False else value for key, value in (vars(sizes) | vars(details)).items()}
