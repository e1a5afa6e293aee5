"""The clipped, noised scalar with which a server answers: its settings, schedule, noise and release (paper 001, eq. 8).

With `grid` noise each record's clipped difference is a whole number of steps g = C / 2^20, the sum is exact, and the
noise is a rounded Gaussian in steps; only the released sum is turned into a float. With `float` noise the mean of the
clipped differences and a Gaussian are in the run's precision, whose low bits can prove a label.

Games, evidence and attacks ask for this, whatever method sends such scalars.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpzv_audit.accounting import Release, sigma_from_paper, sigma_sound
from dpzv_audit.accounting.release import ClipRule
from dpzv_audit.base.errors import InputError
from dpzv_audit.base.limits import MOST_DIRECTIONS, MOST_ROUNDS
from dpzv_audit.base.seeds import Purpose

from .config import AsyncConfig, Delta, Positive, TrainingConfig
from .context import Deployment, Plan, RunContext, dtype_of, schedule, stated
from .method import MethodSpec

if TYPE_CHECKING:
    from torch import Tensor


class ScalarConfig(AsyncConfig):
    """Settings of methods whose server answers with one clipped, noised scalar; defaults are paper 001's table 3."""

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
    """Smoothing of the server, lambda_0, for zo, dp-zo and joint-zo."""
    server_update: Literal["sgd", "zo", "joint-zo", "dp-sgd", "dp-zo", "frozen"] = "sgd"
    """How the server trains its top model."""
    server_clip: Positive = 1.0
    """Clip of a record at the server: of its gradient (dp-sgd), or of its loss difference (dp-zo)."""
    server_noise_multiplier: float = Field(0.0, ge=0)
    """dp-sgd, dp-zo: noise on the sum over the batch, as a multiple of server_clip."""
    direction: Literal["sphere", "gaussian", "rademacher"] = "sphere"
    """Distribution of the directions: the sphere of radius sqrt(d), or another of the same second moments."""
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
        noiseless = self.server_noised and self.server_noise_multiplier == 0.0
        yield noiseless, f"server_update {self.server_update} needs server_noise_multiplier above 0"

    def answered_losses(self, clients: int) -> int:
        """See `TrainingConfig.answered_losses`: at h+ and at h-."""
        return 2

    @property
    def server_noised(self) -> bool:
        """Return whether the server steps by a release of its own, which is clipped, noised and accounted."""
        return self.server_update in ("dp-sgd", "dp-zo")

    def check_sampler(self) -> None:
        """Raise `InputError` where sound calibration does not know how often a record takes part."""
        if self.calibration == "sound" and self.sigma is None and self.sampler != "shuffled":
            rule = f" with sampler {self.sampler!r}; use it with sampler shuffled"
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


def plan_run(config: ScalarConfig, deployment: Deployment) -> Plan:
    """Decide the schedule and the noise of a run; `InputError` where the configuration does not fit the data.

    The noise is a property of the system that is deployed: whoever attacks or audits it, under whatever neighbour
    relation, meets the same.
    """
    plan = schedule(config, deployment)
    participations = plan.participations
    if participations is None and any(r > 1 for r in deployment.repeats.values()):
        raise InputError("use shuffled where a client queries a batch repeatedly", "sampler", config.sampler)
    if config.participation_cap is not None and participations is not None:
        participations = min(participations, config.participation_cap)
    each = plan.rounds_by_client * (deployment.clients if config.all_at_once else 1)
    plan = replace(plan, participations=participations, rounds_by_client=each)
    return replace(plan, sigma=_sigma(config, plan, deployment))


def scalar_release(config: ScalarConfig, plan: Plan, deployment: Deployment) -> Release:
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


def _server_noise(config: ScalarConfig) -> float | None:
    """Return the noise multiplier of the server's own release, None where it makes none.

    The server steps on the batch of each round: a record joins both releases or neither, however often it takes part.
    """
    return config.server_noise_multiplier if config.server_noised else None


def _sigma(config: ScalarConfig, plan: Plan, deployment: Deployment) -> float:
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


class NoisedScalars:
    """Clips, sums, noises and scales the scalars of K replicas (paper 001, eq. 8).

    Without noise (`sigma` 0) nothing is rounded. `grid` is that of a record's difference, None where the channel
    computes in floating point; `noise` has one draw per round, in the unit of `sums`.
    """

    def __init__(
        self,
        config: ScalarConfig,
        sigma: float,
        context: RunContext,
        *,
        clip: float | None = None,
        clip_rule: ClipRule | None = None,
        purpose: Purpose = Purpose.NOISE,
    ) -> None:
        """`sigma` is the standard deviation of the noise on the mean; `clip` and `clip_rule` stand in for its own."""
        from .noise import SCALAR_BITS, GaussianNoise, Grid

        self._size = config.batch_size
        self._clip = clip or config.clip
        self._rule = clip_rule or config.clip_rule
        self._dtype = dtype_of(config)
        total = sigma * config.batch_size
        self.grid = Grid.of(config.noise, self._clip, total, bits=SCALAR_BITS)
        std = sigma if self.grid is None else total
        self.noise = GaussianNoise(std, context.noise_streams(self._dtype), purpose=purpose, grid=self.grid)

    def sums(self, differences: "Tensor", scale: float, weights: "Tensor | None") -> "Tensor":
        """Return what noise is added to, (K,): whole numbers of steps in float64; without a grid the clipped mean.

        `differences` (K, B), which are changed in place, times `scale` are the delta_i; `weights` (K, B), 0 or 1, say
        which records count. On the grid one record moves its sum by at most 2^(bits + 1) where it is replaced.
        """
        import torch

        from .noise import clip, nearest_steps

        if self.grid is None:
            clipped = clip(differences.mul_(scale), self._clip, self._rule)
            if weights is not None:
                clipped = clipped * weights
            return clipped.sum(1).mul_(1.0 / self._size)
        steps = nearest_steps(differences, scale, self.grid, self._rule)
        if weights is not None:
            steps.mul_(weights)
        return steps.sum(1, dtype=torch.float64)

    def scalars(self, sums: "Tensor") -> "Tensor":
        """Return noised sums (K,) as they are released: the mean, in the run's precision."""
        if self.grid is None:
            return sums
        return sums.mul(self.grid.step / self._size).to(self._dtype)


def released_scalars(config: ScalarConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return the scalars of a training under noise; () where none is added."""
    plan = plan_run(config, deployment)
    return (scalar_release(config, plan, deployment),) if plan.sigma > 0.0 else ()


def scalar_config(method: MethodSpec, config: TrainingConfig) -> ScalarConfig | None:
    """Return `config` where the games on noised scalars can be played on `method`, else None.

    They speak of what `scalar_release` states: a method that states another release is accounted by that alone.
    """
    if "scalars" not in method.games(config).played or method.released is not released_scalars:
        return None
    if not isinstance(config, ScalarConfig):
        raise TypeError(
            f"{method.name} offers games on scalars, which need a ScalarConfig, not a {type(config).__name__}"
        )
    return config
