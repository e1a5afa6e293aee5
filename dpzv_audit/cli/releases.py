"""Options that describe a release for an accountant: its numbers, or a method."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from ..accounting import Release, sigma_from_paper
from ..accounting.labels import LabelRelease
from ..accounting.release import realised_participations
from ..base.errors import InputError, check_positive
from ..base.files import open_plain
from ..base.findings import NeighbourRelation
from ..base.npy import read_npy
from .flags import DEFAULT_DELTA, Delta, Positive, TrainingFlags, Whole, flag
from .options import DataFlags, choose, configure, defences_given, parsed_settings

if TYPE_CHECKING:
    from mechanisms import MethodSpec, TrainingConfig
    from mechanisms.core.context import Deployment
    from mechanisms.core.method import Protection

_NO_FLAG = ("noise", "secret_batches")
"""What follows from how a training of this package is made."""
_KINDS = {name: kind for name, kind in get_type_hints(Release).items() if name not in _NO_FLAG}
_Numbers: Any = make_dataclass(
    "_Numbers",
    [
        (name, bool, False) if kind is bool else (name, kind | None, None)
        for name, kind in _KINDS.items()
        if name not in TrainingFlags.__dataclass_fields__
    ],
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class ReleaseFlags(_Numbers, TrainingFlags):  # type: ignore[misc]
    """The numbers of a release, or the method whose release is meant; None or False where not given.

    Basics:
        method NAME: Method, instead of numbers.
        batch_size B: Records per batch. With --sample-rate the public constant that sums are divided by, 1 by default.
        dataset_size D: Number of training records.
        rounds T: Rounds of all clients together. Each uses one batch.
        clip C: Clipping norm of a record's part in a message.
        sigma X: Noise on the message, as a standard deviation.
        epsilon X: Claimed epsilon, instead of --sigma. The noise follows from it, by theorem 5.1 of DPZV, or as
            the --method does it.
        delta X: Delta of every bound. Strictly between 0 and 1; by default 1e-5, or the method's.
        sample_rate Q: Rate of Poisson batches, if public. A record is in a batch with this probability, and --rounds is
            public too; otherwise it is B/D.
    Data:
        dataset NAME: With --method: its data set. digits by default; not with --dataset-size.
        data_dir DIR: Folder with the original files. By default the one that DPZV_AUDIT_DATA names.
    Release:
        clients M: Number of clients, which take turns.
        channel NAME: What carries the noise; scalar by default. scalar, gradient, embedding, model or zo-gradient.
        directions Q: Messages per round about the same batch.
        whole_data_rounds N: Messages about every record. Examples are those that first fill the server's table.
        clip_rule NAME: symmetric (default) or paper-one-sided.
        clip_scope NAME: What is clipped: record (default) or batch. batch is one clip over a whole tensor.
    Batches:
        sampler NAME: shuffled (default), uniform or poisson.
        participations N: Most rounds that any record took part in. Use it with shuffled batches.
        schedule FILE: Batches drawn, instead of --participations. A .npy of record numbers by round (-1: empty).
        participation_cap N: Most rounds that the server lets a record join.
        distinct_ids: The server refuses a batch with a record twice.
    Server and clients:
        server_update NAME: How the server learns; none by default. none (no parameters), joint-zo, released (it moves
            by the noised messages alone), frozen, dp-sgd, dp-zo, sgd or zo.
        server_mu X: Gaussian-DP mu of the server's own updates. It covers all noised updates together.
        server_noise_multiplier Z: Noise over clip of dp-sgd or dp-zo, for each batch. Instead of --server-mu.
        client_update NAME: zeroth-order (default), first-order or frozen.
    Conditions:
        ids NAME: Batch ids: secret (default) or public. Public ids can be read on the wire.
        batch_coupling: A layer mixes the records of a batch. An example is batch normalisation.
        data_dependent_side: Scalers, stopping or logs depend on the data. Use it for checkpoints too.
        seeded_noise: The noise follows from a seed that others learn.
        seeded_batches: The batches follow from such a seed. Use it for a seed that others choose too.
        own_rounds_only: --rounds counts the rounds of one client only.
        padded: Messages have one length for all batch sizes.
        clear_uploads: Uploads of features can be read on the wire.
    Execution:
        seed N: Seed of everything but secret noise.
    """

    method: str | None = None
    epsilon: Positive | None = None
    delta: Delta | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    seed: Whole = 0
    schedule: Path | None = None

    @property
    def _numbers(self) -> dict[str, Any]:
        """Return the given numbers of a release but its noise, by field of `Release` (and `schedule`)."""
        names = {*_KINDS, "schedule"} - {"sigma"}
        numbers = {name: value for name, value in vars(self).items() if name in names}
        return {name: value for name, value in numbers.items() if value is not None and value is not False}

    @property
    def _training(self) -> TrainingFlags:
        """Return the options of a method."""
        return TrainingFlags(**{name: getattr(self, name) for name in TrainingFlags.__dataclass_fields__})

    @property
    def unit(self) -> float:
        """Return a sigma that fits any clip, one clipped record's part: the noise is yet to be found."""
        clip = 1.0 if self.clip is None else float(check_positive("clip", self.clip))
        if self.channel in (None, "scalar"):
            return clip / (self.batch_size or 1)
        return clip

    def release(self, sigma: float) -> Release:
        """Return the release that the numbers describe; `InputError` naming a flag that is missing or wrong."""
        usual: dict[str, Any] = {"sampler": "shuffled", "server_update": "none", "clip": 1.0}
        needed = ["batch_size", "dataset_size", "rounds"]
        if self.sample_rate is not None:
            usual["batch_size"] = 1
            needed = ["rounds"]
        numbers = usual | self._numbers | {"sigma": sigma}
        for key in needed:
            if key not in numbers:
                raise InputError(f"{flag(key)} is missing: describe the release, or name a --method")
        schedule = numbers.pop("schedule", None)
        if schedule is not None:
            if self.participations is not None:
                raise InputError("--schedule and --participations say the same, give one of them")
            if self.dataset_size is None:
                raise InputError("--dataset-size is missing: --schedule names records by number")
            size = self.dataset_size
            numbers["participations"] = realised(schedule, size, self.rounds, distinct_ids=self.distinct_ids)
        return Release(**numbers)

    def noise(self, multiplier: float | None, relations: Sequence[NeighbourRelation], delta: float) -> float:
        """Return the noise from the one of three flags that was given; `InputError` where none or several were."""
        noises = {"sigma": self.sigma, "epsilon": self.epsilon, "noise_multiplier": multiplier}
        flags = [flag(name) for name, value in noises.items() if value is not None]
        if len(flags) != 1:
            several = f"{' and '.join(flags)} are given" if flags else "no noise is given"
            raise InputError(f"{several}; use exactly one of --sigma, --epsilon and --noise-multiplier")
        if multiplier is None and self.clip is None:
            raise InputError("--clip is missing: without --noise-multiplier the noise needs it to compare with")
        if self.sigma is not None:
            return float(check_positive("sigma", self.sigma))
        unit = self.release(self.unit)
        if multiplier is None:
            assert self.epsilon is not None
            return sigma_from_paper(
                self.epsilon,
                delta,
                clip=unit.clip,
                dataset_size=unit.nominal_records,
                rounds=unit.rounds * unit.directions,
            )
        sensitivities = {unit.sensitivity(relation) for relation in relations}
        if len(sensitivities) > 1:
            raise InputError(
                "but the sensitivity differs by relation: name one relation with --neighbours",
                "noise_multiplier",
                multiplier,
            )
        return multiplier * sensitivities.pop()

    def of_method(self) -> "tuple[Release, float | None, Protection]":
        """Return a method's release, the epsilon that theorem 5.1 gave its noise for (else None), and its protection.

        A `dataset_size` takes the place of the data set's, which then is not loaded. Raises `InputError` for a flag
        that the method decides itself, and for a method that adds no noise.
        """
        from mechanisms.core.scalars import scalar_config

        from ..evidence.refusals import check_noise, noised

        for name, value in self._numbers.items():
            if name not in ("batch_size", "dataset_size", "clients"):
                raise InputError("but --method decides it: use --set, --epochs or --sigma", name, value)
        method, config, deployment = self._deployed()
        releases = method.releases(config, deployment)
        if not releases:
            noised(method, config)
            check_noise(0.0)
        scalars = scalar_config(method, config)
        protection = method.protection(config)
        by_theorem = scalars is not None and scalars.calibration == "paper" and scalars.sigma is None
        return releases[0], protection.epsilon if by_theorem else None, protection

    def _deployed(self) -> "tuple[MethodSpec, TrainingConfig, Deployment]":
        """Return the method, its configuration, and on how many records by how many clients it is trained."""
        from mechanisms.core.context import Deployment

        training = self._training
        if self.dataset_size is None:
            data = DataFlags(dataset=self.dataset, data_dir=self.data_dir, clients=self.clients)
            choice = choose(training, data)
            method = choice.method
            config = choice.config
            records = len(choice.dataset.train)
            clients = choice.dataset.clients
        else:
            method, config = configure(training)
            records = self.dataset_size
            clients = self.clients or 1
            try:
                config.steps_per_pass(records)
            except InputError as error:
                cure = "give --batch-size B, or a larger --dataset-size"
                raise InputError(f"{error.rule}; {cure}", error.field, error.value) from error
        return method, config, Deployment(records=records, clients=clients, seed=self.seed)

    @property
    def has_defence(self) -> bool:
        """Return whether labels are privatised before training, by --defence or by the method's default."""
        from mechanisms import METHODS

        spec = None if self.method is None else METHODS.get(self.method)
        return bool(self.defence) or (spec is not None and bool(spec.defaults.get("defences")))

    def of_labels(self) -> tuple[LabelRelease, Release | None, float]:
        """Return what the defence releases of labels, the method's own noise where that counts too, and delta.

        Data are looked at only for the latter. Raises `InputError` where the defence promises nothing, or does not fit
        the method.
        """
        from mechanisms.core.defence import label_release

        from ..evidence.privacy import own_release

        training = self._training
        if self.method is None:
            protection = None
            labels = label_release(defences_given(training)["defences"])
        else:
            method, config = configure(training)
            protection = method.protection(config)
            labels = label_release(config.defences)
        if labels is None:
            raise InputError("promises nothing: there is no epsilon to bound", "defence", ", ".join(self.defence or ()))
        delta = self.delta or labels.delta or (DEFAULT_DELTA if protection is None else protection.delta)
        noised = protection is not None and protection.draws and labels.by_record
        return labels, own_release(*self._deployed()) if noised else None, delta

    def refuse_unused(self) -> None:
        """Raise `InputError` for a flag that says nothing: of a method where there is none, of data not looked at."""
        unused: dict[str, object] = {"dataset": self.dataset, "data_dir": self.data_dir}
        why = "which says nothing beside --dataset-size, give one of them"
        if self.method is None:
            unused |= {"epochs": self.epochs, "calibration": self.calibration, "set": self.settings}
            why = "which goes with --method alone"
        elif self.dataset_size is None:
            return
        for name, value in unused.items():
            if value is not None:
                raise InputError(why, name, str(value) if isinstance(value, Path) else value)


