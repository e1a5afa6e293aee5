"""One upload: each client sends embeddings of all records once; the server then trains a head on them, and no more.

Embeddings are label-free features that a client fitted to its own block (`bottoms` features: no label reaches a
client), or outputs of a bottom model that each client trained by itself on the labels it was sent (`bottoms` local),
which is for labels that were privatised: one-shot vertical federated learning (Sun et al., arXiv 2303.16270) on private
labels. Nothing comes down afterwards. Without a top model the server sums what local bottoms sent, an ensemble;
features have no such sum. The first `local_epochs` of the rounds are the clients', the rest the server's.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, log2
from typing import Literal

from pydantic import Field
from torch import Tensor

from ..core.channel import SERVER, Message, quantised
from ..core.config import (
    ClientMomentum,
    ClientRate,
    FeatureKind,
    ForwardBits,
    ServerMomentum,
    ServerRate,
    TrainingConfig,
    rounds_of,
)
from ..core.context import RunContext, TrainingData
from ..core.defence import label_release
from ..core.features import fitted
from ..core.federation import Federation
from ..core.method import MethodSpec, no_noise
from ..core.models import MLP
from ..core.replicas import MomentumSGD, ParameterStack, evaluator_for, loss_gradient


class OneUploadConfig(TrainingConfig):
    """One upload, and a head at the server. Rates and momentum are those of plain SGD."""

    client_rate: ClientRate = 0.05
    server_rate: ServerRate = 0.05
    momentum: ClientMomentum = 0.9
    server_momentum: ServerMomentum = 0.9
    bottoms: Literal["features", "local"] = "features"
    """What clients send: label-free features, or outputs of models that each client trained on private labels."""
    features: FeatureKind = "auto"
    """Which label-free features: patches of images, principal components of everything else."""
    local_epochs: int | None = Field(None, ge=1)
    """The first epochs, in which clients train before they send; by default half of all epochs."""
    forward_bits: ForwardBits = None

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        local = self.bottoms == "local"
        private = label_release(self.defences) is not None
        yield local and not private, "bottoms local needs a defence that privatises labels: clients train on them"
        yield local and self.epochs < 2, "epochs is 1; use 2 at least with bottoms local: the last are the server's"
        whole = local and (self.local_epochs or 1) >= self.epochs > 1
        yield whole, f"local_epochs is {self.local_epochs}; use less than epochs: the last are the server's"
        idle = not local and self.local_epochs is not None
        yield idle, f"local_epochs does not apply with bottoms {self.bottoms}: clients train nothing"
        yield local and self.features != "auto", "features does not apply: with bottoms local clients train their own"
        yield not local and self.shift > 0, "use shift 0 with bottoms features: what is sent once does not move"
        model = not local and (self.client_model != "auto" or self.transformer is not None)
        yield model, "use client_model auto with bottoms features, which are the clients' models"

    @property
    def labels_shared(self) -> bool:
        """See `TrainingConfig.labels_shared`."""
        return self.bottoms == "local"

    @property
    def label_free(self) -> FeatureKind | None:
        """See `TrainingConfig.label_free`."""
        return self.features if self.bottoms == "features" else None


class OneUploadRun:
    """One stack of K trainings in progress; see `mechanisms.core.method.Run`."""

    def __init__(self, data: TrainingData, config: OneUploadConfig, context: RunContext) -> None:
        self.federation = fed = Federation(data, config, context)
        self.config = config
        self.round = 0
        self._heads: list[MomentumSGD] = []
        local = config.local_epochs or config.epochs // 2
        self._local_rounds = local * fed.steps_per_pass if config.bottoms == "local" else 0
        fed.clear_table()
        if config.bottoms == "local":
            self._begin_locally()
        else:
            self._fit()
            self._upload(-1)

    def _fit(self) -> None:
        """Set every client's model to the features that it fits to its own block."""
        fed = self.federation
        config = self.config
        for number, client in enumerate(fed.clients, start=1):
            for place, replica in enumerate(fed.replicas):
                block = client.features
                if fed.data.selection is not None:
                    block = block[fed.data.selection[place]]
                drawn = {"seed": fed.context.seed, "client": number, "replica": replica}
                client.parameters.flat[place] = fitted(block, config.features, fed.width, **drawn).flat

    def _begin_locally(self) -> None:
        """Send every client the labels, one a record, and give it a linear head of its own."""
        fed = self.federation
        self._labels = fed.send_labels(fed.records * ceil(log2(fed.data.classes)))
        if not self.config.top_model:
            return  # what bottoms send are logits
        self._head = evaluator_for(MLP((fed.width, fed.data.classes)), stack=fed.stack, device=fed.device)
        for number in fed.numbers:
            # Parties after the last client: no model shares the draws of another.
            party = len(fed.clients) + number
            start = ParameterStack.initial(self._head.layout, fed.streams, party=party)
            self._heads.append(MomentumSGD(start, self.config.client_rate, self.config.momentum))

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        tensors: dict[str, Tensor] = {}
        for number, head in enumerate(self._heads, start=1):
            tensors |= {f"head-{number}": head.parameters.flat, f"head-{number}-momentum": head.buffer}
        return tensors

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.round = rounds

    def step(self) -> None:
        """Run the next round: every client's by itself, or the server's on what it was sent."""
        fed = self.federation
        local = self.round < self._local_rounds
        self._begin(local)
        if local:
            for number in fed.numbers:
                self._local_step(number)
            if self.round == self._local_rounds - 1:
                self._upload(self.round)
        else:
            batch = fed.clients[0].batches.next()
            fed.train_server(fed.server_batch(fed.table_rows(batch), batch))
        self.round += 1

    def _begin(self, local: bool) -> None:
        """Begin a round of the clients' part of the training or of the server's; rates fall over each by itself."""
        fed = self.federation
        whole = rounds_of(self.config, fed.records)
        first, last = (0, self._local_rounds) if local else (self._local_rounds, whole)
        fed.begin((self.round - first) * whole // max(1, last - first))
        for number, head in enumerate(self._heads, start=1):
            head.rate = fed.optimizers[number].rate

    def _local_step(self, number: int) -> None:
        """Step client `number` and its own head by the loss of its next batch under the labels that it was sent."""
        fed = self.federation
        client = fed.clients[number - 1]
        batch = client.next_batch(1, fed.steps_per_pass)
        _, output, pull_bottom = fed.forward(number, batch)
        labels = self._labels[number - 1].gather(1, batch.ids)
        size = fed.config.batch_size
        if self._heads:
            head = self._heads[number - 1]
            logits, pull_head = self._head.vjp(head.parameters, output)
            of_head, gradient = pull_head(loss_gradient(logits, labels, batch.weights, size))
            head.step(of_head)
        else:
            gradient = loss_gradient(output, labels, batch.weights, size)
        of_bottom, _ = pull_bottom(batch.cleared(gradient), at_inputs=False)
        fed.step_client(number, of_bottom)

    def _upload(self, round_: int) -> None:
        """Send all embeddings of all clients; columns of zeros, which a client has not, take no bytes."""
        fed = self.federation
        for number, client in enumerate(fed.clients, start=1):
            rows = fed.embed_records(client)
            sent, size = quantised(rows, self.config.forward_bits)
            held = int(rows.any(1).sum(1).max())
            bits = held * fed.records * 32 if size is None else size
            fed.put(Message(round_, number, SERVER, "table", sent, bits=bits))


SPEC = MethodSpec(
    name="one-upload",
    summary="clients send label-free features, or those of bottoms trained on private labels, once; a head learns",
    config=OneUploadConfig,
    run=OneUploadRun,
    released=no_noise,
    downlink="none",
    # Columns that a client has not take no bytes. Features are its model, whatever others take for the data.
    defaults={"embedding": 192, "hidden": 64, "client_model": "auto"},
)
LABEL_PRIVATE = replace(
    SPEC,
    name="label-private",
    summary="one-upload on shares of classes that groups of like records release: private labels, few bytes",
    defaults={**SPEC.defaults, "defences": ({"name": "label-cluster", "release": "shares"},)},
)
"""What did best on digits and adult of what is (epsilon, 0) for each label, at 1 unless another defence is given."""
