"""Reads labels off rows of which a few are labelled: by a head, by label spreading, or by logistic regression.

Which of them suits depends on the rows and on how few labels there are, so each training takes the one that names most
of its own labelled records when they are left out in turn: nobody is told a label for it. A baseline that takes the
best of the same three is as strong as the attack that stands beside it.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream

from ..core.knowledge import FewLabels, Knowledge
from ..core.metrics import Floats, Ints
from .head import train_heads

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin

# Probabilities (K, N, classes) of rows (K, N, width), and (K, n, classes) of those (K, n, width) that are held out.
Probabilities = tuple[Tensor, Tensor]
Learner = Callable[[Tensor, Tensor, FewLabels, Knowledge], Probabilities]
# The same for each of several sets of labels.
Learners = Callable[[Tensor, Tensor, Sequence[FewLabels], Knowledge], Sequence[Probabilities]]
FOLDS = 2
# Heads that train as one stack, at most: of more a step takes longer.
HEADS = 64
# Label spreading: neighbours, how much a record takes from them, and the components of rows that are wider.
NEIGHBOURS = 8
SHARE = 0.9
COMPONENTS = 50
# Rows of the graph at most; others take the labels of their neighbours in it.
GRAPH = 10_000
# Inverse strength of the penalty of logistic regression.
PENALTY = 0.1


def by_head(rows: Tensor, outside: Tensor, several: Sequence[FewLabels], known: Knowledge) -> Sequence[Probabilities]:
    """Train heads in the MixMatch way, see `attacks.label.head`."""
    most = max(1, HEADS // len(rows))
    stacks = (several[first : first + most] for first in range(0, len(several), most))
    heads = chain.from_iterable(train_heads(rows, stack, known) for stack in stacks)
    return [(head.probabilities(rows), head.probabilities(outside)) for head in heads]


def by_spreading(rows: Tensor, outside: Tensor, few: FewLabels, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Spread labels over the graph of nearest neighbours (Zhou et al., NIPS 2003), each training by itself."""
    from sklearn.decomposition import PCA
    from sklearn.semi_supervised import LabelSpreading

    def learn(inside: Floats, beyond: Floats, ids: Ints, labels: Ints, replica: int) -> list[Floats]:
        if min(inside.shape) > COMPONENTS:
            components = PCA(COMPONENTS, random_state=0).fit(inside)
            inside = components.transform(inside)
            beyond = components.transform(beyond) if len(beyond) else beyond
        places = _in_graph(ids, len(inside), known.seed, replica)
        partly = np.concatenate((labels, np.full(len(places) - len(ids), -1)))
        near = min(NEIGHBOURS, len(places) - 1)
        model = LabelSpreading(kernel="knn", n_neighbors=near, alpha=SHARE, max_iter=100).fit(inside[places], partly)
        spread = np.zeros((len(inside), known.classes))
        spread[np.ix_(places, model.classes_)] = model.label_distributions_
        rest = np.setdiff1d(np.arange(len(inside)), places)
        spread[rest] = _predicted(model, inside[rest], known.classes)
        return [spread, _predicted(model, beyond, known.classes)]

    return _one_by_one(learn, rows, outside, few, known)


