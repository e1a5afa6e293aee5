"""Undoes what a defence of labels is known to do, with what the client's own features say.

The private label r of a record is read as `label_direct` reads a label, over all passes. Where settings tell its chance
P(r | y) under each true one, the answer is a client's Bayes guess, argmax_y P(y | x) P(r | y): P(y | x) is a logistic
regression on the client's features whose loss knows these chances (forward correction: Patrini et al., CVPR 2017).

A confusional autoencoder gives all records of a class one soft label s_y, so that gradients p - s_y fall into groups of
one covariance. They are found by expectation maximisation. Its loss keeps the class itself out of its soft label, so
each group is named by where its gradients lie highest above the others'.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mechanisms.core.channel import View
from mechanisms.defences.confusion import ConfusionalAutoencoder

from ..core import needs
from ..core.controls import CERTAIN
from ..core.knowledge import Knowledge, OwnParty, granted
from ..core.metrics import Floats, Ints
from ..core.queries import stacked
from ..core.setting import COLLUDING, AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive
from .binary import mean_by_record, seen_alike
from .direct import argmin, on_split
from .mount import mount_labels

# Passes over the data whose gradients tell groups apart: they shrink as predictions come near soft labels.
PASSES = 8
STEPS = 50
# Of the regression: penalties among which held-out records choose, and steps.
PENALTIES = (1e-3, 1e-2, 1e-1)
FITTED = 150
# Records that it is fitted to at most.
MOST = 10_000
LEAST = 1e-30
# A label that is right so often tells more than features do.
CLEAR = 0.99
QUIET = ("labels", "embedding")
"""Where defences stand that leave gradients as they are."""


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess the labels of the records of the first pass."""
    gradients, places = stacked([message for message in view.received("gradient") if message.receiver == known.client])
    ids = granted(places, "batch ids")
    first = seen_alike(mean_by_record(gradients[: known.batches, ..., 0], ids[: known.batches], known)[1], known)
    defences = known.config.defences
    if any(isinstance(defence, ConfusionalAutoencoder) for defence in defences):
        starts = range(0, min(len(ids), PASSES * known.batches), known.batches)
        passes = (slice(start, start + known.batches) for start in starts)
        means, counts = zip(*(mean_by_record(gradients[rounds], ids[rounds], known) for rounds in passes), strict=True)
        unseen = torch.stack(counts, 2).unsqueeze(3) == 0
        by_pass = torch.stack(means, 2).masked_fill(unseen, torch.nan)
        scores = torch.stack([_unconfused(rows, own.unique(), known) for rows, own in zip(by_pass, first, strict=True)])
        return replace(LabelGuesses.about(first, scores), unnamed=True)
    # Noise on gradients is another in each pass; without it predictions say least of a soft label in the first.
    noised = getattr(known.config, "dp", "none") == "gradient" or any(
        defence.place not in QUIET for defence in defences
    )
    read = slice(None if noised else known.batches)
    private = argmin(mean_by_record(gradients[read], ids[read], known)[0].nan_to_num(0.0))
    late = slice(known.batches, None) if len(ids) > known.batches else slice(None)
    predicted = mean_by_record(gradients[late], ids[late], known)[0].nan_to_num(0.0) * known.config.batch_size
    predicted.scatter_add_(2, private.unsqueeze(2), torch.ones_like(predicted[..., :1]))
    return LabelGuesses.about(first, posterior(private, predicted, first, known))


def response_of(known: Knowledge) -> Floats:
    """Return the chance (classes, classes) of each label that is trained on under each true one, as settings tell."""
    chances = np.eye(known.classes)
    for defence in known.config.defences:
        response = defence.response(known.classes, known.records)
        chances = chances if response is None else chances @ response
    return chances


def posterior(private: Tensor, predicted: Tensor, seen: Tensor, known: Knowledge) -> Tensor:
    """Return log P(y | x) + log P(r | y) of each class y, (K, N, classes), of `private` labels r (K, N).

    The regression is fitted to those of the records `seen` (K, n).
    """
    response = torch.from_numpy(response_of(known)).to(private.device)
    channel = response.clamp(min=LEAST).log().T[private]
    if float(response.diagonal().min()) > CLEAR:
        return channel
    blocks = [own.features.flatten(1).double() for own in known.all_granted(OwnParty)]
    own = scaled(torch.cat(blocks, 1))
    shares = torch.tensor(known.shares, dtype=torch.float64, device=own.device)
    logs = []
    for labels, soft, ids in zip(private, predicted, seen[:, :MOST], strict=True):
        bases = (own, torch.cat((own, scaled(soft)), 1))
        logs.append(class_logs(bases, labels, ids, response, shares))
    return channel + torch.stack(logs)


def scaled(rows: Tensor) -> Tensor:
    """Return `rows` (N, d) with means of 0 and deviations of 1."""
    return (rows - rows.mean(0)) / (rows.std(0) + 1e-9)


def class_logs(bases: Sequence[Tensor], private: Tensor, seen: Tensor, response: Tensor, shares: Tensor) -> Tensor:
    """Return log P(y | x) (N, classes) by a regression on one of `bases` (N, d), or the classes' `shares`.

    Which is best, and by which penalty, is told by the likelihood of the private labels (N,) of every other record of
    `seen` (n,), a regression being fitted to the rest. Who knew the true label would reach the `ceiling` on average: a
    basis that does better holds the private label itself.
    """
    prior = shares.clamp(min=LEAST).log()
    ceiling = float((shares @ (response * response.clamp(min=LEAST).log())).sum())
    fitted, held = seen[::2], seen[1::2]
    by_shares = prior.expand(len(private), -1)
    best = _likelihood(by_shares[held], private[held], response)
    chosen: tuple[Tensor, float] | None = None
    for basis in bases:
        rows = torch.cat((basis, torch.ones_like(basis[:, :1])), 1)
        for penalty in PENALTIES:
            logs = regression(rows, private, fitted, response, prior, penalty)
            likelihood = _likelihood(logs[held], private[held], response)
            if best < likelihood < ceiling:
                best, chosen = likelihood, (rows, penalty)
    return by_shares if chosen is None else regression(chosen[0], private, seen, response, prior, chosen[1])


