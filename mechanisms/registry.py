"""All training methods by name; adding one is one file with a `SPEC` and one line in `METHODS`."""

from __future__ import annotations

from collections.abc import Callable

from dpzv_audit.errors import InputError, unknown_name
from mechanisms import compressed, czofo, dpzv, vafl, zoo
from mechanisms.config import TrainingConfig
from mechanisms.method import MethodSpec, Run

METHODS: dict[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        dpzv.DPZV,
        dpzv.DPZV_SOUND,
        compressed.SPLIT,
        compressed.COMPRESSED,
        vafl.SPEC,
        zoo.ZOO_VFL,
        zoo.SYN_ZOO_VFL,
        zoo.CASCADED,
        czofo.SPEC,
    )
}


def method_named(name: str) -> MethodSpec:
    """The method called `name`; `InputError` suggesting the nearest known one otherwise."""
    if name not in METHODS:
        raise unknown_name("--method", name, METHODS)
    return METHODS[name]


def run_of(config: TrainingConfig) -> Callable[..., Run]:
    """What runs a `config`, by its type or the nearest type that it extends; `InputError` where no method has it."""
    runs = {spec.config: spec.run for spec in METHODS.values()}
    for kind in type(config).__mro__:
        if kind in runs:
            return runs[kind]
    kinds = ", ".join(sorted(kind.__name__ for kind in runs))
    raise InputError(f"config is a {type(config).__name__}, must be one of a method: {kinds}")
