"""Label inference by model completion (Fu et al., USENIX Security 2022, passive) on halves of MNIST and of CIFAR-10.

A client puts a head on its frozen bottom model and trains it from a few labels. The same head on its raw features, and
on a bottom model that was never trained, says how much of that is due to the training that everybody took part in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from attacks.intervals import rates_difference
from attacks.label_completion import RAW, UNTRAINED
from dpzv_audit.evaluation.comparing import compared, interval_of
from dpzv_audit.evidence import LEAST_TRAININGS, Interval
from dpzv_audit.reproduce.attacked import (
    FALSE_ALARM,
    attacked_part,
    control_text,
    interval_figure,
    interval_text,
    listed,
)
from dpzv_audit.reproduce.direct import HALVES
from dpzv_audit.reproduce.table import Column, PaperTable, Result, Setting
from dpzv_audit.reproduce.training import controls_part, percent
from mechanisms import method_named

CONFIDENCE = 0.95
"""Of all differences of a table together: each has its share of the error."""
_SHORT = {RAW: "raw features", UNTRAINED: "untrained"}

PHOTOGRAPHS: Mapping[str, Any] = MappingProxyType(
    {"name": "cifar10", "clients": 2, "partition": "halves", "subset": True}
)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """`label_completion` on `method`, from `labels_per_class` labels, and what was published for it."""

    label: str
    method: str
    options: Mapping[str, object]
    dataset: Mapping[str, Any] = field(default_factory=lambda: HALVES)
    passes: int = 1
    """Epochs of D/B rounds in one of the table's."""
    labels_per_class: int = 10
    steps: int = 2000
    """Steps of a head's training."""
    paper: str = "-"

    def run(self, setting: Setting) -> Result:
        """Attack `setting.seeds` trainings and as many with labels dealt at random; frozen clients beside both."""
        method, dataset = method_named(self.method), setting.load(self.dataset)
        config = method.configure(**{**self.options, "epochs": setting.epochs * self.passes})
        found = attacked_part(
            setting,
            method,
            config,
            dataset,
            self.label,
            attack="label_completion",
            adversary="client",
            passes=self.passes,
            options={"labels_per_class": self.labels_per_class, "steps": self.steps},
        )
        return {
            "label": self.label,
            "method": self.method,
            "options": dict(self.options),
            "labels_per_class": self.labels_per_class,
            "steps": self.steps,
            "epochs": config.epochs,
            "dataset": dataset.name,
            "notes": list(dataset.notes),
            "paper": self.paper,
            **found,
            **controls_part(setting, config, dataset, self.passes),
        }


def gains(row: Result, confidence: float = CONFIDENCE) -> dict[str, Interval]:
    """By how much the trained bottom model is ahead of each baseline: by records, and seed by seed."""
    rates = row["by_trial"]
    return {
        name: rates_difference(
            interval_of(row["success"]),
            interval_of(row["baselines"][name]),
            (rates["success"], rates[name]),
            confidence,
        )
        for name in (RAW, UNTRAINED)
    }


def verdict(rows: Sequence[Result]) -> str:
    """Where the trained bottom model finds more labels than both baselines in every seed, and where not.

    A row says that training leaks only where both of its differences do, so that they need not share their error.
    """
    leaks: list[str] = []
    others: list[str] = []
    for row in rows:
        differences = gains(row, 1.0 - (1.0 - CONFIDENCE) / len(rows)).values()
        least = min(difference.value for difference in differences)
        ahead = all(compared(difference, 0.0).side == "above" for difference in differences)
        (leaks if ahead else others).append(f"{row['label']} ({least:+.3f})")
    seeds = len(rows[0]["by_trial"]["success"])
    every = "the one seed" if seeds == 1 else f"every one of {seeds} seeds"
    parts = []
    if leaks:
        parts.append(
            f"in {every} training gave the client's bottom model more labels away than features do by themselves in "
            f"{listed(leaks)}"
        )
    if others:
        parts.append(
            f"in {listed(others)} not in every seed, or by too little to be told from luck: no evidence of a leak "
            "beyond how features align with labels"
        )
    if seeds < LEAST_TRAININGS:
        parts.append(f"{seeds} {'seed is' if seeds == 1 else 'seeds are'} too few to tell of others")
    return (
        f"{'; '.join(parts)} (least lead over raw features and an untrained bottom model; by records at "
        f"{100 * CONFIDENCE:g}% for all rows together)"
    )


def remarks(rows: Sequence[Result]) -> str:
    """The sentence that follows from the rows, controls that fail, and what the data sets say of themselves."""
    notes = dict.fromkeys(f"{row['dataset']}: {note}" for row in rows for note in row["notes"])
    control = control_text(rows, f"at a false-alarm rate of {FALSE_ALARM:g} over the table")
    return ". ".join([verdict(rows), control[0].upper() + control[1:], *notes])


