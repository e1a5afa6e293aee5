"""A row that is a training: accuracy beside the paper's and beside both frozen-client controls, costs, history."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attacks.core.metrics import shared_rate, trial_areas
from mechanisms import MethodSpec, TrainingConfig, method_named
from mechanisms.controls import frozen_clients, rates_tried
from mechanisms.core.checkpoints import FileCheckpoints, run_key
from mechanisms.core.config import rounds_of
from mechanisms.core.context import RunContext, TrainedStack, TrainingData, dtype_of
from mechanisms.core.defence import defended
from mechanisms.core.federation import Federation, logits_of
from mechanisms.core.method import federation_of
from mechanisms.core.training import train_in_stacks

from ..base.findings import Interval
from ..base.grouping import grouped
from ..base.halving import in_pieces, shortage
from ..data.vertical import VerticalDataset
from .table import ResultPart, Row, Setting, TableRow, Values, Work, counted, pace
from .words import say

MEGABYTE = 1e6
TUNING_EPOCHS = 5
"""Length of the runs that choose the rate of the tuned control, in the paper's epochs."""


class Point(ResultPart):
    """Mean test accuracy and loss after an epoch, as the paper counts them; `loss` is None where it is infinite."""

    epoch: float
    accuracy: float
    loss: float | None = None

    def agrees(self, accuracy: float, loss: float) -> bool:
        """Return whether these are the numbers of the point, up to the rounding of other processors."""
        if abs(self.accuracy - accuracy) > 2e-3:
            return False
        if self.loss is None or not math.isfinite(loss):
            return self.loss is None and not math.isfinite(loss)
        return math.isclose(self.loss, loss, rel_tol=1e-3)


class TrainingRow(Row):
    """A training: accuracy, history and costs, beside frozen clients whose server has a tuned rate."""

    series: str = ""
    """Which line of a figure it is a point of, at the claimed `epsilon`."""
    epsilon: float | None = None
    method: str = ""
    target: float = 0.9
    """Accuracy until which bytes are counted."""
    budget: float = math.inf
    """Megabytes in both directions at which accuracy is looked at."""
    accuracy: Interval
    standard_deviation: float | None
    history: list[Point]
    megabytes_up: float
    megabytes_down: float
    megabytes_table: float = 0.0
    frozen_clients_tuned: Interval | None = None
    rounds: int = 0
    queries_per_round: int = 0
    """Losses of a batch that the server computes in a round to answer clients."""
    auc: float | None = None
    """Area under the ROC curve of two classes, mean over the trainings; None where one of them diverged."""
    paper_accuracy: float | None = None
    """The accuracy that the paper prints."""

    def curve(self, unit: float = 1.0) -> list[tuple[float, float]]:
        """Return the accuracy in percent after each epoch, by epochs in a `unit`."""
        return [(unit * point.epoch, 100 * point.accuracy) for point in self.history]

    @property
    def uploads_once(self) -> bool:
        """Return whether its rounds send nothing: all messages are the first table of embeddings."""
        return self.megabytes_up + self.megabytes_down == 0.0 < self.megabytes_table

    def by_megabytes(self) -> list[tuple[float, float]]:
        """Return the accuracy in percent by all messages until then; the last alone where most are sent at once."""
        sent = self.megabytes_up + self.megabytes_down
        whole = self.history[-1].epoch
        points = self.history if sent > self.megabytes_table else self.history[-1:]
        return [(self.megabytes_table + sent * point.epoch / whole, 100 * point.accuracy) for point in points]

    def epochs_to_target(self, target: float | None = None) -> float | None:
        """Return the first epoch with mean test accuracy of `target` or more after it; the row's own if not given."""
        aim = self.target if target is None else target
        return next((point.epoch for point in self.history if point.accuracy >= aim), None)

    def megabytes_per_epoch(self) -> float:
        """Return the messages of one epoch in both directions, the first table of embeddings apart."""
        return (self.megabytes_up + self.megabytes_down) / self.history[-1].epoch

    def queries_to_target(self, target: float | None = None) -> float | None:
        """Return how many losses of a batch clients asked for until `target`."""
        reached = self.epochs_to_target(target)
        return None if reached is None else self.queries_per_round * self.rounds * reached / self.history[-1].epoch

    def largest_fall(self) -> float:
        """Return by how much accuracy fell at most from the best so far to a later epoch."""
        best = fall = 0.0
        for point in self.history:
            best = max(best, point.accuracy)
            fall = max(fall, best - point.accuracy)
        return fall

    def megabytes_to_target(self, target: float | None = None) -> str:
        """Return the messages in both directions until `target`; the best accuracy where it is not reached."""
        reached = self.epochs_to_target(target)
        if reached is None:
            return say("target_not_reached", best=max(point.accuracy for point in self.history))
        if self.uploads_once:
            return f"{self.megabytes_table:.1f}"
        return f"{reached * self.megabytes_per_epoch():.1f}"

    def within_budget(self) -> Point | None:
        """Return the last epoch whose messages fit the `budget`; None where the first exceeds it."""
        if self.uploads_once:
            return self.history[-1] if self.megabytes_table <= self.budget else None
        each = self.megabytes_per_epoch()
        return max(
            (point for point in self.history if point.epoch * each <= self.budget),
            key=lambda point: point.epoch,
            default=None,
        )


