"""Label inference by model completion (Fu et al., USENIX Security 2022): labels off the adversary's own bottom model.

The client freezes the bottom model that it trained with everybody, and reads labels off its embeddings given a few, by
what suits them best (`attacks.label.learners`): the authors' head, or something simpler. Success mostly reflects how
well features align with labels, so it stands beside the best of the same on the client's raw features, and on a bottom
model that was never trained.

The active attack trains with a malicious local optimiser: each coordinate of its gradient is scaled by
clamp(1 + g_t / g_{t-1}, 1, 5), so that steps grow where the gradient keeps its sign, and the federation comes to lean
on the adversary's bottom model. The authors' code compares with what it last stepped by, scaled, and reads as if its
momentum were scaled too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mechanisms.core.channel import View
from mechanisms.core.context import Behaviour
from mechanisms.core.replicas import ParameterStack, embeddings_of

from ..core import needs
from ..core.controls import labels_in_own_features
from ..core.knowledge import FewLabels, Knowledge, OwnParty, granted
from ..core.setting import COLLUDING, AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .learners import best
from .mount import mount_labels

UNTRAINED = "the same on an untrained bottom model"
RAW = "the same on raw features"
# Makes (K, n, width) of a client's features (n, ...), given what it owns.
Represent = Callable[[OwnParty, Tensor], Tensor]


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return probabilities of every record without a label, and of held-out records, from the trained bottom model.

    Clients that collude put their embeddings side by side.
    """
    return _complete(lambda own, block: embedded(own, own.trained, block), known)


def without_training(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return baselines with the same labels: an untrained bottom model, and the client's raw features."""
    return {name: _complete(represent, known) for name, represent in untrained(known).items()}


def untrained(known: Knowledge) -> dict[str, Represent]:
    """Return what clients can read labels off without training: their untrained bottom models, and raw features."""
    parties = known.all_granted(OwnParty)
    readings: dict[str, Represent] = {}
    if all(own.initial is not None for own in parties):
        readings[UNTRAINED] = lambda own, block: embedded(own, granted(own.initial, "a model")(), block)
    # Token ids are no features to put a linear layer on.
    if all(own.features.is_floating_point() for own in parties):
        readings[RAW] = lambda own, block: block.flatten(1).expand(len(known.replicas), -1, -1)
    return readings


@torch.no_grad()
def embedded(own: OwnParty, parameters: ParameterStack, features: Tensor) -> Tensor:
    """Return embeddings (K, n, width) of `features` (n, ...) under `parameters`."""
    return embeddings_of(own.evaluator, parameters, features)


def _complete(represent: Represent, known: Knowledge) -> LabelGuesses:
    parties = known.all_granted(OwnParty)
    few = known.granted(FewLabels)
    inside = torch.cat([represent(own, own.features) for own in parties], 2)
    outside = torch.cat([represent(own, own.held_out) for own in parties], 2)
    scores, held_out = best(inside, outside, few, known)
    return replace(LabelGuesses.about(others(few.ids, known.records), scores), held_out=held_out)


def others(ids: Tensor, records: int) -> Tensor:
    """Return ids (K, records - n) of all records but `ids` (K, n), in order."""
    free = ids.new_ones(len(ids), records).scatter_(1, ids, 0)
    return free.nonzero()[:, 1].view(len(ids), -1)


def planted(setting: AttackSetting) -> AttackSetting:
    """Return split learning on labels that stand in the client's own features."""
    return setting.on(
        "split",
        {"epochs": 4},
        dataset=labels_in_own_features(setting.dataset),
        adversary="client" if setting.adversary == COLLUDING else setting.adversary,
        trials=1,
        queries=1,
        # As few labels as the setting's own: a class may have no more.
        options={key: value for key, value in setting.options.items() if key == "labels_per_class"},
    )


SPEC = AttackSpec(
    name="label_completion",
    summary="labels from the bottom models of a client, or of colluding ones, given a few (Fu et al. 2022, passive)",
    adversaries=("client", COLLUDING),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(
        Positive("labels planted in the client's own features: must be 0.95 at least", planted, 0.95),
        baselines=without_training,
    ),
    needs=Needs(suggests={"epochs": 20}, conditions=(needs.own_model,), one_view=True, reads=()),
    setup=Setup(options={"labels_per_class": 10, "steps": 2000}, few_labels=True, in_pilot={"steps": 200}),
)


READINGS = ("gradient", "scaled", "velocity")
"""Readings of the published optimiser: it compares with the last gradient, the last step, or the velocity."""


@dataclass
class MaliciousOptimiser:
    """Scales a client's gradient by how it compares with the one before, coordinate by coordinate.

    Of `READINGS`: `gradient` compares g_t with g_{t-1}, `scaled` with the scaled gradient before. `velocity` does so
    with v_t = momentum v_{t-1} + g_t, where v_{t-1} is scaled; `momentum` is that of the client's steps.
    """

    reading: str = "gradient"
    momentum: float = 0.0
    first_pass_repeats: int = field(default=1, init=False)
    _before: Tensor | None = field(default=None, init=False)

    def own_gradient(self, gradient: Tensor) -> Tensor:
        """See `mechanisms.core.context.GradientBehaviour.own_gradient`."""
        before = self._before
        if before is None:
            self._before = gradient.clone()
            return gradient
        # The client's own steps add the momentum of what it stepped by: that is left to them.
        kept = self.momentum * before if self.reading == "velocity" else torch.zeros_like(before)
        now = gradient + kept
        # Where there was no gradient before there is nothing to compare with.
        ratio = torch.where(before == 0, 0.0, now / before)
        scaled = now * (1.0 + ratio).clamp(1.0, 5.0)
        self._before = gradient.clone() if self.reading == "gradient" else scaled
        return scaled - kept


def scaling_client(setting: AttackSetting) -> Mapping[int, Behaviour]:
    """Return the client that looks, stepping by the malicious optimiser of the setting."""
    reading = str(ACTIVE_SPEC.own_options(setting)["reading"])
    return {setting.client: MaliciousOptimiser(reading, setting.config.momentum)}


ACTIVE_SPEC = replace(
    SPEC,
    name="label_completion_active",
    summary="label_completion by a client that trained with a malicious local optimiser (Fu et al. 2022, active)",
    adversaries=("malicious-client",),
    needs=replace(
        SPEC.needs,
        one_view=False,
        conditions=(
            needs.own_protocol,
            needs.downlink(True, "its clients step by what they estimate from scalars: there is no gradient to scale"),
        ),
    ),
    setup=replace(
        SPEC.setup,
        options={**SPEC.setup.options, "reading": "gradient"},
        choices={"reading": READINGS},
        behave=scaling_client,
    ),
)
