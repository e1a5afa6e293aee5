"""Numbers about each record from a training's messages, which mean the same in trainings that start elsewhere.

The coordinates of a gradient or of an embedding turn with the model, which each training draws anew. Lengths, inner
products and projections do not: rows are compared with those of records whose labels are given, of the same message and
of the same pass over the data (after Li et al., ICLR 2022, who compare directions with one of a known positive).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attacks.core.equations import solved_sums
from attacks.label.groups import Nodes
from mechanisms.core.channel import SERVER, Message, View

from ..systems.messages import GROUPS, OF_A_BATCH, SUMS
from .arrays import Floats
from .scalars import gradient_estimates

Ids = NDArray[np.int64]

READ = ("embeddings", "gradient", OF_A_BATCH, SUMS, "prediction", "scalar", "losses", GROUPS)
"""Kinds of messages whose numbers mean what a score takes them for; of other kinds it does not know what they hold."""
BLOCKS = 4
"""Parts of a training, by passes over the data, about each of which a record has numbers of its own."""
MOST_PAIRS = 6
"""Pairs of colluding clients whose messages are added and subtracted, of all four clients and less."""
MOST_RAW = 64
"""Width of the widest rows whose coordinates are numbers of a record too."""
VOTES = ((0.25, 1.0), (0.5, 0.3), (0.5, 3.0), (1.0, 1.0))
"""Powers of nodes' sizes and penalties with which records of given labels vote on those that share nodes with them."""
NUMBERS = 10 * BLOCKS + 1
"""Numbers of a record from messages of any other kind."""
SOLVED = "rows solved from"
"""Kind, and beginning of the name, of what each record adds to sums."""
ESTIMATES = "gradients estimated by scalars"
"""Kind, and beginning of the name, of what scalars say of each record."""
_TINY = 1e-30
_ITERATIONS = 30


@dataclass(frozen=True, eq=False)
class PublicLabels:
    """Knowledge of the adversary of a game of labels about the labels of one training.

    Attributes:
        candidates: Two classes (N, 2), the smaller first: a record's label is one of them, by its coin.
        given: The label (N,) of each record whose label the adversary is given, which plays no game; -1 of the others.
        values: The numbers (classes,) that labels stand for; None where they are classes.
    """

    candidates: Ids
    given: Ids
    values: Floats | None = None


@dataclass(frozen=True, eq=False)
class Heard:
    """Numbers about N records from messages of one kind between two parties.

    Attributes:
        kind: Kind of the messages.
        numbers: Numbers (N, c) that no rotation of the rows changes; 0 where there was no message about a record. Of
            all kinds but `groups` the last is how many messages were about it, of all.
        raw: Means (N, width) of each record's rows as they are; of `groups` none, width 0.
        first: Ids and rows of the first message: where the model starts, if it holds embeddings.
    """

    kind: str
    numbers: Floats
    raw: Floats
    first: tuple[Ids, Floats]


def heard_in(
    view: View, public: PublicLabels, classes: int, features: Mapping[int, Floats] | None = None
) -> dict[str, Heard]:
    """Return what the messages of a view of one training say, by their kind and parties.

    Messages without ids are about no record. One row for several ids, as of a batch's loss, is one about each of them.
    What several clients hear in one round about the same records is read as sums and differences too: noise that they
    share cancels there. All that says who shares a node is read together. Scalars that answer two embeddings of a batch
    are read as estimates of its records' gradients. Sums over sets of records, such as the gradient of a batch, are
    solved for what each record adds, by the `features` (N, d) of clients where that is the gradient of a linear model.
    """
    by_name: dict[str, list[_NamedMessage]] = {}
    for message in view.messages:
        if message.ids is not None and message.kind != GROUPS:
            name = f"{message.kind} from {message.sender} to {message.receiver}"
            by_name.setdefault(name, []).append(_NamedMessage(message.kind, *_rows(message)))
    for name, named in _pooled(view):
        by_name.setdefault(name, []).append(named)
    heard = {name: _heard(messages, public, classes) for name, messages in by_name.items()}
    for name, rows in gradient_estimates(view, partial(_expected_labels, public, classes)):
        heard[f"{ESTIMATES} {name}"] = _estimated(rows, public, classes)
    records = np.arange(len(public.given))
    outputs = (1, classes) if public.values is None else (1,)
    for name, rows in solved_sums(view, len(records), outputs, features or {}):
        added = _heard([_NamedMessage(SOLVED, records, rows)], public, classes)
        heard[f"{SOLVED} {name}"] = replace(added, raw=np.zeros((len(records), 0)))
    groups = [message for message in view.messages if message.kind == GROUPS]
    return {**heard, GROUPS: _grouped(groups, public, classes)} if groups else heard


