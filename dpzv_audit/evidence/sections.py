"""Sections that several results share: utility, costs, what a repeat needs, and what of a run folder a bound covers.

A bound on epsilon speaks of what its adversary sees. A run folder holds more: controls trained on the true labels
without noise, accuracies, digests of all records. It is the auditor's; what the bound covers may leave.
"""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

import numpy as np
import torch

from attacks.core.metrics import majority_baseline, shared_rate
from mechanisms import MethodSpec, Training, TrainingConfig
from mechanisms.core.context import Deployment, TrainedStack
from mechanisms.core.training import NoiseSource

from ..accounting.release import random_batches
from ..base.errors import with_options
from ..base.halving import shortage
from ..base.seeds import Purpose
from ..data.vertical import VerticalDataset
from ..results import (
    Accuracy,
    AttackResult,
    AuditResult,
    Bytes,
    ControlAccuracy,
    Data,
    Epoch,
    Noise,
    Plain,
    Privacy,
    Published,
    Utility,
)
from ..runs import versions
from .sentences import said


def utility_section(
    trained: TrainedStack,
    dataset: VerticalDataset,
    controls: Mapping[str, ControlAccuracy],
    confidence: float = 0.95,
) -> Utility:
    """Return test accuracy with its interval beside the majority class and the given controls, and the history."""
    accuracy = None
    if trained.correct.size:  # a system may return no predictions
        accuracy = Accuracy(**vars(shared_rate(trained.correct, confidence)), trainings=len(trained.correct))
    section = Utility(
        test_accuracy=accuracy,
        controls={"majority": majority_baseline(dataset.test.labels, dataset.classes), **controls},
        final_loss=_finite(float(trained.loss.mean())),
    )
    history = [
        Epoch(epoch=epoch, test_accuracy=accuracy, loss=_finite(loss), bytes_up=up, bytes_down=down)
        for (epoch, accuracy, loss), (up, down) in zip(trained.history, trained.traffic, strict=True)
    ]
    return section.model_copy(update={"history": history}) if history else section


def not_learnt(utility: Utility) -> list[str]:
    """Return a warning where the test accuracy of a training is not shown to be above that of the majority class."""
    accuracy, majority = utility.test_accuracy, utility.controls.get("majority")
    if accuracy is None or not isinstance(majority, int | float) or accuracy.low > majority:
        return []
    return [said("not_learnt", accuracy.value, majority)]


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


Seeded = Literal["noise", "batches"]
Simulated = TypeVar("Simulated", AttackResult, AuditResult)


class Configured(TypedDict, total=False):
    """Fields of a result that say what was configured."""

    method: str
    protects: str | None
    noise: Noise | None
    config: dict[str, object]
    seed: int
    versions: dict[str, str | None]


class Provenance(Configured, total=False):
    """Fields of a result that say how its training can be repeated."""

    dataset: str
    compute: dict[str, Plain]
    data: Data


def configured(
    method: MethodSpec, config: TrainingConfig, deployment: Deployment, noise: Noise | None = None
) -> Configured:
    """Return what a result says of a configuration: what its noise protects and came from, and what a repeat needs."""
    return {
        "method": method.name,
        "protects": method.protects(config),
        "noise": noise or noise_of_simulation(method, config, deployment),
        "config": config.model_dump(mode="json"),
        "seed": deployment.seed,
        "versions": versions(),
    }


def provenance(
    training: Training, *, chunk: int | None = None, at_once: int | None = None, noise: Noise | None = None
) -> Provenance:
    """Return what a result says of its training; `at_once` is how many memory sufficed for, where not for all.

    A repeat needs the same threads and chunk for the same bytes. `noise` is that of a training that is no simulation.
    """
    dataset = training.dataset
    deployment = training.deployment()
    threads = torch.get_num_threads()
    return {
        **configured(training.method, training.config, deployment, noise),
        "dataset": dataset.name,
        "compute": {"device": training.device, "threads": threads, "audit_chunk": chunk, **shortage(at_once)},
        "data": Data(
            partition=dataset.partition,
            records=deployment.records,
            clients=deployment.clients,
            notes=[*dataset.notes, *dataset.fitted, *_control_flow(training)],
            hints=[with_options(hint) for hint in dataset.hints],
            digests=dict(dataset.digests),
        ),
    }


def _control_flow(training: Training) -> list[str]:
    shown = training.method.capabilities.control_flow
    return [f"trainings do not all send the same messages: the rehearsal had {', '.join(shown)}"] if shown else []


MODELS = "models.safetensors"

_PATHS = tomllib.loads((Path(__file__).parent / "tables" / "published.toml").read_text("utf-8"))


