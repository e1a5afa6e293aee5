"""All training methods by name; adding one is one file with a `SPEC` and a line in `METHODS`.

Packages that are installed beside this one may add theirs (`dpzv_audit.base.registry`).
"""

from dpzv_audit.base.registry import Registry

from ..core.method import MethodSpec
from . import compressed, czofo, dpzo, dpzv, feature_private, fixed_features, one_upload, vafl, zoo

METHODS = Registry(
    "dpzv_audit.methods",
    MethodSpec,
    (
        dpzv.DPZV,
        dpzv.DPZV_SOUND,
        dpzo.SPEC,
        compressed.SPLIT,
        compressed.COMPRESSED,
        vafl.SPEC,
        zoo.ZOO_VFL,
        zoo.SYN_ZOO_VFL,
        zoo.CASCADED,
        czofo.SPEC,
        one_upload.SPEC,
        one_upload.LABEL_PRIVATE,
        fixed_features.SPEC,
        feature_private.SPEC,
    ),
)


def method_named(name: str) -> MethodSpec:
    """Return the method called `name`; `InputError` suggesting the nearest known one otherwise."""
    return METHODS.named(name, "method")
