"""Baselines: clips and noise on a channel, the release that states them, and first-order rounds (papers 001, 003).

`embedding`: each record's embedding is clipped in L2 norm to C_h and N(0, sigma^2 I) is added (the "VAFL mechanism"
that paper 001 gives its baselines); `embedding-batch`: the clip is over the whole B x d_h tensor, as the one public
implementation has it; `gradient`: each record's dL/dh_m is clipped to C_g and noised (paper 003, section 6.2).
Embedding noise protects features from the server and does nothing for labels against clients; gradient noise the
reverse.

Sensitivities of a message (accounting.md): a row clipped to C moves by 2C where a record is replaced and by C where its
block is zeroed out; one clip over the whole tensor of a batch moves by 2C in either case. Every message about a record
is counted: both uploads of a zeroth-order client, the first table, and all clients' messages of a synchronous round.
"""

from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from dpzv_audit.accounting import Release, calibrate, sigma_from_paper
from dpzv_audit.base.errors import InputError
from dpzv_audit.base.findings import NeighbourRelation
from dpzv_audit.base.seeds import Purpose

from .channel import SERVER
from .config import Bits, ProtectedConfig, active_clients
from .context import AnswerBehaviour, Deployment, RunContext, TrainingData, dtype_of, schedule, stated
from .defence import GradientDefences, penalised
from .federation import ForwardPass
from .method import Games, MethodSpec, Protection
from .noise import ROW_BITS, Grid, gaussian, norms_of, truncated_steps
from .rounds import AsyncRun, Turn
from .streams import Batch

PROTECTS = {
    "none": "nothing: no noise is added anywhere",
    "labels-shared": "nothing: every client is sent the labels, the server's model and everybody's embeddings",
    "embedding": "embeddings sent to the server, hence features; labels stay open to clients",
    "embedding-batch": "embeddings sent to the server, clipped as one tensor a batch; labels stay open to clients",
    "gradient": "gradients sent to clients, hence labels; features stay open to the server",
}
"""Which channel a baseline's noise protects, in words for every result."""


class ChannelNoise:
    """Clips and noises what travels on the protected channel; leaves the other as it is.

    `draws` says how often noise has been drawn: each draw is a stream of its own, so a run can be taken up again.
    """

    def __init__(self, config: ProtectedConfig, context: RunContext) -> None:
        self._config = config
        self._grid = Grid.of(config.noise, config.dp_clip, config.dp_sigma, bits=ROW_BITS)
        self.draws = torch.zeros(1, dtype=torch.int64)
        self._dtype = dtype_of(config)
        self._streams = context.noise_streams(torch.float64)

    def embeddings(self, values: Tensor) -> Tensor:
        """Return embeddings (K, n, width) as they are sent; of (K, 2, n, width), two messages, each by itself."""
        if not self._config.dp.startswith("embedding"):
            return values
        if values.dim() == 4:
            return torch.stack([self.embeddings(message) for message in values.unbind(1)], 1)
        return self._noised(values)

    def gradients(self, values: Tensor) -> Tensor:
        """Return per-record gradients (K, B, width) of the batch mean as they are sent.

        The clip bounds a record's own gradient, which is B times its part of the mean.
        """
        if self._config.dp != "gradient":
            return values
        size = self._config.batch_size
        return self._noised(values * size) / size

    def through_clip(self, embeddings: Tensor, gradient: Tensor) -> Tensor:
        """Pull a gradient at the clipped embeddings (K, B, width) back through the clip, to the model's own output."""
        if not self._config.dp.startswith("embedding"):
            return gradient
        norms = norms_of(embeddings, self._axes)
        factor = self._config.dp_clip / norms.clamp(min=self._config.dp_clip)
        unit = embeddings / norms.clamp(min=torch.finfo(self._dtype).tiny)
        along = (unit * gradient).sum(self._axes, keepdim=True) * unit
        return torch.where(factor < 1, factor * (gradient - along), gradient)

    @property
    def _axes(self) -> tuple[int, ...]:
        """Return what is clipped as one vector: a record, or a whole message."""
        return (1, 2) if self._config.dp == "embedding-batch" else (2,)

    def _noised(self, values: Tensor) -> Tensor:
        """Clip `values` (K, n, width) and add noise: on the grid in whole steps, which become floats at the end."""
        grid = self._grid
        sigma = self._config.dp_sigma
        clip = self._config.dp_clip
        if grid is not None:
            noise = self._draw(values, grid.steps(sigma))
            steps = truncated_steps(values, grid, self._axes).add_(noise)
            return steps.mul_(grid.step).to(self._dtype)
        clipped = values * (clip / norms_of(values, self._axes).clamp(min=clip))
        if sigma == 0.0:
            return clipped
        return clipped + self._draw(values, sigma).to(self._dtype)

    def _draw(self, values: Tensor, std: float) -> Tensor:
        """Return noise for `values` in float64, whole numbers with a grid."""
        number = int(self.draws)
        self.draws += 1
        rounded = self._grid is not None
        draw = partial(gaussian, tuple(values.shape[1:]), std, self._streams.seed, Purpose.NOISE, rounded=rounded)
        return self._streams.stacked([draw(k, number) for k in self._streams.replicas])


