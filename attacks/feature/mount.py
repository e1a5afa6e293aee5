"""What attacks on features by embeddings share: views of them, what stands in for them, and the negative control.

The server is sent every client's embeddings; clients see others' where the server passes them on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import torch

from dpzv_audit.base.findings import Control, Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.vertical import take
from mechanisms.core.channel import SERVER, View
from mechanisms.core.context import TrainedStack, dtype_of
from mechanisms.core.federation import architectures_of, pretrained
from mechanisms.core.replicas import ParameterStack, embeddings_of, evaluator_for

from ..core import needs
from ..core.controls import ChanceTest, under_others
from ..core.knowledge import Knowledge, ServerLabels
from ..core.metrics import Floats, Ints
from ..core.run import AttackedRun, attacked_run
from ..core.setting import ATTACKER, COLLUDING, AttackSetting
from ..core.spec import LABELS, AttackSpec
from .uploads import sent_embeddings

LABEL = "from the label"
OTHERS = "from the other clients' embeddings"
BOTH = f"{OTHERS} and the label"
UNTRAINED = "of an untrained client, in the clear"
RAW = "of raw features"
# Records, at most, whose pairing with what is guessed of them is permuted.
PAIRED = 1000
# Random orders of the records that a recorded training's guesses are held against.
ORDERS = 200
PERMUTED = (
    "records in another order, against the same guesses: the mean; p is how often they do as well as the true one"
)
RECORDED = "a recorded training cannot be repeated on records dealt by coins, which a certified epsilon needs"
READS = ("table", "embeddings", LABELS)
"""Kinds of messages that attacks on features read."""


def as_sent(view: View, clients: int) -> View:
    """Return the view as that of the server, one message for each of so many `clients` who sent embeddings.

    A server that passes embeddings on sends a client those of all others side by side. What several colluders are
    sent, the first of them is too.
    """
    colluders = view.adversary.clients
    if not colluders:
        return view
    reader = colluders[0]
    others = [m for m in range(1, clients + 1) if m != reader]
    messages = []
    for message in view.messages:
        if message.kind != "embeddings":
            continue
        if message.sender == reader:
            messages.append(message)
        elif message.sender == SERVER and message.receiver == reader:
            parts = message.payload.split(message.payload.shape[-1] // len(others), -1)
            messages += [
                message._replace(sender=other, receiver=SERVER, payload=part)
                for other, part in zip(others, parts, strict=True)
            ]
    return View(view.adversary, messages)


def embeddings_shown(setting: AttackSetting) -> str | None:
    """Need an adversary that is shown embeddings of a client that is not its own."""
    if setting.adversary != COLLUDING:
        return None
    if not setting.method.capabilities.simulated:
        return "embeddings that a system passes on to clients are not read; adversary server is sent all of them"
    if not setting.config.embeddings_shared:
        return "its server shows clients nothing of other clients' embeddings"
    if len(setting.parties) == setting.dataset.clients:
        return "all clients collude, and none is left to attack; name those that do with ‹client›"
    return None


def others_than(setting: AttackSetting, *clients: int) -> tuple[int, ...]:
    """Return all but some `clients` whose embeddings can be read; those of a system have one width."""
    every = range(1, setting.dataset.clients + 1)
    return tuple(m for m in every if m not in clients and needs.why_unread(setting, m) is None)


def stand_ins(setting: AttackSetting, trained: TrainedStack, client: int = ATTACKER) -> tuple[Floats, Floats | None]:
    """Return the raw features (N, d) of a `client`, and their embeddings (N, width) by its model before training.

    Both are in the clear, and of the first training. None for the latter where training moves no client's model, or
    where a system's own start is not known.
    """
    setting = replace(setting, trials=1)
    data = setting.data()
    features = data.features[client - 1]
    raw = np.asarray(features.flatten(1).double().cpu().numpy())
    if not setting.method.capabilities.simulated:
        return raw, None
    model = architectures_of(data, setting.config)[0][client - 1]
    evaluator = evaluator_for(model, stack=1, device=setting.device)
    streams = setting.context().streams(dtype_of(setting.config))
    start = ParameterStack.initial(evaluator.layout, streams, party=client, pretrained=pretrained(model))
    if torch.equal(start.flat[0], trained.clients[client - 1].flat[0]):
        return raw, None
    rows = embeddings_of(evaluator, start, features)[0]
    return raw, np.asarray(rows.detach().double().cpu().numpy())


def side_by_side(view: View, known: Knowledge, k: int, clients: tuple[int, ...]) -> dict[str, Floats]:
    """Return the embeddings (N, w) of some clients in training `k` side by side, by reading; nothing of no client."""
    sent = [sent_embeddings(view, known, k, client) for client in clients]
    return {how: np.concatenate([rows[how] for rows in sent], 1) for how in (sent[0] if sent else ())}


def with_more(readings: Mapping[str, Floats], more: Floats) -> dict[str, Floats]:
    """Return readings (N, w) with `more` columns (N, v)."""
    return {how: np.concatenate((rows, more), 1) for how, rows in readings.items()}


def labels_known(view: View, known: Knowledge) -> Floats:
    """Return the one-hot labels (N, classes) that an adversary knows: the server's own, or those that it was sent."""
    labels = known.granted(ServerLabels).labels
    if view.adversary.clients:
        sent = next(message for message in view.messages if message.kind == LABELS)
        labels = sent.payload[0].cpu().numpy()
    return known.label_columns(labels)


