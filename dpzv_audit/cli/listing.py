"""`dpzv-audit list`: what there is to choose from, and what each data set needs, read from the registries."""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, Required, TypedDict

import typer

from ..base.errors import unknown_name, with_options
from ..base.registry import OWN, Registry
from ..data import DATASETS, DataSpec
from .flags import flag, takes
from .output import Output
from .summary import lines_of

REGISTRIES: dict[str, tuple[str, str]] = {
    "methods": ("mechanisms", "METHODS"),
    "defences": ("mechanisms.defences", "DEFENCES"),
    "attacks": ("attacks", "ATTACKS"),
    "datasets": ("dpzv_audit.data", "DATASETS"),
    "accountants": ("dpzv_audit.accounting", "ACCOUNTANTS"),
    "estimators": ("dpzv_audit.statistics.estimators", "ESTIMATORS"),
    "tables": ("dpzv_audit.reproduce", "TABLES"),
    "canaries": ("dpzv_audit.games.game", "CANARIES"),
    "planted": ("dpzv_audit.games.planted", "PLANTED"),
    "adversaries": ("dpzv_audit.base.findings", "ADVERSARIES"),
}
"""Module and registry of each kind; imported only when asked for, since some of them load torch."""

# the choices as metavar: they stand in the usage line and in the error for a missing argument
WhatArgument = Annotated[str, typer.Argument(metavar="|".join(REGISTRIES), help="What to list.")]


@takes
def list_what(
    *,
    what: WhatArgument,
    as_json: Annotated[bool, "--json"] = False,
) -> None:
    """List names: methods, attacks, data sets and more.

    A name that another installed package adds is followed by that package's name. Below each data set are its
    partitions, with the numbers of clients that they take, and its files, with their source.

    Example: dpzv-audit list methods

    Output:
        as_json: Print one JSON object and nothing else.
    """
    items = listed(what)
    Output(as_json=as_json).result({"schema": "dpzv-audit/list/1", "what": what, "items": items})
    if not as_json:
        width = max((len(item["name"]) for item in items), default=0)
        for item in items:
            package = item.get("package", OWN)
            brought = "" if package == OWN else f" [{package}]"
            typer.echo(f"{item['name']:<{width}}  {item['summary']}{brought}")
            for line in lines_of("dataset", item) if what == "datasets" else ():
                typer.echo(f"{'':<{width}}    {line}")


class Files(TypedDict):
    """Files of a data set: where they lie, their names, megabytes, origin, and whether `--download` fetches them."""

    folder: str
    names: str
    megabytes: float | None
    origin: str
    download: bool


class Listed(TypedDict, total=False):
    """An entry of a registry: its name and a one-line summary.

    Methods, attacks and data sets also have the `package` that brings them, and data sets `partitions` (name: clients,
    the default first), `options` of their loader, and `files`, None where they are embedded.
    """

    name: Required[str]
    summary: Required[str]
    package: str
    partitions: dict[str, str]
    options: list[str]
    files: Files | None


def _registry(what: str) -> Mapping[str, Any]:
    module, name = REGISTRIES[what]
    registry: Mapping[str, Any] = getattr(importlib.import_module(module), name)
    return registry


def names_of(what: str) -> list[str]:
    """Return the names in the registry `what`, one of `REGISTRIES`."""
    return list(_registry(what))


def listed(what: str) -> list[Listed]:
    """Return all in the registry `what`; `InputError` for an unknown one."""
    if what not in REGISTRIES:
        raise unknown_name("what", what, REGISTRIES)
    registry = _registry(what)
    if isinstance(registry, Registry):
        return [_of_registry(registry, key) for key in registry]
    summaries = {key: entry if isinstance(entry, str) else entry.summary for key, entry in registry.items()}
    return [Listed(name=key, summary=_on_one_line(summary)) for key, summary in summaries.items()]


def _of_registry(registry: Registry[Any], key: str) -> Listed:
    item = Listed(name=key, summary=_on_one_line(registry.summary(key)), package=registry.package(key))
    if registry is DATASETS:
        entry = DATASETS[key]
        item["partitions"] = {name: way.takes for name, way in entry.partitions.items()}
        item["options"] = list(entry.options)
        item["files"] = _files(entry)
    return item


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _files(spec: DataSpec) -> Files | None:
    source = spec.source
    if source is None:
        return None
    return Files(
        folder=source.folder,
        names=source.names,
        megabytes=source.size,
        origin=with_options(source.origin, flag),
        download=bool(spec.remote),
    )
