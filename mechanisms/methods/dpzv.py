"""DPZV: differentially private zeroth-order vertical federated learning (paper 001, algorithm 1), for K replicas.

Each round the active client sends its embeddings under w_m + lambda u and w_m - lambda u; the server answers with one
number, the mean of the records' clipped loss differences plus Gaussian noise; the client steps along u by it.
`dpzv-sound` is the same with the server perturbed in the same two evaluations, so that one noised release pays for
both updates and the server's state is a function of released values.

The scalar (eqs. 7 and 8): with `grid` noise each record's clipped difference is a whole number of steps g = C / 2^20,
the sum is exact, and the noise is a rounded Gaussian in steps; only the released sum is turned into a float. With
`float` noise the mean of the clipped differences and a Gaussian are in the run's precision, whose low bits can prove a
label. The server: `sgd` and `zo` step by true labels without noise (options i, ii); `joint-zo` perturbs the server in
the same two evaluations and steps by the released scalar; `dp-sgd` clips and noises per-record gradients; `frozen` does
nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dpzv_audit.accounting import Release, sigma_from_paper, sigma_sound
from dpzv_audit.base.errors import InputError
from dpzv_audit.base.limits import MOST_DIRECTIONS, MOST_ROUNDS
from dpzv_audit.base.seeds import Purpose

from ..core.baselines import AsyncRun, ZerothOrderParty, stated
from ..core.channel import SERVER
from ..core.config import AsyncConfig, Delta, Positive, TrainingConfig
from ..core.context import Deployment, Plan, RunContext, TrainingData, dtype_of, repeats_of, schedule
from ..core.federation import Federation
from ..core.method import Differences, Games, MethodSpec, Protection
from ..core.noise import GRADIENT_BITS, SCALAR_BITS, ClipRule, GaussianNoise, Grid, clip, nearest_steps
from ..core.replicas import (
    ServerBatch,
    Targets,
    add_clipped_gradient_steps,
    clipped_gradient_sum,
    loss_differences,
    shift_in_place,
)
from ..core.streams import Batch


class DPZVConfig(AsyncConfig):
    """DPZV (paper 001, algorithm 1) with every reading that the paper leaves open; defaults are table 3's values."""

    epsilon: float | None = Field(1.0, gt=0)
    """Claimed epsilon, from which the noise follows."""
    delta: Delta = 1e-5
    """Delta of the claim."""
    calibration: Literal["paper", "sound", "none"] = "paper"
    """How noise follows from the claim: theorem 5.1, the sound bound, or no noise."""
    sigma: float | None = Field(None, ge=0)
    """Standard deviation of the scalar's noise; overrides the rest."""
    clip: Positive = 10.0
    """Clipping threshold of a record's difference, C."""
    clip_rule: ClipRule = "symmetric"
    """symmetric, or paper-one-sided: min(x, C) as eq. 8 prints."""
    difference: Literal["central", "paper"] = "central"
    """Divide by 2 lambda (eq. 3, unbiased) or by lambda (eq. 7 as printed)."""
    smoothing: Positive = 1e-3
    """Smoothing parameter of the clients, lambda."""
    server_smoothing: Positive = 1e-3
    """Smoothing of the server, lambda_0, for zo and joint-zo."""
    server_update: Literal["sgd", "zo", "joint-zo", "dp-sgd", "frozen"] = "sgd"
    """How the server trains its top model."""
    server_clip: Positive = 1.0
    """Per-record gradient clip of dp-sgd."""
    server_noise_multiplier: float = Field(0.0, ge=0)
    """dp-sgd: noise on the sum over the batch, as a multiple of server_clip."""
    perturbation: Literal["functional", "in-place"] = "functional"
    """Perturb copies, or in place with u drawn again from its seed (MeZO)."""
    directions: int = Field(1, ge=1, le=MOST_DIRECTIONS)
    """Directions averaged into one step, q: each is a round of its own, with its release."""
    participation_cap: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """The server ignores a record after this many rounds."""
    distinct_ids: bool = False
    """The server ignores repetitions of a record within a batch."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        claimed = self.sigma is None and self.calibration != "none"
        missing = f"epsilon is missing: calibration {self.calibration} needs it (or give sigma)"
        yield claimed and self.epsilon is None, missing
        one_sided = self.calibration == "sound" and self.clip_rule == "paper-one-sided"
        infinite = "calibration sound needs clip_rule symmetric: one-sided clipping has no finite sensitivity"
        yield claimed and one_sided, infinite
        averaged = self.directions > 1 and self.perturbation == "in-place"
        yield averaged, "directions above 1 needs perturbation functional"
        noiseless = self.server_update == "dp-sgd" and self.server_noise_multiplier == 0.0
        yield noiseless, "server_update dp-sgd needs server_noise_multiplier above 0"

    def check_sampler(self) -> None:
        """Raise `InputError` where sound calibration does not know how often a record takes part."""
        if self.calibration == "sound" and self.sigma is None and self.sampler != "shuffled":
            rule = f" with sampler {self.sampler!r}, must be used with sampler shuffled"
            raise InputError(rule, "calibration", self.calibration)

    def sound_sigma(self, plan: Plan, deployment: Deployment) -> float:
        """Return the noise of calibration sound: for a record's label or features replaced, batches known."""
        assert self.epsilon is not None
        assert plan.participations is not None  # `check_sampler` refuses other samplers
        return sigma_sound(
            self.epsilon,
            self.delta,
            clip=self.clip,
            batch_size=self.batch_size,
            participations=plan.participations,
            neighbours="replace-label",
            server_noise_multiplier=_server_noise(self),
        )


