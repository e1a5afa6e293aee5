"""Mechanisms that privatise labels once, before training: all that is computed from them is post-processing.

Under `replace-label`, with groups of records fixed beforehand by features alone, each of these is (epsilon, 0). Votes
of groups are NoiseCluster (Tang et al., PoPETs 2022); shares of groups are their histograms; priors are those of
Ghazi et al. (NeurIPS 2021). Statistics of labels with Gaussian noise, (epsilon, delta), are the moments that
Sheffet (ICML 2017) and Wang (UAI 2018, "AdaSSP") release of regressions, where features are public and labels are not.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import exp, sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv_audit.accounting import mu_from_epsilon

from ..core.bits import BitSource, Whole, happens, permute_and_flip, randomised_response, two_sided_geometric, uniform
from ..core.noise import ROW_BITS, Grid, truncated_steps

Floats = NDArray[np.float64]
RIDGE = 1.0
"""Ridge of the features' second moments in whitening them, in mean eigenvalues. (Chosen on digits and adult.)"""
CLIPPED = 0.75
"""Share of the records whose features are within the clip as they are. (Chosen on digits and adult.)"""
# Above the sensitivity by more than the accountant's closed form is off.
_MARGIN = 1.0 + 1e-9
_ROWS = 4096


@dataclass(frozen=True)
class PrivateLabels:
    """Private labels (N,) in the place of the true ones, and what is known of how they came about.

    Attributes:
        labels: One class for each record.
        shares: How likely each class is for each record, (N, classes), where shares of all classes are released.
        likelihoods: The chance of each record's private label under each true one, (N, classes), where that is known.
    """

    labels: Whole
    shares: Floats | None = None
    likelihoods: Floats | None = None


def by_response(labels: Whole, classes: int, epsilon: float, bits: BitSource) -> PrivateLabels:
    """Return randomised responses, each record for itself."""
    found = randomised_response(labels, classes, epsilon, bits)
    return PrivateLabels(found, likelihoods=response_matrix(classes, epsilon)[:, found].T)


def response_matrix(classes: int, epsilon: float) -> Floats:
    """Return the chance (true, private) of each response (Kairouz et al. 2016)."""
    odds = np.where(np.eye(classes, dtype=bool), 1.0, exp(-epsilon))
    return np.asarray(odds / odds.sum(1))


def by_votes(labels: Whole, groups: Whole, classes: int, epsilon: float, bits: BitSource) -> PrivateLabels:
    """Return for each record the class that its group (N,) voted for.

    A label that is replaced takes one from a count of its group and adds one to another, so a vote by permute and flip
    at half the epsilon a count is (epsilon, 0), and groups share no label.
    """
    winners = permute_and_flip(histogram(labels, groups, classes), epsilon, bits)
    return PrivateLabels(winners[groups])


def by_shares(labels: Whole, groups: Whole, classes: int, epsilon: float, bits: BitSource) -> PrivateLabels:
    """Return for each record the shares of classes in its group, from counts with two-sided geometric noise.

    A label that is replaced moves the counts of a group by 2 in all. Noised counts below zero are set to zero; where
    all are zero, classes are equally likely.
    """
    counts = histogram(labels, groups, classes)
    noised = np.maximum(counts + two_sided_geometric(counts.shape, Fraction(epsilon) / 2, bits), 0).astype(float)
    noised[noised.sum(1) == 0] = 1.0
    shares = noised / noised.sum(1, keepdims=True)
    return PrivateLabels(shares.argmax(1)[groups], shares=shares[groups])


def by_prior(
    labels: Whole, groups: Whole, classes: int, epsilon: float, bits: BitSource, *, first: NDArray[np.bool_]
) -> PrivateLabels:
    """Return responses of the records in `first` (N,), and responses of the others among what those make likely.

    Responses of the first give each group a prior; the others answer among the classes that serve it best (Ghazi et al.
    2021, algorithms 2 and 3). Each label is asked once, at epsilon.
    """
    response = response_matrix(classes, epsilon)
    answers = np.empty_like(labels)
    chances = np.empty((len(labels), classes))
    answers[first] = randomised_response(labels[first], classes, epsilon, bits)
    chances[first] = response[:, answers[first]].T
    counts = histogram(answers[first], groups[first], classes, of=int(groups.max()) + 1)
    priors = _priors(counts, response)
    answers[~first], chances[~first] = _among(labels[~first], priors[groups[~first]], epsilon, bits)
    return PrivateLabels(answers, likelihoods=chances)


