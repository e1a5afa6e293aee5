"""The noise that zeroth-order estimates carry by themselves, and the privacy paper 003 claims for it (theorem 4.1).

The paper freezes the model, repeats its estimate (eq. 2) 100 times for sigma^2, the variance of an entry, takes zeta as
the largest norm of a record's estimate over the whole training, and puts both through eq. 3 as though the estimate were
a gradient with Gaussian noise. A client knows the directions, so what it is told is q exact numbers: no finite epsilon
follows. The claim is repeated here to compare numbers, not to make it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from mechanisms import method_named, train
from mechanisms.core.checkpoints import FileCheckpoints
from mechanisms.core.config import rounds_of
from mechanisms.core.context import RunContext, TrainingData, dtype_of
from mechanisms.core.method import Run, federation_of
from mechanisms.core.replicas import cross_entropy
from mechanisms.core.streams import dimension_factor, forward_difference
from mechanisms.core.training import History
from mechanisms.methods.czofo import CZOFOConfig

from ..accounting.accountants import composed_epsilon
from ..base.errors import InputError
from .table import ResultPart, Row, Setting, TableRow, Values, Work, pace
from .training import rehearsed

DELTA = 1e-6
"""delta and delta' of the paper's table 2."""
REPEATS = 100


def claimed_epsilon(norm: float, variance: float, delta: float, records: int) -> float:
    """Return epsilon of one round by eq. 3 of paper 003, sigma = 2 zeta sqrt(2 ln(1.25 / delta)) / (N epsilon).

    It is for the largest norm zeta and the variance sigma^2 of an entry.
    """
    return 2.0 * norm * math.sqrt(2.0 * math.log(1.25 / delta)) / records / math.sqrt(variance)


class Measure(ResultPart):
    """The largest norm of a record's estimate and the mean variance of an entry, over `REPEATS` estimates for a batch.

    In units of the gradient of the batch's summed loss.
    """

    norm: float
    variance: float


@dataclass(frozen=True, kw_only=True)
class ImplicitNoise(TableRow[Row]):
    """A row of table 2: q directions, and what the paper prints for them."""

    method: str = "czofo"
    paper: Mapping[str, float]

    def run(self, setting: Setting) -> Row:
        """Train one replica; measure the estimates after every epoch, and claim what the paper claims."""
        dataset = setting.dataset(self.dataset)
        config = self._config(setting)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)
        records = len(dataset.train)
        rounds = rounds_of(config, records)
        implicit = config.model_dump(mode="json")

        def kept(epoch: int, measure: Callable[[], Values]) -> Measure:
            return Measure(**setting.part(dataset, lambda _: measure(), implicit=implicit, epoch=epoch))

        def compute(checkpoints: FileCheckpoints | None) -> Values:
            measures = _Measures(config, data, setting.seed, checkpoints, kept)
            train(
                method_named(self.method),
                data,
                config,
                RunContext(seed=setting.seed, device=setting.device, progress=setting.stage(self.label, rounds)),
                evaluate_epochs=True,
                checkpoints=measures,
            )
            norms = [measure.norm for measure in measures.by_epoch]
            return {"variance": measures.by_epoch[-1].variance, "norm": max(norms), "norms": norms}

        measured = Measure(**setting.part(dataset, compute, implicit=implicit))
        epsilon = claimed_epsilon(measured.norm, measured.variance, DELTA, records)
        return Row(
            label=self.label,
            options=self.options,
            **measured.to_json(),
            rounds=rounds,
            epsilon=epsilon,
            epsilon_composed=composed_epsilon(epsilon, rounds, DELTA),
            delta_composed=rounds * DELTA + DELTA,
            paper=self.paper,
            paper_epsilon_by_theorem=composed_epsilon(self.paper["epsilon"], int(self.paper["rounds"]), DELTA),
        )

    def _config(self, setting: Setting) -> CZOFOConfig:
        return CZOFOConfig.model_validate({**self.options, "epochs": setting.epochs * self.passes})

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        return self.checked(setting)

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`; the estimates after every epoch are measured once."""
        method, _, dataset = self.start(setting)
        config = self._config(setting)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)
        seconds = rehearsed(method, config, data, setting, trainings=1).training
        measures = _Measures(config, data, setting.seed, None, lambda epoch, measure: Measure(**measure()))
        run = method.start(data, config, RunContext(seed=setting.seed, device=setting.device))
        return Work(seconds + config.epochs * pace(lambda: measures.measured(run), most=1))


@dataclass
class _Measures:
    """Measures the estimates after every epoch, where a run is saved; goes on with it where it is taken up again.

    Each of `by_epoch` is a part that `kept` keeps.
    """

    config: CZOFOConfig
    data: TrainingData
    seed: int
    checkpoints: FileCheckpoints | None
    kept: Callable[[int, Callable[[], Values]], Measure]
    by_epoch: list[Measure] = field(default_factory=list)

    def load(self, run: Run) -> History:
        """See `mechanisms.core.training.Checkpoints.load`; `InputError` where its measures are gone or damaged."""
        history = [] if self.checkpoints is None else self.checkpoints.load(run)
        self.by_epoch = [self.kept(epoch, _gone) for epoch in range(1, len(history) + 1)]
        return history

    def save(self, run: Run, history: History) -> None:
        """See `mechanisms.core.training.Checkpoints.save`; the measures go first, so that none is missing."""
        self.by_epoch.append(self.kept(len(history), lambda: self.measured(run)))
        if self.checkpoints is not None:
            self.checkpoints.save(run, history)

    def measured(self, run: Run) -> Values:
        """Return the largest norm of the estimates as `run` stands, and their variance."""
        estimates = self._estimates(run)
        return {"norm": float(estimates.norm(dim=2).max()), "variance": float(estimates.var(0).mean())}

    def _estimates(self, run: Run) -> torch.Tensor:
        """Return estimates (`REPEATS`, B, width) of dL/dh_1 for the first B training records by eq. 2, frozen."""
        fed = federation_of(run)
        config = self.config
        records = config.batch_size
        width = fed.width
        rows = fed.table[:records].clone()
        labels = self.data.labels[:records]
        generator = torch.Generator(device=fed.device).manual_seed(self.seed + run.round)

        def batch_losses(points: torch.Tensor) -> torch.Tensor:
            moved = rows.repeat(len(points), 1, 1)
            moved[:, :, fed.slots[0]] = points.view(-1, records, width)
            logits = fed.server.forward(fed.server_parameters, moved.flatten(0, 1).unsqueeze(0))
            return cross_entropy(logits, labels.repeat(1, len(points))).view(len(points), records).sum(1)

        own = rows[:, fed.slots[0]].flatten()
        estimates = []
        shape = (config.directions, records, width)
        for _ in range(REPEATS):
            draws = torch.randn(shape, generator=generator, dtype=fed.dtype, device=fed.device)
            if config.direction != "gaussian":
                radius = 1.0 if config.direction == "unit-sphere" else math.sqrt(width)
                draws *= radius / draws.norm(dim=2, keepdim=True)
            phi = dimension_factor(config.direction, width)
            estimate = forward_difference(batch_losses, own, draws.flatten(1), mu=config.smoothing, phi=phi)
            estimates.append(estimate.view(records, width))
        return torch.stack(estimates)


def _gone() -> Values:
    raise InputError("a measure of an epoch that was trained is missing; start without ‹resume›, which replaces it")
