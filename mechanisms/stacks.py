"""Trains any number of replicas in stacks as large as memory allows: half as many at a time from where it runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpzv_audit.data.files import check_memory
from dpzv_audit.halving import as_share, in_pieces
from mechanisms.config import TrainingConfig
from mechanisms.federation import architectures_of, rounds_of
from mechanisms.messages import Observer
from mechanisms.method import MethodSpec
from mechanisms.models import dimension, layout_of
from mechanisms.trained import TrainedStack
from mechanisms.training import Checkpoints, NoiseSource, Progress, train
from mechanisms.training_data import TrainingData, dtype_of


def train_in_stacks(
    method: MethodSpec,
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    trials: int,
    device: str = "cpu",
    progress: Progress,
    observe: Callable[[int, Progress], Sequence[Observer]] = lambda first, share: (),
    on_epoch: Callable[[str], None] = lambda note: None,
    checkpoints: Callable[[int, int], Checkpoints | None] = lambda first, last: None,
    noise_from: NoiseSource | None = None,
) -> tuple[TrainedStack, int | None]:
    """`train` for replicas 0 to `trials` - 1 with evaluation by epoch, to the numbers that one stack gives.

    Args:
        method: As in `train`.
        data: As in `train`.
        config: As in `train`.
        seed: As in `train`.
        trials: How many replicas there are.
        device: As in `train`.
        progress: Hears of 0 to T rounds as of all trainings together.
        observe: Makes the observers of a stack, given its first replica and the progress of its own rounds.
        on_epoch: Hears after every epoch how it went, in a few words.
        checkpoints: Where replicas `first` to `last` - 1, trained as one stack, are saved.
        noise_from: As in `train`.

    Returns:
        The trained models, and how many trainings memory sufficed for at a time, None where for all.

    Raises:
        InputError: As in `train`.
        MemoryError: Not even one training, or the models of all, would fit; `RuntimeError` where torch says so.
    """
    check_memory(_bytes_kept(data, config, trials), f"models of {trials} trainings")
    rounds = rounds_of(config, data.records)

    def stack(first: int, last: int) -> TrainedStack:
        share = as_share(progress, (first, last), of=trials, rounds=rounds)
        alone = last - first == trials
        which = "" if alone else f"trainings {first + 1} to {last}, "
        trained = train(
            method,
            data.of_replicas(first, last),
            config,
            seed=seed,
            replicas=range(first, last),
            observers=observe(first, share),
            device=device,
            progress=share,
            evaluate_epochs=True,
            on_epoch=lambda epoch, accuracy, loss: on_epoch(
                f"{which}epoch {epoch}: accuracy {accuracy:.3f}, loss {loss:.3g}"
            ),
            checkpoints=checkpoints(first, last),
            noise_from=noise_from,
        )
        return trained if alone else trained.on_cpu()

    stacks = list(in_pieces(stack, 0, trials))
    return TrainedStack.joined([trained for trained, _ in stacks]), stacks[-1][1]


def _bytes_kept(data: TrainingData, config: TrainingConfig, trials: int) -> int:
    """What stays of `trials` trainings: their models, and which test records each gets right."""
    clients, server = architectures_of(data, config)
    numbers = sum(dimension(layout_of(model)) for model in (*clients, server) if model is not None)
    return trials * (dtype_of(config).itemsize * numbers + len(data.test_labels))