def plan_run(config: DPZVConfig, deployment: Deployment) -> Plan:
    """Decide the schedule and the noise of a run; `InputError` where the configuration does not fit the data.

    The noise is a property of the system that is deployed: whoever attacks or audits it, under whatever neighbour
    relation, meets the same.
    """
    plan = schedule(config, deployment)
    participations = plan.participations
    if participations is None and any(r > 1 for r in deployment.repeats.values()):
        raise InputError("must be shuffled where a client queries a batch repeatedly", "sampler", config.sampler)
    if config.participation_cap is not None and participations is not None:
        participations = min(participations, config.participation_cap)
    each = plan.rounds_by_client * (deployment.clients if config.all_at_once else 1)
    plan = replace(plan, participations=participations, rounds_by_client=each)
    return replace(plan, sigma=_sigma(config, plan, deployment))


def scalar_release(config: DPZVConfig, plan: Plan, deployment: Deployment) -> Release:
    """Return the noised scalars of `plan` as an accountant takes them."""
    return stated(
        config,
        # Parts that move together answer one scalar a round, about one batch, and keep nothing of earlier ones.
        replace(deployment, clients=1) if config.all_at_once else deployment,
        plan,
        sigma=plan.sigma,
        update=config.server_update,
        **config.model_dump(include={"clip", "clip_rule", "participation_cap", "distinct_ids"}),
        server_noise_multiplier=_server_noise(config),
    )


def _server_noise(config: DPZVConfig) -> float | None:
    """Return the noise multiplier of the server's own release, None where it makes none.

    dp-sgd steps on the batch of each round: a record joins both releases or neither, however often it takes part.
    """
    return config.server_noise_multiplier if config.server_update == "dp-sgd" else None


def _sigma(config: DPZVConfig, plan: Plan, deployment: Deployment) -> float:
    """Return the scalar's noise as the configuration has it follow."""
    if config.sigma is not None:
        return config.sigma
    if config.calibration == "none" or config.epsilon is None:
        return 0.0
    if config.calibration == "paper":
        # Noise that followed from D would differ between data sets of which one has a record more.
        size = deployment.records if config.sample_rate is None else config.batch_size / config.sample_rate
        rounds = len(plan.active)
        return sigma_from_paper(config.epsilon, config.delta, clip=config.clip, dataset_size=size, rounds=rounds)
    return config.sound_sigma(plan, deployment)


