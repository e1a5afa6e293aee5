"""Rehearses a system: trains it a few times before anything is attacked, and checks its messages and ids."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from mechanisms.core.capabilities import Capabilities, Traffic
from mechanisms.core.models import GivenModel

from ..base.errors import AuditError, InputError
from ..base.progress import REHEARSING
from ..base.seeds import Purpose, stream
from .messages import SERVER, UPLOADS, Arrays, Recording, Sent, like_groups, paired, with_ids
from .release_tests import Excerpt, Rehearsal
from .system import Played, System, check_answer, seed_of
from .task import Part, Task
from .trials import TrialRequest, digest_of

_LATE_ROUNDS = 8
"""Rounds of a training whose ids are checked near its end too."""
_LATE_ROWS = 3
_STANDS_OUT = 10.0
"""Factor by which the row of a changed label moves more than any other."""


@dataclass(frozen=True, kw_only=True)
class SystemCapabilities(Capabilities):
    """The capabilities of a rehearsed system, and the messages of its rehearsal."""

    rehearsed: Rehearsal | None = field(default=None, compare=False, repr=False)


_USUAL = 4
"""Trainings of a rehearsal, where none shows that another is needed."""


@dataclass
class _Trainings:
    """Trains a system in its rehearsal, and tells `REHEARSING` of it.

    `ahead` is how many trainings are to come where none shows that another is needed.
    """

    system: System
    ahead: int
    done: int = 0

    def play(
        self,
        task: Task,
        seed: int,
        which: str,
        queries: Sequence[Sequence[np.ndarray]] = (),
        in_round: Callable[[int], None] | None = None,
    ) -> Played:
        """Train once; see `System.play`."""
        self.ahead = max(self.ahead, 1)
        REHEARSING.get()(self.done, self.done + self.ahead)
        played = self.system.play(task, seed, which, queries, in_round)
        self.done, self.ahead = self.done + 1, self.ahead - 1
        REHEARSING.get()(self.done, self.done + self.ahead)
        return played


def rehearse(system: System, task: Task, seed: int) -> SystemCapabilities:
    """Train a few times before anything is attacked, and return what there is to attack; `REHEARSING` hears of it.

    Raises:
        InputError: It sends nothing; its messages are the same when half of its labels change, unless clients send
            their features up and are told nothing; or differ when nothing does, although it does not state that it is
            `random`; its ids name other records than its gradients are about, early or late in the training; or its
            rounds do not count.
        SystemFailed: As `System.play`.
    """
    training_seed = seed_of(seed, 0)
    # A release that is stated is tested on other features too.
    trainings = _Trainings(system, 1 if system.random else _USUAL + (system.stated is not None))
    first = trainings.play(task, training_seed, "the rehearsal", [task.test_features])
    seconds = [first.seconds]
    where = f"system {system.name}: the rehearsal"
    for answer in first.answers:
        check_answer(answer, task, system.name)
    if not first.record.messages:
        raise InputError(f"{where} recorded no message; call record.cut or record.sent where parties send")
    _check_rounds(first.record, task.clients, where)
    sent = _excerpt(first.record)
    told = told_to_clients(first.record.messages, task.clients)

    def refeatured() -> Recording:
        moved = replace(task, features=tuple(np.roll(block, 1, axis=0) for block in task.features))
        return trainings.play(moved, training_seed, "the rehearsal on other features").record

    other = None
    coupled = False
    not_made = ["whether ids are right: the system draws numbers that its seed does not decide"]
    if not system.random:
        again = trainings.play(task, training_seed, "the rehearsal again")
        seconds.append(again.seconds)
        if not _same(first.record, again.record):
            raise InputError(
                f"{where} sent other messages when it was trained again with the same seed. Draw its random numbers "
                "from its seed and keep no state between trainings; else state random = True"
            )
        order = stream(seed, Purpose.SYSTEM, 0, 1).permutation(task.records)
        # Where messages hold few sums of labels, half of these may change and the sums may not.
        for changed in (order < (task.records + 1) // 2, np.ones(task.records, bool)):
            relabelled = task.relabelled(changed)
            played = trainings.play(relabelled, training_seed, "the rehearsal on other labels")
            seconds.append(played.seconds)
            other = played.record
            if not _same(first.record, other):
                break
        else:
            # Clients that send their features up, and are told nothing, need no labels for it.
            if any(told.values()) or _same(first.record, refeatured()):
                raise InputError(f"{where} sent the same messages when its labels were changed: it ignores task.labels")
        assert other is not None
        coupled = _check_ids(first.record, other, changed, where)
        not_made = _late(trainings, task, training_seed, relabelled.labels, first.record, where)
    telling = _telling(first.record, other, task.clients)
    tells = frozenset().union(*(kinds for party, kinds in telling.items() if party != SERVER))
    if system.trials.folder is not None and task.classes:  # the same is the first training that attacks ask for
        labels, test_labels = (np.asarray(some, np.int64) for some in (task.labels, task.test_labels))
        request = TrialRequest(labels=labels, rows=None, seed=training_seed, which="the rehearsal")
        arrays = digest_of(task.features, task.test_features, test_labels)
        system.trials.keep(request, arrays, first.trial.to_bytes(first.record))

    return SystemCapabilities(
        simulated=False,
        predicts=first.predict is not None and task.classes > 0,
        told=told,
        architectures={client: GivenModel(model) for client, model in first.clients.items()},
        down=_traffic(sent.messages, sent.tensors, lambda message: message.sender == SERVER and message.kind in tells),
        up=uplink(sent.messages, sent.tensors),
        widths=widths_of(sent.messages, first.record.tensors, task.records),
        paired=paired(sent.messages),
        coupled=coupled,
        named={client: _named(sent, client) for client in range(1, task.clients + 1)},
        apart=apart(first.record.messages, task.clients),
        telling=telling,
        nameless=nameless(sent.messages, telling),
        like_groups=like_groups(sent.messages, first.record.tensors),
        rehearsed=Rehearsal(sent)
        if other is None
        else Rehearsal(sent, _excerpt(other), lambda: _excerpt(refeatured())),
        not_made=tuple(not_made),
        seconds=median(seconds),
        control_flow=tuple(control_flow(sent, other)),
        lengths_tell=other is not None and numbers_sent(first.record.messages) != numbers_sent(other.messages),
    )


def _excerpt(record: Recording) -> Excerpt:
    return Excerpt.of(with_ids(record.messages, record.tensors), record.tensors)


@dataclass(frozen=True, eq=False, kw_only=True)
class _ChangingTask(Task):
    """A task whose labels change while it is trained on, in the arrays and tensors that were handed out."""

    handed_out: list[Tensor] = field(default_factory=list, init=False)

    def torch(self, part: Part = "train", device: str = "cpu") -> tuple[list[Tensor], Tensor]:
        """See `Task.torch`."""
        blocks, labels = super().torch(part, device)
        if part == "train":
            self.handed_out.append(labels)
        return blocks, labels

    def change(self, labels: np.ndarray) -> None:
        """Put other labels (N,) in the place of those that were handed out."""
        self.labels[:] = labels
        with torch.no_grad():
            for held in self.handed_out:
                held.copy_(torch.from_numpy(labels))


def _late(
    trainings: _Trainings, task: Task, seed: int, relabelled: np.ndarray, first: Recording, where: str
) -> list[str]:
    """Check ids late in a training, where labels change shortly before its end; return why that was not possible.

    Until then both trainings are the same, so that the first gradients that differ show which records they are about.
    """
    rounds = list(dict.fromkeys(message.round for message in first.messages if message.kind == "gradient"))
    if len(rounds) < _LATE_ROUNDS:
        return []
    late = rounds[-max(_LATE_ROUNDS // 2, len(rounds) // 20)]
    changing = _ChangingTask(**{**vars(task), "labels": task.labels.copy()})
    waiting = [late]

    def in_round(number: int) -> None:
        if waiting and number == late:
            waiting.clear()
            changing.change(relabelled)

    test = "whether ids are right late in a training"
    try:
        other = trainings.play(changing, seed, "the rehearsal on labels that change late", in_round=in_round).record
        differing = _first_difference(first, other)
    except AuditError as error:
        return [f"{test}: {error.words}"]
    if differing is not None:
        _check_ids(first, other, task.labels != relabelled, where, differing)
    elif not _one_label(trainings, task, seed, first, where):  # it keeps a copy of the labels
        return [f"{test}: no gradient showed it"]
    return []


def _one_label(trainings: _Trainings, task: Task, seed: int, first: Recording, where: str) -> bool:
    """Check ids late in a training by one label that changes before it; return whether late gradients showed it.

    One label changes rows of all other records little beside its own row. Where it does not belong to the one row that
    stands out, time and again, ids name other records: `InputError`.
    """
    gradients = [n for n, message in enumerate(first.messages) if message.kind == "gradient" and message.ids]
    record = int(first.tensors[first.messages[gradients[0]].ids][0])
    relabelled = task.relabelled(np.arange(task.records) == record)
    other = trainings.play(relabelled, seed, "the rehearsal on one other label").record
    least = math.inf
    right = wrong = 0
    for place in gradients:
        if place >= len(other.messages) or first.messages[place] != other.messages[place]:
            break
        message = first.messages[place]
        values, changed = first.tensors[message.tensor], other.tensors[message.tensor]
        if values.shape != changed.shape or len(values) < 2:
            continue
        moved = np.linalg.norm((changed - values).reshape(len(values), -1), axis=1)
        *_, second, largest = np.sort(moved)
        named = bool(first.tensors[message.ids][moved.argmax()] == record)
        if least == math.inf and largest:
            least = 0.5 * float(largest) if named else math.inf
        elif largest >= least and largest > _STANDS_OUT * second and place > gradients[len(gradients) // 2]:
            right, wrong = right + named, wrong + (not named)
    if wrong >= _LATE_ROWS and wrong > 4 * right:
        raise InputError(
            f"{where} sent {wrong} late gradients that changed with the label of record {record} under ids of others. "
            "Use ids that are places in task.labels, those of the batch in its order"
        )
    return right >= _LATE_ROWS


def _first_difference(first: Recording, other: Recording) -> int | None:
    """Return the place of the first message that differs between two trainings; None where none does."""
    for place, (a, b) in enumerate(zip(first.messages, other.messages, strict=False)):
        if a != b or not np.array_equal(first.tensors[a.tensor], other.tensors[b.tensor]):
            return place
    return None


def _same(first: Recording, other: Recording) -> bool:
    """Return whether two trainings sent the same messages, bit for bit."""
    return len(first.messages) == len(other.messages) and _first_difference(first, other) is None


def _check_rounds(record: Recording, clients: int, where: str) -> None:
    """Raise `InputError` where a client got gradients of several batches and all messages are of one round."""
    if len({message.round for message in record.messages}) > 1:
        return
    for client in range(1, clients + 1):
        gradients = (message for message in record.messages if message.kind == "gradient")
        names = {message.ids for message in gradients if message.receiver == client}
        if len({record.tensors[name].tobytes() for name in names}) > 1:
            raise InputError(
                f"{where} sent gradients of more than one batch to client {client}, all in one round; "
                f"let round count batches, as in record.cut({client}, number, ids)"
            )


def _named(sent: Excerpt, client: int) -> int:
    """Return the number of records that a client's messages are about, by their ids."""
    names = {message.ids for message in sent.messages if client in (message.sender, message.receiver)} - {""}
    return len(set().union(*(sent.tensors[name].tolist() for name in names)))