@dataclass(frozen=True, kw_only=True)
class TrainedRow(TableRow[TrainingRow]):
    """A training of `method` with `options` on `dataset`, and what the paper prints for it.

    Args:
        accuracy: Test accuracy in the paper in percent, None where it prints none.
        cost: Message cost in the paper, as printed.
    """

    accuracy: float | None = None
    cost: str = ""

    row_type: ClassVar[type[Row]] = TrainingRow
    controls: ClassVar[bool] = True
    """Whether the training stands beside both frozen-client controls."""

    def read(self, values: Values) -> TrainingRow:
        """See `TableRow.read`: with the numbers that the paper prints."""
        return super().read({**values, **self._stated})

    @torch.no_grad()
    def begins_as(self, row: TrainingRow, setting: Setting) -> bool:
        """See `TableRow.begins_as`: accuracy and loss after the first epoch."""
        method, config, dataset = self.start(setting)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)

        def begun(first: int, last: int) -> tuple[float, float]:
            context = RunContext(seed=setting.seed, replicas=range(first, last), device=setting.device)
            run = method.start(data, config, context)
            fed = federation_of(run)
            for _ in range(fed.steps_per_pass):
                run.step()
            _, accuracy, loss = fed.epoch_record(1)
            share = (last - first) / setting.seeds
            return share * accuracy, share * loss

        parts = [part for part, _ in in_pieces(begun, 0, setting.seeds)]
        return bool(row.history) and row.history[0].agrees(*map(sum, zip(*parts, strict=True)))

    @property
    def _stated(self) -> Values:
        """Return what the paper prints, and what follows from the settings without a training."""
        clients = self.dataset.get("clients", 1)
        assert isinstance(clients, int)
        return {
            "paper_accuracy": None if self.accuracy is None else self.accuracy / 100.0,
            "paper_cost": self.cost,
            "queries_per_round": method_named(self.method).configure(**self.settings).answered_losses(clients),
        }

    @property
    def settings(self) -> Values:
        """Return the options of its method, as they are checked before any data are read."""
        return self.options

    def run(self, setting: Setting) -> TrainingRow:
        """Train `setting.seeds` replicas for the epochs asked for; both controls beside them."""
        method, config, dataset = self.start(setting)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)

        def compute(checkpoints: FileCheckpoints | None) -> Values:
            trained, at_once = train_in_stacks(
                method,
                data,
                config,
                RunContext(
                    seed=setting.seed,
                    replicas=range(setting.seeds),
                    device=setting.device,
                    progress=setting.stage(self.label, rounds_of(config, data.records)),
                ),
                checkpoints=lambda first, last: checkpoints and checkpoints.of_stack(first, last, setting.seeds),
            )
            return {
                **training_part(trained, self.passes),
                "auc": auc_of(trained, data, config, setting.device),
                "protects": method.protects(config),
                **shortage(at_once),
            }

        return TrainingRow(
            label=self.label,
            method=self.method,
            options=self.options,
            **self.tags,
            **setting.part(dataset, compute, method=method.name, config=config.model_dump(mode="json")),
            **self._stated,
            **(controls_part(setting, config, dataset, self.passes) if self.controls else {}),
        )

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        return self.checked(setting)

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`."""
        method, config, dataset = self.start(setting)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)
        rehearsal = rehearsed(method, config, data, setting)
        return Work(rehearsal.training, controls_work(config, dataset, self.passes, rehearsal) if self.controls else {})


class TrainedAlone(TrainedRow):
    """A training without frozen clients beside it: these would learn nothing, or cost several times as much."""

    controls = False


class Rehearsal(NamedTuple):
    """Seconds of trainings, and of their server alone: of what comes before and after its rounds, and of a round."""

    training: float
    server_table: float
    server_round: float


@torch.no_grad()
def rehearsed(
    method: MethodSpec, config: TrainingConfig, data: TrainingData, setting: Setting, *, trainings: int | None = None
) -> Rehearsal:
    """Return how long `setting.seeds` trainings take as one stack, or so many `trainings`, going by a few rounds.

    Raises:
        InputError: The training cannot begin.
    """
    count = trainings or setting.seeds
    rounds = rounds_of(config, data.records)
    most = min(5, rounds)

    def timed(first: int, last: int) -> Rehearsal:
        context = RunContext(seed=setting.seed, replicas=range(first, last), device=setting.device)
        began = time.perf_counter()
        run = method.start(data, config, context)
        seconds = time.perf_counter() - began
        fed = federation_of(run)
        seconds += rounds * pace(run.step, most=most) + config.epochs * pace(lambda: fed.epoch_record(1), most=1)
        began = time.perf_counter()
        alone = Federation(data, config, context)
        alone.fill_table()
        alone.test_metrics()
        table = time.perf_counter() - began
        alone.begin(0)

        def serve() -> None:
            batch = alone.clients[0].batches.next()
            alone.train_server(alone.server_batch(alone.table_rows(batch), batch))

        return Rehearsal(seconds, table, pace(serve, most=most) if alone.server.layout else 0.0)

    whole, fitted = next(in_pieces(timed, 0, count))
    times = count / (fitted or count)
    return Rehearsal(*(times * seconds for seconds in whole))


def auc_of(trained: TrainedStack, data: TrainingData, config: TrainingConfig, device: str) -> float | None:
    """Return the area under the ROC curve on the test records, mean over trainings.

    None beside two classes, and where a training diverged: scores that are no numbers have no order.
    """
    if data.classes != 2:
        return None
    with torch.no_grad():
        return area(logits_of(trained, data, config, data.test_features, device=device), data)


def area(logits: Tensor, data: TrainingData) -> float | None:
    """Return the area under the ROC curve of `logits` (K, n, classes) of the test records, as `auc_of` does."""
    if data.classes != 2:
        return None
    scores = (logits[:, :, 1] - logits[:, :, 0]).double().cpu().numpy()
    if not np.isfinite(scores).all():
        return None
    positive = (data.test_labels == 1).cpu().numpy()
    return float(trial_areas(scores, np.broadcast_to(positive, scores.shape)).mean())


def training_part(trained: TrainedStack, passes: int) -> Values:
    """Return accuracy, history and costs of a training.

    Costs are those of the whole run, without the one table of embeddings that asynchronous methods start with.
    """
    by_seed = trained.accuracy.tolist()
    table = trained.ledger.bytes_up.get("table", 0)
    history = [
        {"epoch": epoch / passes, "accuracy": accuracy, "loss": loss if math.isfinite(loss) else None}
        for epoch, accuracy, loss in trained.history
    ]
    return {
        "accuracy": shared_rate(trained.correct),
        "by_seed": by_seed,
        "standard_deviation": float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else None,
        "history": history,
        "megabytes_up": (trained.ledger.up - table) / MEGABYTE,
        "megabytes_down": trained.ledger.down / MEGABYTE,
        "megabytes_table": table / MEGABYTE,
        "rounds": trained.rounds,
    }


class Frozen(ResultPart):
    """A training of the server alone, under frozen clients."""

    train_accuracy: float


def controls_part(setting: Setting, config: TrainingConfig, dataset: VerticalDataset, passes: int) -> Values:
    """Return frozen clients at the row's server rate, and at the rate that does best in training over a grid.

    The rate is chosen by training accuracy in runs of at most `TUNING_EPOCHS` of the paper's epochs, and the control
    then trained for the row's own length. Rows of one length and one server share their controls. Clients that never
    learn have no such control.
    """
    if not config.clients_learn:
        return {}
    short = config.model_copy(update={"epochs": min(config.epochs, TUNING_EPOCHS * passes)})
    rates = rates_tried(config)
    done = setting.stage("frozen clients", len(rates) + 2)
    tried = {rate: _frozen(setting, short, dataset, rate).train_accuracy for rate in counted(rates, done)}
    both = {"frozen_clients": config.server_rate, "frozen_clients_tuned": max(tried, key=tried.__getitem__)}
    counting = counted(both.items(), done, start=len(rates))
    return {name: _frozen(setting, config, dataset, rate) for name, rate in counting}


def controls_work(
    config: TrainingConfig, dataset: VerticalDataset, passes: int, rehearsal: Rehearsal
) -> dict[str, float]:
    """Return the seconds of `controls_part` by what they follow from."""
    if not config.clients_learn:
        return {}
    rounds = rounds_of(config, len(dataset.train))
    rates = len(rates_tried(config))
    short = rounds * min(config.epochs, TUNING_EPOCHS * passes) / config.epochs
    seconds = (rates + 2) * rehearsal.server_table + (2 * rounds + rates * short) * rehearsal.server_round
    return {run_key({"dataset": dataset.name, "clients": dataset.clients, "server": _server_of(config)}): seconds}


def _server_of(config: TrainingConfig) -> Values:
    """Return the settings that frozen clients have as well."""
    # Under privatised labels the control has those labels too; its table is of pictures that nothing moves.
    apart = {"client_rate", "server_rate", "momentum", "shift"}
    return config.model_dump(mode="json", include=set(TrainingConfig.model_fields) - apart)


def _frozen(setting: Setting, config: TrainingConfig, dataset: VerticalDataset, rate: float) -> Frozen:
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)

    def compute(_: object) -> Values:
        context = RunContext(seed=setting.seed, replicas=range(setting.seeds), device=setting.device)
        frozen = frozen_clients(defended(data, config.defences, context), config, context, rate=rate)
        accuracy = asdict(shared_rate(frozen.correct))
        return {**accuracy, "server_rate": rate, "train_accuracy": frozen.train_accuracy}

    return Frozen(**setting.part(dataset, compute, frozen=_server_of(config), rate=rate))


def beside_paper(rows: Sequence[Row]) -> str:
    """Return how far accuracies lie from those that the paper prints, as a sentence; "" where it prints none."""
    printed = [
        (row, abs(row.accuracy.value - row.paper_accuracy))
        for row in rows
        if isinstance(row, TrainingRow)
        if row.paper_accuracy is not None
    ]
    if not printed:
        return ""
    far, _ = max(printed, key=lambda pair: pair[1])
    near = sum(distance <= 0.01 for _, distance in printed)
    return say("beside_paper", rows=[row for row, _ in printed], near=near, far=far)


def below_control(rows: Sequence[TrainingRow]) -> str:
    """Return which rows are no better than frozen clients whose server has a tuned rate, as a sentence."""
    beside = [row for row in rows if row.frozen_clients_tuned]
    below = [row for row in beside if (control := row.frozen_clients_tuned) and row.accuracy.value <= control.value]
    return say("below_control", rows=below, count=len(beside)) if below else ""


def spread_over_rates(rows: Sequence[TrainingRow]) -> str:
    """Return, for each series, how far accuracy lies apart over its rows, which differ by a rate, as a sentence."""
    series = grouped((row.series, row) for row in rows)
    parts = [
        (name, max(own, key=lambda row: row.accuracy.value), min(own, key=lambda row: row.accuracy.value))
        for name, own in series.items()
        if len(own) > 1
    ]
    return say("spread_over_rates", parts=parts) if parts else ""
