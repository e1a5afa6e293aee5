"""Private zeroth-order training in one place (DPZero, arXiv 2310.09639; DP-ZO, arXiv 2401.04343), for K replicas.

One trainer holds labels and features. Each round it moves its whole model along one direction, w + lambda u and
w - lambda u, and releases one number: the mean of the records' clipped loss differences plus Gaussian noise. The model
steps along u by it, and so is a function of released numbers and of public directions.

This is DPZV's scalar channel (`dpzv`, eqs. 7 and 8) with one sender, so that clip, grid and noise are those. Where the
data come in several blocks each has a part of the model, and the server's layers are one more: all parts move in the
same two evaluations, on one batch, and step by the one scalar. What the parts send each other stays at the trainer.

Whoever sees what is released knows the directions, which hide nothing. It need not know the batches: with the sampler
`uniform` their secrecy amplifies the bound against `release`, and calibration counts on it. Against whoever does know
them (`client`, `all-but-one`: a log of record ids) it does not hold.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Literal

from dpzv_audit.accounting import Release, calibrate
from dpzv_audit.accounting.release import SamplerName
from dpzv_audit.base.errors import InputError

from ..core.config import ClientMomentum, ClientRate, Positive, ServerMomentum, ServerRate
from ..core.context import Deployment, Plan, RunContext, TrainingData
from ..core.method import Protection, Run
from ..core.scalars import scalar_release
from .dpzv import DPZV, DPZVConfig

_ONE_AT_A_TIME = ("activation", "activation_probabilities", "compute_times")


class DPZOConfig(DPZVConfig):
    """Central zeroth-order training: `dpzv` whose parts are one model, of one trainer."""

    client_rate: ClientRate = 0.05
    server_rate: ServerRate = 0.05
    momentum: ClientMomentum = 0.0
    server_momentum: ServerMomentum = 0.0
    sampler: SamplerName = "uniform"
    """How the trainer draws its batches; the secrecy of uniform ones amplifies."""
    clip: Positive = 1.0
    """Clipping threshold of a record's difference, C."""
    calibration: Literal["sound", "none"] = "sound"
    """Noise follows from the claim against an adversary who sees releases but no batches, or there is none."""
    server_update: Literal["joint-zo"] = "joint-zo"
    """All parts of the model step by the released scalar."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        for name in _ONE_AT_A_TIME:
            other = getattr(self, name) != DPZVConfig.model_fields[name].default
            yield other, f"{name} does not apply: all parts of the model take part in every round"

    @property
    def all_at_once(self) -> bool:
        """See `TrainingConfig.all_at_once`."""
        return True

    def check_sampler(self) -> None:
        """Accept every sampler: of those whose secrecy does not amplify every participation counts in full."""

    def sound_sigma(self, plan: Plan, deployment: Deployment) -> float:
        """Return the noise of calibration sound: for a record replaced, against who does not know the batches."""
        assert self.epsilon is not None
        unit = scalar_release(self, replace(plan, sigma=self.clip / self.batch_size), deployment)
        # The noise is what it is to be; how it is drawn, and what else was published, a bound on it says.
        stated = replace(unit, noise="exact", seeded_noise=False, seeded_batches=False, data_dependent_side=False)
        return _calibrated(stated, self.epsilon, self.delta)


@cache
def _calibrated(release: Release, epsilon: float, delta: float) -> float:
    """Return the noise that (`epsilon`, `delta`) takes; `InputError` where no sound bound reaches it."""
    answer = calibrate(
        release, unknown="sigma", epsilon=epsilon, delta=delta, adversary="release", neighbours="replace-record"
    )
    if not answer.reached or answer.value is None:
        raise InputError(f"; use another setting: {answer.reason}", "calibration", "sound")
    return float(answer.value)


def _run(data: TrainingData, config: DPZOConfig, context: RunContext) -> Run:
    """Start the rounds, which load torch: settings and bounds need none."""
    from .dpzo_run import DPZORun

    return DPZORun(data, config, context)


def _protection(config: DPZOConfig) -> Protection:
    words = "the released scalars, and so the model, which is a function of them: labels and features alike"
    protection = DPZV.protection(config)
    return replace(
        protection,
        words=words if protection.draws else protection.words,
        audience=("release", "eavesdropper", "client", "colluding-clients", "all-but-one"),
        neighbours="replace-record",
    )


SPEC = replace(
    DPZV,
    name="dp-zo",
    summary="central training of zeroth order: one clipped, noised scalar per round is all that is released (DPZero)",
    config=DPZOConfig,
    run=_run,
    protection=_protection,
)
