"""All attacks, from their adversaries' views, with metrics and controls.

Adding one is one file with a `SPEC` and one line in `ATTACKS`, or a package that is installed beside this one
(`dpzv_audit.base.registry`). An attack's file is imported when the attack is looked up.
"""

from typing import TYPE_CHECKING, Any

from dpzv_audit.base.registry import Registry

if TYPE_CHECKING:
    from .core.setting import AttackSetting
    from .core.spec import AttackOutcome, AttackSpec

__all__ = ["ATTACKS", "AttackOutcome", "AttackSetting", "AttackSpec", "attack_named"]

ATTACKS: "Registry[AttackSpec]" = Registry(
    "dpzv_audit.attacks",
    "attacks.core.spec:AttackSpec",
    {
        "label_direct": "attacks.label.direct:SPEC",
        "label_corrected": "attacks.label.corrected:SPEC",
        "label_probe": "attacks.label.probe:SPEC",
        "label_coded": "attacks.label.coded:SPEC",
        "label_signature": "attacks.label.signature:SPEC",
        "label_scalar": "attacks.label.scalar:SPEC",
        "label_precision": "attacks.label.precision:SPEC",
        "label_completion": "attacks.label.completion:SPEC",
        "label_completion_active": "attacks.label.completion:ACTIVE_SPEC",
        "label_inversion": "attacks.label.inversion:SPEC",
        "label_enumeration": "attacks.label.enumeration:SPEC",
        "label_matching": "attacks.label.matching:SPEC",
        "label_norm": "attacks.label.binary:NORM_SPEC",
        "label_direction": "attacks.label.direction:SPEC",
        "label_spectral": "attacks.label.binary:SPECTRAL_SPEC",
        "label_similarity": "attacks.label.similarity:SPEC",
        "label_denoised": "attacks.label.denoised:SPEC",
        "label_groups": "attacks.label.groups:SPEC",
        "label_served": "attacks.label.served:SPEC",
        "label_received": "attacks.label.received:SPEC",
        "gradient_estimation": "attacks.gradient.estimation:SPEC",
        "membership_loss": "attacks.membership.inference:LOSS_SPEC",
        "membership_lira": "attacks.membership.inference:LIRA_SPEC",
        "membership_rmia": "attacks.membership.inference:RMIA_SPEC",
        "feature_inversion": "attacks.feature.inversion:SPEC",
        "feature_hijacking": "attacks.feature.hijacking:SPEC",
        "attribute_inference": "attacks.feature.attribute:SPEC",
        "record_linkage": "attacks.feature.linkage:SPEC",
    },
)


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first used."""
    if name == "AttackSetting":
        from .core.setting import AttackSetting

        return AttackSetting
    if name in ("AttackOutcome", "AttackSpec"):
        from .core import spec

        return getattr(spec, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def attack_named(name: str) -> "AttackSpec":
    """Return the attack called `name`; `InputError` suggesting the nearest known one otherwise."""
    return ATTACKS.named(name, "attack")