def other_records(
    spec: AttackSpec, setting: AttackSetting, known: Ints, at_once: int | None
) -> tuple[AttackedRun, np.random.Generator]:
    """Train again on the records, but the `known` ones (m,), in another order, and return what pairs them at random.

    What an attack then finds of a record is about another one. Any order of the unknown records is as likely, so that
    findings may be paired with records at random to test that they are at chance.
    """
    # An order of its own for each method: controls of several methods that shared one would share its luck.
    own = crc32(f"{spec.name} {setting.method.name}".encode())
    order = np.arange(setting.records)
    free = np.setdiff1d(order, known)
    order[free] = stream(setting.seed, Purpose.CONTROL, 0, own).permutation(free)
    dataset = replace(setting.dataset, train=take(setting.dataset.train, order))
    again = attacked_run(spec, replace(setting.of_control(at_once), dataset=dataset))
    return again, stream(setting.seed, Purpose.CONTROL, 1, own)


def recorded_control(
    spec: AttackSpec, setting: AttackSetting, test: ChanceTest, count: int, success: Callable[[Ints], float]
) -> Control:
    """Return the control of one recorded training, which cannot be repeated on other records.

    The guesses stay, and the records that they are about are permuted.

    Args:
        spec: The attack.
        setting: Its setting.
        test: The test by pairing guesses with records at random.
        count: How many records were guessed.
        success: Returns the success where the i-th guess is held against the record at place `order[i]`.
    """
    generator = stream(setting.seed, Purpose.CONTROL, 0, crc32(spec.name.encode()))
    successes = np.array([success(generator.permutation(count)) for _ in range(ORDERS)])
    return under_others(successes, test, n=count, confidence=setting.confidence, what=PERMUTED)


def reach_of(chances: Sequence[float]) -> Interval:
    """Return the mean, least and largest success of what was fitted on known records in other orders."""
    n = len(chances)
    mean, low, high = float(np.mean(chances)), min(chances), max(chances)
    return Interval(value=mean, low=low, high=high, n=n, confidence=1.0, unit="orders")


def memory_of_messages(setting: AttackSetting, client: int = ATTACKER, *, of_all: bool = False) -> int:
    """Return about how many bytes messages of all trainings take, with the reading of one training.

    The messages are a `client`'s, or those `of_all`; of each client a table of its embeddings is kept in any case.
    """
    config = setting.config
    values = torch.finfo(dtype_of(config)).bits // 8
    capabilities = setting.method.capabilities
    if not capabilities.simulated:
        # A record is in at most so many messages as one was in the rehearsal.
        own, everyone = max(capabilities.widths[client]), sum(map(max, capabilities.widths.values()))
        often = sum(traffic.of_one or traffic.messages for traffic in capabilities.up.values())
        reading = 8 * setting.records * (4 * everyone + 4 * int(np.prod(setting.dataset.shapes[client - 1])))
        kept = (everyone if of_all else own) * often + everyone
        return values * setting.trials * setting.records * kept + reading
    measured = setting.method.differences(config)
    clients = setting.dataset.clients
    # Clients that take turns share the rounds.
    rounds = setting.rounds * (clients if of_all and config.all_at_once else 1)
    sent = rounds * config.batch_size * config.embedding * (2 if measured is not None and measured.pairs else 1)
    width = int(np.prod(setting.dataset.shapes[client - 1]))
    decoding = 8 * setting.records * (4 * clients * config.embedding + 4 * width)
    return values * setting.trials * (sent + clients * setting.records * config.embedding) + decoding
