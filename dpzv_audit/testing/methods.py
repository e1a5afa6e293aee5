"""The contract of a training method: seeds, replicas, messages as the only channel, resuming, and noise as stated."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from mechanisms import MethodSpec, TrainingConfig, train
from mechanisms.core.channel import SERVER, Channel, Message
from mechanisms.core.checkpoints import FileCheckpoints
from mechanisms.core.context import Deployment, RunContext, TrainedStack, TrainingData, dtype_of
from mechanisms.core.defence import label_release
from mechanisms.core.method import Run
from mechanisms.core.training import History

from ..accounting import Release
from ..base.seeds import Purpose
from .datasets import check_words, require, small_dataset

DEPLOYMENT = Deployment(records=24, clients=3, seed=7)
"""What a method is told of the small data, with the seed that runs have."""
SMALL = {"batch_size": 5, "epochs": 3, "embedding": 4, "hidden": 6, "dtype": "float64"}
# How far parameters of a replica may be from those of its run alone: products of another shape round otherwise.
AS_STACK = 1e-9
# Standard errors by which the deviation of noise may differ from what is stated.
CERTAIN = 6.0
_KINDS = {"scalar": ("scalar",), "gradient": ("gradient",), "embedding": ("embeddings", "table")}
"""Messages that carry the noise of a channel; that of a `model` is on no message."""
_STILL = {"client_rate": 0.0, "server_rate": 0.0, "epochs": 100}


def check_method(spec: MethodSpec, **options: object) -> None:
    """Check a method against what every one keeps: trains it a dozen times on 24 random records.

    Args:
        spec: The method.
        options: Settings that the checks run under beside those of the method, such as noise that is off by itself.

    Raises:
        AssertionError: It breaks a rule, which is named in one line.
        InputError: The settings do not go together.
    """
    check_words(spec)
    for name, setting in spec.config.model_fields.items():
        require(setting.description, spec, f"setting {name} has no description")
    config = spec.configure(**spec.used({**SMALL, **options}))
    with ExitStack() as threads:
        # In one thread sums are of one order.
        threads.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        _check_seeds(spec, config)
        _check_replicas(spec, config)
        _check_messages(spec, config)
        _check_channel(spec, config)
        _check_resuming(spec, config)
        _check_noise(spec, config, options)
        _check_secrets(spec, config)


@dataclass
class _TrainingLog:
    """Every message of a training as it was sent, and what came of it."""

    trained: TrainedStack = field(init=False)
    messages: list[Message] = field(default_factory=list)
    payloads: list[Tensor] = field(default_factory=list)

    def on_message(self, message: Message) -> None:
        self.messages.append(message)
        self.payloads.append(message.payload.clone())

    @property
    def models(self) -> list[Tensor]:
        return _models(self.trained)

    @property
    def ids(self) -> list[Tensor]:
        return [message.ids for message in self.messages if message.ids is not None]

    def equals(self, other: "_TrainingLog") -> bool:
        """Return whether the same was sent, and the same models came of it."""
        return _equal([*self.payloads, *self.models], [*other.payloads, *other.models])


def _equal(ones: list[Tensor], others: list[Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def _data(config: TrainingConfig, features: int = 0, labels_moved_by: int = 0) -> TrainingData:
    dataset = small_dataset(seed=features, labels_moved_by=labels_moved_by)
    return TrainingData.of(dataset, dtype=dtype_of(config), device="cpu")


def _models(trained: TrainedStack) -> list[Tensor]:
    return [stack.flat for stack in (*trained.clients, trained.server)]


def _trained(
    spec: MethodSpec,
    config: TrainingConfig,
    data: TrainingData | None = None,
    *,
    seed: int = 7,
    replicas: Sequence[int] = (0, 1),
    **options: Any,
) -> _TrainingLog:
    """Train replicas with `options` of `train`."""
    log = _TrainingLog()
    context = RunContext(seed=seed, replicas=replicas, observers=(log,))
    log.trained = train(spec, data or _data(config), config, context, **options)
    return log


def _check_seeds(spec: MethodSpec, config: TrainingConfig) -> None:
    first, again, other = (_trained(spec, config, seed=seed) for seed in (7, 7, 8))
    rule = "two runs of one seed differ: must draw from dpzv_audit.base.seeds.stream or the run's context alone"
    require(first.equals(again), spec, rule)
    require(not first.equals(other), spec, "runs of seeds 7 and 8 are equal: must draw from its seed")


def _check_replicas(spec: MethodSpec, config: TrainingConfig) -> None:
    stack = (4, 0, 2)
    together = _trained(spec, config, replicas=stack).models
    for place, replica in enumerate(stack):
        alone = _trained(spec, config, replicas=(replica,)).models
        for number, (many, single) in enumerate(zip(together, alone, strict=True), start=1):
            far = float((many[place] - single[0]).abs().max()) if single.numel() else 0.0
            who = f"client {number}" if number <= DEPLOYMENT.clients else "the server"
            rule = f"replica {replica} in a stack of {len(stack)} and alone differ by {far:.2g} at {who}"
            require(far <= AS_STACK, spec, f"{rule}: must draw by its number, and reach no other")
    # Models that are fitted to data alone may be the same in all.
    differ = any(not torch.equal(models[0], models[1]) for models in together)
    require(differ, spec, "replicas of a stack are equal: each must draw its own start")


def _check_messages(spec: MethodSpec, config: TrainingConfig) -> None:
    log = _trained(spec, config)
    answers = [message for message in log.messages if message.sender == SERVER]
    down = {message.kind for message in answers}
    rounds = set() if spec.downlink == "none" else set(range(log.trained.rounds))
    rule = f"the server sends {sorted(down)}, downlink says {spec.downlink!r}"
    # Who is sent the labels, the model and all embeddings computes the answers by itself.
    require(config.labels_shared or down == {spec.downlink} - {"none"}, spec, rule)
    silent = sorted(rounds - {message.round for message in answers})
    require(not silent, spec, f"the server sends nothing in rounds {silent[:3]}: what it tells must be a message")
    for message, sent in zip(log.messages, log.payloads, strict=True):
        same = torch.equal(message.payload, sent)
        require(same, spec, f"a payload of {message.kind!r} is changed after it was sent")


def _check_channel(spec: MethodSpec, config: TrainingConfig) -> None:
    """Check that nothing passes between parties but messages: where those are made equal, all that follows is."""
    rule = "otherwise than by a message: must be sent by channel.send, and what that returns be used"
    for leak, from_server, of, changed in (
        ("labels reach a client", True, slice(0, DEPLOYMENT.clients), {"labels_moved_by": 1}),
        ("features reach the server", False, slice(DEPLOYMENT.clients, None), {"features": 1}),
    ):
        with _delivering_alike(from_server):
            first, second = (_trained(spec, config, data) for data in (None, _data(config, **changed)))
        require(_equal(first.models[of], second.models[of]), spec, f"{leak} {rule}")


@contextmanager
def _delivering_alike(from_server: bool) -> Iterator[None]:
    """Have `Channel.send` deliver the same numbers whatever the server, or the clients, send."""
    send = Channel.send

    def deliver(channel: Channel, message: Message) -> Tensor:
        received = send(channel, message)
        if (message.sender == SERVER) != from_server:
            return received
        alike = torch.linspace(-0.3, 0.5, received.numel(), dtype=torch.float64).view(received.shape)
        return alike > 0 if received.dtype == torch.bool else alike.to(received.dtype)

    with patch.object(Channel, "send", deliver):
        yield


class _CutOff(Exception):
    """Stands for whatever ends a run."""


class _StopsAfterOne(FileCheckpoints):
    """Checkpoints that end the run after an epoch."""

    def save(self, run: Run, history: History) -> None:
        super().save(run, history)
        raise _CutOff


def _check_resuming(spec: MethodSpec, config: TrainingConfig) -> None:
    training = partial(train, spec, _data(config), config, RunContext(seed=7), evaluate_epochs=True)
    whole = training()
    with TemporaryDirectory() as folder:
        place = Path(folder), "run"
        with suppress(_CutOff):
            training(checkpoints=_StopsAfterOne(*place, resume=True))
        resumed = training(checkpoints=FileCheckpoints(*place, resume=True))
    same = _equal(_models(whole), _models(resumed)) and whole.ledger == resumed.ledger
    rule = "a run that is taken up after an epoch ends otherwise: own_tensors or skip_to leaves state out"
    require(same, spec, rule)


def _check_noise(spec: MethodSpec, config: TrainingConfig, options: dict[str, object]) -> None:
    """Check that noise is drawn from its origin where a release is stated, and nowhere else, in the size stated."""

    def stated(config: TrainingConfig) -> list[Release]:
        return [release for release in spec.released(config, DEPLOYMENT) if release.channel != "zo-gradient"]

    first, second = (_trained(spec, config, noise_from=origin) for origin in (1, 2))
    moved = not first.equals(second)
    protection = spec.protection(config)
    draws = protection.draws
    says = "states a release" if stated(config) else "says that noise protects something"
    rule = f"{says} and draws no noise from its origin (`context.noise_origin`)"
    if spec.draws(config):
        require(_trained(spec, config, noise_from="os").trained.secret_noise, spec, rule)
        require(moved or not draws, spec, rule)
    if not stated(config):
        if not protection.not_released and label_release(config.defences) is None:
            rule = "draws noise and states no release: `released` must say where, and how much"
            rule += ", or `Protection.not_released` why not"
            require(not moved, spec, rule)
            require(not draws, spec, "protection says that noise is drawn; no release is stated")
        return
    require(moved, spec, rule)
    require(draws, spec, "states a release; protection says that no noise is drawn")
    # Models that stand still send the same numbers in both worlds, but for the noise.
    sized = [release for release in stated(config) if release.channel in _KINDS]
    if sized:
        still = spec.configure(**spec.used({**SMALL, **options, **_STILL}))
        for release in stated(still):
            _check_size(spec, still, release)


class OneKey:
    """Checkpoints that keep nothing and give one key for every round."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def load(self, run: Run) -> History:
        return []

    def save(self, run: Run, history: History) -> None:
        """Keep nothing."""

    def takes_up(self) -> bool:
        return False

    def first_noise_key(self, device: str) -> bytes:
        return self._key

    def noise_key(self, round_: int, device: str) -> bytes:
        return self._key


