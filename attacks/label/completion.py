"""Label inference by model completion (Fu et al., USENIX Security 2022): a head on the adversary's own bottom model.

The client freezes the bottom model that it trained with everybody, and trains a head on it from a few labels, in the
MixMatch way (Berthelot et al., NeurIPS 2019). Success mostly reflects how well features align with labels, so it stands
beside the same head on the client's raw features, and on a bottom model that was never trained.

The head is batch norm, ReLU and a linear layer on frozen embeddings. Batch norm stands first, so its statistics are
those of the embeddings themselves, taken over all of them. Frozen embeddings have no augmentation but mixup.

The active attack trains with a malicious local optimiser: each coordinate of its gradient is scaled by
clamp(1 + g_t / g_{t-1}, 1, 5), so that steps grow where the gradient keeps its sign, and the federation comes to lean
on the adversary's bottom model.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import View
from mechanisms.core.replicas import ParameterStack, embeddings_of

from ..core import needs
from ..core.contract import AttackSetting, AttackSpec, FewLabels, Knowledge, LabelGuesses, OwnParty, Positive
from ..core.controls import labels_in_own_features
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
    embeddings = represent(own.features)
    head = train_head(embeddings, few, known)
    scores = head.probabilities(embeddings)[None]
    held_out = head.probabilities(represent(own.held_out))
    guesses = LabelGuesses(scores.argmax(3), None, scores, held_out)
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


SHARPENING = 0.8
MIXUP = 0.75
UNLABELLED_WEIGHT = 50.0
DECAY = 0.999
RATE = 2e-3
BATCH = 16


@dataclass(frozen=True)
class Head:
    """A trained head of each replica, with the embeddings' statistics that its batch norm goes by."""

    mean: Tensor
    deviation: Tensor
    parameters: tuple[Tensor, ...]

    @torch.no_grad()
    def probabilities(self, embeddings: Tensor) -> Tensor:
        """(K, n, classes) of embeddings (K, n, width), some thousand rows at a time."""
        pieces = []
        for rows in embeddings.split(4096, 1):
            inputs = (rows - self.mean) / self.deviation
            pieces.append(_logits(self.parameters, inputs).softmax(2))
        return torch.cat(pieces, 1)


def train_head(embeddings: Tensor, few: FewLabels, known: Knowledge) -> Head:
    """Train a head of each replica on embeddings (K, N, width), of which a `few` carry labels.

    Settings are attacks.md's: sharpening 0.8, mixup 0.75, unlabelled weight 50 ramped linearly, exponential moving
    average of 0.999 (corrected for its start), Adam at 2e-3, batches of 16.
    """
    mean = embeddings.mean(1, keepdim=True)
    deviation = embeddings.std(1, keepdim=True) + 1e-5
    inputs = (embeddings - mean) / deviation
    parameters = _initial(known, inputs)
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    average = [torch.zeros_like(p) for p in parameters]
    labels = one_hot(few.labels, known.classes).to(inputs.dtype)
    steps = known.options["steps"]
    for step, (picked, free, order, weight) in enumerate(_draws(known, few.ids.shape[1], inputs)):
        unknown = _rows(inputs, free)
        with torch.no_grad():
            guessed = _logits(parameters, unknown).softmax(2) ** (1.0 / SHARPENING)
            guessed = guessed / guessed.sum(2, keepdim=True)
        rows = torch.cat((_rows(inputs, few.ids.gather(1, picked)), unknown), 1)
        wanted = torch.cat((_rows(labels, picked), guessed), 1)
        mixed, target = (weight * one + (1.0 - weight) * _rows(one, order) for one in (rows, wanted))
        with torch.enable_grad():
            logs = _logits(parameters, mixed).log_softmax(2)
            labelled = -(target[:, :BATCH] * logs[:, :BATCH]).sum(2).mean(1)
            free_loss = ((logs[:, BATCH:].exp() - target[:, BATCH:]) ** 2).mean((1, 2))
            ramp = UNLABELLED_WEIGHT * (step + 1) / steps
            optimiser.zero_grad()
            # The sum over replicas keeps their gradients apart.
            (labelled + ramp * free_loss).sum().backward()
        optimiser.step()
        for mean_of, value in zip(average, parameters, strict=True):
            mean_of.mul_(DECAY).add_(value.detach(), alpha=1.0 - DECAY)
    return Head(mean, deviation, tuple(a / (1.0 - DECAY**steps) for a in average))


def _logits(parameters: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
    scale, shift, weight, bias = parameters
    return torch.relu(inputs * scale + shift) @ weight + bias


def _initial(known: Knowledge, inputs: Tensor) -> tuple[Tensor, ...]:
    """Batch norm starts as the identity; the linear layer uniform within 1/sqrt(width)."""
    count, _, width = inputs.shape
    bound = 1.0 / np.sqrt(width)
    shape = (width, known.classes)
    drawn = [stream(known.seed, Purpose.ATTACK, k, 5).uniform(-bound, bound, shape) for k in known.replicas]
    weights = torch.from_numpy(np.stack(drawn)).to(inputs)
    scale = inputs.new_ones(count, 1, width)
    shift = inputs.new_zeros(count, 1, width)
    bias = inputs.new_zeros(count, 1, known.classes)
    return tuple(p.requires_grad_() for p in (scale, shift, weights, bias))


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Rows (K, n, c) of (K, N, c) at `places` (K, n)."""
    return values.gather(1, places.unsqueeze(2).expand(-1, -1, values.shape[2]))


def _draws(known: Knowledge, labelled: int, inputs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield by step places of labelled and of free records (K, BATCH), mixup partners (K, 2 BATCH) and weights.

    Weights are (K, 2 BATCH, 1); each replica draws from a stream of its own.
    """
    steps = known.options["steps"]
    records = inputs.shape[1]
    drawn = []
    for replica in known.replicas:
        generator = stream(known.seed, Purpose.ATTACK, replica, 6)
        picked = generator.integers(labelled, size=(steps, BATCH))
        free = generator.integers(records, size=(steps, BATCH))
        order = generator.permuted(np.tile(np.arange(2 * BATCH), (steps, 1)), axis=1)
        beta = generator.beta(MIXUP, MIXUP, size=(steps, 2 * BATCH, 1))
        drawn.append((picked, free, order, np.maximum(beta, 1.0 - beta)))
    parts = (np.stack(part, 1) for part in zip(*drawn, strict=True))
    *places, weights = (torch.from_numpy(part).to(inputs.device) for part in parts)
    return zip(*places, weights.to(inputs.dtype), strict=True)


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
