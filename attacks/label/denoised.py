"""Labels behind defences of gradients that come down: what changes from visit to visit of a record is averaged out.

Defences of single messages (noise along gradients, and Marvell: Li et al., ICLR 2022; compression and rounding: Fu et
al., USENIX Security 2022) hide a label behind draws, or behind other gradients, that are new in each epoch, while the
label stays. So all visits to a record are read together: in a window of rounds, gradients of a class are taken as
Gaussian about a centre of their own, and labels follow by expectation maximisation over all visits from a few known
ones. The adversary knows the defence. Marvell's noise stands out: nearly all of it lies along one direction of a
message, which the message itself shows, and what lies across is as it was or noised for one class. So of each gradient
is read what it is along and how long it is across, and each class has a covariance of its own; else all share one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from scipy.special import log_softmax, logsumexp, softmax

from mechanisms.core.channel import View

from ..core import needs
from ..core.knowledge import FewLabels, Knowledge
from ..core.metrics import Floats, Ints
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import mean_by_record, seen_alike
from .direct import cut_layer
from .enumeration import Visits, clusters, passes_of, windows_of
from .mount import mounted

# Passes of which gradients are read at most.
MOST_PASSES = 32
# Steps of expectation maximisation at most, and the first of them, in which a record's visits count for fewer.
ITERATIONS = 60
TEMPERED = 10
# What is added to a covariance, in mean variances, and how many visits' worth of all classes' stands in that of one.
RIDGE = 1e-2
SHARED = 1.0
# Least length across an axis, in root mean squares of a coordinate of the message: rounding tells nothing.
LEAST = 1e-4
# Least share of a class: one may have no record.
LEAST_SHARE = 1e-9
# Passes whose known visits make one reference to start from; None: all.
SPANS = (1, 3, None)
# First passes that are read alone where known labels contradict a longer reading; None: all.
READINGS = (None, 8, 2, 1)
# Mean log-probability of known labels by which a shorter reading must be better; their least one: no fit is surer.
BETTER = 0.05
LEAST_LOG = float(np.log(1e-3))


@dataclass(frozen=True)
class Visited:
    """All visits of one training, and what is public of them.

    `passes` hold windows of rounds, each of gradients (n, width) and the ids (n,) of their records; `ids` and `labels`
    are those that are known, `shares` (classes,) are those of the classes, and `by_class` says whether each class has a
    covariance of its own.
    """

    passes: Sequence[Sequence[Visits]]
    records: int
    ids: Ints
    labels: Ints
    shares: Floats
    by_class: bool


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Fit labels to all visits to each record, given a few of them; these are not guessed."""
    few = known.granted(FewLabels)
    gradients, ids = (values[: MOST_PASSES * known.batches] for values in cut_layer(view, known))
    by_class = any(defence.place == "gradient" and defence.reads_labels for defence in known.config.defences)
    fits = []
    units = torch.nn.functional.normalize(gradients, dim=3, eps=1e-300)
    read = scaled(gradients, ids)
    read = along_and_across(read, ids) if by_class else read
    rows = (values.transpose(0, 1).cpu().numpy() for values in (read, units, ids))
    granted = (few.ids.cpu().numpy(), few.labels.cpu().numpy(), known.replicas)
    for values, directions, places, some, labels, replica in zip(*rows, *granted, strict=True):
        passes = passes_of(windows_of(values, places, known.classes), known, places.shape[1])
        shares = np.maximum(known.shares, LEAST_SHARE)
        visited = Visited(passes, known.records, some, labels, shares, by_class)
        rounds = [None if first is None else first * known.batches for first in READINGS]
        grouped = (partial(clusters, directions[:most], places[:most], known, replica) for most in rounds)
        fits.append(longest(visited, dict(zip(READINGS, grouped, strict=True))))
    logs = torch.from_numpy(np.stack(fits)).to(ids.device)
    # Of two classes scores of one alone are ranked: each is compared with the other.
    logs = logs - logs.mean(2, keepdim=True)
    _, count = mean_by_record(gradients[..., 0], ids, known)
    return LabelGuesses.about(seen_alike(count.scatter(1, few.ids, 0.0), known), logs)


