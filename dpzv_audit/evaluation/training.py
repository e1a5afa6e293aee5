"""Trains one configuration beside its controls and accounts for it: the `result.json` of `train`."""

from __future__ import annotations

from typing import Any

from dpzv_audit.checkpoints import FileCheckpoints
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.common import AuditPlan, Reporter, Result, Stage, silent
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.sections import control_section, costs, provenance, utility_section
from dpzv_audit.evaluation.sentences import train_sentence
from mechanisms import DPZVConfig, MethodSpec, ProtectedConfig, TrainingConfig, train
from mechanisms.calibration import AUDIENCE, channel_of
from mechanisms.controls import tuned_frozen_clients
from mechanisms.messages import Message
from mechanisms.plan import plan
from mechanisms.staleness import StalenessObserver
from mechanisms.trained import TrainedStack
from mechanisms.training_data import TrainingData, dtype_of


class RoundWatcher:
    """Moves a stage on while an epoch is under way, about a thousand times in a training of `rounds`."""

    def __init__(self, stage: Stage, rounds: int) -> None:
        self._stage = stage
        self._every = max(1, rounds // 1000)
        self._next = 0

    def on_message(self, message: Message) -> None:
        """Report the rounds before the message's, now and then."""
        if message.round >= self._next:
            self._stage(message.round)
            self._next = message.round + self._every


def train_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    seed: int = 0,
    trials: int = 1,
    controls: bool = True,
    device: str = "cpu",
    confidence: float = 0.95,
    checkpoints: FileCheckpoints | None = None,
    reporter: Reporter | None = None,
) -> tuple[Result, TrainedStack]:
    """Train alone, with both frozen-client controls; schema `dpzv-audit/train/1`. Also returns the models.

    With `checkpoints` the run is saved after every epoch and may be taken up again: the result is then that of a run
    that was never interrupted.
    """
    reporter = reporter or silent()
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=device)
    rounds = config.epochs * (len(dataset.train) // config.batch_size)
    staleness = StalenessObserver(len(dataset.train), dataset.clients, rounds)
    stage = reporter.stage(f"train {method.name}", rounds)
    trained = train(
        data,
        config,
        seed=seed,
        replicas=range(trials),
        device=device,
        observers=(staleness, RoundWatcher(stage, rounds)),
        progress=stage,
        evaluate_epochs=True,
        on_epoch=lambda epoch, accuracy, loss: stage(note=f"epoch {epoch}: accuracy {accuracy:.3f}, loss {loss:.3g}"),
        checkpoints=checkpoints,
    )
    compared: dict[str, Any] = {}
    if controls:
        at_rate, tuned = tuned_frozen_clients(
            data,
            config,
            seed=seed,
            replicas=range(trials),
            device=device,
            progress=reporter.stage("controls", 7),
        )
        compared = {
            "frozen-clients": control_section(at_rate.server_rate, at_rate.correct, confidence),
            "frozen-clients-tuned": control_section(tuned.server_rate, tuned.correct, confidence),
        }
    the_plan = None
    if isinstance(config, DPZVConfig):
        the_plan = plan(config, records=len(dataset.train), clients=dataset.clients, seed=seed)
    privacy, tradeoff = privacy_sections(
        config, dataset, the_plan, adversary=_faced(config), audit=AuditPlan(runs=0), seed=seed, device=device
    )
    utility = utility_section(trained, dataset, compared, confidence)
    result = {
        "schema": "dpzv-audit/train/1",
        "method": method.name,
        "dataset": dataset.name,
        "utility": utility,
        "privacy": privacy,
        "sentence": train_sentence(method.name, utility, privacy),
        "tradeoff": tradeoff,
        "staleness": staleness.summary(),
        **costs(trained, method, config),
        **provenance(config, dataset, seed, device, None),
    }
    return result, trained


def _faced(config: TrainingConfig) -> str:
    """The adversary whom noise on a channel faces; a client, who holds what the server sends, where there is none."""
    return AUDIENCE[channel_of(config)][0] if isinstance(config, ProtectedConfig) and config.protected else "client"
