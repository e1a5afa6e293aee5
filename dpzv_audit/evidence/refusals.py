"""Refusals of trainings whose noise no bound is about."""

from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.defence import label_release
from mechanisms.core.scalars import ScalarConfig, scalar_config

from ..base.errors import InputError


def noised(method: MethodSpec, config: TrainingConfig) -> ScalarConfig:
    """`config` of a method that adds noise of its own; `InputError` for another."""
    if label_release(config.defences) is not None:
        names = ", ".join(defence.name for defence in config.defences)
        rule = "leave it out: games are played on noised scalars; audit defence plays the game of labels"
        raise InputError(rule, "defence", names)
    scalars = scalar_config(method, config)
    if scalars is not None:
        return scalars
    protection = method.protection(config)
    rule = "which adds no noise: there is no epsilon to bound; give dpzv or dpzv-sound"
    if protection.draws:
        why = method.games(config).why_not or "its release is not that of DPZV, which games on scalars are about"
        missing = protection.not_released
        rule = f"states no release: {missing}" if missing else f"use another: {why}"
    raise InputError(rule, "method", method.name)


def check_noise(sigma: float) -> None:
    """Raise `InputError` where a configuration that may add noise adds none."""
    if sigma == 0.0:
        raise InputError(
            "the noise is 0 (‹sigma› 0 or ‹calibration› none); use more than 0: there is no epsilon to bound"
        )
