"""Names fields and options as the command line does: by their flags, and only where a flag gave the value."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextvars import ContextVar

import typer

from dpzv_audit.errors import AuditError

OTHERWISE = {"norm": "canary_norm", "groups": "columns", "data_options": "data_option"}
"""Options whose fields are called otherwise where the library reads them."""
ARGUMENTS = {"table": "NAME", "what": "WHAT", "command": "COMMAND"}
"""Fields that an argument gives, not a flag."""
SAID_ALWAYS = ("clients", "partition", "separator")
"""Fields that are called by their flags though a default gave the value."""
PAIRS = {"settings": "--set", "data_options": "--data-option"}
"""Parameters that give fields as KEY=VALUE, with their flags."""

OLD = {"--seeds": "--trials", "--claim-epsilon": "--epsilon"}
"""Flags that were called otherwise once, and what they are called now."""

RUNNING: ContextVar[typer.Context | None] = ContextVar("RUNNING", default=None)
"""The command that runs."""


def flag(name: str) -> str:
    """Return the flag of an option, or the name of the argument."""
    return ARGUMENTS.get(name) or f"--{OTHERWISE.get(name, name).replace('_', '-')}"


def renamed(arguments: list[str]) -> list[str]:
    """Return the command line with flags by the names that they have now; one line on stderr for each old one."""
    now = []
    for argument in arguments:
        old, equals, value = argument.partition("=")
        if old in OLD:
            print(f"dpzv-audit: {old} is called {OLD[old]} now", file=sys.stderr)
        now.append(f"{OLD.get(old, old)}{equals}{value}")
    return now


def flags_given(ctx: typer.Context) -> list[str]:
    """Return the flags on the command line, each by its long name."""
    sources = {parameter.opts[0]: ctx.get_parameter_source(parameter.name or "") for parameter in ctx.command.params}
    return [flag for flag, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def flags_set(ctx: typer.Context) -> dict[str, object]:
    """Return what was given and is not the default, by option."""
    found = {}
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        nothing = value is None or value is False or value in ("", [], ())
        if not nothing and value != parameter.default:
            found[option_of(parameter.opts[0])] = value
    return found


def option_of(flag: str) -> str:
    """Return the option of a flag: its name, without dashes before it."""
    return flag.lstrip("-").replace("-", "_")


def as_given(ctx: typer.Context) -> Mapping[str, str]:
    """Return what the user typed for each field that a flag gave: the flag, or `--set KEY`."""
    given = {option_of(name): name for name in flags_given(ctx)}
    for parameter, name in PAIRS.items():
        keys = [item.partition("=")[0].replace("-", "_") for item in ctx.params.get(parameter) or ()]
        given |= {key: f"{name} {key}" for key in keys}
        if parameter == "settings" and keys:
            given["configuration"] = f"{name} {', '.join(keys)}"
    return given


def said(error: AuditError) -> str:
    """Return the error's message with flags for what flags gave; a default keeps its field's name."""
    running = RUNNING.get()
    if running is None:
        return error.said(flag)
    given = as_given(running)

    def named(field: str) -> str:
        if field in ARGUMENTS or field in SAID_ALWAYS:
            return flag(field)
        return given.get(OTHERWISE.get(field, field), field)

    return error.said(named, flag)
