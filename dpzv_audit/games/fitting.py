"""Chooses a score on pilot runs of both worlds, among single numbers of a view, fitted scores and exact ones.

`hunt`, `audit mechanism` and `verify` choose by the one function `fit_score`. It cross-validates within the pilot runs.
The runs that are tested play no part in it, so that the choice costs runs and no error.

Log loss decides between the smooth scores: it varies least from pilot to pilot. It hardly moves where one run in a
hundred gives its world away, and such a run refutes a claim. So a column or an exact score is taken where its held-out
runs would certify a clearly larger epsilon.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..statistics.binomial import lower_limit
from .arrays import Floats, Ints
from .exact import low_bits, repeats

Score = Callable[[Floats], Floats]
"""From views (n, d) to scores (n,)."""
Sides = tuple[Floats, Floats]
"""Scores (n,) and (m,) of "in" and of "out"."""

LEAST_FIT = 20
MOST_PRODUCTS = 200
"""Products of two numbers of a view that a quadratic score takes at most; of longer views only those of neighbours."""
COLUMN = "column"
LEARNT = {
    "linear": "logistic regression on the view",
    "decorrelated": "logistic regression on the view's principal components, each of variance 1",
    "quadratic": "logistic regression on the view, its squares and products",
    "boosted": "gradient-boosted trees on the view and its order statistics",
}
"""Kinds of smooth fitted scores, the plainest first."""
EXACT = {
    "repeats": "values that repeat exactly, each by how often it came with and without the canary",
    "low bits": "remainders on a coarse grid, by how often each came with and without the canary",
}
"""Kinds of scores whose values are few: most runs say nothing, and some nearly all."""
WORDS = {COLUMN: "one number of the view", **LEARNT, **EXACT}
"""All kinds of scores."""
OWN = "the number that the mechanism answers"
_FOLDS = 5
_CLEARLY = 1.0
"""Standard errors by which a richer score's held-out log loss must be lower than a plainer one's."""
_MARGIN = 0.25
"""By so much more must held-out runs certify under a score than under the one of the least log loss."""
_DEVIATE = 1.28
"""Normal deviate of the limits of both rates in what held-out runs certify: an error of 0.1 each."""
_GUESS_ERROR = 0.3
_THRESHOLDS = 256
_ALIKE = 1e-6
"""Spread of a column below which its numbers agree in many digits, as a share of its median."""


def fit_size(pairs: int) -> int:
    """Return how many pilot pairs go with `pairs` pairs: a fifth, at least 20; they are not tested themselves."""
    return max(LEAST_FIT, pairs // 5)


def pilot_size(runs: int) -> int:
    """Return how many pilot runs in each world choose a score for `runs` tested ones: a quarter, at least 20."""
    return max(LEAST_FIT, runs // 4)


@dataclass(frozen=True)
class FittedScore:
    """A score that was chosen: its `kind` (a key of `WORDS`), and the score that it gives to views (n, d).

    `held_out_loss` is the cross-validated log loss of each smooth kind that was tried; of log 2 = 0.693, that of a
    guess. `certified` is the epsilon that its held-out scores certify, by kind, and `held_out` are those of the kind
    that was chosen. A score in one `column` is that number. `own`: views are the one number that a mechanism
    answers.
    """

    kind: str
    score: Score
    held_out_loss: Mapping[str, float]
    certified: Mapping[str, float]
    held_out: Sides
    pairs: int
    column: int | None = None
    own: bool = False

    @property
    def words(self) -> str:
        """The kind of the score, and which number it is if it is one."""
        if self.column is None:
            return f"{self.kind}: {WORDS[self.kind]}"
        return f"own: {OWN}" if self.own else f"{self.kind}: number {self.column + 1} of the view"

    @property
    def gap(self) -> float:
        """Standard deviations by which the mean held-out score of "in" is larger."""
        inside, outside = self.held_out
        spread = float(np.sqrt(0.5 * (inside.var() + outside.var())))
        apart = float(inside.mean() - outside.mean())
        return apart / spread if spread > 0.0 else float("inf") if apart > 0.0 else 0.0

    @property
    def facts(self) -> dict[str, str]:
        """Facts for a result: its kind in words, what it was chosen on, and what it was chosen by."""
        names = {COLUMN: "own"} if self.own else {}
        by = {"cross-validated log loss": self.held_out_loss, "epsilon that held-out runs certify": self.certified}
        lists = [
            f"{criterion}: " + ", ".join(f"{names.get(kind, kind)} {value:.3f}" for kind, value in values.items())
            for criterion, values in by.items()
            if len(values) > 1
        ]
        chosen = {"chosen_by": "; ".join(lists) + " (log loss of a guess: 0.693)"} if lists else {}
        return {"fitted_score": self.words, "fitted_on": f"{self.pairs} + {self.pairs} further runs", **chosen}


def fit_score(
    in_views: Floats,
    out_views: Floats,
    *,
    kinds: Sequence[str] = tuple(WORDS),
    folds: Ints | None = None,
    delta: float = 0.0,
    own: bool = False,
) -> FittedScore:
    """Choose a score among `kinds` by cross-validation on equally many views (n, d) of either world, and fit it.

    Of the smooth kinds a richer one is chosen where its held-out log loss is lower than the plainer one's by more than
    a standard error of their paired differences. A column or an exact kind is taken instead where its held-out runs
    certify an epsilon at `delta` that is larger by `_MARGIN`. The first kind that tells every held-out run apart ends
    the search. The folds follow from the order of the views, so that the same views
    give the same score, unless `folds` (n,) says in which fold the n-th of either world is. `own`: the views (n, 1) are
    what a mechanism answers.
    """
    from threadpoolctl import threadpool_limits

    views = np.concatenate([in_views, out_views])
    truth = np.repeat([1, 0], len(in_views))
    folds = np.tile(np.arange(len(in_views)) % _FOLDS if folds is None else folds, 2)
    if COLUMN in kinds and views.shape[1] == 1:
        # They are the column itself, moved and stretched.
        kinds = [kind for kind in kinds if kind not in ("linear", "decorrelated")]
    odds = {}
    losses = {}
    certified = {}
    promised = {}
    perfect = certifiable(np.ones(len(in_views)), np.zeros(len(out_views)), delta=delta)
    chosen = kinds[0]
    with threadpool_limits(1):
        for kind in kinds:
            odds[kind] = _held_out(kind, views, truth, folds)
            sides = _sides(odds[kind], truth)
            certified[kind] = certifiable(*sides, delta=delta)
            if kind in EXACT:
                promised[kind] = max(certified[kind], min(guessed(*sides), perfect))
            else:
                # Log loss of each view under the log odds of "in" that the score gives it.
                losses[kind] = np.logaddexp(0.0, np.where(truth == 1, -odds[kind], odds[kind]))
                gain = losses[chosen] - losses[kind]
                if gain.mean() > _CLEARLY * gain.std(ddof=1) / np.sqrt(gain.size):
                    chosen = kind
            if certified[kind] >= perfect:
                chosen = kind  # it tells every run apart, and no other can tell more
                break
        else:
            if COLUMN in certified:
                promised[COLUMN] = certified[COLUMN]
            best = max(promised, key=promised.__getitem__, default=chosen)
            if promised.get(best, 0.0) > certified[chosen] + _MARGIN:
                chosen = best
        score, column = _fitted(chosen, views, truth)
    return FittedScore(
        chosen,
        score if column is None else _read(column, views[:, column]),
        held_out_loss={kind: float(loss.mean()) for kind, loss in losses.items()},
        certified=certified,
        held_out=_sides(odds[chosen], truth),
        pairs=len(in_views),
        column=column,
        own=own,
    )


def certifiable(inside: Floats, outside: Floats, *, delta: float = 0.0) -> float:
    """Return the largest epsilon that a threshold on scores of both worlds certifies, at least 0; "in" is higher.

    It is the best of many thresholds, so it ranks and proves nothing.
    """
    return float(_certifiable(inside[:, None], outside[:, None], delta)[0])


def guessed(inside: Floats, outside: Floats) -> float:
    """Return the epsilon, at least 0, that the guesses of a score certify, right for a score of the world's own sign.

    Scores of 0 guess nothing. Few guesses that are all right say more than a threshold on as many runs: both worlds'
    count. It ranks and proves nothing.
    """
    right = np.count_nonzero(inside > 0.0) + np.count_nonzero(outside < 0.0)
    guesses = np.count_nonzero(inside) + np.count_nonzero(outside)
    share = float(lower_limit(right, guesses, _GUESS_ERROR)) if guesses else 0.0
    return float(np.log(share / (1.0 - share))) if share > 0.5 else 0.0


def _certifiable(inside: Floats, outside: Floats, delta: float) -> Floats:
    """Return `certifiable` of each column of scores (n, d) and (m, d)."""
    values = np.sort(np.concatenate([inside, outside]), axis=0)
    if len(values) > _THRESHOLDS:
        # All of the ends, where few runs decide, some of the middle, and the cut between worlds that lie apart.
        ends = _THRESHOLDS // 4
        middle = np.linspace(ends, len(values) - ends - 1, _THRESHOLDS // 2).round().astype(np.intp)
        apart = [len(outside) - 1, len(inside) - 1]
        values = values[np.unique(np.r_[0:ends, middle, apart, len(values) - ends : len(values)])]
    above = [np.stack([(side > threshold).mean(0) for threshold in values]) for side in (inside, outside)]
    (in_low, _), (_, out_high) = (_limits(rate, len(side)) for rate, side in zip(above, (inside, outside), strict=True))
    with np.errstate(divide="ignore"):
        odds = np.log(np.maximum([in_low - delta, 1.0 - out_high - delta], 0.0)) - np.log([out_high, 1.0 - in_low])
    return np.asarray(np.maximum(odds.max((0, 1)), 0.0))


def _limits(rate: Floats, n: int) -> tuple[Floats, Floats]:
    """Return the lower and the upper limit of proportions seen on `n` runs (Wilson)."""
    square = _DEVIATE**2
    middle = (rate + square / (2.0 * n)) / (1.0 + square / n)
    half = _DEVIATE / (1.0 + square / n) * np.sqrt(rate * (1.0 - rate) / n + square / (4.0 * n * n))
    return middle - half, middle + half


def _sides(scores: Floats, truth: Ints) -> Sides:
    return scores[truth == 1], scores[truth == 0]


def _read(column: int, values: Floats) -> Score:
    """Return the number in a column as a score, as it is.

    Where most of its `values` agree in many digits the median is subtracted: a test takes neighbouring doubles for one.
    """
    low, median, high = np.quantile(values, (0.1, 0.5, 0.9), method="nearest")
    centre = median if high - low < _ALIKE * abs(median) else 0.0

    def score(rows: Floats) -> Floats:
        return np.asarray(rows[:, column] - centre)

    return score


def _held_out(kind: str, views: Floats, truth: Ints, folds: Ints) -> Floats:
    """Return the log odds of each view under a score that was fitted without its fold, if there is more than one."""
    if (folds == folds[0]).all():
        return _fitted(kind, views, truth)[0](views)
    odds = np.empty(len(views))
    for fold in np.unique(folds):
        out = folds == fold
        score, _ = _fitted(kind, views[~out], truth[~out])
        odds[out] = score(views[out])
    return odds


def _fitted(kind: str, views: Floats, truth: Ints) -> tuple[Score, int | None]:
    """Fit one kind of score to `views` (n, d), n / 2 of either world; also return the column, if it reads one alone."""
    if kind in _COUNTED:
        return _COUNTED[kind](views, truth), None
    column = None
    if kind == COLUMN:
        column = _best_column(views, truth)
        views = views[:, [column]]
    centre = views.mean(0)
    scale = views.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    standard = (views - centre) / scale
    features: Score = _decorrelating(standard) if kind == "decorrelated" else _FEATURES.get(kind, np.asarray)
    model = _model(kind)
    model.fit(features(standard), truth)

    def score(rows: Floats) -> Floats:
        read = rows if column is None else rows[:, [column]]
        return np.asarray(model.decision_function(features((read - centre) / scale)), dtype=np.float64)

    return score, column


def _best_column(views: Floats, truth: Ints) -> int:
    """Return the column that certifies most, then the one whose means are furthest apart."""
    if views.shape[1] == 1:
        return 0
    inside, outside = views[truth == 1], views[truth == 0]
    certified = np.maximum(_certifiable(inside, outside, 0.0), _certifiable(-inside, -outside, 0.0))
    apart = np.abs(inside.mean(0) - outside.mean(0))
    spread = np.sqrt(0.5 * (inside.var(0) + outside.var(0)))
    gap = np.divide(apart, spread, out=np.where(apart > 0.0, np.inf, 0.0), where=spread > 0.0)
    return int(np.lexsort((gap, certified))[-1])


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
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01 if kind == "quadratic" else 1.0, max_iter=1000))


def _decorrelating(views: Floats) -> Callable[[Floats], Floats]:
    """Return what turns views (n, d) into their principal components, each of variance 1.

    Two numbers with the same noise differ by the signal alone: a component of little variance that a penalty on the
    plain view would not reach. Components that are rounding of others are left out.
    """
    _, spread, axes = np.linalg.svd(views, full_matrices=False)
    kept = spread >= _ROUNDING * spread[0]
    spread = np.where(spread > 0.0, spread, 1.0)
    turn = (axes[kept] / spread[kept, None]).T * np.sqrt(len(views))

    def components(rows: Floats) -> Floats:
        return np.asarray(rows @ turn)

    return components


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


_ROUNDING = 1e-9
"""Spread of a component below which it is rounding, as a share of the largest."""
_FEATURES: dict[str, Callable[[Floats], Floats]] = {"quadratic": _squares, "boosted": _ordered}
"""What other kinds read than the numbers as they are."""
_COUNTED: dict[str, Callable[[Floats, Ints], Score]] = {"repeats": repeats, "low bits": low_bits}
