"""Fits a score to the views of both worlds where no exact likelihood ratio is known: linear, quadratic or boosted.

Which of the three is chosen by cross-validation inside the fitting part. The runs that are tested play no part in it,
so that the choice costs runs and no error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_FIT = 20
MOST_PRODUCTS = 200
"""Products of two numbers of a view that a quadratic score takes at most; of longer views only those of neighbours."""
WORDS = {
    "linear": "logistic regression on the view",
    "quadratic": "logistic regression on the view, its squares and products",
    "boosted": "gradient-boosted trees on the view and its order statistics",
}
"""Kinds of fitted scores, the plainest first."""
_FOLDS = 5
_CLEARLY = 1.0
"""Standard errors by which a richer score's held-out log loss must be lower than a plainer one's."""


def fit_size(pairs: int) -> int:
    """Return how many of `pairs` pairs go to the fit: a fifth, at least 20; they score nothing themselves."""
    return max(LEAST_FIT, pairs // 5)


@dataclass(frozen=True)
class FittedScore:
    """A score that was fitted: its `kind` (a key of `WORDS`), and the log odds of "in" that it gives to views (n, d).

    `held_out_loss` is the cross-validated log loss of each kind that was tried; of log 2 = 0.693, that of a guess.
    """

    kind: str
    score: Callable[[Floats], Floats]
    held_out_loss: Mapping[str, float]
    pairs: int

    @property
    def facts(self) -> dict[str, str]:
        """What a result says of it: its kind in words, what it was fitted on, and what it was chosen by."""
        losses = ", ".join(f"{kind} {loss:.3f}" for kind, loss in self.held_out_loss.items())
        chosen = {"chosen_by": f"cross-validated log loss: {losses} (a guess: 0.693)"} if losses else {}
        words = f"{self.kind}: {WORDS[self.kind]}"
        return {"fitted_score": words, "fitted_on": f"{self.pairs} further runs in each world", **chosen}


def fit_score(
    in_views: Floats,
    out_views: Floats,
    *,
    kinds: Sequence[str] = tuple(WORDS),
    folds: NDArray[np.int_] | None = None,
) -> FittedScore:
    """Choose a score among `kinds` by cross-validation on equally many views (n, d) of either world, and fit it.

    A richer score is chosen where its held-out log loss is lower than the plainer one's by more than a standard error
    of their paired differences. The folds follow from the order of the views, so that the same views give the same
    score, unless `folds` (n,) says in which fold the n-th of either world is.
    """
    from threadpoolctl import threadpool_limits

    views = np.concatenate([in_views, out_views])
    truth = np.repeat([1, 0], len(in_views))
    folds = np.tile(np.arange(len(in_views)) % _FOLDS if folds is None else folds, 2)
    with threadpool_limits(1):
        losses = {kind: _held_out(kind, views, truth, folds) for kind in kinds} if len(kinds) > 1 else {}
        chosen = kinds[0]
        for kind in kinds[1:]:
            gain = losses[chosen] - losses[kind]
            if gain.mean() > _CLEARLY * gain.std(ddof=1) / np.sqrt(gain.size):
                chosen = kind
        score = _fitted(chosen, views, truth)
    held_out_loss = {kind: float(loss.mean()) for kind, loss in losses.items()}
    return FittedScore(chosen, score, held_out_loss, pairs=len(in_views))


def _held_out(kind: str, views: Floats, truth: NDArray[np.int_], folds: NDArray[np.int_]) -> Floats:
    """Log loss of each view under a score that was fitted without its fold."""
    loss = np.empty(len(views))
    for fold in np.unique(folds):
        out = folds == fold
        odds = _fitted(kind, views[~out], truth[~out])(views[out])
        loss[out] = np.logaddexp(0.0, np.where(truth[out] == 1, -odds, odds))
    return loss


def _fitted(kind: str, views: Floats, truth: NDArray[np.int_]) -> Callable[[Floats], Floats]:
    """Fit one kind of score to `views` (n, d), n / 2 of either world."""
    centre = views.mean(0)
    scale = views.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    features = _FEATURES[kind]
    model = _model(kind)
    model.fit(features((views - centre) / scale), truth)

    def score(rows: Floats) -> Floats:
        return np.asarray(model.decision_function(features((rows - centre) / scale)), dtype=np.float64)

    return score


def _model(kind: str) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == "boosted":
        return HistGradientBoostingClassifier(
            learning_rate=0.1, max_iter=60, max_leaf_nodes=6, min_samples_leaf=8, early_stopping=False, random_state=0
        )
    # A quadratic score has many coefficients, and so few views to fit them by: a stronger penalty.
    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0 if kind == "linear" else 0.01, max_iter=1000))


def _plain(views: Floats) -> Floats:
    return views


def _squares(views: Floats) -> Floats:
    """Return the views, their squares, products of two numbers, and means of squares and of neighbours' products."""
    width = views.shape[1]
    first, second = np.triu_indices(width, 1)
    if len(first) > MOST_PRODUCTS:
        first = np.arange(width - 1)
        second = np.arange(1, width)
    products = views[:, first] * views[:, second]
    squares = views**2
    beside = (views[:, :-1] * views[:, 1:]).mean(1) if width > 1 else squares[:, 0]
    means = [views.mean(1), squares.mean(1), beside]
    return np.hstack([views, squares, products, np.stack(means, 1)])


def _ordered(views: Floats) -> Floats:
    """Return the views, their least and largest numbers, and means of numbers, of sizes and of signs' products."""
    ordered = np.sort(views, axis=1)
    signs = np.sign(views)
    ends = np.unique([0, 1, -2, -1]) % views.shape[1] if views.shape[1] > 1 else np.array([0])
    means = [views.mean(1), np.abs(views).mean(1), (signs[:, :-1] * signs[:, 1:]).sum(1)]
    return np.hstack([views, ordered[:, ends], np.stack(means, 1)])


_FEATURES: dict[str, Callable[[Floats], Floats]] = {"linear": _plain, "quadratic": _squares, "boosted": _ordered}
