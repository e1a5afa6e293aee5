"""Options that describe a release to an accountant by its numbers, shared by `account` and `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.flags import Count, TrainingFlags, Whole
from dpzv_audit.errors import InputError


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
