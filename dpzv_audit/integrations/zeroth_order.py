"""Private fine-tuning of zeroth order, in place, and the same training as a mechanism under audit.

A step draws a direction from a seed, moves the model to both ends of it and back by drawing it again (MeZO, Malladi et
al., NeurIPS 2023), and releases the mean of the records' clipped loss differences with noise (DPZero, arXiv
2310.09639). Neither gradients nor a second model are held: a training is its start, and a seed and a scalar for each
step.

Public are the start, the seeds, the scalars, the expected size of a batch and the chance that a record is in one.
Batches are secret, each record's coin its own. Records are evaluated one by one, so that no difference depends on who
else is in the batch, and are added in whole steps of the grid that the noise is on: the bound is one of the program,
not of real numbers. Noise and coins come from the operating system unless an audit repeats them, and never from what
gives the seeds, which are public.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mechanisms.core.context import RunContext
from mechanisms.core.scalars import NoisedScalars
from mechanisms.core.secret import Origin, SecretBits
from mechanisms.methods.dpzo import DPZOConfig

from ..accounting import Release, upper_bounds
from ..base.errors import InputError, check_count, check_names, check_positive
from ..base.findings import AdversaryName
from ..base.seeds import Purpose, stream
from ..games.transcript import Sampling, known_ids_score, mixture_score

Neighbours = Literal["add-remove", "zero-out", "replace-record"]
Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]

_SEEDS = 2**63
_FAR = 10.0
"""The canary's difference, in clips."""


