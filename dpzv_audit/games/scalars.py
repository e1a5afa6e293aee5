"""Estimates of each record's gradient by the scalars that answer pairs of a client's embeddings.

Every scalar is about a whole batch. What is public of labels, and the pull of the model's own outputs, is regressed
out. The rest gives a posterior mean under independent gradients; its scale and noise are the likeliest.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from attacks.core.pairs import PairAnswers, likeliest_weights, pair_answers
from mechanisms.core.channel import View

from .arrays import Floats

AT_ONCE = 1000
"""Scalars by which records are told apart together: their covariances are one matrix."""


def gradient_estimates(view: View, expected: Callable[[], Floats]) -> Iterator[tuple[str, Floats]]:
    """Yield a name and estimates (N, width) by the scalars to each client, and to all where there are several.

    Args:
        view: The view of one training.
        expected: Returns what is public of the labels: their expected one-hot rows (N, classes).
    """
    found = {client: pair_answers(view, client) for client in view.adversary.clients}
    read = {f"to {client}": [answers] for client, answers in found.items() if answers is not None}
    if not read:
        return
    labels = expected()
    together = [answers for (answers,) in read.values()]
    if len(together) > 1 and len({answers.moves.shape[3] for answers in together}) == 1:
        read["to all"] = together
    for name, several in read.items():
        rounds = AT_ONCE // len(several)
        pieces = [
            _solved([_equations(answers, slice(first, first + rounds), labels) for answers in several])
            for first in range(0, max(len(answers.scalars) for answers in several), rounds)
        ]
        yield name, np.sum(pieces, axis=0).reshape(len(labels), -1)


class _Equations(NamedTuple):
    """Scalars (T,) that measure gradients by a `design` (T, N * width), and what is `public` of them (T, p)."""

    scalars: Floats
    design: csr_array
    public: Floats


def _equations(answers: PairAnswers, some: slice, labels: Floats) -> _Equations:
    """Return `some` of the answers of one training as equations; `labels` (N, classes) are expected one-hot rows."""
    moves = answers.directions[some, 0].cpu().numpy()
    middles = answers.middles[some, 0].cpu().numpy()
    ids = answers.ids[some, 0].cpu().numpy()
    if moves.shape[2] == 1 and labels.shape[1] == 2:
        # The one logit of two classes is that of class 1.
        moves, middles = (np.pad(rows, ((0, 0), (0, 0), (1, 0))) for rows in (moves, middles))
    rounds, places, width = moves.shape
    public = [np.einsum("tbw,tbw->t", moves, middles)]
    if width == labels.shape[1]:
        # Gradients at logits sum to 0 over classes: what moves all of them alike tells nothing.
        moves = moves - moves.mean(2, keepdims=True)
        public.append(np.einsum("tbw,tbw->t", moves, labels[ids]))
    columns = (ids.clip(min=0)[:, :, None] * width + np.arange(width)).reshape(-1)
    ends = np.arange(rounds + 1) * (places * width)
    design = csr_array((moves.reshape(-1) / places, columns, ends), shape=(rounds, len(labels) * width))
    return _Equations(answers.scalars[some, 0].cpu().numpy(), design, np.stack(public, 1))


def _solved(equations: Sequence[_Equations]) -> Floats:
    """Return estimates (N * width,) of all gradients, 0 of records that no scalar is about."""
    scalars = np.concatenate([one.scalars for one in equations])
    design = vstack([one.design for one in equations]).tocsr()
    public = np.concatenate([one.public for one in equations])
    public = public / (np.linalg.norm(public, axis=0) + 1e-30)
    rest = scalars - public @ np.linalg.lstsq(public, scalars, rcond=None)[0]
    weights = likeliest_weights((design @ design.T).toarray(), rest)[1]
    return np.asarray(design.T @ weights)
