"""Rates of convergence of the papers' theorems, measured where their assumptions hold, with the methods' own rounds.

Theorems 4.4 and B.1 (paper 001), V.4 (004), IV.8 (002) and 5.2 (003) bound the mean of ||grad F(w^t)||^2 over T rounds.
The problem is logistic regression: clients hold a linear layer each, and the server sums their logits. A record x, with
a one for the bias of each client, has ||x||^2 = R. Its loss is R/2-smooth and sqrt(2 R)-Lipschitz, since the softmax
loss has a Hessian of at most 1/2 and a gradient of at most sqrt(2) at the logits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mechanisms import TrainingConfig, method_named
from mechanisms.core.config import AsyncConfig, active_clients
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.federation import Federation
from mechanisms.core.method import Run, federation_of
from mechanisms.core.replicas import cross_entropy, loss_gradient

from ..base.findings import Interval
from ..base.seeds import Purpose, stream
from .table import ResultPart, Row, Setting, TableRow, Values, Work, pace
from .words import say

Floats = NDArray[np.float64]

_CLIP = 10.0
"""C_0 in Lipschitz constants: lemma A.8 clips a record with a chance of at most 2e-5."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Sizes of a problem.

    Args:
        clients: Number of clients, each active with the same chance 1 / clients.
        width: Features of each client.
        classes: Classes, which are the outputs of a client.
        square_norm: Squared norm R of a record, with a one for the bias of each client.
        records: Number of records.
        batch: Batch size B.
        rounds: Rounds T.
        server: Parameters of the server's model, d_0; 0 for a server that sums.
    """

    clients: int = 2
    width: int = 3
    classes: int = 2
    square_norm: float = 4.0
    records: int = 128
    batch: int = 128
    rounds: int = 2048
    server: int = 0

    @property
    def dimension(self) -> int:
        """Parameters of a client's linear layer, d_m."""
        return (self.width + 1) * self.classes

    @property
    def smoothness(self) -> float:
        """L of every record's loss."""
        return self.square_norm / 2.0

    @property
    def lipschitz(self) -> float:
        """Lipschitz constant of every record's loss."""
        return math.sqrt(2.0 * self.square_norm)

    @property
    def largest(self) -> int:
        """Parameters of the largest party, d_*."""
        return max(self.dimension, self.server)

    @property
    def clip(self) -> float:
        """C of lemma A.8, C_0 + L lambda d / 2, at lambda = 1 / (L d sqrt(T))."""
        return _CLIP * self.lipschitz + 0.5 / math.sqrt(self.rounds)

    def data(self, seed: int) -> TrainingData:
        """Return records of normal features, with labels drawn by a linear teacher: no classes that separate."""
        generator = stream(seed, Purpose.DATA)
        rows = generator.standard_normal((self.records, self.clients * self.width))
        rows *= math.sqrt(self.square_norm - self.clients) / np.linalg.norm(rows, axis=1, keepdims=True)
        logits = rows @ generator.standard_normal((rows.shape[1], self.classes)) * 2.0
        labels = torch.from_numpy((logits + generator.gumbel(size=logits.shape)).argmax(1))
        blocks = tuple(torch.from_numpy(np.ascontiguousarray(block)) for block in np.split(rows, self.clients, axis=1))
        return TrainingData(blocks, labels, tuple(block[:1] for block in blocks), labels[:1], self.classes)


def gradient_and_loss(fed: Federation) -> tuple[Tensor, Tensor]:
    """Return ||grad F||^2 over all parties' parameters and F, (K,) each, at the present models of all parties."""
    data = fed.data
    passes = [
        client.evaluator.vjp(client.parameters, client.features.unsqueeze(0).expand(fed.stack, -1, -1))
        for client in fed.clients
    ]
    logits, pullback = fed.server.vjp(fed.server_parameters, torch.cat([rows for rows, _ in passes], 2))
    labels = data.labels.expand(fed.stack, -1)
    own, at_rows = pullback(loss_gradient(logits, labels, None, data.records), at_inputs=True)
    square = own.square().sum(1)
    for (_, back), slot in zip(passes, fed.slots, strict=True):
        square = square + back(at_rows[:, :, slot].contiguous(), at_inputs=False)[0].square().sum(1)
    return square, cross_entropy(logits, labels).mean(1)