def _telling(first: Recording, other: Recording | None, clients: int) -> dict[int, frozenset[str]]:
    """Return the kinds of messages to each party that are not the same in the `other` training, on other labels.

    Without another training all kinds are taken to tell of labels. Of two that end in different rounds those that both
    have are compared: that one is longer is told by the number of messages.
    """

    def by_kind(record: Recording, last: float = math.inf) -> dict[tuple[int, str], list[str]]:
        names = defaultdict(list)
        for message in record.messages:
            if message.round <= last:
                names[message.receiver, message.kind].append(message.tensor)
        return names

    def alike(names: Sequence[str], others: Sequence[str]) -> bool:
        pairs = zip(names, others, strict=False)
        assert other is not None
        return len(names) == len(others) and all(np.array_equal(first.tensors[a], other.tensors[b]) for a, b in pairs)

    moved = set(by_kind(first))
    if other is not None:
        both = min(max(message.round for message in record.messages) for record in (first, other))
        for last in (math.inf, both):
            before, after = by_kind(first, last), by_kind(other, last)
            moved -= {key for key in moved if alike(before[key], after[key])}
    return {party: frozenset(kind for receiver, kind in moved if receiver == party) for party in range(clients + 1)}


def numbers_sent(messages: Iterable[Sent]) -> Counter[tuple[int, int, str]]:
    """Return how many messages there are by sender, receiver and kind."""
    return Counter((message.sender, message.receiver, message.kind) for message in messages)


