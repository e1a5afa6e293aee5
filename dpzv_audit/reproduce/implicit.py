"""The noise that zeroth-order estimates carry by themselves, and the privacy paper 003 claims for it (theorem 4.1).

The paper freezes the model, repeats its estimate (eq. 2) 100 times for sigma^2, the variance of an entry, takes zeta as
the largest norm of a record's estimate over the whole training, and puts both through eq. 3 as though the estimate were
a gradient with Gaussian noise. A client knows the directions, so what it is told is q exact numbers: no finite epsilon
follows. The claim is repeated here to compare numbers, not to make it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from dpzv_audit.accounting.accountants import composed_epsilon
from dpzv_audit.checkpoints import FileCheckpoints
from dpzv_audit.errors import InputError
from dpzv_audit.reproduce.table import Item, Row, Setting
from dpzv_audit.reproduce.training import setting_facts
from dpzv_audit.store import Store, verified
from mechanisms import method_named, train
from mechanisms.core.context import TrainingData, dtype_of
from mechanisms.core.method import Run
from mechanisms.core.replicas import cross_entropy
from mechanisms.core.streams import dimension_factor, forward_difference
from mechanisms.core.training import History
from mechanisms.methods.czofo import CZOFOConfig

DELTA = 1e-6
"""delta and delta' of the paper's table 2."""
REPEATS = 100


def gaussian_sigma(norm: float, epsilon: float, delta: float, records: int) -> float:
    """sigma = 2 zeta sqrt(2 ln(1.25 / delta)) / (N epsilon): eq. 3 of paper 003 at equality."""
    return 2.0 * norm * math.sqrt(2.0 * math.log(1.25 / delta)) / (records * epsilon)


def claimed_epsilon(norm: float, variance: float, delta: float, records: int) -> float:
    """Epsilon of one round by eq. 3, for the largest norm zeta and the variance sigma^2 of an entry."""
    return gaussian_sigma(norm, 1.0, delta, records) / math.sqrt(variance)


@dataclass(frozen=True, kw_only=True)
class ImplicitNoise(Item):
    """A row of table 2: q directions, and what the paper prints for them."""

    method: str = "czofo"
    paper: Mapping[str, float]

    def run(self, setting: Setting) -> Row:
        """Train one replica; measure the estimates after every epoch, and claim what the paper claims."""
        dataset = setting.load(self.dataset)
        config = CZOFOConfig.model_validate({**self.options, "epochs": setting.epochs * self.passes})
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)
        records = len(dataset.train)
        rounds = config.epochs * (records // config.batch_size)
        facts = {**setting_facts(setting, dataset), "implicit": config.model_dump(mode="json")}

        def compute(checkpoints: FileCheckpoints | None) -> Row:
            measures = _Measures(config, data, checkpoints, setting.seed)
            train(
                method_named("czofo"),
                data,
                config,
                seed=setting.seed,
                device=setting.device,
                progress=setting.stage(self.label, rounds),
                evaluate_epochs=True,
                checkpoints=measures,
            )
            measures.remove()
            return {"variance": measures.variances[-1], "norm": max(measures.norms), "norms": measures.norms}

        measured = setting.kept.part(facts, compute)
        epsilon = claimed_epsilon(measured["norm"], measured["variance"], DELTA, records)
        return {
            "label": self.label,
            "options": self.options,
            **measured,
            "rounds": rounds,
            "epsilon": epsilon,
            "epsilon_composed": composed_epsilon(epsilon, rounds, DELTA),
            "delta_composed": rounds * DELTA + DELTA,
            "paper": self.paper,
            "paper_epsilon_by_theorem": composed_epsilon(self.paper["epsilon"], int(self.paper["rounds"]), DELTA),
        }


class _Measures:
    """Measures the estimates after every epoch, where a run is saved; goes on with it where it is taken up again.

    `norms` and `variances` are by epoch: the largest norm of a record's estimate and the mean variance of an entry,
    over `REPEATS` estimates for one batch, in units of the gradient of the batch's summed loss.
    """

    def __init__(self, config: CZOFOConfig, data: TrainingData, checkpoints: FileCheckpoints | None, seed: int) -> None:
        self._config, self._data, self._checkpoints, self._seed = config, data, checkpoints, seed
        self.norms: list[float] = []
        self.variances: list[float] = []

    def load(self, run: Run) -> History:
        """See `mechanisms.core.training.Checkpoints.load`; `InputError` where its measures are gone or damaged."""
        if self._checkpoints is None:
            return []
        history = self._checkpoints.load(run)
        if history:
            self.norms, self.variances = _measured(self._path(), len(history))
        return history

    def save(self, run: Run, history: History) -> None:
        """See `mechanisms.core.training.Checkpoints.save`; the measures go first, so that none is missing."""
        estimates = self._estimates(run)
        self.norms.append(float(torch.linalg.vector_norm(estimates, dim=2).max()))
        self.variances.append(float(estimates.var(0).mean()))
        if self._checkpoints is not None:
            path, cure = self._path(), "make room and go on with ‹resume›"
            Store(path.parent).write(path.name, [self.norms, self.variances], cure=cure)
            self._checkpoints.save(run, history)

    def remove(self) -> None:
        """Forget the file of measures: the run is done."""
        if self._checkpoints is not None:
            self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        assert self._checkpoints is not None
        return self._checkpoints.path.with_suffix(".measures")

    def _estimates(self, run: Run) -> torch.Tensor:
        """Estimates (`REPEATS`, B, width) of dL/dh_1 for the first B training records by eq. 2, the model frozen."""
        fed, config = run.federation, self._config
        records, width = config.batch_size, fed.width
        rows = fed.table[:records].clone()
        labels = self._data.labels[:records]
        generator = torch.Generator(device=fed.device).manual_seed(self._seed + run.round)

        def batch_losses(points: torch.Tensor) -> torch.Tensor:
            moved = rows.repeat(len(points), 1, 1)
            moved[:, :, fed.slots[0]] = points.view(-1, records, width)
            logits = fed.server.forward(fed.server_parameters, moved.flatten(0, 1).unsqueeze(0))
            return cross_entropy(logits, labels.repeat(1, len(points))).view(len(points), records).sum(1)

        own = rows[:, fed.slots[0]].flatten()
        found = []
        for _ in range(REPEATS):
            shape = (config.directions, records, width)
            draws = torch.randn(shape, generator=generator, dtype=fed.dtype, device=fed.device)
            if config.direction != "gaussian":
                radius = 1.0 if config.direction == "unit-sphere" else math.sqrt(width)
                draws *= radius / torch.linalg.vector_norm(draws, dim=2, keepdim=True)
            phi = dimension_factor(config.direction, width)
            estimate = forward_difference(batch_losses, own, draws.flatten(1), mu=config.smoothing, phi=phi)
            found.append(estimate.view(records, width))
        return torch.stack(found)


def _measured(path: Path, epochs: int) -> tuple[list[float], list[float]]:
    """Return norms and variances of the first `epochs` epochs, from the file that `_Measures.save` wrote."""
    try:
        norms, variances = verified(path.read_bytes())
    except (OSError, ValueError):
        norms = variances = []
    if min(len(norms), len(variances)) < epochs:
        raise InputError(f"{path} is missing or damaged; start without ‹resume›, which replaces it")
    # The measures are written first, so an interrupt between the two leaves one too many.
    return norms[:epochs], variances[:epochs]
