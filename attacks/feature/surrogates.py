"""Surrogates of a client's model: regressions of embeddings on features, fitted on records whose features are known.

A surrogate tells which embedding each candidate record would have had, and how far off it is itself: in the metric of
its own errors an embedding is nearest to its own record. Kernel ridge regression with a linear and a Gaussian kernel;
what it leaves of a known record that is left out follows in closed form (Rasmussen and Williams, "Gaussian Processes
for Machine Learning", 2006, section 5.4.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..core.metrics import Floats
from .decoders import scaled_as

# Widths of the Gaussian kernel, in typical distances of two records, and ridge penalties.
WIDTHS = (0.25, 0.5, 1.0, 2.0)
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
# The share of the errors' covariance that is taken off what coordinates share: few known records estimate it badly.
SHRINKAGE = 0.1
# The variance of the error that every coordinate has at least, relative to the largest.
LEAST_VARIANCE = 1e-9


@dataclass(frozen=True)
class Fit:
    """A surrogate's weights (m, width) on the known records, and `roots` (width, width) that whiten its errors.

    `left` (m, width) is what it leaves of each known record that it is fitted without.
    """

    weights: Floats
    mean: Floats
    roots: Floats
    left: Floats


class Surrogates:
    """Surrogates on the same known `features` (m, d): their kernels are decomposed once for all embeddings."""

    def __init__(self, features: Floats) -> None:
        self.scaled = scaled_as(features)
        self.rows = self.scaled(features)
        self.decomposed = {width: np.linalg.eigh(self._kernel(self.rows, width)) for width in WIDTHS}
        self.squares = {width: vectors**2 for width, (_, vectors) in self.decomposed.items()}

    def best(self, embeddings: Mapping[str, Floats]) -> "Surrogate":
        """Return the surrogate of those embeddings (m, w), by name, that tells known records apart best.

        Each is judged by the log-probability that it gives to every known record's own embedding among them all, with
        what it would say of that record without it.
        """
        along = {pair: self._along(embeddings[pair[0]], pair[1]) for pair in product(embeddings, WIDTHS)}
        tried = {
            (*pair, penalty): self._fit(embeddings[pair[0]], own, pair[1], penalty)
            for (pair, own), penalty in product(along.items(), PENALTIES)
        }
        best = max(tried, key=lambda setting: _evidence(tried[setting], embeddings[setting[0]]))
        return Surrogate(self, *best, tried[best])

    def fit(self, embeddings: Floats, width: float, penalty: float) -> Fit:
        """Return the fit of embeddings (m, w) with a kernel of a width and a penalty."""
        return self._fit(embeddings, self._along(embeddings, width), width, penalty)

    def _along(self, embeddings: Floats, width: float) -> Floats:
        """Return embeddings (m, w), less their mean, along the kernel's principal axes."""
        along: Floats = self.decomposed[width][1].T @ (embeddings - embeddings.mean(0))
        return along

    def _fit(self, embeddings: Floats, along: Floats, width: float, penalty: float) -> Fit:
        values, vectors = self.decomposed[width]
        mean = embeddings.mean(0)
        inverse = 1.0 / (values.clip(min=0.0) + penalty)
        weights = vectors @ (inverse[:, None] * along)
        left = weights / (self.squares[width] @ inverse)[:, None]
        covariance = np.atleast_2d(np.cov(left.T))
        variances = np.diag(covariance)
        covariance = (1.0 - SHRINKAGE) * covariance
        # A coordinate that never errs would count for everything.
        covariance += np.diag(SHRINKAGE * variances + LEAST_VARIANCE * variances.max() + 1e-300)
        return Fit(weights, mean, np.linalg.cholesky(np.linalg.inv(covariance)), left)

    def expected(self, fit: Fit, width: float, features: Floats) -> Floats:
        """Return the embeddings (n, w) that a fit expects of features (n, d)."""
        return np.asarray(self._kernel(self.scaled(features), width) @ fit.weights + fit.mean)

    def _kernel(self, rows: Floats, width: float) -> Floats:
        """Return the kernel (n, m) between `rows` (n, d) and the known ones."""
        d = rows.shape[1]
        products = rows @ self.rows.T
        squares = (rows**2).sum(1)[:, None] + (self.rows**2).sum(1) - 2.0 * products
        return np.asarray(np.exp(-squares.clip(min=0.0) / (2.0 * width**2 * d)) + products / d)


@dataclass(frozen=True)
class Surrogate:
    """The surrogate that won: the name of the `inputs`, embeddings that it is about, its kernel's width and penalty."""

    among: Surrogates
    inputs: str
    width: float
    penalty: float
    fit: Fit

    def distances(self, embeddings: Floats, candidates: Floats) -> Floats:
        """Return squared distances (n, c) of embeddings (n, w) from candidate features (c, d), in units of its errors.

        Candidates with equal features have equal distances.
        """
        different, place = np.unique(candidates, axis=0, return_inverse=True)
        expected = self.among.expected(self.fit, self.width, different)
        return _squares(embeddings, expected, self.fit)[:, place.ravel()]

    def refit(self, embeddings: Floats) -> "Surrogate":
        """Return a surrogate of the same settings for other embeddings (m, w) of the known records."""
        fit = self.among.fit(embeddings, self.width, self.penalty)
        return Surrogate(self.among, self.inputs, self.width, self.penalty, fit)


def _squares(embeddings: Floats, expected: Floats, fit: Fit) -> Floats:
    """Return squared distances (n, c) of embeddings (n, w) from those expected (c, w), whitened."""
    ours, theirs = ((rows - fit.mean) @ fit.roots for rows in (embeddings, expected))
    # In place: these are the largest arrays by far, and most of the time.
    squares = (ours**2).sum(1)[:, None] + (theirs**2).sum(1)
    squares -= 2.0 * ours @ theirs.T
    return np.asarray(np.maximum(squares, 0.0, out=squares))


def _evidence(fit: Fit, embeddings: Floats) -> float:
    """Return the mean log-probability of each known record's own embedding among those that are expected of all."""
    logs = _squares(embeddings, embeddings - fit.left, fit)
    logs *= -0.5
    most = logs.max(1, keepdims=True)
    own = np.diag(logs) - most[:, 0]
    logs -= most
    return float((own - np.log(np.exp(logs, out=logs).sum(1))).mean())
