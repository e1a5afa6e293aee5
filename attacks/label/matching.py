"""Labels by matching gradients with a surrogate server (ExPLoit: Kariyappa and Qureshi, arXiv 2112.01299).

The client replays training with a surrogate model p' = softmax(h U + b) on its own embeddings h, whose gradient at h
is (p' - y') W, and with surrogate labels y', the softmax of free numbers for each record. All are trained until the
gradients are those received. Two regularisers say what is public of labels: each is one class (entropy), and their mean
is the shares of the classes (Kullback-Leibler divergence). The server's own model moves and reads other clients'
embeddings too, so U, b and W are free in each window of rounds; labels are the same in all.

No label is known. Under other names for the classes the surrogates fit as well, so names follow from the shares alone,
as in `attacks.label.enumeration`.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import View

from ..core import needs
from ..core.knowledge import Knowledge
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import mean_by_record, seen_alike
from .direct import cut_layer
from .enumeration import by_shares, named, rounds_of_window, unequal_shares, without_gradients
from .head import Adam, parts
from .mount import mount_labels

# Rates of Adam for the surrogate model and for the numbers behind labels, and the deviation of these at the start.
RATE = 0.05
LABEL_RATE = 0.3
SPREAD = 0.1
# Weights of the entropy and of the divergence, which grow from 0 over the first and the second half of the steps.
# (From the start the shares would hold labels in the wrong places.)
ENTROPY = 0.1
DIVERGENCE = 1.0
LEAST = 1e-12
# Windows of `attacks.label.enumeration` that make one of a surrogate's.
WINDOWS = 2


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Fit surrogate labels to the first passes over the data, and name their classes by the shares."""
    most = known.options["passes"] * known.batches
    gradients, ids = (values[:most] for values in cut_layer(view, known))
    _, count = mean_by_record(gradients[..., 0], ids, known)
    records = seen_alike(count, known)
    inputs = own_embeddings(view, gradients)
    logs = [
        surrogate_labels(inputs[:, k], gradients[:, k], ids[:, k], known, replica)
        for k, replica in enumerate(known.replicas)
    ]
    every = torch.stack(logs).double().take_along_dim(records.unsqueeze(2), 1)
    return named(every, by_shares(every.argmax(2), known), records)


def own_embeddings(view: View, gradients: Tensor) -> Tensor:
    """Return what the client sent before it received `gradients` (rounds, K, B, width), of the same shape.

    Zeros where the view does not hold all of them: the surrogate then predicts the same for all records of a window.
    """
    sent = {message.round: message.payload for message in view.sent("embeddings")}
    rounds = [message.round for message in view.received("gradient")][: len(gradients)]
    _, trainings, most, width = gradients.shape
    rows = [row for number in rounds if (row := sent.get(number)) is not None and row.dim() == 3]
    if len(rows) < len(rounds) or any(len(row) != trainings or row.shape[2] != width for row in rows):
        return torch.zeros_like(gradients)
    # Batches that differ in size are filled up, as their gradients are.
    return torch.stack([pad(row[:, :most], (0, 0, 0, max(0, most - row.shape[1]))) for row in rows]).to(gradients)


