"""Inputs and outputs of a run: context, data and trained models, and the deployment that an accountant asks about."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from dpzv_audit.accounting import Release
from dpzv_audit.accounting.release import ServerUpdate, batches_reach_further
from dpzv_audit.base.seeds import Purpose
from dpzv_audit.data.vertical import VerticalDataset

from .config import AsyncConfig, TrainingConfig, active_clients, check_plan
from .schedules import cyclic, largest_participation
from .secret import Origin

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .channel import ByteLedger, Channel, Observer
    from .models import Architecture
    from .replicas import ParameterStack, SoftTargets, Targets
    from .streams import Batch, Streams


@dataclass(frozen=True)
class Plan:
    """Activation by round, rounds by client, largest participation of a record (None: random), and the noise."""

    active: tuple[int, ...]
    rounds_by_client: tuple[int, ...]
    participations: int | None
    sigma: float


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where and for whom a method runs.

    Attributes:
        seed: Seed of every stream; replica k draws from streams of its own, whatever stack it is in.
        replicas: Numbers of the K replicas.
        device: `cpu` or `cuda`.
        observers: See every message.
        origin: What noise is drawn from; None: the streams of `seed`.
        sampling: What batches, directions, shifts and starts are drawn from; None: the streams of `seed`.
        behaviours: Clients, by number from 1, that do not follow the protocol.
        plan: Schedule and noise of a scalar channel where they are decided already; None: the run decides them.
        noised: Gets the sums without noise of a round (`NoisedScalars.sums`, (K,), or `PrivateDescent.clear`), and
            returns them with noise of its own; used to run both worlds in one stack.
        released: Maps a round's noised scalars (K,) to what goes out instead.
        channel: What the run sends its messages on; None: one of its own, which shows them to `observers`.
        progress: Hears of rounds within what is one step for the rest: a whole training of a system.
        enough: Own rounds, by client, after which the models are of no use to the caller: a training ends with the
            epoch in which all these clients have had so many.
    """

    seed: int
    replicas: Sequence[int] = (0,)
    device: str = "cpu"
    observers: "Sequence[Observer]" = ()
    origin: Origin | None = None
    sampling: Origin | None = None
    behaviours: "Mapping[int, Behaviour]" = field(default_factory=dict)
    plan: Plan | None = None
    noised: "Callable[[Tensor], Tensor] | None" = None
    released: "Callable[[Tensor], Tensor] | None" = None
    channel: "Channel | None" = None
    progress: Callable[[int], None] | None = None
    enough: Mapping[int, int] = field(default_factory=dict)

    def streams(self, dtype: "torch.dtype") -> "Streams":
        """Return where these replicas draw numbers of `dtype` that are public, or as secret as batches are."""
        from .streams import Streams

        return Streams(self.seed if self.sampling is None else self.sampling, self.replicas, dtype, self.device)

    def deployment(self, data: "TrainingData") -> "Deployment":
        """Return the public facts of a training on `data`, its clients that deviate included."""
        repeats = repeats_of(self.behaviours)
        return Deployment(records=data.records, clients=len(data.features), seed=self.seed, repeats=repeats)

    @property
    def noise_origin(self) -> Origin:
        """Return what noise is drawn from."""
        return self.seed if self.origin is None else self.origin

    def noise_streams(self, dtype: "torch.dtype") -> "Streams":
        """Return where these replicas draw noise of `dtype`."""
        return replace(self.streams(dtype), seed=self.noise_origin)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Public facts of a training beside its configuration.

    Attributes:
        records: Training records, D.
        clients: Clients, M.
        seed: Decides who is active when activation is random.
        rounds: Rounds of all clients together; None: those of the configuration's epochs.
        repeats: How many successive own rounds each batch of a client's first pass serves, by client where not 1.
        seeded_noise: Whether the noise can be drawn again by who sees the release (`Release.seeded_noise`).
        seeded_batches: Whether the batches can be drawn again too (`Release.seeded_batches`).
        data_dependent_side: Whether something else was fitted on the data (`Release.data_dependent_side`).
    """

    records: int
    clients: int
    seed: int = 0
    rounds: int | None = None
    repeats: Mapping[int, int] = field(default_factory=dict)
    seeded_noise: bool = False
    seeded_batches: bool = False
    data_dependent_side: bool = False


def schedule(config: AsyncConfig, deployment: Deployment) -> Plan:
    """Return who is active when, without noise; in a synchronous method one client stands for all.

    Raises:
        InputError: The configuration does not fit the deployment, or makes too many rounds.
    """
    records = deployment.records
    clients = deployment.clients
    rounds = check_plan(config, records=records, clients=clients, rounds=deployment.rounds)
    order = cyclic(1) if config.all_at_once else active_clients(config, clients, deployment.seed)
    active = tuple(islice(order, rounds))
    counted = Counter(active)
    numbers = range(1, 2 if config.all_at_once else clients + 1)
    by_client = tuple(counted[m] for m in numbers)
    repeats = deployment.repeats
    each = config.steps_per_pass(records)
    largest = [
        largest_participation(count, steps_per_pass=each, first_pass_repeats=repeats.get(m, 1))
        for m, count in enumerate(by_client, start=1)
    ]
    participations = sum(largest) if config.sampler == "shuffled" else None
    return Plan(active, by_client, participations, sigma=0.0)


def stated(
    config: AsyncConfig,
    deployment: Deployment,
    plan: Plan,
    *,
    update: ServerUpdate,
    **own: Any,
) -> Release:
    """Return the release of a plan's rounds, with what a method's `own` messages have beside it."""
    moved: ServerUpdate = "frozen" if config.server_rate == 0 else update
    same = config.model_dump(include={"batch_size", "sampler", "sample_rate", "noise"})
    return Release(
        dataset_size=deployment.records,
        rounds=len(plan.active),
        clients=own.pop("clients", deployment.clients),
        secret_batches=batches_reach_further(config.sampler, deployment.clients),
        participations=plan.participations,
        server_update=moved if config.top_model else "none",
        seeded_noise=deployment.seeded_noise,
        seeded_batches=deployment.seeded_batches,
        data_dependent_side=deployment.data_dependent_side,
        **same,
        **own,
    )


def repeats_of(behaviours: "Mapping[int, Behaviour]") -> dict[int, int]:
    """Return how many own rounds a batch of the first pass serves, by client that deviates."""
    return {number: behaviour.first_pass_repeats for number, behaviour in behaviours.items()}


@dataclass(frozen=True)
class ClientTurn:
    """What a client knows in its turn: its number, its own round count, its batch and the shape it must send."""

    round: int
    client: int
    own_round: int
    batch: "Batch"
    shape: tuple[int, ...]
    dtype: "torch.dtype"
    device: str


@runtime_checkable
class ClientBehaviour(Protocol):
    """A client that deviates from the protocol: a curious client's queries, a canary's embeddings.

    It acts through messages like everybody else: it chooses what it uploads and keeps what comes back.
    """

    @property
    def first_pass_repeats(self) -> int:
        """Return how many successive own rounds each batch of its first pass serves; 1: every round draws its own."""

    def uploads(self, turn: ClientTurn) -> "Tensor | None":
        """Return the two embeddings (K, 2, B, width) to send instead of the model's, or None to follow the protocol."""


