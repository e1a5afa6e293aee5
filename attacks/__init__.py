"""All attacks, from their adversaries' views, with metrics and controls.

Adding one is one file with a `SPEC` and one line in `ATTACKS`, or a package that is installed beside this one
(`dpzv_audit.registry`).
"""

from __future__ import annotations

from attacks import (
    feature_inversion,
    gradient_estimation,
    label_completion,
    label_completion_active,
    label_direct,
    label_direction,
    label_inversion,
    label_norm,
    label_precision,
    label_probe,
    label_scalar,
    label_spectral,
    membership_lira,
    membership_loss,
    membership_rmia,
)
from attacks.contract import AttackOutcome, AttackSetting, AttackSpec
from dpzv_audit.registry import Registry

__all__ = ["ATTACKS", "AttackOutcome", "AttackSetting", "AttackSpec", "attack_named"]

ATTACKS = Registry(
    "dpzv_audit.attacks",
    AttackSpec,
    (
        label_direct.SPEC,
        label_probe.SPEC,
        label_scalar.SPEC,
        label_precision.SPEC,
        label_completion.SPEC,
        label_completion_active.SPEC,
        label_inversion.SPEC,
        label_norm.SPEC,
        label_direction.SPEC,
        label_spectral.SPEC,
        gradient_estimation.SPEC,
        membership_loss.SPEC,
        membership_lira.SPEC,
        membership_rmia.SPEC,
        feature_inversion.SPEC,
    ),
)


def attack_named(name: str) -> AttackSpec:
    """The attack called `name`; `InputError` suggesting the nearest known one otherwise."""
    return ATTACKS.named(name, "--attack")
