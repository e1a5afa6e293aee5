"""Fixed features: data-free features of each client's block, uploaded once, and a private linear head at the server.

A client's features follow from the shape of its block and a public seed (`mechanisms.core.fixed`), so that uploading
them fits nothing. The server, which is trusted, trains softmax regression on them by full-batch gradient descent with
clipped and noised sums (`mechanisms.core.logistic`) and releases the mean of the weights over the later half of the
steps. Handcrafted features with private linear models: Tramer and Boneh, ICLR 2021, for central learning.

Whoever sees every noised sum, and so the released head, is held to mu = 2 C sqrt(T) / sigma where a record is replaced:
features and label alike. Nothing comes down during training. The server is told everything.

The rule for the rate: the noise of all steps alone gives a logit a standard deviation of `logit_noise`, whatever the
records, the budget and the steps are. It was settled on digits, CIFAR-10, multiple features, breast-cancer, adult and
bank, and never on MNIST.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from dpzv_audit.accounting import Release, sigma_sound
from dpzv_audit.base.errors import InputError, check_names
from dpzv_audit.base.seeds import Purpose, stream

from ..core.channel import SERVER, Message
from ..core.config import HeadConfig, Positive, ServerMomentum
from ..core.context import Deployment, RunContext, TrainingData, dtype_of
from ..core.features import fitted
from ..core.federation import Federation
from ..core.fixed import FEATURES, Padded, fixed_map
from ..core.logistic import GRID_BITS, ClippedSums, PrivateDescent, all_labels, rows_of
from ..core.method import Games, MethodSpec, Protection
from ..core.noise import GaussianNoise, Grid

FITTED = ("components", "patches")
"""Features of `one-upload`, which are fitted to all records: a bound on them has the gap data-dependent-side."""


def _known(name: str) -> str:
    return check_names("features", [name], ("auto", *FEATURES, *FITTED))[0]


_WHOLE = "every step reads all records"
_STILL = "clients have fixed features, which do not move"
_UNUSED = {
    "batch_size": _WHOLE,
    "sampler": _WHOLE,
    "sample_rate": _WHOLE,
    "rate_schedule": "the head is a mean over steps of one rate",
    "client_rate": _STILL,
    "momentum": _STILL,
    "client_model": _STILL,
    "transformer": _STILL,
    "frozen_blocks": _STILL,
    "client_blocks": _STILL,
    "half_precision": _STILL,
    "shift": _STILL,
    "hidden": "the head is one linear layer",
    "top_model": "the head is the server's model",
    "softmax_outputs": "the head is softmax regression",
}


class FixedFeaturesConfig(HeadConfig):
    """Data-free features and a private head. An epoch is a step, which reads all records."""

    unused: ClassVar[Mapping[str, str]] = _UNUSED

    epochs: int = Field(200, ge=1, le=100_000)
    """Steps of gradient descent, T: each reads all records."""
    embedding: int = Field(128, ge=1, le=100_000)
    """Most features of a client; what a map does not fill takes no bytes."""
    features: Annotated[str, AfterValidator(_known)] = "auto"
    """Which data-free map; by default histograms of pictures, columns of tables, random features of wide ones."""
    uploads: Literal["clear", "encrypted"] = "clear"
    """Whether an eavesdropper can read the features that clients upload."""
    epsilon: float | None = Field(1.0, gt=0)
    """Claimed epsilon, from which the noise follows."""
    sigma: float | None = Field(None, ge=0)
    """Standard deviation of the noise on a sum of clipped gradients; overrides the rest."""
    clip: Positive = 0.1
    """L2 clip of a record's gradient, C, on rows whose norm is at most about 1."""
    server_rate: float = Field(16.0, ge=0)
    """Largest length of a step, where every record's gradient is at the clip and has one direction."""
    server_momentum: ServerMomentum = 0.9
    logit_noise: Positive = 2.5
    """Standard deviation that the noise of all steps may give a logit; where it would be more, steps are shorter."""

    @property
    def label_free(self) -> Literal["components", "patches"] | None:
        """See `TrainingConfig.label_free`."""
        return self.features if self.features in FITTED else None  # type: ignore[return-value]

    @property
    def data_free(self) -> str | None:
        """See `TrainingConfig.data_free`."""
        return None if self.features in FITTED else self.features