def surrogate_labels(inputs: Tensor, gradients: Tensor, ids: Tensor, known: Knowledge, replica: int) -> Tensor:
    """Return log-probabilities (N, classes) of surrogate labels: those of the start whose loss ends least.

    Args:
        inputs: Embeddings of one training, (rounds, B, width).
        gradients: Gradients at them, of the same shape, in any unit.
        ids: Their records, (rounds, B), -1 for padding.
        known: Public parameters.
        replica: The training's number, for random starts.
    """
    rounds = WINDOWS * rounds_of_window(ids.shape[1], known.classes)
    count = max(1, len(ids) // rounds)
    lacking = -len(ids) % count
    places = pad(ids, (0, 0, 0, lacking), value=-1).view(count, -1)
    h, g = (pad(rows.float(), (0, 0, 0, 0, 0, lacking)).view(count, -1, rows.shape[2]) for rows in (inputs, gradients))
    real = (places >= 0).float().unsqueeze(2)
    size = real.sum()
    if not size:
        return g.new_zeros(known.records, known.classes).log_softmax(1)
    h = (h - (h * real).sum((0, 1)) / size) * real
    h, g = (rows / ((rows * real).square().sum() / size).sqrt().clamp(min=1e-30) for rows in (h, g))
    # Of one unit in each coordinate.
    h, g = (rows * math.sqrt(rows.shape[2]) for rows in (h, g))
    with torch.enable_grad():
        logs, losses = _trained(h, g, places.clamp(min=0), real, known, replica)
    return logs[int(losses.argmin())]


def _trained(
    h: Tensor, g: Tensor, places: Tensor, real: Tensor, known: Knowledge, replica: int
) -> tuple[Tensor, Tensor]:
    """Train surrogates from each start.

    Args:
        h: Embeddings, (windows, visits, width).
        g: Gradients at them, of the same shape.
        places: Their records, (windows, visits).
        real: 0 for padding and 1 for others, (windows, visits, 1).
        known: Public parameters.
        replica: The training's number.

    Returns:
        Log-probabilities of labels, (starts, N, classes), and losses, (starts,).
    """
    generator = stream(known.seed, Purpose.ATTACK, replica, 14)
    starts, steps, classes = known.options["starts"], known.options["steps"], known.classes
    windows, visits, width = g.shape
    prior = torch.tensor(sorted(known.shares)).to(g)
    held = real[..., 0] > 0
    earliest = int(held.any(1).int().argmax())  # the first window that holds a record
    rows = g[earliest][held[earliest]]
    w = -seeds(rows, starts, classes, generator).unsqueeze(1).repeat(1, windows, 1, 1)
    drawn = SPREAD * generator.standard_normal((starts, known.records, classes), np.float32)
    u, b = g.new_zeros(starts, windows, width, classes), g.new_zeros(starts, windows, 1, classes)
    of_model = torch.cat([part.flatten() for part in (w, u, b)])
    of_labels = torch.from_numpy(drawn).to(g).flatten()
    model, free = Adam(of_model, RATE), Adam(of_labels, LABEL_RATE)
    w, u, b = (part.requires_grad_() for part in parts(of_model, (w, u, b)))
    numbers = of_labels.view(starts, -1, classes).requires_grad_()
    index = places.flatten().expand(starts, -1).unsqueeze(2).expand(-1, -1, classes)
    losses = g.new_zeros(starts)
    for step in range(steps):
        logs = numbers.log_softmax(2)
        labels = logs.exp()
        residual = (h @ u + b).softmax(3) - labels.gather(1, index).view(starts, windows, visits, classes)
        match = ((g - residual @ w) * real).square().sum((1, 2, 3)) / (real.sum() * width)
        entropy = -(labels * logs).sum(2).mean(1) / math.log(classes)
        # Of shares in order: which class is which is told afterwards.
        shares = labels.mean(1).sort(1).values
        divergence = (prior * ((prior + LEAST) / (shares + LEAST)).log()).sum(1)
        done = 2.0 * step / steps
        losses = match + ENTROPY * min(1.0, done) * entropy + DIVERGENCE * max(0.0, done - 1.0) * divergence
        # The sum over starts keeps their gradients apart.
        *by_model, by_labels = torch.autograd.grad(losses.sum(), (w, u, b, numbers))
        model.step(torch.cat([gradient.flatten() for gradient in by_model]))
        free.step(by_labels.flatten())
    return numbers.detach().log_softmax(2), losses.detach()


def seeds(rows: Tensor, starts: int, classes: int, generator: np.random.Generator) -> Tensor:
    """Return for each start `classes` of `rows` (n, width) that lie apart, (starts, classes, width).

    Each is drawn in proportion to its squared distance from those before (k-means++: Arthur and Vassilvitskii 2007).
    """
    draws = torch.from_numpy(generator.random((classes, starts, 1))).to(rows)
    weights = torch.ones_like(rows[:, 0]).expand(starts, -1)
    chosen = []
    for draw in draws:
        within = weights.cumsum(1)
        place = torch.searchsorted(within, draw * within[:, -1:]).clamp(max=len(rows) - 1)
        chosen.append(rows[place[:, 0]])
        distance = (rows - chosen[-1].unsqueeze(1)).square().sum(2)
        weights = distance if len(chosen) == 1 else torch.minimum(weights, distance)
    return torch.stack(chosen, 1)


SPEC = AttackSpec(
    name="label_matching",
    summary="labels without a known one: a surrogate model and labels are trained to give the same gradients (ExPLoit)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(
        Positive("four classes of 10 to 40% under a top model: must be 0.95 at least", unequal_shares, 0.95),
        baselines=without_gradients,
    ),
    needs=Needs(conditions=needs.record_gradients, one_view=True, reads=("gradient", "embeddings")),
    setup=Setup(options={"passes": 2, "starts": 4, "steps": 200}, trials=16, in_pilot={"steps": 100, "starts": 2}),
)