def scaled(gradients: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return gradients (rounds, K, B, width) over the root mean square of their batch: they shrink as training goes.

    Padding, whose `ids` (rounds, K, B) are -1, is zeros and no part of the batch.
    """
    return gradients / of_batch(gradients.square(), ids).mean(3, keepdim=True).sqrt().clamp(min=1e-300)


def of_batch(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean (rounds, K, 1, width) of each batch of values (rounds, K, B, width) but for its padding."""
    real = (ids >= 0).unsqueeze(3)
    return (values * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)


def along_and_across(gradients: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return of gradients (rounds, K, B, width) what lies along their message's first principal axis, and across it.

    That is the axis of Marvell's noise, whose power is several times the squared distance of the classes. An axis has
    no sign: each takes that of those before it, from which it turns away slowly.

    Returns:
        (rounds, K, B, 2): the coordinate on the axis, and the log of the length of the rest, each of unit variance
        over all rounds of a training. Padding, whose `ids` (rounds, K, B) are -1, tells nothing.
    """
    real = (ids >= 0).unsqueeze(3)
    centred = (gradients - of_batch(gradients, ids)) * real
    axes = torch.linalg.eigh(centred.mT @ centred)[1][..., -1]
    before = axes[0]
    oriented = []
    for axis in axes:
        turned = torch.where((axis * before).sum(1, keepdim=True) < 0, -axis, axis)
        oriented.append(turned)
        before = 0.8 * before + 0.2 * turned
    along = (gradients * torch.stack(oriented).unsqueeze(2)).sum(3)
    across = (gradients.square().sum(3) - along.square()).clamp(min=LEAST**2).sqrt().log()
    both = torch.stack((along, across), 3)
    size = real.sum((0, 2), keepdim=True).clamp(min=1)
    both = (both - (both * real).sum((0, 2), keepdim=True) / size) * real
    return both / (both.square().sum((0, 2), keepdim=True) / size).sqrt().clamp(min=1e-12)


def longest(visited: Visited, grouped: Mapping[int | None, Callable[[], Floats]]) -> Floats:
    """Return log-probabilities (N, classes) of labels by as many first passes as known labels agree with.

    Later gradients may say more of other things than of labels, as those of a server with batch norm do, or of records
    that are learnt by heart: many visits are then sure of something wrong. A known label has next to no say in the
    centres of its class, so that how probable its own visits make it judges a reading. `grouped` returns clusters of
    as many first passes; see `likeliest`.
    """
    readings = list[tuple[float, Floats]]()
    for passes in READINGS:
        if passes is not None and passes >= len(visited.passes):
            continue
        logs = likeliest(replace(visited, passes=visited.passes[:passes]), grouped[passes]())
        of_known = log_softmax(logs[visited.ids], 1)[np.arange(len(visited.ids)), visited.labels]
        readings.append((float(of_known.clip(min=LEAST_LOG).mean()), logs))
        if readings[-1][0] > -BETTER:
            break
    best = max(agreement for agreement, _ in readings)
    return next(logs for agreement, logs in readings if agreement >= best - BETTER)


def likeliest(visited: Visited, grouped: Floats) -> Floats:
    """Return log-probabilities (N, classes) of labels: of those fitted from several starts the likeliest.

    Starts are references made of known records, and `grouped`, log-probabilities (N, classes) of clusters that are
    named by known records.
    """
    starts = [start for span in SPANS if (start := from_known(visited, span)) is not None]
    starts.append(grouped[:, names_of(visited, grouped)])
    fits = [fitted(visited, start) for start in starts]
    logs, total = max(fits, key=lambda fit: fit[1])
    renamed = logs[:, names_of(visited, logs)]
    again, other = fitted(visited, renamed)
    return again if other > total else logs


def names_of(visited: Visited, logs: Floats) -> Ints:
    """Return which column of `logs` (N, classes) is each class, (classes,), by what it says of known records.

    A fit that starts from few known visits may tell classes apart and have their names wrong.
    """
    from scipy.optimize import linear_sum_assignment

    agreement = np.eye(len(visited.shares))[:, visited.labels] @ logs[visited.ids]
    return np.asarray(linear_sum_assignment(-agreement)[1])


def from_known(visited: Visited, span: int | None) -> Floats | None:
    """Return log-probabilities (N, classes) from how much gradients point as those of known records of each class do.

    Directions turn as training goes on, so that each `span` of passes has references of its own; few passes have few
    known visits, and noise does not average out. None where no span of passes holds a known record of each class.
    """
    classes = len(visited.shares)
    label_of = np.full(visited.records, -1)
    label_of[visited.ids] = visited.labels
    scores = np.zeros((visited.records, classes))
    step = span or len(visited.passes)
    for first in range(0, len(visited.passes), step):
        windows = chain.from_iterable(visited.passes[first : first + step])
        rows, ids = map(np.concatenate, zip(*windows, strict=True))
        known = np.eye(classes)[:, label_of[ids]] * (label_of[ids] >= 0)
        count = known.sum(1, keepdims=True)
        if (count == 0).any():
            continue
        means = known @ rows / count
        means -= means.mean(0)
        np.add.at(scores, ids, rows @ means.T / max(float(np.linalg.norm(means)), 1e-300))
    # Of one standard deviation of all: how sure a score is, is not known yet.
    spread = float(scores.std())
    return np.log(visited.shares) + 2.0 * scores / spread if spread > 0 else None


def fitted(visited: Visited, logs: Floats) -> tuple[Floats, float]:
    """Return log-probabilities (N, classes) by expectation maximisation from `logs`, and their log-likelihood.

    In its first steps a record's visits count together for one, and for ever more: labels that are wrong at the start
    would else be too sure to be left.
    """
    total = 0.0
    for step in range(ITERATIONS):
        sureness = min(1.0, (step + 1) / TEMPERED)
        weight = sureness + (1.0 - sureness) / len(visited.passes)
        shares = softmax(weight * logs, 1)
        shares[visited.ids] = np.eye(len(visited.shares))[visited.labels]
        updated = np.tile(np.log(visited.shares), (visited.records, 1))
        for windows in visited.passes:
            for ids, rows in of_classes(windows, shares, by_class=visited.by_class):
                np.add.at(updated, ids, rows)
        each = logsumexp(updated, 1)
        each[visited.ids] = updated[visited.ids, visited.labels]
        total = float(each.sum())
        same = step >= TEMPERED and (updated.argmax(1) == logs.argmax(1)).all()
        logs = updated
        if same:
            break
    return logs, total


def of_classes(windows: Sequence[Visits], shares: Floats, *, by_class: bool) -> Iterator[tuple[Ints, Floats]]:
    """Yield ids (n,) and log-densities (n, classes) of the visits of each window of one pass, given `shares` (N, c).

    Each window has its own centres, and each pass its own covariance, of each class or of all.
    """
    classes, width = shares.shape[1], windows[0][0].shape[1]
    within = np.zeros((classes, width, width))
    size = np.zeros(classes)
    centres = []
    for rows, ids in windows:
        own = shares[ids]
        here = own.sum(0)
        centres.append(own.T @ rows / np.maximum(here, 1e-9)[:, None])
        size += here
        for c in range(classes):
            apart = rows - centres[-1][c]
            within[c] += (apart * own[:, c : c + 1]).T @ apart
    pooled = within.sum(0) / size.sum()
    shared = SHARED * width
    own_covariance = (within + shared * pooled) / (size + shared)[:, None, None]
    covariance = own_covariance if by_class else np.broadcast_to(pooled, within.shape)
    least = RIDGE * max(float(np.trace(pooled)) / width, 1e-12)
    factors = np.linalg.cholesky(np.linalg.inv(covariance + least * np.eye(width)))
    volumes = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
    for (rows, ids), means in zip(windows, centres, strict=True):
        distances = [(((rows - means[c]) @ factors[c]) ** 2).sum(1) for c in range(classes)]
        yield ids, volumes - 0.5 * np.stack(distances, 1)


def on_sums(setting: AttackSetting) -> AttackSetting:
    """Return split learning without a top model, where a gradient at the logits is p - y."""
    return setting.on("split", {"top_model": False, "epochs": 2}, trials=1, options={})


SPEC = AttackSpec(
    name="label_denoised",
    summary="labels behind defences of gradients: all visits to a record are read together, from a few known labels",
    adversaries=("client",),
    infer=infer,
    mounted_by=mounted,
    goal=Goal(
        Positive("label_denoised on split without a top model: must be 0.95 at least", on_sums, 0.95),
        unsupervised=True,
    ),
    needs=Needs(conditions=needs.record_gradients, one_view=True, reads=("gradient",)),
    setup=Setup(options={"labels_per_class": 3}, few_labels=True),
)