def sigma_of(config: FixedFeaturesConfig) -> float:
    """Return the standard deviation of the noise on a sum: 2 C sqrt(T) / mu of the claim, or as it is given."""
    if config.sigma is not None:
        return config.sigma
    if config.calibration == "none" or config.epsilon is None:
        return 0.0
    return sigma_sound(
        config.epsilon,
        config.delta,
        clip=config.clip,
        batch_size=1,
        participations=config.epochs,
        neighbours="replace-record",
    )


def rate_of(config: FixedFeaturesConfig, records: int) -> float:
    """Return the length of a step in units of the clip, which the rule gives: public, whatever the records are.

    With momentum m a step's noise moves a weight by rate sigma / (n C (1 - m)) in all, and a logit of a row of norm 1
    by as much; T steps by sqrt(T) times that.
    """
    sigma = sigma_of(config)
    if sigma == 0.0:
        return config.server_rate
    moved = sigma * math.sqrt(config.epochs) / (records * config.clip * (1.0 - config.server_momentum))
    return min(config.server_rate, config.logit_noise / moved)


def grid_of(config: FixedFeaturesConfig, records: int) -> Grid:
    """Return the public grid of the noised sums; `InputError` for a claim whose noise no grid holds."""
    try:
        return Grid.fit(config.clip, sigma_of(config), bits=GRID_BITS, records=records)
    except InputError as error:
        if config.sigma is not None:
            raise
        raise InputError(f"use a larger epsilon or delta: {error}", "epsilon", config.epsilon) from None


def noise_of(config: FixedFeaturesConfig, shape: tuple[int, ...], records: int, context: RunContext) -> GaussianNoise:
    """Return the noise on sums of `shape` over so many records, in whole steps of its `grid` where it has one."""
    sigma = sigma_of(config)
    grid = None if config.noise == "float" or sigma == 0.0 else grid_of(config, records)
    streams = context.noise_streams(torch.float64)
    return GaussianNoise(sigma, streams, shape=shape, purpose=Purpose.NOISE, grid=grid)


class FixedFeaturesRun:
    """One stack of K trainings in progress; see `mechanisms.core.method.Run`.

    The server's parameters are the head that would be released now: the present weights, and past half of the steps
    the mean since then.
    """

    def __init__(self, data: TrainingData, config: FixedFeaturesConfig, context: RunContext) -> None:
        self.federation = fed = Federation(data, config, context)
        self.config = config
        self.round = 0
        counts = [self._fit(number) for number in fed.numbers]
        # A public number: features have a mean square of about 1, so that a row has a norm of about 1.
        self._scale = 1.0 / math.sqrt(sum(counts) + 1)
        self._descent = self._begun(rows_of([self._upload(m) for m in fed.numbers], self._scale))
        self._total = torch.zeros_like(self._descent.weights)
        self._show(self._descent.weights)

    def _fit(self, number: int) -> int:
        """Set a client's model to its features, in every replica; return how many there are."""
        fed = self.federation
        client = fed.clients[number - 1]
        kind = self.config.data_free
        if kind is None:
            return self._fit_to_records(number)
        generator = stream(fed.context.seed, Purpose.FEATURES, number)
        made = fixed_map(kind, tuple(client.features.shape[1:]), fed.width, generator)
        for name, value in _state(made).items():
            client.parameters.views[name].copy_(value)
        return made.count

    def _fit_to_records(self, number: int) -> int:
        """Set a client's model to features that are fitted to all records of a replica, for a bound with a gap."""
        fed = self.federation
        block = fed.clients[number - 1].features
        kind = self.config.label_free
        assert kind is not None
        for place, replica in enumerate(fed.replicas):
            own = block if fed.data.selection is None else block[fed.data.selection[place]]
            drawn = {"seed": fed.context.seed, "client": number, "replica": replica}
            fed.clients[number - 1].parameters.flat[place] = fitted(own, kind, fed.width, **drawn).flat
        return fed.width

    def _upload(self, number: int) -> Tensor:
        """Send a client's features of all records; return what the server gets, (S, N, width)."""
        fed = self.federation
        client = fed.clients[number - 1]
        shared = self.config.data_free is not None and fed.data.selection is None
        rows = fed.embed_first(client)[None].expand(fed.stack, -1, -1) if shared else fed.embed_records(client)
        held = int(rows[:1].any(1).sum())
        message = Message(-1, number, SERVER, "table", rows, bits=held * fed.records * 32)
        received = fed.channel.send(message)
        # Replicas that were sent the same rows share them.
        return received[:1] if received.stride(0) == 0 else received

    def _begun(self, rows: Tensor) -> PrivateDescent:
        """Return the descent before its first step, with weights of 0."""
        fed = self.federation
        config = self.config
        shape = rows.shape[2], fed.data.classes
        noise = noise_of(config, shape, fed.records, fed.context)
        weights = torch.zeros(fed.stack, *shape, dtype=dtype_of(config), device=fed.device)
        return PrivateDescent(
            ClippedSums(rows, config.clip, noise.grid),
            all_labels(fed.data.labels, fed.data.soft, fed.stack),
            noise,
            rate_of(config, fed.records) / config.clip,
            config.server_momentum,
            weights,
            torch.zeros_like(weights),
            1.0 if noise.grid is None else noise.grid.step,
        )

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        return {"weights": self._descent.weights, "velocity": self._descent.velocity, "total": self._total}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.round = rounds
        self._descent.noise.skip_to(rounds)

    def step(self) -> None:
        """Run the next step: one noised sum over all records, by which alone the head moves."""
        descent, noised = self._descent, self.federation.context.noised
        descent.move(descent.noised() if noised is None else noised(descent.clear()))
        self.round += 1
        counted = self.round - self.config.epochs // 2
        if counted > 0:
            self._total += self._descent.weights
        self._show(self._total / counted if counted > 0 else self._descent.weights)

    def _show(self, weights: Tensor) -> None:
        """Set the server's parameters to a head on features as clients send them."""
        views = self.federation.server_parameters.views
        (weight, bias) = views.values()
        weight.copy_(weights[:, :-1].transpose(1, 2) * self._scale)
        bias.copy_(weights[:, -1] * self._scale)