def _check_secrets(spec: MethodSpec, config: TrainingConfig) -> None:
    """Check that what a bound counts on as secret follows from the key of the operating system, and not from a seed."""
    secrets = spec.secrets(config, DEPLOYMENT)
    if not secrets:
        return
    keys = bytes(32), bytes(range(32))
    first, other, another = (
        _trained(spec, config, noise_from="os", seed=seed, checkpoints=OneKey(key))
        for seed, key in ((7, keys[0]), (8, keys[0]), (7, keys[1]))
    )
    names = ", ".join(sorted(purpose.name.lower() for purpose in secrets))
    rule = f"states a release whose bound counts on secret {names}: must draw them by what `context.streams` gives"
    require(first.trained.secret_draws >= secrets, spec, rule)
    if Purpose.BATCHES in secrets and first.ids:
        require(_equal(first.ids, other.ids), spec, f"{rule}; they follow from the run's seed")
        require(not _equal(first.ids, another.ids), spec, f"{rule}; they do not follow from its key")


def _check_size(spec: MethodSpec, config: TrainingConfig, release: Release) -> None:
    """Check that the noise on messages of a channel has the standard deviation that `release` states."""
    first, second = (_trained(spec, config, replicas=range(8), noise_from=origin) for origin in (1, 2))
    kinds = _KINDS[release.channel]
    parts = []
    for message, a, b in zip(first.messages, first.payloads, second.payloads, strict=True):
        if message.kind in kinds:
            parts.append((a - b).flatten())
    differences = torch.cat(parts)
    # What is released of a record's gradient is B times its part of the batch mean.
    unit = config.batch_size if release.channel == "gradient" else 1
    deviation = float(differences.square().mean().sqrt()) * unit / math.sqrt(2.0)
    allowed = CERTAIN * release.sigma / math.sqrt(2.0 * differences.numel())
    stated = f"the release states sigma = {release.sigma:.4g}"
    rule = f"noise on {release.channel} has deviation {deviation:.4g}, {stated}"
    require(abs(deviation - release.sigma) <= allowed, spec, rule)
