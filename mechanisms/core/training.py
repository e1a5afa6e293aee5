"""What is trained, and how any method runs to its end: rounds, epochs and evaluation, for a stack of K replicas."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch

from dpzv_audit.base.halving import as_share, in_pieces
from dpzv_audit.data.files import check_memory
from dpzv_audit.data.vertical import VerticalDataset

from .channel import Observer
from .config import TrainingConfig, rounds_of
from .context import Deployment, RunContext, TrainedStack, TrainingData, dtype_of
from .federation import architectures_of
from .method import MethodSpec, Run
from .models import dimension, layout_of
from .secret import SAMPLING, SecretBits

Progress = Callable[[int], None]
History = list[tuple[int, float, float]]
"""(epoch, mean test accuracy, mean test loss)."""
NoiseSource = int | Literal["os"]
"""Where noise comes from: another seed than the run's, or keys of the operating system, which nobody is to have."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained: a method as configured, on a data set, from a seed and on a device."""

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset
    seed: int = 0
    device: str = "cpu"

    @property
    def records(self) -> int:
        """Return the number of training records."""
        return len(self.dataset.train)

    @property
    def rounds(self) -> int:
        """Return the rounds of the training."""
        return rounds_of(self.config, self.records)

    def deployment(self, **more: Any) -> Deployment:
        """Return the public facts of the training, with `more` of them."""
        return Deployment(
            records=self.records,
            clients=self.dataset.clients,
            seed=self.seed,
            data_dependent_side=bool(self.dataset.fitted),
            **more,
        )

    def data(self, labels: np.ndarray | None = None) -> TrainingData:
        """Return the data as trainings take them, with `labels` (N,) or (K, N) in the place of the true ones."""
        return TrainingData.of(self.dataset, dtype=dtype_of(self.config), device=self.device, labels=labels)


class Checkpoints(Protocol):
    """Where a run is saved after every epoch, and taken up again."""

    def load(self, run: Run) -> History:
        """Put a fresh `run` where the last checkpoint left off; the history so far, empty if there is none."""

    def save(self, run: Run, history: History) -> None:
        """Keep the state of `run` and its history."""


@runtime_checkable
class KeepsNoiseKeys(Protocol):
    """Checkpoints that let rounds after the last of them be run again under the same secret noise."""

    def takes_up(self) -> bool:
        """Return whether `load` will find a state: what was sent before the first round is then not sent again."""

    def first_noise_key(self, device: str) -> bytes:
        """Return the key, 32 bytes, of noise that is drawn while the run is made, before `load`."""

    def noise_key(self, round_: int, device: str) -> bytes:
        """Return the key for the rounds from `round_` on, after `load` or `save`; keys of earlier rounds are destroyed.

        The same key comes back until a state with more rounds is saved.
        """


@torch.no_grad()
def train(
    method: MethodSpec,
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    behaviours: Mapping[int, Any] | None = None,
    observers: Sequence[Observer] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    evaluate_epochs: bool = False,
    on_epoch: Callable[[int, float, float], None] | None = None,
    checkpoints: Checkpoints | None = None,
    noise_from: NoiseSource | None = None,
) -> TrainedStack:
    """Train `method` as `config` says in K replicas at once.

    Args:
        method: What is trained: a run is found by its method, whatever the type of its configuration.
        data: Records on `device`, labels shared by the replicas or one row each.
        config: A configuration of the method.
        seed: Seed of every stream; replica k draws from streams of its own, whatever stack it is in.
        replicas: Numbers of the K replicas.
        behaviours: Clients, by number from 1, that do not follow the protocol: a `ClientBehaviour` of zeroth-order
            methods, a `GradientBehaviour` of first-order ones.
        observers: See every message; `ViewRecorder` keeps an adversary's view.
        device: `cpu` or `cuda`.
        progress: Called after every epoch with the number of rounds done.
        evaluate_epochs: Whether to record test accuracy after every epoch.
        on_epoch: Called with each new record of the history.
        checkpoints: Saves the run after every epoch and takes it up again, with the observers that keep a state;
            what a behaviour keeps to itself is not saved. With `noise_from` os they must be `KeepsNoiseKeys`.
        noise_from: Where noise comes from; by default streams of `seed`, which a simulation can draw again. With os,
            batches, directions and starts come from there too where a bound counts on secret batches or directions
            (`MethodSpec.secrets`): models then show no seed from which these could be drawn again.

    Returns:
        The trained models with accuracy, byte ledger and participation counts, and what was drawn from secret bits.

    Raises:
        InputError: The configuration is of another method or does not fit the data, or behaviours do not fit either.
    """
    secret = keeper = sampling = None
    taken_up = False
    if noise_from == "os" and checkpoints is None:
        secret = SecretBits()
    elif noise_from == "os":
        if not isinstance(checkpoints, KeepsNoiseKeys):
            raise ValueError("noise_from is 'os', but the checkpoints keep no keys: a round could be released twice")
        keeper = checkpoints
        taken_up = checkpoints.takes_up()
        secret = SecretBits(keeper.first_noise_key(device))
    deployment = Deployment(records=data.records, clients=len(data.features), seed=seed)
    if secret is not None and method.secrets(config, deployment):
        sampling = SecretBits(secret.key, SAMPLING)
    context = RunContext(
        seed=seed,
        replicas=replicas,
        device=device,
        observers=() if taken_up else observers,
        origin=secret if noise_from == "os" else noise_from,
        sampling=sampling,
        behaviours=behaviours or {},
        progress=progress,
    )
    run = method.start(data, config, context)
    if taken_up:
        run.federation.channel.observe(observers)
    history: History = [] if checkpoints is None else checkpoints.load(run)

    def renew_noise() -> None:
        if secret and keeper:
            secret.renew(keeper.noise_key(run.round, device))
            if sampling:
                sampling.renew(secret.key)

    renew_noise()
    per_epoch = run.federation.steps_per_pass
    for epoch in range(run.round // per_epoch, config.epochs):
        for _ in range(per_epoch):
            run.step()
        if evaluate_epochs:
            history.append(run.federation.epoch_record(epoch + 1))
            if on_epoch is not None:
                on_epoch(*history[-1])
        if checkpoints is not None:
            checkpoints.save(run, history)
        renew_noise()
        if progress is not None:
            progress(run.round)
    trained = run.federation.finish(run.round, history)
    drawn = frozenset() if sampling is None else frozenset(sampling.drawn)
    return replace(trained, secret_noise=bool(secret and secret.drawn), secret_draws=drawn)


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

        def tell(epoch: int, accuracy: float, loss: float) -> None:
            on_epoch(f"{which}epoch {epoch}: accuracy {accuracy:.3f}, loss {loss:.3g}")

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
            on_epoch=tell,
            checkpoints=checkpoints(first, last),
            noise_from=noise_from,
        )
        return trained if alone else trained.on_cpu()

    stacks = list(in_pieces(stack, 0, trials))
    return TrainedStack.joined([trained for trained, _ in stacks]), stacks[-1][1]


def _bytes_kept(data: TrainingData, config: TrainingConfig, trials: int) -> int:
    """Return what stays of `trials` trainings: their models, and which test records each gets right."""
    clients, server = architectures_of(data, config)
    numbers = sum(dimension(layout_of(model)) for model in (*clients, server) if model is not None)
    return trials * (dtype_of(config).itemsize * numbers + len(data.test_labels))
