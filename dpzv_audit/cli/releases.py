"""How what the user said becomes a release for an accountant: by its numbers, or by a method."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpzv_audit.cli.flags import Count, TrainingFlags, Whole
from dpzv_audit.cli.options import DataFlags, choose, configure, parsed_settings
from dpzv_audit.errors import InputError, check_positive

if TYPE_CHECKING:
    from dpzv_audit.accounting import Release


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


@dataclass(frozen=True, kw_only=True)
class MethodFlags:
    """The noise, and the method whose release is meant in place of numbers; None where not given.

    Options:
        sigma X: Standard deviation of the noise on the message.
        method NAME: Instead of numbers: a method and its settings.
        dataset NAME: With --method: whose records, unless --dataset-size; digits by default.
        data_dir DIR: Folder with the data sets' original files; by default what DPZV_AUDIT_DATA names.
        epochs N: Epochs of D/B rounds, over all clients together; by default the method's own.
        calibration paper|sound|none: How the noise follows from the claim; by default the method's own.
        settings KEY=VALUE: Any other setting of the method; may be given several times.
        seed N: Every random stream follows from this number.
    """

    sigma: float | None = None
    method: str | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    epochs: Count | None = None
    calibration: str | None = None
    settings: Annotated[list[str] | None, "--set"] = None
    seed: Whole = 0

    def training(self, sizes: SizeFlags, *, epsilon: float | None = None, delta: float | None = None) -> TrainingFlags:
        """Return the method and its settings, with the sizes that were given."""
        own = {name: getattr(self, name) for name in ("method", "epochs", "calibration", "sigma", "settings")}
        return TrainingFlags(**own, batch_size=sizes.batch_size, epsilon=epsilon, delta=delta)

    def data(self, details: DetailFlags) -> DataFlags:
        """Return whose records the method trains on."""
        return DataFlags(dataset=self.dataset, data_dir=self.data_dir, clients=details.clients)

    def refuse_unused(self, sizes: SizeFlags) -> None:
        """Raise `InputError` for a flag that says nothing: of a method where there is none, of data not looked at."""
        whose = {"dataset": self.dataset, "data_dir": self.data_dir}
        own = {"epochs": self.epochs, "calibration": self.calibration, "set": self.settings}
        if self.method is None:
            _refuse({**whose, **own}, "which goes with --method alone")
        elif sizes.dataset_size is not None:
            _refuse(whose, "which says nothing beside --dataset-size, give one of them")


def _refuse(flags: Mapping[str, object], why: str) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise InputError(why, flag, str(value) if isinstance(value, Path) else value)


def release_flags(sizes: SizeFlags, details: DetailFlags) -> dict[str, Any]:
    """Return all flags of a release by field of `Release` (and `schedule`), None where not given."""
    return {key: None if value is False else value for key, value in (vars(sizes) | vars(details)).items()}


def described(flags: Mapping[str, Any], *, sigma: float) -> Release:
    """Return the release that the flags describe by its numbers; `flags` by field, None where not given.

    Raises `InputError` naming a flag that is missing or wrong.
    """
    from dpzv_audit.accounting import Release

    given = {key: value for key, value in flags.items() if value is not None}
    needed: tuple[str, ...] = ("batch_size", "dataset_size", "rounds")
    if "sample_rate" in given:
        needed = ("rounds",)
        given.setdefault("batch_size", 1)
    for key in needed:
        if key not in given:
            raise InputError(f"--{key.replace('_', '-')} is missing: describe the release, or name a --method")
    schedule = given.pop("schedule", None)
    if schedule is not None:
        if "participations" in given:
            raise InputError("--schedule and --participations say the same, give one of them")
        if "dataset_size" not in given:
            raise InputError("--dataset-size is missing: --schedule names records by number")
        given["participations"] = realised(
            schedule, given["dataset_size"], rounds=given["rounds"], distinct_ids=given.get("distinct_ids", False)
        )
    defaults = {"sampler": "shuffled", "server_update": "none", "clip": 1.0}
    return Release(**{**defaults, **given, "sigma": sigma})


def realised(path: Path, dataset_size: int, *, rounds: int, distinct_ids: bool) -> int:
    """Return the largest count of a record in the batches of a .npy file, (rounds, B) whole numbers."""
    from dpzv_audit.accounting.release import realised_participations
    from dpzv_audit.npy import read_npy

    try:
        with path.open("rb") as file:
            batches = read_npy(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"which cannot be read ({error.strerror}), must be a .npy file", "schedule", path) from None
    except ValueError as error:
        raise InputError(f"which {error}; must be an array that numpy.save wrote", "schedule", path) from None
    if batches.ndim != 2:
        raise InputError("must hold one array of record numbers, a row a round", "schedule", path)
    try:
        return realised_participations(batches, dataset_size=dataset_size, rounds=rounds, distinct_ids=distinct_ids)
    except InputError as error:
        raise InputError(f": {error.words}", "schedule", path) from None


def of_method(
    training: TrainingFlags, data: DataFlags, *, records: int | None, seed: int
) -> tuple[Release, float | None, float]:
    """Return a method's release, the epsilon that theorem 5.1 gave its noise for (None: other noise), and its delta.

    `records` takes the place of the data set's, which then is not loaded. Raises `InputError` for a method that adds
    no noise.
    """
    from dpzv_audit.evaluation.privacy import check_noise, noised
    from mechanisms import method_named
    from mechanisms.core.context import Deployment
    from mechanisms.methods.dpzv import scalar_config

    if records is None:
        choice = choose(training, data)
        config, records, clients = choice.config, len(choice.dataset.train), choice.dataset.clients
    else:
        _, config = configure(training)
        clients = data.clients or 1
    method = method_named(training.method or "")
    releases = method.releases(config, Deployment(records=records, clients=clients, seed=seed))
    if not releases:
        noised(method, config)
        check_noise(0.0)
    scalars, given = scalar_config(method, config), method.protection(config)
    by_theorem = scalars is not None and scalars.calibration == "paper" and scalars.sigma is None
    return releases[0], given.epsilon if by_theorem else None, given.delta


def sigma_of(
    flags: Mapping[str, Any],
    *,
    sigma: float | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    relations: tuple[str, ...],
    delta: float,
) -> float:
    """Return the noise from the one of three flags that was given; `InputError` where none or several were."""
    from dpzv_audit.accounting import sigma_from_paper

    noises = {"--sigma": sigma, "--epsilon": epsilon, "--noise-multiplier": noise_multiplier}
    found = [flag for flag, value in noises.items() if value is not None]
    if len(found) != 1:
        given = f"{' and '.join(found)} are given" if found else "no noise is given"
        raise InputError(f"{given}, must be exactly one of --sigma, --epsilon and --noise-multiplier")
    if noise_multiplier is None and flags.get("clip") is None:
        raise InputError("--clip is missing: without --noise-multiplier the noise needs it to compare with")
    if sigma is not None:
        check_positive("sigma", sigma)
        return sigma
    if noise_multiplier is not None:
        check_positive("noise_multiplier", noise_multiplier)
        unit = described(flags, sigma=described_unit(flags))
        sensitivities = {unit.sensitivity(relation) for relation in relations}  # type: ignore[arg-type]
        if len(sensitivities) > 1:
            raise InputError(
                "of a sensitivity that differs by relation: name one relation with --neighbours",
                "noise_multiplier",
                noise_multiplier,
            )
        return noise_multiplier * sensitivities.pop()
    assert epsilon is not None
    check_positive("epsilon", epsilon)
    sizes = described(flags, sigma=described_unit(flags))
    if sizes.dataset_size is None:
        raise InputError("--dataset-size is missing: theorem 5.1 divides by it, or give --sigma or --noise-multiplier")
    return sigma_from_paper(
        epsilon,
        delta,
        clip=sizes.clip,
        dataset_size=sizes.dataset_size,
        rounds=sizes.rounds * sizes.directions,
    )


def described_unit(flags: Mapping[str, Any]) -> float:
    """Return a sigma that fits any clip: one clipped record's part, for a release whose noise is yet to be found."""
    clip = flags.get("clip")
    clip = 1.0 if clip is None else check_positive("clip", clip)
    batch = flags.get("batch_size") or 1
    return float(clip) / (batch if (flags.get("channel") or "scalar") == "scalar" else 1)


def others(release: Release, also: list[str] | None) -> tuple[Release, ...]:
    """Return `release` and the releases of --also, each the same but for the settings it names.

    A realised count belongs to the schedule it was read off: another schedule must say its own.
    """
    names = [field.name for field in fields(release)]
    found = [release]
    for text in also or []:
        changes = parsed_settings("also", [item.strip() for item in text.split(",")], names, example="sigma=0.5")
        other = {"rounds", "batch_size", "dataset_size", "clients", "sampler"}.intersection(changes)
        if other and release.participations is not None and "participations" not in changes:
            raise InputError(
                f"which is another schedule than the one with {release.participations} "
                "participations: add participations=N, or participations=null for the passes begun",
                "also",
                text,
            )
        try:
            found.append(replace(release, **changes))
        except InputError as error:  # a flag of the same name is about the first release
            raise error.placed("") from None
    return tuple(found)