def noise_of_simulation(method: MethodSpec, config: TrainingConfig, deployment: Deployment) -> Noise | None:
    """Return where the noise of a simulation came from: the run's seed; None where there is no noise."""
    if not method.draws(config):
        return None
    batches = random_batches(getattr(config, "sampler", None))
    if not method.capabilities.simulated:  # it states how its batches are drawn
        batches = bool(method.secrets(config, deployment))
    return Noise.of_simulation(deployment.seed, batches=batches)


def noise_of_training(source: NoiseSource, seed: int, trained: TrainedStack, secrets: Collection[Purpose]) -> Noise:
    """Return where a training's noise came from, and what else a bound counts on, `secrets` (`MethodSpec.secrets`).

    `source` is what noise was asked to come from (see `mechanisms.train`), and `trained` says what did.
    """
    others = " and ".join(sorted(purpose.name.lower() for purpose in secrets))
    again = f"anyone who learns the run's seed {seed} may be able to draw"
    if source != "os":
        also = f" Its {others} follow from the run's seed {seed}." if others else ""
        words = f"Its noise follows from the noise seed {source}: anyone who learns that can subtract it.{also}"
        return Noise(source="noise-seed", seed=source, words=words)
    if not trained.secret_noise:
        words = f"Its noise was not drawn from the operating system, which it was to come from: {again} it again."
        return Noise(source="unknown", seed=None, words=words)
    if not others:
        words = "Its noise came from the operating system, and the key is destroyed: the noise cannot be regenerated."
    elif trained.secret_draws.issuperset(secrets):
        came = f"Its noise and its {others} came from the operating system"
        words = f"{came}, and the key is destroyed: neither can be regenerated."
    else:
        words = f"Its noise came from the operating system. Its {others} did not: {again} them again."
    return Noise(source="operating system", seed=None, words=words)


def published_by_training(
    privacy: Privacy, *, trainings: int, seeded: Collection[Seeded], config: TrainingConfig
) -> Published:
    """Return `published` of a result of `train`: a sound bound on one training covers its models.

    What is `seeded` follows from a seed that result and folder name.
    """
    outside = {
        **_seed_of(seeded),
        **(_PATHS["batches"] if random_batches(getattr(config, "sampler", None)) else {}),
        **_PATHS["utility"],
        **_PATHS["outside"],
        "measured.json": "times and memory, which can depend on the records",
    }
    public = ("/privacy", "/tradeoff", "/staleness", "environment.json")
    if privacy.upper is None:
        why = f"no sound bound exists, gap: {privacy.gap}"
    elif trainings > 1:
        why = f"it holds {trainings} trainings on the same records, and the bound is on one"
    else:
        counted = "the private labels" if "defences" in privacy.release else "the noised messages"
        covered = {MODELS: f"models follow from {counted} that it counts, and from nothing that neighbours differ in"}
        words = said("covered", privacy)
        return _section(words, covered, outside, public)
    words = f"No bound covers {MODELS} ({why}), nor anything else here: it is for the auditor alone."
    return _section(words, {}, {MODELS: why, **outside}, public)


def published_simulation(result: Simulated) -> Simulated:
    """Return a result of `attack` or `audit` with `published`: its trainings are simulations, and nothing may leave."""
    fields: set[str] = result.model_fields_set
    tables = ["attacks", "utility", "audits", "outside", *(["score_files"] if "game" in fields else [])]
    outside = {path: why for table in tables for path, why in _PATHS[table].items()}
    there = {path: why for path, why in outside.items() if not path.startswith("/") or path.split("/")[1] in fields}
    if isinstance(result, AttackResult):  # folders of what stands beside it
        there |= {cell.run.partition("/")[0]: there["/beside"] for cell in result.beside if cell.run}
    seeded: list[Seeded] = [] if result.noise is None else ["noise"]
    if random_batches(result.config.get("sampler")):
        seeded.append("batches")
    words = "No bound covers the files in this folder: they are for the auditor alone."
    public = ("/attack", "/adversary", "/metric", "/attack_setting", "environment.json")
    published = _section(words, {}, there | _seed_of(seeded), public)
    return result.model_copy(update={"published": published})


def _seed_of(seeded: Collection[Seeded]) -> dict[str, str]:
    """Return the parts that tell a seed, where noise or batches follow from it."""
    why = f"{' and '.join(sorted(seeded))} can be drawn again from a seed that it tells"
    return dict.fromkeys(_PATHS["with_seed"], why) if seeded else {}


def _section(words: str, inside: dict[str, str], outside: dict[str, str], public: tuple[str, ...]) -> Published:
    of_no_record = [path for path in (*_PATHS["of_no_record"], *public) if path not in outside]
    return Published(words=words, inside_bound=inside, not_inside=outside, of_no_record=of_no_record)