def control_flow(sent: Excerpt, other: Recording | None) -> Iterator[str]:
    """Yield how trainings differ in what they send, as one shows, and beside it one on other labels."""
    rounds = {message.round for message in sent.messages if message.round >= 0}
    if other is not None:
        numbers = sorted({len(rounds), len({message.round for message in other.messages if message.round >= 0})})
        if len(numbers) > 1:
            yield f"{numbers[0]:,} rounds on some labels and {numbers[1]:,} on others"
    present = defaultdict(set)
    sizes = defaultdict(set)
    for message in sent.messages:
        present[message.sender, message.receiver].add(message.round)
        if message.ids:
            sizes[message.sender, message.receiver].add(len(sent.tensors[message.ids]))
    often = [len(some) for some in present.values()]
    if min(often) < len(rounds) and max(often) > 1:
        yield f"messages between two parties in {min(often):,} to {max(often):,} of {len(rounds):,} rounds"
    # A pass may end with one short batch.
    if any(len(some) > 2 for some in sizes.values()):
        yield "batches of several sizes"


def _traffic(messages: Iterable[Sent], tensors: Arrays, counts: Callable[[Sent], bool]) -> dict[str, Traffic]:
    """Count by kind those messages that count."""
    by_kind = defaultdict(list)
    for message in filter(counts, messages):
        by_kind[message.kind].append(message)
    traffic = {}
    for kind, some in sorted(by_kind.items()):
        ids = [tensors[message.ids] for message in some if message.ids]
        traffic[kind] = Traffic(len(some), int(np.bincount(np.concatenate(ids)).max()) if ids else 0)
    return traffic


