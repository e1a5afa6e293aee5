"""Options that commands which train share, and how they become a method, a configuration and a data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv_audit.cli.common import at_least
from dpzv_audit.errors import InputError, unknown_name

if TYPE_CHECKING:
    from dpzv_audit.data.vertical import VerticalDataset
    from mechanisms import MethodSpec, TrainingConfig

MethodOption = Annotated[
    str, typer.Option("--method", metavar="NAME", help="Training method; see `dpzv-audit list methods`.")
]
DatasetOption = Annotated[
    str, typer.Option("--dataset", metavar="NAME", help="Data set; see `dpzv-audit list datasets`.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Folder with the data set's original files (mnist)."),
]
ClientsOption = Annotated[
    int | None,
    typer.Option(
        "--clients", metavar="M", callback=at_least("--clients", 1), help="Clients; by default the data set's own."
    ),
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="N",
        callback=at_least("--epochs", 1),
        help="Epochs of D/B rounds, over all clients together; by default the method's own.",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="B",
        callback=at_least("--batch-size", 1),
        help="Records in a batch; by default the method's own.",
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(
        "--epsilon", metavar="X", help="Claimed epsilon, from which the noise follows; by default the method's own."
    ),
]
DeltaOption = Annotated[float | None, typer.Option("--delta", metavar="X", help="Delta of the claim.")]
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="paper|sound|none",
        help="How the noise follows from the claim; by default the method's own.",
    ),
]
SigmaOption = Annotated[
    float | None,
    typer.Option(
        "--sigma", metavar="X", help="Standard deviation of the noise on the scalar; overrides --calibration."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the method; may be given several times."),
]
TrialsOption = Annotated[
    int,
    typer.Option(
        "--trials",
        metavar="N",
        callback=at_least("--trials", 1),
        help="Trainings with different seeds, run as one stack.",
    ),
]
RunsOption = Annotated[
    int,
    typer.Option(
        "--runs",
        metavar="N",
        callback=at_least("--runs", 0),
        help="Audit trainings in each of the two worlds; 0 for no audit.",
    ),
]
ChunkOption = Annotated[
    int,
    typer.Option("--chunk", metavar="N", callback=at_least("--chunk", 1), help="Audit trainings in memory at once."),
]
ConfidenceOption = Annotated[
    float,
    typer.Option("--confidence", metavar="X", help="Confidence of every interval and bound, between 0 and 1."),
]

DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"server_rate": 0.05},
    "mnist": {"batch_size": 256, "epochs": 30, "embedding": 60, "hidden": 64, "delta": 1e-3},
}
"""Settings by data set, where neither the user nor the method says otherwise.

MNIST: paper 001 where it gives a value (figure captions: delta = 1e-3; 60 fits its byte counts), the rest ours.
Digits: ten times the paper's server rate, since a run has 176 rounds instead of thousands.
"""


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
    flags = {key: value for key, value in given.items() if value is not None}
    for key in ("epsilon", "delta", "calibration", "sigma"):
        if key in flags and key not in spec.config.model_fields:
            cure = "; its noise is --set dp_sigma, on what --set dp names" if "dp" in spec.config.model_fields else ""
            raise InputError(f"--{key} does not apply to method {method}, which adds no noise by itself{cure}")
    options = {**flags, **_parsed(settings or [], spec.config.model_fields, flags)}
    for key in ("epsilon", "calibration"):
        if key in flags and "dp" in spec.config.model_fields and options.get("dp", "none") == "none":
            raise InputError(
                f"--{key} does not apply to method {method} with dp none, which adds no noise: "
                "give --set dp=embedding, embedding-batch or gradient as well"
            )
    if require is not None:
        options = require(options)
    with _named_by_flag((*flags, "dataset", "clients")):
        data = load(dataset, clients=clients, data_dir=data_dir)
        for key, value in DATASET_DEFAULTS.get(dataset, {}).items():
            if key in spec.config.model_fields and key not in spec.defaults:
                options.setdefault(key, value)
        config = spec.configure(**options)
        if config.batch_size > len(data.train):
            raise InputError(
                f"batch_size is {config.batch_size}, must be at most the {len(data.train)} training records"
            )
    return TrainingChoice(spec, config, data)


def configure(method: str, given: dict[str, Any], settings: list[str] | None) -> tuple[MethodSpec, TrainingConfig]:
    """Resolve method and configuration where no data set is trained on; `InputError` in one line where one is wrong."""
    from mechanisms import method_named

    spec = method_named(method)
    flags = {key: value for key, value in given.items() if value is not None}
    for key in flags:
        if key not in spec.config.model_fields:
            raise InputError(f"--{key.replace('_', '-')} does not apply to method {method}, which adds no noise")
    with _named_by_flag(tuple(flags)):
        return spec, spec.configure(**{**flags, **_parsed(settings or [], spec.config.model_fields, flags)})


@contextmanager
def _named_by_flag(keys: Iterable[str]) -> Iterator[None]:
    """Let an `InputError` of the block that opens with one of `keys` open with the flag by which it was given."""
    try:
        yield
    except InputError as error:
        key, separator, rest = str(error).partition(" ")
        if key not in keys:
            raise
        raise InputError(f"--{key.replace('_', '-')}{separator}{rest}") from None


def _parsed(settings: list[str], known: Iterable[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """`KEY=VALUE` pairs; a value is read as JSON where it is JSON (numbers, true, null, lists), else as a word."""
    values: dict[str, Any] = {}
    for item in settings:
        name, separator, text = item.partition("=")
        key = name.replace("-", "_")
        if not separator or not key:
            raise InputError(f"--set is {item!r}, must be KEY=VALUE, such as momentum=0.9")
        if key not in known:
            raise unknown_name("--set", key, known)
        if key in flags:
            raise InputError(f"--set {item} contradicts --{key.replace('_', '-')}, give one of them")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values
