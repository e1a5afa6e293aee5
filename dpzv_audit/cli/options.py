"""Options that commands which train share, and how they become a method, a configuration and a data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv_audit.cli.common import at_least
from dpzv_audit.cli.data_loading import load_data
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.errors import InputError, unknown_name
from dpzv_audit.training_defaults import defaults_for

if TYPE_CHECKING:
    from dpzv_audit.data.vertical import VerticalDataset
    from mechanisms import MethodSpec, TrainingConfig

MethodOption = Annotated[
    str, typer.Option("--method", metavar="NAME", help="Training method; see `dpzv-audit list methods`.")
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="N",
        callback=at_least("epochs", 1),
        help="Epochs of D/B rounds, over all clients together; by default the method's own.",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="B",
        callback=at_least("batch_size", 1),
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
        "--sigma",
        metavar="X",
        help="Standard deviation of the noise on the scalar; overrides --calibration, and claims nothing without "
        "--epsilon.",
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
        callback=at_least("trials", 1),
        help="Trainings with different seeds, run as one stack.",
    ),
]
RunsOption = Annotated[
    int,
    typer.Option(
        "--runs",
        metavar="N",
        callback=at_least("runs", 0),
        help="Audit trainings in each of the two worlds; 0 for no audit.",
    ),
]
ChunkOption = Annotated[
    int,
    typer.Option(
        "--chunk",
        metavar="N",
        callback=at_least("chunk", 1),
        help="Audit runs done at once, half of them in each world; fewer need less memory.",
    ),
]
ConfidenceOption = Annotated[
    float,
    typer.Option("--confidence", metavar="X", help="Confidence of every interval and bound, between 0 and 1."),
]


@dataclass(frozen=True)
class TrainingChoice:
    """What the shared options chose."""

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset


def choose(
    method: str,
    data: DataFlags,
    *,
    settings: list[str] | None,
    given: dict[str, Any],
    require: Any = None,
    claims: Sequence[str] = ("epsilon", "calibration"),
    quiet: bool = False,
) -> TrainingChoice:
    """Resolve the shared options; `InputError` in one line where one is wrong.

    `given` holds options by configuration key, None where not given; `require` maps the options to those that an
    attack needs, or refuses; `claims` are the options that say nothing where no noise is added. `quiet` leaves out the
    progress bar of a download.
    """
    from mechanisms import method_named

    spec = method_named(method)
    flags = {key: value for key, value in given.items() if value is not None}
    for key in ("epsilon", "delta", "calibration", "sigma"):
        if key in flags and key not in spec.config.model_fields:
            cure = "; its noise is --set dp_sigma, on what --set dp names" if "dp" in spec.config.model_fields else ""
            raise InputError(f"--{key} does not apply to method {method}, which adds no noise by itself{cure}")
    set_here = parsed_settings("set", settings or [], spec.config.model_fields, flags)
    options = chosen = {**flags, **set_here}
    for key in claims:
        if key in flags and "dp" in spec.config.model_fields and options.get("dp", "none") == "none":
            raise InputError(
                f"--{key} does not apply to method {method} with dp none, which adds no noise: "
                "give --set dp=embedding, embedding-batch or gradient as well"
            )
    if require is not None:
        options = require(options)
    options = {**dataset_defaults(data.name, spec, transformer=options.get("transformer") is not None), **options}
    config = spec.configure(**options)
    dataset = load_data(data, quiet=quiet, transformer=config.transformer)
    if config.batch_size > len(dataset.train):
        right = f"must be at most the {len(dataset.train)} training records"
        if "batch_size" not in chosen:
            right = f" by default, {right}; give --batch-size B"
        raise InputError(right, "batch_size", config.batch_size)
    return TrainingChoice(spec, config, dataset)


def configure(method: str, given: dict[str, Any], settings: list[str] | None) -> tuple[MethodSpec, TrainingConfig]:
    """Resolve method and configuration where no data set is trained on; `InputError` in one line where one is wrong."""
    from mechanisms import method_named

    spec = method_named(method)
    flags = {key: value for key, value in given.items() if value is not None}
    for key in flags:
        if key not in spec.config.model_fields:
            raise InputError(f"--{key.replace('_', '-')} does not apply to method {method}, which adds no noise")
    return spec, spec.configure(**flags, **parsed_settings("set", settings or [], spec.config.model_fields, flags))


def dataset_defaults(dataset: str, spec: MethodSpec, *, transformer: bool = False) -> dict[str, Any]:
    """Return the data set's settings that the method of `spec` has and does not set itself.

    With a pre-trained `transformer`, without the model and the rates that are those of a bag of embeddings.
    """
    return defaults_for(
        dataset,
        downlink=spec.downlink,
        fields=spec.config.model_fields,
        own=spec.defaults,
        transformer=transformer,
    )


def parsed_settings(
    given_by: str,
    settings: list[str],
    known: Iterable[str],
    flags: Mapping[str, Any] | None = None,
    *,
    example: str = "momentum=0.9",
) -> dict[str, Any]:
    """Return `KEY=VALUE` pairs of an option; a value is read as JSON where it is JSON, else a word.

    Raises `InputError`, with `example`, for a key that is not `known`, that one of `flags` gives already, or that comes
    twice.
    """
    values: dict[str, Any] = {}
    for item in settings:
        name, separator, text = item.partition("=")
        key = name.replace("-", "_")
        if not separator or not key:
            raise InputError(f"must be KEY=VALUE, such as {example}", given_by, item)
        if key not in known:
            raise unknown_name(given_by, key, known)
        if flags and key in flags:
            raise InputError(f"‹{given_by}› {item} contradicts ‹{key}›, give one of them")
        if key in values:
            raise InputError(f"‹{given_by}› gives {key} twice, give it once")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values
