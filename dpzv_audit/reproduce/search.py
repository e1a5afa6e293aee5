"""Searches over settings of a private training: every setting is tried once on held-out training records, one is kept.

A setting is chosen by its accuracy on the last sixth of the TRAINING records, on which it was not trained; the chosen
one is then trained on all of them, and the test records are looked at once. The search itself is not private.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attacks.core.metrics import shared_rate
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.findings import to_jsonable
from dpzv_audit.reproduce.private_trainings import Federated, FrozenClients, Options
from dpzv_audit.reproduce.table import Setting, counted
from dpzv_audit.reproduce.text import Row
from dpzv_audit.reproduce.training import setting_facts
from mechanisms.core.data import TrainingData

HELD_OUT = 6
"""One in so many training records is held out while settings are tried: 10,000 of MNIST's 60,000."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A row: the settings of one kind of training that were tried, and how the chosen one does on the test records."""

    label: str
    trainer: FrozenClients | Federated
    tried: tuple[Options, ...]
    dataset: Mapping[str, Any]
    tags: Mapping[str, object] = field(default_factory=dict)

    def run(self, setting: Setting) -> Row:
        """Try every setting, train the chosen one `setting.seeds` times; lengths are capped at `setting.epochs`."""
        dataset = setting.load(self.dataset)
        data = TrainingData.of(dataset, dtype=torch.float32, device=setting.device)
        kept_back = held_out(data)
        tried = distinct(capped(options, setting.epochs) for options in self.tried)
        outcomes = [
            self._trained(setting, dataset, kept_back, options, "search", 0)
            for options in counted(tried, setting.stage(f"{self.label}: settings", len(tried)))
        ]
        best = max(range(len(tried)), key=lambda i: outcomes[i]["accuracy"])
        chosen = tried[best]
        further = self.trainer.variants(chosen)
        done = setting.stage(f"{self.label}: the chosen setting", setting.seeds + len(further))
        variants = {
            name: self._trained(setting, dataset, kept_back, options, "search", 0)["accuracy"]
            for name, options in counted(further.items(), done)
        }
        finals = [
            self._trained(setting, dataset, data, chosen, "whole", replica)
            for replica in counted(range(setting.seeds), done, start=len(variants))
        ]
        # Of each run the number of right records is kept: the interval needs no more.
        correct = np.array([np.arange(run["records"]) < run["right"] for run in finals])
        return {
            "label": self.label,
            **self.tags,
            "tried": [{"options": dict(options), **outcome} for options, outcome in zip(tried, outcomes, strict=True)],
            "chosen": dict(chosen),
            "validation": outcomes[best]["accuracy"],
            "variants": variants,
            "accuracy": to_jsonable(shared_rate(correct)),
            "by_seed": [run["accuracy"] for run in finals],
            "facts": {key: value for key, value in finals[0].items() if key not in ("right", "records", "accuracy")},
            "guarantee": after_search(
                self.trainer.guarantee(chosen, records=data.records, clients=len(data.features), seed=setting.seed),
                tried=len(tried),
            ),
        }

    def _trained(
        self, setting: Setting, dataset: VerticalDataset, data: TrainingData, options: Options, part: str, replica: int
    ) -> Row:
        facts = {
            **setting_facts(setting, dataset),
            "trainer": type(self.trainer).__name__,
            "claim": to_jsonable(self.trainer),
            "options": dict(options),
            "part": part,
            "replica": replica,
        }
        del facts["seeds"]  # a replica is the same whatever the number of others

        def compute(_: Any) -> Row:
            correct, own = self.trainer.train(data, options, seed=setting.seed, replica=replica, device=setting.device)
            return {"accuracy": float(correct.mean()), "right": int(correct.sum()), "records": len(correct), **own}

        return setting.kept.part(facts, compute)


def after_search(guarantee: Row, *, tried: int) -> Row:
    """`guarantee`, of settings as given, where they were chosen among `tried` by accuracy on records: a release too."""
    if tried < 2:
        return guarantee
    gap = ",".join(name for name in (guarantee["gap"], "data-dependent-side") if name)
    return {**guarantee, "sound": False, "gap": gap}


def held_out(data: TrainingData) -> TrainingData:
    """`data` whose test part is the last sixth of its training records, on which it then does not train."""
    cut = data.records - max(1, data.records // HELD_OUT)
    return TrainingData(
        tuple(block[:cut] for block in data.features),
        data.labels[:cut],
        tuple(block[cut:] for block in data.features),
        data.labels[cut:],
        data.classes,
        data.vocabulary,
    )


def capped(options: Options, epochs: int) -> Options:
    """`options` with at most so many `epochs` or `steps`, passes over the data of all clients' rounds together."""
    return {key: min(value, epochs) if key in ("epochs", "steps") else value for key, value in options.items()}


def distinct(settings: Iterable[Options]) -> Sequence[Options]:
    """`settings`, each once, in order: a cap on their length may have made some the same."""
    found: list[Options] = []
    for options in settings:
        if options not in found:
            found.append(options)
    return found
