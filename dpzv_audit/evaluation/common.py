"""What every evaluation of noise asks first: whether the method adds any."""

from __future__ import annotations

from dpzv_audit.errors import InputError
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig
from mechanisms.methods.dpzv import scalar_config


def noised(method: MethodSpec, config: TrainingConfig) -> DPZVConfig:
    """`config` of a method that adds noise of its own; `InputError` for another."""
    found = scalar_config(method, config)
    if found is None and method.protection(config).draws:
        why = method.games(config).why_not or "it states a release of its own, and games on scalars speak of DPZV's"
        raise InputError(f"must be another: {why}", "method", method.name)
    if found is None:
        raise InputError(
            "which adds no noise: there is no epsilon to bound; give dpzv or dpzv-sound", "method", method.name
        )
    return found


def check_noise(sigma: float) -> None:
    """Raise `InputError` where a configuration that may add noise adds none."""
    if sigma == 0.0:
        raise InputError(
            "the noise is 0 (‹sigma› 0 or ‹calibration› none), must be above 0: there is no epsilon to bound"
        )
