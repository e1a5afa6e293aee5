"""Split learning: synchronous, first order, all clients in every round; the reference and the positive control."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mechanisms.config import SplitConfig
from mechanisms.dpzv import Progress
from mechanisms.federation import Federation, TrainedStack, TrainingData, rounds_of
from mechanisms.messages import SERVER, Message, Observer
from mechanisms.perturbation import momentum_step
from mechanisms.servers import loss_gradient


@torch.no_grad()
def train(
    data: TrainingData,
    config: SplitConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    observers: Sequence[Observer] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    evaluate_epochs: bool = False,
) -> TrainedStack:
    """Train by split learning in K replicas at once.

    Each round all clients send the embeddings h_m of one batch, and each receives dL/dh_m, the gradient of every
    record at its embedding: without a top model that is (softmax - one-hot) / B, which names the label
    (paper 002, section VI-B). Arguments, result and errors are those of `mechanisms.dpzv.train`.
    """
    fed = Federation(data, config, seed=seed, replicas=replicas, observers=observers, device=device)
    history: list[tuple[int, float, float]] = []
    rounds = rounds_of(config, fed.records)
    for round_ in range(rounds):
        _step(fed, config, round_)
        if (round_ + 1) % fed.steps_per_pass == 0:
            if evaluate_epochs:
                history.append(fed.epoch_record((round_ + 1) // fed.steps_per_pass))
            if progress is not None:
                progress(round_ + 1)
    return fed.finish(
        rounds=rounds, rounds_by_client=(rounds,) * len(fed.clients), participations=None, history=history
    )


def _step(fed: Federation, config: SplitConfig, round_: int) -> None:
    """One round: embeddings up, gradients down, everybody steps."""
    batch = fed.clients[0].batches.next()
    embeddings, pullbacks = [], []
    for number, client in enumerate(fed.clients, start=1):
        output, pullback = client.evaluator.forward_with_pullback(client.parameters, fed.inputs(client, batch))
        embeddings.append(fed.channel.send(Message(round_, number, SERVER, "embeddings", output, batch.members)))
        pullbacks.append(pullback)
    rows = torch.cat(embeddings, 2)
    logits, pull_server = fed.server.forward_with_pullback(fed.server_parameters, rows)
    gradient = loss_gradient(logits, fed.data.batch_labels(batch), batch.weights, config.batch_size)
    server_gradient, at_rows = pull_server(gradient)
    momentum_step(
        fed.server_parameters.flat,
        fed.server_momentum,
        server_gradient,
        config.server_rate,
        config.server_momentum,
    )
    for number, (client, pullback) in enumerate(zip(fed.clients, pullbacks, strict=True), start=1):
        part = at_rows[:, :, (number - 1) * fed.width : number * fed.width].contiguous()
        received = fed.channel.send(Message(round_, SERVER, number, "gradient", part, batch.members))
        client_gradient, _ = pullback(received, at_inputs=False)
        momentum_step(client.parameters.flat, client.momentum, client_gradient, config.client_rate, config.momentum)
