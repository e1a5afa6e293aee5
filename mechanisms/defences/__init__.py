"""Defences by name, which make a training tell less; adding one is one file and a line here.

Packages that are installed beside this one may add theirs (`dpzv_audit.base.registry`).
"""

from ..core.defence import DEFENCES, defence_of
from . import answers, confusion, correlation, gradient, label, marvell

__all__ = ["DEFENCES", "defence_of"]

DEFENCES.add(
    label.RESPONSE,
    label.RESPONSE_PRIOR,
    label.CLUSTER,
    label.ONE_SHOT,
    confusion.SPEC,
    correlation.SPEC,
    answers.SPEC,
    gradient.MAX_NORM,
    marvell.SPEC,
    gradient.SPARSIFY,
    gradient.DISCRETISE,
)
