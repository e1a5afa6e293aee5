"""Private trainings, and searches over their settings: each is tried once on held-out training records, one is kept.

A setting is chosen by its accuracy on the last sixth of the TRAINING records, on which it was not trained; the chosen
one is then trained on all of them, and the test records are looked at once. The search itself is not private.

Trained are DPZV in a sound or claimed form, and the private frozen-client control, each for a target (epsilon, delta).
Each says what it really guarantees against a client: the upper bound of the exact accountant, and the largest lower
bound that a simulated audit proves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from attacks.core.metrics import shared_rate
from mechanisms import MethodSpec, method_named, train
from mechanisms.controls import PrivateControlConfig, control_sigma, private_frozen_clients
from mechanisms.core.checkpoints import run_key
from mechanisms.core.config import rounds_of
from mechanisms.core.context import Deployment, RunContext, TrainingData
from mechanisms.core.scalars import ScalarConfig, scalar_release

from ..accounting import epsilon_from_mu, mu_from_epsilon, upper_bounds
from ..base.findings import Interval
from ..evidence.auditing import simulated_outcome
from ..evidence.bounding import AuditPlan
from ..evidence.refusals import noised
from ..results import Number, Part
from ..statistics.comparison import compared
from .table import ResultPart, Row, Setting, TableRow, Values, Work, counted, pace
from .training import MEGABYTE, area, auc_of, rehearsed
from .words import say

HELD_OUT = 6
"""One in so many training records is held out while settings are tried: 10,000 of MNIST's 60,000."""


Options = Mapping[str, bool | Number]
"""Settings that are tried, by name."""


class Guarantee(Part):
    """An upper bound on epsilon, or what it would be without its `gap`, and a lower one that was proved."""

    sound: bool
    gap: str | None
    epsilon: float | None
    lower: float | None


class SearchedTraining(ResultPart):
    """A training with `options`, and what of the records it got right."""

    options: Options
    accuracy: float
    right: int
    records: int
    rounds: int


class SearchRow(Row):
    """The settings tried, accuracy on held-out records (`validation`), and what the chosen one reaches on test records.

    Its `kind` is sound, control or claimed; `variants` are accuracies on held-out records too.
    """

    kind: str
    tried: list[SearchedTraining]
    validation: float
    variants: dict[str, float]
    accuracy: Interval
    guarantee: Guarantee


