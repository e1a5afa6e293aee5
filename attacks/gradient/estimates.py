"""Estimates of per-record gradients from scalar feedback (VFL-Cascaded, section VI-B; linear regression).

A client that sent c and c + mu u received s = <gradient, u> + error. One scalar a batch is the batch mean,
s_j = (1/B) sum_i <g_i, u_ji> + error; one a record is s_ji = <g_i, u_ji> + error. Either is a linear model in
the unknown gradients: A g = s with a row a query, of dimension B c for a batch and c for a record. An
eavesdropper that knows no direction draws its own and learns nothing (which is what a control should show).
"""

import math

import torch
from torch import Tensor

from dpzv_audit.base.errors import NotFinite

# Below this ratio of the smallest to the largest pivot a factor is taken as rank deficient, and the singular
# value decomposition, which does not square the condition number, solves that system instead.
_PIVOT_RATIO = 1e-6


def correlation(directions: Tensor, scalars: Tensor) -> Tensor:
    """Return the correlation estimate U^T s / q, unbiased whatever q; with q = 1 it is the published attack.

    Args:
        directions: (batches, q, B, c), coordinates of mean 0, uncorrelated, of variance 1: Gaussian directions, or
            those on the sphere of radius sqrt(d) in R^d. Of another variance the estimate is that many times as large.
        scalars: (batches, q), one a batch, or (batches, q, B), one a record.

    Returns:
        Per-record gradients (batches, B, c), float64.

    Raises:
        NotFinite: a number that is not finite.
    """
    rows, targets = _systems(directions, scalars)
    # Rows of a batch hold u / B, so that E[row^T row] = 1 / B^2 in each coordinate.
    second_moment = 1.0 / directions.shape[2] ** 2 if scalars.ndim == 2 else 1.0
    estimate = (rows.mT @ targets.unsqueeze(-1)).squeeze(-1) / (directions.shape[1] * second_moment)
    return _of_records(estimate, directions)


def minimum_norm(directions: Tensor, scalars: Tensor) -> Tensor:
    """Return the smallest gradients that fit the scalars best in least squares.

    Below the dimension (B c for one scalar a batch, c for one a record) they fit exactly; from q = dimension
    on they are ordinary least squares, exact for scalars without error. Close to q = dimension the system is
    badly conditioned and any error is magnified: give its size to `ridge`. Arguments, result and errors as
    `correlation`; directions of any distribution, rank deficient ones included.
    """
    return ridge(directions, scalars, noise_std=0.0, prior_std=1.0)


def ridge(directions: Tensor, scalars: Tensor, *, noise_std: float, prior_std: float) -> Tensor:
    """Return the ridge estimate with lambda = noise_std^2 / prior_std^2, the best linear one for these two.

    It minimises ||s - A g||^2 + lambda ||g||^2: the posterior mean if both are Gaussian.
    It tends to `minimum_norm` as `noise_std` tends to 0, and is `minimum_norm` at 0.

    Args:
        directions: as in `correlation`, of any distribution.
        scalars: as in `correlation`.
        noise_std: standard deviation of the error of one scalar, in the scalars' unit, at least 0; noise, and
            the error of a finite difference (`forward_difference_error`), as the root of the sum of squares.
        prior_std: standard deviation of one gradient coordinate around 0, above 0
            (`label_prior_std` for cross entropy near uniform predictions).

    Returns:
        Per-record gradients (batches, B, c), float64.

    Raises:
        NotFinite: a number that is not finite.
    """
    solution = _solve(*_systems(directions, scalars), penalty=(noise_std / prior_std) ** 2)
    return _of_records(solution, directions)


def label_prior_std(classes: int) -> float:
    """Return sqrt((1 - 1/c)/c), the RMS of softmax - onehot at uniform predictions, c classes."""
    return math.sqrt((1.0 - 1.0 / classes) / classes)


def forward_difference_error(step: float, classes: int, *, records: int = 1) -> float:
    """Return the root mean square error of (f(c + mu u) - f(c)) / mu, f averaged over `records` records.

    The error is (mu/2) u^T H u to first order in mu; for Gaussian u its mean is (mu/2) tr H and its variance
    (mu^2/2) tr H^2. Cross entropy at uniform predictions has H = I/c - 11^T/c^2, so tr H = 1 - 1/c and
    tr H^2 = (1 - 1/c)/c. A central difference has no such term.

    Args:
        step: mu, above 0, in units of logits.
        classes: c, at least 2.
        records: B for one scalar a batch, 1 for one a record.
    """
    trace = 1.0 - 1.0 / classes
    return 0.5 * step * math.sqrt(trace**2 + 2.0 * trace / classes / records)


