"""Every training method and its parts: messages and views, replicas, schedules, zeroth-order steps, noise, models."""

from . import defences as _defences  # noqa: F401 which are known by name from then on
from .core.config import ProtectedConfig, TrainingConfig
from .core.method import MethodSpec
from .core.training import Training, train
from .methods import METHODS, method_named
from .methods.compressed import SplitConfig
from .methods.dpzv import DPZVConfig

__all__ = [
    "METHODS",
    "DPZVConfig",
    "MethodSpec",
    "ProtectedConfig",
    "SplitConfig",
    "Training",
    "TrainingConfig",
    "method_named",
    "train",
]