class Trace(NamedTuple):
    """Mean of ||grad F||^2 over rounds, and the fall of F from the first round to the last, of each of K runs."""

    gradient: Floats
    fall: Floats


@torch.no_grad()
def traced(run: Run, rounds: int) -> Trace:
    """Run so many rounds, taking the gradient before each."""
    fed = federation_of(run)
    total, first = gradient_and_loss(fed)
    for _ in range(rounds - 1):
        run.step()
        total = total + gradient_and_loss(fed)[0]
    run.step()
    last = gradient_and_loss(fed)[1]
    return Trace((total / rounds).numpy(), (first - last).numpy())


class Bound(NamedTuple):
    """The right-hand side of a theorem as `printed`, and with its misprint `mended`."""

    printed: float
    mended: float


def theorem_b1(problem: Problem, *, fall: float, delay: int, rate: float, noise: float) -> Bound | None:
    """Return theorem B.1 of paper 001 for clients alone (d_0 = 0), with sigma_s^2 <= 2 R and variance `noise`.

    None where the step size `rate` is larger than the theorem allows. Its fifth term is printed over T^(1/2), but the
    line before in the proof has T^(3/2). The term can be negative for batches of more than four records. The proof's
    d_*^3 / d^2 <= d_* does not bound it then, so the mended bound leaves it out.
    """
    d, t, b, smooth = problem.dimension, problem.rounds, problem.batch, problem.smoothness
    share = 1.0 / problem.clients
    moving = rate * smooth * (0.5 + 2.0 * rate * smooth**2)  # the server's, and the clients', whose shares sum to 1
    gamma = delay**2 * 2.0 * moving / (1.0 - delay**2 * (rate * smooth) ** 2)
    if gamma < 0.0 or rate > b / (4.0 * smooth * b + 8.0 * gamma * (2.0 * d + b)):
        return None
    clipped = 2.0 * math.sqrt(2.0 * math.pi) * math.exp(-(_CLIP**2) / 8.0)
    root = math.sqrt(d / t) / share
    others = (
        8.0 * root * fall
        + 2.0 * d / (share * t)
        + 8.0 * root / (smooth * problem.clients * d)
        + 16.0 * (4.0 * smooth + 2.0 * gamma) * root * 2.0 * problem.square_norm / b
        + 16.0 * (2.0 * smooth + gamma) * root * (clipped * problem.clip**2 / b + noise)
    )
    fifth = 4.0 * ((4.0 - b) * smooth + (b + 2.0) * gamma) * root / b
    return Bound(*((others + last) / (1.0 - clipped) for last in (fifth, max(0.0, fifth) / t)))


def theorem_52(problem: Problem, *, fall: float, delay: int, rate: float, smoothing: float) -> Bound:
    """Return theorem 5.2 of paper 003 without compression: G_*^2 = 2 R, L_* = L; a server without parameters.

    `fall` stands in for f^0 - f^*, which is larger. With a step of 1 / sqrt(T) the last summand of the third term,
    2 L_*^2 T, keeps the bound from falling with T, against remark 5.3: the mended bound leaves it out. The text at hand
    has no proof.
    """
    p, t, d, smooth = problem.clients, problem.rounds, problem.classes, problem.smoothness
    square = 2.0 * problem.square_norm
    curved = (smoothing * smooth * d) ** 2 * square
    start = 4.0 * p * fall / (t * rate)
    second = 2.0 * rate * p * smooth * (4.0 * d * square**2 + curved)
    delayed = 7.0 * rate**2 * p * delay * square
    third = delayed * (4.0 * d * square + smoothing**2 * smooth**4 * d**2)
    mended = start + second + third + p * curved
    return Bound(mended + delayed * 2.0 * smooth**2 * t, mended)


