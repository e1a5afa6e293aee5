"""Decoders: regressions of a client's features on its embeddings, fitted on the records whose features are known.

All have the contract of scikit-learn: `fit` on inputs (m, w) and targets (m, d), `predict` targets (n, d). They compete
on held-out parts of the known records, and the best is fitted again on all of them. The inverse network is that of the
black-box inversion of He et al. (ACSAC 2019, section 5).
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from ..core.metrics import Floats, Ints

# A unit that few known records move gets this share of the largest deviation: divided by its own it would blow up.
FLOOR = 0.1
# Ridge penalty per known record, on standardised inputs.
PENALTY = 1e-2
# Parts of the known records that are held out in turn; where fewer than so many are known the first decoder is taken.
FOLDS = 3
LEAST_KNOWN = 20
# Widths of a kernel, in typical distances of two records, and its penalties.
WIDTHS = (0.3, 0.5, 1.0)
PENALTIES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
# Networks in the ensemble, their epochs, and the share of the variance that their targets, principal components, keep.
NETWORKS = 5
EPOCHS = 150
VARIANCE = 0.99
# Records that are predicted at once, whose kernel is held.
AT_ONCE = 4096
NETWORK = "inverse network"
# What is a feature as it is may differ by rounding, as a share of its range.
SAME = 1e-6

Predict = Callable[[Floats], Floats]
Make = Callable[[Floats], Any]
"""Makes an unfitted regressor for known inputs (m, w)."""


@dataclass(frozen=True)
class Decoder:
    """The decoder that won: its `name`, that of the `inputs` that it reads, and how it predicts.

    `error` is its squared error per held-out known record, infinite where too few are known to hold any out. `refit`
    fits to other features of the same records: it, or in place of a network, which takes long, the best of the others.
    """

    name: str
    inputs: str
    predict: Predict
    error: float = np.inf
    refit: Callable[[Floats], Predict] = field(repr=False, default=lambda features: lambda rows: rows)


def best_decoder(inputs: Mapping[str, Floats], features: Floats, *, seed: int, trained: bool = True) -> Decoder:
    """Return the decoder that errs least on held-out known records, fitted again on all of them.

    Among those whose squared error is within two standard errors of the least, the least absolute error decides, after
    the one-standard-error rule (Breiman et al. 1984, section 3.4.3): squares are those of a few unusual records.

    Args:
        inputs: Inputs (m, w) of the known records by name, which compete too; a network reads the best of them alone.
        features: Their features (m, d).
        seed: Draws the held-out parts and starts networks.
        trained: Whether networks compete, which take most of the time.
    """
    for read, rows in inputs.items():
        places = copied(rows, features)
        if places is not None:
            refit = partial(fitted, _makers(1, seed)["ridge"], rows)
            return Decoder("copy", read, partial(np.take, indices=places, axis=1), 0.0, refit)
    m = len(features)
    parts = np.array_split(np.random.default_rng(seed).permutation(m), FOLDS)
    errors: dict[tuple[str, str], Floats] = {}

    def compete(name: str, read: str) -> None:
        guess = np.empty_like(features)
        for held in parts:
            rest = np.setdiff1d(np.arange(m), held)
            guess[held] = fitted(_makers(1, seed)[name], inputs[read][rest], features[rest])(inputs[read][held])
        errors[name, read] = guess - features

    def winner() -> tuple[str, str]:
        squares = {pair: (error**2).sum(1) for pair, error in errors.items()}
        best = min(squares.values(), key=np.mean)
        level = {pair: (own - best).mean() - 2.0 * (own - best).std() / m**0.5 for pair, own in squares.items()}
        spread = spread_of(features)
        return min((pair for pair in errors if level[pair] <= 0.0), key=lambda p: absolute(errors[p], spread).sum())

    solved = [name for name in _makers(1, seed) if name != NETWORK]
    name, read = solution = solved[0], next(iter(inputs))
    if m >= LEAST_KNOWN:
        for pair in product(solved, inputs):
            compete(*pair)
        name, read = solution = winner()
        if trained:
            compete(NETWORK, read)
            name, read = winner()
    return Decoder(
        name,
        read,
        fitted(_makers(NETWORKS, seed)[name], inputs[read], features),
        float((errors[name, read] ** 2).sum(1).mean()) if errors else np.inf,
        partial(fitted, _makers(1, seed)[solution[0]], inputs[read]),
    )


def copied(rows: Floats, features: Floats) -> Ints | None:
    """Return in which columns (d,) of the inputs (m, w) the features (m, d) stand as they are; None where some do not.

    Of several the one in the same place is taken, so that what is constant among known records is not mistaken.
    """
    slack = SAME * (np.ptp(features, 0) + np.abs(features).max(0) + 1e-300)
    places = np.empty(features.shape[1], np.int64)
    for j, column in enumerate(features.T):
        found = np.flatnonzero((np.abs(rows - column[:, None]) <= slack[j]).all(0))
        if not len(found):
            return None
        places[j] = j if j in found else found[0]
    return places


def spread_of(features: Floats) -> Floats:
    """Return the mean absolute deviation (d,) of each column, at least a thousandth of the largest."""
    spread = np.abs(features - features.mean(0)).mean(0)
    return np.asarray(np.maximum(spread, 1e-3 * spread.max() + 1e-12))


def absolute(errors: Floats, spread: Floats) -> Floats:
    """Return what each column (d,) adds to the criterion: its mean absolute error over its `spread`, and all columns'.

    One column's error on few records is uncertain, so that the error of all columns counts as much.
    """
    own = np.abs(errors).mean(0)
    return np.asarray(own / spread + own.mean() / spread.mean())


def scaled_as(known: Floats) -> Callable[[Floats], Floats]:
    """Return what scales inputs as the `known` ones (m, w) are, to a deviation of 1, and clips them to their range."""
    centre, deviation = known.mean(0), known.std(0)
    deviation = np.maximum(deviation, FLOOR * deviation.max()) + 1e-12
    limits = (known.min(0) - centre) / deviation, (known.max(0) - centre) / deviation
    return lambda inputs: np.asarray(((inputs - centre) / deviation).clip(*limits))


def fitted(make: Make, known: Floats, features: Floats) -> Predict:
    """Return the predictions of a regressor, with inputs and outputs clipped to the range of the known records."""
    mean = features.mean(0)
    scaled = scaled_as(known)
    rows = scaled(known)
    scale = float((features - mean).std()) or 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a network that reached its last epoch
        model = make(rows).fit(rows, (features - mean) / scale)

    def predict(embeddings: Floats) -> Floats:
        guess = model.predict(scaled(embeddings)).reshape(len(embeddings), -1)
        return np.asarray((guess * scale + mean).clip(features.min(0), features.max(0)))

    return predict


class KernelRidge:
    """Kernel ridge with a linear and a Gaussian kernel, of which each column takes the width and penalty of its own.

    They are chosen on held-out parts (Rasmussen and Williams 2006, sections 2.2 and 4.2).
    """

    def fit(self, rows: Floats, targets: Floats) -> "KernelRidge":
        """Choose settings for `targets` (m, d) and fit them on all `rows` (m, w)."""
        limits = targets.min(0), targets.max(0)
        guesses = np.empty((len(WIDTHS), len(PENALTIES), *targets.shape))
        for held in np.array_split(np.arange(len(rows)), FOLDS):
            rest = np.setdiff1d(np.arange(len(rows)), held)
            for guess, width in zip(guesses, WIDTHS, strict=True):
                found = _kernel(rows[held], rows[rest], width) @ _weights(rows[rest], targets[rest], width)
                guess[:, held] = found.clip(*limits)
        # Absolute errors, since a few records of rare categories would decide on squares.
        spread = spread_of(targets)
        errors = [absolute(guess - targets, spread) for guess in guesses.reshape(-1, *targets.shape)]
        width, penalty = np.unravel_index(np.argmin(errors, 0), guesses.shape[:2])
        columns = np.arange(targets.shape[1])
        self.rows = rows
        self.weights = {
            WIDTHS[i]: _weights(rows, targets, WIDTHS[i])[penalty, :, columns].T * (width == i) for i in set(width)
        }
        return self

    def predict(self, rows: Floats) -> Floats:
        """Return the targets (n, d) of `rows` (n, w)."""
        pieces = np.array_split(rows, 1 + len(rows) // AT_ONCE)
        found = [sum(_kernel(piece, self.rows, width) @ own for width, own in self.weights.items()) for piece in pieces]
        return np.concatenate(found)


def _kernel(rows: Floats, known: Floats, width: float) -> Floats:
    """Return the kernel (n, m) of `rows` (n, w) and `known` (m, w)."""
    products = rows @ known.T
    squares = (rows**2).sum(1)[:, None] + (known**2).sum(1) - 2.0 * products
    inputs = rows.shape[1]
    return np.asarray(np.exp(squares.clip(min=0.0) / (-2.0 * width**2 * inputs)) + products / inputs)


# A decoder that is fitted to other features of the same records asks for the same ones.
@lru_cache(maxsize=16)
def _decomposed(rows: bytes, shape: tuple[int, ...], width: float) -> tuple[Floats, Floats]:
    """Return eigenvalues and eigenvectors of the kernel of rows of a `shape`, given as their bytes."""
    known = np.frombuffer(rows).reshape(shape)
    values, vectors = np.linalg.eigh(_kernel(known, known, width))
    return values, vectors


def _weights(rows: Floats, targets: Floats, width: float) -> Floats:
    """Return the weights (penalties, m, d) of known `rows` in predictions."""
    values, vectors = _decomposed(rows.tobytes(), rows.shape, width)
    along = vectors.T @ targets
    return np.stack([vectors @ (along / (values[:, None].clip(min=0.0) + penalty)) for penalty in PENALTIES])


def _makers(networks: int, seed: int) -> dict[str, Make]:
    """Return the regressors that compete by name, an inverse network as the mean of so many `networks`."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.decomposition import PCA
    from sklearn.ensemble import BaggingRegressor
    from sklearn.linear_model import Ridge
    from sklearn.neural_network import MLPRegressor

    def network(rows: Floats) -> Any:
        one = MLPRegressor(
            hidden_layer_sizes=(128, 128),
            batch_size=min(64, len(rows)),
            learning_rate_init=3e-3,
            alpha=1.0,
            max_iter=EPOCHS,
            n_iter_no_change=EPOCHS,
        )
        several = BaggingRegressor(one, networks, bootstrap=False, random_state=seed)
        return TransformedTargetRegressor(several, transformer=PCA(VARIANCE), check_inverse=False)

    return {
        "ridge": lambda rows: Ridge(PENALTY * len(rows)),
        "kernel ridge": lambda rows: KernelRidge(),
        NETWORK: network,
    }
