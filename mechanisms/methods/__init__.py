"""All training methods by name; adding one is one file with a `SPEC` and a line in `METHODS`.

A method's file is imported when the method is looked up. Packages that are installed beside this one may add theirs
(`dpzv_audit.base.registry`).
"""

from dpzv_audit.base.registry import Registry

from ..core.method import MethodSpec

METHODS = Registry(
    "dpzv_audit.methods",
    MethodSpec,
    {
        "dpzv": "mechanisms.methods.dpzv:DPZV",
        "dpzv-sound": "mechanisms.methods.dpzv:DPZV_SOUND",
        "dp-zo": "mechanisms.methods.dpzo:SPEC",
        "split": "mechanisms.methods.compressed:SPLIT",
        "compressed": "mechanisms.methods.compressed:COMPRESSED",
        "vafl": "mechanisms.methods.vafl:SPEC",
        "zoo-vfl": "mechanisms.methods.zoo:ZOO_VFL",
        "syn-zoo-vfl": "mechanisms.methods.zoo:SYN_ZOO_VFL",
        "cascaded": "mechanisms.methods.zoo:CASCADED",
        "czofo": "mechanisms.methods.czofo:SPEC",
        "one-upload": "mechanisms.methods.one_upload:SPEC",
        "label-private": "mechanisms.methods.one_upload:LABEL_PRIVATE",
        "fixed-features": "mechanisms.methods.fixed_features:SPEC",
        "feature-private": "mechanisms.methods.feature_private:SPEC",
    },
)


def method_named(name: str) -> MethodSpec:
    """Return the method called `name`; `InputError` suggesting the nearest known one otherwise."""
    return METHODS.named(name, "method")