P = TypeVar("P", bound=ProtectedConfig)


def channel_protection(config: ProtectedConfig) -> Protection:
    """Return what the noise of a baseline protects; nothing where `config` asks for none."""
    nothing = Protection(epsilon=config.epsilon, delta=config.delta)
    if config.labels_shared:
        return replace(nothing, words=PROTECTS["labels-shared"])
    if not config.protected:
        return nothing
    labels = config.dp == "gradient"
    return replace(
        nothing,
        words=PROTECTS[config.dp],
        channel=config.channel,
        audience=("client", "colluding-clients", "all-but-one") if labels else ("server",),
        neighbours=config.neighbours or ("replace-label" if labels else "replace-record"),
        draws=True,
    )


def channel_releases(config: ProtectedConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return the noised messages of a training; () where no channel is protected.

    Raises `InputError` where the schedule does not fit the clients, or no noise reaches a target epsilon.
    """
    if not config.protected:
        return ()
    return (channel_release(calibrated(config, deployment), deployment),)


def channel_release(config: ProtectedConfig, deployment: Deployment) -> Release:
    """Return the messages of a training noised by `dp_sigma`, as an accountant takes them.

    Raises `InputError` where the schedule does not fit the clients.
    """
    channel = config.channel
    clients = deployment.clients
    together = config.all_at_once
    # Without a table all clients send embeddings of every batch, whoever draws it.
    kept = config.keeps_table
    return stated(
        config,
        deployment,
        schedule(config, replace(deployment, rounds=None, repeats={})),
        clip=config.dp_clip,
        sigma=config.dp_sigma,
        update=config.server_step,
        # All clients of a synchronous round send about one batch: a record takes part once, with all their messages.
        clients=1 if together else clients,
        channel=channel,
        directions=config.uploads * (1 if kept else clients) if channel == "embedding" else clients if together else 1,
        whole_data_rounds=clients if kept and channel == "embedding" else 0,
        clip_scope="batch" if config.dp == "embedding-batch" else "record",
        client_update="frozen" if config.client_rate == 0 else config.client_step,
    )


def calibrated(config: P, deployment: Deployment) -> P:
    """Return `config` with the `dp_sigma` that follows from its epsilon, or as it is where none is given.

    With calibration `messages` the noised messages alone are accounted, as if the clients' and the server's states and
    the low bits of floating-point noise told nothing more; with `sound` they must not. With `paper` the noise follows
    from theorem 5.1 of paper 001, as DPZV's own does: one message a round, and batches that hide who is in them.

    Raises:
        InputError: Calibration is `sound` and no sound bound exists; the line names the gap.
    """
    if config.epsilon is None:
        return config
    unit = config.model_copy(update={"dp_sigma": config.dp_clip})
    # The noise is what it is to be; where it is drawn, and what else was published, a bound on it says.
    release = channel_release(
        unit, replace(deployment, seeded_noise=False, seeded_batches=False, data_dependent_side=False)
    )
    claim = channel_protection(config)
    if config.calibration == "paper":
        return config.model_copy(update={"dp_sigma": _papers_sigma(config, release, claim.neighbours)})
    if config.calibration == "messages":
        release = replace(release, client_update="frozen", server_update="none", noise="exact")
    answer = calibrate(
        release,
        unknown="sigma",
        epsilon=config.epsilon,
        delta=config.delta,
        adversary=claim.faced,
        neighbours=claim.neighbours,
    )
    if not answer.reached or answer.value is None:
        rule = f" with dp {config.dp}; use another setting: {answer.reason}"
        raise InputError(rule, "calibration", config.calibration)
    return config.model_copy(update={"dp_sigma": float(answer.value)})


def _papers_sigma(config: ProtectedConfig, release: Release, neighbours: NeighbourRelation) -> float:
    """Return r s sqrt(T) / mu, with the rate r = B/D and the most s that one message moves; see `sigma_from_paper`."""
    assert config.epsilon is not None
    clip = release.sensitivity(neighbours) / 2.0 * release.batch_size
    size = release.nominal_records
    return sigma_from_paper(config.epsilon, config.delta, clip=clip, dataset_size=size, rounds=release.rounds)


class BaselineRun(AsyncRun[P]):
    """An `AsyncRun` with noise, calibrated, on the protected channel."""

    def __init__(self, data: TrainingData, config: P, context: RunContext) -> None:
        config = calibrated(config, context.deployment(data))
        super().__init__(data, config, context, active_clients(config, len(data.features), context.seed))
        self._noise = ChannelNoise(config, context)
        self._defences = GradientDefences(config, context)
        self.prepare()

    def prepare(self) -> None:
        """Set up what a method needs beside its federation and its noise."""

    def others(self, turn: Turn, bits: Bits | None = None) -> dict[int, Tensor]:
        """Upload what clients that are not active have of a batch: embeddings (K, B, width) by client; {} with a table.

        Embeddings travel in `bits` a value where that is set.
        """
        fed = self.federation
        if self.config.keeps_table:
            return {}
        sent = {}
        for number in fed.numbers:
            if number not in turn.clients:
                noised = self._noise.embeddings(fed.embed(number, turn.batch))
                sent[number] = fed.upload(number, self.round, turn.batch, noised, bits)
        return sent

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        own = {"noise-draws": self._noise.draws}
        return own | {"defended-messages": self._defences.messages} if self._defences else own


class FirstOrderRun(BaselineRun[P]):
    """Embeddings go up, dL/dh_m of every record comes down; clients and server step by their gradients.

    Embeddings travel in `bits` a value where that is set. A client takes `local_steps`, pulling the one gradient that
    it received back through its present model each time.
    """

    bits: Bits | None = None
    local_steps = 1

    def prepare(self) -> None:
        """See `BaselineRun.prepare`."""
        if self.config.keeps_table:
            self.federation.fill_table(protect=self._noise.embeddings, bits=self.bits)

    def step(self) -> None:
        """Run the next round."""
        fed = self.federation
        turn = self.next_turn()
        passes = {m: fed.forward(m, turn.batch) for m in turn.clients}
        noised = {m: self._noise.embeddings(forward.output) for m, forward in passes.items()}
        received = self.send_up(turn, noised, self.bits) | self.others(turn, self.bits)
        server_gradient, at_rows = fed.server_gradients(self.server_batch(turn.batch, received))
        fed.step_server(server_gradient)
        gradients = {m: self._protected(turn.batch, at_rows[:, :, fed.slots[m - 1]]) for m in turn.clients}
        server = fed.context.behaviours.get(SERVER)
        if isinstance(server, AnswerBehaviour):
            gradients = {m: server.answer(m, turn.batch, received[m], own) for m, own in gradients.items()}
        for number, answer in self.send_down(turn, "gradient", gradients).items():
            self._client_steps(number, turn.batch, passes[number], answer)
        self.round += 1

    def _protected(self, batch: Batch, gradients: Tensor) -> Tensor:
        """Return a client's part of the gradients (K, B, width) as it is sent: noised, and through the defences."""
        noised = self._noise.gradients(gradients.contiguous())
        return batch.cleared(self._defences(noised, self.federation.data, batch))

    def _client_steps(self, number: int, batch: Batch, forward: ForwardPass, answer: Tensor) -> None:
        """Step client `number` by what it received, pulled back through its model as it is before each step."""
        fed = self.federation
        for local in range(self.local_steps):
            if local:
                forward = fed.forward(number, batch)
            pulled = self._noise.through_clip(forward.output, answer)
            pulled = penalised(pulled, self.config.defences, forward.inputs, forward.output)
            gradient, _ = forward.pullback(pulled, at_inputs=False)
            fed.step_client(number, gradient)


_GAMES = Games(why_not="the games are played on noised scalars; noise on another channel is accounted, not audited")
baseline_method = partial(
    MethodSpec, released=channel_releases, protection=channel_protection, games=lambda config: _GAMES
)
"""Make a `MethodSpec` whose noise is that of the channel which its configuration protects."""
