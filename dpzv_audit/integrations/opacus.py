"""Trainings with Opacus as mechanisms under audit: a user's model, loss and data in two neighbouring worlds.

A world has the canary, and the other has not, has it without a gradient, or has its opposite. Everything else is
Opacus's own: the loader that samples, per-sample gradients, the clip, the noise, the step. The adversary sees the
gradient that each step releases, before the user's optimiser uses it, and knows all other records and the batches that
these are in. Coins of records are independent, so that what an accountant of Poisson sampling claims holds against it.
"""

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..base.errors import InputError, check_count
from ..base.findings import EmpiricalBound
from ..statistics.estimators import audit_scores

try:
    from opacus import PrivacyEngine
    from opacus.accountants import create_accountant
except ImportError as error:
    needed = "needs the extra [opacus]: pip install 'dpzv-audit[opacus]'"
    raise ImportError(f"dpzv_audit.integrations.opacus {needed}") from error

from .opacus_records import (
    Canary,
    Marked,
    Record,
    Records,
    alike,
    blank,
    extreme_input,
    few,
    huge,
    mislabelled,
    nothing,
    number_of,
)
from .opacus_steps import Clip, Coins, Known, PlantedLoss, Watched

Neighbours = Literal["add-remove", "zero-out", "replace-record"]
Score = Literal["likelihood", "size", "view"]
Others = Literal["own", "along", "against"]

_START = 0
"""Seed of a model's start, which is public and the same in every run."""
_CALIBRATED: dict[tuple[float | None, float | None, int, int], float] = {}
"""Noise multipliers that Opacus found, by target epsilon and delta, epochs and batches: its search takes seconds."""