def by_regression(rows: Tensor, outside: Tensor, few: FewLabels, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression on the labelled rows alone, each training by itself."""
    from sklearn.linear_model import LogisticRegression

    def learn(inside: Floats, beyond: Floats, ids: Ints, labels: Ints, replica: int) -> list[Floats]:
        scale = inside.std(0).mean() + 1e-9
        model = LogisticRegression(C=PENALTY, max_iter=300).fit(inside[ids] / scale, labels)
        return [_predicted(model, rows / scale, known.classes) for rows in (inside, beyond)]

    return _one_by_one(learn, rows, outside, few, known)


def each(learn: Learner) -> Learners:
    """Return what learns from one set of labels after the other."""
    return lambda rows, outside, several, known: [learn(rows, outside, few, known) for few in several]


LEARNERS: Mapping[str, Learners] = {
    "head": by_head,
    "spreading": each(by_spreading),
    "regression": each(by_regression),
}


def best(rows: Tensor, outside: Tensor, few: FewLabels, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the probabilities of the learner that suits each training best by folds of its labelled records."""
    rows, outside = torch.nan_to_num(rows), torch.nan_to_num(outside)
    right = torch.zeros(len(LEARNERS), len(rows), device=rows.device)
    some, among = _fewer(rows, few, known)
    splits = list(folds(among, known.classes))
    all_of = []
    for place, learn in enumerate(LEARNERS.values()):
        kept = [fold for fold, _ in splits]
        if some is rows:
            *by_fold, final = learn(rows, outside, [*kept, few], known)
        else:
            by_fold = list(learn(some, outside[:, :0], kept, known))
            (final,) = learn(rows, outside, [few], known)
        for (probabilities, _), (_, left) in zip(by_fold, splits, strict=True):
            named = probabilities.to(rows).argmax(2).gather(1, left.ids)
            right[place] += (named == left.labels).sum(1)
        all_of.append(final)
    chosen = right.argmax(0)
    every = torch.arange(len(rows), device=rows.device)
    both = zip(*all_of, strict=True)
    inside, beyond = (torch.stack([values.to(rows) for values in side])[chosen, every] for side in both)
    return inside, beyond


def _fewer(rows: Tensor, few: FewLabels, known: Knowledge) -> tuple[Tensor, FewLabels]:
    """Return `GRAPH` rows (K, n, width) at most, the labelled first: which learner suits them asks for no more."""
    if rows.shape[1] <= GRAPH:
        return rows, few
    replicas = zip(few.ids.cpu().numpy(), known.replicas, strict=True)
    places = np.stack([_in_graph(ids, rows.shape[1], known.seed, replica) for ids, replica in replicas])
    chosen = rows.take_along_dim(torch.from_numpy(places).to(rows.device).unsqueeze(2), 1)
    return chosen, FewLabels(torch.arange(few.ids.shape[1]).to(few.ids).expand_as(few.ids), few.labels)


def folds(few: FewLabels, classes: int) -> Iterator[tuple[FewLabels, FewLabels]]:
    """Yield what is kept and what is left out of labelled records, as many of each class; nothing of single ones."""
    count = few.ids.shape[1]
    if count < FOLDS * classes:
        return
    number = torch.arange(count) % FOLDS
    for fold in range(FOLDS):
        kept, left = (FewLabels(few.ids[:, mask], few.labels[:, mask]) for mask in (number != fold, number == fold))
        yield kept, left


def _one_by_one(
    learn: Callable[[Floats, Floats, Ints, Ints, int], list[Floats]],
    rows: Tensor,
    outside: Tensor,
    few: FewLabels,
    known: Knowledge,
) -> tuple[Tensor, Tensor]:
    inputs = (rows.double(), outside.double(), few.ids, few.labels)
    arrays = zip(*(values.cpu().numpy() for values in inputs), known.replicas, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what has not converged is judged by its folds
        both = zip(*(learn(*array) for array in arrays), strict=True)
    inside, beyond = (torch.from_numpy(np.stack(probabilities)) for probabilities in both)
    return inside, beyond


def _in_graph(ids: Ints, records: int, seed: int, replica: int) -> Ints:
    """Return places of `GRAPH` of all records at most: the labelled `ids` and, drawn at random, others."""
    rest = np.setdiff1d(np.arange(records), ids)
    drawn = stream(seed, Purpose.ATTACK, replica, 12).permutation(rest)[: GRAPH - len(ids)]
    return np.concatenate((ids, drawn))


def _predicted(model: "ClassifierMixin", rows: Floats, classes: int) -> Floats:
    """Return the probabilities (n, classes) of rows (n, width) by a model, 0 for classes that it was not shown."""
    probabilities = np.zeros((len(rows), classes))
    if len(rows):
        probabilities[:, model.classes_] = model.predict_proba(rows)
    return probabilities
