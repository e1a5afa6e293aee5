"""How what the user said becomes a release for an accountant: by its numbers, or by a method."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpzv_audit.errors import InputError, check_positive

if TYPE_CHECKING:
    from dpzv_audit.accounting import Release
    from dpzv_audit.cli.data_options import DataFlags
    from dpzv_audit.cli.flags import TrainingFlags


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
    from dpzv_audit.cli.options import choose, configure
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
    from dpzv_audit.cli.options import parsed_settings

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