@cache
def _epsilon(accountant: str, history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return the epsilon of steps by Opacus's `accountant`: it takes seconds, and variants of a training share it."""
    counting = create_accountant(accountant)
    counting.history = list(history)
    with _quiet():
        return float(counting.get_epsilon(delta))


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return plain stochastic gradient descent at rate 0.1."""
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class OpacusTraining:
    """A training with Opacus that an audit runs: `run(world, rng)`, as `dpzv_audit.games.mechanism` has it.

    Attributes:
        model: Function that makes the model.
        data: Data set of the other records, (features, target) each.
        batch_size: That of the loader which is given to Opacus.
        noise_multiplier: See `opacus.PrivacyEngine.make_private`, as for all arguments of the same names below.
        target_epsilon: With `target_delta` in the place of a noise multiplier: see `make_private_with_epsilon`.
        target_delta: See `target_epsilon`.
        max_grad_norm: Clip of a record's gradient; with `clipping` per_layer one for each parameter.
        clipping: Whether a gradient is clipped as a whole or each parameter's part of it.
        grad_sample_mode: How Opacus gets gradients by sample; ghost clips by norms and keeps none.
        poisson_sampling: Whether each record is in a batch by a coin of its own; else batches are those of a shuffled
            pass, the last of which may be short.
        loss: Mean loss of predictions and targets; `CrossEntropyLoss()` by default.
        optimizer: Function that makes the optimiser of parameters; by default plain SGD at rate 0.1.
        epochs: Passes of the loader; one by default.
        neighbours: Whether the canary is left out of the other world, has no gradient there, or the opposite one.
        canary: `gradient`, the largest that there can be, in the place of a record's own on the way through the
            per-sample path, in a single coordinate (of each parameter, where each is clipped); with ghost clipping
            that of a steep loss, linear in the model's last output. `mislabelled`, the first record with another
            label. `input`, a record of large features. Or features and target of a record of yours.
        opposite: Features and target of the record in its place, with neighbours replace-record and a canary that is a
            record; of a named canary the first record, if not given.
        others: Whether other records have their own gradients, or such as the canary's, or against it.
        known_ids: Whether the adversary knows which batches the canary is in, too.
        score: The answer of a run: the log-likelihood ratio of the worlds for the mechanism that Opacus documents; the
            log of the mean square of all released numbers; or a view of both, to which the audit fits a score.

    Raises:
        InputError: Arguments that do not go with each other.
    """

    model: Callable[[], nn.Module]
    data: "Dataset[Record]"
    batch_size: int
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    target_delta: float | None = None
    max_grad_norm: float | Sequence[float]
    clipping: Literal["flat", "per_layer"] = "flat"
    grad_sample_mode: Literal["hooks", "ew", "functorch", "ghost"] = "hooks"
    poisson_sampling: bool = True
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd
    epochs: int = 1
    neighbours: Neighbours = "add-remove"
    canary: Record | Canary = "gradient"
    opposite: Record | None = None
    others: Others = "own"
    known_ids: bool = False
    score: Score = "likelihood"

    def __post_init__(self) -> None:
        self._check_noise()
        per_layer = self.clipping == "per_layer"
        if per_layer and self.grad_sample_mode == "ghost":
            raise InputError("use flat with grad_sample_mode ghost, as Opacus has it", "clipping", self.clipping)
        if per_layer != isinstance(self.max_grad_norm, Sequence):
            rule = "use one number" + (" for each parameter" if per_layer else ", or clipping per_layer")
            raise InputError(rule, "max_grad_norm", self.max_grad_norm)
        if self.canary != "gradient" and self.neighbours == "zero-out":
            rule = "use add-remove or replace-record with a canary that is a record, whose gradient stays"
            raise InputError(rule, "neighbours", self.neighbours)
        replaced = self.canary != "gradient" and self.neighbours == "replace-record"
        missing = self.opposite is None and replaced and not isinstance(self.canary, str)
        if missing or (self.opposite is not None and not replaced):
            raise InputError(
                "opposite goes with neighbours replace-record and a canary that is a record, and they need it"
            )
        if self.known_ids and self.neighbours == "add-remove":
            rule = "use zero-out or replace-record where ids are known: a record that is left out has none"
            raise InputError(rule, "neighbours", self.neighbours)

    def _check_noise(self) -> None:
        targets = (self.target_epsilon, self.target_delta)
        if self.noise_multiplier is None and None in targets:
            raise InputError("is None; use a number, or give target_epsilon and target_delta", "noise_multiplier")
        if self.noise_multiplier is not None and targets != (None, None):
            rule = "leave it out with target_epsilon and target_delta, which decide it"
            raise InputError(rule, "noise_multiplier", self.noise_multiplier)

    def variants(self) -> "dict[str, OpacusTraining]":
        """Return the same training on other data, by name: where a fault of sizes, batches or clips would show.

        Sizes around multiples of a batch, as the records are and blank; batches of one, of which many are empty; and
        at two batches of few records, these all alike or with huge features, or all others' gradients such as the
        canary's or against it. Each claims Opacus's own epsilon. Runs answer with views, of which each number is a
        score.
        """
        variants: dict[str, OpacusTraining] = {}

        def add(count: int, batch: int, words: str, records: Records = few, others: Others = "own") -> None:
            if count <= number_of(self.data):
                name = f"{count} record{'s' if count > 1 else ''}, batches of {batch}{words}"
                data = records(self.data, count)
                variants[name] = replace(self, data=data, batch_size=batch, others=others, score="view")

        for batch in sorted({2, 8, self.batch_size}):
            for count in (2 * batch - 1, 2 * batch, 3 * batch - 1, 3 * batch):
                add(count, batch, "")
                add(count, batch, ", blank", blank)
        for count in (1, 2):
            add(count, 1, ", some empty")
        for batch in (2, 8):
            add(2 * batch, batch, ", others along the canary", others="along")
            add(2 * batch, batch, ", others against the canary", others="against")
            add(2 * batch, batch, ", all alike", alike)
            if self.data[0][0].is_floating_point():
                add(2 * batch, batch, ", huge", huge)
        return variants

    def divisor_for(self, canaries: int) -> int:
        """Return Opacus's divisor of a sum of gradients, where canaries that may be left out count half."""
        records = number_of(self.data) + (canaries // 2 if self.neighbours == "add-remove" else canaries)
        return max(1, int(records / math.ceil(records / self.batch_size)))

    def run(self, world: int, rng: np.random.Generator) -> float | NDArray[np.float64]:
        """Train once in a world, 1 with the canary; return the adversary's score of the release."""
        watched, _ = self._train(np.array([bool(world)]), int(rng.integers(2**62)))
        scores = {"likelihood": float(watched.ratios[0]), "size": watched.size}
        return np.array([*scores.values()]) if self.score == "view" else scores[self.score]

    def one_run(self, canaries: int, rng: np.random.Generator) -> "OpacusRun":
        """Train once with many gradient canaries, each in by a fair coin of its own; return the scores of the coins.

        Raises:
            InputError: More canaries than the model has parameters, one of which is each canary's own; or a way of
                clipping that leaves no such gradient whole.
        """
        check_count("canaries", canaries)
        if self.canary != "gradient" or self.grad_sample_mode == "ghost" or self.clipping == "per_layer":
            raise InputError("one_run needs the gradient canary, flat clipping, and gradients that are kept by sample")
        most = sum(parameter.numel() for parameter in self.model().parameters() if parameter.requires_grad)
        if canaries > most:
            raise InputError(f"use at most {most}, the parameters of the model", "canaries", canaries)
        coins = rng.random(canaries) < 0.5
        watched, engine = self._train(coins, int(rng.integers(2**62)))
        return OpacusRun(watched.ratios[coins], watched.ratios[~coins], self, engine)

    def claimed(self, delta: float) -> float:
        """Return the epsilon that Opacus's own accountant claims at a `delta`, the larger one of the two worlds.

        Where ids are known nothing is sampled in secret: the accountant then counts every step that a record may be in
        at a sample rate of 1, all of a Poisson loader, one for each pass of a shuffled one.
        """
        return max(self.claim_of(engine, delta) for engine in self._engines)

    def claim_of(self, engine: PrivacyEngine, delta: float) -> float:
        """Return the epsilon that the accountant of an `engine` that trained claims; see `claimed`."""
        history = tuple(map(tuple, engine.accountant.history))
        if self.known_ids:
            history = tuple(
                (noise, 1.0, steps if self.poisson_sampling else self.epochs) for noise, _, steps in history
            )
        return _epsilon(engine.accountant.mechanism(), history, delta)

    @cached_property
    def _engines(self) -> list[PrivacyEngine]:
        """Engines that trained with the canary and, where it may be absent, without: batches may be as many or not."""
        worlds = (True, False) if self.neighbours == "add-remove" else (True,)
        return [self._train(np.array([world]), 0)[1] for world in worlds]

    @cached_property
    def _records(self) -> tuple[Record | None, Record | None]:
        """The canary and its opposite, where these are records."""
        canary = self.canary
        if canary == "gradient":
            return None, None
        if isinstance(canary, str):
            with _seeded(_START):
                named = canary == "mislabelled"
                canary = mislabelled(self.data) if named else extreme_input(self.data, self.model, self.loss)
        first: Record = self.data[0]
        return canary, (self.opposite or first) if self.neighbours == "replace-record" else None

    def _train(self, coins: Coins, seed: int) -> tuple[Watched, PrivacyEngine]:
        with _quiet(), _seeded(_START) as seeded:
            model = self.model()
            known = self._known(len(coins))
            bare = copy.deepcopy(model) if known.by_loss or known.canary is not None else model
            loss = PlantedLoss(self.loss) if known.by_loss else self.loss
            seeded.manual_seed(seed)
            engine = PrivacyEngine()
            module, optimizer, *criterion, loader = self._private(engine, model, loss, self._held(coins))
            rate = 1.0 / len(loader) if self.poisson_sampling else 1.0
            watched = Watched(known, model, bare, optimizer, coins, rate)
            (criterion,) = criterion or [loss]
            for _ in range(self.epochs):
                for batch in loader:
                    features, targets, marks = batch if len(batch) else nothing(self.data)
                    optimizer.zero_grad()
                    if isinstance(loss, PlantedLoss):
                        loss.slopes = watched.slopes(marks)
                    criterion(module(features), targets).backward()
                    watched.step(features, targets, marks)
            return watched, engine

    def _private(
        self, engine: PrivacyEngine, model: nn.Module, loss: nn.Module, held: Sequence[tuple[Record, int]]
    ) -> tuple[Any, ...]:
        """Return the results of `make_private`; noise for a target epsilon is sought once for a number of batches."""
        loader = DataLoader(Marked(self.data, held), self.batch_size, shuffle=True)
        arguments: dict[str, Any] = {
            "module": model,
            "optimizer": self.optimizer(model.parameters()),
            "criterion": loss,
            "data_loader": loader,
            "max_grad_norm": self.max_grad_norm,
            "clipping": self.clipping,
            "grad_sample_mode": self.grad_sample_mode,
            "poisson_sampling": self.poisson_sampling,
        }
        key = (self.target_epsilon, self.target_delta, self.epochs, len(loader))
        noise = self.noise_multiplier if self.noise_multiplier is not None else _CALIBRATED.get(key)
        if noise is not None:
            return tuple(engine.make_private(noise_multiplier=noise, **arguments))
        private = tuple(
            engine.make_private_with_epsilon(
                target_epsilon=self.target_epsilon, target_delta=self.target_delta, epochs=self.epochs, **arguments
            )
        )
        _CALIBRATED[key] = float(private[1].noise_multiplier)
        return private

    def _known(self, canaries: int) -> Known:
        canary, opposite = self._records
        signs = {"own": None, "along": 1.0, "against": -1.0}
        limits = self.max_grad_norm if isinstance(self.max_grad_norm, Sequence) else (self.max_grad_norm,)
        return Known(
            clip=Clip(tuple(limits)),
            divisor=self.divisor_for(canaries),
            loss=self.loss,
            by_loss=self.grad_sample_mode == "ghost",
            first=self.data[0],
            canary=canary,
            opposite=opposite,
            outside=-1.0 if self.neighbours == "replace-record" else 0.0,
            others=signs[self.others],
            ids=self.known_ids,
        )

    def _held(self, coins: Coins) -> list[tuple[Record, int]]:
        """Return the records in the canaries' places, each with its mark."""
        canary, opposite = self._records
        first: Record = self.data[0]
        inside, outside = canary or first, opposite or first
        places = enumerate(coins, start=1)
        if self.neighbours == "add-remove":
            return [(inside, mark) for mark, coin in places if coin]
        return [(inside if coin else outside, mark) for mark, coin in places]


@dataclass(frozen=True)
class OpacusRun:
    """The scores of one training with coins: of canaries that were in, and of those that were not."""

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    training: OpacusTraining
    engine: PrivacyEngine

    def claimed(self, delta: float) -> float:
        """Return the epsilon that Opacus's own accountant claims of this training; see `OpacusTraining.claimed`."""
        return self.training.claim_of(self.engine, delta)

    def bound(self, delta: float, *, confidence: float = 0.95, seed: int = 0) -> EmpiricalBound:
        """Return the lower bound on epsilon by the estimator `one-run`; `seed` draws its pilot."""
        return audit_scores(
            self.inside,
            self.outside,
            delta=delta,
            confidence=confidence,
            estimators=("one-run",),
            coin_flips=True,
            seed=seed,
        )[0]


@contextmanager
def _seeded(seed: int) -> Iterator[torch.Generator]:
    """Draw from the seed in the block, with gradients, and leave the generator of others as it was."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # torch.manual_seed would take note of the seed for every device that is not there, at some cost.
        yield torch.default_generator.manual_seed(seed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of Opacus on every engine that is made, thousands here."""
    logger = logging.getLogger("opacus")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
