"""Gradient-boosted trees across two companies, in the shape of SecureBoost (Cheng et al., 2021).

A bank (party 0) knows who did not repay, and owns features of its own, the second block. A shop (client 1) owns the
first. The bank sends the shop encrypted gradients; the shop sums them by node and by bin of each feature, and the bank
decrypts sums and chooses splits. None of that is recorded: ciphertexts tell the shop nothing. To sum by node, the shop
is told which records are in which node. That is recorded, in one line.
"""

import numpy as np

TREES = 10
DEPTH = 4
BINS = 8
RATE = 0.3
PENALTY = 1.0


def data():
    """Return 1,000 customers: five features at the shop, three at the bank; three in ten did not repay."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1000, 8))
    risk = table @ np.array([0.4] * 5 + [1.0] * 3) + 0.3 * rng.standard_normal(1000)
    return {"features": [table[:, :5], table[:, 5:]], "labels": (risk > np.quantile(risk, 0.7)).astype(int)}


def train(task, record, seed, smallest=1, alone=0):
    """Boost trees; no leaf has fewer than `smallest` records, and the bank grows the first `alone` by itself."""
    edges = [np.quantile(block, np.arange(1, BINS) / BINS, axis=0) for block in task.features]
    table = binned(task.features, edges)
    at_bank = np.arange(table.shape[1]) >= task.features[0].shape[1]
    score = np.zeros(task.records)
    trees = []
    for number in range(TREES):
        chance = 1 / (1 + np.exp(-score))
        gradient, curvature = chance - task.labels, chance * (1 - chance)
        columns = np.flatnonzero(at_bank | (number >= alone))
        node = np.zeros(task.records, int)
        splits = {}
        for _ in range(DEPTH):
            for parent in np.unique(node):
                here = np.flatnonzero(node == parent)
                split = best_split(table[here], gradient[here], curvature[here], columns, smallest)
                if split:
                    splits[parent] = split
            node = children(node, table, splits)
            if number >= alone:
                record.sent(number, 0, 1, "groups", node, np.arange(task.records))
        sums = [np.bincount(node, values, 2 ** (DEPTH + 1)) for values in (gradient, curvature)]
        trees.append((splits, -RATE * sums[0] / (sums[1] + PENALTY)))
        score += trees[-1][1][node]

    def predict(blocks):
        rows = binned([np.asarray(block) for block in blocks], edges)
        total = np.zeros(len(rows))
        for splits, leaves in trees:
            node = np.zeros(len(rows), int)
            for _ in range(DEPTH):
                node = children(node, rows, splits)
            total += leaves[node]
        return np.stack([0 * total, total], 1)

    return {"predict": predict}


def binned(blocks, edges):
    """Return the bins (N, columns) of all features."""
    pairs = zip(blocks, edges, strict=True)
    return np.hstack([(block[:, None] > edge).sum(1) for block, edge in pairs])


def best_split(table, gradient, curvature, columns, smallest):
    """Return the column and the last bin on the left of the split of largest gain; None where there is none."""
    best = 1e-9, None
    for column in columns:
        left = [np.bincount(table[:, column], values, BINS).cumsum()[:-1] for values in (gradient, curvature)]
        count = np.bincount(table[:, column], minlength=BINS).cumsum()[:-1]
        right = gradient.sum() - left[0], curvature.sum() - left[1]
        both = [side[0] ** 2 / (side[1] + PENALTY) for side in (left, right)]
        gain = sum(both) - gradient.sum() ** 2 / (curvature.sum() + PENALTY)
        gain[np.minimum(count, len(table) - count) < smallest] = 0
        if gain.max() > best[0]:
            best = gain.max(), (column, gain.argmax())
    return best[1]


def children(node, table, splits):
    """Return the child that each record goes to; one whose node is not split stays."""
    node = node.copy()
    for parent, (column, last) in splits.items():
        here = np.flatnonzero(node == parent)
        node[here] = 2 * parent + 1 + (table[here, column] > last)
    return node


def train_large_leaves(task, record, seed):
    """Keep at least 100 records in each leaf."""
    return train(task, record, seed, smallest=100)


def train_bank_first(task, record, seed):
    """Let the bank grow the first half of the trees by itself."""
    return train(task, record, seed, alone=TREES // 2)
