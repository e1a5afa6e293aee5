"""Every training method and its parts: messages and views, replicas, schedules, zeroth-order steps, noise, models."""

from __future__ import annotations

from mechanisms.compressed import SplitConfig
from mechanisms.config import ProtectedConfig, TrainingConfig
from mechanisms.dpzv import DPZVConfig
from mechanisms.method import MethodSpec
from mechanisms.registry import METHODS, method_named
from mechanisms.training import train

__all__ = [
    "METHODS",
    "DPZVConfig",
    "MethodSpec",
    "ProtectedConfig",
    "SplitConfig",
    "TrainingConfig",
    "method_named",
    "train",
]
