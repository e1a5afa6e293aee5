"""Label inference from the batch-averaged gradient of a client's own model, for small batches (gradient inversion).

Where the gradients of a batch reach a client only as that of its own parameters, (1/B) sum_i J_i^T g_i, it still knows
every J_i. For a linear model that is a linear system in the records' gradients g_i at the summed logits: exactly
solvable while the batch is no larger than the number of the client's features and one. Beyond that labels are trained
until the gradient that they give matches the one received (batch-level label inference: Zou et al., IEEE Trans. Big
Data 2022), here as soft labels by mirror descent, a convex problem. Fitted by least norm, the label is the smallest
coordinate of the smallest g_i.
"""

import math

import torch
from torch import Tensor

from dpzv_audit.systems.messages import OF_A_BATCH
from mechanisms.core.channel import View, stacked_ids
from mechanisms.core.models import layout_of

from ..core import needs
from ..core.knowledge import Knowledge, OwnParty, granted
from ..core.run import pass_length
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .direct import cut_layer
from .mount import mount_labels

# Of mirror descent, whose steps must stay below 4: softmax has a slope of 1/2 at most, a projection one of 1.
STEP = 2.0
ITERATIONS = 200
# Power of how much a gradient shows of a record by which its logits are weighed against those of others.
SURENESS = 5
# The same power above which a gradient as good as shows a record's own: its sign tells then, whatever was predicted.
SOLVED = 20


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Fit the labels of each batch of the first pass, given the gradient of the own model alone."""
    own = known.granted(OwnParty)
    if known.method.capabilities.simulated:
        gradients, ids = cut_layer(view, known)
        ids = ids[: known.batches]
        inputs = with_ones(own, ids)
        whole = own_gradient(inputs, gradients[: known.batches] * known.config.batch_size)
    else:
        whole, ids = received(view, known, own)
        inputs = with_ones(own, ids)[..., : whole.shape[2]]
    scores = FITS[known.options["fit"]](inputs, whole, torch.tensor(known.shares, dtype=torch.float64).to(whole))
    return LabelGuesses.of(scores, ids)


def with_ones(own: OwnParty, ids: Tensor) -> Tensor:
    """Return the features, and a one, of records `ids` (rounds, K, B) as (rounds, K, B, d + 1); 0 for padding."""
    rows = own.features.flatten(1).double()[ids]
    return torch.cat((rows, torch.ones_like(rows[..., :1])), 3) * (ids >= 0).unsqueeze(3)


def received(view: View, known: Knowledge, own: OwnParty) -> tuple[Tensor, Tensor]:
    """Return the sums (rounds, K, d + 1, c) of a linear model's gradients over batches that a system sent, and ids.

    Those are of the first pass over the data, (rounds, K, B). A message holds the mean of weights (c, d), with biases
    (c,) behind them or without, whose row is then left out. One logit is that of class 1 against class 0.
    """
    messages = [m for m in view.received(OF_A_BATCH) if m.receiver == known.client and m.ids is not None]
    ids = stacked_ids([granted(m.ids, "batch ids") for m in messages])
    first = pass_length(ids)
    sums = torch.stack([m.payload.flatten(1).double() for m in messages[:first]])
    ids = ids[:first]
    sums = sums * (ids >= 0).sum(2, keepdim=True)
    width = own.features.flatten(1).shape[1]
    outputs = own.evaluator.layout[0][1][0]
    weights, biases = sums.split([width * outputs, sums.shape[2] - width * outputs], 2)
    whole = weights.unflatten(2, (outputs, width)).mT
    if biases.shape[2]:
        whole = torch.cat((whole, biases.unsqueeze(2)), 2)
    return (torch.cat((-whole, whole), 3) if outputs == 1 else whole), ids


def own_gradient(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Return the gradient (..., d + 1, c) of a linear model's weights and bias: all that this attack reads.

    `inputs` (..., B, d + 1) are features with a one, `gradients` (..., B, c) those of the batch mean at its records.
    """
    return inputs.mT @ gradients


def solve(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return the smallest records' gradients (..., B, c) with inputs^T x = gradient, (..., d + 1, c)."""
    solution: Tensor = torch.linalg.pinv(inputs.mT) @ gradient
    return solution


def shown_of(shown: Tensor) -> Tensor:
    """Return how much of each record (..., B, 1), from 0 to 1, is left by the projection `shown` (..., B, B)."""
    return shown.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).clamp(0.0, 1.0)


