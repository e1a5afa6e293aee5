"""Trains one configuration beside its controls and accounts for it: the `result.json` of `train`."""

from __future__ import annotations

from dpzv_audit.checkpoints import FileCheckpoints
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.published import noise_section, published_by_training
from dpzv_audit.evaluation.sections import bytes_of, control_section, provenance, utility_section
from dpzv_audit.evaluation.sentences import train_sentence
from dpzv_audit.evidence.bounding import AuditPlan, Reporter, silent
from dpzv_audit.results import Accuracy, ControlAccuracy, TrainResult
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.controls import rates_tried, tuned_frozen_clients
from mechanisms.core.channel import Message, Observer, StalenessObserver
from mechanisms.core.config import rounds_of
from mechanisms.core.context import Deployment
from mechanisms.core.data import TrainedStack, TrainingData, dtype_of
from mechanisms.core.training import NoiseSource, Progress, train_in_stacks


class RoundWatcher:
    """Tells `progress` of rounds while an epoch is under way, about a thousand times in a training of `rounds`."""

    def __init__(self, progress: Progress, rounds: int) -> None:
        self._progress = progress
        self._every = max(1, rounds // 1000)
        self._next = 0

    def on_message(self, message: Message) -> None:
        """Report the rounds before the message's, now and then."""
        if message.round >= self._next:
            self._progress(message.round)
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
    noise_seed: int | None = None,
) -> tuple[TrainResult, TrainedStack]:
    """Train alone, with both frozen-client controls; schema `dpzv-audit/train/1`. Also returns the models.

    What is returned is meant to leave, so noise comes from the operating system, and results differ between runs of one
    seed; with `noise_seed` it follows from that, and no bound is sound (gap `seeded-noise`).

    With `checkpoints` the run is saved after every epoch and may be taken up again: the result is then that of a run
    that was never interrupted. Where memory runs out, ever fewer trainings go on at a time, to the same numbers.

    Raises:
        InputError: The configuration does not fit the data, or `noise_seed` is given and no noise is drawn.
        MemoryError: Not even one training, or the models of all, would fit; `RuntimeError` where torch says so.
    """
    reporter = reporter or silent()
    method.check_noise(config, clients=dataset.clients)
    draws = method.protection(config).draws
    if noise_seed is not None and not draws:
        raise InputError(f"must be left out: {method.name} adds no noise as configured", "noise_seed", noise_seed)
    source: NoiseSource | None = (noise_seed if noise_seed is not None else "os") if draws else None
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=device)
    rounds = rounds_of(config, len(dataset.train))
    stage = reporter.stage(f"train {method.name}", rounds)
    staleness: dict[int, StalenessObserver] = {}

    def observe(first: int, share: Progress) -> tuple[Observer, ...]:
        staleness[first] = StalenessObserver(len(dataset.train), dataset.clients, rounds)
        return staleness[first], RoundWatcher(share, rounds)

    trained, at_once = train_in_stacks(
        method,
        data,
        config,
        seed=seed,
        trials=trials,
        device=device,
        progress=stage,
        observe=observe,
        on_epoch=lambda note: stage(note=note),
        checkpoints=lambda first, last: checkpoints.of_stack(first, last, trials) if checkpoints else None,
        noise_from=source,
    )
    compared: dict[str, ControlAccuracy] = {}
    if controls:
        at_rate, tuned = tuned_frozen_clients(
            data,
            config,
            seed=seed,
            replicas=range(trials),
            device=device,
            progress=reporter.stage("controls", len(rates_tried(config))),
            at_once=at_once,
        )
        compared = {
            "frozen-clients": control_section(at_rate.server_rate, at_rate.correct, confidence),
            "frozen-clients-tuned": control_section(tuned.server_rate, tuned.correct, confidence),
        }
    privacy, tradeoff = privacy_sections(
        method,
        config,
        dataset,
        method.plan(config, Deployment(records=len(dataset.train), clients=dataset.clients, seed=seed)),
        adversary=method.protection(config).faced,
        audit=AuditPlan(runs=0),
        seed=seed,
        device=device,
        seeded_noise=noise_seed is not None,
    )
    utility = utility_section(trained, dataset, compared, confidence)
    accuracy = utility.test_accuracy
    assert isinstance(accuracy, Accuracy)
    sampler = getattr(config, "sampler", None)
    result = TrainResult(
        method=method.name,
        dataset=dataset.name,
        utility=utility,
        privacy=privacy,
        noise=noise_section(method, config, source, seed),
        published=published_by_training(privacy, trainings=trials, sampler=sampler),
        sentence=train_sentence(
            method.name,
            accuracy,
            compared.get("frozen-clients-tuned"),
            privacy,
            diverged=utility.final_loss is None,
        ),
        tradeoff=tradeoff,
        staleness=staleness[0].summary(),
        bytes=bytes_of(trained),
        rounds=trained.rounds,
        protects=method.protects(config),
        **vars(provenance(config, dataset, seed, device, None, at_once)),
    )
    return result, trained
