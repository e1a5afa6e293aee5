"""Scores fitted on separate runs, where no exact likelihood ratio is to be had: logistic regression on summaries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.errors import InputError

Floats = NDArray[np.float64]
LEAST_FIT = 20
_SEGMENTS = 4


def fit_size(pairs: int) -> int:
    """Return how many of `pairs` pairs go to the fit: a fifth, at least 20; they score nothing themselves."""
    return max(LEAST_FIT, pairs // 5)


def summaries(scalars: Floats, held: NDArray[np.bool_] | None, *, skip_held: bool = False) -> Floats:
    """Return (n, d) summaries of scalars (T, n): by quarter of the transcript their mean, mean size and mean square.

    Where it is known which rounds `held` (T, n) the canary, its rounds and the others are summed apart; with
    `skip_held` only the rounds without it count.
    """
    if held is None:
        parts = [np.ones(scalars.shape, dtype=bool)]
    else:
        parts = [~held] if skip_held else [~held, held]
    found = []
    for mask in parts:
        for rows, kept in zip(
            np.array_split(scalars, _SEGMENTS), np.array_split(mask.astype(np.float64), _SEGMENTS), strict=True
        ):
            number = np.maximum(kept.sum(0), 1.0)
            found += [(kept * f).sum(0) / number for f in (rows, np.abs(rows), rows * rows)]
    return np.stack(found, axis=1)


def fitted_scores(in_features: Floats, out_features: Floats) -> tuple[Floats, Floats]:
    """Fit on the first pairs and score the rest: log odds of "in" for each of the other runs, both (n - fit,).

    Raises `InputError` where there are too few pairs to leave any to score.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pairs = len(in_features)
    cut = fit_size(pairs)
    if pairs <= cut:
        raise InputError(f"--runs is {pairs}, must be above {LEAST_FIT}: a fitted score takes so many for its fit")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(np.concatenate([in_features[:cut], out_features[:cut]]), np.repeat([1, 0], cut))
    return model.decision_function(in_features[cut:]), model.decision_function(out_features[cut:])
