"""All attacks, from their adversaries' views, with metrics and controls.

Adding one is one file with a `SPEC` and one line in `ATTACKS`, or a package that is installed beside this one
(`dpzv_audit.base.registry`).
"""

from dpzv_audit.base.registry import Registry

from .core.setting import AttackSetting
from .core.spec import AttackOutcome, AttackSpec
from .feature import attribute, hijacking, linkage
from .feature import inversion as feature_inversion
from .gradient import estimation
from .label import (
    binary,
    coded,
    completion,
    corrected,
    denoised,
    direct,
    direction,
    enumeration,
    groups,
    inversion,
    matching,
    precision,
    probe,
    received,
    scalar,
    served,
    signature,
    similarity,
)
from .membership import inference

__all__ = ["ATTACKS", "AttackOutcome", "AttackSetting", "AttackSpec", "attack_named"]

ATTACKS = Registry(
    "dpzv_audit.attacks",
    AttackSpec,
    (
        direct.SPEC,
        corrected.SPEC,
        probe.SPEC,
        coded.SPEC,
        signature.SPEC,
        scalar.SPEC,
        precision.SPEC,
        completion.SPEC,
        completion.ACTIVE_SPEC,
        inversion.SPEC,
        enumeration.SPEC,
        matching.SPEC,
        binary.NORM_SPEC,
        direction.SPEC,
        binary.SPECTRAL_SPEC,
        similarity.SPEC,
        denoised.SPEC,
        groups.SPEC,
        served.SPEC,
        received.SPEC,
        estimation.SPEC,
        inference.LOSS_SPEC,
        inference.LIRA_SPEC,
        inference.RMIA_SPEC,
        feature_inversion.SPEC,
        hijacking.SPEC,
        attribute.SPEC,
        linkage.SPEC,
    ),
)


def attack_named(name: str) -> AttackSpec:
    """Return the attack called `name`; `InputError` suggesting the nearest known one otherwise."""
    return ATTACKS.named(name, "attack")
