"""The truth that estimates of gradients are measured against, worked out from all messages: for scoring alone."""

from __future__ import annotations

import torch
from torch import Tensor

from mechanisms.messages import SERVER, Message


class GradientTruth:
    """Gradient softmax - one-hot at the summed logits of every attacked batch, at its first query.

    An observer of all parties' uploads: it keeps each client's latest outputs, as the server's table does, and at
    an answer adds those of the batch up. No attack is given one.
    """

    def __init__(
        self, *, labels: Tensor, clients: int, classes: int, repeats: int, answered: int | None, central: bool
    ) -> None:
        """Watch a run.

        Args:
            labels: What was trained on, (N,) or (K, N).
            clients: Number of clients.
            classes: Number of classes, the width of a client's output.
            repeats: Answers about each batch, of which the first counts.
            answered: Answers to this client count; None: to any.
            central: Whether a pair of uploads lies around the model's output (DPZV), or starts at it.
        """
        self._labels = labels
        self._clients = clients
        self._classes = classes
        self._repeats = repeats
        self._answered = answered
        self._central = central
        self._latest: Tensor | None = None
        self._seen = 0
        self._found: list[Tensor] = []
        self._ids: list[Tensor] = []

    def on_message(self, message: Message) -> None:
        """Follow the table, and work out the gradient at an answer that counts."""
        if message.kind == "table":
            self._table(len(message.payload), message.payload)[:, message.sender - 1] = message.payload
        elif message.kind == "embeddings" and message.ids is not None:
            self._refresh(message.payload, message.ids, message.sender)
        elif message.sender == SERVER and self._answered in (None, message.receiver) and message.ids is not None:
            if self._seen % self._repeats == 0:
                self._keep(message.ids)
            self._seen += 1

    def on_note(self, party: int, round_: int, name: str, value: Tensor) -> None:
        """What parties know by themselves is not needed."""

    def finish(self) -> None:
        """Let go of the table of outputs, which is larger than the gradients worked out from it."""
        self._latest = None

    def gradients(self) -> Tensor:
        """Per-record gradients (answers, K, B, classes)."""
        return torch.stack(self._found)

    def label_parts(self, labels: Tensor) -> Tensor:
        """What `labels` (N,) contribute to gradients at the attacked batches: minus one-hot, about its mean."""
        shares = torch.bincount(labels, minlength=self._classes).double() / len(labels)
        return shares - torch.nn.functional.one_hot(labels[torch.stack(self._ids)], self._classes).double()

    def _table(self, replicas: int, like: Tensor) -> Tensor:
        if self._latest is None:
            shape = (replicas, self._clients, self._labels.shape[-1], self._classes)
            self._latest = torch.zeros(shape, dtype=torch.float64, device=like.device)
        return self._latest

    def _refresh(self, sent: Tensor, ids: Tensor, sender: int) -> None:
        if sent.dim() == 4:
            sent = sent.mean(1) if self._central else sent[:, 0]
        rows = self._table(len(sent), sent)[:, sender - 1]
        rows.scatter_(1, ids.unsqueeze(2).expand(-1, -1, self._classes), sent.double())

    def _keep(self, ids: Tensor) -> None:
        if self._latest is None:
            raise TypeError("an answer came before any upload")
        index = ids[:, None, :, None].expand(-1, self._clients, -1, self._classes)
        probabilities = torch.softmax(self._latest.gather(2, index).sum(1), 2)
        labels = self._labels[ids] if self._labels.dim() == 1 else self._labels.gather(1, ids)
        self._found.append(probabilities - torch.nn.functional.one_hot(labels, self._classes))
        self._ids.append(ids)