def uplink(messages: Iterable[Sent], tensors: Arrays) -> dict[str, Traffic]:
    """Count the messages to the server by kind; they have the ids that `with_ids` gives them."""
    return _traffic(messages, tensors, lambda message: message.receiver == SERVER)


def widths_of(messages: Iterable[Sent], tensors: Arrays, records: int) -> dict[int, tuple[int, ...]]:
    """Return the widths of the rows that each client uploads about records by their ids, or about all `records`.

    The messages have the ids that `with_ids` gives them.
    """
    widths = defaultdict(set)
    for message in messages:
        if message.kind in UPLOADS and message.receiver == SERVER:
            values = tensors[message.tensor]
            rows = len(tensors[message.ids]) if message.ids else records
            if values.ndim and len(values) == rows and (message.ids or values.ndim == 2):
                widths[message.sender].add(values.size // rows)
    return {client: tuple(sorted(found)) for client, found in widths.items()}


def _check_ids(first: Recording, other: Recording, changed: np.ndarray, where: str, start: int = 0) -> bool:
    """Return whether a gradient depends on labels of other records; `InputError` where ids name other records.

    Compared are the first gradients that each client got in one round of two trainings, whose labels `changed` (N,) in
    one from the message at place `start` on. Its ids name other records where some record's gradient is not the same
    although its label is, and another's is although its label changed; a gradient of zeros tells of no label. The first
    alone means that a gradient depends on a whole batch. Embeddings after a gradient are left out: a server may have
    learnt in between.
    """
    coupled: dict[int, bool] = {}
    rounds = set()
    for message, again in zip(first.messages[start:], other.messages[start:], strict=False):
        before, after = first.tensors[message.tensor], other.tensors[again.tensor]
        if message != again or before.shape != after.shape or (message.kind == "embeddings" and coupled):
            break
        if message.kind == "gradient" and message.ids:
            rounds.add(message.round)
            if len(rounds) > 1 or message.receiver in coupled:
                break
            rows = before.reshape(len(before), -1)
            moved = (before != after).reshape(len(before), -1).any(1)
            of_changed = changed[first.tensors[message.ids]]
            coupled[message.receiver] = bool((moved & ~of_changed).any())
            if coupled[message.receiver] and (of_changed & ~moved & rows.any(1)).any():
                late = f" in round {first.messages[start].round}" if start else ""
                raise InputError(
                    f"{where} sent client {message.receiver} a gradient{late} that changed with labels of records "
                    "which its ids do not name. Use ids that are places in task.labels, those of the batch in its order"
                )
        elif not np.array_equal(before, after):
            break
    return next(iter(coupled.values()), False)


def nameless(messages: Iterable[Sent], telling: Mapping[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """Return the kinds of messages to each party that tell of labels and do not all say which records they are about.

    The messages have the ids that `with_ids` gives them.
    """
    without = {(message.receiver, message.kind) for message in messages if not message.ids}
    return {party: frozenset(kind for kind in kinds if (party, kind) in without) for party, kinds in telling.items()}


def told_to_clients(messages: Iterable[Sent], clients: int) -> dict[int, frozenset[str]]:
    """Return the kinds of messages that each of so many clients gets."""
    kinds = {(message.receiver, message.kind) for message in messages}
    return {m: frozenset(kind for receiver, kind in kinds if receiver == m) for m in range(1, clients + 1)}


def apart(messages: Iterable[Sent], clients: int) -> frozenset[int]:
    """Return which of so many clients no message is from or to; none where there is no message at all."""
    heard = {party for message in messages for party in (message.sender, message.receiver)}
    return frozenset(range(1, clients + 1)) - heard if heard else frozenset()
