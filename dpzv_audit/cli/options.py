"""Options that commands which train share, and how they become a method, a configuration and a data set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv_audit.errors import InputError

if TYPE_CHECKING:
    from dpzv_audit.data.vertical import VerticalDataset
    from mechanisms import MethodSpec, TrainingConfig

MethodOption = Annotated[str, typer.Option("--method", help="Training method; see `dpzv-audit list methods`.")]
DatasetOption = Annotated[str, typer.Option("--dataset", help="Data set; see `dpzv-audit list datasets`.")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Folder that holds the data set's original files.")
]
ClientsOption = Annotated[int | None, typer.Option("--clients", min=1, help="Number of clients; default by data set.")]
EpochsOption = Annotated[int | None, typer.Option("--epochs", help="Epochs of D/B rounds, over all clients together.")]
BatchSizeOption = Annotated[int | None, typer.Option("--batch-size", help="Records in a batch, B.")]
EpsilonOption = Annotated[float | None, typer.Option("--epsilon", help="Claimed epsilon; the noise follows from it.")]
DeltaOption = Annotated[float | None, typer.Option("--delta", help="Delta of the claim.")]
CalibrationOption = Annotated[
    str | None,
    typer.Option("--calibration", metavar="paper|sound|none", help="How the noise follows from the claim."),
]
SigmaOption = Annotated[float | None, typer.Option("--sigma", help="Noise on the scalar; overrides the calibration.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the method; may be given several times."),
]
TrialsOption = Annotated[int, typer.Option("--trials", min=1, help="Trainings, run as one stack of replicas.")]
RunsOption = Annotated[int, typer.Option("--runs", min=0, help="Audit trainings in each of the two worlds.")]
ChunkOption = Annotated[int, typer.Option("--chunk", min=1, help="Audit trainings in memory at once.")]
ConfidenceOption = Annotated[float, typer.Option("--confidence", help="Confidence of every interval and bound.")]

MNIST_DEFAULTS: dict[str, Any] = {"batch_size": 256, "epochs": 30, "embedding": 60, "hidden": 64, "delta": 1e-3}
"""Paper 001's setting on MNIST where it gives one (captions say delta = 1e-3); sizes are ours."""


@dataclass(frozen=True)
class TrainingChoice:
    """What the shared options chose."""

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset


def choose(
    method: str,
    dataset: str,
    *,
    data_dir: Path | None,
    clients: int | None,
    settings: list[str] | None,
    given: dict[str, Any],
    require: Any = None,
) -> TrainingChoice:
    """Resolve the shared options; `InputError` in one line where one is wrong.

    `given` holds options by configuration key, None where not given; `require` maps the options to those that an
    attack needs, or refuses.
    """
    from dpzv_audit.data import load
    from mechanisms import method_named

    spec = method_named(method)
    options = {key: value for key, value in given.items() if value is not None}
    for key in ("epsilon", "delta", "calibration", "sigma"):
        if key in options and key not in spec.config.model_fields:
            raise InputError(f"--{key} does not apply to method {method}, which adds no noise")
    options.update(_parsed(settings or []))
    if require is not None:
        options = require(options)
    data = load(dataset, clients=clients, data_dir=data_dir)
    if dataset == "mnist":
        fitting = {k: v for k, v in MNIST_DEFAULTS.items() if k in spec.config.model_fields}
        options = {**fitting, **options}
    return TrainingChoice(spec, spec.configure(**options), data)


def _parsed(settings: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs; a value is read as JSON where it is JSON (numbers, true, null, lists), else as a word."""
    values: dict[str, Any] = {}
    for item in settings:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise InputError(f"--set is {item!r}, must be KEY=VALUE, such as momentum=0.9")
        try:
            values[key.replace("-", "_")] = json.loads(text)
        except ValueError:
            values[key.replace("-", "_")] = text
    return values
