"""Label inference from the batch-averaged gradient of a client's own model, for small batches (gradient inversion).

Where the gradients of a batch reach a client only as that of its own parameters, (1/B) sum_i J_i^T g_i, it still knows
every J_i. For a linear model that is a linear system in the records' gradients g_i at the summed logits: exactly
solvable while the batch is no larger than the number of the client's features and one; beyond that the smallest
solution is the best guess. The label is the smallest coordinate.
"""

import math

import torch
from torch import Tensor

from mechanisms.core.channel import View

from ..core import needs
from ..core.contract import AttackSetting, AttackSpec, Knowledge, LabelGuesses, OwnParty, Positive
from .direct import cut_layer
from .mount import mount_labels


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Solve each batch of the first pass for its records' gradients, given the gradient of the own model alone."""
    own = known.granted(OwnParty)
    gradients, ids = cut_layer(view, known)
    gradients = gradients[: known.batches]
    ids = ids[: known.batches]
    rows = own.features.flatten(1).double()[ids]
    inputs = torch.cat((rows, torch.ones_like(rows[..., :1])), 3) * (ids >= 0).unsqueeze(3)
    found = solve(inputs, own_gradient(inputs, gradients))
    return LabelGuesses(found.argmin(3), ids, -found)


def own_gradient(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Gradient (..., d + 1, c) of a linear model's weights and bias: all that this attack takes from the mail.

    `inputs` (..., B, d + 1) are features with a one, `gradients` (..., B, c) those of the batch mean at its records.
    """
    return inputs.mT @ gradients


def solve(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return the smallest records' gradients (..., B, c) with inputs^T x = gradient, (..., d + 1, c)."""
    solution: Tensor = torch.linalg.pinv(inputs.mT) @ gradient
    return solution


def linear_model(setting: AttackSetting) -> str | None:
    """Need a linear system to solve."""
    shape = setting.dataset.shapes[0]
    if len(shape) != 1 and setting.config.client_model != "mlp":
        return f"client 1 holds features of shape {shape}, whose model is not linear; needs client_model mlp"
    return None


def small_batches(setting: AttackSetting) -> AttackSetting:
    """Split learning in batches of as many records as there are features, at most eight."""
    size = max(1, min(8, math.prod(setting.dataset.shapes[0]) // 2))
    options = {"top_model": False, "epochs": 1, "batch_size": size, "dtype": "float64"}
    return setting.on("split", options, trials=1)


SPEC = AttackSpec(
    name="label_inversion",
    summary="labels from the batch-averaged gradient of a client's own linear model, for small batches",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    positive=Positive("split in small batches without a top model: must be 0.85 at least", small_batches, 0.85),
    requires={"top_model": False},
    requires_because="the client's model then ends at logits that the server only sums",
    suggests={"batch_size": 16},
    needs=(needs.own_protocol, linear_model, *needs.record_gradients),
)
