"""Options of the commands, each declared once: as a field or a parameter, with its help in the docstring beside it."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from dpzv_audit.cli.names import flag, option_of
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import check_count

Command = Callable[..., None]
_ENTRY = re.compile(r"(\w+)(?: (.+?))?: (.+)")


def takes(defaults: Mapping[str, object] | None = None, /, **bundles: type) -> Callable[[Command], Command]:
    """Give a command its options: its own parameters, and the fields of each dataclass in place of what it is named.

    A parameter's or field's name is its flag, but where `Annotated` says the flags; a function in `Annotated` checks
    the value. The section `Options:` of the docstring holds `name METAVAR: help`. `defaults` are the command's own of
    fields of the dataclasses. The command gets an instance of each dataclass.
    """
    given = defaults or {}
    options = {name: _of_fields(bundle, given) for name, bundle in bundles.items()}

    def decorate(command: Command) -> Command:
        own = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)
        text, said = _described(command.__doc__)
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            parameters += options.get(name) or [_option(name, hints[name], parameter.default, said)]

        def bundled(*args: Any, **values: Any) -> None:
            values |= dict(zip(own.parameters, args, strict=False))
            made = {
                name: bundle(**{option.name: values.pop(option.name) for option in options[name]})
                for name, bundle in bundles.items()
            }
            command(**made, **values)

        bundled.__doc__ = text
        bundled.__name__ = command.__name__
        bundled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        bundled.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return bundled

    return decorate


def _of_fields(bundle: type, defaults: Mapping[str, object]) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    _, said = _described(bundle.__doc__)
    return [_option(f.name, hints[f.name], defaults.get(f.name, f.default), said) for f in fields(bundle)]


def _described(doc: str | None) -> tuple[str, dict[str, tuple[str | None, str]]]:
    """Return a docstring without its options, and metavar and help of each option."""
    text, _, section = inspect.cleandoc(doc or "").partition("\nOptions:\n")
    entries = re.split(r"\n(?! {5})", section)
    found = [_ENTRY.fullmatch(" ".join(entry.split())) for entry in entries if entry.strip()]
    return text, {entry[1]: (entry[2], entry[3]) for entry in found if entry}


def _option(name: str, hint: Any, default: object, said: Mapping[str, tuple[str | None, str]]) -> inspect.Parameter:
    """Return the parameter that typer makes an option of; one that typer knows already stays as it is."""
    kind, rules = _unpacked(hint)
    if kind is not typer.Context and not any(isinstance(rule, typer.models.ParameterInfo) for rule in rules):
        spelled = [rule for rule in rules if isinstance(rule, str)] or [flag(name)]
        checks = [_check(rule, option_of(spelled[0])) for rule in rules if callable(rule)]
        metavar, words = said.get(name, (None, ""))
        info = typer.Option(*spelled, metavar=metavar, help=words, callback=checks[0] if checks else None)
        hint = Annotated[kind, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _check(rule: Callable[[str, Any], object], name: str) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if value is not None:
            rule(name, value)
        return value

    return checked


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without what is said of it, and that: of `Annotated`, also as one of two types beside None."""
    if get_origin(hint) is Annotated:
        kind, rules = _unpacked(hint.__origin__)
        return kind, (*rules, *hint.__metadata__)
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            if get_origin(part) is Annotated:
                return part.__origin__ | None, part.__metadata__
    return hint, ()


def _writable(name: str, out: Path) -> None:
    """Raise `InputError` where a folder cannot be made or written to: before hours of work, not after them."""
    from dpzv_audit.runs import check_out

    check_out(out)


Count = Annotated[int, check_count]
Whole = Annotated[int, partial(check_count, least=0)]
DEFAULT_OUT = Path("dpzv-runs")


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What every command that runs something takes.

    Options:
        seed N: Every random stream follows from this number.
        device cpu|cuda|auto: Device to compute on.
        out DIR: Folder in which the run folder is made.
    """

    seed: Whole = 0
    device: str = "cpu"
    out: Annotated[Path, _writable] = DEFAULT_OUT


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """The method and its settings, as the user said them; None where not given.

    Options:
        method NAME: Training method; see `dpzv-audit list methods`.
        epochs N: Epochs of D/B rounds, over all clients together; by default the method's own.
        batch_size B: Records in a batch; by default the method's own.
        epsilon X: Claimed epsilon, from which the noise follows; by default the method's own.
        delta X: Delta of the claim and of every bound, strictly between 0 and 1.
        calibration paper|sound|none: How the noise follows from the claim; by default the method's own.
        sigma X: Standard deviation of the noise on the scalar; overrides --calibration, and claims nothing without
            --epsilon.
        settings KEY=VALUE: Any other setting of the method; may be given several times.
    """

    method: str | None = "dpzv"
    epochs: Count | None = None
    batch_size: Count | None = None
    epsilon: float | None = None
    delta: float | None = None
    calibration: str | None = None
    sigma: float | None = None
    settings: Annotated[list[str] | None, "--set"] = None

    @property
    def given(self) -> dict[str, object]:
        """Options by the method's setting, None where not given."""
        return {name: value for name, value in vars(self).items() if name not in ("method", "settings")}


@dataclass(frozen=True, kw_only=True)
class WorkerFlags:
    """Where runs are carried out.

    Options:
        jobs N: Worker processes on this machine.
        executor loky|dask: Processes here, or a Dask cluster.
        scheduler ADDRESS: The Dask scheduler, such as tcp://host:8786.
        trial_seconds X: Most seconds that one run of a mechanism may take.
    """

    jobs: Count | None = None
    executor: str | None = None
    scheduler: str | None = None
    trial_seconds: float = TRIAL_SECONDS
