"""Scores of two worlds of a Gaussian mechanism, and what an estimator proves of scores."""

import numpy as np

from dpzv_audit import audit_scores
from dpzv_audit.games.system import fitted_score, play


def gaussian(source, mu, n=500, m=None):
    """Return `n` scores of mean `mu` and `m` (or `n`) of mean 0, drawn from a seed or a generator."""
    rng = np.random.default_rng(source)
    return rng.normal(mu, 1.0, n), rng.normal(0.0, 1.0, m or n)


def bound_of(inside, outside, name, *, delta=1e-5, **options):
    """Return the bound of the estimator `name`."""
    return audit_scores(inside, outside, delta=delta, estimators=[name], **options)[0]


def system_game(game, *, trainings=2, fit_trainings=4):
    """Return the scores of coins in trainings of a system, by a score fitted on others."""
    return play(game, fitted_score(game, fit_trainings), trainings)


def score_files(folder, n):
    """Write `n` scores each of a mechanism of mu = 1, whose epsilon is 4.38 at 1e-5, to in.csv and out.csv."""
    for name, side in zip(("in", "out"), gaussian(0, 1.0, n), strict=True):
        np.savetxt(folder / f"{name}.csv", side)