def largest_delay(config: AsyncConfig, problem: Problem, seed: int) -> int:
    """Return by how many rounds the oldest embedding that a round may use lags behind.

    A record that a client uses once in each pass of n of its rounds waits for at most 2 n - 1 of them.
    """
    wait = 2 * config.steps_per_pass(problem.records) - 1
    active = active_clients(config, problem.clients, seed)
    order = [next(active) for _ in range(problem.rounds)]
    delay = 0
    for client in range(1, problem.clients + 1):
        own = [0, *(number for number, other in enumerate(order) if other == client)]
        later = [*own[wait:], *[problem.rounds] * wait]
        delay = max(delay, *(late - early - 1 for early, late in zip(own, later, strict=False)))
    return delay


class RatePoint(ResultPart):
    """Means over runs at one value of what varies, beside the theorem's bounds where these are evaluated."""

    value: float
    gradient: float
    fall: float
    printed: float | None = None
    mended: float | None = None

    @property
    def over_fall(self) -> float:
        """The gradient over the fall of F."""
        return self.gradient / self.fall

    @property
    def share(self) -> float | None:
        """The gradient as a share of the smaller bound; negative where that is."""
        bounds = [bound for bound in (self.printed, self.mended) if bound is not None]
        return self.gradient / min(bounds) if bounds else None


class RateRow(Row):
    """Points of a row, and the exponent of the gradient in what varies, fitted in logarithms."""

    points: list[RatePoint]
    promised: float
    exponent: Interval | None = None

    def above(self) -> bool:
        """Return whether the exponent is shown to be above what the theorem gives."""
        return self.exponent is not None and self.exponent.low > self.promised


Varied = Literal["rounds", "width", "clients", "classes", "directions", "noise"]