def text_losses(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each record (n,) of token `ids` (n, length) under a Hugging Face model that classifies."""
    padding = getattr(model.config, "pad_token_id", None)
    present = torch.ones_like(ids) if padding is None else (ids != padding).long()
    logits: Tensor = model(input_ids=ids, attention_mask=present).logits
    return functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class ScalarStep:
    """The release of a step: the seed of its direction, and the noised scalar by which the model moved along it."""

    seed: int
    scalar: float


@dataclass(frozen=True, kw_only=True)
class ZerothOrderTraining:
    """A private training of zeroth order; an audit runs it as `run(world, rng)` (`dpzv_audit.games.mechanism`).

    In the world 1 there is one record more, whose difference is far above the clip in every batch that it is in. In the
    world 0 it is absent (`add-remove`), counts 0 (`zero-out`) or is as far below (`replace-record`). The adversary sees
    seeds and scalars and knows all other records and their batches; where `known_ids` also those of the canary.

    Attributes:
        model: Where the training starts; it is left as it is.
        inputs: The other records, (D, ...), and their `targets` (D, ...).
        batch_size: Public number that sums are divided by, B.
        sample_rate: Public chance of a record to be in a batch.
        steps: Steps, T.
        noise_multiplier: Standard deviation of the noise over what one record adds at most, C/B.
        max_grad_norm: Clip of a record's difference, C.
        rate: Learning rate.
        smoothing: Length of a step along a direction, lambda.
        loss: Losses of each of some records under a model; by default of token ids.
        neighbours: How the worlds differ, which the claim is for as well.
        known_ids: Whether batches are known, so that sampling hides nothing.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    batch_size: int
    sample_rate: float
    steps: int
    noise_multiplier: float
    max_grad_norm: float = 1.0
    rate: float = 1e-3
    smoothing: float = 1e-3
    loss: Losses = text_losses
    neighbours: Neighbours = "add-remove"
    known_ids: bool = False

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("steps", self.steps)
        for name in ("noise_multiplier", "max_grad_norm", "smoothing"):
            check_positive(name, getattr(self, name))
        check_names("neighbours", [self.neighbours], ("add-remove", "zero-out", "replace-record"))
        if not 0.0 < self.sample_rate <= 1.0:
            raise InputError("use a number in (0, 1]", "sample_rate", self.sample_rate)
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"inputs are {len(self.inputs)} records and targets {len(self.targets)}; use as many of each"
            )
        if self.known_ids and self.neighbours == "add-remove":
            rule = " with known_ids; use zero-out or replace-record: the ids show who is there"
            raise InputError(rule, "neighbours", self.neighbours)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a scalar."""
        return self.noise_multiplier * self.max_grad_norm / self.batch_size

    @property
    def release(self) -> Release:
        """The release of a training, as an accountant takes it."""
        return Release(
            batch_size=self.batch_size,
            sample_rate=self.sample_rate,
            rounds=self.steps,
            clip=self.max_grad_norm,
            sigma=self.sigma,
            sampler="poisson",
            server_update="none",
            noise="grid",
        )

    def claimed(self, delta: float) -> float:
        """Return the least epsilon at `delta` that an accountant proves; infinite where none does."""
        against: AdversaryName = "client" if self.known_ids else "release"
        bounds = upper_bounds(self.release, delta=delta, adversaries=[against], neighbours=[self.neighbours])
        return min((bound.upper for bound in bounds if bound.sound), default=math.inf)

    def train(self) -> tuple[nn.Module, list[ScalarStep]]:
        """Return a trained copy of the model, and the released steps; noise and batches are drawn in secret."""
        training = _Training(self, np.random.default_rng(), SecretBits())
        released = [training.step() for _ in range(self.steps)]
        return training.model, released

    def replayed(self, released: list[ScalarStep]) -> nn.Module:
        """Return the model after `released` steps; anyone who has the start can compute it."""
        training = _Training(self, np.random.default_rng(0), 0)
        for step in released:
            training.move(step)
        return training.model

    def run(self, world: int, rng: np.random.Generator) -> float:
        """Train in a world, and return how much the release looks like the world 1."""
        replaced = self.neighbours == "replace-record"
        low = -_FAR if replaced else None
        training = _Training(self, rng, int(rng.integers(_SEEDS)), canary=_FAR if world else low)
        for _ in range(self.steps):
            training.step()
        seen = np.array(training.seen)[:, None]
        if self.known_ids:
            return float(known_ids_score(seen, np.array(training.held)[:, None])[0])
        unit = self.max_grad_norm / self.batch_size
        sampling = Sampling(
            sampler="poisson",
            records=len(self.inputs) + 1,
            batch_size=self.batch_size,
            active=(1,) * self.steps,
            sample_rate=self.sample_rate,
        )
        other = -unit if replaced else 0.0
        return float(mixture_score(seen, sampling, sigma=self.sigma, mean_in=unit, mean_out=other)[0])


class _Training:
    """A training in progress: the model, a `canary` by its difference in clips, and the noised differences `seen`."""

    def __init__(
        self, setting: ZerothOrderTraining, rng: np.random.Generator, origin: Origin, canary: float | None = None
    ) -> None:
        self._setting = setting
        self._rng = rng
        self._origin = origin
        self._canary = canary
        self.model = copy.deepcopy(setting.model).eval()
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        config = DPZOConfig(
            batch_size=setting.batch_size, clip=setting.max_grad_norm, sigma=setting.sigma, dtype="float64"
        )
        self._channel = NoisedScalars(config, setting.sigma, RunContext(seed=0, origin=origin))
        self.seen: list[float] = []
        self.held: list[bool] = []

    def step(self) -> ScalarStep:
        """Draw a batch and a direction, release the scalar and move along."""
        setting = self._setting
        # Seeds are public: the coins must not follow from what a generator of theirs gives.
        *others, held = _coins(self._origin, len(setting.inputs) + 1, len(self.seen)) < setting.sample_rate
        seed = int(self._rng.integers(_SEEDS))
        differences = self._differences(seed, np.flatnonzero(others))
        known = self._sums(differences)
        sums = known
        if held and self._canary is not None:
            # From here on it is treated as the others: the clip, the grid, the sum.
            far = self._canary * setting.max_grad_norm * 2.0 * setting.smoothing
            sums = self._sums(torch.cat((differences, differences.new_tensor([far]))))
        scalar = float(self._channel.scalars(sums + self._channel.noise.next())[0])
        self.seen.append(scalar - float(self._channel.scalars(known)[0]))
        self.held.append(bool(held))
        step = ScalarStep(seed, scalar)
        self.move(step)
        return step

    def move(self, step: ScalarStep) -> None:
        """Move along the direction of a released step."""
        self._shift(step.seed, -self._setting.rate * step.scalar)

    def _sums(self, differences: Tensor) -> Tensor:
        """Return the sum (1,) of clipped differences (n,), in steps of the grid."""
        return self._channel.sums(differences.clone()[None], 0.5 / self._setting.smoothing, None)

    @torch.no_grad()
    def _differences(self, seed: int, batch: NDArray[np.int64]) -> Tensor:
        """Return the losses of a batch at one end of a direction less those at the other, (n,), in double precision."""
        smoothing = self._setting.smoothing
        self._shift(seed, smoothing)
        above = self._losses(batch)
        self._shift(seed, -2.0 * smoothing)
        below = self._losses(batch)
        self._shift(seed, smoothing)
        return above - below

    def _losses(self, batch: NDArray[np.int64]) -> Tensor:
        setting = self._setting
        losses = [torch.zeros(0, dtype=torch.float64)]
        for n in batch:
            losses.append(setting.loss(self.model, setting.inputs[n : n + 1], setting.targets[n : n + 1]).double())
        return torch.cat(losses)

    @torch.no_grad()
    def _shift(self, seed: int, scale: float) -> None:
        """Move the parameters by `scale` times the direction of `seed`, a standard normal of each."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self._parameters:
            direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(direction, alpha=scale)


def _coins(origin: Origin, count: int, step: int) -> NDArray[np.float64]:
    """Return `count` uniform numbers in [0, 1) of a step, from secret bits or from a seed."""
    if isinstance(origin, SecretBits):
        return np.ldexp((origin.words(count, Purpose.BATCHES, step) >> np.uint64(11)).astype(np.float64), -53)
    return stream(origin, Purpose.BATCHES, step).random(count)
