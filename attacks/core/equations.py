"""Sums over known sets of records, read as linear equations in what each record adds to them.

A sum over a set of records of unknown rows r_i, each times numbers a_i that the adversary knows, is an equation in
these rows. Where sets overlap in other ways each time, as shuffled batches do, the rows follow, though no message is
about one record. They are taken for independent and the same in all messages; scale and noise are the likeliest ones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from dpzv_audit.systems.messages import OF_A_BATCH, SUMS
from mechanisms.core.channel import SERVER, Message, View

from .metrics import Floats
from .pairs import likeliest_weights

AT_ONCE = 1000
"""Equations that are solved together: their covariances are one matrix."""
MOST = 4 * AT_ONCE
"""Equations of one reading, the first of a training: later ones are about rows that training has changed."""
COMPONENTS = 16
"""Principal components that stand for wider sums."""


class Equations(NamedTuple):
    """T sums (T, width) and the weight of each record in them, `design` (T, N)."""

    sums: Floats
    design: csr_array


def solved_sums(
    view: View, records: int, outputs: tuple[int, ...], features: Mapping[int, Floats], replica: int = 0
) -> Iterator[tuple[str, Floats]]:
    """Yield in words and by client what each record adds to the sums in one training of a view: rows (N, width).

    Sums are messages of kind `sums`, and of kind `batch-gradient` times the size of the batch. A gradient that has as
    many numbers as a linear model of the client's features, with biases or without, is also read as one: it is then a
    sum of features times the gradients at the `outputs` of the model, which clients share.

    Args:
        view: The view of one training or several.
        records: Number of records N.
        outputs: Numbers of outputs that a linear model may have.
        features: Features (N, d) by client.
        replica: The place of the training in the view.
    """
    linear: dict[int, list[Equations]] = {}
    for client in view.adversary.clients:
        sent = [m for m in view.messages if (m.sender, m.receiver) == (SERVER, client) and m.ids is not None]
        for kind in (SUMS, OF_A_BATCH):
            sums = [one for m in sent if m.kind == kind for one in _sum_of(m, replica)][:MOST]
            if not sums:
                continue
            plain = _as_sums(sums, records)
            yield f"{kind} to {client}", solved([plain])
            own = features.get(client) if kind == OF_A_BATCH else None
            for count in sorted(set(outputs)):
                if own is not None and (equations := _of_linear(sums, own, count)) is not None:
                    yield f"{kind} of {count} outputs to {client}", solved([equations])
                    linear.setdefault(count, []).append(equations)
    for count, several in linear.items():
        if len(several) > 1:
            yield f"{OF_A_BATCH} of {count} outputs to all", solved(several)


def _sum_of(message: Message, replica: int) -> Iterator[tuple[Floats, np.ndarray]]:
    """Yield the sum (width,) in a message and its ids (n,) where it has any."""
    assert message.ids is not None
    ids = message.ids[replica].cpu().numpy()
    ids = ids[ids >= 0]
    if len(ids):
        values = message.payload[replica].flatten().double().cpu().numpy()
        yield values * (len(ids) if message.kind == OF_A_BATCH else 1.0), ids


def _as_sums(sums: list[tuple[Floats, np.ndarray]], records: int) -> Equations:
    """Return plain sums of rows, of the width that most of them have."""
    width = Counter(len(values) for values, _ in sums).most_common(1)[0][0]
    sums = [(values, ids) for values, ids in sums if len(values) == width]
    ends = np.cumsum([0, *(len(ids) for _, ids in sums)])
    places = np.concatenate([ids for _, ids in sums])
    design = csr_array((np.ones(len(places)), places, ends), shape=(len(sums), records))
    return Equations(np.stack([values for values, _ in sums]), design)


def _of_linear(sums: list[tuple[Floats, np.ndarray]], own: Floats, outputs: int) -> Equations | None:
    """Return gradients of a linear model's weights (outputs, d), with biases behind them or without, as sums.

    The sums are of features times rows. None where messages have another length.
    """
    width = own.shape[1]
    biased = len(sums[0][0]) == outputs * (width + 1)
    if width == 0 or any(len(values) != outputs * (width + biased) for values, _ in sums):
        return None
    rows = np.column_stack((own, np.ones(len(own)))) if biased else own
    most = -(-MOST // rows.shape[1])
    design = []
    targets = []
    for values, ids in sums[:most]:
        weights, biases = np.split(values, [outputs * width])
        targets.append(np.vstack([weights.reshape(outputs, width).T, biases.reshape(-1, outputs)]))
        ends = np.arange(rows.shape[1] + 1) * len(ids)
        places = np.tile(ids, rows.shape[1])
        design.append(csr_array((rows[ids].T.ravel(), places, ends), shape=(rows.shape[1], len(own))))
    return Equations(np.concatenate(targets), vstack(design).tocsr())


def solved(several: list[Equations]) -> Floats:
    """Return posterior means (N, width) of rows by the equations of several clients, a piece of the training at a time.

    The common part of all records is regressed out. A piece scales columns by their deviations, over the largest one.
    """
    sums = [one.sums for one in several]
    if sums[0].shape[1] > COMPONENTS:
        left, values, _ = np.linalg.svd(np.concatenate(sums), full_matrices=False)
        kept = (left * values)[:, :COMPONENTS]
        sums = np.split(kept, np.cumsum([len(one) for one in sums])[:-1])
    step = max(1, AT_ONCE // len(several))
    total: Floats = np.zeros(())
    for first in range(0, min(MOST // len(several), max(map(len, sums))), step):
        some = slice(first, first + step)
        targets = np.concatenate([one[some] for one in sums])
        design = vstack([one.design[some] for one in several]).tocsr()
        alike = np.asarray(design.sum(1)).reshape(-1, 1)
        rest = targets - alike @ np.linalg.lstsq(alike, targets, rcond=None)[0]
        spread = np.sqrt(np.square(rest).mean(0))
        weights = likeliest_weights((design @ design.T).toarray(), rest)[1]
        total = total + (design.T @ weights) * (spread / (spread.max() or 1.0))
    return total
