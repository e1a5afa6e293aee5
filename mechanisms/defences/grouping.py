"""Groups records by what clients can send without having seen a label: principal components of their features.

Of pictures these are components of histograms of gradients, in which neighbours are of one class more often than in
pixels. Groups are a function of features and of nothing else: replacing a label moves none of them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.fixed import OrientedHistograms
from ..core.patches import is_picture

Floats = NDArray[np.float32]
Groups = NDArray[np.int64]
Grouping = Literal["k-means", "spectral"]
# Records of a group at epsilon 1, four times as many at 0.25: in smaller groups noise would decide the vote.
PER_EPSILON: dict[Grouping, float] = {"k-means": 25.0, "spectral": 60.0}
# Groups of a graph are smaller where there would be so few that classes share one. Both numbers were chosen on digits
# and mfeat, at epsilon 0.25 to 4; the 60 records above after accuracies on MNIST were seen, too.
LEAST_PER_EPSILON = 20.0
PER_CLASS = 5
# A graph of so many records takes minutes.
MOST_IN_GRAPH = 100_000
NEIGHBOURS = 10
# Eigenvectors of a graph of neighbours, at most: as many as half of the groups, and one for each class at least. Chosen
# by how many votes were right on digits, mfeat, MNIST and CIFAR-10 at epsilon 0.1 to 2, as the next two numbers were.
EIGENVECTORS = 60
# Numbers that histograms of gradients have of a client's picture: eight directions in twelve cells.
HISTOGRAM = 96
# Components that each client sends: of pictures, and of all else.
OF_PICTURES, OF_TABLES = 20, 10
_ROWS = 1000


def grouping_of(records: int) -> Grouping:
    """Return how `records` are grouped by default: by a graph, or by k-means where that would take too long."""
    return "spectral" if records <= MOST_IN_GRAPH else "k-means"


def groups_at(records: int, classes: int, epsilon: float, grouping: Grouping) -> int:
    """Return how many groups to make: at least one for each class, at most one for each record.

    By k-means there is one for 25 / epsilon records. On a graph there is one for 60 / epsilon; where these are fewer
    than five for each class, there are that many, but no more than one for 20 / epsilon records.
    """
    wished = records * epsilon / PER_EPSILON[grouping]
    if grouping == "spectral":
        wished = max(wished, min(records * epsilon / LEAST_PER_EPSILON, PER_CLASS * classes))
    return min(records, max(classes, round(wished)))


def eigenvectors_for(groups: int, classes: int) -> int:
    """Return how many eigenvectors of a graph to make groups from: more would cut classes where groups are few."""
    return min(EIGENVECTORS, max(classes, groups // 2))


def described(block: Tensor) -> Tensor:
    """Return what a client groups its `block` (N, ...) by, (N, d): of pictures histograms of gradients, else all of it.

    Histograms follow from the shape of the block and each from its own record (`OrientedHistograms`).
    """
    if not is_picture(tuple(block.shape[1:])):
        return block.flatten(1)
    histograms = OrientedHistograms(tuple(block.shape[1:]), HISTOGRAM).to(block)
    with torch.no_grad():
        return torch.cat([histograms(part) for part in block.split(_ROWS)])


def components(block: Tensor, count: int | None = None) -> Floats:
    """Return the first `count` principal components, or as many as there are, of what describes a client's `block`."""
    from sklearn.decomposition import PCA

    if count is None:
        count = OF_PICTURES if is_picture(tuple(block.shape[1:])) else OF_TABLES
    rows = described(block).cpu().numpy().astype(np.float32)
    return np.asarray(PCA(min(count, *rows.shape), random_state=0).fit_transform(rows), np.float32)


def side_by_side(sent: Sequence[Floats]) -> Floats:
    """Return what clients sent, (N, d) each, as rows (N, M * d) of a root mean square of 1.

    All together are scaled, so that no client's unit counts for more.
    """
    rows = np.concatenate(sent, 1)
    return np.asarray(rows / (np.sqrt((rows**2).sum(1).mean()) or 1.0), np.float32)


def by_means(rows: Floats, groups: int, seed: int) -> Groups:
    """Return the group (N,) of each of `rows` (N, d) by k-means, numbered from 0 without gaps."""
    from sklearn.cluster import MiniBatchKMeans

    # More starting points than records make no sense, and several starts are dear.
    means = MiniBatchKMeans(min(groups, len(rows)), random_state=seed, batch_size=4096, max_iter=30, n_init=1)
    _, groups_of = np.unique(means.fit_predict(rows), return_inverse=True)
    return np.asarray(groups_of, np.int64)


def spectral_rows(rows: Floats, leading: int) -> Floats:
    """Return `rows` (N, d) by `leading` eigenvectors of a graph of their nearest neighbours (Ng et al., NIPS 2001).

    Weights are Gaussian, as wide as it is to the sixth neighbour (Zelnik-Manor and Perona, NIPS 2004). An attack and
    its controls group the same records again and again: what came of the last few rows is kept.
    """
    return _kept(rows.tobytes(), rows.shape, leading)


@lru_cache(maxsize=3)
def _kept(content: bytes, shape: tuple[int, ...], leading: int) -> Floats:
    spectral = _by_eigenvectors(np.frombuffer(content, np.float32).reshape(shape), leading)
    spectral.setflags(write=False)
    return spectral


def _by_eigenvectors(rows: Floats, leading: int) -> Floats:
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import eigsh

    count = len(rows)
    near = min(NEIGHBOURS, count - 1)
    places, squares = _nearest(rows, near)
    width = np.sqrt(np.maximum(np.sort(squares, 1)[:, near // 2], 1e-6))
    weights = np.exp(-squares / (width[:, None] * width[places]))
    starts = np.repeat(np.arange(count), near)
    graph = csr_array((weights.ravel(), (starts, places.ravel())), (count, count))
    graph = graph.maximum(graph.T)
    inverse = diags_array(np.asarray(graph.sum(1)).ravel() ** -0.5)
    most = max(1, min(leading, count - 2))
    # A start of one's own: the library's is random.
    _, vectors = eigsh(inverse @ graph @ inverse, k=most, which="LA", tol=1e-3, v0=np.ones(count), maxiter=400)
    leading_rows = inverse @ vectors
    return np.asarray(leading_rows / np.maximum(np.linalg.norm(leading_rows, axis=1, keepdims=True), 1e-12), np.float32)


def _nearest(rows: Floats, near: int) -> tuple[Groups, Floats]:
    """Return places (N, near) of each row's nearest others, and their squared distances."""
    lengths = (rows**2).sum(1)
    places = np.empty((len(rows), near), np.int64)
    squares = np.empty((len(rows), near), np.float32)
    for first in range(0, len(rows), _ROWS):
        some = slice(first, first + _ROWS)
        distances = lengths - 2.0 * rows[some] @ rows.T + lengths[some, None]
        own = np.arange(len(distances))
        distances[own, first + own] = np.inf
        places[some] = np.argpartition(distances, near - 1, 1)[:, :near]
        squares[some] = np.maximum(np.take_along_axis(distances, places[some], 1), 0.0)
    return places, squares
