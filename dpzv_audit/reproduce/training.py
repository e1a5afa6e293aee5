"""A row that is a training: accuracy beside the paper's and beside both frozen-client controls, costs, history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attacks.intervals import shared_rate
from dpzv_audit.checkpoints import FileCheckpoints
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evidence import to_jsonable
from dpzv_audit.halving import shortage
from dpzv_audit.reproduce.table import Column, Result, Setting
from mechanisms import MethodSpec, TrainingConfig, method_named
from mechanisms.controls import frozen_clients, rates_tried
from mechanisms.federation import rounds_of
from mechanisms.stacks import train_in_stacks
from mechanisms.trained import TrainedStack
from mechanisms.training_data import TrainingData, dtype_of

MEGABYTE = 1e6
TUNING_EPOCHS = 5
"""Length of the runs that choose the rate of the tuned control, in the paper's epochs."""
SYNCHRONOUS = frozenset({"split", "compressed", "syn-zoo-vfl"})
"""Methods whose rounds activate every client, so that a pass of every client is D/B rounds."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training of `method` with `options` on `dataset`, and what the paper prints for it."""

    label: str
    method: str
    options: Mapping[str, object]
    dataset: Mapping[str, Any]
    passes: int = 1
    """Epochs of this tool (D/B rounds in all) in one of the paper's."""
    accuracy: float | None = None
    """Test accuracy in the paper in percent, None where it prints none."""
    cost: str = ""
    """Message cost in the paper, as printed."""
    tags: Mapping[str, object] = field(default_factory=dict)
    """What else stands in the row for its columns and figure: plain JSON values."""

    def run(self, setting: Setting) -> Result:
        """Train `setting.seeds` replicas for the epochs asked for; both controls beside them."""
        method, dataset = method_named(self.method), setting.load(self.dataset)
        config = method.configure(**{**self.options, "epochs": setting.epochs * self.passes})
        return {
            "label": self.label,
            "method": self.method,
            "options": dict(self.options),
            **self.tags,
            **trained_part(setting, method, config, dataset, self.label, passes=self.passes),
            "paper_accuracy": None if self.accuracy is None else self.accuracy / 100.0,
            "paper_cost": self.cost,
            **controls_part(setting, config, dataset, self.passes),
        }


def trained_part(
    setting: Setting, method: MethodSpec, config: TrainingConfig, dataset: VerticalDataset, label: str, *, passes: int
) -> Result:
    """Accuracy, costs and history of a training, kept from one run of the table to the next."""
    facts = setting_facts(setting, dataset) | {"method": method.name, "config": config.model_dump(mode="json")}
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)

    def compute(checkpoints: FileCheckpoints | None) -> Result:
        trained, at_once = train_in_stacks(
            data,
            config,
            seed=setting.seed,
            trials=setting.seeds,
            device=setting.device,
            progress=setting.stage(label, rounds_of(config, data.records)),
            checkpoints=lambda first, last: checkpoints and checkpoints.of_stack(first, last, setting.seeds),
        )
        return training_part(trained, passes) | {"protects": method.protects(config)} | shortage(at_once)

    return setting.kept.part(facts, compute)


def training_part(trained: TrainedStack, passes: int) -> Result:
    """Accuracy, history and costs of a training, as plain JSON values.

    Costs are those of the whole run, without the one table of embeddings that asynchronous methods start with.
    """
    several = len(trained.accuracy) > 1
    return {
        "accuracy": to_jsonable(shared_rate(trained.correct)),
        "by_seed": [float(a) for a in trained.accuracy],
        "standard_deviation": float(np.std(trained.accuracy, ddof=1)) if several else None,
        "history": [
            {"epoch": epoch / passes, "accuracy": accuracy, "loss": loss if math.isfinite(loss) else None}
            for epoch, accuracy, loss in trained.history
        ],
        "megabytes_up": (trained.ledger.up - trained.ledger.bytes_up.get("table", 0)) / MEGABYTE,
        "megabytes_down": trained.ledger.down / MEGABYTE,
        "megabytes_table": trained.ledger.bytes_up.get("table", 0) / MEGABYTE,
        "rounds": trained.rounds,
    }


