"""`dpzv-audit audit`: the group of commands that bound epsilon from below, and the flags that choose one of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import typer

from dpzv_audit.cli.audit_coverage import audit_coverage
from dpzv_audit.cli.audit_mechanism import audit_mechanism
from dpzv_audit.cli.audit_method import audit_method
from dpzv_audit.cli.audit_scores import audit_score_files
from dpzv_audit.cli.flags import Command, takes
from dpzv_audit.cli.names import flag, flags_set, option_of
from dpzv_audit.errors import InputError

AUDITS: dict[str, Command] = {
    "method": audit_method,
    "mechanism": audit_mechanism,
    "scores": audit_score_files,
    "coverage": audit_coverage,
}
CHOSEN_BY = {"method": "--method", "mechanism": "--mechanism", "scores": "--scores", "coverage": "--calibrate-check"}
"""The flag that chooses an audit where none is named."""


@takes()
def _choice(
    *,
    ctx: typer.Context,
    method: str | None = None,
    mechanism: str | None = None,
    scores: tuple[Path, Path] | None = None,
    calibrate_check: bool = False,
) -> None:
    """Take the flags that choose an audit."""


def _options(command: Command) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(command).parameters)


def audit(ctx: typer.Context, **values: Any) -> None:
    """Bound epsilon from below: a method here, scores, a mechanism.

    Each command trains or reads what it is named after, prints the lower bound, and says whether it refutes a claim.
    `dpzv-audit audit --method NAME`, `--mechanism WHAT`, `--scores IN OUT` and `--calibrate-check` do the same.

    Example: dpzv-audit audit method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Example: dpzv-audit audit mechanism planted:all

    Example: dpzv-audit audit scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted

    Example: dpzv-audit audit coverage --estimator joint --audits 100
    """
    found = {name: values.get(option_of(by)) for name, by in CHOSEN_BY.items()}
    chosen = [name for name, value in found.items() if value not in (None, False)]
    if len(chosen) != 1:
        named = " and ".join(CHOSEN_BY[name] for name in chosen) or "none of --method, --scores and --mechanism"
        raise InputError(f"{named} given, must be one: --method NAME, --scores IN OUT or --mechanism pkg.mod:factory")
    name = chosen[0]
    options = _options(AUDITS[name])
    given = flags_set(ctx)
    for parameter in ctx.command.params:
        option = option_of(parameter.opts[0])
        if option in given and parameter.name not in (*options, *map(option_of, CHOSEN_BY.values())):
            takers = [CHOSEN_BY[other] for other, command in AUDITS.items() if parameter.name in _options(command)]
            raise InputError(f"{flag(option)} goes with {' or '.join(takers)}, not with {CHOSEN_BY[name]}")
    sources = {option: ctx.get_parameter_source(option) for option in options}
    said = {option for option, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    chosen_values = {option: values[option] for option in options if option in said}
    AUDITS[name](**chosen_values, **({"ctx": ctx} if "ctx" in options else {}))


_MERGED = {name: option for command in reversed(AUDITS.values()) for name, option in _options(command).items()}
audit.__signature__ = inspect.Signature(list((_MERGED | _options(_choice)).values()))  # type: ignore[attr-defined]
