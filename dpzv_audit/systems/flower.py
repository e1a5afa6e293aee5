"""Records messages of a Flower app: a client mod, a wrapper of the server, and a grid that runs both in one process.

Flower's server sends requests and clients reply (`flwr.app.Message`); their arrays and numbers are kept as they travel.
The interfaces are those of flwr 1.41. Without TLS an eavesdropper sees all of it, under TLS lengths and times alone;
the user, who starts the processes, says which.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from .messages import SERVER
from .record import Recorder
from .transcript import load

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    raise ImportError("dpzv_audit.systems.flower needs the extra [flower]: pip install 'dpzv-audit[flower]'") from error

IDS = "ids"
"""Name of the entry of a message that says which records its rows are about."""
_STATE = "dpzv-audit"
_SUPERLINK = 1

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def client_mod(folder: Path | str, *, records: int, clients: int, classes: int, tls: bool) -> Mod:
    """Return a mod that records what its client gets and sends: `ClientApp(mods=[client_mod(...), ...])`.

    It stands first, so that it sees a reply after other mods, such as local DP. Each exchange is a transcript in
    `folder/RUN/client-M/`, since Flower may start a process for each; `gather` joins them. A node's `partition-id` P is
    client P + 1. A message's `group_id` is its round; where it is no number, or one of several rounds, rounds are
    counted for each client (`_Rounds`).

    A reply's arrays with a row for each record are `embeddings`, a request's are `gradient`, in an evaluation both are
    `prediction`; all other entries have the kind of their record in the message. An entry `ids` says which records rows
    are about, in this message and in later ones of the client; without one they are all `records`, in order.

    Args:
        folder: Where transcripts go; a relative path is one of the SuperNode's folder.
        records: Number N of records that all parties share.
        clients: Number M of clients.
        classes: Number of classes of the labels.
        tls: Whether nodes are connected by TLS, as a `flower-supernode` that is not started as insecure.
    """

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        place = context.node_config.get("partition-id")
        if not isinstance(place, int) or not 0 <= place < clients:
            raise InputError(
                f"partition-id of the node is {place!r}; use a whole number from 0 to {clients - 1}: "
                "flower-supernode takes it as node-config"
            )
        client = place + 1
        log = _ServerLog(Recorder(records, clients))
        if _STATE in context.state:
            log.restore(client, context.state[_STATE])
        log.add(message, client, reply=False)
        reply = call_next(message, context)
        log.add(reply, client, reply=True)
        context.state[_STATE] = log.state(client)
        if log.record.messages:
            exchanges = Path(folder) / str(context.run_id) / f"client-{client}"
            number = len(list(exchanges.glob("*")))
            log.record.save(exchanges / f"{number:06}", classes=classes, public_ids=log.public_ids, encrypted=tls)
        return reply

    return mod


def gather(folder: Path | str) -> Path:
    """Make one transcript of those that the clients' mods wrote in a run, `folder` being its RUN folder.

    Returns:
        The folder `merged` in it.

    Raises:
        InputError: There are none, or one cannot be read.
    """
    folder = Path(folder)
    exchanges = sorted(folder.glob("client-*/*"))
    if not exchanges:
        raise InputError(f"{folder}: holds no client-1/000000 or the like; use the folder of a run")
    manifests = [load(exchange).manifest for exchange in exchanges]
    record = Recorder(manifests[0].records, manifests[0].clients)
    record.merge(*exchanges)
    return record.save(
        folder / "merged",
        classes=manifests[0].classes,
        public_ids=any(manifest.public_ids for manifest in manifests),
        encrypted=all(manifest.encrypted for manifest in manifests),
    )


class RecordedServer(ServerApp):  # type: ignore[misc]
    """A `ServerApp` that records its messages, and writes the transcript `folder/RUN/server` at its end.

    Clients are numbered in the order in which the server first writes to their nodes. Arguments, kinds and ids are as
    `client_mod` has them.
    """

    def __init__(
        self, app: ServerApp, folder: Path | str, *, records: int, clients: int, classes: int, tls: bool
    ) -> None:
        super().__init__()
        self._app = app
        self._folder = Path(folder)
        self._record = Recorder(records, clients)
        self._classes = classes
        self._tls = tls

    def main(self) -> Any:
        """Return the decorator of the app's main function."""
        return self._app.main()

    def lifespan(self) -> Any:
        """Return the decorator of the function that runs around it."""
        return self._app.lifespan()

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the app."""
        recorded = RecordedGrid(grid, self._record)
        self._app(recorded, context)
        folder = self._folder / str(context.run_id) / "server"
        self._record.save(folder, classes=self._classes, public_ids=recorded.log.public_ids, encrypted=self._tls)


@Grid.register
class RecordedGrid:
    """A grid whose messages are recorded: requests as they are pushed, replies as they are pulled.

    All else is that of the grid within.
    """

    def __init__(self, grid: Grid, record: Recorder) -> None:
        self.log = _ServerLog(record)
        self._grid = grid
        self._clients: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send requests, and record them."""
        return self._grid.push_messages(self._requests(messages))  # type: ignore[no-any-return]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies, and record them."""
        return self._replies(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send requests and return their replies, and record both."""
        return self._replies(self._grid.send_and_receive(self._requests(messages), timeout=timeout))

    def _requests(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        for message in sent:
            client = self._clients.setdefault(message.metadata.dst_node_id, len(self._clients) + 1)
            self.log.add(message, client, reply=False)
        return sent

    def _replies(self, messages: Iterable[Message]) -> list[Message]:
        # Replies come in any order; a record of two trainings must not differ by it.
        replies = list(messages)
        for message in sorted(replies, key=lambda message: self._clients.get(message.metadata.src_node_id, 0)):
            if message.has_content():
                self.log.add(message, self._clients[message.metadata.src_node_id], reply=True)
        return replies


class LocalGrid(Grid):  # type: ignore[misc]
    """A grid that runs a `ClientApp` in this process, as the nodes 1 to `clients`, with a state for each.

    Node m has the `partition-id` m - 1 of `num-partitions` `clients`. `config` is the configuration of the run.
    """

    def __init__(self, app: ClientApp, clients: int, config: Mapping[str, bool | int | float | str]) -> None:
        # The origin that a message names; Flower sets it in each process that it starts.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 0, _SUPERLINK, 0
        self._app = app
        self.contexts = {
            m: Context(0, m, {"partition-id": m - 1, "num-partitions": clients}, RecordDict(), dict(config))
            for m in range(1, clients + 1)
        }
        self._replies: dict[str, Message] = {}
        self._names = map(str, count())

    @property
    def run(self) -> Any:
        """None: nothing was submitted."""
        return None

    def set_run(self, run: Any) -> None:
        """Ignore the run."""

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return 1 to `clients`."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have the app answer at once."""
        names = []
        for message in messages:
            name = next(self._names)
            message.metadata.__dict__["_message_id"] = name
            self._replies[name] = self._app(message, self.contexts[message.metadata.dst_node_id])
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Have the app answer, and return the answers."""
        return self.pull_messages(self.push_messages(messages))


def local_grid(app: ClientApp, record: Recorder, config: Mapping[str, bool | int | float | str]) -> Grid:
    """Return a grid of this process, recorded, on which a system's `train(task, record, seed)` runs its server."""
    return RecordedGrid(LocalGrid(app, record.clients, config), record)


@dataclass
class _Rounds:
    """Numbers the rounds of one client.

    A `group_id` of digits is the number of its round, plus `extra`, the number of rounds so far that no name tells from
    the one before. Without a number each reply with rows begins a round; with one, a reply with rows does after a
    request with rows, which answered an earlier reply.

    Attributes:
        number: The latest number.
        extra: See above.
        replied: Whether the client has sent rows in this round.
        answered: Whether it was sent rows since.
    """

    number: int = 0
    extra: int = 0
    replied: bool = False
    answered: bool = False

    def of(self, group_id: str, *, rows: bool, ids: bool, reply: bool) -> int:
        """Return the round of a message, given whether it holds rows of records, and says which they are."""
        named = re.fullmatch("[0-9]+", group_id) is not None
        if named and int(group_id) != self.number:
            self.number, self.replied, self.answered = int(group_id), False, False
        over = self.replied and (self.answered or not named)
        if rows and reply:
            self.extra += over
            self.replied, self.answered = True, False
        elif rows:
            self.answered = True
        asks_next = over and ids and not rows and not reply
        return self.number + self.extra + asks_next


@dataclass
class _ServerLog:
    """Records messages; `latest` holds the ids that were last named to or by each client."""

    record: Recorder
    latest: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    rounds: defaultdict[int, _Rounds] = field(default_factory=lambda: defaultdict(_Rounds))
    public_ids: bool = False

    def state(self, client: int) -> ConfigRecord:
        """Return what is known of a client's rounds and ids, for a process that goes on."""
        known = {name: int(value) for name, value in vars(self.rounds[client]).items()}
        if client in self.latest:
            known[IDS] = self.latest[client].tolist()
        return ConfigRecord(known)

    def restore(self, client: int, state: ConfigRecord) -> None:
        """Go on from the `state` of another log."""
        known = dict(state)
        if IDS in known:
            self.latest[client] = np.array(known.pop(IDS), np.int64)
        self.rounds[client] = _Rounds(**known)

    def add(self, message: Message, client: int, *, reply: bool) -> None:
        """Record what a request to `client`, or its reply, holds."""
        if not message.has_content():
            return
        entries = list(_entries(message.content))
        named = [values for _, name, values in entries if name == IDS]
        if named:
            self.public_ids = True
            self.latest[client] = named[-1].astype(np.int64)
        ids = self.latest.get(client, np.arange(self.record.records))
        rows = [name != IDS and values.shape[:1] == ids.shape for _, name, values in entries]
        number = self.rounds[client].of(message.metadata.group_id, rows=any(rows), ids=bool(named), reply=reply)
        way = (client, SERVER) if reply else (SERVER, client)
        evaluated = message.metadata.message_type.startswith("evaluate")
        by_record = "prediction" if evaluated else "embeddings" if reply else "gradient"
        for (group, name, values), of_records in zip(entries, rows, strict=True):
            if name == IDS:
                self.record.sent(number, *way, IDS, values)
            elif of_records:
                self.record.sent(number, *way, by_record, values, ids)
            else:
                self.record.sent(number, *way, _word(group), values)


def _entries(content: RecordDict) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Yield the entries of a message: the names of the record and of the entry, and its numbers; text as its bytes."""
    for group, entries in content.items():
        for name, value in entries.items():
            if isinstance(value, str):
                value = value.encode()
            if isinstance(entries, ArrayRecord):
                values = value.numpy()
            elif isinstance(value, bytes):
                values = np.frombuffer(value, np.uint8)
            else:
                values = np.asarray(value)
            if values.dtype.kind == "b":
                values = values.astype(np.uint8)
            if values.size and values.dtype.kind in "iuf":
                yield group, IDS if group == IDS else name, values


def _word(name: str) -> str:
    """Return a name as a kind of message: small letters, digits and dashes, from a letter on."""
    return re.sub("[^a-z0-9_-]", "-", f"{name}".lower()).lstrip("0123456789_-")[:40] or "other"