def _grouped(messages: Sequence[Message], public: PublicLabels, classes: int) -> Heard:
    """Return by how much records of given labels that share nodes with a record vote for its second candidate.

    Where labels stand for numbers, that is how much nearer the vote is to the second, in units of their deviation.
    """
    records = len(public.given)
    nodes = Nodes.of(messages, 0, records)
    given = np.flatnonzero(public.given >= 0)
    rows = np.arange(records)
    first, second = public.candidates.T
    targets = np.eye(classes)
    if public.values is not None:
        targets = (public.values[:, None] - public.values.mean()) / public.values.std()
    columns = []
    for power, ridge in VOTES:
        votes = nodes.votes(given, targets[public.given[given]], power=power, ridge=ridge)
        if public.values is None:
            columns.append(votes[rows, second] - votes[rows, first])
        else:
            here, there = targets[first, 0], targets[second, 0]
            columns.append((there - here) * (votes[:, 0] - 0.5 * (here + there)))
    return Heard(GROUPS, np.stack(columns, 1), np.zeros((records, 0)), (rows[:0], np.zeros((0, 0))))


def _estimated(rows: Floats, public: PublicLabels, classes: int) -> Heard:
    """Return how far estimated gradients (N, width) lie towards those of a record's second candidate."""
    records = np.arange(len(rows))
    rows = rows / (np.sqrt(np.square(rows).mean()) + _TINY)
    here, there = map(np.nan_to_num, _expected(rows, records, 0 * records, public, classes))
    toward = _along(rows - 0.5 * (here + there), there - here)
    first, second = public.candidates.T
    by_class = public.values is None and rows.shape[1] == classes
    larger = rows[records, second] - rows[records, first] if by_class else np.zeros(len(rows))
    return Heard(ESTIMATES, np.stack((larger, toward), 1), np.zeros((len(rows), 0)), (records[:0], np.zeros((0, 0))))


def blank(name: str, records: int) -> Floats:
    """Return the numbers (N, c) of so many records where a training sent no messages of a `name`."""
    if name.startswith(ESTIMATES):
        return np.zeros((records, 2))
    return np.zeros((records, len(VOTES) if name == GROUPS else NUMBERS))


def _expected_labels(public: PublicLabels, classes: int) -> Floats:
    """Return the expected one-hot rows (N, classes) of labels: as given, or halfway between two candidates.

    Where labels stand for numbers, rows are (N, 0).
    """
    if public.values is not None:
        return np.zeros((len(public.given), 0))
    one_hot = np.eye(classes)
    halfway = one_hot[public.candidates].mean(1)
    return np.where(public.given[:, None] >= 0, one_hot[public.given], halfway)


class _NamedMessage(NamedTuple):
    """A message of one training: its kind, and ids (n,) and rows (n, width) without padding."""

    kind: str
    ids: Ids
    rows: Floats


