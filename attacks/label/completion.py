"""Label inference by model completion (Fu et al., USENIX Security 2022): labels off the adversary's own bottom model.

The client freezes the bottom model that it trained with everybody, and reads labels off its embeddings given a few, by
what suits them best (`attacks.label.learners`): the authors' head, or something simpler. Success mostly reflects how
well features align with labels, so it stands beside the best of the same on the client's raw features, and on a bottom
model that was never trained.

The active attack trains with a malicious local optimiser: each coordinate of its gradient is scaled by
clamp(1 + g_t / g_{t-1}, 1, 5), so that steps grow where the gradient keeps its sign, and the federation comes to lean
on the adversary's bottom model.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from mechanisms.core.channel import View
from mechanisms.core.replicas import ParameterStack, embeddings_of

from ..core import needs
from ..core.contract import AttackSetting, AttackSpec, FewLabels, Knowledge, LabelGuesses, OwnParty, Positive
from ..core.controls import labels_in_own_features
from .learners import best
from .mount import mount_labels

UNTRAINED = "the same on an untrained bottom model"
RAW = "the same on raw features"
# Makes (K, n, width) of a client's features (n, ...).
Represent = Callable[[Tensor], Tensor]


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return probabilities of every record without a label, and of held-out records, from the trained bottom model."""
    own = known.granted(OwnParty)
    return _complete(partial(embedded, own, own.trained), known)


def without_training(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return baselines with the same labels: an untrained bottom model, and the client's raw features."""
    return {name: _complete(represent, known) for name, represent in untrained(known).items()}


def untrained(known: Knowledge) -> dict[str, Represent]:
    """Return what a client can read labels off without training: its untrained bottom model, and raw features."""
    own = known.granted(OwnParty)
    found: dict[str, Represent] = {}
    if own.initial is not None:
        start = own.initial
        found[UNTRAINED] = lambda block: embedded(own, start(), block)
    # Token ids are no features to put a linear layer on.
    if own.features.is_floating_point():
        found[RAW] = lambda block: block.flatten(1).expand(len(known.replicas), -1, -1)
    return found


@torch.no_grad()
def embedded(own: OwnParty, parameters: ParameterStack, features: Tensor) -> Tensor:
    """Return embeddings (K, n, width) of `features` (n, ...) under `parameters`."""
    return embeddings_of(own.evaluator, parameters, features)


def _complete(represent: Represent, known: Knowledge) -> LabelGuesses:
    own = known.granted(OwnParty)
    few = known.granted(FewLabels)
    scores, held_out = best(represent(own.features), represent(own.held_out), few, known)
    guesses = LabelGuesses(scores.argmax(2)[None], None, scores[None], held_out)
    return guesses.about(others(few.ids, known.records))


def others(ids: Tensor, records: int) -> Tensor:
    """Return ids (K, records - n) of all records but `ids` (K, n), in order."""
    free = ids.new_ones(len(ids), records).scatter_(1, ids, 0)
    return free.nonzero()[:, 1].view(len(ids), -1)


def planted(setting: AttackSetting) -> AttackSetting:
    """Labels that stand in the client's own features, under split learning, and a head that is trained to the end."""
    return setting.on(
        "split",
        {"epochs": 4},
        dataset=labels_in_own_features(setting.dataset),
        adversary="client",
        trials=1,
        queries=1,
        # As few labels as the setting's own: a class may have no more.
        options={"labels_per_class": SPEC.count(setting, "labels_per_class")},
    )


SPEC = AttackSpec(
    name="label_completion",
    summary="labels by a head on the client's own bottom model, trained from few labels (Fu et al. 2022, passive)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    positive=Positive("labels planted in the client's own features: must be 0.95 at least", planted, 0.95),
    suggests={"epochs": 20},
    options={"labels_per_class": 10, "steps": 2000},
    needs=(needs.own_model,),
    one_view=True,
    few_labels=True,
    reads=(),
    baselines=without_training,
)


class MaliciousOptimiser:
    """Scales a client's gradient by how it compares with the one before, coordinate by coordinate."""

    first_pass_repeats = 1
    _before: Tensor | None = None

    def own_gradient(self, gradient: Tensor) -> Tensor:
        """See `mechanisms.core.context.GradientBehaviour.own_gradient`."""
        before = self._before
        self._before = gradient.clone()
        if before is None:
            return gradient
        # Where there was no gradient before there is nothing to compare with.
        ratio = torch.where(before == 0, 0.0, gradient / before)
        return gradient * (1.0 + ratio).clamp(1.0, 5.0)


ACTIVE_SPEC = replace(
    SPEC,
    one_view=False,
    name="label_completion_active",
    summary="label_completion by a client that trained with a malicious local optimiser (Fu et al. 2022, active)",
    adversaries=("malicious-client",),
    positive=replace(
        SPEC.positive,
        setting=lambda setting: replace(planted(setting), adversary="malicious-client"),
    ),
    needs=(
        needs.own_protocol,
        needs.downlink(True, "its clients step by what they estimate from scalars: there is no gradient to scale"),
    ),
    behave=lambda setting: {setting.client: MaliciousOptimiser()},
)
