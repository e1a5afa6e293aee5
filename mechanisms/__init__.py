"""Every training method and its parts: messages and views, replicas, schedules, zeroth-order steps, noise, models."""

from mechanisms.core.config import ProtectedConfig, TrainingConfig
from mechanisms.core.method import MethodSpec
from mechanisms.core.training import train
from mechanisms.methods import METHODS, method_named
from mechanisms.methods.compressed import SplitConfig
from mechanisms.methods.dpzv import DPZVConfig

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
