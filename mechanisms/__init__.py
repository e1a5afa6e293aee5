"""Every training method and its parts: messages and views, replicas, schedules, zeroth-order steps, noise, models.

Settings, releases and the lists of methods and defences are there without torch, which a training loads.
"""

from typing import TYPE_CHECKING, Any

from . import defences as _defences  # noqa: F401 which are known by name from then on
from .core.config import ProtectedConfig, TrainingConfig
from .core.method import MethodSpec
from .core.setup import Training
from .methods import METHODS, method_named

if TYPE_CHECKING:
    from .core.training import train
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


def __getattr__(name: str) -> Any:
    """Load what needs torch, or belongs to one method, when it is first used."""
    if name == "train":
        from .core.training import train

        return train
    if name == "SplitConfig":
        from .methods.compressed import SplitConfig

        return SplitConfig
    if name == "DPZVConfig":
        from .methods.dpzv import DPZVConfig

        return DPZVConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
