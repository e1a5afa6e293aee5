"""The loop that runs any method to its end: rounds, epochs and evaluation, for K replicas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch

from dpzv_audit.base.halving import as_share, in_pieces
from dpzv_audit.data.files import check_memory

from .channel import Observer
from .config import TrainingConfig, rounds_of
from .context import Deployment, RunContext, TrainedStack, TrainingData, dtype_of
from .federation import architectures_of
from .method import MethodSpec, Run, federation_of
from .models import dimension, layout_of
from .secret import SAMPLING, SecretBits

Progress = Callable[[int], None]
History = list[tuple[int, float, float]]
"""(epoch, mean test accuracy, mean test loss)."""
NoiseSource = int | Literal["os"]
"""Where noise comes from: another seed than the run's, or keys of the operating system, which nobody is to have."""


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


@dataclass(frozen=True)
class _Secrets:
    """Secret bits of a run, if any: for its `noise`, and for the `sampling` that a bound counts on.

    Of a run that can be taken up again a `keeper` has the keys, and gives another after every epoch.
    """

    noise: SecretBits | None = None
    sampling: SecretBits | None = None
    keeper: KeepsNoiseKeys | None = None

    def renew(self, round_: int, device: str) -> None:
        """Draw from now on by the key for the rounds from `round_` on."""
        if self.noise and self.keeper:
            self.noise.renew(self.keeper.noise_key(round_, device))
            if self.sampling:
                self.sampling.renew(self.noise.key)


def _secrets(
    method: MethodSpec, config: TrainingConfig, deployment: Deployment, kept: Checkpoints | None, device: str
) -> _Secrets:
    keeper = None
    if kept is not None:
        if not isinstance(kept, KeepsNoiseKeys):
            raise ValueError("noise_from is 'os', but the checkpoints keep no keys: a round could be released twice")
        keeper = kept
    noise = SecretBits(keeper.first_noise_key(device) if keeper else None)
    sampling = SecretBits(noise.key, SAMPLING) if method.secrets(config, deployment) else None
    return _Secrets(noise, sampling, keeper)


@torch.no_grad()
def train(
    method: MethodSpec,
    data: TrainingData,
    config: TrainingConfig,
    context: RunContext,
    *,
    evaluate_epochs: bool = False,
    on_epoch: Callable[[int, float, float], None] | None = None,
    checkpoints: Checkpoints | None = None,
    noise_from: NoiseSource | None = None,
) -> TrainedStack:
    """Train `method` as `config` says in K replicas at once.

    Args:
        method: What is trained: a run is found by its method, whatever the type of its configuration.
        data: Records on the device, labels shared by the replicas or one row each.
        config: A configuration of the method.
        context: Seed, replicas, device, observers, and clients that deviate; its `progress` is called after every
            epoch with the number of rounds done.
        evaluate_epochs: Whether to record test accuracy after every epoch.
        on_epoch: Called with each new record of the history.
        checkpoints: Saves the run after every epoch and takes it up again, with the observers that keep a state;
            what a behaviour keeps to itself is not saved. With `noise_from` os they must be `KeepsNoiseKeys`.
        noise_from: Where noise comes from; by default streams of the seed, which a simulation can draw again. With os,
            batches, directions and starts come from there too where a bound counts on secret batches or directions
            (`MethodSpec.secrets`): models then show no seed from which these could be drawn again.

    Returns:
        The trained models with accuracy, byte ledger and participation counts, and what was drawn from secret bits.

    Raises:
        InputError: The configuration is of another method or does not fit the data, or behaviours do not fit either.
    """
    secrets = _Secrets()
    taken_up = noise_from == "os" and isinstance(checkpoints, KeepsNoiseKeys) and checkpoints.takes_up()
    if noise_from == "os":
        secrets = _secrets(method, config, context.deployment(data), checkpoints, context.device)
        context = replace(context, origin=secrets.noise, sampling=secrets.sampling)
    elif noise_from is not None:
        context = replace(context, origin=noise_from)
    # What was sent before the first round of a run that is taken up is not shown again.
    run = method.start(data, config, replace(context, observers=()) if taken_up else context)
    if taken_up:
        run.federation.channel.observe(context.observers)
    history: History = [] if checkpoints is None else checkpoints.load(run)
    secrets.renew(run.round, context.device)
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
        secrets.renew(run.round, context.device)
        if context.progress is not None:
            context.progress(run.round)
        if context.enough and _had_enough(run, context):
            break
    trained = run.federation.finish(run.round, history)
    drawn = frozenset() if secrets.sampling is None else frozenset(secrets.sampling.drawn)
    return replace(trained, secret_noise=bool(secrets.noise and secrets.noise.drawn), secret_draws=drawn)


def _had_enough(run: Run, context: RunContext) -> bool:
    """Return whether the clients have had as many rounds as the caller has a use for."""
    clients = federation_of(run).clients
    return all(clients[number - 1].rounds >= own for number, own in context.enough.items())


def train_in_stacks(
    method: MethodSpec,
    data: TrainingData,
    config: TrainingConfig,
    context: RunContext,
    *,
    observe: Callable[[int, Progress], Sequence[Observer]] = lambda first, share: (),
    on_epoch: Callable[[str], None] = lambda note: None,
    checkpoints: Callable[[int, int], Checkpoints | None] = lambda first, last: None,
    noise_from: NoiseSource | None = None,
) -> tuple[TrainedStack, int | None]:
    """Train all replicas of the context as `train` does, with evaluation by epoch, to the numbers of one stack.

    Args:
        method: As in `train`.
        data: As in `train`.
        config: As in `train`.
        context: As in `train`; its `progress` hears of 0 to T rounds as of all trainings together.
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
    trials = len(context.replicas)
    check_memory(_bytes_kept(data, config, trials), f"models of {trials} trainings")
    rounds = rounds_of(config, data.records)

    def stack(first: int, last: int) -> TrainedStack:
        share = as_share(context.progress, (first, last), of=trials, rounds=rounds)
        alone = last - first == trials
        which = "" if alone else f"trainings {first + 1} to {last}, "

        def tell(epoch: int, accuracy: float, loss: float) -> None:
            on_epoch(f"{which}epoch {epoch}: accuracy {accuracy:.3f}, loss {loss:.3g}")

        replicas = context.replicas[first:last]
        trained = train(
            method,
            data.of_replicas(first, last),
            config,
            replace(context, replicas=replicas, observers=observe(first, share), progress=share),
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
