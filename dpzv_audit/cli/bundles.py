"""Bundles of options that several commands share: one dataclass, one decorator, each field an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

Command = Callable[..., None]


def takes(**bundles: type) -> Callable[[Command], Command]:
    """Give a command, in place of each named parameter, an option for every field of the dataclass named with it.

    A field's annotation is typer's (`Annotated[type, typer.Option(...)]`), its default the option's. The command gets
    one instance of the dataclass.
    """
    options = {name: _parameters(bundle) for name, bundle in bundles.items()}

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            named = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += options.get(parameter.name, [named])

        def bundled(**given: Any) -> None:
            made = {
                name: bundle(**{option.name: given.pop(option.name) for option in options[name]})
                for name, bundle in bundles.items()
            }
            command(**made, **given)

        bundled.__doc__ = command.__doc__
        bundled.__name__ = command.__name__
        bundled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        bundled.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return bundled

    return decorate


def _parameters(bundle: type) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(bundle)
    ]