def figure(result: Result) -> str:
    """The trained bottom model beside both baselines, row by row."""
    rows = result["rows"]
    return interval_figure(
        f"figure-{result['table']}",
        [
            (
                row["label"],
                {"trained": row["success"]} | {_SHORT[name]: row["baselines"][name] for name in (RAW, UNTRAINED)},
            )
            for row in rows
        ],
        chance=rows[0]["baselines"]["prior"],
        x_label="share of labels found; dashed: guessing",
        subject=f"Label inference by model completion, {result['source']}",
    )


def _gain(row: Result, name: str) -> str:
    found = gains(row)[name]
    over = found.over_trainings
    reach = f"; {over.count} seeds {over.least:+.4f} to {over.most:+.4f}" if over and over.count > 1 else ""
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]{reach}"


_SPLIT = {"client_rate": 0.05, "server_rate": 0.05, "momentum": 0.9, "server_momentum": 0.9}
_LINEAR = {"batch_size": 64, "embedding": 64, "hidden": 128}
_CNN = {**_LINEAR, **_SPLIT, "client_rate": 0.03, "server_rate": 0.03, "client_model": "strip-cnn"}

FU = PaperTable(
    name="fu-completion",
    summary="label inference by model completion on halves of MNIST and CIFAR-10 (Fu et al. 2022)",
    source="Fu et al. 2022, passive label inference by model completion, MNIST and CIFAR-10",
    about="Labels of training records without a granted label that were found by a head on the client's bottom model, "
    "by the same head on its raw features, and by the same head on an untrained bottom model, with 95% intervals "
    "by records and how far the seeds reach; each seed has its own models, batches and granted labels (10 a class "
    "unless the row says otherwise). Differences are paired by seed. MNIST: halves of the flattened image, one "
    "linear layer to 64 and ReLU a client; CIFAR-10: left and right half, a two-layer CNN to 64 a client, twice "
    "the epochs. The server has 128 hidden units. Beside them the attack where labels were dealt at random before "
    "training, scored against the true ones, and the accuracy of the attacked training in percent with both "
    "frozen-client controls.",
    columns=(
        Column("row", lambda row: str(row["label"])),
        Column("trained bottom model", lambda row: interval_text(row["success"])),
        Column("raw features", lambda row: interval_text(row["baselines"][RAW])),
        Column("untrained bottom model", lambda row: interval_text(row["baselines"][UNTRAINED])),
        Column("trained - raw", lambda row: _gain(row, RAW)),
        Column("trained - untrained", lambda row: _gain(row, UNTRAINED)),
        Column("held-out records", lambda row: interval_text(row["measures"]["held-out records"])),
        Column("published", lambda row: str(row["paper"])),
        Column("majority class", lambda row: interval_text(row["baselines"]["majority"])),
        Column("trained on random labels", lambda row: interval_text(row["controls"]["shuffled_labels"])),
        Column("test accuracy", lambda row: percent(row["training"])),
        Column("frozen clients, same rate", lambda row: f"{100 * row['frozen_clients']['value']:.2f}"),
        Column("frozen clients, tuned", lambda row: f"{100 * row['frozen_clients_tuned']['value']:.2f}"),
    ),
    figure=figure,
    remark=remarks,
    epochs=3,
    epochs_of="the protocol's",
    seeds=5,
    items=(
        Completion(label="MNIST, split learning", method="split", options={**_LINEAR, **_SPLIT}),
        Completion(label="MNIST, VAFL", method="vafl", options=_LINEAR, passes=2),
        Completion(label="MNIST, VFL-CZOFO, q = 10", method="czofo", options=_LINEAR, passes=2),
        Completion(
            label="MNIST, DPZV, no noise",
            method="dpzv",
            options={**_LINEAR, "epsilon": None, "calibration": "none"},
            passes=2,
        ),
        Completion(label="MNIST, DPZV, epsilon 1", method="dpzv", options={**_LINEAR, "epsilon": 1.0}, passes=2),
        Completion(
            label="CIFAR-10, split learning, 4 labels a class",
            method="split",
            options=_CNN,
            dataset=PHOTOGRAPHS,
            passes=2,
            labels_per_class=4,
            paper="0.80 (0.63 held out, accuracy 82.8)",
        ),
    ),
    notes=(
        "published: ResNet-18 bottom models on all of CIFAR-10, 4 labels a class; reruns differ by 7 points",
        "a head has batch norm, ReLU and a linear layer, trained in the MixMatch way for 2,000 steps; DPZV's noise at "
        "epsilon 1 and delta = 1e-5 follows from theorem 5.1 of paper 001, which does not give what it claims",
    ),
)