def controls_part(setting: Setting, config: TrainingConfig, dataset: VerticalDataset, passes: int) -> Result:
    """Frozen clients at the row's server rate, and at the rate that does best in training over a grid.

    The rate is chosen by training accuracy in runs of at most `TUNING_EPOCHS` of the paper's epochs, and the control
    then trained for the row's own length. Rows of one length and one server share their controls.
    """
    short = config.model_copy(update={"epochs": min(config.epochs, TUNING_EPOCHS * passes)})
    rates = rates_tried(config)
    done = setting.stage("frozen clients", len(rates) + 2)
    tried = []
    for rate in rates:
        tried.append(_frozen(setting, short, dataset, rate))
        done(len(tried))
    best = max(tried, key=lambda control: control["train_accuracy"])["server_rate"]
    at_rate = _frozen(setting, config, dataset, config.server_rate)
    done(len(rates) + 1)
    tuned = _frozen(setting, config, dataset, best)
    done(len(rates) + 2)
    return {"frozen_clients": at_rate, "frozen_clients_tuned": tuned}


def _frozen(setting: Setting, config: TrainingConfig, dataset: VerticalDataset, rate: float) -> Result:
    apart = {"client_rate", "server_rate", "momentum"}
    server = {name: getattr(config, name) for name in TrainingConfig.model_fields if name not in apart}
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)

    def compute(_: Any) -> Result:
        frozen = frozen_clients(
            data, config, rate=rate, seed=setting.seed, replicas=range(setting.seeds), device=setting.device
        )
        return {
            **to_jsonable(shared_rate(frozen.correct)),
            "server_rate": rate,
            "train_accuracy": frozen.train_accuracy,
        }

    return setting.kept.part(setting_facts(setting, dataset) | {"frozen": server, "rate": rate}, compute)


def setting_facts(setting: Setting, dataset: VerticalDataset) -> Result:
    """What every part of a table depends on."""
    return {
        "dataset": dataset.name,
        "digests": dataset.digests,
        "records": len(dataset.train),
        "partition": dataset.partition,
        "clients": dataset.clients,
        "seed": setting.seed,
        "seeds": setting.seeds,
    }


def percent(row: Result) -> str:
    """Accuracy in percent, with the standard deviation over seeds where there are several."""
    spread = "" if row["standard_deviation"] is None else f" +- {100 * row['standard_deviation']:.2f}"
    return f"{100 * row['accuracy']['value']:.2f}{spread}"


def _paper_percent(row: Result) -> str:
    return "-" if row["paper_accuracy"] is None else f"{100 * row['paper_accuracy']:.2f}"


def _tuned(row: Result) -> str:
    tuned = row["frozen_clients_tuned"]
    return f"{100 * tuned['value']:.2f} ({tuned['server_rate']:g})"


def below_control(rows: Sequence[Result]) -> str:
    """Which rows are no better than frozen clients whose server has a tuned rate, as a sentence."""
    below = [row["label"] for row in rows if row["accuracy"]["value"] <= row["frozen_clients_tuned"]["value"]]
    if not below:
        return ""
    return (
        f"no better than frozen clients with a tuned server: {'; '.join(below)}. What such a method learns at the "
        "clients is not worth what it sends down to them"
    )


def accuracy_columns(cost_heading: str = "") -> tuple[Column, ...]:
    """Columns of a table of accuracies; with the paper's cost where it has a heading."""
    columns = (
        Column("row", lambda row: row["label"]),
        Column("ours", percent),
        Column("paper", _paper_percent),
        Column("frozen clients, same rate", lambda row: f"{100 * row['frozen_clients']['value']:.2f}"),
        Column("frozen clients, tuned (rate)", _tuned),
        Column("up, MB", lambda row: f"{row['megabytes_up']:.1f}"),
        Column("down, MB", lambda row: f"{row['megabytes_down']:.2f}"),
    )
    return (*columns, Column(cost_heading, lambda row: row["paper_cost"])) if cost_heading else columns
