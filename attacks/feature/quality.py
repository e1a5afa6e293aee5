"""Marks of reconstructed features: explained variance, whole records of tables, and the likeness of pictures."""

from dataclasses import dataclass

import numpy as np

from dpzv_audit.data.vertical import VerticalDataset

from ..core.metrics import Booleans, Floats, Ints

PSNR = "PSNR, dB"
SSIM = "SSIM"
WHOLE = "whole record right"
EXPLAINED = "R^2"
# A number is right within this share of its column's range: of ages from 17 to 90, within 2 years.
NEAR = 1 / 30
# Of structural similarity: a window's deviation and radius, its constants, and how many pictures are compared at once.
DEVIATION = 1.5
RADIUS = 5
C1 = 0.01**2
C2 = 0.03**2
AT_ONCE = 1024
# Groups of records over which intervals are taken: records are what varies.
GROUPS = 20


@dataclass(frozen=True)
class Truth:
    """The true features `real` (n, d) of some records, the mean record (d,), and the range of each column (d,).

    `shape` (channels, height, width) is that of a picture, whose pixels lie in `low` to `low` + `span`, or None;
    `variables` are the columns of each variable of a table, several where it is one category of several.
    """

    real: Floats
    mean: Floats
    ranges: Floats
    shape: tuple[int, ...] | None
    low: float
    span: float
    variables: tuple[slice, ...]

    @classmethod
    def of(cls, dataset: VerticalDataset, ids: Ints) -> "Truth":
        """Return the truth about the records `ids` in the first block."""
        block = dataset.train.features[0]
        flat = block.reshape(len(block), -1).astype(np.float64)
        picture = dataset.picture(0)
        return cls(
            real=flat[ids],
            mean=flat.mean(0),
            ranges=np.ptp(flat, 0),
            shape=None if picture is None else (-1, *picture),
            low=float(flat.min()),
            span=float(np.ptp(flat)) or 1.0,
            variables=() if picture else variables(flat),
        )

    def planes(self, features: Floats) -> Floats:
        """Return features (n, d) as pictures (n, channels, height, width) with pixels in [0, 1]."""
        return (features.reshape(len(features), *(self.shape or ())) - self.low) / self.span

    def marks(self, features: Floats) -> dict[str, Floats]:
        """Return marks (groups,) of guesses (n, d) by name, each over groups of records.

        A group of pictures has the PSNR of its mean squared error.
        """
        errors = ((features - self.real) ** 2).sum(1)
        spread = ((self.real - self.mean) ** 2).sum(1).mean() or 1.0
        found = {EXPLAINED: 1.0 - _groups(errors) / spread}
        if self.shape is None:
            right = [self._right(features, variable) for variable in self.variables]
            return found | {WHOLE: _groups(np.all(right, 0).astype(float))}
        guess, real = self.planes(features), self.planes(self.real)
        squares = _groups(((guess - real) ** 2).mean((1, 2, 3)))
        return found | {PSNR: -10.0 * np.log10(np.maximum(squares, 1e-300)), SSIM: _groups(ssim(guess, real))}

    def _right(self, features: Floats, variable: slice) -> Booleans:
        """Return for which records (n,) a variable is right: its category, or its number within `NEAR` of the range."""
        guess, real = features[:, variable], self.real[:, variable]
        if guess.shape[1] > 1:
            return np.asarray(category(guess) == category(real))
        return np.asarray(np.abs(guess - real)[:, 0] <= NEAR * self.ranges[variable][0])

    def left(self, features: Floats) -> Floats:
        """Return the share (variables,) of each variable's squares about the mean record that guesses (n, d) leave."""
        errors = ((features - self.real) ** 2).sum(0)
        squares = ((self.real - self.mean) ** 2).sum(0)
        return np.array([errors[v].sum() / max(squares[v].sum(), 1e-300) for v in self.variables])


def variables(block: Floats) -> tuple[slice, ...]:
    """Return the columns of each variable of a table (N, d): neighbours of 0 and 1 that no record has twice are one."""
    binary = ((block == 0) | (block == 1)).all(0)
    starts: list[int] = []
    taken = np.zeros(len(block), bool)
    for j, column in enumerate(block.T):
        one = column == 1
        if not (starts and binary[j] and binary[starts[-1]]) or (taken & one).any():
            starts.append(j)
            taken = np.zeros(len(block), bool)
        taken |= one
    return tuple(slice(start, end) for start, end in zip(starts, [*starts[1:], block.shape[1]], strict=True))


def category(rows: Floats) -> Ints:
    """Return the likeliest category (n,) of rows (n, c), or c where none of them is likelier than none."""
    return np.asarray(np.concatenate((rows, 1.0 - rows.sum(1, keepdims=True)), 1).argmax(1))


def _groups(values: Floats) -> Floats:
    """Return means (groups,) of values (n,) over groups of records; the last group takes what is left over."""
    return np.array([part.mean() for part in np.array_split(values, min(GROUPS, len(values)))])


def ssim(guess: Floats, real: Floats) -> Floats:
    """Return the mean structural similarity (n,) of pictures (n, channels, height, width) with pixels in [0, 1].

    As in Wang et al. (IEEE TIP 2004, eq. 13 and section III-C): Gaussian windows of 11 x 11 pixels and standard
    deviation 1.5, K1 = 0.01, K2 = 0.03, averaged over the windows that lie within the picture, and over channels. Along
    a side of fewer than 11 pixels none does: there the picture is mirrored, and all windows count.
    """
    sides = guess.shape[2:]
    within = tuple(slice(RADIUS, side - RADIUS) if side > 2 * RADIUS else slice(None) for side in sides)

    def mean(values: Floats) -> Floats:
        from scipy.ndimage import gaussian_filter

        return np.asarray(gaussian_filter(values, (0, 0, DEVIATION, DEVIATION), radius=RADIUS)[(..., *within)])

    def one(a: Floats, b: Floats) -> Floats:
        mean_a, mean_b = mean(a), mean(b)
        covariance = mean(a * b) - mean_a * mean_b
        variances = mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2
        above = (2 * mean_a * mean_b + C1) * (2 * covariance + C2)
        return np.asarray((above / ((mean_a**2 + mean_b**2 + C1) * (variances + C2))).mean((1, 2, 3)))

    pieces = range(0, len(real), AT_ONCE)
    return np.concatenate([one(guess[i : i + AT_ONCE], real[i : i + AT_ONCE]) for i in pieces])
