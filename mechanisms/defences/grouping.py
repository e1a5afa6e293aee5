"""Groups records by what clients can send without having seen a label: principal components of each one's features.

Groups are a function of all features and of nothing else: a label that is replaced moves none of them.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Groups = NDArray[np.int64]
Grouping = Literal["k-means", "spectral"]
# Records a group at epsilon 1, four times as many at 0.25: a vote of fewer is the noise's. (Groups of a graph chosen on
# digits, at epsilon 0.25 to 2.)
PER_EPSILON: dict[Grouping, float] = {"k-means": 25.0, "spectral": 30.0}
# Records of which a graph is made within minutes.
MOST_IN_GRAPH = 100_000
NEIGHBOURS = 10
# Eigenvectors of a graph of neighbours.
EIGENVECTORS = 25
_ROWS = 1000


def grouping_of(records: int) -> Grouping:
    """Return how so many records are grouped where nobody says: by a graph, or where that takes too long by k-means."""
    return "spectral" if records <= MOST_IN_GRAPH else "k-means"


def groups_at(records: int, classes: int, epsilon: float, grouping: Grouping) -> int:
    """Return how many groups to make: one for 25 or 30 records over epsilon, at least one a class, a record in each."""
    return min(records, max(classes, round(records * epsilon / PER_EPSILON[grouping])))


def components(blocks: Sequence[NDArray[np.floating]], count: int) -> Floats:
    """Return the first `count` principal components of each client's features, side by side: (N, at most M * count).

    Each client computes them on its own block (N, ...), and sends them once. All together are scaled to a root mean
    square of 1, so that no client's unit counts for more.
    """
    from sklearn.decomposition import PCA

    found = []
    for block in blocks:
        rows = block.reshape(len(block), -1).astype(np.float32)
        most = min(count, *rows.shape)
        found.append(PCA(most, random_state=0).fit_transform(rows))
    rows = np.concatenate(found, 1)
    return np.asarray(rows / (np.sqrt((rows**2).sum(1).mean()) or 1.0), np.float32)


def by_means(rows: Floats, groups: int, seed: int) -> Groups:
    """Return the group (N,) of each of `rows` (N, d) by k-means, numbered from 0 without gaps."""
    from sklearn.cluster import MiniBatchKMeans

    # More starting points than records make no sense, and several starts are dear.
    means = MiniBatchKMeans(min(groups, len(rows)), random_state=seed, batch_size=4096, max_iter=30, n_init=1)
    _, found = np.unique(means.fit_predict(rows), return_inverse=True)
    return np.asarray(found, np.int64)


def spectral_rows(rows: Floats) -> Floats:
    """Return `rows` (N, d) by the leading eigenvectors of a graph of their nearest neighbours (Ng et al., NIPS 2001).

    Weights are Gaussian, as wide as it is to the sixth neighbour (Zelnik-Manor and Perona, NIPS 2004).
    """
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
    leading = max(1, min(EIGENVECTORS, count - 2))
    # A start of one's own: the library's is random.
    _, vectors = eigsh(inverse @ graph @ inverse, k=leading, which="LA", tol=1e-3, v0=np.ones(count), maxiter=400)
    found = inverse @ vectors
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12), np.float32)


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