def _pooled(view: View) -> Iterator[tuple[str, _NamedMessage]]:
    """Yield, by name, sums and differences of what two clients are sent in one round, and sums over all of them."""
    rounds: dict[tuple[str, int], dict[int, list[tuple[Ids, Floats]]]] = {}
    for message in view.messages:
        if message.sender == SERVER and message.ids is not None and message.kind != GROUPS:
            by_client = rounds.setdefault((message.kind, message.round), {})
            by_client.setdefault(message.receiver, []).append(_rows(message))
    for (kind, _), read in rounds.items():
        for first, second in list(combinations(sorted(read), 2))[:MOST_PAIRS]:
            for pair in zip(read[first], read[second], strict=False):
                if (joined := _matched(pair)) is not None:
                    ids, (here, there) = joined
                    of = f"{kind} to {first} and {second}"
                    yield f"sums of {of}", _NamedMessage(f"{kind} sums", ids, here + there)
                    yield f"differences of {of}", _NamedMessage(f"{kind} differences", ids, here - there)
        if len(read) > 2:
            for messages in zip(*read.values(), strict=False):
                if (joined := _matched(messages)) is not None:
                    ids, rows = joined
                    yield f"sums of {kind} to all", _NamedMessage(f"{kind} sums", ids, np.sum(rows, axis=0))


def _matched(messages: Sequence[tuple[Ids, Floats]]) -> tuple[Ids, list[Floats]] | None:
    """Return the ids that all messages name and the rows of each about these; None where they cannot be added."""
    if len({rows.shape[1] for _, rows in messages}) > 1:
        return None
    ids = messages[0][0]
    for other, _ in messages[1:]:
        ids = np.intersect1d(ids, other)
    if not len(ids) or any(len(np.unique(named)) < len(named) for named, _ in messages):
        return None
    rows = []
    for named, values in messages:
        order = np.argsort(named)
        rows.append(values[order[np.searchsorted(named[order], ids)]])
    return ids, rows


def turns(trainings: Sequence[Mapping[str, Heard]]) -> str:
    """Return why coordinates of one training say nothing in another; "" where they do.

    That is so where widths differ, or the first embeddings of a record that several trainings begin with.
    """
    blind = "a fitted score is blind to raw coordinates"
    names = sorted(set().union(*trainings) - {GROUPS})
    if not names:
        return ""
    for name in names:
        widths = {heard[name].raw.shape[1] for heard in trainings if name in heard}
        if len(widths) > 1:
            return f"the width of {name} differs between trainings ({', '.join(map(str, sorted(widths)))}): {blind}"
    for name in names:
        starts = [heard[name].first for heard in trainings if name in heard and heard[name].kind == "embeddings"]
        if starts and all(_agree(starts[0], other) for other in starts[1:]):
            return ""
    return f"the model's start differs between trainings: {blind}, and reads lengths, angles and projections"


def _agree(here: tuple[Ids, Floats], there: tuple[Ids, Floats]) -> bool:
    """Return whether two first messages are about some record alike."""
    _, rows, others = np.intersect1d(here[0], there[0], return_indices=True)
    return rows.size > 0 and bool(np.allclose(here[1][rows], there[1][others], rtol=1e-4, atol=1e-6))


def _rows(message: Message) -> tuple[Ids, Floats]:
    """Return ids (n,) and rows (n, width) of a message of one training, without padding."""
    assert message.ids is not None
    ids = message.ids[0].cpu().numpy()
    values = message.payload[0].double().cpu().numpy()
    values = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    if len(values) != len(ids):
        values = np.repeat(values.reshape(1, -1), len(ids), axis=0)
    return ids[ids >= 0], values[ids >= 0]


