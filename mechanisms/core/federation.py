"""The parties of one run as a stack of K replicas: their models, the server's table of embeddings, and evaluation."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.seeds import Purpose

from .channel import SERVER, Channel, Message, quantised
from .config import TrainingConfig, check_sizes, rounds_of
from .context import ClientBehaviour, ClientTurn, GradientBehaviour, RunContext, TrainedStack, TrainingData, dtype_of
from .models import Architecture, default_architectures
from .pretrained import TransformerModel
from .replicas import (
    Evaluator,
    MomentumSGD,
    ParameterStack,
    Pullback,
    ServerBatch,
    cross_entropy,
    embeddings_of,
    evaluator_for,
    loss_gradient,
    server_of,
    shift_in_place,
)
from .secret import generator
from .streams import Batch, BatchStream, Directions


@dataclass
class ClientState:
    """One client's own things: features, model, batches."""

    features: Tensor
    evaluator: Evaluator
    parameters: ParameterStack
    batches: BatchStream
    rounds: int = 0
    batch: Batch | None = None
    shifted: tuple[Directions, int, float] | None = None
    """The direction, round and scale of a shift that the next step takes back: without it is the present model."""

    def model(self) -> Tensor:
        """Return a copy of the present model (K, d)."""
        present = ParameterStack(self.parameters.flat.clone(), self.parameters.layout)
        if self.shifted is not None:
            directions, round_, scale = self.shifted
            shift_in_place(present, directions, round_, -scale)
        return present.flat

    def next_batch(self, repeats: int, steps_per_pass: int) -> Batch:
        """Return the batch of this client's next round; each batch of the first pass serves `repeats` rounds."""
        again = self.rounds < repeats * steps_per_pass and self.rounds % repeats != 0
        if not again or self.batch is None:
            self.batch = self.batches.next()
        self.rounds += 1
        return self.batch


class ForwardPass(NamedTuple):
    """A client's `inputs` (K, B, ...), what its models make of them, (K, B, width), and the pullback of a gradient."""

    inputs: Tensor
    output: Tensor
    pullback: Pullback