def _likelihood(logs: Tensor, private: Tensor, response: Tensor) -> float:
    """Return the mean log-likelihood of private labels (n,) under log P(y | x), (n, classes)."""
    chances = (logs.exp() @ response).gather(1, private.unsqueeze(1))
    return float(chances.clamp(min=LEAST).log().mean())


def regression(rows: Tensor, private: Tensor, ids: Tensor, response: Tensor, prior: Tensor, penalty: float) -> Tensor:
    """Fit a logistic regression to private labels (N,) of records `ids` (n,); log P(y | x) of all rows, (N, classes).

    Accelerated gradient steps (Nesterov 1983) on the forward-corrected loss with a ridge `penalty`, from the logarithms
    `prior` of the classes' shares.
    """
    inputs = rows[ids]
    wanted = response.T[private[ids]]
    # Half the largest eigenvalue of the mean outer product bounds the curvature.
    step = 1.0 / (0.5 * torch.linalg.matrix_norm(inputs.T @ inputs / len(ids), 2) + penalty)
    weights = rows.new_zeros(rows.shape[1], len(prior))
    before = weights
    for number in range(FITTED):
        ahead = weights + number / (number + 3.0) * (weights - before)
        predicted = torch.softmax(prior + inputs @ ahead, 1)
        both = predicted * wanted
        residual = predicted - both / both.sum(1, keepdim=True).clamp(min=LEAST)
        before, weights = weights, ahead - step * (inputs.T @ residual / len(ids) + penalty * ahead)
    return torch.log_softmax(prior + rows @ weights, 1)


def _unconfused(passes: Tensor, ids: Tensor, known: Knowledge) -> Tensor:
    """Return log-probabilities (N, classes) of classes by mean gradients (N, passes, classes) of records.

    Only records `ids` are put into groups; the others get zeros.
    """
    rows = passes[ids].cpu().numpy()
    rows = np.nan_to_num(rows - np.nanmean(rows, 0))
    # Of classes - 1 dimensions: gradients sum to nothing.
    inputs = rows[:, :, :-1].reshape(len(rows), -1)
    scaled = (rows / (rows.std((0, 2), keepdims=True) + LEAST)).sum(1)
    starts = (rows[:, 0].argmax(1), rows[:, 0].argmin(1), scaled.argmax(1))
    logs, _ = max((mixture(inputs, start, known.classes) for start in starts), key=lambda fit: fit[1])
    shares = np.exp(logs)
    means = shares.T @ rows[:, 0] / (shares.sum(0)[:, None] + LEAST)
    named = passes.new_zeros(len(passes), known.classes)
    named[ids] = torch.from_numpy(logs[:, names(means)]).to(named)
    return named


def mixture(rows: Floats, start: Ints, groups: int) -> tuple[Floats, float]:
    """Fit Gaussians of one covariance by expectation maximisation from groups `start` (n,) of `rows` (n, d).

    Returns the log-probabilities (n, groups) of groups, and the mean log-likelihood but for a constant.
    """
    from scipy.special import logsumexp

    size, width = rows.shape
    shares = np.full((size, groups), 0.1 / groups)
    shares[np.arange(size), start] += 0.9
    products = rows.T @ rows / size
    ridge = 1e-6 * np.trace(products) / width * np.eye(width) + LEAST * np.eye(width)
    for _ in range(STEPS):
        weights = shares.sum(0) + 1e-9
        means = shares.T @ rows / weights[:, None]
        precision = np.linalg.inv(products - (means.T * weights / size) @ means + ridge)
        moved = means @ precision
        logs = rows @ moved.T - 0.5 * (moved * means).sum(1) + np.log(weights / size)
        total = logsumexp(logs, axis=1, keepdims=True)
        logs = logs - total
        shares = np.exp(logs)
    spread = 0.5 * ((rows @ precision) * rows).sum(1)
    return logs, float((total[:, 0] - spread).mean() + 0.5 * np.linalg.slogdet(precision)[1])


def names(means: Floats) -> Ints:
    """Return the group of each class, (classes,), by mean gradients (groups, classes) less those of all records.

    The loss of the autoencoder keeps a class out of its own soft label, so that the gradients of its records are
    highest there: taken is the assignment with the largest total.
    """
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(-means)[1].argsort())


def numbers(setting: AttackSetting) -> str | None:
    """Need features that a regression can be fitted to."""
    client = next((m for m in setting.parties if setting.dataset.train.features[m - 1].dtype != np.float32), None)
    return None if client is None else f"client {client} holds token ids, and it fits a regression to numbers"


SPEC = AttackSpec(
    name="label_corrected",
    summary="label_direct, with what a defence of labels did undone by its chances and the client's own features",
    adversaries=("client", COLLUDING),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("label_corrected on split without a top model: must be 1", on_split, CERTAIN)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="it reads the gradient at logits that the server only sums",
        conditions=(*needs.record_gradients, numbers, needs.own_model),
        one_view=True,
    ),
)