class ScalarChannel:
    """Clips, sums, noises and scales the scalars of K replicas (paper 001, eq. 8).

    Without noise (`sigma` 0) nothing is rounded. `grid` is that of a record's difference, None where the channel
    computes in floating point; `noise` has one draw per round, in the unit of `sums`.
    """

    def __init__(self, config: DPZVConfig, sigma: float, context: RunContext) -> None:
        """`sigma` is the standard deviation of the noise on the mean."""
        self._config = config
        self._dtype = dtype_of(config)
        total = sigma * config.batch_size
        self.grid = Grid.of(config.noise, config.clip, total, bits=SCALAR_BITS)
        std = sigma if self.grid is None else total
        streams = context.streams(self._dtype)
        self.noise = GaussianNoise(std, origin=context.origin, grid=self.grid, **streams)

    def sums(self, differences: Tensor, scale: float, weights: Tensor | None) -> Tensor:
        """Return what noise is added to, (K,): whole numbers of steps in float64; without a grid the clipped mean.

        `differences` (K, B), which are changed in place, times `scale` are the delta_i; `weights` (K, B), 0 or 1, say
        which records count. On the grid one record moves its sum by at most 2^(bits + 1) where it is replaced.
        """
        config = self._config
        if self.grid is None:
            clipped = clip(differences.mul_(scale), config.clip, config.clip_rule)
            if weights is not None:
                clipped = clipped * weights
            return clipped.sum(1).mul_(1.0 / config.batch_size)
        steps = nearest_steps(differences, scale, self.grid, config.clip_rule)
        if weights is not None:
            steps.mul_(weights)
        return steps.sum(1, dtype=torch.float64)

    def scalars(self, sums: Tensor) -> Tensor:
        """Return noised sums (K,) as they are released: the mean, in the run's precision."""
        if self.grid is None:
            return sums
        return sums.mul(self.grid.step / self._config.batch_size).to(self._dtype)


class ServerTrainer:
    """The server's part of a round beside the scalar: the loss differences it computes, and its own update."""

    def __init__(self, federation: Federation, config: DPZVConfig) -> None:
        self._fed = federation
        self._config = config
        d = federation.server_parameters.flat.shape[1]
        self.update = config.server_update if d and config.server_rate > 0 else "frozen"
        count = config.directions if self.update == "joint-zo" else 1
        self.party = ZerothOrderParty(federation, SERVER, "sphere", count=count)
        std = config.server_noise_multiplier * config.server_clip if self.update == "dp-sgd" else 0.0
        # A Poisson batch of so many that it matters never has twice the records it is expected to have.
        grid = Grid.of(config.noise, config.server_clip, std, bits=GRADIENT_BITS, records=config.batch_size)
        self._noise = GaussianNoise(
            std / config.batch_size if grid is None else std,
            shape=(d,),
            purpose=Purpose.SERVER_NOISE,
            origin=federation.context.origin,
            grid=grid,
            **federation.streams,
        )

    def skip_to(self, rounds: int) -> None:
        """Go to where `rounds` rounds are done."""
        if self.update == "dp-sgd":
            self._noise.skip_to(rounds)

    def loss_differences(self, round_: int, batch: ServerBatch, uploads: Tensor, slot: slice) -> Tensor:
        """Loss at h+ less loss at h- of each record, (K, B); with joint-zo at w_0 +- lambda_0 u_0 as well.

        The `slot` of the table's rows gives way to `uploads` (K, 2, B, width).
        """
        fed = self._fed
        if self.update != "joint-zo":
            logits = fed.server.pair_logits(fed.server_parameters, batch.rows, uploads, slot)
            return loss_differences(logits, batch.labels)
        pair = batch.rows.unsqueeze(1).repeat(1, 2, 1, 1)
        pair[..., slot] = uploads
        return self._moved_differences(round_, pair.flatten(0, 1), batch.labels)

    def _moved_differences(self, round_: int, rows: Tensor, labels: Targets) -> Tensor:
        """Losses at w_0 + lambda_0 u_0 less those at w_0 - lambda_0 u_0, (K, B); `rows` (2K, B, n) are of each."""
        smoothing = self._config.server_smoothing
        moved = self.party.moved(round_, smoothing, -smoothing)
        logits = self._fed.server.forward(moved, rows)
        return loss_differences(logits.reshape(labels.shape[0], -1, logits.shape[2]), labels)

    def step(self, round_: int, batch: ServerBatch, scalar: Tensor) -> None:
        """Update w_0; `scalar` (K,) is what this round releases."""
        config = self._config
        if self.update == "joint-zo":
            self.party.step(round_, scalar * (config.smoothing / config.server_smoothing))
        elif self.update == "sgd":
            self._fed.train_server(batch)
        elif self.update == "zo":
            self._fed.step_server(self._zeroth_order_gradient(round_, batch))
        elif self.update == "dp-sgd":
            self._fed.step_server(self._private_gradient(batch))

    def _zeroth_order_gradient(self, round_: int, batch: ServerBatch) -> Tensor:
        """Return the server's own two-point estimate (eq. 3) of the batch loss, neither clipped nor noised."""
        rows = batch.rows.repeat_interleave(2, 0)
        differences = self._moved_differences(round_, rows, batch.labels)
        scale = 2.0 * self._config.server_smoothing * self._config.batch_size
        scalar = batch.counted(differences).sum(1, keepdim=True) / scale
        return self.party.directions.at(round_) * scalar

    def _private_gradient(self, batch: ServerBatch) -> Tensor:
        """DP-SGD: per-record gradients clipped to `server_clip`, summed and noised in whole steps or not, averaged."""
        config = self._config
        grid = self._noise.grid
        server = self._fed.server
        parameters = self._fed.server_parameters
        noise = self._noise.next()
        if grid is None:
            total = clipped_gradient_sum(server, parameters, batch, config.server_clip)
            return noise + total / config.batch_size
        add_clipped_gradient_steps(server, parameters, batch, grid, noise)
        return noise.mul_(grid.step / config.batch_size).to(self._fed.dtype)


