"""Defences by name: what is done to a training so that it tells less. A defence is one file and a line here.

Packages that are installed beside this one may add theirs (`dpzv_audit.base.registry`).
"""

from typing import Any

from pydantic import ValidationError

from dpzv_audit.base.errors import InputError, plain_rule, unknown_name
from dpzv_audit.base.registry import Registry

from ..core.defence import Defence, DefenceSpec
from . import confusion, correlation, gradient, label, marvell

DEFENCES = Registry(
    "dpzv_audit.defences",
    DefenceSpec,
    (
        label.RESPONSE,
        label.RESPONSE_PRIOR,
        label.CLUSTER,
        label.ONE_SHOT,
        confusion.SPEC,
        correlation.SPEC,
        gradient.MAX_NORM,
        marvell.SPEC,
        gradient.SPARSIFY,
        gradient.DISCRETISE,
    ),
)


def defence_of(name: str, **settings: Any) -> Defence:
    """Return the defence called `name` with its settings; `InputError` for an unknown name or a wrong setting."""
    kind = DEFENCES.named(name, "defence").settings
    for key in settings:
        if key not in kind.model_fields or key == "name":
            raise unknown_name(f"option of defence {name}", key, [one for one in kind.model_fields if one != "name"])
    try:
        return kind(name=name, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f": {plain_rule(first['msg'])}", f"option {field} of defence {name}", first["input"]) from None