def expected_cosine(queries: int, dimension: int, *, noise_to_signal: float) -> float:
    """Return the cosine that the ridge estimate reaches on Gaussian directions as q and d grow together.

    The share m of the gradient that stays unexplained solves m = 1 / (1 + (q/d) / (r + m)), with r the square of
    `noise_to_signal` (linear minimum mean square error with random Gaussian rows; Tse and Hanly, IEEE Transactions
    on Information Theory 45(2), 1999, theorem 3.1), and the cosine is sqrt(1 - m). Without noise it is
    sqrt(min(1, q/d)), a projection on a random subspace.

    Args:
        queries: q, at least 1.
        dimension: d, unknowns in one system.
        noise_to_signal: standard deviation of a scalar's error over that of <u, g>, which is the gradient's norm.
    """
    share = queries / dimension
    r = noise_to_signal**2
    # m^2 + (r + q/d - 1) m - r = 0 has one root in [0, 1].
    half = 0.5 * (r + share - 1.0)
    unexplained = math.sqrt(half**2 + r) - half
    return math.sqrt(min(1.0, max(0.0, 1.0 - unexplained)))


def checked(what: str, tensor: Tensor) -> Tensor:
    """Return `tensor`; raise `NotFinite` where a number is not finite."""
    if not bool(tensor.isfinite().all()):
        raise NotFinite(f"{what} holds a number that is not finite; use finite numbers")
    return tensor


def _of_records(solution: Tensor, directions: Tensor) -> Tensor:
    """Return solutions (systems, d) as per-record gradients (batches, B, c)."""
    return solution.reshape(directions.shape[0], *directions.shape[2:])


def _systems(directions: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
    """Return float64 rows (systems, q, d) and targets (systems, q)."""
    batches, queries, records, classes = directions.shape
    u = checked("directions", directions).double()
    s = checked("scalars", scalars).double()
    if s.ndim == 2:
        return u.reshape(batches, queries, records * classes) / records, s
    return u.transpose(1, 2).reshape(batches * records, queries, classes), s.mT.reshape(-1, queries)


def _solve(rows: Tensor, targets: Tensor, *, penalty: float) -> Tensor:
    """Return x (systems, d) minimising ||rows x - targets||^2 + penalty ||x||^2, the smallest at penalty 0.

    With fewer rows than columns, or a penalty, by Cholesky on the smaller Gram matrix; least squares by QR,
    which does not square the condition number. Systems that these find (close to) rank deficient are solved
    by singular values instead, as numpy.linalg.pinv would.
    """
    queries, dimension = rows.shape[-2:]
    right = targets.unsqueeze(-1)
    wide = queries < dimension
    if wide or penalty > 0:
        gram = rows @ rows.mT if wide else rows.mT @ rows
        gram.diagonal(dim1=-2, dim2=-1).add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if wide:
            x = rows.mT @ torch.cholesky_solve(right, factor)
        else:
            x = torch.cholesky_solve(rows.mT @ right, factor)
    else:
        orthogonal, factor = torch.linalg.qr(rows)
        failed = factor.new_zeros(len(factor))
        x = torch.linalg.solve_triangular(factor, orthogonal.mT @ right, upper=True)
    pivots = factor.diagonal(dim1=-2, dim2=-1).abs()
    # A pivot too small to trust, or not a number.
    deficient = ~(pivots.amin(-1) > _PIVOT_RATIO * pivots.amax(-1)) | (failed > 0)
    if bool(deficient.any()):
        x[deficient] = _by_singular_values(rows[deficient], right[deficient], penalty)
    return x.squeeze(-1)


def _by_singular_values(rows: Tensor, right: Tensor, penalty: float) -> Tensor:
    left, values, right_t = torch.linalg.svd(rows, full_matrices=False)
    cutoff = max(rows.shape[-2:]) * torch.finfo(rows.dtype).eps * values[..., :1]
    filtered = torch.where(values > cutoff, values / (values**2 + penalty), 0.0)
    solution: Tensor = right_t.mT @ (filtered.unsqueeze(-1) * (left.mT @ right))
    return solution