class Federation:
    """All parties of a stack of K replicas, and the server's table of the latest embedding of every record.

    In `steps_per_pass` rounds one client goes through the data once. `numbers` are the clients'; `optimizers` are by
    party number.
    """

    def __init__(self, data: TrainingData, config: TrainingConfig, context: RunContext) -> None:
        self.data = data
        self.config = config
        self.context = context
        self.replicas = tuple(context.replicas)
        self.stack = len(self.replicas)
        self.device = context.device
        self.dtype = dtype_of(config)
        self.streams = context.streams(self.dtype)
        self.records = data.records
        check_sizes(config, records=self.records, clients=len(data.features))
        self.steps_per_pass = config.steps_per_pass(self.records)
        self._rounds = rounds_of(config, self.records)
        self._rates_fall = config.rates_fall
        self.offset = 0
        widths = {block.shape[3] if block.dim() == 4 else 0 for block in data.features}
        if config.shift and (len(widths) > 1 or 0 in widths):
            right = "use 0 where clients hold other than pictures of one width, cut into strips"
            raise InputError(right, "shift", config.shift)
        behaviours = context.behaviours.items()
        # Sorted once: to ask an object for a protocol's methods in every round costs as much as a matrix product.
        self._uploaders = {m: b for m, b in behaviours if isinstance(b, ClientBehaviour)}
        self._steppers = {m: b for m, b in behaviours if isinstance(b, GradientBehaviour)}
        self.channel = Channel(context.observers) if context.channel is None else context.channel
        self.traffic: list[tuple[int, int]] = []
        self._test_rows: Tensor | None = None
        client_models, server_model = architectures_of(data, config)
        self.width = config.embedding if config.top_model else data.classes
        self.numbers = range(1, len(data.features) + 1)
        self.clients = list(map(self._client, self.numbers, data.features, client_models))
        starts = range(0, len(self.clients) * self.width, self.width)
        self.slots = tuple(slice(start, start + self.width) for start in starts)
        self.server = server_of(server_model, config, clients=len(self.clients), stack=self.stack, device=self.device)
        self.server_parameters = ParameterStack.initial(
            self.server.layout, self.streams, party=SERVER, pretrained=pretrained(server_model)
        )
        self.optimizers = [
            MomentumSGD(self.server_parameters, config.server_rate, config.server_momentum),
            *(MomentumSGD(client.parameters, config.client_rate, config.momentum) for client in self.clients),
        ]

    def _client(self, number: int, features: Tensor, model: Architecture) -> ClientState:
        config = self.config
        evaluator = evaluator_for(model, stack=self.stack, device=self.device)
        parameters = ParameterStack.initial(evaluator.layout, self.streams, party=number, pretrained=pretrained(model))
        batches = BatchStream(
            config.sampler,
            self.streams,
            records=self.records,
            batch_size=config.batch_size,
            client=number,
            sample_rate=config.sample_rate,
        )
        return ClientState(features, evaluator, parameters, batches)

    def inputs(self, client: ClientState, batch: Batch) -> Tensor:
        """Return this client's features of `batch`, shape (K, B, *feature shape)."""
        chosen = batch.ids if self.data.selection is None else self.data.selection.gather(1, batch.ids)
        rows = moved(client.features.index_select(0, chosen.flatten()), self.offset)
        return rows.view(*batch.ids.shape, *rows.shape[1:])

    def upload(self, number: int, round_: int, batch: Batch, rows: Tensor, bits: int | None = None) -> Tensor:
        """Send embeddings (K, B, width) or (K, e, B, width) of `batch` from client `number`, in `bits` a value.

        What a replica would send for padding must not reach the table's row that all replicas share.
        """
        sent, size = quantised(batch.cleared(rows), bits)
        return self._send(Message(round_, number, SERVER, "embeddings", sent, batch.members, size, batch.sizes))

    def _send(self, message: Message) -> Tensor:
        """Send what a client uploads, for which it notes its present model (K, d)."""
        self.channel.note(message.sender, message.round, "model", self.clients[message.sender - 1].model)
        return self.channel.send(message)

    def deviations(self, numbers: Iterable[int], round_: int, own_round: int, batch: Batch) -> dict[int, Tensor]:
        """Return what those of the clients that deviate send in place of two embeddings, (K, 2, B, width) by client.

        Raises `ValueError` for embeddings of another shape.
        """
        sent = {}
        shape = (self.stack, 2, batch.ids.shape[1], self.width)
        for number in sorted(self._uploaders.keys() & numbers):
            turn = ClientTurn(round_, number, own_round, batch, shape, self.dtype, self.device)
            uploads = self._uploaders[number].uploads(turn)
            if uploads is not None and uploads.shape != shape:
                raise ValueError(f"client {number} sends embeddings of shape {tuple(uploads.shape)}; use {shape}")
            if uploads is not None:
                sent[number] = uploads
        return sent

    def embed(self, number: int, batch: Batch) -> Tensor:
        """Return embeddings (K, B, width) of `batch` under a client's present model."""
        client = self.clients[number - 1]
        return batch.cleared(client.evaluator.forward(client.parameters, self.inputs(client, batch)))

    def forward(self, number: int, batch: Batch) -> "ForwardPass":
        """Return embeddings of `batch` under a client's present model, and how to pull a gradient back to it."""
        client = self.clients[number - 1]
        inputs = self.inputs(client, batch)
        output, pullback = client.evaluator.vjp(client.parameters, inputs)
        return ForwardPass(inputs, batch.cleared(output), pullback)

    def embed_pair(self, number: int, batch: Batch, models: ParameterStack) -> Tensor:
        """Return embeddings (K, 2, B, width) of a client's `batch` under a stack of 2K models, two of each replica."""
        client = self.clients[number - 1]
        doubled = self.inputs(client, batch).repeat_interleave(2, 0)
        return client.evaluator.forward(models, doubled).view(self.stack, 2, -1, self.width)

    def step_client(self, number: int, gradient: Tensor) -> None:
        """Step client `number` by `gradient` (K, d), or by what it makes of that where it has a rule of its own."""
        behaviour = self._steppers.get(number)
        self.optimizers[number].step(gradient if behaviour is None else behaviour.own_gradient(gradient))

    def begin(self, round_: int) -> None:
        """Set what a round has of its own: all parties' rates, and by how much pictures are moved.

        A round beyond the last of the configuration has the rates of the last.
        """
        shift = self.config.shift
        if shift:
            drawn = generator(self.streams.seed, Purpose.SHIFTS, round_)
            self.offset = int(drawn.integers(-shift, shift + 1))
        if self._rates_fall:
            left = 1.0 - min(round_, self._rounds - 1) / self._rounds
            own = self.config.server_rate, *[self.config.client_rate] * len(self.clients)
            for optimizer, rate in zip(self.optimizers, own, strict=True):
                optimizer.rate = rate * left

    def server_batch(self, rows: Tensor, batch: Batch) -> ServerBatch:
        """Return what the server steps by: `rows` (K, B, M * width) with labels and weights of `batch`."""
        return ServerBatch(rows, self.data.batch_labels(batch), batch.weights)

    def server_gradients(
        self, batch: ServerBatch, parameters: ParameterStack | None = None, *, at_inputs: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return gradients of the batch loss at the server's parameters (K, d_0) and at the rows (K, B, M * width).

        Without `at_inputs` the second is of no use. `parameters` stand in for the server's present ones.
        """
        parameters = self.server_parameters if parameters is None else parameters
        logits, pullback = self.server.vjp(parameters, batch.rows)
        gradient = loss_gradient(logits, batch.labels, batch.weights, self.config.batch_size)
        return pullback(gradient, at_inputs=at_inputs)

    def step_server(self, gradient: Tensor) -> None:
        """Step the server by `gradient` (K, d_0)."""
        self.optimizers[SERVER].step(gradient)

    def train_server(self, batch: ServerBatch) -> None:
        """Step the server by the gradient of the batch loss."""
        self.step_server(self.server_gradients(batch, at_inputs=False)[0])

    def embed_all(self, client: ClientState, features: Tensor) -> Tensor:
        """Return embeddings (K, n, width) of all of `features` (n, ...) under the client's present parameters."""
        return embeddings_of(client.evaluator, client.parameters, features)

    def send_labels(self, bits: int | None = None) -> list[Tensor]:
        """Send every client the training labels once, in so many `bits`; return what each receives, (K, N)."""
        labels = self.data.labels.expand(self.stack, -1)
        return [self.channel.send(Message(-1, SERVER, number, "labels", labels, bits=bits)) for number in self.numbers]

    def fill_table(
        self,
        silent: Container[int] = (),
        *,
        protect: Callable[[Tensor], Tensor] = lambda embeddings: embeddings,
        bits: int | None = None,
    ) -> None:
        """Have every client send all its embeddings once, which the server keeps as its table, (K * N, M * width).

        Clients that are `silent` send zeros. `protect` is what a method does to embeddings before they are sent, in
        `bits` a value where it compresses.
        """
        self.clear_table()
        for number, client in enumerate(self.clients, start=1):
            if number in silent:
                rows = self.table.new_zeros(self.stack, self.records, self.width)
            else:
                rows = protect(self.embed_records(client))
            sent, size = quantised(rows, bits)
            self.put(Message(-1, number, SERVER, "table", sent, bits=size))

    def clear_table(self) -> None:
        """Make the server's table, of zeros."""
        places = self.stack * self.records + 1
        columns = len(self.clients) * self.width
        # The scratch row at the end takes what padded places write and is never counted.
        self.table = torch.zeros(places, columns, dtype=self.dtype, device=self.device)
        self._columns = [self.table[:, slot] for slot in self.slots]

    def embed_records(self, client: ClientState) -> Tensor:
        """Return embeddings (K, N, width) of the records that each replica trains on."""
        rows = self.embed_all(client, client.features)
        chosen = self.data.selection
        return rows if chosen is None else rows.gather(1, chosen.unsqueeze(2).expand(-1, -1, self.width))

    def embed_first(self, client: ClientState) -> Tensor:
        """Return embeddings (N, width) of all records in the first replica, of models that are alike in all."""
        parameters = ParameterStack(client.parameters.flat[:1], client.parameters.layout)
        return embeddings_of(client.evaluator, parameters, client.features)[0]

    def put(self, message: Message) -> None:
        """Send embeddings (K, N, width) of all records, and keep what arrives in the table."""
        self._columns[message.sender - 1][:-1] = self._send(message).flatten(0, 1)

    def refresh(self, number: int, batch: Batch, embeddings: Tensor) -> Tensor:
        """Put a client's embeddings (K, B, width) of `batch` in the table; return its rows (K, B, M * width)."""
        self._columns[number - 1].index_copy_(0, batch.places, embeddings.reshape(-1, self.width))
        return self.table_rows(batch)

    def table_rows(self, batch: Batch) -> Tensor:
        """Return the table's rows of `batch`, shape (K, B, M * width)."""
        return self.table.index_select(0, batch.places).view(*batch.ids.shape, -1)

    def finish(self, rounds: int, history: Sequence[tuple[int, float, float]]) -> TrainedStack:
        """Evaluate and hand over the models."""
        correct, loss = self.test_metrics()
        return TrainedStack(
            clients=tuple(client.parameters for client in self.clients),
            server=self.server_parameters,
            correct=correct,
            loss=loss,
            ledger=self.channel.ledger,
            rounds=rounds,
            rounds_by_client=tuple(client.rounds for client in self.clients),
            history=tuple(history),
            traffic=tuple(self.traffic),
        )

    def epoch_record(self, epoch: int) -> tuple[int, float, float]:
        """Return (epoch, mean test accuracy, mean test loss), and note the bytes sent so far in `traffic`."""
        correct, loss = self.test_metrics()
        self.traffic.append((self.channel.ledger.up, self.channel.ledger.down))
        return epoch, float(correct.mean()), float(loss.mean())

    def test_metrics(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each test record is classified right, (K, n), and the mean loss (K,), on fresh embeddings."""
        rows = self._test_rows
        if rows is None:
            rows = torch.cat(list(map(self.embed_all, self.clients, self.data.test_features)), 2)
        if self.config.data_free is not None:  # what is sent once does not move
            self._test_rows = rows
        labels = self.data.test_labels.expand(self.stack, -1)
        logits = self.data.decoded(self.server.forward(self.server_parameters, rows))
        losses = cross_entropy(logits, labels).to(torch.float64).mean(1)
        return (logits.argmax(2) == labels).cpu().numpy(), losses.cpu().numpy()


def moved(pictures: Tensor, by: int) -> Tensor:
    """Return pictures (..., width) moved to the right by so many pixels, to the left where negative; 0 comes in."""
    width = pictures.shape[-1]
    by = max(-width, min(by, width))
    return pad(pictures, (by, -by)) if by else pictures


def architectures_of(
    data: TrainingData, config: TrainingConfig
) -> tuple[tuple[Architecture, ...], Architecture | None]:
    """Return the clients' models and the server's (None where it only sums) for features and a configuration."""
    shapes = [tuple(block.shape[1:]) for block in data.features]
    return default_architectures(config, shapes, data.classes, data.vocabulary)


def logits_of(
    trained: TrainedStack, data: TrainingData, config: TrainingConfig, blocks: Sequence[Tensor], *, device: str
) -> Tensor:
    """Return what released models say of records: logits (K, n, classes) of feature `blocks` (n, ...), one per client.

    `data` are those that were trained on, for their shapes alone.
    """
    client_models, server_model = architectures_of(data, config)
    stack = len(trained.server.flat)
    evaluators = [evaluator_for(model, stack=stack, device=device) for model in client_models]
    server = server_of(server_model, config, clients=len(client_models), stack=stack, device=device)
    rows = torch.cat(list(map(embeddings_of, evaluators, trained.clients, blocks)), 2)
    return server.forward(trained.server, rows)


def pretrained(model: Architecture | None) -> Mapping[str, Tensor]:
    """Return parameters of `model` by name that do not start at random."""
    return model.pretrained() if isinstance(model, TransformerModel) else {}