class DPZVRun(AsyncRun[DPZVConfig]):
    """DPZV; see `AsyncRun.two_point_round`."""

    def __init__(self, data: TrainingData, config: DPZVConfig, context: RunContext) -> None:
        deployment = Deployment(
            records=data.records,
            clients=len(data.features),
            seed=context.seed,
            repeats=repeats_of(context.behaviours),
        )
        self.plan = context.plan or plan_run(config, deployment)
        super().__init__(data, config, context, iter(self.plan.active))
        fed = self.federation
        self._channel = ScalarChannel(config, self.plan.sigma, context)
        self._server = ServerTrainer(fed, config)
        numbers = range(1, len(fed.clients) + 1)
        self._parties = {m: ZerothOrderParty(fed, m, "sphere", count=config.directions) for m in numbers}
        steps = 2.0 if config.difference == "central" else 1.0
        self._scale = 1.0 / (steps * config.smoothing)
        places = fed.stack * fed.records + 1
        self._counts = torch.zeros(places, dtype=torch.int32, device=fed.device)
        if config.keeps_table:
            fed.fill_table(context.behaviours)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        parties = self._parties.items()
        return {
            "participations": self._counts,
            "server-averaged": self._server.party.total,
            **{f"client-{m}-averaged": party.total for m, party in parties},
        }

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        super().skip_to(rounds)
        self._channel.noise.skip_to(rounds)
        self._server.skip_to(rounds)

    def step(self) -> None:
        """Run the next round (algorithm 1, lines 3 to 10)."""
        self.two_point_round("scalar", self._embed_twice, self._serve, self._client_step)

    def _embed_twice(self, number: int, own_round: int, batch: Batch) -> Tensor:
        """h+ and h- (eq. 6), shape (K, 2, B, width)."""
        fed = self.federation
        smoothing = self.config.smoothing
        party = self._parties[number]
        if self.config.perturbation != "in-place":
            moved = party.moved(own_round, smoothing, -smoothing)
            return fed.embed_pair(number, batch, moved)
        client = fed.clients[number - 1]
        shift = partial(shift_in_place, party.parameters, party.directions, own_round)
        inputs = fed.inputs(client, batch)
        pair = []
        for scale in (smoothing, -2.0 * smoothing):
            shift(scale)
            pair.append(client.evaluator.forward(party.parameters, inputs))
        shift(smoothing)
        return torch.stack(pair, 1)

    def _serve(self, batch: Batch, uploads: dict[int, Tensor]) -> dict[int, Tensor]:
        """One clipped, noised scalar (K,), eqs. 7 and 8, once the table has the mean of h+ and h-; the server steps."""
        fed = self.federation
        rows, pair, slot = self._received(batch, uploads)
        seen = ServerBatch(rows, fed.data.batch_labels(batch), self._accepted(batch))
        differences = self._server.loss_differences(self.round, seen, pair, slot)
        sums = self._channel.sums(differences, self._scale, seen.weights)
        noised = fed.context.noised
        released = fed.context.released
        sums = noised(sums) if noised else sums + self._channel.noise.next()
        scalar = self._channel.scalars(sums)
        if released is not None:
            scalar = released(scalar)
        self._server.step(self.round, seen, scalar)
        return dict.fromkeys(uploads, scalar)

    def _received(self, batch: Batch, uploads: dict[int, Tensor]) -> tuple[Tensor, Tensor, slice]:
        """Return the table's rows (K, B, n) once they have the mean of the uploads, the pair, and its place in them."""
        fed = self.federation
        ((number, pair),) = uploads.items()
        plus, minus = pair.unbind(1)
        return fed.refresh(number, batch, torch.lerp(plus, minus, 0.5)), pair, fed.slots[number - 1]

    def _accepted(self, batch: Batch) -> Tensor | None:
        """Weights (K, B) of the records that count: padding does not, nor do records past the server's limits."""
        cap = self.config.participation_cap
        weights = batch.weights
        if self.config.distinct_ids:
            first = _first_occurrences(batch.ids)
            weights = first if weights is None else weights & first
        if cap is not None:
            counts = self._counts.index_select(0, batch.places)
            allowed = counts.view(batch.ids.shape) < cap
            weights = allowed if weights is None else weights & allowed
            self._counts.index_add_(0, batch.places, weights.flatten().to(torch.int32))
        return None if weights is None else weights.to(self.federation.dtype)

    def _client_step(self, number: int, own_round: int, scalar: Tensor) -> None:
        """w_m <- w_m - eta_m Delta u (eq. 9), with momentum; the average of q such estimates every q own rounds."""
        config = self.config
        party = self._parties[number]
        if config.client_rate == 0:
            return
        if config.perturbation == "in-place" and config.momentum == 0.0:
            scale = scalar.unsqueeze(1) * -self.federation.optimizers[number].rate
            shift_in_place(party.parameters, party.directions, own_round, scale)
        else:
            party.step(own_round, scalar)


