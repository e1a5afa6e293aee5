"""All training methods by name, and a run of any; adding one is one file with a `SPEC` and a line in `METHODS`.

Packages that are installed beside this one may add theirs (`dpzv_audit.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpzv_audit.errors import InputError
from dpzv_audit.registry import Registry
from mechanisms import compressed, czofo, dpzv, vafl, zoo
from mechanisms.calibration import calibrated
from mechanisms.config import (
    CompressedConfig,
    DPZVConfig,
    ProtectedConfig,
    TrainingConfig,
    VAFLConfig,
    ZerothOrderConfig,
)
from mechanisms.messages import Observer
from mechanisms.method import MethodSpec, Run
from mechanisms.noise import NoiseOrigin
from mechanisms.plan import plan
from mechanisms.training_data import TrainingData

METHODS = Registry(
    "dpzv_audit.methods",
    MethodSpec,
    (
        dpzv.DPZV,
        dpzv.DPZV_SOUND,
        compressed.SPLIT,
        compressed.COMPRESSED,
        vafl.SPEC,
        zoo.ZOO_VFL,
        zoo.SYN_ZOO_VFL,
        zoo.CASCADED,
        czofo.SPEC,
    ),
)


def method_named(name: str) -> MethodSpec:
    """The method called `name`; `InputError` suggesting the nearest known one otherwise."""
    return METHODS.named(name, "--method")


def new_run(
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    behaviours: Mapping[int, Any] | None = None,
    observers: Sequence[Observer] = (),
    device: str = "cpu",
    origin: NoiseOrigin | None = None,
) -> Run:
    """The run of `config` before its first round, noise calibrated and plan made: arguments and errors as of `train`.

    `origin` is what noise is drawn from, by default the streams of `seed`; a method without noise is given none.
    The type of `config`, or the nearest type that it extends, says which method runs it.
    """
    common: dict[str, Any] = {"seed": seed, "replicas": replicas, "observers": observers, "device": device}
    records, clients = data.records, len(data.features)
    if behaviours:
        _check_behaviours(config, behaviours, clients=clients)
        common["behaviours"] = behaviours
    if origin is not None and isinstance(config, DPZVConfig | ProtectedConfig):
        common["origin"] = origin
    if isinstance(config, ProtectedConfig):
        config = calibrated(config, records=records, clients=clients, seed=seed)
    if isinstance(config, DPZVConfig):
        schedule = plan(config, records=records, clients=clients, seed=seed, behaviours=behaviours)
        return dpzv.DPZVRun(data, config, schedule, **common)
    return _run_of(config)(data, config, **common)


def _run_of(config: TrainingConfig) -> Callable[..., Run]:
    runs = {spec.config: spec.run for spec in METHODS.values()}
    for kind in type(config).__mro__:
        if kind in runs:
            return runs[kind]
    kinds = ", ".join(sorted(kind.__name__ for kind in runs))
    raise InputError(f"config is a {type(config).__name__}, must be one of a method: {kinds}")


def _check_behaviours(config: TrainingConfig, behaviours: Mapping[int, Any], *, clients: int) -> None:
    numbers = ", ".join(map(str, behaviours))
    zeroth_order = isinstance(config, DPZVConfig | ZerothOrderConfig)
    first_order = isinstance(config, VAFLConfig | CompressedConfig)
    does = "uploads" if zeroth_order else "own_gradient" if first_order else ""
    if not all(hasattr(behaviour, does) for behaviour in behaviours.values()):
        raise InputError(
            f"behaviours are given for client {numbers} of a {type(config).__name__}, must be left out: "
            "a client that deviates chooses the two uploads of a zeroth-order method, or its step in a first-order one"
        )
    if not set(behaviours) <= set(range(1, clients + 1)):
        raise InputError(f"behaviours are given for client {numbers}, must be for clients 1 to {clients}")