@runtime_checkable
class GradientBehaviour(Protocol):
    """A client of a first-order method that steps by something else than the gradient that it computed."""

    @property
    def first_pass_repeats(self) -> int:
        """See `ClientBehaviour.first_pass_repeats`."""

    def own_gradient(self, gradient: "Tensor") -> "Tensor":
        """Return what to step by, (K, d), in place of `gradient`, whose storage may be written again after the step."""


@runtime_checkable
class AnswerBehaviour(Protocol):
    """A server of a first-order method that answers with other gradients than those of the loss."""

    @property
    def first_pass_repeats(self) -> int:
        """See `ClientBehaviour.first_pass_repeats`."""

    def answer(self, client: int, batch: "Batch", embeddings: "Tensor", gradient: "Tensor") -> "Tensor":
        """Return what a client gets for its `embeddings` (K, B, width) of a batch in place of the loss's `gradient`."""


Behaviour = ClientBehaviour | GradientBehaviour | AnswerBehaviour


@dataclass(frozen=True)
class LabelDecoder:
    """Reads classes off predictions of soft labels that took their place: a network of two layers for each replica.

    `parts` are weights (K, classes, h), biases (K, 1, h), weights (K, h, classes) and biases (K, 1, classes).
    """

    parts: "tuple[Tensor, ...]"

    def probabilities(self, soft: "Tensor") -> "Tensor":
        """Return how likely each class is, (K, n, classes), of predicted soft labels (K, n, classes)."""
        import torch

        first, shift, second, bias = self.parts
        return torch.softmax(torch.relu(soft @ first + shift) @ second + bias, 2)

    def logits(self, logits: "Tensor") -> "Tensor":
        """Return the logits of classes, (K, n, classes), of those that a model gives."""
        import torch

        return self.probabilities(torch.softmax(logits, 2)).clamp(min=torch.finfo(logits.dtype).tiny).log()


