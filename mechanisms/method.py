"""What a training method is to the rest of the toolkit: a name, a configuration, a run, and what its noise protects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from torch import Tensor

from dpzv_audit.errors import unknown_name
from mechanisms.config import DPZVConfig, ProtectedConfig, TrainingConfig, build_config
from mechanisms.federation import Federation
from mechanisms.protection import PROTECTS

Downlink = Literal["scalar", "losses", "gradient"]
_SCALAR_NOISE = "the scalar from the server to the client, hence labels; nothing protects the embeddings sent up"


class Run(Protocol):
    """One stack of K trainings in progress."""

    federation: Federation
    round: int

    def step(self) -> None:
        """Run the next round."""

    def own_tensors(self) -> dict[str, Tensor]:
        """State beside the federation's that a checkpoint must hold."""

    def skip_to(self, rounds: int) -> None:
        """Set the counters of this run, and of its random streams, to where `rounds` rounds are done."""


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method as users name it.

    `run(data, config, *, seed, replicas, observers, device, behaviours, origin)` makes a `Run`, with `behaviours` and
    `origin` (what noise is drawn from) only where a configuration takes them; methods that differ in their
    run differ in the type of their configuration. `downlink` is what the server answers with, `defaults` what this
    method sets otherwise than its configuration does.
    """

    name: str
    summary: str
    config: type[TrainingConfig]
    run: Callable[..., Run]
    downlink: Downlink
    defaults: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def configure(self, **options: object) -> TrainingConfig:
        """The configuration with this method's defaults and the given `options`; `InputError` on a wrong one.

        Noise that is given by hand as `sigma` claims nothing unless `epsilon` is given too.
        """
        known = self.config.model_fields
        for key in options:
            if key not in known:
                raise unknown_name(f"option of method {self.name}", key, known)
        by_hand = {"epsilon": None} if "epsilon" in known and options.get("sigma") is not None else {}
        return build_config(self.config, {**self.defaults, **by_hand, **options})

    def protects(self, config: TrainingConfig) -> str:
        """Words on which channel the noise of `config` protects, for every result."""
        if isinstance(config, DPZVConfig):
            sound = "; the server's state is a function of released scalars"
            return _SCALAR_NOISE + (sound if config.server_update == "joint-zo" else "")
        return PROTECTS[config.dp if isinstance(config, ProtectedConfig) and config.protected else "none"]
