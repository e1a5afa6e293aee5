"""Rehearses a system: trains it a few times before anything is attacked, and tells what there is to attack."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from mechanisms.core.capabilities import Capabilities, Traffic
from mechanisms.core.models import GivenModel

from ..base.errors import AuditError, InputError
from ..base.seeds import Purpose, stream
from .messages import SERVER, Recording, Sent, with_ids
from .release_tests import Excerpt, Rehearsal
from .system import Played, System, classes_of, seed_of
from .task import Part, Task

_LATE_ROUNDS = 8
"""Rounds of a training whose ids are checked near its end too."""
_LATE_ROWS = 3
_STANDS_OUT = 10.0
"""By what factor the row of a changed label moves more than any other."""


@dataclass(frozen=True, kw_only=True)
class SystemCapabilities(Capabilities):
    """What a rehearsed system has for attacks, and what the trainings of its rehearsal sent."""

    rehearsed: Rehearsal | None = field(default=None, compare=False, repr=False)


def rehearse(system: System, task: Task, seed: int) -> SystemCapabilities:
    """Train a few times before anything is attacked, and return what there is to attack.

    Raises:
        InputError: It sends nothing; its messages are the same when half of its labels change; or differ when nothing
            does, although it does not state that it is `random`; its ids name other records than its gradients are
            about, early or late in the training; or its rounds do not count.
        SystemFailed: As `System.play`.
    """
    drawn = seed_of(seed, 0)
    first = system.play(task, drawn, "the rehearsal", [task.test_features])
    where = f"system {system.name}: the rehearsal"
    for answer in first.answers:
        classes_of(answer, len(task.test_labels), system.name)
    if not first.record.messages:
        raise InputError(f"{where} recorded no message: must call record.cut or record.sent where parties send")
    still = _standing_still(first.record, task.clients)
    if still is not None:
        found = f"gradients of more than one batch to client {still}, all in one round"
        raise InputError(f"{where} sent {found}: round must count batches, as in record.cut({still}, number, ids)")
    sent = _excerpt(first.record)
    other = None
    coupled = False
    not_made = ["whether ids are right: the system draws numbers that its seed does not decide"]
    if not system.random:
        if not _same(first, system.play(task, drawn, "the rehearsal again")):
            rule = "its random numbers must come from its seed and nothing stay of a training before, "
            rule += "or it must state random = True"
            raise InputError(f"{where} sent other messages when it was trained again with the same seed: {rule}")
        order = stream(seed, Purpose.SYSTEM, 0, 1).permutation(task.records)
        next_class = (task.labels + 1) % task.classes
        # Where messages hold few sums of labels, half of these may change and the sums may not.
        for changed in (order < (task.records + 1) // 2, np.ones(task.records, bool)):
            relabelled = np.where(changed, next_class, task.labels)
            other = system.play(replace(task, labels=relabelled), drawn, "the rehearsal on other labels")
            if not _same(first, other):
                break
        else:
            raise InputError(f"{where} sent the same messages when its labels were changed: it ignores task.labels")
        coupled = _check_ids(first.record, other.record, changed, where)
        not_made = _late(system, task, drawn, relabelled, first.record, where)
    models = {client: GivenModel(model) for client, model in first.clients.items()}
    telling = _telling(first.record, None if other is None else other.record, task.clients)

    def refeatured() -> Excerpt:
        moved = tuple(np.roll(block, 1, axis=0) for block in task.features)
        return _excerpt(system.play(replace(task, features=moved), drawn, "the rehearsal on other features").record)

    return SystemCapabilities(
        simulated=False,
        predicts=first.predict is not None,
        told=told_to_clients(first.record.messages, task.clients),
        architectures=models,
        down=_traffic(sent, telling, down=True),
        up=_traffic(sent, telling, down=False),
        coupled=coupled,
        named={client: _named(sent, client) for client in range(1, task.clients + 1)},
        apart=apart(first.record.messages, task.clients),
        telling=telling,
        nameless=nameless(sent.messages, telling),
        rehearsed=Rehearsal(sent) if other is None else Rehearsal(sent, _excerpt(other.record), refeatured),
        not_made=tuple(not_made),
    )


def _excerpt(record: Recording) -> Excerpt:
    return Excerpt.of(with_ids(record.messages, record.tensors), record.tensors)


def _check_ids(first: Recording, other: Recording, changed: np.ndarray, where: str, start: int = 0) -> bool:
    """Return whether gradients depend on labels of other records; `InputError` where ids name other records."""
    misled, coupled = _moved(first, other, changed, start)
    if misled is not None:
        late = f" in round {first.messages[start].round}" if start else ""
        found = f"client {misled} a gradient{late} that changed with labels of records which its ids do not name"
        rule = "ids must be places in task.labels, those of the batch in its order"
        raise InputError(f"{where} sent {found}: {rule}")
    return coupled


@dataclass(frozen=True, eq=False, kw_only=True)
class _ChangingTask(Task):
    """A task whose labels change while it is trained on, in the arrays and tensors that were handed out."""

    handed_out: list[Tensor] = field(default_factory=list)

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


def _late(system: System, task: Task, seed: int, relabelled: np.ndarray, first: Recording, where: str) -> list[str]:
    """Check ids late in a training, where labels change shortly before its end; return why that was not possible.

    Until then both trainings are the same, so that the first gradients that differ tell which records they are about.
    """
    rounds = list(dict.fromkeys(one.round for one in first.messages if one.kind == "gradient"))
    if len(rounds) < _LATE_ROUNDS:
        return []
    late = rounds[-max(_LATE_ROUNDS // 2, len(rounds) // 20)]
    changing = _ChangingTask(**{**vars(task), "labels": task.labels.copy()})
    waiting = [late]

    def in_round(number: int) -> None:
        if waiting and number == late:
            waiting.clear()
            changing.change(relabelled)

    why = "whether ids are right late in a training"
    try:
        other = system.play(changing, seed, "the rehearsal on labels that change late", in_round=in_round).record
        differing = _first_difference(first, other)
    except AuditError as error:
        return [f"{why}: {error.words}"]
    if differing is None:  # it keeps a copy of the labels
        return [] if _one_label(system, task, seed, first, where) else [f"{why}: no gradient showed it"]
    _check_ids(first, other, task.labels != relabelled, where, differing)
    return []


def _one_label(system: System, task: Task, seed: int, first: Recording, where: str) -> bool:
    """Check ids late in a training by one label that changes before it; return whether late gradients showed it.

    What one label changes about all other records is small beside what it changes about its own. Where it does not
    belong to the one row that stands out, time and again, ids name other records: `InputError`.
    """
    gradients = [place for place, one in enumerate(first.messages) if one.kind == "gradient" and one.ids]
    record = int(first.tensors[first.messages[gradients[0]].ids][0])
    labels = task.labels.copy()
    labels[record] = (labels[record] + 1) % task.classes
    other = system.play(replace(task, labels=labels), seed, "the rehearsal on one other label").record
    least = math.inf
    right = wrong = 0
    for place in gradients:
        if place >= len(other.messages) or first.messages[place] != other.messages[place]:
            break
        values, changed = _values(first, place), _values(other, place)
        if values.shape != changed.shape or len(values) < 2:
            continue
        moved = np.linalg.norm((changed - values).reshape(len(values), -1), axis=1)
        *_, second, largest = np.sort(moved)
        named = first.tensors[first.messages[place].ids][moved.argmax()] == record
        if least == math.inf and largest:
            least = 0.5 * float(largest) if named else math.inf
        elif largest >= least and largest > _STANDS_OUT * second and place > gradients[len(gradients) // 2]:
            right, wrong = right + bool(named), wrong + (not named)
    if wrong >= _LATE_ROWS and wrong > 4 * right:
        found = f"{wrong} late gradients that changed with the label of record {record} under ids of others"
        raise InputError(f"{where} sent {found}: ids must be places in task.labels, those of the batch in its order")
    return right >= _LATE_ROWS


def _first_difference(one: Recording, other: Recording) -> int | None:
    """Return the place of the first message that differs between two trainings; None where none does."""
    for place, (a, b) in enumerate(zip(one.messages, other.messages, strict=False)):
        if a != b or not np.array_equal(one.tensors[a.tensor], other.tensors[b.tensor]):
            return place
    return None


def _standing_still(record: Recording, clients: int) -> int | None:
    """Return a client that got gradients of several batches where everything is of one round; None without one."""
    if len({one.round for one in record.messages}) > 1:
        return None
    for client in range(1, clients + 1):
        sent = [one.ids for one in record.messages if one.kind == "gradient" and one.receiver == client]
        if len({record.tensors[name].tobytes() for name in sent}) > 1:
            return client
    return None


def _named(sent: Excerpt, client: int) -> int:
    """Return how many records the messages that a client sends and receives are about, by their ids."""
    seen = [one.ids for one in sent.messages if one.ids and client in (one.sender, one.receiver)]
    return len(set().union(*(sent.tensors[name].tolist() for name in seen)))


def _telling(one: Recording, other: Recording | None, clients: int) -> dict[int, frozenset[str]]:
    """Return the kinds of messages to each party that are not the same in the `other` training, on other labels.

    Without another training all kinds are taken to tell of labels.
    """

    def by_kind(record: Recording, party: int) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, sent in enumerate(record.messages):
            if sent.receiver == party:
                places.setdefault(sent.kind, []).append(place)
        return places

    def moves(kind: str, here: list[int], there: list[int]) -> bool:
        if other is None or len(here) != len(there):
            return True
        return any(not np.array_equal(_values(one, a), _values(other, b)) for a, b in zip(here, there, strict=True))

    found = {}
    for party in range(clients + 1):
        before = by_kind(one, party)
        after = {} if other is None else by_kind(other, party)
        found[party] = frozenset(kind for kind in before if moves(kind, before[kind], after.get(kind, [])))
    return found


def _traffic(sent: Excerpt, telling: Mapping[int, frozenset[str]], *, down: bool) -> dict[str, Traffic]:
    """Count the messages from the server (`down`) or to it, by kind; those from it of kinds that tell of labels."""
    tells = frozenset().union(*(kinds for party, kinds in telling.items() if party != SERVER))
    found = {}
    chosen = [one for one in sent.messages if (one.sender if down else one.receiver) == SERVER]
    for kind in sorted({one.kind for one in chosen if not down or one.kind in tells}):
        of_kind = [one for one in chosen if one.kind == kind]
        ids = [sent.tensors[message.ids] for message in of_kind if message.ids]
        found[kind] = Traffic(len(of_kind), int(np.bincount(np.concatenate(ids)).max()) if ids else 0)
    return found


def _values(record: Recording, place: int) -> np.ndarray:
    return record.tensors[record.messages[place].tensor]


def _same(one: Played, other: Played) -> bool:
    """Whether two trainings sent the same, bit for bit."""
    if one.record.messages != other.record.messages:
        return False
    pairs = ((one.record.tensors[s.tensor], other.record.tensors[s.tensor]) for s in one.record.messages)
    return all(np.array_equal(a, b) for a, b in pairs)


def _moved(one: Recording, other: Recording, changed: np.ndarray, start: int = 0) -> tuple[int | None, bool]:
    """Return a client whose ids name other records, and whether a gradient depends on labels of other records.

    Compared are the first gradients that each client got in one round of two trainings, whose labels `changed` (N,) in
    one from the message at place `start` on. Its ids name other records where some record's gradient is not the same
    although its label is, and another's is although its label changed; a gradient of zeros tells of no label. The first
    alone means that a gradient depends on a whole batch. What is embedded after a gradient was sent is left out: a
    server may have learnt in between.
    """
    coupled: dict[int, bool] = {}
    rounds = set()
    for first, second in zip(one.messages[start:], other.messages[start:], strict=False):
        before, after = one.tensors[first.tensor], other.tensors[second.tensor]
        if first != second or before.shape != after.shape:
            break
        if first.kind == "embeddings" and coupled:
            break
        if first.kind == "gradient" and first.ids:
            rounds.add(first.round)
            if len(rounds) > 1 or first.receiver in coupled:
                break
            rows = before.reshape(len(before), -1)
            moved = (before != after).reshape(len(before), -1).any(1)
            of_changed = changed[one.tensors[first.ids]]
            coupled[first.receiver] = bool((moved & ~of_changed).any())
            if coupled[first.receiver] and (of_changed & ~moved & rows.any(1)).any():
                return first.receiver, True
        elif not np.array_equal(before, after):
            break
    return None, next(iter(coupled.values()), False)


def nameless(messages: Iterable[Sent], telling: Mapping[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """Return the kinds of messages to each party that tell of labels and do not all say which records they are about.

    The messages have the ids that `with_ids` gives them.
    """
    without = {(one.receiver, one.kind) for one in messages if not one.ids}
    return {party: frozenset(kind for kind in kinds if (party, kind) in without) for party, kinds in telling.items()}


def told_to_clients(messages: Iterable[Sent], clients: int) -> dict[int, frozenset[str]]:
    """Return the kinds of messages that each of so many clients gets."""
    told: dict[int, set[str]] = {m: set() for m in range(1, clients + 1)}
    for one in messages:
        if one.receiver in told:
            told[one.receiver].add(one.kind)
    return {m: frozenset(kinds) for m, kinds in told.items()}


def apart(messages: Iterable[Sent], clients: int) -> frozenset[int]:
    """Return which of so many clients no message is from or to; none where there is no message at all."""
    heard = {party for one in messages for party in (one.sender, one.receiver)}
    return frozenset(range(1, clients + 1)) - heard if heard else frozenset()
