"""Active model completion (Fu et al., USENIX Security 2022): the client trains with a malicious local optimiser.

Each coordinate of its gradient is scaled by clamp(1 + g_t / g_{t-1}, 1, 5): steps grow where the gradient keeps its
sign, so that the federation comes to lean on the adversary's bottom model. Afterwards as the passive attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attacks.core.contract import AttackSetting
from attacks.core.run import ADVERSARY_CLIENT
from attacks.label.completion import SPEC as PASSIVE
from attacks.label.completion import planted
from mechanisms.behaviours import GradientBehaviour

LEAST, MOST = 1.0, 5.0


class MaliciousOptimiser:
    """Scales a client's gradient by how it compares with the one before, coordinate by coordinate."""

    first_pass_repeats = 1

    def __init__(self) -> None:
        self._before: Tensor | None = None

    def own_gradient(self, gradient: Tensor) -> Tensor:
        """See `mechanisms.behaviours.GradientBehaviour.own_gradient`."""
        before, self._before = self._before, gradient.clone()
        if before is None:
            return gradient
        # Where there was no gradient before there is nothing to compare with.
        ratio = torch.where(before == 0, torch.zeros_like(gradient), gradient / before)
        return gradient * (1.0 + ratio).clamp(LEAST, MOST)


def malicious_client(setting: AttackSetting, replicas: range) -> Mapping[int, GradientBehaviour]:
    """The adversary's client with its own optimiser."""
    return {ADVERSARY_CLIENT: MaliciousOptimiser()}


def unfit(setting: AttackSetting) -> str | None:
    """Why there is no gradient to scale."""
    if setting.method.downlink != "gradient":
        return "its clients step by what they estimate from scalars: there is no gradient to scale"
    return None


def planted_for_active(setting: AttackSetting) -> AttackSetting:
    """The positive control of the passive attack, with the malicious optimiser in place."""
    return replace(planted(setting), adversary="malicious-client")


SPEC = replace(
    PASSIVE,
    name="label_completion_active",
    summary="label_completion by a client that trained with a malicious local optimiser (Fu et al. 2022, active)",
    adversaries=("malicious-client",),
    positive=replace(PASSIVE.positive, setting=planted_for_active),
    unfit=unfit,
    behave=malicious_client,
)
