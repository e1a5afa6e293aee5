"""Label inference by coded probes: a malicious client, any method that sends scalars, a server that sums (attacks.md).

`label_probe` asks about one record at a time. Here every record of a batch that is held for many rounds is asked in
each of them: its embeddings step from -L a to +L a along a code a of one +1 or -1 a class, as many of either, drawn
anew for each record and round. The loss differs by -2 L a_y of the label y alone, which the clip makes -C a_y, so

    s_t = -(C/B) sum_i a_ti[y_i] + noise,

a linear system in the one-hot labels, whose estimate of least mean squared error is largest at the likeliest label.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import View
from mechanisms.core.context import ClientBehaviour

from ..core.knowledge import Knowledge
from ..core.metrics import Floats
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from . import probe
from .held import Answered, held_on_dpzv, holding, least_squares, with_reordered
from .mount import mount_labels
from .probe import reach_of

# The system is solved by the server's own rounding too: an error of this many units stands for it.
LEAST_NOISE = 0.01


def codes(seed: int, number: int, size: int, classes: int) -> Floats:
    """Return the codes (size, classes) of own round `number`: +1 and -1 in equal shares, an odd one +1."""
    base = np.where(np.arange(classes) < -(-classes // 2), 1.0, -1.0)
    return stream(seed, Purpose.ATTACK, number, 8).permuted(np.tile(base, (size, 1)), axis=1)


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return the likeliest class of every record of the batches that were held."""
    return with_reordered(_guesses, view, known)


def _guesses(answered: Answered, known: Knowledge) -> LabelGuesses:
    size, classes = known.config.batch_size, known.classes
    rounds = answered.scalars.shape[2]
    noise = max(answered.noise, LEAST_NOISE)
    scores = []
    for number, scalars in enumerate(answered.scalars):
        about_batch = range(number * rounds, (number + 1) * rounds)
        design = np.stack([-codes(known.seed, t, size, classes).reshape(-1) for t in about_batch])
        estimate = least_squares(design, scalars, noise=noise, prior=1.0 / classes)
        scores.append(torch.from_numpy(estimate).view(-1, size, classes))
    return LabelGuesses.of(torch.stack(scores), answered.ids.cpu())


def coding_client(setting: AttackSetting) -> Mapping[int, ClientBehaviour]:
    """Return the malicious client, whose step is far beyond the clip."""
    reach = reach_of(setting)

    def question(number: int, size: int, width: int) -> Tensor:
        return torch.from_numpy(reach * codes(setting.seed, number, size, width))

    return {setting.client: holding(setting, SPEC.count(setting, "rounds_per_record"), question)}


def without_noise(setting: AttackSetting) -> AttackSetting:
    """Return DPZV without noise, for as long as one batch is held."""
    return held_on_dpzv(setting, {"top_model": False}, SPEC.count(setting, "rounds_per_record"))


SPEC = AttackSpec(
    name="label_coded",
    summary="labels of a whole batch at once, by codes of its classes that saturate the clip round after round",
    adversaries=("malicious-client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("label_coded on dpzv without noise: must be 0.95 at least", without_noise, 0.95)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="a code moves the logits of classes, at a server that only sums",
        suggests={"epochs": 120},
        conditions=probe.SPEC.needs.conditions,
    ),
    setup=Setup(options={"rounds_per_record": 10}, behave=coding_client),
)
