"""Work of a round in exact numbers: passes through the server's model, operations, and time on a simulated clock.

Paper 003, section 7, compares how often the server runs its model; paper 002, sections I and II, how long parties wait
for each other. Both follow from a configuration alone: nothing is trained, and no clock of this machine is read.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.config import rounds_of
from mechanisms.core.context import TrainingData, dtype_of
from mechanisms.core.federation import architectures_of
from mechanisms.core.models import Architecture

from ..base.errors import InputError
from .table import Row, Setting, TableRow, Work, pace


def operations(model: Architecture | None, rows: int, shape: Sequence[int], *, at_inputs: bool) -> tuple[int, int]:
    """Return the operations of a pass of `rows` inputs of a `shape` through a model, forward and backward.

    A multiplication and an addition are two; products of matrices and convolutions count, what is done entry by entry
    does not. (0, 0) without a model. Nothing is computed: shapes are enough.
    """
    if model is None:
        return 0, 0
    with torch.device("meta"), torch.enable_grad():
        module = model.module()
        inputs = torch.empty(rows, *shape, requires_grad=at_inputs)
        with FlopCounterMode(display=False) as forward:
            output = module(inputs)
        with FlopCounterMode(display=False) as backward:
            output.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


class RoundWork(NamedTuple):
    """Operations of one round: the server's, and those of each client that takes part in it."""

    server: int
    client: int


def round_work(config: TrainingConfig, data: TrainingData) -> RoundWork:
    """Return the operations of a round on a batch of the configured size; clients are alike, client 1 stands for all.

    A client runs its model twice forward (zeroth order), or once forward and back.
    """
    models, server = architectures_of(data, config)
    width = config.embedding if config.top_model else data.classes
    passes = config.passes(len(models))
    rows = config.batch_size
    forward, backward = operations(server, rows, (len(models) * width,), at_inputs=passes.at_inputs)
    own = operations(models[0], rows, data.features[0].shape[1:], at_inputs=False)
    client = 2 * own[0] if passes.zeroth_order else sum(own)
    return RoundWork(passes.forward * forward + passes.backward * backward, client)


class WorkRow(Row):
    """The passes and operations of the server, each round and in all, and those of a client."""

    server_times: float
    """Operations of the server in a training, as a multiple of VAFL's with the same models."""


@dataclass(frozen=True, kw_only=True)
class CountedWork(TableRow[WorkRow]):
    """A method whose passes and operations are counted, for trainings of the epochs asked for."""

    row_type: ClassVar[type[Row]] = WorkRow

    def run(self, setting: Setting) -> WorkRow:
        """Count; seeds do not matter."""
        method, config, data, _ = _started(self, setting)
        clients = len(data.features)
        passes = config.passes(clients)
        work = round_work(config, data)
        rounds = rounds_of(config, data.records)
        # VAFL makes a round of every client's batch as well; each is a pass forward and back.
        model = architectures_of(data, config)[1]
        width = clients * (config.embedding if config.top_model else data.classes)
        baseline = sum(operations(model, config.batch_size, (width,), at_inputs=True))
        baseline_rounds = rounds * (clients if config.all_at_once else 1)
        return WorkRow(
            label=self.label,
            method=method.name,
            options=self.options,
            **self.tags,
            forward=passes.forward,
            backward=int(passes.backward),
            server_round=work.server,
            client_round=work.client,
            rounds=rounds,
            server_total=work.server * rounds,
            server_times=work.server * rounds / (baseline * baseline_rounds) if baseline else 1.0,
        )

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        self.start(setting)[1].passes(1)
        return self.checked(setting)

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`."""
        return Work(pace(lambda: self.run(setting), most=1))


class Clock(NamedTuple):
    """What a simulated clock says of so many rounds; whole numbers, so that all are exact.

    Attributes:
        time: When the last round ends.
        waiting: Time that clients spend waiting, the sum over them.
        serving: Time that the server works.
        rounds: Rounds of each client.
        gap: Most rounds from one of a client's to its next, the last included: how old its part can become.
    """

    time: int
    waiting: int
    serving: int
    rounds: tuple[int, ...]
    gap: int


def together(times: Sequence[int], server: int, rounds: int) -> Clock:
    """Return the clock of synchronous rounds: all wait for the slowest client, and clients for the server."""
    each = max(times) + server
    waiting = sum(each - own for own in times)
    return Clock(rounds * each, rounds * waiting, rounds * server, (rounds,) * len(times), 1)


def one_by_one(times: Sequence[int], server: int, rounds: int) -> Clock:
    """Return the clock of asynchronous rounds: clients compute all the time but while their own answer is due.

    The server takes messages in the order in which they arrive, of the lower client first where two come together, and
    works `server` on each. With a server that takes no time the order is that of `compute_times`.
    """
    arrivals = [(time, client) for client, time in enumerate(times)]
    heapq.heapify(arrivals)
    free = waiting = 0
    counts, last, gap = [0] * len(times), [0] * len(times), 0
    for number in range(1, rounds + 1):
        arrived, client = heapq.heappop(arrivals)
        free = max(free, arrived) + server
        waiting += free - arrived
        counts[client] += 1
        gap = max(gap, number - last[client])
        last[client] = number
        heapq.heappush(arrivals, (free + times[client], client))
    waiting += sum(free - arrived for arrived, _ in arrivals if arrived < free)
    gap = max(gap, *(rounds - own for own in last))
    return Clock(free, waiting, rounds * server, tuple(counts), gap)


class ClockRow(Row):
    """The time of an epoch on the simulated clock, and the shares of it in which parties wait."""

    clients_wait: float


@dataclass(frozen=True, kw_only=True)
class Clocked(TableRow[ClockRow]):
    """A method on a simulated clock, for the epochs asked for.

    Args:
        slowness: By client, how many times as long it takes for an operation as the fastest.
        server_speed: How many times as fast the server is as the fastest client.
    """

    slowness: Sequence[int]
    server_speed: int

    row_type: ClassVar[type[Row]] = ClockRow

    def run(self, setting: Setting) -> ClockRow:
        """Simulate; the unit of time is what the fastest client takes for its part of a round, seeds do not matter."""
        method, config, data, epochs = _started(self, setting)
        work = round_work(config, data)
        unit = work.client * self.server_speed
        times = [unit * slowness for slowness in self.slowness]
        rounds = rounds_of(config, data.records)
        clock = (together if config.all_at_once else one_by_one)(times, work.server, rounds)
        whole = clock.time * len(times)
        passes = [own * config.batch_size / data.records / epochs for own in clock.rounds]
        return ClockRow(
            label=self.label,
            method=method.name,
            options=self.options,
            **self.tags,
            time=clock.time / unit / epochs,
            clients_wait=clock.waiting / whole,
            server_waits=1.0 - clock.serving / clock.time,
            passes_of_slowest=passes[times.index(max(times))],
            passes_of_fastest=passes[times.index(min(times))],
            gap=clock.gap,
        )

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        _, config, dataset = self.start(setting)
        config.passes(1)
        if len(self.slowness) != dataset.clients:
            raise InputError(f"use one for each of {dataset.clients} clients", "slowness", len(self.slowness))
        return self.checked(setting, slowness=self.slowness)

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`."""
        return Work(pace(lambda: self.run(setting), most=1))


def _started(row: "CountedWork | Clocked", setting: Setting) -> tuple[MethodSpec, TrainingConfig, TrainingData, int]:
    """Return the method of a row, its configuration, the data, and epochs as the paper counts them."""
    method, config, dataset = row.start(setting)
    return method, config, TrainingData.of(dataset, dtype=dtype_of(config), device="cpu"), setting.epochs