def _heard(messages: Sequence[_NamedMessage], public: PublicLabels, classes: int) -> Heard:
    width = max(named.rows.shape[1] for named in messages)
    ids = np.concatenate([named.ids for named in messages])
    rows = np.concatenate([np.pad(named.rows, ((0, 0), (0, width - named.rows.shape[1]))) for named in messages])
    message = np.repeat(np.arange(len(messages)), [len(named.ids) for named in messages])
    passes = _times_before(ids)
    scale = _means(np.linalg.norm(rows, axis=1)[:, None], passes)[passes, 0] + _TINY
    rows = rows / scale[:, None]
    norms = np.linalg.norm(rows, axis=1)
    columns = [norms, _along(rows, _means(rows, message)[message])]
    first, second = public.candidates[ids].T
    for groups in (message, passes):
        here, there = _expected(rows, ids, groups, public, classes)
        difference = np.nan_to_num(there - here)
        along = _along(rows, difference)
        columns += [along, along / (norms + _TINY), _along(rows - np.nan_to_num(0.5 * (here + there)), difference)]
    main = _main_directions(rows, passes)[passes]
    columns.append(np.sign(np.einsum("nd,nd->n", difference, main)) * np.einsum("nd,nd->n", rows, main))
    # Of rows with a number for each class, as logits have, how much larger that of the second candidate is.
    row = np.arange(len(rows))
    by_class = public.values is None and width == classes
    columns.append(rows[row, second] - rows[row, first] if by_class else np.zeros(len(rows)))
    records = len(public.given)
    blocks = passes * BLOCKS // (passes.max() + 1)
    numbers = _means(np.stack(columns, 1), ids * BLOCKS + blocks, size=records * BLOCKS).reshape(records, -1)
    often = np.bincount(ids, minlength=records) / len(messages)
    numbers = np.column_stack((numbers, often))
    return Heard(messages[0].kind, numbers, _means(rows, ids, size=records), (messages[0].ids, messages[0].rows))


def _times_before(ids: Ids) -> Ids:
    """Return how many of the rows before are about the same record, (n,)."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.flatnonzero(np.r_[True, sorted_ids[1:] != sorted_ids[:-1]])
    times = np.empty(len(ids), np.int64)
    times[order] = np.arange(len(ids)) - np.repeat(starts, np.diff(np.r_[starts, len(ids)]))
    return times


def _means(
    rows: Floats, groups: Ids, labels: Ids | None = None, classes: int = 0, *, size: int | None = None
) -> Floats:
    """Return means (groups, d) of rows (n, d), 0 of none; by given label (groups, classes, d), where nan of none."""
    size = int(groups.max()) + 1 if size is None else size
    if labels is not None:
        known = labels >= 0
        rows = rows[known]
        groups = groups[known] * classes + labels[known]
        size *= classes
    total = np.zeros((size, rows.shape[1]))
    np.add.at(total, groups, rows)
    count = np.bincount(groups, minlength=size)[:, None]
    if labels is None:
        return total / np.maximum(count, 1)
    with np.errstate(invalid="ignore"):
        return (total / count).reshape(-1, classes, rows.shape[1])


def _expected(rows: Floats, ids: Ids, groups: Ids, public: PublicLabels, classes: int) -> tuple[Floats, Floats]:
    """Return what rows (n, d) would be with the first and the second candidate label, by given ones of their group.

    That is the mean of the given records of the class, nan where there is none; of numbers their regression line.
    """
    labels = public.given[ids]
    first, second = public.candidates[ids].T
    if public.values is None:
        means = _means(rows, groups, labels, classes)
        return means[groups, first], means[groups, second]
    known = labels >= 0
    size = int(groups.max()) + 1
    numbers = public.values[labels[known]][:, None]
    middle, centre = (_means(values, groups[known], size=size) for values in (rows[known], numbers))
    off = numbers - centre[groups[known]]
    slope, spread = (_means(values, groups[known], size=size) for values in (off * rows[known], off * off))
    slope = slope / np.maximum(spread, _TINY)
    here, there = (
        middle[groups] + slope[groups] * (public.values[some][:, None] - centre[groups]) for some in (first, second)
    )
    return here, there


def _along(rows: Floats, directions: Floats) -> Floats:
    """Return how far rows (n, d) go along their directions (n, d); 0 along none."""
    return np.asarray(np.einsum("nd,nd->n", rows, directions) / (np.linalg.norm(directions, axis=1) + _TINY))


def _main_directions(rows: Floats, passes: Ids) -> Floats:
    """Return the direction (passes, d) of each pass along which its rows vary the most, by power iteration."""
    directions = []
    for number in range(passes.max() + 1):
        own = rows[passes == number]
        own = own - own.mean(0)
        main = own[np.linalg.norm(own, axis=1).argmax()]
        for _ in range(_ITERATIONS):
            main = (own @ main) @ own
            main = main / (np.linalg.norm(main) + _TINY)
        directions.append(main)
    return np.stack(directions)
