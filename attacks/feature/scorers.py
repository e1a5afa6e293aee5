"""Scorers of records by what is sent of them: classifiers of a category, or regressions of a number.

They are fitted on the records where it is known, and compete on held-out parts of these: classifiers by the area under
the ROC curve, since some categories are rare, regressions by the rank correlation. The best is fitted again on all.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..core.metrics import Floats, areas_of_one
from .decoders import FOLDS, PENALTY, Decoder, Predict, scaled_as

# Inverse strengths of the logistic regression's penalty, and scales of Gaussian kernels, on standardised inputs.
STRENGTHS = (0.1, 10.0)
SCALES = (0.3, 3.0)
WIDER = (0.03, 0.3)
ALPHAS = (1e-3, 0.1)
NEIGHBOURS = 15

Make = Callable[[Floats], Any]
"""Makes an unfitted scorer for known inputs (m, w)."""


def best_scorer(inputs: Mapping[str, Floats], targets: Floats, *, numbers: bool, seed: int) -> Decoder:
    """Return the scorer that does best on held-out known records, fitted again on all of them.

    It predicts a score (n, c) for each column of the targets, the larger the likelier, or the larger.

    Args:
        inputs: Inputs (m, w) of the known records by name, which compete too; of equals the first is taken.
        targets: What is known (m, c): which records are of which category, 0 or 1, with `FOLDS` of both at least in
            each column, or `numbers`.
        numbers: Whether the targets are numbers.
        seed: Draws the held-out parts.
    """
    m = len(targets)
    # Dealt out in the order of the targets, so that every part has some of each.
    shuffled = np.random.default_rng(seed).permutation(m)
    dealt = shuffled[np.lexsort(targets[shuffled].T)]
    parts = [np.sort(dealt[j::FOLDS]) for j in range(FOLDS)]
    makers = regressions() if numbers else classifiers()
    merit = rank_correlations if numbers else areas

    def held_out(name: str, read: str) -> float:
        merits = []
        for part in parts:
            rest = np.setdiff1d(np.arange(m), part)
            scores = _fitted(makers[name], inputs[read][rest], targets[rest])(inputs[read][part])
            merits.append(merit(scores, targets[part]).mean())
        # What differs by less than rounding is equal.
        return round(float(np.mean(merits)), 6)

    name, read = max(product(makers, inputs), key=lambda pair: held_out(*pair))
    refit = partial(_fitted, makers[name], inputs[read])
    return Decoder(name, read, refit(targets), refit=refit)


def areas(scores: Floats, targets: Floats) -> Floats:
    """Return the area under the ROC curve (c,) of scores (n, c) for which records are of a category (n, c)."""
    pairs = zip(scores.T, targets.T > 0.5, strict=True)
    return np.array([areas_of_one(score, kind[None])[0] for score, kind in pairs])


def rank_correlations(scores: Floats, targets: Floats) -> Floats:
    """Return Spearman's rank correlation (c,) of scores (n, c) and numbers (n, c); 0 where one of them is constant."""
    return np.asarray((standard_ranks(scores) * standard_ranks(targets)).mean(0))


def standard_ranks(values: Floats) -> Floats:
    """Return the ranks of values (n, c) in each column, with a mean of 0 and a deviation of 1, or 0 where all tie."""
    ranks = ranks_of(values)
    about = ranks - ranks.mean(0)
    return np.asarray(about / np.maximum(about.std(0), 1e-12))


def ranks_of(values: Floats) -> Floats:
    """Return the ranks (..., n, c) of values (..., n, c) in each column, those of equal ones averaged."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(values, axis=-2))


def _fitted(make: Make, known: Floats, targets: Floats) -> Predict:
    """Return the scores of a scorer, which is fitted for each column of the targets by itself."""
    scaled = scaled_as(known)
    rows = scaled(known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a regression that reached its last step
        models = [make(rows).fit(rows, target) for target in _standard(targets).T]

    def score(model: Any, rows: Floats) -> Floats:
        if hasattr(model, "decision_function"):
            return np.asarray(model.decision_function(rows))
        return np.asarray(model.predict_proba(rows)[:, 1] if hasattr(model, "predict_proba") else model.predict(rows))

    def predict(inputs: Floats) -> Floats:
        rows = scaled(inputs)
        return np.stack([score(model, rows) for model in models], 1)

    return predict


def _standard(targets: Floats) -> Floats:
    """Return numbers (m, c) with a mean of 0 and a deviation of 1, and categories as they are."""
    if np.isin(targets, (0.0, 1.0)).all():
        return targets
    return np.asarray((targets - targets.mean(0)) / np.maximum(targets.std(0), 1e-12))


def classifiers() -> dict[str, Make]:
    """Return what makes an unfitted classifier, by name, the simplest first."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    makers: dict[str, Make] = {
        f"logistic regression, C = {c:g}": partial(lambda c, rows: LogisticRegression(C=c, max_iter=300), c)
        for c in STRENGTHS
    }
    for scale in SCALES:
        name = f"kernel machine, gamma = {scale:g} / width"
        makers[name] = partial(lambda scale, rows: SVC(C=10.0, gamma=scale / rows.shape[1]), scale)
    makers["nearest neighbours"] = lambda rows: KNeighborsClassifier(min(NEIGHBOURS, len(rows)), weights="distance")
    return makers


def regressions() -> dict[str, Make]:
    """Return what makes an unfitted regression, by name, the simplest first."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    makers: dict[str, Make] = {"ridge regression": lambda rows: Ridge(PENALTY * len(rows))}
    for scale, alpha in product(WIDER, ALPHAS):
        name = f"kernel ridge regression, gamma = {scale:g} / width, alpha = {alpha:g}"
        makers[name] = partial(
            lambda scale, alpha, rows: KernelRidge(alpha=alpha, kernel="rbf", gamma=scale / rows.shape[1]), scale, alpha
        )
    makers["nearest neighbours"] = lambda rows: KNeighborsRegressor(min(NEIGHBOURS, len(rows)), weights="distance")
    return makers