@dataclass(frozen=True, kw_only=True)
class Searched(TableRow[SearchRow]):
    """A row: the settings of one kind of training that were tried, and how the chosen one does on the test records."""

    trainer: "FrozenClients | Federated"
    tried: tuple[Options, ...]

    row_type: ClassVar[type[Row]] = SearchRow

    def run(self, setting: Setting) -> SearchRow:
        """Try every setting, train the chosen one `setting.seeds` times; lengths are capped at `setting.epochs`."""
        dataset = setting.dataset(self.dataset)
        data = TrainingData.of(dataset, dtype=torch.float32, device=setting.device)
        kept_back = held_out(data)
        alone = replace(setting, seeds=1)  # a replica is the same whatever the number of others

        def trained(options: Options, replica: int | None = None) -> SearchedTraining:
            """Train on all records, or without a `replica` once on those that are not held out."""
            whole = replica is not None

            def compute(_: object) -> Values:
                context = RunContext(seed=setting.seed, replicas=(replica or 0,), device=setting.device)
                reached = self.trainer.train(data if whole else kept_back, options, context)
                right = int(reached.correct.sum())
                records = reached.correct.size
                return {"accuracy": right / records, "right": right, "records": records, **reached.facts}

            facts = {"part": "whole" if whole else "search", "replica": replica or 0}
            values = alone.part(dataset, compute, **_claim(self.trainer, options), **facts)
            return SearchedTraining(options=options, **values)

        tried = distinct([capped(options, setting.epochs) for options in self.tried])
        done = setting.stage(f"{self.label}: settings", len(tried))
        outcomes = [trained(options) for options in counted(tried, done)]
        best = max(outcomes, key=lambda outcome: outcome.accuracy)
        chosen = best.options
        further = self.trainer.variants(chosen)
        done = setting.stage(f"{self.label}: the chosen setting", setting.seeds + len(further))
        variants = {name: trained(options).accuracy for name, options in counted(further.items(), done)}
        finals = [trained(chosen, replica) for replica in counted(range(setting.seeds), done, start=len(variants))]
        guarantee = self.trainer.guarantee(chosen, deployed(data, setting.seed))
        counts = ("options", "accuracy", "right", "records")
        # Of each run the number of right records is kept: the interval needs no more.
        correct = np.array([np.arange(run.records) < run.right for run in finals])
        return SearchRow(
            label=self.label,
            **self.tags,
            tried=outcomes,
            chosen=chosen,
            validation=best.accuracy,
            variants=variants,
            accuracy=shared_rate(correct),
            by_seed=[run.accuracy for run in finals],
            facts={key: value for key, value in finals[0].to_json().items() if key not in counts},
            guarantee=after_search(guarantee, tried=len(tried)),
        )

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`: of every setting that is tried."""
        data = self._data(setting)
        for options in self.tried:
            self.trainer.work(capped(options, setting.epochs), deployed(data, setting.seed))
        return self.label

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`, by the first setting: others take as much longer as they read more records."""
        data = self._data(setting)
        tried = distinct([capped(options, setting.epochs) for options in self.tried])
        works = [self.trainer.work(options, deployed(data, setting.seed)) for options in tried]
        each = self.trainer.seconds(data, tried[0], setting, trainings=1) / works[0]
        finals = setting.seeds + len(self.trainer.variants(tried[0]))
        return Work(each * sum(works) * (1 + finals / len(works)))

    def _data(self, setting: Setting) -> TrainingData:
        return TrainingData.of(setting.dataset(self.dataset), dtype=torch.float32, device=setting.device)


class PrivateRow(Row):
    """A training with settings as they are given: what it reaches and guarantees; of two classes with its area.

    It is a point at `epsilon` of the line `series` of a figure; the area is under the ROC curve, mean over trainings.
    """

    series: str
    epsilon: float
    accuracy: Interval
    auc: float | None
    guarantee: Guarantee
    megabytes_up: float
    megabytes_down: float

    def by_megabytes(self) -> list[tuple[float, float]]:
        """Return the accuracy in percent by all messages of the training."""
        return [(self.megabytes_up + self.megabytes_down, 100 * self.accuracy.value)]


@dataclass(frozen=True, kw_only=True)
class Taken(TableRow[PrivateRow]):
    """A row: one kind of training with settings that are taken as they are given, and nothing is tried."""

    trainer: "FrozenClients | Federated"
    given: Options
    whole: int

    row_type: ClassVar[type[Row]] = PrivateRow

    def run(self, setting: Setting) -> PrivateRow:
        """Train `setting.seeds` times; as much shorter as fewer than the table's `whole` epochs are wanted."""
        dataset = setting.dataset(self.dataset)
        data = TrainingData.of(dataset, dtype=torch.float32, device=setting.device)
        options = self.shortened(setting.epochs)

        def compute(_: object) -> Values:
            context = RunContext(seed=setting.seed, replicas=range(setting.seeds), device=setting.device)
            reached = self.trainer.train(data, options, context)
            guarantee = self.trainer.guarantee(options, deployed(data, setting.seed))
            correct = shared_rate(reached.correct)
            return {"accuracy": correct, "auc": reached.auc, "guarantee": guarantee, **reached.facts}

        done = setting.stage(self.label, 1)
        values = setting.part(dataset, compute, **_claim(self.trainer, options))
        done(1)
        return PrivateRow(label=self.label, **self.tags, **values)

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        data = TrainingData.of(setting.dataset(self.dataset), dtype=torch.float32, device=setting.device)
        options = self.shortened(setting.epochs)
        work = self.trainer.work(options, deployed(data, setting.seed))
        return run_key({"trainer": type(self.trainer).__name__, "dataset": self.dataset, "work": work})

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`."""
        data = TrainingData.of(setting.dataset(self.dataset), dtype=torch.float32, device=setting.device)
        return Work(self.trainer.seconds(data, self.shortened(setting.epochs), setting, trainings=setting.seeds))

    def shortened(self, epochs: int) -> Options:
        """Return the settings for a table of so many `epochs`: as they are given for all of them or more."""
        length = next(int(value) for key, value in self.given.items() if key in ("epochs", "steps"))
        return capped(self.given, max(1, length * min(epochs, self.whole) // self.whole))


def _claim(trainer: "FrozenClients | Federated", options: Options) -> Values:
    """Return the facts from which a training follows."""
    return {"trainer": type(trainer).__name__, "claim": trainer, "options": options}


def after_search(guarantee: Guarantee, *, tried: int) -> Guarantee:
    """Return the guarantee of the chosen of `tried` settings: a choice by accuracy on records is a release too."""
    if tried == 1:
        return guarantee
    gap = ",".join(name for name in (guarantee.gap, "data-dependent-side") if name)
    return guarantee.model_copy(update={"sound": False, "gap": gap})


def held_out(data: TrainingData) -> TrainingData:
    """Return `data` whose test part is the last sixth of its training records, on which it then does not train."""
    trained = data.records - max(1, data.records // HELD_OUT)
    return replace(
        data,
        features=tuple(block[:trained] for block in data.features),
        labels=data.labels[:trained],
        test_features=tuple(block[trained:] for block in data.features),
        test_labels=data.labels[trained:],
    )


def capped(options: Options, epochs: int) -> Options:
    """Return `options` with at most so many `epochs` or `steps`: passes over the data, all clients together."""
    return {key: min(value, epochs) if key in ("epochs", "steps") else value for key, value in options.items()}


def distinct(settings: Sequence[Options]) -> list[Options]:
    """Return `settings`, each once, in order: a cap on their length may have made some the same."""
    return [options for place, options in enumerate(settings) if options not in settings[:place]]


def deployed(data: TrainingData, seed: int) -> Deployment:
    """Return the deployment that trains on all of `data`."""
    return Deployment(records=data.records, clients=len(data.features), seed=seed)


@dataclass(frozen=True)
class Reached:
    """The outcome of K trainings: which of n test records are right (K, n), and facts about them, plain JSON values.

    Of two classes `auc` is the mean area under the ROC curve.
    """

    correct: NDArray[np.bool_]
    auc: float | None
    facts: Values


AUDIT = AuditPlan(runs=8000, chunk=8000)
"""Simulated runs in each world of the audit that gives the lower bound."""


@dataclass(frozen=True, kw_only=True)
class FrozenClients:
    """The private control of `mechanisms.controls`; options are those of its configuration."""

    epsilon: float
    delta: float

    def config(self, options: Options) -> PrivateControlConfig:
        """Return the configuration of `options`."""
        return PrivateControlConfig(epsilon=self.epsilon, delta=self.delta, **options)

    def train(self, data: TrainingData, options: Options, context: RunContext) -> Reached:
        """Return what `context.replicas` reach."""
        config = self.config(options)
        facts = {
            "rounds": config.steps,
            "participations": config.steps,
            "sigma": control_sigma(config),
            "megabytes_up": 4 * data.records * len(data.features) * config.embedding / MEGABYTE,
            "megabytes_down": 0.0,
        }
        logits = private_frozen_clients(data, config, context)
        return Reached((logits.argmax(2) == data.test_labels).cpu().numpy(), area(logits, data), facts)

    def work(self, options: Options, deployment: Deployment) -> int:
        """Return the records that a training reads; `InputError` where the options do not fit."""
        return self.config(options).steps * deployment.records

    def seconds(self, data: TrainingData, options: Options, setting: Setting, *, trainings: int) -> float:
        """Return how long trainings take, going by a few steps of one."""
        context = RunContext(seed=setting.seed, replicas=(0,), device=setting.device)
        few, more = (
            pace(partial(private_frozen_clients, data, self.config({**options, "steps": steps}), context), most=1)
            for steps in (1, 3)
        )
        return trainings * (few + max(0.0, more - few) / 2 * (self.config(options).steps - 1))

    def guarantee(self, options: Options, deployment: Deployment) -> Guarantee:
        """Return what these options guarantee: T Gaussian mechanisms, all seen by whoever holds the final model."""
        config = self.config(options)
        mu = 2.0 * config.clip * math.sqrt(config.steps) / control_sigma(config)
        return Guarantee(sound=True, gap=None, epsilon=epsilon_from_mu(mu, self.delta), lower=None)

    def variants(self, options: Options) -> Mapping[str, Options]:
        """Return further trainings by name: none, the clients are frozen as it is."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Federated:
    """`method` with `common` settings and those tried.

    Beside the method's own options, a setting may hold `scalar_share`, with `server_update` dp-sgd: the share of mu^2
    that the scalars spend, the server's own noised gradients spending the rest; and `noiseless`.
    """

    method: str
    epsilon: float
    delta: float
    common: Values = field(default_factory=dict)

    @property
    def spec(self) -> MethodSpec:
        """The method."""
        return method_named(self.method)

    def config(self, options: Options, deployment: Deployment) -> ScalarConfig:
        """Return the configuration of `options`; a larger batch than there are records is all of them."""
        values: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, **self.common, **options}
        share = values.pop("scalar_share", None)
        noiseless = values.pop("noiseless", False)
        values["batch_size"] = min(values["batch_size"], deployment.records)
        if share is not None:
            values |= self._budget(values, share, deployment)
        if noiseless:
            values["sigma"] = 0.0
            if share is not None:
                values["server_noise_multiplier"] = 1e-9  # the method must have some
        return noised(self.spec, self.spec.configure(**values))

    def _budget(self, values: Values, share: float, deployment: Deployment) -> dict[str, float]:
        """Return the noise of both channels: mu_scalars^2 = `share` mu^2 and mu_server^2 = (1 - `share`) mu^2."""
        values = {**values, "sigma": 1.0, "server_noise_multiplier": 1.0}
        config = noised(self.spec, self.spec.configure(**values))
        participations = self.spec.scalar_plan(config, deployment).participations
        assert participations is not None
        # A hair below the target, so that rounding cannot leave the forward value above it.
        mu = mu_from_epsilon(self.epsilon, self.delta) * (1.0 - 1e-9)
        moved = 2.0 * math.sqrt(participations) / mu
        return {
            "sigma": moved * config.clip / (config.batch_size * math.sqrt(share)),
            "server_noise_multiplier": moved / math.sqrt(1.0 - share),
        }

    def train(self, data: TrainingData, options: Options, context: RunContext) -> Reached:
        """Return what `context.replicas` reach."""
        deployment = deployed(data, context.seed)
        config = self.config(options, deployment)
        trained = train(self.spec, data, config, context)
        plan = self.spec.scalar_plan(config, deployment)
        facts = {
            "rounds": trained.rounds,
            "participations": plan.participations,
            "sigma": plan.sigma,
            "megabytes_up": trained.ledger.up / MEGABYTE,
            "megabytes_down": trained.ledger.down / MEGABYTE,
        }
        return Reached(trained.correct, auc_of(trained, data, config, context.device), facts)

    def work(self, options: Options, deployment: Deployment) -> int:
        """Return the records that a training reads; `InputError` where the options do not fit."""
        config = self.config(options, deployment)
        return rounds_of(config, deployment.records) * config.batch_size

    def seconds(self, data: TrainingData, options: Options, setting: Setting, *, trainings: int) -> float:
        """Return how long trainings as one stack take, going by a few rounds."""
        config = self.config(options, deployed(data, setting.seed))
        return rehearsed(self.spec, config, data, setting, trainings=trainings).training

    def guarantee(self, options: Options, deployment: Deployment) -> Guarantee:
        """Return what the training of these options guarantees: one client, a record's label replaced."""
        config = self.config(options, deployment)
        plan = self.spec.scalar_plan(config, deployment)
        (bound,) = upper_bounds(
            scalar_release(config, plan, deployment),
            delta=self.delta,
            adversaries=("client",),
            neighbours=("replace-label",),
            accountants=("gdp-exact",),
        )
        simulated = replace(deployment, rounds=len(plan.active))
        audited = simulated_outcome(self.spec, config, simulated, adversary="client", audit=AUDIT)
        return Guarantee(
            sound=bound.sound,
            gap=bound.gap,
            epsilon=None if bound.epsilon is None else bound.epsilon.upper,
            lower=audited.result.privacy.empirical_lower,
        )

    def variants(self, options: Options) -> Mapping[str, Options]:
        """Return further trainings by name: the same without noise, and with clients that do not move."""
        variants: dict[str, Options] = {"noiseless": {**options, "noiseless": True}}
        if {**self.common, **options}.get("top_model", True):
            variants["frozen"] = {**options, "client_rate": 0.0}
        return variants


def of_kind(rows: Sequence[SearchRow], kind: str) -> list[SearchRow]:
    """Return the rows that are `sound`, the `control` or `claimed`."""
    return [row for row in rows if row.kind == kind]


def who_wins(rows: Sequence[SearchRow]) -> str:
    """Return the page's first paragraph: sound DPZV against the control, then what the paper's noise is worth."""
    others = of_kind(rows, "sound")
    sound = max(others, key=lambda row: row.validation, default=None)
    control = next(iter(of_kind(rows, "control")), None)
    side = None
    if sound is not None and control is not None:
        side = compared(sound.accuracy, control.accuracy).side
    others = [row for row in others if row is not sound]
    return say("who_wins", sound=sound, others=others, control=control, side=side, claimed=of_kind(rows, "claimed"))


def what_costs(rows: Sequence[SearchRow]) -> str:
    """Return what the noise costs each sound form beside what zeroth order and the length of training cost it."""
    sound = of_kind(rows, "sound")
    return say("what_costs", rows=sound) if sound else ""
