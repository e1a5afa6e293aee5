"""VAFL: asynchronous first-order vertical federated learning (papers 001, 003), with noise on a channel where asked.

The active client sends its embeddings; the server refreshes its table, steps, and answers with dL/dh_m of every record.
"""

from __future__ import annotations

from mechanisms.core.channel import SERVER, Message
from mechanisms.core.config import BaselineConfig
from mechanisms.core.context import RunContext
from mechanisms.core.data import TrainingData
from mechanisms.core.method import MethodSpec
from mechanisms.core.protection import BaselineRun, channel_games, channel_protection, channel_releases


class VAFLConfig(BaselineConfig):
    """VAFL."""


class VAFLRun(BaselineRun[VAFLConfig]):
    """VAFL; see `BaselineRun`."""

    def __init__(self, data: TrainingData, config: VAFLConfig, context: RunContext) -> None:
        super().__init__(data, config, context)
        self.federation.fill_table(protect=self._noise.embeddings)

    def step(self) -> None:
        """Run the next round."""
        fed = self.federation
        number = next(self._active)
        client = fed.clients[number - 1]
        batch = client.next_batch(1, fed.steps_per_pass)
        output, pullback = client.evaluator.forward_with_pullback(client.parameters, fed.inputs(client, batch))
        output = batch.cleared(output)
        sent = fed.upload(number, self.round, batch, self._noise.embeddings(output))
        rows = fed.refresh(number, batch, sent)

        server_gradient, at_rows = fed.server_gradients(rows, fed.data.batch_labels(batch), batch.weights)
        part = batch.cleared(self._noise.gradients(at_rows[:, :, fed.slots[number - 1]].contiguous()))
        fed.step_server(server_gradient)

        message = Message(self.round, SERVER, number, "gradient", part, batch.members, sizes=batch.sizes)
        answer = fed.channel.send(message)
        client_gradient, _ = pullback(self._noise.through_clip(output, answer), at_inputs=False)
        fed.step_client(number, client_gradient)
        self.round += 1


SPEC = MethodSpec(
    name="vafl",
    summary="asynchronous, first order: one client a round, per-record gradients go down",
    config=VAFLConfig,
    run=VAFLRun,
    released=channel_releases,
    protection=channel_protection,
    games=channel_games,
    downlink="gradient",
    deviation="own_gradient",
)