@dataclass(frozen=True)
class TrainingData:
    """Records on the device: a feature block a client and labels, (N,) for all replicas or (K, N) by replica.

    `vocabulary` is the number of token ids where the features are such, else None; `selection` (K, N) says which row of
    `features` each replica trains on as its record i (shadow models), None: row i. Where labels are `soft`, by replica
    (K, N, classes), losses are of these. A `decoder` reads classes off predictions of them. Where the target is a
    number, label c stands for `values[c]`.
    """

    features: "tuple[Tensor, ...]"
    labels: "Tensor"
    test_features: "tuple[Tensor, ...]"
    test_labels: "Tensor"
    classes: int
    vocabulary: int | None = None
    selection: "Tensor | None" = None
    soft: "SoftTargets | None" = None
    decoder: LabelDecoder | None = None
    values: np.ndarray | None = None

    @property
    def records(self) -> int:
        """Return the number N of records that a replica trains on."""
        if self.selection is None:
            return self.features[0].shape[0]
        return self.selection.shape[1]

    @property
    def like(self) -> "Tensor":
        """Return a tensor of the precision and device of losses: of token ids these are in single precision."""
        import torch

        block = self.features[0]
        return block if block.is_floating_point() else torch.empty(0, device=block.device)

    @classmethod
    def of(
        cls, dataset: VerticalDataset, *, dtype: "torch.dtype", device: str, labels: np.ndarray | None = None
    ) -> "TrainingData":
        """Copy `dataset` to `device`; `labels` (N,) or (K, N) replace the training labels (label games, controls)."""
        import torch

        def moved(block: np.ndarray) -> "Tensor":
            # Token ids stay integers, and labels.
            tensor = torch.from_numpy(np.ascontiguousarray(block)).to(device)
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        train = dataset.train
        test = dataset.test
        return cls(
            tuple(map(moved, train.features)),
            moved(train.labels if labels is None else labels),
            tuple(map(moved, test.features)),
            moved(test.labels),
            dataset.classes,
            getattr(dataset, "vocabulary", None),
            values=dataset.values,
        )

    def of_replicas(self, first: int, last: int) -> "TrainingData":
        """Return what the replicas at places `first` to `last` of a stack train on."""
        labels = self.labels if self.labels.dim() == 1 else self.labels[first:last]
        selection = None if self.selection is None else self.selection[first:last]
        soft = None if self.soft is None else replace(self.soft, rows=self.soft.rows[first:last])
        parts = () if self.decoder is None else tuple(layer[first:last] for layer in self.decoder.parts)
        decoder = LabelDecoder(parts) if parts else None
        return replace(self, labels=labels, selection=selection, soft=soft, decoder=decoder)

    def decoded(self, logits: "Tensor") -> "Tensor":
        """Return logits (K, n, classes) of true classes, of those that trained models give."""
        return logits if self.decoder is None else self.decoder.logits(logits)

    def batch_labels(self, batch: "Batch") -> "Targets":
        """Return labels (K, B) of `batch`, or the soft ones."""
        if self.soft is not None:
            rows = self.soft.rows
            places = batch.ids.unsqueeze(2).expand(-1, -1, rows.shape[2])
            return replace(self.soft, rows=rows.gather(1, places))
        return self.named_labels(batch)

    def named_labels(self, batch: "Batch") -> "Tensor":
        """Return labels (K, B) of `batch`, one class a record where they are soft too."""
        if self.labels.dim() == 1:
            return self.labels.index_select(0, batch.ids.flatten()).view(batch.ids.shape)
        return self.labels.gather(1, batch.ids)


