"""Options that commands which train share, and how they become a method, a configuration and a data set."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpzv_audit.cli.data_loading import load_data
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.flags import TrainingFlags
from dpzv_audit.cli.names import flag
from dpzv_audit.errors import InputError, unknown_name
from dpzv_audit.training_defaults import defaults_for

if TYPE_CHECKING:
    from dpzv_audit.data.vertical import VerticalDataset
    from mechanisms import MethodSpec, TrainingConfig


@dataclass(frozen=True)
class TrainingChoice:
    """What the shared options chose."""

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset


def choose(
    training: TrainingFlags,
    data: DataFlags,
    *,
    require: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    claims: Sequence[str] = ("epsilon", "calibration"),
    quiet: bool = False,
) -> TrainingChoice:
    """Resolve the shared options; `InputError` in one line where one is wrong.

    `require` maps the options to those that an attack needs, or refuses; `claims` are the options that say nothing
    where no noise is added. `quiet` leaves out the progress bar of a download.
    """
    method = training.method or ""
    spec, flags = _method_and_flags(training)
    for key in ("epsilon", "delta", "calibration", "sigma", "clip"):
        if key in flags and key not in spec.config.model_fields:
            own = "clip is --set dp_clip" if key == "clip" else "noise is --set dp_sigma"
            cure = f"; its {own}, on what --set dp names" if "dp" in spec.config.model_fields else ""
            raise InputError(f"--{key} does not apply to method {method}, which adds no noise by itself{cure}")
    set_here = parsed_settings("set", training.settings or [], spec.config.model_fields, flags)
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


def configure(training: TrainingFlags) -> tuple[MethodSpec, TrainingConfig]:
    """Resolve method and configuration where no data set is trained on; `InputError` in one line where one is wrong."""
    spec, flags = _method_and_flags(training)
    for key in flags:
        if key not in spec.config.model_fields:
            raise InputError(f"{flag(key)} does not apply to method {training.method}, which adds no noise")
    settings = parsed_settings("set", training.settings or [], spec.config.model_fields, flags)
    return spec, spec.configure(**flags, **settings)


def _method_and_flags(training: TrainingFlags) -> tuple[MethodSpec, dict[str, Any]]:
    from mechanisms import method_named

    given = {key: value for key, value in training.given.items() if value is not None}
    return method_named(training.method or ""), given


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