def realised(path: Path, dataset_size: int, rounds: int, *, distinct_ids: bool) -> int:
    """Return the largest count of a record in the batches of a .npy file, (rounds, B) whole numbers."""
    wrong = "use a file of one array of record numbers, one row per round"
    try:
        with open_plain(path) as file:
            batches = read_npy(file, os.fstat(file.fileno()).st_size)
        if batches.ndim == 2:
            return realised_participations(batches, dataset_size=dataset_size, rounds=rounds, distinct_ids=distinct_ids)
    except OSError as error:
        wrong = f"which cannot be read ({error.strerror}); use a .npy file"
    except ValueError as error:
        wrong = f"which {error}; use an array that numpy.save wrote"
    except InputError as error:
        wrong = f": {error.words}"
    raise InputError(wrong, "schedule", path)


_SCHEDULE = ("rounds", "batch_size", "dataset_size", "clients", "sampler")


def others(release: Release, also: list[str] | None) -> tuple[Release, ...]:
    """Return `release` and the releases of --also, each the same but for the settings it names.

    A realised count belongs to the schedule it was read off: another schedule must say its own.
    """
    names = Release.__dataclass_fields__
    releases = [release]
    for text in also or []:
        items = [item.strip() for item in text.split(",")]
        changes: dict[str, Any] = parsed_settings("also", items, names, example="sigma=0.5")
        other_schedule = not changes.keys().isdisjoint(_SCHEDULE)
        if other_schedule and release.participations is not None and "participations" not in changes:
            raise InputError(
                f"which is a different schedule from the one with {release.participations} "
                "participations: add participations=N, or participations=null for the passes begun",
                "also",
                text,
            )
        try:
            releases.append(replace(release, **changes))
        except InputError as error:  # a flag of the same name is about the first release
            raise error.placed("") from None
    return tuple(releases)
