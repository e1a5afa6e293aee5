"""`dpzv-audit list`: what there is to choose from, a line each, read from the registries themselves."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from dpzv_audit.cli.common import JsonOption, Output
from dpzv_audit.errors import unknown_name

REGISTRIES: dict[str, tuple[str, str]] = {
    "methods": ("mechanisms", "METHODS"),
    "attacks": ("attacks", "ATTACKS"),
    "datasets": ("dpzv_audit.data", "DATASETS"),
    "accountants": ("dpzv_audit.accounting", "ACCOUNTANTS"),
    "estimators": ("dpzv_audit.auditing", "ESTIMATORS"),
    "tables": ("dpzv_audit.reproduce", "TABLES"),
    "canaries": ("dpzv_audit.auditing.games.definition", "CANARIES"),
    "planted": ("dpzv_audit.auditing.planted", "PLANTED"),
    "adversaries": ("dpzv_audit.evidence", "ADVERSARIES"),
}
"""Module and registry of each kind; imported only when asked for, since some of them load torch."""

# the choices as metavar: they stand in the usage line and in the error for a missing argument
WhatArgument = Annotated[str, typer.Argument(metavar="|".join(REGISTRIES), help="What to list.")]


def list_what(what: WhatArgument, as_json: JsonOption = False) -> None:
    """List what there is to choose from, a line each.

    Example: dpzv-audit list methods
    """
    items = listed(what)
    Output(as_json=as_json).result({"schema": "dpzv-audit/list/1", "what": what, "items": items})
    if not as_json:
        width = max((len(item["name"]) for item in items), default=0)
        for item in items:
            typer.echo(f"{item['name']:<{width}}  {item['summary']}")


def listed(what: str) -> list[dict[str, str]]:
    """Return name and one-line summary of all in the registry `what`; `InputError` for an unknown one."""
    if what not in REGISTRIES:
        raise unknown_name("WHAT", what, REGISTRIES)
    module, name = REGISTRIES[what]
    registry: dict[str, Any] = getattr(importlib.import_module(module), name)
    return [{"name": key, "summary": _summary(entry)} for key, entry in registry.items()]


def _summary(entry: Any) -> str:
    text: str = entry if isinstance(entry, str) else entry.summary
    return " ".join(text.split())