def _first_occurrences(ids: Tensor) -> Tensor:
    """Whether each of (K, B) ids is the first of its kind in its row."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(first).scatter_(1, order, first)


def _protection(config: DPZVConfig) -> Protection:
    scalars = config.sigma != 0.0 if config.sigma is not None else config.calibration != "none"
    server = config.server_update == "dp-sgd" and config.server_rate > 0 and config.top_model
    if scalars:
        words = "the scalar from the server to the client, hence labels; nothing protects the embeddings sent up"
        if config.server_update == "joint-zo":
            words += "; the server's state is a function of released scalars"
    elif server:
        words = "the server's own gradients; nothing protects the scalars, or the embeddings sent up"
    else:
        words = Protection.words
    return Protection(
        words=words,
        channel="scalar",
        audience=("client", "colluding-clients", "all-but-one", "malicious-client", "eavesdropper", "release"),
        draws=scalars or server,
        not_released="the scalars are sent without noise" if server and not scalars else "",
        epsilon=config.epsilon,
        delta=config.delta,
    )


def _releases(config: DPZVConfig, deployment: Deployment) -> tuple[Release, ...]:
    plan = plan_run(config, deployment)
    return (scalar_release(config, plan, deployment),) if plan.sigma > 0.0 else ()


def _differences(config: DPZVConfig) -> Differences:
    return Differences(
        smoothing=config.smoothing,
        two_sided=True,
        records=config.batch_size,
        clip=config.clip,
        unit=config.difference == "central",
        pairs=config.perturbation == "functional",
    )


def scalar_config(method: MethodSpec, config: TrainingConfig) -> DPZVConfig | None:
    """Return `config` where the games on noised scalars can be played on `method`, else None.

    They speak of what `scalar_release` states: a method that states another release is accounted by that alone.
    """
    if "scalars" not in method.games(config).played or method.released is not _releases:
        return None
    if not isinstance(config, DPZVConfig):
        raise TypeError(f"{method.name} offers games on scalars, so its {type(config).__name__} must be a DPZVConfig")
    return config


DPZV = MethodSpec(
    name="dpzv",
    summary="asynchronous, zeroth order; the server answers with one clipped, noised scalar (DPZV, algorithm 1)",
    config=DPZVConfig,
    run=DPZVRun,
    released=_releases,
    protection=_protection,
    games=lambda config: Games(("scalars",)),
    downlink="scalar",
    plan=plan_run,
    differences=_differences,
    deviation="uploads",
    own_noise=True,
)
DPZV_SOUND = replace(
    DPZV,
    name="dpzv-sound",
    summary="dpzv whose server steps by the same noised scalar and whose noise is calibrated against known batches",
    defaults={
        "server_update": "joint-zo",
        "calibration": "sound",
        "clip": 1.0,
        "client_rate": 1e-3,
        "server_rate": 1e-3,
        "momentum": 0.0,
        "server_momentum": 0.0,
    },
)
