"""Sign feedback: DPZV's round (paper 001, algorithm 1) without noise, whose server answers with one bit: a sign.

A client sends h(w + lambda u) and h(w - lambda u), and steps along u by the sign of the difference of the two losses.
"""

from pydantic import Field

from mechanisms.core.config import AsyncConfig, active_clients
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.method import Differences, MethodSpec, no_noise
from mechanisms.core.replicas import loss_differences
from mechanisms.core.rounds import AsyncRun, ZerothOrderParty


class SignFeedbackConfig(AsyncConfig):
    """Zeroth-order training by signs."""

    client_rate: float = Field(5e-4, ge=0, description="Length of a client's step, over that of its direction.")
    server_rate: float = Field(0.05, ge=0, description="Learning rate of the server, which has its own gradient.")
    smoothing: float = Field(1e-3, gt=0, description="Length of the step along a direction, lambda.")


class SignFeedbackRun(AsyncRun[SignFeedbackConfig]):
    """One stack of K trainings in progress."""

    def __init__(self, data: TrainingData, config: SignFeedbackConfig, context: RunContext) -> None:
        clients = len(data.features)
        super().__init__(data, config, context, active_clients(config, clients, context.seed))
        fed = self.federation
        self.parties = {number: ZerothOrderParty(fed, number, "sphere") for number in range(1, clients + 1)}
        fed.fill_table(context.behaviours)

    def step(self) -> None:
        """Run the next round: two embeddings of each record go up, one bit comes down."""
        fed = self.federation
        smoothing = self.config.smoothing
        turn = self.next_turn()
        received = self.send_up(turn, self.embed_both_ways(turn, smoothing, -smoothing))
        ((number, pair),) = received.items()
        seen = self.server_batch(turn.batch, {number: pair.mean(1)})
        logits = fed.server.pair_logits(fed.server_parameters, seen.rows, pair, fed.slots[number - 1])
        differences = seen.counted(loss_differences(logits, seen.labels))
        fed.train_server(seen)
        for client, sign in self.send_down(turn, "scalar", {number: differences.sum(1).sign()}, bits=1).items():
            self.parties[client].step(turn.own_round, sign)
        self.round += 1


def differences(config: SignFeedbackConfig) -> Differences:
    """Return how an answer measures a gradient, for attacks that read answers."""
    return Differences(smoothing=config.smoothing, two_sided=True, records=config.batch_size, pairs=True)


SPEC = MethodSpec(
    name="sign-feedback",
    summary="dpzv without noise whose server answers with the sign of the loss difference: one bit per round",
    config=SignFeedbackConfig,
    run=SignFeedbackRun,
    released=no_noise,
    downlink="scalar",
    differences=differences,
    deviation="uploads",
)