@dataclass(frozen=True)
class Whitened:
    """Public features for a regression, rotated to the eigenvectors of their second moments, and their clip.

    Attributes:
        rows: (N, p), divided by the root of each one's eigenvalue and a ridge: noise of one size on all sums costs
            small eigenvalues more.
        clip: Norm that most rows are within.
        moments: Sums (p,) of the squares of each column.
        prior: Variances (p,) of the coefficients of a class, where all eigenvectors are worth the same beforehand.
    """

    rows: NDArray[np.float32]
    clip: float
    moments: Floats
    prior: Floats

    @classmethod
    def of(cls, features: NDArray[np.floating], classes: int) -> "Whitened":
        """Return features (N, d) and a constant, whitened; p is 1 more than the number of columns that are not 0."""
        # Columns that a client does not have are 0 everywhere.
        held = features[:, features.any(0)]
        rows = np.concatenate((held, np.ones((len(held), 1))), 1).astype(np.float32)
        variances, directions = np.linalg.eigh((rows.T @ rows).astype(np.float64))
        variances = np.maximum(variances, 0.0)
        scales = 1.0 / np.sqrt(variances + RIDGE * variances.mean())
        rotated = rows @ (directions * scales).astype(np.float32)
        prior = _spread(classes) * len(rows) / variances.sum() / scales**2
        return cls(rotated, float(np.quantile(np.linalg.norm(rotated, axis=1), CLIPPED)), variances * scales**2, prior)

    def coefficients(self, sums: Floats, noise: float, classes: int) -> Floats:
        """Return the posterior means (p, classes) of coefficients, given sums (classes, p) with noise of a deviation.

        By Bayes' rule for Gaussian priors, the noise and the labels' own spread; all of it is public but the sums.
        """
        gain = self.moments * self.prior
        return np.asarray((gain / (self.moments * (gain + _spread(classes)) + noise**2) * sums).T)


def _spread(classes: int) -> float:
    """Return the variance of the indicator of one of so many equally likely classes."""
    return (1.0 - 1.0 / classes) / classes


def by_regression(
    labels: Whole, public: Whitened, classes: int, epsilon: float, delta: float, bits: BitSource, *, certain: float
) -> PrivateLabels:
    """Return for each record the class that a regression on private statistics gives it.

    The statistics are sums of clipped features by class, in whole steps of a grid: a label that is replaced takes its
    row, of norm R at most, from one sum and adds it to another, so that all sums together move by sqrt(2) R. Gaussian
    noise of sqrt(2) R / mu, exact in law, makes them (epsilon, delta). Only the share `certain` of the records, those
    whose two best classes are the farthest apart, keep their class; the others are equally likely to be of any.
    """
    multiplier = sqrt(2.0) * _MARGIN / mu_from_epsilon(epsilon, delta)
    grid = Grid.fit(public.clip, public.clip * multiplier, bits=ROW_BITS, records=len(labels))
    noise = grid.radius * multiplier
    sums = class_sums(labels, public, classes, grid) + bits.normals((classes, public.rows.shape[1]), noise)
    scores = public.rows @ public.coefficients(grid.step * sums, grid.step * noise, classes).astype(np.float32)
    labels_found = scores.argmax(1).astype(np.int64)
    if certain == 1.0:
        return PrivateLabels(labels_found)
    best = np.partition(scores, classes - 2, 1)
    margin = best[:, -1] - best[:, -2]
    likelihoods = np.eye(classes)[labels_found]
    likelihoods[margin < np.quantile(margin, 1.0 - certain)] = 1.0
    return PrivateLabels(labels_found, likelihoods=likelihoods)


def class_sums(labels: Whole, public: Whitened, classes: int, grid: Grid) -> Floats:
    """Return exact sums (classes, p) of clipped rows by label, in steps of the grid."""
    sums = np.zeros((classes, public.rows.shape[1]))
    for first in range(0, len(labels), _ROWS):
        some = slice(first, first + _ROWS)
        steps = truncated_steps(torch.from_numpy(public.rows[some]), grid, (1,)).numpy()
        # Whole numbers below 2^53 add up exactly in any order.
        sums += np.eye(classes)[labels[some]].T @ steps
    return sums


def histogram(labels: Whole, groups: Whole, classes: int, *, of: int | None = None) -> Whole:
    """Return counts (groups, classes) of labels (N,) by group (N,)."""
    count = int(groups.max()) + 1 if of is None else of
    return np.bincount(groups * classes + labels, minlength=count * classes).reshape(count, classes)


def _priors(counts: Whole, response: Floats) -> Floats:
    """Return shares (groups, classes) of true classes by counts of responses, a record more of each class."""
    other = response[0, -1]
    total = counts.sum(1, keepdims=True)
    # What responses are expected to add to each count of the true classes is taken off.
    true = np.maximum((counts - total * other) / (response[0, 0] - other), 0.0) + 1.0
    return np.asarray(true / true.sum(1, keepdims=True))


def _among(labels: Whole, priors: Floats, epsilon: float, bits: BitSource) -> tuple[Whole, Floats]:
    """Return responses (n,) of `labels` among the likeliest classes of each, and their chances (n, classes)."""
    order = np.argsort(-priors, 1)
    classes = priors.shape[1]
    offered = np.arange(1, classes + 1)
    right = np.cumsum(np.take_along_axis(priors, order, 1), 1) / (1.0 + (offered - 1) * exp(-epsilon))
    size = right.argmax(1) + 1
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(classes)[None], 1)
    own = np.take_along_axis(rank, labels[:, None], 1)[:, 0]
    answer = np.empty_like(labels)
    for count in np.unique(size).tolist():
        left = np.flatnonzero(size == count)
        while len(left):
            place = uniform(len(left), count, bits)
            # A label that is not offered says nothing: any answer is taken.
            against = (place != own[left]) & (own[left] < count)
            taken = happens(against.astype(np.int64), Fraction(epsilon), bits)
            answer[left[taken]] = order[left[taken], place[taken]]
            left = left[~taken]
    inside = rank < size[:, None]
    odds = np.where(np.arange(classes) == answer[:, None], 1.0, exp(-epsilon))
    chances = np.where(inside, odds / (1.0 + (size[:, None] - 1) * exp(-epsilon)), 1.0 / size[:, None])
    return answer, chances