def dtype_of(config: TrainingConfig) -> "torch.dtype":
    """Return the precision of the simulation as torch names it."""
    import torch

    return torch.float64 if config.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class TrainedStack:
    """The outcome of K trainings: models, accuracy, costs and the facts an accountant needs.

    `correct` says which test records are classified right, booleans (K, n), and `loss` is the mean test loss (K,).
    `history` has (epoch, mean test accuracy, mean test loss) where evaluation by epoch was asked for, and `traffic` the
    bytes (up, down) sent by the end of each of its epochs, the table's filling included. `architectures` are the
    clients' models of a system, None for whom it returns none; of a method its configuration says them. `answers` are
    a system's logits (K, n, classes) of the test records and of all records to choose from (`TrainingData.selection`).
    `secret_noise` says whether noise was drawn from secret bits, and `secret_draws` what else was, by purpose.
    """

    clients: "tuple[ParameterStack, ...]"
    server: "ParameterStack"
    correct: np.ndarray
    loss: np.ndarray
    ledger: "ByteLedger"
    rounds: int
    rounds_by_client: tuple[int, ...]
    history: tuple[tuple[int, float, float], ...] = ()
    traffic: tuple[tuple[int, int], ...] = ()
    architectures: "tuple[Architecture | None, ...]" = ()
    answers: tuple[np.ndarray, ...] = ()
    secret_noise: bool = False
    secret_draws: frozenset[Purpose] = frozenset()

    @property
    def accuracy(self) -> np.ndarray:
        """Return the test accuracy of each replica, (K,)."""
        return np.asarray(self.correct.mean(1))

    @classmethod
    def joined(cls, stacks: "Sequence[TrainedStack]") -> "TrainedStack":
        """Return one stack of the replicas of several, in their order; `history` has the means over all of them."""
        from .joining import joined

        if len(stacks) == 1:
            return stacks[0]
        sizes = [len(stack.correct) for stack in stacks]

        def means(epochs: Iterable[tuple[tuple[float, ...], ...]]) -> list[list[float]]:
            return [np.average(rows, axis=0, weights=sizes).tolist() for rows in epochs]

        records = means(zip(*(stack.history for stack in stacks), strict=True))
        history = tuple((round(epoch), accuracy, loss) for epoch, accuracy, loss in records)
        sent = means(zip(*(stack.traffic for stack in stacks), strict=True))
        traffic = tuple((round(up), round(down)) for up, down in sent)
        return replace(joined(stacks), history=history, traffic=traffic)

    def on_cpu(self) -> "TrainedStack":
        """Return the same with its models in the machine's memory: room on the device for the next stack."""
        clients = tuple(replace(stack, flat=stack.flat.cpu()) for stack in self.clients)
        return replace(self, clients=clients, server=replace(self.server, flat=self.server.flat.cpu()))