def _state(made: Padded) -> dict[str, Tensor]:
    """Return the constants of a map by the names that its client's parameters have."""
    held = {name: value for name, value in made.named_buffers() if value.is_floating_point()}
    return {**dict(made.named_parameters()), **held}


def _released(config: FixedFeaturesConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return the noised sums of all steps, as an accountant takes them; () without noise."""
    if not config.noised:
        return ()
    release = Release(
        batch_size=deployment.records,
        dataset_size=deployment.records,
        rounds=config.epochs,
        clip=config.clip,
        sigma=sigma_of(config),
        sampler="shuffled",
        server_update="released",
        client_update="frozen",
        channel="model",
        # The server counts each record once a step, whatever clients send.
        participation_cap=config.epochs,
        distinct_ids=True,
        noise=config.noise,
        clear_uploads=config.uploads == "clear",
        seeded_noise=deployment.seeded_noise,
        data_dependent_side=deployment.data_dependent_side or config.features in FITTED,
    )
    return (release,)


_HEAD = "the released head, which follows from noised sums alone: features and labels alike, but for the server"
_RULED = "settings follow from public numbers"
_BY_HAND = "settings given by hand cost what was looked at to choose them, which no bound here includes"


def follows_rule(config: FixedFeaturesConfig) -> bool:
    """Return whether all settings that decide what is learnt are those of the rule, which looks at no record."""
    ruled = ("features", "embedding", "epochs", "clip", "server_rate", "server_momentum", "logit_noise")
    return all(getattr(config, name) == FixedFeaturesConfig.model_fields[name].default for name in ruled)


def _protection(config: FixedFeaturesConfig) -> Protection:
    nothing = Protection(epsilon=config.epsilon, delta=config.delta)
    if not config.noised:
        return nothing
    hidden = config.uploads == "encrypted"
    return replace(
        nothing,
        words=f"{_HEAD}; {_RULED if follows_rule(config) else _BY_HAND}",
        channel="model",
        audience=(
            "release",
            "client",
            "colluding-clients",
            "all-but-one",
            "malicious-client",
            *(("eavesdropper",) if hidden else ()),
        ),
        neighbours="replace-record",
        draws=True,
    )


_GAMES = Games(played=("sums",), why_not="the command audit method plays the game of its noised sums")

SPEC = MethodSpec(
    name="fixed-features",
    summary="clients send data-free features once; a linear head learns by private gradient descent: record privacy",
    config=FixedFeaturesConfig,
    run=FixedFeaturesRun,
    released=_released,
    protection=_protection,
    games=lambda config: _GAMES,
    downlink="none",
    own_noise=True,
    # These are the method's, whatever others take for the data.
    defaults={"embedding": 128, "epochs": 200, "server_rate": 16.0, "delta": 1e-5},
)
