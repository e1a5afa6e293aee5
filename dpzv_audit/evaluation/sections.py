"""Sections that several results share: utility beside controls, costs, and what a repeat needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from attacks.core.metrics import majority_baseline, shared_rate
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.halving import shortage
from dpzv_audit.results import Accuracy, Bytes, ControlAccuracy, Data, Epoch, Plain, Utility
from dpzv_audit.runs import environment
from mechanisms import TrainingConfig
from mechanisms.core.data import TrainedStack


def utility_section(
    trained: TrainedStack,
    dataset: VerticalDataset,
    controls: Mapping[str, ControlAccuracy],
    confidence: float = 0.95,
) -> Utility:
    """Return test accuracy with its interval beside the majority class and the given controls, and the history."""
    section = Utility(
        test_accuracy=Accuracy(**vars(shared_rate(trained.correct, confidence)), trainings=len(trained.correct)),
        controls={"majority": majority_baseline(dataset.test.labels, dataset.classes), **controls},
        final_loss=_finite(float(trained.loss.mean())),
    )
    history = [
        Epoch(epoch=epoch, test_accuracy=accuracy, loss=_finite(loss), bytes_up=up, bytes_down=down)
        for (epoch, accuracy, loss), (up, down) in zip(trained.history, trained.traffic, strict=True)
    ]
    return section.model_copy(update={"history": history}) if history else section


def control_section(server_rate: float, correct: np.ndarray, confidence: float) -> ControlAccuracy:
    """Return the accuracy of frozen clients, of `correct` (K, n), and the server rate of their training."""
    return ControlAccuracy(
        **vars(shared_rate(correct, confidence)),
        trainings=len(correct),
        server_rate=server_rate,
        what=f"server rate {server_rate:g}",
    )


def _finite(value: float) -> float | None:
    """`value`, or None where training diverged: JSON has no infinity."""
    return value if np.isfinite(value) else None


def bytes_of(trained: TrainedStack) -> Bytes:
    """Return the bytes that parties exchanged, by direction and by kind of message."""
    ledger = trained.ledger
    return Bytes(up=ledger.up, down=ledger.down, by_kind={**ledger.bytes_up, **ledger.bytes_down})


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a repeat needs: the same settings, data, versions, and for the same bytes the same threads and chunk."""

    config: dict[str, object]
    seed: int
    compute: dict[str, Plain]
    data: Data
    versions: dict[str, str | None]


def provenance(
    config: TrainingConfig,
    dataset: VerticalDataset,
    seed: int,
    device: str,
    chunk: int | None,
    at_once: int | None = None,
) -> Provenance:
    """Return what a repeat needs of a training; `at_once` is how many memory sufficed for, where not for all."""
    return Provenance(
        config=config.model_dump(mode="json"),
        seed=seed,
        compute={"device": device, "threads": torch.get_num_threads(), "audit_chunk": chunk, **shortage(at_once)},
        data=Data(partition=dataset.partition, notes=[*dataset.notes, *dataset.fitted], digests=dict(dataset.digests)),
        versions=versions(),
    )


def versions() -> dict[str, str | None]:
    """Return the versions of this tool, Python and the packages that numbers may depend on."""
    facts = environment([])
    return {"dpzv-audit": facts["dpzv_audit"], "python": facts["python"], **facts["packages"]}
