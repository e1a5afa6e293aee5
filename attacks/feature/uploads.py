"""The embeddings of each record that a client sent while its model trained, brought to one scale."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError, NotFinite
from mechanisms.core.channel import SERVER, Message, View

from ..core.knowledge import Knowledge
from ..core.metrics import Floats
from ..core.queries import kept_of
from ..core.setting import ATTACKER, AttackSetting

READ: dict[str, tuple[str, ...]] = {
    "auto": ("aligned", "mean"),
    "aligned": ("aligned",),
    "last": ("last",),
    "mean": ("mean",),
    "first": ("first",),
    "both": ("both",),
}
"""Readings of a record's uploads that compete, by the option's word; `both` are last and first side by side."""
# Passes of the alignment, its ridge penalty per upload, and how many uploads one map is fitted on: at least this many
# and this many per number that it has for each coordinate.
PASSES = 2
PENALTY = 1e-2
WINDOW = 256
PER_NUMBER = 16
# The least deviation of a coordinate, as a share of the largest: noise of rare units is not blown up.
FLOOR = 0.1


def target_of(setting: AttackSetting) -> int:
    """Return the client whose features are attacked: that of the option `target`, by default the first.

    Raises `InputError` where there is no such client.
    """
    client = setting.options.get("target", ATTACKER)
    if type(client) is not int or not 1 <= client <= setting.dataset.clients:
        raise InputError(f"use one of 1 to {setting.dataset.clients}", "option target", client)
    return client


def open_targets(setting: AttackSetting) -> tuple[int, ...]:
    """Return the clients of a system of which one is attacked, where no option says which; none of a method."""
    if setting.method.capabilities.simulated or "target" in setting.options:
        return ()
    return setting.everyone


Upload = tuple[Tensor, Tensor]
"""Ids (n,) of records and their embeddings (n, width), as sent in one message."""


def sent_embeddings(view: View, known: Knowledge, k: int, client: int = ATTACKER) -> dict[str, Floats]:
    """Return embeddings (N, width) of each record that a client sent in training `k` of a view, by reading.

    A record that was never sent has zeros.

    Args:
        view: The server's view.
        known: Its knowledge; the option `embeddings` names the readings.
        k: The training.
        client: The client that sent them.

    Raises:
        InputError: The view holds no embedding of that client.
        NotFinite: An embedding holds a number that is not finite.
    """
    measured = known.method.differences(known.config)
    two_sided = measured is not None and measured.two_sided
    mail = [m for m in view.messages if m.sender == client and _about_records(m, known.records)]
    if not mail:
        raise InputError(f"the view holds no embedding of client {client}")

    def uploads() -> Iterator[Upload]:
        for message in mail:
            rows = kept_of(message.payload[k : k + 1].double(), two_sided=two_sided)[0]
            if message.ids is None:
                yield torch.arange(known.records, device=rows.device), rows
                continue
            held = message.ids[k] >= 0  # others are padding
            if bool(held.any()):
                yield message.ids[k][held], rows[held]

    like = mail[0].payload[:1].double()
    last, first, total = (like.new_zeros(known.records, like.shape[-1]) for _ in range(3))
    count = like.new_zeros(known.records, 1)
    for ids, rows in uploads():
        new = count[ids, 0] == 0
        first[ids[new]] = rows[new]
        last[ids] = rows
        total.index_add_(0, ids, rows)
        count.index_add_(0, ids, torch.ones_like(rows[:, :1]))
    if not bool(total.isfinite().all()):
        raise NotFinite("embeddings hold a number that is not finite")
    mean = total.div_(count.clamp(min=1))
    wanted = READ[str(known.options["embeddings"])]
    # A defence of embeddings has hardly told yet on the first that were sent.
    if known.options["embeddings"] == "auto" and any(d.place == "embedding" for d in known.config.defences):
        wanted += READ["both"]
    readings = {
        "last": lambda: last,
        "first": lambda: first,
        "mean": lambda: mean,
        "both": lambda: torch.cat([last, first], 1),
        "aligned": lambda: aligned(uploads, mean),
    }
    return {reading: readings[reading]().cpu().numpy() for reading in wanted}


class UploadWatch:
    """Keeps of uploads what takes little room: `means` (K, N, width) of every client not attacked, by its number.

    `models` are those (K, d) of the attacked client at each of its uploads, where the server is granted them.
    """

    def __init__(self, setting: AttackSetting, labels: Tensor) -> None:
        """Watch the stack of a `setting` that trains on `labels`."""
        measured = setting.method.differences(setting.config)
        self._two_sided = measured is not None and measured.two_sided
        self._records = setting.records
        self._target = target_of(setting)
        own = setting.method.capabilities
        self._odd = set() if own.simulated else {m for m, widths in own.widths.items() if len(widths) > 1}
        self._totals: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}
        self.reads_notes = ("model",) if setting.options.get("knows_model") else ()
        self.models: list[Tensor] = []
        self.means: dict[int, Tensor] = {}

    def on_message(self, message: Message) -> None:
        """Add up the embeddings of a client that is not attacked."""
        if message.kind not in ("table", "embeddings") or message.sender in (SERVER, self._target, *self._odd):
            return
        if message.receiver != SERVER or not _about_records(message, self._records):
            return
        rows = kept_of(message.payload, two_sided=self._two_sided)
        ids = message.ids
        if ids is None:
            ids = torch.arange(self._records, device=rows.device).expand(len(rows), -1)
        total = self._totals.setdefault(message.sender, rows.new_zeros(len(rows), self._records, rows.shape[2]))
        count = self._counts.setdefault(message.sender, rows.new_zeros(len(rows), self._records, 1))
        held = (ids >= 0).unsqueeze(2).to(rows)  # others are padding, of zeros
        ids = ids.clamp(min=0)
        total.scatter_add_(1, ids.unsqueeze(2).expand(rows.shape), rows * held)
        count.scatter_add_(1, ids.unsqueeze(2), held)

    def on_note(self, party: int, round_: int, name: str, value: Tensor) -> None:
        """Keep the model of the attacked client."""
        if party == self._target:
            self.models.append(value)

    def finish(self) -> None:
        """Work out the means."""
        self.means = {client: total / self._counts[client].clamp(min=1) for client, total in self._totals.items()}


def _about_records(message: Message, records: int) -> bool:
    """Return whether rows of an upload (K, B, width), or of pairs, are about records by ids, or about all of them."""
    if message.payload.dim() < 3:
        return False
    named = message.ids.shape[-1] if message.ids is not None else records if message.kind == "table" else -1
    return int(message.payload.shape[-2]) == named


def aligned(uploads: Callable[[], Iterable[Upload]], mean: Tensor) -> Tensor:
    """Return embeddings (N, width): each record's mean upload after maps that undo how the model moved meanwhile.

    A client's model changes from round to round, so that a decoder for one round errs in another. Every window of
    rounds gets an affine map, by ridge regression towards the identity, of its uploads to the records' mean uploads;
    the mean of mapped uploads then takes the place of `mean` (N, width), as in generalised Procrustes analysis (Gower,
    Psychometrika 1975). No feature is needed, so all records count, not the few known ones.
    """
    centre, deviation = mean.mean(0), mean.std(0)
    deviation = deviation.clamp(min=FLOOR * float(deviation.max())) + 1e-12
    width = mean.shape[1]
    target = (mean - centre) / deviation
    for _ in range(PASSES):
        total, count = torch.zeros_like(mean), torch.zeros_like(mean[:, :1])
        for ids, rows in _windows(uploads(), max(WINDOW, PER_NUMBER * (width + 1))):
            rows = (rows - centre) / deviation
            inputs = torch.cat((torch.ones_like(rows[:, :1]), rows), 1)
            penalty = PENALTY * len(rows) * torch.eye(width + 1).to(rows)
            change = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ (target[ids] - rows))
            total.index_add_(0, ids, rows + inputs @ change)
            count.index_add_(0, ids, torch.ones_like(rows[:, :1]))
        target = total / count.clamp(min=1)
    return target * deviation + centre


def _windows(uploads: Iterable[Upload], least: int) -> Iterator[Upload]:
    """Yield uploads of consecutive rounds together, of at least so many records but for the last."""
    window: list[Upload] = []
    for upload in uploads:
        window.append(upload)
        if sum(len(ids) for ids, _ in window) >= least:
            yield torch.cat([ids for ids, _ in window]), torch.cat([rows for _, rows in window])
            window = []
    if window:
        yield torch.cat([ids for ids, _ in window]), torch.cat([rows for _, rows in window])
