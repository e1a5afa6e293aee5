"""Sections that several results share: utility beside controls, costs, and what a repeat needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from attacks.core.intervals import shared_rate
from attacks.core.metrics import majority_baseline
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.common import Result
from dpzv_audit.evidence import to_jsonable
from dpzv_audit.runs import environment
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.trained import TrainedStack


def utility_section(
    trained: TrainedStack, dataset: VerticalDataset, controls: Mapping[str, Any], confidence: float = 0.95
) -> Result:
    """Test accuracy with its interval beside the majority class and the given controls, and the history by epoch.

    An accuracy's `n` counts test records, which all its `trainings` share.
    """
    section: Result = {
        "test_accuracy": _rate(trained.correct, confidence),
        "controls": {"majority": majority_baseline(dataset.test.labels, dataset.classes), **controls},
        "final_loss": _finite(float(trained.loss.mean())),
    }
    if trained.history:
        section["history"] = [
            {"epoch": epoch, "test_accuracy": accuracy, "loss": _finite(loss), "bytes_up": up, "bytes_down": down}
            for (epoch, accuracy, loss), (up, down) in zip(trained.history, trained.traffic, strict=True)
        ]
    return section


def control_section(server_rate: float, correct: np.ndarray, confidence: float) -> Result:
    """Accuracy of frozen clients, of `correct` (K, n), with its interval, and the server rate of their training."""
    return {**_rate(correct, confidence), "server_rate": server_rate, "what": f"server rate {server_rate:g}"}


def _rate(correct: np.ndarray, confidence: float) -> Result:
    return {**to_jsonable(shared_rate(correct, confidence)), "trainings": len(correct)}


def _finite(value: float) -> float | None:
    """`value`, or None where training diverged: JSON has no infinity."""
    return value if np.isfinite(value) else None


def costs(trained: TrainedStack, method: MethodSpec, config: TrainingConfig) -> Result:
    """Bytes by direction and kind, rounds, and in words what the noise protects."""
    ledger = trained.ledger
    return {
        "bytes": {"up": ledger.up, "down": ledger.down, "by_kind": {**ledger.bytes_up, **ledger.bytes_down}},
        "rounds": trained.rounds,
        "protects": method.protects(config),
    }


def provenance(config: TrainingConfig, dataset: VerticalDataset, seed: int, device: str, chunk: int | None) -> Result:
    """What a repeat needs: the same settings, data, versions, and for the same bytes the same threads and chunk."""
    return {
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "compute": {"device": device, "threads": torch.get_num_threads(), "audit_chunk": chunk},
        "data": {
            "partition": dataset.partition,
            "notes": [*dataset.notes, *dataset.fitted],
            "digests": dataset.digests,
        },
        "versions": versions(),
    }


def versions() -> Result:
    """Versions of this tool, Python and the packages that numbers may depend on."""
    facts = environment([])
    return {"dpzv-audit": facts["dpzv_audit"], "python": facts["python"], **facts["packages"]}