def predictions(shown: Tensor, shares: Tensor) -> Tensor:
    """Return what is taken for predictions (..., B, c): `shares` (c,) of the classes, or of records as solved 1/c.

    `shown` (..., B, B) is the projection on what a gradient shows of a batch.
    """
    solved = shown_of(shown).pow(SOLVED)
    return solved / len(shares) + (1.0 - solved) * shares


def by_least_norm(inputs: Tensor, gradient: Tensor, shares: Tensor) -> Tensor:
    """Return scores (..., B, c) of labels: `predictions` less the smallest gradients."""
    return predictions(solve(inputs, inputs.mT), shares) - solve(inputs, gradient)


def by_labels(inputs: Tensor, gradient: Tensor, shares: Tensor) -> Tensor:
    """Return scores (..., B, c) of labels: logits of soft ones whose gradient of the model is nearest that received.

    The client does not know what the others add to the logits: predictions p are taken as the shares of the classes,
    which a model learns first, or as equal where a record's own gradient is solved for (`predictions`). What is then
    minimised, |M (p - y) - X^+ G|^2 over rows y of a simplex with M = X^+ X the projection on what a gradient shows, is
    convex. Mirror descent (Beck and Teboulle 2003) from equal labels goes to that of its minima with the largest
    entropy.

    Args:
        inputs: Rows of features with a one, (..., B, d + 1).
        gradient: Sum over the batch of x_i g_i, (..., d + 1, c).
        shares: Of the classes, (c,).
    """
    inverse = torch.linalg.pinv(inputs.mT)
    shown = inverse @ inputs.mT
    smallest = inverse @ gradient
    target = shown @ predictions(shown, shares) - smallest
    logits = torch.zeros_like(smallest)
    for _ in range(ITERATIONS):
        logits = logits + STEP * (target - shown @ torch.softmax(logits, -1))
    # Which record is the surer is told by how much of it is shown, from 0 to 1.
    return logits * shown_of(shown).pow(SURENESS)


FITS = {"labels": by_labels, "least-norm": by_least_norm}


def its_gradient(setting: AttackSetting) -> str | None:
    """Need gradients of records in a method's own protocol, or a system's of a client's linear model, for batches."""
    capabilities = setting.method.capabilities
    if capabilities.simulated:
        return next((why for need in needs.record_gradients if (why := need(setting)) is not None), None)
    m = setting.client
    if OF_A_BATCH not in capabilities.told_to(setting.parties):
        line = f'record.sent(round, 0, {m}, "{OF_A_BATCH}", bottom.weight.grad, ids)'
        return f"its server sends client {m} no gradient of a batch; {line} where it sends that of a linear model"
    if (why := needs.own_model(setting)) is not None:
        return why
    shapes = [shape for _, shape in layout_of(capabilities.architectures[m])]
    width = math.prod(setting.dataset.shapes[m - 1])
    if (
        len(shapes) > 2
        or len(shapes[0]) != 2
        or shapes[0][1] != width
        or shapes[0][0] not in (1, setting.dataset.classes)
    ):
        return f"the model of client {m} is not linear in its {width} features with a logit for each class, or one"
    return None


def linear_model(setting: AttackSetting) -> str | None:
    """Need a linear system to solve."""
    if not setting.method.capabilities.simulated:
        return None
    shape = setting.dataset.shapes[0]
    if len(shape) != 1 and setting.config.client_model != "mlp":
        return f"client 1 holds features of shape {shape}, whose model is not linear; needs client_model mlp"
    return None


def small_batches(setting: AttackSetting) -> AttackSetting:
    """Return split learning in batches of half as many records as there are features, at most eight."""
    size = max(1, min(8, math.prod(setting.dataset.shapes[0]) // 2))
    options = {"top_model": False, "epochs": 1, "batch_size": size, "dtype": "float64"}
    return setting.on("split", options, trials=1)


SPEC = AttackSpec(
    name="label_inversion",
    summary="labels from the batch-averaged gradient of a client's own linear model, for small batches",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("split in small batches without a top model: must be 0.85 at least", small_batches, 0.85)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="the client's model then ends at logits that the server only sums",
        suggests={"batch_size": 16},
        conditions=(linear_model, its_gradient),
        reads=("gradient", OF_A_BATCH),
    ),
    setup=Setup(options={"fit": "labels"}, choices={"fit": tuple(FITS)}),
)