@dataclass(frozen=True, kw_only=True)
class Rate(TableRow[RateRow]):
    """Runs that differ in one size, which `varies` over `values`.

    Args:
        varies: A size of `Problem`, a setting of the method, or `noise`, the variance sigma_dp^2 of the scalar.
        values: Its values, the smallest first.
        promised: The exponent that the theorem gives as the largest.
        steps: Powers of T and of d in the step size: -1/2 and -1/2 in papers 001 and 004, -1/2 and 0 in 002 and 003.
        theorem: Which bound is evaluated, if any.
        sizes: Sizes of the problem that are not those of `Problem`.
    """

    varies: Varied
    values: Sequence[float]
    promised: float
    steps: Sequence[float]
    theorem: Literal["", "B.1", "5.2"] = ""
    sizes: Mapping[str, float] = field(default_factory=dict)

    row_type: ClassVar[type[Row]] = RateRow

    def run(self, setting: Setting) -> RateRow:
        """Run `setting.seeds` replicas at every value, for at most `setting.epochs` rounds each."""
        done = setting.stage(self.label, len(self.values))
        ratios: list[Floats] = []
        points: list[RatePoint] = []
        for value in self.values:
            problem, config = self._at(value, setting)
            trace = self._trace(problem, config, setting)
            ratios.append(trace.gradient if self.varies == "noise" else trace.gradient / trace.fall)
            means = {name: float(values.mean()) for name, values in trace._asdict().items()}
            bound = self._bound(problem, config, means["fall"], setting)
            shown = {"rounds": problem.rounds, "width": problem.dimension}.get(self.varies, value)
            points.append(RatePoint(value=shown, **means, **(bound._asdict() if bound else {})))
            done(len(points))
        exponent = exponent_of([point.value for point in points], np.array(ratios))
        return RateRow(label=self.label, points=points, promised=self.promised, exponent=exponent, **self.tags)

    def _at(self, value: float, setting: Setting) -> tuple[Problem, TrainingConfig]:
        """Return the problem and the configuration at a value of what varies; steps and smoothing are the theorem's."""
        sizes: dict[str, Any] = {**self.sizes}
        options: dict[str, Any] = {**self.options}
        if self.varies == "noise":
            options["sigma"] = math.sqrt(value)
        else:
            (sizes if self.varies in Problem.__dataclass_fields__ else options)[self.varies] = int(value)
        problem = Problem(**sizes)
        problem = Problem(**{**sizes, "rounds": min(problem.rounds, setting.epochs)})
        method = method_named(self.method)
        scalars = "sigma" in method.config.model_fields
        rate = problem.rounds ** self.steps[0] * problem.largest ** self.steps[1]
        total = problem.clients * problem.dimension + problem.server
        smoothing = 1.0 / math.sqrt(problem.rounds) / (problem.smoothness * total if scalars else 1.0)
        sigma = options.get("sigma", 0.0)
        noised = {
            "sigma": sigma,
            "clip": problem.clip,
            "server_clip": problem.clip,
            "server_smoothing": smoothing,
            "server_noise_multiplier": sigma * problem.batch / problem.clip,
        }
        own = {
            "batch_size": problem.batch,
            "epochs": -(-problem.rounds * problem.batch // problem.records),
            "client_rate": rate,
            "server_rate": rate,
            "smoothing": smoothing,
        }
        return problem, method.configure(**{**own, **(noised if scalars else {}), **options})

    def _begun(self, problem: Problem, config: TrainingConfig, setting: Setting) -> Run:
        context = RunContext(seed=setting.seed, replicas=range(setting.seeds))
        return method_named(self.method).start(problem.data(setting.seed), config, context)

    def _trace(self, problem: Problem, config: TrainingConfig, setting: Setting) -> Trace:
        def compute(_: object) -> Values:
            trace = traced(self._begun(problem, config, setting), problem.rounds)
            return {name: values.tolist() for name, values in trace._asdict().items()}

        facts = {"rate": self.method, "config": config.model_dump(mode="json"), "problem": vars(problem)}
        values = setting.kept.part({**facts, "seed": setting.seed, "seeds": setting.seeds}, compute)
        return Trace(*(np.asarray(values[name], dtype=np.float64) for name in Trace._fields))

    def _bound(self, problem: Problem, config: Any, fall: float, setting: Setting) -> Bound | None:
        """Return the theorem's bound where F falls by so much; None where none is evaluated or it says nothing."""
        if not self.theorem:
            return None
        delay = largest_delay(config, problem, setting.seed)
        known: dict[str, Any] = {"fall": fall, "delay": delay, "rate": config.client_rate}
        if self.theorem == "B.1":
            return theorem_b1(problem, **known, noise=config.sigma**2)
        return theorem_52(problem, **known, smoothing=config.smoothing)

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        for value in self.values:
            self._at(value, setting)
        return self.label

    @torch.no_grad()
    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`."""
        seconds = 0.0
        for value in self.values:
            problem, config = self._at(value, setting)
            run = self._begun(problem, config, setting)
            each = pace(run.step, most=min(5, problem.rounds)) + pace(partial(gradient_and_loss, federation_of(run)))
            seconds += problem.rounds * each
        return Work(seconds)


def exponent_of(values: Sequence[float], ratios: Floats) -> Interval | None:
    """Return the slope of log `ratios` (values, runs) in log values: mean over runs, with Student's 95% interval.

    None for one value, for one run, and where a ratio is not above 0.
    """
    from scipy.special import stdtrit

    runs = ratios.shape[1]
    if len(set(values)) < 2 or runs < 2 or not (ratios > 0.0).all():
        return None
    slopes = np.polyfit(np.log(values), np.log(ratios), 1)[0]
    half = float(stdtrit(runs - 1, 0.975) * slopes.std(ddof=1)) / math.sqrt(runs)
    middle = float(slopes.mean())
    return Interval(value=middle, low=middle - half, high=middle + half, n=runs, unit="runs")


def in_words(rows: Sequence[RateRow]) -> str:
    """Return how exponents and gradients compare with the theorems', as a sentence; empty where none is fitted."""
    fitted = [row for row in rows if row.exponent is not None]
    above = [row for row in fitted if row.above()]
    points = [point for row in rows for point in row.points if point.mended is not None]
    return say("convergence", fitted=fitted, above=above, points=points) if fitted else ""
