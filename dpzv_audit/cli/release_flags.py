"""Options that describe a release to an accountant by its numbers, shared by `account` and `calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dpzv_audit.cli.data_options import DEFAULT_DATASET

NoiseOption = Annotated[
    float | None, typer.Option("--sigma", metavar="X", help="Standard deviation of the noise on the message.")
]
MultiplierOption = Annotated[
    float | None,
    typer.Option(
        "--noise-multiplier",
        metavar="Z",
        help="Instead of --sigma: sigma over the sensitivity (2C/B where a record is replaced, else C/B).",
    ),
]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="KEY=VALUE,...",
        help="Another release that is seen too: the same but for these settings, with batches of its own; "
        "may be given several times.",
    ),
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help=f"With --method: whose records, unless --dataset-size; {DEFAULT_DATASET} by default.",
    ),
]
RelationOption = Annotated[
    str | None,
    typer.Option(
        "--neighbours",
        metavar="NAME",
        help="How neighbours differ: replace-label, replace-record, zero-out, add-remove or all.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SizeFlags:
    """The sizes of a release, as the user said them; None where not given."""

    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", metavar="B", help="Records in a batch; with --sample-rate the public divisor, 1 by default."
        ),
    ] = None
    dataset_size: Annotated[int | None, typer.Option("--dataset-size", metavar="D", help="Records in all.")] = None
    sample_rate: Annotated[
        float | None,
        typer.Option(
            "--sample-rate",
            metavar="Q",
            help="Chance that a record is in a Poisson batch, where it and --rounds are public constants; else B/D.",
        ),
    ] = None
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="T", help="Rounds, all clients together: a batch each.")
    ] = None
    clip: Annotated[
        float | None,
        typer.Option("--clip", "--max-grad-norm", metavar="C", help="Clipping norm of one record's part in a message."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DetailFlags:
    """What else tells one release from another, as the user said it; None or False where not given."""

    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler", metavar="NAME", help="How batches are drawn: shuffled (default), uniform or poisson."
        ),
    ] = None
    clients: Annotated[
        int | None, typer.Option("--clients", metavar="M", help="Number of clients, which take turns.")
    ] = None
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel",
            metavar="NAME",
            help="What carries the noise: scalar (default), gradient, embedding or zo-gradient.",
        ),
    ] = None
    directions: Annotated[
        int | None, typer.Option("--directions", metavar="Q", help="Messages a round about the same batch.")
    ] = None
    whole_data_rounds: Annotated[
        int | None,
        typer.Option(
            "--whole-data-rounds", metavar="N", help="Messages about every record, such as the table's filling."
        ),
    ] = None
    server_update: Annotated[
        str | None,
        typer.Option(
            "--server-update",
            metavar="NAME",
            help="How the server learns: none (default: no parameters), joint-zo, frozen, dp-sgd, sgd or zo.",
        ),
    ] = None
    server_mu: Annotated[
        float | None,
        typer.Option(
            "--server-mu", metavar="X", help="Gaussian-DP mu of all of the server's own noised updates together."
        ),
    ] = None
    server_noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--server-noise-multiplier",
            metavar="X",
            help="Instead of --server-mu: dp-sgd's noise over its clip, on each round's batch.",
        ),
    ] = None
    client_update: Annotated[
        str | None,
        typer.Option(
            "--client-update", metavar="NAME", help="How clients step: zeroth-order (default), first-order or frozen."
        ),
    ] = None
    clip_rule: Annotated[
        str | None,
        typer.Option(
            "--clip-rule", metavar="NAME", help="How a scalar is clipped: symmetric (default) or paper-one-sided."
        ),
    ] = None
    clip_scope: Annotated[
        str | None,
        typer.Option(
            "--clip-scope",
            metavar="NAME",
            help="What is clipped: record (default), or batch, one clip over a whole tensor.",
        ),
    ] = None
    ids: Annotated[
        str | None,
        typer.Option("--ids", metavar="NAME", help="Whether batch ids are secret on the wire (default) or public."),
    ] = None
    participations: Annotated[
        int | None,
        typer.Option(
            "--participations",
            metavar="N",
            help="Most rounds that any record took part in, where batches are shuffled.",
        ),
    ] = None
    schedule: Annotated[
        Path | None,
        typer.Option(
            "--schedule",
            metavar="FILE",
            help="The batches drawn, in place of --participations: a .npy, record numbers by round (-1: empty).",
        ),
    ] = None
    participation_cap: Annotated[
        int | None,
        typer.Option(
            "--participation-cap", metavar="N", help="Most rounds that the server lets a record take part in."
        ),
    ] = None
    distinct_ids: Annotated[
        bool, typer.Option("--distinct-ids", help="The server refuses a batch that names a record twice.")
    ] = False
    batch_coupling: Annotated[bool, typer.Option("--batch-coupling", help="A layer mixes the records of a batch.")] = (
        False
    )
    data_dependent_side: Annotated[
        bool,
        typer.Option("--data-dependent-side", help="Scalers, stopping, checkpoints or logs depend on the data too."),
    ] = False
    seeded_noise: Annotated[
        bool, typer.Option("--seeded-noise", help="The noise follows from a seed that others learn.")
    ] = False
    own_rounds_only: Annotated[
        bool, typer.Option("--own-rounds-only", help="--rounds counts the rounds of one of several clients alone.")
    ] = False
    padded: Annotated[bool, typer.Option("--padded", help="Messages have one length whatever the batch's size.")] = (
        False
    )


def release_flags(sizes: SizeFlags, details: DetailFlags) -> dict[str, Any]:
    """Return all flags of a release by field of `Release` (and `schedule`), None where not given."""
    return {key: None if value is False else value for key, value in (vars(sizes) | vars(details)).items()}
