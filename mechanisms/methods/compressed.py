"""Compressed VFL: synchronous, first order, quantised embeddings, Q local steps a round (Castiglia et al. 2022).

In each round all clients send the quantised embeddings of one batch and receive dL/dh_m; a client then takes Q steps,
pulling that one gradient back through its present model each time (Q = 1 is split learning with compression).
"""

from collections.abc import Iterator
from dataclasses import replace

from pydantic import Field

from dpzv_audit.limits import MOST_LOCAL_STEPS

from ..core.baselines import FirstOrderRun, baseline_method
from ..core.config import BaselineConfig, ClientMomentum, ForwardBits, ServerMomentum


class CompressedConfig(BaselineConfig):
    """Compressed VFL; `split` is the case without compression."""

    forward_bits: ForwardBits = None
    local_steps: int = Field(1, ge=1, le=MOST_LOCAL_STEPS)
    """Local steps of a client in a round, Q."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        sizes = self.forward_bits is not None and self.sampler == "poisson"
        yield sizes, "sampler must be shuffled or uniform with forward_bits: batches of one size are quantised"

    @property
    def all_at_once(self) -> bool:
        """See `ProtectedConfig.all_at_once`."""
        return True


class SplitConfig(CompressedConfig):
    """Split learning: synchronous, first order."""

    momentum: ClientMomentum = 0.9
    server_momentum: ServerMomentum = 0.9


class CompressedRun(FirstOrderRun[CompressedConfig]):
    """Compressed VFL, and split learning, which is the case without compression; see `FirstOrderRun`."""

    def prepare(self) -> None:
        """See `BaselineRun.prepare`."""
        self.bits = self.config.forward_bits
        self.local_steps = self.config.local_steps
        super().prepare()


SPLIT = baseline_method(
    name="split",
    summary="split learning: synchronous, first order, per-record gradients go down",
    config=SplitConfig,
    run=CompressedRun,
    downlink="gradient",
    deviation="own_gradient",
)
COMPRESSED = replace(
    SPLIT,
    name="compressed",
    summary="compressed VFL: split learning with quantised embeddings and Q local steps",
    config=CompressedConfig,
    defaults={"forward_bits": 8},
)
