"""Trainings with Opacus as mechanisms under audit: a user's model, loss and data in two neighbouring worlds.

A world has the canary, and the other has not, has it without a gradient, or has its opposite. Everything else is
Opacus's own: the loader that samples, per-sample gradients, the clip, the noise, the step. The adversary sees the
gradient that each step releases, before the user's optimiser uses it, and knows all other records and the batches that
these are in. Coins of records are independent, so that what an accountant of Poisson sampling claims holds against it.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from ..errors import InputError

try:
    from opacus import GradSampleModule, PrivacyEngine
    from opacus.optimizers import DPOptimizer
except ImportError as error:
    needed = "needs the extra [opacus]: pip install 'dpzv-audit[opacus]'"
    raise ImportError(f"dpzv_audit.integrations.opacus {needed}") from error

Neighbours = Literal["add-remove", "zero-out", "replace-record"]
Score = Literal["likelihood", "size", "view"]
Record: TypeAlias = tuple[Tensor, Any]

_START = 0
"""Seed of a model's start, which is public and the same in every run."""
_LEAST = 1e-300


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return plain stochastic gradient descent at rate 0.1."""
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class OpacusTraining:
    """A training with Opacus that an audit runs: `run(world, rng)`, as `dpzv_audit.games.mechanism` has it.

    Attributes:
        model: Makes the model.
        data: The other records, (features, target) each.
        batch_size: That of the loader which is given to Opacus.
        noise_multiplier: See `opacus.PrivacyEngine.make_private`, as the next three.
        max_grad_norm: Clip of a record's gradient.
        grad_sample_mode: How Opacus gets gradients by sample: hooks, ew or functorch.
        poisson_sampling: Whether each record is in a batch by a coin of its own; else batches are those of a shuffled
            pass, the last of which may be short.
        loss: Mean loss of predictions and targets.
        optimizer: Makes the optimiser of parameters.
        epochs: Passes of the loader.
        neighbours: Whether the canary is left out of the other world, has no gradient there, or the opposite one.
        canary: Features and target of a record; None: the largest gradient that there can be, in a single coordinate,
            in the place of a record's own on the way through the per-sample path.
        opposite: Features and target of the record in its place, with neighbours replace-record and a `canary`.
        known_ids: Whether the adversary knows which batches the canary is in, too.
        score: What a run answers with: the log-likelihood ratio of the worlds, by what Opacus says it does; the log of
            the mean square of all that was released; or a view of both, to which the audit fits a score.

    Raises:
        InputError: Neighbours that do not go with the canary, or with known ids.
    """

    model: Callable[[], nn.Module]
    data: "Dataset[Record]"
    batch_size: int
    noise_multiplier: float
    max_grad_norm: float
    grad_sample_mode: Literal["hooks", "ew", "functorch"] = "hooks"
    poisson_sampling: bool = True
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd
    epochs: int = 1
    neighbours: Neighbours = "add-remove"
    canary: Record | None = None
    opposite: Record | None = None
    known_ids: bool = False
    score: Score = "likelihood"

    def __post_init__(self) -> None:
        if self.canary is not None and self.neighbours == "zero-out":
            right = "must be add-remove or replace-record with a canary of your own, whose gradient stays"
            raise InputError(right, "neighbours", self.neighbours)
        if (self.opposite is None) != (self.canary is None or self.neighbours != "replace-record"):
            right = "goes with neighbours replace-record and a canary, and they need it"
            raise InputError(f"opposite {right}")
        if self.known_ids and self.neighbours == "add-remove":
            right = "must be zero-out or replace-record where ids are known: a record that is left out has none"
            raise InputError(right, "neighbours", self.neighbours)

    def variants(self) -> "dict[str, OpacusTraining]":
        """Return the same training on few records, around multiples of a batch, as they are and blank; by name.

        Each claims what Opacus says of it. Runs answer with views, of which each number is a score.
        """
        found = {}
        for batch in sorted({2, 8, self.batch_size}):
            for count in (2 * batch - 1, 2 * batch, 3 * batch - 1, 3 * batch):
                if count > len(self.data):  # type: ignore[arg-type]
                    continue
                for words, few in (("", _few), (", blank", _blank)):
                    name = f"{count} records, batches of {batch}{words}"
                    found[name] = replace(self, data=few(self.data, count), batch_size=batch, score="view")
        return found or {"as it is": replace(self, score="view")}

    @property
    def divisor(self) -> int:
        """By what Opacus divides a sum of gradients, in the world without the canary where it is left out."""
        records = len(self.data) + (self.neighbours != "add-remove")  # type: ignore[arg-type]
        return max(1, int(records / math.ceil(records / self.batch_size)))

    def run(self, world: int, rng: np.random.Generator) -> float | NDArray[np.float64]:
        """Train once in a world, 1 with the canary; return what the adversary makes of what is released."""
        watched, _ = self._train(world, int(rng.integers(2**62)))
        found = {"likelihood": watched.told, "size": watched.size}
        return np.array([*found.values()]) if self.score == "view" else found[self.score]

    def claimed(self, delta: float) -> float:
        """Return the epsilon that Opacus's own accountant claims at a `delta`."""
        engine = self._engine
        with _quiet():
            return float(engine.get_epsilon(delta))

    @cached_property
    def _engine(self) -> PrivacyEngine:
        return self._train(1, 0)[1]

    def _train(self, world: int, seed: int) -> "tuple[_Watched, PrivacyEngine]":
        with _quiet(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(_START)
            model = self.model()
            torch.manual_seed(seed)
            engine = PrivacyEngine()
            module, optimizer, loader = engine.make_private(
                module=model,
                optimizer=self.optimizer(model.parameters()),
                data_loader=DataLoader(_Marked(self.data, self._held(world)), self.batch_size, shuffle=True),
                noise_multiplier=self.noise_multiplier,
                max_grad_norm=self.max_grad_norm,
                grad_sample_mode=self.grad_sample_mode,
                poisson_sampling=self.poisson_sampling,
            )
            rate = 1.0 / len(loader) if self.poisson_sampling else 1.0
            watched = _Watched(self, module, optimizer, world, rate)
            for _ in range(self.epochs):
                for batch in loader:
                    features, targets, marks = batch if len(batch) else _nothing(self.data)
                    optimizer.zero_grad()
                    self.loss(module(features), targets).backward()
                    watched.step(marks)
            return watched, engine

    def _held(self, world: int) -> Record | None:
        """Return the record that holds the canary's place in a world; None where there is none."""
        if self.neighbours == "add-remove" and not world:
            return None
        first: Record = self.data[0]
        return first if self.canary is None else self.canary if world else self.opposite


class _Marked(Dataset[tuple[Tensor, Any, int]]):
    """Records of a data set, and the canary last, each with a mark that says which it is."""

    def __init__(self, data: "Dataset[Record]", canary: Record | None) -> None:
        self._data = data
        self._others = len(data)  # type: ignore[arg-type]
        self._canary = canary

    def __len__(self) -> int:
        return self._others + (self._canary is not None)

    def __getitem__(self, place: int) -> tuple[Tensor, Any, int]:
        if place < self._others:
            return (*self._data[place], 0)
        assert self._canary is not None
        return (*self._canary, 1)


class _Watched:
    """The steps of one training: the canary's gradient goes in, and what comes out is weighed."""

    def __init__(
        self, training: OpacusTraining, module: GradSampleModule, optimizer: DPOptimizer, world: int, rate: float
    ) -> None:
        self._training = training
        self._module = module
        self._optimizer = optimizer
        self._world = world
        self._rate = 1.0 if training.known_ids else rate
        self.told = 0.0
        self._squares = 0.0
        self._steps = 0

    @property
    def size(self) -> float:
        """The log of the mean square of all that was released."""
        return math.log(max(self._squares / max(1, self._steps), _LEAST))

    def step(self, marks: Tensor) -> None:
        """Take the step of a batch, in which the canary, if it is there, has mark 1."""
        training = self._training
        there = marks == 1
        means = self._means()
        if training.canary is None:
            self._inject(there, means[0] if self._world else means[1])
        others = self._others(~there)
        self._optimizer.step()
        released = _flat([p.grad for p in self._optimizer.params])
        self._squares += float(released.square().mean())
        self._steps += 1
        if training.known_ids and not bool(there.any()):
            return
        seen = released * training.divisor / training.max_grad_norm - others
        ratios = [log_ratio(seen, mean, training.noise_multiplier, self._rate) for mean in means]
        self.told += ratios[0] - ratios[1]

    def _means(self) -> tuple[Tensor, Tensor]:
        """Return what the canary adds in either world, clipped, in units of the clip, as the adversary knows it."""
        training = self._training
        if training.canary is not None:
            one = self._gradient(training.canary)
            return one, torch.zeros_like(one) if training.opposite is None else self._gradient(training.opposite)
        one = torch.zeros(sum(p.numel() for p in self._optimizer.params), dtype=torch.float64)
        one[-1] = 1.0
        return one, -one if training.neighbours == "replace-record" else torch.zeros_like(one)

    def _gradient(self, record: Record) -> Tensor:
        """Return a record's clipped gradient at the model as it is, in units of the clip."""
        features, target = record
        self._module.disable_hooks()
        try:
            loss = self._training.loss(self._module(features[None]), torch.as_tensor(target)[None])
            own = _flat(torch.autograd.grad(loss, list(self._optimizer.params)))
        finally:
            self._module.enable_hooks()
        scaled = own / self._training.max_grad_norm
        norm: Tensor = scaled.norm()
        return scaled / norm.clamp(min=1.0)

    def _inject(self, there: Tensor, mean: Tensor) -> None:
        """Put ten times `mean`, in units of the clip, in the place of the canary's own gradient: the clip takes it."""
        start = 0
        for parameter in self._optimizer.params:
            rows = parameter.grad_sample
            own = mean[start : start + parameter.numel()] * 10.0 * self._training.max_grad_norm
            rows[there] = own.to(rows.dtype).view_as(parameter)
            start += parameter.numel()

    def _others(self, rows: Tensor) -> Tensor:
        """Return the sum of the other records' clipped gradients, in units of the clip."""
        samples = torch.cat([p.grad_sample[rows].flatten(1) for p in self._optimizer.params], 1).double()
        scaled = samples / self._training.max_grad_norm
        norms: Tensor = scaled.norm(dim=1, keepdim=True)
        return (scaled / norms.clamp(min=1.0)).sum(0)


def log_ratio(seen: Tensor, mean: Tensor, noise: float, rate: float) -> float:
    """Return log p(seen) / p0(seen), of N(mean, noise^2 I) at a chance `rate` and else of p0 = N(0, noise^2 I)."""
    shift = float((2.0 * seen - mean) @ mean) / (2.0 * noise * noise)
    return shift if rate == 1.0 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + shift))


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().double().flatten() for part in parts])


def _few(data: "Dataset[Record]", count: int) -> "Dataset[Any]":
    return Subset(data, range(count))


def _blank(data: "Dataset[Record]", count: int) -> "Dataset[Any]":
    """Return so many records without features, of the first one's target."""
    features, target = data[0]
    return TensorDataset(torch.zeros(count, *features.shape), torch.as_tensor(target).repeat(count))


def _nothing(data: "Dataset[Record]") -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch without records, where a loader has seen none yet."""
    features, target = data[0]
    return features[None][:0], torch.as_tensor(target)[None][:0], torch.zeros(0, dtype=torch.int64)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Opacus says of every engine that is made, thousands here, to itself."""
    logger = logging.getLogger("opacus")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
